//! The PyTorch example through the Python package: killed, resumed, audited.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use system_tests::programs::{Finished, finish};
use system_tests::run_folder::RunFolder;
use system_tests::workspace_root;
use tempfile::TempDir;

use super::{failed, resumable};

/// Debian's interpreter, whose package python3-torch the example is written for.
const PYTHON: &str = "/usr/bin/python3";

/// The package as a wheel would install it: Python's half, and the module that
/// cargo built.
pub(super) fn package() -> Result<TempDir> {
    let test = std::env::current_exe()?;
    let folder = test.ancestors().nth(2).context("a test lies in <target>/<profile>/deps")?;
    let module = folder.join("libgoverned_ledger.so");
    ensure!(module.is_file(), "{} is not built\nhint: cargo build --workspace --lib", module.display());
    let package = TempDir::with_prefix("governed-ledger-")?;
    let target = package.path().join("governed_ledger");
    std::fs::create_dir(&target)?;
    std::fs::copy(module, target.join("_native.abi3.so"))?;
    let source = workspace_root().join("python/governed_ledger/__init__.py");
    std::fs::copy(source, target.join("__init__.py"))?;
    Ok(package)
}

pub(super) fn python(package: &Path, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(PYTHON);
    command.args(arguments).current_dir(folder).env("PYTHONPATH", package).stdin(Stdio::null());
    command.env_remove("LEDGER_KEYS").env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// What the interpreter says of itself.
fn said(package: &Path, text: &str) -> String {
    let program = format!("import torch, governed_ledger\nprint({text})");
    let finished = finish(python(package, package, &["-c", &program])).expect_code(0);
    finished.stdout.trim().to_owned()
}

/// A frozen run of a script.
fn frozen(package: &Path, script: &Path) -> RunFolder {
    let backend = said(package, "'torch ' + torch.__version__");
    let runtime = said(package, "governed_ledger.runtime()");
    // So that a step is on the disk before the next one is made: a kill may lose
    // what the contract's durability allows, and these tests want it executed again.
    // And many more steps than a kill needs to arrive.
    let changes = ["/budget/max_steps=60", "/durability/max_unsynced_steps=1", "/stopping/step=60"];
    let folder = RunFolder::external(script, &backend, &runtime, &changes);
    let _ = folder.freeze().expect_code(0);
    folder
}

fn train(package: &Path, folder: &RunFolder) -> Finished {
    finish(python(package, folder.path(), &["loop/train.py", "run.db"]))
}

/// Trains until a line begins with `line`, and kills the process there.
fn kill_at(package: &Path, folder: &RunFolder, line: &str) -> Result<()> {
    super::kill_at(python(package, folder.path(), &["loop/train.py", "run.db"]), line)
}

fn example() -> PathBuf {
    workspace_root().join("examples/pytorch/train.py")
}

/// The example with one line changed.
fn changed(folder: &Path, from: &str, to: &str) -> Result<PathBuf> {
    let text = std::fs::read_to_string(example())?;
    ensure!(text.matches(from).count() == 1, "{from:?} does not occur once");
    let path = folder.join("train.py");
    std::fs::write(&path, text.replace(from, to))?;
    Ok(path)
}

/// What became of one rule.
fn status<'a>(report: &'a Value, code: &str) -> &'a str {
    let rules = report["rules"].as_array().expect("a report lists its rules");
    let rule = rules.iter().find(|rule| rule["code"] == code).expect("the rule is listed");
    rule["status"].as_str().expect("a status")
}

#[test]
fn a_pytorch_loop_that_is_killed_and_resumed_is_accepted_and_handed_off() -> Result<()> {
    let package = package()?;
    let folder = frozen(package.path(), &example());
    kill_at(package.path(), &folder, "step      9")?;
    let (checkpoint, num_again) = resumable(&folder)?;
    let text = folder.audit(&[]).expect_code(4).stdout;
    assert!(text.starts_with("incomplete (external-loop): "), "{text}");
    let finished = train(package.path(), &folder).expect_code(0);
    assert!(finished.stdout.contains(&format!("attempt 2 resumes from {checkpoint}\n")), "{finished}");
    assert!(finished.stdout.contains("finished at step 60"), "{finished}");

    // Somebody else's forward pass gives the numbers of the loop.
    let _ = folder.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let report = folder.report();
    assert_eq!(report["verdict"], "accepted", "{report:#}");
    assert_eq!(report["selection_basis"], "evaluator");
    // The example takes norms, so that the card's constants are compared with what
    // it saved.
    assert_eq!(status(&report, "GL416"), "passed");
    assert_eq!(report["denominators"]["attempted"], 2);
    let executed = report["denominators"]["steps_executed"].as_u64().context("a count")?;
    assert_eq!(executed, 60 + num_again, "steps behind {checkpoint} were executed again");
    let _ = folder.audit(&["--save"]).expect_code(0);
    let _ = folder.ledger_command("handoff", &[]).expect_code(0);
    let handoff = std::fs::read_to_string(folder.path().join("run.db.handoff.dsse.json"))?;
    assert!(!handoff.is_empty());
    assert_eq!(folder.report()["verdict"], "accepted");

    // The same command again records nothing more.
    let again = train(package.path(), &folder);
    assert_ne!(again.code, 0);
    again.expect_message(&["is over", "hint:"]);
    Ok(())
}

#[test]
fn a_pytorch_loop_that_forgets_its_data_cursor_is_found() -> Result<()> {
    let package = package()?;
    let script = changed(
        package.path(),
        "step, position = attempt.resumed.step, attempt.resumed.position",
        "step = attempt.resumed.step",
    )?;
    let folder = frozen(package.path(), &script);
    kill_at(package.path(), &folder, "step      9")?;
    let _ = train(package.path(), &folder).expect_code(0);
    let report = folder.report();
    assert_eq!(report["verdict"], "rejected");
    let failed = failed(&report);
    for code in ["GL205", "GL302", "GL303", "GL304"] {
        assert!(failed.contains(code), "{code} is not among {failed:?}");
    }
    Ok(())
}

/// The loop says every rate and decay as the card has them; its optimizer has
/// another constant, which only what it saved shows.
#[test]
fn a_pytorch_optimizer_with_another_constant_is_found_by_what_it_saved() -> Result<()> {
    let package = package()?;
    for (from, to) in [("eps=rule[\"epsilon\"]", "eps=1e-7"), ("betas=(rule[\"beta1\"], ", "betas=(0.8, ")] {
        let script = changed(package.path(), from, to)?;
        let folder = frozen(package.path(), &script);
        let _ = train(package.path(), &folder).expect_code(0);
        let report = folder.report();
        assert_eq!(report["verdict"], "rejected", "{to}");
        assert_eq!(failed(&report), BTreeSet::from(["GL416".to_owned()]), "{to}: {report:#}");
    }
    Ok(())
}

#[test]
fn an_exception_ends_the_attempt_as_failed_and_a_signal_as_interrupted() -> Result<()> {
    let package = package()?;
    let script = changed(
        package.path(),
        "    optimizer.zero_grad(set_to_none=True)\n",
        "    optimizer.zero_grad(set_to_none=True)\n    if step == 3 and attempt.number == 1:\n        raise RuntimeError('of the loop')\n    if step == 3 and attempt.number == 2:\n        raise KeyboardInterrupt\n    if step == 3 and attempt.number == 3:\n        raise SystemExit(0)\n",
    )?;
    let folder = frozen(package.path(), &script);
    train(package.path(), &folder).expect_code(1).expect_message(&["of the loop"]);
    let _ = train(package.path(), &folder);
    // `sys.exit(0)`: the loop left, and nothing failed.
    let left = train(package.path(), &folder).expect_code(0);
    assert!(!left.stdout.contains("finished"), "{left}");
    let _ = train(package.path(), &folder).expect_code(0);
    let entries = folder.entries();
    let ends = entries.iter().filter(|entry| entry["kind"] == "attempt.end");
    let outcomes: Vec<&str> = ends.filter_map(|entry| entry["body"]["det"]["outcome"].as_str()).collect();
    assert_eq!(outcomes, ["failed", "interrupted", "interrupted", "completed"]);
    let report = folder.report();
    assert_eq!(report["verdict"], "accepted", "{report:#}");
    Ok(())
}

/// A loop that leaves a child behind when it is killed: the checkpoint that it can be
/// resumed from, and what the next attempt says while the child lives.
fn with_a_child_left(package: &Path, fork: &str) -> Result<(String, Finished)> {
    let place = "    optimizer.zero_grad(set_to_none=True)\n";
    // The alarm ends the child where this test does not.
    let lines = format!(
        r"{place}    if step == 3 and attempt.number == 1:
        import ctypes, os, signal, time
        child = {fork}
        if child == 0:
            signal.alarm(300)
            time.sleep(600)
        with open('child.txt', 'w') as file:
            file.write(str(child))
"
    );
    let scripts = TempDir::new()?;
    let script = changed(scripts.path(), place, &lines)?;
    let folder = frozen(package, &script);
    kill_at(package, &folder, "step      9")?;
    let (checkpoint, _) = resumable(&folder)?;
    let child = std::fs::read_to_string(folder.path().join("child.txt"))?;
    let child = Pid::from_raw(child.trim().parse()?).context("the child's number")?;
    let next = train(package, &folder);
    let lives = test_kill_process(child).is_ok();
    kill_process(child, Signal::KILL)?;
    ensure!(lives, "the child had ended before the next attempt did\n{next}");
    Ok((checkpoint, next))
}

#[test]
fn a_forked_child_that_outlives_a_killed_loop_does_not_keep_its_lock() -> Result<()> {
    let package = package()?;
    let (checkpoint, next) = with_a_child_left(package.path(), "os.fork()")?;
    let next = next.expect_code(0);
    assert!(next.stdout.contains(&format!("attempt 2 resumes from {checkpoint}\n")), "{next}");
    // The control: a fork of which Python knows nothing.
    let (_, next) = with_a_child_left(package.path(), "ctypes.PyDLL(None).fork()")?;
    assert_ne!(next.code, 0, "{next}");
    next.expect_message(&["does not run here any more", "a process that it forked may hold the lock"]);
    Ok(())
}

#[test]
fn a_forked_child_that_raises_ends_and_leaves_nothing_on_record() -> Result<()> {
    let package = package()?;
    // The alarm ends a child that waits for a thread which it does not have.
    let script = changed(
        package.path(),
        "    optimizer.zero_grad(set_to_none=True)\n",
        r"    optimizer.zero_grad(set_to_none=True)
    if step == 3:
        import os, signal
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                attempt.due()
            except ledger.LedgerError as error:
                print(f'child: {error}', flush=True)
            raise RuntimeError('of the child')
        print(f'child ended with {os.waitpid(child, 0)[1] >> 8}', flush=True)
",
    )?;
    let folder = frozen(package.path(), &script);
    let finished = train(package.path(), &folder).expect_code(0);
    for words in
        ["was forked from it and cannot record", "hint: call it in the process", "child ended with 1\n"]
    {
        assert!(finished.stdout.contains(words), "{words:?} was not said\n{finished}");
    }
    finished.expect_message(&["of the child"]);
    let entries = folder.entries();
    let of_kind = |kind: &str| entries.iter().filter(|entry| entry["kind"] == kind).count();
    assert_eq!((of_kind("attempt.end"), of_kind("anomaly"), of_kind("run.end")), (1, 0, 1));
    assert_eq!(folder.report()["verdict"], "accepted");
    Ok(())
}

/// What a forked child has open of a file is closed where the file is the lock of a
/// running attempt, and kept once the attempt has ended: behind a run's folder that
/// was removed, another file may have the number of its lock.
#[test]
fn a_forked_child_keeps_its_files_once_the_attempt_has_ended() -> Result<()> {
    let package = package()?;
    let script = changed(
        package.path(),
        "        train(attempt)\n",
        r"        import os

        def keeps():
            with open('run.db.lock') as file:
                child = os.fork()
                if child == 0:
                    try:
                        os.fstat(file.fileno())
                    except OSError:
                        os._exit(1)
                    os._exit(0)
                return os.waitpid(child, 0)[1] == 0

        print(f'running: {keeps()}', flush=True)
        ending = os.environ['ENDING']
        if ending == 'interrupt':
            attempt.interrupt('of the loop')
        elif ending == 'fail':
            attempt.fail('of the loop')
        elif ending == 'finish':
            train(attempt)
        else:
            step = attempt.step
            attempt.step = lambda **given: step(**{**given, 'loss': float('nan')})
            try:
                train(attempt)
            except ledger.LedgerError as error:
                print(error, flush=True)
        print(f'ended: {keeps()}', flush=True)
",
    )?;
    let frozen = frozen(package.path(), &script);
    for (ending, outcome) in
        [("interrupt", "interrupted"), ("fail", "failed"), ("finish", "completed"), ("nan", "failed")]
    {
        let folder = frozen.copy();
        let mut command = python(package.path(), folder.path(), &["loop/train.py", "run.db"]);
        command.env("ENDING", ending);
        let finished = finish(command).expect_code(0);
        for words in ["running: False\n", "ended: True\n"] {
            assert!(finished.stdout.contains(words), "{ending}: {words:?} was not said\n{finished}");
        }
        let entries = folder.entries();
        let end = entries.iter().find(|entry| entry["kind"] == "attempt.end").context("its end")?;
        assert_eq!(end["body"]["det"]["outcome"], outcome, "{ending}");
    }
    Ok(())
}
