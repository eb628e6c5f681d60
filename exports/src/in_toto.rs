//! An audit as in-toto attestations: a test result (predicate `test-result/v0.1`
//! of in-toto's own catalogue), which policy engines know, and the whole report
//! under a predicate of ours.
//!
//! `PASSED` is written nowhere else and only here: of a run that its stopping
//! rule ended, under a report that accepts, warns of nothing, and in which every
//! rule passed or had nothing to check. A rule that could not run is among the
//! failed tests, because it did not pass.

use ledger::canonical::entry_json;
use ledger::keys::KeyPair;
use schemas::body::Outcome;
use schemas::dsse::Subject;
use schemas::finding::Severity;
use schemas::report::{Report, RuleResult, RuleStatus, Verdict};
use serde_json::{Value, json};

use crate::statement::{CONTRACT_NAME, digest_set, file_subject, head_digest, public_key, signed};
use crate::{Document, Evidence, ExportError, HashedFile, candidate_files};

/// Predicate of a test result (github.com/in-toto/attestation,
/// spec/predicates/test-result.md).
pub const TEST_RESULT_PREDICATE_TYPE: &str = "https://in-toto.io/attestation/test-result/v0.1";

/// Predicate of an audit: the report as `report/1` defines it.
pub const AUDIT_PREDICATE_TYPE: &str = "https://governed-ledger.invalid/audit/v1";

/// The result of a test run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestResult {
    /// All tests passed.
    Passed,
    /// All passed, some with warnings.
    Warned,
    /// Some did not pass.
    Failed,
}

impl TestResult {
    /// What a report is as a test result. The record of a run that its stopping
    /// rule did not end may be whole; such a run does not pass either.
    #[must_use]
    pub fn of(report: &Report, ended: Option<Outcome>) -> Self {
        let all_passed = report.rules.iter().all(|rule| test_of(report, rule) != Some(Self::Failed));
        if report.verdict != Verdict::Accepted || !all_passed || report.rules.is_empty() {
            return Self::Failed;
        }
        let has_warning = report.findings.iter().any(|finding| finding.severity >= Severity::Warning);
        if has_warning || ended != Some(Outcome::Completed) { Self::Warned } else { Self::Passed }
    }

    /// As the predicate spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "PASSED",
            Self::Warned => "WARNED",
            Self::Failed => "FAILED",
        }
    }
}

/// The attestations of an audit, and the key that signed them.
///
/// # Errors
/// When a file of the accepted candidate is not what the audit saw.
pub fn documents(evidence: &Evidence, signer: &KeyPair) -> Result<Vec<Document>, ExportError> {
    let subjects = subjects(evidence)?;
    let report: Value = serde_json::from_slice(&entry_json(&evidence.report)?)?;
    let result = predicate(&evidence.report, evidence.ended.as_ref().map(|ended| ended.outcome));
    Ok(vec![
        signed("test-result.dsse.json", TEST_RESULT_PREDICATE_TYPE, subjects.clone(), result, signer)?,
        signed("audit.dsse.json", AUDIT_PREDICATE_TYPE, subjects, report, signer)?,
        public_key(signer),
    ])
}

/// What was tested: the selected candidate's files, the entries by the head that
/// covers them, and the contract. Of a run that was not accepted the files are
/// left out where they are not what the record says.
fn subjects(evidence: &Evidence) -> Result<Vec<Subject>, ExportError> {
    let report = &evidence.report;
    let mut subjects = Vec::new();
    if let Some(selected) = &report.selected {
        let files = candidate_files(evidence.folder(), &selected.path, &selected.model, &selected.config);
        let files: Vec<HashedFile> = if evidence.is_accepted() { files? } else { files.unwrap_or_default() };
        subjects.extend(files.iter().map(file_subject));
    }
    if let Some(head) = &report.head
        && let Some(digest) = head_digest(head)
    {
        subjects.push(Subject { digest: digest_set([&digest]), name: head.origin.clone() });
    }
    let contract =
        Subject { digest: digest_set([&evidence.contract.digest]), name: CONTRACT_NAME.to_owned() };
    subjects.push(contract);
    Ok(subjects)
}

fn predicate(report: &Report, ended: Option<Outcome>) -> Value {
    let named = |result| -> Vec<String> {
        let rules = report.rules.iter().filter(|rule| test_of(report, rule) == Some(result));
        rules.map(|rule| format!("{} {}", rule.code, rule.rule)).collect()
    };
    let contract = report.contract.as_ref();
    let profile = report.profile.and_then(|profile| serde_json::to_value(profile).ok());
    let profile = profile.as_ref().and_then(Value::as_str).unwrap_or("unknown");
    json!({
        "configuration": [
            {"digest": digest_set(contract), "name": CONTRACT_NAME},
            {
                "name": format!("ruleset {}, profile {profile}", report.ruleset),
                "uri": format!("https://governed-ledger.invalid/ruleset/{}/{profile}", report.ruleset),
            },
            {"name": report.tool},
        ],
        "failedTests": named(TestResult::Failed),
        "passedTests": named(TestResult::Passed),
        "result": TestResult::of(report, ended).name(),
        "warnedTests": named(TestResult::Warned),
    })
}

/// One rule as a test; none of a rule that had nothing to check.
fn test_of(report: &Report, rule: &RuleResult) -> Option<TestResult> {
    let warned = || {
        let mut findings = report.findings.iter().filter(|finding| finding.code == rule.code);
        findings.any(|finding| finding.severity >= Severity::Warning)
    };
    match rule.status {
        RuleStatus::NotApplicable => None,
        RuleStatus::Failed | RuleStatus::NotEvaluated => Some(TestResult::Failed),
        RuleStatus::Passed if warned() => Some(TestResult::Warned),
        RuleStatus::Passed => Some(TestResult::Passed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::report;

    #[test]
    fn only_an_accepted_and_completed_run_without_a_warning_passes() {
        let completed = Some(Outcome::Completed);
        let check = |verdict, second, severity, ended, expected| {
            let report = report(verdict, second, severity);
            assert_eq!(TestResult::of(&report, ended), expected, "{verdict} {second} {severity} {ended:?}");
        };
        check("accepted", "passed", "note", completed, TestResult::Passed);
        check("accepted", "passed", "warning", completed, TestResult::Warned);
        for ended in [None, Some(Outcome::Interrupted), Some(Outcome::BudgetExhausted), Some(Outcome::Failed)]
        {
            check("accepted", "passed", "note", ended, TestResult::Warned);
        }
        for verdict in ["rejected", "tampered", "incomplete", "not_evaluated"] {
            check(verdict, "passed", "note", completed, TestResult::Failed);
        }
        // A report that contradicts itself is not believed.
        check("accepted", "failed", "note", completed, TestResult::Failed);
        check("accepted", "not_evaluated", "note", completed, TestResult::Failed);
        let mut empty = report("accepted", "passed", "note");
        empty.rules.clear();
        assert_eq!(TestResult::of(&empty, completed), TestResult::Failed);
    }

    #[test]
    fn every_rule_that_looked_at_something_is_a_test() {
        let predicate = predicate(&report("rejected", "not_evaluated", "warning"), None);
        assert_eq!(predicate["result"], "FAILED");
        assert_eq!(predicate["passedTests"], json!(["GL001 name"]));
        assert_eq!(predicate["failedTests"], json!(["GL002 name"]));
        let warned = super::predicate(&report("accepted", "passed", "warning"), Some(Outcome::Completed));
        assert_eq!((&warned["result"], &warned["warnedTests"]), (&json!("WARNED"), &json!(["GL002 name"])));
        assert_eq!(
            warned["configuration"][1]["uri"],
            "https://governed-ledger.invalid/ruleset/2026.1/native"
        );
    }
}
