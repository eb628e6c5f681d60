//! The honest corpus: runs that nobody tampered with, made by the real programs.
//!
//! It owns how each run is made and what an audit says of it: the verdict and
//! the findings above a note, which are true statements about that run and no
//! doubt about its record. It makes no record by hand, and it changes none: a
//! rule that calls one of these false is wrong.

mod making;

pub use making::export_and_import;

use serde_json::Value;

use crate::run_folder::RunFolder;

/// A run of the corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Honest {
    /// Frozen, trained, evaluated, handed off, qualified.
    QuickStart,
    /// Killed twice, and each time resumed from a checkpoint.
    KilledAndResumed,
    /// Lost in its only attempt.
    Failed,
    /// Met a fault under a policy that refuses to go on.
    Refused,
    /// Ended by its budget of wall time before its last step.
    BudgetStopped,
    /// Begun by two workers and, after a signal, finished by one and by two.
    MultiSegment,
    /// Executed by two workers.
    DataParallel,
    /// In binary16, with a scale that overflows first.
    SkippedSteps,
    /// Struck by planned faults of five families, and recovered from each.
    FaultsRecovered,
}

/// What an audit says of a run of the corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Exit code of `ledger audit`.
    pub code: i32,
    /// The verdict.
    pub verdict: &'static str,
    /// Codes of the warnings, each once; errors there are none.
    pub warnings: &'static [&'static str],
    /// Codes of warnings that depend on when the clock struck.
    pub possible: &'static [&'static str],
}

impl Honest {
    /// Every run of the corpus.
    pub const ALL: [Self; 9] = [
        Self::QuickStart,
        Self::KilledAndResumed,
        Self::Failed,
        Self::Refused,
        Self::BudgetStopped,
        Self::MultiSegment,
        Self::DataParallel,
        Self::SkippedSteps,
        Self::FaultsRecovered,
    ];

    /// Makes the run.
    ///
    /// # Panics
    /// When a program does not end as it must, or the run is not what its name
    /// says.
    #[must_use]
    #[track_caller]
    pub fn make(self) -> RunFolder {
        match self {
            Self::QuickStart => making::quick_start(),
            Self::KilledAndResumed => making::killed_and_resumed(),
            Self::Failed => making::failed(),
            Self::Refused => making::refused(),
            Self::BudgetStopped => making::budget_stopped(),
            Self::MultiSegment => making::multi_segment(),
            Self::DataParallel => making::data_parallel(),
            Self::SkippedSteps => making::skipped_steps(),
            Self::FaultsRecovered => making::faults_recovered(),
        }
    }

    /// What an audit says of it.
    #[must_use]
    pub const fn expected(self) -> Expected {
        let warnings: &[&str] = match self {
            // Budget or policy ended these before their stopping rule.
            Self::Failed | Self::Refused | Self::BudgetStopped => &["GL209"],
            // A segment of another number of workers claims no bits.
            Self::MultiSegment => &["GL208"],
            _ => &[],
        };
        let possible: &[&str] = match self {
            // Where the last step is one that is not due, the clock made it the last.
            Self::BudgetStopped => &["GL501"],
            _ => &[],
        };
        Expected { code: 0, verdict: "accepted", warnings, possible }
    }
}

/// Findings of a report above a note: severity, code and what was found.
///
/// # Panics
/// When the report has no list of findings.
#[must_use]
#[track_caller]
pub fn above_notes(report: &Value) -> Vec<(String, String, String)> {
    let findings = report["findings"].as_array().expect("a list of findings");
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let kept = findings.iter().filter(|finding| finding["severity"] != "note");
    kept.map(|finding| (text(finding, "severity"), text(finding, "code"), finding.to_string())).collect()
}

/// Codes of the warnings of a report, each once and in order.
///
/// # Panics
/// When a finding is an error: nobody tampered with the run.
#[must_use]
#[track_caller]
pub fn warnings(report: &Value) -> Vec<String> {
    let mut codes = Vec::new();
    for (severity, code, finding) in above_notes(report) {
        assert_eq!(severity, "warning", "an honest run is called false: {finding}");
        codes.push(code);
    }
    codes.sort();
    codes.dedup();
    codes
}
