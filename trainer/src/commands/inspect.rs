//! `trainer checkpoint inspect`.

use std::fmt::Write as _;

use schemas::ids::CheckpointId;
use schemas::state::{CheckpointManifest, StateDigest};
use serde::Serialize;

use crate::checkpoint::retention::{Fact, Stage};
use crate::checkpoint::{manifest, share};
use crate::cli::{self, Failure};
use crate::run::error;

use super::InspectArguments;
use super::fetch::bring;
use super::opened::{OpenedRun, staying};

#[derive(Serialize)]
struct Inspection {
    /// Digest of each class.
    classes: Vec<StateDigest>,
    format: &'static str,
    manifest: CheckpointManifest,
    /// Bytes that other checkpoints hold too, stored once.
    num_shared_bytes: u64,
    /// Shards that are one file with those of other checkpoints.
    shared: Vec<SharedShard>,
    /// Paths of the shards that have to be there.
    shards_kept: Vec<String>,
    stage: Stage,
}

/// A shard that other checkpoints have too, as a second name of the same file.
#[derive(Serialize)]
struct SharedShard {
    num_bytes: u64,
    path: String,
    with: Vec<CheckpointId>,
}

/// What the file system says: an equal digest alone may be a copy.
fn shared(opened: &OpenedRun, fact: &Fact, manifest: &CheckpointManifest) -> Vec<SharedShard> {
    let folder = opened.checkpoint_folder(&fact.checkpoint);
    let others: Vec<&Fact> = opened
        .history
        .roster
        .facts()
        .into_iter()
        .filter(|other| other.checkpoint != fact.checkpoint)
        .collect();
    let shared = staying(fact, manifest).into_iter().map(|(_, shard)| {
        let is_one = |other: &&&Fact| {
            let other = opened.checkpoint_folder(&other.checkpoint).join(&shard.path);
            share::is_one_file(&folder.join(&shard.path), &other)
        };
        let with = others.iter().filter(is_one).map(|other| other.checkpoint.clone()).collect();
        SharedShard { num_bytes: shard.num_bytes, path: shard.path.clone(), with }
    });
    shared.filter(|shard| !shard.with.is_empty()).collect()
}

pub(super) fn run(arguments: &InspectArguments) -> Result<u8, Failure> {
    let opened = OpenedRun::open(&arguments.common.ledger)?;
    let fact = opened.fact(&arguments.checkpoint)?;
    bring(&opened, fact)?;
    let read = opened.manifest(fact).ok_or_else(|| Failure {
        message: format!(
            "{} is {} and was never committed, so that it has no manifest",
            fact.checkpoint,
            fact.stage.name()
        ),
        hint: Some("only a committed checkpoint can be inspected; `trainer checkpoint list` says which are"),
    })?;
    let manifest = read.map_err(|failure| Failure {
        message: error::chain(&failure),
        hint: Some("`trainer checkpoint verify` says what else differs from the record"),
    })?;
    let shared = shared(&opened, fact, &manifest);
    let inspection = Inspection {
        classes: manifest::state_digests(&manifest),
        format: "checkpoint-inspection/1",
        num_shared_bytes: shared.iter().map(|shard| shard.num_bytes).sum(),
        shared,
        shards_kept: staying(fact, &manifest).into_iter().map(|(_, shard)| shard.path.clone()).collect(),
        stage: fact.stage,
        manifest,
    };
    if arguments.common.json {
        cli::print_json(&inspection)?;
    } else {
        cli::print(text(&inspection).as_bytes())?;
    }
    Ok(0)
}

fn text(inspection: &Inspection) -> String {
    let manifest = &inspection.manifest;
    let mut text = format!(
        "{} of run {}: step {}, attempt {}, {}\ncontract {}\n",
        manifest.checkpoint,
        manifest.run,
        manifest.step,
        manifest.attempt,
        inspection.stage.name(),
        manifest.contract
    );
    for (captured, digest) in manifest.classes.iter().zip(&inspection.classes) {
        match (&captured.not_applicable, &digest.digest) {
            (Some(reason), _) => {
                let reason = serde_json::to_string(reason).unwrap_or_default();
                let _ = writeln!(text, "\n{}: not applicable, {}", captured.class, reason.trim_matches('"'));
            }
            (None, digest) => {
                let digest = digest.map_or_else(|| "none".to_owned(), |digest| digest.to_string());
                let _ = writeln!(text, "\n{}: {digest}", captured.class);
            }
        }
        for shard in &captured.shards {
            let gone = if inspection.shards_kept.contains(&shard.path) {
                ""
            } else {
                " (removed by the retirement)"
            };
            let _ = writeln!(text, "  {} {} bytes {}{gone}", shard.path, shard.num_bytes, shard.digest);
            if let Some(shared) = inspection.shared.iter().find(|shared| shared.path == shard.path) {
                let with: Vec<&str> = shared.with.iter().map(CheckpointId::as_str).collect();
                let _ = writeln!(text, "    one file with that of {}", with.join(", "));
            }
            for tensor in &shard.tensors {
                let _ = writeln!(text, "    {:<60} {} {:?}", tensor.name, tensor.dtype, tensor.shape);
            }
        }
    }
    text
}
