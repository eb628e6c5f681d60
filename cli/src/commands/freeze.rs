//! `ledger freeze`: check, sign, create the ledger.

use std::path::Path;
use std::time::Instant;

use ledger::freeze::{CheckedContract, FreezeError, FreezeProblem, FreezeRequest, freeze};
use ledger::strict::{ParseOptions, parse};
use schemas::contract::EvidenceProfile;
use serde_json::{Value, json};

use crate::arguments::FreezeArguments;
use crate::failure::{COULD_NOT_RUN, FINDINGS, Failure, OrFail};
use crate::key_folder;
use crate::output::{count, print, print_json, say, say_done};

pub(crate) fn run(arguments: &FreezeArguments) -> Result<u8, Failure> {
    let started = Instant::now();
    let path = &arguments.contract;
    let ledger = arguments.output.clone().unwrap_or_else(|| path.with_file_name("run.db"));
    if ledger.exists() {
        return Err(Failure::new(
            format!("{} exists and is never overwritten", ledger.display()),
            "a frozen contract cannot change; name another ledger with --output for another run",
        ));
    }
    let keys = key_folder::locate(arguments.keys.as_deref(), key_folder::folder_of(path));
    let mut request = FreezeRequest::new(path);
    if leaves_keys_to_freeze(path) {
        let made = key_folder::make_missing(&keys)?;
        key_folder::say_made(&keys, &made);
        request.keys_when_null = Some(key_folder::contract_keys(&keys)?);
    }
    let frozen = match key_folder::open(&keys) {
        Ok(ring) => freeze(&request, Some(&ledger), &ring, super::TOOL),
        // What is wrong with the contract comes before who may sign it.
        Err(failure) => match ledger::freeze::check(&request) {
            Ok(_) => return Err(failure),
            Err(error) => Err(error),
        },
    };
    let frozen = match frozen {
        Ok(frozen) => frozen,
        Err(error) => return refuse(error, path, arguments.json),
    };
    if arguments.json {
        print_json(
            "freeze",
            json!({
                "contract": frozen.created.digest, "frozen": true, "ledger": frozen.ledger, "problems": [],
                "run": frozen.created.run
            }),
        )?;
    } else {
        print(format!("run       {}", frozen.created.run))?;
        print(format!("contract  {}", frozen.created.digest))?;
        print(format!("ledger    {}", frozen.ledger.display()))?;
    }
    say_checked(&frozen.checked);
    say_done(format!("Froze {}", path.display()), started);
    let witnesses = &frozen.checked.contract.keys.witnesses;
    for witness in witnesses {
        say(format!(
            "next, before the first step: ledger witness add {} --name {} --url URL [--follow]",
            frozen.ledger.display(),
            witness.name
        ));
    }
    match frozen.checked.contract.ruleset.profile {
        EvidenceProfile::Native => say(format!("next: trainer run --ledger {}", frozen.ledger.display())),
        EvidenceProfile::ExternalLoop => {
            say(format!("next: run your loop on {}, and then `ledger audit`", frozen.ledger.display()));
        }
    }
    Ok(0)
}

/// Whether the contract's `/keys` is null. A contract that cannot be read is
/// left to the check, which says what is wrong.
fn leaves_keys_to_freeze(contract: &Path) -> bool {
    let bytes = std::fs::read(contract).unwrap_or_default();
    parse(&bytes, ParseOptions::without_comments())
        .is_ok_and(|value| value.get("keys").is_some_and(Value::is_null))
}

/// Says what was refused; the exit code.
pub(super) fn refuse(error: FreezeError, contract: &Path, json: bool) -> Result<u8, Failure> {
    match error {
        FreezeError::Refused { problems, .. } => {
            if json {
                let problems: Vec<Value> = problems.iter().map(problem_json).collect();
                print_json(
                    "freeze",
                    json!({"contract": null, "frozen": false, "ledger": null, "problems": problems, "run": null}),
                )?;
            }
            say_problems(&problems);
            let number = problems.len();
            let noun = if number == 1 { "problem" } else { "problems" };
            say(format!("{} is not frozen: {number} {noun}", contract.display()));
            Ok(FINDINGS)
        }
        FreezeError::Read { .. } => {
            Err(error).or_hint("name a contract file; `ledger init` makes one").map(|()| COULD_NOT_RUN)
        }
        FreezeError::Key(_) => Err(error)
            .or_hint("name the folder with the owner's key with --keys or $LEDGER_KEYS")
            .map(|()| COULD_NOT_RUN),
        error => Err(error)
            .or_hint("make room, or name a ledger in a folder that can be written with --output")
            .map(|()| COULD_NOT_RUN),
    }
}

pub(super) fn say_problems(problems: &[FreezeProblem]) {
    for problem in problems {
        say(format!("error: {problem}"));
        say(format!("hint: {}", problem.hint));
    }
}

pub(super) fn problem_json(problem: &FreezeProblem) -> Value {
    json!({
        "column": problem.position.map(|position| position.column), "file": problem.file, "hint": problem.hint,
        "line": problem.position.map(|position| position.line), "message": problem.message,
        "pointer": problem.pointer
    })
}

/// What was read.
pub(super) fn say_checked(checked: &CheckedContract) {
    say(format!(
        "Read and digested every named file: {} train and {} val examples, at most {} steps.",
        count(checked.num_train_examples),
        count(checked.num_val_examples),
        count(checked.num_steps)
    ));
}
