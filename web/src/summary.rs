//! What one pass over a ledger's entries gives: the facts of a run page, in
//! memory that does not grow with the number of steps.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ledger::FrozenContract;
use ledger::campaign::CampaignContract;
use ledger::reader::{ReadError, Reader};
use ledger::tree::Hash;
use schemas::body::{AttemptEndDet, Body, Credit, Kind};
use schemas::contract::Contract;
use schemas::entry::Entry;
use serde::Serialize;

use crate::series::{Curve, Points};

/// Anomalies and faults that a page lists; more are counted.
const MAX_EVENTS: usize = 200;

/// A read ledger.
pub(crate) struct Snapshot {
    /// What a campaign has frozen, where the ledger is that of one.
    pub(crate) campaign: Option<CampaignContract>,
    pub(crate) contract: Option<Contract>,
    /// Pages of entries are read from it. It holds a private copy of the file,
    /// so that a run in progress is never disturbed.
    pub(crate) reader: Mutex<Reader>,
    pub(crate) path: PathBuf,
    /// The root that was asked for last, with its size.
    root: Mutex<Option<(u64, Hash)>>,
    pub(crate) series: Vec<Points>,
    pub(crate) summary: Summary,
}

impl Snapshot {
    /// Root of the first `size` entries. Every page that shows the stored
    /// report asks for the same one, so it is computed once.
    pub(crate) fn root_at(&self, size: u64) -> Result<Hash, ReadError> {
        let mut known = self.root.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known_size, root)) = *known
            && known_size == size
        {
            return Ok(root);
        }
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let root = ledger::verify::root_at(&reader, size)?;
        *known = Some((size, root));
        Ok(root)
    }
}

/// The facts of a run page.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) checkpoints: Vec<Checkpoint>,
    pub(crate) contract_digest: Option<String>,
    pub(crate) events: Vec<Event>,
    pub(crate) file: String,
    pub(crate) kinds: BTreeMap<String, u64>,
    pub(crate) last_step: Option<u64>,
    pub(crate) name: String,
    pub(crate) num_entries: u64,
    pub(crate) num_events: u64,
    pub(crate) outcome: Option<String>,
    pub(crate) run: String,
    pub(crate) selected: Option<String>,
    pub(crate) started_us: Option<u64>,
}

/// One process lifetime.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Attempt {
    pub(crate) attempt: u32,
    pub(crate) ended: Option<String>,
    pub(crate) from_step: u64,
    pub(crate) last_step: Option<u64>,
    pub(crate) num_steps: u64,
    pub(crate) reason: String,
    pub(crate) resumed_from: Option<String>,
    pub(crate) start_entry: u64,
}

/// One checkpoint.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Checkpoint {
    pub(crate) attempt: Option<u32>,
    pub(crate) checkpoint: String,
    pub(crate) entry: u64,
    pub(crate) manifest: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) num_bytes: Option<u64>,
    pub(crate) stage: String,
    pub(crate) step: u64,
}

/// One candidate.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Candidate {
    pub(crate) candidate: String,
    pub(crate) entry: u64,
    pub(crate) model: String,
    pub(crate) step: u64,
    pub(crate) value: String,
}

/// A fault, an anomaly, an intervention.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Event {
    pub(crate) attempt: Option<u32>,
    pub(crate) entry: u64,
    pub(crate) kind: String,
    pub(crate) step: Option<u64>,
    pub(crate) text: String,
}

/// Name of a serde unit variant, as the ledger spells it.
fn spelled<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(other) => other.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Reads all entries once.
pub(crate) fn read(path: &Path, reader: Reader) -> Result<Snapshot, ReadError> {
    let mut pass = Pass::default();
    for entry in reader.entries(0) {
        pass.take(&entry?);
    }
    let mut summary = pass.summary;
    summary.num_entries = reader.num_entries();
    summary.file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if summary.name.is_empty() {
        summary.name.clone_from(&summary.file);
    }
    let mut curves: Vec<&Curve> = pass.curves.values().collect();
    curves.sort_by(|a, b| (&a.name, a.attempt).cmp(&(&b.name, b.attempt)));
    let series = curves.into_iter().map(Curve::points).collect();
    Ok(Snapshot {
        campaign: pass.campaign,
        contract: pass.contract,
        reader: Mutex::new(reader),
        path: path.to_owned(),
        root: Mutex::new(None),
        series,
        summary,
    })
}

#[derive(Default)]
struct Pass {
    campaign: Option<CampaignContract>,
    contract: Option<Contract>,
    curves: BTreeMap<(String, Option<u32>), Curve>,
    summary: Summary,
}

impl Pass {
    fn take(&mut self, entry: &Entry) {
        let summary = &mut self.summary;
        if entry.index == 0 {
            entry.header.run.as_str().clone_into(&mut summary.run);
            summary.started_us = Some(entry.time_us);
            // Only entry 0, with its digest, signature and run, is the contract:
            // a later one could name other keys. What does not hold is the
            // validator's finding; the page then shows no contract.
            if let Ok(frozen) = FrozenContract::from_entry(entry) {
                summary.contract_digest = Some(frozen.digest.to_string());
                summary.name.clone_from(&frozen.contract.name);
                self.contract = Some(frozen.contract);
            } else if let Ok(campaign) = CampaignContract::from_entry(entry) {
                summary.name.clone_from(&campaign.preregistration.name);
                self.campaign = Some(campaign);
            }
        }
        *summary.kinds.entry(entry.body.kind().name().to_owned()).or_default() += 1;
        match &entry.body {
            Body::RunEnd(halves) => summary.outcome = Some(spelled(&halves.det.outcome)),
            Body::Step(_) | Body::Eval(_) => self.take_numbers(entry),
            Body::AttemptStart(_) | Body::AttemptEnd(_) => self.take_attempt(entry),
            Body::CandidateAdmitted(halves) => summary.candidates.push(Candidate {
                candidate: halves.obs.candidate.to_string(),
                entry: entry.index,
                model: halves.det.model.to_string(),
                step: halves.det.step,
                value: halves.det.value.to_string(),
            }),
            Body::CandidateSelected(halves) => summary.selected = Some(halves.obs.candidate.to_string()),
            _ => {
                self.take_checkpoint(entry);
                self.take_event(entry);
            }
        }
    }

    fn take_numbers(&mut self, entry: &Entry) {
        let Some(step) = entry.header.step else { return };
        let attempt = entry.header.attempt.map(|attempt| attempt.0);
        match &entry.body {
            Body::Step(halves) => {
                self.summary.last_step = Some(step);
                if let Some(open) =
                    self.summary.attempts.iter_mut().rev().find(|a| Some(a.attempt) == attempt)
                {
                    open.num_steps += 1;
                    open.last_step = Some(step);
                }
                if let Credit::Backpropagation { gradient_norm, loss, .. } = &halves.det.credit {
                    self.curve("loss", attempt, step, loss.0);
                    self.curve("gradient_norm", attempt, step, gradient_norm.0);
                }
                for update in &halves.det.updates {
                    self.curve(
                        &format!("learning_rate:{}", update.group),
                        attempt,
                        step,
                        update.learning_rate.0,
                    );
                }
            }
            Body::Eval(halves) => {
                self.curve(&format!("eval:{}", halves.det.stream), attempt, step, halves.det.value.0);
            }
            _ => {}
        }
    }

    fn curve(&mut self, name: &str, attempt: Option<u32>, step: u64, value: f64) {
        self.curves
            .entry((name.to_owned(), attempt))
            .or_insert_with(|| Curve::new(name, attempt))
            .push(step, value);
    }

    fn take_attempt(&mut self, entry: &Entry) {
        match &entry.body {
            Body::AttemptStart(halves) => self.summary.attempts.push(Attempt {
                attempt: halves.det.attempt.0,
                ended: None,
                from_step: halves.det.from_step,
                last_step: None,
                num_steps: 0,
                reason: spelled(&halves.det.reason),
                resumed_from: halves.det.resumed_from.as_ref().map(|point| point.checkpoint.to_string()),
                start_entry: entry.index,
            }),
            Body::AttemptEnd(halves) => {
                let AttemptEndDet { attempt, outcome, .. } = &halves.det;
                let open = self.summary.attempts.iter_mut().rev().find(|open| open.attempt == attempt.0);
                if let Some(open) = open {
                    open.ended = Some(format!("{}: {}", spelled(outcome), halves.obs.reason));
                }
            }
            _ => {}
        }
    }

    fn take_checkpoint(&mut self, entry: &Entry) {
        let (checkpoint, step) = match &entry.body {
            Body::CheckpointRequested(halves)
            | Body::CheckpointStaged(halves)
            | Body::CheckpointValidated(halves) => (&halves.obs.checkpoint, halves.det.step),
            Body::CheckpointDurablyCommitted(halves) => (&halves.obs.checkpoint, halves.det.step),
            Body::CheckpointResumeQualified(halves) => (&halves.obs.checkpoint, halves.det.step),
            Body::CheckpointFailed(halves) | Body::CheckpointQuarantined(halves) => {
                (&halves.obs.checkpoint, halves.det.step)
            }
            Body::CheckpointRetired(halves) => (&halves.obs.checkpoint, halves.det.step),
            _ => return,
        };
        let kind = entry.body.kind().name();
        let stage = kind.trim_start_matches("checkpoint.").to_owned();
        let known = self.summary.checkpoints.iter_mut().rev().find(|known| known.checkpoint == checkpoint.0);
        let place = match known {
            Some(known) => {
                known.stage = stage;
                known
            }
            None => {
                self.summary.checkpoints.push(Checkpoint {
                    attempt: entry.header.attempt.map(|attempt| attempt.0),
                    checkpoint: checkpoint.to_string(),
                    entry: entry.index,
                    manifest: None,
                    model: None,
                    num_bytes: None,
                    stage,
                    step,
                });
                let Some(last) = self.summary.checkpoints.last_mut() else { return };
                last
            }
        };
        if let Body::CheckpointDurablyCommitted(halves) = &entry.body {
            place.manifest = Some(halves.obs.manifest.to_string());
            place.model = Some(halves.det.model.to_string());
            place.num_bytes = Some(halves.obs.num_bytes);
        }
    }

    fn take_event(&mut self, entry: &Entry) {
        let text = match &entry.body {
            Body::FaultInjected(halves) => format!("{} in {}", spelled(&halves.det.fault), halves.det.phase),
            Body::FaultObserved(halves) => {
                format!("{}: {}", spelled(&halves.det.fault), halves.obs.description)
            }
            Body::FaultRecovered(halves) => format!(
                "attempt {} goes on from step {}, {} steps executed again{}",
                halves.det.attempt,
                halves.det.from_step,
                halves.det.num_steps_lost,
                halves.obs.fallback.as_ref().map(|why| format!("; {why}")).unwrap_or_default()
            ),
            Body::Anomaly(halves) => format!("{}: {}", halves.det.name, halves.obs.description),
            Body::Intervention(halves) => format!("{}: {}", halves.det.action, halves.obs.reason),
            Body::Amendment(halves) => format!("of entry {}: {}", halves.det.amends, halves.det.statement),
            Body::CheckpointFailed(halves) | Body::CheckpointQuarantined(halves) => halves.obs.reason.clone(),
            Body::HandoffIssued(halves) => format!("candidate {}", halves.obs.candidate),
            _ => return,
        };
        self.summary.num_events += 1;
        if self.summary.events.len() < MAX_EVENTS {
            self.summary.events.push(Event {
                attempt: entry.header.attempt.map(|attempt| attempt.0),
                entry: entry.index,
                kind: entry.body.kind().name().to_owned(),
                step: entry.header.step,
                text,
            });
        }
    }
}

impl Summary {
    /// What the entries alone say of the run's state; no verdict.
    pub(crate) fn status(&self) -> String {
        match (&self.outcome, self.attempts.last()) {
            (Some(outcome), _) => format!("ended: {outcome}"),
            (None, None) => "frozen, not started".to_owned(),
            (None, Some(last)) if last.ended.is_some() => {
                format!("not ended; attempt {} left", last.attempt)
            }
            (None, Some(last)) => format!("not ended; attempt {} has no terminal entry", last.attempt),
        }
    }

    /// Entries of a kind.
    pub(crate) fn count(&self, kind: Kind) -> u64 {
        self.kinds.get(kind.name()).copied().unwrap_or(0)
    }
}
