//! The optimizer policy card, as far as this edition can execute it.

use std::collections::BTreeSet;

use schemas::POLICY_CARD_FORMAT;
use schemas::contract::{Contract, EvidenceProfile};
use schemas::policy_card::{Clipping, PolicyCard, UpdateRule};

use super::document;
use super::files::Folder;
use super::problem::Problems;
use super::{Inputs, named_document, require_tag};

/// A bound on the gradient norm above which clipping never acts on any run
/// that has not already diverged.
const VACUOUS_CLIP_NORM: f64 = 1e6;

/// What a card calls the update of this project's trainer, which executes every
/// native run.
const NATIVE_IMPLEMENTATION: &str = "trainer::optimizer::adamw";

/// Reads the card; `None` where it has no shape to go on with.
pub(super) fn check(
    contract: &mut Contract,
    folder: &Folder,
    inputs: &mut Inputs,
    problems: &mut Problems,
) -> Option<PolicyCard> {
    let (value, mut collector) =
        named_document(&mut contract.update.card, "/update/card", folder, inputs, problems)?;
    let card = document::typed::<PolicyCard>(value, "policy-card", &mut collector);
    if let Some(card) = &card {
        require_tag(&card.format, POLICY_CARD_FORMAT, &mut collector);
        check_words(card, &mut collector);
        check_implementation(&card.implementation.name, contract.ruleset.profile, &mut collector);
        check_groups(card, &mut collector);
        check_update(card, &mut collector);
        check_clipping(card, &mut collector);
        check_edition(card, contract.topology.workers, &mut collector);
    }
    problems.extend(collector);
    card
}

fn check_words(card: &PolicyCard, problems: &mut Problems) {
    problems.require_text(&card.name, "/name");
    problems.require_text(&card.version, "/version");
    problems.require_text(&card.implementation.reference, "/implementation/reference");
    problems.require(
        !card.nonclaims.is_empty(),
        "/nonclaims",
        "is empty; expected at least one",
        "say what a result under this card does not show",
    );
    for (index, nonclaim) in card.nonclaims.iter().enumerate() {
        problems.require_text(nonclaim, format!("/nonclaims/{index}"));
    }
}

fn check_implementation(name: &str, profile: EvidenceProfile, problems: &mut Problems) {
    let pointer = "/implementation/name";
    match profile {
        EvidenceProfile::Native => problems.require(
            name == NATIVE_IMPLEMENTATION,
            pointer,
            format!("is {name:?}; expected {NATIVE_IMPLEMENTATION:?}"),
            "the trainer executes native runs; another loop is of the profile external-loop",
        ),
        EvidenceProfile::ExternalLoop => problems.require_text(name, pointer),
    }
}

fn check_groups(card: &PolicyCard, problems: &mut Problems) {
    problems.require(!card.groups.is_empty(), "/groups", "is empty", "declare at least one parameter group");
    let mut names = BTreeSet::new();
    for (index, group) in card.groups.iter().enumerate() {
        let at = |field: &str| format!("/groups/{index}/{field}");
        problems.require_text(&group.name, at("name"));
        problems.require(
            names.insert(group.name.as_str()),
            at("name"),
            format!("{:?} is the name of an earlier group", group.name),
            "give each group a name of its own",
        );
        problems.require_positive(group.learning_rate_multiplier, at("learning_rate_multiplier"));
        problems.require_between(group.weight_decay, 0.0..10.0, at("weight_decay"));
    }
}

fn check_update(card: &PolicyCard, problems: &mut Problems) {
    let UpdateRule::Adamw { beta1, beta2, epsilon, moment_dtype } = &card.update;
    problems.require_between(*beta1, 0.0..1.0, "/update/beta1");
    problems.require_between(*beta2, 0.0..1.0, "/update/beta2");
    problems.require_positive(*epsilon, "/update/epsilon");
    problems.require(
        moment_dtype == "F32",
        "/update/moment_dtype",
        format!("is {moment_dtype:?}; expected \"F32\""),
        "moments are kept in binary32 in this edition",
    );
    let suffixes: Vec<&str> = card.checkpoint_state.iter().map(|tensor| tensor.suffix.as_str()).collect();
    problems.require(
        suffixes == ["exp_avg", "exp_avg_sq"],
        "/checkpoint_state",
        format!("is {suffixes:?}; expected [\"exp_avg\", \"exp_avg_sq\"]"),
        "AdamW keeps two moments a parameter; its step count is the run's",
    );
    for (index, tensor) in card.checkpoint_state.iter().enumerate() {
        problems.require(
            tensor.dtype == *moment_dtype,
            format!("/checkpoint_state/{index}/dtype"),
            format!("is {:?}; expected {moment_dtype:?}, the dtype of the moments", tensor.dtype),
            "state is saved as it is kept",
        );
    }
}

fn check_clipping(card: &PolicyCard, problems: &mut Problems) {
    let Clipping::GlobalNorm { epsilon, max_norm } = card.clipping else { return };
    problems.require_between(epsilon, 0.0..1.0, "/clipping/epsilon");
    problems.require_positive(max_norm, "/clipping/max_norm");
    problems.require(
        max_norm < VACUOUS_CLIP_NORM,
        "/clipping/max_norm",
        format!("is {max_norm}, which no gradient exceeds"),
        "choose a bound that can act, or say {\"kind\": \"none\"}",
    );
}

/// What a later edition may bring, and this one would silently not do.
fn check_edition(card: &PolicyCard, num_workers: u32, problems: &mut Problems) {
    let hint = "the trainer of this edition does not do that; set it to null";
    problems.require(card.approximation.is_none(), "/approximation", "is not null; expected null", hint);
    problems.require(card.fallback.is_none(), "/fallback", "is not null; expected null", hint);
    problems.require(
        card.preconditioner_every_steps.is_none(),
        "/preconditioner_every_steps",
        "is not null; expected null",
        hint,
    );
    problems.require(
        card.stopping_rule.is_none(),
        "/stopping_rule",
        "is not null; expected null",
        "the contract's own stopping rule ends a run in this edition",
    );
    problems.require(
        card.rescue_ladder.is_empty(),
        "/rescue_ladder",
        "is not empty; expected []",
        "nothing is tried when a run goes wrong in this edition: it ends and says so",
    );
    problems.require(
        card.distribution.placement == "replicated",
        "/distribution/placement",
        format!("is {:?}; expected \"replicated\"", card.distribution.placement),
        "every worker holds the whole optimizer state in this edition",
    );
    let (communication, hint) = match num_workers {
        0 | 1 => ("none", "one process exchanges nothing"),
        _ => ("all_reduce", "workers add their gradients up, and each updates its own replica"),
    };
    problems.require(
        card.distribution.communication == communication,
        "/distribution/communication",
        format!(
            "is {:?}; expected {communication:?} for {num_workers} worker{}",
            card.distribution.communication,
            if num_workers == 1 { "" } else { "s" }
        ),
        hint,
    );
}
