//! One segment: restored from its checkpoint, executed to its end, and described
//! as a run would have recorded it.
//!
//! The ledger and the checkpoints are somebody else's: no path of theirs is followed
//! out of the ledger's folder or through a link, and no file is read without a limit.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use schemas::body::ClassDistance;
use schemas::challenge::{
    CommittedState, ReplayedSegment, ReplayedShard, ReplayedState, ReplayedStep, Segment,
};
use schemas::contract::{EquivalenceClass, MidAccumulation};
use schemas::model_index::MODEL_INDEX_NAME;
use schemas::state::StateClass;
use serde_json::Value;

use crate::checkpoint::locate::RecordedCheckpoint;
use crate::checkpoint::validate::{self, Expected, MAX_MANIFEST_BYTES};
use crate::checkpoint::{self, CheckpointError, WINDOW_NAME, below, manifest};
use crate::distance::{self, Measure};
use crate::engine::Engine;
use crate::engine::window::WindowState;
use crate::export::{self, NamedTensor};
use crate::probe::error::ProbeError;
use crate::probe::state_bytes::{StateBytes, digest_of};
use crate::probe::walk::{Setting, Trajectory};
use crate::run::calendar;
use crate::run::error::{RunError, chain};
use crate::run::history::{History, Progress};
use crate::run::refusal::Refusal;
use crate::run::resume::{self, ResumeState};
use crate::state::{SelectionTracker, StateError};

use super::room::Room;
use super::{Process, ReplayError};

/// How much longer a document of the checkpoint may be than that of the replay:
/// numbers are written with more or fewer digits.
const SLACK_BYTES: u64 = 1 << 20;

/// How much larger than the initial state the files of a checkpoint may be, but
/// for the sums of an unfinished update: numbers grow in its documents.
const MAX_GROWTH: u64 = 4;

/// The most bytes that a checkpoint of this contract may have, by its state at the
/// beginning. Whoever recorded the run chose what its manifests and files say, and a
/// file may be longer than anything that was ever written to its disk.
pub(super) fn max_checkpoint_bytes(initial: &Engine, setting: &Setting<'_>) -> Result<u64, ProbeError> {
    let contract = setting.contract();
    let selection = SelectionTracker::new(contract).ok_or_else(|| Refusal::Unsupported {
        pointer: "/selection/stream",
        found: contract.selection.stream.clone(),
    })?;
    let plan = (setting.plan(), setting.num_workers);
    let state = StateBytes::capture(initial, contract, plan, selection.state())?;
    let shards = state.iter().flat_map(|(_, shards)| shards.values());
    let num_bytes = shards.fold(0u64, |sum, bytes| sum.saturating_add(bytes.len() as u64));
    Ok(limit(num_bytes, initial.num_gradient_bytes() as u64, calendar::max_sums(contract)))
}

/// The most bytes of a checkpoint whose initial state has so many, with so many
/// sums of gradients of so many bytes.
const fn limit(initial_bytes: u64, sum_bytes: u64, num_sums: u64) -> u64 {
    let of_sums = sum_bytes.saturating_mul(num_sums);
    initial_bytes.saturating_mul(MAX_GROWTH).saturating_add(of_sums).saturating_add(SLACK_BYTES)
}

/// Refuses a checkpoint by its manifest before its files are read into memory.
fn check_size(process: &Process<'_>, folder: &Path, start: &RecordedCheckpoint) -> Result<(), String> {
    let frozen = process.setting.frozen;
    let expected = Expected {
        checkpoint: &start.checkpoint,
        contract: frozen.digest,
        manifest: start.manifest,
        run: &frozen.run,
        step: start.step,
    };
    let manifest = validate::read_manifest(folder, &expected).map_err(|error| chain(&error))?;
    let shards = manifest.classes.iter().flat_map(|captured| &captured.shards);
    let num_bytes = shards.fold(0u64, |sum, shard| sum.saturating_add(shard.num_bytes));
    let most = process.max_checkpoint_bytes;
    if num_bytes <= most {
        return Ok(());
    }
    Err(format!(
        "{}: its files have {num_bytes} bytes, and a state of this contract has at most {most}; none of them is read",
        folder.display()
    ))
}

/// A segment that was not executed.
pub(super) fn failed(drawn: &Segment, failure: String) -> ReplayedSegment {
    ReplayedSegment { end: None, failure: Some(failure), number: drawn.number, steps: Vec::new() }
}

/// Restores the segment's first state into an engine at the initial state, and
/// executes its updates. `room` is what the replay may still grow by.
pub(super) fn execute(
    process: &Process<'_>,
    mut engine: Engine,
    drawn: &Segment,
    room: &mut Room,
) -> Result<ReplayedSegment, ReplayError> {
    let Process { folder, history, setting, whole, .. } = process;
    let contract = setting.contract();
    let start = match recorded(history, whole, &drawn.start) {
        Ok(start) => start,
        Err(reason) => return Ok(failed(drawn, reason)),
    };
    let start_folder = match below::resolve(folder, &start.path) {
        Ok(start_folder) => start_folder,
        Err(error) => return Ok(failed(drawn, format!("{}: {error}", start.path))),
    };
    if let Err(reason) = check_size(process, &start_folder, &start) {
        return Ok(failed(drawn, reason));
    }
    let end = history.checkpoints.get(&drawn.end.checkpoint);
    let Some(end) = end.filter(|end| end.step == drawn.end.step && drawn.end.step > drawn.start.step) else {
        return Ok(failed(drawn, format!("the ledger has no {} behind it", drawn.end.checkpoint)));
    };
    let resume = resume::decide_among(setting.frozen, history, folder, vec![start])?;
    if let Some(unusable) = resume.unusable.first() {
        return Ok(failed(drawn, chain(&unusable.error)));
    }
    resume.restore(&mut engine, contract, setting.plan())?;
    let ResumeState { selection, step: first, .. } = resume;
    let end_folder = match end.committed.as_ref().map(|committed| found(folder, committed)).transpose() {
        Ok(end_folder) => end_folder.flatten(),
        Err(reason) => return Ok(failed(drawn, reason)),
    };
    let inside = microbatches_at(process, end_folder.as_deref(), drawn.end.step)?;
    let mut trajectory = Trajectory::new(setting, engine, StateBytes::default(), selection);
    let mut steps = Vec::new();
    for step in first + 1..=drawn.end.step {
        trajectory.executed_by(workers_at(history, step, contract.topology.workers));
        let is_end = step == drawn.end.step;
        let done = trajectory.advance(step, true, false, if is_end { inside } else { 0 })?;
        let Some(det) = done.step_det() else { continue };
        let mut evaluations = done.evaluations;
        evaluations.sort_by(|left, right| left.stream.cmp(&right.stream));
        let replayed = ReplayedStep { det, evaluations, step };
        room.step(&replayed)?;
        steps.push(replayed);
    }
    // The attempt that saved the state may be another than executed the update.
    let saver = history.num_workers_of(end.attempt).unwrap_or(contract.topology.workers);
    trajectory.executed_by(saver);
    let state = trajectory.state()?;
    let end = describe(process, &state, (drawn.end.step, inside), end_folder.as_deref())?;
    room.state(&end)?;
    Ok(ReplayedSegment { end: Some(end), failure: None, number: drawn.number, steps })
}

/// The folder of a checkpoint, where it is there; why not, where it is none that
/// may be read.
fn found(folder: &Path, committed: &RecordedCheckpoint) -> Result<Option<PathBuf>, String> {
    match below::resolve(folder, &committed.path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", committed.path)),
    }
}

/// The checkpoint that the challenge names, as the ledger records it below the
/// head, if a run could go on from it there and its files were not given away since.
fn recorded(
    history: &History,
    whole: &History,
    named: &CommittedState,
) -> Result<RecordedCheckpoint, String> {
    let checkpoint = &named.checkpoint;
    let known = history.checkpoints.get(checkpoint);
    let known = known.ok_or_else(|| format!("the ledger knows no checkpoint {checkpoint}"))?;
    let since = whole.checkpoints.get(checkpoint).map_or(known.progress, |known| known.progress);
    match (known.progress, since) {
        (_, Progress::Retired) => return Err(format!("{checkpoint} was retired since")),
        (Progress::Validated | Progress::Qualified, Progress::Validated | Progress::Qualified) => {}
        _ => return Err(format!("{checkpoint} is not validated, or was given up")),
    }
    let committed = known.committed.as_ref();
    let is_it = |known: &&RecordedCheckpoint| known.manifest == named.manifest && known.step == named.step;
    committed
        .filter(is_it)
        .cloned()
        .ok_or_else(|| format!("{checkpoint} is another one than the challenge names"))
}

/// Workers of the attempt that executed a step of the logical run: of the latest
/// below the head that came to it.
fn workers_at(history: &History, step: u64, of_contract: u32) -> u32 {
    let mut attempts = history.attempts.iter().rev();
    let executed = attempts.find(|attempt| attempt.from_step < step && step <= attempt.last_step);
    executed.map_or(of_contract, |attempt| attempt.num_workers)
}

/// Microbatches of the next update that the state at the segment's end holds: as
/// its own file says, else as the contract has them saved.
fn microbatches_at(process: &Process<'_>, folder: Option<&Path>, step: u64) -> Result<u32, ProbeError> {
    let contract = process.setting.contract();
    if contract.checkpoints.mid_accumulation != MidAccumulation::SaveGradients {
        return Ok(0);
    }
    let read = |folder: &Path| match below::read(folder, WINDOW_NAME, MAX_MANIFEST_BYTES) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(RunError::from(CheckpointError::io("read", folder.join(WINDOW_NAME))(error))),
    };
    let Some(bytes) = folder.map(read).transpose()?.flatten() else {
        let is_last = process.setting.end_step == Some(step);
        return Ok(contract.checkpoints.after_microbatches.filter(|_| step > 0 && !is_last).unwrap_or(0));
    };
    let state: WindowState = serde_json::from_slice(&bytes).map_err(|error| StateError::Shape {
        class: StateClass::AccumulatedGradients,
        reason: error.to_string(),
    })?;
    // More would go on into the update behind it.
    let most = contract.batch.accumulation.saturating_sub(1);
    Ok(state.microbatches.min(most))
}

fn describe(
    process: &Process<'_>,
    state: &StateBytes,
    (step, microbatches): (u64, u32),
    folder: Option<&Path>,
) -> Result<ReplayedState, ProbeError> {
    let contract = process.setting.contract();
    let recorded = state.recorded(contract)?;
    let shards = state.iter().flat_map(|(class, shards)| {
        shards.iter().map(move |(path, bytes)| ReplayedShard {
            class,
            digest: digest_of(bytes),
            path: path.clone(),
        })
    });
    let is_bitwise = [contract.numerics.determinism, contract.resume.class]
        .iter()
        .all(|class| *class == EquivalenceClass::Bitwise);
    let bound = contract.resume.tolerance.as_ref().map_or(0.0, |tolerance| tolerance.max_relative);
    let distances = match folder {
        Some(folder) if !is_bitwise => {
            let of = |(class, shards)| class_distance(folder, class, shards, (bound, step));
            state.iter().filter_map(of).collect()
        }
        _ => Vec::new(),
    };
    Ok(ReplayedState {
        classes: recorded.digests,
        distances,
        microbatches,
        shards: shards.collect(),
        state_root: recorded.root,
    })
}

/// How far a class is from the files of a checkpoint; none where one of them
/// cannot be read, or is far longer than what was replayed.
fn class_distance(
    folder: &Path,
    class: StateClass,
    shards: &BTreeMap<String, Vec<u8>>,
    (bound, step): (f64, u64),
) -> Option<ClassDistance> {
    let mut total = Measure::default();
    let mut first_tensor = None;
    let mut digests = Vec::new();
    for (path, replayed) in shards {
        let limit = (replayed.len() as u64).saturating_mul(2).saturating_add(SLACK_BYTES);
        let saved = below::read(folder, path, limit).ok()?;
        digests.push((path.as_str(), digest_of(&saved)));
        // An index only names the files beside it.
        if saved == *replayed || path == MODEL_INDEX_NAME && shards.len() > 1 {
            continue;
        }
        let (measure, place) = if path.ends_with(".safetensors") {
            distance::tensors(&tensors(path, &saved)?, &tensors(path, replayed)?, bound)
        } else {
            let document = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
            let (measure, pointer) = distance::json(&document(&saved)?, &document(replayed)?, bound);
            (measure, pointer.map(|pointer| format!("{path}{pointer}")))
        };
        first_tensor = first_tensor.or(place);
        total.add(step, &measure);
    }
    let of = |bytes: &Vec<u8>| digest_of(bytes);
    Some(ClassDistance {
        class,
        distance: total.distance(),
        equal: total.is_zero(),
        first_tensor,
        reference: manifest::class_digest(digests),
        resumed: manifest::class_digest(shards.iter().map(|(path, bytes)| (path.as_str(), of(bytes)))),
    })
}

fn tensors(path: &str, bytes: &[u8]) -> Option<Vec<NamedTensor>> {
    let mut reader = bytes;
    export::read(checkpoint::file_kind(path), &mut reader, bytes.len() as u64)
        .ok()
        .map(|(tensors, _)| tensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a parameter in a checkpoint: its value and two moments.
    const OF_PARAMETER: u64 = 12;
    /// Bytes of it in one sum of gradients.
    const OF_SUM: u64 = 4;

    /// Windows of up to so many microbatches have as many sums as their number has
    /// binary digits, and all of them one before a power of two.
    #[test]
    fn an_honest_checkpoint_of_a_long_window_is_within_the_limit() {
        let num_parameters: u64 = 1 << 24;
        let (initial, of_sum) = (num_parameters * OF_PARAMETER, num_parameters * OF_SUM);
        for num_sums in 0..=u64::from(u32::BITS) {
            let honest = initial + num_sums * of_sum;
            let limit = limit(initial, of_sum, num_sums);
            assert!(honest <= limit, "{num_sums} sums: {honest} bytes, and {limit} allowed");
            assert!(limit < MAX_GROWTH * honest + 2 * SLACK_BYTES, "{num_sums} sums: {limit} limits nothing");
        }
        // A window of 1024 microbatches has up to ten, which growth alone leaves no room for.
        assert!(limit(initial, 0, 0) < initial + 10 * of_sum);
    }
}
