//! Axes: what really varies, so that a claim can have a scope.

use schemas::campaign::{Axis, ContractPointer, Preregistration, TestedAxis};

use super::super::problem::Problems;
use super::places;

pub(super) fn check(document: &Preregistration, problems: &mut Problems) {
    for (index, axis) in document.axes.iter().enumerate() {
        let at = format!("/axes/{index}");
        problems.require(
            document.axes[..index].iter().all(|other| other.axis != axis.axis),
            format!("{at}/axis"),
            "is an earlier axis",
            "name each axis once, with all of its points",
        );
        check_places(document, axis, &at, problems);
        check_points(axis, &at, problems);
    }
}

/// An axis has places, and some arm may differ there.
fn check_places(document: &Preregistration, axis: &TestedAxis, at: &str, problems: &mut Problems) {
    let at = format!("{at}/pointers");
    problems.require(
        !axis.pointers.is_empty(),
        &at,
        "is empty; expected at least one place",
        "name where in the contract the axis is, such as /architecture/hidden_size",
    );
    let named = axis.pointers.iter().enumerate();
    places::check(named.clone().map(|(index, pointer)| (pointer, format!("{at}/{index}"))), problems);
    for (index, pointer) in named.filter(|(_, pointer)| pointer.is_well_formed()) {
        let members = members(axis.axis);
        problems.require(
            members.iter().any(|member| places::covers(&ContractPointer((*member).to_owned()), pointer)),
            format!("{at}/{index}"),
            format!("{pointer} is no place of this axis"),
            format!("the axis is at {}", members.join(", ")),
        );
        let mut declared = document.arms.iter().flat_map(|arm| &arm.declared);
        problems.require(
            declared.any(|difference| places::overlap(&difference.pointer, pointer)),
            format!("{at}/{index}"),
            format!("no arm may differ at {pointer}"),
            "an axis is tested by arms that differ along it; declare the place in theirs",
        );
    }
}

/// Where an axis is in a contract (`docs/FORMAT.md`, "Campaigns").
const fn members(axis: Axis) -> &'static [&'static str] {
    match axis {
        Axis::Architecture => &["/architecture"],
        Axis::Batch => &["/batch"],
        Axis::Data | Axis::Modality => &["/data"],
        Axis::Depth => &["/architecture/num_layers"],
        Axis::Duration => &["/budget", "/schedule", "/stopping"],
        Axis::HardwareTopology => &["/environment", "/topology"],
        Axis::Optimizer => &["/credit", "/schedule", "/update"],
        Axis::Width => &[
            "/architecture/head_dim",
            "/architecture/hidden_size",
            "/architecture/intermediate_size",
            "/architecture/num_heads",
            "/architecture/num_kv_heads",
        ],
    }
}

/// An axis with one point is not tested.
fn check_points(axis: &TestedAxis, at: &str, problems: &mut Problems) {
    let at = format!("{at}/points");
    problems.require(
        axis.points.len() >= 2,
        &at,
        format!("has {}; expected at least 2", axis.points.len()),
        "what was run at one point says nothing of the axis; leave it out, or run another point",
    );
    for (index, point) in axis.points.iter().enumerate() {
        let at = format!("{at}/{index}");
        problems.require(
            point.len() == axis.pointers.len(),
            &at,
            format!("has {} values for {} places", point.len(), axis.pointers.len()),
            "give one value for each place of `pointers`, in their order",
        );
        problems.require(
            !axis.points[..index].contains(point),
            at,
            "is an earlier point",
            "name each point once",
        );
    }
}
