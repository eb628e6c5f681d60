//! The policy card asks for nothing that the update which ran does not do.

use schemas::contract::EvidenceProfile;
use schemas::policy_card::{Clipping, PolicyCard, UpdateRule};
use schemas::report::Route;

use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{at_end, declare_rule};

declare_rule!(
    /// `GL412`.
    PolicyCardEdition,
    {
        code: "GL412",
        name: "policy-card-edition",
        what: "The card names no fallback, approximation, preconditioner, rescue or stopping rule of its own, which AdamW as this \
               edition executes it does not have; its state is replicated and exchanged exactly where there are several workers; \
               its state tensors are AdamW's, in binary32; clipping can act; name, version and implementation are said, \
               and the implementation of a native run is the trainer's own. Warns of a search that is described without \
               trials, and of trials without a search.",
        why: "A method gets credit for what its card says. A second optimizer, another approximation or an end of its own that is \
              claimed and not executed, or executed and not claimed, makes two different methods share one name and one result.",
        remedy: "Write the card as the update is executed, and freeze again.",
        reference: "schemas::policy_card::PolicyCard; docs/FORMAT.md, \"Clipping\" and \"Workers\"",
        gate: Route::RejectFrozenInputs,
    }
);

/// A norm that no gradient exceeds clips nothing.
const VACUOUS_CLIP_NORM: f64 = 1e6;
/// What a card calls the update of the project's trainer, which executes every
/// native run.
const NATIVE_IMPLEMENTATION: &str = "trainer::optimizer::adamw";
/// dtype of AdamW's moments, and their names.
const MOMENT_DTYPE: &str = "F32";
const MOMENTS: [&str; 2] = ["exp_avg", "exp_avg_sq"];

/// Conditions on one card.
struct Card<'a> {
    num_checked: u64,
    path: &'a str,
    sink: &'a mut Sink,
}

impl Card<'_> {
    fn require(&mut self, holds: bool, field: &str, message: &str, expected: &str, actual: String) {
        self.num_checked += 1;
        if !holds {
            self.sink.rejected(At::place(format!("{} /{field}", self.path)), message, expected, actual);
        }
    }
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let card = match &frozen.card {
        Ok(card) => card,
        Err(reason) => return unavailable(format!("the policy card: {reason}")),
    };
    let contract = &frozen.contract;
    at_end(move |_, sink| {
        let mut checked = Card { num_checked: 0, path: &contract.update.card.path, sink };
        words(card, &mut checked);
        implementation(&card.implementation.name, contract.ruleset.profile, &mut checked);
        absent(card, &mut checked);
        state(card, contract.topology.workers, &mut checked);
        clipping(&card.clipping, &mut checked);
        Outcome::Checked(checked.num_checked)
    })
}

fn words(card: &PolicyCard, checked: &mut Card<'_>) {
    for (field, text) in [
        ("name", &card.name),
        ("version", &card.version),
        ("implementation/reference", &card.implementation.reference),
    ] {
        checked.require(!text.trim().is_empty(), field, "a text is missing", "a text", format!("{text:?}"));
    }
    let tuning = &card.tuning;
    let is_told = (tuning.num_trials > 0) != tuning.search_space.trim().is_empty();
    checked.num_checked += 1;
    if !is_told {
        let message = "trials without a search, or a search without trials";
        let actual = format!("{} trials, {:?}", tuning.num_trials, tuning.search_space);
        let at = At::place(format!("{} /tuning", checked.path));
        checked.sink.warning(at, message, "both, or neither", actual);
    }
}

/// An external loop's code is its own, and so is what it calls it.
fn implementation(name: &str, profile: EvidenceProfile, checked: &mut Card<'_>) {
    let (holds, message, expected) = match profile {
        EvidenceProfile::Native => (
            name == NATIVE_IMPLEMENTATION,
            "a native run is executed by another update than the card names",
            NATIVE_IMPLEMENTATION,
        ),
        EvidenceProfile::ExternalLoop => (!name.trim().is_empty(), "a text is missing", "a text"),
    };
    checked.require(holds, "implementation/name", message, expected, format!("{name:?}"));
}

/// What AdamW does not have, in this edition.
fn absent(card: &PolicyCard, checked: &mut Card<'_>) {
    let UpdateRule::Adamw { .. } = &card.update;
    let not_executed = "the card asks for what the update does not do";
    let absent: [(&str, bool, String); 5] = [
        ("approximation", card.approximation.is_none(), format!("{:?}", card.approximation)),
        ("fallback", card.fallback.is_none(), format!("{:?}", card.fallback)),
        (
            "preconditioner_every_steps",
            card.preconditioner_every_steps.is_none(),
            format!("{:?}", card.preconditioner_every_steps),
        ),
        ("rescue_ladder", card.rescue_ladder.is_empty(), format!("{:?}", card.rescue_ladder)),
        ("stopping_rule", card.stopping_rule.is_none(), format!("{:?}", card.stopping_rule)),
    ];
    for (field, holds, actual) in absent {
        checked.require(holds, field, not_executed, "null, or empty", actual);
    }
}

fn state(card: &PolicyCard, num_workers: u32, checked: &mut Card<'_>) {
    let distribution = &card.distribution;
    let is_replicated = distribution.placement == "replicated";
    let message = "the state of the optimizer lies elsewhere than with every worker";
    let placement = distribution.placement.clone();
    checked.require(is_replicated, "distribution/placement", message, "replicated", placement);
    let expected = if num_workers > 1 { "all_reduce" } else { "none" };
    let communication = &distribution.communication;
    let message = "the card says that something else is exchanged";
    let holds = communication == expected;
    checked.require(holds, "distribution/communication", message, expected, communication.clone());
    let UpdateRule::Adamw { moment_dtype, .. } = &card.update;
    let message = "moments have a dtype that nothing executes";
    checked.require(
        moment_dtype == MOMENT_DTYPE,
        "update/moment_dtype",
        message,
        MOMENT_DTYPE,
        moment_dtype.clone(),
    );
    let suffixes: Vec<&str> = card.checkpoint_state.iter().map(|tensor| tensor.suffix.as_str()).collect();
    let message = "a checkpoint holds other state than AdamW has";
    checked.require(
        suffixes == MOMENTS,
        "checkpoint_state",
        message,
        "both moments",
        format!("{suffixes:?}"),
    );
}

fn clipping(clipping: &Clipping, checked: &mut Card<'_>) {
    let Clipping::GlobalNorm { epsilon, max_norm } = clipping else { return };
    let can_act = *max_norm > 0.0 && *max_norm < VACUOUS_CLIP_NORM;
    let message = "clipping cannot act, or leaves nothing";
    checked.require(can_act, "clipping/max_norm", message, "above 0 and below 1e6", max_norm.to_string());
    let is_small = (0.0..1.0).contains(epsilon);
    let message = "a constant is out of its range";
    checked.require(is_small, "clipping/epsilon", message, "0 to below 1", epsilon.to_string());
}
