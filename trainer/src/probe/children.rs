//! Trajectories run in processes of their own, so that nothing which a resumed
//! one relies on can be left over in memory.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use schemas::state::StateClass;

use super::ProbeOptions;
use super::error::ProbeError;
use crate::run::error::RunError;
use crate::run::signals::Interrupt;

/// Name of the hidden subcommand.
pub const SUBCOMMAND: &str = "trajectory";

/// Pause between two looks at a child.
const POLL_EVERY: Duration = Duration::from_millis(5);

/// Runs a trajectory to its end. `against` is the reference's folder, for a
/// resumed one. Both numbers are given: updates behind the checkpoint, and
/// threads.
///
/// # Errors
/// When it does not end well, or a signal came; then the child was ended too.
pub fn trajectory(
    options: &ProbeOptions,
    (num_steps, num_threads): (u64, u32),
    output: &Path,
    against: Option<&Path>,
    withheld: &[StateClass],
    interrupt: &Interrupt,
) -> Result<(), ProbeError> {
    let what = if against.is_some() { "resumed" } else { "reference" };
    let program = std::env::current_exe().map_err(RunError::Process)?;
    let mut command = Command::new(program);
    command.arg(SUBCOMMAND).arg("--ledger").arg(&options.ledger).arg("--output").arg(output);
    command.args(["--checkpoint", options.checkpoint.as_str()]);
    command.args(["--steps", &num_steps.to_string(), "--threads", &num_threads.to_string()]);
    if let Some(data) = &options.data {
        command.arg("--data").arg(data);
    }
    if let Some(against) = against {
        command.arg("--against").arg(against);
    }
    for class in withheld {
        command.args(["--withhold", class.name()]);
    }
    if options.is_quiet {
        command.arg("--quiet");
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.spawn().map_err(RunError::Process)?;
    wait(child, what, interrupt)
}

fn wait(mut child: Child, what: &'static str, interrupt: &Interrupt) -> Result<(), ProbeError> {
    let mut is_told = false;
    loop {
        if let Some(status) = child.try_wait().map_err(RunError::Process)? {
            if interrupt.is_set() {
                return Err(ProbeError::Interrupted { signal: interrupt.received() });
            }
            if status.success() {
                return Ok(());
            }
            return Err(ProbeError::Trajectory { what, status: status.to_string() });
        }
        if interrupt.is_set() && !is_told {
            // A terminal tells both; others tell only this process. A child that
            // is gone already is met above.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            is_told = true;
        }
        std::thread::sleep(POLL_EVERY);
    }
}
