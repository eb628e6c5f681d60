//! The kill table: what `scripts/mutations` prints. A count of survivors is no
//! answer to what the audit cannot see, so each is named with its reason.

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
    /// Names of survivors by the reason why nobody could know, in the order of
    /// trying; [`Self::num_documented`] in all.
    pub survivors: BTreeMap<&'static str, Vec<String>>,
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
        let mut survivors: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for one in tried.iter().filter(|one| one.outcome == Outcome::SurvivedAsDocumented) {
            survivors.entry(one.survivor.unwrap_or_default()).or_default().push(one.name.clone());
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
            survivors,
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

/// The table as text, and below it the survivors with their reasons.
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
    let _ = writeln!(text, "\ndocumented survivors, by the reason why nobody could know");
    for row in rows {
        for (reason, names) in &row.survivors {
            let _ = writeln!(text, "{}: {reason}", row.suite);
            for name in names {
                let _ = writeln!(text, "    {name}");
            }
        }
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
                "survivors": row.survivors,
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

#[cfg(test)]
mod tests {
    use schemas::report::Verdict;

    use super::*;
    use crate::mutations::Judged;

    fn one(name: &str, outcome: Outcome, survivor: Option<&'static str>) -> Tried {
        let judged = Judged {
            damaged: BTreeSet::new(),
            findings: Vec::new(),
            killers: BTreeSet::new(),
            verdict: Verdict::Accepted,
            warners: BTreeSet::new(),
        };
        Tried { judged: Some(judged), name: name.to_owned(), outcome, suite: "library", survivor }
    }

    /// The script ends with 1 where there is a line.
    #[test]
    fn a_survivor_without_a_reason_is_a_failure() {
        let holds = [
            one("a longer step", Outcome::SurvivedAsDocumented, Some("the day")),
            one("another rate", Outcome::Killed, None),
            one("another type", Outcome::NotCounted, None),
        ];
        let (any, by_name) = (BTreeSet::new(), BTreeSet::from(["library"]));
        assert_eq!(failures(&holds, &any), Vec::<String>::new());
        let lines = failures(&holds, &by_name);
        assert!(lines.len() == 1 && lines[0].starts_with("library / another type: "), "{lines:?}");
        for (outcome, words) in [
            (Outcome::Survived, "survives, and nothing says why"),
            (Outcome::KilledAgainstDocumentation, "is said to survive"),
            (Outcome::KilledByOthers, "not what was expected"),
            (Outcome::NoLongerCounted, "is said to count"),
            (Outcome::Failed("no such entry".to_owned()), "cannot be tried: no such entry"),
        ] {
            let mut tried = holds.to_vec();
            tried.push(one("another host", outcome, None));
            let lines = failures(&tried, &any);
            assert!(lines.len() == 1 && lines[0].starts_with("library / another host: "), "{lines:?}");
            assert!(lines[0].contains(words), "{lines:?}");
        }
    }

    #[test]
    fn every_documented_survivor_is_printed_with_its_reason_and_no_other() {
        let rows = rows(&[
            one("a longer step", Outcome::SurvivedAsDocumented, Some("the day")),
            one("another loss", Outcome::SurvivedAsDocumented, Some("only executing it tells")),
            one("a longer save", Outcome::SurvivedAsDocumented, Some("the day")),
            one("another host", Outcome::Survived, None),
        ]);
        let text = text(&rows);
        let (_, survivors) = text.split_once("\ndocumented survivors").expect("they are listed");
        let lines: Vec<&str> = survivors.lines().skip(1).collect();
        let expected = [
            "library: only executing it tells",
            "    another loss",
            "library: the day",
            "    a longer step",
            "    a longer save",
        ];
        assert_eq!(lines, expected);
        let json = json(&rows, &[]);
        assert_eq!(json["suites"][0]["survivors"]["the day"], json!(["a longer step", "a longer save"]));
        assert_eq!(json["suites"][0]["num_documented"], 3);
    }
}
