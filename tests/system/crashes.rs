//! `kill -9` at random moments: whatever happens, going on gives the same
//! bits as never having been killed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use system_tests::dump;
use system_tests::programs::{self, TRAINER};
use system_tests::random::Random;
use system_tests::run_folder::RunFolder;

/// Kills in all, over as many runs as it takes.
const NUM_KILLS: usize = 20;

/// Twentieths of the whole time from one kill to the next: no factor in common
/// with [`NUM_KILLS`], so that each is used, and mostly later in its attempt
/// than the one before.
const STRIDE: usize = 7;

/// Uninterrupted runs whose time is taken; the slowest counts, because other
/// tests run meanwhile.
const NUM_TIMED: usize = 3;

/// Runs that may miss the moment before the first step, where this test's own
/// process did not get its turn in time.
const MAX_TRIES: usize = 10;

/// Pause between two looks into a ledger.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// Longest wait for the first entry of an attempt; it takes a fraction of a second.
const MAX_WAIT: Duration = Duration::from_secs(120);

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

/// Starts the trainer and kills it after `wait`; false when it ended before.
fn kill_after(run: &RunFolder, wait: impl FnOnce(&RunFolder)) -> bool {
    let mut child = programs::start(TRAINER, run.path(), &["run", "--ledger", "run.db"]);
    wait(run);
    let ended = child.try_wait().expect("the state of a child");
    if let Some(status) = ended {
        assert_eq!(programs::exit_code(status), 0, "an attempt that was not killed failed");
        return false;
    }
    child.kill().expect("a child can be killed");
    let status = child.wait().expect("a killed child can be waited for");
    let code = programs::exit_code(status);
    // A process that was leaving when the kill came keeps its own code.
    if code == 0 {
        return false;
    }
    assert_eq!(code, 128 + 9, "it ended by the kill");
    true
}

/// Waits until the first attempt is on record. The trainer writes meanwhile, so
/// that a look may find a ledger that cannot be read.
fn wait_for_attempt(run: &RunFolder) {
    let started = Instant::now();
    let has_begun = |entries: Vec<Value>| of_kind(&entries, "attempt.start").next().is_some();
    while !dump::entries(&run.ledger()).is_ok_and(has_begun) {
        assert!(started.elapsed() < MAX_WAIT, "no attempt is on record after {MAX_WAIT:?}");
        std::thread::sleep(POLL_EVERY);
    }
}

fn of_kind<'a>(entries: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    entries.iter().filter(move |entry| entry["kind"] == kind)
}

/// Entries of a kind that one attempt made.
fn of_attempt<'a>(
    entries: &'a [Value],
    kind: &'a str,
    attempt: &'a Value,
) -> impl Iterator<Item = &'a Value> {
    of_kind(entries, kind).filter(move |entry| entry["attempt"] == *attempt)
}

/// Attempts that entries of a kind speak of.
fn struck<'a>(entries: impl Iterator<Item = &'a Value>) -> BTreeSet<u64> {
    entries.filter_map(|entry| entry["body"]["det"]["attempt"].as_u64()).collect()
}

/// Where the kills struck, by what the ledgers hold of their attempts.
#[derive(Debug, Default)]
struct Tally {
    /// Nothing of the attempt is on record.
    before_attempt: usize,
    /// No step of the attempt is.
    before_first_step: usize,
    /// Steps are, and not the run's last.
    between_steps: usize,
    /// The run's last step is.
    after_last_step: usize,
    /// Kills behind a checkpoint that saves the next attempt steps.
    after_checkpoint: usize,
    /// Attempts that went on from such a checkpoint instead of from step 0.
    resumed: usize,
}

impl Tally {
    const fn num_kills(&self) -> usize {
        self.before_attempt + self.before_first_step + self.between_steps + self.after_last_step
    }

    /// Takes the entries of a run that is over. `is_by_kill`: the kill of its
    /// last attempt came behind its end.
    fn observe(&mut self, entries: &[Value], is_by_kill: bool) {
        let end = of_kind(entries, "run.end").next().expect("the run is over");
        let mut vanished = BTreeSet::new();
        let mut has_checkpoint = false;
        for start in of_kind(entries, "attempt.start") {
            let (attempt, from_step) = (&start["attempt"], &start["body"]["det"]["from_step"]);
            let is_resumed = start["body"]["det"]["reason"] == "resume";
            self.resumed += usize::from(is_resumed && from_step.as_u64() > Some(0));
            let mut validated = of_attempt(entries, "checkpoint.validated", attempt);
            has_checkpoint |= validated.any(|entry| entry["step"].as_u64() > Some(0));
            if of_attempt(entries, "attempt.end", attempt).next().is_some() {
                continue;
            }
            vanished.insert(attempt.as_u64().expect("an attempt has a number"));
            self.after_checkpoint += usize::from(has_checkpoint);
            let own_step = of_attempt(entries, "step", attempt).last().map(|step| &step["step"]);
            match own_step {
                step if *step.unwrap_or(from_step) == end["step"] => self.after_last_step += 1,
                None => self.before_first_step += 1,
                Some(_) => self.between_steps += 1,
            }
        }
        // A kill behind an attempt's own end leaves an attempt that did not vanish.
        let num_ended = of_kind(entries, "attempt.end").count() - usize::from(!is_by_kill);
        self.after_last_step += num_ended;
        self.after_checkpoint += num_ended;
        // Each one that did is on record as such, and so is what was done about it.
        let observed = of_kind(entries, "fault.observed");
        let observed = observed.filter(|entry| entry["body"]["det"]["fault"] == "attempt_vanished");
        assert_eq!(struck(observed), vanished);
        assert_eq!(struck(of_kind(entries, "fault.recovered")), vanished);
    }
}

/// Trains a copy of a run to its end, over at most `max_kills` kills, each of
/// them after `wait`.
fn killed(
    frozen: &RunFolder,
    max_kills: usize,
    mut wait: impl FnMut(&RunFolder),
    tally: &mut Tally,
) -> RunFolder {
    let run = frozen.copy();
    let (mut num_kills, mut num_unrecorded, mut num_attempts) = (0, 0, 0);
    let mut is_by_kill = false;
    while num_kills < max_kills && !is_by_kill && kill_after(&run, &mut wait) {
        let entries = run.entries();
        let num_now = of_kind(&entries, "attempt.start").count();
        num_kills += 1;
        num_unrecorded += usize::from(num_now == num_attempts);
        num_attempts = num_now;
        is_by_kill = of_kind(&entries, "run.end").next().is_some();
    }
    // Whatever is left of it, if anything is.
    let _ = run.train().expect_code(0);
    let entries = run.entries();
    // Every process is one attempt, but those that were killed before its first
    // entry. One more than were killed ended the run, where no kill came behind that.
    let num_expected = num_kills - num_unrecorded + usize::from(!is_by_kill);
    assert_eq!(of_kind(&entries, "attempt.start").count(), num_expected, "{num_kills} kills");
    assert_eq!(run.report()["denominators"]["attempted"], num_expected);
    tally.before_attempt += num_unrecorded;
    tally.observe(&entries, is_by_kill);
    run
}

/// Time and result of a run that nothing interrupts.
fn timed(frozen: &RunFolder) -> (Duration, Identity) {
    let run = frozen.copy();
    let started = Instant::now();
    let _ = run.train().expect_code(0);
    (started.elapsed(), identity(&run))
}

#[test]
fn twenty_kills_leave_the_same_model() {
    let frozen = frozen();
    let uninterrupted: Vec<_> = (0..NUM_TIMED).map(|_| timed(&frozen)).collect();
    let duration = uninterrupted.iter().map(|(duration, _)| *duration).max().expect("it was timed");
    let (_, expected) = &uninterrupted[0];
    assert!(uninterrupted.iter().all(|(_, found)| found == expected), "{uninterrupted:#?}");

    // No clock says when the first step is near on a busy machine, but the ledger
    // does: its first attempt is there long before that step.
    let mut directed = Tally::default();
    for _ in 0..MAX_TRIES {
        let run = killed(&frozen, 1, wait_for_attempt, &mut directed);
        assert_eq!(identity(&run), *expected, "{directed:?}");
        if directed.before_first_step > 0 {
            break;
        }
    }
    assert!(directed.before_first_step > 0, "no kill came before the first step: {directed:?}");

    // One moment in each part of the whole time: start, training, checkpoints, end.
    let mut random = Random::new(20_261_129);
    let mut slot = 0;
    let mut delay = || {
        slot = (slot + STRIDE) % NUM_KILLS;
        let part = slot as f64 + random.below(1000) as f64 / 1000.0;
        duration.mul_f64(part / NUM_KILLS as f64)
    };
    let mut tally = Tally::default();
    while tally.num_kills() < NUM_KILLS {
        let num_left = NUM_KILLS - tally.num_kills();
        let run = killed(&frozen, num_left, |_| std::thread::sleep(delay()), &mut tally);
        assert_eq!(identity(&run), *expected, "{tally:?}");
    }
    assert_eq!(tally.num_kills(), NUM_KILLS, "{tally:?}");
    assert!(tally.between_steps > 0, "kills missed the steps: {tally:?}");
    assert!(tally.after_checkpoint > 0 && tally.resumed > 0, "nothing went on from a checkpoint: {tally:?}");
}

#[test]
fn another_initial_state_gives_another_model() {
    // The control: equality above would mean nothing if any start gave it. No
    // program resumes from weights alone: a checkpoint with another optimizer
    // state is not used (`bad_ledgers::corrupted_checkpoint_shard`). That such
    // a resume ends at another model, and the whole one at the same, is shown
    // behind the program: `the_cold_control_without_optimizer_state_differs` in
    // `trainer/tests/run/lifecycle.rs`.
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
