//! Which checkpoints a fault puts in doubt (`docs/FORMAT.md`, "State in doubt").

use std::collections::BTreeMap;

use schemas::body::{AttemptStartDet, Body, CheckpointStage, FaultObservedDet, ObservedFault};
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CheckpointId};

use crate::rules::common::{Checkpoint, Checkpoints};

/// One attempt as its beginning and its saves tell it.
struct Known {
    from_step: u64,
    has_stepped: bool,
    /// Whether a fault says that something else was computed than the contract
    /// says.
    is_in_doubt: bool,
    /// Whether it found the state that it resumed with to be another one.
    is_refused: bool,
    /// The checkpoint that it began at.
    resumed_from: Option<CheckpointId>,
    saved: Vec<CheckpointId>,
}

/// A checkpoint in doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Doubtful {
    pub(crate) checkpoint: CheckpointId,
    /// Why it is, in words.
    pub(crate) reason: String,
}

/// Follows what attempts save and what strikes them.
#[derive(Default)]
pub(crate) struct Doubt {
    attempts: BTreeMap<AttemptId, Known>,
    checkpoints: Checkpoints,
    running: Option<AttemptId>,
}

/// Whether a fault says that something else was computed than the contract says.
const fn is_of_state(fault: ObservedFault) -> bool {
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

fn is_qualified(checkpoint: &Checkpoint) -> bool {
    checkpoint.stage == CheckpointStage::ResumeQualified
}

/// Whether a checkpoint may still be used and no probe has cleared it.
fn is_open(checkpoint: &Checkpoint) -> bool {
    checkpoint.validated.is_some() && !checkpoint.is_unusable && !is_qualified(checkpoint)
}

impl Doubt {
    pub(crate) fn entry(&mut self, entry: &Entry) {
        match &entry.body {
            Body::AttemptStart(halves) => self.start(&halves.det),
            Body::AttemptEnd(_) => self.running = None,
            Body::FaultObserved(halves) => self.observed(&halves.det),
            Body::Step(_) => {
                if let Some(known) = self.running() {
                    known.has_stepped = true;
                }
            }
            Body::CheckpointRequested(halves) => {
                let checkpoint = halves.obs.checkpoint.clone();
                if let Some(known) = self.running() {
                    known.saved.push(checkpoint);
                }
            }
            _ => {}
        }
        self.checkpoints.entry(entry);
    }

    fn running(&mut self) -> Option<&mut Known> {
        self.running.and_then(|running| self.attempts.get_mut(&running))
    }

    fn start(&mut self, det: &AttemptStartDet) {
        self.running = Some(det.attempt);
        let known = Known {
            from_step: det.from_step,
            has_stepped: false,
            is_in_doubt: false,
            is_refused: false,
            resumed_from: det.resumed_from.as_ref().map(|point| point.checkpoint.clone()),
            saved: Vec::new(),
        };
        self.attempts.insert(det.attempt, known);
    }

    fn observed(&mut self, det: &FaultObservedDet) {
        if let Some(known) = self.attempts.get_mut(&det.attempt) {
            known.is_in_doubt |= is_of_state(det.fault);
            known.is_refused |= det.fault == ObservedFault::StateMismatch && !known.has_stepped;
        }
    }

    /// Checkpoints in doubt that may still be used; what the running attempt
    /// saves is not judged before it has ended.
    pub(crate) fn doubtful(&self) -> Vec<Doubtful> {
        let others = self.attempts.iter().filter(|(attempt, _)| Some(**attempt) != self.running);
        let mut all = Vec::new();
        for (attempt, known) in others.filter(|(_, known)| known.is_in_doubt) {
            self.saved_by(*attempt, known, &mut all);
            let resumed = known.resumed_from.as_ref().filter(|_| known.is_refused);
            if let Some(checkpoint) = resumed.filter(|id| self.checkpoints.all.get(*id).is_some_and(is_open))
            {
                let reason = format!("attempt {attempt} resumed from it and found another state");
                all.push(Doubtful { checkpoint: checkpoint.clone(), reason });
            }
        }
        all
    }

    /// What an attempt saved itself behind the step at which it was found in
    /// order.
    fn saved_by(&self, attempt: AttemptId, known: &Known, all: &mut Vec<Doubtful>) {
        let saved = || known.saved.iter().filter_map(|id| Some((id, self.checkpoints.all.get(id)?)));
        let qualified = saved().filter(|(_, checkpoint)| is_qualified(checkpoint));
        let in_order = qualified.map(|(_, checkpoint)| checkpoint.step).fold(known.from_step, u64::max);
        for (id, checkpoint) in saved().filter(|(_, checkpoint)| is_open(checkpoint)) {
            // A save inside of the update behind the step that it resumed at.
            let is_inside = known.resumed_from.is_some()
                && checkpoint.step == known.from_step
                && checkpoint.step == in_order;
            if checkpoint.step > in_order || is_inside {
                let reason =
                    format!("attempt {attempt} saved it and was last found in order at step {in_order}");
                all.push(Doubtful { checkpoint: id.clone(), reason });
            }
        }
    }
}
