//! Compares two transcripts step by step, class by class: digests first, and
//! the shards themselves only where digests differ.

use std::fs;
use std::path::Path;

use schemas::body::{ClassDistance, RecordDistance, RecordField};
use schemas::model_index::MODEL_INDEX_NAME;
use schemas::state::StateClass;
use serde::Serialize;
use serde_json::Value;

use crate::checkpoint;
use crate::distance::{self, Measure};
use crate::export::{self, FileKind, NamedTensor};
use crate::run::error::chain;
use crate::state::StateError;

use super::error::ProbeError;
use super::transcript::{ClassState, Records, Transcript};

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// By captured class.
    pub distances: Vec<ClassDistance>,
    /// The earliest difference; `None` where everything is equal.
    pub first: Option<FirstDifference>,
    /// By part of the step records.
    pub records: Vec<RecordDistance>,
}

/// The earliest difference, for people. At one step classes come first, in
/// their order, then parts of the step records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FirstDifference {
    /// Largest absolute difference there.
    pub max_absolute: schemas::number::Float,
    /// Largest relative difference there.
    pub max_relative: schemas::number::Float,
    /// Largest difference there in units of the last place.
    pub max_ulp: u64,
    /// The step.
    pub step: u64,
    /// The tensor, or place in a JSON document.
    pub tensor: String,
    /// A state class, or `step record` and its part.
    pub what: String,
}

/// Which steps are compared, and how.
#[derive(Debug, Clone, Copy)]
pub struct Scope {
    /// Largest relative difference that the contract allows; 0 where none.
    pub bound: f64,
    /// First number of updates whose state is compared: 0, or 1 for a control,
    /// whose state differs at 0 by construction.
    pub first_offset: u64,
    /// The checkpoint's step.
    pub step: u64,
}

/// Compares a resumed trajectory with its reference.
///
/// # Errors
/// When a shard that differs cannot be read back.
pub fn compare(reference: &Transcript, resumed: &Transcript, scope: Scope) -> Result<Comparison, ProbeError> {
    let mut first: Option<FirstDifference> = None;
    let mut keep = |step: u64, what: &str, tensor: &str, measure: &Measure| {
        if first.as_ref().is_none_or(|known| step < known.step) {
            let distance = measure.distance();
            first = Some(FirstDifference {
                max_absolute: distance.max_absolute,
                max_relative: distance.max_relative,
                max_ulp: distance.max_ulp,
                step,
                tensor: tensor.to_owned(),
                what: what.to_owned(),
            });
        }
    };
    let mut distances = Vec::new();
    let last_offset = reference.lines.last().map_or(0, |line| line.offset);
    let classes = reference.lines.last().into_iter().flat_map(|line| &line.classes);
    for class in classes.map(|state| state.class) {
        let mut total = Measure::default();
        let mut first_tensor = None;
        for offset in scope.first_offset..=last_offset {
            let step = scope.step + offset;
            let (measure, tensor) = class_distance(reference, resumed, offset, class, scope.bound)?;
            if let Some(tensor) = tensor {
                keep(step, class.name(), &tensor, &measure);
                first_tensor.get_or_insert(tensor);
            }
            total.add(step, &measure);
        }
        let digest =
            |transcript: &Transcript| state(transcript, last_offset, class).map(|state| state.digest);
        distances.push(ClassDistance {
            class,
            distance: total.distance(),
            equal: total.is_zero(),
            first_tensor,
            reference: digest(reference)?,
            resumed: digest(resumed)?,
        });
    }
    let mut records = Vec::new();
    for record in RecordField::ALL {
        let mut total = Measure::default();
        for (left, right) in reference.lines.iter().zip(&resumed.lines) {
            let step = scope.step + left.offset;
            let (measure, place) =
                record_distance(record, left.records.as_ref(), right.records.as_ref(), scope);
            if !measure.is_zero() {
                let name = format!("step record {}", record.name());
                keep(step, &name, place.as_deref().unwrap_or_default(), &measure);
            }
            total.add(step, &measure);
        }
        records.push(RecordDistance { distance: total.distance(), equal: total.is_zero(), record });
    }
    Ok(Comparison { distances, first, records })
}

fn record_distance(
    record: RecordField,
    reference: Option<&Records>,
    resumed: Option<&Records>,
    scope: Scope,
) -> (Measure, Option<String>) {
    let part = |records: Option<&Records>| {
        let Some(records) = records else { return Value::Null };
        let value = match record {
            RecordField::Counters => serde_json::to_value(records.counters),
            RecordField::Credit => serde_json::to_value(&records.credit),
            RecordField::Draws => serde_json::to_value(&records.draws),
            RecordField::Evaluations => serde_json::to_value(&records.evaluations),
            RecordField::Stop => serde_json::to_value(records.stop),
            RecordField::Updates => serde_json::to_value(&records.updates),
        };
        // These types always serialise; text in their place equals nothing.
        value.unwrap_or_else(|error| Value::String(error.to_string()))
    };
    distance::json(&part(reference), &part(resumed), scope.bound)
}

fn state(transcript: &Transcript, offset: u64, class: StateClass) -> Result<&ClassState, ProbeError> {
    transcript.class(offset, class).ok_or_else(|| {
        StateError::Inventory { class, reason: format!("it is missing after {offset} updates") }.into()
    })
}

/// Distance of a class after so many updates, and the first tensor that
/// differs.
fn class_distance(
    reference: &Transcript,
    resumed: &Transcript,
    offset: u64,
    class: StateClass,
    bound: f64,
) -> Result<(Measure, Option<String>), ProbeError> {
    let (left, right) = (state(reference, offset, class)?, state(resumed, offset, class)?);
    let mut total = Measure::default();
    let mut first = None;
    if left.digest == right.digest {
        return Ok((total, first));
    }
    let digest = |state: &ClassState, path: &str| {
        state.shards.iter().find(|shard| shard.path == path).map(|shard| shard.digest)
    };
    let mut paths: Vec<&str> =
        left.shards.iter().chain(&right.shards).map(|shard| shard.path.as_str()).collect();
    paths.sort_unstable();
    paths.dedup();
    // An index only names the digests of the files beside it, and says nothing
    // of how far apart they are.
    if paths.iter().any(|path| *path != MODEL_INDEX_NAME && digest(left, path) != digest(right, path)) {
        paths.retain(|path| *path != MODEL_INDEX_NAME);
    }
    for path in paths {
        if digest(left, path) == digest(right, path) {
            continue;
        }
        let (measure, place) =
            shard_distance(&reference.shard(offset, path), &resumed.shard(offset, path), path, bound)?;
        first.get_or_insert(place);
        total.add(offset, &measure);
    }
    Ok((total, first))
}

fn shard_distance(
    reference: &Path,
    resumed: &Path,
    name: &str,
    bound: f64,
) -> Result<(Measure, String), ProbeError> {
    let (measure, place) = if name.ends_with(".safetensors") {
        let kind = checkpoint::file_kind(name);
        distance::tensors(&tensors(kind, reference)?, &tensors(kind, resumed)?, bound)
    } else {
        let (measure, pointer) = distance::json(&document(reference)?, &document(resumed)?, bound);
        (measure, pointer.map(|pointer| format!("{name}{pointer}")))
    };
    // Bytes differ, so nothing may look equal.
    match place {
        Some(place) => Ok((measure, place)),
        None => {
            let reason =
                format!("its bytes differ from those of {}, and nothing in it does", reference.display());
            Err(ProbeError::Transcript { path: resumed.to_owned(), reason })
        }
    }
}

fn tensors(kind: FileKind, path: &Path) -> Result<Vec<NamedTensor>, ProbeError> {
    let bytes = fs::read(path).map_err(ProbeError::io("read", path))?;
    let read = export::read(kind, &mut bytes.as_slice(), bytes.len() as u64);
    let (tensors, _) =
        read.map_err(|error| ProbeError::Transcript { path: path.to_owned(), reason: chain(&error) })?;
    Ok(tensors)
}

fn document(path: &Path) -> Result<Value, ProbeError> {
    let bytes = fs::read(path).map_err(ProbeError::io("read", path))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| ProbeError::Transcript { path: path.to_owned(), reason: error.to_string() })
}
