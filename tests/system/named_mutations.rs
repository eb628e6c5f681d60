//! The named suites on real runs: every mutation counts and is killed by a rule
//! that is expected to; and each semantic rule is the only killer of one.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use system_tests::mutations::named::{self, implied, sole};
use system_tests::mutations::{Outcome, Records, Tried, run};

/// Audits at a time.
const NUM_JOBS: usize = 2;

/// How many mutations each list has to have: those of the reference, and one of
/// the card's that saved moments tell.
const COUNTS: [(&str, usize); 4] =
    [("transaction", 21), ("weight-only", 7), ("complete-encoding", 9), ("optimizer-card", 19)];

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
    let semantic = validator::rules::catalogue().iter().map(|info| info.code).filter(|code| *code >= "GL200");
    let missing: Vec<&str> =
        semantic.filter(|code| !shown.contains(*code) && !excused.contains(*code)).collect();
    assert!(
        missing.is_empty(),
        "rules without a mutation that they alone kill: {missing:?}\n\
         hint: tests/src/mutations/named/sole"
    );
    Ok(())
}
