//! `trainer probe`: resumes a checkpoint in a fresh process, runs some updates,
//! and compares every state class and step record with a separately executed,
//! uninterrupted trajectory; then again with state left out, which must differ.
//!
//! The intent is on record before anything runs, and the result holds every raw
//! distance. The ledger is opened once, which reads all of it, and held to the
//! end: a run that goes on, or a retirement, could otherwise take the checkpoint
//! away. A probe changes nothing about its run.

pub mod children;
pub mod compare;
pub mod continuations;
pub mod error;
pub mod judge;
pub mod pace;
pub mod report;
pub mod scratch;
pub mod state_bytes;
pub mod statistical;
mod student;
pub mod trajectory;
pub mod transcript;
pub mod walk;
pub mod withhold;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ledger::FrozenContract;
use ledger::keys::{KeyRing, Role};
use ledger::reader::Reader;
use ledger::recorder::{Record, Recorder};
use schemas::body::{
    Body, CheckpointObs, CheckpointQualifiedDet, Halves, ProbeResultDet, ProbeResultObs, ProbeStartDet,
    ProbeStartObs,
};
use schemas::contract::{Contract, EquivalenceClass};
use schemas::ids::{CheckpointId, LearnerId};
use schemas::state::StateClass;

use crate::checkpoint::locate::RecordedCheckpoint;
use crate::checkpoint::validate::{self, Expected};
use crate::checkpoint::{CheckpointError, below};
use crate::identity::{self, Identity};
use crate::run::costs::micros;
use crate::run::error::RunError;
use crate::run::history::{History, Progress};
use crate::run::progress::Console;
use crate::run::refusal::{self, Refusal};
use crate::run::signals::Interrupt;
use crate::run::{self, failpoint};
use crate::store::fetch;

use compare::{FirstDifference, Scope};
use error::ProbeError;
use judge::Verdict;
use pace::Pace;
use report::{ProbeOutcome, ProbeReport};
use scratch::Scratch;
use transcript::Transcript;

/// Fewest updates of a probe: the gradient of the second is the first that was
/// taken after an update with restored state. The validator knows the same.
pub const MIN_STEPS: u64 = 2;

/// Most updates of a probe: the scratch folder holds a state for each.
pub const MAX_STEPS: u64 = 10_000;

/// Updates where neither the command line nor the contract says how many.
const DEFAULT_STEPS: u64 = 4;

/// Name of the reference's folder.
const REFERENCE: &str = "reference";
/// Name of the folder of the trajectory in hand.
const RESUMED: &str = "resumed";

/// Which controls follow the probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Controls {
    /// The cold control only: everything but the model is left out.
    Cold,
    /// That, and each captured class left out in turn.
    Each,
    /// No probe, one control.
    Only(StateClass),
}

/// What the command line says.
#[derive(Debug, Clone)]
pub struct ProbeOptions {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Which controls.
    pub controls: Controls,
    /// Folder of the data shards; the data manifest's own where `None`.
    pub data: Option<PathBuf>,
    /// Leaves out lines of steps.
    pub is_quiet: bool,
    /// Key ring; beside the ledger where `None`.
    pub keys: Option<PathBuf>,
    /// The run's ledger.
    pub ledger: PathBuf,
    /// Updates after the checkpoint; those of the contract's equivalence test, or
    /// 4, where `None`.
    pub num_steps: Option<u64>,
    /// Threads of tensor kernels; as for a run.
    pub num_threads: Option<u32>,
    /// Where the scratch folder is made; the ledger's folder where `None`.
    pub scratch: Option<PathBuf>,
}

/// Makes a probe with its controls and records each.
///
/// # Errors
/// When the probe cannot be made. A difference that it finds is in the report.
pub fn probe(options: &ProbeOptions) -> Result<ProbeReport, ProbeError> {
    let interrupt = Interrupt::install().map_err(RunError::Process)?;
    failpoint::check_permission()?;
    let keys = run::key_folder(options.keys.as_deref(), &options.ledger);
    let key = KeyRing::open(&keys)?.get(Role::Trainer)?;
    let actual = key.public_hex();
    let recorder = Recorder::open(&options.ledger, key)?;
    let frozen = recorder.contract().cloned();
    let frozen = frozen.ok_or_else(|| Refusal::NoContract { path: options.ledger.clone() })?;
    let contract = &frozen.contract;
    let expected = contract.keys.trainer.public.clone();
    if actual != expected {
        return Err(Refusal::Key { expected, actual, path: keys }.into());
    }
    let history = trajectory::history(&Reader::open(&options.ledger)?)?;
    let identity = identity::identity(contract.plan.device);
    refusal::check_identity(contract, &identity)?;
    refusal::check_supported(contract)?;
    let num_steps = num_steps(options, contract)?;
    let withheld = plan(options, &frozen)?;
    let record = find(&options.checkpoint, &history)?;
    let console = Console::new(options.is_quiet);
    let fetched = fetch::newest(&console, &frozen, &run::folder_of(&options.ledger), vec![record.clone()]);
    fetched.map_err(RunError::from)?;
    check_bytes(options, &frozen, &record)?;

    let asked = run::num_threads(contract, options.num_threads, history.num_threads)?;
    let num_threads =
        asked.unwrap_or_else(|| u32::try_from(rayon::current_num_threads()).unwrap_or(u32::MAX));
    let ledger_folder = run::folder_of(&options.ledger);
    let parent = options.scratch.as_ref().unwrap_or(&ledger_folder);
    let scratch = Scratch::new(parent, &frozen.run, &console)?;
    scratch::check_room(scratch.path(), scratch::needed_bytes(record.num_bytes, num_steps))?;
    let of_seeds = continuations::test(contract).map_or(0, |test| test.num_steps * test.seeds.len() as u64);
    let resumed = num_steps + of_seeds;
    let pace = RefCell::new(Pace::start(record.step + resumed, resumed, withheld.len()));
    let process = Process {
        console,
        frozen: &frozen,
        identity: &identity,
        interrupt,
        num_steps,
        num_threads,
        options,
        pace,
        record,
        recorder,
        scratch,
        trajectory_updates: resumed,
    };
    process.run(&withheld)
}

/// As asked, or as the contract says; a test that was frozen is not changed.
fn num_steps(options: &ProbeOptions, contract: &Contract) -> Result<u64, ProbeError> {
    let test = continuations::test(contract);
    if contract.resume.class == EquivalenceClass::Statistical && test.is_none() {
        return Err(ProbeError::NoTest);
    }
    let frozen = test.map(|test| test.num_steps);
    match (options.num_steps, frozen) {
        (Some(asked), Some(frozen)) if asked != frozen => Err(ProbeError::FrozenSteps { asked, frozen }),
        (asked, frozen) => {
            let num_steps = asked.or(frozen).unwrap_or(DEFAULT_STEPS);
            let is_possible = (MIN_STEPS..=MAX_STEPS).contains(&num_steps);
            is_possible.then_some(num_steps).ok_or(ProbeError::NumSteps {
                num_steps,
                min: MIN_STEPS,
                max: MAX_STEPS,
            })
        }
    }
}

/// What each probe withholds, in order.
fn plan(options: &ProbeOptions, frozen: &FrozenContract) -> Result<Vec<Vec<StateClass>>, ProbeError> {
    let contract = &frozen.contract;
    let captured = state_bytes::captured(contract);
    let mut withheld = vec![Vec::new(), withhold::cold(contract)];
    match &options.controls {
        Controls::Cold => {}
        Controls::Each => withheld.extend(captured.into_iter().map(|class| vec![class])),
        Controls::Only(class) if captured.contains(class) => withheld = vec![vec![*class]],
        Controls::Only(class) => {
            let names: Vec<&str> = captured.iter().map(|class| class.name()).collect();
            return Err(ProbeError::NotCaptured { class: *class, captured: names.join(", ") });
        }
    }
    Ok(withheld)
}

/// The checkpoint among those that the ledger calls validated.
fn find(checkpoint: &CheckpointId, history: &History) -> Result<RecordedCheckpoint, ProbeError> {
    let usable = history.usable_checkpoints();
    if let Some(record) = usable.iter().find(|record| record.checkpoint == *checkpoint) {
        return Ok(record.clone());
    }
    match history.checkpoints.get(checkpoint) {
        Some(known) => {
            let stage = match known.progress {
                Progress::Requested | Progress::Staged => "unfinished",
                Progress::Committed => "committed, and was not read back",
                _ => "failed, quarantined or retired",
            };
            Err(ProbeError::NotValidated { checkpoint: checkpoint.clone(), stage: stage.to_owned() })
        }
        None => {
            let names: Vec<&str> = usable.iter().map(|record| record.checkpoint.as_str()).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Err(ProbeError::Unknown { checkpoint: checkpoint.clone(), known })
        }
    }
}

/// Its bytes are those that were recorded, before anything is started.
fn check_bytes(
    options: &ProbeOptions,
    frozen: &FrozenContract,
    record: &RecordedCheckpoint,
) -> Result<(), ProbeError> {
    let expected = Expected {
        checkpoint: &record.checkpoint,
        contract: frozen.digest,
        manifest: record.manifest,
        run: &frozen.run,
        step: record.step,
    };
    let folder = folder_below(&run::folder_of(&options.ledger), record)?;
    let read = validate::reread(&folder, &expected);
    read.map(|_| ())
        .map_err(|error| ProbeError::Bytes { checkpoint: record.checkpoint.clone(), source: Box::new(error) })
}

/// The folder of a checkpoint. What is reached through a link is no part of the
/// run to whoever audits it, and a probe of it would say nothing.
pub(crate) fn folder_below(ledger_folder: &Path, record: &RecordedCheckpoint) -> Result<PathBuf, ProbeError> {
    below::resolve(ledger_folder, &record.path).map_err(|error| {
        let source = CheckpointError::io("read", ledger_folder.join(&record.path))(error);
        ProbeError::Bytes { checkpoint: record.checkpoint.clone(), source: Box::new(source) }
    })
}

/// Everything about this process that its probes share.
struct Process<'a> {
    console: Console,
    frozen: &'a FrozenContract,
    identity: &'a Identity,
    interrupt: Interrupt,
    num_steps: u64,
    num_threads: u32,
    options: &'a ProbeOptions,
    pace: RefCell<Pace>,
    record: RecordedCheckpoint,
    recorder: Recorder,
    scratch: Scratch,
    /// Updates that a trajectory executes behind the checkpoint.
    trajectory_updates: u64,
}

impl Process<'_> {
    fn run(&self, plan: &[Vec<StateClass>]) -> Result<ProbeReport, ProbeError> {
        let mut reference = None;
        let mut probes = Vec::new();
        for withheld in plan {
            let begun = Instant::now();
            let start = self.append(self.start(withheld))?;
            let reference = match &reference {
                Some(reference) => reference,
                None => reference.insert(self.reference()?),
            };
            let (result, first) = self.compare(reference, withheld)?;
            let obs = ProbeResultObs {
                checkpoint: self.record.checkpoint.clone(),
                duration_us: micros(begun.elapsed()),
                start,
            };
            let body = Body::ProbeResult(Box::new(Halves { det: result.clone(), obs }));
            let probe = self.append(body)?;
            let verdict = judge::verdict(&result, &self.frozen.contract);
            let equivalence = statistical::outcome(&result, &self.frozen.contract);
            let (inert, withheld) = (result.inert, withheld.clone());
            probes.push(ProbeOutcome { equivalence, first, inert, probe, result, verdict, withheld });
        }
        let report = self.conclude(probes)?;
        self.recorder.clone().close()?;
        Ok(report)
    }

    /// Says how much is done.
    fn advance(&self, num_updates: u64) {
        if let Some(line) = self.pace.borrow_mut().advance(num_updates) {
            self.console.note(&line);
        }
    }

    /// The stage, where the probe matches and its cold control does not.
    fn conclude(&self, probes: Vec<ProbeOutcome>) -> Result<ProbeReport, ProbeError> {
        let contract = &self.frozen.contract;
        let class = contract.resume.class;
        let restored = probes.iter().find(|probe| probe.withheld.is_empty());
        let cold = withhold::cold(contract);
        let control = probes.iter().find(|probe| probe.withheld == cold);
        let is_unexplained =
            |probe: &ProbeOutcome| !probe.withheld.is_empty() && probe.verdict == Verdict::Matches;
        let is_statistical = class == EquivalenceClass::Statistical;
        let mut reason = None;
        let mut qualified = None;
        if let Some(probe) = restored {
            reason = match control {
                _ if probe.verdict != Verdict::Matches && is_statistical => {
                    Some("equivalence of the resumed and the uninterrupted run was not shown")
                }
                _ if probe.verdict != Verdict::Matches => {
                    Some("the resumed run is not the uninterrupted one")
                }
                _ if self.record.step == 0 => {
                    Some("it is the initial state, so that a control which starts there cannot differ")
                }
                Some(control) if judge::is_control(&control.result, contract) => None,
                _ if is_statistical => Some(
                    "its cold control is not beyond the margin, so that the test could not tell a wrong resume",
                ),
                _ => Some("its cold control does not differ, so that the comparison shows nothing"),
            };
            if reason.is_none() {
                let started = Instant::now();
                let det = CheckpointQualifiedDet { class, probe: probe.probe, step: self.record.step };
                let checkpoint = self.record.checkpoint.clone();
                let obs = CheckpointObs { checkpoint, duration_us: micros(started.elapsed()) };
                qualified =
                    Some(self.append(Body::CheckpointResumeQualified(Box::new(Halves { det, obs })))?);
            }
        }
        let is_clean = reason.is_none() && !probes.iter().any(is_unexplained);
        Ok(ProbeReport {
            checkpoint: self.record.checkpoint.0.clone(),
            class,
            exit_code: u8::from(!is_clean),
            format: "probe-report/1",
            num_steps: self.num_steps,
            probes,
            qualified,
            reason: reason.map(str::to_owned),
            run: self.frozen.run.0.clone(),
            step: self.record.step,
        })
    }

    fn start(&self, withheld: &[StateClass]) -> Body {
        let det = ProbeStartDet {
            class: self.frozen.contract.resume.class,
            code: self.identity.code.clone(),
            num_steps: self.num_steps,
            step: self.record.step,
            withheld: withheld.to_vec(),
        };
        let obs = ProbeStartObs {
            checkpoint: self.record.checkpoint.clone(),
            plan: run::executed_plan(
                self.identity,
                self.frozen.contract.numerics.compute_dtype,
                self.num_threads,
                // One process executes every microbatch of a probe, whatever the
                // run's workers are: bits do not depend on it.
                1,
            ),
        };
        Body::ProbeStart(Box::new(Halves { det, obs }))
    }

    /// Runs a trajectory in a process of its own.
    fn child(
        &self,
        output: &Path,
        against: Option<&Path>,
        withheld: &[StateClass],
    ) -> Result<(), ProbeError> {
        let Self { interrupt, num_steps, num_threads, options, .. } = self;
        children::trajectory(options, (*num_steps, *num_threads), output, against, withheld, interrupt)
    }

    /// Runs the uninterrupted trajectory.
    fn reference(&self) -> Result<Transcript, ProbeError> {
        let last = self.record.step + self.num_steps;
        self.console.say(&format!("Reference: uninterrupted from step 0 to {last}"));
        let folder = self.scratch.path().join(REFERENCE);
        self.child(&folder, None, &[])?;
        self.advance(self.record.step + self.trajectory_updates);
        Transcript::read(&folder, self.num_steps)
    }

    /// Runs a resumed trajectory and measures how far it is from the reference.
    fn compare(
        &self,
        reference: &Transcript,
        withheld: &[StateClass],
    ) -> Result<(ProbeResultDet, Option<FirstDifference>), ProbeError> {
        let contract = &self.frozen.contract;
        let names: Vec<&str> = withheld.iter().map(|class| class.name()).collect();
        let what = if names.is_empty() { String::new() } else { format!(" without {}", names.join(", ")) };
        self.console.say(&format!("Resuming {}{what}", self.record.checkpoint));
        let (folder, against) = (self.scratch.path().join(RESUMED), self.scratch.path().join(REFERENCE));
        self.child(&folder, Some(&against), withheld)?;
        self.advance(self.trajectory_updates);
        let resumed = Transcript::read(&folder, self.num_steps)?;
        let scope = Scope {
            bound: contract.resume.tolerance.as_ref().map_or(0.0, |tolerance| tolerance.max_relative),
            first_offset: u64::from(!withheld.is_empty()),
            step: self.record.step,
        };
        let compared = compare::compare(reference, &resumed, scope)?;
        let samples = match continuations::test(contract) {
            Some(test) => continuations::pairs(test, &against, &folder)?,
            None => Vec::new(),
        };
        self.scratch.clear(RESUMED);
        let missing = |what: &str| ProbeError::Transcript { path: against, reason: what.to_owned() };
        let replayed = reference.opening.replayed.clone();
        let mut det = ProbeResultDet {
            class: contract.resume.class,
            distances: compared.distances,
            inert: None,
            num_steps: self.num_steps,
            records: compared.records,
            reference: replayed.ok_or_else(|| missing("it does not say what it replayed"))?,
            samples,
            step: self.record.step,
            withheld: withheld.to_vec(),
        };
        det.inert = judge::inert(&det, contract, resumed.opening.equals_initial);
        Ok((det, compared.first))
    }

    /// Appends one entry durably, under a signed head.
    fn append(&self, body: Body) -> Result<u64, ProbeError> {
        let record = Record::new(body).learner(LearnerId(0)).step(self.record.step);
        Ok(self.recorder.append_durable(record)?.index)
    }
}
