//! Carries what follows from a changed file through manifests and entries.
//!
//! A checkpoint's file is named by digest and size in its manifest, the manifest
//! by digest and size in the entry of its commit, the class and the model by
//! digests in that entry and others of the same step. A file that was written
//! with [`Record::write_file`] is left to contradict what names it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use schemas::digest::Digest;
use serde_json::{Value, json};

use super::record::{FileChange, Record};
use super::reseal::blake3_of;

/// Name of a checkpoint's manifest.
const MANIFEST: &str = "manifest.json";

/// Replaces texts by texts wherever they stand as a whole value.
pub(super) fn substitute(value: &mut Value, new_text: &BTreeMap<String, String>) {
    match value {
        Value::String(text) => {
            if let Some(new) = new_text.get(text) {
                new.clone_into(text);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| substitute(item, new_text)),
        Value::Object(members) => members.values_mut().for_each(|member| substitute(member, new_text)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Replaces texts in every checkpoint's manifest.
pub(super) fn manifests(record: &mut Record, new_text: &BTreeMap<String, String>) -> Result<()> {
    for folder in checkpoint_folders(record) {
        let path = folder.join(MANIFEST);
        let Ok(bytes) = record.file(&path) else { continue };
        if is_left_alone(record, &path) {
            continue;
        }
        let mut manifest: Value = serde_json::from_slice(&bytes)?;
        substitute(&mut manifest, new_text);
        record.replace_file(path, ledger::canonical::entry_json(&manifest)?);
    }
    Ok(())
}

/// Carries every replaced file of a checkpoint to its manifest and the entries.
pub(super) fn files(record: &mut Record) -> Result<()> {
    for folder in checkpoint_folders(record) {
        let is_changed =
            record.files.iter().any(|(path, change)| path.starts_with(&folder) && is_carried(change));
        if is_changed && !is_left_alone(record, &folder.join(MANIFEST)) {
            one_checkpoint(record, &folder).with_context(|| folder.display().to_string())?;
        }
    }
    Ok(())
}

fn is_carried(change: &FileChange) -> bool {
    matches!(change, FileChange::Written { is_carried: true, .. })
}

/// Whether somebody wrote the file for what it says.
fn is_left_alone(record: &Record, path: &Path) -> bool {
    record.files.get(path).is_some_and(|change| !is_carried(change))
}

fn checkpoint_folders(record: &Record) -> Vec<PathBuf> {
    let entries = record.source.entries.iter();
    let committed = entries.filter(|entry| entry["kind"] == "checkpoint.durably_committed");
    let paths = committed.filter_map(|entry| entry.pointer("/body/obs/path")?.as_str());
    let mut folders: Vec<PathBuf> = paths.map(PathBuf::from).collect();
    folders.sort();
    folders.dedup();
    folders
}

fn one_checkpoint(record: &mut Record, folder: &Path) -> Result<()> {
    index(record, folder)?;
    let path = folder.join(MANIFEST);
    let old_bytes = std::fs::read(record.source.folder.join(&path))?;
    let old: Value = serde_json::from_slice(&old_bytes)?;
    let mut new: Value = serde_json::from_slice(&record.file(&path)?)?;
    let classes = new["classes"].as_array_mut().context("a manifest lists its classes")?;
    for shard in classes.iter_mut().filter_map(|class| class["shards"].as_array_mut()).flatten() {
        let name = shard["path"].as_str().context("a shard has a path")?;
        if let Some(FileChange::Written { bytes, is_carried: true }) = record.files.get(&folder.join(name)) {
            shard["digest"] = blake3_of(bytes).to_string().into();
            shard["num_bytes"] = bytes.len().into();
        }
    }
    let new_bytes = ledger::canonical::entry_json(&new)?;
    let (of_shards, of_classes) =
        (changes(&shards(&old), &shards(&new)), changes(&digests(&old)?, &digests(&new)?));
    let new_digest = (blake3_of(&old_bytes).to_string(), blake3_of(&new_bytes).to_string());
    let step = old["step"].clone();
    let checkpoint = old["checkpoint"].clone();
    let (old_size, new_size) = (size(&old, &old_bytes), size(&new, &new_bytes));
    record.replace_file(path, new_bytes);
    let everywhere = BTreeMap::from([new_digest]);
    for entry in &mut record.entries {
        substitute(entry, &everywhere);
        let named = entry.pointer("/body/obs/checkpoint");
        let is_of_another = named.is_some_and(|named| *named != checkpoint);
        if entry["step"] != step || is_of_another {
            continue;
        }
        substitute(entry, &of_shards);
        substitute(entry, &of_classes);
        let is_committed = entry["kind"] == "checkpoint.durably_committed";
        if let Some(stated) = entry.pointer_mut("/body/obs/num_bytes").filter(|_| is_committed)
            && *stated == old_size
        {
            *stated = new_size.into();
        }
    }
    Ok(())
}

/// The index of a model in several files names them by digest.
fn index(record: &mut Record, folder: &Path) -> Result<()> {
    let path = folder.join(schemas::model_index::MODEL_INDEX_NAME);
    let Ok(bytes) = record.file(&path) else { return Ok(()) };
    if is_left_alone(record, &path) {
        return Ok(());
    }
    let mut value: Value = serde_json::from_slice(&bytes)?;
    let listed = value.pointer_mut("/metadata/shards").and_then(Value::as_object_mut);
    let mut is_changed = false;
    for (name, digest) in listed.into_iter().flatten() {
        if let Some(FileChange::Written { bytes, is_carried: true }) = record.files.get(&folder.join(name)) {
            *digest = json!(blake3_of(bytes).to_string());
            is_changed = true;
        }
    }
    if is_changed {
        record.replace_file(path, ledger::canonical::entry_json(&value)?);
    }
    Ok(())
}

/// What changed between two lists of names with digests.
fn changes(old: &[(String, String)], new: &[(String, String)]) -> BTreeMap<String, String> {
    let differs = |(name, old): &(String, String)| {
        let (_, new) = new.iter().find(|(other, new)| other == name && new != old)?;
        Some((old.clone(), new.clone()))
    };
    old.iter().filter_map(differs).collect()
}

/// Digest of every shard by its path.
fn shards(manifest: &Value) -> Vec<(String, String)> {
    let classes = manifest["classes"].as_array().into_iter().flatten();
    let shards = classes.filter_map(|class| class["shards"].as_array()).flatten();
    let text = |shard: &Value, key: &str| shard[key].as_str().map(str::to_owned);
    shards.filter_map(|shard| Some((text(shard, "path")?, text(shard, "digest")?))).collect()
}

/// State digest of every class by its name (`docs/FORMAT.md`, "State digests"),
/// over the shards of all workers.
fn digests(manifest: &Value) -> Result<Vec<(String, String)>> {
    let mut of: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for class in manifest["classes"].as_array().into_iter().flatten() {
        let name = class["class"].as_str().context("a class has a name")?.to_owned();
        let only = json!({"classes": [class]});
        of.entry(name).or_default().extend(shards(&only));
    }
    let mut found = Vec::new();
    for (name, mut shards) in of {
        shards.sort();
        let mut hasher = blake3::Hasher::new();
        for (path, digest) in &shards {
            let digest: Digest = digest.parse()?;
            hasher.update(path.as_bytes()).update(&[0]).update(&digest.bytes);
        }
        found.push((name, Digest::blake3(*hasher.finalize().as_bytes()).to_string()));
    }
    Ok(found)
}

/// What the entry of a commit says in `num_bytes`.
fn size(manifest: &Value, bytes: &[u8]) -> u64 {
    let classes = manifest["classes"].as_array().into_iter().flatten();
    let shards = classes.filter_map(|class| class["shards"].as_array()).flatten();
    shards.filter_map(|shard| shard["num_bytes"].as_u64()).sum::<u64>() + bytes.len() as u64
}
