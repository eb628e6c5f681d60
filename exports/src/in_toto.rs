//! An audit as in-toto attestations: a test result (predicate `test-result/v0.1`
//! of in-toto's own catalogue), which policy engines know, and the whole report
//! under a predicate of ours.
//!
//! `PASSED` is written nowhere else and only here: of a report that accepts and
//! in which every rule passed or had nothing to check. A rule that could not run
//! is among the failed tests, because it did not pass.

use ledger::canonical::entry_json;
use ledger::keys::KeyPair;
use schemas::dsse::Subject;
use schemas::finding::Severity;
use schemas::report::{Report, RuleResult, RuleStatus, Verdict};
use serde_json::{Value, json};

use crate::statement::{digest_set, file_subject, head_digest, public_key, signed};
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
    /// What a report is as a test result.
    #[must_use]
    pub fn of(report: &Report) -> Self {
        let all_passed = report.rules.iter().all(|rule| test_of(report, rule) != Some(Self::Failed));
        if report.verdict != Verdict::Accepted || !all_passed || report.rules.is_empty() {
            return Self::Failed;
        }
        match report.findings.iter().any(|finding| finding.severity >= Severity::Warning) {
            true => Self::Warned,
            false => Self::Passed,
        }
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
    let result = predicate(&evidence.report);
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
        Subject { digest: digest_set([&evidence.contract.digest]), name: "contract.json".to_owned() };
    subjects.push(contract);
    Ok(subjects)
}

fn predicate(report: &Report) -> Value {
    let named = |result| -> Vec<String> {
        let rules = report.rules.iter().filter(|rule| test_of(report, rule) == Some(result));
        rules.map(|rule| format!("{} {}", rule.code, rule.rule)).collect()
    };
    let contract = report.contract.as_ref();
    let profile = report.profile.and_then(|profile| serde_json::to_value(profile).ok());
    let profile = profile.as_ref().and_then(Value::as_str).unwrap_or("unknown");
    json!({
        "configuration": [
            {"digest": digest_set(contract), "name": "contract.json"},
            {
                "name": format!("ruleset {}, profile {profile}", report.ruleset),
                "uri": format!("https://governed-ledger.invalid/ruleset/{}/{profile}", report.ruleset),
            },
            {"name": report.tool},
        ],
        "failedTests": named(TestResult::Failed),
        "passedTests": named(TestResult::Passed),
        "result": TestResult::of(report).name(),
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
