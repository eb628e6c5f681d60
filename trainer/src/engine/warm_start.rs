//! Begins at parameters that another run made; see `docs/FORMAT.md` ("Warm
//! start"). Nothing else of that run is taken over.

use super::{Engine, EngineError};
use crate::export::NamedTensor;

impl Engine {
    /// Takes the place of the initial values, in an engine that has made no
    /// update: parameters, and averages where they are kept.
    ///
    /// # Errors
    /// As [`Engine::restore_model`]; the error names the tensor. The engine must
    /// then be dropped.
    pub fn start_from(&mut self, weights: &[NamedTensor]) -> Result<(), EngineError> {
        self.restore_model(weights)?;
        if self.averages.is_some() {
            self.restore_averages(weights)?;
        }
        Ok(())
    }
}
