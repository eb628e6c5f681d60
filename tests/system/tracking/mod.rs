//! Exports of numbers: OpenMetrics and MLPerf lines, shown to the tools that
//! read them, and MLflow, on a real server. What the tools read is compared with
//! the entries, to the bit.

mod mlflow;
mod texts;

use serde_json::{Value, json};
use system_tests::run_folder::RunFolder;

/// Update in which the planned fault ends the process.
const LOST_AT: u64 = 12;

/// Bits per byte that a few updates reach: just below those of a guess, since a
/// freeze refuses what nothing could miss.
const EASY_TARGET: f64 = 7.99;

/// A frozen run whose process is lost in an update, once, and whose target is
/// met by whatever it learns.
#[track_caller]
fn to_be_lost() -> RunFolder {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| {
        let stream = contract["selection"]["stream"].clone();
        contract["quality_target"] =
            json!({"derivation": "a test", "stream": stream, "threshold": EASY_TARGET});
        contract["faults"]["plan"] = json!([
            {"fault": "worker_loss", "phase": "after_backward", "seed": "7", "step": LOST_AT, "worker": null}
        ]);
    });
    let _ = run.freeze().expect_code(0);
    run
}

/// Entries of a kind and an attempt; attempt 0 for every attempt.
fn of<'a>(entries: &'a [Value], kind: &'a str, attempt: u64) -> impl Iterator<Item = &'a Value> {
    entries.iter().filter(move |entry| entry["kind"] == kind && (attempt == 0 || entry["attempt"] == attempt))
}

/// A number of an entry: floats that are not finite are strings there.
#[track_caller]
fn number(value: &Value) -> f64 {
    match value.as_str() {
        Some("Infinity") => f64::INFINITY,
        Some("-Infinity") => f64::NEG_INFINITY,
        Some(_) => f64::NAN,
        None => value.as_f64().expect("a number"),
    }
}

/// A number as Python spells it.
#[track_caller]
fn spelled(value: &Value) -> f64 {
    value.as_str().expect("a number as text").parse().expect("a number")
}

#[track_caller]
fn assert_same_bits(read: f64, recorded: f64, what: &str) {
    assert!(
        read.to_bits() == recorded.to_bits() || (read.is_nan() && recorded.is_nan()),
        "{what}: {read} was read, {recorded} recorded"
    );
}
