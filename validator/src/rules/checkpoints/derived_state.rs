//! The state that the entries determine is the state that was saved.

use schemas::body::{Body, EvalDet, ExecutedPlan, StepDet};
use schemas::contract::{Architecture, Contract, FaultKind, MidAccumulation};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::policy_card::PolicyCard;
use schemas::report::Route;
use schemas::state::{CheckpointManifest, StateClass};

use crate::derive::loss_scale::ScaleState;
use crate::derive::plateau::Plateaus;
use crate::derive::selection::{SelectionState, followed_stream};
use crate::derive::shift::Shift;
use crate::derive::{configuration, state_json, streams};
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
    /// Digests of what it would hold after faults, with their families.
    damaged: Vec<(Digest, FaultKind)>,
    class: StateClass,
    name: String,
    text: Vec<u8>,
}

struct Derived<'a> {
    card: &'a PolicyCard,
    checkpoints: Checkpoints,
    contract: &'a Contract,
    expected: Vec<Expected>,
    num_examples: u64,
    plan: Option<ExecutedPlan>,
    plateaus: Rewindable<Plateaus>,
    /// Plateaus, and scales, that were forgotten at some place of the attempt.
    restarted: (Vec<Plateaus>, Vec<ScaleState>),
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
            card,
            checkpoints: Checkpoints::default(),
            contract: &frozen.contract,
            expected: Vec::new(),
            num_examples: table.num_examples(),
            plan: None,
            plateaus: Rewindable::new(Plateaus::new(&frozen.contract, groups)),
            restarted: (Vec::new(), Vec::new()),
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
            let restarted = &mut self.restarted.1;
            forget(restarted, ScaleState::new(scaler));
            restarted.iter_mut().for_each(|state| *state = state.after(scaler, has_overflow));
            scale.now = scale.now.after(scaler, has_overflow);
        }
    }

    fn evaluation(&mut self, step: u64, det: &EvalDet) {
        let groups = self.card.groups.iter().map(|group| group.name.as_str());
        let initial = Plateaus::new(self.contract, groups);
        if !initial.0.is_empty() {
            let restarted = &mut self.restarted.0;
            forget(restarted, initial);
            restarted.iter_mut().for_each(|plateaus| {
                plateaus.observe(self.contract, &det.stream, det.value.0);
            });
        }
        self.plateaus.now.observe(self.contract, &det.stream, det.value.0);
        if let Some((stream, min_delta)) = followed_stream(self.contract)
            && stream.name == det.stream
        {
            self.selection.now = self.selection.now.after(stream.direction, min_delta, step, det.value.0);
        }
    }

    /// Digests of the texts that a class would have if its state had been lost.
    fn damaged(&self, class: StateClass, step: u64) -> Vec<(Digest, FaultKind)> {
        let digest = |text: Option<Vec<u8>>| text.map(|text| Digest::blake3(*blake3::hash(&text).as_bytes()));
        let groups = self.card.groups.iter().map(|group| group.name.as_str());
        match (class, &self.contract.numerics.loss_scaler) {
            (StateClass::Scheduler, _) => {
                let initial = Plateaus::new(self.contract, groups);
                let all = self.restarted.0.iter().chain([&initial]);
                let all = all.filter(|plateaus| !plateaus.0.is_empty() && **plateaus != self.plateaus.now);
                all.filter_map(|plateaus| digest(state_json::scheduler(step, plateaus)))
                    .map(|digest| (digest, FaultKind::SchedulerStateLoss))
                    .collect()
            }
            (StateClass::LossScaler, Some(scaler)) => {
                let initial = ScaleState::new(scaler);
                let all = self.restarted.1.iter().chain([&initial]);
                all.filter_map(|state| digest(state_json::loss_scaler(state)))
                    .map(|digest| (digest, FaultKind::LossScalerLoss))
                    .collect()
            }
            _ => Vec::new(),
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
            // That of every worker: see `commit`.
            StateClass::RngCpu => None,
            StateClass::DataCursor => {
                state_json::data_cursor(self.contract, self.num_examples, step, self.tokens.now)
            }
            StateClass::Topology => state_json::topology(self.contract, self.plan.as_ref()?.num_workers),
            StateClass::CompilerPlan => state_json::compiler_plan(self.plan.as_ref()?),
            StateClass::SelectionState => state_json::selection_state(&self.selection.now),
            _ => None,
        }
    }

    fn commit(&mut self, checkpoint: &CheckpointId, step: u64) {
        for declaration in self.contract.state_classes.iter().filter(|d| d.not_applicable.is_none()) {
            let class = declaration.class;
            let texts: Vec<(String, Vec<u8>)> = match class {
                StateClass::Model => {
                    self.text(class, step).map(|text| ("config.json".to_owned(), text)).into_iter().collect()
                }
                StateClass::RngCpu if !self.saves_windows() => streams::files(self.contract)
                    .into_iter()
                    .filter_map(|(worker, name)| {
                        Some((name, state_json::rng_cpu(self.contract, worker.unwrap_or(0), step)?))
                    })
                    .collect(),
                other => self
                    .text(class, step)
                    .map(|text| (format!("{}.json", other.name()), text))
                    .into_iter()
                    .collect(),
            };
            for (name, text) in texts {
                let damaged = self.damaged(class, step);
                self.expected.push(Expected { checkpoint: checkpoint.clone(), damaged, class, name, text });
            }
        }
    }
}

/// States that were forgotten at some place of an attempt; older ones than so
/// many are let go.
const MAX_RESTARTED: usize = 64;

/// Adds what a state would be that is lost here.
fn forget<T: PartialEq>(restarted: &mut Vec<T>, initial: T) {
    if !restarted.contains(&initial) {
        restarted.push(initial);
    }
    if restarted.len() > MAX_RESTARTED {
        restarted.remove(0);
    }
}

/// The family that made a shard what it is, where its text tells.
fn cause(expected: &Expected, digest: Option<Digest>, text: Option<&[u8]>) -> Option<FaultKind> {
    let damaged = expected.damaged.iter().find(|(damaged, _)| Some(*damaged) == digest);
    if let Some((_, cause)) = damaged {
        return Some(*cause);
    }
    let parse = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).ok();
    let (expected_text, actual) = (parse(&expected.text)?, parse(text?)?);
    let numbers = |field: &str| Some((expected_text.get(field)?.as_u64()?, actual.get(field)?.as_u64()?));
    let differs = |field: &str| expected_text.get(field) != actual.get(field);
    match expected.class {
        StateClass::DataCursor => numbers("examples")
            .and_then(|(expected, actual)| Shift::of_counts(expected, actual))
            .map(Shift::cause),
        StateClass::Topology => differs("workers").then_some(FaultKind::TopologyChange),
        StateClass::CompilerPlan if differs("compute_dtype") => Some(FaultKind::PrecisionPolicyChange),
        StateClass::CompilerPlan => differs("num_workers").then_some(FaultKind::TopologyChange),
        _ => None,
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
    let read = evidence.read(&path, 4096);
    let cause = cause(expected, actual, read.as_deref().ok());
    let shown = match &read {
        Ok(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Err(error) => error.to_string(),
    };
    let message = format!("{} of {} is not what the entries determine", expected.class, expected.checkpoint);
    let at = At::place(path).cause(cause);
    sink.rejected(at, message, String::from_utf8_lossy(&expected.text), shown);
}

impl Check for Derived<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.plan = Some(halves.obs.plan.clone());
                self.restarted = (Vec::new(), Vec::new());
            }
            Body::Step(halves) => self.step(&halves.det),
            Body::Eval(halves) => self.evaluation(entry.header.step.unwrap_or(0), &halves.det),
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
