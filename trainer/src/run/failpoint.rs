//! Named points at which a test makes the process vanish as a crash would, or
//! slow as a slow disk does.
//!
//! Only builds with the cargo feature `failpoints` have them; such a build has
//! another code digest, records the feature in every attempt, and refuses to
//! run without `LEDGER_ALLOW_INSTRUMENTATION=1`.

/// Names the point, and after a colon how many passes are survived first:
/// `checkpoint.staged:2`.
#[cfg(feature = "failpoints")]
pub const VARIABLE: &str = "TRAINER_FAILPOINT";

/// Names a point, and after a colon the milliseconds that every pass of it takes
/// longer, as on a slow disk: `shard.written:50`.
#[cfg(feature = "failpoints")]
pub const PAUSE_VARIABLE: &str = "TRAINER_FAILPOINT_PAUSE";

/// Allows an instrumented build to run.
#[cfg(feature = "failpoints")]
pub const PERMISSION: &str = "LEDGER_ALLOW_INSTRUMENTATION";

/// Points of a retirement, which only some contracts pass.
pub const RETIREMENT_POINTS: [&str; 2] = ["checkpoint.retired", "shard.removed"];

/// Every other point, in the order in which a checkpoint passes them.
pub const POINTS: [&str; 8] = [
    "step.recorded",
    "checkpoint.requested",
    "shard.written",
    "checkpoint.staged",
    "checkpoint.renamed",
    "checkpoint.validated",
    "candidate.admitted",
    "candidate.selected",
];

/// Features of diagnosis that this build has.
#[must_use]
pub fn instrumentation() -> Vec<String> {
    if cfg!(feature = "failpoints") { vec!["failpoints".to_owned()] } else { Vec::new() }
}

/// Refuses an instrumented build that nobody asked for.
///
/// # Errors
/// [`super::refusal::Refusal::Instrumented`].
pub fn check_permission() -> Result<(), super::refusal::Refusal> {
    #[cfg(feature = "failpoints")]
    if std::env::var(PERMISSION).as_deref() != Ok("1") {
        return Err(super::refusal::Refusal::Instrumented { feature: "failpoints" });
    }
    Ok(())
}

/// Passes a point: the process is killed there if the environment says so.
pub fn pass(point: &'static str) {
    debug_assert!(POINTS.contains(&point) || RETIREMENT_POINTS.contains(&point), "{point} is in no list");
    #[cfg(feature = "failpoints")]
    {
        pause_at(point);
        kill_at(point);
    }
}

#[cfg(feature = "failpoints")]
fn pause_at(point: &str) {
    let Ok(wanted) = std::env::var(PAUSE_VARIABLE) else { return };
    let (name, milliseconds) = wanted.split_once(':').unwrap_or((&wanted, "0"));
    if name == point {
        std::thread::sleep(std::time::Duration::from_millis(milliseconds.parse().unwrap_or(0)));
    }
}

#[cfg(feature = "failpoints")]
fn kill_at(point: &str) {
    use std::sync::atomic::{AtomicU64, Ordering};
    static PASSES: AtomicU64 = AtomicU64::new(0);
    let Ok(wanted) = std::env::var(VARIABLE) else { return };
    let (name, survived) = wanted.split_once(':').unwrap_or((&wanted, "0"));
    if name != point || PASSES.fetch_add(1, Ordering::SeqCst) < survived.parse().unwrap_or(0) {
        return;
    }
    // SIGKILL, as the out-of-memory killer sends it: no handler, no flush.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}
