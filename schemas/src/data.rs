//! The data lease as a build manifest, and the layout of the example table.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// What a shard may be used for. Only `train` is drawn for updates, only `val`
/// selects, and `qualification` is opened once, by the qualifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Drawn for updates.
    Train,
    /// Evaluated on at contract steps; may select.
    Val,
    /// Sealed until the candidate is handed off.
    Qualification,
}

impl Split {
    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Val => "val",
            Self::Qualification => "qualification",
        }
    }
}

/// License class of a shard: how freely its text may be used for training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LicenseClass {
    /// Permissive, public domain, or one's own.
    Green,
    /// Output of third-party models, or of an unnamed generator.
    Yellow,
    /// Non-commercial, unstated or restrictive terms.
    Red,
}

/// One file of the build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DataShard {
    /// BLAKE3 of the file's bytes.
    pub digest: Digest,
    /// License class, homogeneous in a shard.
    pub license_class: LicenseClass,
    /// Size in bytes.
    pub num_bytes: u64,
    /// Relative to the manifest's folder; no `..`, no leading `/`.
    pub path: String,
    /// Where the text comes from: package, edition, address.
    pub source: String,
    /// The split that the shard belongs to.
    pub split: Split,
}

/// Whether train and val text was checked against protected text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BarrierReport {
    /// BLAKE3 of the report file.
    pub digest: Digest,
    /// How overlap was measured.
    pub method: String,
    /// Records withheld because of overlap.
    pub num_caught: u64,
    /// Relative path of the report file.
    pub path: String,
}

/// A build manifest: what data there is, before any order is chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DataManifest {
    /// Null where no barrier was run; then overlap is unknown until the
    /// qualifier checks it.
    pub barrier: Option<BarrierReport>,
    /// [`crate::DATA_MANIFEST_FORMAT`].
    pub format: String,
    /// Name of the build.
    pub name: String,
    /// Train and val shards, in the order that example tables follow. The
    /// sealed set is named by the contract, never here.
    pub shards: Vec<DataShard>,
    /// How text becomes ids; `bytes` is one id a byte.
    pub tokenizer: String,
}

/// First eight bytes of an example table.
pub const EXAMPLE_TABLE_MAGIC: [u8; 8] = *b"GLEXMPL1";

/// Bytes of one record of an example table.
pub const EXAMPLE_RECORD_BYTES: usize = 48;

/// One window of a shard. An example table is the magic, the number of records
/// as u64 little-endian, then records of [`EXAMPLE_RECORD_BYTES`] bytes:
/// shard u32, num_targets u32, offset u64 (all little-endian), id 32 bytes.
///
/// The example covers the shard's bytes `offset .. offset + num_targets + 1`:
/// each byte but the last is an input, each but the first a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExampleRecord {
    /// BLAKE3 of the bytes that the example covers: content-based identity.
    pub id: [u8; 32],
    /// Targets, from 1 to the context length.
    pub num_targets: u32,
    /// First byte within the shard.
    pub offset: u64,
    /// Index into [`DataManifest::shards`].
    pub shard: u32,
}
