//! Checkpoints on disk: whole or absent, read back exactly, and restored in
//! full or refused with the name of the state class.
#![allow(missing_docs, unreachable_pub, reason = "a test program")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, Mode, mkfifoat};
use schemas::body::Counters;
use schemas::digest::Digest;
use schemas::ids::{AttemptId, CheckpointId, RunId};
use schemas::state::{CheckpointManifest, StateClass};
use tempfile::TempDir;
use trainer::checkpoint::locate::{self, LocatedCheckpoint, RecordedCheckpoint};
use trainer::checkpoint::manifest::ManifestHeader;
use trainer::checkpoint::validate::{self, Expected};
use trainer::checkpoint::writer::{Committed, Staging};
use trainer::checkpoint::{MODEL_NAME, OPTIMIZER_NAME, checkpoint_id};
use trainer::run::resume::ResumeState;
use trainer::state::registry::{self, Content, Source};
use trainer::state::{Derivation, SelectionTracker};

use common::Fixture;

/// A committed checkpoint of the initial state, and what it was made from.
struct Saved {
    committed: Committed,
    fixture: Fixture,
    id: CheckpointId,
    run: RunId,
    temporary: TempDir,
}

const CONTRACT: Digest = Digest::sha256([9; 32]);

impl Saved {
    fn expected(&self) -> Expected<'_> {
        Expected {
            checkpoint: &self.id,
            contract: CONTRACT,
            manifest: self.committed.manifest_digest,
            run: &self.run,
            step: 0,
        }
    }

    fn store(&self) -> std::path::PathBuf {
        self.temporary.path().join("store")
    }
}

fn saved() -> Result<Saved> {
    let temporary = TempDir::with_prefix("trainer-checkpoint-")?;
    let fixture = Fixture::write(temporary.path(), &common::decoder(), 2, 2)?;
    let engine = fixture.engine(temporary.path())?;
    let selection = SelectionTracker::new(&fixture.contract).context("the fixture has a stream")?;
    let derivation = Derivation {
        contract: &fixture.contract,
        counters: Counters::default(),
        num_train_examples: engine.num_train_examples(),
        num_workers: 1,
        plan: &fixture.contract.plan,
        selection: selection.state(),
        step: 0,
    };
    let (id, run) = (checkpoint_id(0, AttemptId(1)), RunId::from("run"));
    let mut staging = Staging::begin(&temporary.path().join("store"), &id)?;
    for (class, shards) in registry::capture(&Source { derivation, engine: &engine })?.classes {
        for shard in shards {
            match shard.content {
                Content::Tensors(kind, tensors) => staging.add_tensors(class, shard.name, kind, &tensors)?,
                Content::Json(bytes) => staging.add_bytes(class, shard.name, &bytes)?,
                Content::Frozen(..) | Content::Index(_) => bail!("the fixture freezes nothing"),
            };
        }
    }
    let header = ManifestHeader {
        attempt: AttemptId(1),
        checkpoint: &id,
        contract: CONTRACT,
        declarations: &fixture.contract.state_classes,
        run: &run,
        step: 0,
    };
    let committed = staging.finish(&header)?.commit()?;
    Ok(Saved { committed, fixture, id, run, temporary })
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[test]
fn what_is_given_up_leaves_nothing_behind() -> Result<()> {
    let temporary = TempDir::new()?;
    let store = temporary.path().join("store");
    let id = checkpoint_id(3, AttemptId(2));
    let mut staging = Staging::begin(&store, &id)?;
    staging.add_bytes(StateClass::Topology, "topology.json", b"{}")?;
    assert_eq!(names(&store)?, [format!(".staging-s00000003-a2-{}", std::process::id())]);
    drop(staging);
    assert!(names(&store)?.is_empty());
    Ok(())
}

#[test]
fn a_name_that_is_taken_is_refused() -> Result<()> {
    let saved = saved()?;
    let error = Staging::begin(&saved.store(), &saved.id).expect_err("the name is taken");
    assert!(error.to_string().contains("exists already"), "{error}");
    assert_eq!(names(&saved.store())?, ["s00000000-a1"]);
    Ok(())
}

#[test]
fn every_corruption_of_every_file_is_found_by_both_readers() -> Result<()> {
    let saved = saved()?;
    let expected = saved.expected();
    let folder = &saved.committed.folder;
    assert_eq!(validate::reread(folder, &expected)?, saved.committed.manifest);
    assert_eq!(validate::load(folder, &expected)?.0, saved.committed.manifest);
    let files = names(folder)?;
    assert_eq!(files.len(), 8, "{files:?}");
    for name in &files {
        let path = folder.join(name);
        let whole = fs::read(&path)?;
        let mut damaged = Vec::new();
        for at in [0, whole.len() / 2, whole.len() - 1] {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x20;
            damaged.push(Some(flipped));
        }
        damaged.push(Some(whole[..whole.len() - 1].to_vec()));
        damaged.push(Some([whole.as_slice(), b" "].concat()));
        damaged.push(Some(Vec::new()));
        damaged.push(None);
        for content in damaged {
            match &content {
                Some(bytes) => fs::write(&path, bytes)?,
                None => fs::remove_file(&path)?,
            }
            for error in [validate::reread(folder, &expected).err(), validate::load(folder, &expected).err()]
            {
                let error = error.with_context(|| format!("{name} was damaged"))?;
                assert!(error.to_string().contains(name.as_str()), "{error}");
            }
        }
        fs::write(&path, &whole)?;
    }
    validate::reread(folder, &expected)?;
    Ok(())
}

#[test]
fn no_link_is_followed_and_no_pipe_waited_for() -> Result<()> {
    let saved = saved()?;
    let expected = saved.expected();
    let folder = &saved.committed.folder;
    let refused = |name: &str, word: &str| -> Result<()> {
        for error in [validate::reread(folder, &expected).err(), validate::load(folder, &expected).err()] {
            let error = error.with_context(|| format!("{name}: {word}"))?;
            let said = trainer::run::error::chain(&error);
            assert!(said.contains(name) && said.contains(word), "{said}");
        }
        Ok(())
    };
    let elsewhere = saved.temporary.path().join("elsewhere");
    for name in names(folder)? {
        let path = folder.join(&name);
        fs::rename(&path, &elsewhere)?;
        // The bytes are the right ones, and somewhere else.
        std::os::unix::fs::symlink(&elsewhere, &path)?;
        refused(&name, "symbolic link")?;
        fs::remove_file(&path)?;
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR)?;
        refused(&name, "no regular file")?;
        fs::remove_file(&path)?;
        fs::rename(&elsewhere, &path)?;
    }
    validate::load(folder, &expected)?;
    Ok(())
}

/// The saved checkpoint as a ledger may record it, with a path.
fn recorded(saved: &Saved, path: String) -> RecordedCheckpoint {
    RecordedCheckpoint {
        attempt: AttemptId(1),
        checkpoint: saved.id.clone(),
        counters: Counters::default(),
        manifest: saved.committed.manifest_digest,
        model: CONTRACT,
        num_bytes: saved.committed.num_bytes,
        path,
        step: 0,
    }
}

#[test]
fn a_recorded_path_that_leaves_the_ledgers_folder_is_not_read() -> Result<()> {
    let saved = saved()?;
    let ledger = saved.temporary.path().join("ledger");
    fs::create_dir(&ledger)?;
    let within = format!("store/{}", saved.id);
    let find = |folder: &Path, path: String| {
        locate::newest_usable(folder, &saved.run, CONTRACT, vec![recorded(&saved, path)])
    };
    let (found, unusable) = find(saved.temporary.path(), within.clone());
    assert!(found.is_some() && unusable.is_empty(), "{unusable:?}");
    let absolute = saved.committed.folder.to_string_lossy().into_owned();
    for path in [format!("../{within}"), format!("a/../../{within}"), absolute, String::new()] {
        let (found, unusable) = find(&ledger, path.clone());
        assert!(found.is_none(), "{path}");
        let said = unusable.first().context("it is named")?.error.to_string();
        assert!(said.contains("below the ledger's"), "{path}: {said}");
    }
    Ok(())
}

#[test]
fn another_runs_checkpoint_is_refused() -> Result<()> {
    let saved = saved()?;
    let folder = &saved.committed.folder;
    let other = RunId::from("other");
    let expected = Expected { run: &other, ..saved.expected() };
    let error = validate::load(folder, &expected).expect_err("it belongs to another run");
    assert!(error.to_string().contains("run: expected other, found run"), "{error}");
    let expected = Expected { step: 4, ..saved.expected() };
    let error = validate::load(folder, &expected).expect_err("it is of another step");
    assert!(error.to_string().contains("step: expected 4, found 0"), "{error}");
    Ok(())
}

/// Restores the saved state after a change, and gives what was said.
fn restored(
    saved: &Saved,
    change: impl FnOnce(&mut CheckpointManifest, &mut BTreeMap<String, Vec<u8>>),
) -> Result<Result<(), String>> {
    let (mut manifest, mut contents) = validate::load(&saved.committed.folder, &saved.expected())?;
    change(&mut manifest, &mut contents);
    let record = recorded(saved, String::new());
    let folder = saved.committed.folder.clone();
    let resume = ResumeState {
        checkpoint: Some(LocatedCheckpoint { contents, folder, manifest, record }),
        counters: Counters::default(),
        doubtful: Vec::new(),
        num_workers: 1,
        selection: SelectionTracker::new(&saved.fixture.contract).context("there is a stream")?,
        step: 0,
        unqualified: None,
        unusable: Vec::new(),
    };
    let mut engine = saved.fixture.engine(saved.temporary.path())?;
    let result = resume.restore(&mut engine, &saved.fixture.contract, &saved.fixture.contract.plan);
    Ok(result.map_err(|error| trainer::run::error::chain(&error)))
}

#[test]
fn every_class_comes_back_or_is_named() -> Result<()> {
    let saved = saved()?;
    assert_eq!(restored(&saved, |_, _| ())?, Ok(()));
    for declared in &saved.fixture.contract.state_classes {
        let class = declared.class;
        let name = format!("`{class}`");
        let missing =
            restored(&saved, |manifest, _| manifest.classes.retain(|captured| captured.class != class))?;
        let said = missing.expect_err("a missing class is refused");
        assert!(said.contains(&name) && said.contains("does not have it"), "{said}");

        let otherwise = restored(&saved, |manifest, _| {
            for captured in manifest.classes.iter_mut().filter(|captured| captured.class == class) {
                captured.not_applicable = match captured.not_applicable {
                    Some(_) => None,
                    None => Some(schemas::state::NotApplicableReason::FunctionOfStep),
                };
            }
        })?;
        assert!(otherwise.expect_err("another declaration is refused").contains(&name));

        let twice = restored(&saved, |manifest, _| {
            let same: Vec<_> =
                manifest.classes.iter().filter(|captured| captured.class == class).cloned().collect();
            manifest.classes.extend(same);
        })?;
        assert!(twice.expect_err("a class that is there twice is refused").contains(&name));

        if declared.not_applicable.is_none() {
            let emptied = restored(&saved, |manifest, _| {
                for captured in manifest.classes.iter_mut().filter(|captured| captured.class == class) {
                    captured.shards.clear();
                }
            })?;
            assert!(emptied.expect_err("a class without shards is refused").contains(&name));
        }
    }
    for at in 0..saved.fixture.contract.state_classes.len() {
        let name = format!("`{}`", saved.fixture.contract.state_classes[at].class);
        let moved = restored(&saved, |manifest, _| manifest.classes[at].step = 1)?;
        let said = moved.expect_err("another step is refused");
        assert!(said.contains(&name) && said.contains("step 1"), "{said}");
    }
    let more = restored(&saved, |manifest, _| {
        let mut captured = manifest.classes[0].clone();
        captured.class = StateClass::Averages;
        manifest.classes.push(captured);
    })?;
    assert!(more.expect_err("a class too many is refused").contains("`averages`"));
    Ok(())
}

#[test]
fn a_shard_that_says_something_else_is_refused_with_its_class() -> Result<()> {
    let saved = saved()?;
    let cases = [
        ("data_cursor", "\"step\":0", "\"step\":1"),
        ("data_cursor", "\"position\":0", "\"position\":2"),
        ("topology", "\"workers\":1", "\"workers\":2"),
        ("compiler_plan", "\"avx2\"", "\"avx3\""),
        ("selection_state", "\"best_step\":null", "\"best_step\":0"),
        ("data_cursor", "{", "{\"another\":1,"),
    ];
    for (class, found, other) in cases {
        let said = restored(&saved, |_, contents| {
            for (_, bytes) in contents.iter_mut().filter(|(name, _)| **name == format!("{class}.json")) {
                let text = String::from_utf8_lossy(bytes).replacen(found, other, 1);
                *bytes = text.into_bytes();
            }
        })?;
        let said = said.expect_err("another content is refused");
        assert!(said.contains(&format!("`{class}`")), "{said}");
    }
    Ok(())
}

#[test]
fn tensors_that_do_not_fit_are_refused_with_their_class() -> Result<()> {
    let saved = saved()?;
    // The optimizer's file in place of the model's, and the other way round.
    let swapped = restored(&saved, |_, contents| {
        let model = contents.remove(MODEL_NAME).unwrap_or_default();
        let optimizer = contents.insert(OPTIMIZER_NAME.to_owned(), model).unwrap_or_default();
        contents.insert(MODEL_NAME.to_owned(), optimizer);
    })?;
    assert!(swapped.expect_err("swapped files are refused").contains("model"));
    let truncated = restored(&saved, |_, contents| {
        if let Some(bytes) = contents.get_mut(OPTIMIZER_NAME) {
            bytes.truncate(bytes.len() - 4);
        }
    })?;
    assert!(truncated.expect_err("a cut file is refused").contains("`optimizer`"));
    let renamed = restored(&saved, |manifest, _| {
        for captured in manifest.classes.iter_mut().filter(|captured| captured.class == StateClass::Model) {
            for tensor in captured.shards.iter_mut().flat_map(|shard| &mut shard.tensors) {
                tensor.name.push('x');
            }
        }
    })?;
    assert!(renamed.expect_err("another list of tensors is refused").contains("`model`"));
    Ok(())
}
