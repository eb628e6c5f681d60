//! Why a bundle is not taken. What a run's ledger or files do wrong is no reason:
//! that is for the audit's findings.

use std::io;
use std::path::PathBuf;

use schemas::bundle::{MAX_BUNDLE_FOLDERS, MAX_BUNDLE_NAME_PARTS};

use crate::error::AuditError;

/// What is wrong with a bundle's form. Nothing of such a bundle is audited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A name that begins with a slash.
    #[error("absolute-path: the name is absolute")]
    AbsolutePath,
    /// A name that could leave the folder.
    #[error("path-traversal: the name has an empty part, a `.` or a `..`")]
    PathTraversal,
    /// A name of other characters than printable ASCII, or with a backslash.
    #[error("name: it has a backslash or another character than printable ASCII, or is empty or too long")]
    Name,
    /// A name in too many folders.
    #[error("depth: the name has more than {MAX_BUNDLE_NAME_PARTS} parts")]
    Depth,
    /// Names that imply too many folders.
    #[error("folder-count: the names imply more than {MAX_BUNDLE_FOLDERS} folders")]
    FolderCount,
    /// A hard or a symbolic link.
    #[error("link: a bundle holds files alone")]
    Link,
    /// A device or a FIFO.
    #[error("device: a bundle holds files alone")]
    Device,
    /// A member that is a folder.
    #[error("folder: the manifest names folders, the archive holds none")]
    Folder,
    /// A frame around something else.
    #[error(
        "no-bundle: {0}; a bundle is a ustar archive in one Zstandard frame, and its first member is manifest.json"
    )]
    NoBundle(&'static str),
    /// A header of another form than ustar.
    #[error("extension: {0}, and a bundle is plain ustar")]
    Extension(&'static str),
    /// A header whose sum is wrong.
    #[error("header: its checksum is wrong, or a number in it is not octal")]
    Header,
    /// Owner, mode, time or padding.
    #[error("metadata: mode, owner, time or padding is not what every bundle has")]
    Metadata,
    /// A name that is there twice.
    #[error("duplicate: the name is there already")]
    Duplicate,
    /// Names that a file system may take for one.
    #[error("case: {0} differs from it by letter case alone, or is both a file and a folder")]
    Case(String),
    /// A member that the manifest does not name.
    #[error("unlisted: the manifest does not name it")]
    Unlisted,
    /// A member that the manifest names.
    #[error("missing: the manifest names it, and it is not there in its place")]
    Missing,
    /// A member of another size.
    #[error("size: {actual} bytes, the manifest says {expected}")]
    Size {
        /// By the manifest.
        expected: u64,
        /// By its header.
        actual: u64,
    },
    /// A member with other bytes.
    #[error("digest: {actual}, the manifest says {expected}")]
    Digest {
        /// By the manifest.
        expected: String,
        /// Of its bytes.
        actual: String,
    },
    /// More would come out than a bundle of its size holds.
    #[error("bomb: it unpacks to {unpacked} bytes from {packed}")]
    Bomb {
        /// Bytes of the file.
        packed: u64,
        /// Bytes that its manifest names, with a block for each file and folder.
        unpacked: u64,
    },
    /// The file ends too early.
    #[error("truncated: the file ends within it")]
    Truncated,
    /// The file goes on.
    #[error("trailing-data: something follows the end of the archive")]
    TrailingData,
    /// The compression is damaged, or of another form.
    #[error("frame: {0}")]
    Frame(String),
    /// The manifest is not what a manifest is.
    #[error("manifest: {0}")]
    Manifest(String),
    /// Something of another run, or of this one in another form.
    #[error("second-subject: {0}")]
    SecondSubject(String),
    /// The export in it is not one.
    #[error("export: {0}")]
    Export(String),
}

/// A bundle that was not audited.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// Its form is refused.
    #[error("{}, {place}: {refusal}; hint: {}", bundle.display(), hint_of(refusal))]
    Refused {
        /// The file.
        bundle: PathBuf,
        /// The member, or the place in it.
        place: String,
        /// What is wrong.
        refusal: Refusal,
    },
    /// There is no room to unpack it.
    #[error(
        "{} has {num_free} bytes free, and the bundle takes {num_needed}; hint: set TMPDIR to a folder with room",
        path.display()
    )]
    Room {
        /// The folder.
        path: PathBuf,
        /// Free.
        num_free: u64,
        /// Needed.
        num_needed: u64,
    },
    /// A file could not be read or written.
    #[error("cannot access {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The ledger could not be made of the export.
    #[error("the ledger cannot be made in {}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// The audit could not look.
    #[error(transparent)]
    Audit(#[from] AuditError),
}

/// Damage and malice call for different things.
const fn hint_of(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Truncated | Refusal::Frame(_) | Refusal::Digest { .. } | Refusal::Header => {
            "fetch it again, or compare its digest with the sender's; what other programs pack is no bundle"
        }
        Refusal::NoBundle(_) => {
            "name a file that `ledger bundle` made, or unpack this one and name the ledger in it, by default run.db"
        }
        _ => "`ledger bundle` makes no such file; ask its sender for one, and trust nothing in this one",
    }
}
