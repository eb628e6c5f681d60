//! A campaign report as text and as SARIF. The JSON form is the report itself.

use std::fmt::Write;

use schemas::campaign::report::{
    ArmOfCampaign, CampaignCosts, CampaignReport, ClaimResult, RunOfCampaign, ValueBasis,
};
use schemas::number::Float;
use schemas::report::{RuleStatus, Verdict};
use serde_json::{Value, json};

use super::numbers::{dimension_name, kind_name};
use super::rules::catalogue;
use crate::render::{one_line, sarif_result, sarif_rule, write_findings, write_rules};

/// The report as text, without colour.
#[must_use]
pub fn text(report: &CampaignReport) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_report(&mut out, report);
    out
}

fn write_report(out: &mut String, report: &CampaignReport) -> std::fmt::Result {
    let meaning = match report.verdict {
        Verdict::Accepted => "the record is whole, and the outcome of every claim is stated below",
        Verdict::Rejected => "a rule is broken",
        Verdict::Tampered => "bytes are not what was committed to",
        Verdict::Incomplete => "the campaign is not over, or a part of its record is missing",
        Verdict::NotEvaluated => "a rule could not run",
    };
    writeln!(out, "{}: {meaning}", report.verdict.name())?;
    let campaign = report.campaign.as_ref().map_or_else(|| "unknown".to_owned(), ToString::to_string);
    let digest = report.preregistration.map_or_else(|| "unknown".to_owned(), |digest| digest.to_string());
    writeln!(out, "\ncampaign:        {}", one_line(&campaign))?;
    writeln!(out, "preregistration: {digest}")?;
    writeln!(out, "ruleset:         {} ({})", report.ruleset, report.tool)?;
    match &report.head {
        Some(head) => writeln!(out, "head seen:       size {} root {}", head.size, head.root)?,
        None => writeln!(out, "head seen:       none that verifies")?,
    }
    let of = &report.verdicts;
    writeln!(
        out,
        "runs:            {} accepted, {} rejected, {} tampered, {} incomplete, {} not evaluated, {} missing",
        of.accepted, of.rejected, of.tampered, of.incomplete, of.not_evaluated, of.missing
    )?;
    writeln!(out, "\nclaims:")?;
    report.claims.iter().try_for_each(|claim| write_claim(out, claim))?;
    writeln!(out, "\narms:")?;
    report.arms.iter().try_for_each(|arm| write_arm(out, arm))?;
    writeln!(out, "  all: {}", costs(&report.costs))?;
    writeln!(out, "\nruns, every one that was bound:")?;
    report.runs.iter().try_for_each(|run| write_run(out, run))?;
    write_rules(out, &report.rules)?;
    write_findings(out, &report.findings)?;
    writeln!(out, "\nThis audit does not show more than this:")?;
    report.nonclaims.iter().try_for_each(|line| writeln!(out, "  - {}", one_line(line)))
}

fn number(value: Option<Float>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

/// On whose numbers a claim rests.
const fn basis_text(basis: Option<ValueBasis>) -> &'static str {
    match basis {
        Some(ValueBasis::Evaluator) => "rests on the evaluator's own numbers",
        Some(ValueBasis::Trainer) => "rests on the trainer's own numbers",
        Some(ValueBasis::None) => "rests on no number of any run",
        None => "the report does not say on whose numbers it rests",
    }
}

/// Whose number a run's quality is, behind that number.
const fn quality_basis_text(basis: Option<ValueBasis>) -> &'static str {
    match basis {
        Some(ValueBasis::Evaluator) => " by the evaluator",
        Some(ValueBasis::Trainer) => " by the trainer",
        Some(ValueBasis::None) | None => "",
    }
}

fn write_claim(out: &mut String, claim: &ClaimResult) -> std::fmt::Result {
    writeln!(
        out,
        "  {}: {} ({} in {}, margin {})",
        claim.outcome.name().replace('_', " "),
        one_line(&claim.id),
        kind_name(claim.kind),
        dimension_name(claim.dimension),
        claim.margin
    )?;
    writeln!(out, "    {}", basis_text(claim.basis))?;
    if !claim.scope.is_empty() {
        writeln!(out, "    along {:?} and nothing else", claim.scope)?;
    }
    claim.reasons.iter().try_for_each(|reason| writeln!(out, "    - {}", one_line(reason)))?;
    for comparison in &claim.comparisons {
        let (arm, against) = (one_line(&comparison.arm), one_line(&comparison.against));
        for seed in &comparison.seeds {
            let (one, other, advantage) = (number(seed.arm), number(seed.against), number(seed.advantage));
            writeln!(out, "    seed {}: {arm} {one}, {against} {other}, advantage {advantage}", seed.seed.0)?;
        }
        for beside in &comparison.beside {
            let name = dimension_name(beside.dimension);
            writeln!(
                out,
                "    beside, {name}: {arm} {}, {against} {}",
                number(beside.arm),
                number(beside.against)
            )?;
        }
    }
    Ok(())
}

fn costs(costs: &CampaignCosts) -> String {
    let energy =
        costs.energy_j.map_or_else(|| "energy not measured".to_owned(), |joules| format!("{joules} J"));
    format!(
        "{}, {}, {}, {}, {}, {}, {:.1} s of devices, {:.1} s wall, {} sent, {energy}",
        counted(costs.runs, "run"),
        counted(costs.attempts, "attempt"),
        counted(costs.steps_executed, "step"),
        counted(costs.tokens, "token"),
        counted(costs.examples, "example"),
        counted(costs.evaluations, "evaluation"),
        seconds(costs.device_us),
        seconds(costs.wall_us),
        counted(costs.bytes_sent, "byte")
    )
}

/// A number of things by their name, such as `1 run` and `2 runs`.
fn counted(number: u64, name: &str) -> String {
    if number == 1 { format!("1 {name}") } else { format!("{number} {name}s") }
}

#[allow(clippy::cast_precision_loss, reason = "shown with one digit behind the point")]
fn seconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1e6
}

fn write_arm(out: &mut String, arm: &ArmOfCampaign) -> std::fmt::Result {
    writeln!(
        out,
        "  {}: {} ({} reached the threshold), {} ({}), {}, {} rescued, {} failed",
        one_line(&arm.name),
        counted(arm.num_confirmations, "confirmation"),
        arm.num_reached,
        counted(arm.num_trials, "trial"),
        counted(arm.tuning_tokens, "token"),
        counted(arm.num_positive_controls, "control"),
        arm.num_rescued,
        arm.num_failed
    )?;
    writeln!(out, "    {}", costs(&arm.costs))
}

fn write_run(out: &mut String, run: &RunOfCampaign) -> std::fmt::Result {
    let verdict = run.verdict.map_or("missing", Verdict::name);
    let outcome =
        run.outcome.map_or_else(|| "not over".to_owned(), |outcome| format!("{outcome:?}").to_lowercase());
    let late = if run.is_late { ", bound late" } else { "" };
    let step = run.threshold_step.map_or_else(|| "never".to_owned(), |step| format!("at step {step}"));
    writeln!(
        out,
        "  {} trial {} seed {} level {}, {:?}: {verdict}, {outcome}, quality {}{}, threshold {step}{late}, {}",
        one_line(&run.arm),
        run.trial,
        run.seed.0,
        run.rescue_level,
        run.purpose,
        number(run.quality),
        quality_basis_text(run.quality_basis),
        one_line(&run.path)
    )
}

/// The report as a SARIF 2.1.0 log with one run.
#[must_use]
pub fn sarif(report: &CampaignReport) -> Value {
    let position = |code: &str| catalogue().iter().position(|info| info.code == code);
    let results: Vec<Value> =
        report.findings.iter().map(|finding| sarif_result(finding, position(&finding.code))).collect();
    let unevaluated =
        report.rules.iter().filter(|rule| rule.status == RuleStatus::NotEvaluated).map(|rule| {
            json!({
                "level": "error",
                "message": { "text": rule.reason.as_deref().unwrap_or("the rule could not run") },
                "associatedRule": { "id": rule.code },
            })
        });
    let claims = report.claims.iter().map(|claim| {
        json!({
            "basis": claim.basis,
            "id": claim.id,
            "outcome": claim.outcome,
            "reasons": claim.reasons,
        })
    });
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "governed-ledger-validator",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": catalogue().iter().map(|info| sarif_rule(info)).collect::<Vec<_>>(),
            }},
            "invocations": [{
                "executionSuccessful": true,
                "exitCode": report.verdict.exit_code(),
                "toolConfigurationNotifications": unevaluated.collect::<Vec<_>>(),
            }],
            "properties": {
                "verdict": report.verdict.name(),
                "ruleset": report.ruleset,
                "campaign": report.campaign,
                "claims": claims.collect::<Vec<_>>(),
            },
            "results": results,
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_not_several() {
        assert_eq!(counted(1, "run"), "1 run");
        assert_eq!([0, 2].map(|number| counted(number, "run")), ["0 runs", "2 runs"]);
    }
}
