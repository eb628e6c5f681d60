//! A worker's part of an update: some microbatches in a row, the sums of their
//! gradients by block, and what they consumed (`docs/FORMAT.md`, "Workers").
//!
//! A share is executed without changing anything but a stream of masks, given
//! to the engine that records, and taken into its window there in the order of
//! the microbatches. From then on the update is that of one process.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use schemas::digest::Digest;

use super::gradients::{Block, BlockSums, GradientTree, Gradients};
use super::state::to_bytes;
use super::window::Window;
use super::{Engine, EngineError, token_weight};

/// Bytes of a binary32.
const F32_BYTES: usize = 4;
/// Bytes of a block's number of microbatches.
const COUNT_BYTES: usize = 4;

/// An example that was consumed.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// What was fed: inputs and the last target.
    pub fed: Vec<u8>,
    /// Its identity.
    pub id: [u8; 32],
    /// Loss of each target.
    pub losses: Vec<f32>,
}

/// What executing some microbatches of an update gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// Sums of gradients, left to right.
    pub blocks: Vec<Block>,
    /// Blocks that the worker's stream of masks has drawn; 0 without one.
    pub drawn_blocks: u64,
    /// In order of consumption.
    pub examples: Vec<Example>,
    /// Which microbatches.
    pub microbatches: Range<u32>,
}

impl Engine {
    /// Microbatches of a global batch.
    #[must_use]
    pub fn num_microbatches(&self) -> u32 {
        let num_microbatches = self.global_examples / self.microbatch_examples.max(1) as u64;
        u32::try_from(num_microbatches).unwrap_or(u32::MAX)
    }

    /// Executes some microbatches of the next update, with masks from the stream
    /// of a worker. `None` where `interrupt` was set before one of them had
    /// begun. Nothing of the engine changes: [`Self::take_share`] does that.
    ///
    /// # Errors
    /// When data cannot be read, has changed, or the device fails.
    pub fn execute_share(
        &mut self,
        worker: u32,
        microbatches: Range<u32>,
        interrupt: &AtomicBool,
    ) -> Result<Option<Share>, EngineError> {
        let drawn = self.drawn()?;
        let weight = token_weight(drawn.num_tokens);
        let stream = self.stream_of_worker(worker);
        let drawn_before = self.masks.get(stream).map_or(0, |stream| stream.drawn);
        let mut sums = BlockSums::default();
        let mut examples = Vec::new();
        let chunks = (0..).zip(drawn.placements.chunks(self.microbatch_examples));
        for (index, placements) in chunks.filter(|(index, _)| microbatches.contains(index)) {
            if interrupt.load(Ordering::Relaxed) {
                self.set_drawn(stream, drawn_before);
                return Ok(None);
            }
            let microbatch = self.assemble(placements)?;
            let (gradients, losses, drawn) = self.backward(&microbatch, weight, stream)?;
            self.set_drawn(stream, drawn);
            let of_targets = microbatch.of_targets(&losses);
            for ((id, fed), losses) in microbatch.fed()?.into_iter().zip(of_targets) {
                examples.push(Example { fed, id, losses: losses.to_vec() });
            }
            sums.push(index, gradients);
        }
        let drawn_blocks = self.masks.get(stream).map_or(0, |stream| stream.drawn);
        self.set_drawn(stream, drawn_before);
        Ok(Some(Share { blocks: sums.into_blocks(), drawn_blocks, examples, microbatches }))
    }

    /// Index of the stream that a worker draws its masks from.
    fn stream_of_worker(&self, worker: u32) -> usize {
        if self.masks.len() > 1 { worker as usize } else { 0 }
    }

    /// Takes a worker's share into the update; shares are taken in the order of
    /// their microbatches, from the first on. When all are, [`Self::step`]
    /// makes the update of them.
    ///
    /// # Errors
    /// In words, where the share is not that of the next microbatches or
    /// consumed other examples. Nothing has changed then.
    pub fn take_share(&mut self, worker: u32, share: Share) -> Result<(), String> {
        let next = self.num_consumed_microbatches();
        if share.microbatches.start != next || next != self.window.tree.num_leaves() {
            return Err(format!("its share begins at microbatch {}, not {next}", share.microbatches.start));
        }
        let drawn = self.drawn().map_err(|error| error.to_string())?;
        let first = next as usize * self.microbatch_examples;
        let num_examples = share.microbatches.len() * self.microbatch_examples;
        let placements = drawn.placements.get(first..first + num_examples).unwrap_or_default();
        if placements.len() != num_examples || share.examples.len() != num_examples {
            return Err(format!("its share has {} examples, not {num_examples}", share.examples.len()));
        }
        for (placement, example) in placements.iter().zip(&share.examples) {
            let expected = self.train.id(placement.example).map_err(|error| error.to_string())?;
            if example.id != expected || example.losses.len() + 1 != example.fed.len() {
                let (expected, actual) = (Digest::blake3(expected), Digest::blake3(example.id));
                return Err(format!("it consumed the example {actual}, not {expected}"));
            }
        }
        for example in &share.examples {
            self.window.consumption.add_example(&example.id, &example.fed);
            self.window.nats =
                example.losses.iter().fold(self.window.nats, |total, loss| total + f64::from(*loss));
            self.consumed.examples += 1;
            self.consumed.tokens += example.losses.len() as u64;
        }
        for block in share.blocks {
            self.window.tree.push_block(block.num_microbatches, block.gradients);
        }
        let stream = self.stream_of_worker(worker);
        if !share.microbatches.is_empty() {
            self.set_drawn(stream, share.drawn_blocks);
        }
        Ok(())
    }

    /// Puts the shares of all workers together, once every one was taken, and
    /// gives the total as the bytes that go to the others.
    pub fn total(&mut self) -> Vec<u8> {
        encode(self.window.tree.reduce())
    }

    /// Takes the total of an update that others put together; [`Self::step`]
    /// then makes the update. What it says of losses and consumption is not
    /// known here.
    ///
    /// # Errors
    /// In words, where the bytes are not those of one gradient.
    pub fn take_total(&mut self, bytes: &[u8]) -> Result<(), String> {
        let gradients = self.decode(bytes)?;
        self.window = Window::default();
        self.window.tree = GradientTree::from_subtrees(vec![(self.num_microbatches(), gradients)]);
        self.consumed.examples = self.counters.examples + self.global_examples;
        Ok(())
    }

    /// Reads the sums of some microbatches as [`encode_blocks`] writes them.
    ///
    /// # Errors
    /// In words, where they are not those.
    pub fn decode_blocks(&self, microbatches: &Range<u32>, bytes: &[u8]) -> Result<Vec<Block>, String> {
        let num_bytes = self.num_gradient_bytes();
        let mut blocks = Vec::new();
        let mut rest = bytes;
        let mut first = microbatches.start;
        for size in BlockSums::sizes(microbatches.start, microbatches.end) {
            let (count, behind) = rest.split_first_chunk::<COUNT_BYTES>().ok_or("its sums are cut off")?;
            let found = u32::from_le_bytes(*count);
            if found != size {
                return Err(format!("its sum is over {found} microbatches, not {size}"));
            }
            let (gradient, behind) = behind.split_at_checked(num_bytes).ok_or("its sums are cut off")?;
            blocks.push(Block { first, gradients: self.decode(gradient)?, num_microbatches: size });
            (rest, first) = (behind, first + size);
        }
        if !rest.is_empty() {
            return Err(format!("its sums have {} bytes too many", rest.len()));
        }
        Ok(blocks)
    }

    /// Bytes of one gradient.
    #[must_use]
    pub fn num_gradient_bytes(&self) -> usize {
        self.slots.iter().map(|slot| slot.moments.exp_avg.len() * F32_BYTES).sum()
    }

    fn decode(&self, bytes: &[u8]) -> Result<Gradients, String> {
        let expected = self.num_gradient_bytes();
        if bytes.len() != expected {
            return Err(format!("a gradient has {} bytes, not {expected}", bytes.len()));
        }
        let (words, _) = bytes.as_chunks::<F32_BYTES>();
        let mut values = words.iter().map(|word| f32::from_le_bytes(*word));
        let slots = self.slots.iter();
        Ok(slots.map(|slot| values.by_ref().take(slot.moments.exp_avg.len()).collect()).collect())
    }
}

fn encode(gradients: &[Vec<f32>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    gradients.iter().for_each(|values| bytes.extend(to_bytes(values)));
    bytes
}

/// The sums of a share as they are sent, and as their digest is over them.
#[must_use]
pub fn encode_blocks(blocks: &[Block]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in blocks {
        bytes.extend(block.num_microbatches.to_le_bytes());
        block.gradients.iter().for_each(|values| bytes.extend(to_bytes(values)));
    }
    bytes
}

/// Digest over the sums of a share.
#[must_use]
pub fn digest_blocks(blocks: &[Block]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for block in blocks {
        hasher.update(&block.num_microbatches.to_le_bytes());
        block.gradients.iter().for_each(|values| {
            hasher.update(&to_bytes(values));
        });
    }
    Digest::blake3(*hasher.finalize().as_bytes())
}
