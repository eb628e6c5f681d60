//! The engine: determined state, resume, interruption, refusals.

mod common;

use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use common::{Fixture, decoder};
use schemas::body::{Counters, Credit};
use schemas::contract::{Dtype, LlamaDecoder};
use schemas::parameters::ParameterStatus;
use trainer::data::DataError;
use trainer::engine::{CapturedTensors, Engine, EngineError, StepOutcome};

static GO: AtomicBool = AtomicBool::new(false);

fn steps(engine: &mut Engine, count: u64) -> Result<Vec<StepOutcome>> {
    (0..count).map(|_| engine.step(&GO)?.context("nothing interrupts")).collect()
}

fn values(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

/// Largest absolute difference of any parameter.
fn distance(a: &CapturedTensors, b: &CapturedTensors) -> f32 {
    let pairs = a.model.iter().zip(&b.model);
    pairs
        .flat_map(|(a, b)| {
            assert_eq!(a.info(), b.info());
            values(&a.bytes).into_iter().zip(values(&b.bytes))
        })
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

#[test]
fn learns_and_gives_the_same_bits_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let fixture = Fixture::write(folder.path(), &decoder(), 4, 2)?;
    let mut first = fixture.engine(folder.path())?;
    let mut second = fixture.engine(folder.path())?;
    assert_eq!(first.capture()?, second.capture()?);
    let stream = &fixture.contract.evaluation.streams[0];
    let before = first.evaluate(stream, &GO)?.context("nothing interrupts")?;
    assert!((before.value - 8.0).abs() < 0.3, "a fresh model is near 8 bits: {}", before.value);

    let outcomes = steps(&mut first, 40)?;
    assert_eq!(outcomes, steps(&mut second, 40)?);
    assert_eq!(first.capture()?, second.capture()?);
    let after = first.evaluate(stream, &GO)?.context("nothing interrupts")?;
    assert!(after.value < before.value - 2.0, "{} bits after, {} before", after.value, before.value);
    assert_eq!(first.evaluate(stream, &GO)?, Some(after), "evaluation changes nothing");

    // A captured model is a state of its own kind: the seed decides it.
    let mut other = fixture;
    other.contract.seeds.initialization.0 += 1;
    assert!(distance(&other.engine(folder.path())?.capture()?, &second.capture()?) > 0.01);
    Ok(())
}

#[test]
fn outcome_says_what_happened() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let fixture = Fixture::write(folder.path(), &decoder(), 4, 2)?;
    let mut engine = fixture.engine(folder.path())?;
    let outcomes = steps(&mut engine, 3)?;
    let outcome = &outcomes[2];
    let draw = &outcome.draws[0];
    assert_eq!((draw.ranges[0].epoch, draw.ranges[0].first, draw.ranges[0].num_examples), (0, 16, 8));
    assert_eq!(outcome.counters.examples, 24);
    assert_eq!(engine.counters(), outcome.counters);
    assert_eq!(engine.step_number(), 3);
    let Credit::Backpropagation { gradient_norm, loss, num_microbatches, num_tokens } = outcome.credit else {
        anyhow::bail!("the credit rule is backpropagation");
    };
    assert_eq!(num_microbatches, 2);
    assert!(num_tokens <= 8 * 16 && num_tokens > 7 * 16);
    assert!(loss.0 > 0.0 && gradient_norm.0 > 0.0);
    let names: Vec<&str> = outcome.updates.iter().map(|update| update.group.as_str()).collect();
    assert_eq!(names, ["matrices", "embeddings", "vectors"]);
    let rates: Vec<f64> = outcome.updates.iter().map(|update| update.learning_rate.0).collect();
    assert!((rates[1] - 0.5 * rates[0]).abs() < 1e-18);
    for update in &outcome.updates {
        let norm = update.parameter_norm.context("taken at every step")?.0;
        let change = update.update_norm.context("taken at every step")?.0;
        assert!(norm > 0.0 && change > 0.0 && change < norm);
        let expected = (1.0f64).min(1.0 / (gradient_norm.0 + 1e-6));
        assert!((update.clip_coefficient.0 - expected).abs() < 1e-15);
    }

    // The digests are those of the examples, in order, recomputed from the text.
    let text = std::fs::read(folder.path().join("train.txt"))?;
    let mut order = trainer::order::DataOrder::new("train", 11, fixture.train.len() as u64);
    let (mut ids, mut inputs) = (blake3::Hasher::new(), blake3::Hasher::new());
    for position in 16..24 {
        let record = fixture.train[usize::try_from(order.example(position))?];
        let offset = usize::try_from(record.offset)?;
        ids.update(&record.id);
        inputs.update(&(record.num_targets + 1).to_le_bytes());
        inputs.update(&text[offset..=offset + record.num_targets as usize]);
    }
    assert_eq!(draw.ids.bytes, *ids.finalize().as_bytes());
    assert_eq!(draw.inputs.bytes, *inputs.finalize().as_bytes());
    Ok(())
}

#[test]
fn resumed_equals_uninterrupted_and_cold_controls_differ() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let fixture = Fixture::write(folder.path(), &decoder(), 4, 2)?;
    let mut whole = fixture.engine(folder.path())?;
    steps(&mut whole, 5)?;
    let saved = whole.capture()?;
    let counters = whole.counters();
    let expected = steps(&mut whole, 5)?;

    let mut resumed = fixture.engine(folder.path())?;
    resumed.restore(5, counters, &saved.model, &saved.optimizer)?;
    assert_eq!(resumed.capture()?, saved);
    assert_eq!(steps(&mut resumed, 5)?, expected);
    assert_eq!(resumed.capture()?, whole.capture()?);

    // Without the moments.
    let mut cold = fixture.engine(folder.path())?;
    let mut zeroed = saved.optimizer.clone();
    zeroed.iter_mut().for_each(|tensor| tensor.bytes.fill(0));
    cold.restore(5, counters, &saved.model, &zeroed)?;
    assert_ne!(steps(&mut cold, 5)?, expected);
    assert!(distance(&cold.capture()?, &whole.capture()?) > 1e-4);

    // Without the step: another rate and another correction, over the same data.
    let mut cold = fixture.engine(folder.path())?;
    cold.restore(4, counters, &saved.model, &saved.optimizer)?;
    let other = steps(&mut cold, 5)?;
    assert_eq!(other[0].draws, expected[0].draws);
    assert_ne!(other[0].updates, expected[0].updates);
    assert_ne!(cold.capture()?, whole.capture()?);

    // Without the data cursor: other data and other masks at the same rate.
    let mut cold = fixture.engine(folder.path())?;
    cold.restore(5, Counters::default(), &saved.model, &saved.optimizer)?;
    let other = steps(&mut cold, 5)?;
    assert_ne!(other[0].draws, expected[0].draws);
    assert_eq!(other[0].updates[0].learning_rate, expected[0].updates[0].learning_rate);
    assert!(distance(&cold.capture()?, &whole.capture()?) > 1e-4);
    Ok(())
}

#[test]
fn an_interrupted_step_changes_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let fixture = Fixture::write(folder.path(), &decoder(), 4, 2)?;
    let mut engine = fixture.engine(folder.path())?;
    steps(&mut engine, 2)?;
    let before = (engine.capture()?, engine.counters(), engine.step_number());
    let stop = AtomicBool::new(true);
    assert_eq!(engine.step(&stop)?, None);
    assert_eq!(engine.evaluate(&fixture.contract.evaluation.streams[0], &stop)?, None);
    assert_eq!((engine.capture()?, engine.counters(), engine.step_number()), before);

    let mut other = fixture.engine(folder.path())?;
    steps(&mut other, 2)?;
    assert_eq!(steps(&mut engine, 2)?, steps(&mut other, 2)?);
    Ok(())
}

/// The split into microbatches changes the order of additions and nothing else.
#[test]
fn splits_differ_only_by_rounding() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let run = |microbatch_examples, accumulation| -> Result<_> {
        let fixture = Fixture::write(folder.path(), &decoder(), microbatch_examples, accumulation)?;
        let mut engine = fixture.engine(folder.path())?;
        let outcomes = steps(&mut engine, 6)?;
        Ok((outcomes, engine.capture()?))
    };
    let (whole, whole_state) = run(8, 1)?;
    for (microbatch_examples, accumulation) in [(4, 2), (2, 4), (1, 8)] {
        let (split, split_state) = run(microbatch_examples, accumulation)?;
        for (a, b) in whole.iter().zip(&split) {
            assert_eq!(a.draws, b.draws);
            assert_eq!(a.counters, b.counters);
            assert!((a.loss - b.loss).abs() < 1e-4, "{} and {}", a.loss, b.loss);
        }
        let distance = distance(&whole_state, &split_state);
        assert!(distance < 2e-3, "{microbatch_examples} x {accumulation}: off by {distance}");
    }

    // The same comparison notices dropout that depends on something else.
    let fixture = {
        let mut fixture = Fixture::write(folder.path(), &decoder(), 4, 2)?;
        fixture.contract.seeds.dropout.0 += 1;
        fixture
    };
    let mut engine = fixture.engine(folder.path())?;
    let other = steps(&mut engine, 6)?;
    assert!((other[0].loss - whole[0].loss).abs() > 1e-4);
    Ok(())
}

#[test]
fn frozen_parameters_keep_their_bytes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut fixture = Fixture::write(folder.path(), &decoder(), 4, 2)?;
    let path = "model.layers.0.mlp.up_proj.weight";
    let declaration = fixture.parameters.parameters.iter_mut().find(|parameter| parameter.path == path);
    let declaration = declaration.context("a parameter of the shape")?;
    declaration.status = ParameterStatus::Frozen;
    declaration.group = None;
    let mut engine = fixture.engine(folder.path())?;
    let before = engine.capture()?;
    steps(&mut engine, 3)?;
    let after = engine.capture()?;
    let changed: Vec<bool> = before.model.iter().zip(&after.model).map(|(a, b)| a != b).collect();
    let frozen = before.model.iter().position(|tensor| tensor.name == path).context("captured")?;
    assert!(changed.iter().enumerate().all(|(index, changed)| *changed == (index != frozen)));
    assert_eq!(after.optimizer.len(), 2 * (after.model.len() - 1));
    Ok(())
}

#[test]
fn restore_refuses_and_names_the_tensor() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let fixture = Fixture::write(folder.path(), &decoder(), 4, 2)?;
    let mut engine = fixture.engine(folder.path())?;
    let state = engine.capture()?;
    let check = |engine: &mut Engine, state: &CapturedTensors, class: &str, reason: &str| {
        let result = engine.restore(1, engine.counters(), &state.model, &state.optimizer);
        let message = result.expect_err("refused").to_string();
        assert!(message.starts_with(class) && message.contains(reason), "{message}");
        assert_eq!(engine.step_number(), 0);
    };
    let mut missing = state.clone();
    let removed = missing.optimizer.remove(3);
    check(&mut engine, &missing, "optimizer", &format!("{:?} is missing", removed.name));
    let mut extra = state.clone();
    extra.model[0].name.push('x');
    check(&mut engine, &extra, "model", "is not declared");
    let mut twice = state.clone();
    twice.model.push(twice.model[0].clone());
    check(&mut engine, &twice, "model", "occurs twice");
    let mut dtype = state.clone();
    dtype.model[1].dtype = "F16".to_owned();
    check(&mut engine, &dtype, "model", "is F16");
    let mut shape = state.clone();
    shape.model[0].shape.reverse();
    check(&mut engine, &shape, "model", "[16, 256], declared is F32 [256, 16]");
    let mut short = state.clone();
    short.optimizer[0].bytes.pop();
    check(&mut engine, &short, "optimizer", "bytes of");
    Ok(())
}

#[test]
fn text_that_changed_after_the_freeze_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let fixture = Fixture::write(folder.path(), &decoder(), 4, 2)?;
    let mut engine = fixture.engine(folder.path())?;
    let path = folder.path().join("train.txt");
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, text.to_uppercase())?;
    let Err(EngineError::Data(DataError::Changed { path: named, .. })) = engine.step(&GO) else {
        anyhow::bail!("other text was accepted");
    };
    assert_eq!(named, path);
    std::fs::write(&path, &text[1..])?;
    let error = fixture.engine(folder.path()).expect_err("another size");
    assert!(format!("{error:#}").contains("train.txt: the manifest says"), "{error:#}");
    Ok(())
}

#[test]
fn contracts_that_are_not_executed_are_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let check = |change: &dyn Fn(&mut Fixture), pointer: &str| -> Result<()> {
        let mut fixture = Fixture::write(folder.path(), &decoder(), 4, 2)?;
        change(&mut fixture);
        let error = fixture.engine(folder.path()).expect_err(pointer);
        let chain = format!("{error:#}");
        assert!(chain.contains(pointer), "{chain} does not name {pointer}");
        Ok(())
    };
    check(&|f| f.contract.numerics.parameter_dtype = Dtype::Bf16, "/numerics/parameter_dtype")?;
    check(&|f| f.contract.batch.data_parallel = 2, "/batch/data_parallel")?;
    check(&|f| f.contract.batch.global_examples = 9, "/batch/global_examples")?;
    check(&|f| f.contract.schedule.truncate(2), "/schedule")?;
    check(&|f| f.card.checkpoint_state.truncate(1), "/checkpoint_state")?;
    check(&|f| f.card.groups.truncate(2), "/schedule/2/group")?;
    let without_vectors = |f: &mut Fixture| {
        f.card.groups.truncate(2);
        f.contract.schedule.truncate(2);
    };
    check(&without_vectors, "no group takes parameter")?;
    check(&|f| f.parameters.parameters[3].shape[0] += 1, "/parameters/3")?;
    check(&|f| f.contract.plan.autotune = true, "/plan/autotune")?;
    let with_shape = |change: &dyn Fn(&mut LlamaDecoder), field: &str| {
        check(
            &|f| {
                let schemas::contract::Architecture::LlamaDecoder(shape) = &mut f.contract.architecture;
                change(shape);
            },
            field,
        )
    };
    with_shape(&|shape| shape.num_kv_heads = 3, "num_kv_heads")?;
    with_shape(&|shape| shape.vocab_size = 100, "vocab_size")?;
    Ok(())
}

/// What an update changes is shared with no clone, in neither direction.
#[test]
fn a_clone_goes_on_by_itself() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut fixture = Fixture::write(folder.path(), &decoder(), 4, 2)?;
    fixture.contract.averages = Some(schemas::contract::Averages {
        decay: 0.9,
        first_step: 1,
        order: schemas::contract::AverageOrder::AfterUpdate,
    });
    let mut engine = fixture.engine(folder.path())?;
    steps(&mut engine, 3)?;
    let before = engine.capture()?;
    let mut fork = engine.clone();
    let mut varied = engine.clone();
    assert_eq!(fork.capture()?, before);
    let ahead = steps(&mut fork, 3)?;
    assert!(distance(&fork.capture()?, &before) > 0.0, "the clone moved");
    assert_eq!(engine.capture()?, before, "and the engine did not");
    assert_eq!(engine.step_number(), 3);

    // By another seed it draws other examples; by its own the same.
    let varies = [schemas::contract::VariedDraws::DataOrder, schemas::contract::VariedDraws::Dropout];
    let mut same = engine.clone();
    same.vary(&fixture.contract, &varies[..1], fixture.contract.seeds.data_order.0);
    assert_eq!(steps(&mut same, 3)?, ahead);
    varied.vary(&fixture.contract, &varies, 99);
    let varied = steps(&mut varied, 3)?;
    assert_ne!(varied[0].draws[0].ids, ahead[0].draws[0].ids);
    assert_eq!(varied[0].draws[0].ranges, ahead[0].draws[0].ranges, "the cursor stays");
    assert_eq!(steps(&mut engine, 3)?, ahead);
    Ok(())
}
