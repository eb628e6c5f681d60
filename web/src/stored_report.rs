//! The validator's report as it lies beside the ledger. A page says whether
//! the validator's key of the contract signed it, and which tree size it saw;
//! it never makes a report.

use std::path::{Path, PathBuf};

use schemas::dsse::{Envelope, REPORT_PAYLOAD_TYPE};
use schemas::report::Report;
use serde::Serialize;

/// Bound of the file that is read: an audit caps its findings well below it.
const MAX_REPORT_BYTES: u64 = 64 << 20;

/// What lies beside the ledger.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub(crate) enum StoredReport {
    /// No file.
    Missing,
    /// A file that is not a report signed by the contract's validator.
    Unusable { reason: String },
    /// A report whose signature verifies.
    Signed {
        /// Boxed: a report is large beside the other variants.
        report: Box<Report>,
    },
}

/// Path of the stored report of a ledger.
pub(crate) fn path_of(ledger: &Path) -> PathBuf {
    let mut path = ledger.as_os_str().to_owned();
    path.push(".report.dsse.json");
    PathBuf::from(path)
}

/// Reads the report beside a ledger. `validator_key` is the contract's.
pub(crate) fn read(ledger: &Path, validator_key: Option<&str>) -> StoredReport {
    let path = path_of(ledger);
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return StoredReport::Missing,
        Err(error) => return unusable(format!("cannot read {}: {error}", path.display())),
        Ok(metadata) if metadata.len() > MAX_REPORT_BYTES => {
            return unusable(format!("{} is larger than {MAX_REPORT_BYTES} bytes", path.display()));
        }
        Ok(_) => {}
    }
    match verify(&path, validator_key) {
        Ok(report) => StoredReport::Signed { report: Box::new(report) },
        Err(reason) => unusable(reason),
    }
}

fn verify(path: &Path, validator_key: Option<&str>) -> Result<Report, String> {
    let key = validator_key.ok_or("the ledger has no contract that names a validator's key")?;
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let envelope: Envelope = serde_json::from_slice(&bytes)
        .map_err(|error| format!("{} is not a DSSE envelope: {error}", path.display()))?;
    let payload = ledger::dsse::verify(&envelope, REPORT_PAYLOAD_TYPE, key)
        .map_err(|error| format!("the report's signature does not verify: {error}"))?;
    serde_json::from_slice(&payload).map_err(|error| format!("the signed payload is not a report: {error}"))
}

fn unusable(reason: String) -> StoredReport {
    StoredReport::Unusable { reason }
}
