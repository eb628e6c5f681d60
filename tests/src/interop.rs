//! Tools of other ecosystems, as PyPI publishes them: `scripts/interop_tools.py`
//! shows them an export and prints what they said.
//!
//! `scripts/test` installs them. A tool that is missing fails the test; it is
//! never skipped.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::run_folder::RunFolder;
use crate::workspace_root;

/// Names the interpreter that has the tools.
const VARIABLE: &str = "LEDGER_INTEROP_PYTHON";

/// Where `scripts/lib.sh` makes its environment, below the cache folder.
const ENVIRONMENT: &str = "governed-ledger/python-interop/bin/python";

/// What a tool said.
#[derive(Debug, Clone)]
pub struct Said {
    /// 0: it took the export; 1: it refused it.
    pub code: i32,
    /// What it read, or why it refused.
    pub answer: Value,
}

impl Said {
    /// Fails the test unless the tool took the export; what it read.
    ///
    /// # Panics
    /// When it refused.
    #[must_use]
    #[track_caller]
    pub fn taken(self) -> Value {
        assert_eq!(self.code, 0, "the tool refused it: {}", self.answer);
        self.answer
    }

    /// Fails the test unless the tool refused the export, and said `words`.
    ///
    /// # Panics
    /// When it took it, or said something else.
    #[track_caller]
    pub fn refused(self, words: &str) {
        assert_eq!(self.code, 1, "the tool took it: {}", self.answer);
        let said = self.answer["refused"].as_str().unwrap_or_default();
        assert!(said.contains(words), "the tool does not say {words:?}: {said}");
    }
}

/// The interpreter that has the tools.
fn python() -> PathBuf {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
        return named.into();
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    cache.unwrap_or_default().join(ENVIRONMENT)
}

/// Shows something to a tool.
///
/// # Panics
/// When the tools are not installed, or one of them could not run.
#[must_use]
#[track_caller]
pub fn ask<A: AsRef<OsStr>>(arguments: &[A]) -> Said {
    let script = workspace_root().join("scripts/interop_tools.py");
    let mut command = Command::new(python());
    command.arg(script).args(arguments).stdin(Stdio::null());
    let finished = match command.output() {
        Ok(finished) => finished,
        Err(error) => panic!("{}: {error}\nhint: scripts/interop --install", python().display()),
    };
    let code = finished.status.code().unwrap_or(-1);
    let stdout = String::from_utf8_lossy(&finished.stdout);
    let Ok(answer) = serde_json::from_str(&stdout) else {
        panic!("exit code {code}\n{stdout}\n{}", String::from_utf8_lossy(&finished.stderr))
    };
    Said { code, answer }
}

/// An envelope to in-toto's tools, under a role's key of the contract.
///
/// # Panics
/// As [`ask`], and when the contract cannot be read.
#[must_use]
#[track_caller]
pub fn ask_of_envelope(run: &RunFolder, path: &str, role: &str) -> Said {
    let contract = std::fs::read(run.contract()).expect("the contract");
    let contract: Value = serde_json::from_slice(&contract).expect("the contract is JSON");
    let public = contract["keys"][role]["public"].as_str().expect("the role has a key").to_owned();
    let path = run.path().join(path);
    ask(&[OsStr::new("dsse"), path.as_os_str(), OsStr::new("--public"), OsStr::new(&public)])
}
