//! The kill table: what `scripts/mutations` prints.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::run::{Outcome, Tried};

/// What came of a suite.
#[derive(Debug, Clone)]
pub struct Row {
    /// Mutations by the code of each rule that killed them.
    pub killers: BTreeMap<String, usize>,
    /// Mutations that parsing, schema and integrity accepted.
    pub num_counted: usize,
    /// Survivors with a reason.
    pub num_documented: usize,
    /// Of those that count.
    pub num_killed: usize,
    /// Mutations that a rule killed alone, by the rule's code.
    pub num_killed_alone: BTreeMap<String, usize>,
    /// All.
    pub num_mutations: usize,
    /// Survivors without a reason.
    pub num_undocumented: usize,
    /// Its name.
    pub suite: &'static str,
}

impl Row {
    fn of(suite: &'static str, tried: &[Tried]) -> Self {
        let tried: Vec<&Tried> = tried.iter().filter(|one| one.suite == suite).collect();
        let with = |outcomes: &[Outcome]| tried.iter().filter(|one| outcomes.contains(&one.outcome)).count();
        let is_counted = |one: &&&Tried| one.judged.as_ref().is_some_and(super::Judged::counts);
        let is_killed = |one: &&&Tried| one.judged.as_ref().is_some_and(super::Judged::is_killed);
        let killed = || tried.iter().filter(is_counted).filter(is_killed);
        let (mut killers, mut num_killed_alone) = (BTreeMap::new(), BTreeMap::new());
        for codes in killed().map(|one| one.killers()) {
            if let (1, Some(code)) = (codes.len(), codes.first()) {
                *num_killed_alone.entry(code.clone()).or_default() += 1;
            }
            for code in codes {
                *killers.entry(code).or_default() += 1;
            }
        }
        Self {
            killers,
            num_counted: tried.iter().filter(is_counted).count(),
            num_documented: with(&[Outcome::SurvivedAsDocumented]),
            num_killed: killed().count(),
            num_killed_alone,
            num_mutations: tried.len(),
            num_undocumented: with(&[Outcome::Survived]),
            suite,
        }
    }
}

/// One row a suite, in the order of trying.
#[must_use]
pub fn rows(tried: &[Tried]) -> Vec<Row> {
    let mut suites: Vec<&'static str> = Vec::new();
    for one in tried {
        if !suites.contains(&one.suite) {
            suites.push(one.suite);
        }
    }
    suites.into_iter().map(|suite| Row::of(suite, tried)).collect()
}

/// The table as text.
#[must_use]
pub fn text(rows: &[Row]) -> String {
    let mut text = String::new();
    let heads = ["suite", "mutations", "counted", "killed", "documented", "undocumented"];
    let _ = writeln!(
        text,
        "{:<20} {:>9} {:>8} {:>7} {:>11} {:>13}",
        heads[0], heads[1], heads[2], heads[3], heads[4], heads[5]
    );
    for row in rows {
        let _ = writeln!(
            text,
            "{:<20} {:>9} {:>8} {:>7} {:>11} {:>13}",
            row.suite,
            row.num_mutations,
            row.num_counted,
            row.num_killed,
            row.num_documented,
            row.num_undocumented
        );
    }
    let _ = writeln!(text, "\nkillers (alone)");
    for row in rows {
        let killers = row.killers.iter().map(|(code, count)| {
            let alone = row.num_killed_alone.get(code).copied().unwrap_or_default();
            format!("{code} {count} ({alone})")
        });
        let _ = writeln!(text, "{:<20} {}", row.suite, killers.collect::<Vec<_>>().join(", "));
    }
    text
}

/// The table as JSON.
#[must_use]
pub fn json(rows: &[Row], failures: &[String]) -> Value {
    let suites: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "killers": row.killers,
                "num_counted": row.num_counted,
                "num_documented": row.num_documented,
                "num_killed": row.num_killed,
                "num_killed_alone": row.num_killed_alone,
                "num_mutations": row.num_mutations,
                "num_undocumented": row.num_undocumented,
                "suite": row.suite,
            })
        })
        .collect();
    json!({"failures": failures, "format": "governed-ledger/mutations/1", "suites": suites})
}

/// What is not as it has to be, a line each.
#[must_use]
pub fn failures(tried: &[Tried], has_to_count: &BTreeSet<&'static str>) -> Vec<String> {
    let wrong = tried.iter().filter(|one| !one.holds(has_to_count.contains(one.suite)));
    wrong.map(failure).collect()
}

fn failure(one: &Tried) -> String {
    let killers: Vec<String> = one.killers().into_iter().collect();
    let killers = killers.join(" ");
    let damaged: Vec<String> =
        one.judged.as_ref().map(|judged| judged.damaged.iter().cloned().collect()).unwrap_or_default();
    let what = match &one.outcome {
        Outcome::Survived => "survives, and nothing says why".to_owned(),
        Outcome::KilledAgainstDocumentation => format!("is said to survive, and is killed by {killers}"),
        Outcome::KilledByOthers => format!("is killed by {killers}, which is not what was expected"),
        Outcome::NotCounted => format!("is stopped by form or integrity: {}", damaged.join(" ")),
        Outcome::NoLongerCounted => {
            format!("is said to count, and is stopped by form or integrity: {}", damaged.join(" "))
        }
        Outcome::Failed(error) => format!("cannot be tried: {error}"),
        Outcome::Killed | Outcome::SurvivedAsDocumented => "holds".to_owned(),
    };
    format!("{} / {}: {what}", one.suite, one.name)
}
