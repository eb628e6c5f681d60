//! What cannot follow an injection of the same attempt, had the fault acted.

use schemas::body::{Body, FaultInjectedDet, Kind};
use schemas::contract::{FaultKind, FaultPhase, SaveMode};
use schemas::entry::Entry;
use schemas::ids::{AttemptId, WorkerId};

use crate::rule::{At, Sink};

/// One `fault.injected` of the attempt that is running.
#[derive(Debug)]
struct Injected {
    attempt: AttemptId,
    fault: FaultKind,
    index: u64,
    phase: FaultPhase,
    step: u64,
    worker: WorkerId,
}

/// Follows injections and what comes behind them.
#[derive(Debug)]
pub(super) struct Effects {
    injected: Vec<Injected>,
    is_asynchronous: bool,
}

/// What the thread alone writes that executes updates, whatever saves beside it.
const fn is_of_loop(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Step
            | Kind::Eval
            | Kind::CheckpointRequested
            | Kind::CandidateAdmitted
            | Kind::CandidateSelected
            | Kind::AttemptEnd
    )
}

/// Stages of a save behind its request, its failure too.
const fn is_of_save(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::CheckpointStaged
            | Kind::CheckpointDurablyCommitted
            | Kind::CheckpointValidated
            | Kind::CheckpointFailed
    )
}

impl Effects {
    pub(super) fn new(mode: SaveMode) -> Self {
        Self { injected: Vec::new(), is_asynchronous: mode == SaveMode::Asynchronous }
    }

    pub(super) fn inject(&mut self, entry: &Entry, det: &FaultInjectedDet) {
        let (Some(attempt), Some(step)) = (entry.header.attempt, entry.header.step) else { return };
        let worker = entry.header.worker.unwrap_or(WorkerId(0));
        let FaultInjectedDet { fault, phase, .. } = *det;
        self.injected.push(Injected { attempt, fault, index: entry.index, phase, step, worker });
    }

    /// Whether an entry of the attempt shows that a fault did not act.
    fn is_refuted(&self, injected: &Injected, entry: &Entry) -> bool {
        let kind = entry.body.kind();
        let is_of_step = entry.header.step == Some(injected.step);
        match (injected.fault, injected.phase) {
            // The recording process is gone. Other threads of it may have been
            // writing when it was killed.
            (FaultKind::WorkerLoss, _) if injected.worker == WorkerId(0) => {
                is_of_loop(kind) || !self.is_asynchronous && is_of_save(kind)
            }
            // Beside an asynchronous save updates may have gone on; whatever waits
            // for the save cannot.
            (FaultKind::CheckpointWriteInterruption, _) if self.is_asynchronous => {
                let waits =
                    matches!(kind, Kind::CheckpointRequested | Kind::CandidateSelected | Kind::AttemptEnd);
                waits || is_of_step && (is_of_save(kind) || kind == Kind::CandidateAdmitted)
            }
            (FaultKind::CheckpointWriteInterruption, _) => is_of_loop(kind) || is_of_save(kind),
            (FaultKind::SingleShardCorruption, FaultPhase::Staged) => {
                is_of_step && kind == Kind::CheckpointValidated
            }
            (FaultKind::WorkerLoss | FaultKind::CollectiveTimeout, _)
            | (FaultKind::StaleOrDelayedGradient, FaultPhase::InExchange) => is_of_step && kind == Kind::Step,
            _ => false,
        }
    }

    pub(super) fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        if matches!(entry.body, Body::AttemptStart(_)) {
            self.injected.clear();
        }
        let is_refuted = |injected: &Injected| {
            entry.header.attempt == Some(injected.attempt) && self.is_refuted(injected, entry)
        };
        let refuted: Vec<u64> = self.injected.iter().filter(|of| is_refuted(of)).map(|of| of.index).collect();
        for index in &refuted {
            let Some(injected) = self.injected.iter().find(|of| of.index == *index) else { continue };
            let name = entry.body.kind().name();
            let message = format!("{name} follows the {} that entry {index} injected", injected.fault);
            let expected = format!("nothing that {} prevents", injected.fault);
            sink.rejected(At::entry(entry.index, ""), message, expected, name);
        }
        self.injected.retain(|of| !refuted.contains(&of.index));
    }
}
