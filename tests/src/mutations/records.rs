//! The real runs that mutations change: made by the programs, each once.
//!
//! An [`Origin`] says how a run is made; [`Records`] makes it when it is first
//! asked for, audits it, and refuses it unless it is accepted without a warning
//! that the origin does not admit: a mutation of a run that was already in doubt
//! would show nothing. The run's folder lives as long as a record of it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use schemas::report::Verdict;
use serde_json::{Value, json};

use super::judge::{Judged, report};
use super::record::Record;
use super::reseal::{Attacker, Sealed};
use crate::programs::{self, TRAINER};
use crate::run_folder::{RunFolder, copy_folder};

/// A run that can be made.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// Makes it with the built programs.
    pub make: fn() -> RunFolder,
    /// Its name in tables, unique.
    pub name: &'static str,
}

/// Runs that were made, by name.
#[derive(Default)]
pub struct Records {
    made: Mutex<BTreeMap<&'static str, Record>>,
}

impl Records {
    /// The record of a run, which is made where it was not yet.
    ///
    /// # Errors
    /// When its ledger cannot be read, or it is not accepted.
    pub fn get(&self, origin: Origin) -> Result<Record> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(record) = made.get(origin.name) {
            return Ok(record.clone());
        }
        let record = Record::of_run((origin.make)()).with_context(|| origin.name.to_owned())?;
        let judged = Judged::of(&report(&record.source_folder().join(super::record::LEDGER_NAME))?);
        let (verdict, findings) = (judged.verdict, &judged.findings);
        ensure!(verdict == Verdict::Accepted, "{} is not accepted: {findings:#?}", origin.name);
        made.insert(origin.name, record.clone());
        Ok(record)
    }
}

/// The contract of the preset `tiny`, trained to its end.
pub const PLAIN: Origin = Origin { make: RunFolder::trained, name: "plain" };

/// A run that was struck: its process killed twice, once in the middle of a
/// save, and a shard damaged behind another one; it went on each time, once
/// after a person's intervention.
pub const EVENTFUL: Origin = Origin { make: eventful, name: "eventful" };

/// A run whose candidate was probed with controls.
pub const PROBED: Origin = Origin { make: probed, name: "probed" };

/// A run whose candidate the evaluator recomputed and that was handed off.
pub const HANDED_OFF: Origin = Origin { make: handed_off, name: "handed-off" };

/// A run whose moments stay empty, which is odd and honest.
pub const ODD: Origin = Origin { make: odd, name: "odd" };

/// A run of two processes.
pub const SHARED: Origin = Origin { make: shared, name: "shared" };

/// A run in binary16 whose first loss scale overflows.
pub const SCALED: Origin = Origin { make: scaled, name: "scaled" };

/// The plain run with entries that a run seldom has: a heartbeat and a diagnostic
/// among its steps, an amendment behind its end. Nothing else of it is changed,
/// and the trainer's key signed it.
pub const ANNOTATED: Origin = Origin { make: annotated, name: "annotated" };

/// Starts that an eventful run is given.
const MAX_STARTS: usize = 8;

fn annotated() -> RunFolder {
    let run = RunFolder::trained();
    let sealed = annotate(&run).expect("the plain run takes further entries");
    // What is sealed shares its unchanged files with the run that it was read from.
    let copy = run.copy();
    copy_folder(sealed.path(), copy.path()).expect("the copy is writable");
    copy
}

fn annotate(run: &RunFolder) -> Result<Sealed> {
    let mut record = Record::open(run.path())?;
    let step = record.at_step("step", 7)?;
    let mut among = |kind: &str, det: Value, obs: Value| {
        let mut entry = record.entries[step].clone();
        entry["kind"] = json!(kind);
        entry["body"] = json!({"det": det, "obs": obs});
        // They are of the attempt, and neither of a learner nor of a worker.
        (entry["learner"], entry["worker"]) = (Value::Null, Value::Null);
        record.entries.insert(step + 1, entry);
    };
    among("heartbeat", json!({"phase": "train"}), json!({"resident_bytes": 1_048_576}));
    among("diagnostic", json!({"name": "activations", "values": {"mean": 0.5}}), json!({"values": {}}));
    let end = record.last("run.end")?;
    let mut entry = record.entries[end].clone();
    entry["kind"] = json!("amendment");
    entry["body"] = json!({"det": {"amends": end, "statement": "the machine was moved"}, "obs": {}});
    entry["step"] = Value::Null;
    record.entries.push(entry);
    record.seal(Attacker::Trainer)
}

fn planned(fault: &str, phase: &str, step: u64) -> Value {
    json!({"fault": fault, "phase": phase, "seed": "7", "step": step, "worker": null})
}

fn eventful() -> RunFolder {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| {
        contract["budget"]["max_attempts"] = json!(10);
        contract["budget"]["max_steps"] = json!(20);
        contract["stopping"]["step"] = json!(20);
        contract["checkpoints"]["every_steps"] = json!(4);
        contract["checkpoints"]["keep"] =
            json!({"kind": "chosen", "best": 1, "every_steps": null, "last": 1, "pinned": [8]});
        contract["evaluation"]["streams"][0]["every_steps"] = json!(4);
        contract["state_digest_every_steps"] = json!(4);
        contract["faults"]["plan"] = json!([
            planned("worker_loss", "before_forward", 7),
            planned("checkpoint_write_interruption", "staged", 12),
            planned("single_shard_corruption", "validated", 16),
            planned("worker_loss", "before_forward", 18),
        ]);
    });
    let _ = run.freeze().expect_code(0);
    for number in 0..MAX_STARTS {
        let further: &[&str] = if number == 2 {
            &["--intervention", "replaced the disk", "--operator-minutes", "5"]
        } else {
            &[]
        };
        let arguments = [&["run", "--ledger", "run.db", "--quiet"], further].concat();
        let _ = programs::run(TRAINER, run.path(), &arguments);
        if run.entries().iter().any(|entry| entry["kind"] == "run.end") {
            return run;
        }
    }
    panic!("the run does not end: {:#?}", run.entries().last());
}

fn probed() -> RunFolder {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| {
        contract["checkpoints"]["candidate_stage"] = json!("resume_qualified");
        contract["state_digest_every_steps"] = json!(3);
    });
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    let entries = run.entries();
    let selected = entries.iter().find(|entry| entry["kind"] == "candidate.selected").expect("a selection");
    let checkpoint = selected["body"]["obs"]["checkpoint"].as_str().expect("a name");
    let arguments = ["probe", "--ledger", "run.db", "--quiet", "--checkpoint", checkpoint, "--controls"];
    let _ = programs::run(TRAINER, run.path(), &arguments).expect_code(0);
    run
}

fn handed_off() -> RunFolder {
    let run = RunFolder::trained();
    let _ = run.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let _ = run.audit(&["--save"]).expect_code(0);
    let _ = run.ledger_command("handoff", &[]).expect_code(0);
    run
}

fn odd() -> RunFolder {
    let run = RunFolder::tiny();
    let mut path = String::new();
    run.edit_contract(|contract| {
        path = contract["update"]["card"]["path"].as_str().expect("a path").to_owned();
        contract["update"]["card"]["digest"] = Value::Null;
        contract["update"]["card"]["num_bytes"] = Value::Null;
    });
    let path = run.path().join(path);
    let mut card: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("a card")).expect("the card is JSON");
    // Squares of gradients that are bounded so vanish in binary32.
    card["clipping"]["max_norm"] = json!(1e-30);
    std::fs::write(&path, serde_json::to_vec(&card).expect("JSON is written")).expect("writable");
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    run
}

fn shared() -> RunFolder {
    let run = RunFolder::by_workers(2, &["/topology/collective/replica_digest_every_steps=2"]);
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    run
}

fn scaled() -> RunFolder {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| {
        contract["numerics"]["compute_dtype"] = json!("f16");
        // 2^40 times a gradient is beyond binary16 until it was halved some times.
        contract["numerics"]["loss_scaler"] =
            json!({"backoff": 0.5, "growth": 2, "growth_interval": 3, "initial": 1_099_511_627_776_u64});
        let classes = contract["state_classes"].as_array_mut().expect("a list");
        let declared = classes.iter_mut().find(|declared| declared["class"] == "loss_scaler");
        declared.expect("it is declared")["not_applicable"] = Value::Null;
    });
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    run
}
