//! The trainer, as another program: it alone knows what code it is and which
//! parameters it has.

use std::path::{Path, PathBuf};
use std::process::Command;

use schemas::contract::{Code, CompilerPlan, Environment};
use serde::Deserialize;
use serde_json::Value;

use crate::failure::{Failure, OrFail};

/// The environment variable that names the trainer.
const VARIABLE: &str = "LEDGER_TRAINER";

/// What `trainer identity --json` prints.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Identity {
    pub(crate) code: Code,
    pub(crate) environment: Environment,
    pub(crate) plan: CompilerPlan,
}

/// Where the trainer is: named, `$LEDGER_TRAINER`, beside this program, PATH.
pub(crate) fn locate(named: Option<&Path>) -> PathBuf {
    let variable = || std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let beside = || {
        let program = std::env::current_exe().ok()?;
        Some(program.with_file_name("trainer")).filter(|path| path.is_file())
    };
    named.map(Path::to_owned).or_else(variable).or_else(beside).unwrap_or_else(|| PathBuf::from("trainer"))
}

/// Asks the trainer who it is, and what its plan for a device is.
pub(crate) fn identity(trainer: &Path, device: &str) -> Result<Identity, Failure> {
    let arguments = ["identity", "--json", "--device", device].map(std::ffi::OsStr::new);
    let bytes = run(trainer, &arguments, "name a device that it has, or correct --trainer")?;
    serde_json::from_slice(&bytes).or_fail(
        format!("reading what {} identity printed", trainer.display()),
        "use a trainer of the same version",
    )
}

/// Asks the trainer for the parameter manifest of an architecture and a card.
pub(crate) fn parameters(trainer: &Path, architecture: &Value, card: &Path) -> Result<Vec<u8>, Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("architecture.json");
    std::fs::write(&path, serde_json::to_vec(architecture)?)?;
    let mut bytes = run(
        trainer,
        &[
            "parameters".as_ref(),
            "--architecture".as_ref(),
            path.as_os_str(),
            "--card".as_ref(),
            card.as_os_str(),
        ],
        "correct the architecture or the policy card",
    )?;
    // The manifest is entry JSON, which ends without a line break.
    while bytes.last().is_some_and(u8::is_ascii_whitespace) {
        bytes.pop();
    }
    Ok(bytes)
}

fn run(trainer: &Path, arguments: &[&std::ffi::OsStr], hint: &str) -> Result<Vec<u8>, Failure> {
    let output = Command::new(trainer).args(arguments).output().or_fail(
        format!("running {}", trainer.display()),
        "build it with `cargo build -p trainer`, or name it with --trainer or $LEDGER_TRAINER",
    )?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message.trim().trim_start_matches("error: ");
        // The trainer's own hint is the better one.
        let (message, hint) = message.split_once("\nhint: ").unwrap_or((message, hint));
        return Err(Failure::new(
            format!("{} ended with {}: {}", trainer.display(), output.status, message.replace('\n', "; ")),
            hint,
        ));
    }
    Ok(output.stdout)
}
