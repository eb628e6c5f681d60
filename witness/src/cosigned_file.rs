//! The file `<ledger>.cosigned`: heads with the cosignatures that witnesses gave,
//! one after the other as in a head file. It only grows, and a note in it is on
//! disk before anybody relies on it.
//!
//! Each note holds the log's own signature and one witness's. A writer locks the
//! file while it reads and appends, so that several witnesses can be asked at
//! once. What an audit would call tampered with is neither cut off nor appended to.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ledger::head_file::split_notes;
use ledger::keys::public_from_hex;
use ledger::note::{self, ParsedNote};
use rustix::fs::{FlockOperation, flock};

use crate::cosignature;
use crate::verifier_key::VerifierKey;

/// Largest file that is read.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A file of cosigned heads that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CosignedFileError {
    /// It cannot be read or written.
    #[error("cannot access the cosigned heads in {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not a file of notes.
    #[error(
        "{path} is no file of cosigned heads: {what}; hint: restore it from a copy; each witness has what it cosigned (GET /cosigned/<origin>)"
    )]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// Path of the cosigned heads that belong to a ledger: `run.db.cosigned`.
#[must_use]
pub fn path_for(ledger: &Path) -> PathBuf {
    let mut text = ledger.as_os_str().to_owned();
    text.push(".cosigned");
    PathBuf::from(text)
}

/// A note with the log's signature by one key, where one holds, and a line of a
/// witness.
#[must_use]
pub fn with_cosignature(parsed: &ParsedNote, log_public_hex: &str, line: &str) -> String {
    let origin = &parsed.head.origin;
    let hash = public_from_hex(log_public_hex).map(|key| note::key_hash(origin, key.as_bytes()));
    let own = parsed.signatures.iter().filter(|own| own.name == *origin && Some(own.key_hash) == hash);
    let mut own = own.map(|own| {
        let blob = [&own.key_hash[..], &own.signature].concat();
        format!("\u{2014} {origin} {}\n", STANDARD.encode(blob))
    });
    // Anybody can put a line that does not hold before the one that does.
    let own = own.find(|own| note::verify(&format!("{}\n{own}", parsed.text), log_public_hex).is_ok());
    format!("{}\n{}{line}", parsed.text, own.unwrap_or_default())
}

/// An open file of cosigned heads.
#[derive(Debug)]
pub struct CosignedFile {
    file: File,
    notes: Vec<ParsedNote>,
    path: PathBuf,
}

impl CosignedFile {
    /// Opens or makes the file of the ledger of this origin, waits until no other
    /// writer has it, and reads it. Where a power cut ended an append, its torn end is
    /// cut off; a note that lacks only the empty line behind it, which an audit counts,
    /// gets that.
    ///
    /// # Errors
    /// When it cannot be accessed, or holds something else.
    pub fn open(path: &Path, origin: &str) -> Result<Self, CosignedFileError> {
        let io = |source: std::io::Error| CosignedFileError::Io { path: path.to_owned(), source };
        let content = |what: String| CosignedFileError::Content { path: path.to_owned(), what };
        let is_new = !path.exists();
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(io)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|error| io(error.into()))?;
        if is_new {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all()).map_err(io)?;
        }
        file.seek(SeekFrom::Start(0)).map_err(io)?;
        let mut bytes = Vec::new();
        (&file).take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(content("it is larger than 64 MiB".to_owned()));
        }
        let (notes, whole) = parse(&bytes, origin).map_err(content)?;
        if whole < bytes.len() {
            file.set_len(whole as u64).map_err(io)?;
            file.sync_all().map_err(io)?;
        } else if !bytes.is_empty() && !bytes.ends_with(b"\n\n") {
            file.write_all(b"\n").map_err(io)?;
            file.sync_all().map_err(io)?;
        }
        Ok(Self { file, notes, path: path.to_owned() })
    }

    /// As [`CosignedFile::newest_of`], of a file that need not be there and is not made.
    ///
    /// # Errors
    /// As for [`CosignedFile::open`].
    pub fn newest_at(
        path: &Path,
        origin: &str,
        witness: &VerifierKey,
    ) -> Result<Option<(u64, [u8; 32])>, CosignedFileError> {
        if path.exists() { Ok(Self::open(path, origin)?.newest_of(witness)) } else { Ok(None) }
    }

    /// Every note, oldest first; none of them verified.
    #[must_use]
    pub fn notes(&self) -> &[ParsedNote] {
        &self.notes
    }

    /// The largest size that a witness cosigned, with its root. Lines that do
    /// not hold are passed over: an audit says what is wrong with them.
    #[must_use]
    pub fn newest_of(&self, witness: &VerifierKey) -> Option<(u64, [u8; 32])> {
        let held = self.notes.iter().filter(|note| matches!(cosignature::verify(note, witness), Ok(Some(_))));
        held.map(|note| (note.head.size, note.head.root)).max_by_key(|(size, _)| *size)
    }

    /// Appends a note and flushes it to the device.
    ///
    /// # Errors
    /// When the note is none, or the file cannot be written.
    pub fn append(&mut self, note: &str) -> Result<(), CosignedFileError> {
        let content = |what: String| CosignedFileError::Content { path: self.path.clone(), what };
        let parsed = note::parse(note).map_err(|error| content(error.to_string()))?;
        let io = |source| CosignedFileError::Io { path: self.path.clone(), source };
        self.file.write_all(format!("{note}\n").as_bytes()).map_err(io)?;
        self.file.sync_data().map_err(io)?;
        self.notes.push(parsed);
        Ok(())
    }
}

/// The notes of the file of the ledger of this origin, none of them verified, and the
/// length up to the end of the last one, which may lack the empty line behind it. What
/// follows may be cut off: it is the beginning of another note.
///
/// # Errors
/// In words, when the file holds something else.
pub fn parse(bytes: &[u8], origin: &str) -> Result<(Vec<ParsedNote>, usize), String> {
    let whole = complete_bytes(bytes);
    let (complete, rest) = bytes.split_at(whole);
    let text = std::str::from_utf8(complete).map_err(|error| error.to_string())?;
    let texts = split_notes(text);
    if texts.iter().map(|note| note.len() + 1).sum::<usize>() != whole {
        return Err("a note is not followed by one empty line".to_owned());
    }
    let notes = texts.iter().map(|text| note::parse(text)).collect::<Result<Vec<_>, _>>();
    let mut notes = notes.map_err(|error| error.to_string())?;
    if let Some(note) = notes.iter().find(|note| note.head.origin != origin) {
        return Err(format!("it holds a head of {}, and the ledger is {origin}", note.head.origin));
    }
    if !rest.is_empty() && !is_torn(rest, origin) {
        return Err("what follows its last note is no part of another one".to_owned());
    }
    // All of an append but its last byte is a note that an audit counts.
    match std::str::from_utf8(rest).ok().and_then(|text| note::parse(text).ok()) {
        Some(last) => {
            notes.push(last);
            Ok((notes, bytes.len()))
        }
        None => Ok((notes, whole)),
    }
}

/// Whether bytes can be the beginning of an append to the file of this ledger.
/// Anything else was never written here, and is not removed.
fn is_torn(rest: &[u8], origin: &str) -> bool {
    let start = format!("{origin}\n");
    let is_beginning = rest.starts_with(start.as_bytes()) || start.as_bytes().starts_with(rest);
    // Behind its signatures an append has one empty line, and ends.
    let position = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|window| window == what);
    let signatures = position(rest, "\n\u{2014}".as_bytes()).and_then(|at| rest.get(at + 1..));
    let has_end = signatures.is_some_and(|signatures| position(signatures, b"\n\n").is_some());
    rest.len() <= note::MAX_NOTE_BYTES && is_beginning && !has_end
}

/// Length up to the end of the last note that is followed by an empty line.
fn complete_bytes(bytes: &[u8]) -> usize {
    let mut end = bytes.len();
    while let Some(at) = bytes[..end].windows(2).rposition(|pair| pair == b"\n\n") {
        let line = bytes[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        if bytes[line..at].starts_with("\u{2014}".as_bytes()) {
            return at + 2;
        }
        end = at + 1;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verifier_key::SignatureKind;
    use ledger::keys::{KeyPair, Role};
    use ledger::note::TreeHead;
    use schemas::digest::Digest;

    const ORIGIN: &str = "governed-ledger/run/a-b";

    fn key(seed: u8) -> KeyPair {
        KeyPair::from_seed(Role::Witness, &[seed; 32], Digest::sha256([0; 32]))
    }

    fn note(size: u64, witness: u8) -> String {
        let head = TreeHead { origin: ORIGIN.to_owned(), size, root: [3; 32] };
        let parsed = note::parse(&head.sign(&key(1))).expect("a note");
        let line = cosignature::sign(&parsed.text, "w", &key(witness), 77);
        with_cosignature(&parsed, &key(1).public_hex(), &line)
    }

    #[test]
    fn notes_are_appended_and_a_torn_end_is_cut_off_unless_it_is_a_note() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.db.cosigned");
        let mut file = CosignedFile::open(&path, ORIGIN).expect("a new file");
        assert!(file.notes().is_empty());
        for size in [1, 4] {
            file.append(&note(size, 2)).expect("appended");
        }
        drop(file);
        let complete = std::fs::read(&path).expect("readable");
        let torn = note(9, 2);
        let mut whole = Vec::new();
        for length in 0..=torn.len() {
            let rest = &torn.as_bytes()[..length];
            std::fs::write(&path, [&complete[..], rest].concat()).expect("written");
            let is_note = std::str::from_utf8(rest).is_ok_and(|text| note::parse(text).is_ok());
            let kept = if is_note { [&complete[..], rest, b"\n"].concat() } else { complete.clone() };
            for _ in 0..2 {
                let file = CosignedFile::open(&path, ORIGIN).expect("whatever a power cut leaves is mended");
                assert_eq!(file.notes().len(), if is_note { 3 } else { 2 }, "cut at {length}");
                assert_eq!(std::fs::read(&path).expect("readable"), kept, "cut at {length}");
            }
            whole.extend(is_note.then_some(length));
        }
        // Behind the log's line, and behind the witness's.
        let behind_log = torn.rfind('\u{2014}').expect("the witness's line");
        assert_eq!(whole, [behind_log, torn.len()]);
        let file = CosignedFile::open(&path, ORIGIN).expect("readable");
        let witness = |seed| VerifierKey {
            kind: SignatureKind::Witness,
            name: "w".to_owned(),
            public: key(seed).public_bytes(),
        };
        assert_eq!(file.newest_of(&witness(2)), Some((9, [3; 32])), "what lacked its last byte counts");
        assert_eq!(file.newest_of(&witness(5)), None);
        drop(file);
        std::fs::write(&path, &complete).expect("written");
        let mut file = CosignedFile::open(&path, ORIGIN).expect("readable");
        assert_eq!(file.newest_of(&witness(2)), Some((4, [3; 32])));
        drop(file);
        // What is appended behind a note that was mended is one note more.
        std::fs::write(&path, [&complete[..], torn.as_bytes()].concat()).expect("written");
        file = CosignedFile::open(&path, ORIGIN).expect("readable");
        file.append(&note(12, 2)).expect("appended");
        drop(file);
        assert_eq!(CosignedFile::open(&path, ORIGIN).expect("readable").notes().len(), 4);
        let other = CosignedFile::open(&path, "governed-ledger/run/a-c");
        assert!(matches!(other, Err(CosignedFileError::Content { .. })), "of another run");
    }

    #[test]
    fn other_files_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x");
        for text in [
            "hello".to_owned(),
            format!("{}\n\n", note(1, 2)),
            format!("x\n{}\n", note(1, 2)),
            "\n\n\u{2014} x\n\n".to_owned(),
            // Of another ledger; and what is damaged, and no part of a note.
            note(1, 2).replace("a-b", "a-c") + "\n",
            "governed-ledger/run/a-c\n".to_owned(),
            format!("{}x\n\n", note(1, 2)),
            format!("{ORIGIN}\n4\n\n\u{2014}x\ny\n\n"),
        ] {
            std::fs::write(&path, text).expect("written");
            assert!(matches!(CosignedFile::open(&path, ORIGIN), Err(CosignedFileError::Content { .. })));
        }
    }

    #[test]
    fn lines_of_others_are_left_out() {
        let head = TreeHead { origin: "o".to_owned(), size: 3, root: [3; 32] };
        let other = head.sign(&key(7));
        let both = format!("{}{}", head.sign(&key(1)), &other[other.find('\u{2014}').expect("a line")..]);
        let parsed = note::parse(&both).expect("a note");
        assert_eq!(with_cosignature(&parsed, &key(1).public_hex(), ""), head.sign(&key(1)));
        // A line that does not hold, before the one that does.
        let signed = head.sign(&key(1));
        let (text, line) = signed.split_at(signed.find('\u{2014}').expect("a line"));
        let of_another = TreeHead { size: 4, ..head.clone() }.sign(&key(1));
        let false_line = &of_another[of_another.find('\u{2014}').expect("a line")..];
        let twice = note::parse(&format!("{text}{false_line}{line}")).expect("a note");
        assert_eq!(with_cosignature(&twice, &key(1).public_hex(), ""), signed);
        assert_eq!(with_cosignature(&parsed, &key(7).public_hex(), ""), other);
    }
}
