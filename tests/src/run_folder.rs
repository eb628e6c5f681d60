//! A folder of its own for each test, with a contract for a tiny model.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;
use tempfile::TempDir;

use crate::programs::{EVALUATOR, Finished, LEDGER, TRAINER, run};

/// What makes the contract of [`RunFolder::smallest`] from the preset `tiny`.
const SMALLEST: [&str; 13] = [
    "/architecture/context_length=8",
    "/architecture/head_dim=2",
    "/architecture/hidden_size=2",
    "/architecture/intermediate_size=2",
    "/architecture/num_heads=1",
    "/architecture/num_kv_heads=1",
    "/architecture/num_layers=1",
    "/batch={\"accumulation\":1,\"data_parallel\":1,\"global_examples\":2,\"microbatch_examples\":2}",
    "/budget/max_steps=1",
    "/checkpoints/every_steps=1",
    "/evaluation/streams/0/every_steps=1",
    "/evaluation/streams/0/num_examples=null",
    "/stopping/step=1",
];

/// A temporary folder that holds one run.
#[derive(Debug)]
pub struct RunFolder {
    temporary: TempDir,
}

impl RunFolder {
    /// A folder with a contract of the preset `tiny` over the embedded Latin
    /// text, its data and keys; nothing is frozen yet.
    ///
    /// # Panics
    /// When `ledger init` fails.
    #[must_use]
    #[track_caller]
    pub fn tiny() -> Self {
        Self::init(&["--lipsum"])
    }

    /// [`Self::tiny`] with `num_steps` updates and a checkpoint at every 20th:
    /// long enough to be interrupted for certain. Nothing is frozen yet.
    ///
    /// # Panics
    /// When `ledger init` fails.
    #[must_use]
    #[track_caller]
    pub fn long(num_steps: u64) -> Self {
        let changes = [
            format!("/budget/max_steps={num_steps}"),
            format!("/stopping/step={num_steps}"),
            "/checkpoints/every_steps=20".to_owned(),
            "/evaluation/streams/0/every_steps=20".to_owned(),
        ];
        let mut arguments = vec!["--lipsum"];
        for change in &changes {
            arguments.extend(["--set", change]);
        }
        Self::init(&arguments)
    }

    /// A folder with the smallest contract that still has everything: a text
    /// of a few lines, one block of width 2, one update, a checkpoint before
    /// and after it. Nothing is frozen yet.
    ///
    /// # Panics
    /// When `ledger init` fails.
    #[must_use]
    #[track_caller]
    pub fn smallest() -> Self {
        let text = tempfile::NamedTempFile::with_suffix(".txt").expect("a temporary file");
        std::fs::write(text.path(), smallest_text()).expect("the text can be written");
        let path = text.path().to_string_lossy();
        let mut arguments = vec!["--text", &path];
        for change in SMALLEST {
            arguments.extend(["--set", change]);
        }
        Self::init(&arguments)
    }

    /// [`Self::tiny`] with changes of the contract, each `/POINTER=VALUE`. Nothing
    /// is frozen yet.
    ///
    /// # Panics
    /// When `ledger init` fails.
    #[must_use]
    #[track_caller]
    pub fn with(changes: &[&str]) -> Self {
        let set = changes.iter().flat_map(|change| ["--set", change]);
        Self::init(&["--lipsum"].into_iter().chain(set).collect::<Vec<_>>())
    }

    /// A folder with a contract of the profile `external-loop` for a loop that is
    /// the file `source`, with changes as in [`Self::with`]. Nothing is frozen yet.
    ///
    /// # Panics
    /// When `ledger init` fails.
    #[must_use]
    #[track_caller]
    pub fn external(source: &Path, backend: &str, runtime: &str, changes: &[&str]) -> Self {
        Self::external_of(&[source.to_owned()], backend, runtime, changes)
    }

    /// [`Self::external`] for a loop of several files.
    ///
    /// # Panics
    /// When `ledger init` fails.
    #[must_use]
    #[track_caller]
    pub fn external_of(sources: &[PathBuf], backend: &str, runtime: &str, changes: &[&str]) -> Self {
        let sources: Vec<String> =
            sources.iter().map(|source| source.to_string_lossy().into_owned()).collect();
        let mut arguments = vec!["--lipsum", "--profile", "external-loop", "--loop"];
        arguments.extend(sources.iter().map(String::as_str));
        arguments.extend(["--backend", backend, "--runtime", runtime]);
        arguments.extend(changes.iter().flat_map(|change| ["--set", change]));
        Self::init(&arguments)
    }

    /// [`Self::with`] for so many workers.
    ///
    /// # Panics
    /// When `ledger init` fails.
    #[must_use]
    #[track_caller]
    pub fn by_workers(num_workers: u32, changes: &[&str]) -> Self {
        let num_workers = num_workers.to_string();
        let set = changes.iter().flat_map(|change| ["--set", change]);
        Self::init(&["--lipsum", "--workers", &num_workers].into_iter().chain(set).collect::<Vec<_>>())
    }

    #[track_caller]
    fn init(source: &[&str]) -> Self {
        let temporary = TempDir::with_prefix("governed-ledger-").expect("a temporary folder");
        let folder = Self { temporary };
        let output = folder.path().to_string_lossy().into_owned();
        let arguments = [&["init"], source, &["--preset", "tiny", "--output", &output]].concat();
        let _ = run(LEDGER, folder.path(), &arguments).expect_code(0);
        folder
    }

    /// [`Self::tiny`], frozen.
    ///
    /// # Panics
    /// When the freeze fails.
    #[must_use]
    #[track_caller]
    pub fn frozen() -> Self {
        let folder = Self::tiny();
        let _ = folder.freeze().expect_code(0);
        folder
    }

    /// [`Self::frozen`], trained to its end.
    ///
    /// # Panics
    /// When a step fails.
    #[must_use]
    #[track_caller]
    pub fn trained() -> Self {
        let folder = Self::frozen();
        let _ = folder.train().expect_code(0);
        folder
    }

    /// A folder with a copy of everything in this one, keys included.
    ///
    /// # Panics
    /// When a file cannot be copied.
    #[must_use]
    pub fn copy(&self) -> Self {
        let temporary = TempDir::with_prefix("governed-ledger-").expect("a temporary folder");
        copy_folder(self.path(), temporary.path()).expect("a copy of the run's folder");
        Self { temporary }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// The ledger: `run.db`.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.path().join("run.db")
    }

    /// The contract as a person edits it: `contract.json`.
    #[must_use]
    pub fn contract(&self) -> PathBuf {
        self.path().join("contract.json")
    }

    /// Changes the contract before the freeze.
    ///
    /// # Panics
    /// When it is not JSON, or cannot be written.
    pub fn edit_contract(&self, edit: impl FnOnce(&mut Value)) {
        let text = std::fs::read(self.contract()).expect("init wrote a contract");
        let mut value = serde_json::from_slice(&text).expect("the contract is JSON");
        edit(&mut value);
        let text = serde_json::to_vec_pretty(&value).expect("JSON is written");
        std::fs::write(self.contract(), text).expect("the contract can be written");
    }

    /// Freezes parameters by pattern, before the contract is frozen.
    ///
    /// # Panics
    /// When `trainer parameters` refuses, or a file cannot be written.
    #[track_caller]
    pub fn freeze_parameters(&self, patterns: &[&str]) {
        let mut paths = (String::new(), String::new());
        self.edit_contract(|contract| {
            let path = |pointer: &str| contract.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
            let of = |pointer| path(pointer).expect("the contract binds it");
            paths = (of("/update/card/path"), of("/parameters/path"));
            let architecture = contract["architecture"].to_string();
            std::fs::write(self.path().join("architecture.json"), architecture).expect("writable");
            contract["parameters"]["digest"] = Value::Null;
            contract["parameters"]["num_bytes"] = Value::Null;
        });
        let mut arguments = vec!["parameters", "--architecture", "architecture.json", "--card", &paths.0];
        arguments.extend(patterns.iter().flat_map(|pattern| ["--freeze", pattern]));
        let manifest = run(TRAINER, self.path(), &arguments).expect_code(0).stdout;
        std::fs::write(self.path().join(&paths.1), manifest.trim_end()).expect("writable");
    }

    /// `ledger freeze contract.json`.
    #[must_use]
    #[track_caller]
    pub fn freeze(&self) -> Finished {
        run(LEDGER, self.path(), &["freeze", "contract.json"])
    }

    /// `trainer run --ledger run.db`.
    #[must_use]
    #[track_caller]
    pub fn train(&self) -> Finished {
        run(TRAINER, self.path(), &["run", "--ledger", "run.db"])
    }

    /// `ledger audit run.db` with further arguments.
    #[must_use]
    #[track_caller]
    pub fn audit(&self, further: &[&str]) -> Finished {
        self.ledger_command("audit", further)
    }

    /// The report of an audit as JSON.
    ///
    /// # Panics
    /// When the audit could not run.
    #[must_use]
    #[track_caller]
    pub fn report(&self) -> Value {
        let finished = self.audit(&["--output-format", "json"]);
        assert_ne!(finished.code, 2, "the audit could not run\n{finished}");
        finished.json()
    }

    /// `ledger VERB run.db` with further arguments.
    #[must_use]
    #[track_caller]
    pub fn ledger_command(&self, verb: &str, further: &[&str]) -> Finished {
        let arguments: Vec<&str> = [verb, "run.db"].into_iter().chain(further.iter().copied()).collect();
        run(LEDGER, self.path(), &arguments)
    }

    /// `evaluator VERB` with further arguments.
    #[must_use]
    #[track_caller]
    pub fn evaluator_command(&self, verb: &str, further: &[&str]) -> Finished {
        let arguments: Vec<&str> = [verb].into_iter().chain(further.iter().copied()).collect();
        run(EVALUATOR, self.path(), &arguments)
    }

    /// All entries in order, read without the project's own readers.
    ///
    /// # Panics
    /// When the ledger cannot be read, or an entry is not JSON.
    #[must_use]
    #[track_caller]
    pub fn entries(&self) -> Vec<Value> {
        crate::dump::entries(&self.ledger()).expect("a ledger with JSON entries")
    }
}

/// Flips the lowest bit of a byte of a file.
///
/// # Panics
/// When the file cannot be read or written, or is shorter.
#[track_caller]
pub fn flip_byte(path: &Path, offset: usize) {
    let mut bytes = std::fs::read(path).expect("the file can be read");
    *bytes.get_mut(offset).expect("the file is longer") ^= 1;
    std::fs::write(path, bytes).expect("the file can be written");
}

/// Numbered lines, so that no two examples are equal.
fn smallest_text() -> String {
    (0..40).map(|line| format!("line {line} of a short text.\n")).collect()
}

/// Copies a folder with everything below it.
///
/// # Errors
/// When a file cannot be read or written.
pub fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    for item in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let item = item?;
        let target = to.join(item.file_name());
        if item.file_type()?.is_dir() {
            std::fs::create_dir_all(&target)?;
            copy_folder(&item.path(), &target)?;
        } else {
            std::fs::copy(item.path(), &target).with_context(|| item.path().display().to_string())?;
        }
    }
    Ok(())
}
