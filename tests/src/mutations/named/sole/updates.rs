//! `GL4xx` and `GL5xx`: what updates did, what was evaluated and chosen.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::edits::*;
use super::{joined, owner, trainer};
use crate::mutations::named::runs::{HANDED, RETIRED, STATEFUL, VALUED, WARM};
use crate::mutations::records::PLAIN;
use crate::mutations::{Mutation, Record};

/// Bits of a binary32 of which the lowest is another one.
const fn other_bit(_: usize, bits: u32) -> u32 {
    bits ^ 1
}

pub(super) fn list() -> Vec<Mutation> {
    joined([updates(), frozen(), evaluations(), choices()])
}

fn updates() -> Vec<Mutation> {
    vec![
        trainer("GL401", "a rate that is one bit off", PLAIN, |r| {
            let place = r.at_step("step", 7)?;
            next_float(r, place, "/body/det/updates/1/learning_rate")
        }),
        trainer("GL402", "another decay", PLAIN, |r| {
            let place = r.at_step("step", 7)?;
            r.set(place, "/body/det/updates/0/weight_decay", 0.2)
        }),
        trainer("GL403", "another clip coefficient", PLAIN, |r| {
            let place = r.at_step("step", 7)?;
            scale(r, place, "/body/det/updates/0/clip_coefficient", 0.5)
        }),
        trainer("GL404", "a loss that is not a number", PLAIN, |r| {
            let place = r.at_step("step", 7)?;
            r.set(place, "/body/det/credit/backpropagation/loss", "NaN:7ff8000000000000")
        }),
        trainer("GL405", "an overflow without a scaler", PLAIN, |r| {
            let place = r.at_step("step", 7)?;
            r.set(place, "/body/det/overflow", json!({"found": false, "scale": 1.0, "skipped": false}))
        }),
        trainer("GL415", "a gradient that was not clipped, and its norm", PLAIN, unclipped),
        trainer("GL411", "a step of another credit rule, with all that is counted", PLAIN, evolved),
    ]
}

/// A step whose gradient is said to have been shorter than the bound, so that
/// nothing was clipped.
fn unclipped(record: &mut Record) -> Result<()> {
    let place = record.at_step("step", 7)?;
    let pointer = "/body/det/credit/backpropagation/gradient_norm";
    let norm = record.value(place, pointer)?.as_f64().context("a norm")?;
    record.set(place, pointer, norm.min(1.0) * 0.9)?;
    let num_groups = record.value(place, "/body/det/updates")?.as_array().context("groups")?.len();
    (0..num_groups)
        .try_for_each(|group| record.set(place, &format!("/body/det/updates/{group}/clip_coefficient"), 1.0))
}

fn frozen() -> Vec<Mutation> {
    vec![
        owner("GL406", "a card without nonclaims", PLAIN, |r| card(r, "/nonclaims", json!([]))),
        owner("GL407", "a parameter of another initialiser", PLAIN, |r| {
            refreeze(r, |r| {
                r.edit_artifact("/parameters", |manifest| {
                    let parameter = manifest.pointer_mut("/parameters/0/initializer/std");
                    *parameter.context("a parameter that is drawn")? = json!(0.5);
                    Ok(())
                })
            })
        }),
        owner("GL412", "a fallback that no trainer executes", PLAIN, |r| {
            let update = json!({
                "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "family": "adamw", "moment_dtype": "F32"
            });
            card(r, "/fallback", json!({"groups": ["vectors"], "update": update}))
        }),
        owner("GL413", "a plateau whose floor is above its rate", RETIRED, |r| {
            contract(r, "/schedule/2/shape/floor", 0.01)
        }),
        owner("GL414", "everything dropped", PLAIN, |r| contract(r, "/architecture/dropout", 1.0)),
        trainer("GL408", "initial values that the seed does not give", PLAIN, |r| {
            tensors(r, 0, "model.safetensors", other_bit)
        }),
        trainer("GL410", "a first moment before the first update", PLAIN, |r| {
            tensors(r, 0, "optimizer.safetensors", |place, bits| if place == 0 { 0x3f80_0001 } else { bits })
        }),
        // Where every step is saved, no norm can be written that fits two states of
        // one update; `unknowable` has the same where some are not.
        owner("GL416", "another decay of first moments, with norms that fit", STATEFUL, |r| {
            card(r, "/update/beta1", 0.85)
        })
        .with_norms_that_fit(),
        owner("GL416", "another epsilon, with norms that fit", STATEFUL, |r| {
            card(r, "/update/epsilon", 1e-6)
        })
        .with_norms_that_fit(),
        trainer("GL416", "a norm that the saved parameters do not have", PLAIN, |r| {
            let place = r.at_step("step", 20)?;
            scale(r, place, "/body/det/updates/0/parameter_norm", 1.0 + 1e-9)
        }),
        trainer("GL416", "a change that the saved moments did not make", PLAIN, |r| {
            let place = r.at_step("step", 20)?;
            scale(r, place, "/body/det/updates/1/update_norm", 1.01)
        }),
        trainer("GL416", "norms that a run of the project's trainer does not take", PLAIN, without_norms),
        owner("GL646", "a source that its contract does not give", WARM, |r| {
            contract(r, "/initialization/lineage/contract", format!("sha256:{}", "5".repeat(64)))
        }),
    ]
}

fn evaluations() -> Vec<Mutation> {
    vec![
        trainer("GL501", "an evaluation that nobody made", STATEFUL, evaluation_left_out),
        trainer("GL502", "an evaluation of fewer examples", PLAIN, |r| {
            let place = r.at_step("eval", 5)?;
            add(r, place, "/body/det/num_examples", -1)
        }),
        trainer("GL503", "a value that does not follow from its sum", PLAIN, |r| {
            let place = r.at_step("eval", 5)?;
            next_float(r, place, "/body/det/total_nats")
        }),
        trainer("GL504", "another model evaluated than saved", PLAIN, |r| {
            let place = r.at_step("eval", 5)?;
            other_digest(r, place, "/body/det/model")
        }),
        trainer("GL508", "a value that the evaluator does not find", VALUED, |r| {
            let place = target_at(r, 5)?;
            scale(r, place, "/body/det/total_nats", 1.125)?;
            let value = |pointer| r.value(place, pointer)?.as_f64().context("a number");
            let (nats, tokens) = (value("/body/det/total_nats")?, value("/body/det/num_tokens")?);
            r.set(place, "/body/det/value", nats / (tokens * std::f64::consts::LN_2))
        }),
        owner("GL509", "a target on training text", VALUED, target_on_train),
    ]
}

fn choices() -> Vec<Mutation> {
    vec![
        trainer("GL505", "a candidate of another name", PLAIN, |r| {
            let place = r.at_step("candidate.admitted", 5)?;
            r.set(place, "/body/obs/candidate", "candidate-best")
        }),
        trainer("GL506", "a candidate of another configuration", PLAIN, |r| {
            let place = r.at_step("candidate.admitted", 5)?;
            other_digest(r, place, "/body/det/config")
        }),
        trainer("GL507", "a smaller family", PLAIN, |r| {
            let place = r.first("candidate.selected")?;
            add(r, place, "/body/det/num_candidates", -1)
        }),
        trainer("GL510", "a target that is said to be missed", VALUED, |r| {
            let place = r.first("run.end")?;
            r.set(place, "/body/det/target_met", false)
        }),
        owner("GL512", "a target that a model which knows nothing reaches", VALUED, |r| {
            contract(r, "/quality_target/threshold", 9.0)
        }),
        trainer("GL511", "a handoff of another step", HANDED, |r| {
            let place = r.first("handoff.issued")?;
            r.set(place, "/body/det/step", 5)?;
            r.set(place, "/step", 5)
        }),
    ]
}

/// A step says that a population made it, and no counter contradicts it.
fn evolved(record: &mut Record) -> Result<()> {
    const MEMBERS: i64 = 8;
    let place = record.at_step("step", 7)?;
    let old = record.value(place, "/body/det/credit/backpropagation")?.clone();
    let tokens = old["num_tokens"].as_i64().context("a count")?;
    let credit =
        json!({"evolution": {"evaluations": MEMBERS, "fitness": old["loss"], "population": MEMBERS}});
    record.set(place, "/body/det/credit", credit)?;
    for later in place..record.entries.len() {
        if record.value(later, "/body/det/counters").is_ok() {
            add(record, later, "/body/det/counters/evaluations", MEMBERS)?;
            add(record, later, "/body/det/counters/tokens", -tokens)?;
        }
    }
    for step in [10, 15, 20] {
        let last = record.at_step("step", step)?;
        let tokens = record.value(last, "/body/det/counters/tokens")?.clone();
        shard(record, step, "data_cursor.json", "/tokens", tokens)?;
    }
    Ok(())
}

/// Place of the evaluation of the target's stream at a step.
fn target_at(record: &Record, step: u64) -> Result<usize> {
    let places = record.places("eval").into_iter();
    let is_it = |entry: &Value| entry["step"] == step && entry["body"]["det"]["stream"] == "target";
    places.rev().find(|place| is_it(&record.entries[*place])).context("an evaluation of the target")
}

/// The averages are not evaluated at one step.
fn evaluation_left_out(record: &mut Record) -> Result<()> {
    let stream = json!("averaged");
    remove_where(record, |entry| entry["step"] == 2 && entry.pointer("/body/det/stream") == Some(&stream))
}

/// The stream that decides the target is the train split's, and says so.
fn target_on_train(record: &mut Record) -> Result<()> {
    contract(record, "/evaluation/streams/1/split", "train")?;
    for step in [0, 5, 10, 15, 20] {
        let place = target_at(record, step)?;
        record.set(place, "/body/det/split", "train")?;
    }
    Ok(())
}
