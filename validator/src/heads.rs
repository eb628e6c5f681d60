//! Tree heads: read from the database and from the file outside it, verified,
//! and compared with the roots that the stored entries give.
//!
//! A head commits to everything before it. Signatures are checked with the key
//! that the contract names for the head's size: the owner's for size 1, which
//! is the freeze, and the trainer's from then on.

use std::collections::BTreeSet;
use std::path::Path;

use schemas::digest::encode_hex;
use schemas::report::HeadSource;

use crate::ed25519::PublicKey;
use crate::evidence::VerifiedHead;
use crate::note::Note;
use crate::rule::{At, Outcome, Sink};
use crate::store::HeadRow;

/// Largest head file that is read: some 200,000 notes.
pub(crate) const MAX_HEAD_FILE_BYTES: u64 = 64 << 20;

/// What brings a head file up to date.
const HEAL: &str = "run `trainer run` on the ledger, which writes the missing heads as it opens it, or restore the head file";

/// Who may sign heads of this ledger.
#[derive(Clone)]
pub(crate) struct Signers {
    /// First line of every head: `governed-ledger/run/<run id>`.
    pub(crate) origin: String,
    pub(crate) owner: PublicKey,
    pub(crate) trainer: PublicKey,
}

/// A head that was read, and what became of it.
#[derive(Debug, Clone)]
pub(crate) struct HeadClaim {
    head: VerifiedHead,
    place: String,
    is_signed: bool,
    is_root_equal: bool,
}

/// The findings of the two rules about heads: database, file.
pub(crate) struct HeadSinks {
    pub(crate) database: Sink,
    pub(crate) external: Sink,
}

impl HeadSinks {
    fn of(&mut self, source: HeadSource) -> &mut Sink {
        match source {
            HeadSource::Database => &mut self.database,
            HeadSource::Beside | HeadSource::Named => &mut self.external,
        }
    }
}

/// All heads in ascending size, with a pointer to the next to be compared.
pub(crate) struct HeadWatch {
    claims: Vec<HeadClaim>,
    next: usize,
    /// Largest size whose root matched, to say between which entries a change is.
    good_size: u64,
    has_external: bool,
}

impl HeadWatch {
    /// Reads both sources. `external` is the head file's bytes, where there is one.
    pub(crate) fn collect(
        rows: &[HeadRow],
        external: Option<(&[u8], HeadSource, &Path)>,
        signers: Option<&Signers>,
        sinks: &mut HeadSinks,
    ) -> Self {
        let (mut claims, signed) = read_database(rows, signers, &mut sinks.database);
        if let Some((bytes, source, path)) = external {
            let in_database: BTreeSet<(u64, [u8; 32])> =
                claims.iter().map(|claim| (claim.head.size, claim.head.root)).collect();
            let external = read_file(bytes, (source, path), rows, (signers, &signed), &mut sinks.external);
            for claim in &external {
                if !in_database.contains(&(claim.head.size, claim.head.root)) {
                    sinks.external.tampered(
                        At::place(&claim.place),
                        "a head of the file is not in the database",
                        format!("a row of `heads` with size {}", claim.head.size),
                        "none with that root",
                    );
                }
            }
            claims.extend(external);
        }
        claims.sort_by_key(|claim| claim.head.size);
        Self { claims, next: 0, good_size: 0, has_external: external.is_some() }
    }

    /// Whether a head waits at this size, so that a root is worth computing.
    pub(crate) fn is_at(&self, size: u64) -> bool {
        self.claims.get(self.next).is_some_and(|claim| claim.head.size <= size)
    }

    /// Compares all heads of this size with the root of the stored entries.
    pub(crate) fn compare(&mut self, size: u64, root: [u8; 32], sinks: &mut HeadSinks) {
        let mut all_equal = true;
        while self.is_at(size) {
            let claim = &mut self.claims[self.next];
            self.next += 1;
            claim.is_root_equal = claim.head.size == size && claim.head.root == root;
            if claim.is_root_equal {
                continue;
            }
            all_equal = false;
            let first = self.good_size;
            sinks.of(claim.head.source).tampered(
                At::place(&claim.place),
                format!(
                    "the stored entries do not have the root that was signed at size {size}: one of the entries {first} to {} differs",
                    size.saturating_sub(1)
                ),
                encode_hex(&claim.head.root),
                encode_hex(&root),
            );
        }
        if all_equal {
            self.good_size = size;
        }
    }

    /// After the last entry: heads that are ahead, coverage, and the outcome of
    /// the three rules about heads, in the order of their codes.
    pub(crate) fn finish(
        mut self,
        num_entries: u64,
        run_ended: bool,
        can_verify: bool,
        sinks: &mut HeadSinks,
        coverage: &mut Sink,
    ) -> (Vec<VerifiedHead>, [Outcome; 3]) {
        for claim in &self.claims[self.next..] {
            sinks.of(claim.head.source).tampered(
                At::place(&claim.place),
                "the ledger is behind a signed head: entries are missing",
                format!("{} entries", claim.head.size),
                format!("{num_entries} entries"),
            );
        }
        let count = |claims: &[HeadClaim], external: bool| {
            claims.iter().filter(|claim| (claim.head.source != HeadSource::Database) == external).count()
                as u64
        };
        let unverifiable =
            || Outcome::NotEvaluated("the contract, which names the signers, could not be read".to_owned());
        let database = if can_verify { Outcome::Checked(count(&self.claims, false)) } else { unverifiable() };
        let external = match (self.has_external, can_verify) {
            (false, _) => Outcome::NotEvaluated(
                "there is no head file beside the ledger; name one with --head FILE".to_owned(),
            ),
            (true, false) => unverifiable(),
            (true, true) => Outcome::Checked(count(&self.claims, true)),
        };
        self.check_lag(run_ended, &mut sinks.external);
        let verified: Vec<VerifiedHead> = std::mem::take(&mut self.claims)
            .into_iter()
            .filter(|claim| claim.is_signed && claim.is_root_equal)
            .map(|claim| claim.head)
            .collect();
        let covered = verified.last().map_or(0, |head| head.size);
        check_coverage(covered, num_entries, run_ended, coverage);
        (verified, [database, external, Outcome::Checked(num_entries)])
    }

    /// A file whose last head is older than the database's: what a crash between
    /// the two leaves, or a file that was cut.
    fn check_lag(&self, run_ended: bool, sink: &mut Sink) {
        let of = |external: bool| {
            self.claims.iter().filter(move |claim| (claim.head.source != HeadSource::Database) == external)
        };
        let newest = |external: bool| of(external).map(|claim| claim.head.size).max();
        // A head that the reviewer kept from an earlier day is older by its nature.
        let is_named = self.claims.iter().any(|claim| claim.head.source == HeadSource::Named);
        let (Some(file), Some(database)) = (newest(true), newest(false)) else { return };
        if is_named || !self.has_external || file >= database {
            return;
        }
        // A crash leaves the file one append behind, and the database with the
        // head that is missing, signed and over these very entries.
        let mut newer = of(false).filter(|claim| claim.head.size > file);
        let is_crash = newer.next().is_some_and(|claim| claim.is_signed && claim.is_root_equal)
            && newer.next().is_none();
        let (message, expected, actual) = (
            "the head file ends before the database's newest head",
            format!("size {database}"),
            format!("size {file}"),
        );
        let at = At::place("head file").remedy(HEAL);
        if run_ended && !is_crash {
            sink.rejected(at, message, expected, actual);
        } else {
            sink.incomplete(at, message, expected, actual);
        }
    }
}

fn check_coverage(covered: u64, num_entries: u64, run_ended: bool, sink: &mut Sink) {
    if covered >= num_entries {
        return;
    }
    let at = At::place(format!("entries {covered} to {}", num_entries - 1));
    let message = "no verified head covers these entries";
    let expected = format!("a head of size {num_entries}");
    let actual = format!("size {covered}");
    if run_ended {
        sink.rejected(at, message, expected, actual);
    } else {
        sink.incomplete(at, message, expected, actual);
    }
}

/// Also the bytes of the notes whose signatures held.
fn read_database<'a>(
    rows: &'a [HeadRow],
    signers: Option<&Signers>,
    sink: &mut Sink,
) -> (Vec<HeadClaim>, BTreeSet<&'a [u8]>) {
    let (mut claims, mut signed) = (Vec::new(), BTreeSet::new());
    for row in rows {
        let place = format!("heads, row {}", row.size);
        let note = match Note::parse(&row.note) {
            Ok(note) => note,
            Err(error) => {
                sink.tampered(At::place(place), "the stored head is not a tree head", "a signed note", error);
                continue;
            }
        };
        if i64::try_from(note.size) != Ok(row.size) {
            sink.tampered(At::place(&place), "the head's size is not its row's", row.size, note.size);
        }
        let claim = verify(note, HeadSource::Database, place, (signers, false), sink);
        if claim.is_signed {
            signed.insert(row.note.as_slice());
        }
        claims.push(claim);
    }
    if rows.is_empty() {
        sink.rejected(At::place("heads"), "the ledger has no signed head", "at least the freeze's", "no row");
    }
    (claims, signed)
}

fn read_file(
    bytes: &[u8],
    (source, path): (HeadSource, &Path),
    rows: &[HeadRow],
    (signers, signed): (Option<&Signers>, &BTreeSet<&[u8]>),
    sink: &mut Sink,
) -> Vec<HeadClaim> {
    let mut claims: Vec<HeadClaim> = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let place = format!("{}, byte {}", path.display(), bytes.len() - rest.len());
        let malformed = |sink: &mut Sink, what: &dyn std::fmt::Display| {
            sink.tampered(
                At::place(&place),
                "the head file is not a sequence of tree heads",
                "signed notes, each followed by one empty line",
                what,
            );
        };
        let newest = claims.last().map_or(0, |claim| claim.head.size);
        let (note, after) = match Note::parse_prefix(rest) {
            Ok(parsed) => parsed,
            Err(_) if newest > 0 && is_torn(rest, newest, rows) => {
                report_torn(&place, rest, sink);
                break;
            }
            Err(error) => {
                malformed(sink, &error);
                break;
            }
        };
        // Origin, size and signature are in the bytes, and with them the key: what
        // held in the database holds here.
        let own = rest.get(..rest.len().saturating_sub(after.len()));
        let is_known = own.is_some_and(|own| signed.contains(own));
        let claim = verify(note, source, place.clone(), (signers, is_known), sink);
        if let Some(previous) = claims.last() {
            check_growth(&previous.head, &claim, sink);
        }
        let is_only = claims.is_empty();
        claims.push(claim);
        match after {
            // A single note that a reviewer kept may lack the empty line.
            [] if is_only && source == HeadSource::Named => break,
            [] if is_torn(rest, newest, rows) => {
                report_torn(&place, rest, sink);
                break;
            }
            [b'\n', after @ ..] => rest = after,
            _ => {
                malformed(sink, &"no empty line after a note");
                break;
            }
        }
    }
    if bytes.is_empty() {
        sink.tampered(
            At::place(path.display().to_string()),
            "the head file is empty",
            "at least one note",
            "0 bytes",
        );
    }
    claims
}

/// Whether the end of a head file is the beginning of a note that the database
/// holds whole: the database commits first, so this is what a power cut leaves
/// of an append. Anything else was never written by a recorder.
fn is_torn(rest: &[u8], newest: u64, rows: &[HeadRow]) -> bool {
    rows.iter().any(|row| {
        let is_newer = u64::try_from(row.size).is_ok_and(|size| size > newest);
        is_newer && row.note.starts_with(rest)
    })
}

fn report_torn(place: &str, rest: &[u8], sink: &mut Sink) {
    sink.incomplete(
        At::place(place).remedy(HEAL),
        "the head file ends within the append of its last head, as a power cut leaves it",
        "a whole note, followed by one empty line",
        format!("the first {} bytes of a note that the database holds", rest.len()),
    );
}

fn check_growth(previous: &VerifiedHead, claim: &HeadClaim, sink: &mut Sink) {
    let head = &claim.head;
    if head.size < previous.size {
        sink.tampered(
            At::place(&claim.place),
            "a head is smaller than the one before it",
            format!("size {} or more", previous.size),
            head.size,
        );
    } else if head.size == previous.size && head.root != previous.root {
        sink.tampered(
            At::place(&claim.place),
            "two heads of one size have different roots: the ledger was forked",
            encode_hex(&previous.root),
            encode_hex(&head.root),
        );
    }
}

/// Checks origin and signature of one head; the latter is not computed again where
/// it is known to hold of these very bytes.
fn verify(
    note: Note,
    source: HeadSource,
    place: String,
    (signers, is_known): (Option<&Signers>, bool),
    sink: &mut Sink,
) -> HeadClaim {
    let mut is_signed = false;
    if let Some(signers) = signers {
        let origin = &signers.origin;
        if note.origin != *origin {
            sink.tampered(At::place(&place), "the head is of another ledger", origin, &note.origin);
        }
        let (role, key) =
            if note.size <= 1 { ("owner", &signers.owner) } else { ("trainer", &signers.trainer) };
        let verified = if is_known { Ok(()) } else { note.verify(key) };
        match verified {
            Ok(()) => is_signed = note.origin == *origin,
            Err(error) => sink.tampered(
                At::place(&place),
                format!("the head is not signed by the contract's {role} key"),
                format!("a signature by {role} over size {}", note.size),
                error,
            ),
        }
        // What a reviewer kept may be cosigned; the log's own files are not.
        if note.signatures.len() > 1 && source != HeadSource::Named {
            sink.rejected(
                At::place(&place),
                "the head has signature lines that this edition does not know",
                "one signature line",
                format!("{} lines", note.signatures.len()),
            );
        }
    }
    if note.size == 0 {
        sink.rejected(At::place(&place), "a head of an empty ledger commits to nothing", "size 1 or more", 0);
        is_signed = false;
    }
    let head = VerifiedHead { origin: note.origin, root: note.root, size: note.size, source };
    HeadClaim { head, place, is_signed, is_root_equal: false }
}
