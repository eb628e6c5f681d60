//! A loop that is arithmetic and no model: its parameters are a function of what
//! it was fed, so that a step that is executed again gives the same bits and one
//! that was fed something else does not. It is there to be killed.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ledger::keys::{KeyRing, Role};
use ledger::recorder::{Record, Recorder};
use loops::{Attempt, Evaluation, GroupStep, LoopError, LoopOptions, NamedTensor, Run, Step};
use schemas::body::{Body, CheckpointDet, CheckpointObs, Halves};
use schemas::ids::{AttemptId, CheckpointId, LearnerId, SegmentId};
use serde_json::Value;
use system_tests::run_folder::RunFolder;
use tempfile::TempDir;

use super::failed;

const BACKEND: &str = "arithmetic 1";
const RUNTIME: &str = "Rust";

/// A frozen run of the loop.
fn frozen(changes: &[&str]) -> Result<RunFolder> {
    let source = tempfile::NamedTempFile::with_suffix(".rs")?;
    std::fs::write(source.path(), include_str!("arithmetic.rs"))?;
    let folder = RunFolder::external(source.path(), BACKEND, RUNTIME, changes);
    let _ = folder.freeze().expect_code(0);
    Ok(folder)
}

fn options(folder: &RunFolder) -> LoopOptions {
    LoopOptions {
        backend: BACKEND.to_owned(),
        ledger: folder.ledger(),
        num_threads: 1,
        runtime: RUNTIME.to_owned(),
        ..LoopOptions::default()
    }
}

/// What the loop does wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    /// A resume begins with the first example again.
    Cursor,
    /// Moments are zero again behind a resume.
    Moments,
    /// Another rate than the contract's.
    Rate,
    /// It says that it was fed what it was not.
    Bytes,
    /// The gradient norm of this step is not a number.
    NotANumber(u64),
}

/// The state: one number for each of the model's elements.
struct Loop {
    model: Vec<NamedTensor>,
    optimizer: Vec<NamedTensor>,
    position: u64,
}

impl Loop {
    /// Parameters that vary, and moments that are zero.
    fn initial(attempt: &Attempt, folder: &Path) -> Result<Self> {
        let manifest: Value = serde_json::from_slice(&std::fs::read(folder.join("parameters.json"))?)?;
        let (mut model, mut optimizer) = (Vec::new(), Vec::new());
        for parameter in manifest["parameters"].as_array().context("a list")? {
            if !parameter["tied_to"].is_null() {
                continue;
            }
            let path = parameter["path"].as_str().context("a path")?.to_owned();
            let shape: Vec<u64> = serde_json::from_value(parameter["shape"].clone())?;
            let num_elements = usize::try_from(shape.iter().product::<u64>())?;
            let values = |first: f32, by: f32| -> Vec<u8> {
                let mut value = first;
                let values = std::iter::repeat_with(|| {
                    value += by;
                    value
                });
                values.take(num_elements).flat_map(f32::to_le_bytes).collect()
            };
            let tensor = |name: String, bytes| NamedTensor {
                bytes,
                dtype: "F32".to_owned(),
                name,
                shape: shape.clone(),
            };
            for moment in ["exp_avg", "exp_avg_sq"] {
                optimizer.push(tensor(format!("{path}.{moment}"), values(0.0, 0.0)));
            }
            model.push(tensor(path, values(0.013, 0.000_117)));
        }
        anyhow::ensure!(attempt.last_step() == 0 || attempt.resumed().is_some(), "a step without a state");
        Ok(Self { model, optimizer, position: 0 })
    }

    fn resumed(attempt: &Attempt, folder: &Path, wrong: Wrong) -> Result<Self> {
        let mut state = Self::initial(attempt, folder)?;
        if let Some(resumed) = attempt.resumed() {
            state.model = resumed.model()?;
            if wrong != Wrong::Moments {
                state.optimizer = resumed.optimizer()?;
            }
            state.position = if wrong == Wrong::Cursor { 0 } else { resumed.position()? };
        }
        Ok(state)
    }

    /// Moves every element by what was fed, with one gradient for all of them, and
    /// its moments as the card has them; returns a loss and a norm.
    #[allow(clippy::cast_possible_truncation, reason = "the state is binary32")]
    fn update(&mut self, fed: &[Vec<u8>], rate: f64, clip: impl FnOnce(f64) -> f64) -> (f64, f64) {
        let sum: u64 = fed.iter().flatten().map(|byte| u64::from(*byte)).sum();
        let gradient = 0.01 + (sum % 1009) as f32 / 10_000.0;
        let num_elements: usize = self.model.iter().map(|tensor| tensor.bytes.len() / 4).sum();
        let norm = f64::from(gradient) * (num_elements as f64).sqrt();
        let clipped = (f64::from(gradient) * clip(norm)) as f32;
        let (keep, weight) = (0.95_f64 as f32, (1.0 - 0.95_f64) as f32);
        let moment = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let mut size = 0.0;
        for tensor in &mut self.optimizer {
            let is_second = tensor.name.ends_with(".exp_avg_sq");
            for bytes in tensor.bytes.chunks_mut(4) {
                let value = if is_second {
                    keep * moment(bytes) + weight * clipped * clipped
                } else {
                    moment(bytes).mul_add(0.9, gradient)
                };
                if !is_second {
                    size = f64::from(value);
                }
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        let by = (rate * size) as f32;
        for tensor in &mut self.model {
            for bytes in tensor.bytes.chunks_mut(4) {
                let value = moment(bytes) - by;
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        (5.0 + f64::from(gradient) - size / 100.0, norm)
    }
}

/// Runs one attempt to its end, or leaves after a step as a killed process does.
fn run(folder: &RunFolder, wrong: Wrong, vanish_after: Option<u64>) -> Result<bool> {
    let mut attempt = Run::open(options(folder))?.begin()?;
    let mut state = Loop::resumed(&attempt, folder.path(), wrong)?;
    go_on(&mut attempt, &mut state, wrong, vanish_after)
}

/// The calls of one attempt, up to its end, the step to vanish behind, or an error.
fn go_on(attempt: &mut Attempt, state: &mut Loop, wrong: Wrong, vanish_after: Option<u64>) -> Result<bool> {
    let contract = attempt.contract().clone();
    loop {
        let due = attempt.due();
        for stream in &due.evaluations {
            let examples = attempt.stream_examples(stream)?;
            let num_tokens = examples.iter().map(|example| example.len() as u64 - 1).sum();
            let bits = 4.0 + 1.0 / (attempt.last_step() + 1) as f64;
            let total_nats = bits * num_tokens as f64 * std::f64::consts::LN_2;
            let num_examples = examples.len() as u64;
            attempt.evaluation(&Evaluation { num_examples, num_tokens, stream, total_nats })?;
        }
        if due.checkpoint {
            attempt.save(state.model.clone(), state.optimizer.clone(), state.position)?;
        }
        if due.is_last {
            attempt.finish()?;
            return Ok(true);
        }
        if vanish_after == Some(attempt.last_step()) {
            return Ok(false);
        }
        let step = attempt.last_step() + 1;
        let mut fed = attempt.batch(state.position, u64::from(contract.batch.global_examples))?;
        let mut groups = Vec::new();
        for (group, weight_decay, _) in attempt.groups() {
            let learning_rate =
                attempt.learning_rate(&group, step)? * if wrong == Wrong::Rate { 2.0 } else { 1.0 };
            groups.push(GroupStep {
                clip_coefficient: 0.0,
                group,
                learning_rate,
                parameter_norm: None,
                update_norm: None,
                weight_decay,
            });
        }
        let (loss, mut gradient_norm) =
            state.update(&fed, groups[0].learning_rate, |norm| attempt.clip_coefficient(norm));
        for group in &mut groups {
            group.clip_coefficient = attempt.clip_coefficient(gradient_norm);
        }
        if wrong == Wrong::Bytes {
            fed[0][0] ^= 1;
        }
        if wrong == Wrong::NotANumber(step) {
            gradient_norm = f64::NAN;
        }
        let num_microbatches = contract.batch.accumulation;
        let position = state.position;
        attempt.step(&Step { fed: &fed, gradient_norm, groups, loss, num_microbatches, position })?;
        state.position += fed.len() as u64;
    }
}

fn check_rejected(wrong: Wrong, codes: &[&str]) -> Result<()> {
    let folder = frozen(&[])?;
    assert!(!run(
        &folder,
        if matches!(wrong, Wrong::Cursor | Wrong::Moments) { Wrong::Nothing } else { wrong },
        Some(7)
    )?);
    assert!(run(&folder, wrong, None)?);
    let report = folder.report();
    let failed = failed(&report);
    assert_eq!(report["verdict"], "rejected", "{wrong:?}: {report:#}");
    for code in codes {
        assert!(failed.contains(*code), "{wrong:?}: {code} is not among {failed:?}");
    }
    Ok(())
}

/// An export says under which profile the run was accepted, wherever it says that
/// it was.
fn check_exports(folder: &RunFolder) -> Result<()> {
    let said = folder.ledger_command("export", &["--format", "ro-crate", "--json"]).expect_code(0);
    said.expect_message(&["accepted (external-loop)"]);
    assert_eq!(said.json()["profile"], "external-loop");
    let crate_text = std::fs::read_to_string(folder.path().join("ro-crate-metadata.json"))?;
    assert!(crate_text.contains("written: accepted (external-loop);"), "{crate_text}");
    let _ = folder.ledger_command("export", &["--format", "mlperf", "--output", "log"]).expect_code(0);
    let log = std::fs::read_to_string(folder.path().join("log/mlperf.log"))?;
    let verdicts = log.lines().filter(|line| line.contains("\"verdict\":\"accepted\""));
    let profiles: Vec<bool> = verdicts.map(|line| line.contains("\"profile\":\"external-loop\"")).collect();
    assert_eq!(profiles, [true, true]);
    // The signed provenance promises no compiler and no lock file.
    let _ = folder.ledger_command("export", &["--format", "slsa", "--output", "slsa"]).expect_code(0);
    let envelope = std::fs::read(folder.path().join("slsa/provenance.dsse.json"))?;
    let envelope: Value = serde_json::from_slice(&envelope)?;
    let statement: Value =
        serde_json::from_slice(&STANDARD.decode(envelope["payload"].as_str().context("a payload")?)?)?;
    let code = &statement["predicate"]["buildDefinition"]["resolvedDependencies"][0];
    assert_eq!(code["annotations"]["digestIsOver"], "paths and contents of /external_loop/files", "{code}");
    Ok(())
}

#[test]
fn a_loop_that_vanished_and_resumed_is_accepted_under_its_own_name() -> Result<()> {
    let folder = frozen(&[])?;
    assert!(!run(&folder, Wrong::Nothing, Some(7))?);
    let text = folder.audit(&[]).expect_code(4).stdout;
    assert!(text.starts_with("incomplete (external-loop): "), "{text}");
    assert!(run(&folder, Wrong::Nothing, None)?);

    let report = folder.report();
    assert_eq!(
        (&report["verdict"], &report["profile"]),
        (&"accepted".into(), &"external-loop".into()),
        "{report:#}"
    );
    assert_eq!(report["denominators"]["attempted"], 2);
    assert_eq!(report["denominators"]["recovered"], 1);
    let not_promised = report["not_promised"].as_array().expect("a list");
    let evaluated = |code: &str| {
        let line = not_promised.iter().find(|line| line["code"] == code);
        line.and_then(|line| line["evaluated"].as_bool())
    };
    assert_eq!(evaluated("GL408"), Some(false));
    // This loop takes no norms, and the list says what that leaves open.
    let norms =
        report["rules"].as_array().and_then(|rules| rules.iter().find(|rule| rule["code"] == "GL416"));
    assert_eq!(norms.map(|rule| &rule["status"]), Some(&"not_applicable".into()));
    assert_eq!(evaluated("GL416"), Some(true));
    let text = folder.audit(&[]).expect_code(0).stdout;
    assert!(text.starts_with("accepted (external-loop): "), "{text}");
    assert!(text.contains("does not promise this:"), "{text}");
    assert!(text.contains("a loop of the owner's own"), "the nonclaim is shown: {text}");

    check_exports(&folder)?;

    // A run that is over takes nothing more.
    let over = Run::open(options(&folder)).expect_err("the run is over");
    assert!(matches!(over, LoopError::Over { .. }), "{over}");
    Ok(())
}

#[test]
fn a_loop_that_was_interrupted_after_each_step_is_accepted() -> Result<()> {
    let folder = frozen(&[])?;
    let mut num_attempts = 0;
    for step in 0..20 {
        if run(&folder, Wrong::Nothing, Some(step))? {
            break;
        }
        num_attempts += 1;
    }
    assert!(run(&folder, Wrong::Nothing, None)?);
    assert!(num_attempts >= 19, "{num_attempts}");
    let report = folder.report();
    assert_eq!(report["verdict"], "accepted", "{report:#}");
    Ok(())
}

#[test]
fn a_resume_that_skips_the_data_cursor_is_found() -> Result<()> {
    check_rejected(Wrong::Cursor, &["GL205", "GL302", "GL303", "GL304", "GL306", "GL607"])
}

#[test]
fn a_resume_without_moments_is_found_in_the_steps_that_it_executes_again() -> Result<()> {
    check_rejected(Wrong::Moments, &["GL205"])
}

#[test]
fn another_rate_and_other_bytes_are_found() -> Result<()> {
    check_rejected(Wrong::Rate, &["GL401"])?;
    check_rejected(Wrong::Bytes, &["GL303", "GL304"])
}

#[test]
fn a_number_that_is_none_ends_the_attempt_and_is_recovered_from() -> Result<()> {
    let folder = frozen(&[])?;
    let error = run(&folder, Wrong::NotANumber(7), None).expect_err("it is not a number");
    assert!(error.to_string().contains("the gradient norm of step 7"), "{error}");
    let entries = folder.entries();
    let ends: Vec<&Value> = entries.iter().filter(|entry| entry["kind"] == "attempt.end").collect();
    assert_eq!(ends.len(), 1);
    assert_eq!(ends[0]["body"]["det"]["outcome"], "failed");
    assert!(run(&folder, Wrong::Nothing, None)?);
    let recovered = folder.entries().iter().filter(|entry| entry["kind"] == "fault.recovered").count();
    assert_eq!(recovered, 1);
    // The number stays on record, and is found.
    assert!(failed(&folder.report()).contains("GL404"));
    Ok(())
}

#[test]
fn a_save_that_failed_is_not_tried_again_and_the_next_attempt_makes_it() -> Result<()> {
    let folder = frozen(&[])?;
    let mut attempt = Run::open(options(&folder))?.begin()?;
    let mut state = Loop::resumed(&attempt, folder.path(), Wrong::Nothing)?;
    let taken = folder.path().join(&attempt.contract().checkpoints.store).join("s00000005-a1");
    std::fs::create_dir_all(&taken)?;
    let error = go_on(&mut attempt, &mut state, Wrong::Nothing, None).expect_err("the name is taken");
    assert!(error.to_string().contains("exists already"), "{error}");

    // Nothing would be in the way of a second one now.
    std::fs::remove_dir(&taken)?;
    let saved = attempt.save(state.model.clone(), state.optimizer.clone(), state.position);
    let fed = attempt.batch(state.position, 4)?;
    let (groups, position) = (Vec::new(), state.position);
    let step = Step { fed: &fed, gradient_norm: 1.0, groups, loss: 1.0, num_microbatches: 1, position };
    let evaluation = Evaluation { num_examples: 1, num_tokens: 1, stream: "val", total_nats: 1.0 };
    let errors = [
        saved.expect_err("a second save"),
        attempt.step(&step).expect_err("a step"),
        attempt.evaluation(&evaluation).expect_err("an evaluation"),
        attempt.diagnostic("loop", &BTreeMap::new()).expect_err("a diagnostic"),
        attempt.finish().expect_err("the end of the run"),
    ];
    for error in errors {
        assert!(matches!(error, LoopError::Order { .. }), "{error}");
        assert!(error.to_string().contains("the save of step 5 failed"), "{error}");
        assert!(error.hint().contains("`fail` or `interrupt`"), "{}", error.hint());
    }
    attempt.fail("the checkpoint could not be saved", None)?;
    drop(attempt);

    assert!(run(&folder, Wrong::Nothing, None)?);
    let entries = folder.entries();
    let requested = entries.iter().filter(|entry| entry["kind"] == "checkpoint.requested");
    let names: Vec<&str> =
        requested.filter_map(|entry| entry["body"]["obs"]["checkpoint"].as_str()).take(3).collect();
    assert_eq!(names, ["s00000000-a1", "s00000005-a1", "s00000005-a2"]);
    let report = folder.report();
    assert_eq!(report["verdict"], "accepted", "{report:#}");
    Ok(())
}

#[test]
fn what_a_recovery_did_not_come_to_remove_the_next_one_does() -> Result<()> {
    let folder = frozen(&[])?;
    assert!(!run(&folder, Wrong::Nothing, Some(7))?);
    // As a process that was killed while it wrote a checkpoint leaves it.
    let checkpoint = CheckpointId("s00000007-a1".to_owned());
    let key = KeyRing::open(&folder.path().join("keys"))?.get(Role::Trainer)?;
    let recorder = Recorder::open(&folder.ledger(), key)?;
    let obs = CheckpointObs { checkpoint: checkpoint.clone(), duration_us: 0 };
    let body = Body::CheckpointRequested(Box::new(Halves { det: CheckpointDet { step: 7 }, obs }));
    recorder.append_durable(Record {
        attempt: Some(AttemptId(1)),
        learner: Some(LearnerId(0)),
        segment: Some(SegmentId(1)),
        step: Some(7),
        ..Record::new(body)
    })?;
    recorder.close()?;
    let process = std::process::id();
    let opened = Run::open(options(&folder))?;
    let store = folder.path().join(&opened.contract().checkpoints.store);
    let staging = store.join(format!(".staging-{checkpoint}-{process}"));
    let leave = || -> Result<()> {
        std::fs::create_dir(&staging)?;
        std::fs::write(staging.join("model.safetensors"), b"half of it")?;
        Ok(())
    };
    leave()?;
    drop(opened.begin()?);
    assert!(!staging.exists(), "the recovery removes what it called failed");

    // As if it had been killed between the entry and the removal.
    leave()?;
    drop(Run::open(options(&folder))?.begin()?);
    assert!(!staging.exists(), "and so does the one behind it");
    let failed = folder.entries().iter().filter(|entry| entry["kind"] == "checkpoint.failed").count();
    assert_eq!(failed, 1, "it is called failed once");
    Ok(())
}

#[test]
fn a_native_contract_is_refused_before_anything_is_written() -> Result<()> {
    let folder = RunFolder::frozen();
    let before = std::fs::read(folder.ledger())?;
    let error = Run::open(options(&folder)).expect_err("its profile is native");
    assert!(matches!(error, LoopError::Native { .. }), "{error}");
    assert!(error.hint().contains("external-loop"));
    assert_eq!(std::fs::read(folder.ledger())?, before);
    Ok(())
}

#[test]
fn a_changed_file_and_another_backend_are_refused() -> Result<()> {
    let folder = frozen(&[])?;
    let other = LoopOptions { backend: "arithmetic 2".to_owned(), ..options(&folder) };
    let error = Run::open(other).expect_err("another backend");
    assert!(matches!(error, LoopError::Differs { .. }), "{error}");
    let program = LoopOptions { program: Some(std::env::current_exe()?), ..options(&folder) };
    let error = Run::open(program).expect_err("another program");
    assert!(matches!(error, LoopError::Program { .. }), "{error}");
    let files = folder.path().join("loop");
    let file = std::fs::read_dir(files)?.next().context("a file")??.path();
    system_tests::run_folder::flip_byte(&file, 3);
    let error = Run::open(options(&folder)).expect_err("another file");
    assert!(matches!(error, LoopError::Code { .. }), "{error}");
    assert_eq!(folder.entries().len(), 1, "the freeze alone");
    Ok(())
}

/// An audit reads no checkpoint through a link, so that a loop which saved or resumed
/// through one could never be accepted.
#[test]
fn checkpoints_behind_a_link_are_refused_and_nothing_is_written() -> Result<()> {
    let folder = frozen(&[])?;
    let elsewhere = TempDir::new()?;
    let refused = |place: &str| {
        let error = Run::open(options(&folder)).expect_err("a link is in the way");
        assert!(matches!(error, LoopError::Linked(_)), "{error}");
        assert!(error.chain().contains(&format!("{place} is a symbolic link")), "{}", error.chain());
        assert!(error.hint().starts_with("put what it leads to in its place"), "{}", error.hint());
    };
    // Before the first save, wherever it leads.
    let store = folder.path().join("checkpoints");
    for target in [elsewhere.path().to_owned(), elsewhere.path().join("nothing")] {
        symlink(&target, &store)?;
        refused("checkpoints");
        std::fs::remove_file(&store)?;
    }
    assert_eq!(folder.entries().len(), 1, "the freeze alone");
    assert_eq!(std::fs::read_dir(elsewhere.path())?.count(), 0, "nothing was saved through it");

    // Before a resume: the store, a checkpoint, one of the files.
    assert!(!run(&folder, Wrong::Nothing, Some(7))?);
    let entries = folder.entries();
    for place in ["checkpoints", "checkpoints/s00000000-a1", "checkpoints/s00000005-a1/model.safetensors"] {
        let (path, moved) = (folder.path().join(place), folder.path().join("moved"));
        std::fs::rename(&path, &moved)?;
        symlink(&moved, &path)?;
        refused(place);
        assert_eq!(folder.entries(), entries, "{place}");
        std::fs::remove_file(&path)?;
        std::fs::rename(&moved, &path)?;
    }

    // The folder of the ledger may be reached by one.
    let linked = elsewhere.path().join("linked");
    symlink(folder.path(), &linked)?;
    drop(Run::open(LoopOptions { ledger: linked.join("run.db"), ..options(&folder) })?);
    assert!(run(&folder, Wrong::Nothing, None)?);
    assert_eq!(folder.report()["verdict"], "accepted");
    // What is over is told as ever, wherever its files lie.
    std::fs::rename(&store, folder.path().join("moved"))?;
    symlink(folder.path().join("moved"), &store)?;
    let over = Run::open(options(&folder)).expect_err("the run is over");
    assert!(matches!(over, LoopError::Over { .. }), "{over}");
    Ok(())
}

#[test]
fn calls_that_leave_the_contracts_calendar_are_refused() -> Result<()> {
    let folder = frozen(&[])?;
    let mut attempt = Run::open(options(&folder))?.begin()?;
    let fed = attempt.batch(0, 4)?;
    let step = Step {
        fed: &fed,
        gradient_norm: 1.0,
        groups: Vec::new(),
        loss: 1.0,
        num_microbatches: 1,
        position: 0,
    };
    let error = attempt.step(&step).expect_err("step 0 is not evaluated and saved");
    assert!(
        error.to_string().contains("an evaluation of \"val\" and a checkpoint is due at step 0"),
        "{error}"
    );
    let error = attempt.save(Vec::new(), Vec::new(), 0).expect_err("not evaluated");
    assert!(matches!(error, LoopError::Order { .. }), "{error}");
    let error = attempt.finish().expect_err("not the last step");
    assert!(matches!(error, LoopError::Order { .. }), "{error}");
    let evaluation = Evaluation { num_examples: 1, num_tokens: 1, stream: "val", total_nats: 1.0 };
    attempt.evaluation(&evaluation)?;
    let error = attempt.save(Vec::new(), Vec::new(), 0).expect_err("no tensors");
    assert!(error.to_string().contains("lacks"), "{error}");
    attempt.interrupt("enough")?;
    let error = attempt.interrupt("again").expect_err("it has ended");
    assert!(matches!(error, LoopError::Order { .. }), "{error}");
    Ok(())
}

#[test]
fn terms_that_no_loop_can_keep_are_not_frozen() -> Result<()> {
    let folder = frozen(&[])?;
    let source = folder.path().join("loop").read_dir()?.next().context("a file")??.path();
    let external = RunFolder::external(&source, BACKEND, RUNTIME, &[]);
    external.edit_contract(|contract| {
        contract["checkpoints"]["mode"] = "asynchronous".into();
        contract["budget"]["max_tokens"] = 1_000_000.into();
        contract["nonclaims"] = serde_json::json!(["none that is asked for"]);
        contract["code"]["package"] = "trainer".into();
    });
    let refused = external.freeze().expect_code(1);
    for place in ["/checkpoints/mode", "/budget/max_tokens", "/nonclaims", "/code/package"] {
        refused.expect_message(&[place]);
    }
    // And a contract of the trainer's does not take the package of other loops.
    let native = RunFolder::tiny();
    native.edit_contract(|contract| contract["code"]["package"] = "external-loop".into());
    native.freeze().expect_code(1).expect_message(&["/code/package"]);
    Ok(())
}
