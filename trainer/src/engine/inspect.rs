//! What a detector looks at: where the engine stands and what it computes in,
//! without changing anything.

use burn::tensor::{FloatDType, Tensor};
use schemas::data::Split;

use super::{Engine, EngineError};
use crate::data::ExampleSource;

/// Elements that a parameter has to have to stand for all of them.
const SAMPLE_MIN: u64 = 64;

impl Engine {
    /// dtype of the operands of matrix products in updates.
    #[must_use]
    pub const fn compute_dtype(&self) -> FloatDType {
        self.training_decoder.compute()
    }

    /// Microbatches of the next update that are summed.
    #[must_use]
    pub const fn num_summed_microbatches(&self) -> u32 {
        self.window.tree.num_leaves()
    }

    /// Examples of a split; `None` of the sealed set, which is never opened.
    #[must_use]
    pub const fn source(&self, split: Split) -> Option<&ExampleSource> {
        match split {
            Split::Train => Some(&self.train),
            Split::Val => Some(&self.val),
            Split::Qualification => None,
        }
    }

    /// Path of the smallest trained matrix that is not tiny, which stands for
    /// all in a look at every update; `None` where there is none.
    #[must_use]
    pub fn sample(&self) -> Option<String> {
        let is_trained = |path: &str| self.slots.iter().any(|slot| slot.path == path);
        let size = |shape: &[u64]| shape.iter().product::<u64>();
        let matrices = self.manifest.parameters.iter().filter(|declared| {
            declared.shape.len() == 2 && size(&declared.shape) >= SAMPLE_MIN && is_trained(&declared.path)
        });
        let smallest = matrices.min_by_key(|declared| size(&declared.shape));
        smallest.map(|declared| declared.path.clone())
    }

    /// Values of a parameter; `None` where there is none of that path.
    ///
    /// # Errors
    /// When the device fails.
    pub fn values(&self, path: &str) -> Result<Option<Vec<f32>>, EngineError> {
        let values = self.parameters.get(path).map(Tensor::try_to_vec_as::<f32>).transpose();
        values.map_err(|error| EngineError::device("reading a parameter", &error))
    }
}
