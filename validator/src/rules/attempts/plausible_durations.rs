//! Durations that no execution has.

use schemas::body::{Body, StepObs};
use schemas::contract::Device;
use schemas::entry::Entry;
use schemas::ids::AttemptId;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL219`.
    PlausibleDurations,
    {
        code: "GL219",
        name: "plausible-durations",
        what: "Warns, once an attempt, of updates that took no time, or less than any device needs for their arithmetic; of 32 in a \
               row that took the same time to the microsecond; of a worker's share that took longer than its update; and of \
               updates and evaluations that together took longer than the attempt which made them one after the other.",
        why: "Durations are not determined by the contract, so a record that was made up can hold any; those of real executions \
              scatter, add up and obey the hardware.",
        remedy: "Ask for the run to be probed (`trainer probe`), which executes a part of it again. A warning changes no verdict.",
        reference: "docs/FORMAT.md, \"Costs\"",
        gate: Route::RejectTopology,
    }
);

/// Updates in a row with one duration that tell: timers of real machines
/// scatter by more than a microsecond.
const MIN_REPEATS: u32 = 32;
/// Shorter updates may well take the same time twice.
const MIN_TELLING_US: u64 = 100;
/// Floating-point operations a second that no processor, and no accelerator,
/// of the years of this edition reaches; several times what the largest do.
const MAX_FLOPS_CPU: f64 = 1e15;
const MAX_FLOPS_ACCELERATOR: f64 = 1e17;
/// Operations for each parameter and token of a forward and backward pass
/// (Kaplan et al. 2020, "Scaling Laws", section 2.1).
const FLOPS_PER_PARAMETER_AND_TOKEN: f64 = 6.0;
/// Rounding and what clocks differ by.
const SLACK_US: u64 = 1_000_000;

/// What was said of an attempt already.
#[derive(Default)]
struct Told {
    is_constant: bool,
    is_share: bool,
    is_short: bool,
}

#[derive(Default)]
struct Running {
    attempt: Option<AttemptId>,
    first_us: u64,
    last_us: u64,
    /// A duration and how often it came in a row.
    repeats: (u64, u32),
    told: Told,
    total_us: u64,
}

struct Durations {
    /// Least microseconds a token.
    least_us_per_token: f64,
    num_steps: u64,
    running: Running,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let contract = &frozen.contract;
    let flops = match contract.plan.device {
        Device::Cpu => MAX_FLOPS_CPU,
        Device::Wgpu | Device::Cuda => MAX_FLOPS_ACCELERATOR,
    };
    let own = |manifest: &schemas::parameters::ParameterManifest| -> f64 {
        let stored = manifest.parameters.iter().filter(|parameter| parameter.tied_to.is_none());
        stored.map(|parameter| parameter.shape.iter().map(|extent| count(*extent)).product::<f64>()).sum()
    };
    // Without the manifest nothing is known of the arithmetic; other rules say so.
    let num_parameters = frozen.parameters.as_ref().map_or(0.0, own);
    let flops = flops * f64::from(contract.topology.workers.max(1));
    Box::new(Durations {
        least_us_per_token: FLOPS_PER_PARAMETER_AND_TOKEN * num_parameters / flops * 1e6,
        num_steps: 0,
        running: Running::default(),
    })
}

/// A count as a number to estimate with.
#[allow(clippy::cast_precision_loss, reason = "an estimate")]
fn count(count: u64) -> f64 {
    count as f64
}

impl Durations {
    fn step(&mut self, entry: &Entry, num_tokens: u64, obs: &StepObs, sink: &mut Sink) {
        self.num_steps += 1;
        let at = || At::entry(entry.index, "/body/obs/duration_us");
        let (running, duration_us) = (&mut self.running, obs.duration_us);
        running.total_us = running.total_us.saturating_add(duration_us);
        let least_us = self.least_us_per_token * count(num_tokens);
        if (duration_us == 0 || count(duration_us) < least_us) && !running.told.is_short {
            running.told.is_short = true;
            let message = "the update took less time than any device needs for it";
            let expected = format!("at least {} us", least_us.ceil().max(1.0));
            sink.warning(at(), message, expected, format!("{duration_us} us"));
        }
        running.repeats = match running.repeats {
            (same, number) if same == duration_us => (same, number.saturating_add(1)),
            _ => (duration_us, 1),
        };
        if running.repeats.1 >= MIN_REPEATS && duration_us >= MIN_TELLING_US && !running.told.is_constant {
            running.told.is_constant = true;
            let message = format!("{MIN_REPEATS} updates in a row took the same time to the microsecond");
            sink.warning(at(), message, "durations that scatter", format!("{duration_us} us each"));
        }
        let longest = obs.shares.iter().max_by_key(|share| share.duration_us);
        if let Some(share) = longest.filter(|share| share.duration_us > duration_us.saturating_add(SLACK_US))
            && !running.told.is_share
        {
            running.told.is_share = true;
            let message = format!("the share of worker {} took longer than its update", share.worker);
            let expected = format!("at most {duration_us} us");
            sink.warning(at(), message, expected, format!("{} us", share.duration_us));
        }
    }

    /// Compares with the wall time that the attempt says it took, or that lies
    /// between its entries.
    fn end(&mut self, wall_us: Option<u64>, index: u64, sink: &mut Sink) {
        let running = std::mem::take(&mut self.running);
        let Some(attempt) = running.attempt else { return };
        let elapsed_us = running.last_us.saturating_sub(running.first_us);
        let wall_us = wall_us.unwrap_or(elapsed_us);
        let allowed_us = wall_us.saturating_add(SLACK_US).saturating_add(wall_us / 100);
        if running.total_us > allowed_us {
            let message = format!("updates and evaluations of attempt {attempt} took longer than it did");
            let at = At::entry(index, "");
            sink.warning(at, message, format!("at most {wall_us} us"), format!("{} us", running.total_us));
        }
    }
}

impl Check for Durations {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.end(None, entry.index, sink);
                self.running.attempt = Some(halves.det.attempt);
                (self.running.first_us, self.running.last_us) = (entry.time_us, entry.time_us);
            }
            Body::Step(halves) => {
                let num_tokens = match &halves.det.credit {
                    schemas::body::Credit::Backpropagation { num_tokens, .. } => *num_tokens,
                    schemas::body::Credit::Evolution { .. } => 0,
                };
                self.step(entry, num_tokens, &halves.obs, sink);
            }
            Body::Eval(halves) => {
                let running = &mut self.running;
                running.total_us = running.total_us.saturating_add(halves.obs.duration_us);
            }
            Body::AttemptEnd(halves) => self.end(Some(halves.obs.cost.wall_us), entry.index, sink),
            Body::RunEnd(_) => self.end(None, entry.index, sink),
            _ => {}
        }
        if entry.header.attempt.is_some() {
            self.running.last_us = self.running.last_us.max(entry.time_us);
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_steps)
    }
}
