//! What several rules follow: steps, attempts, checkpoints, values of a stream.
//!
//! Each rule has its own copy of these trackers: a rule that shared state with
//! another could be blinded by it.

use std::collections::BTreeMap;

use schemas::body::{Body, CheckpointStage, Halves, Kind, ObservedFault, Outcome as RunOutcome, StepDet};
use schemas::contract::Recovery;
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::state::StateDigest;

use crate::evidence::Evidence;
use crate::rule::{Check, Outcome, Sink};

/// Declares a rule from its text and the function that opens its check.
macro_rules! declare_rule {
    ($(#[$meta:meta])* $name:ident, { $($field:ident: $value:expr),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug)]
        pub(crate) struct $name;

        static INFO: crate::rule::RuleInfo = crate::rule::RuleInfo { $($field: $value),* };

        impl crate::rule::Rule for $name {
            fn info(&self) -> &'static crate::rule::RuleInfo {
                &INFO
            }

            fn open<'a>(&self, frozen: &'a crate::frozen::Frozen) -> Box<dyn crate::rule::Check + 'a> {
                open(frozen)
            }
        }
    };
}
pub(crate) use declare_rule;

/// One `step` entry.
pub(crate) struct StepFacts<'a> {
    pub(crate) det: &'a StepDet,
    pub(crate) entry: &'a Entry,
    pub(crate) step: u64,
}

struct EachStep<F> {
    each: F,
    /// Whether what it finds depends on earlier entries.
    is_stateful: bool,
    num_steps: u64,
}

impl<F: FnMut(&StepFacts<'_>, &mut Sink)> Check for EachStep<F> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        if let Body::Step(halves) = &entry.body {
            let step = entry.header.step.unwrap_or(0);
            (self.each)(&StepFacts { det: &halves.det, entry, step }, sink);
            self.num_steps += 1;
        }
    }

    fn settled_entry(&mut self, entry: &Entry, _: Option<&[u8]>, sink: &mut Sink) {
        if self.is_stateful {
            self.entry(entry, sink);
        } else {
            self.num_steps += u64::from(entry.body.kind() == Kind::Step);
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_steps)
    }
}

/// A check that looks at each `step` entry by itself: what it finds depends on
/// no other one, so an entry that was settled need not be looked at again.
pub(crate) fn each_step<'a>(each: impl FnMut(&StepFacts<'_>, &mut Sink) + 'a) -> Box<dyn Check + 'a> {
    Box::new(EachStep { each, is_stateful: false, num_steps: 0 })
}

/// The same where what it finds depends on the steps before, which it therefore
/// sees even where they were settled.
pub(crate) fn each_step_in_turn<'a>(each: impl FnMut(&StepFacts<'_>, &mut Sink) + 'a) -> Box<dyn Check + 'a> {
    Box::new(EachStep { each, is_stateful: true, num_steps: 0 })
}

struct AtEnd<F> {
    end: F,
}

impl<F: FnMut(&Evidence, &mut Sink) -> Outcome> Check for AtEnd<F> {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, _: &Entry, _: &mut Sink) {}

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        (self.end)(evidence, sink)
    }
}

/// A check that looks at frozen inputs and files only.
pub(crate) fn at_end<'a>(end: impl FnMut(&Evidence, &mut Sink) -> Outcome + 'a) -> Box<dyn Check + 'a> {
    Box::new(AtEnd { end })
}

/// Whether entries of this kind move a run forward, so that everything about
/// its attempt must have been said before.
pub(crate) const fn is_progress(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Step
            | Kind::Eval
            | Kind::CheckpointRequested
            | Kind::CheckpointStaged
            | Kind::CheckpointDurablyCommitted
            | Kind::CandidateAdmitted
            | Kind::CandidateSelected
    )
}

/// The logical position: completed updates of the attempt that is running.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Position {
    /// Completed updates.
    pub(crate) step: u64,
}

impl Position {
    /// Follows `attempt.start` and `step`.
    pub(crate) fn entry(&mut self, entry: &Entry) {
        match &entry.body {
            Body::AttemptStart(halves) => self.step = halves.det.from_step,
            Body::Step(_) => self.step = entry.header.step.unwrap_or(self.step),
            _ => {}
        }
    }
}

/// What a `checkpoint.durably_committed` entry said, and what became of it.
#[derive(Debug, Clone)]
pub(crate) struct Committed {
    pub(crate) classes: Vec<StateDigest>,
    pub(crate) index: u64,
    pub(crate) manifest: Digest,
    pub(crate) model: Digest,
    pub(crate) path: String,
}

/// One checkpoint as the entries tell it.
#[derive(Debug, Clone)]
pub(crate) struct Checkpoint {
    pub(crate) committed: Option<Committed>,
    /// It was admitted as a candidate, whose model no retirement takes.
    pub(crate) is_candidate: bool,
    /// It failed, was quarantined, or was found torn or corrupt.
    pub(crate) is_lost: bool,
    /// Its shards may be gone, but those of a candidate's model.
    pub(crate) is_retired: bool,
    /// It must not be resumed from.
    pub(crate) is_unusable: bool,
    pub(crate) stage: CheckpointStage,
    pub(crate) step: u64,
    /// Entry that said `checkpoint.validated`.
    pub(crate) validated: Option<u64>,
}

impl Checkpoint {
    /// Whether its model has to be there: of a retired one only a candidate's.
    pub(crate) const fn has_model(&self) -> bool {
        !self.is_lost && (!self.is_retired || self.is_candidate)
    }
}

/// All checkpoints by their identifiers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checkpoints {
    pub(crate) all: BTreeMap<CheckpointId, Checkpoint>,
}

impl Checkpoints {
    pub(crate) fn entry(&mut self, entry: &Entry) {
        match &entry.body {
            Body::CheckpointRequested(halves) => {
                self.reach(&halves.obs.checkpoint, halves.det.step, CheckpointStage::Requested);
            }
            Body::CheckpointStaged(halves) => {
                self.reach(&halves.obs.checkpoint, halves.det.step, CheckpointStage::Staged);
            }
            Body::CheckpointDurablyCommitted(halves) => self.commit(entry, halves),
            Body::CheckpointValidated(halves) => {
                let stage = CheckpointStage::Validated;
                let checkpoint = self.reach(&halves.obs.checkpoint, halves.det.step, stage);
                checkpoint.validated.get_or_insert(entry.index);
            }
            Body::CheckpointResumeQualified(halves) => {
                self.reach(&halves.obs.checkpoint, halves.det.step, CheckpointStage::ResumeQualified);
            }
            Body::CheckpointFailed(halves) | Body::CheckpointQuarantined(halves) => {
                self.doom(&halves.obs.checkpoint);
            }
            Body::CandidateAdmitted(halves) => {
                if let Some(checkpoint) = self.all.get_mut(&halves.obs.checkpoint) {
                    checkpoint.is_candidate = true;
                }
            }
            Body::CheckpointRetired(halves) => {
                if let Some(checkpoint) = self.all.get_mut(&halves.obs.checkpoint) {
                    checkpoint.is_unusable = true;
                    checkpoint.is_retired = true;
                }
            }
            Body::FaultObserved(halves) => {
                let fault = halves.det.fault;
                if matches!(fault, ObservedFault::CheckpointCorrupt | ObservedFault::CheckpointIncomplete)
                    && let Some(checkpoint) = &halves.obs.checkpoint
                {
                    self.doom(checkpoint);
                }
            }
            _ => {}
        }
    }

    fn commit(
        &mut self,
        entry: &Entry,
        halves: &Halves<schemas::body::CheckpointCommittedDet, schemas::body::CheckpointCommittedObs>,
    ) {
        let committed = Committed {
            classes: halves.det.classes.clone(),
            index: entry.index,
            manifest: halves.obs.manifest,
            model: halves.det.model,
            path: halves.obs.path.clone(),
        };
        let stage = CheckpointStage::DurablyCommitted;
        self.reach(&halves.obs.checkpoint, halves.det.step, stage).committed.get_or_insert(committed);
    }

    fn reach(&mut self, id: &CheckpointId, step: u64, stage: CheckpointStage) -> &mut Checkpoint {
        let checkpoint = self.all.entry(id.clone()).or_insert(Checkpoint {
            committed: None,
            is_candidate: false,
            is_lost: false,
            is_retired: false,
            is_unusable: false,
            stage,
            step,
            validated: None,
        });
        checkpoint.stage = checkpoint.stage.max(stage);
        checkpoint
    }

    fn doom(&mut self, id: &CheckpointId) {
        if let Some(checkpoint) = self.all.get_mut(id) {
            checkpoint.is_lost = true;
            checkpoint.is_unusable = true;
        }
    }

    /// The checkpoint that a new attempt begins from: of those that reached the
    /// stage which the recovery policy goes by.
    pub(crate) fn newest_usable(&self, recovery: Recovery) -> Option<(&CheckpointId, &Checkpoint)> {
        let least = match recovery {
            Recovery::RestartFromLastQualified => CheckpointStage::ResumeQualified,
            Recovery::RestartFromLastValidated | Recovery::RollBack | Recovery::Refuse => {
                CheckpointStage::Validated
            }
        };
        self.all
            .iter()
            .filter(|(_, checkpoint)| checkpoint.validated.is_some() && !checkpoint.is_unusable)
            .filter(|(_, checkpoint)| checkpoint.stage >= least)
            .max_by_key(|(_, checkpoint)| (checkpoint.step, checkpoint.validated))
    }

    /// Committed checkpoints in the order of their entries.
    pub(crate) fn committed(&self) -> Vec<(&CheckpointId, &Checkpoint, &Committed)> {
        let mut all: Vec<_> = self
            .all
            .iter()
            .filter_map(|(id, checkpoint)| {
                checkpoint.committed.as_ref().map(|committed| (id, checkpoint, committed))
            })
            .collect();
        all.sort_by_key(|(_, _, committed)| committed.index);
        all
    }
}

/// Something that an attempt which resumes takes back to the checkpoint that it
/// resumed from.
#[derive(Debug, Clone)]
pub(crate) struct Rewindable<T> {
    pub(crate) now: T,
    initial: T,
    saved: BTreeMap<CheckpointId, T>,
    step: u64,
}

impl<T: Clone> Rewindable<T> {
    pub(crate) fn new(initial: T) -> Self {
        Self { now: initial.clone(), initial, saved: BTreeMap::new(), step: 0 }
    }

    /// Follows attempts and validated checkpoints; call it after the value took
    /// the entry into account.
    pub(crate) fn entry(&mut self, entry: &Entry) {
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.step = halves.det.from_step;
                let point = halves.det.resumed_from.as_ref();
                let saved = point.and_then(|point| self.saved.get(&point.checkpoint));
                self.now = saved.unwrap_or(&self.initial).clone();
            }
            Body::Step(_) => self.step = entry.header.step.unwrap_or(self.step),
            // A state is saved when its bytes are; it may be used from `validated` on.
            Body::CheckpointDurablyCommitted(halves) if halves.det.step == self.step => {
                self.saved.insert(halves.obs.checkpoint.clone(), self.now.clone());
            }
            _ => {}
        }
    }
}

/// The step of `run.end`, or the position that the entries reached.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LastStep {
    position: Position,
    /// Whether the run has ended.
    pub(crate) is_over: bool,
    /// How the last attempt ended; none while it runs, or where it vanished.
    attempt_outcome: Option<RunOutcome>,
    has_selected: bool,
}

impl LastStep {
    pub(crate) fn entry(&mut self, entry: &Entry) {
        self.position.entry(entry);
        match &entry.body {
            Body::AttemptStart(_) => self.attempt_outcome = None,
            Body::AttemptEnd(halves) => self.attempt_outcome = Some(halves.det.outcome),
            Body::CandidateSelected(_) => self.has_selected = true,
            Body::RunEnd(_) => self.is_over = true,
            _ => {}
        }
    }

    /// Whether the run has ended and was not lost. Of one that was (its last
    /// attempt failed or vanished, and no other is allowed) nobody was left to do
    /// what is due at a last step. A selection needs all of that, however the
    /// attempt ended behind it.
    pub(crate) const fn is_reached(&self) -> bool {
        let is_ended =
            matches!(self.attempt_outcome, Some(RunOutcome::Completed | RunOutcome::BudgetExhausted));
        self.is_over && (is_ended || self.has_selected)
    }

    /// Completed updates of the logical run.
    pub(crate) const fn step(&self) -> u64 {
        self.position.step
    }
}

/// A path in the folder that the data manifest is in.
pub(crate) fn beside(manifest: &str, path: &str) -> String {
    match manifest.rsplit_once('/') {
        Some((folder, _)) => format!("{folder}/{path}"),
        None => path.to_owned(),
    }
}

/// `null` or the value, for findings.
pub(crate) fn or_null<T: std::fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(|| "null".to_owned(), |value| value.to_string())
}

/// Equality of bits, except that every NaN equals every other.
pub(crate) fn same_float(left: f64, right: f64) -> bool {
    left.to_bits() == right.to_bits() || (left.is_nan() && right.is_nan())
}
