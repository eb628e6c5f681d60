//! What a ledger says of its run below a head: the committed states of the
//! logical run, the segments between them, what each span consumed, and what is
//! recorded of the updates that were drawn.
//!
//! Entries behind the head do not exist here: a challenge is bound to what was
//! fixed before its nonce. Memory grows with checkpoints and with the updates
//! that are compared, not with the steps.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use schemas::body::{Body, StepDet};
use schemas::challenge::{
    BatchCommitment, ChallengeHead, CommittedState, Segment, SegmentUnit, UnverifiedReason, UnverifiedSpan,
};
use schemas::contract::Contract;
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::{CheckpointId, RunId};
use schemas::state::StateDigest;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::contract::{self, ContractRead, ContractSinks};
use crate::error::AuditError;
use crate::note::Note;
use crate::reading::EntryReader;
use crate::row::{Looked, RowContext};
use crate::rule::Sink;
use crate::rules::gl001_store_layout;
use crate::store::{Access, RowsEnd, Store};
use crate::tree::Frontier;

use super::error::ChallengeError;
use super::heads::Heads;

/// Whether a run could go on from a committed state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Usable,
    Retired,
    GivenUp,
}

/// A committed state of the logical run.
#[derive(Debug, Clone)]
pub(super) struct Boundary {
    pub(super) classes: Vec<StateDigest>,
    pub(super) path: String,
    pub(super) standing: Standing,
    pub(super) state: CommittedState,
}

/// What is on record of one update.
#[derive(Debug, Clone, Default)]
pub(super) struct RecordedStep {
    /// Index and determined half of the `step` entry.
    pub(super) det: Option<(u64, Value)>,
    /// Of `eval` entries, by stream.
    pub(super) evaluations: BTreeMap<String, (u64, Value)>,
}

/// Which head is asked for.
pub(super) enum Wanted {
    /// The newest of the head file.
    Newest,
    /// One of this size and root.
    Of(u64, [u8; 32]),
}

/// A run below a head.
pub(super) struct Record {
    pub(super) batches: Vec<BatchCommitment>,
    /// In step order; of one step the latest.
    pub(super) boundaries: Vec<Boundary>,
    pub(super) contract: Contract,
    pub(super) digest: Digest,
    pub(super) head: ChallengeHead,
    pub(super) last_step: u64,
    pub(super) run: RunId,
    /// Those that were asked for.
    pub(super) steps: BTreeMap<u64, RecordedStep>,
}

impl Record {
    /// Reads a ledger below a head, with what is recorded of some steps.
    pub(super) fn read(
        ledger: &Path,
        (head_file, wanted): (Option<&Path>, &Wanted),
        steps: &[RangeInclusive<u64>],
    ) -> Result<Self, ChallengeError> {
        for access in [Access::InPlace, Access::Copy] {
            let (store, read) = open(ledger, access)?;
            let heads = Heads::read(ledger, head_file)?;
            let note = match wanted {
                Wanted::Newest => heads.newest(&read)?,
                Wanted::Of(size, root) => heads.of((*size, *root), &read, &store)?,
            };
            let found = collect(&store, ledger, &read, &note, steps);
            if store.is_unchanged() {
                return found;
            }
        }
        Err(AuditError::Busy { path: ledger.to_owned() }.into())
    }

    /// Segments that can be executed again, and the updates that none covers.
    pub(super) fn segments(&self, unit: SegmentUnit) -> (Vec<Segment>, Vec<UnverifiedSpan>) {
        let mut segments = Vec::new();
        let mut uncovered = Vec::new();
        let mut span = |from_step, to_step, reason| {
            if from_step < to_step {
                uncovered.push(UnverifiedSpan { from_step, reason, to_step });
            }
        };
        let last = self.boundaries.len().saturating_sub(1);
        let is_end = |place: usize, boundary: &Boundary| {
            unit == SegmentUnit::AdjacentCheckpoints || place == last || boundary.standing == Standing::Usable
        };
        let mut ends = self.boundaries.iter().enumerate().filter(|(place, end)| is_end(*place, end));
        let mut start = ends.next().map(|(_, boundary)| boundary);
        let first = self.boundaries.first().map_or(0, |boundary| boundary.state.step);
        span(0, first.min(self.last_step), UnverifiedReason::StartGivenUp);
        if let (Some(first), Some(start)) = (self.boundaries.first(), start) {
            span(first.state.step, start.state.step, first.standing.reason());
        }
        for (_, end) in ends {
            if let Some(start) = start {
                if start.standing == Standing::Usable {
                    let number = segments.len() as u64;
                    let (start, end) = (start.state.clone(), end.state.clone());
                    segments.push(Segment { end, number, start });
                } else {
                    span(start.state.step, end.state.step, start.standing.reason());
                }
            }
            start = Some(end);
        }
        let end = self.boundaries.last().map_or(0, |boundary| boundary.state.step);
        span(end, self.last_step, UnverifiedReason::NoStateAtEnd);
        (segments, uncovered)
    }

    /// The committed state at a step.
    pub(super) fn boundary(&self, step: u64) -> Option<&Boundary> {
        self.boundaries.iter().find(|boundary| boundary.state.step == step)
    }
}

impl Standing {
    const fn reason(self) -> UnverifiedReason {
        match self {
            Self::Retired => UnverifiedReason::StartRetired,
            Self::Usable | Self::GivenUp => UnverifiedReason::StartGivenUp,
        }
    }
}

/// Opens a run's ledger; what its layout lacks is told in words.
pub(super) fn open(path: &Path, access: Access) -> Result<(Store, ContractRead), ChallengeError> {
    let mut sink = Sink::new(&gl001_store_layout::INFO);
    let refused = |reason: String| ChallengeError::Ledger { path: path.to_owned(), reason };
    let Some(store) = Store::open(path, access, &mut sink)? else {
        let reason = sink.into_findings().first().map(|finding| finding.message.clone());
        return Err(refused(reason.unwrap_or_else(|| "it cannot be read".to_owned())));
    };
    let sink = || Sink::new(&gl001_store_layout::INFO);
    let mut sinks = ContractSinks { frozen: sink(), signature: sink(), identity: sink() };
    let (read, _) = contract::read(store.first_entry().as_deref(), &mut sinks);
    let read = read.ok_or_else(|| refused("it freezes no contract".to_owned()))?;
    for sink in [sinks.frozen, sinks.signature, sinks.identity] {
        if sink.num_errors() > 0
            && let Some(finding) = sink.into_findings().into_iter().next()
        {
            return Err(refused(finding.message));
        }
    }
    Ok((store, read))
}

/// Shows every entry below a size in order, and gives the root there.
fn each_entry(
    store: &Store,
    path: &Path,
    size: u64,
    visit: &mut dyn FnMut(&Entry),
) -> Result<[u8; 32], ChallengeError> {
    let mut reader = EntryReader::new();
    let mut frontier = Frontier::new();
    let mut problem = None;
    let end = store.for_each_row(&mut |row| {
        let position = frontier.size();
        if position >= size {
            return;
        }
        let context = RowContext::new(position, row, Looked::at(row.entry, &mut reader), None);
        match context.canonical_entry().filter(|entry| entry.index == position) {
            Some(entry) => visit(entry),
            None => {
                problem.get_or_insert_with(|| format!("entry {position} is not one, or not in its place"));
            }
        }
        frontier.append(context.leaf);
    });
    if let RowsEnd::Damaged(error) = end {
        problem.get_or_insert_with(|| format!("SQLite finds the file damaged: {error}"));
    }
    if frontier.size() < size {
        let reason = format!("it holds {} entries", frontier.size());
        return Err(ChallengeError::OtherEntries { size, reason });
    }
    match problem {
        Some(reason) => Err(ChallengeError::Ledger { path: path.to_owned(), reason }),
        None => Ok(frontier.root()),
    }
}

fn collect(
    store: &Store,
    path: &Path,
    read: &ContractRead,
    note: &Note,
    wanted: &[RangeInclusive<u64>],
) -> Result<Record, ChallengeError> {
    let mut states = States::default();
    let mut steps: BTreeMap<u64, RecordedStep> = BTreeMap::new();
    let root = each_entry(store, path, note.size, &mut |entry| {
        states.entry(entry);
        record_step(entry, wanted, &mut steps);
    })?;
    if root != note.root {
        let reason = "their root is another one".to_owned();
        return Err(ChallengeError::OtherEntries { size: note.size, reason });
    }
    let boundaries = states.finish();
    let mut batches = Batches::new(&boundaries, states.last_step);
    // A second look, since spans are known only now.
    each_entry(store, path, note.size, &mut |entry| batches.entry(entry))?;
    Ok(Record {
        batches: batches.finish(),
        boundaries,
        contract: read.contract.clone(),
        digest: read.digest,
        head: ChallengeHead { origin: note.origin.clone(), root: Digest::sha256(note.root), size: note.size },
        last_step: states.last_step,
        run: read.run.clone(),
        steps,
    })
}

/// Keeps what an entry says of a step that was asked for; a later attempt's
/// word takes the place of an earlier one's.
fn record_step(entry: &Entry, wanted: &[RangeInclusive<u64>], steps: &mut BTreeMap<u64, RecordedStep>) {
    let Some(step) = entry.header.step.filter(|step| wanted.iter().any(|range| range.contains(step))) else {
        return;
    };
    match &entry.body {
        Body::Step(halves) => {
            let det = serde_json::to_value(&halves.det).unwrap_or_default();
            steps.entry(step).or_default().det = Some((entry.index, det));
        }
        Body::Eval(halves) => {
            let det = serde_json::to_value(&halves.det).unwrap_or_default();
            let recorded = steps.entry(step).or_default();
            recorded.evaluations.insert(halves.det.stream.clone(), (entry.index, det));
        }
        _ => {}
    }
}

/// A checkpoint on its way through its stages.
struct Known {
    boundary: Boundary,
    is_validated: bool,
}

/// Follows checkpoints and attempts.
#[derive(Default)]
struct States {
    known: BTreeMap<CheckpointId, Known>,
    last_step: u64,
    /// Which checkpoint holds the logical run's state of a step.
    logical: BTreeMap<u64, CheckpointId>,
}

impl States {
    fn entry(&mut self, entry: &Entry) {
        match &entry.body {
            Body::Step(_) => self.last_step = entry.header.step.unwrap_or(self.last_step),
            Body::AttemptStart(halves) => {
                // What an earlier attempt did behind it is executed again.
                let from = halves.det.from_step;
                self.last_step = from;
                self.logical.retain(|step, _| *step <= from);
                if let Some(point) = &halves.det.resumed_from {
                    self.logical.insert(from, point.checkpoint.clone());
                }
            }
            Body::CheckpointDurablyCommitted(halves) => {
                let state = CommittedState {
                    checkpoint: halves.obs.checkpoint.clone(),
                    entry: entry.index,
                    manifest: halves.obs.manifest,
                    state_root: halves.det.state_root,
                    step: halves.det.step,
                };
                let boundary = Boundary {
                    classes: halves.det.classes.clone(),
                    path: halves.obs.path.clone(),
                    standing: Standing::Usable,
                    state,
                };
                self.known.insert(halves.obs.checkpoint.clone(), Known { boundary, is_validated: false });
            }
            Body::CheckpointValidated(halves) => {
                if let Some(known) = self.known.get_mut(&halves.obs.checkpoint) {
                    known.is_validated = true;
                    self.logical.insert(known.boundary.state.step, halves.obs.checkpoint.clone());
                }
            }
            Body::CheckpointRetired(halves) => self.stands(&halves.obs.checkpoint, Standing::Retired),
            Body::CheckpointFailed(halves) => self.stands(&halves.obs.checkpoint, Standing::GivenUp),
            Body::CheckpointQuarantined(halves) => self.stands(&halves.obs.checkpoint, Standing::GivenUp),
            _ => {}
        }
    }

    fn stands(&mut self, checkpoint: &CheckpointId, standing: Standing) {
        if let Some(known) = self.known.get_mut(checkpoint) {
            known.boundary.standing = standing;
        }
    }

    fn finish(&self) -> Vec<Boundary> {
        let known = self.logical.values().filter_map(|checkpoint| self.known.get(checkpoint));
        known.filter(|known| known.is_validated).map(|known| known.boundary.clone()).collect()
    }
}

/// Hashes what each span between neighbouring states consumed.
struct Batches {
    /// Of each span, what was hashed since its first update was executed last.
    spans: Vec<(u64, u64, Sha256)>,
}

impl Batches {
    fn new(boundaries: &[Boundary], last_step: u64) -> Self {
        let mut ends: Vec<u64> = boundaries.iter().map(|boundary| boundary.state.step).collect();
        ends.extend([0, last_step]);
        ends.sort_unstable();
        ends.dedup();
        let spans = ends.windows(2).filter_map(|pair| match pair {
            [from, to] => Some((*from, *to, Sha256::new())),
            _ => None,
        });
        Self { spans: spans.collect() }
    }

    fn entry(&mut self, entry: &Entry) {
        let (Body::Step(halves), Some(step)) = (&entry.body, entry.header.step) else { return };
        let place = self.spans.partition_point(|(_, to, _)| *to < step);
        let Some((from, _, hasher)) = self.spans.get_mut(place).filter(|(from, _, _)| *from < step) else {
            return;
        };
        // A span that a lost attempt began is begun anew by the next one.
        if step == *from + 1 {
            *hasher = Sha256::new();
        }
        hash_draws(hasher, step, &halves.det);
    }

    fn finish(self) -> Vec<BatchCommitment> {
        let commitment = |(from_step, to_step, hasher): (u64, u64, Sha256)| BatchCommitment {
            digest: Digest::sha256(hasher.finalize().into()),
            from_step,
            to_step,
        };
        self.spans.into_iter().map(commitment).collect()
    }
}

fn hash_draws(hasher: &mut Sha256, step: u64, det: &StepDet) {
    for draw in &det.draws {
        hasher.update(format!("{step} {} {}\n", draw.ids, draw.inputs));
    }
}
