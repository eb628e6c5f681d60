//! A fault ends its attempt, and the run goes on from a state that is not in doubt.

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::{
    AttemptStartDet, Body, FaultObservedDet, FaultRecoveredObs, Kind, ObservedFault, Outcome as End,
};
use schemas::contract::Recovery;
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CheckpointId, WorkerId};
use schemas::report::Route;

use super::doubt::Doubt;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, is_progress};

declare_rule!(
    /// `GL217`.
    RecoveryPoint,
    {
        code: "GL217",
        name: "recovery-point",
        what: "An attempt that observes a fault of its own computation makes no progress after it and ends as failed, and one that \
               failed says of what: by fault.observed or an anomaly behind its last step; before another attempt makes progress every observed fault is recovered from, by fault.recovered of the attempt that it struck, which \
               says why the run goes on from an older checkpoint where it does and only there; an attempt says nothing twice. Under \
               `roll_back` every checkpoint in doubt is quarantined before that.",
        why: "A run that goes on past a fault that it saw, or from a state that the fault may have reached, carries the damage to its \
              end.",
        remedy: "None for a finished run. Let `trainer run` recover, under the policy of the contract.",
        reference: "docs/FORMAT.md, \"Recovery\" and \"State in doubt\"",
        gate: Route::RejectResumeDrift,
    }
);

/// What an attempt says of a fault: whom it struck, what was seen, of which
/// checkpoint and worker.
type SaidOfFault = (AttemptId, String, Option<CheckpointId>, Option<WorkerId>);

struct Recoveries {
    doubt: Doubt,
    /// Whether a checkpoint was found corrupt since the run last made progress.
    has_corrupt: bool,
    /// Whether the running attempt has said what went wrong.
    has_said: bool,
    /// Checkpoints in doubt that were reported.
    reported: BTreeSet<CheckpointId>,
    num_checked: u64,
    recovery: Recovery,
    running: Option<AttemptId>,
    /// What the running attempt said of faults.
    said: BTreeSet<SaidOfFault>,
    /// Struck attempts that no `fault.recovered` names yet, with the entry.
    struck: BTreeMap<AttemptId, u64>,
    /// The fault that the running attempt saw in its own computation.
    stopping: Option<u64>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Recoveries {
        doubt: Doubt::default(),
        has_corrupt: false,
        has_said: false,
        reported: BTreeSet::new(),
        num_checked: 0,
        recovery: frozen.contract.faults.recovery,
        running: None,
        said: BTreeSet::new(),
        struck: BTreeMap::new(),
        stopping: None,
    })
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
        (self.has_corrupt, self.has_said) = (false, false);
        self.said.clear();
        self.stopping = None;
    }

    /// One fault is said once by an attempt.
    fn repeats(&mut self, entry: &Entry, det: &FaultObservedDet, checkpoint: Option<&CheckpointId>) -> bool {
        let what = format!("{:?}", det.fault);
        let said = (det.attempt, what, checkpoint.cloned(), entry.header.worker);
        entry.header.attempt.is_some() && !self.said.insert(said)
    }

    /// Where the newest checkpoint was corrupt the run goes on from an older one,
    /// and says why; what else makes it do so the policy decides.
    fn recovered(&mut self, entry: &Entry, obs: &FaultRecoveredObs, sink: &mut Sink) {
        let is_by_policy = self.recovery != Recovery::RestartFromLastValidated;
        let is_explained = obs.fallback.is_some();
        if is_explained != self.has_corrupt && !(is_explained && is_by_policy) {
            let expected = if self.has_corrupt { "a reason: the newest is corrupt" } else { "null" };
            let message = "whether the run goes on from its newest checkpoint is told otherwise";
            let at = At::entry(entry.index, "/body/obs/fallback");
            sink.rejected(at, message, expected, obs.fallback.as_deref().unwrap_or("null"));
        }
    }

    fn observed(&mut self, entry: &Entry, det: &FaultObservedDet) {
        self.num_checked += 1;
        self.struck.entry(det.attempt).or_insert(entry.index);
        if self.running == Some(det.attempt) && stops(det.fault) {
            self.stopping.get_or_insert(entry.index);
        }
        self.has_said |= self.running == Some(det.attempt);
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
        for doubtful in self.doubt.doubtful() {
            if self.reported.insert(doubtful.checkpoint.clone()) {
                let message = format!("the run goes on and {} is in doubt", doubtful.checkpoint);
                let expected = format!("checkpoint.quarantined: {}", doubtful.reason);
                sink.rejected(At::entry(entry.index, ""), message, expected, "it may still be used");
            }
        }
    }

    fn end(&mut self, entry: &Entry, outcome: End, sink: &mut Sink) {
        if let Some(index) = self.stopping.take().filter(|_| outcome != End::Failed) {
            let at = At::entry(entry.index, "/body/det/outcome");
            let message = format!("the attempt observed a fault at entry {index} and did not fail");
            sink.rejected(at, message, "Failed", format!("{outcome:?}"));
        }
        if outcome == End::Failed {
            self.num_checked += 1;
            if !self.has_said {
                let message = "the attempt failed and says not of what";
                let expected = "fault.observed of the attempt, or an anomaly, behind its last step";
                sink.rejected(At::entry(entry.index, "/body/det/outcome"), message, expected, "neither");
            }
        }
        self.running = None;
    }
}

impl Check for Recoveries {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        if is_progress(entry.body.kind()) {
            self.has_corrupt = false;
            self.progress(entry, sink);
        }
        match &entry.body {
            Body::AttemptStart(halves) => self.start(&halves.det),
            Body::AttemptEnd(halves) => self.end(entry, halves.det.outcome, sink),
            Body::FaultObserved(halves) => {
                let checkpoint = halves.obs.checkpoint.as_ref();
                self.has_corrupt |=
                    halves.det.fault == ObservedFault::CheckpointCorrupt && checkpoint.is_some();
                if self.repeats(entry, &halves.det, checkpoint) {
                    let message = "the attempt says of a fault that it observed what it said before";
                    let actual = format!("{:?} of attempt {}", halves.det.fault, halves.det.attempt);
                    sink.rejected(At::entry(entry.index, ""), message, "once", actual);
                }
                self.observed(entry, &halves.det);
            }
            Body::FaultRecovered(halves) => {
                self.recovered(entry, &halves.obs, sink);
                self.struck.remove(&halves.det.attempt);
            }
            // Of a saved state it says what is odd, and nothing of an end.
            Body::Anomaly(halves) => self.has_said |= halves.det.state.is_none(),
            // What it went on behind did not end it.
            Body::Step(_) => self.has_said = false,
            _ => {}
        }
        self.doubt.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        match self.num_checked {
            0 => Outcome::NotApplicable("no fault was observed and no attempt failed".to_owned()),
            num_checked => Outcome::Checked(num_checked),
        }
    }
}
