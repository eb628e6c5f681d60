//! The named suites on real runs: every mutation counts and is killed by a rule
//! that is expected to; each rule but those of form and integrity is the only
//! killer of one; and each rule over campaigns alone sees a change of a real
//! campaign. Those that do not are excused by name.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use system_tests::mutations::named::{self, implied, sole};
use system_tests::mutations::{FORM_AND_INTEGRITY, Outcome, Records, Tried, campaigns, run};

/// Audits at a time.
const NUM_JOBS: usize = 2;

/// How many mutations each list has to have: those of the reference, and those
/// that `tests/src/mutations/named` says are added.
const COUNTS: [(&str, usize); 4] =
    [("transaction", 23), ("weight-only", 7), ("complete-encoding", 9), ("optimizer-card", 23)];

/// Tries suites by name and says of each failure which rules fired.
fn tried(names: &[&str]) -> Result<Vec<Tried>> {
    let records = Records::default();
    let mut mutations = Vec::new();
    for suite in named::suites().iter().filter(|suite| names.contains(&suite.name)) {
        mutations.extend(run::of_suite(&records, suite)?);
    }
    let tried = run::run(&records, &mutations, NUM_JOBS, &|_| {});
    let failures: Vec<String> = tried
        .iter()
        .filter(|one| !one.holds(true))
        .map(|one| format!("{} / {}: {:?}, {:?}", one.suite, one.name, one.outcome, one.killers()))
        .collect();
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(tried)
}

#[test]
fn every_named_mutation_is_killed() -> Result<()> {
    let names: Vec<&str> = COUNTS.iter().map(|(name, _)| *name).collect();
    let tried = tried(&names)?;
    for (name, count) in COUNTS {
        let killed = tried.iter().filter(|one| one.suite == name && one.outcome == Outcome::Killed).count();
        assert_eq!(killed, count, "{name}");
    }
    Ok(())
}

#[test]
fn what_nobody_can_know_is_accepted() -> Result<()> {
    let tried = tried(&["unknowable"])?;
    assert!(!tried.is_empty());
    assert!(tried.iter().all(|one| one.outcome == Outcome::SurvivedAsDocumented), "{tried:#?}");
    Ok(())
}

#[test]
fn each_semantic_rule_is_the_only_killer_of_a_real_record() -> Result<()> {
    let mut shown = BTreeSet::new();
    for one in tried(&["sole"])? {
        let killers = one.killers();
        assert_eq!(killers.len(), 1, "{}: {killers:?}", one.name);
        shown.extend(killers);
    }
    let excused: BTreeSet<String> = sole::NOT_SOLE.iter().map(|(code, _)| (*code).to_owned()).collect();
    assert!(sole::NOT_SOLE.iter().all(|(_, reason)| reason.len() > 40), "an excuse says why");
    for (one, (code, other)) in tried(&["implied"])?.iter().zip(implied::PAIRS) {
        let killers = one.killers();
        assert!(killers.contains(code) && killers.contains(other), "{}: {killers:?}", one.name);
        assert!(excused.contains(code), "{code} is only implied");
    }
    let both: Vec<&String> = shown.intersection(&excused).collect();
    assert!(both.is_empty(), "excused, and the only killer all the same: {both:?}");
    let catalogue = validator::rules::catalogue().iter().map(|info| info.code);
    let semantic = catalogue.filter(|code| !FORM_AND_INTEGRITY.contains(code));
    let missing: Vec<&str> =
        semantic.filter(|code| !shown.contains(*code) && !excused.contains(*code)).collect();
    assert!(
        missing.is_empty(),
        "rules without a mutation that they alone kill: {missing:?}\n\
         hint: tests/src/mutations/named/sole"
    );
    Ok(())
}

#[test]
fn each_rule_over_campaigns_alone_sees_a_change_of_a_real_one_or_is_excused() {
    let mutations = campaigns::mutations();
    let shown: BTreeSet<&str> = mutations.iter().map(|mutation| mutation.code).collect();
    let alone = mutations.iter().filter(|mutation| mutation.others.is_empty());
    let alone: BTreeSet<&str> = alone.map(|mutation| mutation.code).collect();
    let codes = |excuses: &[(&'static str, &str)]| -> BTreeSet<&'static str> {
        assert!(excuses.iter().all(|(_, reason)| reason.len() > 40), "an excuse says why");
        excuses.iter().map(|(code, _)| *code).collect()
    };
    let (not_shown, not_sole) = (codes(campaigns::NOT_SHOWN), codes(campaigns::NOT_SOLE));
    let both: Vec<_> = shown.intersection(&not_shown).chain(alone.intersection(&not_sole)).collect();
    assert!(both.is_empty(), "excused, and shown all the same: {both:?}");
    let all: BTreeSet<&str> = validator::campaign::catalogue().iter().map(|info| info.code).collect();
    let either: BTreeSet<&str> = shown.union(&not_shown).copied().collect();
    assert_eq!(either, all, "rules over campaigns that are neither shown nor excused, or are none");
    let either: BTreeSet<&str> = alone.union(&not_sole).copied().collect();
    assert_eq!(either, shown, "rules over campaigns that see nothing alone and have no excuse");
    // What is seen is compared exactly, so that none of them is a matter of form.
    let others: BTreeSet<&str> = mutations.iter().flat_map(|mutation| mutation.others).copied().collect();
    let by_form: Vec<_> = others.difference(&shown).collect();
    assert!(by_form.is_empty(), "seen as damage, or by no rule: {by_form:?}");
    let names: BTreeSet<(&str, &str)> =
        mutations.iter().map(|mutation| (mutation.code, mutation.name)).collect();
    assert_eq!(names.len(), mutations.len(), "two of one name");
    // What is excused here is caught where the rule's own fixtures are.
    for rule in validator::coverage::Coverage::read().campaign_rules {
        assert!(!rule.failing.is_empty(), "{} has no false campaign anywhere", rule.code);
    }
}
