//! Flips every byte of the inputs on disk, one at a time: none is trained on.
//!
//! An audit takes the documents from the ledger and does not read these copies,
//! so that the sweep of its files (`tests/system/byte_sweep.rs`) leaves them to
//! this one.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use ledger::reader::Reader;
use schemas::contract::{Contract, FileBinding};
use schemas::data::DataManifest;
use serde_json::Value;
use trainer::run::inputs::{self, InputError, Places};
use trainer::run::progress::Console;
use trainer::run::signals::Interrupt;

use crate::folder::RunFolder;

/// Every document and shard that the contract binds for the trainer.
const FILES: [&str; 7] = [
    "card.json",
    "data/manifest.json",
    "data/train.txt",
    "data/val.txt",
    "parameters.json",
    "train.examples",
    "val.examples",
];

/// Paths of the file bindings in a part of a contract, found by their shape, so
/// that a new one cannot be forgotten.
fn bound_paths(part: &Value) -> Vec<String> {
    if let Ok(binding) = serde_json::from_value::<FileBinding>(part.clone()) {
        return vec![binding.path];
    }
    match part {
        Value::Array(items) => items.iter().flat_map(bound_paths).collect(),
        Value::Object(fields) => fields.values().flat_map(bound_paths).collect(),
        _ => Vec::new(),
    }
}

/// Every file that a contract, or the data manifest in its folder, names for the
/// trainer, in name order.
fn named_files(contract: &Contract, folder: &Path) -> Result<Vec<String>> {
    let mut document = serde_json::to_value(contract)?;
    // The sealed set, which the trainer never reads.
    let sealed = document["qualification"].take();
    ensure!(bound_paths(&sealed).len() == 1, "the sealed set is one file");
    let mut names = bound_paths(&document);
    let manifest = Path::new(&contract.data.manifest.path);
    let data: DataManifest = serde_json::from_slice(&std::fs::read(folder.join(manifest))?)?;
    let shards = manifest.parent().context("a file lies in a folder")?;
    names.extend(data.shards.iter().map(|shard| shards.join(&shard.path).to_string_lossy().into_owned()));
    names.sort();
    Ok(names)
}

#[test]
fn every_byte_of_every_input_is_guarded() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    let reader = Reader::open(&folder.ledger())?;
    let contract = reader.contract()?.contract;
    assert_eq!(named_files(&contract, folder.path())?, FILES);
    let (console, never) = (Console::new(true), Interrupt::never());
    let places = Places { data: None, ledger: folder.path() };
    let load = || inputs::load(&contract, &reader, places, &console, &never);
    ensure!(load()?.is_some(), "the unchanged inputs are loaded");
    let mut num_checked = 0;
    for name in FILES {
        let path = folder.path().join(name);
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        for offset in 0..file.metadata()?.len() {
            let mut byte = [0];
            file.read_exact_at(&mut byte, offset)?;
            // Any other value, chosen by the place, so that all kinds of change occur.
            let mask = u8::try_from(1 + offset % 255)?;
            file.write_all_at(&[byte[0] ^ mask], offset)?;
            match load() {
                Err(InputError::Changed { path: named, .. }) if named == path => {}
                Err(error) => bail!("{name} byte {offset}: the error is another one: {error}"),
                Ok(_) => bail!("{name} byte {offset}: the changed input is loaded"),
            }
            file.write_all_at(&byte, offset)?;
            num_checked += 1;
        }
    }
    ensure!(load()?.is_some(), "the inputs are loaded with every byte put back");
    assert!(num_checked > 5_000, "only {num_checked} bytes");
    Ok(())
}
