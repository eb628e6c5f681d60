//! Half precision: what each operation of the decoder gives on this backend,
//! what an update in binary16 or bfloat16 is, and what an overflow does.

mod common;

use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData, activation};
use common::{Fixture, decoder};
use schemas::body::{Credit, Overflow};
use schemas::contract::{Dtype, LossScaler};
use trainer::engine::{CapturedTensors, Engine, EngineError, StepOutcome};

static GO: AtomicBool = AtomicBool::new(false);

/// Half precisions with the distance of two neighbours around 1.
const HALVES: [(FloatDType, f32); 2] = [(FloatDType::F16, 9.8e-4), (FloatDType::BF16, 7.9e-3)];

type Operation = fn(Tensor<2>, Tensor<2>) -> Tensor<2>;

/// Every operation on floats that the decoder, its loss and their gradients are
/// made of, over `[6, 8]` and `[8, 6]`.
const OPERATIONS: [(&str, Operation); 14] = [
    ("matmul", |x, w| x.matmul(w)),
    ("matmul of a transpose", |x, w| x.matmul(w.swap_dims(0, 1).reshape([8, 6]))),
    ("add", |x, w| x.add(w.transpose())),
    ("sub", |x, w| x.sub(w.transpose())),
    ("mul", |x, w| x.mul(w.transpose())),
    ("mul_scalar", |x, _| x.mul_scalar(0.3)),
    ("exp", |x, _| x.exp()),
    ("log", |x, _| x.square().add_scalar(1.0).log()),
    ("sqrt and recip", |x, _| x.square().mean_dim(1).add_scalar(1e-2).sqrt().recip()),
    ("silu", |x, _| activation::silu(x)),
    ("sum_dim", |x, _| x.sum_dim(1)),
    ("max_dim", |x, _| x.clone().sub(x.detach().max_dim(1)).exp()),
    ("gather", |x, _| {
        let index = TensorData::from([[1i32], [0], [7], [3], [3], [5]]);
        let index = Tensor::<2, Int>::from_data(index, &x.device());
        x.gather(1, index)
    }),
    ("select", |x, _| {
        let rows = Tensor::<1, Int>::from_data(TensorData::from([4i32, 4, 0, 5]), &x.device());
        x.select(0, rows)
    }),
];

fn matrix(shape: [usize; 2], seed: u16, device: &Device) -> Tensor<2> {
    let count = u16::try_from(shape[0] * shape[1]).expect("a small matrix");
    let values: Vec<f32> = (0..count).map(|at| (f32::from(at * 7 + seed) * 0.37).sin()).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Result and gradient of the first operand, in a dtype, as binary32.
fn result(operation: Operation, dtype: FloatDType) -> Result<(Vec<f32>, Vec<f32>)> {
    let device = Device::flex();
    // Rounded first, so that the operands are the same in both dtypes.
    let operand = |shape, seed, by: FloatDType| {
        matrix(shape, seed, &device).cast(by).cast(FloatDType::F32).autodiff().require_grad()
    };
    let rounding = if dtype == FloatDType::F32 { FloatDType::BF16 } else { dtype };
    let (x, w) = (operand([6, 8], 1, rounding), operand([8, 6], 5, rounding));
    let out = operation(x.clone().cast(dtype), w.cast(dtype));
    let mut tape = out.clone().cast(FloatDType::F32).square().sum().backward();
    let gradient = x.grad_remove(&mut tape).context("the first operand has a gradient")?;
    let values = |data: TensorData| -> Result<Vec<f32>> { Ok(data.convert::<f32>().try_to_vec::<f32>()?) };
    Ok((values(out.cast(FloatDType::F32).inner().into_data())?, values(gradient.into_data())?))
}

/// The finding that half precision rests on: none of them is missing, and each
/// rounds as its dtype does.
#[test]
fn every_operation_computes_in_half_precision_forward_and_backward() -> Result<()> {
    for (name, operation) in OPERATIONS {
        let (expected, expected_gradient) = result(operation, FloatDType::F32)?;
        assert!(expected.iter().any(|value| *value != 0.0), "{name}");
        for (dtype, epsilon) in HALVES {
            let (actual, gradient) = result(operation, dtype)?;
            // Operands of the reference are rounded to bfloat16.
            let allowed = if dtype == FloatDType::F16 { 16.0 * 7.9e-3 } else { 16.0 * epsilon };
            for (expected, actual) in [(&expected, &actual), (&expected_gradient, &gradient)].into_iter() {
                assert_eq!(expected.len(), actual.len(), "{name} in {dtype:?}");
                let scale = expected.iter().fold(1.0f32, |largest, value| largest.max(value.abs()));
                for (expected, actual) in expected.iter().zip(actual) {
                    let distance = (expected - actual).abs() / scale;
                    assert!(distance < allowed, "{name} in {dtype:?}: {expected} and {actual}");
                }
            }
        }
    }
    Ok(())
}

fn scaler(initial: f64) -> LossScaler {
    LossScaler { backoff: 0.5, growth: 2.0, growth_interval: 1000, initial }
}

fn fixture(folder: &std::path::Path, compute: Dtype, initial: Option<f64>) -> Result<Fixture> {
    let mut fixture = Fixture::write(folder, &decoder(), 4, 2)?;
    fixture.contract.numerics.compute_dtype = compute;
    fixture.contract.numerics.loss_scaler = initial.map(scaler);
    Ok(fixture)
}

fn steps(engine: &mut Engine, count: u64) -> Result<Vec<StepOutcome>> {
    (0..count).map(|_| engine.step(&GO)?.context("nothing interrupts")).collect()
}

/// Bits of a scale that does not overflow: those of the gradients times a power
/// of two.
#[test]
fn half_precision_learns_over_binary32_masters() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let run = |compute, initial| -> Result<(Vec<StepOutcome>, CapturedTensors, f64)> {
        let fixture = fixture(folder.path(), compute, initial)?;
        let mut engine = fixture.engine(folder.path())?;
        let outcomes = steps(&mut engine, 40)?;
        let value = engine.evaluate(&fixture.contract.evaluation.streams[0], &GO)?;
        Ok((outcomes, engine.capture()?, value.context("nothing interrupts")?.value))
    };
    let whole = run(Dtype::F32, None)?;
    for (compute, initial) in [(Dtype::Bf16, None), (Dtype::F16, Some(256.0))] {
        let half = run(compute, initial)?;
        assert_ne!(half.1.model, whole.1.model, "{compute:?} computes otherwise");
        assert!((half.2 - whole.2).abs() < 0.25, "{compute:?}: {} bits, {} in binary32", half.2, whole.2);
        assert!(half.2 < 6.0, "{compute:?} learns: {} bits", half.2);
        for tensor in half.1.model.iter().chain(&half.1.optimizer) {
            assert_eq!(tensor.dtype, "F32");
        }
        // The masters are not rounded to half precision.
        let words = half.1.model[0].bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
        let is_half = |value: f32| match compute {
            Dtype::F16 => value.to_bits() & 0x1fff == 0,
            _ => value.to_bits() & 0xffff == 0,
        };
        let num_finer = words.filter(|word| !is_half(f32::from_le_bytes(*word))).count();
        assert!(num_finer > 100, "{num_finer} masters are finer than {compute:?}");
        let scales: Vec<Option<f64>> =
            half.0.iter().map(|step| step.overflow.as_ref().map(|overflow| overflow.scale.0)).collect();
        assert!(scales.iter().all(|scale| *scale == initial), "{scales:?}");
        assert_eq!(half, run(compute, initial)?, "the same bits again");
    }
    Ok(())
}

#[test]
fn an_overflow_skips_the_step_and_nothing_else() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut fixture = fixture(folder.path(), Dtype::F16, Some(16_777_216.0))?;
    fixture.contract.averages = Some(schemas::contract::Averages {
        decay: 0.5,
        first_step: 1,
        order: schemas::contract::AverageOrder::AfterUpdate,
    });
    let mut engine = fixture.engine(folder.path())?;
    let (before, averages) = (engine.capture()?, engine.capture_averages()?);
    let mut skipped = Vec::new();
    let updated = loop {
        let outcome = steps(&mut engine, 1)?.remove(0);
        if !outcome.overflow.as_ref().context("a scaler reports")?.skipped {
            break outcome;
        }
        assert_eq!((engine.capture()?, engine.capture_averages()?), (before.clone(), averages.clone()));
        skipped.push(outcome);
        assert!(skipped.len() < 30, "the scale backs off until gradients are finite");
    };
    assert!(!skipped.is_empty(), "2^24 overflows binary16");
    for (at, outcome) in (0u32..).zip(&skipped) {
        let scale = 16_777_216.0 * 0.5f64.powi(i32::try_from(at)?);
        let expected = Overflow { found: true, scale: schemas::number::Float(scale), skipped: true };
        assert_eq!(outcome.overflow, Some(expected));
        let Credit::Backpropagation { gradient_norm, loss, .. } = outcome.credit else {
            anyhow::bail!("the credit rule is backpropagation");
        };
        assert!(!gradient_norm.0.is_finite() && loss.0.is_finite(), "{gradient_norm} {loss}");
        for update in &outcome.updates {
            assert_eq!(update.update_norm.context("taken")?.0.to_bits(), 0);
            assert!(update.parameter_norm.context("taken")?.0 > 0.0);
        }
        // Data, schedule and step go on.
        assert_eq!(outcome.counters.examples, u64::from(at + 1) * 8);
        assert_eq!(outcome.draws[0].ranges[0].first, u64::from(at) * 8);
    }
    let step = skipped.len() as u64 + 1;
    assert_eq!(engine.step_number(), step);
    assert_ne!(engine.capture()?.model, before.model);
    assert_ne!(engine.capture_averages()?, averages);
    let rates: Vec<f64> = skipped.iter().chain([&updated]).map(|o| o.updates[2].learning_rate.0).collect();
    assert!(rates[0] < rates[1], "the warmup goes on: {rates:?}");

    // The update rule counts its own updates: the first one moves every element
    // by about the rate, since both bias corrections are of update 1. Were they
    // of a later one, the change would be smaller by a quarter or more.
    let vectors = &updated.updates[2];
    let num_elements = fixture.parameters.parameters.iter().filter(|p| p.shape.len() == 1);
    let num_elements: u64 = num_elements.map(|parameter| parameter.shape[0]).sum();
    let expected = vectors.learning_rate.0 * f64::from(u32::try_from(num_elements)?).sqrt();
    let change = vectors.update_norm.context("taken")?.0;
    assert!((change / expected - 1.0).abs() < 0.05, "{change} and {expected}");
    Ok(())
}

#[test]
fn dtypes_that_are_not_executed_are_refused_by_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let refuses = |change: &dyn Fn(&mut schemas::contract::Numerics), says: &str| -> Result<()> {
        let mut fixture = fixture(folder.path(), Dtype::F16, Some(1024.0))?;
        change(&mut fixture.contract.numerics);
        let error = fixture.engine(folder.path()).expect_err(says);
        let said = trainer::run::error::chain(error.as_ref());
        assert!(error.downcast_ref::<EngineError>().is_some() && said.contains(says), "{said}");
        Ok(())
    };
    refuses(&|numerics| numerics.parameter_dtype = Dtype::F16, "/numerics/parameter_dtype")?;
    refuses(&|numerics| numerics.accumulation_dtype = Dtype::Bf16, "/numerics/accumulation_dtype")?;
    refuses(&|numerics| numerics.compute_dtype = Dtype::F32, "/numerics/loss_scaler")?;
    refuses(&|numerics| numerics.compute_dtype = Dtype::Bf16, "/numerics/loss_scaler")?;
    refuses(&|numerics| numerics.loss_scaler = None, "/numerics/loss_scaler")?;
    refuses(&|numerics| numerics.loss_scaler = Some(scaler(1000.0)), "powers of two")?;
    Ok(())
}
