//! Tries mutations and says what became of each.
//!
//! It decides what is a failure: a survivor that nobody explained, one that was
//! explained and is seen, a mutation that none of the expected rules found, one
//! that was said to be killed or to survive and that parsing, schema or integrity
//! stops instead, and any of a suite by name that they stop.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::judge::{Judged, judge};
use super::records::Records;
use super::{Mutation, Suite};

/// What became of a mutation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Killed, by one of the expected rules at least.
    Killed,
    /// It survived, as its documentation says.
    SurvivedAsDocumented,
    /// Parsing, schema or integrity stopped it, and nothing said that they would
    /// not: it shows nothing of meaning.
    NotCounted,
    /// Parsing, schema or integrity stopped it, although killers or a reason why
    /// it survives are on record: it counted once, and what it showed is no
    /// longer shown.
    NoLongerCounted,
    /// It survived, and nothing says why.
    Survived,
    /// It was said to survive, and did not.
    KilledAgainstDocumentation,
    /// It was killed by none of the rules that were expected, or by more where
    /// they had to be alone.
    KilledByOthers,
    /// It could not be tried.
    Failed(String),
}

/// A mutation that was tried.
#[derive(Debug, Clone)]
pub struct Tried {
    /// What the audit made of it; `None` where it could not be tried.
    pub judged: Option<Judged>,
    /// The mutation's name.
    pub name: String,
    /// What became of it.
    pub outcome: Outcome,
    /// Its suite.
    pub suite: &'static str,
    /// Why it was said that nobody could know.
    pub survivor: Option<&'static str>,
}

impl Tried {
    /// Whether this is as it has to be, in a suite whose mutations all have to
    /// count or in one where they need not.
    #[must_use]
    pub fn holds(&self, has_to_count: bool) -> bool {
        match self.outcome {
            Outcome::Killed | Outcome::SurvivedAsDocumented => true,
            Outcome::NotCounted => !has_to_count,
            Outcome::NoLongerCounted
            | Outcome::Survived
            | Outcome::KilledAgainstDocumentation
            | Outcome::KilledByOthers
            | Outcome::Failed(_) => false,
        }
    }

    /// Codes that killed it.
    #[must_use]
    pub fn killers(&self) -> BTreeSet<String> {
        self.judged.as_ref().map(|judged| judged.killers.clone()).unwrap_or_default()
    }
}

/// What the audit's word on a mutation means.
#[must_use]
pub fn outcome(mutation: &Mutation, judged: &Judged) -> Outcome {
    if !judged.counts() {
        let counted = mutation.survivor.is_some() || !mutation.expected.is_empty();
        return if counted { Outcome::NoLongerCounted } else { Outcome::NotCounted };
    }
    match (judged.is_killed(), mutation.survivor) {
        (true, Some(_)) => Outcome::KilledAgainstDocumentation,
        (false, Some(_)) => Outcome::SurvivedAsDocumented,
        (false, None) => Outcome::Survived,
        (true, None) if is_as_expected(mutation, judged) => Outcome::Killed,
        (true, None) => Outcome::KilledByOthers,
    }
}

fn is_as_expected(mutation: &Mutation, judged: &Judged) -> bool {
    let is_expected = |code: &String| mutation.expected.contains(code);
    judged.killers.iter().any(is_expected) && (!mutation.is_sole || judged.killers.iter().all(is_expected))
}

/// Tries one mutation.
#[must_use]
pub fn try_one(records: &Records, mutation: &Mutation) -> Tried {
    let result = records.get(mutation.origin).and_then(|record| judge(&record, mutation));
    let (outcome, judged) = match result {
        Ok(judged) => (outcome(mutation, &judged), Some(judged)),
        Err(error) => (Outcome::Failed(format!("{error:#}")), None),
    };
    Tried { judged, name: mutation.name.clone(), outcome, suite: mutation.suite, survivor: mutation.survivor }
}

/// Tries mutations, `num_jobs` at a time, and returns what became of them in
/// their order.
#[must_use]
pub fn run(
    records: &Records,
    mutations: &[Mutation],
    num_jobs: usize,
    progress: &(dyn Fn(&Tried) + Sync),
) -> Vec<Tried> {
    let next = AtomicUsize::new(0);
    let tried = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..num_jobs.max(1) {
            scope.spawn(|| {
                while let Some((place, mutation)) = take(&next, mutations) {
                    let one = try_one(records, mutation);
                    progress(&one);
                    tried.lock().unwrap_or_else(PoisonError::into_inner).push((place, one));
                }
            });
        }
    });
    let mut tried = tried.into_inner().unwrap_or_else(PoisonError::into_inner);
    tried.sort_by_key(|(place, _)| *place);
    tried.into_iter().map(|(_, one)| one).collect()
}

fn take<'a>(next: &AtomicUsize, mutations: &'a [Mutation]) -> Option<(usize, &'a Mutation)> {
    let place = next.fetch_add(1, Ordering::Relaxed);
    Some((place, mutations.get(place)?))
}

/// The mutations of a suite.
///
/// # Errors
/// When a run that it needs cannot be made.
pub fn of_suite(records: &Records, suite: &Suite) -> anyhow::Result<Vec<Mutation>> {
    let mutations = (suite.mutations)(records)?;
    let mut names = BTreeSet::new();
    for mutation in &mutations {
        anyhow::ensure!(mutation.suite == suite.name, "{} is not of suite {}", mutation.name, suite.name);
        anyhow::ensure!(names.insert(&mutation.name), "{} / {} is there twice", suite.name, mutation.name);
    }
    Ok(mutations)
}

#[cfg(test)]
mod tests {
    use schemas::report::Verdict;

    use super::super::records::PLAIN;
    use super::*;

    /// What becomes of a mutation with these expected killers and this reason,
    /// where these rules stop it.
    #[track_caller]
    fn check(expected: &[&'static str], survivor: Option<&'static str>, stopped: &[&str], outcome: &Outcome) {
        let mut mutation = Mutation::new("library", "any", PLAIN, expected, |_| Ok(()));
        mutation.survivor = survivor;
        let is_damage = |code: &String| super::super::FORM_AND_INTEGRITY.contains(&code.as_str());
        let (damaged, killers) = stopped.iter().map(|code| (*code).to_owned()).partition(is_damage);
        let judged = Judged {
            damaged,
            findings: Vec::new(),
            killers,
            verdict: if stopped.is_empty() { Verdict::Accepted } else { Verdict::Rejected },
            warners: BTreeSet::new(),
        };
        assert_eq!(super::outcome(&mutation, &judged), *outcome, "{expected:?} {survivor:?} {stopped:?}");
    }

    #[test]
    fn what_was_said_to_count_may_not_stop_to() {
        check(&[], None, &["GL004"], &Outcome::NotCounted);
        check(&["GL401"], None, &["GL004"], &Outcome::NoLongerCounted);
        check(&["GL401"], None, &["GL004", "GL401"], &Outcome::NoLongerCounted);
        check(&[], Some("nobody knows"), &["GL004"], &Outcome::NoLongerCounted);
        check(&["GL401"], None, &["GL401", "GL402"], &Outcome::Killed);
        check(&["GL401"], None, &["GL402"], &Outcome::KilledByOthers);
        check(&[], None, &["GL402"], &Outcome::KilledByOthers);
        check(&["GL401"], None, &[], &Outcome::Survived);
        check(&[], Some("nobody knows"), &[], &Outcome::SurvivedAsDocumented);
        check(&[], Some("nobody knows"), &["GL402"], &Outcome::KilledAgainstDocumentation);
    }

    #[test]
    fn no_suite_takes_what_no_longer_counts() {
        let of = |outcome| Tried {
            judged: None,
            name: "any".to_owned(),
            outcome,
            suite: "library",
            survivor: None,
        };
        assert!(of(Outcome::NotCounted).holds(false) && !of(Outcome::NotCounted).holds(true));
        assert!(!of(Outcome::NoLongerCounted).holds(false) && !of(Outcome::NoLongerCounted).holds(true));
    }
}
