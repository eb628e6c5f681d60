//! The plan of faults: every item has a place that the run comes to, and a part
//! of the run that it can strike (`docs/FORMAT.md`, "Injected faults"). A fault
//! that could never act would look like a trial and be none.

use schemas::contract::{
    CandidateFamily, Contract, Device, FaultKind, FaultPhase, PlannedFault, ScheduleShape, StoppingRule,
};

use super::problem::Problems;
use super::schedule;

/// Where a person reads on.
const SEE: &str = "docs/FORMAT.md, \"Injected faults\", lists families, phases and steps";

/// One item of the plan, and where it stands.
struct Item<'a> {
    contract: &'a Contract,
    index: usize,
    planned: &'a PlannedFault,
}

pub(super) fn check(contract: &Contract, problems: &mut Problems) {
    for (index, planned) in contract.faults.plan.iter().enumerate() {
        let item = Item { contract, index, planned };
        let phases = planned.fault.phases();
        if !phases.contains(&planned.phase) {
            let names: Vec<&str> = phases.iter().map(|phase| phase.name()).collect();
            let message = format!("is {}; {} has {}", planned.phase, planned.fault, names.join(", "));
            problems.add(item.pointer("phase"), message, SEE);
            continue;
        }
        item.check_worker(problems);
        item.check_part(problems);
        item.check_step(problems);
        item.check_once(problems);
    }
}

/// Whether a fault may name another process than the one that records.
const fn is_addressed(fault: FaultKind) -> bool {
    matches!(fault, FaultKind::WorkerLoss | FaultKind::CollectiveTimeout | FaultKind::StaleOrDelayedGradient)
}

impl Item<'_> {
    fn pointer(&self, field: &str) -> String {
        format!("/faults/plan/{}/{field}", self.index)
    }

    /// The place of the struck worker; null is the process that records.
    fn worker(&self) -> u32 {
        self.planned.worker.unwrap_or(0)
    }

    /// Whether it is about what passes between workers, or what they are.
    fn is_between_workers(&self) -> bool {
        matches!(self.planned.fault, FaultKind::CollectiveTimeout | FaultKind::TopologyChange)
            || self.planned.phase == FaultPhase::InExchange
    }

    fn check_worker(&self, problems: &mut Problems) {
        let (workers, fault) = (self.contract.topology.workers, self.planned.fault);
        problems.require(
            self.worker() < workers.max(1),
            self.pointer("worker"),
            format!("is {}, and /topology/workers is {workers}", self.worker()),
            "workers are numbered from 0; null is the process that records",
        );
        problems.require(
            self.worker() == 0 || is_addressed(fault),
            self.pointer("worker"),
            format!("is {}; {fault} strikes the process that records", self.worker()),
            "set it to null",
        );
        problems.require(
            workers <= 1 || self.worker() > 0 || self.planned.phase != FaultPhase::AfterBackward,
            self.pointer("worker"),
            "names the process that records, which has no place of its own there",
            "kill it \"before_forward\", or strike another worker",
        );
        if !self.is_between_workers() || self.planned.phase == FaultPhase::AfterBackward && self.worker() == 0
        {
            return;
        }
        problems.require(
            workers > 1,
            self.pointer("fault"),
            format!("is {fault} at {}, and /topology/workers is {workers}", self.planned.phase),
            "it acts between workers; declare more than one",
        );
        problems.require(
            workers <= 1 || self.worker() > 0 || fault == FaultKind::TopologyChange,
            self.pointer("worker"),
            format!("names the process that records; expected 1 to {}", workers.saturating_sub(1)),
            "worker 0 waits for the others, and nobody waits for it",
        );
    }

    /// The part of the run that it strikes has to be there.
    fn check_part(&self, problems: &mut Problems) {
        let contract = self.contract;
        let is_plateau = |shape: &ScheduleShape| matches!(shape, ScheduleShape::Plateau { .. });
        let (holds, lacks, hint) = match self.planned.fault {
            FaultKind::RngStateLoss => (
                !contract.dropout_draws.is_keyed(),
                "masks of dropout are functions of coordinates",
                "set /dropout_draws to \"philox_stream/1\"",
            ),
            FaultKind::SchedulerStateLoss => (
                contract.schedule.iter().any(|group| is_plateau(&group.shape)),
                "every schedule is a function of the step",
                "give a group a \"plateau\" schedule",
            ),
            FaultKind::LossScalerLoss => (
                contract.numerics.loss_scaler.is_some(),
                "there is no loss scaler",
                "name one in /numerics/loss_scaler, with /numerics/compute_dtype \"f16\"",
            ),
            FaultKind::PrecisionPolicyChange => (
                contract.plan.device == Device::Cpu || self.planned.phase == FaultPhase::AfterUpdate,
                "/plan/device is not the CPU, where alone half precision is executed",
                "strike \"after_update\", or run on the CPU",
            ),
            _ => return,
        };
        let message = format!("is {}, and {lacks}: it would strike nothing", self.planned.fault);
        problems.require(holds, self.pointer("fault"), message, hint);
    }

    /// The run has to come to its place.
    fn check_step(&self, problems: &mut Problems) {
        let (step, last) = (self.planned.step, schedule::num_steps(self.contract));
        let mut require = |holds: bool, expected: String, hint: &str| {
            let message = format!("is {step}; expected {expected}");
            problems.require(holds, self.pointer("step"), message, hint);
            holds
        };
        if !require(step <= last, format!("at most {last}, the run's last step"), "strike within the run") {
            return;
        }
        let first = self.first_step();
        if !require(
            step >= first,
            format!("at least {first} at {}", self.planned.phase),
            "before that there is nothing that it could change",
        ) {
            return;
        }
        let is_certain = matches!(self.contract.stopping, StoppingRule::AtStep { .. });
        match self.planned.phase {
            FaultPhase::Restore => {
                require(
                    step < last && step.is_multiple_of(self.contract.checkpoints.every_steps),
                    format!("a step before {last} that is checkpointed"),
                    "/checkpoints/every_steps gives the steps; a second fault, such as worker_loss at a later \
                     step, makes the resume",
                );
            }
            FaultPhase::ShardWritten | FaultPhase::Staged | FaultPhase::Renamed | FaultPhase::Validated => {
                require(
                    step.is_multiple_of(self.contract.checkpoints.every_steps) || is_certain && step == last,
                    "a step that is checkpointed".to_owned(),
                    "/checkpoints/every_steps gives the steps",
                );
            }
            FaultPhase::Evaluation => {
                let name = &self.contract.selection.stream;
                let stream = self.contract.evaluation.streams.iter().find(|stream| stream.name == *name);
                require(
                    stream.is_some_and(|stream| step.is_multiple_of(stream.every_steps))
                        || is_certain && step == last,
                    format!("a step at which {name:?} is evaluated"),
                    "its /evaluation/streams item gives the steps",
                );
            }
            FaultPhase::Selection => self.check_selection(is_certain, last, problems),
            _ => {}
        }
    }

    /// First step at which its place can be struck to any effect.
    fn first_step(&self) -> u64 {
        match self.planned.phase {
            FaultPhase::BeforeExchange | FaultPhase::InExchange => 2,
            FaultPhase::BeforeForward => match self.planned.fault {
                FaultKind::DataCursorRewind | FaultKind::RngStateLoss | FaultKind::LossScalerLoss => 2,
                _ => 1,
            },
            FaultPhase::AfterBackward | FaultPhase::AfterUpdate | FaultPhase::Restore => 1,
            _ => 0,
        }
    }

    fn check_selection(&self, is_certain: bool, last: u64, problems: &mut Problems) {
        let contract = self.contract;
        let name = &contract.selection.stream;
        let evaluated = contract.evaluation.streams.iter().find(|stream| stream.name == *name);
        let every = [Some(contract.checkpoints.every_steps), evaluated.map(|stream| stream.every_steps)];
        let has_second = (1..last)
            .take_while(|_| contract.selection.family == CandidateFamily::EveryEvaluatedCheckpoint)
            .any(|step| every.iter().flatten().all(|every| step.is_multiple_of(*every)));
        problems.require(
            is_certain && self.planned.step == last,
            self.pointer("step"),
            format!(
                "is {}; expected {last}, the last step of a run that stops \"at_step\"",
                self.planned.step
            ),
            "the selection is made once, at the end",
        );
        problems.require(
            has_second,
            self.pointer("phase"),
            "is selection, and the run has one candidate at most",
            "with nothing else to choose it would strike nothing; save and evaluate more often",
        );
    }

    fn check_once(&self, problems: &mut Problems) {
        let place = |planned: &PlannedFault| {
            (planned.fault, planned.phase, planned.step, planned.worker.unwrap_or(0))
        };
        let earlier = self.contract.faults.plan.iter().take(self.index);
        if let Some((first, _)) = earlier.enumerate().find(|(_, other)| place(other) == place(self.planned)) {
            problems.add(
                format!("/faults/plan/{}", self.index),
                format!("is the fault of item {first} at the same place"),
                "plan a fault once",
            );
        }
        let earlier = self.contract.faults.plan.iter().take(self.index);
        let meets = |other: &PlannedFault| {
            is_between(other) && is_between(self.planned) && in_one_order(other, self.planned)
        };
        if let Some((first, _)) =
            earlier.enumerate().find(|(_, other)| place(other) != place(self.planned) && meets(other))
        {
            problems.add(
                format!("/faults/plan/{}", self.index),
                format!("strikes between workers in the update that item {first} strikes"),
                "a worker can do one thing to an update, and none to one that it does not execute; take another step",
            );
        }
    }
}

/// Whether a fault strikes another process than the one that records, or what
/// passes between them.
fn is_between(planned: &PlannedFault) -> bool {
    match planned.fault {
        FaultKind::CollectiveTimeout | FaultKind::TopologyChange | FaultKind::StaleOrDelayedGradient => true,
        FaultKind::WorkerLoss => planned.worker.unwrap_or(0) > 0,
        _ => false,
    }
}

/// Whether two such faults ask something of one worker in one update.
fn in_one_order(one: &PlannedFault, other: &PlannedFault) -> bool {
    let is_topology = |planned: &PlannedFault| planned.fault == FaultKind::TopologyChange;
    let is_update = |planned: &PlannedFault| planned.phase != FaultPhase::Restore;
    let is_met =
        one.worker.unwrap_or(0) == other.worker.unwrap_or(0) || is_topology(one) || is_topology(other);
    one.step == other.step && is_update(one) && is_update(other) && is_met
}
