//! The validator's report on a campaign as it lies beside the campaign's ledger.
//! It is shown when the validator's key of the preregistration signed it and it is
//! of this ledger; no outcome of a claim is computed here.

use schemas::campaign::report::CampaignReport;
use schemas::digest::encode_hex;
use schemas::dsse::{CAMPAIGN_REPORT_PAYLOAD_TYPE, Envelope};
use serde::Serialize;

use crate::stored_report::{Coverage, MAX_REPORT_BYTES, path_of};
use crate::summary::Snapshot;

/// What lies beside the ledger.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub(crate) enum StoredCampaignReport {
    /// No file.
    Missing,
    /// A file that is not a report of this ledger, signed by its validator.
    Unusable { reason: String },
    /// A report of this ledger whose signature verifies.
    Signed {
        /// How much of the ledger it is about.
        coverage: Coverage,
        /// Boxed: a report is large beside the other variants.
        report: Box<CampaignReport>,
    },
}

/// Reads the report beside a campaign's ledger.
pub(crate) fn read(snapshot: &Snapshot) -> StoredCampaignReport {
    let path = path_of(&snapshot.path);
    let bytes = match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return StoredCampaignReport::Missing,
        Ok(metadata) if metadata.len() > MAX_REPORT_BYTES => {
            Err(format!("it is larger than {MAX_REPORT_BYTES} bytes"))
        }
        _ => std::fs::read(&path).map_err(|error| format!("it cannot be read: {error}")),
    };
    let checked = bytes
        .and_then(|bytes| verify(&bytes, snapshot))
        .and_then(|report| Ok((compare(&report, snapshot)?, report)));
    match checked {
        Ok((coverage, report)) => StoredCampaignReport::Signed { coverage, report: Box::new(report) },
        Err(reason) => StoredCampaignReport::Unusable { reason: format!("{}: {reason}", path.display()) },
    }
}

fn verify(bytes: &[u8], snapshot: &Snapshot) -> Result<CampaignReport, String> {
    let campaign = snapshot.campaign.as_ref().ok_or("the ledger has no preregistration that names a key")?;
    let envelope: Envelope =
        serde_json::from_slice(bytes).map_err(|error| format!("it is no DSSE envelope: {error}"))?;
    let public = &campaign.preregistration.keys.validator.public;
    let payload = ledger::dsse::verify(&envelope, CAMPAIGN_REPORT_PAYLOAD_TYPE, public)
        .map_err(|error| format!("its signature does not verify: {error}"))?;
    serde_json::from_slice(&payload).map_err(|error| format!("the signed payload is no report: {error}"))
}

/// Whether a report is of this ledger, and of how much of it.
fn compare(report: &CampaignReport, snapshot: &Snapshot) -> Result<Coverage, String> {
    let summary = &snapshot.summary;
    let campaign = report.campaign.as_ref().map_or("none", |campaign| campaign.as_str());
    if campaign != summary.run {
        return Err(format!("it is of campaign {campaign}, this ledger is of {}", summary.run));
    }
    let size = report.head.as_ref().map_or(0, |head| head.size);
    let num_seen = size.max(report.num_entries);
    if num_seen > summary.num_entries {
        return Err(format!("it saw {num_seen} entries, this ledger holds {}", summary.num_entries));
    }
    if let Some(head) = &report.head {
        let root = snapshot.root_at(size).map_err(|error| format!("its head cannot be compared: {error}"))?;
        if encode_hex(&root) != head.root {
            return Err(format!("the first {size} entries have another root than the report saw"));
        }
    }
    if size < report.num_entries {
        return Ok(Coverage::Partial);
    }
    Ok(if size < summary.num_entries { Coverage::Older } else { Coverage::Whole })
}
