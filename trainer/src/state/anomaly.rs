//! What is odd about state that is saved, seen in the bytes that are written
//! anyway (`docs/FORMAT.md`, "Anomalies of saved state").
//!
//! It looks and says; whether an anomaly matters is for the validator, which
//! finds the same by its own code. Looking costs next to nothing where nothing
//! is odd: a tensor is left at its first element that is in order.

use std::collections::BTreeSet;

use schemas::body::{
    AnomalyDet, BF16_ONLY_MANTISSAS, Credit, SHARED_RANDOM_STREAM, StateAnomaly, UNCHANGED_STATE,
    ZERO_MOMENTS,
};
use schemas::digest::Digest;
use schemas::state::StateClass;
use serde::Deserialize;

use super::registry::{CapturedState, Content};
use crate::engine::StepOutcome;
use crate::export::NamedTensor;

/// Elements that have to vary before a tensor is called odd. The low half of a
/// binary32 that was computed is zero once in 2^16, so that so many of them are
/// once in 2^256; tensors that are constant, as norms are at first, never count.
const NUM_VARIED_MIN: u64 = 16;

/// Bits that binary32 has and bfloat16 has not.
const LOW_HALF: u32 = 0xffff;

/// Bits of a binary32's significand; all zero in zeros and powers of two.
const SIGNIFICAND: u32 = 0x007f_ffff;

/// Classes whose tensors are masters or sums, which a run keeps in binary32.
const BINARY32_CLASSES: [StateClass; 3] = [StateClass::Model, StateClass::Optimizer, StateClass::Averages];

/// Digests of the classes that updates change, as a checkpoint holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdatedShards {
    /// BLAKE3 of the model shard.
    pub model: Digest,
    /// BLAKE3 of the optimizer shard.
    pub optimizer: Option<Digest>,
}

/// What lies between a checkpoint and the one before it: the one that the
/// attempt saved last, or resumed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SinceLast {
    /// An update had a gradient that was not zero.
    has_gradient: bool,
    /// An update had a rate above zero.
    has_rate: bool,
    /// None before the first checkpoint of a run, or of a restart.
    predecessor: Option<UpdatedShards>,
}

impl SinceLast {
    /// Directly behind a checkpoint.
    #[must_use]
    pub const fn after(predecessor: UpdatedShards) -> Self {
        Self { has_gradient: false, has_rate: false, predecessor: Some(predecessor) }
    }

    /// Takes the checkpoint that was saved; updates that were made beside the
    /// save stay counted.
    pub const fn saved(&mut self, predecessor: UpdatedShards) {
        self.predecessor = Some(predecessor);
    }

    /// Counts an update; one that was skipped is none.
    pub fn update(&mut self, outcome: &StepOutcome) {
        if outcome.overflow.as_ref().is_some_and(|overflow| overflow.skipped) {
            return;
        }
        if let Credit::Backpropagation { gradient_norm, .. } = outcome.credit {
            self.has_gradient |= gradient_norm.0.is_finite() && gradient_norm.0 > 0.0;
        }
        self.has_rate |= outcome.updates.iter().any(|update| update.learning_rate.0 > 0.0);
    }
}

/// Everything that is odd about a state that was saved as `saved`, in the order
/// of its entries: by name, then by class.
#[must_use]
pub fn detect(state: &CapturedState, since: &SinceLast, saved: &UpdatedShards) -> Vec<AnomalyDet> {
    let mut found = Vec::new();
    for class in BINARY32_CLASSES {
        found.extend(of_tensors(BF16_ONLY_MANTISSAS, class, state, is_bf16_only));
    }
    if has_shared_stream(state) {
        let state = StateAnomaly { class: StateClass::RngCpu, num_elements: 0, num_tensors: 0, tensor: None };
        found.push(AnomalyDet { name: SHARED_RANDOM_STREAM.to_owned(), state: Some(state) });
    }
    if let Some(predecessor) = &since.predecessor {
        if since.has_rate && saved.model == predecessor.model {
            found.push(unchanged(StateClass::Model, state));
        }
        if since.has_gradient && saved.optimizer.is_some() && saved.optimizer == predecessor.optimizer {
            found.push(unchanged(StateClass::Optimizer, state));
        }
    }
    if since.has_gradient {
        found.extend(of_tensors(ZERO_MOMENTS, StateClass::Optimizer, state, is_zero));
    }
    found
}

/// An anomaly in words, for people.
#[must_use]
pub fn describe(det: &AnomalyDet) -> String {
    let Some(state) = &det.state else { return det.name.clone() };
    let StateAnomaly { class, num_elements, num_tensors, tensor } = state;
    if det.name == SHARED_RANDOM_STREAM {
        return format!("{}: two workers draw from one stream", det.name);
    }
    match tensor {
        Some(tensor) => {
            format!("{}: {class}, {num_tensors} tensors of {num_elements} elements, first {tensor}", det.name)
        }
        None => format!("{}: {class}, {num_tensors} tensors of {num_elements} elements", det.name),
    }
}

/// Whether two workers draw from one stream: their files have one key, and
/// something was drawn.
fn has_shared_stream(state: &CapturedState) -> bool {
    #[derive(Deserialize)]
    struct Stream {
        blocks: u64,
        key: [u32; 2],
    }
    let of_class = state.classes.iter().filter(|(class, _)| *class == StateClass::RngCpu);
    let streams = of_class.flat_map(|(_, shards)| shards).filter_map(|shard| match &shard.content {
        Content::Json(bytes) => serde_json::from_slice::<Stream>(bytes).ok(),
        _ => None,
    });
    let mut keys = BTreeSet::new();
    let mut drawn = streams.filter(|stream| stream.blocks > 0);
    drawn.any(|stream| !keys.insert(stream.key))
}

/// Tensors of a class, in name order.
fn tensors(state: &CapturedState, class: StateClass) -> impl Iterator<Item = &NamedTensor> {
    let classes = state.classes.iter().filter(move |(captured, _)| *captured == class);
    classes.flat_map(|(_, shards)| shards).flat_map(|shard| match &shard.content {
        Content::Frozen(tensors, _) | Content::Tensors(_, tensors) => tensors.as_slice(),
        Content::Index(_) | Content::Json(_) => &[],
    })
}

fn num_elements<'a>(tensors: impl IntoIterator<Item = &'a NamedTensor>) -> u64 {
    tensors.into_iter().map(|tensor| tensor.shape.iter().product::<u64>()).sum()
}

fn of_tensors(
    name: &str,
    class: StateClass,
    state: &CapturedState,
    is_odd: impl Fn(&NamedTensor) -> bool,
) -> Option<AnomalyDet> {
    let odd: Vec<&NamedTensor> = tensors(state, class).filter(|tensor| is_odd(tensor)).collect();
    let first = odd.iter().map(|tensor| tensor.name.as_str()).min()?.to_owned();
    let state = StateAnomaly {
        class,
        num_elements: num_elements(odd.iter().copied()),
        num_tensors: odd.len() as u64,
        tensor: Some(first),
    };
    Some(AnomalyDet { name: name.to_owned(), state: Some(state) })
}

fn unchanged(class: StateClass, state: &CapturedState) -> AnomalyDet {
    let state = StateAnomaly {
        class,
        num_elements: num_elements(tensors(state, class)),
        num_tensors: tensors(state, class).count() as u64,
        tensor: None,
    };
    AnomalyDet { name: UNCHANGED_STATE.to_owned(), state: Some(state) }
}

/// Whether every element is what bfloat16 could hold, and that cannot be chance.
fn is_bf16_only(tensor: &NamedTensor) -> bool {
    if tensor.dtype != "F32" {
        return false;
    }
    let (words, _) = tensor.bytes.as_chunks::<4>();
    let (mut previous, mut num_varied) = (None, 0);
    for word in words {
        let bits = u32::from_le_bytes(*word);
        if bits & LOW_HALF != 0 {
            return false;
        }
        let varies = previous.replace(bits).is_some_and(|previous| previous != bits);
        num_varied += u64::from(varies && bits & SIGNIFICAND != 0);
    }
    num_varied >= NUM_VARIED_MIN
}

/// Whether every element is a zero of either sign.
fn is_zero(tensor: &NamedTensor) -> bool {
    let (words, rest) = tensor.bytes.as_chunks::<4>();
    tensor.dtype == "F32"
        && !words.is_empty()
        && rest.is_empty()
        && words.iter().all(|word| u32::from_le_bytes(*word) << 1 == 0)
}

#[cfg(test)]
mod tests {
    use schemas::number::Float;

    use super::*;
    use crate::export::FileKind;
    use crate::state::registry::CapturedShard;

    fn tensor(name: &str, values: impl IntoIterator<Item = f32>) -> NamedTensor {
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        let shape = vec![bytes.len() as u64 / 4];
        NamedTensor { name: name.to_owned(), dtype: "F32".to_owned(), shape, bytes }
    }

    /// So many different values, none of them a power of two, cut to bfloat16.
    fn cut(num_values: u32) -> impl Iterator<Item = f32> {
        (0..num_values).map(|n| f32::from_bits((0x3f81_0000 + (n << 17)) & !LOW_HALF))
    }

    fn state(model: Vec<NamedTensor>, optimizer: Vec<NamedTensor>) -> CapturedState {
        let shard =
            |name, tensors| vec![CapturedShard { name, content: Content::Tensors(FileKind::State, tensors) }];
        let classes = vec![
            (StateClass::Model, shard("model.safetensors", model)),
            (StateClass::Optimizer, shard("optimizer.safetensors", optimizer)),
        ];
        CapturedState { classes, step: 4 }
    }

    fn shards(model: u8, optimizer: u8) -> UpdatedShards {
        UpdatedShards { model: Digest::blake3([model; 32]), optimizer: Some(Digest::blake3([optimizer; 32])) }
    }

    fn since(rate: f64, gradient: f64) -> SinceLast {
        let update = schemas::body::GroupUpdate {
            clip_coefficient: Float(1.0),
            group: "all".to_owned(),
            learning_rate: Float(rate),
            parameter_norm: None,
            update_norm: None,
            weight_decay: Float(0.0),
        };
        let mut since = SinceLast::after(shards(1, 2));
        since.update(&StepOutcome {
            counters: schemas::body::Counters::default(),
            credit: Credit::Backpropagation {
                gradient_norm: Float(gradient),
                loss: Float(1.0),
                num_microbatches: 1,
                num_tokens: 1,
            },
            draws: Vec::new(),
            updates: vec![update],
            loss: 1.0,
            overflow: None,
        });
        since
    }

    fn names(found: &[AnomalyDet]) -> Vec<(&str, StateClass, u64)> {
        let part = |det: &AnomalyDet| det.state.clone().expect("of state");
        found.iter().map(|det| (det.name.as_str(), part(det).class, part(det).num_tensors)).collect()
    }

    #[test]
    fn only_tensors_that_vary_and_were_cut_are_bf16() {
        assert!(is_bf16_only(&tensor("w", cut(17))));
        // One element fewer, one with a bit more, and tensors of one value.
        assert!(!is_bf16_only(&tensor("w", cut(16))));
        assert!(!is_bf16_only(&tensor("w", cut(40).chain([f32::from_bits(0x3f81_0001)]))));
        assert!(!is_bf16_only(&tensor("w", std::iter::repeat_n(1.0, 64))));
        assert!(!is_bf16_only(&tensor("w", std::iter::repeat_n(1.5, 64))));
        assert!(!is_bf16_only(&tensor("w", (0..64).map(|n| f32::from(n % 2 == 0)))));
        let other = NamedTensor { dtype: "BF16".to_owned(), ..tensor("w", cut(40)) };
        assert!(!is_bf16_only(&other));
    }

    #[test]
    fn what_is_odd_is_named_with_its_counts() {
        let odd = state(
            vec![tensor("a", cut(40)), tensor("b", [1.1, 2.3]), tensor("c", cut(20))],
            vec![tensor("a.exp_avg", [0.0, -0.0]), tensor("b.exp_avg", [0.1, 0.0])],
        );
        let found = detect(&odd, &since(1e-3, 0.5), &shards(1, 2));
        let expected = [
            (BF16_ONLY_MANTISSAS, StateClass::Model, 2),
            (UNCHANGED_STATE, StateClass::Model, 3),
            (UNCHANGED_STATE, StateClass::Optimizer, 2),
            (ZERO_MOMENTS, StateClass::Optimizer, 1),
        ];
        assert_eq!(names(&found), expected);
        let first = found[0].state.as_ref().expect("of state");
        assert_eq!((first.num_elements, first.tensor.as_deref()), (60, Some("a")));
        assert!(describe(&found[0]).contains("first a"), "{}", describe(&found[0]));
    }

    #[test]
    fn what_no_update_could_change_is_not_odd() {
        let plain = state(vec![tensor("a", [1.1, 2.3])], vec![tensor("a.exp_avg", [0.0, 0.0])]);
        // Nothing moved, because nothing could: no rate, no gradient.
        assert!(detect(&plain, &since(0.0, 0.0), &shards(1, 2)).is_empty());
        // A rate without a gradient moves parameters, and leaves moments.
        assert_eq!(
            names(&detect(&plain, &since(0.1, 0.0), &shards(1, 2))),
            [(UNCHANGED_STATE, StateClass::Model, 1)]
        );
        // Both moved.
        let moved = state(vec![tensor("a", [1.1, 2.3])], vec![tensor("a.exp_avg", [0.1, 0.0])]);
        assert!(detect(&moved, &since(0.1, 0.5), &shards(3, 4)).is_empty());
        // There is nothing to be equal to at the first checkpoint.
        assert!(detect(&plain, &SinceLast::default(), &shards(1, 2)).is_empty());
    }
    #[test]
    fn two_workers_with_one_stream_are_odd_once_something_was_drawn() {
        let of_workers = |streams: &[(u32, u64)]| {
            let file = |(key, blocks): &(u32, u64)| CapturedShard {
                name: "rng_cpu.json",
                content: Content::Json(
                    format!(r#"{{"blocks":{blocks},"key":[{key},7],"step":4}}"#).into_bytes(),
                ),
            };
            let classes = vec![(StateClass::RngCpu, streams.iter().map(file).collect())];
            detect(&CapturedState { classes, step: 4 }, &SinceLast::default(), &shards(1, 2))
        };
        let expected = [(SHARED_RANDOM_STREAM, StateClass::RngCpu, 0)];
        assert_eq!(names(&of_workers(&[(1, 5), (2, 5), (1, 5)])), expected);
        assert!(describe(&of_workers(&[(1, 5), (1, 5)])[0]).contains("one stream"));
        assert!(of_workers(&[(1, 5), (2, 5)]).is_empty());
        assert!(of_workers(&[(1, 0), (1, 0)]).is_empty());
        assert!(of_workers(&[(1, 5)]).is_empty());
    }
}
