//! Resume probes: what a probe recorded, whether its reference is the run, and
//! which checkpoint may be called resume-qualified.
//!
//! No verdict of the trainer is read: each rule derives its own from the raw
//! distances and the contract's bounds.

pub(super) mod probe_record;
pub(super) mod probe_reference;
pub(super) mod resume_qualified;
pub(super) mod resume_terms;
mod statistical;
pub(super) mod statistical_probe;

use schemas::body::{Distance, ProbeResultDet, RecordField};
use schemas::contract::{Contract, EquivalenceClass};
use schemas::state::StateClass;

/// Fewest updates of a probe: the gradient of the second is the first that was
/// taken after an update with restored state (`docs/FORMAT.md`, "Resume
/// probes").
pub(super) const MIN_STEPS: u64 = 2;

/// Largest distance in units of the last place: the largest integer of entry
/// JSON.
pub(super) const MAX_ULP: u64 = 1 << 53;

/// Classes that the contract captures, in order.
pub(crate) fn captured(contract: &Contract) -> Vec<StateClass> {
    let declared = contract.state_classes.iter().filter(|declared| declared.not_applicable.is_none());
    let mut classes: Vec<StateClass> = declared.map(|declared| declared.class).collect();
    classes.sort();
    classes
}

/// What the cold control withholds: every captured class but the model.
pub(crate) fn cold(contract: &Contract) -> Vec<StateClass> {
    captured(contract).into_iter().filter(|class| *class != StateClass::Model).collect()
}

/// Whether a distance is within the contract's class, or why it is not.
fn is_within(distance: &Distance, equal: bool, contract: &Contract) -> bool {
    let is_zero = equal && distance.first_step.is_none() && distance.max_ulp == 0;
    match (contract.resume.class, &contract.resume.tolerance) {
        (EquivalenceClass::Bitwise, _) => is_zero,
        (EquivalenceClass::OperationOrderBounded, Some(tolerance)) => {
            // A bound that is not a number is met by nothing.
            distance.max_absolute_beyond_relative.0 <= tolerance.max_absolute
        }
        (EquivalenceClass::OperationOrderBounded, None) | (EquivalenceClass::Statistical, _) => false,
    }
}

/// What of a result is beyond the contract's class, leaving out these classes.
pub(super) fn beyond(det: &ProbeResultDet, contract: &Contract, left_out: &[StateClass]) -> Vec<String> {
    if contract.resume.class == EquivalenceClass::Statistical {
        return statistical::beyond(det, contract, left_out);
    }
    let mut found = Vec::new();
    for record in &det.records {
        let is_exact =
            matches!(record.record, RecordField::Counters | RecordField::Draws | RecordField::Stop);
        let is_met = if is_exact {
            record.equal && record.distance.num_different == 0
        } else {
            is_within(&record.distance, record.equal, contract)
        };
        if !is_met {
            found.push(format!("step record {}", record.record.name()));
        }
    }
    for class in det.distances.iter().filter(|class| !left_out.contains(&class.class)) {
        let is_met = is_within(&class.distance, class.equal, contract)
            && (contract.resume.class != EquivalenceClass::Bitwise || class.reference == class.resumed);
        if !is_met {
            let tensor = class.first_tensor.as_deref().unwrap_or("unnamed");
            found.push(format!("{} ({tensor})", class.class));
        }
    }
    found
}
