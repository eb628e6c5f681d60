//! Every process start is an attempt with an end, or said to have vanished.

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::{Body, FaultObservedDet, Kind, ObservedFault, Outcome as End};
use schemas::contract::{Contract, Recovery};
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
               process reports it with fault.observed and then fault.recovered before it makes progress; progress belongs to the \
               attempt that is running; the run ends as its last attempt did, and no step follows an attempt that completed. A fault \
               names the last step of the attempt that it struck.",
        why: "An attempt that could disappear would hide failed tries, so that only the luckiest one is counted.",
        remedy: "Continue the run with `trainer run`, which reports an attempt that vanished. A missing or misnumbered attempt \
                 cannot be repaired.",
        reference: "docs/FORMAT.md, \"Order of entries\"",
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

/// How an attempt ended, and the step that it stood at.
struct Ended {
    attempt: AttemptId,
    last_step: u64,
    outcome: End,
}

struct Sequence<'a> {
    contract: &'a Contract,
    /// The attempt that reached the end of the run, unless what it left there
    /// was given up since.
    complete: Option<Ended>,
    last_end: Option<Ended>,
    /// Attempts that a fault struck and that no `fault.recovered` names yet.
    struck: BTreeSet<AttemptId>,
    is_over: bool,
    /// Whether the run ended without another attempt, which alone recovers.
    is_without_attempt: bool,
    last_number: u32,
    /// Last step of each attempt.
    last_steps: BTreeMap<AttemptId, u64>,
    lost: Vec<Lost>,
    running: Option<Running>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Sequence {
        contract: &frozen.contract,
        complete: None,
        last_end: None,
        struck: BTreeSet::new(),
        is_over: false,
        is_without_attempt: false,
        last_number: 0,
        last_steps: BTreeMap::new(),
        lost: Vec::new(),
        running: None,
    })
}

impl Sequence<'_> {
    fn start(&mut self, entry: &Entry, attempt: AttemptId, from_step: u64, sink: &mut Sink) {
        let expected = self.last_number.saturating_add(1);
        if attempt.0 != expected {
            let at = At::entry(entry.index, "/body/det/attempt");
            sink.rejected(at, "attempts are not numbered in order", expected, attempt);
        }
        self.lose_running();
        self.last_number = attempt.0;
        self.last_steps.insert(attempt, from_step);
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

    /// What a fault other than a vanished attempt says of the one that it struck.
    fn last_step(&self, entry: &Entry, det: &FaultObservedDet, sink: &mut Sink) {
        let last_step = self.last_steps.get(&det.attempt).copied();
        if last_step != Some(det.last_step) {
            let at = At::entry(entry.index, "/body/det/last_step");
            sink.rejected(at, "the struck attempt's last step is another", or_null(last_step), det.last_step);
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
            self.last_steps.insert(running.attempt, running.last_step);
            if let Some(Ended { attempt, outcome, .. }) = self.complete.take() {
                let message =
                    format!("a step follows attempt {attempt}, which had reached the end of the run");
                sink.rejected(
                    At::entry(entry.index, ""),
                    message,
                    "no further step",
                    format!("{outcome:?} before"),
                );
            }
        }
    }

    fn recovered(&mut self, entry: &Entry, attempt: AttemptId, sink: &mut Sink) {
        if !self.struck.remove(&attempt) {
            let at = At::entry(entry.index, "/body/det/attempt");
            let message = "the run recovers from a fault that was not observed before";
            sink.rejected(at, message, "fault.observed before", attempt);
        }
        if let Some(lost) = self.lost.iter_mut().find(|lost| lost.attempt == attempt) {
            lost.is_recovered = lost.is_observed;
        }
    }

    /// `run.end` repeats how the last attempt ended; a run that is ended
    /// without an attempt says why no other one was possible.
    fn end_run(&mut self, entry: &Entry, outcome: End, sink: &mut Sink) {
        let last = self.last_end.as_ref().filter(|ended| ended.attempt.0 == self.last_number);
        if last.is_some_and(|ended| ended.outcome == outcome) {
            return;
        }
        let is_without_attempt = match outcome {
            End::Refused => self.contract.faults.recovery == Recovery::Refuse,
            End::BudgetExhausted => self.last_number >= self.contract.budget.max_attempts,
            _ => false,
        };
        self.is_without_attempt = is_without_attempt;
        if !is_without_attempt {
            let at = At::entry(entry.index, "/body/det/outcome");
            let expected =
                last.map_or("attempt.end before".to_owned(), |ended| format!("{:?}", ended.outcome));
            sink.rejected(
                at,
                "the run ends otherwise than its last attempt",
                expected,
                format!("{outcome:?}"),
            );
        }
    }

    fn end(&mut self, entry: &Entry, ended: Ended, sink: &mut Sink) {
        let Ended { attempt, last_step, outcome } = ended;
        self.last_end = Some(Ended { attempt, last_step, outcome });
        if matches!(outcome, End::Completed | End::BudgetExhausted) {
            self.complete = Some(ended);
        }
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

impl Check for Sequence<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        let kind = entry.body.kind();
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.start(entry, halves.det.attempt, halves.det.from_step, sink);
            }
            Body::AttemptEnd(halves) => {
                let (attempt, last_step, outcome) =
                    (halves.det.attempt, halves.det.last_step, halves.det.outcome);
                self.end(entry, Ended { attempt, last_step, outcome }, sink);
            }
            Body::FaultObserved(halves) => {
                self.struck.insert(halves.det.attempt);
                if halves.det.fault == ObservedFault::AttemptVanished {
                    self.observed(entry, &halves.det, sink);
                } else {
                    self.last_step(entry, &halves.det, sink);
                }
            }
            Body::FaultRecovered(halves) => self.recovered(entry, halves.det.attempt, sink),
            Body::CheckpointFailed(halves) | Body::CheckpointQuarantined(halves) => {
                // The end was reached, but what was saved there is gone.
                self.complete = self.complete.take().filter(|ended| ended.last_step != halves.det.step);
            }
            Body::RunEnd(halves) => {
                self.is_over = true;
                self.end_run(entry, halves.det.outcome, sink);
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
        let is_told = |lost: &&Lost| lost.is_observed && (lost.is_recovered || self.is_without_attempt);
        for lost in self.lost.iter().filter(|lost| !is_told(lost)) {
            let message = format!("attempt {} vanished and no process went on from it", lost.attempt);
            sink.incomplete(At::place("ledger"), message, "fault.observed and fault.recovered", "not both");
        }
        Outcome::Checked(u64::from(self.last_number))
    }
}
