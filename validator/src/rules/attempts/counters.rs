//! Cumulative counters and the numbers of `run.end`, counted again.

use schemas::body::{Body, Counters, Credit, RunEndDet, RunEndObs};
use schemas::contract::Contract;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::derive::shift::Shift;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Position, Rewindable, declare_rule};

declare_rule!(
    /// `GL211`.
    CountersRule,
    {
        code: "GL211",
        name: "counters",
        what: "The cumulative examples, tokens and evaluations of every step, and the last step, counters and numbers of \
               attempts of run.end, are what the entries add up to along the logical run.",
        why: "Compute and data budgets are claimed through these totals; repeated work after a crash must not count as progress.",
        remedy: "None for a finished run: the recorder or trainer that wrote false totals must be repaired.",
        reference: "schemas::body::Counters; docs/FORMAT.md, \"Costs\"",
        gate: Route::RejectNumerics,
    }
);

struct Count<'a> {
    contract: &'a Contract,
    counters: Rewindable<Counters>,
    is_running: bool,
    num_attempts: u64,
    num_checked: u64,
    num_vanished: u64,
    position: Position,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Count {
        contract: &frozen.contract,
        counters: Rewindable::new(Counters::default()),
        is_running: false,
        num_attempts: 0,
        num_checked: 0,
        num_vanished: 0,
        position: Position::default(),
    })
}

fn compare(index: u64, expected: &Counters, actual: &Counters, sink: &mut Sink) {
    let fields = [
        ("evaluations", expected.evaluations, actual.evaluations),
        ("examples", expected.examples, actual.examples),
        ("tokens", expected.tokens, actual.tokens),
    ];
    for (field, expected, actual) in fields.into_iter().filter(|(_, expected, actual)| expected != actual) {
        // Examples are counted by the data cursor.
        let shift = Shift::of_counts(expected, actual).filter(|_| field == "examples");
        let at = At::entry(index, format!("/body/det/counters/{field}")).cause(shift.map(Shift::cause));
        sink.rejected(at, format!("the counter of {field} does not add up"), expected, actual);
    }
}

impl Count<'_> {
    fn step(&mut self, entry: &Entry, credit: &Credit, actual: &Counters, sink: &mut Sink) {
        let (tokens, evaluations) = match credit {
            Credit::Backpropagation { num_tokens, .. } => (*num_tokens, 0),
            Credit::Evolution { evaluations, .. } => (0, *evaluations),
        };
        let before = self.counters.now;
        let expected = Counters {
            evaluations: before.evaluations.saturating_add(evaluations),
            examples: before.examples.saturating_add(u64::from(self.contract.batch.global_examples)),
            tokens: before.tokens.saturating_add(tokens),
        };
        compare(entry.index, &expected, actual, sink);
        self.counters.now = expected;
    }

    fn end(&self, index: u64, det: &RunEndDet, obs: &RunEndObs, sink: &mut Sink) {
        compare(index, &self.counters.now, &det.counters, sink);
        // The last attempt may have vanished, and the run be ended without another.
        let num_vanished = self.num_vanished + u64::from(self.is_running);
        let numbers = [
            ("det/last_step", self.position.step, det.last_step),
            ("obs/num_attempts", self.num_attempts, u64::from(obs.num_attempts)),
            ("obs/num_attempts_incomplete", num_vanished, u64::from(obs.num_attempts_incomplete)),
        ];
        for (field, expected, actual) in
            numbers.into_iter().filter(|(_, expected, actual)| expected != actual)
        {
            let at = At::entry(index, format!("/body/{field}"));
            sink.rejected(at, "run.end states another number", expected, actual);
        }
    }
}

impl Check for Count<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::AttemptStart(_) => {
                self.num_attempts += 1;
                self.num_vanished += u64::from(self.is_running);
                self.is_running = true;
            }
            Body::AttemptEnd(_) => self.is_running = false,
            Body::Step(halves) => {
                self.num_checked += 1;
                self.step(entry, &halves.det.credit, &halves.det.counters, sink);
            }
            Body::RunEnd(halves) => {
                self.num_checked += 1;
                self.end(entry.index, &halves.det, &halves.obs, sink);
            }
            _ => {}
        }
        self.counters.entry(entry);
        self.position.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
