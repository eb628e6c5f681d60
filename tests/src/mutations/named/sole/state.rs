//! `GL6xx` and `GL7xx`: what was saved and probed, and by what authority.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::edits::*;
use super::{joined, owner, trainer};
use crate::mutations::named::runs::{
    FROZEN, HALF, HANDED, PATIENT, RECOVERED, RETIRED, STATEFUL, STATISTICAL, TREE, VALUED,
};
use crate::mutations::records::PLAIN;
use crate::mutations::{Mutation, Record};

/// Bits of a binary32 that bfloat16 holds.
const BF16_BITS: u32 = 0xffff_0000;

/// A tensor of so many elements or fewer is too small to be judged by [`BF16_BITS`].
const MIN_ELEMENTS: u64 = 16;

pub(super) fn list() -> Vec<Mutation> {
    joined([checkpoints(), components(), probes(), anomalies(), authority()])
}

fn checkpoints() -> Vec<Mutation> {
    vec![
        owner("GL601", "checkpoints that are not due", PATIENT, |r| {
            contract(r, "/checkpoints/every_steps", 15)
        }),
        trainer("GL602", "a checkpoint that was never staged", PLAIN, |r| remove(r, "checkpoint.staged", 10)),
        owner("GL603", "a class left out for a reason that does not hold", PLAIN, |r| {
            // As long as the true one, so that no manifest changes its size.
            let reason = "function_of_position";
            let pointer = declaration(r, "rng_device")?;
            contract(r, &pointer, reason)?;
            for step in [0, 5, 10, 15, 20] {
                in_manifest(r, step, "rng_device", |class| {
                    class["not_applicable"] = json!(reason);
                    Ok(())
                })?;
            }
            Ok(())
        }),
        trainer("GL604", "a class of another step", PLAIN, |r| {
            in_manifest(r, 10, "sampler", |class| {
                class["step"] = json!(11);
                Ok(())
            })
        }),
        trainer("GL605", "a tensor of another dtype than its file has", PLAIN, |r| {
            in_manifest(r, 10, "optimizer", |class| {
                let dtype = class.pointer_mut("/shards/0/tensors/0/dtype");
                *dtype.context("a tensor")? = json!("F16");
                Ok(())
            })
        }),
        trainer("GL606", "a state digest of other bytes", PLAIN, |r| {
            let place = r.at_step("checkpoint.durably_committed", 10)?;
            other_digest(r, place, "/body/det/classes/1/digest")
        }),
        trainer("GL607", "a patience counter that was reset", PLAIN, |r| {
            shard(r, 10, "selection_state.json", "/evaluations_without_improvement", 7)
        }),
        trainer("GL608", "a step without its state digests", VALUED, |r| {
            let place = r.at_step("step", 6)?;
            r.set(place, "/body/det/state", Value::Null)
        }),
        trainer("GL610", "a reason that the record does not give", RETIRED, |r| {
            let place = r.first("checkpoint.retired")?;
            r.set(place, "/body/det/reason", "superseded")
        }),
        trainer("GL611", "averages that were not averaged", STATEFUL, |r| {
            tensors(r, 8, "averages.safetensors", |_, bits| bits ^ 1)
        }),
        trainer("GL612", "a retirement while the next state is being saved", RETIRED, |r| {
            let place = r.first("checkpoint.retired")?;
            let retired = r.entries.remove(place);
            let places = r.places("checkpoint.requested").into_iter();
            let next = places.into_iter().find(|next| *next >= place).context("a later save")?;
            r.entries.insert(next + 1, retired);
            Ok(())
        }),
        trainer("GL613", "an index of another size", FROZEN, |r| {
            let name = "model.safetensors.index.json";
            let path = r.checkpoint(10)?.join(name);
            let index: Value = serde_json::from_slice(&r.file(path)?)?;
            let size = index.pointer("/metadata/total_size").and_then(Value::as_u64).context("a size")?;
            shard(r, 10, name, "/metadata/total_size", size + 4)
        }),
        trainer("GL614", "a root over other tensors", TREE, |r| {
            let place = r.at_step("checkpoint.durably_committed", 10)?;
            other_digest(r, place, "/body/det/state_root")
        }),
    ]
}

fn components() -> Vec<Mutation> {
    vec![
        owner("GL648", "bounds beside a bitwise claim", PLAIN, |r| {
            contract(r, "/resume/tolerance", json!({"max_absolute": 0.001, "max_relative": 0.001}))
        }),
        owner("GL649", "a candidate that need not be read back", PLAIN, |r| {
            contract(r, "/checkpoints/candidate_stage", "staged")
        }),
        trainer("GL630", "a scale that did not back off", HALF, |r| {
            let place = r.at_step("step", 2)?;
            scale(r, place, "/body/det/overflow/scale", 2.0)
        }),
        trainer("GL631", "a skipped step that changed something", HALF, |r| {
            let place = r.at_step("step", 1)?;
            r.set(place, "/body/det/updates/0/update_norm", 0.5)
        }),
        trainer("GL632", "sums of another loss", HALF, |r| {
            shard(r, 20, "accumulated_gradients.json", "/nats", 3.5)
        }),
    ]
}

fn probes() -> Vec<Mutation> {
    vec![
        trainer("GL620", "a distance that is not a number", HANDED, |r| {
            let place = control(r)?;
            let model = "/body/det/distances/0/distance/max_absolute";
            r.set(place, model, "NaN:7ff8000000000000")
        }),
        trainer("GL621", "a reference that recorded something else", HANDED, |r| {
            let place = r.first("probe.result")?;
            other_digest(r, place, "/body/det/reference/records")
        }),
        trainer("GL622", "qualified in another class", HANDED, |r| {
            let place = r.first("checkpoint.resume_qualified")?;
            r.set(place, "/body/det/class", "statistical")
        }),
        trainer("GL623", "a pair of continuations left out", STATISTICAL, |r| {
            let place = r.last("probe.result")?;
            let samples = r.entries[place].pointer_mut("/body/det/samples").and_then(Value::as_array_mut);
            samples.context("pairs")?.pop().context("a pair").map(|_| ())
        }),
    ]
}

fn anomalies() -> Vec<Mutation> {
    vec![
        trainer("GL640", "an anomaly that nothing shows", PLAIN, |r| {
            let state = whole(r, 10, "optimizer", None)?;
            say_anomaly(r, 10, "unchanged_state", &state)
        }),
        trainer("GL641", "masters that were rounded to bfloat16, with norms that fit", PLAIN, |r| {
            tensors(r, 20, "model.safetensors", |_, bits| bits & BF16_BITS)?;
            let tensors = sizes(r, 20, "model.safetensors")?;
            let large = tensors.into_iter().filter(|(_, size)| *size > MIN_ELEMENTS);
            let state = summed("model", &large.collect::<Vec<_>>(), true);
            say_anomaly(r, 20, "bf16_only_mantissas", &state)
        })
        .with_norms_that_fit(),
        trainer("GL643", "a model that updates did not change, with norms that fit", PLAIN, |r| {
            stale(r, "model.safetensors", 15, 20)?;
            let state = whole(r, 20, "model", None)?;
            say_anomaly(r, 20, "unchanged_state", &state)
        })
        .with_norms_that_fit(),
    ]
}

fn authority() -> Vec<Mutation> {
    vec![
        owner("GL701", "nothing that the run will not show", PLAIN, |r| contract(r, "/nonclaims", json!([]))),
        owner("GL702", "a grant of nobody", PLAIN, |r| contract(r, "/purpose/authority/granted_by", "")),
        owner("GL703", "the trainer's key in another role", PLAIN, |r| {
            let public = r.contract["keys"]["trainer"]["public"].clone();
            contract(r, "/keys/validator/public", public)
        }),
        owner("GL705", "a set that is not sealed", PLAIN, |r| {
            let digest = r.contract["qualification"]["sealed"]["digest"].clone();
            contract(r, "/qualification/plaintext", digest)
        }),
        owner("GL707", "a planned fault that did not act", PLAIN, |r| {
            let fault = json!({
                "fault": "data_cursor_skip", "phase": "before_forward", "seed": "1", "step": 3, "worker": null
            });
            contract(r, "/faults/plan", json!([fault]))
        }),
        trainer("GL708", "an amendment of the future", PLAIN, |r| {
            append(r, "amendment", &json!({"amends": 10_000, "statement": "not so"}), &json!({}))
        }),
        trainer("GL710", "a fault taken for another one", RECOVERED, |r| {
            let place = r.first("fault.observed")?;
            r.set(place, "/body/det/cause", "checkpoint_write_interruption")
        }),
    ]
}

/// The last control in whose model something differs, which is not the cold one.
fn control(record: &Record) -> Result<usize> {
    let differs = |place: &usize| {
        record.entries[*place].pointer("/body/det/distances/0/equal") == Some(&Value::Bool(false))
    };
    record.places("probe.result").into_iter().rfind(differs).context("a control that differs")
}

/// What an anomaly says of a whole class.
fn whole(record: &Record, step: u64, class: &str, tensor: Option<&str>) -> Result<Value> {
    let name = format!("{class}.safetensors");
    let mut state = summed(class, &sizes(record, step, &name)?, false);
    if state["num_tensors"] == 0 {
        bail!("{name} has no tensors");
    }
    state["tensor"] = json!(tensor);
    Ok(state)
}

/// What an anomaly says of some tensors, in name order.
pub(in crate::mutations::named) fn summed(class: &str, tensors: &[(String, u64)], is_named: bool) -> Value {
    let first = tensors.first().filter(|_| is_named).map(|(name, _)| name.clone());
    let num_elements: u64 = tensors.iter().map(|(_, size)| size).sum();
    json!({"class": class, "num_elements": num_elements, "num_tensors": tensors.len(), "tensor": first})
}
