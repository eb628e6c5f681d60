//! Changes that mutations of a campaign make, in the words of its folder.
//!
//! Each fails where there is nothing that it could change, so that no mutation
//! passes for tried which did nothing.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use ledger::keys::KeyRing;
use schemas::digest::Digest;
use serde_json::{Value, json};

use super::refreeze::{preregister, rebind, reseal};
use super::{CAMPAIGN, KEYS, QUALIFICATION};
use crate::dump;
use crate::forgery::Forgery;
use crate::mutations::Record;
use crate::mutations::record::LEDGER_NAME;
use crate::programs::{self, LEDGER};
use crate::run_folder::copy_folder;

/// Where an entry of a campaign says where a run's ledger lies.
pub(super) const PATH: &str = "/body/obs/path";

/// A nonce, and twice as one an idempotency key, that nothing else has.
const NONCE: &str = "0123456789abcdef";

/// By how much longer an update lasts than it did, in microseconds: a whole run of
/// the example takes less.
const LONGER_US: u64 = 1_000_000;

/// Sets a value that is there.
pub(super) fn put(document: &mut Value, pointer: &str, value: Value) -> Result<()> {
    let found = document.pointer_mut(pointer).with_context(|| format!("no {pointer}"))?;
    ensure!(*found != value, "{pointer} is {value} already");
    *found = value;
    Ok(())
}

/// Adds a value to a list that is there.
pub(super) fn push(document: &mut Value, pointer: &str, value: Value) -> Result<()> {
    let list = document.pointer_mut(pointer).and_then(Value::as_array_mut);
    list.with_context(|| format!("no list {pointer}"))?.push(value);
    Ok(())
}

/// Changes the campaign's entries and signs them again.
pub(super) fn forge(folder: &Path, change: impl FnOnce(&mut Forgery) -> Result<()>) -> Result<()> {
    let keys = KeyRing::open(&folder.join(KEYS))?;
    let mut campaign = Forgery::open(&folder.join(CAMPAIGN))?;
    change(&mut campaign)?;
    campaign.seal(Some(&keys))
}

/// Where the campaign looks for the ledger of a run.
fn path(run: &str) -> Value {
    json!(format!("{run}/{LEDGER_NAME}"))
}

/// Both entries of a run: that of its freeze and that of its end.
pub(super) fn entries<'a>(campaign: &'a mut Forgery, run: &str) -> Result<Vec<&'a mut Value>> {
    let path = path(run);
    let is_of_run = |entry: &&mut Value| entry.pointer(PATH) == Some(&path);
    let found: Vec<&mut Value> = campaign.entries.iter_mut().filter(is_of_run).collect();
    ensure!(found.len() == 2, "the campaign has {} entries of {run}", found.len());
    Ok(found)
}

/// Sets a value in both entries of a run.
pub(super) fn set(folder: &Path, run: &str, pointer: &str, value: &Value) -> Result<()> {
    forge(folder, |campaign| {
        entries(campaign, run)?.into_iter().try_for_each(|entry| put(entry, pointer, value.clone()))
    })
}

/// Takes a run's entries and folder away, as if it had never been made.
pub(super) fn leave_out(folder: &Path, run: &str) -> Result<()> {
    forge(folder, |campaign| {
        let path = path(run);
        let before = campaign.entries.len();
        campaign.entries.retain(|entry| entry.pointer(PATH) != Some(&path));
        ensure!(campaign.entries.len() + 2 == before, "the campaign has no two entries of {run}");
        Ok(())
    })?;
    Ok(std::fs::remove_dir_all(folder.join(run))?)
}

/// Takes the entry of a run's end away.
pub(super) fn leave_end_out(folder: &Path, run: &str) -> Result<()> {
    forge(folder, |campaign| {
        let path = path(run);
        let last = campaign.entries.iter().rposition(|entry| entry.pointer(PATH) == Some(&path));
        campaign.entries.remove(last.with_context(|| format!("the campaign has no entry of {run}"))?);
        Ok(())
    })
}

/// Another preregistration under the signature of the one that was signed.
pub(super) fn sign_before(folder: &Path) -> Result<()> {
    let frozen = Forgery::open(&folder.join(CAMPAIGN))?.first("campaign.frozen")?.clone();
    let signature = frozen["body"]["det"]["signature"].clone();
    preregister(folder, |asked| put(asked, "/decision/confidence", json!(0.81)))?;
    forge(folder, |campaign| put(campaign.first("campaign.frozen")?, "/body/det/signature", signature))
}

/// A copy of a run's folder.
fn copy(folder: &Path, run: &str, name: &str) -> Result<()> {
    std::fs::create_dir(folder.join(name))?;
    copy_folder(&folder.join(run), &folder.join(name))
}

/// A run as another one, of another contract, that the campaign does not bind.
pub(super) fn unbind(folder: &Path, run: &str) -> Result<()> {
    copy(folder, run, "unbound")?;
    reseal(folder, "unbound", |record| record.set_contract("/name", "once more")).map(drop)
}

/// A second run of the contract of a run, bound when that one was.
pub(super) fn bound_twice(folder: &Path, run: &str) -> Result<()> {
    copy(folder, run, "twin")?;
    let resealed = reseal(folder, "twin", |record| record.set(0, "/body/obs/nonce", NONCE))?;
    forge(folder, |campaign| {
        let path_of_run = path(run);
        let is_of_run = |place: &usize| campaign.entries[*place].pointer(PATH) == Some(&path_of_run);
        let places: Vec<usize> = (0..campaign.entries.len()).filter(is_of_run).collect();
        // From the last one on, so that the places of the others stay what they are.
        for place in places.into_iter().rev() {
            let mut twin = campaign.entries[place].clone();
            twin["idem"] = json!(format!("{NONCE}{place:016x}"));
            put(&mut twin, PATH, path("twin"))?;
            campaign.entries.insert(place + 1, twin);
        }
        rebind(campaign, "twin", &resealed)
    })
}

/// An opening of the sealed set for a run, right behind the evaluator's numbers of
/// it, as its qualifier records one.
pub(super) fn early_opening(folder: &Path, run: &str) -> Result<()> {
    let keys = KeyRing::open(&folder.join(KEYS))?;
    let entries = dump::entries(&folder.join(run).join(LEDGER_NAME))?;
    let contract = entries.first().and_then(|entry| entry.pointer("/body/det/contract")?.as_str());
    let contract: Value = serde_json::from_str(contract.context("entry 0 freezes a contract")?)?;
    let mut own = Forgery::open(&folder.join(run).join(QUALIFICATION))?;
    let mut opened = own.last("qualification.val")?.clone();
    let det = json!({
        "handoff": Digest::blake3([1; 32]).to_string(),
        "model": opened["body"]["det"]["model"],
        "sealed": contract["qualification"]["sealed"]["digest"],
    });
    opened["body"] = json!({"det": det, "obs": {"num_earlier_openings": 0, "tool": "evaluator 0.1.0"}});
    opened["idem"] = json!(NONCE.repeat(2));
    put(&mut opened, "/kind", json!("qualification.opened"))?;
    own.entries.push(opened);
    own.seal(Some(&keys))
}

/// Has the validator sign a report, and changes the last entry that it saw.
pub(super) fn rewrite_after_its_report(folder: &Path) -> Result<()> {
    let saved = programs::run(LEDGER, folder, &["campaign", "audit", CAMPAIGN, "--save", "--keys", KEYS]);
    ensure!(saved.code == 0, "{saved}");
    forge(folder, |campaign| {
        let last = campaign.entries.last_mut().context("a campaign has an entry")?;
        let time_us = last["time_us"].as_u64().context("an entry has a time")?;
        put(last, "/time_us", json!(time_us + 1))
    })
}

/// Lets every update of a run take longer.
pub(super) fn pay_in_time(record: &mut Record) -> Result<()> {
    for place in record.places("step") {
        let duration = "/body/obs/duration_us";
        let old = record.value(place, duration)?.as_u64().context("a duration")?;
        record.set(place, duration, old + LONGER_US)?;
    }
    Ok(())
}

/// Claims in advance that `dry` gets to the threshold with less than `plain`.
pub(super) fn claim_efficiency(asked: &mut Value, dimension: &str) -> Result<()> {
    let mut claim = asked.pointer("/claims/0").context("the preregistration claims something")?.clone();
    put(&mut claim, "/id", json!("cheaper-dry"))?;
    put(&mut claim, "/kind", json!("efficiency"))?;
    put(&mut claim, "/dimension", json!(dimension))?;
    push(asked, "/claims", claim)
}

/// Lets every claim be one along an axis.
pub(super) fn claim_along(asked: &mut Value, axis: Value) -> Result<()> {
    let claims = asked.pointer_mut("/claims").and_then(Value::as_array_mut);
    for claim in claims.context("the preregistration claims something")? {
        put(claim, "/scope", json!([axis["axis"]]))?;
    }
    push(asked, "/axes", axis)
}
