//! Tied parameters in saved state: one tensor and one pair of moments, under the
//! name of the parameter that owns the storage.
//!
//! A file that holds the other name as well would come back as two parameters
//! that drift apart, so it is refused by that name before anything is restored.

use super::{Engine, EngineError};
use crate::export::NamedTensor;
use crate::model::manifest::{EMBEDDING, HEAD};

impl Engine {
    /// Refuses tensors of a parameter that is another one.
    pub(super) fn refuse_second(
        &self,
        class: &'static str,
        tensors: &[NamedTensor],
    ) -> Result<(), EngineError> {
        if !self.decoder.shape().tied_embeddings {
            return Ok(());
        }
        let is_head = |name: &str| {
            name.strip_prefix(HEAD).is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('.'))
        };
        match tensors.iter().find(|tensor| is_head(&tensor.name)) {
            None => Ok(()),
            Some(second) => {
                let reason = format!(
                    "tensor {:?} is there, but {HEAD} is tied to {EMBEDDING} and stored once, under that name",
                    second.name
                );
                Err(EngineError::State { class, reason })
            }
        }
    }
}
