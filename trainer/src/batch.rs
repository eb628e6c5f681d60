//! Microbatches: windows of text as id tensors of one fixed shape.
//!
//! Every microbatch is `[examples, context]` whatever its examples' lengths:
//! short ones are padded on the right with zeros that the loss does not see. A
//! fixed shape means the same kernels, and so the same bits, for all of them.

use burn::tensor::{Device, Int, Tensor, TensorData};
use schemas::digest::Digest;

use crate::data::{DataError, ExampleSource};
use crate::engine::EngineError;

/// One example to be put into a microbatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Global position in the stream; keys the dropout masks.
    pub position: u64,
    /// Index in the example table.
    pub example: u64,
}

/// Identity of an example, and the bytes that were fed of it.
pub type Fed = ([u8; 32], Vec<u8>);

/// A microbatch on a device.
#[derive(Debug)]
pub struct Microbatch {
    /// Input ids, `[examples, context]`.
    pub inputs: Tensor<2, Int>,
    /// Target ids, `[examples, context]`.
    pub targets: Tensor<2, Int>,
    /// Targets of each example; the rest of its row is padding.
    pub num_targets: Vec<u32>,
    /// Global position of each example.
    pub positions: Vec<u64>,
    ids: Vec<[u8; 32]>,
    context_length: usize,
}

impl Microbatch {
    /// Reads examples and puts them onto a device.
    ///
    /// # Errors
    /// When an example cannot be read or is not the frozen text.
    pub fn assemble(
        source: &ExampleSource,
        placements: &[Placement],
        context_length: usize,
        device: &Device,
    ) -> Result<Self, DataError> {
        let shape = [placements.len(), context_length];
        let mut inputs = vec![0i32; placements.len() * context_length];
        let mut targets = inputs.clone();
        let mut num_targets = Vec::with_capacity(placements.len());
        let mut ids = Vec::with_capacity(placements.len());
        let mut window = Vec::with_capacity(context_length + 1);
        let rows = inputs.chunks_mut(context_length).zip(targets.chunks_mut(context_length));
        for (placement, (inputs, targets)) in placements.iter().zip(rows) {
            let record = source.read(placement.example, &mut window)?;
            for (slot, byte) in inputs.iter_mut().zip(&window[..window.len() - 1]) {
                *slot = i32::from(*byte);
            }
            for (slot, byte) in targets.iter_mut().zip(&window[1..]) {
                *slot = i32::from(*byte);
            }
            num_targets.push(record.num_targets);
            ids.push(record.id);
        }
        Ok(Self {
            inputs: Tensor::from_data(TensorData::new(inputs, shape), device),
            targets: Tensor::from_data(TensorData::new(targets, shape), device),
            num_targets,
            positions: placements.iter().map(|placement| placement.position).collect(),
            ids,
            context_length,
        })
    }

    /// Ids of its examples, in order.
    #[must_use]
    pub fn ids(&self) -> &[[u8; 32]] {
        &self.ids
    }

    /// Target tokens.
    #[must_use]
    pub fn num_tokens(&self) -> u64 {
        self.num_targets.iter().map(|count| u64::from(*count)).sum()
    }

    /// Weight of each position in the loss, `[examples * context]`: `weight`
    /// for a target and 0 for padding.
    #[must_use]
    pub fn weights(&self, weight: f32) -> Vec<f32> {
        let mut weights = vec![0.0; self.num_targets.len() * self.context_length];
        for (row, count) in weights.chunks_mut(self.context_length).zip(&self.num_targets) {
            row[..*count as usize].fill(weight);
        }
        weights
    }

    /// What was fed, example by example: its id and its bytes (inputs and the
    /// last target), read back from the tensors that enter the model and not
    /// from the files, so that a digest over them speaks of what was fed.
    ///
    /// # Errors
    /// When a tensor cannot be read, or holds an id that is no byte.
    pub fn fed(&self) -> Result<Vec<Fed>, EngineError> {
        let read = |tensor: &Tensor<2, Int>| {
            tensor.try_to_vec_as::<i32>().map_err(|error| EngineError::device("reading ids", &error))
        };
        let (inputs, targets) = (read(&self.inputs)?, read(&self.targets)?);
        let byte = |id: i32| u8::try_from(id).map_err(|_| EngineError::IdRange { id });
        let rows = inputs.chunks(self.context_length).zip(targets.chunks(self.context_length));
        let mut fed = Vec::with_capacity(self.ids.len());
        for ((inputs, targets), (count, id)) in rows.zip(self.num_targets.iter().zip(&self.ids)) {
            let end = *count as usize;
            let mut bytes = inputs[..end].iter().copied().map(byte).collect::<Result<Vec<_>, _>>()?;
            bytes.push(byte(targets[end - 1])?);
            fed.push((*id, bytes));
        }
        Ok(fed)
    }

    /// Of `values`, `[examples * context]`, those of each example's targets.
    pub fn of_targets<'a>(&'a self, values: &'a [f32]) -> impl Iterator<Item = &'a [f32]> {
        let rows = values.chunks(self.context_length).zip(&self.num_targets);
        rows.map(|(row, count)| &row[..*count as usize])
    }

    /// `total` plus, in binary64 and in order, a value for each target; padding
    /// is left out. `values` is `[examples * context]`. One running sum gives
    /// the same total for any split into microbatches.
    #[must_use]
    pub fn add_targets(&self, total: f64, values: &[f32]) -> f64 {
        self.of_targets(values).flatten().fold(total, |total, value| total + f64::from(*value))
    }
}

/// Digests of what a step consumed, in the order of consumption.
#[derive(Debug, Clone, Default)]
pub struct Consumption {
    ids: blake3::Hasher,
    inputs: blake3::Hasher,
}

impl Consumption {
    /// Adds a microbatch: see [`Microbatch::fed`].
    ///
    /// # Errors
    /// When a tensor cannot be read, or holds an id that is no byte.
    pub fn add(&mut self, microbatch: &Microbatch) -> Result<(), EngineError> {
        for (id, bytes) in microbatch.fed()? {
            self.add_example(&id, &bytes);
        }
        Ok(())
    }

    /// Adds an example: its id, and what was fed of it.
    pub fn add_example(&mut self, id: &[u8; 32], fed: &[u8]) {
        self.ids.update(id);
        // The context bounds an example, far below 4 GiB.
        self.inputs.update(&u32::try_from(fed.len()).unwrap_or(u32::MAX).to_le_bytes());
        self.inputs.update(fed);
    }

    /// Digest of the example ids and digest of the inputs.
    #[must_use]
    pub fn finish(&self) -> (Digest, Digest) {
        let digest = |hasher: &blake3::Hasher| Digest::blake3(*hasher.finalize().as_bytes());
        (digest(&self.ids), digest(&self.inputs))
    }
}
