//! The trust statement, carried out: every way of every class of adversaries of
//! `validator::trust`, against a real run, with the keys that it takes, and what
//! the audit then shows with which evidence.
//!
//! A way that is said to be shown alone has to be shown with everything beside
//! the ledger as the adversary left it; one that is said to need a kept head has
//! to be *accepted* without it, or the table promises too little.

mod bytes;
mod candidate;
mod freeze;
mod tail;
mod whole;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ledger::keys::{KeyRing, Role};
use schemas::finding::Effect;
use schemas::report::{Report, Verdict};
use schemas::trust::{Reach, ShownBy};
use serde_json::{Value, json};
use system_tests::programs::{self, LEDGER};
use system_tests::run_folder::RunFolder;
use tempfile::TempDir;
use validator::trust::{CLASSES, Way};

/// What carries a way out.
type Attack = fn() -> Result<Attacked>;

/// Every way of the table.
const ATTACKS: &[(&str, &str, Attack)] = &[
    ("byte-edits", "entry", bytes::entry),
    ("byte-edits", "head", bytes::head),
    ("byte-edits", "frozen-file", bytes::frozen_file),
    ("sql-edits", "row-updated", bytes::row_updated),
    ("sql-edits", "row-removed", bytes::row_removed),
    ("sql-edits", "triggers-left-off", bytes::triggers_left_off),
    ("tail-cut", "before-the-end", tail::cut_before_the_end),
    ("tail-cut", "after-the-end", tail::cut_after_the_end),
    ("tail-rewritten", "value-edited", tail::value_edited),
    ("tail-rewritten", "time-edited", tail::time_edited),
    ("tail-rewritten", "executed-again", tail::executed_again),
    ("ledger-replaced", "by-a-stranger", whole::by_a_stranger),
    ("ledger-replaced", "by-its-makers", whole::by_its_makers),
    ("clock-moved", "times-fall", tail::times_fall),
    ("clock-moved", "whole-run-dated-back", whole::dated_back),
    ("two-ledgers", "one-freeze-run-twice", whole::one_freeze_run_twice),
    ("checkpoint-swapped", "files", candidate::swapped),
    ("checkpoint-swapped", "files-and-record", candidate::swapped_on_record),
    ("checkpoint-swapped", "files-record-and-handoff", candidate::swapped_without_handoff),
    ("foreign-candidate", "files", candidate::foreign_files),
    ("foreign-candidate", "handoff", candidate::foreign_handoff),
    ("foreign-candidate", "recorded-later", candidate::recorded_later),
    ("foreign-candidate", "recorded-at-once", candidate::recorded_at_once),
    ("frozen-again", "into-the-ledger", freeze::into_the_ledger),
    ("frozen-again", "as-a-new-run", freeze::as_a_new_run),
    ("opened-early", "on-record", freeze::opened_on_record),
    ("opened-early", "in-private", freeze::opened_in_private),
    ("evaluator-is-trainer", "one-key", freeze::one_key),
    ("evaluator-is-trainer", "two-keys-of-one-hand", freeze::two_keys),
    ("evaluator-is-trainer", "values-invented", candidate::values_invented),
    ("evaluator-is-trainer", "values-invented-and-unchecked", candidate::values_unchecked),
    ("path-outside", "recorded", candidate::path_recorded),
    ("path-outside", "link", candidate::path_linked),
];

/// A test for each class.
macro_rules! classes {
    ($($test:ident $class:literal),* $(,)?) => {
        const TESTED: &[&str] = &[$($class),*];
        $(
            #[test]
            fn $test() -> Result<()> {
                carry_out($class)
            }
        )*
    };
}

classes! {
    byte_edits "byte-edits",
    sql_edits "sql-edits",
    tail_cut "tail-cut",
    tail_rewritten "tail-rewritten",
    ledger_replaced "ledger-replaced",
    clock_moved "clock-moved",
    two_ledgers "two-ledgers",
    checkpoint_swapped "checkpoint-swapped",
    foreign_candidate "foreign-candidate",
    frozen_again "frozen-again",
    opened_early "opened-early",
    evaluator_is_trainer "evaluator-is-trainer",
    path_outside "path-outside",
}

#[test]
fn every_way_of_the_table_is_carried_out_and_nothing_else() {
    let table = CLASSES.iter().flat_map(|class| class.ways.iter().map(|way| (class.name, way.name)));
    let tried: Vec<(&str, &str)> = ATTACKS.iter().map(|(class, way, _)| (*class, *way)).collect();
    assert_eq!(tried, table.collect::<Vec<_>>());
    assert_eq!(TESTED, CLASSES.iter().map(|class| class.name).collect::<Vec<_>>());
}

/// The README's trust statement is that of the table, and the script that
/// writes it sees a change.
#[test]
fn the_readme_s_statement_is_the_table() {
    let script = system_tests::workspace_root().join("scripts/trust-statement");
    let program = programs::program(LEDGER);
    let mut command = std::process::Command::new(script);
    let output = command.arg("--check").arg("--ledger").arg(&program).output().expect("python3 is there");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "run scripts/trust-statement: {said}");
    let readme = std::fs::read_to_string(system_tests::workspace_root().join("README.md")).expect("a README");
    assert!(readme.contains(&validator::trust::markdown()), "the table is not in the README as a whole");
}

#[test]
fn ledger_trust_prints_the_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let printed = programs::run(LEDGER, folder.path(), &["trust", "--json"]).expect_code(0).json();
    let classes = printed["classes"].as_array().expect("classes");
    assert_eq!(classes.len(), CLASSES.len());
    for (given, class) in classes.iter().zip(CLASSES) {
        assert_eq!(given["class"], class.name);
        assert_eq!(given["ways"].as_array().map(Vec::len), Some(class.ways.len()));
    }
    let text = programs::run(LEDGER, folder.path(), &["trust", "tail-cut"]).expect_code(0).stdout;
    assert!(text.contains("only a head kept elsewhere (GL009)"), "{text}");
    let unknown = programs::run(LEDGER, folder.path(), &["trust", "burglars"]).expect_code(2);
    unknown.expect_message(&["burglars", "tail-cut", "hint"]);
}

/// What was kept out of the adversary's reach.
struct Kept {
    folder: TempDir,
}

impl Kept {
    /// Keeps a run's head file and public keys as they are now.
    fn of(run: &RunFolder) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        std::fs::copy(run.path().join("run.db.head"), folder.path().join("kept.head"))?;
        let keys = KeyRing::open(&run.path().join("keys"))?;
        let trust = json!({
            "owner": keys.public(Role::Owner)?.public, "trainer": keys.public(Role::Trainer)?.public
        });
        std::fs::write(folder.path().join("trust.json"), trust.to_string())?;
        Ok(Self { folder })
    }

    fn head(&self) -> PathBuf {
        self.folder.path().join("kept.head")
    }

    fn trust(&self) -> PathBuf {
        self.folder.path().join("trust.json")
    }
}

/// What a reviewer is left with.
struct Attacked {
    /// Kept before the act, by the reviewer.
    kept: Kept,
    /// What the reviewer is shown.
    run: RunFolder,
    /// The same act against a run whose contract names a witness, who stood by.
    witnessed: Option<RunFolder>,
}

impl Attacked {
    fn new(run: RunFolder, kept: Kept) -> Self {
        Self { kept, run, witnessed: None }
    }
}

/// The run's keys.
fn keys(run: &RunFolder) -> Result<KeyRing> {
    Ok(KeyRing::open(&run.path().join("keys"))?)
}

/// A trained run whose candidate was handed off.
fn handed_off() -> Result<RunFolder> {
    let run = RunFolder::trained();
    hand_off(&run);
    Ok(run)
}

fn hand_off(run: &RunFolder) {
    let _ = run.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let _ = run.ledger_command("handoff", &[]).expect_code(0);
}

/// Folder of the selected candidate's checkpoint.
fn candidate_folder(run: &RunFolder) -> Result<PathBuf> {
    let path = run.report()["selected"]["path"].as_str().map(str::to_owned);
    Ok(run.path().join(path.context("a candidate was selected")?))
}

fn audit(run: &RunFolder, options: &[(&str, &Path)]) -> Result<Report> {
    let mut arguments = vec!["--json".to_owned()];
    for (name, path) in options {
        arguments.extend([(*name).to_owned(), path.display().to_string()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let finished = run.audit(&arguments);
    assert_ne!(finished.code, 2, "the audit could not run\n{finished}");
    Ok(serde_json::from_str(&finished.stdout)?)
}

fn carry_out(class: &str) -> Result<()> {
    let table = CLASSES.iter().find(|given| given.name == class).context("a class of the table")?;
    for way in table.ways {
        let attack = ATTACKS.iter().find(|(given, name, _)| *given == class && *name == way.name);
        let (_, _, attack) = attack.context("a way that is carried out")?;
        let name = format!("{class}/{}", way.name);
        let attacked = attack().with_context(|| name.clone())?;
        judge(&name, way, &attacked).with_context(|| name.clone())?;
    }
    Ok(())
}

/// Whether an audit shows a way: every rule of the table speaks of it.
#[track_caller]
fn check_shown(name: &str, with: &str, way: &Way, report: &Report) {
    let found = |report: &Report| -> Vec<String> {
        let lines = report.findings.iter().filter(|finding| finding.effect != Effect::None);
        lines.map(|finding| format!("{} {}: {}", finding.code, finding.location, finding.message)).collect()
    };
    for code in way.rules {
        let speaks = |finding: &&schemas::finding::Finding| {
            finding.code == *code && (way.is_warning || finding.effect != Effect::None)
        };
        assert!(
            report.findings.iter().any(|finding| speaks(&finding)),
            "{name} with {with}: {code} finds nothing; found: {:#?}",
            found(report)
        );
    }
    let is_accepted = report.verdict == Verdict::Accepted;
    assert_eq!(is_accepted, way.is_warning, "{name} with {with}: {:?} {:#?}", report.verdict, found(report));
}

#[track_caller]
fn check_hidden(name: &str, with: &str, report: &Report) {
    assert_eq!(
        report.verdict,
        Verdict::Accepted,
        "{name} with {with} is said not to be shown: {:#?}",
        report.findings.iter().filter(|finding| finding.effect != Effect::None).collect::<Vec<_>>()
    );
}

fn judge(name: &str, way: &Way, attacked: &Attacked) -> Result<()> {
    let run = &attacked.run;
    let alone = audit(run, &[])?;
    check_reach(name, way, &alone, false);
    if way.shown_by == ShownBy::Alone {
        check_shown(name, "nothing else", way, &alone);
        return Ok(());
    }
    check_hidden(name, "nothing else", &alone);
    let head = attacked.kept.head();
    let external = audit(run, &[("--head", &head)])?;
    match way.shown_by {
        ShownBy::Alone => {}
        ShownBy::ExternalHead => {
            check_shown(name, "a kept head", way, &external);
            if way.keys_show_it {
                let trusted = audit(run, &[("--trust", &attacked.kept.trust())])?;
                let speaks = trusted.findings.iter().any(|finding| finding.code == "GL011");
                assert!(speaks && trusted.verdict != Verdict::Accepted, "{name} with public keys");
                check_reach(name, way, &trusted, true);
            }
        }
        ShownBy::Witness => {
            check_hidden(name, "the reader's own head", &external);
            check_reach(name, way, &external, true);
            let witnessed = attacked.witnessed.as_ref().context("a run with a witness")?;
            check_shown(name, "a witness", way, &audit(witnessed, &[])?);
        }
        ShownBy::NotAtAll => {
            check_hidden(name, "the reader's own head", &external);
            check_reach(name, way, &external, true);
            for code in way.rules {
                assert!(
                    alone.findings.iter().any(|finding| finding.code == *code),
                    "{name}: no note by {code}"
                );
            }
        }
    }
    Ok(())
}

/// The report of an audit says of this way what is true of its evidence.
#[track_caller]
fn check_reach(name: &str, way: &Way, report: &Report, has_more: bool) {
    let scope = report.trust.as_ref().expect("every report says it");
    let (class, _) = name.split_once('/').expect("class and way");
    let class = scope.classes.iter().find(|given| given.class == class).expect("the class");
    let given = class.ways.iter().find(|given| given.way == way.name).expect("the way");
    let expected = match way.shown_by {
        ShownBy::Alone => Reach::Shown,
        // With a kept head of another ledger no head verifies, and the audit says
        // so by its findings.
        ShownBy::ExternalHead if has_more => Reach::Shown,
        ShownBy::ExternalHead => Reach::ShownUnlessHeadFileToo,
        ShownBy::Witness | ShownBy::NotAtAll => Reach::NotShown,
    };
    assert_eq!(given.reach, expected, "{name}: {given:?}");
    assert_eq!(given.lacks.is_some(), expected == Reach::NotShown, "{name}: {given:?}");
}

/// The value at a JSON pointer of an entry.
fn at<'a>(entry: &'a mut Value, pointer: &str) -> Result<&'a mut Value> {
    entry.pointer_mut(pointer).with_context(|| format!("no {pointer}"))
}
