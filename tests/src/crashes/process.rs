//! A trainer that something happens to.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::NamedTempFile;

use super::record;
use crate::programs::{self, TRAINER};

/// Pause between two looks at what a process does.
const POLL_EVERY: Duration = Duration::from_micros(500);

/// Longest wait for anything; a run takes a fraction of a second.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// The variable that sets crash points, and the one that lets such a build run.
pub const FAILPOINTS: &str = "FAILPOINTS";
const PERMISSION: (&str, &str) = ("LEDGER_ALLOW_INSTRUMENTATION", "1");

/// A trainer that runs.
#[derive(Debug)]
pub struct Process {
    child: Child,
    folder: PathBuf,
    /// Whether the trainer is a child of the process, and both are a group.
    is_behind: bool,
    said: NamedTempFile,
}

/// What a trainer left.
#[derive(Debug)]
pub struct Ended {
    /// Exit code, or 128 and the signal's number.
    pub code: i32,
    /// Its standard error.
    pub said: String,
}

impl Ended {
    /// Whether SIGKILL ended it.
    #[must_use]
    pub const fn is_killed(&self) -> bool {
        self.code == 128 + 9
    }
}

/// Exit code of a signal that was not handled.
#[must_use]
pub const fn code_of(signal: Signal) -> i32 {
    128 + signal.as_raw()
}

impl Process {
    /// Starts a trainer on the ledger in a folder, behind other words of a
    /// command line (`strace …`), with variables in its environment.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(folder: &Path, behind: &[&str], variables: &[(&str, &str)]) -> Result<Self> {
        let said = NamedTempFile::new()?;
        let trainer = programs::program(TRAINER);
        let mut command = match behind {
            [] => Command::new(trainer),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(trainer);
                command
            }
        };
        command.args(["run", "--ledger", "run.db", "--quiet"]).current_dir(folder);
        command.env("NO_COLOR", "1").env_remove("LEDGER_KEYS").env_remove("RUST_LOG").env_remove(FAILPOINTS);
        command.env(PERMISSION.0, PERMISSION.1).envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.reopen()?);
        let is_behind = !behind.is_empty();
        if is_behind {
            // Who kills only what is in front leaves a trainer that has every file open.
            command.process_group(0);
        }
        let what = behind.first().map_or(TRAINER, |first| *first);
        let child = command.spawn().with_context(|| format!("{what} does not start; is it installed?"))?;
        Ok(Self { child, folder: folder.to_owned(), is_behind, said })
    }

    /// Number of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the process is gone and waited for.
    pub fn send(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Waits until every thread stands still; false where it ended instead.
    ///
    /// # Errors
    /// When nothing happens for a long time.
    pub fn wait_until_stopped(&mut self) -> Result<bool> {
        self.wait(|process| Ok(process.is_stopped()))
    }

    /// Stops every thread; false where it had ended.
    ///
    /// # Errors
    /// As [`Self::wait_until_stopped`].
    pub fn stop(&mut self) -> Result<bool> {
        self.send(Signal::STOP)?;
        self.wait_until_stopped()
    }

    /// Waits until its head file holds so many notes; false where it ended first.
    ///
    /// # Errors
    /// When nothing happens for a long time.
    pub fn wait_for_notes(&mut self, num_notes: usize) -> Result<bool> {
        self.wait(|process| Ok(record::num_notes(&process.folder) >= num_notes))
    }

    fn wait(&mut self, is_so: impl Fn(&Self) -> Result<bool>) -> Result<bool> {
        let started = Instant::now();
        while !is_so(self)? {
            if self.has_ended()? {
                return Ok(false);
            }
            if started.elapsed() > MAX_WAIT {
                bail!("nothing happened for {MAX_WAIT:?}; it said: {}", self.said()?);
            }
            std::thread::sleep(POLL_EVERY);
        }
        // It may have become so by the end.
        Ok(!self.has_ended()?)
    }

    fn is_stopped(&self) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.id())) else { return false };
        let mut num_threads = 0;
        let all = threads.flatten().all(|thread| {
            num_threads += 1;
            let text = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The state follows the command name, which is in parentheses (proc_pid_stat(5)).
            let state = text.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
            matches!(state, Some('T' | 't'))
        });
        all && num_threads > 0
    }

    fn said(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(self.said.path())?).into_owned())
    }

    /// Kills it and the program in front of it, if they still run, and says what
    /// it left. Of a trainer behind another program the last threads may be gone
    /// a moment later only.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn kill(mut self) -> Result<Ended> {
        self.kill_all()?;
        self.finish()
    }

    fn kill_all(&mut self) -> Result<()> {
        // The group has the number of its first process, which is nobody else's
        // before it was waited for.
        if self.is_behind && self.child.try_wait()?.is_none() {
            match kill_process_group(Pid::from_child(&self.child), Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.child.kill()?)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it does not end for a long time.
    pub fn finish(mut self) -> Result<Ended> {
        let ended = !self.wait(|_| Ok(false))?;
        ensure!(ended, "it did not end");
        let code = programs::exit_code(self.child.wait()?);
        Ok(Ended { code, said: self.said()? })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A trial that failed half-way leaves no process behind.
        let _ = self.kill_all();
        let _ = self.child.wait();
    }
}
