//! MLPerf training log lines (`:::MLLOG` and JSON), as the logging package of
//! MLCommons (`mlperf-logging`) reads and checks them.
//!
//! MLPerf knows one process a run. Here the run is logged with all of its
//! attempts: what it lacks (an attempt's start and end, other streams than the
//! selection's) has keys that begin with `ledger_`, which its checker skips.
//! `success` means to MLPerf that the quality target was reached, so it is
//! written of an accepted run whose target was met, and of nothing else; a run
//! that is not over has no `run_stop`, which the checker asks for.
//!
//! What would have to be guessed is not written: caches are not said to be
//! cleared, and the benchmark is the contract's own name, which is no MLPerf
//! benchmark. So the checker refuses that one line of a complete log. No log of
//! this kind is a submission.

use schemas::body::{AttemptReason, Body, EvalDet, Outcome};
use schemas::contract::{Contract, Dtype, ScheduleShape, StoppingRule};
use schemas::data::{EXAMPLE_RECORD_BYTES, EXAMPLE_TABLE_MAGIC};
use schemas::policy_card::{Clipping, PolicyCard, UpdateRule};
use schemas::report::Verdict;
use serde_json::{Map, Value, json};

use crate::text::name_of;
use crate::{Document, Evidence, ExportError};

/// Name of the document.
pub const FILE_NAME: &str = "mlperf.log";

/// What every line begins with.
const TOKEN: &str = ":::MLLOG ";

/// Bytes of an example table before its records: magic and number.
const TABLE_HEAD_BYTES: u64 = EXAMPLE_TABLE_MAGIC.len() as u64 + 8;

/// What kind of event a line is.
#[derive(Debug, Clone, Copy)]
enum Event {
    Point,
    Start,
    End,
}

impl Event {
    const fn name(self) -> &'static str {
        match self {
            Self::Point => "POINT_IN_TIME",
            Self::Start => "INTERVAL_START",
            Self::End => "INTERVAL_END",
        }
    }
}

/// The log as it grows.
struct Log {
    /// Name of the ledger, for the lines' `file`.
    file: String,
    /// Index of the entry that lines come from, for their `lineno`.
    index: u64,
    /// Time of the newest line; a start that is reckoned from a duration does
    /// not fall behind it.
    last_ms: u64,
    text: String,
}

impl Log {
    fn line(&mut self, event: Event, key: &str, value: &Value, time_ms: u64, further: Value) {
        let mut metadata = Map::new();
        metadata.insert("file".to_owned(), self.file.clone().into());
        metadata.insert("lineno".to_owned(), self.index.into());
        if let Value::Object(further) = further {
            metadata.extend(further);
        }
        // In the order of the logging package, for people; readers take any.
        let parts = [
            ("namespace", json!("")),
            ("time_ms", json!(time_ms)),
            ("event_type", json!(event.name())),
            ("key", json!(key)),
            ("value", value.clone()),
            ("metadata", Value::Object(metadata)),
        ];
        let members: Vec<String> = parts.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
        self.text.push_str(TOKEN);
        self.text.push_str(&format!("{{{}}}\n", members.join(", ")));
        self.last_ms = self.last_ms.max(time_ms);
    }

    fn point(&mut self, key: &str, value: &Value, time_ms: u64, further: Value) {
        self.line(Event::Point, key, value, time_ms, further);
    }
}

/// The log of a run.
///
/// # Errors
/// When an entry or the policy card cannot be read.
pub fn documents(evidence: &Evidence) -> Result<Vec<Document>, ExportError> {
    let path = evidence.reader().path();
    let file = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let mut log = Log { file, index: 0, last_ms: 0, text: String::new() };
    let profile = name_of(&evidence.contract.contract.ruleset.profile)?;
    let mut run = Run { attempt: 0, block: None, num_examples: 0, is_running: false };
    for entry in evidence.reader().entries(0) {
        let entry = entry?;
        log.index = entry.index;
        let time_ms = entry.time_us / 1000;
        match &entry.body {
            Body::ContractFrozen(_) => header(&mut log, evidence, time_ms)?,
            Body::AttemptStart(body) => {
                let det = &body.det;
                run.stop_block(&mut log, time_ms);
                run.attempt = det.attempt.0;
                run.start(&mut log, time_ms);
                let reason = name_of(&det.reason)?;
                let further = json!({"attempt": run.attempt, "reason": reason, "step_num": det.from_step});
                log.line(Event::Start, "ledger_attempt_start", &json!(run.attempt), time_ms, further);
                if det.reason != AttemptReason::Start {
                    run.num_examples =
                        det.from_step * u64::from(evidence.contract.contract.batch.global_examples);
                }
            }
            Body::AttemptEnd(body) => {
                run.stop_block(&mut log, time_ms);
                let outcome = name_of(&body.det.outcome)?;
                let further = json!({"attempt": body.det.attempt.0, "outcome": outcome, "step_num": body.det.last_step});
                log.line(Event::End, "ledger_attempt_stop", &json!(body.det.attempt.0), time_ms, further);
            }
            Body::Step(body) => {
                run.start_block(&mut log);
                run.num_examples = body.det.counters.examples;
            }
            Body::Eval(body) => {
                run.stop_block(&mut log, time_ms.saturating_sub(body.obs.duration_us / 1000));
                let step = entry.header.step.unwrap_or_default();
                evaluation(&mut log, evidence, &run, step, &body.det, time_ms, body.obs.duration_us)?;
            }
            Body::RunEnd(body) => {
                run.stop_block(&mut log, time_ms);
                let outcome = name_of(&body.det.outcome)?;
                let further = json!({
                    "outcome": outcome, "profile": profile, "samples_count": body.det.counters.examples,
                    "status": status(evidence, body.det.outcome), "step_num": body.det.last_step,
                    "verdict": evidence.report.verdict.name()
                });
                log.line(Event::End, "run_stop", &Value::Null, time_ms, further);
            }
            _ => {}
        }
    }
    Ok(vec![Document::new(FILE_NAME, log.text.into_bytes())])
}

/// `success` where the audit accepted, the stopping rule was reached and the
/// contract's quality target was met.
fn status(evidence: &Evidence, outcome: Outcome) -> &'static str {
    let report = &evidence.report;
    let reached = report.verdict == Verdict::Accepted
        && outcome == Outcome::Completed
        && report.target_met == Some(true);
    if reached { "success" } else { "aborted" }
}

/// Where the log stands in the run.
struct Run {
    attempt: u32,
    /// Examples at the start of the block that is open.
    block: Option<u64>,
    is_running: bool,
    /// Examples of the logical run up to here.
    num_examples: u64,
}

impl Run {
    /// The first attempt starts the run. Its initialisation counts as training
    /// time: where it ended is not on record.
    fn start(&mut self, log: &mut Log, time_ms: u64) {
        if self.is_running {
            return;
        }
        self.is_running = true;
        log.line(Event::Start, "init_start", &Value::Null, time_ms, json!({}));
        log.line(Event::End, "init_stop", &Value::Null, time_ms, json!({}));
        log.line(Event::Start, "run_start", &Value::Null, time_ms, json!({}));
    }

    /// Updates between two evaluations, or from an attempt's start or to its end.
    fn start_block(&mut self, log: &mut Log) {
        if self.block.is_some() {
            return;
        }
        self.block = Some(self.num_examples);
        let further = json!({"attempt": self.attempt, "samples_count": self.num_examples});
        log.line(Event::Start, "block_start", &Value::Null, log.last_ms, further);
    }

    fn stop_block(&mut self, log: &mut Log, time_ms: u64) {
        if self.block.take().is_some() {
            let further = json!({"attempt": self.attempt, "samples_count": self.num_examples});
            log.line(Event::End, "block_stop", &Value::Null, time_ms.max(log.last_ms), further);
        }
    }
}

fn evaluation(
    log: &mut Log,
    evidence: &Evidence,
    run: &Run,
    step: u64,
    det: &EvalDet,
    time_ms: u64,
    duration_us: u64,
) -> Result<(), ExportError> {
    let of = json!({
        "attempt": run.attempt, "metric": name_of(&det.metric)?, "samples_count": run.num_examples,
        "split": det.split.name(), "step_num": step, "stream": det.stream
    });
    // A value that is not finite is no JSON number; the record's spelling is.
    let value = serde_json::to_value(det.value)?;
    if det.stream != evidence.contract.contract.selection.stream {
        log.point("ledger_eval", &value, time_ms, of);
        return Ok(());
    }
    let started_ms = time_ms.saturating_sub(duration_us / 1000).max(log.last_ms);
    log.line(Event::Start, "eval_start", &Value::Null, started_ms, of.clone());
    log.point("eval_accuracy", &value, time_ms, of.clone());
    log.line(Event::End, "eval_stop", &Value::Null, time_ms, of);
    Ok(())
}

/// Who, what and with which numbers.
fn header(log: &mut Log, evidence: &Evidence, time_ms: u64) -> Result<(), ExportError> {
    let contract = &evidence.contract.contract;
    let platform = evidence.attempts.first().map_or("not started", |attempt| attempt.ran.cpu.as_str());
    let report = &evidence.report;
    let of = json!({
        "contract": evidence.contract.digest.to_string(),
        "head_root": report.head.as_ref().map(|head| &head.root),
        "head_size": report.head.as_ref().map(|head| head.size),
        "profile": name_of(&contract.ruleset.profile)?, "run": evidence.contract.run,
        "verdict": report.verdict.name()
    });
    log.point("submission_benchmark", &json!(contract.name), time_ms, of);
    let mut point = |key: &str, value: Value, further: Value| log.point(key, &value, time_ms, further);
    point("submission_division", json!("open"), json!({}));
    point("submission_org", json!(contract.purpose.authority.granted_by), json!({}));
    point("submission_platform", json!(platform), json!({}));
    point("cache_clear", json!(false), json!({"reason": "not on record"}));
    for (purpose, seed) in [
        ("data_order", contract.seeds.data_order),
        ("dropout", contract.seeds.dropout),
        ("initialization", contract.seeds.initialization),
    ] {
        point("seed", json!(seed.0), json!({"purpose": purpose}));
    }
    let batch = &contract.batch;
    let schemas::contract::Architecture::LlamaDecoder(model) = &contract.architecture;
    let max_steps = match contract.stopping {
        StoppingRule::AtStep { step } => step,
        StoppingRule::Patience { max_step, .. } => max_step,
    };
    point("global_batch_size", json!(batch.global_examples), json!({}));
    point("micro_batch_size", json!(batch.microbatch_examples), json!({}));
    point("gradient_accumulation_steps", json!(batch.accumulation), json!({}));
    point("max_sequence_length", json!(model.context_length), json!({}));
    point("max_steps", json!(max_steps), json!({}));
    point("train_samples", json!(num_examples(contract.data.train_examples.num_bytes)), json!({}));
    point("eval_samples", json!(eval_samples(contract)), json!({}));
    let numerics = &contract.numerics;
    for (place, dtype) in [
        ("linear", numerics.compute_dtype),
        ("attn", numerics.compute_dtype),
        ("comm", numerics.accumulation_dtype),
    ] {
        point(&format!("lowest_numerical_precision_in_{place}"), json!(precision(dtype)), json!({}));
    }
    // The only topology that a contract has shares examples and nothing else.
    for what in ["tensor", "pipeline", "context", "expert"] {
        point(&format!("{what}_parallelism"), json!(1), json!({}));
    }
    point("config_filename", json!("contract.json"), json!({}));
    optimizer(evidence, &mut point)
}

/// MLPerf's name of an element type.
const fn precision(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "fp32",
        Dtype::Bf16 => "bfloat16",
        Dtype::F16 => "fp16",
    }
}

/// Records of an example table of so many bytes.
fn num_examples(num_bytes: Option<u64>) -> u64 {
    num_bytes.unwrap_or_default().saturating_sub(TABLE_HEAD_BYTES) / EXAMPLE_RECORD_BYTES as u64
}

fn eval_samples(contract: &Contract) -> u64 {
    let streams = &contract.evaluation.streams;
    let stream = streams.iter().find(|stream| stream.name == contract.selection.stream);
    let table = num_examples(contract.data.val_examples.num_bytes);
    stream.and_then(|stream| stream.num_examples).map_or(table, |number| number.min(table))
}

fn optimizer(evidence: &Evidence, point: &mut impl FnMut(&str, Value, Value)) -> Result<(), ExportError> {
    let contract = &evidence.contract.contract;
    let lacks = || ExportError::Lacks { path: evidence.path(), what: "policy card" };
    let digest = contract.update.card.digest.ok_or_else(lacks)?;
    let card: PolicyCard = serde_json::from_slice(&evidence.reader().artifact(&digest)?)?;
    let UpdateRule::Adamw { beta1, beta2, epsilon, .. } = &card.update;
    point("opt_name", json!("adamw"), json!({"card": digest.to_string()}));
    point("opt_adamw_beta_1", json!(beta1), json!({}));
    point("opt_adamw_beta_2", json!(beta2), json!({}));
    point("opt_adamw_epsilon", json!(epsilon), json!({}));
    for group in &card.groups {
        point("opt_adamw_weight_decay", json!(group.weight_decay), json!({"group": group.name}));
    }
    if let Clipping::GlobalNorm { max_norm, .. } = card.clipping {
        point("opt_gradient_clip_norm", json!(max_norm), json!({}));
    }
    for group in &contract.schedule {
        let of = json!({"group": group.group});
        match &group.shape {
            ScheduleShape::Constant { rate } => point("opt_base_learning_rate", json!(rate), of),
            ScheduleShape::Plateau { factor, floor, rate, .. } => {
                point("opt_base_learning_rate", json!(rate), of.clone());
                point("opt_learning_rate_decay_factor", json!(factor), of.clone());
                point("opt_end_learning_rate", json!(floor), of);
            }
            ScheduleShape::WarmupCosine { floor, peak, total_steps, warmup_steps } => {
                point("opt_base_learning_rate", json!(peak), of.clone());
                point("opt_learning_rate_warmup_steps", json!(warmup_steps), of.clone());
                point("opt_learning_rate_decay_schedule", json!("cosine with linear warmup"), of.clone());
                point(
                    "opt_learning_rate_decay_steps",
                    json!(total_steps.saturating_sub(*warmup_steps)),
                    of.clone(),
                );
                point("opt_end_learning_rate", json!(floor), of);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_what_the_logging_package_writes() {
        let mut log = Log { file: "run.db".to_owned(), index: 3, last_ms: 0, text: String::new() };
        log.line(Event::Start, "run_start", &Value::Null, 5, json!({"attempt": 1}));
        assert_eq!(
            log.text,
            ":::MLLOG {\"namespace\": \"\", \"time_ms\": 5, \"event_type\": \"INTERVAL_START\", \
             \"key\": \"run_start\", \"value\": null, \
             \"metadata\": {\"attempt\":1,\"file\":\"run.db\",\"lineno\":3}}\n"
        );
    }

    #[test]
    fn a_table_has_a_head_of_16_bytes() {
        assert_eq!(num_examples(Some(16 + 48 * 7)), 7);
        assert_eq!(num_examples(None), 0);
    }
}
