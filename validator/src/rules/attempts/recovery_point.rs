//! A fault ends its attempt, and the run goes on from a state that is not in doubt.

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::{
    AttemptStartDet, Body, CheckpointStage, FaultObservedDet, Kind, ObservedFault, Outcome as End,
};
use schemas::contract::Recovery;
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CheckpointId};
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Checkpoints, declare_rule, is_progress};

declare_rule!(
    /// `GL217`.
    RecoveryPoint,
    {
        code: "GL217",
        name: "recovery-point",
        what: "An attempt that observes a fault of its own computation makes no progress after it and ends as failed; before another \
               attempt makes progress every observed fault is recovered from, by fault.recovered of the attempt that it struck. Under \
               `roll_back` every checkpoint in doubt is quarantined before that.",
        why: "A run that goes on past a fault that it saw, or from a state that the fault may have reached, carries the damage to its \
              end.",
        remedy: "None for a finished run. Let `trainer run` recover, under the policy of the contract.",
        reference: "docs/FORMAT.md, \"Recovery\" and \"State in doubt\"",
        gate: Route::RejectResumeDrift,
    }
);

/// One attempt as its beginning and its saves tell it.
struct Known {
    from_step: u64,
    /// Whether a fault says that something else was computed than the contract
    /// says.
    is_in_doubt: bool,
    /// Whether it began at a checkpoint.
    is_resumed: bool,
    saved: Vec<CheckpointId>,
}

struct Recoveries {
    attempts: BTreeMap<AttemptId, Known>,
    checkpoints: Checkpoints,
    /// Checkpoints in doubt that were reported.
    reported: BTreeSet<CheckpointId>,
    num_checked: u64,
    recovery: Recovery,
    running: Option<AttemptId>,
    /// Struck attempts that no `fault.recovered` names yet, with the entry.
    struck: BTreeMap<AttemptId, u64>,
    /// The fault that the running attempt saw in its own computation.
    stopping: Option<u64>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Recoveries {
        attempts: BTreeMap::new(),
        checkpoints: Checkpoints::default(),
        reported: BTreeSet::new(),
        num_checked: 0,
        recovery: frozen.contract.faults.recovery,
        running: None,
        struck: BTreeMap::new(),
        stopping: None,
    })
}

/// Whether a fault says that something else was computed than the contract says.
const fn puts_in_doubt(fault: ObservedFault) -> bool {
    matches!(
        fault,
        ObservedFault::DataChanged
            | ObservedFault::NotFinite
            | ObservedFault::StateMismatch
            | ObservedFault::PlanMismatch
            | ObservedFault::WorkerDisagrees
            | ObservedFault::SelectionMismatch
    )
}

/// Whether an attempt that sees a fault stops at once: what a save meets may be
/// told beside later steps.
const fn stops(fault: ObservedFault) -> bool {
    matches!(
        fault,
        ObservedFault::StateMismatch
            | ObservedFault::PlanMismatch
            | ObservedFault::WorkerLost
            | ObservedFault::WorkerTimeout
            | ObservedFault::WorkerDisagrees
            | ObservedFault::SelectionMismatch
    )
}

impl Recoveries {
    fn start(&mut self, det: &AttemptStartDet) {
        self.running = Some(det.attempt);
        self.stopping = None;
        let known = Known {
            from_step: det.from_step,
            is_in_doubt: false,
            is_resumed: det.resumed_from.is_some(),
            saved: Vec::new(),
        };
        self.attempts.insert(det.attempt, known);
    }

    fn observed(&mut self, entry: &Entry, det: &FaultObservedDet) {
        self.num_checked += 1;
        self.struck.entry(det.attempt).or_insert(entry.index);
        if self.running == Some(det.attempt) && stops(det.fault) {
            self.stopping.get_or_insert(entry.index);
        }
        if let Some(known) = self.attempts.get_mut(&det.attempt) {
            known.is_in_doubt |= puts_in_doubt(det.fault);
        }
    }

    fn progress(&mut self, entry: &Entry, sink: &mut Sink) {
        let name = entry.body.kind().name();
        // A save that was in flight is awaited before the attempt ends.
        let is_of_save =
            matches!(entry.body.kind(), Kind::CheckpointStaged | Kind::CheckpointDurablyCommitted);
        if let Some(index) = self.stopping.filter(|_| !is_of_save) {
            self.stopping = None;
            let message = format!("{name} follows the fault that the attempt observed at entry {index}");
            sink.rejected(At::entry(entry.index, ""), message, "attempt.end", name);
        }
        let others = |attempt: &AttemptId| Some(*attempt) != self.running;
        let open: Vec<(AttemptId, u64)> =
            self.struck.iter().filter(|(attempt, _)| others(attempt)).map(|(a, i)| (*a, *i)).collect();
        for (attempt, index) in open {
            let message = format!("the run goes on, and not from the fault that entry {index} observed");
            let expected = format!("fault.recovered of attempt {attempt} before");
            sink.rejected(At::entry(entry.index, ""), message, expected, name);
            self.struck.remove(&attempt);
        }
        if self.recovery == Recovery::RollBack {
            self.roll_back(entry, sink);
        }
    }

    /// Checkpoints in doubt that may still be used.
    fn roll_back(&mut self, entry: &Entry, sink: &mut Sink) {
        let others = self.attempts.iter().filter(|(attempt, _)| Some(**attempt) != self.running);
        for (attempt, known) in others.filter(|(_, known)| known.is_in_doubt) {
            let saved = || known.saved.iter().filter_map(|id| Some((id, self.checkpoints.all.get(id)?)));
            let is_qualified = |stage: CheckpointStage| stage == CheckpointStage::ResumeQualified;
            let qualified = saved().filter(|(_, checkpoint)| is_qualified(checkpoint.stage));
            let in_order = qualified.map(|(_, checkpoint)| checkpoint.step).fold(known.from_step, u64::max);
            for (id, checkpoint) in saved() {
                let is_usable = checkpoint.validated.is_some() && !checkpoint.is_unusable;
                // A save inside of the update behind the step that it resumed at.
                let is_inside =
                    known.is_resumed && checkpoint.step == known.from_step && checkpoint.step == in_order;
                let is_in_doubt = checkpoint.step > in_order || is_inside;
                if is_usable
                    && is_in_doubt
                    && !is_qualified(checkpoint.stage)
                    && self.reported.insert(id.clone())
                {
                    let message = format!("the run goes on and {id} of attempt {attempt} is in doubt");
                    let expected = format!("checkpoint.quarantined of what is beyond step {in_order}");
                    sink.rejected(At::entry(entry.index, ""), message, expected, "it may still be used");
                }
            }
        }
    }

    fn end(&mut self, entry: &Entry, outcome: End, sink: &mut Sink) {
        if let Some(index) = self.stopping.take().filter(|_| outcome != End::Failed) {
            let at = At::entry(entry.index, "/body/det/outcome");
            let message = format!("the attempt observed a fault at entry {index} and did not fail");
            sink.rejected(at, message, "Failed", format!("{outcome:?}"));
        }
        self.running = None;
    }
}

impl Check for Recoveries {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        if is_progress(entry.body.kind()) {
            self.progress(entry, sink);
        }
        match &entry.body {
            Body::AttemptStart(halves) => self.start(&halves.det),
            Body::AttemptEnd(halves) => self.end(entry, halves.det.outcome, sink),
            Body::FaultObserved(halves) => self.observed(entry, &halves.det),
            Body::FaultRecovered(halves) => {
                self.struck.remove(&halves.det.attempt);
            }
            Body::CheckpointRequested(halves) => {
                let running = self.running.and_then(|running| self.attempts.get_mut(&running));
                if let Some(known) = running {
                    known.saved.push(halves.obs.checkpoint.clone());
                }
            }
            _ => {}
        }
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        match self.num_checked {
            0 => Outcome::NotApplicable("no fault was observed".to_owned()),
            num_checked => Outcome::Checked(num_checked),
        }
    }
}
