//! Changes that several named mutations share, in the words of a record.
//!
//! Each fails where the record has nothing that it could change, so that no
//! mutation passes for tried which did nothing.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::mutations::Record;

/// Files that a key signed which no attacker here has: they speak of the run
/// under its old contract.
const OF_THE_OLD_RUN: [&str; 1] = ["run.db.val.dsse.json"];

/// Adds to an integer of an entry.
pub(super) fn add(record: &mut Record, place: usize, pointer: &str, by: i64) -> Result<()> {
    let old = record.value(place, pointer)?.as_i64().context("an integer")?;
    record.set(place, pointer, old + by)
}

/// Replaces a number of an entry by the next larger binary64.
pub(super) fn next_float(record: &mut Record, place: usize, pointer: &str) -> Result<()> {
    let old = record.value(place, pointer)?.as_f64().context("a number")?;
    record.set(place, pointer, old.next_up())
}

/// Multiplies a number of an entry.
pub(super) fn scale(record: &mut Record, place: usize, pointer: &str, by: f64) -> Result<()> {
    let old = record.value(place, pointer)?.as_f64().context("a number")?;
    record.set(place, pointer, old * by)
}

/// Replaces a digest of an entry by one that differs in its last digit.
pub(super) fn other_digest(record: &mut Record, place: usize, pointer: &str) -> Result<()> {
    let old = record.value(place, pointer)?.as_str().context("a digest")?.to_owned();
    let (rest, last) = old.split_at(old.len().saturating_sub(1));
    record.set(place, pointer, format!("{rest}{}", if last == "0" { "1" } else { "0" }))
}

/// Exchanges a value between two entries.
pub(super) fn exchange(record: &mut Record, places: (usize, usize), pointer: &str) -> Result<()> {
    let (one, other) = (record.value(places.0, pointer)?.clone(), record.value(places.1, pointer)?.clone());
    record.set(places.0, pointer, other)?;
    record.set(places.1, pointer, one)
}

/// Removes every entry that is chosen; at least one is.
pub(super) fn remove_where(record: &mut Record, is_chosen: impl Fn(&Value) -> bool) -> Result<()> {
    let before = record.entries.len();
    record.entries.retain(|entry| !is_chosen(entry));
    ensure!(record.entries.len() < before, "no entry is removed");
    Ok(())
}

/// Removes an entry.
pub(super) fn remove(record: &mut Record, kind: &str, step: u64) -> Result<()> {
    let place = record.at_step(kind, step)?;
    record.entries.remove(place);
    Ok(())
}

/// An entry of another kind with the header of one that is there.
pub(super) fn like(record: &Record, place: usize, kind: &str, det: &Value, obs: &Value) -> Result<Value> {
    let mut entry = record.entries.get(place).context("an entry")?.clone();
    entry["kind"] = json!(kind);
    entry["body"] = json!({"det": det, "obs": obs});
    Ok(entry)
}

/// Appends an entry that belongs to no attempt.
pub(super) fn append(record: &mut Record, kind: &str, det: &Value, obs: &Value) -> Result<()> {
    let end = record.last("run.end")?;
    let mut entry = like(record, end, kind, det, obs)?;
    entry["step"] = Value::Null;
    record.entries.push(entry);
    Ok(())
}

/// A change of what the owner signed: whatever other keys signed of the run
/// under its old contract goes.
pub(super) fn refreeze(record: &mut Record, change: impl FnOnce(&mut Record) -> Result<()>) -> Result<()> {
    for name in OF_THE_OLD_RUN {
        if record.file(name).is_ok() {
            record.remove_file(name);
        }
    }
    change(record)
}

/// [`refreeze`] with one value of the contract.
pub(super) fn contract(record: &mut Record, pointer: &str, value: impl Into<Value>) -> Result<()> {
    refreeze(record, |record| record.set_contract(pointer, value))
}

/// [`refreeze`] with one value of the policy card.
pub(super) fn card(record: &mut Record, pointer: &str, value: impl Into<Value>) -> Result<()> {
    let value = value.into();
    refreeze(record, |record| {
        record.edit_artifact("/update/card", |card| {
            let found = card.pointer_mut(pointer).with_context(|| format!("the card has no {pointer}"))?;
            ensure!(*found != value, "{pointer} is that already");
            *found = value;
            Ok(())
        })
    })
}

/// The pointer of a class's declaration in the contract.
pub(super) fn declaration(record: &Record, class: &str) -> Result<String> {
    let declared = record.contract["state_classes"].as_array().context("a list")?;
    let place = declared.iter().position(|declared| declared["class"] == class);
    Ok(format!("/state_classes/{}/not_applicable", place.with_context(|| format!("no class {class}"))?))
}

/// Folders of all committed checkpoints, relative to the run's.
pub(super) fn checkpoints(record: &Record) -> Result<Vec<PathBuf>> {
    let places = record.places("checkpoint.durably_committed");
    let path = |place| Ok(PathBuf::from(record.value(place, "/body/obs/path")?.as_str().context("a path")?));
    places.into_iter().map(path).collect()
}

/// Changes a class in the manifest of a checkpoint.
pub(super) fn in_manifest(
    record: &mut Record,
    step: u64,
    class: &str,
    change: impl Fn(&mut Value) -> Result<()>,
) -> Result<()> {
    let path = record.checkpoint(step)?.join("manifest.json");
    record.edit_json(path, |manifest| of_class(manifest, class, &change))
}

/// Changes every item of a class in a manifest.
fn of_class(manifest: &mut Value, class: &str, change: &impl Fn(&mut Value) -> Result<()>) -> Result<()> {
    let classes = manifest["classes"].as_array_mut().context("a manifest lists classes")?;
    let mut num_changed = 0;
    for item in classes.iter_mut().filter(|item| item["class"] == class) {
        change(item)?;
        num_changed += 1;
    }
    ensure!(num_changed > 0, "the manifest does not list {class}");
    Ok(())
}

/// Leaves a class out of every checkpoint and out of the contract, for a reason
/// that is made up: what remains is whole, and says that nothing is missing.
pub(super) fn leave_out(record: &mut Record, class: &str, reason: &str) -> Result<()> {
    let pointer = declaration(record, class)?;
    contract(record, &pointer, reason)?;
    for folder in checkpoints(record)? {
        let mut gone = Vec::new();
        let path = folder.join("manifest.json");
        let mut manifest: Value = serde_json::from_slice(&record.file(&path)?)?;
        let classes = manifest["classes"].as_array_mut().context("a manifest lists classes")?;
        // Of a class that each worker has, one line says that there is none.
        let place = classes.iter().position(|item| item["class"] == class).context("the class is saved")?;
        for item in classes.iter().filter(|item| item["class"] == class) {
            let shards = item["shards"].as_array().into_iter().flatten();
            gone.extend(shards.filter_map(|shard| shard["path"].as_str()).map(|name| folder.join(name)));
        }
        ensure!(!gone.is_empty(), "{class} has no files");
        let mut item = classes[place].clone();
        (item["not_applicable"], item["shards"], item["worker"]) = (json!(reason), json!([]), Value::Null);
        classes[place] = item;
        let mut is_first = true;
        classes.retain(|item| item["class"] != class || std::mem::take(&mut is_first));
        record.replace_file(path, ledger::canonical::entry_json(&manifest)?);
        gone.into_iter().for_each(|name| record.remove_file(name));
    }
    for entry in &mut record.entries {
        for pointer in ["/body/det/classes", "/body/det/state"] {
            let states = entry.pointer_mut(pointer).and_then(Value::as_array_mut).into_iter().flatten();
            for state in states.filter(|state| state["class"] == class) {
                state["digest"] = Value::Null;
            }
        }
    }
    Ok(())
}

/// Puts a file of one checkpoint into another one's folder, with every digest
/// above it.
pub(super) fn stale(record: &mut Record, name: &str, from: u64, to: u64) -> Result<()> {
    let bytes = record.file(record.checkpoint(from)?.join(name))?;
    let path = record.checkpoint(to)?.join(name);
    ensure!(record.file(&path)? != bytes, "{name} is the same at steps {from} and {to}");
    record.replace_file(path, bytes);
    Ok(())
}

/// Changes a JSON shard of a checkpoint, with every digest above it.
pub(super) fn shard(
    record: &mut Record,
    step: u64,
    name: &str,
    pointer: &str,
    value: impl Into<Value>,
) -> Result<()> {
    let value = value.into();
    let path = record.checkpoint(step)?.join(name);
    record.edit_json(path, |shard| {
        let found = shard.pointer_mut(pointer).with_context(|| format!("{name} has no {pointer}"))?;
        ensure!(*found != value, "{pointer} is that already");
        *found = value;
        Ok(())
    })
}

/// Changes the binary32 elements of a safetensors file of a checkpoint by their
/// place and bits, with every digest above it.
pub(super) fn tensors(
    record: &mut Record,
    step: u64,
    name: &str,
    change: impl Fn(usize, u32) -> u32,
) -> Result<()> {
    let path = record.checkpoint(step)?.join(name);
    let mut bytes = record.file(&path)?;
    let before = bytes.clone();
    let (length, rest) = bytes.split_first_chunk_mut::<8>().context("a safetensors file")?;
    let header = usize::try_from(u64::from_le_bytes(*length))?;
    let elements = rest.get_mut(header..).context("a header")?;
    for (place, word) in elements.chunks_exact_mut(4).enumerate() {
        let bits = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        word.copy_from_slice(&change(place, bits).to_le_bytes());
    }
    if bytes == before {
        bail!("no element of {name} changes");
    }
    record.replace_file(path, bytes);
    Ok(())
}

/// Tensors of a safetensors file of a checkpoint: names, in order, and how many
/// elements they have.
pub(super) fn sizes(record: &Record, step: u64, name: &str) -> Result<Vec<(String, u64)>> {
    let bytes = record.file(record.checkpoint(step)?.join(name))?;
    let (length, rest) = bytes.split_first_chunk::<8>().context("a safetensors file")?;
    let header = rest.get(..usize::try_from(u64::from_le_bytes(*length))?).context("a header")?;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(header)?;
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    let size = |of: &Value| of["shape"].as_array().into_iter().flatten().filter_map(Value::as_u64).product();
    Ok(tensors.map(|(name, of)| (name, size(&of))).collect())
}

/// Records an anomaly of saved state where an honest trainer would have.
pub(super) fn say_anomaly(record: &mut Record, step: u64, name: &str, state: &Value) -> Result<()> {
    let committed = record.at_step("checkpoint.durably_committed", step)?;
    let obs = json!({"description": "seen while saving"});
    let mut entry = like(record, committed, "anomaly", &json!({"name": name, "state": state}), &obs)?;
    entry["learner"] = Value::Null;
    record.entries.insert(committed + 1, entry);
    Ok(())
}

/// Takes no norm of parameters and of what updates changed.
pub(super) fn without_norms(record: &mut Record) -> Result<()> {
    for place in record.places("step") {
        for name in ["parameter_norm", "update_norm"] {
            let num_groups = record.value(place, "/body/det/updates")?.as_array().context("groups")?.len();
            for group in 0..num_groups {
                record.set(place, &format!("/body/det/updates/{group}/{name}"), Value::Null)?;
            }
        }
    }
    Ok(())
}
