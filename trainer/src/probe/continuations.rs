//! Repeated continuations of one state, one by each seed of the contract's
//! equivalence test.
//!
//! Both sides of a pair begin at the checkpoint's step: the uninterrupted
//! trajectory from a clone of its engine, which has been through no capture and
//! no restore, the resumed one from a clone of what was restored. From there
//! both draw by the seed what the test varies.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use schemas::body::{Continuation, SeedPair};
use schemas::contract::{Contract, EquivalenceClass, EquivalenceMetric, EquivalenceTest};
use schemas::digest::Digest;
use schemas::number::{DecimalU64, Float};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::error::ProbeError;
use super::walk::{Trajectory, interrupted};

/// Name of the file beside the transcript.
const FILE_NAME: &str = "continuations.jsonl";

/// One line of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    continuation: Continuation,
    seed: DecimalU64,
}

/// The test that a statistical claim is judged by; none in any other class.
#[must_use]
pub fn test(contract: &Contract) -> Option<&EquivalenceTest> {
    contract.resume.test.as_ref().filter(|_| contract.resume.class == EquivalenceClass::Statistical)
}

/// Continues the state of step `first` by every seed and leaves what each came
/// to in `folder`.
///
/// # Errors
/// When data, device or folder fail, or a signal came.
pub(super) fn write(trajectory: &Trajectory<'_>, first: u64, folder: &Path) -> Result<(), ProbeError> {
    let setting = trajectory.setting;
    let Some(test) = test(setting.contract()) else { return Ok(()) };
    let path = folder.join(FILE_NAME);
    let mut file = File::create_new(&path).map_err(ProbeError::io("create", &path))?;
    for (number, seed) in (1..).zip(&test.seeds) {
        setting.console.note(&format!("Seed {} ({number} of {})", seed.0, test.seeds.len()));
        let line = Line { continuation: continuation(trajectory.clone(), test, first, *seed)?, seed: *seed };
        let mut bytes = ledger::canonical::entry_json(&line)
            .map_err(|error| ProbeError::Transcript { path: path.clone(), reason: error.to_string() })?;
        bytes.push(b'\n');
        file.write_all(&bytes).map_err(ProbeError::io("write", &path))?;
    }
    Ok(())
}

fn continuation(
    mut fork: Trajectory<'_>,
    test: &EquivalenceTest,
    first: u64,
    seed: DecimalU64,
) -> Result<Continuation, ProbeError> {
    let setting = fork.setting;
    let contract = setting.contract();
    fork.engine.vary(contract, &test.varies, seed.0);
    let mut ids = Sha256::new();
    let mut value = f64::NAN;
    for offset in 1..=test.num_steps {
        let step = first + offset;
        let done = fork.advance(step, true, false, 0)?;
        if let Some(outcome) = &done.outcome {
            for draw in &outcome.draws {
                ids.update(format!("{step} {}\n", draw.ids));
            }
            value = outcome.loss;
        }
        if test.metric == EquivalenceMetric::Evaluation && offset == test.num_steps {
            let due =
                done.evaluations.iter().find(|evaluation| evaluation.stream == contract.selection.stream);
            value = match due {
                Some(evaluation) => evaluation.value.0,
                None => evaluate(&fork)?,
            };
        }
    }
    Ok(Continuation { ids: Digest::sha256(ids.finalize().into()), value: Float(value) })
}

/// Value of the stream that candidates are selected by, where it is not due.
fn evaluate(fork: &Trajectory<'_>) -> Result<f64, ProbeError> {
    let setting = fork.setting;
    let contract = setting.contract();
    let name = &contract.selection.stream;
    let stream = contract.evaluation.streams.iter().find(|stream| stream.name == *name);
    let stream = stream.ok_or_else(|| crate::run::refusal::Refusal::Unsupported {
        pointer: "/selection/stream",
        found: name.clone(),
    })?;
    let outcome = fork.engine.evaluate(stream, setting.interrupt.flag())?;
    Ok(outcome.ok_or_else(|| interrupted(&setting.interrupt))?.value)
}

/// Pairs what a reference and a resumed trajectory left, in the test's order.
///
/// # Errors
/// [`ProbeError::Io`], and [`ProbeError::Transcript`] where a seed is missing.
pub fn pairs(test: &EquivalenceTest, reference: &Path, resumed: &Path) -> Result<Vec<SeedPair>, ProbeError> {
    let (reference, resumed) = (read(test, reference)?, read(test, resumed)?);
    let pairs = test.seeds.iter().zip(reference.into_iter().zip(resumed));
    Ok(pairs.map(|(seed, (reference, resumed))| SeedPair { reference, resumed, seed: *seed }).collect())
}

fn read(test: &EquivalenceTest, folder: &Path) -> Result<Vec<Continuation>, ProbeError> {
    let path = folder.join(FILE_NAME);
    let refuse = |reason: String| ProbeError::Transcript { path: path.clone(), reason };
    let file = File::open(&path).map_err(ProbeError::io("open", &path))?;
    let mut lines = Vec::new();
    for text in BufReader::new(file).lines() {
        let text = text.map_err(ProbeError::io("read", &path))?;
        lines.push(serde_json::from_str::<Line>(&text).map_err(|error| refuse(error.to_string()))?);
    }
    if !lines.iter().map(|line| line.seed).eq(test.seeds.iter().copied()) {
        return Err(refuse(format!(
            "it has {} continuations, expected the {} seeds",
            lines.len(),
            test.seeds.len()
        )));
    }
    Ok(lines.into_iter().map(|line| line.continuation).collect())
}
