//! Trains a byte-level language model in plain burn, recorded under a frozen
//! contract.
//!
//! ```text
//! burn_loop my-loop/run.db
//! ```
//!
//! Everything that decides the run comes from the contract: the model's shape, the
//! order of the examples, rates, batch, when to evaluate and save, when to end. The
//! model (`model.rs`) is of burn's layers and the optimizer is burn's AdamW; what is
//! said to the recorder is in this file, and what is handed to it in `state.rs`.
//! Killed at any moment, the same command resumes from the last validated
//! checkpoint, and the steps that it executes again have to come out as they were
//! recorded.
//!
//! It refuses a contract that names other sources than it was compiled from: a
//! ledger stores sources, and what runs is a program.

#![allow(clippy::print_stdout, reason = "an example that says what it does")]

mod model;
mod state;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::Device;
use clap::Parser;
use loops::{Attempt, Evaluation, GroupStep, LoopError, LoopOptions, Resumed, Run, Step};
use schemas::contract::{Architecture, Contract, Dtype, LlamaDecoder};

use crate::model::{Batch, Llama, Tables};
use crate::state::{Group, Parameter};

/// What computes, as the contract has to name it (`/plan/backend`).
const BACKEND: &str = "burn-flex 0.22.1";
/// What the loop runs in, as the contract has to name it (`/environment/rustc`).
const RUNTIME: &str = "Rust";
/// Sums may depend on the number of threads, and the contract claims bits.
const NUM_THREADS: u32 = 1;

/// What this program was compiled from, under the paths that `ledger init --loop`
/// gives it in the run's folder.
const SOURCES: [(&str, &str); 3] = [
    ("loop/main.rs", include_str!("main.rs")),
    ("loop/model.rs", include_str!("model.rs")),
    ("loop/state.rs", include_str!("state.rs")),
];

const EXAMPLES: &str = "\
A run of it, from the checkout:
  cargo build -p cli -p loops --bins --example burn_loop
  ledger init --lipsum --preset tiny --output my-loop --profile external-loop \\
      --loop loops/examples/burn_loop/*.rs --backend \"burn-flex 0.22.1\" --runtime Rust
  cp examples/burn/policy-card.json my-loop/       # burn's constants, before the freeze
  ledger freeze my-loop/contract.json
  burn_loop my-loop/run.db                         # kill it; the same command resumes
  ledger audit my-loop/run.db                      # accepted (external-loop)

Exit codes: 0 the run ended, or --stop-after was reached; 1 it did not; 2 arguments.";

/// Trains a byte-level language model in plain burn, recorded under a frozen contract.
#[derive(Debug, Parser)]
#[command(name = "burn_loop", after_help = EXAMPLES)]
struct Arguments {
    /// The run.db of a contract with the profile external-loop.
    ledger: PathBuf,
    /// Folder of the role keys [default: $LEDGER_KEYS, else `keys` beside the ledger].
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
    /// End the attempt as interrupted behind this step; the run may go on.
    #[arg(long, value_name = "STEP")]
    stop_after: Option<u64>,
    /// Resume with an empty optimizer: a loop that is wrong, for an audit to find.
    #[arg(long)]
    forget_moments: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            if let Some(error) = error.downcast_ref::<LoopError>() {
                eprintln!("hint: {}", error.hint());
            }
            ExitCode::FAILURE
        }
    }
}

/// One attempt, from the lock to its end. An error of the loop is on record as such;
/// of a process that was killed the next attempt says so.
fn run(arguments: &Arguments) -> Result<()> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(NUM_THREADS as usize);
    pool.build_global().context("starting the threads that burn computes with")?;
    let run = Run::open(LoopOptions {
        backend: BACKEND.to_owned(),
        keys: arguments.keys.clone(),
        ledger: arguments.ledger.clone(),
        num_threads: NUM_THREADS,
        runtime: RUNTIME.to_owned(),
        ..LoopOptions::default()
    })?;
    check_sources(run.contract(), arguments.ledger.parent().unwrap_or_else(|| Path::new("")))?;
    check_terms(run.contract())?;
    let mut attempt = run.begin()?;
    for warning in attempt.warnings() {
        eprintln!("warning: {warning}");
    }
    let result = train(&mut attempt, arguments);
    if let Err(error) = &result
        && !attempt.is_over()
    {
        let reason = format!("{error:#}");
        attempt.fail(&reason, None).with_context(|| format!("recording a failure: {reason}"))?;
    }
    result
}

/// The recorder has compared the files with the contract; that this program is of
/// them only it can know.
fn check_sources(contract: &Contract, folder: &Path) -> Result<()> {
    let files = contract.external_loop.as_ref().map_or(&[][..], |external| &external.files);
    let named: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let compiled: Vec<&str> = SOURCES.iter().map(|(path, _)| *path).collect();
    ensure!(
        named == compiled,
        "the contract's loop is {named:?}, and this program was compiled from {compiled:?}\n\
         hint: name all files of loops/examples/burn_loop with --loop when the contract is made"
    );
    for (path, text) in SOURCES {
        let path = folder.join(path);
        let found = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        ensure!(
            found == text.as_bytes(),
            "this program was compiled from another {} than was frozen\n\
             hint: build it from the frozen sources; or freeze a contract for these, as another run",
            path.display()
        );
    }
    Ok(())
}

/// What this loop does not do and the recorder does not look at.
fn check_terms(contract: &Contract) -> Result<()> {
    let Architecture::LlamaDecoder(shape) = &contract.architecture;
    for (holds, pointer, expected) in [
        (shape.dropout <= 0.0, "/architecture/dropout", "0, since this model has none"),
        (contract.numerics.compute_dtype == Dtype::F32, "/numerics/compute_dtype", "\"f32\""),
    ] {
        ensure!(
            holds,
            "this loop cannot keep the contract's {pointer}; expected {expected}\n\
             hint: change it and freeze again"
        );
    }
    Ok(())
}

/// The loop.
fn train(attempt: &mut Attempt, arguments: &Arguments) -> Result<()> {
    let mut learner = Learner::new(attempt)?;
    let mut position = 0;
    if let Some(resumed) = attempt.resumed() {
        println!("attempt {} resumes from {}", attempt.number(), resumed.checkpoint());
        position = resumed.position()?;
        learner = learner.restored(resumed, arguments.forget_moments)?;
    }
    loop {
        let step = attempt.last_step();
        let due = attempt.due();
        for stream in &due.evaluations {
            let value = learner.evaluate(attempt, stream)?;
            println!("eval {step:>6}  {stream} {value:.4}");
        }
        if due.checkpoint {
            let parameters = state::parameters(&learner.model)?;
            let moments = state::optimizer_tensors(&learner.optimizer, &parameters)?;
            println!("saved {}", attempt.save(state::model_tensors(&parameters), moments, position)?);
        }
        if due.is_last {
            break;
        }
        if arguments.stop_after.is_some_and(|last| step >= last) {
            attempt.interrupt(&format!("--stop-after {step}"))?;
            println!("stopped at step {step}");
            return Ok(());
        }
        let (num_examples, loss) = learner.update(attempt, position)?;
        position += num_examples;
        println!("step {:>6}  loss {loss:.4}", step + 1);
    }
    let finished = attempt.finish()?;
    let selected = finished.candidate.as_deref().unwrap_or("none");
    println!("finished at step {}; selected {selected}", finished.last_step);
    Ok(())
}

/// Everything that an update changes, and what it computes with.
struct Learner {
    device: Device,
    groups: Vec<Group>,
    microbatch_examples: usize,
    model: Llama,
    optimizer: ModuleOptimizer,
    shape: LlamaDecoder,
    tables: Tables,
}

impl Learner {
    /// The initial state.
    fn new(attempt: &Attempt) -> Result<Self> {
        let contract = attempt.contract();
        let Architecture::LlamaDecoder(shape) = &contract.architecture;
        let device = Device::flex();
        device.seed(contract.seeds.initialization.0);
        let model = Llama::new(shape, &device.clone().autodiff());
        // burn draws a parameter when it is first asked for; here they all are.
        let parameters = state::parameters(&model)?;
        let groups = groups(attempt, &parameters)?;
        Ok(Self {
            optimizer: state::optimizer(attempt.card(), &groups),
            groups,
            microbatch_examples: contract.batch.microbatch_examples.max(1) as usize,
            model,
            shape: shape.clone(),
            tables: Tables::new(shape, &device),
            device,
        })
    }

    /// The state of a checkpoint: parameters, moments, and the number of updates.
    fn restored(self, resumed: &Resumed, forgets_moments: bool) -> Result<Self> {
        let model = state::restore_model(self.model, resumed)?;
        let optimizer = if forgets_moments {
            self.optimizer
        } else {
            state::restore_optimizer(self.optimizer, &state::parameters(&model)?, resumed)?
        };
        Ok(Self { model, optimizer, ..self })
    }

    fn batches<'a>(&'a self, examples: &'a [Vec<u8>]) -> impl Iterator<Item = Batch> + 'a {
        let length = self.shape.context_length as usize;
        let chunks = examples.chunks(self.microbatch_examples);
        chunks.map(move |examples| Batch::new(examples, length, &self.device))
    }

    /// Evaluates a stream and records it.
    fn evaluate(&self, attempt: &mut Attempt, stream: &str) -> Result<f64> {
        let examples = attempt.stream_examples(stream)?;
        // Without autodiff.
        let model = self.model.valid();
        let mut total_nats = 0.0;
        for batch in self.batches(&examples) {
            let nats = model.nats(&batch, &self.tables).try_into_vec_as::<f32>();
            total_nats += state::read("reading losses", nats)?.into_iter().map(f64::from).sum::<f64>();
        }
        let num_examples = examples.len() as u64;
        let num_tokens = num_tokens(&examples);
        Ok(attempt.evaluation(&Evaluation { num_examples, num_tokens, stream, total_nats })?)
    }

    /// One update, and its record; returns how many examples it consumed, and its loss.
    fn update(&mut self, attempt: &mut Attempt, position: u64) -> Result<(u64, f64)> {
        let step = attempt.last_step() + 1;
        let global_examples = u64::from(attempt.contract().batch.global_examples);
        let examples = attempt.batch(position, global_examples)?;
        let num_tokens = num_tokens(&examples) as f64;
        let mut accumulator = GradientsAccumulator::new();
        let (mut fed, mut loss, mut num_microbatches) = (Vec::new(), 0.0, 0);
        for batch in self.batches(&examples) {
            fed.extend(batch.fed()?);
            let mean = self.model.nats(&batch, &self.tables).sum().div_scalar(num_tokens);
            let gradients = GradientsParams::from_grads(mean.backward(), &self.model);
            accumulator.accumulate(&self.model, gradients);
            loss += f64::from(state::read("reading a loss", mean.try_into_scalar::<f32>())?);
            num_microbatches += 1;
        }
        let mut gradients = accumulator.grads();
        let gradient_norm = state::norm(&self.model, &gradients)?;
        let clip_coefficient = attempt.clip_coefficient(gradient_norm);
        if clip_coefficient < 1.0 {
            state::scale(&self.model, &mut gradients, clip_coefficient);
        }
        let rates: Vec<f64> = self
            .groups
            .iter()
            .map(|group| attempt.learning_rate(&group.name, step))
            .collect::<Result<_, LoopError>>()?;
        let before = state::parameters(&self.model)?;
        let of_groups = state::rates(self.groups.iter().zip(rates.iter().copied()));
        self.model = self.optimizer.step(of_groups, self.model.clone(), gradients);
        let after = state::parameters(&self.model)?;
        // What the recorder is told: what entered the model, what the optimizer used,
        // and what that did. Norms are optional, and an audit compares them with the
        // saved state.
        let groups = self.groups.iter().zip(rates).map(|(group, learning_rate)| GroupStep {
            clip_coefficient,
            group: group.name.clone(),
            learning_rate,
            parameter_norm: Some(parameter_norm(group, &after)),
            update_norm: Some(update_norm(group, &before, &after)),
            weight_decay: group.weight_decay,
        });
        let groups = groups.collect();
        attempt.step(&Step { fed: &fed, gradient_norm, groups, loss, num_microbatches, position })?;
        Ok((fed.len() as u64, loss))
    }
}

/// The policy card's groups, by burn's identifiers.
fn groups(attempt: &Attempt, parameters: &[Parameter]) -> Result<Vec<Group>> {
    let id_of = |path: &String| {
        let found = parameters.iter().find(|parameter| parameter.path == *path);
        found.map(|parameter| parameter.id).with_context(|| format!("the model has no {path}"))
    };
    let mut groups = Vec::new();
    for (name, weight_decay, paths) in attempt.groups() {
        let ids = paths.iter().map(id_of).collect::<Result<Vec<_>>>()?;
        groups.push(Group { ids, name, weight_decay });
    }
    let num_trained: usize = groups.iter().map(|group| group.ids.len()).sum();
    if num_trained != parameters.len() {
        let num_frozen = parameters.len() - num_trained;
        bail!(
            "{num_frozen} parameters are frozen, and this loop trains all\n\
             hint: freeze a contract whose parameter manifest freezes none"
        );
    }
    Ok(groups)
}

fn num_tokens(examples: &[Vec<u8>]) -> u64 {
    examples.iter().map(|example| example.len().saturating_sub(1) as u64).sum()
}

/// Norm of a group's parameters, in binary64.
fn parameter_norm(group: &Group, parameters: &[Parameter]) -> f64 {
    let of_group = parameters.iter().filter(|parameter| group.ids.contains(&parameter.id));
    let values = of_group.flat_map(|parameter| parameter.values.iter().copied().map(f64::from));
    state::squares(values).sqrt()
}

/// Norm of what an update did to a group's parameters, in binary64.
fn update_norm(group: &Group, before: &[Parameter], after: &[Parameter]) -> f64 {
    let pairs = before.iter().zip(after).filter(|(_, after)| group.ids.contains(&after.id));
    let changes = pairs.flat_map(|(before, after)| {
        let values = before.values.iter().zip(&after.values);
        values.map(|(before, after)| f64::from(*after) - f64::from(*before))
    });
    state::squares(changes).sqrt()
}
