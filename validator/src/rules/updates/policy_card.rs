//! The policy card, the schedule and the parameters fit together.

use schemas::contract::{Architecture, Contract, Dtype};
use schemas::parameters::{ParameterDeclaration, ParameterManifest, ParameterStatus};
use schemas::policy_card::{PolicyCard, UpdateRule};
use schemas::report::Route;

use crate::derive::llama;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{at_end, declare_rule};

declare_rule!(
    /// `GL406`.
    PolicyCardRule,
    {
        code: "GL406",
        name: "policy-card",
        what: "The policy card is complete: distinct groups that each have one schedule and at least one parameter, frozen or not, \
               constants in their ranges, the moments of its update rule in the checkpoint state with their dtype, and nonclaims.",
        why: "Two runs that both say AdamW can differ in every constant; only a complete card lets a reader repeat the update.",
        remedy: "Complete the card and the contract's `schedule`, and freeze again.",
        reference: "schemas::policy_card::PolicyCard",
        gate: Route::RejectFrozenInputs,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let (card, manifest) = match (&frozen.card, &frozen.parameters) {
        (Ok(card), Ok(manifest)) => (card, manifest),
        (Err(reason), _) => return unavailable(format!("the policy card: {reason}")),
        (_, Err(reason)) => return unavailable(format!("the parameter manifest: {reason}")),
    };
    at_end(move |_, sink| {
        groups(&frozen.contract, card, manifest, sink);
        update_rule(&frozen.contract, card, sink);
        if card.nonclaims.iter().all(|claim| claim.trim().is_empty()) {
            sink.rejected(
                at(&frozen.contract, "nonclaims"),
                "the card claims without limits",
                "at least one nonclaim",
                "none",
            );
        }
        Outcome::Checked(card.groups.len() as u64 + manifest.parameters.len() as u64)
    })
}

fn at(contract: &Contract, field: &str) -> At {
    At::place(format!("{} /{field}", contract.update.card.path))
}

/// Whether a group would move a parameter if it were not frozen.
fn takes_frozen(contract: &Contract, card: &PolicyCard, manifest: &ParameterManifest, group: &str) -> bool {
    let Architecture::LlamaDecoder(shape) = &contract.architecture;
    let is_frozen = |path: &str| {
        let mut frozen = manifest.parameters.iter().filter(|p| p.status == ParameterStatus::Frozen);
        frozen.any(|parameter| parameter.path == path)
    };
    let parameters = llama::parameters(shape, card).unwrap_or_default();
    parameters.iter().any(|p| p.group.as_deref() == Some(group) && is_frozen(&p.path))
}

fn groups(contract: &Contract, card: &PolicyCard, manifest: &ParameterManifest, sink: &mut Sink) {
    for (index, group) in card.groups.iter().enumerate() {
        let place = || at(contract, &format!("groups/{index}"));
        if card.groups[..index].iter().any(|earlier| earlier.name == group.name) {
            sink.rejected(place(), "a group is named twice", "distinct names", &group.name);
        }
        let num_schedules = contract.schedule.iter().filter(|schedule| schedule.group == group.name).count();
        if num_schedules != 1 {
            sink.rejected(place(), format!("group {} has not one schedule", group.name), 1, num_schedules);
        }
        let is_taken = |parameter: &ParameterDeclaration| parameter.group.as_ref() == Some(&group.name);
        if !manifest.parameters.iter().any(is_taken) && !takes_frozen(contract, card, manifest, &group.name) {
            sink.rejected(place(), format!("group {} has no parameter", group.name), "at least one", 0);
        }
        let constants = [group.learning_rate_multiplier, group.weight_decay];
        if constants.iter().any(|constant| !(constant.is_finite() && *constant >= 0.0)) {
            sink.rejected(
                place(),
                "a constant is out of range",
                "finite, not negative",
                format!("{constants:?}"),
            );
        }
    }
    for schedule in &contract.schedule {
        if !card.groups.iter().any(|group| group.name == schedule.group) {
            sink.rejected(
                At::place("contract /schedule"),
                "a schedule has no group",
                "a group of the card",
                &schedule.group,
            );
        }
    }
    // A tied parameter is updated with the one that it is.
    for parameter in manifest.parameters.iter().filter(|parameter| parameter.tied_to.is_none()) {
        let known =
            parameter.group.as_ref().is_some_and(|name| card.groups.iter().any(|group| group.name == *name));
        if (parameter.status == ParameterStatus::Trainable) != known {
            let place = At::place(format!("{} {}", contract.parameters.path, parameter.path));
            let message = "a trainable parameter is in one group, any other in none";
            sink.rejected(
                place,
                message,
                format!("{:?}", parameter.status),
                format!("{:?}", parameter.group),
            );
        }
    }
}

fn update_rule(contract: &Contract, card: &PolicyCard, sink: &mut Sink) {
    let UpdateRule::Adamw { beta1, beta2, epsilon, moment_dtype } = &card.update;
    let is_beta = |beta: &f64| (0.0..1.0).contains(beta);
    if !(is_beta(beta1) && is_beta(beta2) && epsilon.is_finite() && *epsilon > 0.0) {
        let actual = format!("{beta1}, {beta2}, {epsilon}");
        sink.rejected(
            at(contract, "update"),
            "a constant is out of range",
            "betas in [0, 1), epsilon above 0",
            actual,
        );
    }
    for suffix in ["exp_avg", "exp_avg_sq"] {
        let declared = card.checkpoint_state.iter().find(|tensor| tensor.suffix == suffix);
        if declared.map(|tensor| &tensor.dtype) != Some(moment_dtype) {
            let message = format!("a checkpoint does not hold {suffix}");
            let actual = declared.map_or("not declared", |tensor| tensor.dtype.as_str());
            sink.rejected(at(contract, "checkpoint_state"), message, moment_dtype, actual);
        }
    }
    if contract.numerics.parameter_dtype == Dtype::F32 && moment_dtype != "F32" {
        sink.warning(
            at(contract, "update/moment_dtype"),
            "moments are coarser than parameters",
            "F32",
            moment_dtype,
        );
    }
}
