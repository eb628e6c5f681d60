//! A temporary folder with a frozen contract, and the trainer run in it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ledger::create::{FrozenArtifact, create_run_ledger};
use ledger::keys::{KeyPair, KeyRing, Role};
use ledger::reader::Reader;
use rustix::process::{Pid, Signal, kill_process};
use schemas::contract::{Contract, FileBinding, PublicKey, StoppingRule};
use schemas::data::{ExampleRecord, Split};
use schemas::entry::Entry;
use serde_json::Value;
use tempfile::TempDir;
use trainer::checkpoint::MANIFEST_NAME;
use trainer::model::freeze;

use crate::common::{self, Fixture};

/// Steps of a run that is long enough to be interrupted in the middle.
pub const LONG: u64 = 60;

/// Pause between two looks at what a process does; a stage takes milliseconds.
const POLL_EVERY: Duration = Duration::from_micros(200);

/// A folder with a frozen contract.
pub struct RunFolder {
    temporary: TempDir,
}

/// What a finished process left.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A process that is training.
pub struct Training {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    seen: String,
}

impl RunFolder {
    /// Freezes the fixture's contract after `edit`.
    pub fn new(edit: impl FnOnce(&mut Contract)) -> Result<Self> {
        Self::with_frozen(&[], edit)
    }

    /// The same, with parameters that no update changes, by pattern.
    pub fn with_frozen(frozen: &[&str], edit: impl FnOnce(&mut Contract)) -> Result<Self> {
        Self::with(frozen, |_| (), edit)
    }

    /// The same, for so many workers that share so many microbatches.
    pub fn with_workers(
        (num_workers, num_microbatches): (u32, u32),
        edit: impl FnOnce(&mut Contract),
    ) -> Result<Self> {
        let share = |fixture: &mut Fixture| {
            let batch = &mut fixture.contract.batch;
            batch.accumulation = num_microbatches;
            batch.global_examples = num_microbatches * batch.microbatch_examples;
            fixture.share(num_workers);
        };
        Self::with(&[], share, edit)
    }

    fn with(
        frozen: &[&str],
        prepare: impl FnOnce(&mut Fixture),
        edit: impl FnOnce(&mut Contract),
    ) -> Result<Self> {
        let temporary = TempDir::with_prefix("trainer-run-")?;
        let folder = temporary.path();
        std::fs::create_dir(folder.join("data"))?;
        let mut fixture = Fixture::write(&folder.join("data"), &common::decoder(), 2, 2)?;
        let patterns: Vec<String> = frozen.iter().map(ToString::to_string).collect();
        freeze::freeze(&mut fixture.parameters, &patterns)?;
        prepare(&mut fixture);
        let mut contract = fixture.contract.clone();

        // Keys.
        let keys = folder.join("keys");
        let owner = KeyRing::generate(&keys, Role::Owner)?;
        let trainer = KeyRing::generate(&keys, Role::Trainer)?;
        let public =
            |pair: &KeyPair| PublicKey { host: ledger::keys::host_identity(), public: pair.public_hex() };
        contract.keys.owner = public(&owner);
        contract.keys.trainer = public(&trainer);

        // Files.
        let mut artifacts = Vec::new();
        let mut bind = |pointer: &str, path: &str, bytes: Vec<u8>| -> Result<FileBinding> {
            std::fs::write(folder.join(path), &bytes)?;
            let digest = Some(common::digest_of(&bytes));
            let num_bytes = Some(bytes.len() as u64);
            artifacts.push(FrozenArtifact { pointer: pointer.to_owned(), bytes });
            Ok(FileBinding { digest, num_bytes, path: path.to_owned() })
        };
        contract.update.card =
            bind("/update/card", "card.json", ledger::canonical::entry_json(&fixture.card)?)?;
        contract.parameters =
            bind("/parameters", "parameters.json", ledger::canonical::entry_json(&fixture.parameters)?)?;
        contract.data.manifest =
            bind("/data/manifest", "data/manifest.json", ledger::canonical::entry_json(&fixture.data)?)?;
        contract.data.train_examples = bind("/data/train_examples", "train.examples", table(&fixture.train))?;
        contract.data.val_examples = bind("/data/val_examples", "val.examples", table(&fixture.val))?;

        // What runs.
        let identity = identity()?;
        contract.code = serde_json::from_value(identity["code"].clone())?;
        contract.environment = serde_json::from_value(identity["environment"].clone())?;
        contract.plan = serde_json::from_value(identity["plan"].clone())?;
        contract.budget.max_attempts = 50;
        edit(&mut contract);
        let canonical = ledger::canonical::contract_json(&serde_json::to_value(&contract)?)?;
        create_run_ledger(&folder.join("run.db"), &canonical, &artifacts, &owner, "test 0")?;
        Ok(Self { temporary })
    }

    /// A run of [`LONG`] steps, evaluated and saved at every tenth.
    pub fn long() -> Result<Self> {
        Self::new(|contract| {
            contract.budget.max_steps = LONG;
            contract.stopping = StoppingRule::AtStep { step: LONG };
            contract.checkpoints.every_steps = 10;
            contract.evaluation.streams[0].every_steps = 10;
        })
    }

    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    pub fn ledger(&self) -> PathBuf {
        self.path().join("run.db")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        self.command_of("run", arguments)
    }

    fn command_of(&self, verb: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
        command.arg(verb).arg("--ledger").arg(self.ledger()).args(arguments);
        #[cfg(feature = "failpoints")]
        command.env(trainer::run::failpoint::PERMISSION, "1");
        command.env_remove("LEDGER_KEYS").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the trainer to its end.
    pub fn train(&self) -> Result<Finished> {
        self.train_with(&[])
    }

    /// Runs the trainer to its end, with further arguments.
    pub fn train_with(&self, arguments: &[&str]) -> Result<Finished> {
        let output = self.command(arguments).output()?;
        Ok(Finished {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8(output.stderr)?,
        })
    }

    /// Runs another command of the trainer in the folder.
    pub fn trainer(&self, arguments: &[&str]) -> Result<Finished> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
        #[cfg(feature = "failpoints")]
        command.env(trainer::run::failpoint::PERMISSION, "1");
        let output = command.args(arguments).current_dir(self.path()).env_remove("LEDGER_KEYS").output()?;
        Ok(Finished {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8(output.stderr)?,
        })
    }

    /// The same, with crash points.
    #[cfg(feature = "failpoints")]
    pub fn trainer_under(&self, arguments: &[&str], points: &str) -> Result<Finished> {
        use trainer::run::failpoint::{PERMISSION, VARIABLE};
        let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
        command.args(arguments).current_dir(self.path()).env_remove("LEDGER_KEYS");
        let output = command.env(PERMISSION, "1").env(VARIABLE, points).output()?;
        Ok(Finished {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8(output.stderr)?,
        })
    }

    /// `trainer probe`, to its end.
    pub fn probe(&self, arguments: &[&str]) -> Result<Finished> {
        let output = self.command_of("probe", arguments).output()?;
        Ok(Finished {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8(output.stderr)?,
        })
    }

    /// The run's folder under another name; the old one is gone.
    pub fn moved(self) -> Result<Self> {
        let temporary = TempDir::with_prefix("trainer-moved-")?;
        std::fs::remove_dir(temporary.path())?;
        std::fs::rename(self.path(), temporary.path())?;
        Ok(Self { temporary })
    }

    /// Starts a probe and returns while it runs.
    pub fn start_probe(&self, arguments: &[&str]) -> Result<Training> {
        let mut child = self.command_of("probe", arguments).spawn()?;
        let stderr = BufReader::new(child.stderr.take().context("stderr is piped")?);
        Ok(Training { child, stderr, seen: String::new() })
    }

    /// Runs the trainer to its end with a variable in its environment.
    #[cfg(feature = "failpoints")]
    pub fn train_under(&self, name: &str, value: &str) -> Result<Finished> {
        let output = self.command(&[]).env(name, value).output()?;
        Ok(Finished {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8(output.stderr)?,
        })
    }

    /// Runs the trainer to its end, unable to make a file larger than so many
    /// blocks of 512 bytes: the system refuses to write on, as a full disk does.
    pub fn train_with_small_files(&self, num_blocks: u32) -> Result<Finished> {
        let script = format!("trap '' XFSZ; ulimit -f {num_blocks}; exec \"$0\" run --ledger \"$1\"");
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_trainer")).arg(self.ledger());
        #[cfg(feature = "failpoints")]
        command.env(trainer::run::failpoint::PERMISSION, "1");
        let output = command.env_remove("LEDGER_KEYS").output()?;
        Ok(Finished {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8(output.stderr)?,
        })
    }

    /// Starts the trainer and returns while it runs.
    pub fn start(&self) -> Result<Training> {
        Self::spawn(self.command(&[]))
    }

    /// Starts the trainer with further arguments and returns while it runs.
    pub fn start_with(&self, arguments: &[&str]) -> Result<Training> {
        Self::spawn(self.command(arguments))
    }

    /// Starts the trainer with a variable in its environment.
    #[cfg(feature = "failpoints")]
    pub fn start_under(&self, name: &str, value: &str) -> Result<Training> {
        let mut command = self.command(&[]);
        command.env(name, value);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Result<Training> {
        let mut child = command.spawn()?;
        let stderr = BufReader::new(child.stderr.take().context("stderr is piped")?);
        Ok(Training { child, stderr, seen: String::new() })
    }

    /// Every entry, in order.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let reader = Reader::open(&self.ledger())?;
        Ok(reader.entries(0).collect::<Result<_, _>>()?)
    }

    /// Kinds of all entries, in order.
    pub fn kinds(&self) -> Result<Vec<&'static str>> {
        Ok(self.entries()?.iter().map(|entry| entry.body.kind().name()).collect())
    }

    /// Bodies of all entries of a kind, as JSON.
    pub fn bodies(&self, kind: &str) -> Result<Vec<Value>> {
        let entries = self.entries()?;
        let of_kind = entries.iter().filter(|entry| entry.body.kind().name() == kind);
        of_kind.map(|entry| Ok(serde_json::to_value(&entry.body)?)).collect()
    }

    /// Folders of the checkpoint store, in name order.
    pub fn store(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.path().join("checkpoints"))? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    /// Bytes of the model of the newest checkpoint of a step.
    pub fn model(&self, step: u64) -> Result<Vec<u8>> {
        let prefix = format!("s{step:08}-a");
        let name = self.store()?.into_iter().rev().find(|name| name.starts_with(&prefix));
        let name = name.with_context(|| format!("no checkpoint of step {step}"))?;
        Ok(std::fs::read(self.path().join("checkpoints").join(name).join("model.safetensors"))?)
    }
}

/// Flips a bit in the last byte of a file, which is payload and no header.
pub fn flip_last_byte(path: &Path) -> Result<()> {
    let mut bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    *bytes.last_mut().context("the file is not empty")? ^= 1;
    Ok(std::fs::write(path, bytes)?)
}

/// `trainer identity --json`.
pub fn identity() -> Result<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_trainer")).args(["identity", "--json"]).output()?;
    ensure!(output.status.success(), "identity failed");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn table(records: &[ExampleRecord]) -> Vec<u8> {
    corpus::examples::ExampleTable { records: records.to_vec() }.to_bytes()
}

/// Path of a shard of the fixture.
pub fn shard(folder: &RunFolder, split: Split) -> PathBuf {
    folder.path().join("data").join(format!("{}.txt", split.name()))
}

impl Finished {
    /// Fails, with everything that was said, unless the exit code is this.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Fails unless standard error holds a text.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Self {
        assert!(self.stderr.contains(text), "{text:?} is not in:\n{}", self.stderr);
        self
    }
}

impl Training {
    /// Reads standard error up to a line that begins with a text.
    pub fn wait_for(&mut self, beginning: &str) -> Result<&mut Self> {
        loop {
            let mut line = String::new();
            ensure!(self.stderr.read_line(&mut line)? > 0, "the trainer ended:\n{}", self.seen);
            self.seen.push_str(&line);
            if line.starts_with(beginning) {
                return Ok(self);
            }
        }
    }

    /// Reads standard error up to the line of a step.
    pub fn wait_for_step(&mut self, step: u64) -> Result<&mut Self> {
        self.wait_for(&format!("step {step:>6} "))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn send(&mut self, signal: Signal) -> Result<&mut Self> {
        kill_process(Pid::from_child(&self.child), signal)?;
        Ok(self)
    }

    /// Sends a signal while a checkpoint is being staged, and gives its name. As
    /// soon as a staging folder is seen the process is stopped; only where it
    /// then stands within the stage does it find the signal when it goes on.
    pub fn send_while_staging(&mut self, folder: &RunFolder, signal: Signal) -> Result<String> {
        let store = folder.path().join("checkpoints");
        loop {
            if let Some((staging, checkpoint)) = staging(&store)? {
                self.stop()?;
                // The manifest is what is written last.
                let is_within = staging.is_dir() && !staging.join(MANIFEST_NAME).exists();
                if is_within {
                    self.send(signal)?;
                }
                self.send(Signal::CONT)?;
                if is_within {
                    return Ok(checkpoint);
                }
            }
            ensure!(self.child.try_wait()?.is_none(), "the trainer ended and was never met in a stage");
            std::thread::sleep(POLL_EVERY);
        }
    }

    /// Reads standard error up to the line of the so many-th further step.
    pub fn wait_for_steps(&mut self, num_steps: usize) -> Result<&mut Self> {
        (0..num_steps).try_for_each(|_| self.wait_for("step ").map(|_| ()))?;
        Ok(self)
    }

    /// Stops the process, and returns once its main thread stands still.
    pub fn stop(&mut self) -> Result<()> {
        self.send(Signal::STOP)?;
        let status = format!("/proc/{}/stat", self.child.id());
        loop {
            let text = std::fs::read_to_string(&status)?;
            // The state follows the command name, which is in parentheses (proc_pid_stat(5)).
            let state = text.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
            match state {
                Some('T') => return Ok(()),
                Some('Z' | 'X') | None => bail!("the trainer ended:\n{}", self.seen),
                Some(_) => std::thread::sleep(POLL_EVERY),
            }
        }
    }

    /// Waits for the end.
    pub fn finish(mut self) -> Result<Finished> {
        self.stderr.read_to_string(&mut self.seen)?;
        let mut stdout = String::new();
        if let Some(mut piped) = self.child.stdout.take() {
            piped.read_to_string(&mut stdout)?;
        }
        let status = self.child.wait()?;
        Ok(Finished { code: status.code(), stdout, stderr: std::mem::take(&mut self.seen) })
    }
}

/// The staging folder in a store, if there is one, and its checkpoint's name.
fn staging(store: &Path) -> Result<Option<(PathBuf, String)>> {
    // Before the first checkpoint there is no store.
    let Ok(items) = std::fs::read_dir(store) else { return Ok(None) };
    for item in items {
        let path = item?.path();
        let name = path.file_name().context("an item has a name")?.to_string_lossy().into_owned();
        // The process's number follows the checkpoint's name.
        let staged = name.strip_prefix(".staging-").and_then(|name| name.rsplit_once('-'));
        if let Some((checkpoint, _)) = staged {
            return Ok(Some((path, checkpoint.to_owned())));
        }
    }
    Ok(None)
}

impl Drop for Training {
    fn drop(&mut self) {
        // A test that failed half-way leaves no process behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
