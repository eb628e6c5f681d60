//! What several rules find, of rules that are the only killer of nothing.
//!
//! [`super::sole::NOT_SOLE`] says of each why; here the rule fires on a real
//! record, and so does the one that the reason names.

use anyhow::{Context, Result, ensure};
use ledger::dsse;
use schemas::dsse::{Envelope, IN_TOTO_PAYLOAD_TYPE};
use serde_json::{Value, json};

use super::edits::{add, say_anomaly, shard, sizes, tensors};
use super::runs::{FROZEN, VALUED, WORKERS};
use super::sole::summed;
use crate::mutations::records::PLAIN;
use crate::mutations::{Mutation, Record, Records};

pub(super) const SUITE: &str = "implied";

/// A rule and the one that finds the same, as [`mutations`] has them in order.
pub const PAIRS: [(&str, &str); 7] = [
    ("GL109", "GL508"),
    ("GL306", "GL302"),
    ("GL409", "GL613"),
    ("GL633", "GL607"),
    ("GL642", "GL415"),
    ("GL644", "GL607"),
    ("GL645", "GL605"),
];

/// The suite, in the order of [`PAIRS`].
///
/// # Errors
/// None; the list is fixed.
pub(super) fn mutations(_: &Records) -> Result<Vec<Mutation>> {
    let new = |name: &str, origin, killers: &[&'static str], edit: fn(&mut Record) -> Result<()>| {
        Mutation::new(SUITE, name, origin, killers, edit)
    };
    Ok(vec![
        new(
            "the evaluator's numbers under the trainer's signature",
            VALUED,
            &["GL109"],
            signed_by_the_trainer,
        ),
        new("an example that was trained on twice", PLAIN, &["GL306"], |r| {
            let place = r.at_step("step", 7)?;
            add(r, place, "/body/det/draws/0/ranges/0/first", -1)
        }),
        new("a frozen parameter that moved", FROZEN, &["GL409"], |r| {
            tensors(r, 10, "model-frozen.safetensors", |_, bits| bits ^ 1)
        }),
        new("the stream of a worker that began again", WORKERS, &["GL633"], |r| {
            shard(r, 10, "rng_cpu.1.json", "/blocks", 0)
        }),
        new("an optimizer that was reset, and says so", PLAIN, &["GL642"], |r| {
            tensors(r, 20, "optimizer.safetensors", |_, _| 0)?;
            let state = summed("optimizer", &sizes(r, 20, "optimizer.safetensors")?, true);
            say_anomaly(r, 20, "zero_moments", &state)
        }),
        new("two workers with one stream", WORKERS, &["GL644"], |r| {
            let path = r.checkpoint(10)?.join("rng_cpu.0.json");
            let of_first: Value = serde_json::from_slice(&r.file(path)?)?;
            shard(r, 10, "rng_cpu.1.json", "/key", of_first["key"].clone())
        }),
        new("a tied head with a tensor of its own", PLAIN, &["GL645"], tied_head),
    ])
}

/// The very numbers, signed by who is measured.
fn signed_by_the_trainer(record: &mut Record) -> Result<()> {
    const NUMBERS: &str = "run.db.val.dsse.json";
    let envelope: Envelope = serde_json::from_slice(&record.file(NUMBERS)?)?;
    let qualifier = record.contract["keys"]["qualifier"]["public"].as_str().context("the qualifier's key")?;
    let payload = dsse::verify(&envelope, IN_TOTO_PAYLOAD_TYPE, qualifier)?;
    let envelope = dsse::sign(IN_TOTO_PAYLOAD_TYPE, &payload, &record.source.trainer);
    record.write_file(NUMBERS, serde_json::to_vec(&envelope)?);
    Ok(())
}

/// The tied head of a checkpoint gets a tensor of its own, as an export that
/// forgets the tie would write it: the embedding's values under another name.
fn tied_head(record: &mut Record) -> Result<()> {
    const NAME: &str = "lm_head.weight";
    let folder = record.checkpoint(10)?;
    let path = folder.join("model.safetensors");
    let bytes = record.file(&path)?;
    let (length, rest) = bytes.split_first_chunk::<8>().context("a safetensors file")?;
    let (header, data) = rest.split_at(usize::try_from(u64::from_le_bytes(*length))?);
    let mut header: Value = serde_json::from_slice(header)?;
    let embedding = header["model.embed_tokens.weight"].clone();
    let offsets: Vec<usize> = serde_json::from_value(embedding["data_offsets"].clone())?;
    let copy = data.get(offsets[0]..offsets[1]).context("the embedding's values")?;
    // Names are in order, so that the head is the first and all others follow.
    let tensors = header.as_object_mut().context("a header")?;
    for tensor in tensors.iter_mut().filter(|(name, _)| *name != "__metadata__").map(|(_, tensor)| tensor) {
        for offset in tensor["data_offsets"].as_array_mut().context("offsets")? {
            *offset = json!(offset.as_u64().context("an offset")? + copy.len() as u64);
        }
    }
    let own = json!({"dtype": "F32", "shape": embedding["shape"], "data_offsets": [0, copy.len()]});
    ensure!(tensors.insert(NAME.to_owned(), own).is_none(), "the head has a tensor already");
    let mut text = in_order(tensors)?.into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let length = (text.len() as u64).to_le_bytes();
    record.replace_file(path, [&length[..], &text, copy, data].concat());
    let info = json!({"dtype": "F32", "name": NAME, "shape": embedding["shape"]});
    super::edits::in_manifest(record, 10, "model", |class| {
        let shards = class["shards"].as_array_mut().context("shards")?;
        let model = shards.iter_mut().find(|shard| shard["path"] == "model.safetensors");
        let listed = model.context("the model")?["tensors"].as_array_mut().context("tensors")?;
        listed.insert(0, info.clone());
        Ok(())
    })
}

/// A safetensors header with the fields of a tensor in the order that files have.
fn in_order(tensors: &serde_json::Map<String, Value>) -> Result<String> {
    let mut lines = Vec::new();
    for (name, tensor) in tensors {
        let line = if name == "__metadata__" {
            tensor.to_string()
        } else {
            let (dtype, shape, offsets) = (&tensor["dtype"], &tensor["shape"], &tensor["data_offsets"]);
            format!("{{\"dtype\":{dtype},\"shape\":{shape},\"data_offsets\":{offsets}}}")
        };
        lines.push(format!("{}:{line}", serde_json::to_string(name)?));
    }
    Ok(format!("{{{}}}", lines.join(",")))
}
