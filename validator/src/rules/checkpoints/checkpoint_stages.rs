//! A checkpoint goes through its stages in order.

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::{Body, CheckpointStage, FaultObservedDet, Kind, ObservedFault};
use schemas::contract::{FaultKind, Recovery};
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CheckpointId};
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::attempts::doubt::Doubt;
use crate::rules::common::{LastStep, declare_rule, is_progress};

declare_rule!(
    /// `GL602`.
    CheckpointStages,
    {
        code: "GL602",
        name: "checkpoint-stages",
        what: "Every checkpoint is requested, staged, durably committed, validated and possibly resume-qualified, in this order, \
               each once, at one step, and an attempt commits one for a step; nothing is said of one after it failed or was \
               quarantined, and a validated one is quarantined where a fault names it or, under `roll_back`, puts it in doubt, and \
               one that was not validated fails; one that an attempt found to be damaged is given up before that attempt makes \
               progress; its identifier is that of its step and attempt.",
        why: "The intent is durable before the effect, and a state counts only once it was read back: a stage out of order says \
              that bytes were relied on before they were safe.",
        remedy: "None for a finished run. Record stages through the checkpoint writer, which follows each with its own flush.",
        reference: "docs/FORMAT.md, \"Checkpoint\"; docs/CONTRACT.md, \"CheckpointStage\"",
        gate: Route::RejectTornCheckpoint,
    }
);

struct Known {
    attempt: Option<AttemptId>,
    index: u64,
    is_dead: bool,
    stage: CheckpointStage,
    step: u64,
}

struct Stages {
    /// Steps that an attempt has committed a checkpoint of.
    committed: BTreeSet<(Option<AttemptId>, u64)>,
    all: BTreeMap<CheckpointId, Known>,
    /// Checkpoints that a fault named.
    blamed: BTreeSet<CheckpointId>,
    doubt: Doubt,
    /// In doubt when the running attempt began: a probe may clear one meanwhile.
    doubtful: BTreeSet<CheckpointId>,
    /// Attempts that have an `attempt.end`.
    ended: BTreeSet<AttemptId>,
    last: LastStep,
    last_attempt: Option<AttemptId>,
    /// Damaged checkpoints of others that the running attempt has not given up
    /// yet, with the entry that names them.
    open: BTreeMap<CheckpointId, u64>,
    rolls_back: bool,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Stages {
        committed: BTreeSet::new(),
        all: BTreeMap::new(),
        blamed: BTreeSet::new(),
        doubt: Doubt::default(),
        doubtful: BTreeSet::new(),
        ended: BTreeSet::new(),
        last: LastStep::default(),
        last_attempt: None,
        open: BTreeMap::new(),
        rolls_back: frozen.contract.faults.recovery == Recovery::RollBack,
    })
}

impl Stages {
    fn request(&mut self, entry: &Entry, id: &CheckpointId, step: u64, sink: &mut Sink) {
        let at = |pointer: &str| At::entry(entry.index, pointer);
        let expected = format!("s{step:08}-a{}", entry.header.attempt.map_or(0, |attempt| attempt.0));
        let suffix = id.as_str().strip_prefix(&expected);
        let is_again = |suffix: &str| suffix.strip_prefix('-').is_some_and(|n| n.parse::<u32>().is_ok());
        if !suffix.is_some_and(|suffix| suffix.is_empty() || is_again(suffix)) {
            sink.rejected(at("/body/obs/checkpoint"), "the checkpoint is named otherwise", expected, id);
        }
        let known = Known {
            attempt: entry.header.attempt,
            index: entry.index,
            is_dead: false,
            stage: CheckpointStage::Requested,
            step,
        };
        if self.all.insert(id.clone(), known).is_some() {
            sink.rejected(
                at("/body/obs/checkpoint"),
                "a checkpoint is requested twice",
                "a name of its own",
                id,
            );
        }
    }

    fn reach(
        &mut self,
        entry: &Entry,
        id: &CheckpointId,
        step: u64,
        stage: CheckpointStage,
        sink: &mut Sink,
    ) {
        let at = |pointer: &str| At::entry(entry.index, pointer);
        let Some(known) = self.all.get_mut(id) else {
            sink.rejected(
                at("/body/obs/checkpoint"),
                "the checkpoint was not requested",
                "checkpoint.requested",
                id,
            );
            return;
        };
        let before = match stage {
            CheckpointStage::Requested | CheckpointStage::Staged => CheckpointStage::Requested,
            CheckpointStage::DurablyCommitted => CheckpointStage::Staged,
            CheckpointStage::Validated => CheckpointStage::DurablyCommitted,
            CheckpointStage::ResumeQualified => CheckpointStage::Validated,
        };
        // A checkpoint may be qualified more than once, by several probes.
        let is_again = stage == CheckpointStage::ResumeQualified && known.stage == stage;
        if known.stage != before && !is_again {
            let message = format!("{id} reaches a stage out of order");
            sink.rejected(
                at("/kind"),
                message,
                format!("{before:?} before"),
                format!("{:?} before", known.stage),
            );
        }
        if known.is_dead {
            sink.rejected(
                at("/kind"),
                format!("{id} goes on after it was given up"),
                "nothing",
                format!("{stage:?}"),
            );
        }
        if known.step != step {
            sink.rejected(at("/body/det/step"), format!("{id} changes its step"), known.step, step);
        }
        known.stage = known.stage.max(stage);
        let key = (known.attempt, known.step);
        if stage == CheckpointStage::DurablyCommitted && !self.committed.insert(key) {
            let message = format!("the attempt commits a second checkpoint of step {step}");
            sink.rejected(at("/body/obs/checkpoint"), message, "one for each attempt and step", id);
        }
    }

    fn give_up(&mut self, entry: &Entry, id: &CheckpointId, sink: &mut Sink) {
        let at = || At::entry(entry.index, "/body/obs/checkpoint");
        let is_unfounded = self.is_unfounded(entry, id);
        self.open.remove(id);
        let Some(known) = self.all.get_mut(id) else {
            sink.rejected(at(), "the checkpoint was not requested", "checkpoint.requested", id);
            return;
        };
        if std::mem::replace(&mut known.is_dead, true) {
            sink.rejected(at(), format!("{id} is given up twice"), "once", entry.body.kind().name());
        }
        let is_validated = known.stage >= CheckpointStage::Validated;
        let expected = if is_validated { Kind::CheckpointQuarantined } else { Kind::CheckpointFailed };
        let kind = entry.body.kind();
        if kind != expected && kind != Kind::CheckpointRetired {
            let message = format!("{id} is given up otherwise than its stage asks for");
            sink.rejected(At::entry(entry.index, "/kind"), message, expected.name(), kind.name());
        }
        if is_unfounded {
            let message = format!("{id} is given up, and nothing speaks against it");
            let expected = "a fault.observed before that names it, or, under roll_back, a state in doubt";
            sink.rejected(at(), message, expected, entry.body.kind().name());
        }
    }

    /// A fault that names a checkpoint: one of the attempt that it struck, and
    /// only where it is a checkpoint's.
    fn blame(&mut self, entry: &Entry, det: &FaultObservedDet, id: &CheckpointId, sink: &mut Sink) {
        let at = || At::entry(entry.index, "/body/obs/checkpoint");
        if !matches!(det.fault, ObservedFault::CheckpointCorrupt | ObservedFault::CheckpointIncomplete) {
            sink.rejected(at(), "the fault is of no checkpoint", "null", id);
            return;
        }
        let saver = self.all.get(id).and_then(|known| known.attempt);
        if saver != Some(det.attempt) {
            let expected = format!("one that attempt {} requested", det.attempt);
            sink.rejected(at(), "the fault names a checkpoint that its attempt did not save", expected, id);
        }
        self.blamed.insert(id.clone());
        if entry.header.attempt.is_some_and(|own| own != det.attempt) {
            self.open.insert(id.clone(), entry.index);
        }
    }

    /// Whether nothing in the record is a reason to give a checkpoint up; to
    /// retire one, the contract is.
    fn is_unfounded(&self, entry: &Entry, id: &CheckpointId) -> bool {
        let is_torn = || self.all.get(id).is_some_and(|known| known.stage < CheckpointStage::Validated);
        let is_excused = match entry.body.kind() {
            Kind::CheckpointFailed => is_torn(),
            Kind::CheckpointQuarantined => false,
            _ => true,
        };
        let is_doubtful = || {
            let now = self.doubt.doubtful();
            self.doubtful.contains(id) || now.iter().any(|doubtful| doubtful.checkpoint == *id)
        };
        let is_founded = is_excused || self.blamed.contains(id) || self.rolls_back && is_doubtful();
        !is_founded
    }
}

impl Check for Stages {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        use CheckpointStage as Stage;
        match &entry.body {
            Body::CheckpointRequested(h) => self.request(entry, &h.obs.checkpoint, h.det.step, sink),
            Body::CheckpointStaged(h) => {
                self.reach(entry, &h.obs.checkpoint, h.det.step, Stage::Staged, sink);
            }
            Body::CheckpointDurablyCommitted(h) => {
                self.reach(entry, &h.obs.checkpoint, h.det.step, Stage::DurablyCommitted, sink);
            }
            Body::CheckpointValidated(h) => {
                self.reach(entry, &h.obs.checkpoint, h.det.step, Stage::Validated, sink);
            }
            Body::CheckpointResumeQualified(h) => {
                self.reach(entry, &h.obs.checkpoint, h.det.step, Stage::ResumeQualified, sink);
            }
            Body::CheckpointFailed(h) | Body::CheckpointQuarantined(h) => {
                self.give_up(entry, &h.obs.checkpoint, sink);
            }
            Body::CheckpointRetired(h) => self.give_up(entry, &h.obs.checkpoint, sink),
            Body::AttemptStart(h) => {
                self.last_attempt = Some(h.det.attempt);
                self.open.clear();
            }
            Body::AttemptEnd(h) => {
                self.ended.insert(h.det.attempt);
            }
            Body::FaultObserved(h) => {
                if let Some(id) = &h.obs.checkpoint {
                    self.blame(entry, &h.det, id, sink);
                }
            }
            _ => {}
        }
        if is_progress(entry.body.kind()) {
            for (id, index) in std::mem::take(&mut self.open) {
                let message =
                    format!("the run goes on and {id} is not given up, which entry {index} found damaged");
                let expected = "checkpoint.failed or checkpoint.quarantined before";
                sink.rejected(At::entry(entry.index, ""), message, expected, entry.body.kind().name());
            }
        }
        self.doubt.entry(entry);
        if self.rolls_back && entry.body.kind() == Kind::AttemptStart {
            self.doubtful = self.doubt.doubtful().into_iter().map(|doubtful| doubtful.checkpoint).collect();
        }
        self.last.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        for (id, known) in &self.all {
            let is_torn = known.stage < CheckpointStage::Validated && !known.is_dead;
            if !is_torn {
                continue;
            }
            let at = At::entry(known.index, "").cause(FaultKind::CheckpointWriteInterruption);
            // One that vanished left it, whoever ended the run.
            let is_of_end = known.attempt == self.last_attempt && self.last.is_over;
            if is_of_end && known.attempt.is_some_and(|attempt| self.ended.contains(&attempt)) {
                let actual = format!("{:?}", known.stage);
                sink.rejected(
                    at,
                    format!("{id} was left unfinished by the attempt that ended the run"),
                    "Validated",
                    actual,
                );
            } else {
                let message = format!("{id} was left unfinished by an attempt that stopped");
                sink.note(at, message, "Validated", format!("{:?}", known.stage));
            }
        }
        Outcome::Checked(self.all.len() as u64)
    }
}
