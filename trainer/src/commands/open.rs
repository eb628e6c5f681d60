//! `trainer checkpoint open`: the proof that one tensor is the one that the
//! ledger committed to, and its bytes.

use std::fs;
use std::path::Path;

use ledger::reader::Reader;
use schemas::body::Body;
use schemas::challenge::{OPENING_FORMAT, StateLeaf, TensorOpening};
use schemas::digest::Digest;
use schemas::ids::CheckpointId;
use schemas::state::StateClass;

use crate::checkpoint::validate::{self, Expected};
use crate::checkpoint::{below, file_kind};
use crate::cli::{self, Failure};
use crate::export;
use crate::run::error::{RunError, chain};
use crate::state::{StateError, tree};
use crate::store::working_folder;

use super::OpenArguments;
use super::fetch::bring;
use super::opened::OpenedRun;

const NO_TREE: &str = "a contract keeps such a tree with `\"state_tree\": {\"scheme\": \"tensors/1\"}`";

pub(super) fn run(arguments: &OpenArguments) -> Result<u8, Failure> {
    for path in std::iter::once(&arguments.output).chain(&arguments.tensor_to) {
        if path.exists() {
            let message = format!("{} exists and is not overwritten", path.display());
            return Err(Failure { message, hint: Some("name another file, or move it away") });
        }
    }
    let opened = OpenedRun::open(&arguments.common.ledger)?;
    let fact = opened.fact(&arguments.checkpoint)?;
    let (entry, root) = committed(&arguments.common.ledger, &fact.checkpoint)?;
    bring(&opened, fact)?;
    let Some(manifest) = fact.manifest else {
        let message = format!("{} was never committed", fact.checkpoint);
        return Err(Failure { message, hint: Some("`trainer checkpoint list` says which are") });
    };
    let expected = Expected {
        checkpoint: &fact.checkpoint,
        contract: opened.frozen.digest,
        manifest,
        run: &opened.frozen.run,
        step: fact.step,
    };
    let store = working_folder(&opened.frozen.contract.checkpoints.store);
    let relative = format!("{store}/{}", fact.checkpoint);
    let folder = below::resolve(&opened.folder, &relative).map_err(|error| Failure {
        message: format!("{}: {error}", opened.folder.join(&relative).display()),
        hint: Some("put the checkpoint's own folder there; an audit reads none that is reached by a link"),
    })?;
    let (manifest, contents) = validate::load(&folder, &expected).map_err(|error| Failure {
        message: chain(&error),
        hint: Some(
            "every file of the checkpoint is needed to open one tensor; a retired one has them no more",
        ),
    })?;
    let classes = manifest.classes.iter();
    let files: Vec<(StateClass, &str, &[u8])> = classes
        .flat_map(|captured| captured.shards.iter().map(move |shard| (captured.class, shard.path.as_str())))
        .filter_map(|(class, path)| Some((class, path, contents.get(path)?.as_slice())))
        .collect();
    let leaves = tree::leaves_of_files(files.iter().copied()).map_err(failed)?;
    let actual = tree::root(&leaves).map_err(failed)?;
    if actual != root {
        let message =
            format!("entry {entry} has the root {root}, and the files of {} give {actual}", fact.checkpoint);
        return Err(Failure { message, hint: Some("`ledger audit` says what else differs from the record") });
    }
    let index = find(&leaves, &arguments.tensor, arguments.shard.as_deref())?;
    let proof = tree::proof(&leaves, index).map_err(failed)?.unwrap_or_default();
    let leaf = leaves.get(index).cloned().ok_or_else(|| unknown(&leaves, &arguments.tensor))?;
    if let Some(path) = &arguments.tensor_to {
        write(path, &bytes_of(&leaf, &files)?)?;
    }
    let opening = TensorOpening {
        checkpoint: fact.checkpoint.clone(),
        contract: opened.frozen.digest,
        entry,
        format: OPENING_FORMAT.to_owned(),
        leaf,
        leaf_index: index as u64,
        num_leaves: leaves.len() as u64,
        proof,
        root,
        run: opened.frozen.run.clone(),
        step: fact.step,
    };
    let bytes = ledger::canonical::entry_json(&opening)
        .map_err(|error| Failure { message: chain(&error), hint: None })?;
    write(&arguments.output, &bytes)?;
    if arguments.common.json {
        cli::print_json(&opening)?;
    } else {
        cli::print(text(&opening, &arguments.output).as_bytes())?;
    }
    Ok(0)
}

fn failed(error: StateError) -> Failure {
    RunError::from(error).into()
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    fs::write(path, bytes).map_err(|error| Failure {
        message: format!("could not write {}: {error}", path.display()),
        hint: Some("make room, or name another file"),
    })
}

/// Index of the entry that commits a checkpoint, and the root that it holds.
fn committed(ledger: &Path, checkpoint: &CheckpointId) -> Result<(u64, Digest), Failure> {
    let reader = Reader::open(ledger).map_err(RunError::from)?;
    for entry in reader.entries(0) {
        let entry = entry.map_err(RunError::from)?;
        let Body::CheckpointDurablyCommitted(halves) = &entry.body else { continue };
        if halves.obs.checkpoint == *checkpoint {
            let root = halves.det.state_root.ok_or_else(|| Failure {
                message: format!("entry {} has no root of a state tree", entry.index),
                hint: Some(NO_TREE),
            })?;
            return Ok((entry.index, root));
        }
    }
    let message = format!("the ledger commits no checkpoint {checkpoint}");
    Err(Failure { message, hint: Some("`trainer checkpoint list` says which are committed") })
}

/// Place of a tensor, or of a shard without tensors, by its name; a name that
/// several shards have needs the shard's too.
fn find(leaves: &[StateLeaf], name: &str, shard: Option<&str>) -> Result<usize, Failure> {
    let is_it = |leaf: &StateLeaf| {
        leaf.name.as_deref().unwrap_or(&leaf.path) == name && shard.is_none_or(|shard| leaf.path == shard)
    };
    let places: Vec<usize> =
        (0..leaves.len()).filter(|place| leaves.get(*place).is_some_and(is_it)).collect();
    match places.as_slice() {
        [place] => Ok(*place),
        [] => Err(unknown(leaves, name)),
        _ => {
            let paths: Vec<&str> =
                places.iter().filter_map(|place| leaves.get(*place)).map(|leaf| leaf.path.as_str()).collect();
            let message = format!("{name} is in {}", paths.join(" and in "));
            Err(Failure { message, hint: Some("say which with --shard") })
        }
    }
}

fn unknown(leaves: &[StateLeaf], name: &str) -> Failure {
    let message = format!("the checkpoint has no tensor {name:?} among its {} leaves", leaves.len());
    Failure { message, hint: Some("`trainer checkpoint inspect` lists tensors and shards") }
}

/// Elements of a tensor, or all of a shard without tensors.
fn bytes_of(leaf: &StateLeaf, files: &[(StateClass, &str, &[u8])]) -> Result<Vec<u8>, Failure> {
    let file = files.iter().find(|(class, path, _)| *class == leaf.class && *path == leaf.path);
    let mut whole = file.map_or(&[][..], |(_, _, bytes)| *bytes);
    let Some(name) = &leaf.name else { return Ok(whole.to_vec()) };
    let num_bytes = whole.len() as u64;
    let read = export::read(file_kind(&leaf.path), &mut whole, num_bytes);
    let (tensors, _) = read.map_err(|error| Failure { message: chain(&error), hint: None })?;
    let found = tensors.into_iter().find(|tensor| tensor.name == *name);
    found.map(|tensor| tensor.bytes).ok_or_else(|| Failure {
        message: format!("{} has no tensor {name}", leaf.path),
        hint: Some("`trainer checkpoint inspect` lists tensors and shards"),
    })
}

fn text(opening: &TensorOpening, output: &Path) -> String {
    let TensorOpening { checkpoint, entry, leaf, leaf_index, num_leaves, root, .. } = opening;
    let name = leaf.name.as_deref().unwrap_or(&leaf.path);
    format!(
        "tensor    {name} of {checkpoint}\ndigest    {}\nplace     {leaf_index} of {num_leaves} leaves\nroot      {root} (entry {entry})\nopening   {}\n",
        leaf.digest,
        output.display()
    )
}
