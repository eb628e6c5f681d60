//! What a person did between two attempts, as whoever starts the next one says
//! it: the record would not show it otherwise.

use ledger::recovery::cost;
use schemas::body::{Body, Halves, InterventionDet, InterventionObs};

use super::attempt::Attempt;
use super::error::RunError;

/// An intervention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intervention {
    /// What was done.
    pub action: String,
    /// Minutes of a person's time, where somebody said.
    pub operator_minutes: Option<u32>,
}

/// Writes an intervention and, where minutes are said, what it cost.
///
/// # Errors
/// When the ledger cannot be written.
pub(super) fn record(attempt: &mut Attempt, step: u64, intervention: &Intervention) -> Result<(), RunError> {
    let det = InterventionDet { action: intervention.action.clone() };
    let reason = format!("said by whoever started attempt {}", attempt.attempt);
    let obs = InterventionObs { operator_minutes: intervention.operator_minutes, reason };
    attempt.record(step, Body::Intervention(Box::new(Halves { det, obs })))?;
    if let Some(minutes) = intervention.operator_minutes {
        attempt.record(step, cost("operator", f64::from(minutes), "minutes", &intervention.action))?;
    }
    Ok(())
}
