//! What the rules cover: for each invariant and failure mode of the protocol
//! the rules that guard it, for each rule the fixtures that it passes and those
//! that it catches, for each field of the contract the rules that react when it
//! alone is changed.
//!
//! Which rules guard what is written by hand ([`concerns`]), with a false record
//! each that one of them has to catch. The other tables are files that tests make
//! from what the rules did (`rules/false_runs`, `campaign/tests`) and compare with
//! what is committed, so that nothing in them is a claim. This module reads them
//! and runs no rule itself.

pub mod concerns;
mod reasons;
#[cfg(test)]
mod written;

use serde::Serialize;

pub use concerns::{Concern, ConcernKind};
#[cfg(test)]
pub(crate) use written::check_table;

use crate::campaign;
use crate::rules::catalogue;

/// Honest runs, each with the rules that have nothing to check in it.
const HONEST_RUNS: &str = include_str!("honest_runs.txt");
/// False runs by the rule that catches them.
const FALSE_RUNS: &str = include_str!("false_runs.txt");
/// Ledgers on disk that pass or fail the rules which need raw bytes.
const LEDGERS: &str = include_str!("ledgers.txt");
/// Campaigns that pass or fail the rules over them and their runs.
const CAMPAIGNS: &str = include_str!("campaigns.txt");
/// Ledgers of campaigns on disk that pass or fail the rules over them alone.
const CAMPAIGN_LEDGERS: &str = include_str!("campaign_ledgers.txt");
/// Fields of the contract.
const FIELDS: &str = include_str!("fields.txt");

/// First code of the rules that are tried on runs in memory.
pub(crate) const FIRST_OF_RUNS: &str = "GL200";

/// Everything that is covered, and by what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Every rule over a campaign, in the order of codes.
    pub campaign_rules: Vec<Fixtures>,
    /// Invariants, then failure modes, in the protocol's order.
    pub concerns: &'static [Concern],
    /// Every leaf of the contract's JSON Schema, in the order of pointers.
    pub fields: Vec<Field>,
    /// Every rule over a run, in the order of codes.
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
    /// False runs or campaigns that it catches.
    pub failing: Vec<String>,
    /// Its name.
    pub name: &'static str,
    /// Honest runs or campaigns that it looked at and passed.
    pub passing: Vec<String>,
}

impl Coverage {
    /// Reads the tables.
    #[must_use]
    pub fn read() -> Self {
        let rules = catalogue().iter().map(|info| fixtures(info.code, info.name)).collect();
        let of_campaigns = campaign::catalogue().iter();
        let campaign_rules = of_campaigns.map(|info| fixtures(info.code, info.name)).collect();
        Self { campaign_rules, concerns: concerns::CONCERNS, fields: fields(), rules }
    }

    /// Codes of the rules that guard a concern and catch its example.
    #[must_use]
    pub fn catchers(&self, concern: &Concern) -> Vec<&'static str> {
        let catches = |code: &&'static str| {
            let found = self.every_rule().find(|rule| rule.code == *code);
            found.is_some_and(|rule| rule.failing.iter().any(|name| name == concern.example))
        };
        concern.codes().filter(catches).collect()
    }

    /// What is missing: a concern without a rule, or whose example its rules do
    /// not catch; a rule without a fixture of each kind; a field that no rule
    /// reads and no reason excuses.
    #[must_use]
    pub fn gaps(&self) -> Vec<String> {
        let concerns = self.concerns.iter().filter_map(|concern| self.gap(concern));
        let rules = self.every_rule().filter(|rule| rule.passing.is_empty() || rule.failing.is_empty());
        let rules = rules.map(|rule| format!("{} lacks a passing or a failing fixture", rule.code));
        let fields = self.fields.iter().filter(|field| field.rules.is_empty() && field.reason.is_none());
        let fields = fields.map(|field| format!("nothing reads {}, and nothing says why", field.pointer));
        concerns.chain(rules).chain(fields).collect()
    }

    fn every_rule(&self) -> impl Iterator<Item = &Fixtures> {
        self.rules.iter().chain(&self.campaign_rules)
    }

    fn gap(&self, concern: &Concern) -> Option<String> {
        let (label, example) = (concern.label(), concern.example);
        if concern.rules.is_empty() {
            return Some(format!("{label} has no rule of a run"));
        }
        if concern.is_across_runs() && concern.campaign.is_empty() {
            return Some(format!("{label} shows only across runs, and has no rule of a campaign"));
        }
        let unknown = concern.codes().find(|code| self.every_rule().all(|rule| rule.code != *code));
        if let Some(code) = unknown {
            return Some(format!("{label} names {code}, which is no rule"));
        }
        let catchers = self.catchers(concern);
        if catchers.is_empty() {
            return Some(format!("{label}: none of its rules catches {example:?}"));
        }
        let is_of_campaign = |code: &&str| concern.campaign.contains(code);
        (concern.is_across_runs() && !catchers.iter().any(is_of_campaign))
            .then(|| format!("{label} shows only across runs, and no rule of a campaign catches {example:?}"))
    }
}

/// Columns of a table's lines.
fn lines(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    table.lines().map(|line| line.split('\t').collect())
}

fn fixtures(code: &'static str, name: &'static str) -> Fixtures {
    let (mut passing, mut failing) = (Vec::new(), Vec::new());
    for columns in [LEDGERS, CAMPAIGNS, CAMPAIGN_LEDGERS].into_iter().flat_map(lines) {
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
        assert_eq!(coverage.campaign_rules.len(), campaign::catalogue().len());
    }

    /// One concern, changed, and the gap that this makes.
    #[track_caller]
    fn check_gap(label: &str, change: impl FnOnce(&mut Concern), expected: &str) {
        let coverage = Coverage::read();
        let found = concerns::CONCERNS.iter().find(|concern| concern.label() == label);
        let mut concern = *found.expect("a concern");
        assert_eq!(coverage.gap(&concern), None);
        change(&mut concern);
        let gap = coverage.gap(&concern).expect("a gap");
        assert!(gap.starts_with(label) && gap.contains(expected), "{gap}");
    }

    #[test]
    fn a_concern_that_nothing_guards_is_a_gap() {
        check_gap("invariant 5", |concern| concern.rules = &[], "has no rule of a run");
        check_gap("failure mode 15", |concern| concern.campaign = &[], "has no rule of a campaign");
        // Caught in one run, which shows nothing of a label on two.
        check_gap(
            "failure mode 15",
            |concern| concern.example = "another decay",
            "no rule of a campaign catches",
        );
        check_gap("failure mode 17", |concern| concern.campaign = &[], "has no rule of a campaign");
        check_gap("failure mode 18", |concern| concern.campaign = &["GC999"], "GC999, which is no rule");
        // Rules that are there, and look at something else.
        check_gap("failure mode 19", |concern| concern.campaign = &["GC101"], "none of its rules catches");
        check_gap("failure mode 4", |concern| concern.rules = &["GL001"], "none of its rules catches");
        check_gap(
            "failure mode 20",
            |concern| {
                concern.rules = &["GL702"];
                concern.example = "no non-authority";
            },
            "no rule of a campaign catches",
        );
    }

    /// A role's key is read by whoever verifies what the role signed, and not only
    /// by the rule that asks whether it is a key.
    #[test]
    fn keys_are_read_by_the_rules_over_what_they_sign() {
        let fields = fields();
        for (pointer, code) in [("/keys/qualifier/public", "GL109"), ("/keys/validator/public", "GL111")] {
            let field = fields.iter().find(|field| field.pointer == pointer).expect("a field");
            assert!(field.rules.iter().any(|of| of == code), "{pointer}: {:?}", field.rules);
        }
    }

    #[test]
    fn every_code_that_is_named_is_a_rule_and_every_rule_guards_something() {
        let of_runs: BTreeSet<&str> = catalogue().iter().map(|info| info.code).collect();
        let of_campaigns: BTreeSet<&str> = campaign::catalogue().iter().map(|info| info.code).collect();
        let (mut named, mut examples) = (BTreeSet::new(), BTreeSet::new());
        for concern in concerns::CONCERNS {
            assert!(concern.text.len() > 20, "{}", concern.label());
            for (codes, known) in [(concern.rules, &of_runs), (concern.campaign, &of_campaigns)] {
                for code in codes {
                    assert!(known.contains(code), "{} names {code}", concern.label());
                    named.insert(*code);
                }
            }
            assert!(examples.insert(concern.example), "{} is an example twice", concern.example);
        }
        let idle: Vec<_> = of_runs.union(&of_campaigns).filter(|code| !named.contains(**code)).collect();
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
        for (table, num_columns) in [
            (HONEST_RUNS, 2),
            (FALSE_RUNS, 2),
            (LEDGERS, 3),
            (CAMPAIGNS, 3),
            (CAMPAIGN_LEDGERS, 3),
            (FIELDS, 3),
        ] {
            assert!(table.lines().count() > 10);
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
