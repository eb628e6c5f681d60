//! A whole copy of what updates change, for another process, and its digest
//! (`docs/FORMAT.md`, "Shares"); and the small state that goes with every
//! command, so that there is one place where it is held.

use burn::tensor::{Tensor, TensorData};
use schemas::body::Counters;
use schemas::digest::Digest;
use serde::{Deserialize, Serialize};

use super::state::to_bytes;
use super::{Engine, EngineError};
use crate::plateau::PlateauState;
use crate::scaling::ScaleState;
use crate::shuffle::ShuffleState;

/// Bytes of a binary32.
const F32_BYTES: usize = 4;

/// Where a run stands, but for tensors and a shuffle buffer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// After the last update.
    pub counters: Counters,
    /// Blocks that the worker's stream of masks has drawn; 0 without one.
    pub drawn_blocks: u64,
    /// What schedules that watch evaluations have come to.
    pub plateaus: Vec<PlateauState>,
    /// What the loss scaler has come to; none without one.
    pub scale: Option<ScaleState>,
    /// Completed updates.
    pub step: u64,
}

impl Engine {
    /// Where the run stands, for a worker.
    #[must_use]
    pub fn position(&self, worker: u32) -> Position {
        let streams = self.dropout_streams();
        Position {
            counters: self.counters,
            drawn_blocks: streams.get(worker as usize).map_or(0, |(_, drawn)| *drawn),
            plateaus: self.plateaus(),
            scale: self.loss_scale().cloned(),
            step: self.step,
        }
    }

    /// Stands where another process does.
    ///
    /// # Errors
    /// When the position is not one of this contract.
    pub fn take_position(&mut self, worker: u32, position: Position) -> Result<(), EngineError> {
        let Position { counters, drawn_blocks, plateaus, scale, step } = position;
        self.stand_at(step, counters);
        self.restore_dropout_stream(worker, drawn_blocks);
        self.restore_plateaus(plateaus)?;
        if let Some(scale) = scale {
            self.restore_loss_scale(step, scale)?;
        }
        Ok(())
    }

    /// State of the shuffle buffer; `None` where order is a function of the
    /// position.
    #[must_use]
    pub fn shuffle_state(&self) -> Option<ShuffleState> {
        self.shuffle_buffer().map(|buffer| buffer.state().clone())
    }

    /// Bytes of parameters and moments.
    #[must_use]
    pub fn num_replica_bytes(&self) -> usize {
        let parameters = self.manifest.parameters.iter();
        let parameters: usize = parameters
            .map(|p| p.shape.iter().product::<u64>())
            .map(|n| usize::try_from(n).unwrap_or(0))
            .sum();
        parameters * F32_BYTES + 2 * self.num_gradient_bytes()
    }

    fn visit_replica(&self, visit: &mut dyn FnMut(&[u8])) -> Result<(), EngineError> {
        for declaration in &self.manifest.parameters {
            let Some(tensor) = self.parameters.get(&declaration.path) else { continue };
            let data =
                tensor.try_to_data().map_err(|error| EngineError::device("reading parameters", &error))?;
            let values =
                data.as_slice::<f32>().map_err(|error| EngineError::device("reading parameters", &error))?;
            visit(&to_bytes(values));
        }
        for slot in &self.slots {
            visit(&to_bytes(&slot.moments.exp_avg));
            visit(&to_bytes(&slot.moments.exp_avg_sq));
        }
        Ok(())
    }

    /// Every parameter in path order, and then the first and second moments of
    /// every trainable one, in binary32.
    ///
    /// # Errors
    /// When the device fails.
    pub fn replica(&self) -> Result<Vec<u8>, EngineError> {
        let mut bytes = Vec::with_capacity(self.num_replica_bytes());
        self.visit_replica(&mut |values| bytes.extend_from_slice(values))?;
        Ok(bytes)
    }

    /// BLAKE3 over [`Self::replica`].
    ///
    /// # Errors
    /// When the device fails.
    pub fn replica_digest(&self) -> Result<Digest, EngineError> {
        let mut hasher = blake3::Hasher::new();
        self.visit_replica(&mut |values| {
            hasher.update(values);
        })?;
        Ok(Digest::blake3(*hasher.finalize().as_bytes()))
    }

    /// Takes over parameters and moments of another process.
    ///
    /// # Errors
    /// When the bytes are not as many as this contract's.
    pub fn restore_replica(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        let expected = self.num_replica_bytes();
        if bytes.len() != expected {
            let reason = format!("a replica has {} bytes, not {expected}", bytes.len());
            return Err(EngineError::State { class: "model", reason });
        }
        let (words, _) = bytes.as_chunks::<F32_BYTES>();
        let mut values = words.iter().map(|word| f32::from_le_bytes(*word));
        for declaration in &self.manifest.parameters {
            let Some(tensor) = self.parameters.get_mut(&declaration.path) else { continue };
            let [num_elements] = tensor.dims();
            let taken: Vec<f32> = values.by_ref().take(num_elements).collect();
            *tensor = Tensor::from_data(TensorData::new(taken, [num_elements]), self.device.handle());
        }
        for slot in &mut self.slots {
            for moments in [&mut slot.moments.exp_avg, &mut slot.moments.exp_avg_sq] {
                let num_elements = moments.len();
                *moments = values.by_ref().take(num_elements).collect();
            }
        }
        Ok(())
    }

    /// Keeps no averages from here on: nobody looks at them in a replica.
    pub fn forget_averages(&mut self) {
        self.averages = None;
    }

    /// Flips the lowest bit of one parameter, so that this replica is another
    /// one. For showing that it is found.
    ///
    /// # Errors
    /// When the device fails.
    pub fn damage(&mut self) -> Result<(), EngineError> {
        let mut bytes = self.replica()?;
        if let Some(byte) = bytes.first_mut() {
            *byte ^= 1;
        }
        self.restore_replica(&bytes)
    }
}
