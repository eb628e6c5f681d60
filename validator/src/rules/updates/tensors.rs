//! Reading tensors of checkpoint shards in pieces.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use schemas::state::{CheckpointManifest, Shard, StateClass};

use crate::derive::safetensors::{self, Header, Tensor};
use crate::evidence::{Evidence, FileError, describe};
use crate::rules::common::Committed;
use crate::rules::gl108_data_files::measure;
use crate::rules::gl110_checkpoint_files;

/// Bytes that are held at a time; a multiple of one Philox block of binary32.
const PIECE_BYTES: u64 = 1 << 16;

/// A safetensors shard whose header was read.
pub(crate) struct TensorFile {
    file: File,
    pub(crate) header: Header,
    pub(crate) path: String,
}

impl TensorFile {
    /// Opens a shard and parses its header; errors in words.
    pub(crate) fn open(evidence: &Evidence, path: &str) -> Result<Self, String> {
        let mut file = evidence.open(path).map_err(|error: FileError| describe(&error))?;
        let in_words = |error: std::io::Error| format!("{path}: {error}");
        let file_bytes = file.metadata().map_err(in_words)?.len();
        let mut first = [0; 8];
        file.read_exact(&mut first).map_err(in_words)?;
        let length =
            safetensors::header_length(first, file_bytes).map_err(|error| format!("{path}: {error}"))?;
        let mut bytes = Vec::new();
        file.by_ref().take(length).read_to_end(&mut bytes).map_err(in_words)?;
        let header = safetensors::parse(&bytes, file_bytes).map_err(|error| format!("{path}: {error}"))?;
        Ok(Self { file, header, path: path.to_owned() })
    }

    /// Calls `piece` with the tensor's bytes in order: offset within the tensor
    /// and bytes; it returns whether to go on.
    pub(crate) fn read(
        &mut self,
        tensor: &Tensor,
        piece: &mut dyn FnMut(u64, &[u8]) -> bool,
    ) -> Result<(), String> {
        let mut bytes = Vec::new();
        let mut offset = 0;
        while offset < tensor.num_bytes {
            self.piece(tensor, offset, &mut bytes)?;
            if !piece(offset, &bytes) {
                break;
            }
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    /// The bytes of a tensor from an offset within it on, as many as are held at a
    /// time; none from its end on. Errors in words.
    pub(crate) fn piece(&mut self, tensor: &Tensor, offset: u64, bytes: &mut Vec<u8>) -> Result<(), String> {
        let in_words = |error: std::io::Error| format!("{}: {error}", self.path);
        bytes.clear();
        let wanted = PIECE_BYTES.min(tensor.num_bytes.saturating_sub(offset));
        self.file.seek(SeekFrom::Start(tensor.offset + offset)).map_err(in_words)?;
        let read = self.file.by_ref().take(wanted).read_to_end(bytes).map_err(in_words)?;
        if read as u64 == wanted { Ok(()) } else { Err(format!("{} ends within a tensor", self.path)) }
    }
}

/// The manifest of a committed checkpoint; errors in words.
pub(crate) fn manifest(evidence: &Evidence, committed: &Committed) -> Result<CheckpointManifest, String> {
    evidence.checkpoint_manifest(&committed.path, committed.manifest)
}

/// Whether an earlier audit by a rule found nothing in a file of a checkpoint,
/// and the file still has the bytes that the checkpoint's entry commits to.
pub(crate) fn is_settled(code: &str, evidence: &Evidence, committed: &Committed, file: &TensorFile) -> bool {
    // A file that could not be read then was perhaps not looked at.
    let settled = &evidence.settled;
    let num_entries = settled.num_entries(code).min(settled.num_entries(gl110_checkpoint_files::INFO.code));
    if committed.index >= num_entries {
        return false;
    }
    let Ok(manifest) = manifest(evidence, committed) else { return false };
    let name = file.path.rsplit('/').next();
    let mut shards = manifest.classes.iter().flat_map(|class| &class.shards);
    let shard = shards.find(|shard| Some(shard.path.as_str()) == name);
    shard.is_some_and(|shard| {
        let measured = measure(&file.path, Some(shard.num_bytes), evidence);
        measured.is_ok_and(|measured| measured.is(shard.digest, Some(shard.num_bytes)))
    })
}

/// A shard of a class by its name, whichever worker's it is.
pub(crate) fn shard<'a>(
    manifest: &'a CheckpointManifest,
    class: StateClass,
    name: &str,
) -> Option<&'a Shard> {
    let mut captured = manifest.classes.iter().filter(|captured| captured.class == class);
    captured.find_map(|captured| captured.shards.iter().find(|shard| shard.path == name))
}

/// Name of the file that holds the model.
pub(crate) const MODEL_FILE: &str = "model.safetensors";
/// Name of the file that holds averaged parameters.
pub(crate) const AVERAGES_FILE: &str = "averages.safetensors";
/// Name of the file that holds the optimizer's moments.
pub(crate) const OPTIMIZER_FILE: &str = "optimizer.safetensors";
