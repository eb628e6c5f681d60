//! A saved stream of masks stands where the executed microbatches brought it.

use schemas::contract::{Contract, FaultKind, MidAccumulation};
use schemas::entry::Entry;
use schemas::report::Route;
use schemas::state::StateClass;
use serde::Deserialize;

use crate::derive::streams;
use crate::evidence::{Evidence, describe};
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Checkpoints, Committed, declare_rule};
use crate::rules::updates::tensors;

declare_rule!(
    /// `GL633`.
    StreamPositions,
    {
        code: "GL633",
        name: "random-stream-position",
        what: "The stream of dropout masks that a checkpoint holds, of each worker, has given as many blocks as the microbatches up to \
               its step and place draw, and has that worker's key. A stream that stands where it would if it had begun again is said \
               to have been lost.",
        why: "A stream that begins again drops the same elements once more, and no loss shows it.",
        remedy: "None for a finished run. Save and restore the stream of every worker with everything else.",
        reference: "docs/FORMAT.md, \"Dropout\"",
        gate: Route::RequestStateInventory,
    }
);

/// Largest state file that is read: it has three members.
const MAX_STATE_BYTES: u64 = 4096;

/// A file of the class.
#[derive(Deserialize)]
struct Stream {
    blocks: u64,
    key: [u32; 2],
}

/// What of an unfinished update a checkpoint says that it holds.
#[derive(Deserialize)]
struct Window {
    microbatches: u32,
}

struct Positions<'a> {
    checkpoints: Checkpoints,
    contract: &'a Contract,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Positions { checkpoints: Checkpoints::default(), contract: &frozen.contract })
}

/// Reads a JSON file of a checkpoint; errors in words.
fn read<T: for<'de> Deserialize<'de>>(evidence: &Evidence, path: &str) -> Result<T, String> {
    let bytes = evidence.read(path, MAX_STATE_BYTES).map_err(|error| describe(&error))?;
    serde_json::from_slice(&bytes).map_err(|error| format!("{path}: {error}"))
}

/// In words what a position says that is not the one that was reached, and the
/// family that leaves it.
fn judge(contract: &Contract, expected: u64, actual: u64) -> (String, Option<FaultKind>) {
    let lost = Some(FaultKind::RngStateLoss);
    if actual == 0 {
        return ("stands at its beginning".to_owned(), lost);
    }
    let of_microbatch = streams::blocks_of_microbatch(contract).filter(|blocks| *blocks > 0);
    let since = of_microbatch.filter(|blocks| actual < expected && actual.is_multiple_of(*blocks));
    match since {
        Some(blocks) => (format!("stands where {} microbatches bring it", actual / blocks), lost),
        None => ("is at another place".to_owned(), None),
    }
}

impl Positions<'_> {
    /// Streams that were looked at; errors in words.
    fn check(
        &self,
        evidence: &Evidence,
        step: u64,
        committed: &Committed,
        sink: &mut Sink,
    ) -> Result<u64, String> {
        let manifest = tensors::manifest(evidence, committed)?;
        let microbatches = match self.contract.checkpoints.mid_accumulation {
            MidAccumulation::RoundToBoundary => 0,
            MidAccumulation::SaveGradients => {
                let path = format!("{}/accumulated_gradients.json", committed.path);
                read::<Window>(evidence, &path)?.microbatches
            }
        };
        let Some(blocks) = streams::blocks(self.contract, step, microbatches) else {
            return Err(format!("the position of step {step} leaves 64 bits"));
        };
        let mut num_streams = 0;
        for (worker, name) in streams::files(self.contract) {
            // That it is missing is said where classes are listed.
            if tensors::shard(&manifest, StateClass::RngCpu, &name).is_none() {
                continue;
            }
            num_streams += 1;
            let path = format!("{}/{name}", committed.path);
            let stream: Stream = read(evidence, &path)?;
            let whose =
                worker.map_or("the stream".to_owned(), |worker| format!("the stream of worker {worker}"));
            if stream.blocks != blocks {
                let (words, cause) = judge(self.contract, blocks, stream.blocks);
                let at = At::place(format!("{path}#/blocks")).cause(cause);
                sink.rejected(at, format!("{whose} {words} at step {step}"), blocks, stream.blocks);
            }
            let key = streams::key(self.contract, worker.unwrap_or(0));
            if stream.key != key {
                let at = At::place(format!("{path}#/key"));
                let message = format!("{whose} has another key");
                sink.rejected(at, message, format!("{key:?}"), format!("{:?}", stream.key));
            }
        }
        Ok(num_streams)
    }
}

impl Check for Positions<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let declared = &self.contract.state_classes;
        if !declared.iter().any(|of| of.class == StateClass::RngCpu && of.not_applicable.is_none()) {
            return Outcome::NotApplicable("the contract captures no stream".to_owned());
        }
        let mut num_checked = 0;
        for (_, checkpoint, committed) in self.checkpoints.committed() {
            if checkpoint.is_unusable || checkpoint.validated.is_none() {
                continue;
            }
            match self.check(evidence, checkpoint.step, committed, sink) {
                Ok(num_streams) => num_checked += num_streams,
                Err(reason) => return Outcome::NotEvaluated(reason),
            }
        }
        if num_checked == 0 {
            return Outcome::NotEvaluated("no checkpoint with a stream is whole".to_owned());
        }
        Outcome::Checked(num_checked)
    }
}
