//! What lies beside the entries: files below the ledger's folder, heads that
//! were verified, and the evaluator's own `val` numbers.
//!
//! Paths come from records that nobody vouches for yet, so every access goes
//! through [`Evidence`], which refuses absolute paths, `..`, and links.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use schemas::body::QualificationValDet;
use schemas::digest::Digest;
use schemas::report::HeadSource;
use schemas::state::CheckpointManifest;

use crate::canonical;
use crate::form;
use crate::left_out::LeftOut;
use crate::since::Settled;

/// Largest JSON document that is read from a file.
pub const MAX_DOCUMENT_BYTES: u64 = 16 << 20;

/// What is said of a file that was left out, behind its name.
pub(crate) const WAS_LEFT_OUT: &str = " was left out of the bundle";

/// A head whose signature verified and whose root matched the entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedHead {
    /// Origin line of its note.
    pub origin: String,
    /// Root hash.
    pub root: [u8; 32],
    /// Tree size.
    pub size: u64,
    /// Where it was found.
    pub source: HeadSource,
}

/// The evaluator's own `val` numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValNumbers {
    /// No file.
    Absent,
    /// A file that does not verify, with the reason.
    Unusable(String),
    /// Signed by the contract's qualifier, for this contract and run.
    Signed(Vec<QualificationValDet>),
}

/// Why a file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The path leaves the folder, or passes through a link.
    #[error("{path:?} is not a plain path below the ledger's folder: {reason}")]
    Unsafe {
        /// As written.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No such file.
    #[error("{path} is missing")]
    Missing {
        /// The file.
        path: String,
    },
    /// Left out of the bundle that is audited.
    #[error("{path}{WAS_LEFT_OUT}")]
    LeftOut {
        /// The file.
        path: String,
    },
    /// Larger than what is read.
    #[error("{path} has {actual} bytes, more than the {limit} that are read")]
    TooLarge {
        /// The file.
        path: String,
        /// Its size.
        actual: u64,
        /// The limit.
        limit: u64,
    },
    /// The system refused.
    #[error("{path} cannot be read")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// One entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderEntry {
    /// File name; lossy where it is not UTF-8.
    pub name: String,
    /// Whether it is a folder.
    pub is_folder: bool,
    /// Whether it is a symbolic link, which is never followed.
    pub is_link: bool,
}

/// Read-only access to everything but the entries.
#[derive(Debug)]
pub struct Evidence {
    /// Entries that were read.
    pub num_entries: u64,
    /// Heads that verified, in ascending size.
    pub heads: Vec<VerifiedHead>,
    /// The evaluator's own `val` numbers.
    pub val_numbers: ValNumbers,
    /// What an earlier audit settled of the first entries.
    pub settled: Settled,
    /// Threads to read large files on.
    pub threads: NonZeroUsize,
    pub(crate) left_out: LeftOut,
    folder: PathBuf,
    /// Manifests that were read and found to be what their entries commit to: many
    /// rules ask for the same ones.
    manifests: Mutex<Manifests>,
}

/// Bytes of manifests that are kept, so that memory does not grow with the number
/// of checkpoints.
const MAX_MANIFEST_BYTES: usize = 4 << 20;

/// Manifests by the folder and digest that they were asked for by.
#[derive(Debug, Default)]
struct Manifests {
    kept: BTreeMap<(String, Digest), CheckpointManifest>,
    num_bytes: usize,
}

impl Evidence {
    /// Evidence below a folder.
    #[must_use]
    pub fn new(folder: PathBuf, num_entries: u64, heads: Vec<VerifiedHead>, val_numbers: ValNumbers) -> Self {
        Self {
            num_entries,
            heads,
            val_numbers,
            settled: Settled::default(),
            threads: NonZeroUsize::MIN,
            left_out: LeftOut::default(),
            folder,
            manifests: Mutex::default(),
        }
    }

    /// The ledger's folder, against which contract and checkpoint paths are relative.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Opens a regular file below the ledger's folder.
    ///
    /// # Errors
    /// When the path is unsafe, missing, or cannot be opened.
    pub fn open(&self, relative: &str) -> Result<File, FileError> {
        self.refuse_left_out(relative)?;
        open_below(&self.folder, relative)
    }

    /// Reads a file of at most `limit` bytes.
    ///
    /// # Errors
    /// As [`Evidence::open`]; when it is larger.
    pub fn read(&self, relative: &str, limit: u64) -> Result<Vec<u8>, FileError> {
        self.refuse_left_out(relative)?;
        read_below(&self.folder, relative, limit)
    }

    /// A file that was left out is neither missing nor looked for.
    fn refuse_left_out(&self, relative: &str) -> Result<(), FileError> {
        if self.left_out.has(relative) {
            return Err(FileError::LeftOut { path: relative.to_owned() });
        }
        Ok(())
    }

    /// Names in a folder below the ledger's, sorted.
    ///
    /// # Errors
    /// When the path is unsafe, missing, or not a folder.
    pub fn list(&self, relative: &str) -> Result<Vec<FolderEntry>, FileError> {
        list_below(&self.folder, relative)
    }

    /// Reads `<folder>/manifest.json` of a checkpoint and compares it with the
    /// digest that its entry holds.
    ///
    /// # Errors
    /// In words, when it is missing, differs, or is not a canonical manifest.
    pub fn checkpoint_manifest(&self, folder: &str, digest: Digest) -> Result<CheckpointManifest, String> {
        let key = (folder.to_owned(), digest);
        let manifests = || self.manifests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(manifest) = manifests().kept.get(&key) {
            return Ok(manifest.clone());
        }
        let (manifest, num_bytes) = self.read_manifest(folder, digest)?;
        let mut manifests = manifests();
        if manifests.num_bytes + num_bytes <= MAX_MANIFEST_BYTES {
            manifests.num_bytes += num_bytes;
            manifests.kept.insert(key, manifest.clone());
        }
        Ok(manifest)
    }

    /// The same from the file, with its size.
    fn read_manifest(&self, folder: &str, digest: Digest) -> Result<(CheckpointManifest, usize), String> {
        let path = format!("{folder}/manifest.json");
        let bytes = self.read(&path, MAX_DOCUMENT_BYTES).map_err(|error| describe(&error))?;
        let actual = Digest::blake3(*blake3::hash(&bytes).as_bytes());
        if actual != digest {
            return Err(format!("{path} has digest {actual}, its entry says {digest}"));
        }
        let manifest = parse_manifest(&bytes).map_err(|reason| format!("{path}: {reason}"))?;
        Ok((manifest, bytes.len()))
    }
}

/// The manifest of a checkpoint in its one form.
///
/// # Errors
/// In words, when the bytes are another form of one, or none.
pub(crate) fn parse_manifest(bytes: &[u8]) -> Result<CheckpointManifest, String> {
    canonical::check_entry_json(bytes).map_err(|problem| problem.to_string())?;
    let manifest: CheckpointManifest = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match form::first_difference(&manifest, bytes) {
        Some(offset) => Err(format!("byte {offset}: a field is left out or has another form")),
        None => Ok(manifest),
    }
}

/// The message with its cause.
#[must_use]
pub fn describe(error: &FileError) -> String {
    match error {
        FileError::Io { source, .. } => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}

/// Splits a relative path into its names, refusing whatever could leave the folder.
fn safe_names(relative: &str) -> Result<Vec<&std::ffi::OsStr>, FileError> {
    let refuse = |reason: &str| FileError::Unsafe { path: relative.to_owned(), reason: reason.to_owned() };
    if relative.is_empty() || relative.contains('\0') || relative.contains('\\') {
        return Err(refuse("empty, or with a NUL or a backslash"));
    }
    Path::new(relative)
        .components()
        .map(|component| match component {
            Component::Normal(name) => Ok(name),
            Component::CurDir => Err(refuse("it has a `.` in it")),
            Component::ParentDir => Err(refuse("it has a `..` in it")),
            Component::RootDir | Component::Prefix(_) => Err(refuse("it is absolute")),
        })
        .collect()
}

/// A path below `folder` that passes through no link, and what lies there.
fn resolve(folder: &Path, relative: &str) -> Result<(PathBuf, Metadata), FileError> {
    let mut path = folder.to_owned();
    let mut found = None;
    for name in safe_names(relative)? {
        path.push(name);
        let metadata = fs::symlink_metadata(&path).map_err(|source| io_error(relative, source))?;
        if metadata.file_type().is_symlink() {
            return Err(FileError::Unsafe {
                path: relative.to_owned(),
                reason: "a symbolic link is on the way".to_owned(),
            });
        }
        found = Some(metadata);
    }
    match found {
        Some(metadata) => Ok((path, metadata)),
        None => Err(FileError::Missing { path: relative.to_owned() }),
    }
}

fn io_error(relative: &str, source: io::Error) -> FileError {
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            FileError::Missing { path: relative.to_owned() }
        }
        _ => FileError::Io { path: relative.to_owned(), source },
    }
}

/// Opens a regular file below `folder`; see [`Evidence::open`].
pub(crate) fn open_below(folder: &Path, relative: &str) -> Result<File, FileError> {
    let (path, metadata) = resolve(folder, relative)?;
    if !metadata.is_file() {
        // A FIFO or a device would block or never end.
        return Err(FileError::Unsafe { path: relative.to_owned(), reason: "not a regular file".to_owned() });
    }
    File::open(&path).map_err(|source| io_error(relative, source))
}

/// Reads a small file below `folder`; see [`Evidence::read`].
pub(crate) fn read_below(folder: &Path, relative: &str, limit: u64) -> Result<Vec<u8>, FileError> {
    let file = open_below(folder, relative)?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|source| io_error(relative, source))?;
    if bytes.len() as u64 > limit {
        return Err(FileError::TooLarge { path: relative.to_owned(), actual: bytes.len() as u64, limit });
    }
    Ok(bytes)
}

/// Lists a folder below `folder`; see [`Evidence::list`].
pub(crate) fn list_below(folder: &Path, relative: &str) -> Result<Vec<FolderEntry>, FileError> {
    let (path, _) = resolve(folder, relative)?;
    let mut entries = Vec::new();
    for entry in fs::read_dir(&path).map_err(|source| io_error(relative, source))? {
        let entry = entry.map_err(|source| io_error(relative, source))?;
        let kind = entry.file_type().map_err(|source| io_error(relative, source))?;
        entries.push(FolderEntry {
            name: entry.file_name().to_string_lossy().into_owned(),
            is_folder: kind.is_dir(),
            is_link: kind.is_symlink(),
        });
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_could_leave_the_folder_are_refused() {
        for path in ["", "/etc/passwd", "../x", "a/../../x", "a\\b", "a\0b", "./a"] {
            assert!(matches!(safe_names(path), Err(FileError::Unsafe { .. })), "{path:?}");
        }
        assert_eq!(safe_names("a/b.json").expect("plain").len(), 2);
    }
}
