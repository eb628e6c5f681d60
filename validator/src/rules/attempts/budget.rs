//! Process starts, steps, tokens and wall time stay within the frozen budget.

use schemas::body::{Body, CostTotals, Outcome as RunOutcome};
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

/// Work of the last step that no part of the cost names, such as copying tensors.
const WALL_SLACK_US: u64 = 5_000_000;

struct Spent<'a> {
    /// The attempt that is running.
    attempt: Option<Running>,
    /// How the last attempt ended; none where it vanished.
    last_outcome: Option<RunOutcome>,
    budget: &'a Budget,
    num_attempts: u64,
    num_checked: u64,
    position: Position,
    tokens: u64,
    /// Of the attempts that are over: as they measured it themselves, or the
    /// time between the entries of one that vanished.
    wall_us: u64,
}

/// An attempt whose wall time is not known yet.
#[derive(Clone, Copy)]
struct Running {
    first_us: u64,
    is_warned: bool,
    last_duration_us: u64,
    last_us: u64,
    num_steps: u64,
}

impl Running {
    /// By the system's clock, which may be set, and runs while a machine sleeps.
    const fn elapsed_us(&self) -> u64 {
        self.last_us.saturating_sub(self.first_us)
    }
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Spent {
        attempt: None,
        last_outcome: None,
        budget: &frozen.contract.budget,
        num_attempts: 0,
        num_checked: 0,
        position: Position::default(),
        tokens: 0,
        wall_us: 0,
    })
}

impl Spent<'_> {
    /// Adds the time of an attempt that left no cost.
    fn vanish(&mut self) {
        let elapsed_us = self.attempt.take().map_or(0, |running| running.elapsed_us());
        self.wall_us = self.wall_us.saturating_add(elapsed_us);
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
        self.wall(entry, step, sink);
    }

    /// Whether time was left for a step. What earlier attempts took is known;
    /// of the running one only the times of its entries, which decide nothing.
    fn wall(&mut self, entry: &Entry, step: u64, sink: &mut Sink) {
        let Some(limit_us) = self.wall_limit_us() else { return };
        let at = || At::entry(entry.index, "/step");
        let message = "an update follows although the budget of wall time was used up";
        // A run does not stop before its first step.
        if step > 1 && self.wall_us >= limit_us {
            sink.rejected(at(), message, format!("{limit_us} us"), format!("{} us", self.wall_us));
            return;
        }
        let Some(running) = &mut self.attempt else { return };
        let by_clock = self.wall_us.saturating_add(running.elapsed_us());
        if by_clock > limit_us.saturating_add(WALL_SLACK_US) && !running.is_warned {
            running.is_warned = true;
            let message = format!("{message}, by the times of the entries");
            sink.warning(at(), message, format!("{limit_us} us"), format!("{by_clock} us"));
        }
    }

    /// An attempt says what it took. Its last step began within the budget, so
    /// only that step and what follows it may lie beyond.
    fn end_attempt(&mut self, entry: &Entry, cost: &CostTotals, sink: &mut Sink) {
        let running = self.attempt.take();
        let before_us = self.wall_us;
        self.wall_us = before_us.saturating_add(cost.wall_us);
        let (Some(limit_us), Some(running)) = (self.wall_limit_us(), running) else { return };
        let parts = [cost.checkpoint_us, cost.eval_us, cost.recording_us, running.last_duration_us];
        let excused_us = parts.into_iter().fold(WALL_SLACK_US.max(limit_us / 10), u64::saturating_add);
        if running.num_steps > 0 && self.wall_us > limit_us.saturating_add(excused_us) {
            let at = At::entry(entry.index, "/body/obs/cost/wall_us");
            let expected = format!("{limit_us} us, and at most {excused_us} us for the last step");
            sink.rejected(
                at,
                "the run exceeds its budget of wall time",
                expected,
                format!("{} us", self.wall_us),
            );
        }
    }

    fn end(&self, entry: &Entry, sink: &mut Sink) {
        let is_reached = self.position.step >= self.budget.max_steps
            || self.budget.max_tokens.is_some_and(|limit| self.tokens >= limit)
            // An attempt does not use up the attempts; the run is then ended without one.
            || self.last_outcome != Some(RunOutcome::BudgetExhausted)
                && self.num_attempts >= u64::from(self.budget.max_attempts)
            || self.wall_limit_us().is_some_and(|limit| self.wall_us >= limit);
        if !is_reached {
            let actual = format!("step {}, {} tokens, {} us", self.position.step, self.tokens, self.wall_us);
            let at = At::entry(entry.index, "/body/det/outcome");
            sink.rejected(at, "no limit of the budget was reached", "completed", actual);
        }
    }
}

impl Check for Spent<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::AttemptStart(_) => {
                self.vanish();
                self.last_outcome = None;
                self.attempt = Some(Running {
                    first_us: entry.time_us,
                    is_warned: false,
                    last_duration_us: 0,
                    last_us: entry.time_us,
                    num_steps: 0,
                });
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
                if let Some(running) = &mut self.attempt {
                    running.num_steps += 1;
                    running.last_duration_us = halves.obs.duration_us;
                }
            }
            Body::AttemptEnd(halves) => {
                self.last_outcome = Some(halves.det.outcome);
                self.end_attempt(entry, &halves.obs.cost, sink);
            }
            Body::RunEnd(halves) if halves.det.outcome == RunOutcome::BudgetExhausted => {
                self.vanish();
                self.end(entry, sink);
            }
            _ => {}
        }
        if let Some(running) = self.attempt.as_mut().filter(|_| entry.header.attempt.is_some()) {
            running.last_us = entry.time_us;
        }
        self.position.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
