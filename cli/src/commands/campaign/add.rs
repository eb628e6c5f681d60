//! `ledger campaign add`: binds a run by its contract and a head.

use std::time::Instant;

use ledger::campaign::{BindRequest, bind};
use schemas::digest::encode_hex;
use serde_json::json;

use super::list::purpose_name;
use crate::campaign_arguments::CampaignAddArguments;
use crate::commands::require_ledger;
use crate::failure::Failure;
use crate::key_folder;
use crate::output::{print, print_json, say, say_done};

pub(crate) fn run(arguments: &CampaignAddArguments) -> Result<u8, Failure> {
    let started = Instant::now();
    let campaign = &arguments.campaign;
    if !campaign.exists() {
        return Err(Failure::new(
            format!("there is no ledger of a campaign at {}", campaign.display()),
            "`ledger campaign freeze` makes one",
        ));
    }
    require_ledger(&arguments.run)?;
    let folder = key_folder::locate(arguments.keys.as_deref(), key_folder::folder_of(campaign));
    let keys = key_folder::open(&folder)?;
    let request = BindRequest {
        campaign: campaign.clone(),
        late: arguments.late.clone(),
        purpose: arguments.purpose.map(Into::into),
        run: arguments.run.clone(),
    };
    let bound = match bind(&request, &keys) {
        Ok(bound) => bound,
        Err(error) => {
            let (hint, is_refusal) = (error.hint(), error.is_refusal());
            let failure = Failure::from(error);
            return Err(if is_refusal {
                failure.into_findings(&arguments.run, hint)
            } else {
                failure.with_hint(hint)
            });
        }
    };
    let det = &bound.det;
    if arguments.json {
        print_json(
            "campaign-add",
            json!({
                "entry": bound.receipt.map(|receipt| receipt.index), "late": arguments.late,
                "missing_trials": bound.missing_trials, "path": bound.path, "run": det,
                "head": {"root": encode_hex(&bound.head.root), "size": bound.head.size}
            }),
        )?;
    } else {
        print(format!("run   {}", det.run))?;
        print(format!(
            "as    {} {} trial {} seed {} level {}",
            det.arm,
            purpose_name(det.purpose),
            det.trial,
            det.seed.0,
            det.rescue_level
        ))?;
        print(format!("head  {} entries, root {}", bound.head.size, encode_hex(&bound.head.root)))?;
    }
    if !bound.missing_trials.is_empty() {
        let missing: Vec<String> = bound.missing_trials.iter().map(u32::to_string).collect();
        say(format!(
            "warning: arm {} has no run of number {}; an audit misses them until they are bound",
            det.arm,
            missing.join(", ")
        ));
    }
    match bound.receipt {
        Some(receipt) => say_done(format!("Bound {} as entry {}", bound.path, receipt.index), started),
        None => say(format!("{} was bound with this head before; nothing was written", bound.path)),
    }
    if bound.head.size == 1 {
        say(format!("next: trainer run --ledger {}, then this command again", arguments.run.display()));
    } else {
        say(format!("next: ledger campaign audit {}", campaign.display()));
    }
    Ok(0)
}
