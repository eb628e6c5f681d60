//! `ledger rules --coverage`: what guards what. Prints the validator's own
//! tables, which its tests prove, and judges nothing.

use serde_json::json;
use validator::coverage::{Concern, ConcernKind, Coverage, Field, Fixtures};

use crate::arguments::RulesArguments;
use crate::failure::Failure;
use crate::output::{print, print_json, say};

/// Exit code where something is not covered.
const NOT_COVERED: u8 = 1;

pub(crate) fn run(arguments: &RulesArguments) -> Result<u8, Failure> {
    let coverage = Coverage::read();
    let gaps = coverage.gaps();
    if arguments.json {
        let members = json!({
            "campaign_rules": coverage.campaign_rules, "concerns": coverage.concerns,
            "fields": coverage.fields, "gaps": gaps, "rules": coverage.rules,
        });
        print_json("coverage", members)?;
    } else {
        concerns("Invariants", ConcernKind::Invariant, &coverage)?;
        concerns("Failure modes", ConcernKind::FailureMode, &coverage)?;
        rules("Rules, with the runs that each passes and those that it catches", &coverage.rules)?;
        let title = "Rules of campaigns, with the campaigns that each passes and those that it catches";
        rules(title, &coverage.campaign_rules)?;
        fields(&coverage.fields)?;
    }
    for gap in &gaps {
        say(format!("not covered: {gap}"));
    }
    Ok(if gaps.is_empty() { 0 } else { NOT_COVERED })
}

fn concerns(title: &str, kind: ConcernKind, coverage: &Coverage) -> Result<(), Failure> {
    print(format!("{title}, and the rules that guard each\n"))?;
    let is_of_kind = |concern: &&Concern| concern.kind == kind;
    for concern in coverage.concerns.iter().filter(is_of_kind) {
        print(format!("{:>2}  {}", concern.number, concern.text))?;
        print(format!("    {}", concern.rules.join(" ")))?;
        if !concern.campaign.is_empty() {
            print(format!("    over the runs of a campaign: {}", concern.campaign.join(" ")))?;
        }
        let catchers = coverage.catchers(concern).join(" ");
        print(format!("    such as: {}, which {catchers} catches", concern.example))?;
    }
    print("")
}

fn rules(title: &str, rules: &[Fixtures]) -> Result<(), Failure> {
    print(format!("{title}\n"))?;
    for rule in rules {
        print(format!("{}  {}", rule.code, rule.name))?;
        print(format!("    passes  {}", rule.passing.join("; ")))?;
        print(format!("    catches {}", rule.failing.join("; ")))?;
    }
    print("")
}

fn fields(fields: &[Field]) -> Result<(), Failure> {
    print(
        "Fields of the contract, with the rules whose result is another when the field alone is changed\n",
    )?;
    for field in fields {
        print(format!("{:<48} {}", field.pointer, field.rules.join(" ")))?;
        if let Some(reason) = field.reason {
            print(format!("    {reason}"))?;
        }
    }
    Ok(())
}
