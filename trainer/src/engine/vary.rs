//! Drawing by another seed from a step on, for repeated continuations of one
//! state (`docs/FORMAT.md`, "Statistical probes").
//!
//! Only what has not been drawn yet changes: the cursor, the examples in a
//! shuffle buffer and the place in a stream of masks stay as they are, so that
//! a wrong one of them still shows.

use schemas::contract::{Contract, VariedDraws};

use super::{Engine, TRAIN_STREAM};
use crate::order::DataOrder;

impl Engine {
    /// Draws what `varies` names by `seed` from the next update on.
    pub fn vary(&mut self, contract: &Contract, varies: &[VariedDraws], seed: u64) {
        for varied in varies {
            match varied {
                VariedDraws::DataOrder => {
                    self.order = DataOrder::new(TRAIN_STREAM, seed, self.train.num_examples());
                    if let Some(buffer) = &mut self.buffer {
                        buffer.rekey(TRAIN_STREAM, seed);
                    }
                }
                VariedDraws::Dropout => {
                    for (worker, stream) in (0..).zip(&mut self.masks) {
                        let dropout = stream.dropout.drawn_by(contract.dropout_draws, seed);
                        stream.dropout = dropout.of_worker(seed, worker);
                    }
                }
            }
        }
    }
}
