//! What frames hold.

use std::ops::Range;
use std::path::PathBuf;

use burn::tensor::FloatDType;
use schemas::contract::Contract;
use schemas::data::DataManifest;
use schemas::digest::Digest;
use schemas::parameters::ParameterManifest;
use schemas::policy_card::PolicyCard;
use serde::{Deserialize, Serialize};

use crate::engine::replica::Position;
use crate::engine::share::{Example, Share};
use crate::shuffle::ShuffleState;

/// What a worker is made of.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Setup {
    pub(super) card: PolicyCard,
    /// Digest of the code of the process that records; a worker of other code
    /// refuses.
    pub(super) code: Digest,
    pub(super) contract: Contract,
    pub(super) data: DataManifest,
    /// Folder of the data shards.
    pub(super) folder: PathBuf,
    pub(super) heartbeat_ms: u32,
    /// Whether the share of the update before is kept, for faults that give it
    /// again.
    pub(super) keeps_last: bool,
    /// Most bytes of a frame.
    pub(super) max_bytes: u64,
    pub(super) num_threads: u32,
    pub(super) parameters: ParameterManifest,
    pub(super) timeout_ms: u32,
    pub(super) worker: u32,
}

/// dtype of the operands of matrix products in updates. It is the contract's,
/// unless a fault changed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Compute {
    F32,
    Bf16,
    F16,
}

impl Compute {
    pub(super) const fn of(dtype: FloatDType) -> Self {
        match dtype {
            FloatDType::BF16 => Self::Bf16,
            FloatDType::F16 => Self::F16,
            _ => Self::F32,
        }
    }

    pub(super) const fn dtype(self) -> FloatDType {
        match self {
            Self::F32 => FloatDType::F32,
            Self::Bf16 => FloatDType::BF16,
            Self::F16 => FloatDType::F16,
        }
    }
}

/// Where the run stands when a worker joins it, but for tensors.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    pub(super) compute: Compute,
    pub(super) position: Position,
    /// None where the order is a function of the position.
    pub(super) shuffle: Option<ShuffleState>,
}

/// What a worker does next.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Update {
    /// Whether the digest of the replica is wanted behind the update.
    pub(super) digest: bool,
    /// A fault that it does to itself; none in an ordinary update.
    pub(super) fault: Option<WorkerFault>,
    /// May be empty: then only the total follows.
    pub(super) microbatches: Range<u32>,
    pub(super) position: Position,
}

/// Where in its share a worker does something to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultPlace {
    /// Before the first microbatch.
    BeforeForward,
    /// Behind the last one, before anything is sent.
    AfterBackward,
}

/// What a worker does to itself, once, because a plan says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerFault {
    /// It is killed.
    Die(FaultPlace),
    /// It sleeps for longer than the contract's timeout.
    Stall(FaultPlace),
    /// It gives the share of the update before: under the number of the current
    /// one, or the frames of then once more.
    Stale {
        /// Under the current number.
        relabelled: bool,
    },
    /// One bit of a parameter changes behind the update.
    Damage,
}

/// Why a worker cannot go on.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Failure {
    /// Whether text is not what was frozen.
    pub(super) is_data: bool,
    pub(super) message: String,
}

/// Bytes of an example's id.
const ID_BYTES: usize = 32;
/// Bytes of a u32, and of a binary32.
const WORD_BYTES: usize = 4;
/// Bytes of a u64.
const LONG_BYTES: usize = 8;

/// What a share consumed, and where its stream of masks stands: blocks drawn as
/// u64; first and end of its microbatches as u32; and of each example the id,
/// its number of targets as u32, the bytes that were fed, and the losses. All
/// little-endian.
pub(super) fn encode_consumed(share: &Share) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(share.drawn_blocks.to_le_bytes());
    bytes.extend(share.microbatches.start.to_le_bytes());
    bytes.extend(share.microbatches.end.to_le_bytes());
    for example in &share.examples {
        bytes.extend(example.id);
        // The context bounds an example, far below 4 GiB.
        bytes.extend(u32::try_from(example.losses.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(&example.fed);
        example.losses.iter().for_each(|loss| bytes.extend(loss.to_le_bytes()));
    }
    bytes
}

/// Reads what [`encode_consumed`] wrote; the sums travel on their own.
pub(super) fn decode_consumed(bytes: &[u8]) -> Option<Share> {
    let (drawn_blocks, rest) = bytes.split_first_chunk::<LONG_BYTES>()?;
    let (start, rest) = rest.split_first_chunk::<WORD_BYTES>()?;
    let (end, mut rest) = rest.split_first_chunk::<WORD_BYTES>()?;
    let mut examples = Vec::new();
    while !rest.is_empty() {
        let (id, behind) = rest.split_first_chunk::<ID_BYTES>()?;
        let (count, behind) = behind.split_first_chunk::<WORD_BYTES>()?;
        let num_targets = usize::try_from(u32::from_le_bytes(*count)).ok()?;
        let (fed, behind) = behind.split_at_checked(num_targets.checked_add(1)?)?;
        let (losses, behind) = behind.split_at_checked(num_targets.checked_mul(WORD_BYTES)?)?;
        let (words, _) = losses.as_chunks::<WORD_BYTES>();
        let losses = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
        examples.push(Example { fed: fed.to_vec(), id: *id, losses });
        rest = behind;
    }
    Some(Share {
        blocks: Vec::new(),
        drawn_blocks: u64::from_le_bytes(*drawn_blocks),
        examples,
        microbatches: u32::from_le_bytes(*start)..u32::from_le_bytes(*end),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_consumed_comes_back_and_nothing_is_read_beyond_it() {
        let example = |id: u8, losses: &[f32]| Example {
            fed: (0..=losses.len()).map(|_| id).collect(),
            id: [id; 32],
            losses: losses.to_vec(),
        };
        let share = Share {
            blocks: Vec::new(),
            drawn_blocks: 9,
            examples: vec![example(1, &[0.5, 2.0]), example(2, &[1.0e-30])],
            microbatches: 2..4,
        };
        let bytes = encode_consumed(&share);
        assert_eq!(decode_consumed(&bytes), Some(share.clone()));
        // Cut between examples it is another, shorter share; elsewhere none.
        let whole = (0..bytes.len()).filter_map(|length| decode_consumed(&bytes[..length]));
        assert!(whole.clone().all(|found| found.examples.len() < share.examples.len()));
        assert_eq!(whole.count(), 2);
    }
}
