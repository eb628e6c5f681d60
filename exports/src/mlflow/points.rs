//! Entries as MLflow metrics: one point a number, with step and milliseconds.

use schemas::body::{AttemptEndObs, Body, Credit, StepDet, StepObs};
use schemas::entry::Entry;
use serde_json::{Value, json};

use crate::ExportError;
use crate::text::name_of;

/// One value of a metric.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    pub(super) key: String,
    pub(super) step: u64,
    /// Milliseconds since the epoch.
    pub(super) time_ms: u64,
    pub(super) value: f64,
}

impl Point {
    /// As the REST API takes it.
    pub(super) fn json(&self) -> Value {
        let value = match self.value {
            value if value.is_nan() => json!("NaN"),
            f64::INFINITY => json!("Infinity"),
            f64::NEG_INFINITY => json!("-Infinity"),
            value => json!(value),
        };
        json!({"key": self.key, "value": value, "timestamp": self.time_ms, "step": self.step})
    }

    /// What makes it the same point to the server, which holds one NaN, in its
    /// SQL store the largest number for infinity, and in SQLite one zero.
    pub(super) fn identity(&self) -> (&str, u64, u64, u64) {
        let value = match self.value {
            value if value.is_nan() => f64::NAN,
            value if value.is_infinite() => f64::MAX.copysign(value),
            // Adding a zero leaves every number as it is but the negative zero.
            value => value + 0.0,
        };
        (&self.key, self.step, self.time_ms, value.to_bits())
    }
}

/// A name as a part of a metric's or param's key. MLflow takes ASCII letters and
/// digits, `_`, `-`, `.` and spaces, and reads keys as paths; what is anything
/// else becomes a colon and two hex digits a byte, so that no two names meet.
pub(super) fn key_part(name: &str) -> String {
    let is_dots = name.bytes().all(|byte| byte == b'.');
    let is_plain = |byte: u8| {
        byte.is_ascii_alphanumeric() || b"_-".contains(&byte) || (!is_dots && (byte == b'.' || byte == b' '))
    };
    name.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!(":{byte:02x}") })
        .collect()
}

/// A whole number as a metric. Counters of the record are at most 2^53.
#[allow(clippy::cast_precision_loss, reason = "entries hold no integer above 2^53")]
const fn whole(number: u64) -> f64 {
    number as f64
}

/// What an entry gives; nothing where MLflow has no place for it.
///
/// # Errors
/// When a metric has no name, which those of `schemas` have.
pub(super) fn points(entry: &Entry) -> Result<Vec<Point>, ExportError> {
    let mut values: Vec<(String, f64)> = Vec::new();
    match &entry.body {
        Body::Step(body) => step(&body.det, &body.obs, &mut values),
        Body::Eval(body) => {
            let det = &body.det;
            let stream = key_part(&det.stream);
            values.push((format!("eval/{stream}/{}", name_of(&det.metric)?), det.value.0));
            values.push((format!("eval/{stream}/total_nats"), det.total_nats.0));
            values.push((format!("eval/{stream}/num_tokens"), whole(det.num_tokens)));
            values.push((format!("eval/{stream}/duration_us"), whole(body.obs.duration_us)));
        }
        Body::Diagnostic(body) => {
            let name = key_part(&body.det.name);
            for (key, value) in body.det.values.iter().chain(&body.obs.values) {
                values.push((format!("diagnostic/{name}/{}", key_part(key)), value.0));
            }
        }
        Body::AttemptEnd(body) => cost(&body.obs, &mut values),
        _ => {}
    }
    let (step, time_ms) = (entry.header.step.unwrap_or_default(), entry.time_us / 1000);
    Ok(values.into_iter().map(|(key, value)| Point { key, step, time_ms, value }).collect())
}

fn step(det: &StepDet, obs: &StepObs, values: &mut Vec<(String, f64)>) {
    let mut put = |key: &str, value: f64| values.push((key.to_owned(), value));
    match &det.credit {
        Credit::Backpropagation { gradient_norm, loss, .. } => {
            put("loss_nats", loss.0);
            put("gradient_norm", gradient_norm.0);
        }
        Credit::Evolution { evaluations, fitness, .. } => {
            put("fitness", fitness.0);
            put("population_evaluations", whole(*evaluations));
        }
    }
    put("tokens", whole(det.counters.tokens));
    put("examples", whole(det.counters.examples));
    put("duration_us", whole(obs.duration_us));
    put("recording_us", whole(obs.recording_us));
    if let Some(bytes) = obs.resident_bytes {
        put("resident_bytes", whole(bytes));
    }
    if let Some(overflow) = &det.overflow {
        put("loss_scale", overflow.scale.0);
        put("overflow", f64::from(u8::from(overflow.found)));
        put("skipped", f64::from(u8::from(overflow.skipped)));
    }
    for group in &det.updates {
        let name = key_part(&group.group);
        put(&format!("group/{name}/learning_rate"), group.learning_rate.0);
        put(&format!("group/{name}/weight_decay"), group.weight_decay.0);
        put(&format!("group/{name}/clip_coefficient"), group.clip_coefficient.0);
        if let Some(norm) = group.update_norm {
            put(&format!("group/{name}/update_norm"), norm.0);
        }
        if let Some(norm) = group.parameter_norm {
            put(&format!("group/{name}/parameter_norm"), norm.0);
        }
    }
}

fn cost(obs: &AttemptEndObs, values: &mut Vec<(String, f64)>) {
    let cost = &obs.cost;
    let totals = [
        ("bytes_sent", Some(cost.bytes_sent)),
        ("checkpoint_bytes", Some(cost.checkpoint_bytes)),
        ("checkpoint_us", Some(cost.checkpoint_us)),
        ("cpu_us", Some(cost.cpu_us)),
        ("energy_j", cost.energy_j),
        ("eval_us", Some(cost.eval_us)),
        ("num_steps_executed", Some(cost.num_steps_executed)),
        ("peak_resident_bytes", Some(cost.peak_resident_bytes)),
        ("recording_us", Some(cost.recording_us)),
        ("wall_us", Some(cost.wall_us)),
    ];
    for (name, total) in totals {
        if let Some(total) = total {
            values.push((format!("cost/{name}"), whole(total)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_keys_that_mlflow_takes_and_never_meet() {
        for (name, key) in [
            ("matrices", "matrices"),
            ("a/b", "a:2fb"),
            ("a:2fb", "a:3a2fb"),
            ("..", ":2e:2e"),
            ("ä", ":c3:a4"),
            ("v 1.2", "v 1.2"),
        ] {
            assert_eq!(key_part(name), key);
        }
    }

    #[test]
    fn a_point_keeps_its_bits_but_for_what_the_server_has_no_place_for() {
        let point = |value| Point { key: "k".to_owned(), step: 1, time_ms: 2, value };
        assert_eq!(point(0.1).json().to_string(), "{\"key\":\"k\",\"step\":1,\"timestamp\":2,\"value\":0.1}");
        assert_eq!(point(f64::NEG_INFINITY).json()["value"], json!("-Infinity"));
        assert_eq!(point(f64::INFINITY).identity(), point(f64::MAX).identity());
        assert_eq!(point(0.0).identity(), point(-0.0).identity());
        assert_ne!(point(0.1).identity(), point(0.1 + f64::EPSILON).identity());
    }
}
