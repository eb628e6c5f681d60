//! What recoveries and people cost is charged, in full and once.

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::{Body, CostDet, CostObs, FaultRecoveredDet};
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CheckpointId};
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{declare_rule, is_progress, same_float};

declare_rule!(
    /// `GL216`.
    RecoveryCosts,
    {
        code: "GL216",
        name: "recovery-costs",
        what: "An attempt that recovers, or that follows one which recovered and did not charge it, charges three costs to `recovery` \
               before it makes progress and after it gave checkpoints up: the steps that are lost, the seconds \
               that these took by their own entries, and the bytes of the checkpoints that were failed or quarantined; each as much \
               as there was since it was charged last. Minutes of an operator are charged directly behind the intervention that \
               names them, and nowhere else. Warns of any other cost, which nothing can derive.",
        why: "A run that recovers at no cost looks as cheap as one that never failed, and a person's time as if nobody had been needed.",
        remedy: "None for a finished run. Let `trainer run` recover, which charges what the entries add up to.",
        reference: "docs/FORMAT.md, \"Costs of a recovery\" and \"Interventions\"",
        gate: Route::RejectResumeDrift,
    }
);

/// Units of a recovery's costs, in the order of their entries.
const UNITS: [&str; 3] = ["steps", "s", "bytes"];

/// Whom a recovery's costs are charged to.
const RECOVERY: &str = "recovery";
/// Whom a person's minutes are charged to.
const OPERATOR: &str = "operator";

/// Wall time of the steps of one attempt.
#[derive(Default)]
struct Times {
    /// Total behind each step that a checkpoint is of: nothing else is recovered
    /// from.
    behind: BTreeMap<u64, u64>,
    from_step: u64,
    last_step: u64,
    total_us: u64,
}

impl Times {
    /// Microseconds of the steps above one; `None` where that is no place that
    /// a run can recover from.
    fn above(&self, step: u64) -> Option<u64> {
        if step <= self.from_step {
            return Some(self.total_us);
        }
        // A run that goes forward, to what another attempt saved, throws nothing away.
        if step >= self.last_step {
            return Some(0);
        }
        self.behind.get(&step).map(|behind| self.total_us.saturating_sub(*behind))
    }
}

/// What was not charged yet.
#[derive(Default)]
struct Owed {
    num_bytes: u64,
    num_steps: u64,
    /// None where a recovery began at a step whose time is not known.
    time_us: Option<u64>,
}

struct Costs {
    /// Bytes of committed checkpoints.
    committed: BTreeMap<CheckpointId, u64>,
    /// Whether the running attempt has begun to charge its recovery.
    has_charged: bool,
    /// Minutes of an intervention, which the next entry charges.
    minutes: Option<(u64, u32)>,
    num_checked: u64,
    owed: Owed,
    position: u64,
    /// Checkpoints that the running attempt requested.
    requested: BTreeSet<CheckpointId>,
    running: Option<AttemptId>,
    /// Steps that a checkpoint was requested of.
    saved: BTreeSet<u64>,
    times: BTreeMap<AttemptId, Times>,
    /// Units that the recovery in hand has still to charge.
    units: Vec<&'static str>,
}

fn open(_: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Costs {
        committed: BTreeMap::new(),
        has_charged: false,
        minutes: None,
        num_checked: 0,
        owed: Owed { time_us: Some(0), ..Owed::default() },
        position: 0,
        requested: BTreeSet::new(),
        running: None,
        saved: BTreeSet::new(),
        times: BTreeMap::new(),
        units: Vec::new(),
    })
}

/// A count as the binary64 that a cost holds.
#[allow(clippy::cast_precision_loss, reason = "exact below 2^53, which bounds every count in an entry")]
fn amount(count: u64) -> f64 {
    count as f64
}

impl Costs {
    fn recovered(&mut self, det: &FaultRecoveredDet) {
        self.num_checked += 1;
        self.units = UNITS.to_vec();
        self.owed.num_steps = self.owed.num_steps.saturating_add(det.num_steps_lost);
        // What did not run took no time.
        let time_us = self.times.get(&det.attempt).map_or(Some(0), |times| times.above(det.from_step));
        self.owed.time_us = self.owed.time_us.zip(time_us).map(|(one, other)| one.saturating_add(other));
    }

    fn step(&mut self, entry: &Entry, duration_us: u64) {
        self.position = entry.header.step.unwrap_or(self.position);
        let Some(times) = self.running.and_then(|running| self.times.get_mut(&running)) else { return };
        times.total_us = times.total_us.saturating_add(duration_us);
        times.last_step = self.position;
        if self.saved.contains(&self.position) {
            times.behind.insert(self.position, times.total_us);
        }
    }

    fn request(&mut self, step: u64) {
        self.saved.insert(step);
        if let Some(times) = self.running.and_then(|running| self.times.get_mut(&running))
            && step == self.position
        {
            times.behind.insert(step, times.total_us);
        }
    }

    fn give_up(&mut self, entry: &Entry, checkpoint: &CheckpointId, sink: &mut Sink) {
        // An attempt's own save fails when it fails; what it finds of others it says first.
        if self.has_charged && !self.requested.contains(checkpoint) {
            let message = format!("{checkpoint} is given up behind the costs of the recovery");
            let at = At::entry(entry.index, "");
            sink.rejected(at, message, "before the first cost", entry.body.kind().name());
        }
        let num_bytes = self.committed.get(checkpoint).copied().unwrap_or(0);
        self.owed.num_bytes = self.owed.num_bytes.saturating_add(num_bytes);
    }

    /// A cost of a recovery: the next that is due, in full.
    fn charge(&mut self, entry: &Entry, obs: &CostObs, sink: &mut Sink) {
        self.num_checked += 1;
        self.has_charged = true;
        let at = |pointer: &str| At::entry(entry.index, format!("/body/obs/{pointer}"));
        if self.units.first().copied() != Some(obs.unit.as_str()) {
            let expected = self.units.first().copied().unwrap_or("nothing: no recovery is open");
            sink.rejected(at("unit"), "another cost of a recovery is due", expected, &obs.unit);
        }
        self.units.retain(|unit| *unit != obs.unit);
        let expected = match obs.unit.as_str() {
            "steps" => Some(amount(std::mem::take(&mut self.owed.num_steps))),
            "s" => self.owed.time_us.replace(0).map(|time_us| amount(time_us) / 1_000_000.0),
            "bytes" => Some(amount(std::mem::take(&mut self.owed.num_bytes))),
            // That it is none of the three was said.
            _ => return,
        };
        let Some(expected) = expected else {
            let message = "the time that was lost cannot be derived";
            sink.not_evaluated(at("amount"), message, "a recovery from a saved step", obs.amount);
            return;
        };
        if !same_float(expected, obs.amount.0) {
            let message = format!("the recovery cost another number of {}", obs.unit);
            sink.rejected(at("amount"), message, expected, obs.amount);
        }
    }

    /// Minutes of a person: those of the intervention directly before.
    fn operator(&mut self, entry: &Entry, obs: &CostObs, sink: &mut Sink) {
        self.num_checked += 1;
        let minutes = self.minutes.take().map(|(_, minutes)| f64::from(minutes));
        let agrees = minutes.is_some_and(|minutes| same_float(minutes, obs.amount.0));
        if !agrees || obs.unit != "minutes" {
            let at = At::entry(entry.index, "/body/obs/amount");
            let expected = minutes.map_or("no intervention before it".to_owned(), |n| format!("{n} minutes"));
            let actual = format!("{} {}", obs.amount, obs.unit);
            sink.rejected(
                at,
                "an operator is charged with other than the intervention says",
                expected,
                actual,
            );
        }
    }

    fn cost(&mut self, entry: &Entry, det: &CostDet, obs: &CostObs, sink: &mut Sink) {
        match det.charged_to.as_str() {
            RECOVERY => self.charge(entry, obs, sink),
            OPERATOR => self.operator(entry, obs, sink),
            other => {
                self.num_checked += 1;
                let at = At::entry(entry.index, "/body/det/charged_to");
                sink.warning(at, "a cost that follows from no entry", "recovery or operator", other);
            }
        }
    }

    /// What an entry other than a cost finds that was not charged.
    fn uncharged(&mut self, entry: &Entry, sink: &mut Sink) {
        if let Some((index, minutes)) = self.minutes.take() {
            let message = "the minutes of an intervention are not charged directly behind it";
            let at = At::entry(index, "/body/obs/operator_minutes");
            sink.rejected(at, message, format!("a cost of {minutes} minutes"), entry.body.kind().name());
        }
        if is_progress(entry.body.kind()) && !self.units.is_empty() {
            let message = "an attempt that recovered makes progress and was not charged";
            let expected = format!("costs in {}", self.units.join(", "));
            sink.rejected(At::entry(entry.index, ""), message, expected, entry.body.kind().name());
            self.units.clear();
        }
    }
}

impl Check for Costs {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        if let Body::Cost(halves) = &entry.body {
            self.cost(entry, &halves.det, &halves.obs, sink);
            return;
        }
        self.uncharged(entry, sink);
        match &entry.body {
            Body::AttemptStart(halves) => {
                let (attempt, from_step) = (halves.det.attempt, halves.det.from_step);
                self.running = Some(attempt);
                self.has_charged = false;
                self.requested.clear();
                self.position = from_step;
                self.times.insert(attempt, Times { from_step, last_step: from_step, ..Times::default() });
            }
            // What an attempt recovered and did not come to charge, the next one
            // does, in full.
            Body::AttemptEnd(_) if !self.units.is_empty() => self.units = UNITS.to_vec(),
            // A run that ends before anybody made progress charges nothing.
            Body::RunEnd(_) => self.units.clear(),
            Body::FaultRecovered(halves) => self.recovered(&halves.det),
            Body::Step(halves) => self.step(entry, halves.obs.duration_us),
            Body::CheckpointRequested(halves) => {
                self.requested.insert(halves.obs.checkpoint.clone());
                self.request(halves.det.step);
            }
            Body::CheckpointDurablyCommitted(halves) => {
                self.committed.insert(halves.obs.checkpoint.clone(), halves.obs.num_bytes);
            }
            Body::CheckpointFailed(halves) | Body::CheckpointQuarantined(halves) => {
                self.give_up(entry, &halves.obs.checkpoint, sink);
            }
            Body::Intervention(halves) => {
                self.num_checked += 1;
                self.minutes = halves.obs.operator_minutes.map(|minutes| (entry.index, minutes));
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        if let Some((index, minutes)) = self.minutes {
            let message = "the minutes of an intervention are not charged directly behind it";
            let at = At::entry(index, "/body/obs/operator_minutes");
            sink.incomplete(at, message, format!("a cost of {minutes} minutes"), "nothing");
        }
        match self.num_checked {
            0 => Outcome::NotApplicable("the run recovered from nothing and nobody intervened".to_owned()),
            num_checked => Outcome::Checked(num_checked),
        }
    }
}
