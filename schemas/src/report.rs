//! The audit report: verdict, route, denominators, rules, findings.

use serde::{Deserialize, Serialize};

use crate::contract::EvidenceProfile;
use crate::digest::Digest;
use crate::finding::Finding;
use crate::ids::{CandidateId, RunId};
use crate::number::Float;
use crate::present::{not_empty, present};
use crate::trust::TrustScope;

/// The validator's word on a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every rule of the edition and profile ran and found nothing wrong.
    Accepted,
    /// A rule is broken.
    Rejected,
    /// Bytes are not what was committed to.
    Tampered,
    /// The run is not over, or a part of its record is missing.
    Incomplete,
    /// A rule could not run.
    NotEvaluated,
}

impl Verdict {
    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Tampered => "tampered",
            Self::Incomplete => "incomplete",
            Self::NotEvaluated => "not_evaluated",
        }
    }

    /// Exit code of `ledger audit`; 2 is for an audit that could not run.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Accepted => 0,
            Self::Rejected => 1,
            Self::Tampered => 3,
            Self::Incomplete | Self::NotEvaluated => 4,
        }
    }
}

/// The first gate that fails, in this order; `AcceptHandoff` when none does and
/// there is a candidate to hand off, else `RequestQualification`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each name is the gate's own sentence")]
pub enum Route {
    RejectIdentity,
    RejectFrozenInputs,
    RejectTopology,
    RejectNumerics,
    RequestStateInventory,
    RejectTornCheckpoint,
    RejectResumeDrift,
    RejectSelectionLeakage,
    RequestQualification,
    AcceptHandoff,
}

/// What became of one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RuleStatus {
    /// It ran and found nothing wrong.
    Passed,
    /// It ran and found an error.
    Failed,
    /// It could not run; the reason says what it lacked.
    NotEvaluated,
    /// The contract has nothing for it to check; the reason says what.
    NotApplicable,
}

/// One rule of the edition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RuleResult {
    /// Stable code.
    pub code: String,
    /// Things that it looked at; 0 shows a rule that checked nothing.
    pub num_checked: u64,
    /// Why it did not run; null where it did.
    pub reason: Option<String>,
    /// Kebab-case name.
    pub rule: String,
    /// What became of it.
    pub status: RuleStatus,
}

/// Where the head came from that the entries were checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HeadSource {
    /// A head file that the reviewer named.
    Named,
    /// The head file beside the ledger.
    Beside,
    /// Only the database's own table.
    Database,
}

/// The newest head that the entries were checked against.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HeadSeen {
    /// Origin line of the note.
    pub origin: String,
    /// Root hash, 64 hex digits.
    pub root: String,
    /// Tree size.
    pub size: u64,
    /// Where it came from.
    pub source: HeadSource,
}

/// Counts that are kept apart. All are derived by the validator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Denominators {
    /// Process starts.
    pub attempted: u64,
    /// Candidates admitted.
    pub candidates: u64,
    /// Checkpoints durably committed.
    pub checkpoints: u64,
    /// Attempts that ended because the stopping rule was reached.
    pub completed: u64,
    /// Attempts that ended with an error, floor, budget or refusal.
    pub failed: u64,
    /// Attempts that a signal ended, or that left no terminal entry.
    pub interrupted: u64,
    /// Qualification results.
    pub qualified: u64,
    /// Attempts that went on from an earlier one.
    pub recovered: u64,
    /// Releases. Nothing here releases, so this is 0.
    pub released: u64,
    /// Candidates selected.
    pub selected: u64,
    /// Updates executed over all attempts.
    pub steps_executed: u64,
    /// Updates of the logical run.
    pub steps_logical: u64,
}

/// Whose numbers the selection rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SelectionBasis {
    /// The evaluator recomputed every candidate.
    Evaluator,
    /// The trainer's own.
    Trainer,
    /// Nothing was selected.
    None,
}

/// The selected candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SelectedCandidate {
    /// Which candidate.
    pub candidate: CandidateId,
    /// BLAKE3 of `config.json`.
    pub config: Digest,
    /// BLAKE3 of the weights file.
    pub model: Digest,
    /// Its checkpoint's folder, relative to the ledger's folder.
    pub path: String,
    /// Step of its checkpoint.
    pub step: u64,
    /// Value of the selection stream.
    pub value: Float,
}

/// Whether roles could be different people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Independence {
    /// Why.
    pub reason: String,
    /// `not established` where keys were made on one host or are equal;
    /// `declared` where hosts differ, which an operator could still forge.
    pub status: String,
}

/// The earlier audit that this one went on from. On the entries that it saw,
/// work was left out whose result follows from them and the frozen inputs alone,
/// of rules that found nothing then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AuditedBefore {
    /// BLAKE3 of the signed report as it lies in its file.
    pub report: Digest,
    /// Root hash of the entries that it saw, 64 hex digits.
    pub root: String,
    /// How many these are.
    pub size: u64,
}

/// What a rule shows less of under an evidence profile than under `native`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NotPromised {
    /// Code of the rule.
    pub code: String,
    /// Whether it was evaluated all the same, and shows less.
    pub evaluated: bool,
    /// Name of the rule.
    pub rule: String,
    /// What is not promised, and why.
    pub why: String,
}

/// An audit report. Beside the ledger, never in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// SHA-256 of the contract; null where it could not be read.
    pub contract: Option<Digest>,
    /// Derived counts.
    pub denominators: Denominators,
    /// All findings, in the order of entries.
    pub findings: Vec<Finding>,
    /// [`crate::REPORT_FORMAT`].
    pub format: String,
    /// The head that was seen; null where none verified.
    pub head: Option<HeadSeen>,
    /// Whether roles could be different people.
    pub independence: Independence,
    /// What the run does not show, from the contract, and what no audit of
    /// this kind shows.
    pub nonclaims: Vec<String>,
    /// What the evidence profile does not promise, rule by rule; left out under
    /// `native`, which promises all of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "not_empty")]
    pub not_promised: Vec<NotPromised>,
    /// Entries that were read.
    pub num_entries: u64,
    /// Evidence profile of the contract.
    pub profile: Option<EvidenceProfile>,
    /// Digest of the run's determined half: equal for an exact replay. BLAKE3
    /// as `docs/FORMAT.md` ("Projection") says; null where it is not complete.
    pub projection: Option<Digest>,
    /// First gate that fails.
    pub route: Route,
    /// Every rule of the edition.
    pub rules: Vec<RuleResult>,
    /// Edition of the rules.
    pub ruleset: String,
    /// The run; null where it could not be read.
    pub run: Option<RunId>,
    /// The selected candidate, where there is one.
    pub selected: Option<SelectedCandidate>,
    /// Whose numbers the selection rests on.
    pub selection_basis: SelectionBasis,
    /// The earlier audit that this one went on from; left out of one that looked
    /// at everything.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[cfg_attr(feature = "json-schema", schemars(with = "AuditedBefore"))]
    pub since: Option<AuditedBefore>,
    /// Whether the contract's quality target was met; null without one.
    pub target_met: Option<bool>,
    /// Program and version.
    pub tool: String,
    /// What this audit could have shown of each class of adversary; reports
    /// that were saved before it existed lack it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[cfg_attr(feature = "json-schema", schemars(with = "TrustScope"))]
    pub trust: Option<TrustScope>,
    /// The word.
    pub verdict: Verdict,
}

impl Report {
    /// The verdict as people read it: with the evidence profile, where that is
    /// not `native`, so that nobody takes the one for the other.
    #[must_use]
    pub fn verdict_text(&self) -> String {
        match self.profile {
            Some(EvidenceProfile::ExternalLoop) => format!("{} (external-loop)", self.verdict.name()),
            Some(EvidenceProfile::Native) | None => self.verdict.name().to_owned(),
        }
    }
}
