//! What the raw distances of a probe say. The validator derives the same from
//! the entry, without this code; here it decides whether a checkpoint is called
//! resume-qualified, and what a person is told.

use schemas::body::{Distance, InertReason, ProbeResultDet, RecordField};
use schemas::contract::{Contract, EquivalenceClass, ScheduleShape, StoppingRule};
use schemas::state::StateClass;
use serde::Serialize;

use super::statistical;

/// What a probe or a control came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The resumed trajectory is the reference, in the contract's class.
    Matches,
    /// It is not.
    Differs,
    /// A control that could not differ, and why is on record.
    Inert,
}

/// Whether a distance is one that the contract's class allows.
fn is_within(distance: &Distance, equal: bool, contract: &Contract) -> bool {
    match (contract.resume.class, &contract.resume.tolerance) {
        (EquivalenceClass::OperationOrderBounded, Some(tolerance)) => {
            distance.max_absolute_beyond_relative.0 <= tolerance.max_absolute
        }
        _ => equal,
    }
}

/// Whether everything is within the contract's class: ids and counters exactly,
/// numbers within its bounds.
fn is_met(det: &ProbeResultDet, contract: &Contract, ignored: &[StateClass]) -> bool {
    if contract.resume.class == EquivalenceClass::Statistical {
        return statistical::is_met(det, contract, ignored);
    }
    let records = det.records.iter().all(|record| match record.record {
        RecordField::Counters | RecordField::Draws | RecordField::Stop => record.equal,
        RecordField::Credit | RecordField::Evaluations | RecordField::Updates => {
            is_within(&record.distance, record.equal, contract)
        }
    });
    let mut classes = det.distances.iter().filter(|class| !ignored.contains(&class.class));
    records && classes.all(|class| is_within(&class.distance, class.equal, contract))
}

/// Verdict of a result whose `inert` is filled in.
#[must_use]
pub fn verdict(det: &ProbeResultDet, contract: &Contract) -> Verdict {
    if det.inert.is_some() {
        Verdict::Inert
    } else if is_met(det, contract, &[]) {
        Verdict::Matches
    } else {
        Verdict::Differs
    }
}

/// Whether a control shows that a probe can fail: something that was not
/// withheld itself is beyond the contract's class. In the class `statistical`
/// that other examples were drawn is not enough: the test itself has to fail.
#[must_use]
pub fn is_control(det: &ProbeResultDet, contract: &Contract) -> bool {
    if let Some(equivalence) = statistical::outcome(det, contract) {
        return !det.withheld.is_empty() && equivalence.is_apart();
    }
    !det.withheld.is_empty() && !is_met(det, contract, &det.withheld)
}

/// Why a control changed nothing; `None` where it did, or where nothing
/// explains it. `equals_initial` is whether what was withheld has the initial
/// state's bytes in the checkpoint too.
#[must_use]
pub fn inert(det: &ProbeResultDet, contract: &Contract, equals_initial: bool) -> Option<InertReason> {
    let is_equal = is_met(det, contract, &[]);
    match (det.withheld.as_slice(), is_equal) {
        ([], _) => None,
        (_, true) if equals_initial => Some(InertReason::EqualsInitial),
        ([StateClass::Scheduler], true) if !has_plateau(contract) => Some(InertReason::FunctionOfStep),
        // A test of numbers passes by what was withheld itself.
        ([StateClass::SelectionState], true) if !is_withheld_equal(det) => {
            (!is_patient(contract)).then_some(InertReason::DecidesNothing)
        }
        ([StateClass::SelectionState], true) => Some(InertReason::ReplacedByEvaluation),
        ([StateClass::SelectionState], false)
            if !is_patient(contract)
                && contract.resume.class != EquivalenceClass::Statistical
                && !is_control(det, contract) =>
        {
            Some(InertReason::DecidesNothing)
        }
        _ => None,
    }
}

/// Whether what was withheld came to the same as with it.
fn is_withheld_equal(det: &ProbeResultDet) -> bool {
    let mut classes = det.distances.iter().filter(|class| det.withheld.contains(&class.class));
    classes.all(|class| class.equal)
}

fn is_patient(contract: &Contract) -> bool {
    matches!(contract.stopping, StoppingRule::Patience { .. })
}

/// Whether a schedule holds state of its own.
fn has_plateau(contract: &Contract) -> bool {
    contract.schedule.iter().any(|group| matches!(group.shape, ScheduleShape::Plateau { .. }))
}
