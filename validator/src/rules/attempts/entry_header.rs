//! The header of an entry says of whom, where and when it speaks.

use schemas::body::{Body, Kind};
use schemas::entry::Entry;
use schemas::ids::{AttemptId, LearnerId, SegmentId, WorkerId};
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, or_null};

declare_rule!(
    /// `GL213`.
    EntryHeader,
    {
        code: "GL213",
        name: "entry-header",
        what: "Segment, learner, worker and step in the header of an entry are those that its kind and body determine: the running segment \
               and learner 0 for the work of an attempt, worker 0 for a step, no other worker than there is, and the step of which \
               the body speaks. What an attempt says of faults, their recovery, its costs and interventions is that attempt's own.",
        why: "A reader that groups entries by their headers would otherwise be shown another run than the bodies tell.",
        remedy: "None for a finished run: the header is part of the entry's bytes. Report the recorder's fault and run again.",
        reference: "docs/FORMAT.md, \"Order of entries\"; schemas::entry::Header",
        gate: Route::RejectResumeDrift,
    }
);

/// The only learner of a run in this edition.
const LEARNER: LearnerId = LearnerId(0);
/// The worker that records.
const WORKER: WorkerId = WorkerId(0);

struct Headers {
    /// Step that the running attempt starts from.
    from_step: u64,
    num_checked: u64,
    /// Workers of the contract, or of an attempt that had more.
    num_workers: u32,
    /// The attempt that has begun and not ended.
    running: Option<AttemptId>,
    /// The newest that started; the first before any did.
    segment: SegmentId,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let num_workers = frozen.contract.topology.workers;
    Box::new(Headers { from_step: 0, num_checked: 0, num_workers, running: None, segment: SegmentId(1) })
}

/// Whether entries of a kind are work on the learner's state.
const fn is_of_learner(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Step
            | Kind::Eval
            | Kind::CandidateAdmitted
            | Kind::CandidateSelected
            | Kind::CheckpointRequested
            | Kind::CheckpointStaged
            | Kind::CheckpointDurablyCommitted
            | Kind::CheckpointValidated
            | Kind::CheckpointFailed
            | Kind::CheckpointQuarantined
    )
}

/// Kinds that a probe writes: of the learner, and of no attempt.
const fn is_of_probe(kind: Kind) -> bool {
    matches!(kind, Kind::CheckpointResumeQualified | Kind::ProbeStart | Kind::ProbeResult)
}

/// Kinds that others than a running attempt write too, so that only the range
/// of their header is known.
const fn is_open(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Diagnostic
            | Kind::Intervention
            | Kind::FaultInjected
            | Kind::WitnessHead
            | Kind::Amendment
            | Kind::Cost
    )
}

/// The step of which the body itself speaks. A selection speaks of an earlier
/// step than the one that it is made at.
fn own_step(body: &Body) -> Option<Option<u64>> {
    let step = match body {
        // They are of no step.
        Body::ContractFrozen(_) | Body::RunStart(_) => return Some(None),
        Body::AttemptStart(halves) => halves.det.from_step,
        Body::AttemptEnd(halves) => halves.det.last_step,
        Body::RunEnd(halves) => halves.det.last_step,
        Body::SegmentStart(halves) => halves.det.from_step,
        Body::CandidateAdmitted(halves) => halves.det.step,
        Body::HandoffIssued(halves) => halves.det.step,
        Body::CheckpointRequested(halves)
        | Body::CheckpointStaged(halves)
        | Body::CheckpointValidated(halves) => halves.det.step,
        Body::CheckpointDurablyCommitted(halves) => halves.det.step,
        Body::CheckpointFailed(halves) | Body::CheckpointQuarantined(halves) => halves.det.step,
        Body::CheckpointResumeQualified(halves) => halves.det.step,
        Body::CheckpointRetired(halves) => halves.det.step,
        Body::ProbeStart(halves) => halves.det.step,
        Body::ProbeResult(halves) => halves.det.step,
        _ => return None,
    };
    Some(Some(step))
}

impl Headers {
    /// What an attempt says of a fault, of its recovery and of a person is of
    /// that attempt; and at the step that it starts from, but for its own faults.
    fn said_of_attempt(&self, entry: &Entry, sink: &mut Sink) {
        let header = &entry.header;
        let is_of_none = header.attempt.is_none();
        let step = match &entry.body {
            Body::FaultInjected(_) | Body::CheckpointFailed(_) | Body::CheckpointQuarantined(_) => None,
            // A process that only ends the run is no attempt.
            Body::FaultObserved(_) | Body::FaultRecovered(_) if is_of_none => return,
            Body::FaultObserved(halves) if Some(halves.det.attempt) == self.running => {
                Some(halves.det.last_step)
            }
            Body::FaultObserved(_) | Body::Intervention(_) => Some(self.from_step),
            Body::FaultRecovered(halves) => Some(halves.det.from_step),
            Body::Cost(halves) if matches!(halves.det.charged_to.as_str(), "recovery" | "operator") => {
                Some(self.from_step)
            }
            _ => return,
        };
        let name = entry.body.kind().name();
        if header.attempt != self.running {
            let message = format!("{name} is of another attempt than the one that runs");
            let at = At::entry(entry.index, "/attempt");
            sink.rejected(at, message, or_null(self.running), or_null(header.attempt));
        }
        if step.is_some() && step != header.step {
            let message = format!("the header of {name} names another step");
            sink.rejected(At::entry(entry.index, "/step"), message, or_null(step), or_null(header.step));
        }
    }
}

impl Check for Headers {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.num_checked += 1;
        let (header, kind) = (&entry.header, entry.body.kind());
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.num_workers = self.num_workers.max(halves.obs.plan.num_workers);
                (self.running, self.from_step) = (Some(halves.det.attempt), halves.det.from_step);
            }
            Body::SegmentStart(halves) => self.segment = halves.det.segment,
            _ => {}
        }
        let is_of_fault = matches!(kind, Kind::FaultInjected | Kind::FaultObserved);
        let (segment, learner, worker) = if is_open(kind) {
            // Null or the only one that there is.
            let learner = header.learner.map(|_| LEARNER).filter(|_| !is_of_fault);
            let has_segment = header.segment.is_some() || header.attempt.is_some();
            (has_segment.then_some(self.segment), learner, header.worker.map(|_| WORKER))
        } else if kind == Kind::CheckpointRetired {
            // An attempt writes it in its segment, `trainer checkpoint prune` in none.
            (header.attempt.is_some().then_some(self.segment), Some(LEARNER), None)
        } else if is_of_probe(kind) {
            (None, Some(LEARNER), None)
        } else {
            let in_attempt = header.attempt.is_some() && kind != Kind::AttemptStart || is_of_learner(kind);
            let learner = is_of_learner(kind).then_some(LEARNER);
            (in_attempt.then_some(self.segment), learner, (kind == Kind::Step).then_some(WORKER))
        };
        // A fault acts at a worker, and is about one or about none.
        let is_worker = header.worker.is_some_and(|worker| worker.0 < self.num_workers);
        let worker = if is_of_fault && is_worker { header.worker } else { worker };
        let numbers = [
            ("segment", segment.map(|id| u64::from(id.0)), header.segment.map(|id| u64::from(id.0))),
            ("learner", learner.map(|id| u64::from(id.0)), header.learner.map(|id| u64::from(id.0))),
            ("worker", worker.map(|id| u64::from(id.0)), header.worker.map(|id| u64::from(id.0))),
            ("step", own_step(&entry.body).unwrap_or(header.step), header.step),
        ];
        for (field, expected, actual) in
            numbers.into_iter().filter(|(_, expected, actual)| expected != actual)
        {
            let at = At::entry(entry.index, format!("/{field}"));
            let message = format!("the header of {} names another {field}", kind.name());
            sink.rejected(at, message, or_null(expected), or_null(actual));
        }
        if header.attempt.is_some()
            && matches!(
                kind,
                Kind::ContractFrozen
                    | Kind::RunStart
                    | Kind::RunEnd
                    | Kind::HandoffIssued
                    | Kind::ProbeStart
                    | Kind::ProbeResult
                    | Kind::CheckpointResumeQualified
            )
        {
            let at = At::entry(entry.index, "/attempt");
            sink.rejected(
                at,
                format!("{} belongs to no attempt", kind.name()),
                "null",
                or_null(header.attempt),
            );
        }
        self.said_of_attempt(entry, sink);
        if kind == Kind::AttemptEnd {
            self.running = None;
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
