//! MLflow: one run an attempt, on a tracking server that the user names.
//!
//! Failed and interrupted attempts are runs too. What is there is found by tags,
//! so that a second export changes nothing and one that broke off goes on: a
//! request with points carries the tag that says how far they go, which the
//! server stores last, and what was under way when the other end fell silent is
//! looked up before it is sent again. A server that stores such a request only
//! after that look-up has its points twice ([`MlflowError::may_still_be_stored`]):
//! MLflow keeps equal points apart and has no request that would be taken once.
//! Nothing is deleted and no param is changed;
//! where the server holds something else than the record, the export ends.
//!
//! What MLflow has no place for is in tags of each run and in the answer
//! ([`MlflowExport::not_held`]): a copy that does not say what it lacks would be
//! taken for the whole. A verdict is a tag; no status of MLflow means `accepted`.

mod client;
mod describe;
mod points;

use std::collections::{BTreeMap, BTreeSet};

use schemas::ids::AttemptId;

use crate::{Attempt, Evidence, ExportError};
use client::{Client, KnownRun};
use describe::{ATTEMPT_TAG, Extent, NEXT_ENTRY_TAG, RUN_TAG, Survey};
use points::{Point, points};

pub use describe::NotHeld;

/// Most points of one request: the server takes 1000 things, one of which is
/// the tag.
const POINTS_PER_REQUEST: usize = 999;

/// Most params of one request, and most tags.
const PAIRS_PER_REQUEST: usize = 100;

/// Most characters of params in one request, so that it stays below the
/// server's million bytes whatever the characters are.
const PARAM_CHARS_PER_REQUEST: usize = 200_000;

/// Where an export goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MlflowTarget {
    /// Name of the experiment; it is made where there is none.
    pub experiment: String,
    /// Address of the tracking server: `http://127.0.0.1:5000`.
    pub url: String,
}

/// What became of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptExport {
    /// Which attempt.
    pub attempt: AttemptId,
    /// Whether the server had no run of it.
    pub created: bool,
    /// The server's identifier of the run.
    pub mlflow_run: String,
    /// Params that were sent.
    pub num_params: u64,
    /// Points that were sent.
    pub num_points: u64,
    /// Tags that were sent, progress left out.
    pub num_tags: u64,
    /// MLflow's status of it.
    pub status: &'static str,
    /// Whether status or end were sent.
    pub ended: bool,
}

impl AttemptExport {
    /// Whether the server had everything before.
    #[must_use]
    pub const fn is_unchanged(&self) -> bool {
        !self.created && !self.ended && self.num_params == 0 && self.num_points == 0 && self.num_tags == 0
    }
}

/// What an export did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MlflowExport {
    /// Every attempt, in order.
    pub attempts: Vec<AttemptExport>,
    /// The server's identifier of the experiment.
    pub experiment: String,
    /// Whether the server had no experiment of that name.
    pub experiment_created: bool,
    /// What MLflow has no place for, of the whole ledger.
    pub not_held: Vec<NotHeld>,
}

/// An export to MLflow that did not come to its end. What the server took stays
/// there, and the next export goes on from it.
#[derive(Debug, thiserror::Error)]
pub enum MlflowError {
    /// No address of a server.
    #[error("{url:?} is not the address of an MLflow server: {what}")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// It did not answer.
    #[error("{url}: the MLflow server does not answer")]
    Unreachable {
        /// The server.
        url: String,
        /// Why.
        #[source]
        source: Box<ureq::Error>,
    },
    /// It said no.
    #[error("{url} refused {asked}: HTTP {status} {code} {message}")]
    Refused {
        /// The part of the API.
        asked: String,
        /// MLflow's code; empty where none was given.
        code: String,
        /// In the server's words.
        message: String,
        /// HTTP status.
        status: u16,
        /// The server.
        url: String,
    },
    /// It answered with something else.
    #[error("{url} answered {asked} with something that is not MLflow's")]
    Answer {
        /// The part of the API.
        asked: String,
        /// The server.
        url: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Its run says something else than the ledger.
    #[error("MLflow run {run} is not what the ledger says: {what}")]
    Differs {
        /// The server's run.
        run: String,
        /// What differs.
        what: String,
    },
    /// It holds one attempt more than once.
    #[error(
        "the server holds attempt {attempt} as {first} and as {second}, which two exports at once can make"
    )]
    Twice {
        /// Which attempt.
        attempt: AttemptId,
        /// One run.
        first: String,
        /// Another.
        second: String,
    },
    /// The ledger cannot be read.
    #[error(transparent)]
    Export(#[from] ExportError),
}

impl MlflowError {
    /// Whether a server that was reached gave no answer in time, so that it may
    /// still store what it was sent. An export that goes on before it has would
    /// look too early for what is there, and send it again.
    #[must_use]
    pub fn may_still_be_stored(&self) -> bool {
        let Self::Unreachable { source, .. } = self else { return false };
        match source.as_ref() {
            ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => false,
            ureq::Error::Timeout(_) => true,
            _ => false,
        }
    }
}

/// Brings every attempt to the server, or what it lacks of them.
///
/// # Errors
/// When the server does not answer, refuses, or holds something else than the
/// ledger; and when an entry cannot be read.
pub fn export(evidence: &Evidence, target: &MlflowTarget) -> Result<MlflowExport, MlflowError> {
    let client = Client::new(&target.url)?;
    let survey = Survey::of(evidence)?;
    let (params, too_long) = describe::params(evidence)?;
    let mut not_held = survey.not_held(evidence);
    not_held.extend(too_long);
    let (experiment, experiment_created) = client.experiment(&target.experiment)?;
    let mut known = by_attempt(client.runs(&experiment, RUN_TAG, evidence.contract.run.as_str())?)?;
    let mut attempts = Vec::new();
    for attempt in &evidence.attempts {
        let Some(extent) = survey.attempts.get(&attempt.attempt) else { continue };
        let tags = describe::tags(evidence, attempt, extent, &not_held)?;
        let run = known.remove(&attempt.attempt);
        let one = One { attempt, client: &client, evidence, extent, params: &params, tags };
        attempts.push(one.export(&experiment, run)?);
    }
    Ok(MlflowExport { attempts, experiment, experiment_created, not_held })
}

fn by_attempt(runs: Vec<KnownRun>) -> Result<BTreeMap<AttemptId, KnownRun>, MlflowError> {
    let mut all: BTreeMap<AttemptId, KnownRun> = BTreeMap::new();
    for run in runs {
        let attempt = run.tags.get(ATTEMPT_TAG).and_then(|text| text.parse().ok()).map(AttemptId);
        let attempt = attempt.ok_or_else(|| MlflowError::Differs {
            run: run.id.clone(),
            what: format!("it has the tag {RUN_TAG} and no number as {ATTEMPT_TAG}"),
        })?;
        if let Some(first) = all.get(&attempt) {
            return Err(MlflowError::Twice { attempt, first: first.id.clone(), second: run.id });
        }
        all.insert(attempt, run);
    }
    Ok(all)
}

/// One attempt on its way.
struct One<'a> {
    attempt: &'a Attempt,
    client: &'a Client,
    evidence: &'a Evidence,
    extent: &'a Extent,
    params: &'a BTreeMap<String, String>,
    tags: BTreeMap<String, String>,
}

impl One<'_> {
    fn export(&self, experiment: &str, run: Option<KnownRun>) -> Result<AttemptExport, MlflowError> {
        let created = run.is_none();
        let run = match run {
            Some(run) => run,
            None => {
                let name =
                    format!("{} attempt {}", self.evidence.contract.contract.name, self.attempt.attempt);
                let tags = describe::first_tags(self.evidence, self.attempt, self.extent);
                self.client.create(experiment, &name, self.attempt.started_us / 1000, &tags)?
            }
        };
        let num_params = self.send_params(&run)?;
        let num_points = self.send_points(&run, created)?;
        let mut tags: BTreeMap<String, String> = self
            .tags
            .iter()
            .filter(|(key, value)| run.tags.get(*key) != Some(value))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        tags.extend(describe::outdated(&run.tags, &self.tags));
        // There are some thirty, below what one request may hold.
        if !tags.is_empty() {
            self.client.log_tags(&run.id, &tags)?;
        }
        let status = describe::status(self.attempt);
        let end_ms = self.attempt.ended_us.unwrap_or(self.attempt.last_entry_us) / 1000;
        let ended = run.status != status || run.end_ms != Some(end_ms);
        if ended {
            self.client.end(&run.id, status, end_ms)?;
        }
        let num_tags = tags.len() as u64;
        let attempt = self.attempt.attempt;
        Ok(AttemptExport {
            attempt,
            created,
            ended,
            mlflow_run: run.id,
            num_params,
            num_points,
            num_tags,
            status,
        })
    }

    /// Params that the server lacks. It refuses to change one, and so does this.
    fn send_params(&self, run: &KnownRun) -> Result<u64, MlflowError> {
        let mut missing: Vec<(&String, &String)> = Vec::new();
        for (key, value) in self.params {
            match run.params.get(key) {
                Some(held) if held == value => {}
                Some(held) => {
                    let what = format!("param {key} is {held:?}, the contract has {value:?}");
                    return Err(MlflowError::Differs { run: run.id.clone(), what });
                }
                None => missing.push((key, value)),
            }
        }
        let mut from = 0;
        while from < missing.len() {
            let mut num_chars = 0;
            let rest = missing.get(from..).unwrap_or_default();
            let fits = |(_, value): &&(&String, &String)| {
                num_chars += value.len();
                num_chars <= PARAM_CHARS_PER_REQUEST
            };
            let number = rest.iter().take(PAIRS_PER_REQUEST).take_while(fits).count().max(1);
            self.client.log_params(&run.id, rest.get(..number).unwrap_or_default())?;
            from += number;
        }
        Ok(missing.len() as u64)
    }

    /// Points from the entry on that the run's tag names.
    fn send_points(&self, run: &KnownRun, created: bool) -> Result<u64, MlflowError> {
        let (first, last) = (self.extent.first, self.extent.last);
        let next =
            if created { Some(first) } else { run.tags.get(NEXT_ENTRY_TAG).and_then(|it| it.parse().ok()) };
        let next =
            next.filter(|next| (first..=last + 1).contains(next)).ok_or_else(|| MlflowError::Differs {
                run: run.id.clone(),
                what: format!("its tag {NEXT_ENTRY_TAG} is no index between {first} and {}", last + 1),
            })?;
        if next > last {
            return Ok(0);
        }
        let mut num_sent = 0;
        let mut batch: Vec<Point> = Vec::new();
        // The first request of an export that goes on may be there already.
        let mut is_doubtful = !created;
        for entry in self.evidence.reader().entries(next) {
            let entry = entry.map_err(ExportError::from)?;
            if entry.index > last {
                break;
            }
            if entry.header.attempt != Some(self.attempt.attempt) {
                continue;
            }
            let of_entry = points(&entry)?;
            if batch.len() + of_entry.len() > POINTS_PER_REQUEST {
                num_sent += self.send(run, &mut batch, entry.index, is_doubtful)?;
                is_doubtful = false;
            }
            batch.extend(of_entry);
        }
        num_sent += self.send(run, &mut batch, last + 1, is_doubtful)?;
        Ok(num_sent)
    }

    /// One request: these points, and that they go up to `next`. An entry with
    /// more points than a request holds is sent in several.
    fn send(
        &self,
        run: &KnownRun,
        batch: &mut Vec<Point>,
        next: u64,
        is_doubtful: bool,
    ) -> Result<u64, MlflowError> {
        let mut all = std::mem::take(batch);
        if is_doubtful {
            self.leave_out_known(run, &mut all)?;
        }
        let progress = BTreeMap::from([(NEXT_ENTRY_TAG.to_owned(), next.to_string())]);
        let num_requests = all.len().div_ceil(POINTS_PER_REQUEST).max(1);
        for (index, part) in all.chunks(POINTS_PER_REQUEST).enumerate() {
            let tags = if index + 1 == num_requests { &progress } else { &BTreeMap::new() };
            self.client.log_points(&run.id, part, tags)?;
        }
        if all.is_empty() {
            self.client.log_points(&run.id, &[], &progress)?;
        }
        Ok(all.len() as u64)
    }

    /// Takes out points that the server has.
    fn leave_out_known(&self, run: &KnownRun, batch: &mut Vec<Point>) -> Result<(), MlflowError> {
        let since_ms = batch.iter().map(|point| point.time_ms).min().unwrap_or_default();
        let keys: BTreeSet<String> = batch.iter().map(|point| point.key.clone()).collect();
        let mut held = Vec::new();
        for key in &keys {
            held.extend(self.client.history(&run.id, key, since_ms)?);
        }
        let held: BTreeSet<_> = held.iter().map(Point::identity).collect();
        batch.retain(|point| !held.contains(&point.identity()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_that_a_server_got_and_did_not_answer_may_still_be_stored() {
        let lost = |source| MlflowError::Unreachable {
            url: "http://127.0.0.1:5000".to_owned(),
            source: Box::new(source),
        };
        for timeout in [ureq::Timeout::Global, ureq::Timeout::SendBody, ureq::Timeout::RecvResponse] {
            assert!(lost(ureq::Error::Timeout(timeout)).may_still_be_stored(), "{timeout:?}");
        }
        assert!(!lost(ureq::Error::Timeout(ureq::Timeout::Connect)).may_still_be_stored());
        assert!(!lost(ureq::Error::HostNotFound).may_still_be_stored());
        let differs = MlflowError::Differs { run: "1".to_owned(), what: "a param".to_owned() };
        assert!(!differs.may_still_be_stored());
    }
}
