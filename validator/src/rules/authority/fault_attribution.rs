//! What an observed fault is taken for agrees with what was seen and injected.

use std::collections::BTreeMap;

use schemas::body::{Body, FaultObservedDet, ObservedFault};
use schemas::contract::{FaultKind, SaveMode};
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CheckpointId, WorkerId};
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, or_null};

declare_rule!(
    /// `GL710`.
    FaultAttribution,
    {
        code: "GL710",
        name: "fault-attribution",
        what: "The family that an observed fault is taken for can look as it did, and where a fault that can look so was injected into \
               the attempt that it struck, it is that one's, at its worker; and where what was seen tells the family it is named. Warns of \
               a cause that no injection explains, and of none where only the injection tells; an attempt or a save that just stopped \
               is a note.",
        why: "A fault that is taken for another one is repaired at the wrong place, and damage that nobody planned is a finding about \
              the machine or the program.",
        remedy: "Look at the attempt that the entry names; a cause that no plan explains needs one in the machine.",
        reference: "docs/FORMAT.md, \"Injected faults\"; schemas::body::FaultObservedDet",
        gate: Route::RejectResumeDrift,
    }
);

/// One `fault.injected`.
struct Injected {
    attempt: Option<AttemptId>,
    fault: FaultKind,
    index: u64,
    is_explained: bool,
    worker: Option<WorkerId>,
}

struct Attribution {
    injected: Vec<Injected>,
    is_asynchronous: bool,
    num_checked: u64,
    /// Saves that are not at their end, with their attempt.
    unfinished: BTreeMap<CheckpointId, Option<AttemptId>>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Attribution {
        injected: Vec::new(),
        is_asynchronous: frozen.contract.checkpoints.mode == SaveMode::Asynchronous,
        num_checked: 0,
        unfinished: BTreeMap::new(),
    })
}

/// Families that can look like this.
fn families(fault: ObservedFault) -> &'static [FaultKind] {
    use FaultKind as K;
    match fault {
        ObservedFault::AttemptVanished => &[K::WorkerLoss],
        ObservedFault::CheckpointCorrupt => &[K::SingleShardCorruption],
        ObservedFault::CheckpointIncomplete => &[K::CheckpointWriteInterruption],
        ObservedFault::WorkerLost => &[K::WorkerLoss],
        ObservedFault::WorkerTimeout => &[K::CollectiveTimeout],
        ObservedFault::StateMismatch => &[
            K::DataCursorRewind,
            K::DataCursorSkip,
            K::RngStateLoss,
            K::SchedulerStateLoss,
            K::LossScalerLoss,
            // A resume that refuses a class of the plan.
            K::PrecisionPolicyChange,
            K::TopologyChange,
        ],
        ObservedFault::PlanMismatch => &[K::PrecisionPolicyChange, K::TopologyChange],
        ObservedFault::WorkerDisagrees => &[K::StaleOrDelayedGradient],
        ObservedFault::SelectionMismatch => &[K::ValidationLeakageInSelection],
        ObservedFault::DataChanged | ObservedFault::NotFinite | ObservedFault::StorageFailed => &[],
    }
}

/// Whether what is seen is about the worker in the header.
const fn is_addressed(fault: ObservedFault) -> bool {
    matches!(fault, ObservedFault::WorkerLost | ObservedFault::WorkerTimeout | ObservedFault::WorkerDisagrees)
}

/// Whether a family is a process or a save that stopped, which happens to runs
/// that nobody planned faults for.
const fn is_a_stop(cause: FaultKind) -> bool {
    matches!(cause, FaultKind::WorkerLoss | FaultKind::CheckpointWriteInterruption)
}

impl Attribution {
    /// Whether an attempt left a checkpoint that it had not finished.
    fn has_unfinished(&self, attempt: AttemptId) -> bool {
        self.unfinished.values().any(|of| *of == Some(attempt))
    }

    fn observed(&mut self, entry: &Entry, det: &FaultObservedDet, sink: &mut Sink) {
        let Some(cause) = det.cause else {
            self.unattributed(entry, det, sink);
            return;
        };
        self.num_checked += 1;
        let at = || At::entry(entry.index, "/body/det/cause").cause(cause);
        let names = |families: &[FaultKind]| {
            families.iter().map(|family| family.name()).collect::<Vec<_>>().join(", ")
        };
        let possible = families(det.fault);
        if !possible.contains(&cause) {
            let message = format!("a fault that looks like {:?} is taken for another family", det.fault);
            let expected = if possible.is_empty() { "no cause".to_owned() } else { names(possible) };
            sink.rejected(at(), message, expected, cause);
            return;
        }
        if det.fault == ObservedFault::AttemptVanished && self.has_unfinished(det.attempt) {
            let message = "an attempt that vanished inside of a save is taken for a lost worker";
            sink.rejected(at(), message, "no cause: the checkpoint's own entry tells", cause);
            return;
        }
        self.explain(entry, det, cause, sink);
    }

    /// A fault whose family nobody names, though what was seen tells it, or what was
    /// injected.
    fn unattributed(&mut self, entry: &Entry, det: &FaultObservedDet, sink: &mut Sink) {
        let injected = || {
            let of_attempt = self.injected.iter().filter(|of| of.attempt == Some(det.attempt));
            of_attempt.map(|of| of.fault).find(|fault| families(det.fault).contains(fault))
        };
        let family = match det.fault {
            ObservedFault::WorkerLost | ObservedFault::WorkerTimeout | ObservedFault::SelectionMismatch => {
                families(det.fault).first().copied()
            }
            // Inside of a save its checkpoint's own entry tells.
            ObservedFault::AttemptVanished if !self.has_unfinished(det.attempt) => {
                families(det.fault).first().copied()
            }
            // Beside an asynchronous save anything may have ended the process.
            ObservedFault::CheckpointIncomplete if !self.is_asynchronous => {
                families(det.fault).first().copied()
            }
            _ => None,
        };
        let told = family.or_else(|| injected().filter(|_| det.fault == ObservedFault::PlanMismatch));
        let Some(told) = told else { return };
        self.num_checked += 1;
        let at = At::entry(entry.index, "/body/det/cause").cause(told);
        let message = format!("a fault that looks like {:?} is taken for no family", det.fault);
        if family.is_some() {
            sink.rejected(at, message, told, "no cause");
        } else {
            sink.warning(at, message, told, "no cause");
        }
    }

    /// Looks for the injection behind a cause: one of the family, or one of
    /// another, which can look like this, in the attempt that was struck.
    fn explain(&mut self, entry: &Entry, det: &FaultObservedDet, cause: FaultKind, sink: &mut Sink) {
        let at = || At::entry(entry.index, "/body/det/cause").cause(cause);
        let struck = Some(det.attempt);
        let is_it = |of: &Injected| of.fault == cause && of.attempt == struck;
        let worker = entry.header.worker.filter(|_| is_addressed(det.fault));
        let is_its_worker = |of: &Injected| worker.is_none() || of.worker == worker;
        if let Some(injected) = self.injected.iter_mut().find(|of| is_it(of) && is_its_worker(of)) {
            injected.is_explained = true;
            return;
        }
        if let Some(injected) = self.injected.iter_mut().find(|of| is_it(of) && !of.is_explained) {
            injected.is_explained = true;
            let at = At::entry(entry.index, "/worker").cause(cause);
            let message =
                format!("the fault that entry {} injected is seen at another worker", injected.index);
            sink.rejected(at, message, or_null(injected.worker), or_null(worker));
            return;
        }
        let can_look_so = |of: &Injected| families(det.fault).contains(&of.fault);
        let mut others = self.injected.iter_mut().rev().filter(|of| of.attempt == struck && !of.is_explained);
        let other = others.find(|of| can_look_so(of));
        // A fault may end a process that injected another before, and a save that
        // a killed process left is not what killed it.
        if let Some(other) = other.filter(|_| !is_a_stop(cause)) {
            other.is_explained = true;
            let message =
                format!("the fault that entry {} injected is taken for another family", other.index);
            sink.rejected(at(), message, other.fault, cause);
        } else if is_a_stop(cause) {
            let message = format!("attempt {} stopped and no injection explains it", det.attempt);
            sink.note(at(), message, "an end of its own", cause);
        } else {
            let message = format!("attempt {} was struck by what no injection explains", det.attempt);
            sink.warning(at(), message, "a planned fault, or none", cause);
        }
    }
}

impl Check for Attribution {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::FaultInjected(halves) => self.injected.push(Injected {
                attempt: entry.header.attempt,
                fault: halves.det.fault,
                index: entry.index,
                is_explained: false,
                worker: entry.header.worker,
            }),
            Body::FaultObserved(halves) => self.observed(entry, &halves.det, sink),
            Body::CheckpointRequested(halves) => {
                self.unfinished.insert(halves.obs.checkpoint.clone(), entry.header.attempt);
            }
            Body::CheckpointValidated(halves) => {
                self.unfinished.remove(&halves.obs.checkpoint);
            }
            Body::CheckpointFailed(halves) | Body::CheckpointQuarantined(halves) => {
                self.unfinished.remove(&halves.obs.checkpoint);
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        match self.num_checked {
            0 => Outcome::NotApplicable("no fault was observed with a cause".to_owned()),
            num_checked => Outcome::Checked(num_checked),
        }
    }
}
