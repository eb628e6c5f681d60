//! The validator's report as it lies beside the ledger. A page says whether
//! the validator's key of the contract signed it, whether it is of this ledger,
//! and which tree size it saw; it never makes a report.

use std::path::{Path, PathBuf};

use schemas::digest::encode_hex;
use schemas::dsse::{Envelope, REPORT_PAYLOAD_TYPE};
use schemas::ids::RunId;
use schemas::report::Report;
use serde::Serialize;

use crate::summary::Snapshot;

/// Bound of the file that is read: an audit caps its findings well below it.
pub(crate) const MAX_REPORT_BYTES: u64 = 64 << 20;

/// What lies beside the ledger.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub(crate) enum StoredReport {
    /// No file.
    Missing,
    /// A file that is not a report of this ledger, signed by its contract's validator.
    Unusable { reason: String },
    /// A report of this ledger whose signature verifies.
    Signed {
        /// How much of the ledger it is about.
        coverage: Coverage,
        /// Boxed: a report is large beside the other variants.
        report: Box<Report>,
    },
}

/// How much of what the ledger holds now a report is shown to be about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Coverage {
    /// Its head covers every entry that there is now.
    Whole,
    /// Its head covers every entry that it read; there are more now.
    Older,
    /// Its head covers fewer entries than it read, or it names none.
    Partial,
}

/// Path of the stored report of a ledger.
pub(crate) fn path_of(ledger: &Path) -> PathBuf {
    let mut path = ledger.as_os_str().to_owned();
    path.push(".report.dsse.json");
    PathBuf::from(path)
}

/// Reads the report beside a ledger.
pub(crate) fn read(snapshot: &Snapshot) -> StoredReport {
    let path = path_of(&snapshot.path);
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return StoredReport::Missing,
        Err(error) => return unusable(format!("cannot read {}: {error}", path.display())),
        Ok(metadata) if metadata.len() > MAX_REPORT_BYTES => {
            return unusable(format!("{} is larger than {MAX_REPORT_BYTES} bytes", path.display()));
        }
        Ok(_) => {}
    }
    let checked = verify(&path, snapshot).and_then(|report| Ok((compare(&report, snapshot)?, report)));
    match checked {
        Ok((coverage, report)) => StoredReport::Signed { coverage, report: Box::new(report) },
        Err(reason) => unusable(reason),
    }
}

fn verify(path: &Path, snapshot: &Snapshot) -> Result<Report, String> {
    let contract =
        snapshot.contract.as_ref().ok_or("the ledger has no contract that names a validator's key")?;
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let envelope: Envelope = serde_json::from_slice(&bytes)
        .map_err(|error| format!("{} is not a DSSE envelope: {error}", path.display()))?;
    let payload = ledger::dsse::verify(&envelope, REPORT_PAYLOAD_TYPE, &contract.keys.validator.public)
        .map_err(|error| format!("the report's signature does not verify: {error}"))?;
    serde_json::from_slice(&payload).map_err(|error| format!("the signed payload is not a report: {error}"))
}

/// Whether a report is of this ledger: one validator's key signs the reports of
/// many runs, and a run's name and number of entries say nothing of what they hold.
fn compare(report: &Report, snapshot: &Snapshot) -> Result<Coverage, String> {
    let summary = &snapshot.summary;
    let elsewhere = |what: &str, theirs: &str, own: &str| {
        Err(format!("it is of {what} {theirs}, this ledger is of {own}; put the ledger's own report here"))
    };
    let (Some(run), Some(contract)) = (report.run.as_ref().map(RunId::as_str), report.contract) else {
        return Err(format!(
            "its audit could not read a contract and ended {}, so nothing in it says of which ledger it is; run `ledger audit`",
            report.verdict.name()
        ));
    };
    if run != summary.run {
        return elsewhere("run", run, &summary.run);
    }
    let contract = contract.to_string();
    let own_contract = summary.contract_digest.as_deref().unwrap_or("none");
    if contract != own_contract {
        return elsewhere("contract", &contract, own_contract);
    }
    let audit =
        "run `ledger audit` on the ledger: it was cut or rewritten after this report, or is another copy";
    let size = report.head.as_ref().map_or(0, |head| head.size);
    let num_seen = size.max(report.num_entries);
    if num_seen > summary.num_entries {
        return Err(format!("it saw {num_seen} entries, this ledger holds {}; {audit}", summary.num_entries));
    }
    if let Some(head) = &report.head {
        let root = snapshot.root_at(size).map_err(|error| format!("its head cannot be compared: {error}"))?;
        let root = encode_hex(&root);
        if root != head.root {
            return Err(format!(
                "the first {size} entries have root {root}, the report saw root {}; {audit}",
                head.root
            ));
        }
    }
    if size < report.num_entries {
        return Ok(Coverage::Partial);
    }
    Ok(if size < summary.num_entries { Coverage::Older } else { Coverage::Whole })
}

fn unusable(reason: String) -> StoredReport {
    StoredReport::Unusable { reason }
}
