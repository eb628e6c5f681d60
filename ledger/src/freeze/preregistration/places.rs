//! Places in a contract that a preregistration may name.

use schemas::campaign::ContractPointer;

use super::super::problem::Problems;

/// Members of a contract. A place that begins with another one is a spelling
/// mistake, and would declare nothing.
const MEMBERS: [&str; 44] = [
    "architecture",
    "averages",
    "batch",
    "budget",
    "checkpoints",
    "code",
    "credit",
    "data",
    "dropout_draws",
    "durability",
    "environment",
    "evaluation",
    "expected",
    "extensions",
    "external_loop",
    "faults",
    "floors",
    "format",
    "initialization",
    "keys",
    "membership",
    "name",
    "nonclaims",
    "numerics",
    "objective",
    "order",
    "parameters",
    "plan",
    "purpose",
    "qualification",
    "quality_target",
    "residuals",
    "resume",
    "retention",
    "ruleset",
    "schedule",
    "seeds",
    "selection",
    "state_classes",
    "state_digest_every_steps",
    "state_tree",
    "stopping",
    "topology",
    "update",
];

/// Members on which a comparison rests: arms that differ there are not compared
/// by one measure, or are not the campaign's (`docs/FORMAT.md`, "Campaigns").
const FIXED: [&str; 8] =
    ["evaluation", "format", "keys", "membership", "qualification", "ruleset", "seeds", "selection"];

/// A place below another member on which a comparison rests: the examples that
/// runs are measured on.
const VAL: &str = "/data/val_examples";

/// Bindings of JSON documents, into which a place may reach.
const DOCUMENTS: [&str; 3] = ["/data/manifest", "/parameters", "/update/card"];

/// Where the optimizer policy card is bound.
pub(super) const CARD: &str = "/update/card";

/// Checks places that are named together: each is one, each may vary, and none
/// says again what another one says.
pub(super) fn check<'a>(
    pointers: impl IntoIterator<Item = (&'a ContractPointer, String)>,
    problems: &mut Problems,
) {
    let named: Vec<(&ContractPointer, String)> = pointers.into_iter().collect();
    for (index, (pointer, at)) in named.iter().enumerate() {
        if !check_one(pointer, at, problems) {
            continue;
        }
        let others = named
            .iter()
            .enumerate()
            .filter(|(other, (place, _))| *other < index || *other > index && place != pointer);
        if let Some((_, (other, _))) = others.into_iter().find(|(_, (other, _))| covers(other, pointer)) {
            let message = format!("{pointer} lies in {other}, which is named too");
            problems.add(at.as_str(), message, "keep the narrower one that is meant");
        }
    }
}

/// Whether the place can be named at all.
fn check_one(pointer: &ContractPointer, at: &str, problems: &mut Problems) -> bool {
    if !pointer.is_well_formed() {
        let hint = "write for example /schedule/0/shape/peak, or /update/card#/groups/0/weight_decay";
        problems.add(at, format!("{:?} is no place in a contract", pointer.0), hint);
        return false;
    }
    let (place, inner) = pointer.parts();
    let member = place.split('/').nth(1).unwrap_or_default();
    if !MEMBERS.contains(&member) {
        let message = format!("a contract has no member {member:?}");
        problems.add(at, message, "docs/CONTRACT.md has the members of a contract");
        return false;
    }
    problems.require(
        !FIXED.contains(&member),
        at,
        format!("/{member} may not differ between runs that are compared"),
        "compare by one evaluation and one selection; seeds and membership differ by themselves",
    );
    let val = ContractPointer(VAL.to_owned());
    problems.require(
        !overlap(pointer, &val),
        at,
        format!("{pointer} takes in {VAL} or is in it, which may not differ between runs that are compared"),
        "name what differs in /data, such as /data/train_examples; all runs are measured on one val table",
    );
    problems.require(
        inner.is_none() || DOCUMENTS.contains(&place),
        at,
        format!("{place} binds no JSON document"),
        format!("a `#` may follow {}", DOCUMENTS.join(", ")),
    );
    true
}

/// Whether all of `inner` lies in `outer`.
pub(super) fn covers(outer: &ContractPointer, inner: &ContractPointer) -> bool {
    let (place, document) = inner.parts();
    outer.covers(place, document)
}

/// Whether some of one lies in the other.
pub(super) fn overlap(one: &ContractPointer, other: &ContractPointer) -> bool {
    covers(one, other) || covers(other, one)
}

/// Whether a place is the policy card, holds it, or lies in it.
pub(super) fn reaches_card(pointer: &ContractPointer) -> bool {
    let (place, _) = pointer.parts();
    let card = ContractPointer(CARD.to_owned());
    pointer.covers(CARD, None) || card.covers(place, None)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_members_are_those_of_a_contract() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../schemas/json/contract.schema.json");
        let schema: serde_json::Value =
            serde_json::from_slice(&std::fs::read(golden).expect("the schema")).expect("JSON");
        let members = schema["properties"].as_object().expect("members");
        let of_schema: BTreeSet<&str> = members.keys().map(String::as_str).collect();
        let known: BTreeSet<&str> = MEMBERS.iter().copied().collect();
        assert_eq!(known, of_schema);
        assert!(FIXED.iter().all(|member| known.contains(member)));
    }

    fn check_all(places: &[&str], expected: &[(&str, &str)]) {
        let pointers: Vec<ContractPointer> =
            places.iter().map(|place| ContractPointer((*place).to_owned())).collect();
        let mut problems = Problems::new(Path::new("x"));
        check(
            pointers.iter().enumerate().map(|(index, pointer)| (pointer, format!("/{index}"))),
            &mut problems,
        );
        let found = problems.into_list();
        let places: Vec<&str> = found.iter().map(|problem| problem.pointer.as_str()).collect();
        assert_eq!(places, expected.iter().map(|(at, _)| *at).collect::<Vec<_>>(), "{found:?}");
        for (problem, (_, text)) in found.iter().zip(expected) {
            assert!(problem.message.contains(text), "{} lacks {text}", problem.message);
        }
    }

    #[test]
    fn places_that_declare_nothing_or_too_much_are_refused() {
        check_all(&["/schedule/0/shape/peak", "/update/card#/groups/0", "/batch"], &[]);
        check_all(&["schedule"], &[("/0", "no place")]);
        check_all(&["/schedules"], &[("/0", "no member \"schedules\"")]);
        check_all(&["/seeds", "/evaluation/streams/0"], &[("/0", "/seeds"), ("/1", "/evaluation")]);
        check_all(&["/data"], &[("/0", "takes in")]);
        check_all(&["/data/val_examples/digest"], &[("/0", "takes in")]);
        check_all(&["/data/train_examples"], &[]);
        check_all(&["/batch#/a"], &[("/0", "binds no JSON document")]);
        check_all(&["/schedule/0", "/schedule"], &[("/0", "lies in /schedule")]);
        check_all(&["/batch", "/batch"], &[("/1", "lies in /batch")]);
        check_all(&["/update/card", "/update/card#/groups"], &[("/1", "lies in /update/card")]);
    }

    #[test]
    fn what_reaches_the_card_is_seen() {
        for (place, expected) in [
            ("/update", true),
            ("/update/card", true),
            ("/update/card#/groups/0", true),
            ("/update/card/digest", true),
            ("/schedule", false),
        ] {
            assert_eq!(reaches_card(&ContractPointer(place.to_owned())), expected, "{place}");
        }
    }
}
