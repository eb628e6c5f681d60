//! `ledger campaign list`: the runs that a campaign binds, arm by arm. It says
//! what is recorded, and not what is true of it: that is the audit's.

use ledger::campaign::{BoundRun, CampaignState, read_campaign};
use schemas::campaign::{Arm, RunPurpose};
use schemas::digest::encode_hex;
use serde_json::{Value, json};

use crate::campaign_arguments::CampaignListArguments;
use crate::failure::{Failure, OrFail};
use crate::output::{counted, print, print_json, say};

/// What to do where the file is no campaign.
pub(crate) const CAMPAIGN_HINT: &str =
    "name the file that `ledger campaign freeze` made, by default campaign.db";

pub(crate) fn run(arguments: &CampaignListArguments) -> Result<u8, Failure> {
    let path = &arguments.campaign;
    let reader = ledger::reader::Reader::open(path).or_hint(CAMPAIGN_HINT)?;
    let state = read_campaign(&reader).or_hint(CAMPAIGN_HINT)?;
    if arguments.json {
        print_json("campaign-list", as_json(&state))?;
    } else {
        print_text(&state)?;
    }
    say(format!("What this shows was not checked; ledger campaign audit {} does.", path.display()));
    Ok(0)
}

fn print_text(state: &CampaignState) -> Result<(), Failure> {
    let contract = &state.contract;
    print(format!("campaign  {}  {}", contract.campaign, contract.preregistration.name))?;
    print(format!("digest    {}", contract.digest))?;
    for arm in &contract.preregistration.arms {
        print(format!("\n{}  ({})", arm.name, arm.label))?;
        print(format!(
            "  tuning {} of {}, confirmation {} of {}, positive control {}",
            count(state, arm, RunPurpose::Tuning),
            arm.tuning.num_trials,
            confirmed(state, arm),
            contract.preregistration.seeds.len(),
            count(state, arm, RunPurpose::PositiveControl),
        ))?;
        for run in state.of_arm(&arm.name) {
            print(line(run))?;
        }
    }
    let missing = state.missing_confirmations();
    print(format!(
        "\n{} in {} entries, {} missing",
        counted(state.runs.len(), "run"),
        state.num_entries,
        counted(missing.len(), "confirmation run")
    ))
}

fn line(run: &BoundRun) -> String {
    let det = &run.det;
    let late = run.late.as_ref().map_or_else(String::new, |reason| format!("  late: {reason}"));
    format!(
        "  {:>3}  {:<16} seed {:<20} level {}  {:>8} entries  {}  {}{late}",
        det.trial,
        purpose_name(det.purpose),
        det.seed.0,
        det.rescue_level,
        run.head.size,
        det.run,
        run.path
    )
}

fn count(state: &CampaignState, arm: &Arm, purpose: RunPurpose) -> usize {
    state.of_arm(&arm.name).filter(|run| run.det.purpose == purpose).count()
}

/// Confirmation runs of level 0.
fn confirmed(state: &CampaignState, arm: &Arm) -> usize {
    let missing = state.missing_confirmations().into_iter().filter(|(name, _)| *name == arm.name).count();
    state.contract.preregistration.seeds.len() - missing
}

pub(crate) const fn purpose_name(purpose: RunPurpose) -> &'static str {
    match purpose {
        RunPurpose::Tuning => "tuning",
        RunPurpose::Confirmation => "confirmation",
        RunPurpose::PositiveControl => "positive_control",
    }
}

fn as_json(state: &CampaignState) -> Value {
    let runs: Vec<Value> = state
        .runs
        .iter()
        .map(|run| {
            json!({
                "entry": run.first_entry, "late": run.late, "path": run.path, "run": run.det,
                "head": {"root": encode_hex(&run.head.root), "size": run.head.size}
            })
        })
        .collect();
    let missing: Vec<Value> = state
        .missing_confirmations()
        .into_iter()
        .map(|(arm, seed)| json!({"arm": arm, "seed": seed}))
        .collect();
    let contract = &state.contract;
    json!({
        "campaign": contract.campaign, "digest": contract.digest, "missing_confirmations": missing,
        "name": contract.preregistration.name, "num_entries": state.num_entries, "runs": runs
    })
}
