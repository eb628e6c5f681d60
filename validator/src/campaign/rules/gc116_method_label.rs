//! GC116 `method-label`.

use std::collections::BTreeSet;

use schemas::campaign::{Arm, ContractPointer};
use schemas::report::Route;

use super::{Ruled, family};
use crate::campaign::differ::{Difference, differences};
use crate::campaign::view::{Block, Campaign, IDENTITY, Run};
use crate::rule::{At, Outcome, RuleInfo};

/// Where a contract binds its policy card.
const CARD: &str = "/update/card";
/// What a card says of itself and not of the update.
const CARD_IDENTITY: [&str; 4] = ["/name", "/version", "/nonclaims", "/tuning"];

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC116",
    name: "method-label",
    what: "Arms of one label have policy cards that differ only in what tuning or rescue chose (and in a card's name, version, nonclaims and account of its tuning); arms of different labels differ in their cards or elsewhere in what decides the run; an arm's card is the preregistered one and of the arm's family.",
    why: "Two methods under one name, or one method under two, let a result be credited to something that did not make it.",
    remedy: "give each policy its own label, in a preregistration of another campaign",
    reference: "docs/FORMAT.md, \"Campaigns\"; schemas::policy_card::PolicyCard",
    gate: Route::RejectFrozenInputs,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    let mut firsts: Vec<(&Arm, &Run)> = Vec::new();
    for arm in &campaign.prereg.arms {
        let confirmations = campaign.seeds().filter_map(|seed| campaign.confirmation(&arm.name, seed));
        let known: Vec<&Run> = confirmations.filter(|run| run.known().is_some()).collect();
        known.iter().for_each(|run| check_card(arm, run, ruled));
        firsts.extend(known.first().map(|run| (arm, *run)));
    }
    let mut num_pairs = 0;
    for (index, (arm, run)) in firsts.iter().enumerate() {
        for (other_arm, other) in &firsts[..index] {
            num_pairs += 1;
            check_pair((arm, run), (other_arm, other), ruled);
        }
    }
    Outcome::Checked(num_pairs + firsts.len() as u64)
}

fn check_card(arm: &Arm, run: &Run, ruled: &mut Ruled<'_>) {
    let Some(facts) = run.known() else { return };
    let at = || At::entry(run.first.entry, format!("contract {CARD}"));
    let bound = facts.frozen.contract.update.card.digest;
    if arm.card.is_some() && bound != arm.card {
        let told =
            |digest: Option<schemas::digest::Digest>| digest.map_or("none".to_owned(), |d| d.to_string());
        let message = format!("{} has another policy card than its arm was preregistered with", run.name());
        ruled.sink.rejected(at(), message, told(arm.card), told(bound));
        ruled.block(Block::arm(&arm.name, format!("arm {:?} ran another policy card", arm.name)));
    }
    match &facts.frozen.card {
        Ok(card) if handles_nothing_of(arm, card) => {
            let message =
                format!("no group of {} is handled by the family that its arm stands for", run.name());
            ruled.sink.rejected(at(), message, &arm.family, family(&card.update));
            ruled.block(Block::arm(
                &arm.name,
                format!("arm {:?} is not of family {:?}", arm.name, arm.family),
            ));
        }
        Ok(_) => {}
        Err(reason) => {
            let message = format!("the policy card of {} cannot be read", run.name());
            ruled.sink.not_evaluated(at(), message, "a policy card", reason);
        }
    }
}

fn handles_nothing_of(arm: &Arm, card: &schemas::policy_card::PolicyCard) -> bool {
    let by_fallback =
        |name: &String| card.fallback.as_ref().is_some_and(|fallback| fallback.groups.contains(name));
    !card.groups.iter().any(|group| match &card.fallback {
        Some(fallback) if by_fallback(&group.name) => family(&fallback.update) == arm.family,
        _ => family(&card.update) == arm.family,
    })
}

fn check_pair((arm, run): (&Arm, &Run), (other_arm, other): (&Arm, &Run), ruled: &mut Ruled<'_>) {
    let (Some(facts), Some(others)) = (run.known(), other.known()) else { return };
    let all = differences(&facts.frozen, &others.frozen);
    let named = CARD_IDENTITY.map(|inner| ContractPointer(format!("{CARD}#{inner}")));
    let is_of_card = |difference: &&Difference| difference.is_at(&[CARD]) && !difference.is_covered(&named);
    let at = || At::entry(run.first.entry, format!("contract {CARD}"));
    if arm.label == other_arm.label {
        let chosen: Vec<&ContractPointer> = [arm, other_arm].into_iter().flat_map(chosen_by_search).collect();
        let material: BTreeSet<String> = all
            .iter()
            .filter(is_of_card)
            .filter(|difference| !difference.is_covered(chosen.iter().copied()))
            .map(ToString::to_string)
            .collect();
        if !material.is_empty() {
            let message = format!(
                "arms {:?} and {:?} have the label {:?}, and materially different policies",
                other_arm.name, arm.name, arm.label
            );
            let places = material.into_iter().collect::<Vec<_>>().join(", ");
            ruled.sink.rejected(
                at(),
                &message,
                "cards that differ only in what tuning or rescue chose",
                places,
            );
            for name in [&arm.name, &other_arm.name] {
                ruled.block(Block::arm(name, message.clone()));
            }
        }
        return;
    }
    let differs = |difference: &&Difference| {
        !difference.is_at(&IDENTITY) && !difference.is_at(&["/seeds"]) && !difference.is_covered(&named)
    };
    if !all.iter().any(|difference| differs(&difference)) {
        let message =
            format!("arms {:?} and {:?} have different labels, and one policy", other_arm.name, arm.name);
        ruled.sink.rejected(
            at(),
            &message,
            "policies that differ where the labels do",
            "contracts that say the same",
        );
        for name in [&arm.name, &other_arm.name] {
            ruled.block(Block::arm(name, message.clone()));
        }
    }
}

fn chosen_by_search(arm: &Arm) -> impl Iterator<Item = &ContractPointer> {
    arm.tuning.pointers.iter().chain(arm.rescue.iter().flat_map(|level| &level.pointers))
}
