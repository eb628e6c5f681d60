//! A run of several workers in which one of them, or the process that records,
//! is killed.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::baseline::Baseline;
use super::faults::{all_of, part_of};
use super::process::Process;
use super::trial::{Outcome, conclude};
use crate::random::Random;

/// Pause between two looks at the system's processes.
const POLL_EVERY: Duration = Duration::from_millis(5);

/// Longest that a worker may outlive its attempt.
const MAX_OUTLIVED: Duration = Duration::from_secs(20);

/// SIGKILL at a random time, of the process that records or of one of its workers.
pub(super) fn kill(baseline: &Baseline, random: &mut Random) -> Result<Outcome> {
    let variant = baseline.with_workers();
    let (delay, chosen) = (part_of(variant, random), random.next_u64());
    let run = variant.frozen.copy();
    let process = Process::start(run.path(), &[], &[])?;
    std::thread::sleep(delay);
    let workers = children(process.id());
    let mut outcome = Outcome { has_fired: false, ..Outcome::default() };
    // Before there are any, and behind the end of all, there is nobody to choose.
    let others = workers.len() as u64;
    if others == 0 {
        let _ = process.kill()?;
        return Ok(outcome);
    }
    let ended = match usize::try_from(chosen % (others + 1))?.checked_sub(1) {
        None => {
            outcome.what = format!("the process that records after {delay:?}");
            let ended = process.kill()?;
            outcome.has_fired = ended.is_killed();
            ended
        }
        Some(index) => {
            outcome.what = format!("worker {} after {delay:?}", index + 1);
            let killed = Pid::from_raw(i32::try_from(workers[index])?);
            if let Some(worker) = killed {
                // It may have ended meanwhile: then the run was over.
                let _ = kill_process(worker, Signal::KILL);
            }
            let ended = process.finish()?;
            outcome.has_fired = ended.said.contains(&format!("worker {} is lost", index + 1));
            let is_fine = if outcome.has_fired { ended.code == 1 } else { ended.code == 0 };
            ensure!(is_fine, "{} ended it with {}: {}", outcome.what, ended.code, ended.said);
            ended
        }
    };
    ensure!(!ended.said.contains("panicked"), "{} made it panic: {}", outcome.what, ended.said);
    let asked = Instant::now();
    while workers.iter().any(|worker| is_running(*worker)) {
        ensure!(asked.elapsed() < MAX_OUTLIVED, "{}: one of {workers:?} lives on", outcome.what);
        std::thread::sleep(POLL_EVERY);
    }
    if !outcome.has_fired {
        return Ok(outcome);
    }
    conclude(run.path(), variant, &all_of(run.path())?, outcome)
}

/// State and parent of a process (`proc_pid_stat(5)`).
fn state_of(id: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn is_running(id: u32) -> bool {
    state_of(id).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// Children of a process that run, in the order of their numbers.
#[must_use]
pub fn children(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|item| item.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<u32> =
        ids.filter(|id| state_of(*id).is_some_and(|(_, of)| of == parent) && is_running(*id)).collect();
    found.sort_unstable();
    found
}
