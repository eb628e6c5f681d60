//! Evaluations that nobody made: values that agree with each other wherever they
//! stand, and by which another candidate was selected.
//!
//! No entry and no file contradicts them. Only numbers that somebody else computes
//! from the same weights do; nothing here knows of such numbers.

use std::f64::consts::LN_2;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::edits::add;
use crate::mutations::Record;

/// How much worse than the best of the others the selected one is made: a hundred
/// times what trainer and evaluator may differ by.
const WORSE: f64 = 1.01;

/// Makes the newest candidate, which was selected, look worse than the best of the
/// others, so that this one is selected: evaluation, admission, selection, the
/// saved state of the selection, and what it costs.
///
/// # Errors
/// When the contract evaluates several streams, an older candidate was selected,
/// there is no other, or the record lacks what is changed.
pub fn another_selection(record: &mut Record) -> Result<()> {
    let streams = record.contract["evaluation"]["streams"].as_array().context("streams")?;
    ensure!(streams.len() == 1 && streams[0]["direction"] == "minimize", "one stream, to be minimized");
    let selected = record.first("candidate.selected")?;
    let newest = step_of(record, selected)?;
    let mut others = Vec::new();
    for place in record.places("candidate.admitted") {
        let (step, value) = (step_of(record, place)?, number(record, place, "/body/det/value")?);
        ensure!(step <= newest, "an older candidate was selected");
        if step < newest {
            others.push((place, step, value));
        }
    }
    let best = others.into_iter().min_by(|left, right| left.2.total_cmp(&right.2));
    let (other, other_step, best) = best.context("another candidate")?;

    let eval = record.at_step("eval", newest)?;
    let num_tokens = number(record, eval, "/body/det/num_tokens")?;
    let total_nats = best * WORSE * num_tokens * LN_2;
    // As the metric follows from the sum: bits per byte.
    let value = total_nats / (num_tokens * LN_2);
    record.set(eval, "/body/det/total_nats", total_nats)?;
    record.set(eval, "/body/det/value", value)?;
    let admitted = record.at_step("candidate.admitted", newest)?;
    record.set(admitted, "/body/det/value", value)?;
    let pointers = ["/body/det/model", "/body/det/step", "/body/det/value"];
    for pointer in pointers.into_iter().chain(["/body/obs/candidate", "/body/obs/checkpoint"]) {
        let of_other = record.value(other, pointer)?.clone();
        record.set(selected, pointer, of_other)?;
    }
    selection_state(record, newest, other_step, best)
}

/// The newest checkpoint says which evaluation was the best, and how many followed.
fn selection_state(record: &mut Record, newest: u64, best_step: u64, best_value: f64) -> Result<()> {
    let is_later = |place: &usize| record.entries[*place]["step"].as_u64() > Some(best_step);
    let num_later = record.places("eval").into_iter().filter(is_later).count();
    let path = record.checkpoint(newest)?.join("selection_state.json");
    let before = record.file(&path)?.len();
    record.edit_json(path.clone(), |state| {
        state["best_step"] = json!(best_step);
        state["best_value"] = json!(best_value);
        state["evaluations_without_improvement"] = json!(num_later);
        Ok(())
    })?;
    let after = record.file(&path)?.len();
    // Else the manifest, which names the size, has another one too.
    ensure!(before.to_string().len() == after.to_string().len(), "the size has as many digits");
    let grown = i64::try_from(after)? - i64::try_from(before)?;
    if grown != 0 {
        for kind in ["attempt.end", "run.end"] {
            let place = record.last(kind)?;
            add(record, place, "/body/obs/cost/checkpoint_bytes", grown)?;
        }
    }
    Ok(())
}

fn step_of(record: &Record, place: usize) -> Result<u64> {
    record.value(place, "/body/det/step")?.as_u64().context("a step")
}

fn number(record: &Record, place: usize, pointer: &str) -> Result<f64> {
    record.value(place, pointer)?.as_f64().with_context(|| format!("{pointer} is no number"))
}
