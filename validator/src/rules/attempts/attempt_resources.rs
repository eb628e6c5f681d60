//! What an attempt says that it used covers what its entries say.

use schemas::body::{AttemptEndObs, AttemptStartObs, Body};
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL221`.
    AttemptResources,
    {
        code: "GL221",
        name: "attempt-resources",
        what: "The time that an attempt charges for evaluations and for recording is at least the sum over its entries. Warns of a \
               peak of memory below what its steps saw, of more resident memory than the machine has, and of more processor time \
               than its workers' threads could use in its wall time.",
        why: "Costs are compared between methods. A total below its own parts makes one of them look cheaper than it was.",
        remedy: "None for a finished run: totals are evidence. Repair the program that adds them up.",
        reference: "docs/FORMAT.md, \"Costs\"; schemas::body::CostTotals",
        gate: Route::RejectTopology,
    }
);

/// Threads beside those of the kernels: the loop, the recorder, the saver.
const OTHER_THREADS: u64 = 4;
/// Processor time before an attempt's clock starts, and what ticks round.
const CPU_SLACK_US: u64 = 10_000_000;
/// Counters of resident memory are kept by processor and lag behind.
const MEMORY_SLACK_BYTES: u64 = 16 << 20;

#[derive(Default)]
struct Running {
    eval_us: u64,
    num_entries: u64,
    num_threads: u64,
    peak_bytes: u64,
    recording_us: u64,
    total_memory_bytes: u64,
}

#[derive(Default)]
struct Resources {
    num_checked: u64,
    running: Option<Running>,
}

fn open(_: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Resources::default())
}

impl Resources {
    fn start(&mut self, obs: &AttemptStartObs) {
        let of_kernels = u64::from(obs.plan.num_threads).saturating_mul(u64::from(obs.plan.num_workers));
        self.running = Some(Running {
            num_threads: of_kernels.saturating_add(OTHER_THREADS),
            total_memory_bytes: obs.total_memory_bytes,
            ..Running::default()
        });
    }

    fn end(&mut self, index: u64, obs: &AttemptEndObs, sink: &mut Sink) {
        let Some(running) = self.running.take() else { return };
        self.num_checked += 1;
        let cost = &obs.cost;
        let at = |field: &str| At::entry(index, format!("/body/obs/cost/{field}"));
        // A duration is cut to microseconds wherever it is written.
        let recording_us = running.recording_us.saturating_sub(running.num_entries);
        for (field, least_us, said_us) in
            [("eval_us", running.eval_us, cost.eval_us), ("recording_us", recording_us, cost.recording_us)]
        {
            if said_us < least_us {
                let message = "the attempt charges less time than its entries took";
                sink.rejected(at(field), message, format!("at least {least_us}"), said_us);
            }
        }
        let peak = cost.peak_resident_bytes;
        if peak.saturating_add(peak / 16).saturating_add(MEMORY_SLACK_BYTES) < running.peak_bytes {
            let message = "the peak of memory is below what a step of the attempt saw";
            sink.warning(
                at("peak_resident_bytes"),
                message,
                format!("at least {}", running.peak_bytes),
                peak,
            );
        }
        if peak > running.total_memory_bytes {
            let message = "more memory was resident than the machine has";
            let expected = format!("at most {}", running.total_memory_bytes);
            sink.warning(at("peak_resident_bytes"), message, expected, peak);
        }
        let most_us = cost.wall_us.saturating_mul(running.num_threads).saturating_add(CPU_SLACK_US);
        if cost.cpu_us > most_us {
            let message = "more processor time was used than the attempt's threads have";
            sink.warning(at("cpu_us"), message, format!("at most {most_us}"), cost.cpu_us);
        }
    }
}

impl Check for Resources {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::AttemptStart(halves) => self.start(&halves.obs),
            Body::AttemptEnd(halves) => self.end(entry.index, &halves.obs, sink),
            _ => {}
        }
        let Some(running) = &mut self.running else { return };
        running.num_entries += 1;
        match &entry.body {
            Body::Step(halves) => {
                running.recording_us = running.recording_us.saturating_add(halves.obs.recording_us);
                running.peak_bytes = running.peak_bytes.max(halves.obs.resident_bytes.unwrap_or(0));
            }
            Body::Eval(halves) => {
                running.eval_us = running.eval_us.saturating_add(halves.obs.duration_us);
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        match self.num_checked {
            0 => Outcome::NotApplicable("no attempt said what it cost".to_owned()),
            num_checked => Outcome::Checked(num_checked),
        }
    }
}
