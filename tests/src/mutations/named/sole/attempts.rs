//! `GL2xx` and `GL3xx`: the frame of the run, its attempts, and its data.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::edits::*;
use super::{joined, owner, trainer};
use crate::mutations::named::runs::{PATIENT, RECOVERED, ROLLED_BACK, WORKERS};
use crate::mutations::records::PLAIN;
use crate::mutations::{Mutation, Record};

pub(super) fn list() -> Vec<Mutation> {
    joined([attempts(), accounts(), terms(), data()])
}

fn attempts() -> Vec<Mutation> {
    vec![
        trainer("GL201", "a diagnostic after the end", PLAIN, |r| {
            append(r, "diagnostic", &json!({"name": "late", "values": {}}), &json!({"values": {}}))
        }),
        trainer("GL202", "a vanished attempt that was not at its last step", RECOVERED, |r| {
            let place = r.first("fault.observed")?;
            add(r, place, "/body/det/last_step", -1)
        }),
        trainer("GL203", "a resume from another manifest", RECOVERED, |r| {
            let place = r.last("attempt.start")?;
            other_digest(r, place, "/body/det/resumed_from/manifest")
        }),
        trainer("GL204", "lost steps that are not counted, and not charged", RECOVERED, |r| {
            let place = r.first("fault.recovered")?;
            add(r, place, "/body/det/num_steps_lost", -1)?;
            let places = r.places("cost");
            let is_steps =
                |place: &&usize| r.entries[**place].pointer("/body/obs/unit") == Some(&json!("steps"));
            let steps = *places.iter().find(is_steps).context("a cost in steps")?;
            let lost = r.value(steps, "/body/obs/amount")?.as_f64().context("an amount")?;
            r.set(steps, "/body/obs/amount", lost - 1.0)
        }),
        trainer("GL205", "a step that gives another loss the second time", RECOVERED, |r| {
            let step = repeated_step(r)?;
            next_float(r, step, "/body/det/credit/backpropagation/loss")
        }),
        trainer("GL206", "another compiler", PLAIN, |r| {
            let place = r.first("attempt.start")?;
            r.set(place, "/body/obs/environment/rustc", "rustc 1.0.0")
        }),
        trainer("GL207", "instrumentation", PLAIN, |r| {
            let place = r.first("attempt.start")?;
            r.set(place, "/body/obs/plan/instrumentation", json!(["failpoints"]))
        }),
        trainer("GL208", "a segment of another identity", PLAIN, |r| {
            let place = r.first("segment.start")?;
            other_digest(r, place, "/body/det/identity")
        }),
        owner("GL209", "patience that had ended before", PATIENT, |r| contract(r, "/stopping/patience", 2)),
        owner("GL210", "more attempts than the budget", RECOVERED, |r| {
            contract(r, "/budget/max_attempts", 1)
        }),
    ]
}

fn accounts() -> Vec<Mutation> {
    vec![
        trainer("GL211", "an attempt that is counted twice", PLAIN, |r| {
            let place = r.first("run.end")?;
            add(r, place, "/body/obs/num_attempts", 1)
        }),
        trainer("GL212", "less time than the attempt took", PLAIN, |r| {
            let place = r.first("run.end")?;
            add(r, place, "/body/obs/cost/cpu_us", -1)
        }),
        trainer("GL213", "an evaluation of another learner", PLAIN, |r| {
            let place = r.at_step("eval", 5)?;
            r.set(place, "/learner", 1)
        }),
        trainer("GL214", "gradients of the update before", WORKERS, |r| {
            let (earlier, later) = (r.at_step("step", 6)?, r.at_step("step", 7)?);
            let gradients = r.value(earlier, "/body/obs/shares/1/gradients")?.clone();
            r.set(later, "/body/obs/shares/1/gradients", gradients)
        }),
        trainer("GL215", "a replica that parted", WORKERS, |r| {
            let place = r.at_step("step", 10)?;
            other_digest(r, place, "/body/obs/replicas/1/digest")
        }),
        trainer("GL216", "a recovery that cost nothing", RECOVERED, |r| {
            let place = r.first("cost")?;
            scale(r, place, "/body/obs/amount", 2.0)
        }),
        trainer("GL217", "a fault of itself that did not end the attempt", ROLLED_BACK, |r| {
            let place = r.first("attempt.end")?;
            r.set(place, "/body/det/outcome", "interrupted")
        }),
    ]
}

fn terms() -> Vec<Mutation> {
    vec![
        owner("GL218", "more steps that a crash may take than is a bound", PLAIN, |r| {
            contract(r, "/durability/max_unsynced_steps", 20_000)
        }),
        trainer("GL221", "evaluations that cost nothing", PLAIN, |r| {
            for kind in ["attempt.end", "run.end"] {
                let place = r.first(kind)?;
                r.set(place, "/body/obs/cost/eval_us", 0)?;
            }
            Ok(())
        }),
        owner("GL222", "a rewrite that is permitted twice", PLAIN, |r| {
            contract(r, "/topology/permitted_rewrites", json!(["thread_count", "thread_count"]))
        }),
        owner("GL223", "patience that asks for more than there is to gain", PATIENT, |r| {
            contract(r, "/stopping/min_delta", 9.0)
        }),
    ]
}

fn data() -> Vec<Mutation> {
    vec![
        trainer("GL301", "another number of microbatches", PLAIN, |r| {
            let place = r.at_step("step", 7)?;
            r.set(place, "/body/det/credit/backpropagation/num_microbatches", 1)
        }),
        trainer("GL302", "a draw for another purpose", PLAIN, |r| {
            let place = r.at_step("step", 7)?;
            r.set(place, "/body/det/draws/0/purpose", "rehearsal")
        }),
        trainer("GL303", "other examples", PLAIN, |r| {
            let place = r.at_step("step", 7)?;
            other_digest(r, place, "/body/det/draws/0/ids")
        }),
        trainer("GL304", "other bytes fed to a step", PLAIN, |r| {
            let place = r.at_step("step", 7)?;
            other_digest(r, place, "/body/det/draws/0/inputs")
        }),
        trainer("GL305", "a target too many in the last step, carried to its end", PLAIN, one_target_more),
        owner("GL307", "an example of other content", PLAIN, |r| {
            refreeze(r, |r| {
                let table = r.artifacts.get_mut("/data/val_examples").context("a table")?;
                // The last record is none of the first ones, which are evaluated.
                let last = table.last_mut().context("records")?;
                *last ^= 1;
                Ok(())
            })
        }),
        owner("GL308", "a license class that is not admitted", PLAIN, |r| {
            contract(r, "/data/admitted_license_classes", json!(["yellow"]))
        }),
    ]
}

/// The second entry of the first step that was executed twice.
fn repeated_step(record: &Record) -> Result<usize> {
    let second = record.last("attempt.start")?;
    let from_step = record.value(second, "/body/det/from_step")?.as_u64().context("a step")?;
    let places = record.places("step").into_iter();
    let mut repeated =
        places.filter(|place| *place > second && record.entries[*place]["step"] == from_step + 1);
    let place = repeated.next().context("a step that is executed again")?;
    ensure!(record.at_step("step", from_step + 1)? < place, "it was executed before");
    Ok(place)
}

fn one_target_more(record: &mut Record) -> Result<()> {
    let (last, end) = (record.last("step")?, record.first("run.end")?);
    add(record, last, "/body/det/credit/backpropagation/num_tokens", 1)?;
    add(record, last, "/body/det/counters/tokens", 1)?;
    add(record, end, "/body/det/counters/tokens", 1)?;
    let step = record.value(last, "/step")?.as_u64().context("a step")?;
    let tokens = record.value(last, "/body/det/counters/tokens")?.clone();
    shard(record, step, "data_cursor.json", "/tokens", tokens)
}
