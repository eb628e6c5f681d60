//! Every rule from `GL2xx` on passes an honest run and catches a false one.
//!
//! A table of mutations by rule code: each is applied to a fresh run, and the
//! rule must then say what it did not say before. A rule without a mutation
//! fails the test, so none can be added without one.

mod anomalies;
mod attempts;
mod authority;
mod checkpoints;
mod damages;
mod data;
mod evaluation;
mod faults;
mod fields;
mod frozen;
mod injections;
mod ledgers;
mod membership;
mod plausible;
mod probes;
mod recoveries;
mod retention;
mod scaling;
mod state_tree;
mod stateful;
mod statistical;
mod terms;
mod updates;
mod warm_start;
mod workers;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use schemas::contract::AverageOrder;
use schemas::finding::Severity;
use schemas::report::RuleStatus;

use crate::coverage::check_table;
use crate::fixture::{Fixture, RunBuilder, asynchronous, external_loop, honest_run};
use crate::rule::Rule;

/// One way of making a run false.
struct Mutation {
    /// Rule that must catch it.
    code: &'static str,
    /// What is wrong with the run.
    name: &'static str,
    /// Severity that the rule must reach.
    severity: Severity,
    /// Makes the run.
    run: fn() -> Fixture,
}

const fn error(code: &'static str, name: &'static str, run: fn() -> Fixture) -> Mutation {
    Mutation { code, name, severity: Severity::Error, run }
}

const fn warning(code: &'static str, name: &'static str, run: fn() -> Fixture) -> Mutation {
    Mutation { code, name, severity: Severity::Warning, run }
}

const fn note(code: &'static str, name: &'static str, run: fn() -> Fixture) -> Mutation {
    Mutation { code, name, severity: Severity::Note, run }
}

/// An honest run, changed.
fn changed(change: impl FnOnce(&mut Fixture)) -> Fixture {
    let mut fixture = honest_run();
    change(&mut fixture);
    fixture
}

fn rules() -> Vec<&'static dyn Rule> {
    super::run_rules().filter(|rule| rule.info().code >= "GL200").collect()
}

fn rule(code: &str) -> &'static dyn Rule {
    rules().into_iter().find(|rule| rule.info().code == code).expect("a rule of the catalogue")
}

/// Rules that have nothing to check in the plain fixture.
const NOT_IN_FIXTURE: [&str; 22] = [
    "GL215", "GL216", "GL217", "GL409", "GL508", "GL511", "GL611", "GL613", "GL614", "GL620", "GL621",
    "GL622", "GL623", "GL630", "GL631", "GL632", "GL633", "GL644", "GL646", "GL650", "GL710", "GL711",
];

thread_local! {
    /// Honest runs by name, with the rules that looked at them and passed.
    static HONEST: RefCell<BTreeMap<String, BTreeSet<&'static str>>> = const { RefCell::new(BTreeMap::new()) };
}

fn check_honest(fixture: &Fixture, name: &str) {
    let mut passed = BTreeSet::new();
    for rule in rules() {
        let info = rule.info();
        let (status, num_checked, findings) = fixture.check(rule);
        if NOT_IN_FIXTURE.contains(&info.code) && status == RuleStatus::NotApplicable {
            continue;
        }
        assert_eq!(status, RuleStatus::Passed, "{name}: {} {}: {findings:#?}", info.code, info.name);
        assert!(num_checked > 0, "{name}: {} {} looked at nothing", info.code, info.name);
        let suspicious: Vec<_> =
            findings.iter().filter(|finding| finding.severity == Severity::Warning).collect();
        assert!(suspicious.is_empty(), "{name}: {} {}: {suspicious:#?}", info.code, info.name);
        passed.insert(info.code);
    }
    remember(name, passed);
}

fn remember(name: &str, passed: impl IntoIterator<Item = &'static str>) {
    HONEST.with_borrow_mut(|honest| honest.entry(name.to_owned()).or_default().extend(passed));
}

#[test]
fn honest_runs_pass_every_rule() {
    check_honest(&honest_run(), "without a crash");
    check_honest(&RunBuilder::new().crash_after_step(6).build(), "with a crash");
    check_honest(&RunBuilder::new().crash_after_step(0).build(), "with a crash before the first step");
    check_honest(&RunBuilder::new().interrupt_after_step(7).build(), "with an interruption");
    check_honest(&frozen::frozen().build(), "with frozen parameters");
    check_honest(&frozen::frozen().crash_after_step(6).build(), "with frozen parameters and a crash");
    check_honest(&frozen::retired(), "with frozen parameters and a retirement");
    for code in ["GL409", "GL613"] {
        assert_eq!(frozen::frozen().build().check(rule(code)).0, RuleStatus::Passed, "{code} runs");
    }
    check_honest(&evaluation::with_val_numbers(|_| {}), "with val numbers");
    check_honest(&evaluation::with_handoff(|_| {}), "with a handoff");
    check_honest(&attempts::with_patience(), "stopped by patience");
    check_honest(&stateful::plateau().build(), "with a plateau");
    check_honest(&stateful::shuffle_buffer().crash_after_step(6).build(), "with a shuffle buffer");
    check_honest(&stateful::dropout_stream().build(), "with a stream of dropout masks");
    check_honest(&stateful::plateau().crash_after_step(6).build(), "with a plateau and a crash");
    for (fixture, code) in [
        (scaling::scaled().build(), "GL630"),
        (scaling::scaled().crash_after_step(6).build(), "GL631"),
        (scaling::windows().build(), "GL632"),
        (scaling::windows().crash_after_step(6).build(), "GL632"),
        (scaling::windows().interrupt_after_step(7).build(), "GL632"),
    ] {
        check_honest(&fixture, "with scaled losses, or saved inside of windows");
        assert_eq!(fixture.check(rule(code)).0, RuleStatus::Passed);
    }
    for builder in scaling::windows_of_others() {
        check_honest(&builder.build(), "saved inside of windows, with other components");
    }
    for order in [AverageOrder::AfterUpdate, AverageOrder::BeforeUpdate] {
        let fixture = checkpoints::with_averages(order, |_| {});
        check_honest(&fixture, "with averages");
        assert_eq!(fixture.check(rule("GL611")).0, RuleStatus::Passed);
    }
    check_honest(&checkpoints::with_cadence(|_, _| {}), "with state digests");
    check_honest(&state_tree::with_tree(|_| {}), "with a state tree");
    assert_eq!(state_tree::with_tree(|_| {}).check(rule("GL614")).0, RuleStatus::Passed);
    check_honest(&asynchronous(honest_run()), "with asynchronous saves");
    check_honest(
        &asynchronous(RunBuilder::new().crash_after_step(6).build()),
        "with asynchronous saves and a crash",
    );
    check_honest(
        &asynchronous(RunBuilder::new().interrupt_after_step(7).build()),
        "with asynchronous saves and an interruption",
    );
    check_honest(&asynchronous(attempts::with_patience()), "with asynchronous saves, stopped by patience");
    check_honest(
        &asynchronous(checkpoints::with_cadence(|_, _| {})),
        "with asynchronous saves and state digests",
    );
    check_honest(&retention::with_retirement(|_| {}), "with a retirement");
    retention::check_honest_runs();
    check_honest(&probes::probed(|_| {}), "with probes");
    statistical::check_honest_runs();
    check_honest(&membership::member().crash_after_step(6).build(), "of a campaign");
    workers::check_honest_runs();
    faults::check_honest_runs();
    // What its profile leaves out; `profile` says why.
    let external = external_loop().crash_after_step(6).build();
    let passed: Vec<_> = rules()
        .iter()
        .map(|rule| rule.info().code)
        .filter(|code| external.check(rule(code)).0 == RuleStatus::Passed)
        .collect();
    assert!(
        passed.contains(&"GL206") && !passed.contains(&"GL408") && !passed.contains(&"GL640"),
        "{passed:?}"
    );
    remember("of an external loop", passed);
    // Its weights are not the seed's; `warm_start` has the other rules.
    let warm = warm_start::warm(|_| {});
    let is_passed = |code: &&str| warm.check(rule(code)).0 == RuleStatus::Passed;
    let passed: Vec<_> = rules().iter().map(|rule| rule.info().code).filter(is_passed).collect();
    assert!(passed.contains(&"GL646") && !passed.contains(&"GL408"), "{passed:?}");
    remember("started from other weights", passed);
    let mut table = String::new();
    HONEST.with_borrow(|honest| {
        for (name, passed) in honest {
            let codes = rules().into_iter().map(|rule| rule.info().code);
            let others: Vec<&str> = codes.filter(|code| !passed.contains(code)).collect();
            writeln!(table, "{name}\t{}", others.join(" ")).expect("writing to a string");
        }
    });
    check_table("honest_runs.txt", &table);
}

#[test]
fn every_rule_catches_what_it_is_for() {
    let (mut covered, mut num_went_on, mut table) = (BTreeSet::new(), 0, Vec::new());
    let groups = [
        attempts::MUTATIONS,
        data::MUTATIONS,
        updates::MUTATIONS,
        evaluation::MUTATIONS,
        checkpoints::MUTATIONS,
        probes::MUTATIONS,
        authority::MUTATIONS,
        retention::MUTATIONS,
        frozen::MUTATIONS,
        state_tree::MUTATIONS,
        stateful::MUTATIONS,
        anomalies::MUTATIONS,
        warm_start::MUTATIONS,
        statistical::MUTATIONS,
        scaling::MUTATIONS,
        workers::MUTATIONS,
        faults::MUTATIONS,
        injections::MUTATIONS,
        membership::MUTATIONS,
        recoveries::MUTATIONS,
        plausible::MUTATIONS,
        terms::MUTATIONS,
    ];
    for mutation in groups.into_iter().flatten() {
        let fixture = (mutation.run)();
        let (_, _, findings) = fixture.check(rule(mutation.code));
        let is_caught = findings.iter().any(|finding| finding.severity == mutation.severity);
        assert!(is_caught, "{} does not see {}: {findings:#?}", mutation.code, mutation.name);
        for finding in &findings {
            assert!(!finding.remedy.is_empty() && !finding.location.is_empty() || finding.entry.is_some());
        }
        num_went_on += crate::ways::check_every_way(mutation.name, fixture);
        covered.insert(mutation.code);
        table.push((mutation.code, mutation.name));
    }
    let uncovered: Vec<&str> =
        rules().iter().map(|rule| rule.info().code).filter(|code| !covered.contains(code)).collect();
    assert!(uncovered.is_empty(), "rules without a run that they catch: {uncovered:?}");
    table.sort_unstable();
    let table: String = table.iter().map(|(code, name)| format!("{code}\t{name}\n")).collect();
    check_table("false_runs.txt", &table);
    assert!(num_went_on > 50, "{num_went_on} false runs were audited on from an earlier report");
}

/// Entries in any order and number must never make a rule panic.
#[test]
fn torn_ledgers_cause_no_panic() {
    let honest = RunBuilder::new().crash_after_step(5).build();
    for from in 0..honest.entries.len() {
        let mut fixture = honest_run();
        fixture.entries = honest.entries[from..].to_vec();
        for rule in rules() {
            fixture.check(rule);
        }
        fixture.entries = honest.entries[..from].to_vec();
        for rule in rules() {
            fixture.check(rule);
        }
    }
    let mut fixture = honest_run();
    fixture.entries.reverse();
    for rule in rules() {
        fixture.check(rule);
    }
}
