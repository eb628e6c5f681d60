//! A folder for a test, and the program run in it.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// What the program left when it ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// Stdout as one JSON document.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("stdout is not JSON: {error}\n{self:#?}"))
    }

    /// Fails the test unless the program ended with `code`.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Fails the test unless stderr has a line for each text.
    #[track_caller]
    pub(crate) fn expect_lines(&self, lines: &[&str]) {
        for line in lines {
            assert!(self.stderr.lines().any(|found| found == *line), "no line {line:?} in\n{}", self.stderr);
        }
    }
}

pub(crate) struct Folder {
    folder: TempDir,
}

impl Folder {
    /// An empty folder with a trainer's stand-in.
    pub(crate) fn empty() -> Self {
        let folder = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program/data");
        let script = format!(
            "#!/bin/sh\ncase \"$1\" in\nidentity) cat '{0}/identity.json' ;;\nparameters) cat '{0}/parameters-tiny.json' ;;\n*) exit 2 ;;\nesac\n",
            data.display()
        );
        folder.write("trainer", script.as_bytes());
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path("trainer"), mode).expect("executable");
        folder
    }

    /// A folder `run` that `ledger init` made.
    pub(crate) fn with_contract() -> Self {
        let folder = Self::empty();
        let _ = folder.run(&["init", "--lipsum", "--preset", "tiny", "--output", "run"]).expect(0);
        folder
    }

    /// The same, frozen into `run/run.db`.
    pub(crate) fn frozen() -> Self {
        let folder = Self::with_contract();
        let _ = folder.run(&["freeze", "run/contract.json"]).expect(0);
        folder
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    pub(crate) fn write(&self, relative: &str, bytes: &[u8]) {
        std::fs::write(self.path(relative), bytes).expect("written");
    }

    pub(crate) fn read(&self, relative: &str) -> Vec<u8> {
        std::fs::read(self.path(relative)).expect("readable")
    }

    /// The contract of `run` as a value.
    pub(crate) fn contract(&self) -> Value {
        serde_json::from_slice(&self.read("run/contract.json")).expect("JSON")
    }

    pub(crate) fn edit_contract(&self, edit: impl FnOnce(&mut Value)) {
        let mut contract = self.contract();
        edit(&mut contract);
        self.write("run/contract.json", &serde_json::to_vec_pretty(&contract).expect("JSON"));
    }

    /// Runs the program in the folder.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Finished {
        self.run_with(arguments, &[])
    }

    pub(crate) fn run_with<A: AsRef<OsStr>>(&self, arguments: &[A], variables: &[(&str, &str)]) -> Finished {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ledger"));
        command.args(arguments).current_dir(self.folder.path());
        command.env("NO_COLOR", "1").env("LEDGER_TRAINER", self.path("trainer"));
        command.env_remove("LEDGER_KEYS").env_remove("RUST_LOG");
        for (name, value) in variables {
            command.env(name, value);
        }
        let output = command.output().expect("the program starts");
        Finished {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("stdout is text"),
            stderr: String::from_utf8(output.stderr).expect("stderr is text"),
        }
    }
}
