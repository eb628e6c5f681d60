//! `trainer checkpoint diff`: by state class, the first difference of each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use schemas::state::{CapturedClass, CheckpointManifest, Shard, StateClass};
use serde::Serialize;
use serde_json::Value;

use crate::checkpoint::{MANIFEST_NAME, file_kind, validate};
use crate::cli::{self, Failure};
use crate::export::{self, NamedTensor};

use super::difference::{self, TensorDifference};
use super::fetch::bring;
use super::opened::OpenedRun;
use super::{DiffArguments, EXIT_FINDINGS};

/// One side: where its files are, and its manifest.
struct Side {
    folder: PathBuf,
    manifest: CheckpointManifest,
}

#[derive(Serialize)]
struct Comparison {
    a: String,
    b: String,
    classes: Vec<ComparedClass>,
    equal: bool,
    format: &'static str,
}

#[derive(Serialize)]
struct ComparedClass {
    class: StateClass,
    equal: bool,
    /// The first difference; null where equal.
    first: Option<FirstDifference>,
}

#[derive(Serialize)]
struct FirstDifference {
    /// Distance of the tensor; null where it is of another kind.
    distance: Option<TensorDifference>,
    /// The tensor, or the pointer into a JSON shard; null where neither.
    place: Option<String>,
    /// The shard; null where the class as a whole differs.
    shard: Option<String>,
    /// What differs, in words.
    what: String,
}

impl FirstDifference {
    fn of_class(what: String) -> Self {
        Self { distance: None, shard: None, place: None, what }
    }

    fn of_shard(shard: &str, place: Option<String>, what: String) -> Self {
        Self { distance: None, shard: Some(shard.to_owned()), place, what }
    }
}

pub(super) fn run(arguments: &DiffArguments) -> Result<u8, Failure> {
    let opened = arguments.ledger.as_deref().map(OpenedRun::open).transpose()?;
    let a = side(&arguments.a, opened.as_ref())?;
    let b = side(&arguments.b, opened.as_ref())?;
    let classes: BTreeSet<StateClass> =
        [&a, &b].into_iter().flat_map(|side| &side.manifest.classes).map(|captured| captured.class).collect();
    let classes: Vec<ComparedClass> = classes
        .into_iter()
        .map(|class| {
            let first = compare_class(class, &a, &b);
            ComparedClass { class, equal: first.is_none(), first }
        })
        .collect();
    let comparison = Comparison {
        a: arguments.a.clone(),
        b: arguments.b.clone(),
        equal: classes.iter().all(|class| class.equal),
        classes,
        format: "checkpoint-diff/1",
    };
    if arguments.json {
        cli::print_json(&comparison)?;
    } else {
        cli::print(text(&comparison).as_bytes())?;
    }
    Ok(if comparison.equal { 0 } else { EXIT_FINDINGS })
}

/// A folder with a manifest, or else a checkpoint of the ledger.
fn side(name: &str, opened: Option<&OpenedRun>) -> Result<Side, Failure> {
    let folder = Path::new(name);
    if folder.join(MANIFEST_NAME).is_file() {
        let manifest = validate::parse_manifest(folder).map_err(|error| Failure {
            message: crate::run::error::chain(&error),
            hint: Some("name the folder of a checkpoint, as `trainer run` wrote it"),
        })?;
        return Ok(Side { folder: folder.to_owned(), manifest });
    }
    let Some(opened) = opened else {
        return Err(Failure {
            message: format!("{name} is no folder with a {MANIFEST_NAME}"),
            hint: Some("a checkpoint's name needs `--ledger FILE`"),
        });
    };
    let fact = opened.fact(name)?;
    bring(opened, fact)?;
    let manifest = opened.manifest(fact).ok_or_else(|| Failure {
        message: format!("{name} is {} and was never committed", fact.stage.name()),
        hint: Some("`trainer checkpoint list` says which checkpoints are complete"),
    })?;
    let manifest = manifest.map_err(|error| Failure {
        message: crate::run::error::chain(&error),
        hint: Some("`trainer checkpoint verify` says what else differs from the record"),
    })?;
    Ok(Side { folder: opened.checkpoint_folder(&fact.checkpoint), manifest })
}

/// Captures of one class, in the manifest's order.
fn captured(side: &Side, class: StateClass) -> Vec<&CapturedClass> {
    side.manifest.classes.iter().filter(|captured| captured.class == class).collect()
}

fn compare_class(class: StateClass, a: &Side, b: &Side) -> Option<FirstDifference> {
    let (left, right) = (captured(a, class), captured(b, class));
    let shape = |captured: &[&CapturedClass]| -> Vec<String> {
        captured
            .iter()
            .map(|captured| {
                let paths: Vec<&str> = captured.shards.iter().map(|shard| shard.path.as_str()).collect();
                let Some(reason) = captured.not_applicable else { return format!("shards {paths:?}") };
                format!("not applicable ({reason:?})")
            })
            .collect()
    };
    let (left_shape, right_shape) = (shape(&left), shape(&right));
    if left_shape != right_shape {
        let words = |shape: &[String]| if shape.is_empty() { "absent".to_owned() } else { shape.join("; ") };
        let what = format!("{} against {}", words(&left_shape), words(&right_shape));
        return Some(FirstDifference::of_class(what));
    }
    let shards = |captured: Vec<&'_ CapturedClass>| -> Vec<Shard> {
        captured.into_iter().flat_map(|captured| captured.shards.clone()).collect()
    };
    shards(left).iter().zip(&shards(right)).find_map(|(left, right)| compare_shard(a, left, b, right))
}

fn compare_shard(a: &Side, left: &Shard, b: &Side, right: &Shard) -> Option<FirstDifference> {
    let path = left.path.as_str();
    let read = |side: &Side| fs::read(side.folder.join(path));
    let (left_bytes, right_bytes) = match (read(a), read(b)) {
        (Ok(left_bytes), Ok(right_bytes)) => (left_bytes, right_bytes),
        // What is gone is still known by its digest.
        (Err(_), _) | (_, Err(_)) if left.digest == right.digest => return None,
        (Err(error), _) | (_, Err(error)) => {
            let what = format!(
                "other digests ({}, {}), and a file cannot be read: {error}",
                left.digest, right.digest
            );
            return Some(FirstDifference::of_shard(path, None, what));
        }
    };
    if left_bytes == right_bytes {
        return None;
    }
    if path.ends_with(".safetensors") {
        compare_tensors(path, &left_bytes, &right_bytes)
    } else {
        Some(compare_json(path, &left_bytes, &right_bytes))
    }
}

fn compare_tensors(path: &str, left: &[u8], right: &[u8]) -> Option<FirstDifference> {
    let kind = file_kind(path);
    let read = |mut bytes: &[u8]| {
        let num_bytes = bytes.len() as u64;
        export::read(kind, &mut bytes, num_bytes).map(|(tensors, _)| by_name(tensors))
    };
    let (left, right) = match (read(left), read(right)) {
        (Ok(left), Ok(right)) => (left, right),
        (Err(error), _) | (_, Err(error)) => {
            let what = format!("it cannot be read as tensors: {}", crate::run::error::chain(&error));
            return Some(FirstDifference::of_shard(path, None, what));
        }
    };
    let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    names.into_iter().find_map(|name| {
        let differs = |what: String| Some(FirstDifference::of_shard(path, Some(name.clone()), what));
        let (left, right) = match (left.get(name), right.get(name)) {
            (Some(left), Some(right)) => (left, right),
            (Some(_), None) => return differs("only the first has this tensor".to_owned()),
            _ => return differs("only the second has this tensor".to_owned()),
        };
        if left.dtype != right.dtype || left.shape != right.shape {
            let (a, b) = ((&left.dtype, &left.shape), (&right.dtype, &right.shape));
            return differs(format!("{} {:?} against {} {:?}", a.0, a.1, b.0, b.1));
        }
        let distance = difference::tensors(left, right)?;
        let what = match (distance.first_element, distance.left, distance.right) {
            (Some(element), Some(left), Some(right)) => format!("element {element}: {left} against {right}"),
            _ => format!("other bytes of the dtype {}", left.dtype),
        };
        let place = Some(name.clone());
        Some(FirstDifference { distance: Some(distance), shard: Some(path.to_owned()), place, what })
    })
}

fn by_name(tensors: Vec<NamedTensor>) -> BTreeMap<String, NamedTensor> {
    tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect()
}

fn compare_json(path: &str, left: &[u8], right: &[u8]) -> FirstDifference {
    let parse = serde_json::from_slice::<Value>;
    match (parse(left), parse(right)) {
        (Ok(left), Ok(right)) => match difference::documents(&left, &right) {
            Some((pointer, left, right)) => {
                FirstDifference::of_shard(path, Some(pointer), format!("{left} against {right}"))
            }
            None => FirstDifference::of_shard(path, None, "the same content in other bytes".to_owned()),
        },
        (Err(error), _) | (_, Err(error)) => {
            FirstDifference::of_shard(path, None, format!("it is no JSON: {error}"))
        }
    }
}

fn text(comparison: &Comparison) -> String {
    let mut text = String::new();
    for compared in &comparison.classes {
        let Some(first) = &compared.first else {
            let _ = writeln!(text, "{}: equal", compared.class);
            continue;
        };
        let place = [first.shard.as_deref(), first.place.as_deref()];
        let place: Vec<&str> = place.into_iter().flatten().collect();
        let _ = writeln!(text, "{}: DIFFERS {} {}", compared.class, place.join(" "), first.what);
        if let Some(distance) = &first.distance {
            let _ = writeln!(
                text,
                "  {} elements of this tensor differ; largest absolute {}, relative {}, {} ulp",
                distance.num_different, distance.max_absolute, distance.max_relative, distance.max_ulp
            );
        }
    }
    text.push_str(if comparison.equal { "Equal\n" } else { "Different\n" });
    text
}
