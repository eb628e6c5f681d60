//! Reads a campaign's ledger: entries, heads, the preregistration, and which
//! runs were bound. The checks of rows and heads are those of a run's ledger,
//! under the campaign's own rules.

use std::path::Path;

use schemas::body::Body;
use schemas::campaign::{CampaignFrozenDet, Preregistration};
use schemas::digest::Digest;
use schemas::dsse::PREREGISTRATION_PAYLOAD_TYPE;
use schemas::entry::{Entry, LedgerKind};
use schemas::ids::{KeyId, RunId};
use schemas::report::HeadSource;
use sha2::{Digest as _, Sha256};

use super::rules;
use super::rules::gc126_stored_report::ReportFile;
use super::view::Registration;
use crate::assemble::Ruling;
use crate::canonical::check_contract_json;
use crate::dsse::verify_detached;
use crate::ed25519::{PublicKey, key_id};
use crate::error::AuditError;
use crate::evidence::VerifiedHead;
use crate::form;
use crate::heads::{HeadSinks, HeadWatch, Signers};
use crate::reading::EntryReader;
use crate::roots::Roots;
use crate::row::{Looked, RowCheck, RowContext};
use crate::rule::{At, Outcome, Sink};
use crate::rules as run_rules;
use crate::store::{self, Access, Store};
use crate::stored_report::StoredReport;
use crate::tree::Frontier;

/// Where the preregistration's text is in entry 0.
const TEXT: &str = "/body/det/preregistration";

/// The preregistration as read.
pub(crate) struct Frozen {
    pub(crate) prereg: Preregistration,
    pub(crate) digest: Digest,
    pub(crate) file_digest: Digest,
    pub(crate) id: RunId,
    owner: Option<PublicKey>,
    owner_id: Option<KeyId>,
    /// Who signs reports; none where the key cannot verify anything.
    pub(crate) validator: Option<PublicKey>,
}

/// What the campaign's own ledger holds.
pub(crate) struct Ledger {
    pub(crate) frozen: Option<Frozen>,
    pub(crate) registrations: Vec<Registration>,
    pub(crate) heads: Vec<VerifiedHead>,
    pub(crate) num_entries: u64,
}

/// The head file's bytes, and where they come from.
pub(crate) type HeadFile<'a> = (&'a [u8], HeadSource, &'a Path);

/// Reads it. `None` when it changed while it was read.
///
/// # Errors
/// When it cannot be opened or copied.
pub(crate) fn read(
    path: &Path,
    access: Access,
    head_file: Option<HeadFile<'_>>,
    report_file: Option<ReportFile<'_>>,
    rulings: &mut Vec<Ruling>,
) -> Result<Option<Ledger>, AuditError> {
    let mut layout = Sink::new(&rules::gc101_store::INFO);
    let store = Store::open(path, access, &mut layout)?;
    let mut frozen_sink = Sink::new(&rules::gc107_preregistration_frozen::INFO);
    let first = store.as_ref().and_then(Store::first_entry);
    let frozen = first.and_then(|bytes| preregistration(&bytes, &mut frozen_sink));
    rulings.push(Ruling::new(&rules::gc107_preregistration_frozen::INFO, frozen_sink, Outcome::Checked(1)));
    let mut pass = Pass::new(frozen.as_ref(), store.as_ref(), head_file, report_file, &mut layout);
    if let Some(store) = &store {
        if let Err(error) = store.for_each_row(&mut |row| pass.row(row)).whole() {
            store::unreadable(path, &mut layout, &error);
        }
        if !store.is_unchanged() {
            return Ok(None);
        }
    }
    rulings.push(Ruling::new(&rules::gc101_store::INFO, layout, Outcome::Checked(1)));
    let (registrations, heads, num_entries) = pass.finish(rulings);
    Ok(Some(Ledger { frozen, registrations, heads, num_entries }))
}

/// One pass over the campaign's entries, of which there are few.
struct Pass<'a> {
    frozen: Option<&'a Frozen>,
    rows: Vec<Box<dyn RowCheck>>,
    row_sink: Sink,
    envelope: rules::gc106_envelope::Envelope<'a>,
    envelope_sink: Sink,
    heads: HeadWatch,
    head_sinks: HeadSinks,
    reader: EntryReader,
    frontier: Frontier,
    registrations: Vec<Registration>,
    /// What was saved beside the ledger, or why there is nothing to compare.
    report: Result<StoredReport, Outcome>,
    report_sink: Sink,
    /// Of the head that the stored report saw.
    roots: Roots,
}

impl<'a> Pass<'a> {
    fn new(
        frozen: Option<&'a Frozen>,
        store: Option<&Store>,
        head_file: Option<HeadFile<'_>>,
        report_file: Option<ReportFile<'_>>,
        layout: &mut Sink,
    ) -> Self {
        let mut head_sinks = HeadSinks {
            database: Sink::new(&rules::gc103_signed_heads::INFO),
            external: Sink::new(&rules::gc104_external_head::INFO),
        };
        let rows = match store.map_or(Ok(Vec::new()), Store::heads) {
            Ok(rows) => rows,
            Err(error) => {
                layout.tampered(At::place("heads"), "SQLite finds the table damaged", "rows", error);
                Vec::new()
            }
        };
        let signers = frozen.and_then(|frozen| {
            let owner = frozen.owner.clone()?;
            let origin = format!("governed-ledger/campaign/{}", frozen.id);
            Some(Signers { origin, owner: owner.clone(), trainer: owner })
        });
        let heads = HeadWatch::collect(&rows, head_file, signers.as_ref(), &mut head_sinks);
        let mut report_sink = Sink::new(&rules::gc126_stored_report::INFO);
        let report = rules::gc126_stored_report::read(report_file, frozen, &mut report_sink);
        let roots = Roots::new(report.as_ref().ok().and_then(StoredReport::size));
        Self {
            frozen,
            rows: vec![
                Box::new(run_rules::gl002_entry_sequence::EntrySequence::default()),
                Box::new(run_rules::gl003_canonical_bytes::CanonicalBytes::default()),
                Box::new(run_rules::gl004_entry_shape::EntryShape::default()),
                Box::new(run_rules::gl005_leaf_hash::LeafHash::default()),
                Box::new(run_rules::gl006_idempotency_key::IdempotencyKey::default()),
                Box::new(run_rules::gl012_entry_time::EntryTime::default()),
                Box::new(run_rules::gl013_extensions::Extensions::default()),
            ],
            row_sink: Sink::new(&rules::gc102_entries::INFO),
            envelope: rules::gc106_envelope::Envelope::new(
                frozen.and_then(|frozen| Some((&frozen.id, frozen.owner_id.as_ref()?))),
            ),
            envelope_sink: Sink::new(&rules::gc106_envelope::INFO),
            heads,
            head_sinks,
            reader: EntryReader::new(),
            frontier: Frontier::new(),
            registrations: Vec::new(),
            report,
            report_sink,
            roots,
        }
    }

    fn row(&mut self, row: store::Row<'_>) {
        let context =
            RowContext::new(self.frontier.size(), row, Looked::at(row.entry, &mut self.reader), None);
        for check in &mut self.rows {
            check.row(&context, &mut self.row_sink);
        }
        if let Some(entry) = context.canonical_entry() {
            self.envelope.entry(entry, context.position, &mut self.envelope_sink);
            self.register(entry);
        }
        self.frontier.append(context.leaf);
        let size = self.frontier.size();
        if self.heads.is_at(size) {
            self.heads.compare(size, self.frontier.root(), &mut self.head_sinks);
        }
        if self.roots.is_wanted(size) {
            self.roots.keep(size, self.frontier.root());
        }
    }

    fn register(&mut self, entry: &Entry) {
        if let Body::CampaignRun(halves) = &entry.body {
            self.registrations.push(Registration {
                entry: entry.index,
                time_us: entry.time_us,
                det: halves.det.clone(),
                obs: halves.obs.clone(),
            });
        }
    }

    fn finish(mut self, rulings: &mut Vec<Ruling>) -> (Vec<Registration>, Vec<VerifiedHead>, u64) {
        let num_entries = self.frontier.size();
        let mut num_rows = 0;
        for check in &mut self.rows {
            if let Outcome::Checked(count) = check.finish(&mut self.row_sink) {
                num_rows = num_rows.max(count);
            }
        }
        rulings.push(Ruling::new(&rules::gc102_entries::INFO, self.row_sink, Outcome::Checked(num_rows)));
        let envelope = self.envelope.finish();
        rulings.push(Ruling::new(&rules::gc106_envelope::INFO, self.envelope_sink, envelope));
        let mut coverage = Sink::new(&rules::gc105_head_coverage::INFO);
        let can_verify = self.frozen.is_some_and(|frozen| frozen.owner.is_some());
        // Nothing ends a campaign, so what no head covers is not over yet.
        let (heads, [database, external, covered]) =
            self.heads.finish(num_entries, false, can_verify, &mut self.head_sinks, &mut coverage);
        rulings.push(Ruling::new(&rules::gc103_signed_heads::INFO, self.head_sinks.database, database));
        rulings.push(Ruling::new(&rules::gc104_external_head::INFO, self.head_sinks.external, external));
        rulings.push(Ruling::new(&rules::gc105_head_coverage::INFO, coverage, covered));
        self.roots.end(num_entries);
        let compared = match self.report {
            Ok(report) => report.compare(&self.roots, &mut self.report_sink),
            Err(outcome) => outcome,
        };
        rulings.push(Ruling::new(&rules::gc126_stored_report::INFO, self.report_sink, compared));
        (self.registrations, heads, num_entries)
    }
}

/// Reads the preregistration out of entry 0. What can be read is used even where
/// a check fails.
fn preregistration(first: &[u8], sink: &mut Sink) -> Option<Frozen> {
    let entry = match Entry::from_slice(first) {
        Ok(entry) => entry,
        Err(error) => {
            wrong(sink, "", "entry 0 cannot be read", &error);
            return None;
        }
    };
    let kind = entry.body.kind();
    let (Body::CampaignFrozen(halves), LedgerKind::Campaign) = (entry.body, entry.header.ledger) else {
        wrong(sink, "/kind", "entry 0 freezes no campaign: this is not a campaign's ledger", &kind.name());
        return None;
    };
    let det = halves.det;
    let text = det.preregistration.as_bytes();
    let prereg = document(text, sink)?;
    let digest = Digest::sha256(Sha256::digest(text).into());
    if det.digest != digest {
        let message = "the preregistration's digest is not that of its bytes";
        sink.tampered(At::entry(0, "/body/det/digest"), message, digest, det.digest);
    }
    let nonce = &halves.obs.nonce;
    if nonce.len() != 16 || !nonce.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        sink.rejected(
            At::entry(0, "/body/obs/nonce"),
            "the nonce is malformed",
            "16 lower-case hex digits",
            nonce,
        );
    }
    let owner = check_signature(&prereg, &det, sink);
    Some(Frozen {
        digest,
        file_digest: Digest::blake3(*blake3::hash(text).as_bytes()),
        id: RunId(format!("{}-{nonce}", &digest.hex()[..16])),
        owner,
        owner_id: key_id("owner", &prereg.keys.owner.public),
        validator: PublicKey::from_hex(&prereg.keys.validator.public).ok(),
        prereg,
    })
}

fn wrong(sink: &mut Sink, pointer: &str, message: &str, actual: &dyn std::fmt::Display) {
    let expected = "campaign.frozen with a preregistration of this version";
    sink.rejected(At::entry(0, pointer), message, expected, actual);
}

/// Reads the text of a preregistration.
pub(crate) fn document(text: &[u8], sink: &mut Sink) -> Option<Preregistration> {
    let is_canonical = check_contract_json(text);
    if let Err(problem) = is_canonical {
        let at = At::entry(0, format!("{TEXT}, byte {}", problem.offset));
        sink.rejected(at, "the preregistration's bytes are not canonical", "RFC 8785", problem.what);
    }
    let prereg: Preregistration = match serde_json::from_slice(text) {
        Ok(prereg) => prereg,
        Err(error) => {
            wrong(sink, TEXT, "the preregistration does not have its shape", &error);
            return None;
        }
    };
    if prereg.format != schemas::PREREGISTRATION_FORMAT {
        wrong(sink, &format!("{TEXT}#/format"), "the preregistration has another format", &prereg.format);
    }
    // Of bytes that are not canonical, that is said already.
    if is_canonical.is_ok()
        && let Some(place) = form::first_other_place(&prereg, text)
    {
        let message = "the preregistration leaves a field out, or has it in another form";
        let expected = "every field, in the one form that a freeze writes";
        sink.rejected(At::entry(0, format!("{TEXT}#{place}")), message, expected, &place);
    }
    Some(prereg)
}

fn check_signature(prereg: &Preregistration, det: &CampaignFrozenDet, sink: &mut Sink) -> Option<PublicKey> {
    let public = &prereg.keys.owner.public;
    let owner = match PublicKey::from_hex(public) {
        Ok(owner) => owner,
        Err(error) => {
            let at = At::entry(0, format!("{TEXT}#/keys/owner/public"));
            sink.rejected(at, "the owner's key cannot verify anything", "an Ed25519 public key", error);
            return None;
        }
    };
    let text = det.preregistration.as_bytes();
    if let Err(error) = verify_detached(&det.signature, PREREGISTRATION_PAYLOAD_TYPE, text, &owner) {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        sink.tampered(
            At::entry(0, "/body/det/signature"),
            "the preregistration is not signed by its owner's key",
            format!("a signature by {public}"),
            format!("{error}{cause}"),
        );
    }
    if let Some(expected) = key_id("owner", public).filter(|id| det.signature.keyid != id.as_str()) {
        sink.rejected(
            At::entry(0, "/body/det/signature/keyid"),
            "the signature names another key than the one that made it",
            expected,
            &det.signature.keyid,
        );
    }
    Some(owner)
}
