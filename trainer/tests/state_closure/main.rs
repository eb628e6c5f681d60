//! State closure: from every step of a tiny run, what the registry saved gives
//! the rest of the run bit for bit, each class that holds state makes a
//! difference, and a shard that is missing or of another form is refused with
//! the name of its class.
#![allow(missing_docs, unreachable_pub, reason = "a test program")]

#[path = "../common/mod.rs"]
mod common;

mod windows;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use common::{Fixture, decoder};
use schemas::body::Counters;
use schemas::contract::*;
use schemas::digest::Digest;
use schemas::ids::{AttemptId, CheckpointId, RunId};
use schemas::model_index::{FROZEN_MODEL_NAME, MODEL_INDEX_NAME, ModelIndex, TRAINABLE_MODEL_NAME};
use schemas::state::{CheckpointManifest, NotApplicableReason, Shard, StateClass, StateClassDeclaration};
use tempfile::TempDir;
use trainer::checkpoint::manifest::{self, ManifestHeader};
use trainer::engine::{Engine, StepOutcome};
use trainer::evaluate::EvaluationOutcome;
use trainer::export;
use trainer::state::registry::{self, CapturedState, Content, Source, Target};
use trainer::state::{Derivation, SelectionState, split};

static GO: AtomicBool = AtomicBool::new(false);

/// What a step and its evaluations were.
type Turn = (Option<StepOutcome>, Vec<EvaluationOutcome>);

/// A saved state as files.
type Files = (CheckpointManifest, BTreeMap<String, Vec<u8>>);

/// A tiny run, and its state at every step.
struct Run {
    fixture: Fixture,
    folder: TempDir,
    /// Turn of every step, from 0.
    turns: Vec<Turn>,
    states: Vec<(CapturedState, Counters)>,
}

impl Run {
    /// Runs `num_steps` updates over the first `num_examples` examples.
    fn new(
        split: (u32, u32),
        num_examples: usize,
        num_steps: u64,
        edit: impl FnOnce(&mut Contract),
    ) -> Result<Self> {
        Self::with_frozen(&[], split, num_examples, num_steps, edit)
    }

    /// The same, with parameters that no update changes, by pattern.
    fn with_frozen(
        frozen: &[&str],
        split: (u32, u32),
        num_examples: usize,
        num_steps: u64,
        edit: impl FnOnce(&mut Contract),
    ) -> Result<Self> {
        let folder = TempDir::with_prefix("trainer-closure-")?;
        let mut fixture = Fixture::write(folder.path(), &decoder(), split.0, split.1)?;
        fixture.train.truncate(num_examples);
        let patterns: Vec<String> = frozen.iter().map(ToString::to_string).collect();
        trainer::model::freeze::freeze(&mut fixture.parameters, &patterns)?;
        fixture.contract.evaluation.streams[0].every_steps = 1;
        fixture.contract.evaluation.streams[0].num_examples = Some(3);
        edit(&mut fixture.contract);
        registry::check_declarations(&fixture.contract)?;
        let mut run = Self { fixture, folder, turns: Vec::new(), states: Vec::new() };
        let mut engine = run.fixture.engine(run.folder.path())?;
        for step in 0..=num_steps {
            let turn = run.turn(&mut engine, step)?;
            run.turns.push(turn);
            run.states.push((run.capture(&engine)?, engine.counters()));
        }
        Ok(run)
    }

    fn turn(&self, engine: &mut Engine, step: u64) -> Result<Turn> {
        let outcome = match step {
            0 => None,
            _ => Some(engine.step(&GO)?.context("nothing interrupts")?),
        };
        let mut evaluations = Vec::new();
        for stream in &self.fixture.contract.evaluation.streams {
            if step.is_multiple_of(stream.every_steps) {
                let evaluation = engine.evaluate(stream, &GO)?.context("nothing interrupts")?;
                engine.observe_evaluation(&stream.name, evaluation.value);
                evaluations.push(evaluation);
            }
        }
        Ok((outcome, evaluations))
    }

    fn derivation<'a>(&'a self, engine: &Engine, at: (u64, Counters)) -> Derivation<'a> {
        static SELECTION: SelectionState =
            SelectionState { best_step: None, best_value: None, evaluations_without_improvement: 0 };
        Derivation {
            contract: &self.fixture.contract,
            counters: at.1,
            num_train_examples: engine.num_train_examples(),
            num_workers: 1,
            plan: &self.fixture.contract.plan,
            selection: &SELECTION,
            step: at.0,
        }
    }

    fn capture(&self, engine: &Engine) -> Result<CapturedState> {
        let derivation = self.derivation(engine, (engine.step_number(), engine.consumed()));
        Ok(registry::capture(&Source { derivation, engine })?)
    }

    /// The state of a step as files.
    fn files(&self, step: usize) -> Result<Files> {
        self.files_of(step, &self.states[step].0)
    }

    fn files_of(&self, step: usize, state: &CapturedState) -> Result<Files> {
        let (mut shards, mut contents) = (BTreeMap::new(), BTreeMap::new());
        for (class, captured) in &state.classes {
            let mut listed = Vec::new();
            let mut files = split::files(*class, captured)?;
            for shard in captured {
                let bytes = files.remove(shard.name).context("every shard is a file")?;
                let tensors = match &shard.content {
                    Content::Frozen(tensors, _) | Content::Tensors(_, tensors) => {
                        tensors.iter().map(export::NamedTensor::info).collect()
                    }
                    Content::Index(_) | Content::Json(_) => Vec::new(),
                };
                let digest = common::digest_of(&bytes);
                let num_bytes = bytes.len() as u64;
                listed.push(Shard { digest, num_bytes, path: shard.name.to_owned(), tensors });
                contents.insert(shard.name.to_owned(), bytes);
            }
            shards.insert(*class, listed);
        }
        let header = ManifestHeader {
            attempt: AttemptId(1),
            checkpoint: &CheckpointId::from("c"),
            contract: Digest::sha256([1; 32]),
            declarations: &self.fixture.contract.state_classes,
            run: &RunId::from("r"),
            step: step as u64,
        };
        Ok((manifest::build(&header, shards), contents))
    }

    /// An engine at a step, from its files, without the classes in `left_out`.
    fn restored(&self, step: usize, files: &Files, left_out: &[StateClass]) -> Result<Engine> {
        let mut engine = self.fixture.engine(self.folder.path())?;
        let derivation = self.derivation(&engine, (step as u64, self.states[step].1));
        let mut target = Target { derivation, engine: &mut engine };
        registry::restore(&files.0, &files.1, &mut target, left_out)?;
        Ok(engine)
    }

    /// The rest of the run from a step: turns, and the last state.
    fn rest(&self, mut engine: Engine, step: usize) -> Result<(Vec<Turn>, CapturedState)> {
        let mut turns = Vec::new();
        for step in step + 1..self.turns.len() {
            turns.push(self.turn(&mut engine, step as u64)?);
        }
        let state = self.capture(&engine)?;
        Ok((turns, state))
    }

    /// From every step: the same rest. Without `class`, from `first` on: another.
    fn check(&self, class: StateClass, first: usize) -> Result<()> {
        let last = self.turns.len() - 1;
        assert!(first < last, "there is a step to leave the class out at");
        let end = &self.states[last].0;
        for step in 0..=last {
            let files = self.files(step)?;
            let engine = self.restored(step, &files, &[])?;
            assert_eq!(self.capture(&engine)?, self.states[step].0, "step {step}");
            let (turns, state) = self.rest(engine, step)?;
            assert_eq!(turns, self.turns[step + 1..], "step {step}");
            assert!(state == *end, "the state after a resume at step {step} differs");
            if (first..last).contains(&step) {
                let (turns, state) = self.rest(self.restored(step, &files, &[class])?, step)?;
                let is_same = turns == self.turns[step + 1..] && state == *end;
                assert!(!is_same, "{class} left out at step {step} makes no difference");
            }
        }
        Ok(())
    }

    /// Restoring after a change is refused, with the class's name.
    #[track_caller]
    fn refuses(&self, class: StateClass, what: &str, change: impl FnOnce(&mut Files)) -> Result<()> {
        let step = self.turns.len() - 2;
        let mut files = self.files(step)?;
        change(&mut files);
        let error = self.restored(step, &files, &[]).expect_err(what);
        let said = format!("{error:#}");
        assert!(said.contains(&format!("`{class}`")) && said.contains(what), "{said}");
        Ok(())
    }
}

/// Adds a captured class in its place, or captures one that is declared.
fn capture(contract: &mut Contract, class: StateClass) {
    let classes = &mut contract.state_classes;
    classes.retain(|declaration| declaration.class != class);
    let at = classes.iter().position(|other| other.class > class).unwrap_or(classes.len());
    classes.insert(at, StateClassDeclaration { class, not_applicable: None });
}

fn with_averages(contract: &mut Contract, order: AverageOrder) {
    contract.averages = Some(Averages { decay: 0.75, first_step: 3, order });
    let mut stream = contract.evaluation.streams[0].clone();
    stream.name = "averaged".to_owned();
    stream.view = ParameterView::Averages;
    contract.evaluation.streams.push(stream);
    capture(contract, StateClass::Averages);
}

/// C12 and C04: every batch of the epochs 0, 1 and 2, with windows of three of
/// five microbatches, so that an update spans two epochs.
#[test]
fn every_batch_of_three_epochs_is_a_place_to_resume() -> Result<()> {
    let run = Run::new((1, 3), 5, 5, |_| ())?;
    let mut drawn: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (outcome, _) in &run.turns[1..] {
        for range in &outcome.as_ref().context("a step")?.draws[0].ranges {
            let positions = range.first..range.first + range.num_examples;
            drawn.entry(range.epoch).or_default().extend(positions);
        }
    }
    let whole: Vec<u64> = (0..5).collect();
    assert_eq!(drawn.into_values().collect::<Vec<_>>(), [whole.clone(), whole.clone(), whole]);
    for class in [StateClass::Model, StateClass::Optimizer, StateClass::DataCursor] {
        run.check(class, 1)?;
    }
    Ok(())
}

/// A model in two files: what is frozen is not taken on trust.
#[test]
fn frozen_parameters_resume_bit_for_bit_and_are_compared_with_the_initial_ones() -> Result<()> {
    let frozen = "model.embed_tokens.weight";
    let run = Run::with_frozen(&[frozen, "model.layers.1.*"], (2, 2), 20, 5, |contract| {
        with_averages(contract, AverageOrder::AfterUpdate);
    })?;
    run.check(StateClass::Model, 1)?;
    run.check(StateClass::Optimizer, 1)?;
    let class = StateClass::Model;
    let names = run.files(1)?.0.classes[0].shards.iter().map(|shard| shard.path.clone()).collect::<Vec<_>>();
    assert_eq!(names, split::SPLIT_NAMES);
    let first = run.files(1)?.1;
    for (name, is_same) in
        [(FROZEN_MODEL_NAME, true), (MODEL_INDEX_NAME, false), (TRAINABLE_MODEL_NAME, false)]
    {
        assert_eq!(run.files(4)?.1[name] == first[name], is_same, "{name}");
    }
    run.refuses(class, "is missing", |files| _ = files.1.remove(FROZEN_MODEL_NAME))?;
    run.refuses(class, "it has the shards", |files| {
        files.0.classes[0].shards.retain(|shard| shard.path != FROZEN_MODEL_NAME);
    })?;
    run.refuses(class, "is not the index", |files| {
        files.1.insert(MODEL_INDEX_NAME.to_owned(), first[MODEL_INDEX_NAME].clone());
    })?;
    // Another value of a frozen parameter, with every digest above it.
    run.refuses(class, frozen, |files| {
        let bytes = files.1.get_mut(FROZEN_MODEL_NAME).expect("a shard");
        let (kind, num_bytes) = (export::FileKind::Model, bytes.len() as u64);
        let (mut tensors, _) = export::read(kind, &mut bytes.as_slice(), num_bytes).expect("tensors");
        tensors[0].bytes[0] ^= 1;
        *bytes = export::safetensors_bytes(kind, &tensors).expect("a file");
        let digest = common::digest_of(bytes);
        let mut index: ModelIndex = serde_json::from_slice(&files.1[MODEL_INDEX_NAME]).expect("an index");
        index.metadata.shards.insert(FROZEN_MODEL_NAME.to_owned(), digest);
        let index = serde_json::to_vec(&index).expect("JSON");
        for shard in &mut files.0.classes[0].shards {
            match shard.path.as_str() {
                FROZEN_MODEL_NAME => shard.digest = digest,
                MODEL_INDEX_NAME => shard.digest = common::digest_of(&index),
                _ => {}
            }
        }
        files.1.insert(MODEL_INDEX_NAME.to_owned(), index);
    })
}

#[test]
fn averages_resume_bit_for_bit_and_matter() -> Result<()> {
    for order in [AverageOrder::AfterUpdate, AverageOrder::BeforeUpdate] {
        let run = Run::new((2, 2), 20, 7, |contract| with_averages(contract, order))?;
        // While the averages are copies they are made anew at the next update.
        run.check(StateClass::Averages, 2)?;
        let class = StateClass::Averages;
        run.refuses(class, "does not have it", |files| files.0.classes.retain(|c| c.class != class))?;
        run.refuses(class, "is missing", |files| _ = files.1.remove("averages.safetensors"))?;
        run.refuses(class, "cannot be restored", |files| {
            let other = files.1["optimizer.safetensors"].clone();
            files.1.insert("averages.safetensors".to_owned(), other);
        })?;
        run.refuses(class, "does not hold the tensors", |files| {
            for captured in files.0.classes.iter_mut().filter(|captured| captured.class == class) {
                captured.shards[0].tensors.pop();
            }
        })?;
    }
    Ok(())
}

/// The shard of averages with one tensor of another dtype or shape, listed so.
#[test]
fn averages_of_another_form_are_refused() -> Result<()> {
    let run = Run::new((2, 2), 20, 4, |contract| with_averages(contract, AverageOrder::AfterUpdate))?;
    let class = StateClass::Averages;
    let rewritten = |files: &mut Files, change: &dyn Fn(&mut export::NamedTensor)| -> Result<()> {
        let bytes = files.1["averages.safetensors"].clone();
        let kind = export::FileKind::Model;
        let (mut tensors, _) = export::read(kind, &mut bytes.as_slice(), bytes.len() as u64)?;
        change(&mut tensors[0]);
        let infos: Vec<_> = tensors.iter().map(export::NamedTensor::info).collect();
        files.1.insert("averages.safetensors".to_owned(), export::safetensors_bytes(kind, &tensors)?);
        let captured = files.0.classes.iter_mut().find(|captured| captured.class == class);
        captured.context("captured")?.shards[0].tensors = infos;
        Ok(())
    };
    let mut problem = Ok(());
    run.refuses(class, "is I32", |files| {
        problem = rewritten(files, &|tensor| tensor.dtype = "I32".to_owned());
    })?;
    problem?;
    let mut problem = Ok(());
    run.refuses(class, "declared is F32", |files| {
        problem = rewritten(files, &|tensor| tensor.shape.reverse());
    })?;
    problem
}

/// C22: averages are evaluated beside the trained parameters, never in their
/// place; a run that looks at them trains the same model.
#[test]
fn evaluating_averages_leaves_the_trained_parameters_alone() -> Result<()> {
    let plain = Run::new((2, 2), 20, 5, |_| ())?;
    let averaged = Run::new((2, 2), 20, 5, |c| with_averages(c, AverageOrder::AfterUpdate))?;
    for (plain, averaged) in plain.states.iter().zip(&averaged.states) {
        for (class, name) in
            [(StateClass::Model, "model.safetensors"), (StateClass::Optimizer, "optimizer.safetensors")]
        {
            assert!(plain.0.shard(class, name) == averaged.0.shard(class, name));
        }
    }
    let values: Vec<[f64; 2]> =
        averaged.turns.iter().map(|turn| [turn.1[0].value, turn.1[1].value]).collect();
    for (step, [trained, averaged]) in values.iter().enumerate() {
        // Copies until the third update, averages from it on.
        assert_eq!(
            trained.to_bits() == averaged.to_bits(),
            step < 3,
            "step {step}: {trained} and {averaged}"
        );
    }
    let last = averaged.states.last().context("a state")?;
    let shard = |class, name| last.0.shard(class, name).map(|shard| &shard.content);
    let model = shard(StateClass::Model, "model.safetensors");
    assert_ne!(model, shard(StateClass::Averages, "averages.safetensors"));
    Ok(())
}

/// A rate that falls at every other evaluation, since none improves by enough.
fn with_plateau(contract: &mut Contract) {
    for schedule in &mut contract.schedule[..2] {
        schedule.shape = ScheduleShape::Plateau {
            cooldown: 1,
            factor: 0.5,
            floor: 1e-5,
            min_delta: 2.0,
            patience: 0,
            rate: 1e-2,
            stream: "val".to_owned(),
        };
    }
    capture(contract, StateClass::Scheduler);
}

#[test]
fn a_plateau_resumes_bit_for_bit_and_matters() -> Result<()> {
    let run = Run::new((2, 2), 20, 7, with_plateau)?;
    let rates: Vec<f64> = run.turns[1..]
        .iter()
        .map(|turn| turn.0.as_ref().map_or(0.0, |outcome| outcome.updates[0].learning_rate.0))
        .collect();
    assert!(rates.windows(2).any(|pair| pair[1] < pair[0]) && rates[6] < rates[0] / 3.0, "{rates:?}");
    let class = StateClass::Scheduler;
    run.check(class, 1)?;
    run.refuses(class, "is missing", |files| _ = files.1.remove("scheduler.json"))?;
    run.refuses(class, "not of its shape", |files| {
        files.1.insert("scheduler.json".to_owned(), br#"{"step":6}"#.to_vec());
    })?;
    run.refuses(class, "does not fit step", |files| replace(files, "\"step\":6", "\"step\":5"))?;
    run.refuses(class, "of the groups", |files| replace(files, "\"matrices\"", "\"vectors\""))?;
    let mut contract = run.fixture.contract.clone();
    let declared = contract.state_classes.iter_mut().find(|declared| declared.class == class);
    declared.context("declared")?.not_applicable = Some(NotApplicableReason::FunctionOfStep);
    let error = registry::check_declarations(&contract).expect_err("a plateau is state");
    assert!(error.to_string().contains("`scheduler`"), "{error}");
    Ok(())
}

fn with_dropout_stream(contract: &mut Contract) {
    contract.dropout_draws = DropoutDraws::PhiloxStream;
    capture(contract, StateClass::RngCpu);
}

#[test]
fn a_stream_of_masks_resumes_bit_for_bit_and_matters() -> Result<()> {
    let run = Run::new((2, 2), 20, 6, with_dropout_stream)?;
    let class = StateClass::RngCpu;
    run.check(class, 1)?;
    run.refuses(class, "is missing", |files| _ = files.1.remove("rng_cpu.json"))?;
    run.refuses(class, "not of its shape", |files| replace(files, "\"blocks\":", "\"blocks\":-"))?;
    run.refuses(class, "does not fit step", |files| replace(files, "\"step\":5", "\"step\":4"))?;
    run.refuses(class, "does not fit step", |files| {
        if let Some(bytes) = files.1.get_mut("rng_cpu.json") {
            let mut state: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
            state["key"][0] = (state["key"][0].as_u64().unwrap_or(0) ^ 1).into();
            *bytes = state.to_string().into_bytes();
        }
    })?;
    // Masks of coordinates train another model, and need no such state.
    let keyed = Run::new((2, 2), 20, 6, |_| ())?;
    let model = |run: &Run| run.states[6].0.shard(StateClass::Model, "model.safetensors").cloned();
    assert_ne!(model(&run), model(&keyed));
    let mut contract = run.fixture.contract.clone();
    let declared = contract.state_classes.iter_mut().find(|declared| declared.class == class);
    declared.context("declared")?.not_applicable = Some(NotApplicableReason::CounterBasedRandomness);
    let error = registry::check_declarations(&contract).expect_err("a stream is state");
    assert!(error.to_string().contains("`rng_cpu`"), "{error}");
    Ok(())
}

/// An update that a signal interrupts half-way has drawn no masks and no
/// examples: interrupted later and later, until it is through.
#[test]
fn an_interrupted_update_draws_again_what_it_drew() -> Result<()> {
    let run = Run::new((1, 8), 20, 2, with_dropout_stream)?;
    let mut engine = run.fixture.engine(run.folder.path())?;
    let mut num_interrupted = 0;
    loop {
        let stop = AtomicBool::new(num_interrupted == 0);
        let delay = std::time::Duration::from_micros(100 * num_interrupted);
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(delay);
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            engine.step(&stop)
        })?;
        if let Some(outcome) = outcome {
            assert_eq!(Some(&outcome), run.turns[1].0.as_ref());
            break;
        }
        num_interrupted += 1;
        assert_eq!(run.capture(&engine)?, run.states[0].0, "interrupted {num_interrupted} times");
    }
    assert!(num_interrupted > 1, "some interruption came between two microbatches");
    assert_eq!(run.capture(&engine)?, run.states[1].0);
    Ok(())
}

/// C12 with a sampler that holds state: every batch of three epochs of five,
/// three at a time.
#[test]
fn a_shuffle_buffer_resumes_bit_for_bit_and_matters() -> Result<()> {
    let run = Run::new((1, 3), 5, 5, |contract| {
        contract.order = OrderPolicy::ShuffleBuffer { size: 3 };
        capture(contract, StateClass::Sampler);
    })?;
    let class = StateClass::Sampler;
    run.check(class, 1)?;
    run.refuses(class, "is missing", |files| _ = files.1.remove("sampler.json"))?;
    run.refuses(class, "not of its shape", |files| replace(files, "\"next\":", "\"next\":-"))?;
    run.refuses(class, "does not fit step", |files| replace(files, "\"step\":4", "\"step\":3"))?;
    run.refuses(class, "expected", |files| replace(files, "\"next\":", "\"next\":1"))?;
    let keyed = Run::new((1, 3), 5, 5, |_| ())?;
    let ids = |run: &Run| -> Vec<_> {
        run.turns.iter().filter_map(|turn| Some(turn.0.as_ref()?.draws[0].ids)).collect()
    };
    assert_ne!(ids(&run), ids(&keyed));
    Ok(())
}

/// Binary16 with a first scale that its gradients overflow at.
fn with_loss_scaler(contract: &mut Contract) {
    contract.numerics.compute_dtype = Dtype::F16;
    let initial = 16_777_216.0;
    contract.numerics.loss_scaler =
        Some(LossScaler { backoff: 0.25, growth: 2.0, growth_interval: 2, initial });
    capture(contract, StateClass::LossScaler);
}

/// C05: the loss scale, what moves it, and the count of skipped steps.
#[test]
fn a_loss_scaler_resumes_bit_for_bit_and_matters() -> Result<()> {
    let run = Run::new((2, 2), 20, 7, with_loss_scaler)?;
    let overflows: Vec<_> =
        run.turns[1..].iter().filter_map(|turn| turn.0.as_ref()?.overflow.clone()).collect();
    assert_eq!(overflows.len(), 7);
    assert!(overflows[0].found && overflows[0].skipped, "the first scale overflows: {overflows:?}");
    assert!(!overflows[6].found, "and it backs off far enough: {overflows:?}");
    assert!(overflows.windows(2).any(|pair| pair[1].scale.0 > pair[0].scale.0), "it grows: {overflows:?}");
    let class = StateClass::LossScaler;
    run.check(class, 1)?;
    run.refuses(class, "is missing", |files| _ = files.1.remove("loss_scaler.json"))?;
    run.refuses(class, "not of its shape", |files| replace(files, "\"skipped\":", "\"skipped\":-"))?;
    run.refuses(class, "is no power of two", |files| replace(files, "\"scale\":", "\"scale\":3"))?;
    run.refuses(class, "steps skipped of", |files| replace(files, "\"skipped\":", "\"skipped\":9"))?;
    Ok(())
}

/// Replaces a text in whichever JSON shard of a stateful component has it.
fn replace(files: &mut Files, found: &str, other: &str) {
    let stateful =
        ["accumulated_gradients.json", "loss_scaler.json", "scheduler.json", "rng_cpu.json", "sampler.json"];
    let mut num_replaced = 0;
    for (name, bytes) in files.1.iter_mut().filter(|(name, _)| stateful.contains(&name.as_str())) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        if text.contains(found) {
            *bytes = text.replacen(found, other, 1).into_bytes();
            num_replaced += 1;
        }
        assert!(name.ends_with(".json"));
    }
    assert_eq!(num_replaced, 1, "the change acts");
}
