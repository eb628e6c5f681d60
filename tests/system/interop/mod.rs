//! Exports, each shown to the tool of the ecosystem that it is for, with what
//! that tool has to refuse.

mod attestations;
mod crates;
mod models;

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use system_tests::programs::Finished;
use system_tests::run_folder::{RunFolder, flip_byte};

/// `ledger export run.db --format FORMAT --output FOLDER`.
#[track_caller]
fn export(run: &RunFolder, format: &str, folder: &str) -> Finished {
    run.ledger_command("export", &["--format", format, "--output", folder])
}

/// The statement in an envelope, not verified.
#[track_caller]
fn statement(path: &Path) -> Value {
    let envelope: Value = serde_json::from_slice(&std::fs::read(path).expect("the envelope")).expect("JSON");
    let payload = STANDARD.decode(envelope["payload"].as_str().expect("a payload")).expect("base64");
    serde_json::from_slice(&payload).expect("the payload is JSON")
}

/// Replaces words of the signed statement, and leaves the signature.
#[track_caller]
fn replace_in_statement(path: &Path, from: &str, to: &str) {
    let mut envelope: Value =
        serde_json::from_slice(&std::fs::read(path).expect("the envelope")).expect("JSON");
    let payload = STANDARD.decode(envelope["payload"].as_str().expect("a payload")).expect("base64");
    let text = String::from_utf8(payload).expect("text");
    assert!(text.contains(from), "the statement does not say {from:?}");
    envelope["payload"] = STANDARD.encode(text.replace(from, to)).into();
    std::fs::write(path, envelope.to_string()).expect("written");
}

/// Path of the selected candidate's folder, relative to the run's.
#[track_caller]
fn candidate(run: &RunFolder) -> String {
    let report = run.report();
    report["selected"]["path"].as_str().expect("a candidate was selected").to_owned()
}

/// A run of which a weight was changed after it was trained.
#[track_caller]
fn tampered(run: &RunFolder) -> RunFolder {
    let copy = run.copy();
    let model = copy.path().join(candidate(run)).join("model.safetensors");
    let size = std::fs::metadata(&model).expect("the weights").len();
    flip_byte(&model, usize::try_from(size).expect("a small file") - 5);
    copy
}
