//! `ledger rule` and `ledger rules`: what the validator checks, and why.

use serde_json::{Value, json};
use validator::rule::RuleInfo;
use validator::{campaign, rules};

use crate::arguments::{RuleArguments, RulesArguments};
use crate::failure::Failure;
use crate::output::{print, print_json};

pub(crate) fn run(arguments: &RuleArguments) -> Result<u8, Failure> {
    let code = &arguments.code;
    let info = rules::find(code)
        .or_else(|| campaign::find(code))
        .ok_or_else(|| Failure::new(format!("there is no rule {code:?}"), "`ledger rules` lists them"))?;
    if arguments.json {
        print_json("rule", json(info))?;
        return Ok(0);
    }
    print(format!("{} {}", info.code, info.name))?;
    for (title, text) in [
        ("What it checks", info.what),
        ("Why it matters", info.why),
        ("How to resolve", info.remedy),
        ("Specified in", info.reference),
        ("Gate", gate(info).as_str()),
    ] {
        print(format!("\n{title}\n  {text}"))?;
    }
    Ok(0)
}

pub(crate) fn run_all(arguments: &RulesArguments) -> Result<u8, Failure> {
    if arguments.json {
        let rules: Vec<Value> = all().map(json).collect();
        print_json("rules", json!({"rules": rules}))?;
        return Ok(0);
    }
    for info in all() {
        print(format!("{}  {:<28} {}", info.code, info.name, info.what))?;
    }
    Ok(0)
}

/// The rules over a run, then those over a campaign.
fn all() -> impl Iterator<Item = &'static RuleInfo> {
    rules::catalogue().iter().chain(campaign::catalogue()).copied()
}

/// The gate's name as reports spell it.
fn gate(info: &RuleInfo) -> String {
    match serde_json::to_value(info.gate) {
        Ok(Value::String(name)) => name,
        _ => format!("{:?}", info.gate),
    }
}

fn json(info: &RuleInfo) -> Value {
    json!({
        "code": info.code, "gate": gate(info), "name": info.name, "reference": info.reference,
        "remedy": info.remedy, "what": info.what, "why": info.why
    })
}
