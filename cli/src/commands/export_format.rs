//! `ledger export --format`: what an audit says, in the format of another tool.
//!
//! The audit runs here and now, over everything; no report that was saved is
//! believed. What it said is on stderr, whatever the format says of it.

use std::path::{Path, PathBuf};

use exports::model_signing::{self, ModelKey};
use exports::{
    Document, Evidence, ExportError, in_toto, mlperf, openmetrics, ro_crate, slsa, write_documents,
};
use ledger::keys::KeyPair;
use schemas::report::Verdict;
use serde_json::json;
use validator::AuditRequest;

use super::audit::{audit, require_signer, validator_key};
use crate::arguments::ExportArguments;
use crate::export_arguments::ExportFormat;
use crate::failure::{Failure, OrFail};
use crate::key_folder;
use crate::output::{blake3_of, print, print_json, say};

pub(super) fn run(arguments: &ExportArguments, ledger: &Path, format: ExportFormat) -> Result<u8, Failure> {
    if format == ExportFormat::Mlflow {
        return super::export_mlflow::run(arguments, ledger);
    }
    let folder = target_folder(arguments, ledger, format)?;
    let evidence = gather(arguments, ledger)?;
    let documents = match format {
        ExportFormat::InToto => in_toto::documents(&evidence, &signer(arguments, &evidence)?),
        ExportFormat::ModelSigning => {
            // Before a key is asked for that would not be used.
            evidence.require_accepted("model-signing").map_err(refused)?;
            model_signing::documents(
                &evidence,
                &model_key(arguments, ledger)?,
                &signer(arguments, &evidence)?,
            )
        }
        ExportFormat::Mlperf => mlperf::documents(&evidence),
        // MLflow's has returned above; it makes no documents.
        ExportFormat::Openmetrics | ExportFormat::Mlflow => openmetrics::documents(&evidence),
        ExportFormat::RoCrate => ro_crate::documents(&evidence),
        ExportFormat::Slsa => slsa::documents(&evidence, &signer(arguments, &evidence)?),
    };
    let documents = documents.map_err(refused)?;
    let paths = write_documents(&folder, &documents).map_err(refused)?;
    show(&evidence, format, &documents, &paths, arguments.json)?;
    Ok(0)
}

/// Where the documents go. A research object describes the folder in which its
/// metadata lies, so that is the run's own.
fn target_folder(
    arguments: &ExportArguments,
    ledger: &Path,
    format: ExportFormat,
) -> Result<PathBuf, Failure> {
    let own = key_folder::folder_of(ledger);
    match (&arguments.output, format) {
        (None, ExportFormat::RoCrate) => Ok(own.to_owned()),
        (Some(named), ExportFormat::RoCrate) if !is_same(named, own) => Err(Failure::new(
            format!(
                "{} is not the run's folder, which {} describes",
                named.display(),
                ro_crate::METADATA_NAME
            ),
            format!("leave --output out, and copy {} as a whole", own.display()),
        )),
        (Some(named), _) => Ok(named.clone()),
        (None, _) => Err(Failure::new(
            "no folder is named",
            format!("ledger export {} --format {} --output DIR", ledger.display(), format.name()),
        )),
    }
}

fn is_same(left: &Path, right: &Path) -> bool {
    matches!((left.canonicalize(), right.canonicalize()), (Ok(left), Ok(right)) if left == right)
}

/// The key that signs models: no contract names it.
fn model_key(arguments: &ExportArguments, ledger: &Path) -> Result<ModelKey, Failure> {
    let path = arguments.other.model_key.clone().unwrap_or_else(|| {
        let folder = key_folder::locate(arguments.other.keys.as_deref(), key_folder::folder_of(ledger));
        folder.join(model_signing::KEY_FILE)
    });
    ModelKey::read(&path)
        .or_hint("name it with --model-key, or make one with `ledger keygen --model-signing`")
}

/// Audits the run and reads the record that was audited.
pub(super) fn gather(arguments: &ExportArguments, ledger: &Path) -> Result<Evidence, Failure> {
    let report = audit(&AuditRequest {
        ledger: ledger.to_owned(),
        head: arguments.other.head.clone(),
        trust: arguments.trust.clone(),
        val_numbers: arguments.other.val.clone(),
        cosigned: arguments.other.cosigned.clone(),
        // What is exported was looked at as a whole.
        since: None,
        threads: None,
    })?;
    say(format!("Audited {}: {}.", ledger.display(), report.verdict_text()));
    if report.verdict != Verdict::Accepted {
        say(format!("hint: ledger audit {} says why", ledger.display()));
    }
    Evidence::gather(ledger, report).map_err(refused)
}

/// The validator's key, which has to be the contract's.
fn signer(arguments: &ExportArguments, evidence: &Evidence) -> Result<KeyPair, Failure> {
    let signer = validator_key(arguments.other.keys.as_deref(), evidence.reader().path())?;
    let hint = "name the folder with the contract's keys with --keys";
    require_signer(&signer, &evidence.contract.contract, hint)?;
    Ok(signer)
}

/// What is wrong with the run or its files is a finding; what is wrong with the
/// place is not.
fn refused(error: ExportError) -> Failure {
    let hint = match &error {
        ExportError::NotAccepted { .. } => "`ledger audit` says what is wrong with the run",
        ExportError::Changed { .. } | ExportError::Content { .. } => {
            "restore the checkpoint's files and export again"
        }
        ExportError::NotAudited { .. } => "export when nothing else writes to the ledger",
        ExportError::Lacks { .. } => "`ledger audit` says what the run lacks",
        ExportError::Exists { .. } => {
            let hint = "where an earlier export was killed, remove what it left, and export again";
            return Failure::from(error).with_hint(hint);
        }
        _ => {
            let hint = "name a ledger that can be read, and a folder that can be written";
            return Failure::from(error).with_hint(hint);
        }
    };
    Failure::findings(error.to_string(), hint)
}

fn show(
    evidence: &Evidence,
    format: ExportFormat,
    documents: &[Document],
    paths: &[PathBuf],
    json: bool,
) -> Result<(), Failure> {
    if json {
        let report = &evidence.report;
        let files: Vec<_> = documents
            .iter()
            .zip(paths)
            .map(|(document, path)| json!({"digest": blake3_of(&document.bytes), "path": path}))
            .collect();
        return print_json(
            "export-format",
            json!({
                "files": files, "format": format.name(), "profile": report.profile,
                "run": evidence.contract.run, "verdict": report.verdict.name()
            }),
        );
    }
    for (document, path) in documents.iter().zip(paths) {
        print(format!("{}  {}", path.display(), blake3_of(&document.bytes)))?;
    }
    Ok(())
}
