//! AdamW, clipping and schedule against PyTorch's trajectories.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use schemas::contract::ScheduleShape;
use schemas::policy_card::Clipping;
use serde::Deserialize;
use trainer::optimizer::adamw::{AdamW, Moments, update};
use trainer::optimizer::clip;
use trainer::schedule::rate;

/// Largest absolute difference in binary32.
const TOLERANCE: f64 = 1e-6;
const ADAMW: AdamW = AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
const WEIGHT_DECAY: f64 = 0.1;

type Tensors = BTreeMap<String, Vec<f64>>;

#[derive(Deserialize)]
struct Problem {
    init: Tensors,
    grads: Vec<Tensors>,
}

#[derive(Deserialize)]
struct Golden {
    dtypes: Dtypes,
}

#[derive(Deserialize)]
struct Dtypes {
    f32: Trajectory,
    f64: Trajectory,
}

#[derive(Deserialize)]
struct Trajectory {
    after: BTreeMap<u64, Tensors>,
    #[serde(default)]
    state: BTreeMap<u64, BTreeMap<String, BTreeMap<String, StateTensor>>>,
}

#[derive(Deserialize)]
struct StateTensor {
    v: Vec<f64>,
}

fn load<T: serde::de::DeserializeOwned>(name: &str) -> Result<T> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let text = std::fs::read(&path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

#[allow(clippy::cast_possible_truncation, reason = "binary32 runs start from the rounded values")]
fn to_f32(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}

fn largest_difference(actual: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let differences = actual.iter().zip(expected).map(|(a, e)| (f64::from(*a) - e).abs());
    differences.fold(0.0, |largest, difference| {
        assert!(difference.is_finite());
        f64::max(largest, difference)
    })
}

struct Optimizer {
    clipping: Clipping,
    schedule: ScheduleShape,
    parameters: BTreeMap<String, Vec<f32>>,
    moments: BTreeMap<String, Moments>,
}

impl Optimizer {
    fn new(problem: &Problem, clipping: Clipping, schedule: ScheduleShape) -> Self {
        let parameters: BTreeMap<_, _> =
            problem.init.iter().map(|(name, values)| (name.clone(), to_f32(values))).collect();
        let moments =
            parameters.iter().map(|(name, values)| (name.clone(), Moments::zeros(values.len()))).collect();
        Self { clipping, schedule, parameters, moments }
    }

    fn step(&mut self, t: u64, gradients: &Tensors) {
        let gradients: BTreeMap<_, _> =
            gradients.iter().map(|(name, values)| (name.clone(), to_f32(values))).collect();
        let norm = clip::global_norm(gradients.values().map(Vec::as_slice));
        let coefficient = clip::coefficient(&self.clipping, norm);
        let coefficients = ADAMW.coefficients(t, rate(&self.schedule, t), WEIGHT_DECAY, coefficient);
        for (name, parameter) in &mut self.parameters {
            let moments = self.moments.get_mut(name).expect("every parameter has moments");
            update(parameter, &gradients[name], moments, &coefficients);
        }
    }
}

fn check(file: &str, clipping: Clipping, schedule: ScheduleShape) -> Result<()> {
    let problem: Problem = load("problem.json")?;
    let golden: Golden = load(file)?;
    let mut optimizer = Optimizer::new(&problem, clipping, schedule);
    let mut num_compared = 0;
    for (t, gradients) in (1..).zip(&problem.grads) {
        optimizer.step(t, gradients);
        let Some(after) = golden.dtypes.f32.after.get(&t) else { continue };
        for (name, expected) in after {
            let difference = largest_difference(&optimizer.parameters[name], expected);
            assert!(difference <= TOLERANCE, "{file}, step {t}, {name}: off by {difference}");
            num_compared += expected.len();
        }
        for (name, state) in golden.dtypes.f64.state.get(&t).into_iter().flatten() {
            let moments = &optimizer.moments[name];
            for (suffix, values) in [("exp_avg", &moments.exp_avg), ("exp_avg_sq", &moments.exp_avg_sq)] {
                let expected = &state[suffix].v;
                let difference = largest_difference(values, expected);
                assert!(difference <= TOLERANCE, "{file}, step {t}, {name}.{suffix}: off by {difference}");
                num_compared += expected.len();
            }
        }
    }
    // 200 elements, four steps of parameters and two of both moments.
    assert!(num_compared >= 8 * 200, "only {num_compared} numbers were compared");
    Ok(())
}

#[test]
fn adamw_at_a_constant_rate() -> Result<()> {
    check("adamw.json", Clipping::None, ScheduleShape::Constant { rate: 0.01 })
}

#[test]
fn adamw_with_global_norm_clipping() -> Result<()> {
    let clipping = Clipping::GlobalNorm { epsilon: 1e-6, max_norm: 1.0 };
    check("adamw_clip1.json", clipping, ScheduleShape::Constant { rate: 0.01 })
}

#[test]
fn adamw_with_warmup_and_cosine() -> Result<()> {
    let schedule = ScheduleShape::WarmupCosine { floor: 0.0, peak: 0.02, total_steps: 12, warmup_steps: 4 };
    check("adamw_warmup_cosine.json", Clipping::None, schedule)
}

/// Clipping acts in this problem, so the unclipped run must miss the file.
#[test]
fn leaving_clipping_out_is_noticed() -> Result<()> {
    let problem: Problem = load("problem.json")?;
    let golden: Golden = load("adamw_clip1.json")?;
    let mut optimizer = Optimizer::new(&problem, Clipping::None, ScheduleShape::Constant { rate: 0.01 });
    for (t, gradients) in (1..).zip(&problem.grads) {
        optimizer.step(t, gradients);
    }
    let expected = &golden.dtypes.f32.after[&12];
    let difference = largest_difference(&optimizer.parameters["w_tall"], &expected["w_tall"]);
    assert!(difference > 100.0 * TOLERANCE, "off by {difference} only");
    Ok(())
}

/// A resumed optimizer: from the golden moments after step 5 to step 12.
#[test]
fn adamw_goes_on_from_stored_moments() -> Result<()> {
    let problem: Problem = load("problem.json")?;
    let golden: Golden = load("adamw.json")?;
    let mut optimizer = Optimizer::new(&problem, Clipping::None, ScheduleShape::Constant { rate: 0.01 });
    for (name, values) in &golden.dtypes.f32.after[&5] {
        optimizer.parameters.insert(name.clone(), to_f32(values));
        let state = &golden.dtypes.f64.state[&5][name];
        let moment = |suffix: &str| to_f32(&state[suffix].v);
        let moments = Moments { exp_avg: moment("exp_avg"), exp_avg_sq: moment("exp_avg_sq") };
        optimizer.moments.insert(name.clone(), moments);
    }
    for (t, gradients) in (1..).zip(&problem.grads).skip(5) {
        optimizer.step(t, gradients);
    }
    for (name, expected) in &golden.dtypes.f32.after[&12] {
        let difference = largest_difference(&optimizer.parameters[name], expected);
        assert!(difference <= TOLERANCE, "{name}: off by {difference}");
    }
    Ok(())
}
