//! Flips every byte of the inputs on disk, one at a time: none is trained on.
//!
//! An audit takes the documents from the ledger and does not read these copies,
//! so that the sweep of its files (`tests/system/byte_sweep.rs`) leaves them to
//! this one.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use anyhow::{Result, bail, ensure};
use ledger::reader::Reader;
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

#[test]
fn every_byte_of_every_input_is_guarded() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    let reader = Reader::open(&folder.ledger())?;
    let contract = reader.contract()?.contract;
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
