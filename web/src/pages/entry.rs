//! `/runs/{run}/entries/{index}`: one entry, its exact bytes and leaf hash,
//! and the findings of the stored report that name it.

use std::sync::{Arc, PoisonError};

use askama::Template;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemas::digest::encode_hex;
use schemas::finding::Finding;

use super::{blocking, error_page, render};
use crate::source::{Library, SourceError};
use crate::stored_report::{self, StoredReport};

#[derive(Template)]
#[template(path = "entry.html")]
struct EntryPage {
    findings: Vec<Finding>,
    index: u64,
    kind: String,
    leaf: String,
    next: Option<u64>,
    num_bytes: usize,
    pretty: String,
    previous: Option<u64>,
    run: String,
}

struct Loaded {
    bytes: Vec<u8>,
    findings: Vec<Finding>,
    num_entries: u64,
}

fn load(library: &Library, run: &str, index: u64) -> Result<Option<Loaded>, SourceError> {
    let snapshot = library.find(run)?;
    let (bytes, num_entries) = {
        let reader = snapshot.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if index >= reader.num_entries() {
            return Ok(None);
        }
        let failed = |source| SourceError::Read { path: snapshot.path.clone(), source };
        (reader.entry_bytes(index).map_err(failed)?, reader.num_entries())
    };
    let findings = match stored_report::read(&snapshot) {
        StoredReport::Signed { report, .. } => {
            report.findings.into_iter().filter(|finding| finding.entry == Some(index)).collect()
        }
        StoredReport::Missing | StoredReport::Unusable { .. } => Vec::new(),
    };
    Ok(Some(Loaded { bytes, findings, num_entries }))
}

/// The page, or the entry's stored bytes where the name ends in `.json`.
pub(crate) async fn page(
    State(library): State<Arc<Library>>,
    Path((run, name)): Path<(String, String)>,
) -> Response {
    let (text, as_json) = match name.strip_suffix(".json") {
        Some(text) => (text, true),
        None => (name.as_str(), false),
    };
    let missing = || {
        let message = format!("There is no entry {name} in this ledger.");
        error_page(StatusCode::NOT_FOUND, message, "Indices are 0-based.")
    };
    let Ok(index) = text.parse::<u64>() else { return missing() };
    let wanted = run.clone();
    let loaded = match blocking(move || load(&library, &wanted, index)).await {
        Ok(Some(loaded)) => loaded,
        Ok(None) => return missing(),
        Err(response) => return response,
    };
    if as_json {
        // The stored bytes themselves: what the leaf hash covers.
        return ([(header::CONTENT_TYPE, "application/json")], loaded.bytes).into_response();
    }
    let value: Option<serde_json::Value> = serde_json::from_slice(&loaded.bytes).ok();
    let kind = value
        .as_ref()
        .and_then(|value| value.get("kind")?.as_str().map(str::to_owned))
        .unwrap_or_else(|| "not readable".to_owned());
    let pretty = match value.map(|value| serde_json::to_string_pretty(&value)) {
        Some(Ok(text)) => text,
        _ => String::from_utf8_lossy(&loaded.bytes).into_owned(),
    };
    render(&EntryPage {
        findings: loaded.findings,
        index,
        kind,
        leaf: encode_hex(&ledger::tree::leaf_hash(&loaded.bytes)),
        next: index.checked_add(1).filter(|next| *next < loaded.num_entries),
        num_bytes: loaded.bytes.len(),
        pretty,
        previous: index.checked_sub(1),
        run,
    })
}
