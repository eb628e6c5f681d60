//! `/runs/{run}/entries`: the ledger itself, a page of entries at a time.

use std::sync::{Arc, PoisonError};

use askama::Template;
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::{blocking, render};
use crate::source::{Library, SourceError};

/// Entries on one page.
const PAGE_ENTRIES: usize = 100;

/// Where a page begins.
#[derive(Debug, Deserialize)]
pub(crate) struct From {
    #[serde(default)]
    from: u64,
}

/// One line of the list.
#[derive(Debug, Clone, Serialize)]
struct EntryLine {
    attempt: Option<u32>,
    index: u64,
    kind: String,
    step: Option<u64>,
    time_us: u64,
}

/// A page of the list.
#[derive(Serialize)]
struct EntryLines {
    entries: Vec<EntryLine>,
    from: u64,
    num_entries: u64,
    run: String,
    schema_version: u32,
}

#[derive(Template)]
#[template(path = "entries.html")]
struct EntriesPage {
    earlier: Option<u64>,
    later: Option<u64>,
    lines: EntryLines,
}

fn lines(library: &Library, run: &str, from: u64) -> Result<EntryLines, SourceError> {
    let snapshot = library.find(run)?;
    let reader = snapshot.reader.lock().unwrap_or_else(PoisonError::into_inner);
    let mut entries = Vec::with_capacity(PAGE_ENTRIES);
    for entry in reader.entries(from).take(PAGE_ENTRIES) {
        let entry = entry.map_err(|source| SourceError::Read { path: snapshot.path.clone(), source })?;
        entries.push(EntryLine {
            attempt: entry.header.attempt.map(|attempt| attempt.0),
            index: entry.index,
            kind: entry.body.kind().name().to_owned(),
            step: entry.header.step,
            time_us: entry.time_us,
        });
    }
    Ok(EntryLines {
        entries,
        from,
        num_entries: reader.num_entries(),
        run: run.to_owned(),
        schema_version: 1,
    })
}

pub(crate) async fn html(
    State(library): State<Arc<Library>>,
    Path(run): Path<String>,
    Query(From { from }): Query<From>,
) -> Response {
    match blocking(move || lines(&library, &run, from)).await {
        Ok(lines) => {
            let next = from.saturating_add(PAGE_ENTRIES as u64);
            let earlier = (from > 0).then(|| from.saturating_sub(PAGE_ENTRIES as u64));
            let later = (next < lines.num_entries).then_some(next);
            render(&EntriesPage { earlier, later, lines })
        }
        Err(response) => response,
    }
}

pub(crate) async fn json(
    State(library): State<Arc<Library>>,
    Path(run): Path<String>,
    Query(From { from }): Query<From>,
) -> Response {
    match blocking(move || lines(&library, &run, from)).await {
        Ok(lines) => Json(lines).into_response(),
        Err(response) => response,
    }
}
