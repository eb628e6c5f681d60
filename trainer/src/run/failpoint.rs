//! Points at which a test makes the trainer vanish, stand still or be slow, and
//! switches that leave out a flush. How they are set is in
//! [`ledger::failpoint`].
//!
//! Only builds with the cargo feature `failpoints` have them; such a build has
//! another code digest, records the feature in every attempt, and refuses to
//! run without `LEDGER_ALLOW_INSTRUMENTATION=1`.

pub use ledger::failpoint::{MARK, POINTS as WRITER_POINTS, VARIABLE, pass};

/// Allows an instrumented build to run.
#[cfg(feature = "failpoints")]
pub const PERMISSION: &str = "LEDGER_ALLOW_INSTRUMENTATION";

/// Points of a retirement, which only some contracts pass.
pub const RETIREMENT_POINTS: [&str; 3] = ["checkpoint.retired", "shard.removed", "retirement.flushed"];

/// Points that only an attempt behind one that vanished passes.
pub const RECOVERY_POINTS: [&str; 1] = ["recovery.recorded"];

/// Every other point of the trainer, in the order in which a run and each of its
/// checkpoints pass them. There is no pointer to the newest checkpoint in a
/// store, so none of a pointer: the ledger says which one it is.
pub const POINTS: [&str; 17] = [
    "attempt.started",
    "step.recorded",
    "checkpoint.requested",
    "staging.created",
    "shard.filled",
    "shard.written",
    "manifest.written",
    "staging.flushed",
    "checkpoint.staged",
    "checkpoint.moved",
    "checkpoint.renamed",
    "checkpoint.committed",
    "checkpoint.reread",
    "checkpoint.validated",
    "candidate.admitted",
    "candidate.selected",
    "attempt.ended",
];

/// Switches of the trainer: no folder of a store is flushed.
pub const SWITCHES: [&str; 1] = ["skip.folder_flush"];

/// Points that every run passes: the writer's and the trainer's.
#[must_use]
pub fn points() -> Vec<&'static str> {
    WRITER_POINTS.into_iter().chain(POINTS).collect()
}

/// Features of diagnosis that this build has.
#[must_use]
pub fn instrumentation() -> Vec<String> {
    if cfg!(feature = "failpoints") { vec!["failpoints".to_owned()] } else { Vec::new() }
}

/// Refuses an instrumented build that nobody asked for, and sets the points that
/// the environment names.
///
/// # Errors
/// [`super::refusal::Refusal::Instrumented`], and
/// [`super::refusal::Refusal::CrashPoints`] where one of them does not exist.
pub fn check_permission() -> Result<(), super::refusal::Refusal> {
    #[cfg(feature = "failpoints")]
    if std::env::var(PERMISSION).as_deref() != Ok("1") {
        return Err(super::refusal::Refusal::Instrumented { feature: "failpoints" });
    }
    let mine = [&POINTS[..], &RETIREMENT_POINTS, &RECOVERY_POINTS, &SWITCHES].concat();
    ledger::failpoint::arm(&mine).map_err(|reason| super::refusal::Refusal::CrashPoints { reason })
}
