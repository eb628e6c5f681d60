//! Whose code runs: the files that a contract names as the loop, read again when
//! an attempt starts, and what the loop says of its environment.
//!
//! The package in an attempt's code is a constant: whoever records through this
//! crate says `external-loop`, whatever the contract says, so that an attempt
//! cannot pass for one of the project's trainer.

use std::path::{Path, PathBuf};

use ledger::freeze::external_code_digest;
use schemas::contract::{Code, CompilerPlan, Contract, EXTERNAL_PACKAGE, Environment};
use schemas::digest::Digest;

use crate::error::LoopError;
use crate::run::LoopOptions;

/// Where a contract holds what [`LoopOptions::runtime`] says.
pub const RUNTIME_FIELD: &str = "/environment/rustc";

/// The identity of the code that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) code: Code,
    pub(crate) environment: Environment,
    pub(crate) plan: CompilerPlan,
}

/// Reads the loop's files in the ledger's folder and compares them, and what
/// the loop says of itself, with the contract.
///
/// # Errors
/// When a file, the program, the environment or the plan is not the frozen one.
pub(crate) fn identify(
    contract: &Contract,
    folder: &Path,
    options: &LoopOptions,
) -> Result<Identity, LoopError> {
    let code = code(contract, folder)?;
    if let Some(program) = &options.program {
        check_program(contract, folder, program)?;
    }
    let environment = Environment {
        architecture: std::env::consts::ARCH.to_owned(),
        operating_system: std::env::consts::OS.to_owned(),
        rustc: options.runtime.clone(),
    };
    let plan = CompilerPlan {
        autotune: contract.plan.autotune,
        backend: options.backend.clone(),
        cpu_features: Vec::new(),
        device: options.device.unwrap_or(contract.plan.device),
    };
    same("the runtime", &contract.environment.rustc, &environment.rustc)?;
    same("the system", &contract.environment, &environment)?;
    same("the backend", &contract.plan.backend, &plan.backend)?;
    same("the plan", &contract.plan, &plan)?;
    same("the code", &contract.code, &code)?;
    Ok(Identity { code, environment, plan })
}

fn same<T: PartialEq + std::fmt::Debug>(
    what: &'static str,
    expected: &T,
    actual: &T,
) -> Result<(), LoopError> {
    if expected == actual {
        return Ok(());
    }
    Err(LoopError::Differs { what, expected: format!("{expected:?}"), actual: format!("{actual:?}") })
}

fn code(contract: &Contract, folder: &Path) -> Result<Code, LoopError> {
    let files = contract.external_loop.as_ref().map_or(&[][..], |external| &external.files);
    let mut digests = Vec::with_capacity(files.len());
    for file in files {
        let path = folder.join(&file.path);
        let bytes = std::fs::read(&path).map_err(LoopError::io("read", &path))?;
        let actual = Digest::blake3(*blake3::hash(&bytes).as_bytes());
        if file.digest != Some(actual) {
            let expected = file.digest.map_or_else(|| "no digest".to_owned(), |digest| digest.to_string());
            return Err(LoopError::Code { path, expected, actual });
        }
        digests.push((file.path.as_str(), actual));
    }
    Ok(Code {
        digest: external_code_digest(digests),
        features: Vec::new(),
        package: EXTERNAL_PACKAGE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// What runs has to be one of the files, through links too.
fn check_program(contract: &Contract, folder: &Path, program: &Path) -> Result<(), LoopError> {
    let real = |path: &Path| -> Result<PathBuf, LoopError> {
        path.canonicalize().map_err(LoopError::io("resolve", path))
    };
    let running = real(program)?;
    let files = contract.external_loop.as_ref().map_or(&[][..], |external| &external.files);
    for file in files {
        if real(&folder.join(&file.path))? == running {
            return Ok(());
        }
    }
    Err(LoopError::Program { path: program.to_owned() })
}

/// Program and version, for the `tool` fields of entries.
pub(crate) fn tool() -> String {
    format!("{EXTERNAL_PACKAGE} {}", env!("CARGO_PKG_VERSION"))
}

/// Model name of the processor, for people.
pub(crate) fn cpu_model() -> String {
    std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .unwrap_or_else(|| "unknown".to_owned())
}
