//! Sharing a file with the checkpoint before: only what has the same bytes on
//! the disk, and a copy wherever a second name cannot be had.
#![allow(missing_docs, unreachable_pub, reason = "a test program")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use schemas::digest::Digest;
use schemas::ids::{AttemptId, CheckpointId, RunId};
use schemas::model_index::FROZEN_MODEL_NAME;
use schemas::state::{StateClass, StateClassDeclaration};
use tempfile::TempDir;
use trainer::checkpoint::manifest::ManifestHeader;
use trainer::checkpoint::share::Base;
use trainer::checkpoint::validate::{self, Expected};
use trainer::checkpoint::writer::{Committed, Staging};
use trainer::checkpoint::{CheckpointError, checkpoint_id};
use trainer::export::NamedTensor;
use trainer::state::split::FrozenInitial;

const CONTRACT: Digest = Digest::sha256([9; 32]);

fn tensors(value: f32) -> Vec<NamedTensor> {
    let tensor = |name: &str, value: f32| NamedTensor {
        name: name.to_owned(),
        dtype: "F32".to_owned(),
        shape: vec![2_048],
        bytes: std::iter::repeat_n(value.to_le_bytes(), 2_048).flatten().collect(),
    };
    vec![tensor("a", 1.0), tensor("b", value)]
}

fn save(
    store: &Path,
    step: u64,
    tensors: &[NamedTensor],
    initial: &FrozenInitial,
    base: Option<&Base>,
) -> Result<Committed, CheckpointError> {
    let id: CheckpointId = checkpoint_id(step, AttemptId(1));
    let mut staging = Staging::begin(store, &id)?;
    staging.add_frozen(StateClass::Model, FROZEN_MODEL_NAME, tensors, initial, base)?;
    let header = ManifestHeader {
        attempt: AttemptId(1),
        checkpoint: &id,
        contract: CONTRACT,
        declarations: &[StateClassDeclaration { class: StateClass::Model, not_applicable: None }],
        run: &RunId::from("run"),
        step,
    };
    let committed = staging.finish(&header)?.commit()?;
    let expected = Expected {
        checkpoint: &id,
        contract: CONTRACT,
        manifest: committed.manifest_digest,
        run: &RunId::from("run"),
        step,
    };
    validate::reread(&committed.folder, &expected)?;
    Ok(committed)
}

fn base(committed: &Committed) -> Base {
    Base::new(committed.folder.clone(), &committed.manifest)
}

fn inode(committed: &Committed) -> Result<u64> {
    Ok(fs::metadata(committed.folder.join(FROZEN_MODEL_NAME))?.ino())
}

#[test]
fn the_same_bytes_are_one_file_and_a_removed_name_leaves_the_other() -> Result<()> {
    let temporary = TempDir::with_prefix("trainer-sharing-")?;
    let store = temporary.path().join("store");
    let initial = FrozenInitial::of(&tensors(2.0))?;
    let first = save(&store, 0, &tensors(2.0), &initial, None)?;
    let second = save(&store, 1, &tensors(2.0), &initial, Some(&base(&first)))?;
    assert_eq!(inode(&first)?, inode(&second)?);
    assert_eq!(first.num_shared_bytes, 0);
    assert_eq!(second.num_shared_bytes, fs::metadata(second.folder.join(FROZEN_MODEL_NAME))?.len());
    assert_eq!(second.not_shared, None);
    fs::remove_dir_all(&first.folder)?;
    let third = save(&store, 2, &tensors(2.0), &initial, Some(&base(&second)))?;
    assert_eq!(inode(&second)?, inode(&third)?);
    // Without a file to share there is one of its own, and no complaint.
    let alone = save(&store, 3, &tensors(2.0), &initial, None)?;
    assert_ne!(inode(&alone)?, inode(&third)?);
    assert_eq!((alone.num_shared_bytes, alone.not_shared), (0, None));
    Ok(())
}

#[test]
fn a_file_that_rotted_is_written_again_and_not_passed_on() -> Result<()> {
    let temporary = TempDir::with_prefix("trainer-sharing-")?;
    let store = temporary.path().join("store");
    let initial = FrozenInitial::of(&tensors(2.0))?;
    let first = save(&store, 0, &tensors(2.0), &initial, None)?;
    let path = first.folder.join(FROZEN_MODEL_NAME);
    let mut bytes = fs::read(&path)?;
    *bytes.last_mut().context("not empty")? ^= 1;
    fs::write(&path, bytes)?;
    let second = save(&store, 1, &tensors(2.0), &initial, Some(&base(&first)))?;
    assert_ne!(inode(&first)?, inode(&second)?);
    assert_eq!(second.num_shared_bytes, 0);
    let reason = second.not_shared.context("it says so")?;
    assert!(reason.contains(FROZEN_MODEL_NAME) && reason.contains("expected blake3:"), "{reason}");
    // A file that is gone is written again too.
    fs::remove_file(&path)?;
    let third = save(&store, 2, &tensors(2.0), &initial, Some(&base(&first)))?;
    assert!(third.not_shared.is_some_and(|reason| reason.contains("could not read")));
    Ok(())
}

/// A second name cannot be given across file systems, as on one that has none.
#[test]
fn where_no_second_name_can_be_had_there_is_a_copy() -> Result<()> {
    let temporary = TempDir::with_prefix("trainer-sharing-")?;
    let elsewhere = tempfile::tempdir_in("/dev/shm").context("a file system in memory")?;
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
    let store = match device(temporary.path())? == device(elsewhere.path())? {
        // The temporary folder is in memory itself.
        true => tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?,
        false => TempDir::with_prefix("trainer-sharing-")?,
    };
    assert_ne!(device(store.path())?, device(elsewhere.path())?, "two file systems");
    let initial = FrozenInitial::of(&tensors(2.0))?;
    let first = save(&elsewhere.path().join("store"), 0, &tensors(2.0), &initial, None)?;
    let second = save(&store.path().join("store"), 1, &tensors(2.0), &initial, Some(&base(&first)))?;
    assert_eq!(second.num_shared_bytes, 0);
    assert!(second.not_shared.is_some_and(|reason| reason.contains("cross-device")), "it says why");
    let file = |committed: &Committed| fs::read(committed.folder.join(FROZEN_MODEL_NAME));
    assert_eq!(file(&first)?, fs::read(second.folder.join(FROZEN_MODEL_NAME))?);
    Ok(())
}

#[test]
fn a_frozen_parameter_that_moved_is_refused_with_and_without_a_file_to_share() -> Result<()> {
    let temporary = TempDir::with_prefix("trainer-sharing-")?;
    let store = temporary.path().join("store");
    let initial = FrozenInitial::of(&tensors(2.0))?;
    let first = save(&store, 0, &tensors(2.0), &initial, None)?;
    let moved = tensors(2.000_000_2);
    for base in [None, Some(&base(&first))] {
        let error = save(&store, 1, &moved, &initial, base).expect_err("refused");
        let said = error.to_string();
        assert!(matches!(error, CheckpointError::FrozenMoved { .. }), "{said}");
        assert!(said.contains("parameter b changed in memory"), "{said}");
        let names: Vec<_> = fs::read_dir(&store)?.collect::<Result<_, _>>()?;
        assert_eq!(names.len(), 1, "nothing of it is left");
    }
    // What is shared is not touched by a save that failed.
    assert_eq!(fs::metadata(first.folder.join(FROZEN_MODEL_NAME))?.nlink(), 1);
    Ok(())
}
