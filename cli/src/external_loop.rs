//! `ledger init --profile external-loop`: a contract for a loop of one's own.
//!
//! The loop's files are copied into the new folder, so that what is frozen is
//! what lies there and runs from there. Nobody is asked for an identity but the
//! arguments: what a loop says of itself is its owner's word, and the profile
//! says so.

use std::collections::BTreeMap;
use std::path::Path;

use ledger::freeze::{external_code_digest, parameter_manifest};
use schemas::contract::{Architecture, Code, CompilerPlan, EXTERNAL_NONCLAIM, EXTERNAL_PACKAGE, Environment};
use schemas::digest::Digest;
use schemas::policy_card::PolicyCard;
use serde_json::{Value, json};

use crate::arguments::{InitArguments, ProfileArgument};
use crate::failure::{Failure, OrFail};
use crate::output::write_file;

/// Folder of the loop's files, relative to the contract.
const FOLDER: &str = "loop";

/// Largest file that is copied: source, not data.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A loop as the arguments name it.
#[derive(Debug)]
pub(crate) struct ExternalLoop {
    backend: String,
    /// By path in the new folder.
    files: BTreeMap<String, Vec<u8>>,
    runtime: String,
}

impl ExternalLoop {
    /// Reads the loop that the arguments name; `None` under the profile `native`.
    pub(crate) fn read(arguments: &InitArguments) -> Result<Option<Self>, Failure> {
        if arguments.profile == ProfileArgument::Native {
            return Ok(None);
        }
        let mut files = BTreeMap::new();
        for path in &arguments.loop_files {
            let attempted = format!("reading {}", path.display());
            let hint = "name the script that trains, and what it imports of your own";
            let size = std::fs::metadata(path).or_fail(&attempted, hint)?.len();
            if size > MAX_FILE_BYTES {
                return Err(Failure::new(format!("{} has {size} bytes", path.display()), hint));
            }
            let bytes = std::fs::read(path).or_fail(&attempted, hint)?;
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if files.insert(format!("{FOLDER}/{name}"), bytes).is_some() {
                return Err(Failure::new(
                    format!("two files of the loop are called {name}"),
                    "give them different names; they lie in one folder of the run",
                ));
            }
        }
        let told = |value: &Option<String>, name: &str, example: &str| {
            value.clone().filter(|text| !text.trim().is_empty()).ok_or_else(|| {
                Failure::new(
                    format!("--{name} is not given"),
                    format!("say what the loop runs with, such as --{name} {example:?}"),
                )
            })
        };
        if files.is_empty() {
            return Err(Failure::new("no file of the loop is named", "name the script with --loop train.py"));
        }
        Ok(Some(Self {
            backend: told(&arguments.backend, "backend", "torch 2.1.0")?,
            files,
            runtime: told(&arguments.runtime, "runtime", "Python 3.11.2")?,
        }))
    }

    /// Changes what a preset says to what the recorder for other loops keeps;
    /// edits of the command line come after it.
    pub(crate) fn adapt(contract: &mut Value) {
        contract["ruleset"]["profile"] = json!("external-loop");
        contract["architecture"]["dropout"] = json!(0.0);
        contract["budget"]["max_wall_s"] = Value::Null;
        // Another number of threads gives other bits in most frameworks.
        contract["topology"]["permitted_rewrites"] = json!([]);
        if let Some(nonclaims) = contract["nonclaims"].as_array_mut() {
            nonclaims.push(json!(EXTERNAL_NONCLAIM));
        }
        if let Some(classes) = contract["state_classes"].as_array_mut() {
            classes.retain(|class| class["class"] != "selection_state");
        }
        contract["purpose"]["statement"] = json!("A first run of a loop of my own.");
    }

    /// The code, environment and plan of the loop, in the contract.
    pub(crate) fn fill(&self, contract: &mut Value, device: &str) -> Result<Code, Failure> {
        let digest = |bytes: &[u8]| Digest::blake3(*blake3::hash(bytes).as_bytes());
        let named = self.files.iter().map(|(path, bytes)| (path.as_str(), digest(bytes)));
        let code = Code {
            digest: external_code_digest(named),
            features: Vec::new(),
            package: EXTERNAL_PACKAGE.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        contract["code"] = serde_json::to_value(&code)?;
        contract["environment"] = serde_json::to_value(Environment {
            architecture: std::env::consts::ARCH.to_owned(),
            operating_system: std::env::consts::OS.to_owned(),
            rustc: self.runtime.clone(),
        })?;
        contract["plan"] = serde_json::to_value(CompilerPlan {
            autotune: false,
            backend: self.backend.clone(),
            cpu_features: Vec::new(),
            device: serde_json::from_value(json!(device))?,
        })?;
        let files: Vec<Value> =
            self.files.keys().map(|path| json!({"digest": null, "num_bytes": null, "path": path})).collect();
        contract["external_loop"] = json!({"files": files});
        Ok(code)
    }

    /// The card of a loop that updates as the card says, with its own code.
    pub(crate) fn card(&self, card: &mut PolicyCard) {
        let first = self.files.keys().next().cloned().unwrap_or_default();
        card.implementation.name = format!("{} in {first}", self.backend);
        card.implementation.reference = "none: that the loop updates so is its owner's word".to_owned();
    }

    /// The parameter manifest of the contract's architecture.
    pub(crate) fn parameters(contract: &Value, card: &PolicyCard) -> Result<Vec<u8>, Failure> {
        let architecture: Architecture = serde_json::from_value(contract["architecture"].clone())
            .or_fail("reading /architecture", "correct the value that --set gave it")?;
        parameter_manifest(&architecture, card)
            .map_err(|reason| Failure::new(reason, "correct the architecture or the policy card"))
    }

    /// Copies the files into the new folder.
    pub(crate) fn write(&self, output: &Path) -> Result<(), Failure> {
        let folder = output.join(FOLDER);
        std::fs::create_dir_all(&folder)
            .or_fail(format!("making {}", folder.display()), "name a folder that can be written")?;
        for (path, bytes) in &self.files {
            write_file(&output.join(path), bytes, false)?;
        }
        Ok(())
    }
}
