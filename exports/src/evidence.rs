//! What every format gets: the record of a run, and the report of an audit of
//! exactly this record.
//!
//! The report is taken as it is given; what is checked is that it is of these
//! entries, by their number, the contract's digest and the root of the head.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ledger::FrozenContract;
use ledger::reader::Reader;
use ledger::tree::{Frontier, leaf_hash};
use schemas::body::{
    AttemptEndDet, AttemptReason, AttemptStartObs, Body, CostTotals, Counters, Outcome, ResumePoint,
};
use schemas::contract::Code;
use schemas::data::DataManifest;
use schemas::digest::{Digest, encode_hex};
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CandidateId, CheckpointId};
use schemas::number::Float;
use schemas::report::{Report, SelectedCandidate, Verdict};

use crate::ExportError;

/// One process lifetime, as its entries tell it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Which attempt.
    pub attempt: AttemptId,
    /// The code that it said it runs.
    pub code: Code,
    /// What it cost; none without a terminal entry.
    pub cost: Option<CostTotals>,
    /// Time of its terminal entry in microseconds; none where it left none.
    pub ended_us: Option<u64>,
    /// Step whose state it started from.
    pub from_step: u64,
    /// Time of its last entry in microseconds.
    pub last_entry_us: u64,
    /// The last step that it recorded, or the one that it started from.
    pub last_step: u64,
    /// How it ended; none where it left no terminal entry, which is an
    /// incomplete attempt and never a completed one.
    pub outcome: Option<Outcome>,
    /// Updates that it recorded.
    pub num_steps: u64,
    /// Why it ended, in words.
    pub reason: Option<String>,
    /// From where it took its state.
    pub resumed_from: Option<ResumePoint>,
    /// Where and how it ran.
    pub ran: AttemptStartObs,
    /// Why it started.
    pub start_reason: AttemptReason,
    /// Time of its first entry in microseconds.
    pub started_us: u64,
}

/// A candidate, whether it was selected or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Attempt that saved it.
    pub attempt: Option<AttemptId>,
    /// Which candidate.
    pub candidate: CandidateId,
    /// Its checkpoint.
    pub checkpoint: CheckpointId,
    /// BLAKE3 of `config.json`.
    pub config: Digest,
    /// BLAKE3 of the checkpoint's manifest.
    pub manifest: Option<Digest>,
    /// BLAKE3 of the weights file, or of the index of several.
    pub model: Digest,
    /// The checkpoint's folder relative to the ledger's.
    pub path: Option<String>,
    /// Whether it is the selected one: by the report of an accepted run, by the
    /// last `candidate.selected` of any other. At most one is.
    pub selected: bool,
    /// Its step.
    pub step: u64,
    /// The trainer's own value of the selection stream.
    pub value: Float,
}

/// A checkpoint that was durably committed, whatever became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Attempt that saved it.
    pub attempt: Option<AttemptId>,
    /// Which checkpoint.
    pub checkpoint: CheckpointId,
    /// BLAKE3 of its manifest.
    pub manifest: Digest,
    /// Its folder relative to the ledger's.
    pub path: String,
    /// Its step.
    pub step: u64,
}

/// How the run as a whole ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Counters of its logical length.
    pub counters: Counters,
    /// Its last step.
    pub last_step: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// In words.
    pub reason: String,
    /// Microseconds since the epoch.
    pub time_us: u64,
}

/// The record of a run with the report of an audit of it.
#[derive(Debug)]
pub struct Evidence {
    /// Digests of the files that the ledger stores.
    pub artifacts: BTreeSet<Digest>,
    /// Every process start, in order.
    pub attempts: Vec<Attempt>,
    /// Every candidate, in the order of admission.
    pub candidates: Vec<Candidate>,
    /// Every checkpoint, in the order of commits.
    pub checkpoints: Vec<Checkpoint>,
    /// The frozen contract.
    pub contract: FrozenContract,
    /// What data there is.
    pub data: DataManifest,
    /// How the run ended; none where it did not.
    pub ended: Option<Ended>,
    /// Time of the freeze in microseconds.
    pub frozen_us: u64,
    /// What the audit said.
    pub report: Report,
    /// Time of `run.start` in microseconds; none before it.
    pub started_us: Option<u64>,
    reader: Reader,
}

impl Evidence {
    /// Reads the record that a report is about.
    ///
    /// # Errors
    /// When the ledger cannot be read, or is not the one that was audited.
    pub fn gather(ledger: &Path, report: Report) -> Result<Self, ExportError> {
        let reader = Reader::open(ledger)?;
        let contract = reader.contract()?;
        let not_audited = |expected: String, actual: String| ExportError::NotAudited {
            path: ledger.to_owned(),
            expected,
            actual,
        };
        if reader.num_entries() != report.num_entries {
            let count = |number: u64| format!("{number} entries");
            return Err(not_audited(count(report.num_entries), count(reader.num_entries())));
        }
        if report.contract != Some(contract.digest) {
            let expected = report.contract.map_or_else(|| "no contract".to_owned(), |it| it.to_string());
            return Err(not_audited(expected, contract.digest.to_string()));
        }
        if let Some(since) = &report.since {
            let expected = "everything".to_owned();
            return Err(not_audited(expected, format!("an audit that went on from {}", since.report)));
        }
        let mut pass = Pass::default();
        let mut frontier = Frontier::new();
        for row in reader.rows(0) {
            let (index, bytes) = row?;
            frontier.append(leaf_hash(&bytes));
            if let Some(head) = report.head.as_ref().filter(|head| head.size == frontier.size()) {
                let root = encode_hex(&frontier.root());
                if root != head.root {
                    return Err(not_audited(format!("root {}", head.root), format!("root {root}")));
                }
            }
            let entry = Entry::from_slice(&bytes).map_err(|source| ledger::reader::ReadError::Entry {
                path: ledger.to_owned(),
                index,
                source,
            })?;
            pass.see(&entry);
        }
        let manifest = contract.contract.data.manifest.digest;
        let manifest =
            manifest.ok_or_else(|| ExportError::Lacks { path: ledger.to_owned(), what: "data manifest" })?;
        let data: DataManifest = serde_json::from_slice(&reader.artifact(&manifest)?)?;
        let artifacts = reader.artifacts()?.into_iter().collect();
        let Pass { attempts, mut candidates, checkpoints, ended, frozen_us, selected, started_us } = pass;
        let selected = selection(&report, selected);
        for candidate in &mut candidates {
            candidate.selected = selected.as_ref() == Some(&candidate.candidate);
            if let Some(saved) = checkpoints.iter().find(|it| it.checkpoint == candidate.checkpoint) {
                candidate.path = Some(saved.path.clone());
                candidate.manifest = Some(saved.manifest);
            }
        }
        Ok(Self {
            artifacts,
            attempts: attempts.into_values().collect(),
            candidates,
            checkpoints,
            contract,
            data,
            ended,
            frozen_us,
            report,
            started_us,
            reader,
        })
    }

    /// The ledger, opened at the moment of [`Evidence::gather`].
    #[must_use]
    pub const fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The folder that paths in the record are relative to.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.reader.path().parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    /// Whether the audit accepted the run.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.report.verdict == Verdict::Accepted
    }

    /// Refuses a run that was not accepted.
    ///
    /// # Errors
    /// When the verdict is any other.
    pub fn require_accepted(&self, format: &'static str) -> Result<(), ExportError> {
        if self.is_accepted() {
            return Ok(());
        }
        let (path, verdict) = (self.path(), self.report.verdict_text());
        Err(ExportError::NotAccepted { path, verdict, format })
    }

    /// The candidate that the audit found to be selected.
    ///
    /// # Errors
    /// When there is none.
    pub fn require_selected(&self) -> Result<&SelectedCandidate, ExportError> {
        self.report.selected.as_ref().ok_or_else(|| self.lacks("selected candidate"))
    }

    /// Something that a format needs and the run does not have.
    pub(crate) fn lacks(&self, what: &'static str) -> ExportError {
        ExportError::Lacks { path: self.path(), what }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.reader.path().to_owned()
    }
}

/// Which candidate counts as selected. An audit that accepted knows it; of any
/// other run the record's last word is told.
fn selection(report: &Report, last: Option<CandidateId>) -> Option<CandidateId> {
    if report.verdict == Verdict::Accepted {
        return report.selected.as_ref().map(|selected| selected.candidate.clone());
    }
    last
}

/// What one pass over the entries collects. It grows with attempts and
/// checkpoints and not with steps.
#[derive(Debug, Default)]
struct Pass {
    attempts: BTreeMap<AttemptId, Attempt>,
    candidates: Vec<Candidate>,
    checkpoints: Vec<Checkpoint>,
    ended: Option<Ended>,
    frozen_us: u64,
    /// Of the last entry that selected one.
    selected: Option<CandidateId>,
    started_us: Option<u64>,
}

impl Pass {
    fn see(&mut self, entry: &Entry) {
        if let Body::AttemptStart(body) = &entry.body {
            self.attempts.entry(body.det.attempt).or_insert_with(|| Attempt {
                attempt: body.det.attempt,
                code: body.det.code.clone(),
                cost: None,
                ended_us: None,
                from_step: body.det.from_step,
                last_entry_us: entry.time_us,
                last_step: body.det.from_step,
                outcome: None,
                num_steps: 0,
                reason: None,
                resumed_from: body.det.resumed_from.clone(),
                ran: body.obs.clone(),
                start_reason: body.det.reason,
                started_us: entry.time_us,
            });
        }
        if let Some(attempt) = entry.header.attempt.and_then(|it| self.attempts.get_mut(&it)) {
            attempt.last_entry_us = entry.time_us;
            match &entry.body {
                Body::Step(_) => {
                    attempt.num_steps += 1;
                    attempt.last_step = entry.header.step.unwrap_or(attempt.last_step);
                }
                Body::AttemptEnd(body) => {
                    let AttemptEndDet { last_step, outcome, .. } = body.det;
                    attempt.cost = Some(body.obs.cost);
                    attempt.ended_us = Some(entry.time_us);
                    attempt.last_step = last_step;
                    attempt.outcome = Some(outcome);
                    attempt.reason = Some(body.obs.reason.clone());
                }
                _ => {}
            }
        }
        match &entry.body {
            Body::ContractFrozen(_) => self.frozen_us = entry.time_us,
            Body::RunStart(_) => self.started_us = self.started_us.or(Some(entry.time_us)),
            Body::RunEnd(body) => {
                self.ended = Some(Ended {
                    counters: body.det.counters,
                    last_step: body.det.last_step,
                    outcome: body.det.outcome,
                    reason: body.det.reason.clone(),
                    time_us: entry.time_us,
                });
            }
            Body::CheckpointDurablyCommitted(body) => {
                self.checkpoints.push(Checkpoint {
                    attempt: entry.header.attempt,
                    checkpoint: body.obs.checkpoint.clone(),
                    manifest: body.obs.manifest,
                    path: body.obs.path.clone(),
                    step: body.det.step,
                });
            }
            Body::CandidateAdmitted(body) => self.candidates.push(Candidate {
                attempt: entry.header.attempt,
                candidate: body.obs.candidate.clone(),
                checkpoint: body.obs.checkpoint.clone(),
                config: body.det.config,
                manifest: None,
                model: body.det.model,
                path: None,
                selected: false,
                step: body.det.step,
                value: body.det.value,
            }),
            Body::CandidateSelected(body) => {
                // A selection after a quarantine counts instead of the one before.
                self.selected = Some(body.obs.candidate.clone());
            }
            _ => {}
        }
    }
}

/// The name of an outcome in JSON.
pub(crate) const fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "completed",
        Outcome::Interrupted => "interrupted",
        Outcome::BudgetExhausted => "budget_exhausted",
        Outcome::FloorReached => "floor_reached",
        Outcome::Failed => "failed",
        Outcome::Refused => "refused",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::report;

    #[test]
    fn one_candidate_is_selected_and_the_audit_that_accepted_says_which() {
        let (first, second) = (CandidateId::from("candidate-1"), CandidateId::from("candidate-2"));
        let mut accepted = report("accepted", "passed", "note");
        assert_eq!(selection(&accepted, Some(first.clone())), None, "the report names none");
        accepted.selected = Some(SelectedCandidate {
            candidate: second.clone(),
            config: Digest::blake3([1; 32]),
            model: Digest::blake3([2; 32]),
            path: "checkpoints/2".to_owned(),
            step: 2,
            value: Float(1.5),
        });
        assert_eq!(selection(&accepted, Some(first.clone())), Some(second));
        let rejected = Report { verdict: Verdict::Rejected, ..accepted };
        assert_eq!(selection(&rejected, Some(first.clone())), Some(first));
        assert_eq!(selection(&rejected, None), None);
    }
}
