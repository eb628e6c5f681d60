//! Arms: told apart, comparable, tuned alike or said not to be.

use schemas::campaign::{Arm, ArmRole, ContractPointer, Preregistration, RescueLevel};
use schemas::digest::Algorithm;

use super::super::problem::Problems;
use super::{places, require_finite, require_name};

pub(super) fn check(document: &Preregistration, problems: &mut Problems) {
    let arms = &document.arms;
    problems.require(
        arms.len() >= 2,
        "/arms",
        format!("has {}; expected at least 2", arms.len()),
        "a comparison has a baseline and something else",
    );
    let has = |is_baseline: bool| arms.iter().any(|arm| (arm.role == ArmRole::Baseline) == is_baseline);
    problems.require(
        has(true) && has(false),
        "/arms",
        "has not both a baseline and another role",
        "say of each arm whether it is a baseline, the proposed method or a control",
    );
    let reference = arms.iter().find(|arm| arm.name == document.reference_arm);
    problems.require(
        reference.is_some(),
        "/reference_arm",
        format!("{:?} is no arm", document.reference_arm),
        "name the arm that the contracts of the others are compared with",
    );
    for (index, arm) in arms.iter().enumerate() {
        let at = format!("/arms/{index}");
        require_name(&arm.name, format!("{at}/name"), problems);
        problems.require(
            arms[..index].iter().all(|other| other.name != arm.name),
            format!("{at}/name"),
            format!("{:?} is the name of an earlier arm", arm.name),
            "name each arm once",
        );
        problems.require_text(&arm.label, format!("{at}/label"));
        problems.require_text(&arm.family, format!("{at}/family"));
        check_declared(arm, &document.reference_arm, &at, problems);
        check_card(arm, &arms[..index], &at, problems);
        check_fallback(arm, &at, problems);
        check_tuning(arm, reference, &at, problems);
        check_rescue(&arm.rescue, &format!("{at}/rescue"), problems);
        if let Some(control) = &arm.positive_control {
            require_finite(control.threshold, format!("{at}/positive_control/threshold"), problems);
            problems.require_text(&control.why, format!("{at}/positive_control/why"));
        }
    }
}

fn check_declared(arm: &Arm, reference: &str, at: &str, problems: &mut Problems) {
    let at = format!("{at}/declared");
    let is_reference = arm.name == reference;
    problems.require(
        !is_reference || arm.declared.is_empty(),
        &at,
        "the reference arm differs from itself",
        "leave it empty; the other arms say where they differ from this one",
    );
    problems.require(
        is_reference || !arm.declared.is_empty(),
        &at,
        "is empty: the arm would be the reference arm again",
        "name the places in the contract where this arm differs, and why",
    );
    let declared = arm.declared.iter().enumerate();
    for (index, difference) in declared.clone() {
        problems.require_text(&difference.why, format!("{at}/{index}/why"));
    }
    let pointers = declared.map(|(index, difference)| (&difference.pointer, format!("{at}/{index}/pointer")));
    places::check(pointers, problems);
}

/// A card is named by its file, or chosen by a tuning that reaches into it.
fn check_card(arm: &Arm, earlier: &[Arm], at: &str, problems: &mut Problems) {
    let at = format!("{at}/card");
    let is_tuned = arm.tuning.pointers.iter().any(places::reaches_card);
    let Some(card) = arm.card else {
        problems.require(
            is_tuned,
            at,
            "is null, and no tuning chooses it",
            "name the BLAKE3 digest of the arm's policy card",
        );
        return;
    };
    problems.require(
        !is_tuned,
        &at,
        "names a card that the tuning may change",
        "make it null: the tuning chooses the card",
    );
    problems.require(
        card.algorithm == Algorithm::Blake3,
        &at,
        format!("is {card}; files are named by BLAKE3"),
        "take the digest of the policy card as a frozen contract names it: `blake3:` and 64 hex digits",
    );
    let other = earlier
        .iter()
        .find(|other| other.label == arm.label && other.card.is_some_and(|other_card| other_card != card));
    if let Some(other) = other {
        problems.add(
            at,
            format!("is another card than that of {:?}, under one label {:?}", other.name, arm.label),
            "methods with different cards get different labels, or one result would be credited to both",
        );
    }
}

fn check_fallback(arm: &Arm, at: &str, problems: &mut Problems) {
    for (index, group) in arm.fallback_groups.iter().enumerate() {
        let at = format!("{at}/fallback_groups/{index}");
        problems.require_text(group, &at);
        problems.require(
            !arm.fallback_groups[..index].contains(group),
            at,
            format!("{group:?} is named before"),
            "name each group once",
        );
    }
}

fn check_tuning(arm: &Arm, reference: Option<&Arm>, at: &str, problems: &mut Problems) {
    let at = format!("{at}/tuning");
    let tuning = &arm.tuning;
    let is_tuned = tuning.num_trials > 0;
    let mut require = |holds: bool, member: &str, what: &str| {
        let (message, hint) = if is_tuned {
            (
                format!("{what} of {} trials is missing", tuning.num_trials),
                "say what is searched and what a trial costs",
            )
        } else {
            (
                format!("{what} is given for 0 trials"),
                "an arm that is not tuned has no search: 0, \"\" and []",
            )
        };
        problems.require(holds, format!("{at}/{member}"), message, hint);
    };
    require((tuning.price_tokens > 0) == is_tuned, "price_tokens", "the price");
    require(tuning.search_space.trim().is_empty() != is_tuned, "search_space", "the search space");
    require(tuning.pointers.is_empty() != is_tuned, "pointers", "the places");
    check_pointers(&tuning.pointers, &format!("{at}/pointers"), problems);
    let at = format!("{at}/unequal_because");
    if let Some(reason) = &tuning.unequal_because {
        problems.require_text(reason, &at);
    }
    let Some(reference) = reference.filter(|reference| reference.name != arm.name) else {
        problems.require(
            tuning.unequal_because.is_none() || reference.is_none(),
            at,
            "the reference arm is what the others are measured against",
            "make it null here, and say it of the arm that differs",
        );
        return;
    };
    let numbers = |arm: &Arm| (arm.tuning.num_trials, arm.tuning.price_tokens);
    let is_equal = numbers(arm) == numbers(reference);
    problems.require(
        is_equal || tuning.unequal_because.is_some(),
        &at,
        format!(
            "is null; the arm gets {} trials of {} tokens, {:?} gets {} of {}",
            tuning.num_trials,
            tuning.price_tokens,
            reference.name,
            reference.tuning.num_trials,
            reference.tuning.price_tokens
        ),
        "give both the same search, or say why not: a baseline that is tuned less proves nothing",
    );
    problems.require(
        !is_equal || tuning.unequal_because.is_none(),
        &at,
        "gives a reason, and the tuning is equal",
        "make it null",
    );
}

fn check_rescue(ladder: &[RescueLevel], at: &str, problems: &mut Problems) {
    for (level, (index, rung)) in (1..).zip(ladder.iter().enumerate()) {
        let at = format!("{at}/{index}");
        problems.require(
            rung.level == level,
            format!("{at}/level"),
            format!("is {}; expected {level}", rung.level),
            "levels count from 1, in the order in which they are tried",
        );
        problems.require_count(u64::from(rung.max_runs), format!("{at}/max_runs"));
        problems.require_text(&rung.when, format!("{at}/when"));
        problems.require(
            !rung.pointers.is_empty(),
            format!("{at}/pointers"),
            "is empty: the run would be the same again",
            "name the places that this rung may change",
        );
        check_pointers(&rung.pointers, &format!("{at}/pointers"), problems);
    }
}

fn check_pointers(pointers: &[ContractPointer], at: &str, problems: &mut Problems) {
    let named = pointers.iter().enumerate().map(|(index, pointer)| (pointer, format!("{at}/{index}")));
    places::check(named, problems);
}
