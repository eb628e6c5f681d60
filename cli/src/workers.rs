//! `ledger init --workers N`: the preset's global batch, shared by several
//! worker processes.

use schemas::parameters::{ParameterManifest, ParameterStatus};
use serde_json::{Value, json};

use crate::failure::Failure;

/// Milliseconds between two signs of life.
const HEARTBEAT_MS: u64 = 500;
/// Milliseconds that a worker may be silent: far more than an update of a
/// preset takes on a busy machine.
const TIMEOUT_MS: u64 = 60_000;
/// Steps between two comparisons of replicas.
const DIGEST_EVERY_STEPS: u64 = 50;

/// Bytes of two frames' headers, and of what a share says before its examples
/// (`docs/FORMAT.md`, "Exchange").
const FRAME_BYTES: u64 = 2 * 56 + 16;
/// Bytes of an example's id and number of targets.
const EXAMPLE_BYTES: u64 = 36;
/// Bytes of a binary32 or a count.
const WORD_BYTES: u64 = 4;

/// Shares the global batch by so many workers: fewer microbatches for each, or
/// smaller ones where there are too few.
pub(crate) fn share(contract: &mut Value, num_workers: u16) -> Result<(), Failure> {
    let workers = u64::from(num_workers);
    if workers == 1 {
        return Ok(());
    }
    let count = |name: &str| contract["batch"][name].as_u64().unwrap_or(0);
    let (accumulation, global) = (count("accumulation"), count("global_examples"));
    let (accumulation, microbatch) = if accumulation.is_multiple_of(workers) {
        (accumulation / workers, count("microbatch_examples"))
    } else if global.is_multiple_of(workers) {
        (1, global / workers)
    } else {
        return Err(Failure::new(
            format!("--workers {workers}: the global batch of {global} examples cannot be shared evenly"),
            "name a number that divides it",
        ));
    };
    contract["batch"]["accumulation"] = json!(accumulation);
    contract["batch"]["data_parallel"] = json!(workers);
    contract["batch"]["microbatch_examples"] = json!(microbatch);
    contract["topology"]["workers"] = json!(workers);
    contract["topology"]["collective"] = json!({
        "heartbeat_ms": HEARTBEAT_MS, "replica_digest_every_steps": DIGEST_EVERY_STEPS, "timeout_ms": TIMEOUT_MS,
    });
    Ok(())
}

/// Compares replicas at least once in a run that edits made shorter than the
/// cadence that [`share`] gave; one that somebody chose stays as it is.
pub(crate) fn fit_digests(contract: &mut Value) {
    const CADENCE: &str = "/topology/collective/replica_digest_every_steps";
    let number = |pointer: &str| contract.pointer(pointer).and_then(Value::as_u64);
    let stopping = number("/stopping/step").or_else(|| number("/stopping/max_step"));
    let last = stopping.into_iter().chain(number("/budget/max_steps")).min();
    if let (Some(DIGEST_EVERY_STEPS), Some(last @ 1..DIGEST_EVERY_STEPS)) = (number(CADENCE), last)
        && let Some(cadence) = contract.pointer_mut(CADENCE)
    {
        *cadence = json!(last);
    }
}

/// What workers of a contract exchange, as its policy card says it.
pub(crate) fn communication(contract: &Value) -> &'static str {
    if contract["topology"]["workers"].as_u64().unwrap_or(1) > 1 { "all_reduce" } else { "none" }
}

/// Fills in what a worker sends for one update, where nobody said.
pub(crate) fn fill_traffic(contract: &mut Value, parameters: &ParameterManifest) {
    let number = |pointer: &str| contract.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let workers = number("/topology/workers");
    if workers <= 1 || number("/expected/communication_bytes_per_step") > 0 {
        return;
    }
    let trained = parameters
        .parameters
        .iter()
        .filter(|parameter| parameter.status == ParameterStatus::Trainable && parameter.tied_to.is_none());
    let elements: u64 = trained.map(|parameter| parameter.shape.iter().product::<u64>()).sum();
    let accumulation = number("/batch/accumulation");
    // A range of microbatches is at most so many powers of two on either side.
    let num_blocks = 2 * u64::from(accumulation.max(1).ilog2()) + 1;
    let sums = num_blocks.min(accumulation).saturating_mul(WORD_BYTES + elements.saturating_mul(WORD_BYTES));
    let context = number("/architecture/context_length");
    let example = EXAMPLE_BYTES + (context + 1) + context.saturating_mul(WORD_BYTES);
    let examples = accumulation.saturating_mul(number("/batch/microbatch_examples")).saturating_mul(example);
    contract["expected"]["communication_bytes_per_step"] = json!(sums + examples + FRAME_BYTES);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(num_workers: u16) -> Result<[u64; 4], Failure> {
        let mut contract = json!({
            "batch": {"accumulation": 6, "data_parallel": 1, "global_examples": 24, "microbatch_examples": 4},
            "topology": {"workers": 1},
        });
        share(&mut contract, num_workers)?;
        let batch = &contract["batch"];
        let fields = ["accumulation", "data_parallel", "global_examples", "microbatch_examples"];
        let fields = fields.map(|field| batch[field].as_u64().unwrap_or(0));
        assert_eq!(contract["topology"]["workers"], u64::from(num_workers));
        assert_eq!(contract["topology"].get("collective").is_some(), num_workers > 1);
        assert_eq!(fields[0] * fields[1] * fields[3], fields[2]);
        Ok(fields)
    }

    #[test]
    fn replicas_are_compared_in_a_short_run_too() {
        let fitted = |max_steps: u64, every: u64| {
            let mut contract = json!({
                "budget": {"max_steps": max_steps},
                "stopping": {"kind": "at_step", "step": 100},
                "topology": {"collective": {"replica_digest_every_steps": every}},
            });
            fit_digests(&mut contract);
            contract["topology"]["collective"]["replica_digest_every_steps"].clone()
        };
        assert_eq!(fitted(100, DIGEST_EVERY_STEPS), DIGEST_EVERY_STEPS);
        assert_eq!(fitted(8, DIGEST_EVERY_STEPS), 8);
        assert_eq!(fitted(8, 60), 60, "somebody chose it; the freeze says what is wrong");
    }

    #[test]
    fn the_global_batch_stays() {
        assert_eq!(shared(1).expect("unchanged"), [6, 1, 24, 4]);
        assert_eq!(shared(2).expect("shared"), [3, 2, 24, 4]);
        assert_eq!(shared(3).expect("shared"), [2, 3, 24, 4]);
        assert_eq!(shared(8).expect("smaller microbatches"), [1, 8, 24, 3]);
        assert!(shared(5).is_err(), "24 examples are not shared by 5");
    }
}
