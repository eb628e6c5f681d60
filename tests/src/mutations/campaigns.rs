//! Mutations of a real campaign: what its owner could write and sign again.
//!
//! Each changes a copy of the folder of a campaign that the programs made and that
//! is accepted, in one respect, and signs the campaign's ledger again with the
//! owner's key, and a run's with owner's and trainer's. The rule that it names has
//! to say what it did not say before. That it is the only one is not asked: what a
//! campaign says of a run and what the run says of itself are compared in several
//! places. [`NOT_SHOWN`] has the rules of which nothing is shown here, and why.
//!
//! The campaign is the example (`preregistration/example-campaign.json`) as
//! `tests/system/campaigns.rs` runs it: for the arms `plain` and `dry` the trials
//! `<arm>-0.003` and `<arm>-0.01`, three confirmations `<arm>-<seed>`, and the
//! positive control `control`, each with the evaluator's numbers beside it.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use ledger::keys::KeyRing;
use serde_json::{Value, json};

use crate::forgery::Forgery;

/// The campaign's ledger in its folder.
const CAMPAIGN: &str = "campaign.db";

/// Largest head file of a tiny run, in bytes.
const MAX_HEAD_FILE_BYTES: u64 = 1 << 20;

/// One change of a campaign.
#[derive(Debug, Clone, Copy)]
pub struct CampaignMutation {
    /// What is done to the campaign's folder.
    pub change: fn(&Path) -> Result<()>,
    /// The rule that has to see it.
    pub code: &'static str,
    /// What is false.
    pub name: &'static str,
}

/// Damage.
const DAMAGE: &str = "a rule of form and integrity: what it would find in a changed entry is made whole again here, and its own \
                      damaged ledgers are in `validator/src/campaign/tests/ledgers.rs`";

/// Another preregistration or other contracts.
const OTHER_RUNS: &str = "it compares a preregistration with contracts and outcomes, which are frozen and signed: another one takes \
                          another campaign, and a dozen runs that are trained for it; its false campaigns are changes of what audits \
                          of runs gave (`validator/src/campaign/tests`)";

/// Rules over campaigns of which nothing is shown here, and why.
pub const NOT_SHOWN: &[(&str, &str)] = &[
    ("GC101", DAMAGE),
    ("GC102", DAMAGE),
    ("GC103", DAMAGE),
    ("GC104", DAMAGE),
    ("GC105", DAMAGE),
    ("GC108", OTHER_RUNS),
    ("GC116", OTHER_RUNS),
    ("GC117", OTHER_RUNS),
    (
        "GC120",
        "a run of another split or direction takes another campaign, and an opening a qualifier's ledger, of whose key \
         neither owner nor trainer disposes; its false campaigns are in `validator/src/campaign/tests`",
    ),
    ("GC123", OTHER_RUNS),
    ("GC124", OTHER_RUNS),
];

/// Every mutation, in the order of codes.
#[must_use]
pub fn mutations() -> Vec<CampaignMutation> {
    let new = |code, name, change: fn(&Path) -> Result<()>| CampaignMutation { change, code, name };
    vec![
        new("GC106", "an entry of an attempt", |folder| set(folder, "plain-1", "/attempt", &json!(1))),
        new("GC107", "another preregistration than was signed", |folder| {
            forge(folder, |campaign| campaign.replace("\"confidence\":0.95", "\"confidence\":0.81"))
        }),
        new("GC109", "a run of another trial", |folder| set(folder, "plain-1", "/body/det/trial", &json!(9))),
        new("GC110", "a run that was bound when it had ended", |folder| {
            forge(folder, |campaign| {
                let mut bound = entries(campaign, "plain-1")?;
                let head = bound.last().context("a later entry")?["body"]["obs"]["head"].clone();
                bound.first_mut().context("a first entry")?["body"]["obs"]["head"] = head;
                Ok(())
            })
        }),
        new("GC111", "a run that its audit rejects", rejected_run),
        new("GC112", "a trial that is left out", |folder| leave_out(folder, "plain-0.003")),
        new("GC113", "a contract that another run has", twin),
        new("GC114", "runs of two arms that are exchanged", |folder| {
            set(folder, "plain-1", "/body/det/arm", &json!("dry"))?;
            set(folder, "dry-1", "/body/det/arm", &json!("plain"))
        }),
        new("GC115", "a confirmation that is called a trial", |folder| {
            set(folder, "plain-1", "/body/det/purpose", &json!("tuning"))
        }),
        new("GC118", "a first run that is called a rescue", |folder| {
            set(folder, "dry-1", "/body/det/rescue_level", &json!(1))
        }),
        new("GC119", "a run of another seed", |folder| set(folder, "plain-1", "/body/det/seed", &json!("2"))),
        new("GC121", "a run whose ledger is gone", |folder| {
            Ok(std::fs::remove_dir_all(folder.join("dry-2"))?)
        }),
        new("GC122", "a positive control that is left out", |folder| leave_out(folder, "control")),
        new("GC125", "a run without the evaluator's numbers", |folder| {
            Ok(std::fs::remove_file(folder.join("plain-1/run.db.val.dsse.json"))?)
        }),
        new("GC126", "a report that nobody signed", |folder| {
            Ok(std::fs::write(folder.join("campaign.db.report.dsse.json"), "{}")?)
        }),
    ]
}

/// Changes the campaign's entries and signs them again.
fn forge(folder: &Path, change: impl FnOnce(&mut Forgery) -> Result<()>) -> Result<()> {
    let keys = KeyRing::open(&folder.join("keys"))?;
    let mut campaign = Forgery::open(&folder.join(CAMPAIGN))?;
    change(&mut campaign)?;
    campaign.seal(Some(&keys))
}

/// Where the campaign looks for the ledger of a run.
fn path(run: &str) -> Value {
    json!(format!("{run}/run.db"))
}

/// Both entries of a run: that of its freeze and that of its end.
fn entries<'a>(campaign: &'a mut Forgery, run: &str) -> Result<Vec<&'a mut Value>> {
    let path = path(run);
    let is_of_run = |entry: &&mut Value| entry.pointer("/body/obs/path") == Some(&path);
    let found: Vec<&mut Value> = campaign.entries.iter_mut().filter(is_of_run).collect();
    ensure!(found.len() == 2, "the campaign has {} entries of {run}", found.len());
    Ok(found)
}

/// Sets a value in both entries of a run.
fn set(folder: &Path, run: &str, pointer: &str, value: &Value) -> Result<()> {
    forge(folder, |campaign| {
        for entry in entries(campaign, run)? {
            let found = entry.pointer_mut(pointer).with_context(|| format!("no {pointer} in an entry"))?;
            ensure!(*found != *value, "{pointer} is {value} already");
            value.clone_into(found);
        }
        Ok(())
    })
}

/// Takes a run's entries and folder away, as if it had never been made.
fn leave_out(folder: &Path, run: &str) -> Result<()> {
    forge(folder, |campaign| {
        let path = path(run);
        let before = campaign.entries.len();
        campaign.entries.retain(|entry| entry.pointer("/body/obs/path") != Some(&path));
        ensure!(campaign.entries.len() + 2 == before, "the campaign has no two entries of {run}");
        Ok(())
    })?;
    Ok(std::fs::remove_dir_all(folder.join(run))?)
}

/// A run whose record says another rate than its schedule gives, signed again, with
/// its new head bound.
fn rejected_run(folder: &Path) -> Result<()> {
    let keys = KeyRing::open(&folder.join("keys"))?;
    let ledger = folder.join("plain-1/run.db");
    let mut run = Forgery::open(&ledger)?;
    let rate = run.last("step")?.pointer_mut("/body/det/updates/0/learning_rate").context("a rate")?;
    *rate = json!(0.5);
    run.seal(Some(&keys))?;
    let notes = ledger::head_file::read_all(&ledger::head_file::path_for(&ledger), MAX_HEAD_FILE_BYTES)?;
    let head = notes.last().context("a head")?;
    forge(folder, |campaign| {
        entries(campaign, "plain-1")?.last_mut().context("a later entry")?["body"]["obs"]["head"] =
            json!(head);
        Ok(())
    })
}

/// A second run of one contract, whose ledger is somewhere else.
fn twin(folder: &Path) -> Result<()> {
    forge(folder, |campaign| {
        let mut twin = Value::clone(entries(campaign, "dry-1")?.first().context("a first entry")?);
        let run = twin["body"]["det"]["run"].as_str().context("a run")?;
        let (contract, _) = run.split_once('-').context("a run's name begins with its contract")?;
        twin["body"]["det"]["run"] = json!(format!("{contract}-0123456789abcdef"));
        twin["body"]["obs"]["path"] = path("twin");
        twin["idem"] = json!("0123456789abcdef0123456789abcdef");
        twin["time_us"] = campaign.entries.last().context("an entry")?["time_us"].clone();
        campaign.entries.push(twin);
        Ok(())
    })
}
