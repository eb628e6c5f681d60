//! Process starts, steps, tokens and wall time stay within the frozen budget.

use schemas::body::{Body, Outcome as RunOutcome};
use schemas::contract::Budget;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Position, declare_rule};

declare_rule!(
    /// `GL210`.
    BudgetRule,
    {
        code: "GL210",
        name: "budget",
        what: "Attempts, steps, target tokens and wall time over all attempts do not exceed the contract's budget, and a run that \
               says its budget ended it had reached a limit.",
        why: "A comparison between runs means something only at equal budgets; an unbounded number of attempts is an unbounded \
              number of tries.",
        remedy: "None for this run. A larger budget needs a new contract.",
        reference: "docs/FORMAT.md, \"Stopping\"",
        gate: Route::RejectFrozenInputs,
    }
);

/// The trainer measures wall time by its monotonic clock, entries carry the
/// system's; a difference of this much proves nothing.
const WALL_SLACK_US: u64 = 5_000_000;

struct Spent<'a> {
    attempt_first_us: Option<u64>,
    attempt_last_us: u64,
    budget: &'a Budget,
    num_attempts: u64,
    num_checked: u64,
    position: Position,
    tokens: u64,
    wall_us: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Spent {
        attempt_first_us: None,
        attempt_last_us: 0,
        budget: &frozen.contract.budget,
        num_attempts: 0,
        num_checked: 0,
        position: Position::default(),
        tokens: 0,
        wall_us: 0,
    })
}

impl Spent<'_> {
    fn wall_us(&self) -> u64 {
        let running = self.attempt_first_us.map_or(0, |first| self.attempt_last_us.saturating_sub(first));
        self.wall_us.saturating_add(running)
    }

    fn wall_limit_us(&self) -> Option<u64> {
        self.budget.max_wall_s.map(|seconds| seconds.saturating_mul(1_000_000))
    }

    fn step(&mut self, entry: &Entry, sink: &mut Sink) {
        let at = || At::entry(entry.index, "/step");
        let step = entry.header.step.unwrap_or(0);
        if step > self.budget.max_steps {
            sink.rejected(at(), "the run exceeds its budget of steps", self.budget.max_steps, step);
        }
        if let Some(limit) = self.budget.max_tokens.filter(|limit| self.tokens >= *limit) {
            sink.rejected(
                at(),
                "an update follows although the budget of tokens was used up",
                limit,
                self.tokens,
            );
        }
        let wall_us = self.wall_us();
        if let Some(limit_us) =
            self.wall_limit_us().filter(|limit| wall_us > limit.saturating_add(WALL_SLACK_US))
        {
            let message = "an update follows although the budget of wall time was used up";
            sink.rejected(at(), message, format!("{limit_us} us"), format!("{wall_us} us"));
        }
    }

    fn end(&self, entry: &Entry, sink: &mut Sink) {
        let is_reached = self.position.step >= self.budget.max_steps
            || self.budget.max_tokens.is_some_and(|limit| self.tokens >= limit)
            || self
                .wall_limit_us()
                .is_some_and(|limit| self.wall_us().saturating_add(WALL_SLACK_US) >= limit);
        if !is_reached {
            let actual =
                format!("step {}, {} tokens, {} us", self.position.step, self.tokens, self.wall_us());
            let at = At::entry(entry.index, "/body/det/outcome");
            sink.rejected(at, "no limit of the budget was reached", "completed", actual);
        }
    }
}

impl Check for Spent<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::AttemptStart(_) => {
                self.wall_us = self.wall_us();
                self.attempt_first_us = Some(entry.time_us);
                self.num_attempts += 1;
                self.num_checked += 1;
                if self.num_attempts > u64::from(self.budget.max_attempts) {
                    let at = At::entry(entry.index, "");
                    sink.rejected(
                        at,
                        "more processes started than the budget has",
                        self.budget.max_attempts,
                        self.num_attempts,
                    );
                }
            }
            Body::Step(halves) => {
                self.num_checked += 1;
                self.step(entry, sink);
                self.tokens = halves.det.counters.tokens;
            }
            Body::RunEnd(halves) if halves.det.outcome == RunOutcome::BudgetExhausted => {
                self.end(entry, sink);
            }
            _ => {}
        }
        if entry.header.attempt.is_some() {
            self.attempt_last_us = entry.time_us;
        }
        self.position.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
