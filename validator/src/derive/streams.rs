//! Where streams of dropout masks stand: keys of workers, and the blocks that
//! microbatches draw (`docs/FORMAT.md`, "Dropout").

use schemas::contract::{Architecture, Contract};

use super::philox;

/// Philox blocks that the masks of one microbatch take: two branches of each
/// layer; `None` where the arithmetic leaves 64 bits.
#[must_use]
pub fn blocks_of_microbatch(contract: &Contract) -> Option<u64> {
    let Architecture::LlamaDecoder(decoder) = &contract.architecture;
    let tokens =
        u64::from(contract.batch.microbatch_examples).checked_mul(u64::from(decoder.context_length))?;
    let words = tokens.checked_mul(u64::from(decoder.hidden_size))?;
    words.div_ceil(4).checked_mul(2 * u64::from(decoder.num_layers))
}

/// Blocks that each worker's stream has given after `step` updates and so many
/// microbatches of the next one; `None` where the arithmetic leaves 64 bits.
#[must_use]
pub fn blocks(contract: &Contract, step: u64, microbatches: u32) -> Option<u64> {
    let whole = step.checked_mul(u64::from(contract.batch.accumulation))?;
    whole.checked_add(u64::from(microbatches))?.checked_mul(blocks_of_microbatch(contract)?)
}

/// Key of a worker's stream; worker 0's is that of the only process.
#[must_use]
pub fn key(contract: &Contract, worker: u32) -> [u32; 2] {
    let seed = contract.seeds.dropout.0;
    match worker {
        0 => philox::draw_key("dropout-stream", seed),
        worker => philox::draw_key(&format!("dropout-stream:{worker}"), seed),
    }
}

/// The streams that a checkpoint holds: whose each is and the file's name. One
/// without a worker where one process executes the contract.
#[must_use]
pub fn files(contract: &Contract) -> Vec<(Option<u32>, String)> {
    match contract.topology.workers {
        0 | 1 => vec![(None, "rng_cpu.json".to_owned())],
        workers => (0..workers).map(|worker| (Some(worker), format!("rng_cpu.{worker}.json"))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::contract;

    #[test]
    fn workers_have_keys_and_files_of_their_own() {
        let mut contract = contract();
        assert_eq!(files(&contract), [(None, "rng_cpu.json".to_owned())]);
        contract.topology.workers = 3;
        let names: Vec<String> = files(&contract).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["rng_cpu.0.json", "rng_cpu.1.json", "rng_cpu.2.json"]);
        let keys = [0, 1, 2, 11].map(|worker| key(&contract, worker));
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{keys:?}");
        }
        assert_eq!(keys[0], philox::draw_key("dropout-stream", contract.seeds.dropout.0));
    }

    #[test]
    fn blocks_are_counted_by_microbatch() {
        let contract = contract();
        let one = blocks_of_microbatch(&contract).expect("small");
        assert_eq!(blocks(&contract, 3, 1), Some(one * 7));
        assert_eq!(blocks(&contract, u64::MAX, 0), None);
    }
}
