//! A campaign that is frozen again: under another preregistration, or with a run
//! under another contract, and with everything that follows from that.
//!
//! Nothing is trained again. A campaign's identifier and preregistration are in the
//! contract of each of its runs, and a contract's digest in the entries and
//! checkpoints of its run; so a run is sealed again by [`Record::seal`], and the
//! campaign holds its new heads, at the sizes that they had. What the evaluator says
//! is of models, which did not change: it is signed again for the run that it is of
//! now. What anybody says of anything else is the mutation's own business.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ledger::canonical::{contract_json, entry_json};
use ledger::keys::{KeyRing, Role};
use ledger::{dsse, head_file, note};
use schemas::digest::Digest;
use schemas::dsse::{Envelope, IN_TOTO_PAYLOAD_TYPE, PREREGISTRATION_PAYLOAD_TYPE};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::edits::{PATH, entries, forge};
use super::{CAMPAIGN, KEYS, QUALIFICATION};
use crate::dump;
use crate::forgery::Forgery;
use crate::mutations::record::LEDGER_NAME;
use crate::mutations::{Attacker, Record};
use crate::run_folder::copy_folder;

/// Where a contract binds its campaign's preregistration.
const BINDING: &str = "/membership/preregistration";

/// Largest head file of a tiny run, in bytes.
const MAX_HEAD_FILE_BYTES: u64 = 1 << 20;

/// Who a run is since it was sealed again, and its heads.
pub(super) struct Resealed {
    /// Digest of its contract.
    contract: String,
    /// Signed heads by their size.
    heads: BTreeMap<u64, String>,
    /// Its identifier.
    run: String,
}

/// Freezes the campaign again under a changed preregistration, with every run.
pub(super) fn preregister(folder: &Path, change: impl FnOnce(&mut Value) -> Result<()>) -> Result<()> {
    let keys = KeyRing::open(&folder.join(KEYS))?;
    let mut campaign = Forgery::open(&folder.join(CAMPAIGN))?;
    let (id, text) = freeze(campaign.first("campaign.frozen")?, &keys, change)?;
    for entry in &mut campaign.entries {
        entry["run"] = json!(id);
    }
    std::fs::write(folder.join("campaign.preregistration.json"), &text)?;
    for run in runs(&campaign) {
        let resealed = reseal(folder, &run, |record| {
            record.set_contract("/membership/campaign", id.as_str())?;
            let path = record.contract.pointer(BINDING).and_then(|binding| binding["path"].as_str());
            let path = path.context("the contract names the file of its preregistration")?.to_owned();
            record.write_file(path, text.clone());
            record.artifacts.insert(BINDING.to_owned(), text.clone());
            Ok(())
        })?;
        rebind(&mut campaign, &run, &resealed)?;
    }
    campaign.seal(Some(&keys))
}

/// Seals a run again after a change of its record, and binds what it is then.
pub(super) fn rewrite(
    folder: &Path,
    run: &str,
    change: impl FnOnce(&mut Record) -> Result<()>,
) -> Result<()> {
    let resealed = reseal(folder, run, change)?;
    forge(folder, |campaign| rebind(campaign, run, &resealed))
}

/// Seals the run in a folder again after a change of its record, and leaves the
/// campaign as it is.
pub(super) fn reseal(
    folder: &Path,
    run: &str,
    change: impl FnOnce(&mut Record) -> Result<()>,
) -> Result<Resealed> {
    let keys = KeyRing::open(&folder.join(KEYS))?;
    let place = folder.join(run);
    let mut record = Record::open_with(&place, &keys)?;
    change(&mut record)?;
    ensure!(!record.is_as_read(), "nothing of {run} is changed");
    let sealed = record.seal(Attacker::OwnerAndTrainer)?;
    // A file that was not changed is the same one in both folders, and would be
    // emptied before it is copied onto itself.
    std::fs::remove_dir_all(&place)?;
    std::fs::create_dir(&place)?;
    copy_folder(sealed.path(), &place)?;
    let resealed = Resealed::read(&place.join(LEDGER_NAME))?;
    evaluate_again(&place, &resealed, &keys).with_context(|| format!("what is evaluated of {run}"))?;
    Ok(resealed)
}

/// Lets the campaign's two entries of a run say who it is now.
pub(super) fn rebind(campaign: &mut Forgery, run: &str, resealed: &Resealed) -> Result<()> {
    for entry in entries(campaign, run)? {
        entry["body"]["det"]["contract"] = json!(resealed.contract);
        entry["body"]["det"]["run"] = json!(resealed.run);
        let head = &mut entry["body"]["obs"]["head"];
        let size = note::parse(head.as_str().context("an entry holds a head")?)?.head.size;
        let new = resealed.heads.get(&size);
        *head = json!(new.with_context(|| format!("{run} has no head of size {size}"))?);
    }
    Ok(())
}

/// Replaces what entry 0 freezes; gives the campaign's identifier and the text.
fn freeze(
    frozen: &mut Value,
    keys: &KeyRing,
    change: impl FnOnce(&mut Value) -> Result<()>,
) -> Result<(String, Vec<u8>)> {
    let old = frozen["body"]["det"]["preregistration"].as_str().context("entry 0 freezes a text")?;
    let mut preregistration: Value = serde_json::from_str(old)?;
    change(&mut preregistration)?;
    let text = contract_json(&preregistration)?;
    ensure!(text != old.as_bytes(), "nothing of the preregistration is changed");
    let nonce = frozen["body"]["obs"]["nonce"].as_str().context("entry 0 has a nonce")?;
    let digest = Digest::sha256(Sha256::digest(&text).into());
    let id = format!("{}-{nonce}", &digest.hex()[..16]);
    let signature = dsse::sign_detached(PREREGISTRATION_PAYLOAD_TYPE, &text, &keys.get(Role::Owner)?);
    frozen["body"]["det"] = json!({
        "digest": digest.to_string(),
        "preregistration": String::from_utf8(text.clone())?,
        "signature": serde_json::to_value(signature)?,
    });
    Ok((id, text))
}

/// Folders of the runs that a campaign binds.
fn runs(campaign: &Forgery) -> BTreeSet<String> {
    let paths = campaign.entries.iter().filter_map(|entry| entry.pointer(PATH)?.as_str());
    paths.filter_map(|path| Some(path.split_once('/')?.0.to_owned())).collect()
}

impl Resealed {
    fn read(ledger: &Path) -> Result<Self> {
        let entries = dump::entries(ledger)?;
        let first = entries.first().context("a ledger has an entry")?;
        let text = |pointer: &str| {
            let found = first.pointer(pointer).and_then(Value::as_str);
            found.map(str::to_owned).with_context(|| format!("no {pointer} in entry 0"))
        };
        let notes = head_file::read_all(&head_file::path_for(ledger), MAX_HEAD_FILE_BYTES)?;
        let heads = notes.into_iter().map(|note| Ok((note::parse(&note)?.head.size, note)));
        Ok(Self {
            contract: text("/body/det/digest")?,
            heads: heads.collect::<Result<_>>()?,
            run: text("/run")?,
        })
    }
}

/// Signs the evaluator's statement about a run, and its ledger, for who it is now.
fn evaluate_again(place: &Path, resealed: &Resealed, keys: &KeyRing) -> Result<()> {
    let qualifier = keys.get(Role::Qualifier)?;
    let path = dump::with_suffix(&place.join(LEDGER_NAME), ".val.dsse.json");
    let envelope: Envelope = serde_json::from_slice(&std::fs::read(&path)?)?;
    let payload = dsse::verify(&envelope, IN_TOTO_PAYLOAD_TYPE, &qualifier.public_hex())?;
    let mut statement: Value = serde_json::from_slice(&payload)?;
    statement["predicate"]["contract"] = json!(resealed.contract);
    statement["predicate"]["run"] = json!(resealed.run);
    let envelope = dsse::sign(IN_TOTO_PAYLOAD_TYPE, &entry_json(&statement)?, &qualifier);
    std::fs::write(path, entry_json(&envelope)?)?;
    let mut own = Forgery::open(&place.join(QUALIFICATION))?;
    let (contract, _) = resealed.run.split_once('-').context("a run's name begins with its contract")?;
    for entry in &mut own.entries {
        entry["run"] = json!(format!("qualification-{contract}"));
    }
    own.seal(Some(keys))
}
