//! What the record itself shows of an attempt that stopped.
//!
//! It reads stages, times and what follows, and not what a later attempt made of
//! them. No word of the trainer gives a family. One can take a late answer back:
//! a disk that hung, or a worker that was lost on a slow machine, takes as long,
//! and an attempt that failed of something else has to say so (`GL217`). It
//! changes no verdict: runs are killed, and recovering is allowed.

use std::collections::BTreeMap;

use schemas::body::{Body, ObservedFault, Outcome as End};
use schemas::contract::{Collective, FaultKind, SaveMode};
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CheckpointId};
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL230`.
    StoppedAttempts,
    {
        code: "GL230",
        name: "stopped-attempts",
        what: "Notes every attempt without a terminal entry, every committed checkpoint whose bytes the attempt that wrote them did not \
               accept, and every attempt of several workers that failed, with the fault family where stages and times tell it: a save \
               that was not at its end, a process that is gone, or several workers that came no further for as long as the \
               contract's timeout, less one sign of life (at most half of the timeout), and failed of nothing else that the attempt says. \
               Warns of an attempt that is said to have waited for a worker and ended sooner than that behind its last update.",
        why: "That a process stopped, and after how long a wait, can be read off the entries, whether or not the trainer says the cause. \
              A run that was struck often, or always at one place, tells of its machine.",
        remedy: "Compare with what the run observed itself (GL710). Repeated stops at one stage are a defect of machine or storage.",
        reference: "docs/FORMAT.md, \"Injected faults\" and \"Exchange\"",
        gate: Route::RejectResumeDrift,
    }
);

/// Microseconds by which the times of two entries may be off what happened
/// between them: the tick of the trainer's clock, and a busy machine.
const SLACK_US: u64 = 250_000;

/// Where a save stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Requested,
    Staged,
    Committed,
}

impl Stage {
    const fn name(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Staged => "staged",
            Self::Committed => "durably_committed",
        }
    }
}

/// The attempt that is running.
struct Running {
    attempt: AttemptId,
    /// The worker that it is said to have waited for, with the entry.
    late: Option<u64>,
    /// Whether it says, behind its last step, that something else went wrong.
    has_other_fault: bool,
    num_workers: u32,
    /// When every worker had answered for the last time, or somewhat before.
    answered_us: u64,
    /// When it last came further.
    progress_us: u64,
    saving: BTreeMap<CheckpointId, Stage>,
    start: u64,
    step: u64,
    /// Time of the entry of that step, or of its start.
    stepped_us: u64,
    /// Longest time that an update took.
    update_us: u64,
}

struct Stops<'a> {
    collective: Option<&'a Collective>,
    is_asynchronous: bool,
    num_attempts: u64,
    running: Option<Running>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let contract = &frozen.contract;
    Box::new(Stops {
        collective: contract.topology.collective.as_ref(),
        is_asynchronous: contract.checkpoints.mode == SaveMode::Asynchronous,
        num_attempts: 0,
        running: None,
    })
}

impl Stops<'_> {
    /// The attempt that was running left no terminal entry.
    fn vanished(&mut self, by: &str, sink: &mut Sink) {
        let Some(running) = self.running.take() else { return };
        let open = running.saving.values().next();
        let cause = match open {
            // Beside an asynchronous save anything may have ended the process.
            Some(_) if self.is_asynchronous => None,
            Some(_) => Some(FaultKind::CheckpointWriteInterruption),
            None => Some(FaultKind::WorkerLoss),
        };
        let left = open.map_or_else(String::new, |stage| format!(", with a checkpoint {}", stage.name()));
        let message = format!("attempt {} stopped without a terminal entry", running.attempt);
        let actual = format!("{by}, behind step {}{left}", running.step);
        sink.note(At::entry(running.start, "").cause(cause), message, "attempt.end", actual);
    }

    fn save(&mut self, checkpoint: &CheckpointId, stage: Stage, entry: &Entry) {
        if let Some(running) = &mut self.running
            && entry.header.attempt == Some(running.attempt)
        {
            running.saving.insert(checkpoint.clone(), stage);
            // What an asynchronous save does behind its request it does beside a
            // loop that may stand still.
            if stage == Stage::Requested || !self.is_asynchronous {
                running.progress_us = entry.time_us;
            }
        }
    }

    /// A save that its own attempt gave up.
    fn failed(&mut self, checkpoint: &CheckpointId, entry: &Entry, sink: &mut Sink) {
        let Some(running) = &mut self.running else { return };
        if entry.header.attempt != Some(running.attempt) {
            return;
        }
        if running.saving.remove(checkpoint) == Some(Stage::Committed) {
            let message = format!("{checkpoint} was committed and did not read back as what was written");
            let at = At::entry(entry.index, "").cause(FaultKind::SingleShardCorruption);
            sink.note(at, message, "checkpoint.validated", "checkpoint.failed");
        }
    }

    fn ended(&mut self, entry: &Entry, outcome: End, sink: &mut Sink) {
        let Some(running) = self.running.take() else { return };
        let Some(collective) = self.collective.filter(|_| running.num_workers > 1) else { return };
        if outcome != End::Failed {
            return;
        }
        let timeout_us = u64::from(collective.timeout_ms) * 1000;
        let heartbeat_us = u64::from(collective.heartbeat_ms) * 1000;
        let waited = |us: u64| format!("{} ms behind step {}", us / 1000, running.step);
        // A worker may have fallen silent while the attempt evaluated or saved, and
        // is then called late as soon as it is asked again; or inside of the last
        // update on record.
        let silent_us = entry.time_us.saturating_sub(running.answered_us);
        let earlier_us = running.update_us.saturating_add(heartbeat_us).saturating_add(SLACK_US);
        let is_possible = silent_us.saturating_add(earlier_us) >= timeout_us;
        if let Some(index) = running.late.filter(|_| !is_possible) {
            let message = "a worker is said to have been late, sooner than the contract's timeout";
            let expected = format!("{} ms without an update", collective.timeout_ms);
            sink.warning(At::entry(index, "/time_us"), message, expected, waited(silent_us));
            return;
        }
        // Who asked behind the last entry waited for all of the timeout, or for
        // what was left of it since a sign of life that came before. A contract may
        // let these be almost as rare as the timeout; half of it has to be a wait on
        // record, or any failure would look like one.
        let waited_us = entry.time_us.saturating_sub(running.progress_us);
        let before_us = heartbeat_us.min(timeout_us / 2);
        let is_late = waited_us.saturating_add(before_us) >= timeout_us && !running.has_other_fault;
        let cause = is_late.then_some(FaultKind::CollectiveTimeout);
        let message = format!("attempt {} of {} workers failed", running.attempt, running.num_workers);
        sink.note(At::entry(entry.index, "").cause(cause), message, "a further update", waited(waited_us));
    }
}

impl Check for Stops<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.vanished("attempt.start of another one follows", sink);
                self.num_attempts += 1;
                self.running = Some(Running {
                    attempt: halves.det.attempt,
                    late: None,
                    has_other_fault: false,
                    num_workers: halves.obs.plan.num_workers,
                    answered_us: entry.time_us,
                    progress_us: entry.time_us,
                    saving: BTreeMap::new(),
                    start: entry.index,
                    step: halves.det.from_step,
                    stepped_us: entry.time_us,
                    update_us: 0,
                });
            }
            Body::Step(halves) => {
                if let Some(running) = &mut self.running {
                    // One with digests is written behind the evaluations of its step,
                    // and the update itself came at some time behind the one before it.
                    let has_digests = halves.det.state.is_some();
                    running.answered_us = if has_digests { running.stepped_us } else { entry.time_us };
                    running.progress_us = entry.time_us;
                    running.stepped_us = entry.time_us;
                    running.step = entry.header.step.unwrap_or(running.step);
                    running.update_us = running.update_us.max(halves.obs.duration_us);
                    running.has_other_fault = false;
                }
            }
            Body::Eval(_) | Body::CandidateAdmitted(_) | Body::FaultRecovered(_) => {
                if let Some(running) = &mut self.running {
                    running.progress_us = entry.time_us;
                }
            }
            Body::FaultObserved(halves) => {
                if let Some(running) = &mut self.running
                    && halves.det.attempt == running.attempt
                {
                    if halves.det.fault == ObservedFault::WorkerTimeout {
                        running.late = Some(entry.index);
                    } else {
                        running.has_other_fault = true;
                    }
                }
            }
            // One of saved state ends no attempt.
            Body::Anomaly(halves) if halves.det.state.is_none() => {
                if let Some(running) = &mut self.running
                    && entry.header.attempt == Some(running.attempt)
                {
                    running.has_other_fault = true;
                }
            }
            Body::CheckpointRequested(halves) => self.save(&halves.obs.checkpoint, Stage::Requested, entry),
            Body::CheckpointStaged(halves) => self.save(&halves.obs.checkpoint, Stage::Staged, entry),
            Body::CheckpointDurablyCommitted(halves) => {
                self.save(&halves.obs.checkpoint, Stage::Committed, entry);
            }
            Body::CheckpointValidated(halves) => {
                if let Some(running) = &mut self.running {
                    running.saving.remove(&halves.obs.checkpoint);
                }
            }
            Body::CheckpointFailed(halves) => self.failed(&halves.obs.checkpoint, entry, sink),
            Body::AttemptEnd(halves) => self.ended(entry, halves.det.outcome, sink),
            Body::RunEnd(_) => self.vanished("run.end follows", sink),
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        match self.num_attempts {
            0 => Outcome::NotApplicable("there is no attempt".to_owned()),
            // One that is running still has not stopped, as far as the record tells.
            num_attempts => Outcome::Checked(num_attempts),
        }
    }
}
