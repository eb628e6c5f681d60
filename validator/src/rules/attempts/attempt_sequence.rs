//! Every process start is an attempt with an end, or said to have vanished.

use schemas::body::{Body, FaultObservedDet, Kind, ObservedFault};
use schemas::entry::Entry;
use schemas::ids::AttemptId;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, is_progress, or_null};

declare_rule!(
    /// `GL202`.
    AttemptSequence,
    {
        code: "GL202",
        name: "attempt-sequence",
        what: "Attempts are numbered from 1 without gaps; each begins with attempt.start and has an attempt.end, or the next \
               process reports it with fault.observed and fault.recovered before it makes progress; progress belongs to the \
               attempt that is running.",
        why: "An attempt that could disappear would hide failed tries, so that only the luckiest one is counted.",
        remedy: "Continue the run with `trainer run`, which reports an attempt that vanished. A missing or misnumbered attempt \
                 cannot be repaired.",
        reference: "docs/FORMAT.md, \"Order of entries\"; DESIGN.md, \"Nothing vanishes\"",
        gate: Route::RejectResumeDrift,
    }
);

struct Lost {
    attempt: AttemptId,
    is_observed: bool,
    is_recovered: bool,
    last_step: u64,
}

struct Running {
    attempt: AttemptId,
    last_step: u64,
}

#[derive(Default)]
struct Sequence {
    is_over: bool,
    last_number: u32,
    lost: Vec<Lost>,
    running: Option<Running>,
}

fn open(_: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Sequence::default())
}

impl Sequence {
    fn start(&mut self, entry: &Entry, attempt: AttemptId, from_step: u64, sink: &mut Sink) {
        let expected = self.last_number.saturating_add(1);
        if attempt.0 != expected {
            let at = At::entry(entry.index, "/body/det/attempt");
            sink.rejected(at, "attempts are not numbered in order", expected, attempt);
        }
        self.lose_running();
        self.last_number = attempt.0;
        self.running = Some(Running { attempt, last_step: from_step });
    }

    /// The attempt that was running left no terminal entry.
    fn lose_running(&mut self) {
        if let Some(Running { attempt, last_step }) = self.running.take() {
            self.lost.push(Lost { attempt, is_observed: false, is_recovered: false, last_step });
        }
    }

    fn observed(&mut self, entry: &Entry, det: &FaultObservedDet, sink: &mut Sink) {
        if self.running.as_ref().is_some_and(|running| running.attempt == det.attempt) {
            self.lose_running();
        }
        let Some(lost) = self.lost.iter_mut().find(|lost| lost.attempt == det.attempt) else {
            let at = At::entry(entry.index, "/body/det/attempt");
            sink.rejected(
                at,
                "an attempt is said to have vanished that did not",
                "an attempt without an end",
                det.attempt,
            );
            return;
        };
        lost.is_observed = true;
        if det.last_step != lost.last_step {
            let at = At::entry(entry.index, "/body/det/last_step");
            sink.rejected(at, "the vanished attempt's last step is another", lost.last_step, det.last_step);
        }
    }

    fn progress(&mut self, entry: &Entry, sink: &mut Sink) {
        for lost in std::mem::take(&mut self.lost) {
            let missing = match (lost.is_observed, lost.is_recovered) {
                (true, true) => continue,
                (false, _) => "fault.observed",
                (true, false) => "fault.recovered",
            };
            sink.rejected(
                At::entry(entry.index, ""),
                format!(
                    "attempt {} has no terminal entry and was not reported before progress was made",
                    lost.attempt
                ),
                format!("{missing} for attempt {}", lost.attempt),
                format!("{} at once", entry.body.kind().name()),
            );
        }
        let running = self.running.as_ref().map(|running| running.attempt);
        if entry.header.attempt.is_none() || entry.header.attempt != running {
            sink.rejected(
                At::entry(entry.index, "/attempt"),
                format!("{} does not belong to the running attempt", entry.body.kind().name()),
                or_null(running),
                or_null(entry.header.attempt),
            );
        }
        if let (Some(running), Body::Step(_)) = (&mut self.running, &entry.body) {
            running.last_step = entry.header.step.unwrap_or(running.last_step);
        }
    }

    fn end(&mut self, entry: &Entry, attempt: AttemptId, last_step: u64, sink: &mut Sink) {
        let Some(running) = self.running.take().filter(|running| running.attempt == attempt) else {
            let at = At::entry(entry.index, "/body/det/attempt");
            sink.rejected(at, "an attempt ends that is not running", "the running attempt", attempt);
            return;
        };
        if running.last_step != last_step {
            let at = At::entry(entry.index, "/body/det/last_step");
            sink.rejected(at, "the attempt's last step is another", running.last_step, last_step);
        }
    }
}

impl Check for Sequence {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        let kind = entry.body.kind();
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.start(entry, halves.det.attempt, halves.det.from_step, sink);
            }
            Body::AttemptEnd(halves) => self.end(entry, halves.det.attempt, halves.det.last_step, sink),
            Body::FaultObserved(halves) if halves.det.fault == ObservedFault::AttemptVanished => {
                self.observed(entry, &halves.det, sink);
            }
            Body::FaultRecovered(halves) => {
                if let Some(lost) = self.lost.iter_mut().find(|lost| lost.attempt == halves.det.attempt) {
                    lost.is_recovered = true;
                }
            }
            Body::RunEnd(_) => {
                self.is_over = true;
                if let Some(running) = &self.running {
                    let message = format!("run.end comes before the end of attempt {}", running.attempt);
                    sink.rejected(At::entry(entry.index, ""), message, "attempt.end", "run.end");
                }
            }
            _ if is_progress(kind) => self.progress(entry, sink),
            _ => {
                if let Some(attempt) = entry.header.attempt.filter(|attempt| attempt.0 > self.last_number) {
                    let at = At::entry(entry.index, "/attempt");
                    sink.rejected(
                        at,
                        "the attempt did not start",
                        format!("at most {}", self.last_number),
                        attempt,
                    );
                }
            }
        }
        if matches!(kind, Kind::AttemptStart | Kind::AttemptEnd)
            && entry.header.attempt.map(|a| a.0) != Some(self.last_number)
        {
            let at = At::entry(entry.index, "/attempt");
            sink.rejected(
                at,
                "header and body name different attempts",
                self.last_number,
                or_null(entry.header.attempt),
            );
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        if let (false, Some(running)) = (self.is_over, &self.running) {
            let message = format!("attempt {} has no terminal entry", running.attempt);
            sink.incomplete(At::place("ledger"), message, "attempt.end", "nothing");
        }
        for lost in self.lost.iter().filter(|lost| !(lost.is_observed && lost.is_recovered)) {
            let message = format!("attempt {} vanished and no process went on from it", lost.attempt);
            sink.incomplete(At::place("ledger"), message, "fault.observed and fault.recovered", "not both");
        }
        Outcome::Checked(u64::from(self.last_number))
    }
}
