//! `/runs/{run}`: contract, status, charts, checkpoints, attempts, findings of
//! the stored report, and the integrity strip.

use std::sync::Arc;

use askama::Template;
use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use schemas::contract::Contract;
use schemas::report::HeadSource;
use schemas::trust::{Reach, TrustScope};

use super::{blocking, render};
use crate::chart;
use crate::series::Points;
use crate::source::{Library, SourceError};
use crate::stored_report::{self, Coverage, StoredReport};
use crate::summary::{Snapshot, Summary};

/// A chart with its drawing for readers without scripts.
struct Chart {
    prefix: &'static str,
    svg: String,
    title: &'static str,
}

#[derive(Template)]
#[template(path = "run.html")]
struct RunPage<'a> {
    charts: Vec<Chart>,
    contract: Option<&'a Contract>,
    contract_text: String,
    report: StoredReport,
    series: &'a [Points],
    status: String,
    summary: &'a Summary,
}

impl RunPage<'_> {
    fn head_source(source: HeadSource) -> &'static str {
        match source {
            HeadSource::Named => "a head file that the reviewer named",
            HeadSource::Beside => "the head file beside the ledger",
            HeadSource::Database => "the database alone",
        }
    }

    fn head_evidence(scope: &TrustScope) -> String {
        match scope.head_source {
            HeadSource::Database => "no head from outside the database".to_owned(),
            source => format!("{} over {} entries", Self::head_source(source), scope.head_size),
        }
    }

    fn reach(reach: Reach) -> &'static str {
        match reach {
            Reach::Shown => "yes",
            Reach::ShownUnlessHeadFileToo => "yes, unless the head file beside the ledger was changed too",
            Reach::NotShown => "no",
        }
    }

    fn num_not_finite(&self) -> u64 {
        self.series.iter().map(|points| points.num_not_finite).sum()
    }
}

/// Title and name prefix of each chart's curves.
const CHARTS: [(&str, &str); 4] = [
    ("Loss (nats per token)", "loss"),
    ("Learning rate", "learning_rate:"),
    ("Evaluation (bits per byte)", "eval:"),
    ("Gradient norm before clipping", "gradient_norm"),
];

fn charts(series: &[Points]) -> Vec<Chart> {
    let chart = |(title, prefix): (&'static str, &'static str)| {
        let curves: Vec<&Points> = series.iter().filter(|points| points.name.starts_with(prefix)).collect();
        Chart { prefix, svg: chart::svg(title, &curves), title }
    };
    CHARTS.into_iter().map(chart).filter(|chart| !chart.svg.is_empty()).collect()
}

fn load(library: &Library, run: &str) -> Result<(Arc<Snapshot>, StoredReport), SourceError> {
    let snapshot = library.find(run)?;
    let report = stored_report::read(&snapshot);
    Ok((snapshot, report))
}

/// The page, or its JSON twin where the name ends in `.json`.
pub(crate) async fn page(State(library): State<Arc<Library>>, Path(name): Path<String>) -> Response {
    let (run, as_json) = match name.strip_suffix(".json") {
        Some(run) => (run.to_owned(), true),
        None => (name, false),
    };
    let (snapshot, report) = match blocking(move || load(&library, &run)).await {
        Ok(loaded) => loaded,
        Err(response) => return response,
    };
    if as_json {
        let value = serde_json::json!({
            "contract": snapshot.contract,
            "report": report,
            "schema_version": 1,
            "status": snapshot.summary.status(),
            "summary": snapshot.summary,
        });
        return Json(value).into_response();
    }
    let contract_text = match &snapshot.contract {
        Some(contract) => serde_json::to_string_pretty(contract).unwrap_or_else(|error| error.to_string()),
        None => String::new(),
    };
    render(&RunPage {
        charts: charts(&snapshot.series),
        contract: snapshot.contract.as_ref(),
        contract_text,
        report,
        series: &snapshot.series,
        status: snapshot.summary.status(),
        summary: &snapshot.summary,
    })
}

/// `/runs/{run}/series.json`: every curve, for the charts.
pub(crate) async fn series(State(library): State<Arc<Library>>, Path(run): Path<String>) -> Response {
    match blocking(move || library.find(&run)).await {
        Ok(snapshot) => {
            Json(serde_json::json!({ "schema_version": 1, "series": snapshot.series })).into_response()
        }
        Err(response) => response,
    }
}
