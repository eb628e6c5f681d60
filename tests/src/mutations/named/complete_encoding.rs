//! Nine fields of the complete encoding, each with a value of another state.
//!
//! Every digest above the field is made again, so that the checkpoint is whole
//! and consistent; it only is not the state of its step.

use anyhow::Result;
use serde_json::json;

use super::edits::{in_manifest, shard, stale};
use super::runs::{HALF, STATEFUL, VALUED};
use crate::mutations::records::PLAIN;
use crate::mutations::{Mutation, Record, Records};

pub(super) const SUITE: &str = "complete-encoding";

/// The suite.
///
/// # Errors
/// None; the list is fixed.
pub(super) fn mutations(_: &Records) -> Result<Vec<Mutation>> {
    let new = |name: &str, origin, killers: &[&'static str], edit: fn(&mut Record) -> Result<()>| {
        Mutation::new(SUITE, name, origin, killers, edit)
    };
    Ok(vec![
        new("weights of an earlier step", VALUED, &["GL508", "GL643"], |r| {
            stale(r, "model.safetensors", 5, 10)
        }),
        new("a step that is another one", PLAIN, &["GL604"], |r| {
            in_manifest(r, 10, "optimizer", |class| {
                class["step"] = json!(11);
                Ok(())
            })
        }),
        new("moments of an earlier step", PLAIN, &["GL643"], |r| stale(r, "optimizer.safetensors", 5, 10)),
        new("plateaus of an earlier step", STATEFUL, &["GL607"], |r| stale(r, "scheduler.json", 4, 6)),
        new("a stream of masks of an earlier step", STATEFUL, &["GL633"], |r| stale(r, "rng_cpu.json", 4, 6)),
        new("a loss scale of an earlier step", HALF, &["GL607"], |r| stale(r, "loss_scaler.json", 5, 10)),
        new("a cursor of an earlier step", PLAIN, &["GL607"], |r| stale(r, "data_cursor.json", 5, 10)),
        new("a shuffle buffer of an earlier step", STATEFUL, &["GL607"], |r| stale(r, "sampler.json", 4, 6)),
        new("a topology of other workers", PLAIN, &["GL607"], |r| {
            shard(r, 10, "topology.json", "/workers", 2)
        }),
    ])
}
