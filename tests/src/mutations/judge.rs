//! Audits a mutated record and says what that shows.
//!
//! It believes the validator's report and nothing else. A mutation *counts* where
//! nothing was found by the rules that any parser, schema or hash would give
//! ([`FORM_AND_INTEGRITY`]): those were recomputed, and what is left to find is
//! what the record means. It is *killed* where the verdict is not `accepted`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use schemas::finding::{Effect, Finding};
use schemas::report::{Report, RuleStatus, Verdict};
use tempfile::NamedTempFile;
use validator::{AuditRequest, audit};

use super::Mutation;
use super::record::Record;
use crate::norms;

/// Rules of parsing, schema and integrity: a mutation that one of them finds
/// was seen as damage and not as a false claim. Identity (GL007, GL103), time
/// (GL012), extensions (GL013), the comparison of what the record names with the
/// files beside it (GL108, GL110), and whose these files are and what they say of
/// the record (GL109, GL111, GL112) are claims.
pub const FORM_AND_INTEGRITY: [&str; 13] = [
    "GL001", // store-layout
    "GL002", // entry-sequence
    "GL003", // canonical-bytes
    "GL004", // entry-shape
    "GL005", // leaf-hash
    "GL006", // idempotency-key
    "GL008", // signed-heads
    "GL009", // external-head
    "GL010", // head-coverage
    "GL101", // contract-frozen
    "GL102", // contract-signature
    "GL104", // frozen-artifacts
    "GL105", // frozen-documents
];

/// What an audit made of a mutated record.
#[derive(Debug, Clone)]
pub struct Judged {
    /// Codes of [`FORM_AND_INTEGRITY`] that found something, or could not run
    /// because of it.
    pub damaged: BTreeSet<String>,
    /// Findings that change the verdict.
    pub findings: Vec<Finding>,
    /// Codes of the other rules that keep the verdict from `accepted`.
    pub killers: BTreeSet<String>,
    /// The word.
    pub verdict: Verdict,
    /// Codes of rules that warn.
    pub warners: BTreeSet<String>,
}

impl Judged {
    /// What a report says.
    #[must_use]
    pub fn of(report: &Report) -> Self {
        let findings: Vec<Finding> =
            report.findings.iter().filter(|finding| finding.effect != Effect::None).cloned().collect();
        let stopped = report
            .rules
            .iter()
            .filter(|rule| matches!(rule.status, RuleStatus::Failed | RuleStatus::NotEvaluated));
        let (damaged, killers) = stopped
            .map(|rule| rule.code.clone())
            .partition(|code| FORM_AND_INTEGRITY.contains(&code.as_str()));
        let warners = report
            .findings
            .iter()
            .filter(|finding| finding.severity == schemas::finding::Severity::Warning)
            .map(|finding| finding.code.clone())
            .collect();
        Self { damaged, findings, killers, verdict: report.verdict, warners }
    }

    /// Whether parsing, schema and integrity had nothing to say.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.damaged.is_empty()
    }

    /// Whether the record is no longer accepted.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.verdict != Verdict::Accepted
    }
}

/// Audits the ledger of a folder.
///
/// # Errors
/// When the audit could not look.
pub fn report(ledger: &Path) -> Result<Report> {
    report_with(ledger, None)
}

/// The same, by a reviewer who names keys in a file.
fn report_with(ledger: &Path, trust: Option<&Path>) -> Result<Report> {
    let trust = trust.map(Path::to_owned);
    let request = AuditRequest { ledger: ledger.to_owned(), trust, ..AuditRequest::default() };
    audit(&request, &mut |_| {}).with_context(|| ledger.display().to_string())
}

/// A file of the public keys of a run as it was read, out of the attacker's reach.
fn named_keys(record: &Record) -> Result<NamedTempFile> {
    let keys = ["owner", "trainer", "validator", "qualifier"].map(|role| {
        let public = record.source.contract["keys"][role]["public"].as_str();
        anyhow::Ok((role, public.with_context(|| format!("the key of the {role}"))?))
    });
    let keys: BTreeMap<&str, &str> = keys.into_iter().collect::<Result<_>>()?;
    let mut file = NamedTempFile::new()?;
    file.write_all(&serde_json::to_vec(&keys)?)?;
    Ok(file)
}

/// Applies a mutation to a copy of the record, seals it and audits it, with the
/// run's keys where the reviewer has them; where the attacker fits norms, until no
/// other one could be written.
///
/// # Errors
/// When the mutation does not fit the record, changed nothing that is written,
/// needed no other norms where they are fitted, or the audit could not look.
pub fn judge(record: &Record, mutation: &Mutation) -> Result<Judged> {
    let judge = || {
        let keys = mutation.names_keys.then(|| named_keys(record)).transpose()?;
        let report = |ledger: &Path| report_with(ledger, keys.as_ref().map(NamedTempFile::path));
        let mut mutated = record.clone();
        (mutation.edit)(&mut mutated)?;
        anyhow::ensure!(!mutated.is_as_read(), "the mutation changes nothing");
        if !mutation.fits_norms {
            let sealed = mutated.seal(mutation.attacker)?;
            return Ok(Judged::of(&report(&sealed.ledger())?));
        }
        let (_, report, num_written) = norms::fit(mutated.entries.clone(), |entries| {
            mutated.entries = entries.to_vec();
            let sealed = mutated.seal(mutation.attacker)?;
            let report = report(&sealed.ledger())?;
            Ok((sealed, report))
        })?;
        anyhow::ensure!(num_written > 0, "the audit asks for no other norms");
        Ok(Judged::of(&report))
    };
    judge().with_context(|| format!("{} / {}", mutation.suite, mutation.name))
}
