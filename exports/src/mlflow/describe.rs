//! What an MLflow run says of an attempt beside its points: params from the
//! contract, tags, status; and what of the record MLflow has no place for.

use std::collections::BTreeMap;

use schemas::body::{Body, Kind, Outcome};
use schemas::entry::Entry;
use schemas::ids::AttemptId;
use serde_json::Value;

use super::points::{key_part, points};
use crate::text::name_of;
use crate::{Attempt, Evidence, ExportError};

/// What tags of this export begin with.
pub(super) const PREFIX: &str = "governed_ledger.";

/// Tag of the run; runs are found by it.
pub(super) const RUN_TAG: &str = "governed_ledger.run";

/// Tag of the attempt within the run.
pub(super) const ATTEMPT_TAG: &str = "governed_ledger.attempt";

/// Tag that says how far the points go: index of the first entry that is not
/// among them.
pub(super) const NEXT_ENTRY_TAG: &str = "governed_ledger.next_entry";

/// Tags that only the attempt which saved the selected candidate has.
const SELECTION_TAGS: [&str; 2] = ["governed_ledger.selected_candidate", "governed_ledger.selected_model"];

/// Value of such a tag where another candidate was selected since.
const SUPERSEDED: &str = "superseded";

/// Longest value of a param, in characters (`mlflow/utils/validation.py`).
pub(super) const MAX_PARAM_CHARS: usize = 6000;

/// Longest key, in characters.
const MAX_KEY_CHARS: usize = 250;

/// Longest value of a tag; some servers take 8000.
const MAX_TAG_CHARS: usize = 5000;

/// Text that people see of a run in MLflow.
const NOTE_TAG: &str = "mlflow.note.content";

/// Something of the record that MLflow has no place for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotHeld {
    /// How many of them.
    pub number: u64,
    /// What.
    pub what: String,
    /// Why not.
    pub why: &'static str,
}

/// Why MLflow cannot hold entries of a kind; none where a run, its status, a
/// param or a point says what matters of them.
const fn why_not(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::ContractFrozen
        | Kind::AttemptStart
        | Kind::AttemptEnd
        | Kind::Step
        | Kind::Eval
        | Kind::Diagnostic => {
            return None;
        }
        Kind::RunStart | Kind::RunEnd | Kind::SegmentStart => {
            "a run of MLflow is one process, and knows no whole of several"
        }
        Kind::CheckpointRequested
        | Kind::CheckpointStaged
        | Kind::CheckpointDurablyCommitted
        | Kind::CheckpointValidated
        | Kind::CheckpointFailed
        | Kind::CheckpointQuarantined
        | Kind::CheckpointRetired => "an artifact of MLflow has no stages, digests or retirement",
        Kind::CheckpointResumeQualified | Kind::ProbeStart | Kind::ProbeResult => {
            "there is no place for a comparison of two trajectories"
        }
        Kind::FaultInjected
        | Kind::FaultObserved
        | Kind::FaultRecovered
        | Kind::Anomaly
        | Kind::Intervention => "a run of MLflow has a status and no events",
        Kind::Heartbeat => "a run of MLflow has no sign of life",
        Kind::CandidateAdmitted | Kind::CandidateSelected | Kind::HandoffIssued => {
            "a registered model of MLflow has no family that it was chosen from; the selected one is a tag"
        }
        Kind::WitnessHead => "there is no place for a signature",
        Kind::Amendment => "nothing in MLflow amends another thing",
        Kind::Cost => "costs there belong to a run and not to whom they are charged",
        Kind::QualificationOpened | Kind::QualificationResult | Kind::QualificationVal => {
            "it is of a ledger of the qualifier"
        }
        Kind::CampaignFrozen | Kind::CampaignRun => "it is of a ledger of a campaign",
    })
}

/// Where an attempt's entries lie, and what MLflow lacks of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Extent {
    /// Index of its first entry.
    pub(super) first: u64,
    /// Index of its last entry.
    pub(super) last: u64,
    kinds: BTreeMap<&'static str, (u64, &'static str)>,
    num_odd_values: u64,
    num_state_digests: u64,
    num_steps: u64,
    num_worker_shares: u64,
}

impl Extent {
    fn see(&mut self, entry: &Entry) -> Result<(), ExportError> {
        self.last = entry.index;
        if let Some(why) = why_not(entry.body.kind()) {
            self.kinds.entry(entry.body.kind().name()).or_insert((0, why)).0 += 1;
        }
        if let Body::Step(body) = &entry.body {
            self.num_steps += 1;
            self.num_state_digests += body.det.state.as_ref().map_or(0, |state| state.len() as u64);
            self.num_worker_shares += body.obs.shares.len() as u64;
        }
        let is_odd = |value: f64| !value.is_finite() || (value == 0.0 && value.is_sign_negative());
        self.num_odd_values += points(entry)?.iter().filter(|point| is_odd(point.value)).count() as u64;
        Ok(())
    }

    fn not_held(&self) -> Vec<NotHeld> {
        let further = [
            (self.num_steps, "draws of steps", "positions, ids and inputs of examples are no numbers"),
            (self.num_state_digests, "state digests", "a metric is a number"),
            (self.num_worker_shares, "shares of workers", "a point has no worker"),
            (
                self.num_odd_values,
                "values that are not finite, or a negative zero",
                "the server keeps no infinity, one NaN and one zero",
            ),
        ];
        let kinds = self.kinds.iter().map(|(kind, (number, why))| (*number, format!("entries {kind}"), *why));
        let further = further.into_iter().map(|(number, what, why)| (number, what.to_owned(), why));
        let all = kinds.chain(further).filter(|(number, ..)| *number > 0);
        all.map(|(number, what, why)| NotHeld { number, what, why }).collect()
    }
}

/// Extents by attempt, those of entries without one, and how the run ended.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) attempts: BTreeMap<AttemptId, Extent>,
    rest: Extent,
}

impl Survey {
    /// One pass over the entries; it holds as much as there are attempts.
    pub(super) fn of(evidence: &Evidence) -> Result<Self, ExportError> {
        let mut survey = Self::default();
        for entry in evidence.reader().entries(0) {
            let entry = entry?;
            let extent = match entry.header.attempt {
                Some(attempt) => survey
                    .attempts
                    .entry(attempt)
                    .or_insert_with(|| Extent { first: entry.index, ..Extent::default() }),
                None => &mut survey.rest,
            };
            extent.see(&entry)?;
        }
        Ok(survey)
    }

    /// What MLflow has no place for, of the whole ledger.
    pub(super) fn not_held(&self, evidence: &Evidence) -> Vec<NotHeld> {
        let mut sums: BTreeMap<(String, &'static str), u64> = BTreeMap::new();
        for part in self.attempts.values().chain([&self.rest]).flat_map(Extent::not_held) {
            *sums.entry((part.what, part.why)).or_default() += part.number;
        }
        let mut all: Vec<NotHeld> =
            sums.into_iter().map(|((what, why), number)| NotHeld { number, what, why }).collect();
        let num_again: u64 = evidence
            .attempts
            .iter()
            .filter_map(|attempt| superseded(evidence, attempt))
            .map(|it| it.num_steps)
            .sum();
        let whole = [
            (
                num_again,
                "steps that a later attempt executed again",
                "runs of MLflow know nothing of each other; each is in both",
            ),
            (
                evidence.reader().num_entries(),
                "entries' bytes, hashes and signed heads",
                "whoever may write to the server may change everything on it",
            ),
        ];
        all.extend(whole.into_iter().filter(|(number, ..)| *number > 0).map(|(number, what, why)| NotHeld {
            number,
            what: what.to_owned(),
            why,
        }));
        all
    }
}

/// What a later attempt did of an attempt's steps once more.
struct Superseded {
    by: AttemptId,
    from_step: u64,
    num_steps: u64,
}

/// The first later attempt that went back behind this one's last step.
fn superseded(evidence: &Evidence, attempt: &Attempt) -> Option<Superseded> {
    let mut later = evidence.attempts.iter().filter(|other| other.attempt > attempt.attempt);
    let by = later.find(|other| other.from_step < attempt.last_step)?;
    let from_step = by.from_step.max(attempt.from_step);
    Some(Superseded { by: by.attempt, from_step, num_steps: attempt.last_step - from_step })
}

/// The contract as params: one a leaf, named by its JSON pointer without the
/// first slash. Text stands as it is, unless it reads as JSON; everything else
/// is its JSON. Leaves that are too long come back as what is not held.
pub(super) fn params(evidence: &Evidence) -> Result<(BTreeMap<String, String>, Vec<NotHeld>), ExportError> {
    let contract: Value = serde_json::from_slice(&evidence.contract.canonical)?;
    let mut leaves = BTreeMap::new();
    flatten("", &contract, &mut leaves);
    let mut not_held = Vec::new();
    leaves.retain(|key, value: &mut String| {
        let fits = key.chars().count() <= MAX_KEY_CHARS && value.chars().count() <= MAX_PARAM_CHARS;
        if !fits {
            let what = format!("param {}", key.chars().take(MAX_KEY_CHARS).collect::<String>());
            not_held.push(NotHeld { number: 1, what, why: "it is longer than MLflow takes" });
        }
        fits
    });
    Ok((leaves, not_held))
}

fn flatten(key: &str, value: &Value, leaves: &mut BTreeMap<String, String>) {
    let below =
        |part: &str| if key.is_empty() { key_part(part) } else { format!("{key}/{}", key_part(part)) };
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (name, value) in members {
                flatten(&below(name), value, leaves);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, value) in items.iter().enumerate() {
                flatten(&below(&index.to_string()), value, leaves);
            }
        }
        Value::String(text) if !text.is_empty() && serde_json::from_str::<Value>(text).is_err() => {
            leaves.insert(key.to_owned(), text.clone());
        }
        other => {
            leaves.insert(key.to_owned(), other.to_string());
        }
    }
}

/// MLflow's word for how an attempt ended. One that left no terminal entry was
/// interrupted, as the validator counts it; of a training that still runs this
/// is put right by the next export.
pub(super) const fn status(attempt: &Attempt) -> &'static str {
    match attempt.outcome {
        Some(Outcome::Completed) => "FINISHED",
        Some(Outcome::Interrupted) | None => "KILLED",
        Some(Outcome::BudgetExhausted | Outcome::FloorReached | Outcome::Failed | Outcome::Refused) => {
            "FAILED"
        }
    }
}

/// Tags that a run has from its first moment: by these it is found again.
pub(super) fn first_tags(
    evidence: &Evidence,
    attempt: &Attempt,
    extent: &Extent,
) -> BTreeMap<String, String> {
    BTreeMap::from([
        (RUN_TAG.to_owned(), evidence.contract.run.to_string()),
        (ATTEMPT_TAG.to_owned(), attempt.attempt.to_string()),
        (NEXT_ENTRY_TAG.to_owned(), extent.first.to_string()),
    ])
}

/// All tags of an attempt but how far its points go.
pub(super) fn tags(
    evidence: &Evidence,
    attempt: &Attempt,
    extent: &Extent,
    of_run: &[NotHeld],
) -> Result<BTreeMap<String, String>, ExportError> {
    let report = &evidence.report;
    let outcome = attempt.outcome.as_ref().map_or_else(|| Ok("no terminal entry".to_owned()), name_of)?;
    let mut tags: BTreeMap<String, String> = first_tags(evidence, attempt, extent);
    tags.remove(NEXT_ENTRY_TAG);
    let mut put = |name: &str, value: String| {
        if !value.is_empty() {
            tags.insert(format!("{PREFIX}{name}"), value.chars().take(MAX_TAG_CHARS).collect());
        }
    };
    put("format", "mlflow-export/1".to_owned());
    put("contract", evidence.contract.digest.to_string());
    put("verdict", report.verdict.name().to_owned());
    put("verdict_tool", report.tool.clone());
    put("ruleset", report.ruleset.clone());
    put("profile", name_of(&evidence.contract.contract.ruleset.profile)?);
    if let Some(head) = &report.head {
        put("head_origin", head.origin.clone());
        put("head_root", head.root.clone());
        put("head_size", head.size.to_string());
    }
    put("entries", format!("{}..{}", extent.first, extent.last));
    put("outcome", outcome.clone());
    put("outcome_reason", attempt.reason.clone().unwrap_or_default());
    put(
        "run_outcome",
        match &evidence.ended {
            Some(ended) => name_of(&ended.outcome)?,
            None => "not over".to_owned(),
        },
    );
    put("start_reason", name_of(&attempt.start_reason)?);
    put("from_step", attempt.from_step.to_string());
    put("last_step", attempt.last_step.to_string());
    put("code", attempt.code.digest.to_string());
    put("host", attempt.ran.host.to_string());
    if let Some(point) = &attempt.resumed_from {
        put("resumed_from", point.checkpoint.to_string());
    }
    if let Some(again) = superseded(evidence, attempt) {
        put(
            "executed_again",
            format!("steps {}..{} by attempt {}", again.from_step + 1, attempt.last_step, again.by),
        );
    }
    let selected = evidence.candidates.iter().find(|it| it.selected && it.attempt == Some(attempt.attempt));
    if let Some(candidate) = selected {
        put("selected_candidate", candidate.candidate.to_string());
        put("selected_model", candidate.model.to_string());
    }
    put("not_held", listed(&extent.not_held()));
    put("not_held_of_run", listed(of_run));
    let note = format!(
        "Attempt {} of the governed run {}, copied from its ledger. It ended: {outcome}. An audit of the ledger \
         said: {}. This page is a copy and no evidence: whoever may write to this server may change it. \
         The evidence is the ledger, and `ledger audit` checks it. The tags governed_ledger.not_held and \
         governed_ledger.not_held_of_run list what MLflow has no place for.",
        attempt.attempt,
        evidence.contract.run,
        report.verdict_text()
    );
    tags.insert(NOTE_TAG.to_owned(), note);
    Ok(tags)
}

/// Tags of a selection that the server holds and the record no longer says of
/// this attempt: a tag is not deleted, it gets a value that names no candidate.
pub(super) fn outdated(
    held: &BTreeMap<String, String>,
    tags: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let is_outdated =
        |key: &&str| !tags.contains_key(*key) && held.get(*key).is_some_and(|value| value != SUPERSEDED);
    let keys = SELECTION_TAGS.into_iter().filter(is_outdated);
    keys.map(|key| (key.to_owned(), SUPERSEDED.to_owned())).collect()
}

fn listed(all: &[NotHeld]) -> String {
    let lines: Vec<String> =
        all.iter().map(|part| format!("{} {}: {}", part.number, part.what, part.why)).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_document_becomes_one_param_a_leaf() {
        let mut leaves = BTreeMap::new();
        let document = json!({
            "a": {"b": [1, {"c": null}], "empty": {}, "x/y": 0.5},
            "text": "adamw", "like_json": "7", "nothing": ""
        });
        flatten("", &document, &mut leaves);
        let expected = [
            ("a/b/0", "1"),
            ("a/b/1/c", "null"),
            ("a/empty", "{}"),
            ("a/x:2fy", "0.5"),
            ("like_json", "\"7\""),
            ("nothing", "\"\""),
            ("text", "adamw"),
        ];
        assert_eq!(leaves, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn a_selection_that_no_longer_counts_is_superseded_once() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let [candidate, model] = SELECTION_TAGS;
        let held = map(&[(candidate, "candidate-1"), (model, "blake3:1"), ("governed_ledger.verdict", "x")]);
        let gone = outdated(&held, &map(&[]));
        assert_eq!(gone, map(&[(candidate, SUPERSEDED), (model, SUPERSEDED)]));
        assert_eq!(outdated(&gone, &map(&[])), map(&[]), "a second export sends nothing");
        let other = map(&[(candidate, "candidate-2"), (model, "blake3:2")]);
        assert_eq!(outdated(&held, &other), map(&[]), "the new values are sent instead");
        assert_eq!(outdated(&map(&[]), &map(&[])), map(&[]), "a run that had none gets none");
    }

    #[test]
    fn every_kind_is_held_or_has_a_reason_and_a_tag_has_room_for_all() {
        let all: Vec<NotHeld> = Kind::ALL
            .iter()
            .filter_map(|kind| Some((kind.name(), why_not(*kind)?)))
            .map(|(name, why)| NotHeld { number: 9_999_999, what: format!("entries {name}"), why })
            .collect();
        assert!(all.len() < Kind::ALL.len(), "steps are held");
        assert!(listed(&all).len() < MAX_TAG_CHARS, "{} of {MAX_TAG_CHARS}", listed(&all).len());
    }
}
