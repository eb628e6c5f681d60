//! A report for the unit tests of several formats; no part of the program.

use schemas::report::Report;
use serde_json::json;

/// A report of three rules, the last of which had nothing to check.
pub(crate) fn report(verdict: &str, second: &str, severity: &str) -> Report {
    let rule = |code: &str, status: &str| json!({"code": code, "num_checked": 1, "reason": null, "rule": "name", "status": status});
    let finding = json!({
        "actual": "", "code": "GL002", "effect": "none", "entry": null, "expected": "", "location": "",
        "message": "", "remedy": "", "rule": "name", "severity": severity,
    });
    let denominators = json!({
        "attempted": 1, "candidates": 0, "checkpoints": 0, "completed": 1, "failed": 0, "interrupted": 0,
        "qualified": 0, "recovered": 0, "released": 0, "selected": 0, "steps_executed": 1, "steps_logical": 1,
    });
    let report = json!({
        "contract": format!("sha256:{}", "ab".repeat(32)), "denominators": denominators,
        "findings": [finding], "format": "report/1", "head": null,
        "independence": {"reason": "", "status": ""}, "nonclaims": [], "num_entries": 1, "profile": "native",
        "projection": null, "route": "accept_handoff",
        "rules": [rule("GL001", "passed"), rule("GL002", second), rule("GL003", "not_applicable")],
        "ruleset": "2026.1", "run": "r", "selected": null, "selection_basis": "none", "target_met": null,
        "tool": "ledger 0.1.0", "verdict": verdict,
    });
    serde_json::from_value(report).expect("a report")
}
