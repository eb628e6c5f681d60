//! The manifest of a bundle: one file that holds what an offline audit of a run
//! needs. It is the bundle's first member and names every other one with its
//! size and digest; a reader takes its limits from it and believes nothing of it
//! that the run's own ledger says.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::ids::RunId;

/// Name of the manifest, the first member.
pub const BUNDLE_MANIFEST: &str = "manifest.json";

/// Folder of what lies beside the ledger and below its folder.
pub const BUNDLE_RUN: &str = "run/";

/// Folder of the ledger as `ledger export` writes it.
pub const BUNDLE_EXPORT: &str = "export/";

/// Largest manifest that is written or read.
pub const MAX_BUNDLE_MANIFEST_BYTES: u64 = 16 << 20;

/// How often its compressed size a bundle may have when it is unpacked, beyond
/// [`BUNDLE_SLACK_BYTES`]. Weights hardly compress and entries about tenfold;
/// what goes far beyond that is made to fill a disk.
pub const MAX_BUNDLE_RATIO: u64 = 1000;

/// What a bundle may unpack to whatever its compressed size: first moments of a
/// small model are nothing but zeros.
pub const BUNDLE_SLACK_BYTES: u64 = 64 << 20;

/// Largest member: what a ustar header can say, in octal digits.
pub const MAX_BUNDLE_MEMBER_BYTES: u64 = 0o777_7777_7777;

/// Parts of the deepest name, `run` among them: deeper than any checkpoint.
pub const MAX_BUNDLE_NAME_PARTS: usize = 16;

/// Folders that the names of a manifest may imply: more than its members, of
/// which each has a digest, leave room for in an honest one.
pub const MAX_BUNDLE_FOLDERS: usize = 1 << 16;

/// What a file or a folder takes on a disk beside its bytes: one block. It counts
/// for what a bundle unpacks to, so that many empty ones are no way to fill a disk.
pub const BUNDLE_DISK_BLOCK_BYTES: u64 = 4096;

/// Suffixes of the files beside a ledger that belong to it.
pub const BESIDE_LEDGER: [&str; 5] =
    [".cosigned", ".handoff.dsse.json", ".head", ".report.dsse.json", ".val.dsse.json"];

/// In which form a bundle holds the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LedgerForm {
    /// Its database, byte for byte: for one that an export does not give again as
    /// it is, because something is wrong with it.
    Database,
    /// An export, from which the same rows follow.
    Export,
}

/// The ledger of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BundledLedger {
    /// Its file name, such as `run.db`, without a folder.
    pub file: String,
    /// How it is held.
    pub form: LedgerForm,
}

/// The newest head in the ledger when the bundle was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BundledHead {
    /// Origin line.
    pub origin: String,
    /// Root hash, 64 hex digits.
    pub root: String,
    /// Tree size.
    pub size: u64,
}

/// A member of the archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BundleMember {
    /// BLAKE3 of its bytes.
    pub digest: Digest,
    /// Its name in the archive, such as `run/data/train-0.txt`.
    pub name: String,
    /// Its size.
    pub num_bytes: u64,
}

/// A file of the run that whoever made the bundle left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// BLAKE3 of its bytes.
    pub digest: Digest,
    /// The name that it would have in the archive.
    pub name: String,
    /// Its size.
    pub num_bytes: u64,
    /// Why: the option that said so.
    pub reason: String,
}

/// The manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BundleManifest {
    /// Folders below the run's in which there is nothing, in ascending order.
    pub folders: Vec<String>,
    /// [`crate::BUNDLE_FORMAT`].
    pub format: String,
    /// The newest head; null where none can be read.
    pub head: Option<BundledHead>,
    /// Which ledger, and how it is held.
    pub ledger: BundledLedger,
    /// Files of the run that are not in the archive, in ascending order of names.
    pub left_out: Vec<LeftOut>,
    /// Every member but the manifest, in ascending order of names.
    pub members: Vec<BundleMember>,
    /// The run; null where no contract can be read.
    pub run: Option<RunId>,
}
