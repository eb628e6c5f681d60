//! What the contract's witnesses cosigned: read from the file beside the ledger
//! and from `witness.head` entries, and compared with the stored entries.
//!
//! A cosigned head says two things that its signer cannot take back: that these
//! entries begin so, and by when. It is compared like any head, whether or not
//! the contract asks for witnesses; how many it asks for, from when on, and
//! whether their clocks agree with the record are three rules (GL014 to GL016).
//! Lines of keys that the contract does not name are ignored, as signed notes
//! have it: anybody may add them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use schemas::body::{Body, Kind};
use schemas::digest::encode_hex;
use schemas::entry::Entry;

use crate::assemble::Ruling;
use crate::contract::ContractRead;
use crate::cosignature::Cosigner;
use crate::error::AuditError;
use crate::heads::{MAX_HEAD_FILE_BYTES, Signers};
use crate::note::{MAX_NOTE_BYTES, Note, NoteError};
use crate::roots::{RootAt, Roots};
use crate::rule::{At, Outcome, Sink};
use crate::rules::{gl014_witness_quorum, gl015_witnessed_before_training, gl016_witness_times};
use crate::said::read_limited;
use crate::store::beside;

/// Most `witness.head` entries that are kept until the end. Nobody needs more,
/// and memory does not grow with the ledger.
const MAX_RECORDED: usize = 4096;

/// The file of cosigned heads.
pub(crate) struct CosignedFile {
    bytes: Option<Vec<u8>>,
    path: PathBuf,
}

impl CosignedFile {
    /// Reads the named file, or `<ledger>.cosigned` where it exists.
    ///
    /// # Errors
    /// When it exists and cannot be read, or the named one does not exist.
    pub(crate) fn read(ledger: &Path, named: Option<&Path>) -> Result<Self, AuditError> {
        let path = named.map_or_else(|| beside(ledger, ".cosigned"), Path::to_owned);
        match read_limited(&path, MAX_HEAD_FILE_BYTES) {
            // Made, and nothing appended yet.
            Ok(bytes) if bytes.is_empty() => Ok(Self { bytes: None, path }),
            Ok(bytes) => Ok(Self { bytes: Some(bytes), path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound && named.is_none() => {
                Ok(Self { bytes: None, path })
            }
            Err(source) => Err(AuditError::Named { what: "the file of cosigned heads", path, source }),
        }
    }
}

/// A head with the witnesses whose cosignatures held.
pub(crate) struct Claim {
    at: At,
    root: [u8; 32],
    pub(crate) size: u64,
    /// Place among the contract's witnesses, and their time in seconds.
    pub(crate) cosigned: Vec<(usize, u64)>,
}

/// What the record says of time at a size.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    /// Latest time of an entry below, in microseconds, and that entry's index.
    pub(crate) latest: (u64, u64),
    /// Time of the last entry below.
    pub(crate) last_us: u64,
}

/// What the three rules look at, after the last entry.
pub(crate) struct Witnessed {
    /// Those whose root is that of the entries, in ascending size.
    pub(crate) claims: Vec<Claim>,
    /// Index and time of the first step.
    pub(crate) first_step: Option<(u64, u64)>,
    pub(crate) moments: BTreeMap<u64, Moment>,
    pub(crate) names: Vec<String>,
    pub(crate) quorum: usize,
    /// Index of the run's end.
    pub(crate) run_end: Option<u64>,
}

/// Collects cosigned heads and what the entries say beside them.
pub(crate) struct Cosignatures {
    claims: Vec<Claim>,
    cosigners: Vec<Cosigner>,
    first_step: Option<(u64, u64)>,
    has_contract: bool,
    has_evidence: bool,
    latest: (u64, u64),
    moments: BTreeMap<u64, Moment>,
    num_recorded: usize,
    origin: Option<Signers>,
    quorum: usize,
    run_end: Option<u64>,
    sizes: BTreeSet<u64>,
    sink: Sink,
}

impl Cosignatures {
    /// Reads the file and verifies every note in it.
    pub(crate) fn read(file: &CosignedFile, read: Option<&ContractRead>) -> Self {
        let keys = read.map(|read| &read.contract.keys);
        let witnesses = keys.map_or(&[][..], |keys| &keys.witnesses);
        // A key that is none is a finding of GL703, and cosigns nothing.
        let cosigners =
            witnesses.iter().filter_map(|named| Cosigner::new(&named.name, &named.public).ok()).collect();
        let mut own = Self {
            claims: Vec::new(),
            cosigners,
            first_step: None,
            has_contract: read.is_some_and(|read| read.signers.is_some()),
            has_evidence: file.bytes.is_some(),
            latest: (0, 0),
            moments: BTreeMap::new(),
            num_recorded: 0,
            origin: read.and_then(|read| read.signers.clone()),
            quorum: keys.map_or(0, |keys| keys.witness_quorum as usize),
            run_end: None,
            sizes: BTreeSet::new(),
            sink: Sink::new(&gl014_witness_quorum::INFO),
        };
        if let Some(bytes) = file.bytes.as_deref().filter(|_| own.has_contract) {
            own.read_notes(bytes, &file.path);
        }
        own.sizes = own.claims.iter().map(|claim| claim.size).collect();
        own
    }

    /// Sizes at which roots are needed.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u64> + '_ {
        self.sizes.iter().copied()
    }

    fn read_notes(&mut self, bytes: &[u8], path: &Path) {
        let origin = self.origin.as_ref().map(|own| own.origin.clone());
        let place = |offset: usize| At::place(format!("{}, byte {offset}", path.display()));
        let end = each_note(bytes, origin.as_deref(), &mut |offset, note| self.take(&note, place(offset)));
        let message = "the file of cosigned heads is not a sequence of notes";
        let expected = "signed notes, each followed by one empty line";
        match end {
            End::Whole => {}
            End::Torn { offset } => {
                let message = "the file of cosigned heads ends within an append, as a power cut leaves it";
                let expected = "a whole note, followed by one empty line";
                let actual = format!("{} bytes", bytes.len() - offset);
                self.sink.incomplete(place(offset), message, expected, actual);
            }
            End::NoEmptyLine { offset } => {
                self.sink.tampered(place(offset), message, expected, "no empty line after a note");
            }
            End::NoNote { offset, error } => self.sink.tampered(place(offset), message, expected, error),
        }
    }

    /// Verifies a note: whose ledger, the log's signature, the witnesses'.
    fn take(&mut self, note: &Note, at: At) {
        let Some(signers) = &self.origin else { return };
        if note.origin != signers.origin {
            let message = "a cosigned head is of another ledger";
            self.sink.tampered(at.clone(), message, &signers.origin, &note.origin);
            return;
        }
        let (role, key) =
            if note.size <= 1 { ("owner", &signers.owner) } else { ("trainer", &signers.trainer) };
        if let Err(error) = note.verify(key) {
            let message = format!("a cosigned head is not signed by the contract's {role} key");
            self.sink.tampered(at.clone(), message, format!("a signature over size {}", note.size), error);
        }
        let mut cosigned = Vec::new();
        for (index, cosigner) in self.cosigners.iter().enumerate() {
            match cosigner.verify(note) {
                Ok(time) => cosigned.extend(time.map(|time| (index, time))),
                Err(error) => self.sink.tampered(
                    at.clone(),
                    format!("a cosignature of the witness {} does not hold", cosigner.name()),
                    format!("a cosignature over size {}", note.size),
                    error,
                ),
            }
        }
        self.claims.push(Claim { at, root: note.root, size: note.size, cosigned });
    }

    /// Sees every entry in the order of recording.
    pub(crate) fn entry(&mut self, position: u64, entry: &Entry) {
        if entry.time_us > self.latest.0 {
            self.latest = (entry.time_us, position);
        }
        if self.sizes.contains(&(position + 1)) {
            let moment = Moment { latest: self.latest, last_us: entry.time_us };
            self.moments.insert(position + 1, moment);
        }
        match entry.body.kind() {
            Kind::Step if self.first_step.is_none() => self.first_step = Some((position, entry.time_us)),
            Kind::RunEnd if self.run_end.is_none() => self.run_end = Some(position),
            _ => {}
        }
        let Body::WitnessHead(halves) = &entry.body else { return };
        self.has_evidence = true;
        self.num_recorded += 1;
        if self.num_recorded <= MAX_RECORDED {
            self.recorded(position, &halves.det.note, &halves.det.witness);
        }
    }

    fn recorded(&mut self, position: u64, note: &str, witness: &str) {
        let at = || At::entry(position, "/body/det/note");
        let note = match Note::parse(note.as_bytes()) {
            Ok(note) => note,
            Err(error) => {
                let message = "a witness's head is no signed note";
                return self.sink.rejected(at(), message, "a cosigned head", error);
            }
        };
        if note.size > position {
            let message = "a witness's head covers the entry that holds it";
            return self.sink.rejected(at(), message, format!("size {position} or less"), note.size);
        }
        let is_by = |claim: &Claim, cosigners: &[Cosigner]| {
            claim.cosigned.iter().any(|(index, _)| cosigners[*index].name() == witness)
        };
        let before = self.claims.len();
        self.take(&note, at());
        if self.has_contract && !self.claims[before..].iter().any(|claim| is_by(claim, &self.cosigners)) {
            let message = "no cosignature of the contract's witness of that name is in the note";
            self.sink.rejected(at(), message, witness, "none that holds");
        }
    }

    /// After the last entry: what became of the three rules, in the order of
    /// their codes.
    pub(crate) fn finish(mut self, roots: &Roots) -> [Ruling; 3] {
        let num_claims = self.claims.len() as u64;
        let mut claims = Vec::new();
        for claim in std::mem::take(&mut self.claims) {
            if self.compare(&claim, roots) {
                claims.push(claim);
            }
        }
        if self.num_recorded > MAX_RECORDED {
            let message = "only the first entries of witnesses were looked at";
            let actual = self.num_recorded;
            self.sink.not_evaluated(At::place("witness.head"), message, MAX_RECORDED, actual);
        }
        claims.sort_by_key(|claim| claim.size);
        let witnessed = Witnessed {
            claims,
            first_step: self.first_step,
            moments: self.moments,
            names: self.cosigners.iter().map(|cosigner| cosigner.name().to_owned()).collect(),
            quorum: self.quorum,
            run_end: self.run_end,
        };
        let mut early = Sink::new(&gl015_witnessed_before_training::INFO);
        let mut times = Sink::new(&gl016_witness_times::INFO);
        let outcomes = match missing(self.has_contract, self.quorum, self.has_evidence) {
            Some(outcome) => [outcome.clone(), outcome.clone(), outcome],
            None => [
                gl014_witness_quorum::check(&witnessed, num_claims, &mut self.sink),
                gl015_witnessed_before_training::check(&witnessed, &mut early),
                gl016_witness_times::check(&witnessed, &mut times),
            ],
        };
        let [quorum, before, clocks] = outcomes;
        [
            Ruling::new(&gl014_witness_quorum::INFO, self.sink, quorum),
            Ruling::new(&gl015_witnessed_before_training::INFO, early, before),
            Ruling::new(&gl016_witness_times::INFO, times, clocks),
        ]
    }

    /// Whether the entries have the root that was cosigned.
    fn compare(&mut self, claim: &Claim, roots: &Roots) -> bool {
        let expected = format!("root {} at size {}", encode_hex(&claim.root), claim.size);
        let at = claim.at.clone();
        match roots.at(claim.size) {
            RootAt::Known(root) if root == claim.root && claim.size > 0 => true,
            RootAt::Known(root) => {
                let message = "the stored entries are not those of a cosigned head";
                self.sink.tampered(at, message, expected, encode_hex(&root));
                false
            }
            RootAt::Beyond => {
                let message = "the ledger is behind a cosigned head: entries are missing";
                self.sink.tampered(at, message, expected, format!("{} entries", roots.num_entries()));
                false
            }
            RootAt::Unknown => {
                let message = "the ledger holds no head of the size that was cosigned";
                self.sink.rejected(at, message, expected, "no head of that size");
                false
            }
        }
    }
}

/// How a file of cosigned heads ends, with the offset of what is no note.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Behind a note.
    Whole,
    /// Within an append.
    Torn { offset: usize },
    /// Something follows a note.
    NoEmptyLine { offset: usize },
    /// What is there is neither a note nor the beginning of one.
    NoNote { offset: usize, error: NoteError },
}

/// Shows every note of a file of cosigned heads with its offset, up to where the file
/// is no sequence of notes any more. `origin`: of the ledger, whose append may be torn.
pub(crate) fn each_note(bytes: &[u8], origin: Option<&str>, take: &mut dyn FnMut(usize, Note)) -> End {
    let mut rest = bytes;
    while !rest.is_empty() {
        let offset = bytes.len() - rest.len();
        match Note::parse_prefix(rest) {
            // A note without its empty line may be all of an append but its last byte.
            Ok((note, [])) => {
                take(offset, note);
                return End::Whole;
            }
            Ok((note, [b'\n', after @ ..])) => {
                take(offset, note);
                rest = after;
            }
            _ if origin.is_some_and(|origin| is_torn(rest, origin)) => return End::Torn { offset },
            Ok(_) => return End::NoEmptyLine { offset },
            Err(error) => return End::NoNote { offset, error },
        }
    }
    End::Whole
}

/// Whether bytes that are no note can be what a power cut leaves of an append: the
/// beginning of a note of this ledger, which has no end yet. One that is whole and
/// damaged has one.
fn is_torn(rest: &[u8], origin: &str) -> bool {
    let start = format!("{origin}\n");
    let is_beginning = rest.starts_with(start.as_bytes()) || start.as_bytes().starts_with(rest);
    let mut lines = rest.split(|byte| *byte == b'\n');
    let signatures = lines.by_ref().skip_while(|line| !line.starts_with("\u{2014}".as_bytes()));
    // A note ends with an empty line behind its signatures, and nothing follows.
    let has_end = signatures.skip_while(|line| !line.is_empty()).nth(1).is_some();
    rest.len() <= MAX_NOTE_BYTES && is_beginning && !has_end
}

/// Why there is nothing to judge.
fn missing(has_contract: bool, quorum: usize, has_evidence: bool) -> Option<Outcome> {
    match (has_contract, quorum, has_evidence) {
        (false, ..) => {
            Some(Outcome::NotEvaluated("the contract, which names the witnesses, could not be read".to_owned()))
        }
        (true, 0, false) => Some(Outcome::NotApplicable("the contract names no witness".to_owned())),
        (true, 1.., false) => Some(Outcome::NotEvaluated(
            "there is no file of cosigned heads beside the ledger; `ledger witness add` makes it, --cosigned FILE names one"
                .to_owned(),
        )),
        (true, _, true) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use schemas::body::{Halves, Nothing, WitnessHeadDet};
    use schemas::finding::{Effect, Finding, Severity};
    use schemas::ids::IdempotencyKey;
    use schemas::report::{Report, Verdict};
    use schemas::trust::Reach;

    use crate::fixture::{
        Fixture, RunBuilder, StoredRun, WITNESSES, cosigned, name_witnesses, signed_note, witness_name,
    };

    const ONE: u8 = WITNESSES[0];
    const OTHER: u8 = WITNESSES[1];

    /// A run under a contract that names two witnesses and asks for so many.
    fn fixture(quorum: u32) -> Fixture {
        RunBuilder::new().contract(|contract| name_witnesses(contract, 2, quorum)).build()
    }

    fn of_witnesses(report: &Report) -> Vec<(&str, Effect)> {
        let codes = ["GL014", "GL015", "GL016"];
        let own =
            |finding: &&Finding| codes.contains(&finding.code.as_str()) && finding.severity != Severity::Note;
        report.findings.iter().filter(own).map(|finding| (finding.code.as_str(), finding.effect)).collect()
    }

    /// What the rules say of notes that were changed, under a quorum of one.
    #[track_caller]
    fn check(expected: &[(&str, Effect)], change: impl FnOnce(&StoredRun, &mut Vec<String>)) {
        let run = StoredRun::new(fixture(1));
        let mut notes = run.all_cosigned(&[ONE]);
        change(&run, &mut notes);
        run.write_cosigned(&notes);
        let report = run.audit();
        assert_eq!(of_witnesses(&report), expected, "{:#?}", report.findings);
        let is_silent = expected.iter().all(|(_, effect)| *effect == Effect::None);
        assert_eq!(report.verdict == Verdict::Accepted, is_silent);
    }

    fn last(run: &StoredRun) -> (u64, &str) {
        let (size, note) = run.notes.last().expect("a head");
        (*size, note)
    }

    #[test]
    fn what_stands_is_accepted_and_reaches_as_far_as_the_table_says() {
        check(&[], |_, _| {});
        let run = StoredRun::new(fixture(2));
        run.write_cosigned(&run.all_cosigned(&WITNESSES));
        let report = run.audit();
        assert_eq!(report.verdict, Verdict::Accepted, "{:#?}", report.findings);
        let scope = report.trust.expect("every report has it");
        let way =
            scope.classes.iter().flat_map(|class| &class.ways).find(|way| way.way == "one-freeze-run-twice");
        assert_eq!(way.map(|way| way.reach), Some(Reach::Shown));
    }

    #[test]
    fn lines_of_others_are_ignored_and_count_for_nothing() {
        check(&[], |run, notes| {
            let line = cosigned(last(run).1, 12, 77);
            let line = line.lines().last().expect("a line");
            notes.last_mut().expect("a note").push_str(&format!("{line}\n"));
        });
        let incomplete = ("GL014", Effect::Incomplete);
        check(&[incomplete, ("GL015", Effect::Incomplete)], |run, notes| {
            *notes = vec![cosigned(last(run).1, 12, 77)];
        });
    }

    #[test]
    fn what_does_not_hold_is_tampered_with() {
        let tampered = ("GL014", Effect::Tampered);
        let with_last = |note: String| move |_: &StoredRun, notes: &mut Vec<String>| notes.push(note);
        // Another time than the one that was signed.
        check(&[tampered], |run, notes| {
            let (size, note) = last(run);
            let time_s = run.second_of(size);
            let (good, other) = (cosigned(note, ONE, time_s), cosigned(note, ONE, time_s + 1));
            let line = |text: &str| text.lines().last().expect("a line").to_owned();
            // The key hash and time of one, the signature of the other.
            let (good, other) = (line(&good), line(&other));
            let at = good.rfind(' ').expect("a space") + 17;
            notes.push(format!("{note}{}{}\n", &good[..at], &other[at..]));
        });
        let run = StoredRun::new(fixture(1));
        let origin = format!("governed-ledger/run/{}", fixture(1).frozen.run);
        let size = last(&run).0;
        let foreign = signed_note("governed-ledger/run/0-0", size, [1; 32], 3);
        check(&[tampered], with_last(cosigned(&foreign, ONE, 77)));
        // The roots differ; the second is not signed by the trainer either.
        let root = signed_note(&origin, size, [1; 32], 3);
        check(&[tampered], with_last(cosigned(&root, ONE, run.second_of(size))));
        let stranger = signed_note(&origin, size, [1; 32], 4);
        check(&[tampered, tampered], with_last(cosigned(&stranger, ONE, run.second_of(size))));
        let beyond = signed_note(&origin, size + 1, [1; 32], 3);
        check(&[tampered], with_last(cosigned(&beyond, ONE, run.second_of(size))));
        check(&[tampered], with_last("no note\n\n".to_owned()));
    }

    #[test]
    fn files_that_end_early_or_hold_nothing() {
        let report = |bytes: &dyn Fn(&str) -> Vec<u8>| {
            let run = StoredRun::new(fixture(1));
            run.write_cosigned(&run.all_cosigned(&[ONE]));
            let path = run.beside("run.db.cosigned");
            let text = fs::read_to_string(&path).expect("written");
            fs::write(&path, bytes(&text)).expect("writable");
            run.audit()
        };
        let torn = report(&|text| text.as_bytes()[..text.len() - 9].to_vec());
        assert_eq!(of_witnesses(&torn), [("GL014", Effect::Incomplete); 2], "{:#?}", torn.findings);
        let empty = report(&|_| Vec::new());
        assert_eq!(empty.verdict, Verdict::NotEvaluated, "{:#?}", empty.findings);
        // A power cut may come anywhere, in the first append too.
        let first = {
            let run = StoredRun::new(fixture(1));
            format!("{}\n", run.all_cosigned(&[ONE])[0])
        };
        for length in 1..first.len() - 1 {
            let torn = report(&|_| first.as_bytes()[..length].to_vec());
            let effects = of_witnesses(&torn);
            assert!(!effects.is_empty(), "cut at {length}");
            assert!(
                effects.iter().all(|(_, effect)| *effect == Effect::Incomplete),
                "cut at {length}: {effects:?}"
            );
        }
        let damaged = report(&|text| text.replacen("\n\n", "\n?\n", 1).into_bytes());
        assert!(of_witnesses(&damaged).contains(&("GL014", Effect::Tampered)), "{:#?}", damaged.findings);
        let without_end = report(&|text| text.trim_end_matches('\n').as_bytes().to_vec());
        assert!(of_witnesses(&without_end).contains(&("GL014", Effect::Incomplete)));
    }

    /// Of the two notes that a quorum of one needs, no byte can be another.
    #[test]
    fn no_changed_byte_is_accepted() {
        /// Prime to the length of a line, so that every part of one is met.
        const STRIDE: usize = 23;
        let run = StoredRun::new(fixture(1));
        let all = run.all_cosigned(&[ONE]);
        run.write_cosigned(&[all[0].clone(), all[all.len() - 1].clone()]);
        assert_eq!(run.audit().verdict, Verdict::Accepted);
        let path = run.beside("run.db.cosigned");
        let good = fs::read(&path).expect("written");
        for position in (0..good.len()).step_by(STRIDE) {
            let mut bytes = good.clone();
            bytes[position] ^= 1;
            fs::write(&path, bytes).expect("writable");
            assert_ne!(run.audit().verdict, Verdict::Accepted, "byte {position}");
        }
    }

    /// Each witness at another size is no quorum over one head.
    #[test]
    fn a_quorum_is_over_one_head() {
        let run = StoredRun::new(fixture(2));
        let mut notes = run.all_cosigned(&[ONE]);
        let others = run.all_cosigned(&[OTHER]);
        notes.extend_from_slice(&others[..others.len() - 1]);
        run.write_cosigned(&notes);
        let report = run.audit();
        assert_eq!(of_witnesses(&report), [("GL014", Effect::Incomplete)], "{:#?}", report.findings);
        run.write_cosigned(&[&notes[..], &others[others.len() - 1..]].concat());
        assert_eq!(run.audit().verdict, Verdict::Accepted);
    }

    /// A witness with a clock of its own: dated back, the record is a year before
    /// its first head.
    #[test]
    fn clocks_that_contradict_are_warnings() {
        let year_s = 365 * 24 * 3600;
        let run = StoredRun::new(fixture(1));
        let late = |(size, note): &(u64, String)| cosigned(note, ONE, run.second_of(*size) + year_s);
        run.write_cosigned(&run.notes.iter().map(late).collect::<Vec<_>>());
        let report = run.audit();
        assert_eq!(of_witnesses(&report), [("GL016", Effect::None)], "{:#?}", report.findings);
        let notes = report.findings.iter().filter(|finding| finding.message.contains("long after"));
        assert_eq!(notes.count(), run.notes.len());
        assert_eq!(report.verdict, Verdict::Accepted);
    }

    /// The run with an entry behind its end that holds what a witness cosigned.
    fn recorded(note: impl Fn(&StoredRun) -> String, witness: u8) -> Report {
        let before = StoredRun::new(fixture(1));
        let mut fixture = fixture(1);
        let mut entry = fixture.entries.last().expect("run.end").clone();
        entry.header.idem = IdempotencyKey("d".repeat(32));
        let det = WitnessHeadDet { note: note(&before), witness: witness_name(witness) };
        entry.body = super::Body::WitnessHead(Box::new(Halves { det, obs: Nothing {} }));
        fixture.entries.push(entry);
        fixture.renumber();
        let run = StoredRun::new(fixture);
        run.write_cosigned(&before.all_cosigned(&[ONE])[..1]);
        run.audit()
    }

    #[test]
    fn cosigned_heads_on_record_count_and_are_checked() {
        let own = |run: &StoredRun| {
            let (size, note) = last(run);
            cosigned(note, ONE, run.second_of(size))
        };
        let report = recorded(own, ONE);
        assert!(of_witnesses(&report).is_empty(), "{:#?}", report.findings);
        assert_eq!(report.verdict, Verdict::Accepted, "{:#?}", report.findings);
        let named = recorded(own, OTHER);
        assert_eq!(of_witnesses(&named), [("GL014", Effect::Rejected)], "{:#?}", named.findings);
        let none = recorded(|_| "no note".to_owned(), ONE);
        assert!(of_witnesses(&none).contains(&("GL014", Effect::Rejected)));
        let origin = format!("governed-ledger/run/{}", fixture(1).frozen.run);
        let forged = |size: fn(u64) -> u64| {
            let origin = origin.clone();
            move |run: &StoredRun| cosigned(&signed_note(&origin, size(last(run).0), [7; 32], 3), ONE, 1)
        };
        let other = recorded(forged(|size| size), ONE);
        assert!(of_witnesses(&other).contains(&("GL014", Effect::Tampered)), "{:#?}", other.findings);
        let itself = recorded(forged(|size| size + 1), ONE);
        assert!(of_witnesses(&itself).contains(&("GL014", Effect::Rejected)), "{:#?}", itself.findings);
    }
}
