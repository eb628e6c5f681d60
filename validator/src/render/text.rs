//! The report for a reader at a terminal: the verdict in the first line, then
//! what it rests on, then findings grouped by rule.

use std::collections::BTreeMap;
use std::fmt::Write;

use schemas::finding::{Finding, Severity};
use schemas::report::{HeadSource, NotPromised, Report, Route, RuleResult, RuleStatus, Verdict};

use super::{basis_text, place, route_name, severity_name};

/// The report as text, without colour.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_report(&mut out, report);
    out
}

fn write_report(out: &mut String, report: &Report) -> std::fmt::Result {
    write_verdict(out, report)?;
    write_identity(out, report)?;
    write_counts(out, report)?;
    write_rules(out, &report.rules)?;
    write_findings(out, &report.findings)?;
    if let Some(scope) = &report.trust {
        super::trust::write_scope(out, scope)?;
    }
    writeln!(out, "\nThis audit does not show more than this:")?;
    for line in &report.nonclaims {
        writeln!(out, "  - {}", one_line(line))?;
    }
    write_not_promised(out, &report.not_promised)
}

/// What another evidence profile than `native` leaves open, rule by rule.
fn write_not_promised(out: &mut String, list: &[NotPromised]) -> std::fmt::Result {
    if list.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nIts evidence profile, external-loop, does not promise this:")?;
    for NotPromised { code, evaluated, rule, why } in list {
        let how = if *evaluated { "shows less" } else { "not evaluated" };
        writeln!(out, "  - {code} {rule} ({how}): {}", one_line(why))?;
    }
    Ok(())
}

fn write_verdict(out: &mut String, report: &Report) -> std::fmt::Result {
    let meaning = match report.verdict {
        Verdict::Accepted => "every rule that applies ran and found nothing wrong",
        Verdict::Rejected => "a rule is broken",
        Verdict::Tampered => "bytes are not what was committed to",
        Verdict::Incomplete => "the run is not over, or a part of its record is missing",
        Verdict::NotEvaluated => "a rule could not run",
    };
    writeln!(out, "{}: {meaning}", report.verdict_text())?;
    let why = match (report.verdict, report.route, &report.selected) {
        (Verdict::Accepted, Route::RequestQualification, None) => ": no candidate was selected",
        (Verdict::Accepted, Route::RequestQualification, Some(_)) => {
            ": the candidate is not resume-qualified, which the contract asks for"
        }
        _ => "",
    };
    writeln!(out, "route: {}{why}", route_name(report.route))
}

fn write_identity(out: &mut String, report: &Report) -> std::fmt::Result {
    let unknown = || "unknown".to_owned();
    let run = report.run.as_ref().map_or_else(unknown, ToString::to_string);
    let contract = report.contract.map_or_else(unknown, |digest| digest.to_string());
    writeln!(out, "\nrun:          {}", one_line(&run))?;
    writeln!(out, "contract:     {contract}")?;
    writeln!(out, "ruleset:      {} ({})", report.ruleset, report.tool)?;
    match &report.head {
        Some(head) => {
            let source = match head.source {
                HeadSource::Named => "the head file that was named",
                HeadSource::Beside => "the head file beside the ledger",
                HeadSource::Database => "the database's own table only",
            };
            writeln!(out, "head seen:    size {} root {}, from {source}", head.size, head.root)?;
        }
        None => writeln!(out, "head seen:    none that verifies")?,
    }
    writeln!(out, "entries:      {}", report.num_entries)?;
    if let Some(since) = &report.since {
        writeln!(
            out,
            "incremental:  goes on from report {}, which saw {} entries with root {}",
            since.report, since.size, since.root
        )?;
    }
    if let Some(projection) = report.projection {
        writeln!(out, "projection:   {projection}")?;
    }
    writeln!(out, "independence: {}: {}", report.independence.status, one_line(&report.independence.reason))
}

fn write_counts(out: &mut String, report: &Report) -> std::fmt::Result {
    let counts = &report.denominators;
    writeln!(
        out,
        "\nattempts:     {} attempted, {} completed, {} interrupted, {} failed, {} recovered",
        counts.attempted, counts.completed, counts.interrupted, counts.failed, counts.recovered
    )?;
    writeln!(out, "steps:        {} logical, {} executed", counts.steps_logical, counts.steps_executed)?;
    writeln!(
        out,
        "checkpoints:  {} committed, {} candidates, {} selected, {} qualified, {} released",
        counts.checkpoints, counts.candidates, counts.selected, counts.qualified, counts.released
    )?;
    if let Some(selected) = &report.selected {
        writeln!(
            out,
            "selected:     {} at step {}, value {}, {}",
            one_line(selected.candidate.as_str()),
            selected.step,
            selected.value,
            one_line(&selected.path)
        )?;
    }
    writeln!(out, "selection:    {}", basis_text(report.selection_basis))?;
    match report.target_met {
        Some(true) => writeln!(out, "target:       met"),
        Some(false) => writeln!(out, "target:       MISSED: this run is no evidence of competence"),
        None => writeln!(out, "target:       none was frozen, or nothing was selected"),
    }
}

/// How many rules did what, and why some did not run.
pub(crate) fn write_rules(out: &mut String, rules: &[RuleResult]) -> std::fmt::Result {
    let count = |status| rules.iter().filter(|rule| rule.status == status).count();
    writeln!(
        out,
        "\nrules:        {} passed, {} failed, {} not evaluated, {} not applicable",
        count(RuleStatus::Passed),
        count(RuleStatus::Failed),
        count(RuleStatus::NotEvaluated),
        count(RuleStatus::NotApplicable)
    )?;
    for rule in rules {
        let status = match rule.status {
            RuleStatus::Passed | RuleStatus::Failed => continue,
            RuleStatus::NotEvaluated => "not evaluated",
            RuleStatus::NotApplicable => "not applicable",
        };
        let reason = rule.reason.as_deref().unwrap_or("no reason was given");
        writeln!(out, "  {} {} {status}: {}", rule.code, rule.rule, one_line(reason))?;
    }
    Ok(())
}

/// Findings, grouped by rule.
pub(crate) fn write_findings(out: &mut String, findings: &[Finding]) -> std::fmt::Result {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    writeln!(
        out,
        "\nfindings:     {} errors, {} warnings, {} notes",
        count(Severity::Error),
        count(Severity::Warning),
        count(Severity::Note)
    )?;
    let mut groups: BTreeMap<&str, Vec<&Finding>> = BTreeMap::new();
    for finding in findings {
        groups.entry(&finding.code).or_default().push(finding);
    }
    for (code, group) in groups {
        writeln!(out, "\n{code} {}", group[0].rule)?;
        for finding in group {
            writeln!(
                out,
                "  {} at {}: {}",
                severity_name(finding.severity),
                one_line(&place(finding)),
                one_line(&finding.message)
            )?;
            writeln!(out, "    expected: {}", one_line(&finding.expected))?;
            writeln!(out, "    actual:   {}", one_line(&finding.actual))?;
            if let Some(cause) = finding.cause {
                writeln!(out, "    cause:    {cause}")?;
            }
            writeln!(out, "    hint: {}", one_line(&finding.remedy))?;
        }
    }
    Ok(())
}

/// Text from a ledger on one line, without control characters that could move
/// the cursor, and at a bounded length.
pub(crate) fn one_line(text: &str) -> String {
    const MAX_CHARACTERS: usize = 400;
    let mut line = String::new();
    for (index, character) in text.chars().enumerate() {
        if index == MAX_CHARACTERS {
            line.push_str("...");
            break;
        }
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_length_are_bounded() {
        assert_eq!(one_line("a\nb\u{1b}[2J"), "a\\nb\\u{1b}[2J");
        assert_eq!(one_line(&"x".repeat(500)).len(), 403);
    }
}
