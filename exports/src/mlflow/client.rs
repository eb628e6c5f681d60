//! MLflow's REST API, version 2.0, as far as an export needs it: experiments,
//! runs by their tags, `log-batch`, metric histories.
//!
//! Plain HTTP, no redirects, no proxy of the environment: it speaks with the
//! server that was named and with nobody else. Nothing is tried again by itself;
//! an export that broke off is asked for again, and goes on where it was.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use ureq::Agent;

use super::MlflowError;
use super::points::Point;

/// Longest wait for a connection.
const TIMEOUT_CONNECT: Duration = Duration::from_secs(10);

/// Longest wait for an answer: a server's database may be busy.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Largest answer that is read: a page of a metric's history is some 3 MB.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Runs, or points of a history, of one answer.
const PER_PAGE: u32 = 1000;

/// MLflow's word for an experiment or run that there is not.
const DOES_NOT_EXIST: &str = "RESOURCE_DOES_NOT_EXIST";

/// A server.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    url: String,
}

/// A run that the server holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownRun {
    pub(super) end_ms: Option<u64>,
    pub(super) id: String,
    pub(super) params: BTreeMap<String, String>,
    pub(super) status: String,
    pub(super) tags: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Pair {
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
struct RunInfo {
    /// Whole milliseconds; some servers write them as a string.
    end_time: Option<Value>,
    run_id: String,
    status: String,
}

#[derive(Deserialize, Default)]
struct RunData {
    #[serde(default)]
    params: Vec<Pair>,
    #[serde(default)]
    tags: Vec<Pair>,
}

#[derive(Deserialize)]
struct RunAnswer {
    #[serde(default)]
    data: RunData,
    info: RunInfo,
}

#[derive(Deserialize)]
struct Created {
    run: RunAnswer,
}

#[derive(Deserialize)]
struct Found {
    next_page_token: Option<String>,
    #[serde(default)]
    runs: Vec<RunAnswer>,
}

#[derive(Deserialize)]
struct Experiment {
    experiment_id: String,
}

#[derive(Deserialize)]
struct FoundExperiment {
    experiment: Experiment,
}

#[derive(Deserialize)]
struct History {
    #[serde(default)]
    metrics: Vec<HistoryPoint>,
    next_page_token: Option<String>,
}

#[derive(Deserialize)]
struct HistoryPoint {
    #[serde(default)]
    step: Value,
    timestamp: Value,
    value: Value,
}

/// A refusal in MLflow's own words.
#[derive(Deserialize, Default)]
struct Refusal {
    #[serde(default)]
    error_code: String,
    #[serde(default)]
    message: String,
}

/// An integer that protobuf's JSON may write as a string.
fn integer(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// A double as protobuf's JSON writes it.
fn double(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) if text == "NaN" => Some(f64::NAN),
        Value::String(text) if text == "Infinity" => Some(f64::INFINITY),
        Value::String(text) if text == "-Infinity" => Some(f64::NEG_INFINITY),
        other => other.as_f64(),
    }
}

fn known(answer: RunAnswer) -> KnownRun {
    let pairs = |pairs: Vec<Pair>| pairs.into_iter().map(|pair| (pair.key, pair.value)).collect();
    let end_ms = answer.info.end_time.as_ref().and_then(integer).filter(|end_ms| *end_ms != 0);
    KnownRun {
        end_ms,
        id: answer.info.run_id,
        params: pairs(answer.data.params),
        status: answer.info.status,
        tags: pairs(answer.data.tags),
    }
}

/// The text within a query.
fn in_query(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let encoded =
        |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encoded).collect()
}

impl Client {
    /// Knows a server's address; connects to nothing yet.
    pub(super) fn new(url: &str) -> Result<Self, MlflowError> {
        let refused = |what| MlflowError::Url { url: url.to_owned(), what };
        let rest = url.strip_prefix("http://").ok_or_else(|| {
            refused("it does not begin with http://; a server behind TLS is reached through a tunnel to this machine")
        })?;
        if rest.is_empty() || rest.starts_with('/') {
            return Err(refused("it names no host"));
        }
        if rest.contains(['@', '?', '#']) || rest.chars().any(|it| it.is_whitespace() || it.is_control()) {
            return Err(refused("it has credentials, a query or characters that no address has"));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .timeout_connect(Some(TIMEOUT_CONNECT))
            .timeout_global(Some(TIMEOUT))
            .build();
        Ok(Self { agent: Agent::new_with_config(config), url: url.trim_end_matches('/').to_owned() })
    }

    fn call<T: for<'de> Deserialize<'de>>(&self, path: &str, body: Option<&Value>) -> Result<T, MlflowError> {
        let url = format!("{}/api/2.0/mlflow/{path}", self.url);
        let lost = |source: ureq::Error| MlflowError::Unreachable {
            url: self.url.clone(),
            source: Box::new(source),
        };
        let answer = match body {
            Some(body) => {
                let request = self.agent.post(&url).header("content-type", "application/json");
                request.send(&body.to_string()[..])
            }
            None => self.agent.get(&url).call(),
        };
        let mut answer = answer.map_err(lost)?;
        let status = answer.status().as_u16();
        let bytes = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_vec().map_err(lost)?;
        // The query is not part of what was asked, to a person.
        let asked = path.split('?').next().unwrap_or(path).to_owned();
        if status != 200 {
            let refusal: Refusal = serde_json::from_slice(&bytes).unwrap_or_default();
            let Refusal { error_code: code, message } = refusal;
            return Err(MlflowError::Refused { asked, code, message, status, url: self.url.clone() });
        }
        serde_json::from_slice(&bytes).map_err(|source| MlflowError::Answer {
            asked,
            url: self.url.clone(),
            source,
        })
    }

    /// Identifier of the experiment of that name, which is made where there is
    /// none; and whether it was.
    pub(super) fn experiment(&self, name: &str) -> Result<(String, bool), MlflowError> {
        let path = format!("experiments/get-by-name?experiment_name={}", in_query(name));
        match self.call::<FoundExperiment>(&path, None) {
            Ok(found) => Ok((found.experiment.experiment_id, false)),
            Err(MlflowError::Refused { code, .. }) if code == DOES_NOT_EXIST => {
                let made: Experiment = self.call("experiments/create", Some(&json!({"name": name})))?;
                Ok((made.experiment_id, true))
            }
            Err(error) => Err(error),
        }
    }

    /// Every run of the experiment with that value of a tag, but those that were
    /// deleted.
    pub(super) fn runs(
        &self,
        experiment: &str,
        tag: &str,
        value: &str,
    ) -> Result<Vec<KnownRun>, MlflowError> {
        let mut all = Vec::new();
        let mut page: Option<String> = None;
        loop {
            let mut body = json!({
                "experiment_ids": [experiment], "filter": format!("tags.`{tag}` = '{value}'"),
                "max_results": PER_PAGE, "run_view_type": "ACTIVE_ONLY"
            });
            if let Some(token) = &page {
                body["page_token"] = json!(token);
            }
            let found: Found = self.call("runs/search", Some(&body))?;
            all.extend(found.runs.into_iter().map(known));
            page = found.next_page_token.filter(|token| !token.is_empty());
            if page.is_none() {
                return Ok(all);
            }
        }
    }

    /// Makes a run with its tags, in one request.
    pub(super) fn create(
        &self,
        experiment: &str,
        name: &str,
        start_ms: u64,
        tags: &BTreeMap<String, String>,
    ) -> Result<KnownRun, MlflowError> {
        let body = json!({
            "experiment_id": experiment, "run_name": name, "start_time": start_ms, "tags": pairs(tags.iter())
        });
        let created: Created = self.call("runs/create", Some(&body))?;
        Ok(known(created.run))
    }

    /// Points and tags of a run in one request; the server stores the tags last.
    pub(super) fn log_points(
        &self,
        run: &str,
        points: &[Point],
        tags: &BTreeMap<String, String>,
    ) -> Result<(), MlflowError> {
        let metrics: Vec<Value> = points.iter().map(Point::json).collect();
        self.log(&json!({"run_id": run, "metrics": metrics, "tags": pairs(tags.iter())}))
    }

    /// Params of a run.
    pub(super) fn log_params(&self, run: &str, params: &[(&String, &String)]) -> Result<(), MlflowError> {
        self.log(&json!({"run_id": run, "params": pairs(params.iter().copied())}))
    }

    /// Tags of a run.
    pub(super) fn log_tags(&self, run: &str, tags: &BTreeMap<String, String>) -> Result<(), MlflowError> {
        self.log(&json!({"run_id": run, "tags": pairs(tags.iter())}))
    }

    fn log(&self, body: &Value) -> Result<(), MlflowError> {
        let _: Value = self.call("runs/log-batch", Some(body))?;
        Ok(())
    }

    /// Ends a run.
    pub(super) fn end(&self, run: &str, status: &str, end_ms: u64) -> Result<(), MlflowError> {
        let body = json!({"run_id": run, "status": status, "end_time": end_ms});
        let _: Value = self.call("runs/update", Some(&body))?;
        Ok(())
    }

    /// Points of one metric that are not older than `since_ms`.
    pub(super) fn history(&self, run: &str, key: &str, since_ms: u64) -> Result<Vec<Point>, MlflowError> {
        let mut all = Vec::new();
        let mut token = String::new();
        loop {
            let mut path = format!(
                "metrics/get-history?run_id={}&metric_key={}&max_results={PER_PAGE}",
                in_query(run),
                in_query(key)
            );
            if !token.is_empty() {
                path.push_str("&page_token=");
                path.push_str(&in_query(&token));
            }
            let history: History = self.call(&path, None)?;
            for point in &history.metrics {
                let read = (integer(&point.timestamp), double(&point.value));
                let (Some(time_ms), Some(value)) = read else { continue };
                if time_ms >= since_ms {
                    let step = integer(&point.step).unwrap_or_default();
                    all.push(Point { key: key.to_owned(), step, time_ms, value });
                }
            }
            token = history.next_page_token.unwrap_or_default();
            if token.is_empty() {
                return Ok(all);
            }
        }
    }
}

fn pairs<'a>(pairs: impl Iterator<Item = (&'a String, &'a String)>) -> Vec<Value> {
    pairs.map(|(key, value)| json!({"key": key, "value": value})).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_that_of_a_server_over_plain_http() {
        assert_eq!(Client::new("http://127.0.0.1:5000/").expect("an address").url, "http://127.0.0.1:5000");
        for url in
            ["https://host", "127.0.0.1:5000", "http://", "http:///path", "http://user@host", "http://a b"]
        {
            assert!(matches!(Client::new(url), Err(MlflowError::Url { .. })), "{url}");
        }
    }

    #[test]
    fn what_protobuf_writes_as_text_is_a_number() {
        assert_eq!(integer(&json!("17")), Some(17));
        assert_eq!(integer(&json!(17)), Some(17));
        assert_eq!(integer(&Value::Null), None);
        assert_eq!(double(&json!("-Infinity")), Some(f64::NEG_INFINITY));
        assert!(double(&json!("NaN")).is_some_and(f64::is_nan));
        assert_eq!(in_query("a/b c:ä"), "a%2Fb%20c%3A%C3%A4");
    }
}
