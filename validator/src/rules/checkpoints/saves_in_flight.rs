//! Saves overlap with training as the contract says, and with nothing else.

use schemas::body::{Body, Kind};
use schemas::contract::SaveMode;
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CheckpointId};
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Rule, RuleInfo, Sink};

/// `GL612`.
#[derive(Debug)]
pub(crate) struct SavesInFlight;

static INFO: RuleInfo = RuleInfo {
    code: "GL612",
    name: "saves-in-flight",
    what: "One save of an attempt is in flight at a time. Under a synchronous contract no update, evaluation or candidate lies \
           between a request and the end of its save; under an asynchronous one only updates, at most 10000, and evaluations do. \
           The next request, a candidate, a retirement, the selection and the end of the attempt wait for the save.",
    why: "What is recorded beside a save must not be able to depend on how it went, and a failure that nobody waits for is lost.",
    remedy: "Await a save by its checkpoint before the next one, before its candidate, and before the end, as `trainer run` does.",
    reference: "docs/FORMAT.md, \"Order of entries\"; schemas::contract::SaveMode",
    gate: Route::RejectTornCheckpoint,
};

impl Rule for SavesInFlight {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn open<'a>(&self, frozen: &'a Frozen) -> Box<dyn Check + 'a> {
        let is_asynchronous = frozen.contract.checkpoints.mode == SaveMode::Asynchronous;
        Box::new(Saves { is_asynchronous, num_checked: 0, saving: None })
    }

    fn follows_recorded_order(&self) -> bool {
        true
    }
}

/// Updates that may be made beside one save.
const MAX_UPDATES_BESIDE: u64 = 10_000;

struct Saving {
    attempt: Option<AttemptId>,
    checkpoint: CheckpointId,
    num_updates: u64,
}

struct Saves {
    is_asynchronous: bool,
    num_checked: u64,
    saving: Option<Saving>,
}

impl Saves {
    /// An entry that comes while a save is in flight.
    fn beside(&mut self, entry: &Entry, sink: &mut Sink) {
        let Some(saving) = &mut self.saving else { return };
        let kind = entry.body.kind();
        let may_lie_beside = match kind {
            Kind::Step | Kind::Eval => self.is_asynchronous,
            Kind::CheckpointRequested
            | Kind::CandidateAdmitted
            | Kind::CandidateSelected
            | Kind::CheckpointRetired
            | Kind::AttemptEnd => false,
            _ => true,
        };
        if !may_lie_beside {
            let message = format!("{} comes while {} is being saved", kind.name(), saving.checkpoint);
            let expected =
                format!("checkpoint.validated or checkpoint.failed of {} before", saving.checkpoint);
            sink.rejected(At::entry(entry.index, "/kind"), message, expected, kind.name());
        }
        if kind == Kind::Step {
            saving.num_updates += 1;
            if saving.num_updates == MAX_UPDATES_BESIDE + 1 {
                let message = format!("{} is in flight for too long", saving.checkpoint);
                let expected = format!("at most {MAX_UPDATES_BESIDE} updates beside a save");
                sink.rejected(At::entry(entry.index, "/kind"), message, expected, "one more");
            }
        }
    }

    fn end(&mut self, entry: &Entry, checkpoint: &CheckpointId, sink: &mut Sink) {
        let Some(saving) = self.saving.take_if(|saving| saving.checkpoint == *checkpoint) else { return };
        if saving.attempt != entry.header.attempt {
            let at = At::entry(entry.index, "/attempt");
            let message = format!("another attempt ends the save of {checkpoint} without a fault before");
            let or_null = crate::rules::common::or_null::<AttemptId>;
            sink.rejected(at, message, or_null(saving.attempt), or_null(entry.header.attempt));
        }
    }
}

impl Check for Saves {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.beside(entry, sink);
        match &entry.body {
            Body::CheckpointRequested(halves) => {
                self.num_checked += 1;
                let (attempt, checkpoint) = (entry.header.attempt, halves.obs.checkpoint.clone());
                self.saving = Some(Saving { attempt, checkpoint, num_updates: 0 });
            }
            Body::CheckpointValidated(halves) => self.end(entry, &halves.obs.checkpoint, sink),
            Body::CheckpointFailed(halves) => self.end(entry, &halves.obs.checkpoint, sink),
            // A process that vanished took its save with it.
            Body::AttemptStart(_) | Body::AttemptEnd(_) | Body::FaultObserved(_) => self.saving = None,
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
