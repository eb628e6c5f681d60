//! Saved training state on disk: how a checkpoint is written so that it is
//! either whole or not there, how it is read back, and which one a run may go
//! on from.
//!
//! This module touches files and writes no ledger entry; `run::save` puts the
//! entries between its stages. It never touches a folder of another run.

pub mod below;
mod flushing;
pub mod locate;
pub mod manifest;
pub mod retention;
pub mod retire;
pub mod roster;
pub mod share;
pub mod validate;
pub mod writer;

use std::io;
use std::path::PathBuf;

use schemas::digest::Digest;
use schemas::ids::{AttemptId, CheckpointId};
use schemas::model_index::{FROZEN_MODEL_NAME, TRAINABLE_MODEL_NAME};

use crate::export::{ExportError, FileKind};
use crate::store::StoreError;

/// File name of the candidate's weights.
pub const MODEL_NAME: &str = "model.safetensors";
/// File name of the configuration beside them.
pub const CONFIG_NAME: &str = "config.json";
/// File name of the averaged parameters.
pub const AVERAGES_NAME: &str = "averages.safetensors";
/// File name of the optimizer's tensors.
pub const OPTIMIZER_NAME: &str = "optimizer.safetensors";
/// File name of what an unfinished update has come to, but for its tensors.
pub const WINDOW_NAME: &str = "accumulated_gradients.json";
/// File name of a checkpoint's manifest.
pub const MANIFEST_NAME: &str = "manifest.json";

/// Kind of the tensor file that a shard is, by its name.
#[must_use]
pub fn file_kind(name: &str) -> FileKind {
    match name {
        AVERAGES_NAME | MODEL_NAME | FROZEN_MODEL_NAME | TRAINABLE_MODEL_NAME => FileKind::Model,
        _ => FileKind::State,
    }
}

/// Why a checkpoint could not be written, or may not be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system refused.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What was attempted: `create`, `write`, `flush`, `rename`.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The folder that the checkpoint would get exists.
    #[error(
        "{} exists already and this attempt did not write it; give the contract a checkpoint store of its own",
        path.display()
    )]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// A file's digest is not the one that was recorded.
    #[error("{}: expected {expected}, found {actual}", path.display())]
    Digest {
        /// The file.
        path: PathBuf,
        /// What was recorded.
        expected: Digest,
        /// What is there.
        actual: Digest,
    },
    /// A file's size is not the one that was recorded.
    #[error("{}: expected {expected} bytes, found {actual}", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// What was recorded.
        expected: u64,
        /// What is there.
        actual: u64,
    },
    /// The manifest is not one, or one of something else.
    #[error("{}: {reason}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A parameter that no update may change is not what it was made as.
    #[error(
        "{}: the frozen parameter {tensor} changed in memory: expected {expected}, found {actual}; nothing is \
         saved of it, and the run goes on from the checkpoint before",
        path.display()
    )]
    FrozenMoved {
        /// The file that it would have been written to.
        path: PathBuf,
        /// The first one that differs.
        tensor: String,
        /// BLAKE3 of its initial elements.
        expected: Digest,
        /// BLAKE3 of its elements, or that there is none.
        actual: String,
    },
    /// Tensors that do not make a safetensors file.
    #[error("{} cannot be written", path.display())]
    Export {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ExportError,
    },
    /// The store by URL did not do what was asked.
    #[error(transparent)]
    Store(Box<StoreError>),
    /// Canonical bytes could not be written.
    #[error("the manifest could not be written as JSON")]
    Encode(#[from] ledger::canonical::CanonicalError),
}

impl CheckpointError {
    /// Whether a file is there, and with other bytes than were recorded.
    #[must_use]
    pub const fn is_other_content(&self) -> bool {
        matches!(self, Self::Digest { .. } | Self::Size { .. })
    }

    /// An I/O error with its place.
    pub fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

/// Name of the checkpoint that an attempt saves at a step. An attempt saves a
/// step once, so the name is unique within the run.
#[must_use]
pub fn checkpoint_id(step: u64, attempt: AttemptId) -> CheckpointId {
    CheckpointId(format!("s{step:08}-a{attempt}"))
}

/// Name of the folder that a process writes a checkpoint in.
#[must_use]
pub fn staging_name(checkpoint: &CheckpointId, process: u32) -> String {
    format!(".staging-{checkpoint}-{process}")
}
