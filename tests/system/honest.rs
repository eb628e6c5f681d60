//! The honest corpus: no run is called false, and what is said of it depends
//! neither on where it lies nor on who looks.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use system_tests::dump;
use system_tests::honest::{Honest, above_notes, export_and_import, warnings};
use system_tests::programs::{self, LEDGER};
use system_tests::run_folder::{RunFolder, copy_folder};

/// User and group of `nobody`.
const NOBODY: u32 = 65_534;

/// The report of `run.db` in a folder, and what its writer signed it as.
#[track_caller]
fn report(folder: &Path) -> Value {
    programs::run(LEDGER, folder, &["audit", "run.db", "--json"]).json()
}

/// Makes everything below a folder readable for everybody, and nothing writable.
fn open_to_everybody(folder: &Path) {
    for item in std::fs::read_dir(folder).expect("a folder") {
        let path = item.expect("an item").path();
        let is_folder = path.is_dir();
        if is_folder {
            open_to_everybody(&path);
        }
        let mode = if is_folder { 0o555 } else { 0o444 };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("the mode is set");
    }
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o555)).expect("the mode is set");
}

/// The report that a user without any right gets of a copy that is not its own.
///
/// # Panics
/// When the test does not run as root: another user cannot be had then.
#[track_caller]
fn report_of_nobody(run: &RunFolder) -> Value {
    let place = tempfile::TempDir::with_prefix("governed-ledger-").expect("a temporary folder");
    let (copy, programs, scratch) =
        (place.path().join("run"), place.path().join("programs"), place.path().join("scratch"));
    for folder in [&copy, &programs, &scratch] {
        std::fs::create_dir(folder).expect("a folder");
    }
    copy_folder(run.path(), &copy).expect("a copy");
    // Keys are their owner's, and an audit needs none.
    std::fs::remove_dir_all(copy.join("keys")).expect("the copy's keys");
    let program = programs.join(LEDGER);
    std::fs::copy(programs::program(LEDGER), &program).expect("a copy of the program");
    open_to_everybody(&copy);
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).expect("the mode is set");
    std::os::unix::fs::chown(&scratch, Some(NOBODY), Some(NOBODY)).expect("this test runs as root");
    let mut command = Command::new(&program);
    command.args(["audit", "run.db", "--json"]).current_dir(&copy).env("TMPDIR", &scratch);
    command.env_remove("LEDGER_KEYS").uid(NOBODY).gid(NOBODY);
    let before = dump::files(&copy).expect("the copy");
    let report = programs::finish(command).json();
    assert_eq!(dump::files(&copy).expect("the copy"), before, "an audit writes nothing");
    report
}

#[track_caller]
fn check(honest: Honest) {
    let run = honest.make();
    let expected = honest.expected();
    let finished = run.audit(&["--json"]);
    let found = finished.json();
    assert_eq!(found["verdict"], expected.verdict, "{honest:?}: {:#?}", above_notes(&found));
    assert_eq!(finished.code, expected.code, "{honest:?}");
    let mut warned = warnings(&found);
    warned.retain(|code| !expected.possible.contains(&code.as_str()));
    assert_eq!(warned, expected.warnings, "{honest:?}: {:#?}", above_notes(&found));
    let route = if found["selected"].is_null() { "request_qualification" } else { "accept_handoff" };
    assert_eq!(found["route"], route, "{honest:?}: what was not selected is not handed off");
    let rules = found["rules"].as_array().expect("a list of rules");
    let is_idle = |rule: &&Value| rule["status"] != "passed" && rule["status"] != "not_applicable";
    let idle: Vec<&Value> = rules.iter().filter(is_idle).collect();
    assert!(rules.len() > 100 && idle.is_empty(), "{honest:?}: {idle:#?}");

    // In another place.
    let moved = run.copy();
    assert_eq!(report(moved.path()), found, "{honest:?}, in another folder");
    // From its export. The control: the database is another file.
    let database = std::fs::read(moved.ledger()).expect("a ledger");
    export_and_import(&moved);
    assert_ne!(std::fs::read(moved.ledger()).expect("a ledger"), database, "{honest:?}: it was made again");
    assert_eq!(report(moved.path()), found, "{honest:?}, exported and imported");
    assert_eq!(report_of_nobody(&run), found, "{honest:?}, for another user");
    // As one file, which is the same for both.
    let bundle = |folder: &RunFolder| {
        let _ = folder.ledger_command("bundle", &["run.tar.zst"]).expect_code(0);
        folder.path().join("run.tar.zst")
    };
    let (first, second) = (bundle(&run), bundle(&moved));
    let read = |path: &Path| std::fs::read(path).expect("a bundle");
    assert!(read(&first) == read(&second), "{honest:?}, bundled here and there");
    let audited = programs::run(LEDGER, moved.path(), &["audit", "run.tar.zst", "--json"]);
    assert_eq!(audited.json(), found, "{honest:?}, as a bundle");
}

#[test]
fn the_quick_start_is_accepted() {
    check(Honest::QuickStart);
}

#[test]
fn a_run_that_was_killed_and_resumed_is_accepted() {
    check(Honest::KilledAndResumed);
}

#[test]
fn a_run_that_failed_is_accepted_as_a_record() {
    check(Honest::Failed);
}

#[test]
fn a_run_that_its_policy_ended_is_accepted_as_a_record() {
    check(Honest::Refused);
}

#[test]
fn a_run_that_its_budget_stopped_is_accepted() {
    check(Honest::BudgetStopped);
}

#[test]
fn a_run_of_several_segments_is_accepted() {
    check(Honest::MultiSegment);
}

#[test]
fn a_data_parallel_run_is_accepted() {
    check(Honest::DataParallel);
}

#[test]
fn a_run_with_skipped_steps_is_accepted() {
    check(Honest::SkippedSteps);
}

#[test]
fn a_run_that_recovered_from_faults_is_accepted() {
    check(Honest::FaultsRecovered);
}

/// Of a class that is not compared with, an audit asks nothing where nothing was
/// executed again.
#[test]
fn a_run_of_one_attempt_under_a_weaker_determinism_is_accepted() {
    let run = RunFolder::tiny();
    run.edit_contract(|contract| {
        contract["numerics"]["determinism"] = "operation_order_bounded".into();
        contract["resume"] = serde_json::json!({
            "class": "operation_order_bounded", "tolerance": {"max_absolute": 1e-5, "max_relative": 1e-4}
        });
    });
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    let found = run.audit(&["--json"]).expect_code(0).json();
    assert_eq!(found["verdict"], "accepted", "{found:#}");
    assert!(warnings(&found).is_empty(), "{found:#}");
    let mut rules = found["rules"].as_array().expect("a list").iter();
    let rule = rules.find(|rule| rule["code"] == "GL205").expect("a rule");
    assert_eq!(rule["status"], "not_applicable", "{rule:#}");
}

/// A run that is not over is incomplete wherever it lies.
#[test]
fn every_run_of_the_corpus_has_a_test_and_a_control() {
    let run = RunFolder::frozen();
    let found = report(run.path());
    assert_eq!(found["verdict"], "incomplete", "{found:#}");
    assert_eq!(report(run.copy().path()), found);
    assert_eq!(report_of_nobody(&run), found);
    // What failed has no candidate, so that both routes occur.
    assert!(Honest::Failed.make().audit(&["--json"]).json()["selected"].is_null());
    // Its tests are named above, one for each.
    let text = include_str!("honest.rs");
    for honest in Honest::ALL {
        assert!(text.contains(&format!("check(Honest::{honest:?});")), "{honest:?} has no test");
    }
}
