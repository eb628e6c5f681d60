//! The state that the entries determine is the state that was saved.

use schemas::body::{Body, ExecutedPlan, StepDet};
use schemas::contract::{Architecture, Contract, MidAccumulation};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::report::Route;
use schemas::state::{CheckpointManifest, StateClass};

use crate::derive::loss_scale::ScaleState;
use crate::derive::plateau::Plateaus;
use crate::derive::selection::{SelectionState, followed_stream};
use crate::derive::{configuration, state_json};
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{Checkpoints, Rewindable, declare_rule};
use crate::rules::updates::tensors;

declare_rule!(
    /// `GL607`.
    DerivedState,
    {
        code: "GL607",
        name: "derived-state",
        what: "Cursor, topology, compiler plan, scheduler, generators, shuffle buffer, loss scaler, selection state and configuration of every checkpoint are byte for byte \
               what contract, attempt and entries determine at its step (inside of an accumulation window another rule says it of \
               cursor and generator).",
        why: "A cursor that is one step off, or a patience counter that was reset, is invisible until the resumed run drifts.",
        remedy: "None for a finished run. The message shows the text that the shard should have.",
        reference: "docs/FORMAT.md, \"Checkpoint\", \"Selection state\" and \"Configuration\"",
        gate: Route::RequestStateInventory,
    }
);

/// What a shard of a checkpoint must hold.
struct Expected {
    checkpoint: CheckpointId,
    class: StateClass,
    name: String,
    text: Vec<u8>,
}

struct Derived<'a> {
    checkpoints: Checkpoints,
    contract: &'a Contract,
    expected: Vec<Expected>,
    num_examples: u64,
    plan: Option<ExecutedPlan>,
    plateaus: Rewindable<Plateaus>,
    /// None without a loss scaler.
    scale: Option<Rewindable<ScaleState>>,
    selection: Rewindable<SelectionState>,
    tokens: Rewindable<u64>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let card = match &frozen.card {
        Ok(card) => card,
        Err(reason) => return unavailable(format!("the policy card: {reason}")),
    };
    let groups = card.groups.iter().map(|group| group.name.as_str());
    match &frozen.train_examples {
        Ok(table) => Box::new(Derived {
            checkpoints: Checkpoints::default(),
            contract: &frozen.contract,
            expected: Vec::new(),
            num_examples: table.num_examples(),
            plan: None,
            plateaus: Rewindable::new(Plateaus::new(&frozen.contract, groups)),
            scale: frozen
                .contract
                .numerics
                .loss_scaler
                .as_ref()
                .map(|scaler| Rewindable::new(ScaleState::new(scaler))),
            selection: Rewindable::new(SelectionState::default()),
            tokens: Rewindable::new(0),
        }),
        Err(reason) => unavailable(format!("the train example table: {reason}")),
    }
}

impl Derived<'_> {
    fn saves_windows(&self) -> bool {
        self.contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients
    }

    fn step(&mut self, det: &StepDet) {
        self.tokens.now = det.counters.tokens;
        let has_overflow = det.overflow.as_ref().is_some_and(|overflow| overflow.found);
        if let (Some(scaler), Some(scale)) = (&self.contract.numerics.loss_scaler, &mut self.scale) {
            scale.now = scale.now.after(scaler, has_overflow);
        }
    }

    /// Text of a class's JSON shard; `None` where no text is determined.
    fn text(&self, class: StateClass, step: u64) -> Option<Vec<u8>> {
        match class {
            StateClass::Model => {
                let Architecture::LlamaDecoder(shape) = &self.contract.architecture;
                configuration::config_json(shape).ok()
            }
            StateClass::Scheduler => state_json::scheduler(step, &self.plateaus.now),
            StateClass::Sampler => state_json::sampler(self.contract, self.num_examples, step),
            StateClass::LossScaler => state_json::loss_scaler(self.scale.as_ref().map(|scale| &scale.now)?),
            // Where they stand is the accumulated gradients' to say: GL632.
            StateClass::RngCpu | StateClass::DataCursor if self.saves_windows() => None,
            StateClass::RngCpu => state_json::rng_cpu(self.contract, step),
            StateClass::DataCursor => {
                state_json::data_cursor(self.contract, self.num_examples, step, self.tokens.now)
            }
            StateClass::Topology => state_json::topology(self.contract),
            StateClass::CompilerPlan => state_json::compiler_plan(self.plan.as_ref()?),
            StateClass::SelectionState => state_json::selection_state(&self.selection.now),
            _ => None,
        }
    }

    fn commit(&mut self, checkpoint: &CheckpointId, step: u64) {
        for declaration in self.contract.state_classes.iter().filter(|d| d.not_applicable.is_none()) {
            let class = declaration.class;
            let Some(text) = self.text(class, step) else { continue };
            let name = match class {
                StateClass::Model => "config.json".to_owned(),
                other => format!("{}.json", other.name()),
            };
            self.expected.push(Expected { checkpoint: checkpoint.clone(), class, name, text });
        }
    }
}

fn compare(
    expected: &Expected,
    folder: &str,
    manifest: &CheckpointManifest,
    evidence: &Evidence,
    sink: &mut Sink,
) {
    let digest = Digest::blake3(*blake3::hash(&expected.text).as_bytes());
    let actual = tensors::shard(manifest, expected.class, &expected.name).map(|shard| shard.digest);
    if actual == Some(digest) {
        return;
    }
    let path = format!("{folder}/{}", expected.name);
    let shown = match evidence.read(&path, 4096) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => error.to_string(),
    };
    let message = format!("{} of {} is not what the entries determine", expected.class, expected.checkpoint);
    sink.rejected(At::place(path), message, String::from_utf8_lossy(&expected.text), shown);
}

impl Check for Derived<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        match &entry.body {
            Body::AttemptStart(halves) => self.plan = Some(halves.obs.plan.clone()),
            Body::Step(halves) => self.step(&halves.det),
            Body::Eval(halves) => {
                self.plateaus.now.observe(self.contract, &halves.det.stream, halves.det.value.0);
                if let Some((stream, min_delta)) = followed_stream(self.contract)
                    && stream.name == halves.det.stream
                {
                    let step = entry.header.step.unwrap_or(0);
                    let now = self.selection.now;
                    self.selection.now = now.after(stream.direction, min_delta, step, halves.det.value.0);
                }
            }
            Body::CheckpointDurablyCommitted(halves) => self.commit(&halves.obs.checkpoint, halves.det.step),
            _ => {}
        }
        self.plateaus.entry(entry);
        if let Some(scale) = &mut self.scale {
            scale.entry(entry);
        }
        self.selection.entry(entry);
        self.tokens.entry(entry);
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let mut num_checked = 0;
        for (id, checkpoint, committed) in self.checkpoints.committed() {
            if checkpoint.is_unusable && !checkpoint.is_retired {
                continue;
            }
            let manifest = match tensors::manifest(evidence, committed) {
                Ok(manifest) => manifest,
                Err(reason) => return Outcome::NotEvaluated(reason),
            };
            for expected in self.expected.iter().filter(|expected| expected.checkpoint == *id) {
                num_checked += 1;
                compare(expected, &committed.path, &manifest, evidence, sink);
            }
        }
        if num_checked == 0 {
            return Outcome::NotEvaluated("no checkpoint was committed".to_owned());
        }
        Outcome::Checked(num_checked)
    }
}
