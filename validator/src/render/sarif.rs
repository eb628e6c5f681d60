//! The report as SARIF 2.1.0 (OASIS standard), for tools that show findings of
//! any checker.

use std::collections::BTreeMap;

use schemas::finding::Finding;
use schemas::report::{Report, RuleStatus};
use serde_json::{Value, json};

use super::{place, route_name, severity_name};
use crate::rules::{RuleInfo, catalogue};

/// The report as a SARIF log with one run.
#[must_use]
pub fn sarif(report: &Report) -> Value {
    let index: BTreeMap<&str, usize> =
        catalogue().iter().enumerate().map(|(index, info)| (info.code, index)).collect();
    let of = |finding: &Finding| index.get(finding.code.as_str()).copied();
    let results: Vec<Value> = report.findings.iter().map(|finding| result(finding, of(finding))).collect();
    let unevaluated: Vec<Value> = report
        .rules
        .iter()
        .filter(|rule| rule.status == RuleStatus::NotEvaluated)
        .map(|rule| {
            json!({
                "level": "error",
                "message": { "text": rule.reason.as_deref().unwrap_or("the rule could not run") },
                "associatedRule": { "id": rule.code },
            })
        })
        .collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "governed-ledger-validator",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": catalogue().iter().map(|info| rule(info)).collect::<Vec<_>>(),
            }},
            "invocations": [{
                "executionSuccessful": true,
                "exitCode": report.verdict.exit_code(),
                "toolConfigurationNotifications": unevaluated,
            }],
            "properties": {
                "verdict": report.verdict.name(),
                "profile": report.profile,
                "notPromised": report.not_promised,
                "route": route_name(report.route),
                "ruleset": report.ruleset,
                "run": report.run,
                "trust": report.trust,
                "since": report.since,
            },
            "results": results,
        }],
    })
}

/// A rule's text.
pub(crate) fn rule(info: &RuleInfo) -> Value {
    json!({
        "id": info.code,
        "name": info.name,
        "shortDescription": { "text": info.what },
        "fullDescription": { "text": format!("{} {}", info.what, info.why) },
        "help": { "text": format!("{}. See {}.", info.remedy, info.reference) },
    })
}

/// A finding, with the place of its rule in the list of rules.
pub(crate) fn result(finding: &Finding, position: Option<usize>) -> Value {
    let mut result = json!({
        "ruleId": finding.code,
        "level": severity_name(finding.severity),
        // SARIF permits another kind than `fail` only with level `none`.
        "kind": "fail",
        "message": { "text": format!(
            "{}. Expected: {}. Actual: {}. Hint: {}.",
            finding.message, finding.expected, finding.actual, finding.remedy
        ) },
        "locations": [{ "logicalLocations": [{
            "fullyQualifiedName": place(finding),
            "kind": if finding.entry.is_some() { "element" } else { "resource" },
        }] }],
        "properties": { "effect": finding.effect },
    });
    if let Some(cause) = finding.cause {
        result["properties"]["cause"] = json!(cause);
    }
    if let Some(position) = position {
        result["ruleIndex"] = json!(position);
    }
    result
}
