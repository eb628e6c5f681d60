//! OpenMetrics text (openmetrics.io, version 1.0): the run as time series.
//!
//! A scraper sees one moment; a ledger holds a history. So what has a time has
//! the entry's, and `promtool tsdb create-blocks-from openmetrics` brings the
//! history into Prometheus; what is said of the whole has none. Every attempt is
//! a series of its own, so that updates which were executed again are there
//! twice and no counter falls. A point that is not behind the one before it, by
//! the writer's clock, cannot be in a series: it is left out and counted.
//!
//! The document is put together in memory, about a kilobyte an update.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};

use schemas::body::{Body, CostTotals, Credit, EvalDet, Outcome, StepDet, StepObs};
use schemas::contract::Metric;
use schemas::entry::Entry;
use schemas::finding::Severity;
use schemas::report::{RuleStatus, Verdict};

use crate::text::name_of;
use crate::{Document, Evidence, ExportError};

/// Name of the document.
pub const FILE_NAME: &str = "metrics.openmetrics.txt";

/// Content type that a server of this text would name.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What an attempt without a terminal entry is called; no outcome has the name.
const NO_TERMINAL_ENTRY: &str = "no_terminal_entry";

/// Names of outcomes, in the order of [`Outcome`].
const OUTCOMES: [(Outcome, &str); 6] = [
    (Outcome::Completed, "completed"),
    (Outcome::Interrupted, "interrupted"),
    (Outcome::BudgetExhausted, "budget_exhausted"),
    (Outcome::FloorReached, "floor_reached"),
    (Outcome::Failed, "failed"),
    (Outcome::Refused, "refused"),
];

/// Every verdict.
const VERDICTS: [Verdict; 5] =
    [Verdict::Accepted, Verdict::Rejected, Verdict::Tampered, Verdict::Incomplete, Verdict::NotEvaluated];

/// A metric family.
#[derive(Debug, Clone, Copy)]
struct Family {
    help: &'static str,
    kind: &'static str,
    name: &'static str,
    /// Also the end of the name; empty where there is none.
    unit: &'static str,
}

const fn family(kind: &'static str, name: &'static str, unit: &'static str, help: &'static str) -> Family {
    Family { help, kind, name, unit }
}

const RUN: Family = family("info", "governed_ledger_run", "", "What was audited.");
const VERDICT: Family =
    family("stateset", "governed_ledger_verdict", "", "What the audit said when this was written.");
const TARGET: Family = family(
    "gauge",
    "governed_ledger_target_met",
    "",
    "Whether the contract's quality target was met; absent where there is none, or nothing to tell it.",
);
const RULES: Family =
    family("gauge", "governed_ledger_rules", "", "Rules of the audit by what became of them.");
const FINDINGS: Family =
    family("gauge", "governed_ledger_findings", "", "Findings of the audit by severity.");
const DENOMINATORS: Family =
    family("gauge", "governed_ledger_denominators", "", "What the validator counted, kept apart.");
const LEFT_OUT: Family = family(
    "gauge",
    "governed_ledger_points_left_out",
    "",
    "Points whose time is not behind the one before them in their series.",
);
const OUTCOME: Family =
    family("stateset", "governed_ledger_attempt_outcome", "", "How each process start ended, as recorded.");
const ENTRIES: Family = family("counter", "governed_ledger_entries", "", "Entries by kind.");
const WALL: Family = family("counter", "governed_ledger_attempt_wall_seconds", "seconds", "Wall time.");
const CPU: Family =
    family("counter", "governed_ledger_attempt_cpu_seconds", "seconds", "Processor time of the process.");
const EVAL_COST: Family =
    family("counter", "governed_ledger_attempt_eval_seconds", "seconds", "Time in evaluations.");
const SAVE_COST: Family =
    family("counter", "governed_ledger_attempt_checkpoint_seconds", "seconds", "Time in checkpoints.");
const RECORDING: Family = family(
    "counter",
    "governed_ledger_attempt_recording_seconds",
    "seconds",
    "Time that training waited for the recorder.",
);
const SAVED: Family =
    family("counter", "governed_ledger_attempt_checkpoint_bytes", "bytes", "Bytes of checkpoints written.");
const SENT: Family =
    family("counter", "governed_ledger_attempt_sent_bytes", "bytes", "Bytes between workers.");
const ENERGY: Family =
    family("counter", "governed_ledger_attempt_energy_joules", "joules", "Energy, where it was measured.");
const EXECUTED: Family = family(
    "counter",
    "governed_ledger_attempt_executed_steps",
    "",
    "Updates that the attempt executed, repeated ones included.",
);
const PEAK: Family =
    family("gauge", "governed_ledger_attempt_peak_resident_bytes", "bytes", "Peak resident memory.");
const STEP: Family = family("gauge", "governed_ledger_step", "", "Completed updates of the logical run.");
const LOSS: Family =
    family("gauge", "governed_ledger_loss_nats", "nats", "Mean over the global batch's target tokens.");
const NORM: Family =
    family("gauge", "governed_ledger_gradient_norm", "", "Euclidean norm of the gradient before clipping.");
const FITNESS: Family = family("gauge", "governed_ledger_fitness", "", "Mean fitness of a population.");
const RATE: Family =
    family("gauge", "governed_ledger_learning_rate", "", "Learning rate by parameter group.");
const CLIP: Family =
    family("gauge", "governed_ledger_clip_coefficient", "", "What gradients were multiplied by.");
const SCALE: Family = family("gauge", "governed_ledger_loss_scale", "", "Scale of the backward pass.");
const SKIPPED: Family =
    family("gauge", "governed_ledger_step_skipped", "", "Whether the update was left out for an overflow.");
const DURATION: Family =
    family("gauge", "governed_ledger_step_duration_seconds", "seconds", "Wall time of the update.");
const WAITED: Family = family(
    "gauge",
    "governed_ledger_step_recording_seconds",
    "seconds",
    "Of these, waiting for the recorder.",
);
const RESIDENT: Family =
    family("gauge", "governed_ledger_resident_bytes", "bytes", "Resident memory, where it was read.");
const TOKENS: Family = family("counter", "governed_ledger_tokens", "", "Target tokens of the logical run.");
const EXAMPLES: Family = family("counter", "governed_ledger_examples", "", "Examples of the logical run.");
const EVALUATIONS: Family =
    family("counter", "governed_ledger_evaluations", "", "Candidate evaluations of the logical run.");
const BITS_PER_BYTE: Family = family(
    "gauge",
    "governed_ledger_eval_bits_per_byte",
    "bits_per_byte",
    "Value of an evaluation stream, as the trainer recorded it.",
);
const EVAL_DURATION: Family =
    family("gauge", "governed_ledger_eval_duration_seconds", "seconds", "Wall time of an evaluation.");

/// Microseconds, printed in seconds.
#[derive(Debug, Clone, Copy)]
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// A binary64 as the text format spells it; what is finite reads back to the
/// same bits.
#[derive(Debug, Clone, Copy)]
struct Number(f64);

impl Display for Number {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            value if value.is_nan() => formatter.write_str("NaN"),
            f64::INFINITY => formatter.write_str("+Inf"),
            f64::NEG_INFINITY => formatter.write_str("-Inf"),
            value => write!(formatter, "{value:?}"),
        }
    }
}

#[derive(Debug, Default)]
struct Series {
    last_us: Option<u64>,
    text: String,
}

/// The families with their series, in the order of names.
struct Exposition {
    families: BTreeMap<&'static str, (Family, BTreeMap<String, Series>)>,
    num_left_out: u64,
    run: String,
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Exposition {
    /// A sample; `time_us` is its time, or none for what is said of the whole.
    fn add(&mut self, family: Family, labels: &[(&str, &str)], value: impl Display, time_us: Option<u64>) {
        let mut text = format!("run=\"{}\"", escape(&self.run));
        for (name, label) in labels {
            // Writing to a string does not fail.
            let _ = write!(text, ",{name}=\"{}\"", escape(label));
        }
        let (_, all) = self.families.entry(family.name).or_insert_with(|| (family, BTreeMap::new()));
        let series = all.entry(text.clone()).or_default();
        if let (Some(time_us), Some(last_us)) = (time_us, series.last_us)
            && time_us <= last_us
        {
            self.num_left_out += 1;
            return;
        }
        series.last_us = time_us;
        let suffix = match family.kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let _ = write!(series.text, "{}{suffix}{{{text}}} {value}", family.name);
        if let Some(time_us) = time_us {
            let _ = write!(series.text, " {}", Seconds(time_us));
        }
        series.text.push('\n');
    }

    /// One sample a state, of which at most one is set.
    fn states<'a>(
        &mut self,
        family: Family,
        labels: &[(&str, &str)],
        states: impl Iterator<Item = (&'a str, bool)>,
    ) {
        for (state, is_set) in states {
            let labels: Vec<(&str, &str)> = labels.iter().copied().chain([(family.name, state)]).collect();
            self.add(family, &labels, u8::from(is_set), None);
        }
    }

    fn text(self) -> String {
        let mut text = String::new();
        for (family, series) in self.families.into_values() {
            let Family { help, kind, name, unit } = family;
            let _ = writeln!(text, "# TYPE {name} {kind}");
            if !unit.is_empty() {
                let _ = writeln!(text, "# UNIT {name} {unit}");
            }
            let _ = writeln!(text, "# HELP {name} {}", escape(help));
            text.extend(series.into_values().map(|series| series.text));
        }
        text.push_str("# EOF\n");
        text
    }
}

/// The run as OpenMetrics text. Every run has one, whatever its verdict, which
/// is in it.
///
/// # Errors
/// When an entry cannot be read.
pub fn documents(evidence: &Evidence) -> Result<Vec<Document>, ExportError> {
    let run = evidence.contract.run.to_string();
    let mut exposition = Exposition { families: BTreeMap::new(), num_left_out: 0, run };
    whole(&mut exposition, evidence)?;
    let mut kinds: BTreeMap<(String, &'static str), u64> = BTreeMap::new();
    for entry in evidence.reader().entries(0) {
        let entry = entry?;
        let attempt = entry.header.attempt.map_or_else(String::new, |attempt| attempt.to_string());
        see(&mut exposition, &entry, &attempt);
        *kinds.entry((attempt, entry.body.kind().name())).or_default() += 1;
    }
    for ((attempt, kind), number) in kinds {
        exposition.add(ENTRIES, &[("attempt", &attempt), ("kind", kind)], number, None);
    }
    let num_left_out = exposition.num_left_out;
    exposition.add(LEFT_OUT, &[], num_left_out, None);
    Ok(vec![Document::new(FILE_NAME, exposition.text().into_bytes())])
}

/// What is said of the run as a whole.
fn whole(exposition: &mut Exposition, evidence: &Evidence) -> Result<(), ExportError> {
    let report = &evidence.report;
    let contract = &evidence.contract;
    let (origin, root, size) = report.head.as_ref().map_or_else(Default::default, |head| {
        (head.origin.clone(), head.root.clone(), head.size.to_string())
    });
    let profile = name_of(&contract.contract.ruleset.profile)?;
    let labels = [
        ("name", contract.contract.name.as_str()),
        ("contract", &contract.digest.to_string()),
        ("head_origin", &origin),
        ("head_root", &root),
        ("head_size", &size),
        ("profile", &profile),
        ("ruleset", &report.ruleset),
        ("tool", &report.tool),
    ];
    exposition.add(RUN, &labels, 1, None);
    exposition.states(
        VERDICT,
        &[],
        VERDICTS.iter().map(|verdict| (verdict.name(), *verdict == report.verdict)),
    );
    if let Some(met) = report.target_met {
        exposition.add(TARGET, &[], u8::from(met), None);
    }
    let statuses = [
        ("passed", RuleStatus::Passed),
        ("failed", RuleStatus::Failed),
        ("not_evaluated", RuleStatus::NotEvaluated),
        ("not_applicable", RuleStatus::NotApplicable),
    ];
    for (name, status) in statuses {
        let number = report.rules.iter().filter(|rule| rule.status == status).count();
        exposition.add(RULES, &[("status", name)], number, None);
    }
    let severities = [("note", Severity::Note), ("warning", Severity::Warning), ("error", Severity::Error)];
    for (name, severity) in severities {
        let number = report.findings.iter().filter(|finding| finding.severity == severity).count();
        exposition.add(FINDINGS, &[("severity", name)], number, None);
    }
    let counts = report.denominators;
    let denominators = [
        ("attempted", counts.attempted),
        ("candidates", counts.candidates),
        ("checkpoints", counts.checkpoints),
        ("completed", counts.completed),
        ("failed", counts.failed),
        ("interrupted", counts.interrupted),
        ("qualified", counts.qualified),
        ("recovered", counts.recovered),
        ("released", counts.released),
        ("selected", counts.selected),
        ("steps_executed", counts.steps_executed),
        ("steps_logical", counts.steps_logical),
    ];
    for (name, number) in denominators {
        exposition.add(DENOMINATORS, &[("counted", name)], number, None);
    }
    for attempt in &evidence.attempts {
        let number = attempt.attempt.to_string();
        let states = OUTCOMES
            .iter()
            .map(|(outcome, name)| (*name, attempt.outcome == Some(*outcome)))
            .chain([(NO_TERMINAL_ENTRY, attempt.outcome.is_none())]);
        exposition.states(OUTCOME, &[("attempt", &number)], states);
        if let Some(cost) = &attempt.cost {
            costs(exposition, &number, cost);
        }
    }
    Ok(())
}

fn costs(exposition: &mut Exposition, attempt: &str, cost: &CostTotals) {
    let labels = [("attempt", attempt)];
    let seconds = [
        (WALL, cost.wall_us),
        (CPU, cost.cpu_us),
        (EVAL_COST, cost.eval_us),
        (SAVE_COST, cost.checkpoint_us),
        (RECORDING, cost.recording_us),
    ];
    for (family, time_us) in seconds {
        exposition.add(family, &labels, Seconds(time_us), None);
    }
    exposition.add(SAVED, &labels, cost.checkpoint_bytes, None);
    exposition.add(SENT, &labels, cost.bytes_sent, None);
    exposition.add(EXECUTED, &labels, cost.num_steps_executed, None);
    exposition.add(PEAK, &labels, cost.peak_resident_bytes, None);
    if let Some(energy_j) = cost.energy_j {
        exposition.add(ENERGY, &labels, energy_j, None);
    }
}

/// What one entry adds to the series of its attempt.
fn see(exposition: &mut Exposition, entry: &Entry, attempt: &str) {
    match &entry.body {
        Body::Step(body) => {
            let step = entry.header.step.unwrap_or_default();
            let labels = [("attempt", attempt)];
            exposition.add(STEP, &labels, step, Some(entry.time_us));
            update(exposition, entry.time_us, attempt, &body.det, &body.obs);
        }
        Body::Eval(body) => evaluation(exposition, entry.time_us, attempt, &body.det, body.obs.duration_us),
        _ => {}
    }
}

fn update(exposition: &mut Exposition, time_us: u64, attempt: &str, det: &StepDet, obs: &StepObs) {
    let labels = [("attempt", attempt)];
    let at = Some(time_us);
    match &det.credit {
        Credit::Backpropagation { gradient_norm, loss, .. } => {
            exposition.add(LOSS, &labels, Number(loss.0), at);
            exposition.add(NORM, &labels, Number(gradient_norm.0), at);
        }
        Credit::Evolution { fitness, .. } => exposition.add(FITNESS, &labels, Number(fitness.0), at),
    }
    for group in &det.updates {
        let labels = [("attempt", attempt), ("group", group.group.as_str())];
        exposition.add(RATE, &labels, Number(group.learning_rate.0), at);
        exposition.add(CLIP, &labels, Number(group.clip_coefficient.0), at);
    }
    if let Some(overflow) = &det.overflow {
        exposition.add(SCALE, &labels, Number(overflow.scale.0), at);
        exposition.add(SKIPPED, &labels, u8::from(overflow.skipped), at);
    }
    exposition.add(TOKENS, &labels, det.counters.tokens, at);
    exposition.add(EXAMPLES, &labels, det.counters.examples, at);
    exposition.add(EVALUATIONS, &labels, det.counters.evaluations, at);
    exposition.add(DURATION, &labels, Seconds(obs.duration_us), at);
    exposition.add(WAITED, &labels, Seconds(obs.recording_us), at);
    if let Some(bytes) = obs.resident_bytes {
        exposition.add(RESIDENT, &labels, bytes, at);
    }
}

fn evaluation(exposition: &mut Exposition, time_us: u64, attempt: &str, det: &EvalDet, duration_us: u64) {
    let labels = [("attempt", attempt), ("stream", det.stream.as_str()), ("split", det.split.name())];
    match det.metric {
        Metric::BitsPerByte => exposition.add(BITS_PER_BYTE, &labels, Number(det.value.0), Some(time_us)),
    }
    exposition.add(EVAL_DURATION, &labels, Seconds(duration_us), Some(time_us));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exposition() -> Exposition {
        Exposition { families: BTreeMap::new(), num_left_out: 0, run: "a-\"b\"".to_owned() }
    }

    #[test]
    fn a_series_is_contiguous_and_its_time_only_rises() {
        let mut one = exposition();
        one.add(LOSS, &[("attempt", "1")], Number(1.5), Some(1_000_001));
        one.add(LOSS, &[("attempt", "2")], Number(f64::INFINITY), Some(3_000_000));
        one.add(LOSS, &[("attempt", "1")], Number(f64::NAN), Some(2_000_000));
        one.add(LOSS, &[("attempt", "1")], Number(9.0), Some(2_000_000));
        one.add(TOKENS, &[], 7_u64, None);
        assert_eq!(one.num_left_out, 1, "a second point at one time");
        assert_eq!(
            one.text(),
            "# TYPE governed_ledger_loss_nats gauge\n\
             # UNIT governed_ledger_loss_nats nats\n\
             # HELP governed_ledger_loss_nats Mean over the global batch's target tokens.\n\
             governed_ledger_loss_nats{run=\"a-\\\"b\\\"\",attempt=\"1\"} 1.5 1.000001\n\
             governed_ledger_loss_nats{run=\"a-\\\"b\\\"\",attempt=\"1\"} NaN 2.000000\n\
             governed_ledger_loss_nats{run=\"a-\\\"b\\\"\",attempt=\"2\"} +Inf 3.000000\n\
             # TYPE governed_ledger_tokens counter\n\
             # HELP governed_ledger_tokens Target tokens of the logical run.\n\
             governed_ledger_tokens_total{run=\"a-\\\"b\\\"\"} 7\n\
             # EOF\n"
        );
    }

    #[test]
    fn a_stateset_names_every_state() {
        let mut one = exposition();
        one.states(VERDICT, &[], VERDICTS.iter().map(|it| (it.name(), *it == Verdict::Incomplete)));
        let text = one.text();
        assert_eq!(text.matches("} 1\n").count(), 1, "{text}");
        assert!(text.contains("governed_ledger_verdict=\"incomplete\"} 1\n"), "{text}");
        assert!(text.contains("governed_ledger_verdict=\"accepted\"} 0\n"), "{text}");
    }
}
