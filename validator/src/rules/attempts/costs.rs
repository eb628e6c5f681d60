//! Costs are possible, and those of failed attempts are in the total.

use schemas::body::{Body, CostTotals};
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, or_null};

declare_rule!(
    /// `GL212`.
    Costs,
    {
        code: "GL212",
        name: "costs",
        what: "An attempt's cost counts the steps that it recorded, the bytes that its workers sent for them and those of the checkpoints that it saved, and no part of it exceeds its wall time; the run's cost is \
               the sum over all attempts, those that failed or vanished included.",
        why: "A cost that leaves out failures, repeated steps or the time of recording makes a method look cheaper than it was.",
        remedy: "None for a finished run: totals are evidence. Repair the program that adds them up.",
        reference: "docs/FORMAT.md, \"Costs\"",
        gate: Route::RejectTopology,
    }
);

#[derive(Default)]
struct Running {
    /// Bytes that its workers sent, as its steps say.
    bytes_sent: u64,
    /// Sizes of the checkpoints that it committed and validated.
    checkpoint_bytes: u64,
    committed: Option<(CheckpointId, u64)>,
    first_us: u64,
    last_us: u64,
    num_steps: u64,
}

#[derive(Default)]
struct Totals {
    num_checked: u64,
    running: Option<Running>,
    sum: CostTotals,
    has_unknown_energy: bool,
    /// What the steps of attempts that vanished say was sent: the page does not
    /// ask for it in the total, and it is no mistake there.
    vanished_bytes_sent: u64,
}

fn open(_: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Totals { sum: CostTotals { energy_j: Some(0), ..CostTotals::default() }, ..Totals::default() })
}

/// A system clock may be set while an attempt runs, so a difference of this
/// much is only suspicious beyond it.
const CLOCK_SLACK_US: u64 = 5_000_000;

impl Totals {
    fn end_attempt(&mut self, entry: &Entry, cost: &CostTotals, sink: &mut Sink) {
        let running = self.running.take().unwrap_or_default();
        let at = |field: &str| At::entry(entry.index, format!("/body/obs/cost/{field}"));
        if cost.num_steps_executed != running.num_steps {
            let message = "the attempt executed another number of steps";
            sink.rejected(at("num_steps_executed"), message, running.num_steps, cost.num_steps_executed);
        }
        if cost.bytes_sent != running.bytes_sent {
            let message = "bytes_sent is not the sum over the attempt's steps";
            sink.rejected(at("bytes_sent"), message, running.bytes_sent, cost.bytes_sent);
        }
        if cost.checkpoint_bytes != running.checkpoint_bytes {
            let message = "checkpoint_bytes is not the size of what the attempt saved";
            sink.rejected(at("checkpoint_bytes"), message, running.checkpoint_bytes, cost.checkpoint_bytes);
        }
        let parts = [
            ("checkpoint_us", cost.checkpoint_us),
            ("eval_us", cost.eval_us),
            ("recording_us", cost.recording_us),
        ];
        for (field, part) in parts.into_iter().filter(|(_, part)| *part > cost.wall_us) {
            let message = "a part takes longer than the whole";
            sink.rejected(at(field), message, format!("at most {}", cost.wall_us), part);
        }
        let elapsed = entry.time_us.saturating_sub(running.first_us);
        if cost.wall_us.abs_diff(elapsed) > CLOCK_SLACK_US.max(elapsed / 10) {
            let message = "wall time and the times of the entries differ";
            sink.warning(at("wall_us"), message, format!("about {elapsed}"), cost.wall_us);
        }
        self.add(cost);
    }

    fn add(&mut self, cost: &CostTotals) {
        let sum = &mut self.sum;
        sum.bytes_sent = sum.bytes_sent.saturating_add(cost.bytes_sent);
        sum.checkpoint_bytes = sum.checkpoint_bytes.saturating_add(cost.checkpoint_bytes);
        sum.checkpoint_us = sum.checkpoint_us.saturating_add(cost.checkpoint_us);
        sum.cpu_us = sum.cpu_us.saturating_add(cost.cpu_us);
        sum.energy_j = sum.energy_j.zip(cost.energy_j).map(|(a, b)| a.saturating_add(b));
        sum.eval_us = sum.eval_us.saturating_add(cost.eval_us);
        sum.peak_resident_bytes = sum.peak_resident_bytes.max(cost.peak_resident_bytes);
        sum.recording_us = sum.recording_us.saturating_add(cost.recording_us);
        sum.wall_us = sum.wall_us.saturating_add(cost.wall_us);
    }

    /// What is known of an attempt that left no cost.
    fn vanish(&mut self) {
        if let Some(running) = self.running.take() {
            self.sum.wall_us =
                self.sum.wall_us.saturating_add(running.last_us.saturating_sub(running.first_us));
            self.vanished_bytes_sent = self.vanished_bytes_sent.saturating_add(running.bytes_sent);
            self.has_unknown_energy = true;
        }
    }

    fn end_run(&self, index: u64, cost: &CostTotals, sink: &mut Sink) {
        let sum = &self.sum;
        let with_vanished = sum.bytes_sent.saturating_add(self.vanished_bytes_sent);
        let bytes_sent = if cost.bytes_sent == with_vanished { with_vanished } else { sum.bytes_sent };
        let fields = [
            ("bytes_sent", bytes_sent, cost.bytes_sent),
            ("checkpoint_bytes", sum.checkpoint_bytes, cost.checkpoint_bytes),
            ("checkpoint_us", sum.checkpoint_us, cost.checkpoint_us),
            ("cpu_us", sum.cpu_us, cost.cpu_us),
            ("eval_us", sum.eval_us, cost.eval_us),
            ("num_steps_executed", sum.num_steps_executed, cost.num_steps_executed),
            ("peak_resident_bytes", sum.peak_resident_bytes, cost.peak_resident_bytes),
            ("recording_us", sum.recording_us, cost.recording_us),
            ("wall_us", sum.wall_us, cost.wall_us),
        ];
        let at = |field: &str| At::entry(index, format!("/body/obs/cost/{field}"));
        for (field, expected, actual) in fields.into_iter().filter(|(_, expected, actual)| expected != actual)
        {
            sink.rejected(at(field), format!("{field} is not the sum over the attempts"), expected, actual);
        }
        let energy = sum.energy_j.filter(|_| !self.has_unknown_energy);
        if energy != cost.energy_j {
            sink.rejected(
                at("energy_j"),
                "energy is not the sum over the attempts",
                or_null(energy),
                or_null(cost.energy_j),
            );
        }
    }
}

impl Check for Totals {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::AttemptStart(_) => {
                self.vanish();
                self.running =
                    Some(Running { first_us: entry.time_us, last_us: entry.time_us, ..Running::default() });
            }
            Body::Step(halves) => {
                self.sum.num_steps_executed += 1;
                if let Some(running) = &mut self.running {
                    running.bytes_sent = running.bytes_sent.saturating_add(halves.obs.bytes_sent);
                    running.num_steps += 1;
                }
            }
            Body::CheckpointDurablyCommitted(halves) => {
                if let Some(running) = &mut self.running {
                    running.committed = Some((halves.obs.checkpoint.clone(), halves.obs.num_bytes));
                }
            }
            Body::CheckpointValidated(halves) => {
                if let Some(running) = &mut self.running
                    && let Some((_, num_bytes)) =
                        running.committed.take().filter(|(id, _)| *id == halves.obs.checkpoint)
                {
                    running.checkpoint_bytes = running.checkpoint_bytes.saturating_add(num_bytes);
                }
            }
            Body::AttemptEnd(halves) => {
                self.num_checked += 1;
                self.end_attempt(entry, &halves.obs.cost, sink);
            }
            Body::RunEnd(halves) => {
                self.num_checked += 1;
                // The last attempt may have vanished, and the run be ended without another.
                self.vanish();
                self.end_run(entry.index, &halves.obs.cost, sink);
            }
            _ => {}
        }
        if let Some(running) = self.running.as_mut().filter(|_| entry.header.attempt.is_some()) {
            // In logical order the last entry need not be the latest.
            running.last_us = running.last_us.max(entry.time_us);
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
