//! `kill -9` at random moments: whatever happens, going on gives the same
//! bits as never having been killed.

use std::time::Duration;

use serde_json::Value;
use system_tests::programs::{self, TRAINER};
use system_tests::random::Random;
use system_tests::run_folder::RunFolder;

/// Kills in all, over as many runs as it takes.
const NUM_KILLS: u32 = 20;

/// Attempts that the contract allows; more than a run can need here.
const MAX_ATTEMPTS: u32 = 100;

/// What decides whether two runs are the same: the model of the last
/// checkpoint, every state class in it, and the projection over all entries.
#[derive(Debug, PartialEq)]
struct Identity {
    model: Value,
    classes: Value,
    projection: Value,
}

fn identity(run: &RunFolder) -> Identity {
    let entries = run.entries();
    let last = entries.iter().rfind(|entry| entry["kind"] == "checkpoint.durably_committed");
    let det = &last.expect("a run commits checkpoints")["body"]["det"];
    let report = run.report();
    assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
    assert!(report["projection"].is_string(), "a complete run has a projection");
    let projection = report["projection"].clone();
    Identity { model: det["model"].clone(), classes: det["classes"].clone(), projection }
}

fn frozen() -> RunFolder {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| contract["budget"]["max_attempts"] = MAX_ATTEMPTS.into());
    let _ = run.freeze().expect_code(0);
    run
}

/// Starts the trainer and kills it after `delay`; false when it ended before.
fn kill_after(run: &RunFolder, delay: Duration) -> bool {
    let mut child = programs::start(TRAINER, run.path(), &["run", "--ledger", "run.db"]);
    std::thread::sleep(delay);
    let ended = child.try_wait().expect("the state of a child");
    if let Some(status) = ended {
        assert_eq!(programs::exit_code(status), 0, "an attempt that was not killed failed");
        return false;
    }
    child.kill().expect("a child can be killed");
    let status = child.wait().expect("a killed child can be waited for");
    assert_eq!(programs::exit_code(status), 128 + 9, "it ended by the kill");
    true
}

#[test]
fn twenty_kills_leave_the_same_model() {
    let frozen = frozen();
    let uninterrupted = frozen.copy();
    let started = std::time::Instant::now();
    let _ = uninterrupted.train().expect_code(0);
    let duration = started.elapsed();
    let expected = identity(&uninterrupted);

    // Moments spread over start, training, checkpoints and the end.
    let mut random = Random::new(20_261_129);
    let mut delay = || duration.mul_f64(0.02 + 0.6 * (random.below(1000) as f64 / 1000.0));
    let mut num_kills = 0;
    while num_kills < NUM_KILLS {
        let run = frozen.copy();
        let mut num_kills_here = 0;
        while num_kills + num_kills_here < NUM_KILLS && kill_after(&run, delay()) {
            num_kills_here += 1;
        }
        // Whatever is left of it, if anything is.
        let finished = run.train();
        if num_kills_here > 0 {
            assert_eq!(finished.code, 0, "{finished}");
        }
        assert_eq!(identity(&run), expected, "after {num_kills_here} kills");
        let attempts = run.report()["denominators"]["attempted"].clone();
        assert!(attempts.as_u64() >= Some(1), "{attempts}");
        num_kills += num_kills_here;
    }
    assert_eq!(num_kills, NUM_KILLS);
}

#[test]
fn another_initial_state_gives_another_model() {
    // The control: equality above would mean nothing if any start gave it. The
    // colder one, a resume without optimizer state, is beside the trainer's
    // restore (`trainer/tests/run/lifecycle.rs`), since no program offers it.
    let frozen = frozen();
    let uninterrupted = frozen.copy();
    let _ = uninterrupted.train().expect_code(0);
    let other = RunFolder::tiny();
    other.edit_contract(|contract| {
        contract["budget"]["max_attempts"] = MAX_ATTEMPTS.into();
        contract["seeds"]["initialization"] = Value::from("987654321");
    });
    let _ = other.freeze().expect_code(0);
    let _ = other.train().expect_code(0);
    let (expected, cold) = (identity(&uninterrupted), identity(&other));
    assert_ne!(cold.model, expected.model);
    assert_ne!(cold.projection, expected.projection);
}

#[test]
fn a_signal_ends_an_attempt_cleanly_and_the_next_goes_on() {
    let run = RunFolder::long(400);
    let _ = run.freeze().expect_code(0);
    let mut child = programs::start(TRAINER, run.path(), &["run", "--ledger", "run.db"]);
    while !run.entries().iter().any(|entry| entry["kind"] == "step") {
        assert!(child.try_wait().expect("the state of a child").is_none(), "it ended before its first step");
        std::thread::sleep(Duration::from_millis(10));
    }
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("a child can be signalled");
    let status = child.wait().expect("a child can be waited for");
    assert_eq!(programs::exit_code(status), 143);
    let entries = run.entries();
    let last = entries.last().expect("a ledger has entries");
    assert_eq!(last["kind"], "attempt.end", "the attempt has a terminal entry");
    assert_eq!(last["body"]["det"]["outcome"], "interrupted");
    let _ = run.audit(&[]).expect_code(4);
    let _ = run.train().expect_code(0);
    let report = run.report();
    assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
    assert_eq!(report["denominators"]["interrupted"], 1);
    assert_eq!(report["denominators"]["recovered"], 1);
}
