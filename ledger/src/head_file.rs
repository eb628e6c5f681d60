//! The external head file `<ledger>.head`: every signed head, appended, so that
//! a database that lost rows is noticed.
//!
//! Each note is followed by one empty line; the last complete one counts. The
//! file only grows. What follows the last complete note can only be the torn
//! end of an append that a power cut ended: the database, which commits first,
//! already has that head, so a writer cuts it off and says so.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::failpoint;
use crate::note::MAX_NOTE_BYTES;

/// A head file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum HeadFileError {
    /// There is none.
    #[error(
        "no head file {path}; restore it from a copy, since without it rows lost from the end go unnoticed"
    )]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// There is one although the ledger is new.
    #[error("{path} exists, but no ledger beside it; it is the head of another ledger: keep it elsewhere")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file holds no note.
    #[error("{path} holds no complete tree head")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file is not text.
    #[error("{path} is not a file of signed notes")]
    Content {
        /// The file.
        path: PathBuf,
    },
    /// The file could not be read or written.
    #[error("cannot access head file {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Path of the head file that belongs to a ledger: `run.db.head`.
#[must_use]
pub fn path_for(ledger: &Path) -> PathBuf {
    crate::lock::with_suffix(ledger, ".head")
}

/// Writes the first note of a new ledger and flushes file and folder.
///
/// # Errors
/// When the file exists or cannot be written.
pub fn create(path: &Path, note: &str) -> Result<(), HeadFileError> {
    let io = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::AlreadyExists => HeadFileError::Exists { path: path.to_owned() },
        _ => HeadFileError::Io { path: path.to_owned(), source },
    };
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(io)?;
    file.write_all(format!("{note}\n").as_bytes()).map_err(io)?;
    file.sync_all().map_err(io)?;
    sync_folder(path).map_err(io)
}

/// Flushes the folder that holds a file, so that its name survives a power cut.
pub(crate) fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// The last complete note of a head file.
///
/// # Errors
/// When there is no file, or no complete note in it.
pub fn read_last(path: &Path) -> Result<String, HeadFileError> {
    Ok(read_tail(path)?.last)
}

/// All notes of a head file, oldest first. Reads at most `max_bytes`.
///
/// # Errors
/// When the file is missing, larger than that, not text, or holds no note.
pub fn read_all(path: &Path, max_bytes: u64) -> Result<Vec<String>, HeadFileError> {
    let io = |source: std::io::Error| io_error(path, source);
    let file = File::open(path).map_err(io)?;
    let mut text = Vec::new();
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut text).map_err(io)?;
    if text.len() as u64 > max_bytes {
        return Err(HeadFileError::Content { path: path.to_owned() });
    }
    let text = String::from_utf8(text).map_err(|_| HeadFileError::Content { path: path.to_owned() })?;
    let notes = split_notes(&text);
    if notes.is_empty() {
        return Err(HeadFileError::Empty { path: path.to_owned() });
    }
    Ok(notes)
}

/// Takes the text of a head file apart into its complete notes.
#[must_use]
pub fn split_notes(text: &str) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = String::new();
    let mut has_signature = false;
    for line in text.split_inclusive('\n') {
        // The first empty line of a note precedes its signatures, the second ends it.
        if line == "\n" && has_signature {
            notes.push(std::mem::take(&mut note));
            has_signature = false;
            continue;
        }
        has_signature |= line.starts_with('\u{2014}');
        note.push_str(line);
    }
    notes
}

struct Tail {
    last: String,
    /// Length of the file up to the end of its last complete note.
    complete_bytes: u64,
    num_bytes: u64,
}

fn io_error(path: &Path, source: std::io::Error) -> HeadFileError {
    match source.kind() {
        std::io::ErrorKind::NotFound => HeadFileError::Missing { path: path.to_owned() },
        _ => HeadFileError::Io { path: path.to_owned(), source },
    }
}

/// Reads the end of the file, which is enough for two of the largest notes.
fn read_tail(path: &Path) -> Result<Tail, HeadFileError> {
    let io = |source: std::io::Error| io_error(path, source);
    let mut file = File::open(path).map_err(io)?;
    let num_bytes = file.metadata().map_err(io)?.len();
    let window_bytes = (2 * MAX_NOTE_BYTES as u64 + 2).min(num_bytes);
    file.seek(SeekFrom::Start(num_bytes - window_bytes)).map_err(io)?;
    let mut bytes = Vec::new();
    file.take(window_bytes).read_to_end(&mut bytes).map_err(io)?;
    let position = |bytes: &[u8], separator: &[u8]| {
        bytes.windows(separator.len()).rposition(|window| window == separator)
    };
    // A note ends with a signature line and an empty line; so does the search.
    let mut end = bytes.len();
    let empty = || HeadFileError::Empty { path: path.to_owned() };
    loop {
        end = position(&bytes[..end], b"\n\n").ok_or_else(empty)?;
        let line_start = position(&bytes[..end], b"\n").map_or(0, |newline| newline + 1);
        if bytes[line_start..end].starts_with("\u{2014}".as_bytes()) {
            break;
        }
    }
    let complete = &bytes[..end + 2];
    let start = note_start(&complete[..end]);
    let last = std::str::from_utf8(&complete[start..=end])
        .map_err(|_| HeadFileError::Content { path: path.to_owned() })?;
    let complete_bytes = num_bytes - window_bytes + complete.len() as u64;
    Ok(Tail { last: last.to_owned(), complete_bytes, num_bytes })
}

/// Where the note that ends with `bytes` begins: after the end of the one before.
fn note_start(bytes: &[u8]) -> usize {
    let separators = bytes.windows(2).enumerate().filter(|(_, window)| *window == b"\n\n");
    // The last separator is the blank line inside this note.
    let mut positions: Vec<usize> = separators.map(|(position, _)| position).collect();
    positions.pop();
    positions.last().map_or(0, |position| position + 2)
}

/// An open head file that only grows.
#[derive(Debug)]
pub struct HeadFile {
    file: File,
    path: PathBuf,
}

impl HeadFile {
    /// Opens an existing head file for appending and returns its last note.
    ///
    /// # Errors
    /// When it is missing, holds no note, or cannot be written.
    pub fn open(path: &Path) -> Result<(Self, String), HeadFileError> {
        let tail = read_tail(path)?;
        let io = |source: std::io::Error| io_error(path, source);
        let file = OpenOptions::new().append(true).open(path).map_err(io)?;
        if tail.complete_bytes < tail.num_bytes {
            tracing::warn!(
                head_file.path = %path.display(),
                head_file.torn_bytes = tail.num_bytes - tail.complete_bytes,
                "cut a torn append off the head file"
            );
            file.set_len(tail.complete_bytes).map_err(io)?;
            file.sync_all().map_err(io)?;
        }
        Ok((Self { file, path: path.to_owned() }, tail.last))
    }

    /// Appends a note and flushes it to the device.
    ///
    /// # Errors
    /// When the file cannot be written or flushed.
    pub fn append(&mut self, note: &str) -> Result<(), HeadFileError> {
        let mut bytes = Vec::with_capacity(note.len() + 1);
        bytes.extend_from_slice(note.as_bytes());
        bytes.push(b'\n');
        let io = |source| HeadFileError::Io { path: self.path.clone(), source };
        failpoint::pass("head.write");
        self.file.write_all(&bytes).map_err(io)?;
        failpoint::pass("head.written");
        if !failpoint::is_on("skip.head_flush") {
            self.file.sync_data().map_err(io)?;
        }
        failpoint::pass("head.flushed");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(size: u64) -> String {
        format!("origin\n{size}\nroot\n\n\u{2014} origin c2ln\n")
    }

    #[test]
    fn the_last_complete_note_counts_and_a_torn_one_is_cut_off() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("run.db.head");
        create(&path, &note(1)).expect("a new file");
        assert_eq!(read_last(&path).expect("one note"), note(1));
        assert!(matches!(create(&path, &note(1)), Err(HeadFileError::Exists { .. })));
        let (mut file, last) = HeadFile::open(&path).expect("it exists");
        assert_eq!(last, note(1));
        for size in 2..5 {
            file.append(&note(size)).expect("appended");
            assert_eq!(read_last(&path).expect("a note"), note(size));
        }
        let complete = std::fs::read(&path).expect("readable");
        let torn_note = note(5);
        for length in 1..torn_note.len() {
            let mut torn = complete.clone();
            torn.extend_from_slice(&torn_note.as_bytes()[..length]);
            std::fs::write(&path, &torn).expect("written");
            let (_, last) = HeadFile::open(&path).expect("the torn end is cut off");
            assert_eq!(last, note(4), "cut at {length}");
            assert_eq!(std::fs::read(&path).expect("readable"), complete, "cut at {length}");
        }
        assert_eq!(read_all(&path, 1 << 20).expect("all"), (1..5).map(note).collect::<Vec<_>>());
    }

    #[test]
    fn missing_empty_and_binary_files_are_told_apart() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("run.db.head");
        assert!(matches!(read_last(&path), Err(HeadFileError::Missing { .. })));
        std::fs::write(&path, b"").expect("written");
        assert!(matches!(read_last(&path), Err(HeadFileError::Empty { .. })));
        std::fs::write(&path, b"\xff\n\n\xe2\x80\x94 x\xff\n\n").expect("written");
        assert!(matches!(read_last(&path), Err(HeadFileError::Content { .. })));
    }
}
