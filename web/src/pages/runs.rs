//! `/`: every served ledger, those that cannot be read included.

use std::sync::Arc;

use askama::Template;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use schemas::body::Kind;
use serde::Serialize;

use super::{blocking, render};
use crate::campaign_report::{self, StoredCampaignReport};
use crate::source::{Library, SourceError};
use crate::stored_report::{self, Coverage, StoredReport};
use crate::summary::Snapshot;

/// One line of the list.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RunLine {
    /// Where the line leads: a run's page, or a campaign's.
    address: Option<String>,
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

const MISSING: &str = "no stored report";
const UNUSABLE: &str = "stored report is not usable";

fn run_verdict(snapshot: &Snapshot) -> String {
    match stored_report::read(snapshot) {
        StoredReport::Missing => MISSING.to_owned(),
        StoredReport::Unusable { .. } => UNUSABLE.to_owned(),
        StoredReport::Signed { coverage, report } => of_coverage(&report.verdict_text(), coverage),
    }
}

fn campaign_verdict(snapshot: &Snapshot) -> String {
    match campaign_report::read(snapshot) {
        StoredCampaignReport::Missing => MISSING.to_owned(),
        StoredCampaignReport::Unusable { .. } => UNUSABLE.to_owned(),
        StoredCampaignReport::Signed { coverage, report } => of_coverage(report.verdict.name(), coverage),
    }
}

fn of_coverage(verdict: &str, coverage: Coverage) -> String {
    match coverage {
        Coverage::Whole => verdict.to_owned(),
        Coverage::Older => format!("{verdict} (of an older state)"),
        Coverage::Partial => format!("{verdict} (its head is not of every entry)"),
    }
}

fn lines(library: &Library) -> Result<Vec<RunLine>, SourceError> {
    let line = |path: std::path::PathBuf| match library.snapshot(&path) {
        Ok(snapshot) => {
            let is_campaign = snapshot.campaign.is_some();
            let verdict = if is_campaign { campaign_verdict(&snapshot) } else { run_verdict(&snapshot) };
            let summary = &snapshot.summary;
            let folder = if is_campaign { "campaigns" } else { "runs" };
            RunLine {
                address: Some(format!("/{folder}/{}", summary.run)),
                error: None,
                file: summary.file.clone(),
                name: summary.name.clone(),
                num_attempts: summary.count(Kind::AttemptStart),
                num_entries: summary.num_entries,
                run: Some(summary.run.clone()),
                started_us: summary.started_us,
                status: if is_campaign { "campaign".to_owned() } else { summary.status() },
                verdict,
            }
        }
        Err(error) => RunLine {
            address: None,
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
