//! What trials begin with and are compared with: a frozen run in both save
//! modes, and the same run uninterrupted.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::points;
use super::process::{FAILPOINTS, Process};
use super::record;
use crate::dump;
use crate::programs::{self, LEDGER, TRAINER};
use crate::run_folder::RunFolder;

/// Steps between two checkpoints.
pub const SAVE_EVERY: usize = 4;

/// Processes of the run of several workers: one records, the others can be lost.
const NUM_WORKERS: u32 = 4;

/// What a pass says, before its point's name.
const MARK: &str = "failpoint ";

/// What decides whether two runs are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Digests of every state class of the last checkpoint.
    classes: Value,
    /// Digest of its model.
    model: Value,
    /// The audit's digest over what the contract determines.
    projection: Value,
}

/// A frozen run and what it ends as.
#[derive(Debug)]
pub struct Variant {
    /// Whether saves are beside training.
    pub is_asynchronous: bool,
    /// The folder before its first attempt.
    pub frozen: RunFolder,
    /// How long a run takes that nothing happens to.
    pub duration: Duration,
    /// Bytes that the folder grows by.
    pub num_bytes: u64,
    /// Its crash points in the order in which a run passes them; empty where the
    /// trainer was built without.
    pub passes: Vec<String>,
    identity: Identity,
}

/// Both save modes, and a run of several workers.
#[derive(Debug)]
pub struct Baseline {
    /// Whether the trainer has crash points.
    pub is_instrumented: bool,
    variants: [Variant; 2],
    with_workers: Variant,
}

impl Baseline {
    /// Freezes and runs all.
    ///
    /// # Errors
    /// When an uninterrupted run is not accepted: nothing can be compared then.
    pub fn new() -> Result<Self> {
        let identity = programs::run(TRAINER, Path::new("."), &["identity", "--json"]).json();
        let features = identity["code"]["features"].as_array().context("identity lists features")?;
        let is_instrumented = features.iter().any(|feature| feature == "failpoints");
        let of_mode = |mode| Variant::new(RunFolder::tiny(), mode, is_instrumented);
        let variants = [of_mode("synchronous")?, of_mode("asynchronous")?];
        // Its points are those of one process.
        let with_workers = Variant::new(RunFolder::by_workers(NUM_WORKERS, &[]), "synchronous", false)?;
        ensure!(
            variants[0].identity.model == variants[1].identity.model,
            "the save mode changed the model, which nothing here is about"
        );
        Ok(Self { is_instrumented, variants, with_workers })
    }

    /// The run whose saves are beside training, or the one whose are not.
    #[must_use]
    pub const fn variant(&self, is_asynchronous: bool) -> &Variant {
        let [synchronous, asynchronous] = &self.variants;
        if is_asynchronous { asynchronous } else { synchronous }
    }

    /// A run of several workers, which saves synchronously.
    #[must_use]
    pub const fn with_workers(&self) -> &Variant {
        &self.with_workers
    }

    /// Every crash point that one of them passes, in the order of names.
    #[must_use]
    pub fn points(&self) -> Vec<&str> {
        let passes = self.variants.iter().flat_map(|variant| &variant.passes);
        passes.map(String::as_str).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

impl Variant {
    fn new(frozen: RunFolder, mode: &str, is_instrumented: bool) -> Result<Self> {
        frozen.edit_contract(|contract| {
            contract["checkpoints"]["mode"] = mode.into();
            contract["checkpoints"]["every_steps"] = SAVE_EVERY.into();
            // Few are kept, so that retirements are among what is interrupted.
            contract["checkpoints"]["keep"] =
                json!({"kind": "chosen", "best": 1, "every_steps": null, "last": 1, "pinned": []});
            contract["evaluation"]["streams"][0]["every_steps"] = 4.into();
            // They would end an attempt before the disk is full.
            contract["floors"]["free_disk_bytes"] = 0.into();
            if let Some(collective) = contract["topology"].get_mut("collective") {
                collective["replica_digest_every_steps"] = SAVE_EVERY.into();
            }
        });
        let _ = frozen.freeze().expect_code(0);

        // Timed without anything that slows it.
        let run = frozen.copy();
        let before = used_bytes(run.path())?;
        let started = Instant::now();
        let ended = Process::start(run.path(), &[], &[])?.finish()?;
        let duration = started.elapsed();
        ensure!(ended.code == 0, "an uninterrupted run ended with {}: {}", ended.code, ended.said);
        let identity = identity(run.path())?;
        let num_bytes = used_bytes(run.path())?.saturating_sub(before);

        let passes = if is_instrumented { passes(&frozen)? } else { Vec::new() };
        let is_asynchronous = mode == "asynchronous";
        Ok(Self { is_asynchronous, frozen, duration, num_bytes, passes, identity })
    }

    /// Whether the run in a folder ended as the uninterrupted one, and its last
    /// model is the bytes that the record names.
    ///
    /// # Errors
    /// When there is no run to compare, or its audit does not accept it.
    pub fn is_identical(&self, folder: &Path) -> Result<bool> {
        let entries = dump::entries(&folder.join("run.db"))?;
        let known = record::checkpoints(&entries);
        let last = entries.iter().rfind(|entry| entry["kind"] == "checkpoint.validated");
        let name = last.and_then(|entry| entry["body"]["obs"]["checkpoint"].as_str());
        let name = name.context("no checkpoint was validated")?;
        let is_whole = known.get(name).is_some_and(|checkpoint| record::is_whole(folder, name, checkpoint));
        Ok(is_whole && identity(folder)? == self.identity)
    }
}

/// Runs with every point logged.
fn passes(frozen: &RunFolder) -> Result<Vec<String>> {
    let run = frozen.copy();
    let logged: Vec<String> = points::places()?.keys().map(|point| format!("{point}=return(log)")).collect();
    let ended = Process::start(run.path(), &[], &[(FAILPOINTS, &logged.join(";"))])?.finish()?;
    ensure!(ended.code == 0, "a run whose points are logged ended with {}: {}", ended.code, ended.said);
    let passes: Vec<String> =
        ended.said.lines().filter_map(|line| line.strip_prefix(MARK)).map(str::to_owned).collect();
    ensure!(!passes.is_empty(), "no point was passed: {}", ended.said);
    Ok(passes)
}

/// Whether a killed, stopped or logged process said that it passed a point.
#[must_use]
pub fn says_point(said: &str, point: &str) -> bool {
    said.lines().any(|line| line.strip_prefix(MARK) == Some(point))
}

fn identity(folder: &Path) -> Result<Identity> {
    let finished = programs::run(LEDGER, folder, &["audit", "run.db", "--output-format", "json"]);
    let report: Value = serde_json::from_str(&finished.stdout).with_context(|| finished.to_string())?;
    ensure!(is_accepted(&report), "the audit says {}: {:#}", report["verdict"], report["findings"]);
    ensure!(report["projection"].is_string(), "a complete run has a projection");
    let entries = dump::entries(&folder.join("run.db"))?;
    let last = entries.iter().rfind(|entry| entry["kind"] == "checkpoint.durably_committed");
    let det = &last.context("a run commits checkpoints")?["body"]["det"];
    let (model, classes) = (det["model"].clone(), det["classes"].clone());
    Ok(Identity { classes, model, projection: report["projection"].clone() })
}

/// Whether an audit accepts a run, or would but for the crash points that its
/// trainer was built with: a build that can make a run fail on purpose is never
/// accepted, and this is the only error that is passed over.
fn is_accepted(report: &Value) -> bool {
    let findings = report["findings"].as_array().map_or(&[][..], Vec::as_slice);
    let mut errors = findings.iter().filter(|finding| finding["severity"] == "error").peekable();
    match report["verdict"].as_str() {
        Some("accepted") => errors.peek().is_none(),
        Some("rejected") => {
            errors.peek().is_some()
                && errors.all(|finding| {
                    finding["code"] == "GL207" && finding["location"] == "/body/obs/plan/instrumentation"
                })
        }
        _ => false,
    }
}

/// Bytes of all files below a folder.
///
/// # Errors
/// When it cannot be read.
pub fn used_bytes(folder: &Path) -> Result<u64> {
    let files = dump::files(folder)?;
    files.keys().map(|path| Ok(std::fs::metadata(folder.join(path))?.len())).sum()
}
