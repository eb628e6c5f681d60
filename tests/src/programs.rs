//! Finding and running the built programs.
//!
//! The programs are taken from the target folder that the test itself was
//! built into, never from `PATH`, so that what is tested is what was built
//! with it. A missing program fails the test; it is never skipped.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The `ledger` program.
pub const LEDGER: &str = "ledger";
/// The `trainer` program.
pub const TRAINER: &str = "trainer";
/// The `evaluator` program.
pub const EVALUATOR: &str = "evaluator";

/// What a program left when it ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Exit code, or 128 and the signal's number as a shell reports it.
    pub code: i32,
    /// Command line, for messages.
    pub command: String,
    /// Everything on stdout.
    pub stdout: String,
    /// Everything on stderr.
    pub stderr: String,
}

impl fmt::Display for Finished {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, command, stdout, stderr } = self;
        write!(formatter, "$ {command}\nexit code {code}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

impl Finished {
    /// Fails the test unless the program ended with `code`.
    ///
    /// # Panics
    /// When it did not; the message holds all that it printed.
    #[must_use]
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "expected exit code {code}\n{self}");
        self
    }

    /// Fails the test unless stderr holds each of `words`, in any case.
    ///
    /// # Panics
    /// When one is missing.
    #[track_caller]
    pub fn expect_message(&self, words: &[&str]) {
        let message = self.stderr.to_lowercase();
        for word in words {
            assert!(message.contains(&word.to_lowercase()), "the message does not say {word:?}\n{self}");
        }
    }

    /// Fails the test unless the program ended with `code`, named `place` with a
    /// hint of its own, and said each of `words`, in any case. An audit says
    /// what it found on stdout, everything else is on stderr.
    ///
    /// # Panics
    /// When one of these is missing; the message holds all that was printed.
    #[track_caller]
    pub fn expect_complaint(&self, code: i32, place: &str, words: &[&str]) {
        assert_eq!(self.code, code, "expected exit code {code}\n{self}");
        let printed = format!("{}\n{}", self.stdout, self.stderr);
        let message = printed.to_lowercase();
        for word in words {
            assert!(message.contains(&word.to_lowercase()), "the message does not say {word:?}\n{self}");
        }
        assert!(is_hinted(&printed, place), "nothing names {place:?} and then gives a hint\n{self}");
    }

    /// Stdout as one JSON document.
    ///
    /// # Panics
    /// When it is not JSON.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        match serde_json::from_str(&self.stdout) {
            Ok(value) => value,
            Err(error) => panic!("stdout is not JSON: {error}\n{self}"),
        }
    }
}

/// Path of a built program.
///
/// # Panics
/// When it was not built; the message says how to.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a process knows its own executable");
    // <target>/<profile>/deps/<test>
    let folder = test.ancestors().nth(2).expect("a test lies in <target>/<profile>/deps");
    let path = folder.join(name);
    assert!(path.is_file(), "{} is not built\nhint: cargo build --workspace --bins", path.display());
    path
}

/// Path of a built example of a member.
///
/// # Panics
/// When it was not built; the message says how to.
#[must_use]
pub fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a process knows its own executable");
    // <target>/<profile>/deps/<test>
    let folder = test.ancestors().nth(2).expect("a test lies in <target>/<profile>/deps");
    let path = folder.join("examples").join(name);
    let hint = "cargo build --workspace --all-targets";
    assert!(path.is_file(), "{} is not built\nhint: {hint}", path.display());
    path
}

/// A command for one of the programs, without colour, in `folder`, with the
/// caller's key settings removed so that no test uses a real key.
#[must_use]
pub fn command<A: AsRef<OsStr>>(name: &str, folder: &Path, arguments: &[A]) -> Command {
    let mut command = Command::new(program(name));
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command.env("NO_COLOR", "1").env_remove("LEDGER_KEYS").env_remove("RUST_LOG");
    command
}

/// Runs a program to its end.
///
/// # Panics
/// When it cannot be started.
#[must_use]
#[track_caller]
pub fn run<A: AsRef<OsStr>>(name: &str, folder: &Path, arguments: &[A]) -> Finished {
    finish(command(name, folder, arguments))
}

/// Runs a prepared command to its end.
///
/// # Panics
/// When it cannot be started.
#[must_use]
#[track_caller]
pub fn finish(mut command: Command) -> Finished {
    let shown = shown(&command);
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => panic!("{shown}: {error}"),
    };
    Finished {
        code: exit_code(output.status),
        command: shown,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Starts a program whose output nobody reads.
///
/// # Panics
/// When it cannot be started.
#[must_use]
#[track_caller]
pub fn start<A: AsRef<OsStr>>(name: &str, folder: &Path, arguments: &[A]) -> Child {
    let mut command = command(name, folder, arguments);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    match command.spawn() {
        Ok(child) => child,
        Err(error) => panic!("{}: {error}", shown(&command)),
    }
}

/// The exit code as a shell shows it.
#[must_use]
pub fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Whether a line names `place` and a hint follows before the next error: the
/// hint of another one does not count.
fn is_hinted(printed: &str, place: &str) -> bool {
    let mut is_named = false;
    for line in printed.lines().map(str::trim_start) {
        if line.starts_with("hint:") {
            if is_named {
                return true;
            }
        } else if line.contains(place) {
            is_named = true;
        } else if ["error", "warning", "note"].iter().any(|word| line.starts_with(word)) {
            is_named = false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::is_hinted;

    #[test]
    fn a_hint_belongs_to_the_error_before_it() {
        let printed = "  error at run.db: damaged\n    actual: x\n    hint: restore it\n";
        assert!(is_hinted(printed, "run.db"));
        assert!(!is_hinted(printed, "contract.json"));
        assert!(!is_hinted("error: run.db is damaged", "run.db"));
        let printed = "error: run.db is damaged\nerror: a key is missing\nhint: make one";
        assert!(!is_hinted(printed, "run.db"));
    }
}
