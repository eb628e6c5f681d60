//! The audit of a campaign: reads its ledger, audits every run that it binds,
//! asks the campaign rules, and says what became of every claim.
//!
//! The campaign's record is believed in nothing that the ledgers of its runs
//! can say: arms, seeds, costs, values and outcomes come from them. The verdict
//! is about the record. `accepted` means that the record is whole and that the
//! outcome of every claim is stated, not that any claim holds.

mod claims;
mod differ;
mod facts;
#[cfg(test)]
pub(crate) mod fixture;
mod ledger;
mod numbers;
mod render;
mod rules;
mod runs;
mod summary;
#[cfg(test)]
mod tests;
mod view;

use std::path::{Path, PathBuf};

use schemas::campaign::Preregistration;
use schemas::campaign::report::{CAMPAIGN_REPORT_FORMAT, CampaignReport};
use schemas::digest::Digest;
use schemas::finding::Finding;
use schemas::ids::RunId;
use schemas::report::HeadSource;
use sha2::{Digest as _, Sha256};

pub use render::{sarif, text};
pub use rules::{EDITION, catalogue, find};

use crate::assemble;
use crate::audit::Progress;
use crate::error::AuditError;
use crate::heads::MAX_HEAD_FILE_BYTES;
use crate::rule::Sink;
use crate::said::{read_limited, read_optional};
use crate::store::{Access, beside};
use view::Campaign;

/// Name of the ruleset in reports, before its edition.
const RULESET: &str = "campaign";

/// What to audit.
#[derive(Debug, Clone, Default)]
pub struct CampaignRequest {
    /// The campaign's ledger: `campaign.db`.
    pub ledger: PathBuf,
    /// A head file that was kept elsewhere; `None`: `<ledger>.head`.
    pub head: Option<PathBuf>,
}

/// Audits a campaign and every run that it binds. Reads only.
///
/// # Errors
/// When the audit could not look: the campaign's ledger, a named head file, a
/// report beside it, or a run's ledger that is there cannot be read. Everything that it sees and finds
/// wrong is in the report.
pub fn audit(
    request: &CampaignRequest,
    progress: &mut dyn FnMut(Progress),
) -> Result<CampaignReport, AuditError> {
    for access in [Access::InPlace, Access::Copy] {
        if let Some(report) = audit_once(request, access, progress)? {
            return Ok(report);
        }
    }
    Err(AuditError::Busy { path: request.ledger.clone() })
}

/// For fuzz tests alone: the text of a preregistration as an audit reads it, what
/// it says, and what `GC107` and `GC108` find in it.
pub(crate) fn look_at_text(text: &[u8]) -> (Option<Preregistration>, Vec<Finding>) {
    let mut sink = Sink::new(&rules::gc107_preregistration_frozen::INFO);
    let document = ledger::document(text, &mut sink);
    let mut findings = sink.into_findings();
    if let Some(document) = document.as_ref().filter(|_| findings.is_empty()) {
        let digest = Digest::sha256(Sha256::digest(text).into());
        findings = rules::content_findings(&Campaign {
            prereg: document.clone(),
            digest,
            file_digest: Digest::blake3(*blake3::hash(text).as_bytes()),
            id: RunId(String::new()),
            runs: Vec::new(),
            unbound: Vec::new(),
            copies: Vec::new(),
            unread: Vec::new(),
        });
        return (Some(document.clone()), findings);
    }
    (None, findings)
}

/// `None` when the campaign's ledger changed while it was read.
fn audit_once(
    request: &CampaignRequest,
    access: Access,
    progress: &mut dyn FnMut(Progress),
) -> Result<Option<CampaignReport>, AuditError> {
    let head = read_head_file(request)?;
    let head_file = head.as_ref().map(|(bytes, source, path)| (bytes.as_slice(), *source, path.as_path()));
    let report = read_optional(beside(&request.ledger, ".report.dsse.json"), "the stored report")?;
    let report_file = report.as_ref().map(|(bytes, place)| (bytes.as_slice(), place.as_str()));
    let mut rulings = Vec::new();
    let Some(read) = ledger::read(&request.ledger, access, head_file, report_file, &mut rulings)? else {
        return Ok(None);
    };
    let folder = folder_of(&request.ledger);
    let campaign = match &read.frozen {
        None => None,
        Some(frozen) => {
            let mut told = |done, total| progress(Progress { phase: "runs", done, total });
            let runs = runs::read_all(read.registrations, frozen, &folder, &mut told)?;
            let found = runs::beside(frozen, &request.ledger, &folder, &runs);
            Some(Campaign {
                prereg: frozen.prereg.clone(),
                digest: frozen.digest,
                file_digest: frozen.file_digest,
                id: frozen.id.clone(),
                runs,
                unbound: found.unbound,
                copies: found.copies,
                unread: found.unread,
            })
        }
    };
    let blocks = rules::evaluate(campaign.as_ref(), &mut rulings);
    rulings.sort_by_key(|ruling| ruling.info.code);
    let (rule_results, verdict, _) = assemble::judge(&rulings);
    let summary = summary::Summary::of(campaign.as_ref());
    Ok(Some(CampaignReport {
        arms: summary.arms,
        campaign: campaign.as_ref().map(|campaign| campaign.id.clone()),
        claims: campaign.as_ref().map_or_else(Vec::new, |campaign| claims::outcomes(campaign, &blocks)),
        costs: summary.costs,
        findings: assemble::findings(rulings),
        format: CAMPAIGN_REPORT_FORMAT.to_owned(),
        head: assemble::head_seen(&read.heads),
        nonclaims: summary::nonclaims(campaign.as_ref()),
        num_entries: read.num_entries,
        preregistration: campaign.as_ref().map(|campaign| campaign.digest),
        rules: rule_results,
        ruleset: format!("{RULESET} {EDITION}"),
        runs: summary.runs,
        tool: concat!("validator ", env!("CARGO_PKG_VERSION")).to_owned(),
        verdict,
        verdicts: summary.verdicts,
    }))
}

/// The named head file, or the one beside the ledger if it exists.
fn read_head_file(request: &CampaignRequest) -> Result<Option<(Vec<u8>, HeadSource, PathBuf)>, AuditError> {
    let (path, source) = match &request.head {
        Some(path) => (path.clone(), HeadSource::Named),
        None => (beside(&request.ledger, ".head"), HeadSource::Beside),
    };
    match read_limited(&path, MAX_HEAD_FILE_BYTES) {
        Ok(bytes) => Ok(Some((bytes, source, path))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && request.head.is_none() => Ok(None),
        Err(source) => Err(AuditError::Named { what: "the head file", path, source }),
    }
}

fn folder_of(ledger: &Path) -> PathBuf {
    match ledger.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}
