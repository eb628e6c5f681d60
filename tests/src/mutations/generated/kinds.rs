//! Kinds of entries that the suite has to try, and why it leaves others out.
//!
//! The suite makes its mutations from the entries that its runs have. A kind that
//! none of them has would be left out without a word; so every kind of the schema
//! is tried or excused here by name.

use std::collections::BTreeSet;

use schemas::body::Kind;

use super::NAME;

/// Of the qualifier.
const QUALIFIER: &str = "it is of the qualifier's own ledger, which the audit of a run does not read; in a run's ledger it \
                         is refused by its kind alone (GL705)";

/// Of a campaign.
const CAMPAIGN: &str = "it is of a campaign's ledger, which rules of its own judge and campaigns of their own try \
                        (`validator/src/campaign/tests`); in a run's ledger it is refused by its kind alone (GL709)";

/// Kinds that the suite does not try, and why.
pub const EXCUSED: &[(Kind, &str)] = &[
    (
        Kind::ContractFrozen,
        "only the owner can write it, and this suite's attacker has the trainer's key; the suites by name change contract \
         and frozen files with the owner's key too, and `ledger rules --coverage` has every field of the contract",
    ),
    (
        Kind::WitnessHead,
        "no program writes one into a run's ledger, since cosignatures lie beside it; such entries are read by GL014 to GL016, \
         whose own tests have them (`validator/src/cosigned.rs`)",
    ),
    (Kind::QualificationOpened, QUALIFIER),
    (Kind::QualificationResult, QUALIFIER),
    (Kind::QualificationVal, QUALIFIER),
    (Kind::CampaignFrozen, CAMPAIGN),
    (Kind::CampaignRun, CAMPAIGN),
];

/// What is wrong with the kinds that mutations of these names change, a line
/// each: a kind that is neither tried nor excused, and one that is both.
#[must_use]
pub fn wrong<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    // The name of a mutation is that of its run, then the kind.
    let tried: BTreeSet<&str> = names.into_iter().filter_map(|name| name.split(' ').nth(1)).collect();
    let is_excused = |kind: Kind| EXCUSED.iter().any(|(excused, _)| *excused == kind);
    let wrong = Kind::ALL.iter().filter_map(|kind| {
        let name = kind.name();
        match (tried.contains(name), is_excused(*kind)) {
            (false, false) => Some(format!("{NAME}: no {name} counts, and nothing says why")),
            (true, true) => Some(format!("{NAME}: {name} is excused, and tried all the same")),
            (true, false) | (false, true) => None,
        }
    });
    wrong.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(left_out: &str, more: &str) -> Vec<String> {
        let is_tried = |kind: &&Kind| EXCUSED.iter().all(|(excused, _)| excused != *kind);
        let tried = Kind::ALL.iter().filter(is_tried).map(|kind| kind.name());
        let tried = tried.filter(|name| *name != left_out).chain((!more.is_empty()).then_some(more));
        tried.map(|name| format!("plain {name} first entry delete")).collect()
    }

    #[track_caller]
    fn check(left_out: &str, more: &str, expected: &[&str]) {
        let names = names(left_out, more);
        let wrong = wrong(names.iter().map(String::as_str));
        assert_eq!(wrong.len(), expected.len(), "{wrong:?}");
        assert!(wrong.iter().zip(expected).all(|(line, expected)| line.contains(expected)), "{wrong:?}");
    }

    #[test]
    fn a_kind_is_tried_or_excused_and_not_both() {
        check("", "", &[]);
        check("checkpoint.retired", "", &["no checkpoint.retired counts"]);
        check("step", "contract.frozen", &["contract.frozen is excused", "no step counts"]);
        assert!(EXCUSED.iter().all(|(_, reason)| reason.len() > 40), "an excuse says why");
    }
}
