//! The JSON shards of a checkpoint, byte for byte, and the digest of a state
//! class (`docs/FORMAT.md`, "Checkpoint" and "State digests").

use schemas::body::ExecutedPlan;
use schemas::contract::{CompilerPlan, Contract, Dtype, OrderPolicy};
use schemas::digest::Digest;
use schemas::number::Float;
use serde::Serialize;

use super::loss_scale::ScaleState;
use super::order::UPDATE_STREAM;
use super::plateau::Plateaus;
use super::selection::SelectionState;
use super::shuffle;
use super::streams;

#[derive(Serialize)]
struct DataCursor {
    epoch: u64,
    examples: u64,
    position: u64,
    step: u64,
    tokens: u64,
}

/// `data_cursor.json` after `step` updates that consumed `tokens` targets;
/// `None` where the arithmetic leaves 64 bits or there are no examples.
#[must_use]
pub fn data_cursor(contract: &Contract, num_examples: u64, step: u64, tokens: u64) -> Option<Vec<u8>> {
    data_cursor_inside(contract, num_examples, (step, 0), tokens)
}

/// As [`data_cursor`], after so many microbatches of the next update too.
#[must_use]
pub fn data_cursor_inside(
    contract: &Contract,
    num_examples: u64,
    (step, microbatches): (u64, u32),
    tokens: u64,
) -> Option<Vec<u8>> {
    let examples = step.checked_mul(u64::from(contract.batch.global_examples))?;
    let inside = u64::from(microbatches).checked_mul(u64::from(contract.batch.microbatch_examples))?;
    let examples = examples.checked_add(inside)?;
    let epoch = examples.checked_div(num_examples)?;
    bytes(&DataCursor { epoch, examples, position: examples % num_examples, step, tokens })
}

#[derive(Serialize)]
struct Topology {
    learners: u32,
    workers: u32,
}

/// `topology.json` of an attempt that so many workers executed.
#[must_use]
pub fn topology(contract: &Contract, workers: u32) -> Option<Vec<u8>> {
    bytes(&Topology { learners: contract.topology.learners, workers })
}

#[derive(Serialize)]
struct ExecutedCompiler<'a> {
    compiler: &'a CompilerPlan,
    compute_dtype: Dtype,
    num_workers: u32,
}

/// `compiler_plan.json` of an executed plan.
#[must_use]
pub fn compiler_plan(plan: &ExecutedPlan) -> Option<Vec<u8>> {
    bytes(&ExecutedCompiler {
        compiler: &plan.compiler,
        compute_dtype: plan.compute_dtype,
        num_workers: plan.num_workers,
    })
}

#[derive(Serialize)]
struct Scheduler {
    step: u64,
}

#[derive(Serialize)]
struct Watching<'a> {
    plateaus: Vec<WatchingGroup<'a>>,
    step: u64,
}

#[derive(Serialize)]
struct WatchingGroup<'a> {
    bad_evaluations: u64,
    best: Option<Float>,
    cooldown: u64,
    group: &'a str,
    rate: Float,
}

/// `scheduler.json`; without `plateaus` where no schedule watches evaluations.
#[must_use]
pub fn scheduler(step: u64, plateaus: &Plateaus) -> Option<Vec<u8>> {
    if plateaus.0.is_empty() {
        return bytes(&Scheduler { step });
    }
    let plateaus = plateaus.0.iter().map(|plateau| WatchingGroup {
        bad_evaluations: plateau.bad_evaluations,
        best: plateau.best,
        cooldown: plateau.cooldown,
        group: &plateau.group,
        rate: plateau.rate,
    });
    bytes(&Watching { plateaus: plateaus.collect(), step })
}

#[derive(Serialize)]
struct RngCpu {
    blocks: u64,
    key: [u32; 2],
    step: u64,
}

/// A worker's stream of masks after `step` updates, each of which drew the masks
/// of every microbatch and branch; `None` where the arithmetic leaves 64 bits.
#[must_use]
pub fn rng_cpu(contract: &Contract, worker: u32, step: u64) -> Option<Vec<u8>> {
    rng_cpu_inside(contract, worker, step, 0)
}

/// As [`rng_cpu`], after so many microbatches of the next update too.
#[must_use]
pub fn rng_cpu_inside(contract: &Contract, worker: u32, step: u64, microbatches: u32) -> Option<Vec<u8>> {
    let blocks = streams::blocks(contract, step, microbatches)?;
    bytes(&RngCpu { blocks, key: streams::key(contract, worker), step })
}

#[derive(Serialize)]
struct Sampler {
    buffer: Vec<u64>,
    drawn: u64,
    epoch: u64,
    key: [u32; 2],
    next: u64,
    step: u64,
}

/// `sampler.json` after `step` updates; `None` where the order has no state, or
/// the arithmetic leaves 64 bits.
#[must_use]
pub fn sampler(contract: &Contract, num_examples: u64, step: u64) -> Option<Vec<u8>> {
    let OrderPolicy::ShuffleBuffer { size } = contract.order else { return None };
    let drawn = step.checked_mul(u64::from(contract.batch.global_examples))?;
    let key = shuffle::key(UPDATE_STREAM, contract.seeds.data_order.0);
    let (mut epoch, mut buffer) = (0, shuffle::Buffer::default());
    if let Some(before) = drawn.checked_sub(1) {
        epoch = before.checked_div(num_examples)?;
        (_, buffer) = shuffle::draw_epoch(key, size, num_examples, epoch, drawn - epoch * num_examples)?;
    }
    bytes(&Sampler { buffer: buffer.places, drawn, epoch, key, next: buffer.next, step })
}

#[derive(Serialize)]
struct LossScaler {
    scale: Float,
    skipped: u64,
    without_overflow: u64,
}

/// `loss_scaler.json`.
#[must_use]
pub fn loss_scaler(state: &ScaleState) -> Option<Vec<u8>> {
    let ScaleState { scale, skipped, without_overflow } = *state;
    bytes(&LossScaler { scale: Float(scale), skipped, without_overflow })
}

#[derive(Serialize)]
struct SelectionJson {
    best_step: Option<u64>,
    best_value: Option<Float>,
    evaluations_without_improvement: u64,
}

/// `selection_state.json`.
#[must_use]
pub fn selection_state(state: &SelectionState) -> Option<Vec<u8>> {
    bytes(&SelectionJson {
        best_step: state.best.map(|(step, _)| step),
        best_value: state.best.map(|(_, value)| value),
        evaluations_without_improvement: state.without_improvement,
    })
}

fn bytes<T: Serialize>(value: &T) -> Option<Vec<u8>> {
    // Fields are declared in key order, and floats go through `Float`, so this
    // is entry JSON.
    serde_json::to_vec(value).ok()
}

/// Digest of a class from its shards' paths and digests, given in path order.
#[must_use]
pub fn class_digest<'a>(shards: impl IntoIterator<Item = (&'a str, &'a Digest)>) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for (path, digest) in shards {
        hasher.update(path.as_bytes());
        hasher.update(&[0]);
        hasher.update(&digest.bytes);
    }
    Digest::blake3(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use schemas::contract::Architecture;

    use super::super::philox;
    use super::super::plateau::GroupPlateau;
    use super::*;
    use crate::fixture::contract;

    fn check(actual: Option<Vec<u8>>, expected: &str) {
        let actual = actual.expect("representable");
        assert_eq!(String::from_utf8_lossy(&actual), expected);
        crate::canonical::check_entry_json(&actual).expect("canonical");
    }

    #[test]
    fn shards_by_hand() {
        let mut contract = contract();
        contract.batch.global_examples = 8;
        check(
            data_cursor(&contract, 10, 3, 99),
            r#"{"epoch":2,"examples":24,"position":4,"step":3,"tokens":99}"#,
        );
        check(topology(&contract, 3), r#"{"learners":1,"workers":3}"#);
        check(scheduler(7, &Plateaus::default()), r#"{"step":7}"#);
        let group = GroupPlateau {
            bad_evaluations: 1,
            best: Some(Float(2.5)),
            cooldown: 2,
            group: "all".to_owned(),
            rate: Float(0.5),
        };
        check(
            scheduler(7, &Plateaus(vec![group])),
            r#"{"plateaus":[{"bad_evaluations":1,"best":2.5,"cooldown":2,"group":"all","rate":0.5}],"step":7}"#,
        );
        let none = r#"{"best_step":null,"best_value":null,"evaluations_without_improvement":0}"#;
        check(selection_state(&SelectionState::default()), none);
        let state = SelectionState { best: Some((4, Float(2.5))), without_improvement: 1 };
        check(
            selection_state(&state),
            r#"{"best_step":4,"best_value":2.5,"evaluations_without_improvement":1}"#,
        );
        contract.batch.microbatch_examples = 4;
        check(
            data_cursor_inside(&contract, 10, (3, 1), 110),
            r#"{"epoch":2,"examples":28,"position":8,"step":3,"tokens":110}"#,
        );
        let scale = ScaleState { scale: 65536.0, skipped: 2, without_overflow: 1 };
        check(loss_scaler(&scale), r#"{"scale":65536.0,"skipped":2,"without_overflow":1}"#);
        assert_eq!(data_cursor(&contract, 0, 3, 99), None);
        assert_eq!(data_cursor(&contract, 10, u64::MAX, 99), None);
    }

    /// Two microbatches of two examples; words and branches by hand.
    #[test]
    fn the_stream_of_masks_is_counted_in_blocks() {
        let contract = contract();
        let Architecture::LlamaDecoder(decoder) = &contract.architecture;
        let elements = 2 * u64::from(decoder.context_length) * u64::from(decoder.hidden_size);
        let of_microbatch = elements.div_ceil(4) * 2 * u64::from(decoder.num_layers);
        let blocks = of_microbatch * 2 * 3;
        let [first, second] = philox::draw_key("dropout-stream", contract.seeds.dropout.0);
        let text = |blocks| format!(r#"{{"blocks":{blocks},"key":[{first},{second}],"step":3}}"#);
        check(rng_cpu(&contract, 0, 3), &text(blocks));
        check(rng_cpu_inside(&contract, 0, 3, 1), &text(blocks + of_microbatch));
        assert_eq!(rng_cpu(&contract, 0, u64::MAX), None);
    }

    #[test]
    fn threads_and_instrumentation_do_not_enter_the_plan() {
        let mut plan = crate::fixture::plan(&contract());
        let first = compiler_plan(&plan);
        plan.num_threads += 3;
        plan.instrumentation.push("failpoints".to_owned());
        assert_eq!(compiler_plan(&plan), first);
        plan.compiler.autotune = !plan.compiler.autotune;
        assert_ne!(compiler_plan(&plan), first);
    }

    #[test]
    fn a_class_digest_binds_paths_and_contents() {
        let (a, b) = (Digest::blake3([1; 32]), Digest::blake3([2; 32]));
        let mut text = b"x\0".to_vec();
        text.extend([1; 32]);
        assert_eq!(class_digest([("x", &a)]).bytes, *blake3::hash(&text).as_bytes());
        assert_ne!(class_digest([("x", &a), ("y", &b)]), class_digest([("x", &b), ("y", &a)]));
    }
}
