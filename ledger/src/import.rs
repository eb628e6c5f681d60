//! A ledger made again from its export, byte for byte, or brought up to it.
//!
//! Only an export that holds is taken ([`crate::export::check`]): an import
//! signs nothing, so a ledger is never worth more after it than the heads that
//! came along. It only appends. What is there already has to be the beginning of
//! the export, or the export the beginning of it; the same export twice is the
//! same ledger, and an entry that says something else under a key that is taken
//! is refused before anything is written.

use std::ops::Range;
use std::path::{Path, PathBuf};

use schemas::digest::{Digest, decode_hex};
use schemas::entry::Entry;
use schemas::ids::RunId;

use crate::create::{CreateError, Temporary, refuse_stale_log};
use crate::export::{ARTIFACTS, CheckedHead, ENTRIES, ExportError, ExportSummary, Inspected, Lines, inspect};
use crate::head_file::{self, HeadFile, HeadFileError};
use crate::lock::{LockError, WriterLock, with_suffix};
use crate::note::{self, NoteError};
use crate::reader::{ReadError, Reader};
use crate::snapshot::WriterMark;
use crate::store::{Appending, HeadRow, NewRow, Store, StoreError, on_own_thread};
use crate::tree::leaf_hash;

/// Entries of one transaction.
const MAX_ROWS_PER_COMMIT: usize = 4096;

/// Bytes of entries of one transaction, which bounds memory.
const MAX_BYTES_PER_COMMIT: usize = 8 * 1024 * 1024;

/// What an import did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportSummary {
    /// What the export holds.
    pub export: ExportSummary,
    /// Whether the ledger was made; else it existed.
    pub is_created: bool,
    /// Entries that the ledger holds now; more than the export has, where the
    /// ledger went on.
    pub num_entries: u64,
    /// Entries that were appended.
    pub num_new_entries: u64,
    /// Heads that were added.
    pub num_new_heads: u64,
    /// Last entries of the export that an existing ledger did not get, since no
    /// head of the export is over them: anybody could have written them.
    pub num_unsigned: u64,
}

/// An import that was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The export cannot be read, or does not hold.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// No ledger can be made here.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The existing ledger cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another writer has it.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The head file cannot be read or written.
    #[error(transparent)]
    HeadFile(#[from] HeadFileError),
    /// The existing ledger cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A head of the existing ledger, or of the file beside it, is not a note.
    #[error("{path}: a head is not a signed tree head")]
    Head {
        /// Ledger or head file.
        path: PathBuf,
        /// Why.
        #[source]
        source: NoteError,
    },
    /// The existing ledger is another one.
    #[error("{path} is the ledger of {found}, the export is of {expected}")]
    OtherLedger {
        /// The ledger.
        path: PathBuf,
        /// Its run.
        found: RunId,
        /// The run of the export.
        expected: RunId,
    },
    /// A key of the export belongs to another entry of the ledger.
    #[error(
        "{path}, entry {index}: its idempotency key {idem} is that of {entries}, line {line}, which says \
         something else"
    )]
    Conflict {
        /// The ledger.
        path: PathBuf,
        /// The ledger's entry.
        index: u64,
        /// The key.
        idem: String,
        /// The export's file.
        entries: PathBuf,
        /// Line from 1.
        line: u64,
    },
    /// Ledger and export part.
    #[error("{path}, entry {index}: it is not the entry of {entries}, line {line}")]
    Differs {
        /// The ledger.
        path: PathBuf,
        /// The first entry that differs.
        index: u64,
        /// The export's file.
        entries: PathBuf,
        /// Line from 1.
        line: u64,
    },
    /// The entries agree and the heads do not.
    #[error("{path}: its heads over the first {size} entries are not those of the export")]
    Heads {
        /// The ledger.
        path: PathBuf,
        /// Up to which size both have heads.
        size: u64,
    },
    /// The last head beside the ledger belongs to neither.
    #[error("{path}: its last head is neither one of the ledger nor one of the export")]
    Beside {
        /// The head file.
        path: PathBuf,
    },
    /// The export is another one than was checked.
    #[error("{path}, line {line}: it changed while it was imported")]
    Changed {
        /// The file.
        path: PathBuf,
        /// Line from 1.
        line: u64,
    },
    /// The operating system refused.
    #[error("cannot access {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl ImportError {
    /// Whether something is wrong with what was to be imported, or it does not
    /// agree with the ledger; else the import could not run.
    #[must_use]
    pub const fn is_finding(&self) -> bool {
        matches!(
            self,
            Self::Export(ExportError::Content { .. } | ExportError::Head { .. })
                | Self::OtherLedger { .. }
                | Self::Conflict { .. }
                | Self::Differs { .. }
                | Self::Heads { .. }
                | Self::Beside { .. }
        )
    }

    /// What can be done about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Export(ExportError::Io { .. }) => "name a folder that `ledger export` made",
            Self::Export(_) | Self::Changed { .. } => "compare with another copy, or export again",
            Self::Store(error) => error.hint(),
            Self::Create(_) => "import to another name, or move away what is there",
            Self::Lock(_) => "wait for the other writer to end, or import to another name",
            Self::HeadFile(HeadFileError::Exists { .. }) | Self::Beside { .. } => {
                "keep the head file elsewhere, and find out which ledger it belongs to; import to another name"
            }
            Self::HeadFile(_) | Self::Io { .. } => {
                "make the folder writable and room on its disk, then import again"
            }
            Self::OtherLedger { .. } => "import it to another name",
            Self::Read(_) | Self::Head { .. } => "`ledger audit` says what is wrong with the ledger",
            Self::Conflict { .. } | Self::Differs { .. } | Self::Heads { .. } => {
                "nothing was written; import it to another name, and compare both with a head that was kept elsewhere"
            }
        }
    }
}

/// Makes a ledger of an export, or appends what an existing one lacks of it.
/// Heads must be signed as [`crate::export::check`] says.
///
/// # Errors
/// When the export does not hold, disagrees with the existing ledger, or a file
/// cannot be read or written. A new ledger is then not there; an existing one
/// keeps what it had, and after a failure of its disk a part of what was new.
pub fn import(folder: &Path, ledger: &Path, public_keys: &[String]) -> Result<ImportSummary, ImportError> {
    let export = inspect(folder, public_keys)?;
    let import = Import { export: &export, folder, ledger };
    if ledger.exists() { import.extend() } else { import.create() }
}

struct Import<'a> {
    export: &'a Inspected,
    folder: &'a Path,
    ledger: &'a Path,
}

impl Import<'_> {
    fn entries_path(&self) -> PathBuf {
        self.folder.join(ENTRIES)
    }

    /// Heads that lay in the head file beside the exported ledger.
    fn published(&self) -> &[CheckedHead] {
        let size = self.export.beside.as_ref().map(|beside| beside.head.size);
        let num =
            self.export.heads.partition_point(|checked| size.is_some_and(|size| checked.head.size <= size));
        self.export.heads.get(..num).unwrap_or_default()
    }

    /// Builds the database under a temporary name and puts head file and
    /// database in place, as a freeze does.
    fn create(&self) -> Result<ImportSummary, ImportError> {
        refuse_stale_log(self.ledger)?;
        let temporary = Temporary(with_suffix(self.ledger, &format!(".importing-{}", std::process::id())));
        on_own_thread(|| {
            let mut store = Store::create(&temporary.0)?;
            let filled = self.fill(&mut store, 0..self.export.summary.num_entries, None);
            store.close()?;
            filled
        })?;
        let io = |source| ImportError::Io { path: self.ledger.to_owned(), source };
        std::fs::File::open(&temporary.0).and_then(|file| file.sync_all()).map_err(io)?;
        let is_head_new = self.publish()?;
        // A hard link fails where the name exists, which a rename would replace.
        if let Err(source) = std::fs::hard_link(&temporary.0, self.ledger) {
            if is_head_new {
                let _ = std::fs::remove_file(head_file::path_for(self.ledger));
            }
            return Err(io(source));
        }
        drop(temporary);
        head_file::sync_folder(self.ledger).map_err(io)?;
        let summary = &self.export.summary;
        Ok(ImportSummary {
            export: summary.clone(),
            is_created: true,
            num_entries: summary.num_entries,
            num_new_entries: summary.num_entries,
            num_new_heads: summary.num_heads,
            num_unsigned: 0,
        })
    }

    /// Makes the head file of a new ledger; tells whether there was none. One
    /// that ends with the very head of the export is left as it is: a database
    /// that was lost comes back to the head that outlived it.
    fn publish(&self) -> Result<bool, ImportError> {
        let path = head_file::path_for(self.ledger);
        if path.exists() {
            let last = head_file::read_last(&path)?;
            if self.export.beside.as_ref().is_some_and(|beside| beside.note == last) {
                return Ok(false);
            }
            return Err(HeadFileError::Exists { path }.into());
        }
        self.create_head_file(&path)
    }

    fn create_head_file(&self, path: &Path) -> Result<bool, ImportError> {
        let published = self.published();
        if !published.is_empty() {
            head_file::create(path, &joined(published))?;
        }
        Ok(!published.is_empty())
    }

    fn extend(&self) -> Result<ImportSummary, ImportError> {
        let _lock = WriterLock::acquire(self.ledger)?;
        let found = on_own_thread(|| {
            let mut store = Store::open(self.ledger)?;
            let mark = WriterMark::set(self.ledger)
                .map_err(|source| StoreError::Io { path: self.ledger.to_owned(), source });
            let extended = mark.map_err(ImportError::from).and_then(|_mark| self.extend_store(&mut store));
            // Dropping a connection closes it later, on another thread; the lock
            // must not be free before.
            store.close()?;
            extended
        })?;
        match found {
            Found::Extended(summary) => Ok(summary),
            Found::OtherEntries => Err(self.first_difference()?),
        }
    }

    fn extend_store(&self, store: &mut Store) -> Result<Found, ImportError> {
        let export = self.export;
        // What a ledger holds comes under its next head, so that it gets only what
        // the run's own key has signed.
        let num_signed = export.summary.head.size;
        let heads = store.heads()?;
        self.check_ledger(&heads)?;
        let scan = store.scan(&[export.summary.num_entries])?;
        let num_stored = scan.frontier.size();
        let num_common = num_stored.min(export.summary.num_entries);
        let stored_root = match scan.roots.first() {
            Some(Some(root)) => *root,
            _ => scan.frontier.root(),
        };
        if export.levels.root(position(num_common)) != Some(stored_root) {
            return Ok(Found::OtherEntries);
        }
        let newest = heads.last().map(|head| head.size);
        self.check_heads(&heads)?;
        let missing = self.check_head_file(&heads)?;
        let num_new_heads = self.fill(store, num_common..num_signed.max(num_common), newest)?;
        self.append_to_head_file(missing)?;
        Ok(Found::Extended(ImportSummary {
            export: export.summary.clone(),
            is_created: false,
            num_entries: num_stored.max(num_signed),
            num_new_entries: num_signed.saturating_sub(num_common),
            num_new_heads,
            num_unsigned: export.summary.num_entries - num_signed.max(num_common),
        }))
    }

    /// The existing ledger is of the same kind and run.
    fn check_ledger(&self, heads: &[HeadRow]) -> Result<(), ImportError> {
        let Some(newest) = heads.last() else { return Ok(()) };
        let parsed = note::parse(&newest.note)
            .map_err(|source| ImportError::Head { path: self.ledger.to_owned(), source })?;
        if parsed.head.origin == self.export.summary.head.origin {
            return Ok(());
        }
        let run = note::parse_origin(&parsed.head.origin).map(|(_, run)| run);
        Err(ImportError::OtherLedger {
            path: self.ledger.to_owned(),
            found: run.unwrap_or(RunId(parsed.head.origin)),
            expected: self.export.summary.run.clone(),
        })
    }

    /// Up to the smaller of the newest heads both have the same ones: a ledger
    /// that was signed elsewhere in between is no copy of the exported one.
    fn check_heads(&self, heads: &[HeadRow]) -> Result<(), ImportError> {
        let newest = self.export.summary.head.size;
        let size = heads.last().map_or(0, |head| head.size).min(newest);
        let stored =
            heads.iter().filter(|head| head.size <= size).map(|head| (head.size, head.note.as_str()));
        let exported = self.export.heads.iter().filter(|checked| checked.head.size <= size);
        if heads.is_empty() || stored.eq(exported.map(|checked| (checked.head.size, checked.note.as_str()))) {
            return Ok(());
        }
        Err(ImportError::Heads { path: self.ledger.to_owned(), size })
    }

    /// What the head file lacks; `None` where there is no file.
    fn check_head_file(&self, heads: &[HeadRow]) -> Result<Option<&[CheckedHead]>, ImportError> {
        let path = head_file::path_for(self.ledger);
        let last = match head_file::read_last(&path) {
            Ok(last) => last,
            Err(HeadFileError::Missing { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let is_exported = self.export.heads.iter().any(|checked| checked.note == last);
        if !is_exported && !heads.iter().any(|head| head.note == last) {
            return Err(ImportError::Beside { path });
        }
        let size = note::parse(&last).map_err(|source| ImportError::Head { path, source })?.head.size;
        let published = self.published();
        let num_known = published.partition_point(|checked| checked.head.size <= size);
        Ok(Some(published.get(num_known..).unwrap_or_default()))
    }

    fn append_to_head_file(&self, missing: Option<&[CheckedHead]>) -> Result<(), ImportError> {
        let path = head_file::path_for(self.ledger);
        match missing {
            Some([]) => Ok(()),
            Some(missing) => {
                let (mut file, _) = HeadFile::open(&path)?;
                Ok(file.append(&joined(missing))?)
            }
            None => self.create_head_file(&path).map(|_| ()),
        }
    }

    /// Stores the artifacts that are missing, then the entries of a range and the
    /// heads above `newest`; gives the number of these.
    fn fill(&self, store: &mut Store, entries: Range<u64>, newest: Option<u64>) -> Result<u64, ImportError> {
        for digest in &self.export.artifacts {
            if !store.has_artifact(&digest.bytes)? {
                let bytes = self.artifact(digest)?;
                store.insert_artifacts(&[(&digest.bytes, &bytes)])?;
            }
        }
        let known = |checked: &CheckedHead| newest.is_some_and(|newest| checked.head.size <= newest);
        let num_known = self.export.heads.partition_point(known);
        let heads = self.export.heads.get(num_known..).unwrap_or_default();
        store.write_with(|appending| self.append(appending, &entries, heads))??;
        Ok(heads.len() as u64)
    }

    fn artifact(&self, digest: &Digest) -> Result<Vec<u8>, ImportError> {
        let path = self.folder.join(ARTIFACTS).join(digest.hex());
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(source) => return Err(ImportError::Io { path, source }),
        };
        if blake3::hash(&bytes).as_bytes() == &digest.bytes {
            return Ok(bytes);
        }
        Err(ImportError::Changed { path, line: 1 })
    }

    fn append(
        &self,
        appending: &mut Appending<'_>,
        entries: &Range<u64>,
        mut heads: &[CheckedHead],
    ) -> Result<(), ImportError> {
        let path = self.entries_path();
        let mut lines = Lines::open(&path)?;
        let (mut rows, mut num_bytes, mut num_stored) = (Vec::new(), 0, entries.start);
        let mut commit = |rows: &mut Vec<NewRow>, num_stored: u64| {
            let num_due = heads.partition_point(|checked| checked.head.size <= num_stored);
            let (due, later) = heads.split_at(num_due);
            heads = later;
            let due: Vec<HeadRow> = due
                .iter()
                .map(|checked| HeadRow { size: checked.head.size, note: checked.note.clone() })
                .collect();
            if !rows.is_empty() || !due.is_empty() {
                appending.commit_copied(rows, &due)?;
            }
            rows.clear();
            Ok::<(), ImportError>(())
        };
        while let Some((index, line)) = lines.next_line()? {
            let leaf = leaf_hash(line);
            // What was checked is what is stored.
            let (Some(&idem), true) = (
                self.export.keys.get(position(index)),
                self.export.levels.leaf(position(index)) == Some(leaf),
            ) else {
                return Err(ImportError::Changed { path, line: index + 1 });
            };
            if !entries.contains(&index) {
                continue;
            }
            num_bytes += line.len();
            num_stored = index + 1;
            rows.push(NewRow { index, idem, entry: line.to_vec(), leaf });
            if rows.len() >= MAX_ROWS_PER_COMMIT || num_bytes >= MAX_BYTES_PER_COMMIT {
                commit(&mut rows, num_stored)?;
                num_bytes = 0;
            }
        }
        if num_stored < entries.end {
            return Err(ImportError::Changed { path, line: num_stored + 1 });
        }
        commit(&mut rows, num_stored)
    }

    /// Says where ledger and export part.
    fn first_difference(&self) -> Result<ImportError, ImportError> {
        let reader = Reader::open(self.ledger)?;
        let path = self.ledger.to_owned();
        for row in reader.rows(0) {
            let (index, bytes) = row?;
            let exported = self.export.levels.leaf(position(index));
            if exported.is_none() || exported == Some(leaf_hash(&bytes)) {
                continue;
            }
            let entry = Entry::from_slice(&bytes).map_err(|source| ReadError::Entry {
                path: path.clone(),
                index,
                source,
            })?;
            let idem = entry.header.idem.0;
            let key: Option<[u8; 16]> = decode_hex(&idem).and_then(|bytes| bytes.try_into().ok());
            let line = self.export.keys.iter().position(|other| Some(*other) == key);
            let entries = self.entries_path();
            return Ok(match line {
                Some(line) => ImportError::Conflict { path, index, idem, entries, line: line as u64 + 1 },
                None => ImportError::Differs { path, index, entries, line: index + 1 },
            });
        }
        let size = self.export.summary.num_entries;
        Ok(ImportError::Heads { path, size })
    }
}

/// What appending to an existing ledger came to.
enum Found {
    Extended(ImportSummary),
    OtherEntries,
}

/// Notes as the head file holds them, but for the empty line behind the last.
fn joined(heads: &[CheckedHead]) -> String {
    heads.iter().map(|checked| checked.note.as_str()).collect::<Vec<_>>().join("\n")
}

fn position(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}
