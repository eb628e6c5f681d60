//! What the rules cover: for each invariant and failure mode of the protocol
//! the rules that guard it, for each rule the fixtures that it passes and those
//! that it catches, for each field of the contract the rules that react when it
//! alone is changed.
//!
//! The first table is written by hand ([`concerns`]). The others are files that
//! tests make from what the rules did (`rules/false_runs`) and compare with what
//! is committed, so that nothing in them is a claim. This module reads them and
//! runs no rule itself.

pub mod concerns;
mod reasons;

use serde::Serialize;

pub use concerns::{Concern, ConcernKind};

use crate::rules::catalogue;

/// Honest runs, each with the rules that have nothing to check in it.
const HONEST_RUNS: &str = include_str!("honest_runs.txt");
/// False runs by the rule that catches them.
const FALSE_RUNS: &str = include_str!("false_runs.txt");
/// Ledgers on disk that pass or fail the rules which need raw bytes.
const LEDGERS: &str = include_str!("ledgers.txt");
/// Fields of the contract.
const FIELDS: &str = include_str!("fields.txt");

/// First code of the rules that are tried on runs in memory.
pub(crate) const FIRST_OF_RUNS: &str = "GL200";

/// Everything that is covered, and by what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Invariants, then failure modes, in the protocol's order.
    pub concerns: &'static [Concern],
    /// Every leaf of the contract's JSON Schema, in the order of pointers.
    pub fields: Vec<Field>,
    /// Every rule, in the order of codes.
    pub rules: Vec<Fixtures>,
}

/// A field of the contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Field {
    /// The run in whose contract the field was changed, with everything signed
    /// again by owner and trainer.
    pub fixture: String,
    /// JSON pointer, with `*` for any place in a list.
    pub pointer: String,
    /// Why no rule can react, or what the reaction is worth; null where it
    /// speaks for itself.
    pub reason: Option<&'static str>,
    /// Codes of the rules whose result was another.
    pub rules: Vec<String>,
}

/// What a rule was tried on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fixtures {
    /// The rule.
    pub code: &'static str,
    /// False runs that it catches.
    pub failing: Vec<String>,
    /// Its name.
    pub name: &'static str,
    /// Honest runs that it looked at and passed.
    pub passing: Vec<String>,
}

impl Coverage {
    /// Reads the tables.
    #[must_use]
    pub fn read() -> Self {
        let rules = catalogue().iter().map(|info| fixtures(info.code, info.name)).collect();
        Self { concerns: concerns::CONCERNS, fields: fields(), rules }
    }

    /// What is missing: a concern without a rule, a rule without a fixture of
    /// each kind, a field that no rule reads and no reason excuses.
    #[must_use]
    pub fn gaps(&self) -> Vec<String> {
        let concerns = self.concerns.iter().filter(|concern| concern.rules.is_empty());
        let concerns = concerns.map(|concern| format!("{} has no rule of a run", concern.label()));
        let rules = self.rules.iter().filter(|rule| rule.passing.is_empty() || rule.failing.is_empty());
        let rules = rules.map(|rule| format!("{} lacks a passing or a failing fixture", rule.code));
        let fields = self.fields.iter().filter(|field| field.rules.is_empty() && field.reason.is_none());
        let fields = fields.map(|field| format!("nothing reads {}, and nothing says why", field.pointer));
        concerns.chain(rules).chain(fields).collect()
    }
}

/// Columns of a table's lines.
fn lines(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    table.lines().map(|line| line.split('\t').collect())
}

fn fixtures(code: &'static str, name: &'static str) -> Fixtures {
    let (mut passing, mut failing) = (Vec::new(), Vec::new());
    for columns in lines(LEDGERS) {
        match columns[..] {
            [of, "passes", fixture] if of == code => passing.push(fixture.to_owned()),
            [of, "fails", fixture] if of == code => failing.push(fixture.to_owned()),
            _ => {}
        }
    }
    if code >= FIRST_OF_RUNS {
        for columns in lines(HONEST_RUNS) {
            if let [run, others] = columns[..]
                && !others.split(' ').any(|other| other == code)
            {
                passing.push(run.to_owned());
            }
        }
    }
    for columns in lines(FALSE_RUNS) {
        if let [of, run] = columns[..]
            && of == code
        {
            failing.push(run.to_owned());
        }
    }
    Fixtures { code, failing, name, passing }
}

fn fields() -> Vec<Field> {
    let field = |columns: Vec<&'static str>| match columns[..] {
        [pointer, codes, fixture] => Some(Field {
            fixture: fixture.to_owned(),
            pointer: pointer.to_owned(),
            reason: reasons::of(pointer),
            rules: codes.split(' ').filter(|code| !code.is_empty()).map(str::to_owned).collect(),
        }),
        _ => None,
    };
    lines(FIELDS).filter_map(field).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn nothing_is_uncovered() {
        let coverage = Coverage::read();
        assert_eq!(coverage.gaps(), Vec::<String>::new());
        assert_eq!(coverage.rules.len(), catalogue().len());
    }

    #[test]
    fn every_code_that_is_named_is_a_rule_and_every_rule_guards_something() {
        let codes: BTreeSet<&str> = catalogue().iter().map(|info| info.code).collect();
        let mut named = BTreeSet::new();
        for concern in concerns::CONCERNS {
            assert!(concern.text.len() > 20, "{}", concern.label());
            for code in concern.rules {
                assert!(codes.contains(code), "{} names {code}", concern.label());
                named.insert(*code);
            }
            for code in concern.campaign {
                assert!(code.starts_with("GC") && code.len() == 5, "{} names {code}", concern.label());
            }
        }
        let idle: Vec<_> = codes.difference(&named).collect();
        assert!(idle.is_empty(), "rules that guard no invariant and no failure mode: {idle:?}");
        let numbers = |kind| -> Vec<u32> {
            let of_kind = concerns::CONCERNS.iter().filter(|concern| concern.kind == kind);
            of_kind.map(|concern| concern.number).collect()
        };
        assert_eq!(numbers(ConcernKind::Invariant), (1..=12).collect::<Vec<u32>>());
        assert_eq!(numbers(ConcernKind::FailureMode), (1..=20).collect::<Vec<u32>>());
    }

    /// A file that was edited by hand could hold lines that nothing reads.
    #[test]
    fn the_tables_have_their_columns() {
        for (table, num_columns) in [(HONEST_RUNS, 2), (FALSE_RUNS, 2), (LEDGERS, 3), (FIELDS, 3)] {
            assert!(table.lines().count() > 20);
            for columns in lines(table) {
                assert_eq!(columns.len(), num_columns, "{columns:?}");
            }
        }
    }

    #[test]
    fn reasons_are_given_where_they_are_needed_and_nowhere_else() {
        let fields = fields();
        for pointer in reasons::pointers() {
            assert!(fields.iter().any(|field| field.pointer == pointer), "no field is at {pointer}");
        }
        let unreadable = fields.iter().filter(|field| field.rules == ["GL101"]);
        for field in unreadable {
            assert!(field.reason.is_some(), "{}: only a value that is none was tried", field.pointer);
        }
    }
}
