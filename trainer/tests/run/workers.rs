//! Runs of several workers as whole programs: what is recorded, what becomes of
//! a worker that is killed or stopped, of all of them when the process that
//! records is gone, and of the run with another number of them.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use schemas::body::Body;
use schemas::contract::*;
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::{SegmentId, WorkerId};
use schemas::state::{CheckpointManifest, StateClass, StateClassDeclaration};
use serde_json::Value;
use sha2::Digest as _;
use trainer::checkpoint::MANIFEST_NAME;

use crate::folder::{LONG, RunFolder, Training};
use crate::probes;

/// Pause between two looks at the system's processes.
const POLL_EVERY: Duration = Duration::from_millis(5);
/// Longest that a worker may outlive the process that recorded.
const MAX_OUTLIVED: Duration = Duration::from_secs(20);

/// Steps of a run that something happens to in the middle. A step takes
/// milliseconds, and on a busy machine the run is many of them ahead of who reads
/// what it says: so many that [`LONG`] ones may be over.
const FAR: u64 = 600;

/// Steps of one attempt before something happens to it: a checkpoint is among them.
const SOME: usize = 13;

fn until(last: u64, contract: &mut Contract) {
    contract.budget.max_steps = last;
    contract.stopping = StoppingRule::AtStep { step: last };
    contract.checkpoints.every_steps = 10;
    contract.evaluation.streams[0].every_steps = 10;
}

/// A run of [`FAR`] steps by so many workers of four microbatches.
fn far_by(num_workers: u32, edit: impl FnOnce(&mut Contract)) -> Result<RunFolder> {
    RunFolder::with_workers((num_workers, 4), |contract| {
        until(FAR, contract);
        edit(contract);
    })
}

fn with_streams(contract: &mut Contract) {
    contract.dropout_draws = DropoutDraws::PhiloxStream;
    let class = StateClass::RngCpu;
    contract.state_classes.retain(|declared| declared.class != class);
    let at = contract.state_classes.iter().position(|other| other.class > class).unwrap_or(0);
    contract.state_classes.insert(at, StateClassDeclaration { class, not_applicable: None });
}

pub(crate) fn with_another_count(contract: &mut Contract) {
    contract.topology.permitted_rewrites = vec![PermittedRewrite::WorkerCount];
    let tolerance = Some(Tolerance { max_absolute: 1e-5, max_relative: 1e-4 });
    contract.resume =
        ResumeEquivalence { class: EquivalenceClass::OperationOrderBounded, test: None, tolerance };
}

/// Processes whose parent is this one, and that came to a program of their own: one
/// that is stopped before holds up its parent, which waits for that (vfork(2)). A
/// number may be given away again, but not as long as its parent has not waited for it.
fn children(parent: u32) -> Result<Vec<u32>> {
    let command_line = |id: u32| fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let of_parent = command_line(parent);
    let mut found = Vec::new();
    for item in fs::read_dir("/proc")? {
        let name = item?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if parent_of(id) == Some(parent) && command_line(id) != of_parent {
            found.push(id);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Parent of a process that has not ended.
fn parent_of(id: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // State and parent follow the command name, in parentheses (proc_pid_stat(5)).
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let is_over = matches!(fields.next()?, "Z" | "X");
    fields.next()?.parse().ok().filter(|_| !is_over)
}

/// Stops a training process after some of its steps, and gives its workers in the
/// order of their starts. They are there as long as the run is not over, and it
/// does not go on before it is told to.
fn stopped(training: &mut Training, num_workers: usize) -> Result<Vec<u32>> {
    training.wait_for_steps(SOME)?.stop()?;
    let workers = children(training.id())?;
    ensure!(workers.len() == num_workers - 1, "{workers:?} of {num_workers}: was the run over?");
    Ok(workers)
}

fn signal(id: u32, signal: Signal) -> Result<()> {
    let id = Pid::from_raw(i32::try_from(id)?).context("a process id")?;
    Ok(kill_process(id, signal)?)
}

/// Waits until processes that ended have gone.
fn wait_for_the_end_of(workers: &[u32]) -> Result<()> {
    let started = Instant::now();
    while workers.iter().any(|id| parent_of(*id).is_some()) {
        ensure!(started.elapsed() < MAX_OUTLIVED, "one of the workers {workers:?} lives on");
        std::thread::sleep(POLL_EVERY);
    }
    Ok(())
}

/// The determined halves of steps and evaluations that count: of each the one of
/// the latest attempt.
fn determined(folder: &RunFolder) -> Result<Vec<(u64, &'static str, Value)>> {
    let mut found: Vec<(u64, &'static str, Value)> = Vec::new();
    for entry in folder.entries()? {
        let Some(step) = entry.header.step else { continue };
        let (kind, mut det) = match &entry.body {
            Body::Step(halves) => ("step", serde_json::to_value(&halves.det)?),
            Body::Eval(halves) => ("eval", serde_json::to_value(&halves.det)?),
            _ => continue,
        };
        if kind == "step" {
            // Digests name the number of workers.
            det["state"] = Value::Null;
        }
        found.retain(|(other, of, _)| (*other, *of) != (step, kind));
        found.push((step, kind, det));
    }
    found.sort_by_key(|(step, kind, _)| (*step, *kind));
    Ok(found)
}

fn manifest(folder: &RunFolder, step: u64) -> Result<CheckpointManifest> {
    let prefix = format!("s{step:08}-a");
    let name = folder.store()?.into_iter().rev().find(|name| name.starts_with(&prefix));
    let path = folder.path().join("checkpoints").join(name.context("a checkpoint")?).join(MANIFEST_NAME);
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

fn entries_of(folder: &RunFolder, kind: &str) -> Result<Vec<Entry>> {
    let entries = folder.entries()?;
    Ok(entries.into_iter().filter(|entry| entry.body.kind().name() == kind).collect())
}

#[test]
fn a_run_by_workers_is_that_of_one_process_and_says_who_did_what() -> Result<()> {
    let whole = RunFolder::with_workers((1, 6), |contract| until(LONG, contract))?;
    whole.train()?.expect(0);
    for num_workers in [2u32, 3] {
        let folder = RunFolder::with_workers((num_workers, 6), |contract| until(LONG, contract))?;
        folder.train()?.expect(0).says(&format!("Starting {} workers beside this one", num_workers - 1));
        assert_eq!(folder.model(LONG)?, whole.model(LONG)?);
        assert_eq!(determined(&folder)?, determined(&whole)?);
        let plan = &folder.bodies("attempt.start")?[0]["obs"]["plan"];
        assert_eq!(plan["num_workers"], num_workers);
        let mut sent = 0;
        for (step, body) in (1u64..).zip(folder.bodies("step")?) {
            let shares = body["obs"]["shares"].as_array().context("shares")?;
            assert_eq!(shares.len(), num_workers as usize);
            let bytes = shares.iter().map(|share| share["bytes_sent"].as_u64().unwrap_or(0)).sum::<u64>();
            assert_eq!(body["obs"]["bytes_sent"], bytes);
            assert!(bytes > 0);
            sent += bytes;
            let replicas = body["obs"]["replicas"].as_array().map_or(0, Vec::len);
            assert_eq!(
                replicas,
                if step.is_multiple_of(2) { num_workers as usize } else { 0 },
                "step {step}"
            );
        }
        assert_eq!(folder.bodies("attempt.end")?[0]["obs"]["cost"]["bytes_sent"], sent);
        assert_eq!(folder.bodies("run.end")?[0]["obs"]["cost"]["bytes_sent"], sent);
    }
    for body in whole.bodies("step")? {
        assert!(body["obs"].get("shares").is_none() && body["obs"].get("replicas").is_none());
    }
    Ok(())
}

/// C09: four streams, saved and restored each under its worker's number.
#[test]
fn each_workers_random_state_is_saved_and_comes_back() -> Result<()> {
    let whole = far_by(4, with_streams)?;
    whole.train()?.expect(0);
    let folder = far_by(4, with_streams)?;
    let mut training = folder.start()?;
    training.wait_for_steps(SOME)?.send(Signal::TERM)?;
    training.finish()?.expect(143);
    folder.train()?.expect(0).says("RESUMING run ");
    assert_eq!(folder.model(FAR)?, whole.model(FAR)?);
    assert_eq!(determined(&folder)?, determined(&whole)?);

    let saved = manifest(&folder, FAR)?;
    let captured: Vec<_> = saved.classes.iter().filter(|of| of.class == StateClass::RngCpu).collect();
    let workers: Vec<_> = captured.iter().map(|of| of.worker).collect();
    assert_eq!(workers, (0..4).map(|worker| Some(WorkerId(worker))).collect::<Vec<_>>());
    assert!(saved.classes.iter().all(|of| of.worker.is_none() || of.class == StateClass::RngCpu));
    let mut keys = Vec::new();
    for of in captured {
        let path = folder.path().join("checkpoints").join(saved.checkpoint.as_str()).join(&of.shards[0].path);
        let state: Value = serde_json::from_slice(&fs::read(path)?)?;
        assert!(state["blocks"].as_u64().context("blocks")? > 0);
        keys.push(state["key"].to_string());
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 4);
    // One digest for the class.
    let committed = folder.bodies("checkpoint.durably_committed")?;
    let classes = committed[0]["det"]["classes"].as_array().context("classes")?;
    assert_eq!(classes.iter().filter(|of| of["class"] == "rng_cpu").count(), 1);
    assert!(folder.bodies("anomaly")?.is_empty());
    Ok(())
}

/// A probe executes all workers' microbatches in one process, and compares that
/// with what the workers left.
#[test]
fn a_probe_of_a_run_by_workers_matches() -> Result<()> {
    let folder = RunFolder::with_workers((2, 4), |contract| {
        with_streams(contract);
        contract.state_digest_every_steps = Some(2);
    })?;
    folder.train()?.expect(0);
    let report = probes::probe(&folder, 4, &["--controls"], 0)?;
    let outcomes = probes::outcomes(&report);
    assert_eq!(outcomes[""].0, "matches");
    assert_eq!(outcomes["rng_cpu"].0, "differs");
    // What it executed is what the run did, and its state the same bytes.
    let result = &folder.bodies("probe.result")?[0];
    let committed = folder.bodies("checkpoint.durably_committed")?;
    let of_step = committed.iter().find(|body| body["det"]["step"] == 4).context("step 4")?;
    assert_eq!(result["det"]["reference"]["classes"], of_step["det"]["classes"]);
    Ok(())
}

/// The failed attempt's `fault.observed`, which names a worker, and the run
/// after it.
fn check_fault(folder: &RunFolder, whole: &RunFolder, fault: &str, cause: &str) -> Result<()> {
    let observed = entries_of(folder, "fault.observed")?;
    assert_eq!(observed.len(), 1);
    assert_eq!(observed[0].header.worker, Some(WorkerId(1)));
    let body = serde_json::to_value(&observed[0].body)?;
    assert_eq!(body["det"]["fault"], fault, "{body}");
    assert_eq!(body["det"]["cause"], cause, "{body}");
    let ends = folder.bodies("attempt.end")?;
    assert_eq!(ends[0]["det"]["outcome"], "failed");
    folder.train()?.expect(0).says("RESUMING run ");
    assert_eq!(folder.bodies("fault.recovered")?.len(), 1);
    assert_eq!(folder.model(FAR)?, whole.model(FAR)?);
    assert_eq!(determined(folder)?, determined(whole)?);
    Ok(())
}

#[test]
fn a_worker_that_is_killed_ends_the_attempt_by_its_name_and_the_run_recovers() -> Result<()> {
    let whole = far_by(2, |_| ())?;
    whole.train()?.expect(0);
    let folder = far_by(2, |_| ())?;
    let mut training = folder.start()?;
    let workers = stopped(&mut training, 2)?;
    signal(workers[0], Signal::KILL)?;
    training.send(Signal::CONT)?;
    let finished = training.finish()?.expect(1);
    finished.says("worker 1 is lost at step ");
    finished.says("signal: 9 (SIGKILL)");
    wait_for_the_end_of(&workers)?;
    check_fault(&folder, &whole, "worker_lost", "worker_loss")
}

#[test]
fn a_worker_that_stands_still_ends_the_attempt_when_its_time_is_over() -> Result<()> {
    let in_a_hurry = |contract: &mut Contract| {
        if let Some(collective) = &mut contract.topology.collective {
            collective.timeout_ms = 3_000;
        }
    };
    let whole = far_by(2, in_a_hurry)?;
    whole.train()?.expect(0);
    let folder = far_by(2, in_a_hurry)?;
    let mut training = folder.start()?;
    let workers = stopped(&mut training, 2)?;
    signal(workers[0], Signal::STOP)?;
    training.send(Signal::CONT)?;
    training.finish()?.expect(1).says("worker 1 is late at step ");
    // One that stands still cannot leave by itself.
    wait_for_the_end_of(&workers)?;
    check_fault(&folder, &whole, "worker_timeout", "collective_timeout")
}

#[test]
fn workers_do_not_outlive_the_process_that_records() -> Result<()> {
    let folder = far_by(4, |_| ())?;
    let mut training = folder.start()?;
    let workers = stopped(&mut training, 4)?;
    // One of them stands still.
    signal(workers[1], Signal::STOP)?;
    training.send(Signal::KILL)?;
    drop(training);
    wait_for_the_end_of(&workers)?;
    folder.train()?.expect(0).says("vanished after step ");
    Ok(())
}

#[test]
fn a_signal_ends_an_attempt_and_its_workers_and_means_nothing_to_a_worker() -> Result<()> {
    let whole = far_by(4, |_| ())?;
    whole.train()?.expect(0);
    let folder = far_by(4, |_| ())?;
    for (ending, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut training = folder.start()?;
        let workers = stopped(&mut training, 4)?;
        // A person who tells the workers alone tells nobody.
        workers.iter().try_for_each(|id| signal(*id, ending))?;
        training.send(Signal::CONT)?.wait_for_steps(2)?.send(ending)?;
        training.finish()?.expect(code);
        wait_for_the_end_of(&workers)?;
    }
    let outcomes = folder.bodies("attempt.end")?;
    assert!(outcomes.iter().all(|body| body["det"]["outcome"] == "interrupted"));
    assert!(folder.bodies("fault.observed")?.is_empty());
    folder.train()?.expect(0);
    assert_eq!(folder.model(FAR)?, whole.model(FAR)?);
    Ok(())
}

/// A worker that stands still before it holds the state keeps nobody from leaving.
#[test]
fn a_signal_ends_an_attempt_whose_worker_never_came_to_the_start() -> Result<()> {
    let folder = far_by(2, |_| ())?;
    let mut training = folder.start()?;
    let started = Instant::now();
    let workers = loop {
        let workers = children(training.id())?;
        if !workers.is_empty() {
            break workers;
        }
        ensure!(started.elapsed() < MAX_OUTLIVED, "no worker was started");
    };
    workers.iter().try_for_each(|id| signal(*id, Signal::STOP))?;
    std::thread::sleep(Duration::from_millis(300));
    let asked = Instant::now();
    training.send(Signal::TERM)?;
    training.finish()?.expect(143);
    // The time that a start may take is a minute.
    assert!(asked.elapsed() < MAX_OUTLIVED, "{:?}", asked.elapsed());
    wait_for_the_end_of(&workers)?;
    assert!(folder.bodies("step")?.is_empty(), "it had started");
    let ends = folder.bodies("attempt.end")?;
    assert_eq!(ends.iter().map(|body| &body["det"]["outcome"]).collect::<Vec<_>>(), ["interrupted"]);
    folder.train()?.expect(0);
    Ok(())
}

/// Time in which everything stands still is nobody's fault.
#[test]
fn a_run_that_was_stopped_and_goes_on_calls_nobody_late() -> Result<()> {
    let folder = far_by(2, |contract| {
        if let Some(collective) = &mut contract.topology.collective {
            collective.timeout_ms = 2_000;
        }
    })?;
    let mut training = folder.start()?;
    let workers = stopped(&mut training, 2)?;
    std::thread::sleep(Duration::from_secs(3));
    assert!(parent_of(workers[0]).is_some(), "it did not stand still");
    training.send(Signal::CONT)?;
    training.finish()?.expect(0);
    assert!(folder.bodies("fault.observed")?.is_empty());
    Ok(())
}

#[test]
fn another_number_of_workers_is_refused_without_a_permission() -> Result<()> {
    let folder = far_by(2, |_| ())?;
    let before = folder.entries()?.len();
    let refused = folder.train_with(&["--workers", "4"])?.expect(2);
    refused.says("the contract has 2 workers and permits no other number");
    refused.says("worker_count");
    assert_eq!(folder.entries()?.len(), before, "it left an entry");
    // The contract's own number is no other one.
    folder.train_with(&["--workers", "2"])?.expect(0);
    let permitted = far_by(2, with_another_count)?;
    permitted.train_with(&["--workers", "3"])?.expect(2).says("3 workers cannot share evenly");
    Ok(())
}

/// C42: 2, 4, 1 and again 2 workers consume each example once, in one order, and
/// each number has a segment.
#[test]
fn a_run_goes_on_with_another_number_of_workers_in_a_segment_of_its_own() -> Result<()> {
    let whole = far_by(2, with_another_count)?;
    whole.train()?.expect(0);
    let folder = far_by(2, with_another_count)?;
    // The same number again is no other segment.
    for arguments in [&[][..], &["--workers", "4"], &["--workers", "1"], &["--workers", "1"]] {
        let mut training = folder.start_with(arguments)?;
        training.wait_for_steps(SOME)?.send(Signal::TERM)?;
        training.finish()?.expect(143);
    }
    folder.train()?.expect(0);

    // The same bits, and every position once.
    assert_eq!(folder.model(FAR)?, whole.model(FAR)?);
    assert_eq!(determined(&folder)?, determined(&whole)?);

    let starts = entries_of(&folder, "segment.start")?;
    let contract = trainer_contract(&folder)?;
    let mut found = Vec::new();
    for entry in &starts {
        let Body::SegmentStart(halves) = &entry.body else { continue };
        let det = &halves.det;
        assert_eq!(entry.header.segment, Some(det.segment));
        assert_eq!(entry.header.step, Some(det.from_step));
        let number: u32 = det
            .adjudication
            .as_deref()
            .map_or(Ok(2), |text| text.strip_prefix("worker_count: ").unwrap_or_default().parse())?;
        let identity = match det.adjudication {
            None => contract,
            Some(_) => {
                let text = format!("{{\"contract\":\"{contract}\",\"workers\":{number}}}");
                Digest::sha256(sha2::Sha256::digest(text.as_bytes()).into())
            }
        };
        assert_eq!(det.identity, identity);
        found.push((det.segment.0, det.parent.map(|parent| parent.0), number));
    }
    assert_eq!(found, [(1, None, 2), (2, Some(1), 4), (3, Some(2), 1), (4, Some(3), 2)]);

    // Every entry of an attempt has its segment, and shares follow the number.
    for entry in folder.entries()? {
        let Some(attempt) = entry.header.attempt else { continue };
        let segment = [1, 2, 3, 3, 4][attempt.0 as usize - 1];
        let has_own = !matches!(entry.body, Body::AttemptStart(_) | Body::SegmentStart(_));
        assert!(!has_own || entry.header.segment == Some(SegmentId(segment)), "{entry:?}");
        if let Body::Step(halves) = &entry.body {
            let expected = [2, 4, 0, 0, 2][attempt.0 as usize - 1];
            assert_eq!(halves.obs.shares.len(), expected);
        }
    }
    let plans = folder.bodies("attempt.start")?;
    let numbers: Vec<_> = plans.iter().map(|body| body["obs"]["plan"]["num_workers"].clone()).collect();
    assert_eq!(numbers, [2, 4, 1, 1, 2]);
    // A checkpoint says who saved it, and its name which attempt did.
    let mut saved_by = Vec::new();
    for name in folder.store()? {
        let (_, attempt) = name.rsplit_once("-a").context("a checkpoint names its attempt")?;
        let path = folder.path().join("checkpoints").join(&name).join("topology.json");
        let topology: Value = serde_json::from_slice(&fs::read(path)?)?;
        let attempt: usize = attempt.parse()?;
        assert_eq!(topology["workers"], numbers[attempt - 1], "{name}");
        saved_by.push(attempt);
    }
    saved_by.sort_unstable();
    saved_by.dedup();
    assert_eq!(saved_by, [1, 2, 3, 4, 5]);

    // One that another number saved says so: without it the contract's is back,
    // and the state is another. In one that the contract's number saved it is
    // what a new run has.
    let first_of = |attempt: usize| {
        let suffix = format!("-a{attempt}");
        folder.store()?.into_iter().find(|name| name.ends_with(&suffix)).context("a checkpoint of it")
    };
    for class in ["topology", "compiler_plan"] {
        for (attempt, verdict, inert) in [(2, "differs", None), (5, "inert", Some("equals_initial"))] {
            let arguments = ["--json", "--withhold", class, "--checkpoint", &first_of(attempt)?];
            let finished = folder.probe(&arguments)?.expect(0);
            let outcomes = probes::outcomes(&serde_json::from_str(&finished.stdout)?);
            let (found, reason) = &outcomes[class];
            assert_eq!((found.as_str(), reason.as_deref()), (verdict, inert), "{class} of attempt {attempt}");
        }
    }
    Ok(())
}

fn trainer_contract(folder: &RunFolder) -> Result<Digest> {
    Ok(ledger::reader::Reader::open(&folder.ledger())?.contract()?.digest)
}
