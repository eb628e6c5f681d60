//! The run's folder as a research object: `ro-crate-metadata.json` of RO-Crate
//! 1.1 under the profile Process Run Crate 0.5, with one `CreateAction` for
//! every process start, failed ones too, and one for the audit.
//!
//! Of any run. An attempt is completed only where its own terminal entry says
//! that the stopping rule was reached; the audit's action is completed only
//! where it accepts, so that a reader who counts failed actions counts a run
//! that was not accepted. The file is not signed, and says so.
//!
//! It describes the folder in which it lies: only files that are there are data
//! entities.

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::{AttemptReason, Outcome};
use schemas::model_index::MODEL_INDEX_NAME;
use serde_json::{Map, Value, json};

use crate::evidence::outcome_name;
use crate::text::name_of;
use crate::time::rfc3339_offset;
use crate::{Attempt, Document, Evidence, ExportError};

/// Name of the one document.
pub const METADATA_NAME: &str = "ro-crate-metadata.json";

/// The specification that it follows.
const SPECIFICATION: &str = "https://w3id.org/ro/crate/1.1";

/// Its terms.
const CONTEXT: &str = "https://w3id.org/ro/crate/1.1/context";

/// The profile that it follows.
const PROFILE: &str = "https://w3id.org/ro/wfrun/process/0.5";

/// Who executed the run: nobody is named, a key is.
const OPERATOR: &str = "#operator";

/// Who granted it.
const AUTHORITY: &str = "#authority";

/// Under which terms its data was used.
const TERMS: &str = "#terms";

/// What the audit said.
const VERDICT: &str = "#verdict";

/// Under which evidence profile it said so. A member of the verdict's own would
/// be no term of the context, which readers drop.
const EVIDENCE_PROFILE: &str = "#evidence-profile";

/// The metadata of the run's folder.
///
/// # Errors
/// When the document cannot be written as JSON.
pub fn documents(evidence: &Evidence) -> Result<Vec<Document>, ExportError> {
    let mut entities = Vec::new();
    let files = present_files(evidence);
    let folders = present_folders(evidence);
    let actions: Vec<String> = evidence.attempts.iter().map(action_id).chain([audit_id()]).collect();
    entities.push(json!({
        "@id": METADATA_NAME, "@type": "CreativeWork", "about": id("./"), "conformsTo": id(SPECIFICATION),
    }));
    let parts = files.keys().chain(&folders);
    entities.push(json!({
        "@id": "./",
        "@type": "Dataset",
        "author": id(AUTHORITY),
        "conformsTo": id(PROFILE),
        "datePublished": rfc3339_offset(last_time(evidence)),
        "description": description(evidence),
        "hasPart": ids(parts),
        "identifier": evidence.contract.run,
        "license": id(TERMS),
        "mentions": ids(&actions),
        "name": format!("Training run {} ({})", evidence.contract.contract.name, evidence.contract.run),
        "publisher": id(AUTHORITY),
    }));
    entities.push(json!({
        "@id": PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5",
    }));
    entities.extend(context_entities(evidence)?);
    entities.extend(files.into_values());
    entities.extend(folders.iter().map(|folder| folder_entity(evidence, folder)));
    entities.extend(programs(evidence));
    entities.extend(evidence.attempts.iter().map(|attempt| attempt_action(evidence, attempt, &folders)));
    entities.push(audit_action(evidence));
    let mut bytes = serde_json::to_vec_pretty(&json!({"@context": CONTEXT, "@graph": entities}))?;
    bytes.push(b'\n');
    Ok(vec![Document::new(METADATA_NAME, bytes)])
}

fn id(text: &str) -> Value {
    json!({"@id": text})
}

/// References; a single one is no list (RO-Crate 1.1, appendix "JSON-LD").
fn ids<'a>(texts: impl IntoIterator<Item = &'a String>) -> Value {
    let mut ids: Vec<Value> = texts.into_iter().map(|text| id(text)).collect();
    if ids.len() == 1 { ids.remove(0) } else { Value::Array(ids) }
}

fn description(evidence: &Evidence) -> String {
    let contract = &evidence.contract.contract;
    let head = evidence.report.head.as_ref().map_or_else(
        || "no signed head verified".to_owned(),
        |head| format!("signed head over {} entries, root {}", head.size, head.root),
    );
    format!(
        "{} Verdict of the audit when this file was written: {}; {head}. This file is not signed: `ledger audit` \
         says what the record shows. Not claimed: {}",
        contract.purpose.statement,
        evidence.report.verdict_text(),
        contract.nonclaims.join(" ")
    )
}

/// The last time on record that the attempts or the run's end have; the clock is
/// not asked, so that the same record gives the same bytes.
fn last_time(evidence: &Evidence) -> u64 {
    let times = evidence.attempts.iter().map(|attempt| attempt.last_entry_us);
    let times = times.chain(evidence.started_us).chain(evidence.ended.as_ref().map(|ended| ended.time_us));
    times.max().unwrap_or(evidence.frozen_us)
}

/// People, terms, and the verdict with its profile.
fn context_entities(evidence: &Evidence) -> Result<Vec<Value>, ExportError> {
    let contract = &evidence.contract.contract;
    let authority = &contract.purpose.authority;
    Ok(vec![
        json!({
            "@id": AUTHORITY, "@type": "Organization", "name": authority.granted_by,
            "description": format!("Granted the run. Scope: {}", authority.scope),
        }),
        json!({
            "@id": OPERATOR, "@type": "Organization",
            "name": format!("Holder of trainer key {}", contract.keys.trainer.public),
            "description": "Whoever executed the run; the record names a key and no person.",
        }),
        json!({
            "@id": TERMS, "@type": "CreativeWork", "name": "Terms of the data lease",
            "description": contract.data.terms,
        }),
        json!({
            "@id": VERDICT, "@type": "PropertyValue", "name": "verdict",
            "value": evidence.report.verdict.name(), "valueReference": id(EVIDENCE_PROFILE),
        }),
        json!({
            "@id": EVIDENCE_PROFILE, "@type": "PropertyValue", "name": "profile",
            "value": name_of(&contract.ruleset.profile)?,
        }),
    ])
}

/// Files of the record that are in the folder, by their identifiers.
fn present_files(evidence: &Evidence) -> BTreeMap<String, Value> {
    let contract = &evidence.contract.contract;
    let ledger = evidence.reader().path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut named: Vec<(String, &str, String, Option<String>)> = vec![
        (ledger.clone(), "application/vnd.sqlite3", "Ledger: every entry of the run".to_owned(), None),
        (format!("{ledger}.head"), "text/plain", "Signed tree heads of the ledger".to_owned(), None),
        (format!("{ledger}.report.dsse.json"), "application/json", "Signed audit report".to_owned(), None),
        (
            format!("{ledger}.handoff.dsse.json"),
            "application/json",
            "Handoff of the candidate".to_owned(),
            None,
        ),
        (format!("{ledger}.val.dsse.json"), "application/json", "Evaluator's val numbers".to_owned(), None),
    ];
    let bound = [
        (&contract.data.manifest, "application/json", "Manifest of the data"),
        (&contract.data.train_examples, "application/octet-stream", "Examples of the train split"),
        (&contract.data.val_examples, "application/octet-stream", "Examples of the val split"),
        (&contract.parameters, "application/json", "Manifest of parameters"),
        (&contract.update.card, "application/json", "Optimizer policy card"),
        (&contract.qualification.sealed, "application/octet-stream", "Sealed qualification set"),
    ];
    for (binding, encoding, name) in bound {
        let digest = binding.digest.map(|digest| digest.to_string());
        named.push((binding.path.clone(), encoding, name.to_owned(), digest));
    }
    let data_folder = contract.data.manifest.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    for shard in &evidence.data.shards {
        let path =
            if data_folder.is_empty() { shard.path.clone() } else { format!("{data_folder}/{}", shard.path) };
        let name = format!("Shard of the {} split, from {}", shard.split.name(), shard.source);
        named.push((path, "text/plain", name, Some(shard.digest.to_string())));
    }
    for candidate in &evidence.candidates {
        let Some(folder) = &candidate.path else { continue };
        let model =
            [("model.safetensors", "application/octet-stream"), (MODEL_INDEX_NAME, "application/json")];
        for (file, encoding) in model {
            let name = format!("Weights of {}", candidate.candidate);
            named.push((format!("{folder}/{file}"), encoding, name, Some(candidate.model.to_string())));
        }
        let name = format!("Configuration of {}", candidate.candidate);
        let config = format!("{folder}/config.json");
        named.push((config, "application/json", name, Some(candidate.config.to_string())));
    }
    let mut files = BTreeMap::new();
    for (path, encoding, name, digest) in named {
        let Ok(metadata) = std::fs::metadata(evidence.folder().join(&path)) else { continue };
        if !metadata.is_file() {
            continue;
        }
        let mut file = Map::new();
        file.insert("@id".to_owned(), encode_path(&path).into());
        file.insert("@type".to_owned(), "File".into());
        file.insert("contentSize".to_owned(), metadata.len().to_string().into());
        file.insert("encodingFormat".to_owned(), encoding.into());
        file.insert("name".to_owned(), name.into());
        if let Some(digest) = digest {
            file.insert("identifier".to_owned(), digest.into());
        }
        files.insert(encode_path(&path), Value::Object(file));
    }
    files
}

/// Identifiers of the checkpoints' folders that are there.
fn present_folders(evidence: &Evidence) -> BTreeSet<String> {
    let paths = evidence.checkpoints.iter().map(|checkpoint| &checkpoint.path);
    paths.filter(|path| evidence.folder().join(path).is_dir()).map(|path| folder_id(path)).collect()
}

fn folder_id(path: &str) -> String {
    format!("{}/", encode_path(path))
}

fn folder_entity(evidence: &Evidence, folder: &str) -> Value {
    let checkpoint = evidence.checkpoints.iter().find(|checkpoint| folder_id(&checkpoint.path) == folder);
    let candidate = checkpoint
        .and_then(|checkpoint| evidence.candidates.iter().find(|it| it.checkpoint == checkpoint.checkpoint));
    let what = match candidate {
        Some(candidate) if candidate.selected => " The selected candidate.",
        Some(_) => " A candidate that was not selected.",
        None => "",
    };
    let (name, manifest) = checkpoint.map_or_else(Default::default, |checkpoint| {
        (checkpoint.checkpoint.to_string(), checkpoint.manifest.to_string())
    });
    let step = checkpoint.map_or(0, |checkpoint| checkpoint.step);
    json!({
        "@id": folder, "@type": "Dataset", "identifier": manifest, "name": format!("Checkpoint {name}"),
        "description": format!(
            "Training state after {step} updates; the identifier is the BLAKE3 digest of its manifest.json.{what}"
        ),
    })
}

fn program_id(attempt: &Attempt) -> String {
    let code = &attempt.code;
    format!("https://governed-ledger.invalid/program/{}/{}/{}", code.package, code.version, code.digest.hex())
}

fn auditor_id(evidence: &Evidence) -> String {
    format!(
        "https://governed-ledger.invalid/program/{}",
        encode_path(&evidence.report.tool.replace(' ', "/"))
    )
}

/// Every program that ran, once.
fn programs(evidence: &Evidence) -> Vec<Value> {
    let mut programs = BTreeMap::new();
    for attempt in &evidence.attempts {
        let (id, code) = (program_id(attempt), &attempt.code);
        let program = json!({
            "@id": id, "@type": "SoftwareApplication", "identifier": code.digest,
            "name": code.package, "softwareVersion": code.version, "url": id,
        });
        programs.insert(id, program);
    }
    let id = auditor_id(evidence);
    let (name, version) = evidence.report.tool.split_once(' ').unwrap_or((&evidence.report.tool, ""));
    let program = json!({
        "@id": id, "@type": "SoftwareApplication", "name": name, "softwareVersion": version, "url": id,
    });
    programs.insert(id, program);
    programs.into_values().collect()
}

fn action_id(attempt: &Attempt) -> String {
    format!("#attempt-{}", attempt.attempt)
}

fn audit_id() -> String {
    "#audit".to_owned()
}

/// One process lifetime.
fn attempt_action(evidence: &Evidence, attempt: &Attempt, folders: &BTreeSet<String>) -> Value {
    let mut action = Map::new();
    let mut set = |name: &str, value: Value| {
        action.insert(name.to_owned(), value);
    };
    set("@id", action_id(attempt).into());
    set("@type", "CreateAction".into());
    set("agent", id(OPERATOR));
    set("description", attempt_text(attempt).into());
    set("instrument", id(&program_id(attempt)));
    set("name", format!("Attempt {} of {}", attempt.attempt, evidence.contract.run).into());
    set("startTime", rfc3339_offset(attempt.started_us).into());
    if let Some(time_us) = attempt.ended_us {
        set("endTime", rfc3339_offset(time_us).into());
    }
    let resumed = attempt.resumed_from.as_ref().and_then(|from| {
        let checkpoint = evidence.checkpoints.iter().find(|it| it.checkpoint == from.checkpoint)?;
        Some(folder_id(&checkpoint.path)).filter(|folder| folders.contains(folder))
    });
    if let Some(folder) = resumed {
        set("object", id(&folder));
    }
    let made = evidence.checkpoints.iter().filter(|it| it.attempt == Some(attempt.attempt));
    let made: BTreeSet<String> =
        made.map(|it| folder_id(&it.path)).filter(|folder| folders.contains(folder)).collect();
    if !made.is_empty() {
        set("result", ids(&made));
    }
    let failure = match attempt.outcome {
        Some(Outcome::Completed) => None,
        Some(outcome) => {
            Some(format!("{}: {}", outcome_name(outcome), attempt.reason.as_deref().unwrap_or_default()))
        }
        None => Some("incomplete: it left no terminal entry".to_owned()),
    };
    set_status(&mut action, failure);
    Value::Object(action)
}

fn attempt_text(attempt: &Attempt) -> String {
    let from = match attempt.start_reason {
        AttemptReason::Start => "Started from the initial state",
        AttemptReason::Resume => "Resumed from a checkpoint",
        AttemptReason::Restart => "Started again from the initial state",
    };
    format!(
        "{from} at step {} and recorded {} updates, up to step {}.",
        attempt.from_step, attempt.num_steps, attempt.last_step
    )
}

/// The audit that this file repeats, as an action that fails where it does not
/// accept.
fn audit_action(evidence: &Evidence) -> Value {
    let mut action = Map::new();
    let ledger = evidence.reader().path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let report = &evidence.report;
    let mut set = |name: &str, value: Value| {
        action.insert(name.to_owned(), value);
    };
    set("@id", audit_id().into());
    set("@type", "CreateAction".into());
    set("agent", id(AUTHORITY));
    set(
        "description",
        format!(
            "Audit of {} entries under {} rules of edition {}, {} findings. Whoever exported this file ran it.",
            report.num_entries,
            report.rules.len(),
            report.ruleset,
            report.findings.len()
        )
        .into(),
    );
    set("instrument", id(&auditor_id(evidence)));
    set("name", format!("Audit of {}", evidence.contract.run).into());
    set("object", id(&encode_path(&ledger)));
    set("result", id(VERDICT));
    let failure = (!evidence.is_accepted()).then(|| format!("verdict: {}", report.verdict_text()));
    set_status(&mut action, failure);
    Value::Object(action)
}

fn set_status(action: &mut Map<String, Value>, failure: Option<String>) {
    let status = if failure.is_none() { "CompletedActionStatus" } else { "FailedActionStatus" };
    action.insert("actionStatus".to_owned(), format!("http://schema.org/{status}").into());
    if let Some(failure) = failure {
        action.insert("error".to_owned(), failure.into());
    }
}

/// A relative path as a URI reference (RFC 3986, section 3.3).
fn encode_path(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(byte.into());
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_uri_references() {
        assert_eq!(encode_path("data/a b.txt"), "data/a%20b.txt");
        assert_eq!(encode_path("100%/\u{e9}"), "100%25/%C3%A9");
    }

    #[test]
    fn only_a_failed_action_says_an_error() {
        let mut action = Map::new();
        set_status(&mut action, None);
        assert_eq!(action["actionStatus"], "http://schema.org/CompletedActionStatus");
        assert!(!action.contains_key("error"));
        set_status(&mut action, Some("incomplete".to_owned()));
        assert_eq!(action["actionStatus"], "http://schema.org/FailedActionStatus");
        assert_eq!(action["error"], "incomplete");
    }
}
