//! `ledger campaign freeze`: check, sign, create the campaign's ledger.

use std::path::Path;
use std::time::Instant;

use ledger::campaign::{CampaignFreezeError, freeze_campaign};
use ledger::freeze::{
    CheckedPreregistration, FreezeProblem, PreregistrationError, PreregistrationRequest,
    check_preregistration,
};
use ledger::keys::Role;
use ledger::strict::{ParseOptions, parse};
use schemas::campaign::CampaignKeys;
use schemas::contract::PublicKey;
use serde_json::{Value, json};

use crate::campaign_arguments::CampaignFreezeArguments;
use crate::commands::freeze::{problem_json, say_problems};
use crate::failure::{FINDINGS, Failure, OrFail};
use crate::key_folder;
use crate::output::{print, print_json, say, say_done};

pub(crate) fn run(arguments: &CampaignFreezeArguments) -> Result<u8, Failure> {
    let started = Instant::now();
    let path = &arguments.preregistration;
    let ledger = arguments.output.clone().unwrap_or_else(|| path.with_file_name("campaign.db"));
    if !arguments.check && ledger.exists() {
        return Err(Failure::new(
            format!("{} exists and is never overwritten", ledger.display()),
            "a frozen preregistration cannot change; name another ledger with --output for another campaign",
        ));
    }
    let keys = key_folder::locate(arguments.keys.as_deref(), key_folder::folder_of(path));
    let mut request = PreregistrationRequest::new(path);
    if leaves_keys_to_freeze(path) {
        if !arguments.check {
            let made = key_folder::make_missing(&keys)?;
            key_folder::say_made(&keys, &made);
        }
        request.keys_when_null = Some(if arguments.check { other_keys()? } else { campaign_keys(&keys)? });
    }
    if arguments.check {
        return run_check(&request, arguments.json, started);
    }
    // What is wrong with the preregistration comes before who may sign it.
    if let Err(error) = check_preregistration(&request) {
        return refuse(error, path, arguments.json);
    }
    let ring = key_folder::open(&keys)?;
    let frozen = match freeze_campaign(&request, Some(&ledger), &ring, super::super::TOOL) {
        Ok(frozen) => frozen,
        Err(CampaignFreezeError::Preregistration(error)) => return refuse(error, path, arguments.json),
        Err(error) => return Err(error).or_hint(hint_of_failure()),
    };
    if arguments.json {
        print_json(
            "campaign-freeze",
            json!({
                "campaign": frozen.created.run, "digest": frozen.created.digest, "frozen": true,
                "ledger": frozen.ledger, "preregistration": frozen.preregistration, "problems": []
            }),
        )?;
    } else {
        print(format!("campaign         {}", frozen.created.run))?;
        print(format!("digest           {}", frozen.created.digest))?;
        print(format!("ledger           {}", frozen.ledger.display()))?;
        print(format!("preregistration  {}", frozen.preregistration.display()))?;
    }
    say_checked(&frozen.checked);
    say_done(format!("Froze {}", path.display()), started);
    let arm = &frozen.checked.preregistration.reference_arm;
    say(
        "Keep a copy of the head elsewhere: a campaign that is frozen again after its results shows only against it.",
    );
    say(format!(
        "next: ledger init --campaign {} --arm {arm} --seed N --output DIR, then ledger freeze, ledger campaign add, trainer run",
        frozen.ledger.display()
    ));
    Ok(0)
}

const fn hint_of_failure() -> &'static str {
    "make room, or name a ledger in a folder that can be written with --output; the owner's key folder goes with --keys"
}

/// What a freeze would refuse, without writing.
fn run_check(request: &PreregistrationRequest, json: bool, started: Instant) -> Result<u8, Failure> {
    let path = &request.preregistration;
    let checked = match check_preregistration(request) {
        Ok(checked) => checked,
        Err(error) => return refuse(error, path, json),
    };
    if json {
        let nothing = Value::Null;
        print_json(
            "campaign-freeze",
            json!({
                "campaign": nothing, "digest": nothing, "frozen": false, "ledger": nothing,
                "preregistration": nothing, "problems": []
            }),
        )?;
    } else {
        print(format!("{}: nothing is wrong", path.display()))?;
    }
    say_checked(&checked);
    say_done(format!("Checked {}", path.display()), started);
    Ok(0)
}

fn say_checked(checked: &CheckedPreregistration) {
    let document = &checked.preregistration;
    let num_confirmations = document.arms.len() * document.seeds.len();
    let num_trials: u32 = document.arms.iter().map(|arm| arm.tuning.num_trials).sum();
    say(format!(
        "{} arms, {} seeds, {} claims: {num_confirmations} confirmation runs and up to {num_trials} trials of tuning.",
        document.arms.len(),
        document.seeds.len(),
        document.claims.len()
    ));
}

/// Whether `/keys` is null. A file that cannot be read is left to the check.
fn leaves_keys_to_freeze(preregistration: &Path) -> bool {
    let bytes = std::fs::read(preregistration).unwrap_or_default();
    parse(&bytes, ParseOptions::without_comments())
        .is_ok_and(|value| value.get("keys").is_some_and(Value::is_null))
}

fn campaign_keys(folder: &Path) -> Result<CampaignKeys, Failure> {
    let keys = key_folder::contract_keys(folder)?;
    Ok(CampaignKeys { owner: keys.owner, validator: keys.validator })
}

/// Keys in the place of those that a freeze would make or find, for a check
/// that makes nothing; they are gone with it.
fn other_keys() -> Result<CampaignKeys, Failure> {
    let folder = tempfile::tempdir()?;
    for role in [Role::Owner, Role::Validator] {
        key_folder::make(folder.path(), role)?;
    }
    let ring = key_folder::open(folder.path())?;
    let public = |role: Role| -> Result<PublicKey, Failure> {
        let file = ring.public(role)?;
        Ok(PublicKey { host: file.host, public: file.public })
    };
    Ok(CampaignKeys { owner: public(Role::Owner)?, validator: public(Role::Validator)? })
}

/// Says what was refused; the exit code.
fn refuse(error: PreregistrationError, path: &Path, json: bool) -> Result<u8, Failure> {
    let PreregistrationError::Refused { problems, .. } = error else {
        return Err(error).or_hint("name a preregistration; preregistration/example-campaign.json is one");
    };
    if json {
        let problems: Vec<Value> = problems.iter().map(problem_json).collect();
        print_json(
            "campaign-freeze",
            json!({
                "campaign": null, "digest": null, "frozen": false, "ledger": null, "preregistration": null,
                "problems": problems
            }),
        )?;
    }
    say_problems(&problems);
    say(format!("{} is not frozen: {}", path.display(), number_of(&problems)));
    Ok(FINDINGS)
}

fn number_of(problems: &[FreezeProblem]) -> String {
    match problems.len() {
        1 => "1 problem".to_owned(),
        number => format!("{number} problems"),
    }
}
