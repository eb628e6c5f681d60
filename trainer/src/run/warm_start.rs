//! Weights of another run as the initial state, where the contract names them.
//!
//! They are a frozen input like any other: read and digested before the first
//! step, and refused where a byte changed. What they are taken from is the
//! contract's lineage; nothing here looks at that run.

use std::fs;
use std::path::Path;

use schemas::contract::{Contract, Initialization};

use crate::engine::{Engine, EngineError};
use crate::export::{self, FileKind, NamedTensor};

use super::inputs::InputError;

/// JSON pointer of the weights.
const POINTER: &str = "/initialization/weights";

/// The tensors that the contract starts from; none where it draws them.
///
/// # Errors
/// [`InputError`] where the file is missing, changed or no model shard.
pub fn load(contract: &Contract, ledger_folder: &Path) -> Result<Option<Vec<NamedTensor>>, InputError> {
    let Some(weights) = contract.initialization.as_ref().map(|how| &how.warm_start().weights) else {
        return Ok(None);
    };
    let path = ledger_folder.join(&weights.path);
    let expected = weights.digest.ok_or(InputError::Unfrozen { pointer: POINTER })?;
    let failed = |source| InputError::Read { pointer: POINTER, path: path.clone(), source };
    let mut file = fs::File::open(&path).map_err(failed)?;
    let num_bytes = file.metadata().map_err(failed)?.len();
    let read = export::read(FileKind::Model, &mut file, num_bytes);
    let (tensors, shard) = read.map_err(|source| {
        let source = Box::new(source);
        InputError::Weights { pointer: POINTER, path: path.clone(), source }
    })?;
    if shard.digest != expected {
        return Err(InputError::Changed { pointer: POINTER, path, expected, actual: shard.digest });
    }
    Ok(Some(tensors))
}

/// Puts them into an engine at its initial state.
///
/// # Errors
/// Where they are not the architecture's; the error names the tensor.
pub fn apply(engine: &mut Engine, weights: Option<&[NamedTensor]>) -> Result<(), EngineError> {
    weights.map_or(Ok(()), |weights| engine.start_from(weights))
}

/// What a start says of where it starts from.
#[must_use]
pub fn describe(contract: &Contract) -> Option<String> {
    let Initialization::WarmStart(warm_start) = contract.initialization.as_ref()?;
    let lineage = &warm_start.lineage;
    Some(format!(
        "weights of checkpoint {} (step {}) of run {}",
        lineage.checkpoint, lineage.step, lineage.run
    ))
}
