//! `/`: every served ledger, those that cannot be read included.

use std::sync::Arc;

use askama::Template;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use schemas::body::Kind;
use serde::Serialize;

use super::{blocking, render};
use crate::source::{Library, SourceError};
use crate::stored_report::{self, Coverage, StoredReport};

/// One line of the list.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RunLine {
    error: Option<String>,
    file: String,
    name: String,
    num_attempts: u64,
    num_entries: u64,
    run: Option<String>,
    started_us: Option<u64>,
    status: String,
    verdict: String,
}

#[derive(Template)]
#[template(path = "runs.html")]
struct RunsPage {
    lines: Vec<RunLine>,
}

fn lines(library: &Library) -> Result<Vec<RunLine>, SourceError> {
    let line = |path: std::path::PathBuf| match library.snapshot(&path) {
        Ok(snapshot) => {
            let verdict = match stored_report::read(&snapshot) {
                StoredReport::Missing => "no stored report".to_owned(),
                StoredReport::Unusable { .. } => "stored report is not usable".to_owned(),
                StoredReport::Signed { coverage, report } => {
                    let verdict = report.verdict_text();
                    match coverage {
                        Coverage::Whole => verdict,
                        Coverage::Older => format!("{verdict} (of an older state)"),
                        Coverage::Partial => format!("{verdict} (its head is not of every entry)"),
                    }
                }
            };
            let summary = &snapshot.summary;
            RunLine {
                error: None,
                file: summary.file.clone(),
                name: summary.name.clone(),
                num_attempts: summary.count(Kind::AttemptStart),
                num_entries: summary.num_entries,
                run: Some(summary.run.clone()),
                started_us: summary.started_us,
                status: summary.status(),
                verdict,
            }
        }
        Err(error) => RunLine {
            error: Some(error.to_string()),
            file: path.display().to_string(),
            name: String::new(),
            num_attempts: 0,
            num_entries: 0,
            run: None,
            started_us: None,
            status: "cannot be read".to_owned(),
            verdict: "none".to_owned(),
        },
    };
    Ok(library.files()?.into_iter().map(line).collect())
}

pub(crate) async fn html(State(library): State<Arc<Library>>) -> Response {
    match blocking(move || lines(&library)).await {
        Ok(lines) => render(&RunsPage { lines }),
        Err(response) => response,
    }
}

pub(crate) async fn json(State(library): State<Arc<Library>>) -> Response {
    match blocking(move || lines(&library)).await {
        Ok(lines) => Json(serde_json::json!({ "runs": lines, "schema_version": 1 })).into_response(),
        Err(response) => response,
    }
}
