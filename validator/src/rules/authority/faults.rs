//! Injected faults are the planned ones, at the places that are planned.

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::{Body, FaultInjectedDet, Halves, Nothing, StepObs};
use schemas::contract::{Contract, FaultKind, FaultPhase, PlannedFault, Recovery, SaveMode};
use schemas::entry::Entry;
use schemas::ids::{CheckpointId, WorkerId};
use schemas::report::Route;

use super::fault_effects::Effects;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Rule, RuleInfo, Sink};
use crate::rules::common::or_null;

/// `GL707`.
#[derive(Debug)]
pub(crate) struct Faults;

static INFO: RuleInfo = RuleInfo {
    code: "GL707",
    name: "fault-policy",
    what: "Every injected fault is one of the contract's plan, at its step, worker and phase, which is one of its family's: before \
           the entry that its phase precedes. It acted once in the run, and nothing follows it that it would have prevented; every \
           planned fault whose place was reached acted, in an attempt that has whom it strikes; one whose place was never reached \
           is a warning. Where recovery is refused no attempt follows a fault.",
    why: "A planned fault that never fired shows nothing about recovery, and an unplanned one is an intervention.",
    remedy: "Plan faults in the contract. A run whose faults did not act must be repeated.",
    reference: "docs/FORMAT.md, \"Injected faults\"; schemas::contract::FaultPolicy",
    gate: Route::RejectTopology,
};

impl Rule for Faults {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn open<'a>(&self, frozen: &'a Frozen) -> Box<dyn Check + 'a> {
        let contract = &frozen.contract;
        let num_planned = contract.faults.plan.len();
        Box::new(Policy {
            contract,
            effects: Effects::new(contract.checkpoints.mode),
            injected: vec![false; num_planned],
            is_over: false,
            num_attempts: 0,
            num_entries: 0,
            now: Place::default(),
            reached: vec![false; num_planned],
            struck: None,
        })
    }

    /// An injection beside a save is judged where it was recorded.
    fn follows_recorded_order(&self) -> bool {
        true
    }
}

/// Stage of a save, as far as faults tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saving {
    Requested,
    Staged,
    Committed,
}

/// Where the attempt that is running stands.
#[derive(Debug, Default)]
struct Place {
    /// Steps whose checkpoint was validated, until something follows the save.
    behind_save: BTreeSet<u64>,
    /// Steps at which the selection stream was evaluated.
    evaluated: BTreeSet<u64>,
    /// First and last step that it executed; none before one.
    executed: Option<(u64, u64)>,
    from_step: u64,
    is_resumed: bool,
    is_selected: bool,
    /// Processes that execute it, by its beginning.
    num_workers: u32,
    /// Saves that are not at their end.
    saving: BTreeMap<CheckpointId, (u64, Saving)>,
    step: u64,
    /// Steps whose checkpoint was validated.
    validated: BTreeSet<u64>,
}

impl Place {
    fn is_saving(&self, step: u64, wanted: &[Saving]) -> bool {
        self.saving.values().any(|(of, saving)| *of == step && wanted.contains(saving))
    }

    /// Whether a fault of a phase and step may act here.
    fn admits(&self, contract: &Contract, phase: FaultPhase, step: u64) -> bool {
        use FaultPhase as P;
        // The entry of a step that carries state digests follows its evaluations.
        let every = contract.state_digest_every_steps.filter(|every| *every > 0);
        let is_digest_step = every.is_some_and(|every| step.is_multiple_of(every));
        let is_at_evaluations = self.step == step || is_digest_step && self.step.checked_add(1) == Some(step);
        match phase {
            P::BeforeForward | P::AfterBackward | P::BeforeExchange | P::InExchange | P::AfterUpdate => {
                self.step.checked_add(1) == Some(step)
            }
            P::Restore => self.is_resumed && self.from_step == step && self.executed.is_none(),
            P::ShardWritten => self.is_saving(step, &[Saving::Requested]),
            P::Staged | P::Renamed => self.is_saving(step, &[Saving::Staged]),
            P::Validated => self.validated.contains(&step),
            P::Evaluation => is_at_evaluations && !self.evaluated.contains(&step),
            P::Selection => self.step == step && !self.is_selected,
        }
    }
}

struct Policy<'a> {
    contract: &'a Contract,
    effects: Effects,
    injected: Vec<bool>,
    is_over: bool,
    num_attempts: u64,
    num_entries: u64,
    now: Place,
    /// Planned faults whose place was passed.
    reached: Vec<bool>,
    struck: Option<u64>,
}

impl Policy<'_> {
    fn inject(&mut self, entry: &Entry, halves: &Halves<FaultInjectedDet, Nothing>, sink: &mut Sink) {
        let det = &halves.det;
        let at = || At::entry(entry.index, "/body/det");
        let index = usize::try_from(det.plan_index).unwrap_or(usize::MAX);
        let header = &entry.header;
        let planned = self.contract.faults.plan.get(index);
        let agrees = planned.is_some_and(|planned| {
            let worker = WorkerId(planned.worker.unwrap_or(0));
            planned.fault == det.fault
                && planned.phase == det.phase
                && header.step == Some(planned.step)
                && header.worker == Some(worker)
        });
        if !agrees {
            let (step, worker) = (or_null(header.step), or_null(header.worker));
            let expected = planned.map_or("no fault of this index".to_owned(), in_words);
            let actual = format!("{} at {} of step {step}, worker {worker}", det.fault, det.phase);
            sink.rejected(at(), "a fault was injected that is not planned", expected, actual);
        }
        if !det.fault.phases().contains(&det.phase) {
            let phases: Vec<&str> = det.fault.phases().iter().map(|phase| phase.name()).collect();
            let message = format!("{} cannot act there", det.fault);
            sink.rejected(at(), message, phases.join(", "), det.phase);
        }
        if let Some(injected) = self.injected.get_mut(index)
            && std::mem::replace(injected, true)
        {
            sink.rejected(at(), "a planned fault was injected twice", "once", "again");
        }
        let step = header.step.unwrap_or(0);
        if header.attempt.is_none() || !self.now.admits(self.contract, det.phase, step) {
            let message = format!("{} is not on record before it acts", det.fault);
            let expected = format!("fault.injected at {} of step {step}", det.phase);
            sink.rejected(at(), message, expected, format!("behind step {}", self.now.step));
        }
        self.effects.inject(entry, det);
    }

    /// Marks the planned faults of some phases and a step as passed, where they
    /// strike the process that records.
    fn pass(&mut self, phases: &[FaultPhase], step: u64) {
        self.pass_among(1, phases, step);
    }

    /// Marks the planned faults of some phases and a step as passed that strike
    /// one of the workers which executed it.
    fn pass_among(&mut self, num_executing: u32, phases: &[FaultPhase], step: u64) {
        let Contract { faults, topology, .. } = self.contract;
        // With one worker by contract a stale gradient is the only process's own.
        let has_others = self.now.num_workers > 1;
        for (planned, reached) in faults.plan.iter().zip(&mut self.reached) {
            let is_between = match planned.fault {
                FaultKind::CollectiveTimeout | FaultKind::TopologyChange => true,
                FaultKind::StaleOrDelayedGradient => topology.workers > 1,
                _ => false,
            };
            *reached |= planned.step == step
                && phases.contains(&planned.phase)
                && planned.worker.unwrap_or(0) < num_executing
                && (has_others || !is_between);
        }
    }

    fn step(&mut self, step: u64, obs: &StepObs) {
        use FaultPhase as P;
        if self.contract.checkpoints.mode == SaveMode::Synchronous {
            self.pass_validated();
        }
        // As many as executed it, be they fewer than the attempt's.
        let num_executing = u32::try_from(obs.shares.len()).unwrap_or(u32::MAX).max(1);
        self.pass_among(num_executing, &[P::BeforeForward, P::AfterBackward, P::AfterUpdate], step);
        if self.now.is_resumed && self.now.executed.is_none() {
            self.pass_among(num_executing, &[P::Restore], self.now.from_step);
        }
        let first = self.now.executed.map_or(step, |(first, _)| first);
        if first < step {
            // Only who executed the update before can give its gradients.
            self.pass_among(num_executing, &[P::BeforeExchange, P::InExchange], step);
        }
        self.now.executed = Some((first, step));
        self.now.step = step;
    }

    /// What follows a save that is validated: whatever struck the checkpoint has
    /// acted.
    fn pass_validated(&mut self) {
        for step in std::mem::take(&mut self.now.behind_save) {
            self.pass(&[FaultPhase::Validated], step);
        }
    }

    fn follow(&mut self, entry: &Entry) {
        use FaultPhase as P;
        match &entry.body {
            Body::AttemptStart(halves) => {
                let det = &halves.det;
                let (from_step, is_resumed) = (det.from_step, det.resumed_from.is_some());
                let num_workers = halves.obs.plan.num_workers;
                self.now = Place { from_step, is_resumed, num_workers, step: from_step, ..Place::default() };
            }
            Body::Step(halves) => self.step(entry.header.step.unwrap_or(0), &halves.obs),
            Body::Eval(halves) if halves.det.stream == self.contract.selection.stream => {
                let step = entry.header.step.unwrap_or(0);
                self.pass(&[P::Evaluation], step);
                self.now.evaluated.insert(step);
            }
            Body::CheckpointRequested(halves) => {
                self.pass_validated();
                let save = (halves.det.step, Saving::Requested);
                self.now.saving.insert(halves.obs.checkpoint.clone(), save);
            }
            Body::CheckpointStaged(halves) => {
                let save = (halves.det.step, Saving::Staged);
                self.now.saving.insert(halves.obs.checkpoint.clone(), save);
            }
            Body::CheckpointDurablyCommitted(halves) => {
                let save = (halves.det.step, Saving::Committed);
                self.now.saving.insert(halves.obs.checkpoint.clone(), save);
            }
            Body::CheckpointValidated(halves) => {
                self.now.saving.remove(&halves.obs.checkpoint);
                self.now.validated.insert(halves.det.step);
                self.now.behind_save.insert(halves.det.step);
                self.pass(&[P::ShardWritten, P::Staged, P::Renamed], halves.det.step);
            }
            Body::CheckpointFailed(halves) => {
                self.now.saving.remove(&halves.obs.checkpoint);
            }
            // Pruning is of no attempt.
            Body::CheckpointRetired(_) if entry.header.attempt.is_some() => self.pass_validated(),
            Body::CandidateAdmitted(_) => self.pass_validated(),
            Body::AttemptEnd(_) => {
                self.pass_validated();
                self.now.validated.clear();
            }
            Body::CandidateSelected(halves) => {
                self.now.is_selected = true;
                // A choice among one is none.
                if halves.det.num_candidates > 1 {
                    self.pass(&[P::Selection], self.now.step);
                }
            }
            Body::RunEnd(_) => self.is_over = true,
            _ => {}
        }
    }
}

/// A planned fault in words.
fn in_words(planned: &PlannedFault) -> String {
    let PlannedFault { fault, phase, step, worker, .. } = planned;
    format!("{fault} at {phase} of step {step}, worker {}", worker.unwrap_or(0))
}

impl Check for Policy<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.num_entries += 1;
        self.effects.entry(entry, sink);
        match &entry.body {
            Body::FaultInjected(halves) => self.inject(entry, halves, sink),
            Body::FaultObserved(_) => self.struck = Some(entry.index),
            Body::AttemptStart(_) => {
                self.num_attempts += 1;
                if self.contract.faults.recovery == Recovery::Refuse && self.num_attempts > 1 {
                    let actual =
                        self.struck.map_or("another attempt".to_owned(), |at| format!("after entry {at}"));
                    let at = At::entry(entry.index, "");
                    sink.rejected(at, "the recovery policy refuses to go on", "no further attempt", actual);
                }
            }
            _ => {}
        }
        self.follow(entry);
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        let plan = self.contract.faults.plan.iter().zip(self.injected.iter().zip(&self.reached));
        for (index, (planned, (injected, reached))) in plan.enumerate() {
            let at = At::place(format!("contract /faults/plan/{index}"));
            if *injected {
                continue;
            }
            if *reached {
                let message = "a planned fault did not act";
                sink.rejected(at, message, in_words(planned), "no fault.injected");
            } else if self.is_over {
                let message = "the place of a planned fault was never reached";
                sink.warning(at, message, in_words(planned), "no fault.injected");
            }
        }
        Outcome::Checked(self.num_entries)
    }
}
