//! Resume probes: what matches, what must not, and what is refused before
//! anything runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ledger::keys::{KeyRing, Role};
use ledger::recorder::{Record, Recorder};
use rustix::process::Signal;
use schemas::body::Body;
use schemas::contract::{
    Batch, Contract, EquivalenceClass, ResumeEquivalence, ScheduleShape, StoppingRule, Tolerance,
};
use schemas::ids::CheckpointId;
use schemas::state::{CheckpointManifest, StateClass};
use serde_json::Value;
use trainer::export::{self, FileKind, NamedTensor};

use crate::common;
use crate::folder::{RunFolder, flip_last_byte};

/// Last step of the probed runs.
const LAST: u64 = 16;

/// A batch of five microbatches, a joint of the schedule after step 14, a
/// checkpoint of every step, and an evaluation at every fourth.
pub(crate) fn windows(contract: &mut Contract) {
    contract.batch = Batch { accumulation: 5, data_parallel: 1, global_examples: 10, microbatch_examples: 2 };
    contract.budget.max_steps = LAST;
    contract.stopping = StoppingRule::AtStep { step: LAST };
    contract.checkpoints.every_steps = 1;
    contract.state_digest_every_steps = Some(3);
    for schedule in &mut contract.schedule {
        schedule.shape =
            ScheduleShape::WarmupCosine { floor: 1e-4, peak: 1e-2, total_steps: 40, warmup_steps: 14 };
    }
}

pub fn trained(edit: impl FnOnce(&mut Contract)) -> Result<RunFolder> {
    let folder = RunFolder::new(|contract| {
        windows(contract);
        edit(contract);
    })?;
    folder.train()?.expect(0);
    Ok(folder)
}

pub(crate) fn checkpoint(step: u64) -> String {
    format!("s{step:08}-a1")
}

/// The report of a probe that ended with a code.
#[track_caller]
pub(crate) fn probe(folder: &RunFolder, step: u64, further: &[&str], code: i32) -> Result<Value> {
    let checkpoint = checkpoint(step);
    let arguments: Vec<&str> =
        ["--checkpoint", &checkpoint, "--json"].into_iter().chain(further.iter().copied()).collect();
    let finished = folder.probe(&arguments)?.expect(code);
    let report: Value = serde_json::from_str(&finished.stdout)?;
    assert_eq!(report["exit_code"], code);
    Ok(report)
}

/// Verdict and reason of each probe by what it withholds.
pub fn outcomes(report: &Value) -> BTreeMap<String, (String, Option<String>)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let probes = report["probes"].as_array().into_iter().flatten();
    probes
        .map(|probe| {
            let withheld = probe["withheld"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let withheld = withheld.collect::<Vec<_>>().join(",");
            (withheld, (text(&probe["verdict"]).unwrap_or_default(), text(&probe["inert"])))
        })
        .collect()
}

/// What every captured class but the model is.
const COLD: &str = "optimizer,data_cursor,topology,compiler_plan,selection_state";

pub(crate) fn leftovers(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for item in fs::read_dir(folder)? {
        let path = item?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".probe-")) {
            found.push(path);
        }
    }
    Ok(found)
}

#[test]
fn a_probe_over_an_epoch_end_a_joint_and_accumulation_windows_matches_and_its_controls_do_not() -> Result<()>
{
    let folder = trained(|_| ())?;
    // Steps 13 to 16 hold all three.
    let steps = folder.bodies("step")?;
    let ranges = |step: usize| steps[step - 1]["det"]["draws"][0]["ranges"].as_array().map_or(0, Vec::len);
    assert_eq!((12..=16).map(ranges).collect::<Vec<_>>(), [1, 1, 2, 1, 1], "the epoch ends in step 14");
    let rate = |step: usize| steps[step - 1]["det"]["updates"][0]["learning_rate"].as_f64().unwrap_or(0.0);
    assert!(rate(13) < rate(14) && rate(14) > rate(15), "the schedule has its joint after step 14");
    assert_eq!(steps[13]["det"]["credit"]["backpropagation"]["num_microbatches"], 5);

    let report = probe(&folder, 12, &["--controls", "--steps", "4"], 0)?;
    let inert = |reason: &str| ("inert".to_owned(), Some(reason.to_owned()));
    let differs = || ("differs".to_owned(), None);
    let expected = [
        ("", ("matches".to_owned(), None)),
        (COLD, differs()),
        ("compiler_plan", inert("equals_initial")),
        ("data_cursor", differs()),
        ("model", differs()),
        ("optimizer", differs()),
        ("selection_state", inert("decides_nothing")),
        ("topology", inert("equals_initial")),
    ];
    let expected = expected.map(|(withheld, outcome)| (withheld.to_owned(), outcome));
    assert_eq!(outcomes(&report), BTreeMap::from(expected));

    // Everything is on record: intent, result, stage.
    let kinds = folder.kinds()?;
    let kinds = &kinds[kinds.iter().position(|kind| *kind == "run.end").context("it ended")? + 1..];
    let mut expected: Vec<&str> = ["probe.start", "probe.result"].repeat(8);
    expected.push("checkpoint.resume_qualified");
    assert_eq!(kinds, expected);
    let qualified = &folder.bodies("checkpoint.resume_qualified")?[0];
    assert_eq!(qualified["det"]["probe"], report["probes"][0]["probe"]);
    let results = folder.bodies("probe.result")?;
    for class in results[0]["det"]["distances"].as_array().context("distances")? {
        assert_eq!((&class["equal"], &class["distance"]["max_ulp"]), (&Value::Bool(true), &Value::from(0)));
        assert_eq!(class["reference"], class["resumed"]);
    }
    assert!(leftovers(folder.path())?.is_empty());
    // A run that was probed is still over, and says so.
    assert!(folder.train()?.expect(0).stdout.contains("the run had ended before"));
    Ok(())
}

#[test]
fn a_control_names_class_tensor_step_and_distance() -> Result<()> {
    let folder = trained(|_| ())?;
    let report = probe(&folder, 5, &["--withhold", "optimizer"], 0)?;
    let first = &report["probes"][0]["first"];
    assert_eq!(first["step"], 6, "{first}");
    let result = &report["probes"][0]["result"];
    let class = |name: &str| {
        let mut classes = result["distances"].as_array().into_iter().flatten();
        classes.find(|class| class["class"] == name).cloned().unwrap_or_default()
    };
    for name in ["model", "optimizer"] {
        let class = class(name);
        assert_eq!(class["distance"]["first_step"], 6, "{class}");
        assert!(class["first_tensor"].as_str().is_some_and(|tensor| tensor.starts_with("model.")), "{class}");
        assert!(class["distance"]["max_absolute"].as_f64() > Some(0.0), "{class}");
        assert!(class["distance"]["max_ulp"].as_u64() > Some(0), "{class}");
    }
    // The data went on where it was.
    let records = result["records"].as_array().context("records")?;
    let draws = records.iter().find(|record| record["record"] == "draws").context("draws")?;
    assert_eq!(draws["equal"], true);
    assert_eq!(report["qualified"], Value::Null);

    // A lost cursor draws other examples at once.
    let report = probe(&folder, 5, &["--withhold", "data_cursor"], 0)?;
    let records = report["probes"][0]["result"]["records"].as_array().context("records")?;
    let draws = records.iter().find(|record| record["record"] == "draws").context("draws")?;
    assert_eq!(draws["distance"]["first_step"], 6, "{draws}");
    Ok(())
}

#[test]
fn probes_of_an_epochs_middle_and_of_its_last_batch_qualify_and_of_step_0_cannot() -> Result<()> {
    let folder = trained(|_| ())?;
    for step in [5, 13, 14, LAST] {
        let report = probe(&folder, step, &["--steps", "3"], 0)?;
        assert!(report["qualified"].is_u64(), "step {step}: {report}");
    }
    let report = probe(&folder, 0, &["--steps", "3"], 1)?;
    let outcomes = outcomes(&report);
    assert_eq!(outcomes[""].0, "matches");
    // All that the cold control lacks is the evaluation of step 0.
    let distances = &report["probes"][1]["result"]["distances"];
    let unequal = distances.as_array().into_iter().flatten().filter(|class| class["equal"] == false);
    assert_eq!(unequal.map(|class| &class["class"]).collect::<Vec<_>>(), ["selection_state"], "{distances}");
    assert!(report["reason"].as_str().is_some_and(|reason| reason.contains("initial state")), "{report}");
    assert_eq!(folder.bodies("checkpoint.resume_qualified")?.len(), 4);
    Ok(())
}

#[test]
fn patience_makes_the_selection_state_count() -> Result<()> {
    let folder = trained(|contract| {
        contract.stopping =
            StoppingRule::Patience { max_step: LAST, min_delta: 0.0, patience: 5, stream: "val".to_owned() };
    })?;
    let report = probe(&folder, 5, &["--withhold", "selection_state"], 0)?;
    assert_eq!(outcomes(&report)["selection_state"], ("differs".to_owned(), None), "{report}");
    let first = &report["probes"][0]["first"];
    assert_eq!((&first["what"], &first["step"]), (&"selection_state".into(), &6.into()), "{first}");
    assert!(first["tensor"].as_str().is_some_and(|tensor| tensor.starts_with("selection_state.json/")));
    // An evaluation that improves makes up for the loss at once.
    let report = probe(&folder, 3, &["--withhold", "selection_state"], 0)?;
    assert_eq!(outcomes(&report)["selection_state"].1.as_deref(), Some("replaced_by_evaluation"), "{report}");
    Ok(())
}

#[test]
fn bounds_that_were_frozen_in_advance_are_a_class_too() -> Result<()> {
    let folder = trained(|contract| {
        let tolerance = Some(Tolerance { max_absolute: 1e-7, max_relative: 1e-6 });
        contract.resume =
            ResumeEquivalence { class: EquivalenceClass::OperationOrderBounded, test: None, tolerance };
    })?;
    let report = probe(&folder, 7, &[], 0)?;
    assert_eq!(report["class"], "operation_order_bounded");
    assert!(report["qualified"].is_u64(), "{report}");
    assert_eq!(folder.bodies("checkpoint.resume_qualified")?[0]["det"]["class"], "operation_order_bounded");
    Ok(())
}

#[test]
fn a_run_between_two_attempts_can_be_probed_and_goes_on_to_the_same_bytes() -> Result<()> {
    let uninterrupted = RunFolder::long()?;
    uninterrupted.train()?.expect(0);
    let folder = RunFolder::long()?;
    let mut training = folder.start()?;
    training.wait_for_step(25)?.send(Signal::KILL)?;
    training.finish()?;
    let report = probe(&folder, 20, &[], 0)?;
    assert!(report["qualified"].is_u64(), "{report}");
    folder.train()?.expect(0).says("RESUMING run ");
    assert_eq!(folder.model(60)?, uninterrupted.model(60)?);
    Ok(())
}

#[test]
fn a_flipped_bit_is_refused_before_anything_runs() -> Result<()> {
    let folder = trained(|_| ())?;
    let path = folder.path().join("checkpoints").join(checkpoint(5)).join("optimizer.safetensors");
    flip_last_byte(&path)?;
    let entries = folder.entries()?;
    let finished = folder.probe(&["--checkpoint", &checkpoint(5)])?.expect(2);
    finished.says("nothing was started").says("optimizer.safetensors").says("hint: ");
    assert!(!finished.stderr.contains("Reference:"), "{}", finished.stderr);
    assert_eq!(folder.entries()?, entries);
    assert!(leftovers(folder.path())?.is_empty());
    Ok(())
}

#[test]
fn what_cannot_be_probed_is_refused_and_leaves_no_entry() -> Result<()> {
    let folder = trained(|_| ())?;
    let entries = folder.entries()?;
    let known = checkpoint(5);
    let refused: [(&[&str], &str); 4] = [
        (&["--checkpoint", "s00000099-a1"], "it has s00000000-a1"),
        (
            &["--checkpoint", &known, "--withhold", "rng_cpu"],
            "the contract does not capture it; it captures model",
        ),
        (&["--checkpoint", &known, "--withhold", "luck"], "luck"),
        (&["--checkpoint", &known, "--steps", "1"], "a probe runs 2 to"),
    ];
    for (arguments, says) in refused {
        folder.probe(arguments)?.expect(2).says(says);
    }
    // The bytes are the right ones, and somewhere else: an audit would not read them.
    let path = folder.path().join("checkpoints").join(&known);
    fs::rename(&path, folder.path().join("elsewhere"))?;
    std::os::unix::fs::symlink(folder.path().join("elsewhere"), &path)?;
    let linked = folder.probe(&["--checkpoint", &known])?.expect(2);
    linked.says("nothing was started").says("is a symbolic link").says("hint: ");
    assert_eq!(folder.entries()?, entries);
    Ok(())
}

#[test]
fn a_signal_ends_a_probe_cleanly_and_its_start_stays_on_record() -> Result<()> {
    let folder = trained(|_| ())?;
    let mut probing = folder.start_probe(&["--checkpoint", &checkpoint(5), "--steps", "9000"])?;
    probing.wait_for_step(9)?.send(Signal::TERM)?;
    probing.finish()?.expect(143).says("ended the probe");
    assert!(leftovers(folder.path())?.is_empty());
    assert_eq!(folder.kinds()?.last(), Some(&"probe.start"));
    probe(&folder, 5, &[], 0)?;
    Ok(())
}

#[test]
fn what_a_killed_probe_left_goes_with_the_next_one_and_the_ledger_is_its_own_meanwhile() -> Result<()> {
    let folder = trained(|_| ())?;
    let mut probing = folder.start_probe(&["--checkpoint", &checkpoint(5), "--steps", "9000"])?;
    probing.wait_for_step(9)?;
    folder.train()?.expect(2).says("is being written by process");
    probing.send(Signal::KILL)?;
    probing.finish()?;
    let left = leftovers(folder.path())?;
    assert_eq!(left.len(), 1, "the kill struck before the folder was removed");
    // What is another run's, or nobody's, stays.
    let others = folder.path().join(".probe-1");
    fs::create_dir(&others)?;
    fs::write(others.join("probe-scratch"), "probe-scratch/1 another run\n")?;
    let finished = folder.probe(&["--checkpoint", &checkpoint(5)])?.expect(0);
    finished.says("which a killed probe left").says(" updates done, about ");
    assert_eq!(leftovers(folder.path())?, [others]);
    Ok(())
}

/// A ledger that says the same as another run's, except that one checkpoint
/// holds other optimizer state: what a restore which is wrong, and knows
/// nothing of it, would go on from.
pub(crate) fn with_other_state(
    honest: &RunFolder,
    contract: impl FnOnce(&mut Contract),
    step: u64,
    change: impl Fn(&mut NamedTensor),
) -> Result<RunFolder> {
    let forged = RunFolder::new(contract)?;
    let name = checkpoint(step);
    let (from, to) =
        (honest.path().join("checkpoints").join(&name), forged.path().join("checkpoints").join(&name));
    fs::create_dir_all(&to)?;
    for item in fs::read_dir(&from)? {
        let item = item?;
        fs::copy(item.path(), to.join(item.file_name()))?;
    }
    let bytes = fs::read(from.join("optimizer.safetensors"))?;
    let (mut tensors, _) = export::read(FileKind::State, &mut bytes.as_slice(), bytes.len() as u64)?;
    tensors.iter_mut().for_each(change);
    let bytes = export::safetensors_bytes(FileKind::State, &tensors)?;
    fs::write(to.join("optimizer.safetensors"), &bytes)?;

    let key = KeyRing::open(&forged.path().join("keys"))?.get(Role::Trainer)?;
    let recorder = Recorder::open(&forged.ledger(), key)?;
    let contract = recorder.contract().context("it was frozen")?.digest;
    let mut manifest: CheckpointManifest = serde_json::from_slice(&fs::read(to.join("manifest.json"))?)?;
    manifest.run = recorder.run().clone();
    manifest.contract = contract;
    let classes = manifest.classes.iter_mut().filter(|captured| captured.class == StateClass::Optimizer);
    for shard in classes.flat_map(|captured| &mut captured.shards) {
        shard.digest = common::digest_of(&bytes);
    }
    let manifest = ledger::canonical::entry_json(&manifest)?;
    fs::write(to.join("manifest.json"), &manifest)?;
    for entry in honest.entries()?.into_iter().skip(1) {
        let mut body = entry.body;
        if let Body::CheckpointDurablyCommitted(halves) = &mut body
            && halves.obs.checkpoint == CheckpointId(name.clone())
        {
            halves.obs.manifest = common::digest_of(&manifest);
        }
        let header = entry.header;
        recorder.append(Record {
            attempt: header.attempt,
            segment: header.segment,
            learner: header.learner,
            worker: header.worker,
            step: header.step,
            ..Record::new(body)
        })?;
    }
    recorder.close()?;
    Ok(forged)
}

#[test]
fn a_restore_that_is_wrong_by_one_bit_is_named() -> Result<()> {
    let honest = trained(|_| ())?;
    let forged = with_other_state(&honest, windows, 5, |tensor| {
        // The last bit of the first element.
        if tensor.name == "model.norm.weight.exp_avg" {
            tensor.bytes[0] ^= 1;
        }
    })?;
    let report = probe(&forged, 5, &[], 1)?;
    assert_eq!(report["qualified"], Value::Null);
    assert!(forged.bodies("checkpoint.resume_qualified")?.is_empty());
    let first = &report["probes"][0]["first"];
    assert_eq!(first["what"], "optimizer", "{first}");
    assert_eq!(first["tensor"], "model.norm.weight.exp_avg");
    assert_eq!((&first["step"], &first["max_ulp"]), (&5.into(), &1.into()));
    let finished = forged.probe(&["--checkpoint", &checkpoint(5)])?.expect(1);
    assert!(
        finished.stdout.contains("first in optimizer (model.norm.weight.exp_avg) at step 5"),
        "{finished:?}"
    );
    assert!(finished.stdout.contains("is not resume-qualified"), "{finished:?}");
    Ok(())
}
