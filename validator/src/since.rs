//! Going on from an earlier audit: its report, signed by the contract's
//! validator, whose head these entries begin with.
//!
//! What is left out on the entries that the report saw is work whose result
//! follows from their bytes and the frozen inputs alone, and only of a rule that
//! had no finding at all then. Everything else is done as ever: every entry is
//! read, hashed and parsed, every rule follows the run from its first entry, and
//! every file is read back. Where the entries do not begin with the report's
//! head, nothing is left out.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schemas::digest::{Digest, decode_hex};
use schemas::dsse::REPORT_PAYLOAD_TYPE;
use schemas::report::{AuditedBefore, Report, RuleStatus, Verdict};

use crate::contract::ContractRead;
use crate::dsse;
use crate::error::AuditError;
use crate::rules::EDITION;
use crate::rules::gl111_stored_report;

/// Program and version, as a report names them.
pub(crate) const TOOL: &str = concat!("validator ", env!("CARGO_PKG_VERSION"));

/// An earlier report that an audit goes on from.
#[derive(Debug, Clone)]
pub(crate) struct Since {
    report: Digest,
    root: [u8; 32],
    /// Codes of rules that passed and had nothing to say.
    settled: BTreeSet<String>,
    size: u64,
}

/// What an earlier audit settled of these entries.
#[derive(Debug, Clone, Default)]
pub struct Settled {
    codes: BTreeSet<String>,
    num_entries: u64,
}

impl Settled {
    /// How many first entries an earlier audit by this rule found nothing in; 0
    /// where there was none.
    #[must_use]
    pub fn num_entries(&self, code: &str) -> u64 {
        if self.codes.contains(code) { self.num_entries } else { 0 }
    }
}

impl Since {
    /// Reads a signed report.
    ///
    /// # Errors
    /// When its signature does not hold, or it is of another run, contract,
    /// edition or version, or saw no head.
    pub(crate) fn read(bytes: &[u8], path: &Path, read: &ContractRead) -> Result<Self, AuditError> {
        let refused = |reason: String| AuditError::Since { path: PathBuf::from(path), reason };
        let key = read.validator.as_ref().ok_or_else(|| {
            refused("the contract's validator key, which would have signed it, cannot be read".to_owned())
        })?;
        let payload = dsse::verify(bytes, REPORT_PAYLOAD_TYPE, key)
            .map_err(|error| refused(format!("it is not signed by the contract's validator: {error}")))?;
        let report = gl111_stored_report::parse(&payload, read).map_err(refused)?;
        if report.ruleset != EDITION {
            return Err(refused(format!("it is by edition {} of the rules, not {EDITION}", report.ruleset)));
        }
        if report.tool != TOOL {
            return Err(refused(format!("it is by {}, and this is {TOOL}", report.tool)));
        }
        if matches!(report.verdict, Verdict::Rejected | Verdict::Tampered) {
            let verdict = report.verdict.name();
            return Err(refused(format!(
                "its verdict is {verdict}: what one rule missed for that may be seen now"
            )));
        }
        let settled = settled(&report);
        let Some(head) = report.head.filter(|head| head.size > 0) else {
            return Err(refused("it saw no signed head".to_owned()));
        };
        // A tail that nobody signed may have told another story of what lies before it.
        if report.num_entries != head.size {
            let (seen, signed) = (report.num_entries, head.size);
            return Err(refused(format!("it judged {seen} entries, of which a head covers {signed}")));
        }
        let root = decode_hex(&head.root).and_then(|root| root.try_into().ok());
        let root = root.ok_or_else(|| refused(format!("its root {:?} is no hash", head.root)))?;
        let report = Digest::blake3(*blake3::hash(bytes).as_bytes());
        Ok(Self { report, root, settled, size: head.size })
    }

    /// Entries that it saw.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// Root of these entries.
    pub(crate) const fn root(&self) -> &[u8; 32] {
        &self.root
    }

    /// Whether a rule passed and had nothing to say.
    pub(crate) fn is_settled(&self, code: &str) -> bool {
        self.settled.contains(code)
    }

    /// For what looks at files, after the last entry.
    pub(crate) fn settled(&self) -> Settled {
        Settled { codes: self.settled.clone(), num_entries: self.size }
    }

    /// What the new report says of it.
    pub(crate) fn audited_before(&self) -> AuditedBefore {
        AuditedBefore { report: self.report, root: schemas::digest::encode_hex(&self.root), size: self.size }
    }
}

fn settled(report: &Report) -> BTreeSet<String> {
    let mut codes: BTreeSet<String> = report
        .rules
        .iter()
        .filter(|rule| rule.status == RuleStatus::Passed)
        .map(|rule| rule.code.clone())
        .collect();
    for finding in &report.findings {
        codes.remove(&finding.code);
    }
    codes
}
