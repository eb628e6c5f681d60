//! Where signals and the clock end an attempt or a run at places that no
//! schedule names, and what the audit makes of it.

use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use system_tests::dump;
use system_tests::programs::{self, TRAINER};
use system_tests::run_folder::RunFolder;

/// Wall time that the contract allows; an attempt that is stopped for longer has
/// used it up.
const BUDGET: Duration = Duration::from_secs(3);

/// Longest wait for an entry; it takes a fraction of a second.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Pause between two looks into a ledger.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// Runs whose signal may come a moment too early or too late.
const MAX_TRIES: usize = 10;

/// Examples of an update, one a microbatch: an update lasts long enough to be
/// met inside by a signal.
const NUM_MICROBATCHES: u64 = 256;

/// Saves the sums of open windows; so many steps, saved and evaluated at every
/// 20th.
fn windowed(num_steps: u64, edit: impl FnOnce(&mut Value)) -> RunFolder {
    let run = RunFolder::long(num_steps);
    run.edit_contract(|contract| {
        contract["batch"] = json!({
            "accumulation": NUM_MICROBATCHES, "data_parallel": 1, "global_examples": NUM_MICROBATCHES,
            "microbatch_examples": 1
        });
        contract["checkpoints"]["mid_accumulation"] = json!("save_gradients");
        let classes = contract["state_classes"].as_array_mut().expect("a list");
        let sums = classes.iter_mut().find(|class| class["class"] == "accumulated_gradients");
        sums.expect("it is declared")["not_applicable"] = Value::Null;
        contract["budget"]["max_attempts"] = json!(20);
        edit(contract);
    });
    let _ = run.freeze().expect_code(0);
    run
}

fn start(run: &RunFolder) -> Child {
    programs::start(TRAINER, run.path(), &["run", "--ledger", "run.db"])
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("a signal can be sent");
}

fn count(entries: &[Value], kind: &str) -> usize {
    entries.iter().filter(|entry| entry["kind"] == kind).count()
}

/// Waits for so many entries of a kind. The trainer writes meanwhile, so that a
/// look may find what cannot be read.
fn wait_for(run: &RunFolder, kind: &str, wanted: usize) {
    let started = Instant::now();
    while !dump::entries(&run.ledger()).is_ok_and(|entries| count(&entries, kind) >= wanted) {
        assert!(started.elapsed() < MAX_WAIT, "no {wanted} entries {kind} after {MAX_WAIT:?}");
        std::thread::sleep(POLL_EVERY);
    }
}

fn exit_code(mut child: Child) -> i32 {
    programs::exit_code(child.wait().expect("a child can be waited for"))
}

/// Microbatches whose sums a checkpoint holds.
fn microbatches(run: &RunFolder, checkpoint: &str) -> u64 {
    let path = run.path().join("checkpoints").join(checkpoint).join("accumulated_gradients.json");
    let state: Value = serde_json::from_slice(&std::fs::read(path).expect("it was saved")).expect("JSON");
    state["microbatches"].as_u64().expect("a count")
}

/// Names of checkpoints that were validated, in order.
fn validated(run: &RunFolder) -> Vec<String> {
    let entries = run.entries();
    let validated = entries.iter().filter(|entry| entry["kind"] == "checkpoint.validated");
    let name = |entry: &Value| entry["body"]["obs"]["checkpoint"].as_str().expect("a name").to_owned();
    validated.map(name).collect()
}

/// The report of a run that is accepted, with rules that had something to check.
fn accepted(run: &RunFolder, codes: &[&str]) {
    let report = run.report();
    assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
    for code in codes {
        let mut rules = report["rules"].as_array().into_iter().flatten();
        let rule = rules.find(|rule| rule["code"] == **code).expect("a rule");
        assert_eq!(rule["status"], "passed", "{rule:#}");
        assert!(rule["num_checked"].as_u64() > Some(0), "{rule:#}");
    }
}

/// An attempt that a signal ended inside of an update that is no multiple of
/// anything, after more wall time than the contract allows; none where it was
/// met elsewhere.
fn ended_inside_of_a_window() -> Option<RunFolder> {
    let run = windowed(60, |contract| contract["budget"]["max_wall_s"] = json!(BUDGET.as_secs()));
    let child = start(&run);
    wait_for(&run, "step", 3);
    // It stands still until its time is up, and then finds the signal first.
    send(&child, Signal::STOP);
    send(&child, Signal::TERM);
    std::thread::sleep(BUDGET + Duration::from_millis(500));
    send(&child, Signal::CONT);
    if exit_code(child) != 143 {
        return None;
    }
    let last = validated(&run).pop().expect("step 0 at least");
    let is_inside = !last.starts_with("s00000000-") && microbatches(&run, &last) > 0;
    is_inside.then_some(run)
}

/// The clock then makes that checkpoint, which was not due and holds the sums of
/// an open window, the run's last one.
#[test]
fn the_clock_ends_a_run_at_a_checkpoint_that_only_a_signal_made() {
    let run = (0..MAX_TRIES).find_map(|_| ended_inside_of_a_window());
    let run = run.expect("one of the signals comes inside of an update");
    let from = validated(&run).pop().expect("the signal's");
    let finished = run.train().expect_code(1);
    assert!(finished.stdout.contains("out of budget"), "{finished}");
    let entries = run.entries();
    let start = entries.iter().rfind(|entry| entry["kind"] == "attempt.start").expect("the second");
    assert_eq!(start["body"]["det"]["resumed_from"]["checkpoint"], from.as_str());
    let end = entries.iter().find(|entry| entry["kind"] == "run.end").expect("it is over");
    assert_eq!(end["body"]["det"]["last_step"], start["body"]["det"]["from_step"]);
    accepted(&run, &["GL504", "GL601", "GL632"]);
}

/// A first attempt that left the checkpoint of step 0, and a second that a
/// signal met inside of the first update; none where it was met elsewhere.
fn saved_again_at_the_beginning() -> Option<RunFolder> {
    let run = windowed(3, |_| {});
    for attempt in 1..=MAX_TRIES {
        let child = start(&run);
        if attempt == 1 {
            wait_for(&run, "checkpoint.validated", 1);
        } else {
            wait_for(&run, "attempt.start", attempt);
            // The engine is made and the checkpoint restored within this, and the
            // update lasts longer.
            std::thread::sleep(Duration::from_millis(20 * attempt as u64));
        }
        send(&child, Signal::TERM);
        let code = exit_code(child);
        if code != 143 || count(&run.entries(), "step") > 0 {
            return None;
        }
        let last = validated(&run).pop().expect("step 0 at least");
        if !last.ends_with("-a1") {
            assert!(last.starts_with("s00000000-") && microbatches(&run, &last) > 0, "{last}");
            return Some(run);
        }
    }
    None
}

#[test]
fn a_signal_saves_step_0_again_behind_a_resume() {
    let run = (0..MAX_TRIES).find_map(|_| saved_again_at_the_beginning());
    let run = run.expect("one of the signals comes inside of the first update");
    let from = validated(&run).pop().expect("the signal's");
    let _ = run.train().expect_code(0);
    let entries = run.entries();
    let start = entries.iter().rfind(|entry| entry["kind"] == "attempt.start").expect("the last");
    assert_eq!(start["body"]["det"]["resumed_from"]["checkpoint"], from.as_str());
    accepted(&run, &["GL205", "GL632"]);
}
