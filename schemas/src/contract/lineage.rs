//! A warm start: parameters that another run made, and which run that was.
//!
//! It is no resume. Only weights are taken over; every other state class begins
//! as in any run, and the run is a run of its own that names its source.

use serde::{Deserialize, Serialize};

use super::FileBinding;
use crate::digest::Digest;
use crate::ids::{CheckpointId, RunId};

/// Where the parameters of step 0 come from; see `docs/FORMAT.md` ("Warm
/// start"). A contract without it draws them from `seeds.initialization`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Initialization {
    /// They are the model of a checkpoint of another run.
    WarmStart(WarmStart),
}

/// Parameters of another run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WarmStart {
    /// Whose they are; `trainer init-from` fills it in.
    pub lineage: Lineage,
    /// The model shard, a safetensors file such as `initial.safetensors`, with
    /// exactly the tensors of the architecture. Its digest is `lineage.model`.
    pub weights: FileBinding,
}

/// The checkpoint that a warm start takes its parameters from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Lineage {
    /// The checkpoint, such as `s00000200-a1`.
    pub checkpoint: CheckpointId,
    /// SHA-256 of the source's contract.
    pub contract: Digest,
    /// The newest signed head of the source's ledger when it was read.
    pub head: SourceHead,
    /// BLAKE3 of the checkpoint's model shard, as the source's ledger holds it.
    pub model: Digest,
    /// The source.
    pub run: RunId,
    /// Step of the checkpoint.
    pub step: u64,
}

/// A tree head of the source's ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SourceHead {
    /// Root hash.
    pub root: Digest,
    /// Entries that it covers; at least 1.
    pub size: u64,
}

impl Initialization {
    /// The warm start that it is.
    #[must_use]
    pub const fn warm_start(&self) -> &WarmStart {
        let Self::WarmStart(warm_start) = self;
        warm_start
    }
}
