//! What a campaign needs to know of one run, taken from the run's own entries.
//!
//! Nothing is taken from the campaign's record and no total that a run recorded
//! of itself is used: costs are added up from the entries of every attempt, also
//! of those that failed. Memory does not grow with the steps.

use std::collections::BTreeMap;

use schemas::body::{Body, Counters, Credit, ObservedFault, Outcome, StepDet, StepObs};
use schemas::campaign::ContractPointer;
use schemas::campaign::report::CampaignCosts;
use schemas::contract::{Contract, Direction};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::{AttemptId, RunId};
use schemas::policy_card::PolicyCard;
use serde_json::Value;

use crate::derive::metrics;

/// Anomalies after which no further attempt would go better.
const NOT_FINITE: [&str; 2] = ["gradient_not_finite", "loss_not_finite"];

/// What a run is compared by: the campaign's metric.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Quality {
    pub(crate) stream: String,
    pub(crate) direction: Direction,
    pub(crate) threshold: f64,
}

/// When a run first reached the threshold, of the attempt whose steps count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Reach {
    pub(crate) step: u64,
    /// Counters of the logical run.
    pub(crate) counters: Counters,
    /// Of every attempt up to there.
    pub(crate) device_us: u64,
    /// Of every attempt up to there.
    pub(crate) wall_us: u64,
}

/// An opening of the sealed set in a qualification ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Opening {
    /// Ledger and entry, for a person.
    pub(crate) place: String,
    pub(crate) sealed: Digest,
    pub(crate) time_us: u64,
}

/// What the entries of one run say.
#[derive(Debug, Clone)]
pub(crate) struct RunFacts {
    pub(crate) frozen: FrozenFacts,
    pub(crate) num_entries: u64,
    /// Roots of the stored entries at the sizes that the campaign recorded.
    pub(crate) roots: BTreeMap<u64, [u8; 32]>,
    /// Index and time of the first entry that is not the freeze.
    pub(crate) first_effect: Option<(u64, u64)>,
    /// Index and time of the first entry that tells an outcome: an evaluation,
    /// or the end.
    pub(crate) first_outcome: Option<(u64, u64)>,
    /// Outcome of `run.end`.
    pub(crate) ended: Option<Outcome>,
    /// Index and time of `run.end`.
    pub(crate) ended_at: Option<(u64, u64)>,
    /// Whether its last attempt recorded a loss or gradient that is not finite,
    /// and the run ended as failed behind it.
    pub(crate) is_diverged: bool,
    /// Time of the last `candidate.selected`.
    pub(crate) selected_us: Option<u64>,
    pub(crate) selected_step: Option<u64>,
    pub(crate) reach: Option<Reach>,
    /// Value of the metric at the selected candidate's step.
    pub(crate) selected_value: Option<f64>,
    /// BLAKE3 over step and loss of every step when it was first executed; equal
    /// where two runs had the same losses. Null without a step.
    pub(crate) loss_trace: Option<Digest>,
    pub(crate) costs: CampaignCosts,
    /// Streams and splits that the run was evaluated on, as recorded.
    pub(crate) has_qualification_eval: bool,
    /// Of the sealed set, as the qualifier's ledger beside it tells them.
    pub(crate) openings: Result<Vec<Opening>, String>,
}

/// Follows the entries of one run.
pub(crate) struct Collector {
    quality: Quality,
    costs: CampaignCosts,
    running: BTreeMap<AttemptId, (u64, u64)>,
    has_energy: bool,
    num_ended: u64,
    first_effect: Option<(u64, u64)>,
    first_outcome: Option<(u64, u64)>,
    ended: Option<Outcome>,
    ended_at: Option<(u64, u64)>,
    is_not_finite: bool,
    selected: Option<(u64, u64)>,
    reach: Option<Reach>,
    last_value: Option<(u64, f64)>,
    values: BTreeMap<u64, f64>,
    trace: blake3::Hasher,
    highest_step: u64,
    counters: Counters,
    has_qualification_eval: bool,
}

impl Collector {
    pub(crate) fn new(quality: Quality) -> Self {
        Self {
            quality,
            costs: CampaignCosts { energy_j: Some(0), runs: 1, ..CampaignCosts::default() },
            running: BTreeMap::new(),
            has_energy: true,
            num_ended: 0,
            first_effect: None,
            first_outcome: None,
            ended: None,
            ended_at: None,
            is_not_finite: false,
            selected: None,
            reach: None,
            last_value: None,
            values: BTreeMap::new(),
            trace: blake3::Hasher::new(),
            highest_step: 0,
            counters: Counters::default(),
            has_qualification_eval: false,
        }
    }

    /// Takes the next recorded entry.
    pub(crate) fn entry(&mut self, entry: &Entry) {
        if !matches!(entry.body, Body::ContractFrozen(_)) && self.first_effect.is_none() {
            self.first_effect = Some((entry.index, entry.time_us));
        }
        if matches!(entry.body, Body::Eval(_) | Body::RunEnd(_)) && self.first_outcome.is_none() {
            self.first_outcome = Some((entry.index, entry.time_us));
        }
        self.clock(entry);
        match &entry.body {
            Body::AttemptStart(halves) => self.begin(halves.det.from_step),
            Body::AttemptEnd(halves) => {
                self.num_ended += 1;
                grow(&mut self.costs.cpu_us, halves.obs.cost.cpu_us);
                match halves.obs.cost.energy_j {
                    Some(joules) => {
                        self.costs.energy_j = self.costs.energy_j.map(|sum| sum.saturating_add(joules));
                    }
                    None => self.has_energy = false,
                }
            }
            Body::Step(halves) => self.step(entry.header.step.unwrap_or(0), &halves.det, &halves.obs),
            Body::Eval(halves) => {
                grow(&mut self.costs.evaluations, 1);
                grow(&mut self.costs.device_us, halves.obs.duration_us);
                self.has_qualification_eval |= halves.det.split == schemas::data::Split::Qualification;
                if halves.det.stream == self.quality.stream {
                    self.value(entry.header.step.unwrap_or(0), halves.det.value.0);
                }
            }
            Body::CheckpointDurablyCommitted(halves) => {
                grow(&mut self.costs.checkpoint_bytes, halves.obs.num_bytes);
            }
            Body::CheckpointRequested(halves) => self.keep_value(halves.det.step),
            Body::CandidateSelected(halves) => self.selected = Some((halves.det.step, entry.time_us)),
            Body::Intervention(halves) => {
                grow(&mut self.costs.operator_minutes, u64::from(halves.obs.operator_minutes.unwrap_or(0)));
            }
            Body::Anomaly(halves) => {
                self.is_not_finite |= NOT_FINITE.contains(&halves.det.name.as_str());
            }
            Body::FaultObserved(halves) => {
                self.is_not_finite |= halves.det.fault == ObservedFault::NotFinite;
            }
            Body::RunEnd(halves) => {
                self.ended = Some(halves.det.outcome);
                self.ended_at = Some((entry.index, entry.time_us));
            }
            _ => {}
        }
    }

    /// Only a saved step can be selected, so values of others are not kept.
    fn keep_value(&mut self, saved: u64) {
        if let Some((step, value)) = self.last_value.filter(|(step, _)| *step == saved) {
            self.values.insert(step, value);
        }
    }

    /// Wall time of an attempt: from its start to its last entry.
    fn clock(&mut self, entry: &Entry) {
        let Some(attempt) = entry.header.attempt else { return };
        let (_, last) = *self.running.entry(attempt).or_insert((entry.time_us, entry.time_us));
        let latest = last.max(entry.time_us);
        grow(&mut self.costs.wall_us, latest - last);
        if let Some(span) = self.running.get_mut(&attempt) {
            span.1 = latest;
        }
    }

    fn begin(&mut self, from_step: u64) {
        grow(&mut self.costs.attempts, 1);
        self.is_not_finite = false;
        if from_step == 0 {
            self.counters = Counters::default();
        }
        // What lies above the state that it resumes from is made again.
        if self.reach.as_ref().is_some_and(|reach| reach.step > from_step) {
            self.reach = None;
        }
        self.values.retain(|step, _| *step <= from_step);
    }

    fn step(&mut self, step: u64, det: &StepDet, obs: &StepObs) {
        self.counters = det.counters;
        grow(&mut self.costs.steps_executed, 1);
        grow(&mut self.costs.bytes_sent, obs.bytes_sent);
        grow(&mut self.costs.recording_us, obs.recording_us);
        if obs.shares.is_empty() {
            grow(&mut self.costs.device_us, obs.duration_us);
        }
        for share in &obs.shares {
            grow(&mut self.costs.device_us, share.duration_us);
        }
        for range in det.draws.iter().flat_map(|draw| &draw.ranges) {
            grow(&mut self.costs.examples, range.num_examples);
        }
        let signal = match &det.credit {
            Credit::Backpropagation { loss, num_tokens, .. } => {
                grow(&mut self.costs.tokens, *num_tokens);
                loss.0
            }
            Credit::Evolution { fitness, evaluations, .. } => {
                grow(&mut self.costs.evaluations, *evaluations);
                fitness.0
            }
        };
        if step > self.highest_step {
            self.highest_step = step;
            self.trace.update(&step.to_le_bytes());
            self.trace.update(&signal.to_bits().to_le_bytes());
        }
    }

    fn value(&mut self, step: u64, value: f64) {
        self.last_value = Some((step, value));
        let reaches = metrics::reaches(self.quality.direction, value, self.quality.threshold);
        if reaches && self.reach.is_none() {
            let (device_us, wall_us) = (self.costs.device_us, self.costs.wall_us);
            self.reach = Some(Reach { step, counters: self.counters, device_us, wall_us });
        }
    }

    /// The facts, with what was frozen.
    pub(crate) fn finish(
        mut self,
        frozen: FrozenFacts,
        num_entries: u64,
        roots: BTreeMap<u64, [u8; 32]>,
        openings: Result<Vec<Opening>, String>,
    ) -> RunFacts {
        // What an attempt without a terminal entry used is not known.
        if !self.has_energy || self.num_ended < self.costs.attempts {
            self.costs.energy_j = None;
        }
        let selected_step = self.selected.map(|(step, _)| step);
        RunFacts {
            frozen,
            num_entries,
            roots,
            first_effect: self.first_effect,
            first_outcome: self.first_outcome,
            ended: self.ended,
            ended_at: self.ended_at,
            is_diverged: self.is_not_finite && self.ended == Some(Outcome::Failed),
            selected_us: self.selected.map(|(_, time_us)| time_us),
            selected_step,
            selected_value: selected_step.and_then(|step| self.values.get(&step).copied()),
            reach: self.reach,
            loss_trace: (self.highest_step > 0).then(|| Digest::blake3(*self.trace.finalize().as_bytes())),
            costs: self.costs,
            has_qualification_eval: self.has_qualification_eval,
            openings,
        }
    }
}

/// Adds to a count without leaving it: what an entry says is not believed to be
/// small.
fn grow(count: &mut u64, by: u64) {
    *count = count.saturating_add(by);
}

/// What a run froze.
#[derive(Debug, Clone)]
pub(crate) struct FrozenFacts {
    pub(crate) card: Result<PolicyCard, String>,
    pub(crate) contract: Contract,
    /// The same as JSON, for places.
    pub(crate) value: Value,
    /// JSON documents that it binds, by the place of the binding.
    pub(crate) documents: BTreeMap<String, Value>,
    pub(crate) digest: Digest,
    pub(crate) run: RunId,
}

impl FrozenFacts {
    /// What stands at a place of the contract or of a document that it binds.
    pub(crate) fn at(&self, pointer: &ContractPointer) -> Option<&Value> {
        match pointer.parts() {
            (place, None) => self.value.pointer(place),
            (place, Some(inner)) => self.documents.get(place)?.pointer(inner),
        }
    }
}
