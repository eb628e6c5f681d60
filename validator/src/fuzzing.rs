//! For fuzz tests alone: how an audit reads what anybody may have written, without
//! an audit around it. It decides nothing, and no program calls it.

use schemas::campaign::Preregistration;
use schemas::challenge::{Challenge, Replay, TensorOpening};
use schemas::contract::Contract;
use schemas::entry::Entry;
use schemas::state::CheckpointManifest;

use crate::campaign;
use crate::challenge;
use crate::contract;
use crate::cosigned::{self, End};
use crate::evidence;
use crate::frozen::FrozenPreregistration;
use crate::note::Note;
use crate::reading::EntryReader;
use crate::row::look_closely;
use crate::rule::Sink;
use crate::rules::gl101_contract_frozen;

/// An entry as the two ways of an audit read it.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryReads {
    /// By the one pass that only accepts.
    pub in_one_pass: Option<Entry>,
    /// By the passes that say what is wrong.
    pub closely: Option<Entry>,
}

/// Reads bytes as an audit does, by a reader that remembers nothing.
#[must_use]
pub fn entry(bytes: &[u8]) -> EntryReads {
    if bytes.len() > schemas::MAX_ENTRY_BYTES {
        return EntryReads { in_one_pass: None, closely: None };
    }
    let in_one_pass = EntryReader::new().read(bytes).ok().map(|(entry, _)| entry);
    let (scan, entry) = look_closely(bytes);
    EntryReads { in_one_pass, closely: scan.ok().and(entry.ok()) }
}

/// A contract as an audit reads its text; `None` where `GL101` finds something in it.
#[must_use]
pub fn contract(text: &[u8]) -> Option<Contract> {
    let mut sink = Sink::new(&gl101_contract_frozen::INFO);
    let (contract, _) = contract::document(std::str::from_utf8(text).ok()?, &mut sink)?;
    (sink.num_errors() == 0).then_some(contract)
}

/// A preregistration as both audits read it.
#[derive(Debug, Clone, PartialEq)]
pub struct PreregistrationReads {
    /// By the audit of its campaign; `None` where `GC107` finds something in it.
    pub by_campaign: Option<Preregistration>,
    /// By the audit of a run that binds it.
    pub by_run: Option<Preregistration>,
    /// What `GC108` says of what the campaign's audit read.
    pub problems: Vec<String>,
}

/// Reads the text of a preregistration as an audit does, its signature left out.
#[must_use]
pub fn preregistration(text: &[u8]) -> PreregistrationReads {
    let by_run = FrozenPreregistration::parse(text.to_vec()).ok().map(|read| read.document);
    let (by_campaign, findings) = campaign::look_at_text(text);
    let problems = findings
        .into_iter()
        .filter(|_| by_campaign.is_some())
        .map(|finding| format!("{} {}", finding.location, finding.message))
        .collect();
    PreregistrationReads { by_campaign, by_run, problems }
}

/// How a file of cosigned heads ends for an audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CosignedEnd {
    /// Behind a note.
    Whole,
    /// Within an append, as a power cut leaves it.
    Torn,
    /// In something else, which somebody put there.
    Strange,
}

/// The notes of a file of cosigned heads of this ledger, and how it ends: in something
/// strange also where a note is of another ledger.
#[must_use]
pub fn cosigned(bytes: &[u8], origin: &str) -> (Vec<Note>, CosignedEnd) {
    let mut notes = Vec::new();
    let end = cosigned::each_note(bytes, Some(origin), &mut |_, note| notes.push(note));
    let end = match end {
        End::Whole | End::Torn { .. } if notes.iter().any(|note| note.origin != origin) => {
            CosignedEnd::Strange
        }
        End::Whole => CosignedEnd::Whole,
        End::Torn { .. } => CosignedEnd::Torn,
        End::NoEmptyLine { .. } | End::NoNote { .. } => CosignedEnd::Strange,
    };
    (notes, end)
}

/// The manifest of a checkpoint.
#[must_use]
pub fn manifest(bytes: &[u8]) -> Option<CheckpointManifest> {
    evidence::parse_manifest(bytes).ok()
}

/// A segment challenge.
#[must_use]
pub fn challenge(bytes: &[u8]) -> Option<Challenge> {
    challenge::document(bytes).ok()
}

/// The replay of a segment challenge.
#[must_use]
pub fn replay(bytes: &[u8]) -> Option<Replay> {
    challenge::document(bytes).ok()
}

/// The opening of a tensor, and whether its proof leads to the root that it names.
#[must_use]
pub fn opening(bytes: &[u8]) -> Option<(TensorOpening, bool)> {
    let opening: TensorOpening = challenge::document(bytes).ok()?;
    let holds = challenge::check_proof(&opening).is_ok();
    Some((opening, holds))
}
