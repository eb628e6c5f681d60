//! Mutations of a real campaign: what its owner could write and sign again.
//!
//! Each changes a copy of the folder of a campaign that the programs made and that
//! is accepted, in one respect, and signs again what follows from it: the
//! campaign's ledger with the owner's key, a run's with owner's and trainer's, what
//! the evaluator says of a run with the qualifier's. No rule of form or integrity
//! has anything to say then. The rule that it names has to see it, with exactly the
//! others that are named beside it: what a campaign says of a run and what the run
//! says of itself are compared in several places. Of every rule there is one that it
//! alone sees, or [`NOT_SOLE`] says why not; [`NOT_SHOWN`] has the rules of which
//! nothing is shown here, and why.
//!
//! The campaign is the example (`preregistration/example-campaign.json`) as
//! `tests/system/campaigns.rs` runs it: for the arms `plain` and `dry`, the first and
//! the second of its list, the trials `<arm>-0.003` and `<arm>-0.01`, three
//! confirmations `<arm>-<seed>`, and the positive control `control` of `dry`, each
//! with the evaluator's numbers beside it.

mod edits;
mod refreeze;

use std::path::Path;

use anyhow::{Context, Result};
use schemas::digest::Digest;
use serde_json::json;

use edits::{
    bound_twice, claim_along, claim_efficiency, early_opening, entries, forge, leave_end_out, leave_out,
    pay_in_time, push, put, rewrite_after_its_report, set, sign_before, unbind,
};
use refreeze::{preregister, rewrite};

/// The campaign's ledger in its folder.
const CAMPAIGN: &str = "campaign.db";

/// The folder of its keys, and of every run's.
const KEYS: &str = "keys";

/// The qualifier's ledger in the folder of a run.
const QUALIFICATION: &str = "qualification.db";

/// One change of a campaign.
#[derive(Debug, Clone, Copy)]
pub struct CampaignMutation {
    /// What is done to the campaign's folder.
    pub change: fn(&Path) -> Result<()>,
    /// The rule that has to see it.
    pub code: &'static str,
    /// What is false; unique among those of its rule.
    pub name: &'static str,
    /// The other rules that see it, all of them.
    pub others: &'static [&'static str],
}

/// Damage.
const DAMAGE: &str = "a rule of form and integrity: what it would find in a changed entry is made whole again here, and its own \
                      damaged ledgers are in `validator/src/campaign/tests/ledgers.rs`";

/// Rules over campaigns of which nothing is shown here, and why.
pub const NOT_SHOWN: &[(&str, &str)] =
    &[("GC101", DAMAGE), ("GC102", DAMAGE), ("GC103", DAMAGE), ("GC104", DAMAGE), ("GC105", DAMAGE)];

/// Rules that see no change here alone, and why.
pub const NOT_SOLE: &[(&str, &str)] = &[(
    "GC113",
    "a contract holds its arm and the number of its trial, so that a second run of it has a number that another run \
     has, which GC112 says, or one that is not its contract's, which GC109 says; this rule says what was done twice",
)];

/// Every mutation, in the order of codes.
#[must_use]
pub fn mutations() -> Vec<CampaignMutation> {
    let mut all = [of_bindings(), of_runs(), of_preregistrations()].concat();
    all.sort_by_key(|mutation| mutation.code);
    all
}

/// The control: a preregistration that asks the same under another name, with all
/// that follows. Whatever is found of a changed one is found in the change.
///
/// # Errors
/// When the folder is not that of the campaign.
pub fn rename(folder: &Path) -> Result<()> {
    preregister(folder, |asked| put(asked, "/name", json!("the same question")))
}

/// A change that one rule sees.
fn new(code: &'static str, name: &'static str, change: fn(&Path) -> Result<()>) -> CampaignMutation {
    CampaignMutation { change, code, name, others: &[] }
}

impl CampaignMutation {
    /// The same, which these rules see too.
    fn seen_by(self, others: &'static [&'static str]) -> Self {
        Self { others, ..self }
    }
}

/// What the campaign says of its runs, and what lies beside it.
fn of_bindings() -> Vec<CampaignMutation> {
    vec![
        new("GC106", "an entry of an attempt", |folder| set(folder, "plain-1", "/attempt", &json!(1))),
        new("GC107", "another preregistration than was signed", sign_before),
        new("GC109", "a run of another trial", |folder| set(folder, "plain-1", "/body/det/trial", &json!(9)))
            .seen_by(&["GC112"]),
        new("GC109", "a run whose end is not bound", |folder| leave_end_out(folder, "control")),
        new("GC110", "a run that was bound when it had ended", |folder| {
            forge(folder, |campaign| {
                let mut bound = entries(campaign, "plain-1")?;
                let head = bound.last().context("a later entry")?["body"]["obs"]["head"].clone();
                put(bound.first_mut().context("a first entry")?, "/body/obs/head", head)
            })
        })
        .seen_by(&["GC109"]),
        new("GC110", "a run that was bound late, as is said", |folder| {
            forge(folder, |campaign| {
                let mut bound = entries(campaign, "control")?;
                put(bound.first_mut().context("a first entry")?, "/body/obs/late", json!("it was forgotten"))
            })
        }),
        new("GC112", "a trial that is left out", |folder| leave_out(folder, "plain-0.003"))
            .seen_by(&["GC115"]),
        new("GC112", "a run that was made and is not bound", |folder| unbind(folder, "control")),
        new("GC113", "a contract that was run twice", |folder| bound_twice(folder, "control"))
            .seen_by(&["GC112"]),
        new("GC114", "runs of two arms that are exchanged", |folder| {
            set(folder, "plain-1", "/body/det/arm", &json!("dry"))?;
            set(folder, "dry-1", "/body/det/arm", &json!("plain"))
        })
        .seen_by(&["GC109", "GC112", "GC115"]),
        new("GC115", "a confirmation that is called a trial", |folder| {
            set(folder, "plain-1", "/body/det/purpose", &json!("tuning"))
        })
        .seen_by(&["GC112", "GC122"]),
        new("GC118", "a first run that is called a rescue", |folder| {
            set(folder, "dry-1", "/body/det/rescue_level", &json!(1))
        })
        .seen_by(&["GC109", "GC112"]),
        new("GC119", "a confirmation of another seed", |folder| {
            set(folder, "plain-1", "/body/det/seed", &json!("2"))
        })
        .seen_by(&["GC112", "GC114", "GC122"]),
        new("GC119", "a control of another seed", |folder| {
            set(folder, "control", "/body/det/seed", &json!("7"))
        }),
        new("GC120", "a sealed set that was opened before the runs were made", |folder| {
            early_opening(folder, "plain-0.003")
        }),
        new("GC121", "a run whose ledger is gone", |folder| {
            Ok(std::fs::remove_dir_all(folder.join("dry-2"))?)
        })
        .seen_by(&["GC109", "GC122"]),
        new("GC122", "a positive control that is left out", |folder| leave_out(folder, "control")),
        new("GC125", "a run without the evaluator's numbers", |folder| {
            Ok(std::fs::remove_file(folder.join("plain-1/run.db.val.dsse.json"))?)
        }),
        new("GC126", "a report that nobody signed", |folder| {
            Ok(std::fs::write(folder.join("campaign.db.report.dsse.json"), "{}")?)
        }),
        new("GC126", "a campaign that was rewritten after its report", rewrite_after_its_report),
    ]
}

/// What a run did, or its contract says.
fn of_runs() -> Vec<CampaignMutation> {
    vec![
        new("GC111", "a run that its audit rejects", |folder| {
            rewrite(folder, "plain-1", |record| {
                let place = record.last("step")?;
                record.set(place, "/body/det/updates/0/learning_rate", 0.5)
            })
        }),
        new("GC114", "a run that was given more time", |folder| {
            rewrite(folder, "dry-2", |record| record.set_contract("/budget/max_wall_s", 7200))
        }),
        new("GC118", "a control that is called a rescue", |folder| {
            rewrite(folder, "control", |record| record.set_contract("/membership/rescue_level", 1))?;
            set(folder, "control", "/body/det/rescue_level", &json!(1))
        }),
        new("GC120", "a run with a sealed set of its own", |folder| {
            let text = Digest::blake3([7; 32]).to_string();
            rewrite(folder, "control", |record| record.set_contract("/qualification/plaintext", text))
        }),
        new("GC123", "fewer tokens that are paid for in time", |folder| {
            preregister(folder, |asked| claim_efficiency(asked, "tokens_to_quality"))?;
            ["dry-1", "dry-2", "dry-3"].into_iter().try_for_each(|run| rewrite(folder, run, pay_in_time))
        }),
    ]
}

/// What was asked.
fn of_preregistrations() -> Vec<CampaignMutation> {
    vec![
        new("GC108", "an interval at which anything holds", |folder| {
            preregister(folder, |asked| put(asked, "/decision/confidence", json!(0.5)))
        }),
        new("GC108", "an arm that is evaluated in its own way", |folder| {
            preregister(folder, |asked| {
                let declared = json!({"pointer": "/evaluation/streams/0", "why": "it is what is asked"});
                push(asked, "/arms/1/declared", declared)
            })
        }),
        new("GC115", "trials that cost more than they may", |folder| {
            preregister(folder, |asked| {
                // One token less than each of them takes.
                put(asked, "/arms/0/tuning/price_tokens", json!(1279))?;
                put(asked, "/arms/1/tuning/price_tokens", json!(1279))
            })
        }),
        new("GC116", "a policy card that no run of the arm has", |folder| {
            let card = Digest::blake3([1; 32]).to_string();
            preregister(folder, |asked| put(asked, "/arms/1/card", json!(card)))
        }),
        new("GC116", "a family that updates no group, each of which is told", |folder| {
            preregister(folder, |asked| {
                put(asked, "/arms/1/family", json!("muon"))?;
                put(asked, "/arms/1/fallback_groups", json!(["matrices", "embeddings", "vectors"]))
            })
        }),
        new("GC117", "a fallback that no card has", |folder| {
            preregister(folder, |asked| put(asked, "/arms/1/fallback_groups", json!(["vectors"])))
        }),
        new("GC117", "another family's work, of which nothing is told", |folder| {
            preregister(folder, |asked| put(asked, "/arms/1/family", json!("muon")))
        })
        .seen_by(&["GC116"]),
        new("GC121", "a cost that nobody measured", |folder| {
            preregister(folder, |asked| push(asked, "/costs", json!("energy")))
        }),
        new("GC123", "fewer steps that are called efficiency", |folder| {
            preregister(folder, |asked| claim_efficiency(asked, "steps_to_quality"))
        }),
        new("GC124", "claims along an axis on which all runs are at one point", |folder| {
            preregister(folder, |asked| {
                let place = "/update/card#/update/beta2";
                let axis = json!({"axis": "optimizer", "points": [[0.95], [0.99]], "pointers": [place]});
                claim_along(asked, axis)
            })
        }),
        new("GC124", "claims along the axis on which the arms differ", |folder| {
            preregister(folder, |asked| {
                let place = "/architecture/dropout";
                let axis = json!({"axis": "architecture", "points": [[0.1], [0]], "pointers": [place]});
                claim_along(asked, axis)
            })
        }),
    ]
}
