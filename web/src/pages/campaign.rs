//! `/campaigns/{campaign}`: what was preregistered, the runs that are bound, and
//! what the stored report says of each claim.

use std::sync::{Arc, PoisonError};

use askama::Template;
use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use ledger::campaign::{CampaignState, read_campaign};
use schemas::campaign::RunPurpose;
use serde::Serialize;

use super::{blocking, render};
use crate::campaign_report::{self, StoredCampaignReport};
use crate::source::{Library, SourceError};
use crate::stored_report::Coverage;
use crate::summary::{Snapshot, Summary};

/// A bound run as the ledger says.
#[derive(Debug, Clone, Serialize)]
struct Line {
    arm: String,
    entry: u64,
    late: Option<String>,
    num_entries: u64,
    path: String,
    purpose: &'static str,
    rescue_level: u32,
    run: String,
    seed: u64,
    trial: u32,
}

#[derive(Template)]
#[template(path = "campaign.html")]
struct CampaignPage<'a> {
    lines: Vec<Line>,
    num_missing: usize,
    report: StoredCampaignReport,
    state: &'a CampaignState,
    summary: &'a Summary,
    text: String,
}

const fn purpose_name(purpose: RunPurpose) -> &'static str {
    match purpose {
        RunPurpose::Tuning => "tuning",
        RunPurpose::Confirmation => "confirmation",
        RunPurpose::PositiveControl => "positive control",
    }
}

fn lines(state: &CampaignState) -> Vec<Line> {
    let line = |run: &ledger::campaign::BoundRun| Line {
        arm: run.det.arm.clone(),
        entry: run.first_entry,
        late: run.late.clone(),
        num_entries: run.head.size,
        path: run.path.clone(),
        purpose: purpose_name(run.det.purpose),
        rescue_level: run.det.rescue_level,
        run: run.det.run.to_string(),
        seed: run.det.seed.0,
        trial: run.det.trial,
    };
    state.runs.iter().map(line).collect()
}

type Loaded = (Arc<Snapshot>, CampaignState, StoredCampaignReport);

fn load(library: &Library, campaign: &str) -> Result<Loaded, SourceError> {
    let snapshot = library.find(campaign)?;
    let state = {
        let reader = snapshot.reader.lock().unwrap_or_else(PoisonError::into_inner);
        read_campaign(&reader)
    };
    let state = state
        .map_err(|error| SourceError::Campaign { path: snapshot.path.clone(), reason: error.to_string() })?;
    let report = campaign_report::read(&snapshot);
    Ok((snapshot, state, report))
}

/// The page, or its JSON twin where the name ends in `.json`.
pub(crate) async fn page(State(library): State<Arc<Library>>, Path(name): Path<String>) -> Response {
    let (campaign, as_json) = match name.strip_suffix(".json") {
        Some(campaign) => (campaign.to_owned(), true),
        None => (name, false),
    };
    let (snapshot, state, report) = match blocking(move || load(&library, &campaign)).await {
        Ok(loaded) => loaded,
        Err(response) => return response,
    };
    let (lines, preregistration) = (lines(&state), &state.contract.preregistration);
    if as_json {
        let value = serde_json::json!({
            "campaign": state.contract.campaign,
            "preregistration": preregistration,
            "report": report,
            "runs": lines,
            "schema_version": 1,
        });
        return Json(value).into_response();
    }
    let text = serde_json::to_string_pretty(preregistration).unwrap_or_else(|error| error.to_string());
    let num_missing = state.missing_confirmations().len();
    render(&CampaignPage { lines, num_missing, report, state: &state, summary: &snapshot.summary, text })
}
