//! What the contract says of saving can happen, where it says.

use schemas::body::CheckpointStage;
use schemas::contract::{Contract, FileBinding, KeepPolicy, MidAccumulation};
use schemas::report::Route;

use crate::derive::steps;
use crate::frozen::Frozen;
use crate::rule::Check;
use crate::rules::common::{at_end, declare_rule};
use crate::rules::terms::Terms;

declare_rule!(
    /// `GL649`.
    SavingTerms,
    {
        code: "GL649",
        name: "saving-terms",
        what: "Checkpoints and state digests have an interval; a candidate is validated at least; each clause of retention keeps \
               something and not everything, of steps that are saved; a save inside of an accumulation window has a window; and \
               checkpoints lie in a folder of their own, which holds no file that the contract binds.",
        why: "A clause that chooses nothing looks like a promise and keeps nothing; a folder that is shared could be pruned with \
              what the run was frozen on.",
        remedy: "Correct `checkpoints` or `state_digest_every_steps`, and freeze again.",
        reference: "docs/CONTRACT.md, \"CheckpointPolicy\" and \"KeepPolicy\"; docs/FORMAT.md, \"Retention\"",
        gate: Route::RejectFrozenInputs,
    }
);

/// Steps that may be pinned one by one.
const MAX_PINNED: u64 = 1000;

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    at_end(move |_, sink| {
        let mut terms = Terms::new(sink);
        let contract = &frozen.contract;
        let checkpoints = &contract.checkpoints;
        terms.count(checkpoints.every_steps, "/checkpoints/every_steps");
        terms.count(contract.state_digest_every_steps.unwrap_or(1), "/state_digest_every_steps");
        let stage = checkpoints.candidate_stage;
        let is_validated = stage >= CheckpointStage::Validated;
        let message = "a candidate need not be read back";
        let pointer = "/checkpoints/candidate_stage";
        terms.require(is_validated, pointer, message, "validated, or resume_qualified", format!("{stage:?}"));
        keep(contract, &mut terms);
        windows(contract, &mut terms);
        store(frozen, &mut terms);
        terms.outcome()
    })
}

fn keep(contract: &Contract, terms: &mut Terms<'_>) {
    let KeepPolicy::Chosen { best, every_steps, last, pinned } = &contract.checkpoints.keep else { return };
    terms.count(u64::from(*best), "/checkpoints/keep/best");
    terms.count(u64::from(*last), "/checkpoints/keep/last");
    let saved = contract.checkpoints.every_steps.max(1);
    if let Some(every) = every_steps {
        let chooses = *every > saved && every.is_multiple_of(saved);
        let message = "the interval keeps every checkpoint, or names steps that are not saved";
        let expected = format!("a multiple of {saved} above it");
        terms.require(chooses, "/checkpoints/keep/every_steps", message, expected, every);
    }
    terms.within(pinned.len() as u64, 0..=MAX_PINNED, "/checkpoints/keep/pinned");
    let final_step = steps::max_step(&contract.stopping, &contract.budget);
    for (index, step) in pinned.iter().enumerate() {
        let is_saved = (1..=final_step).contains(step) && (step.is_multiple_of(saved) || *step == final_step);
        let is_next = index == 0 || pinned.get(index - 1).is_some_and(|before| before < step);
        let message = "a pinned step is not saved, or not in order";
        let pointer = format!("/checkpoints/keep/pinned/{index}");
        terms.require(is_saved && is_next, &pointer, message, "a step that is saved, in order", step);
    }
}

fn windows(contract: &Contract, terms: &mut Terms<'_>) {
    let (checkpoints, accumulation) = (&contract.checkpoints, u64::from(contract.batch.accumulation));
    let saves = checkpoints.mid_accumulation == MidAccumulation::SaveGradients;
    let message = "an update has one microbatch, so that there is no window to save in";
    let pointer = "/checkpoints/mid_accumulation";
    terms.require(!saves || accumulation > 1, pointer, message, "round_to_boundary", "save_gradients");
    let Some(count) = checkpoints.after_microbatches else { return };
    let message = "gradients are not saved, or the window is over";
    let holds = saves && (1..accumulation).contains(&u64::from(count));
    let expected = format!("save_gradients, and 1 to below {accumulation}");
    terms.require(holds, "/checkpoints/after_microbatches", message, expected, count);
}

/// Whether the folder of checkpoints is one of its own below the ledger's.
fn store(frozen: &Frozen, terms: &mut Terms<'_>) {
    let (contract, folder) = (&frozen.contract, frozen.checkpoint_folder());
    let is_name =
        |name: &str| !name.is_empty() && name != "." && name != ".." && !name.contains(['\\', '\0']);
    let is_plain = folder.split('/').all(is_name);
    let pointer = "/checkpoints/store";
    let message = "checkpoints lie in no plain folder below the ledger's";
    terms.require(is_plain, pointer, message, "a relative path, or s3://bucket/prefix", folder);
    let url = contract.checkpoints.store.split_once("://");
    let is_known = url
        .is_none_or(|(scheme, rest)| scheme == "s3" && !rest.is_empty() && !rest.contains(['@', '?', '#']));
    // What stands in a URL may be a password, so it is not repeated.
    let message =
        "checkpoints lie in a store that nothing knows, or whose URL says more than bucket and prefix";
    terms.require(is_known, pointer, message, "s3://bucket/prefix", "another URL");
    let data = &contract.data;
    let bound = [
        &data.manifest,
        &data.train_examples,
        &data.val_examples,
        &contract.parameters,
        &contract.qualification.sealed,
        &contract.update.card,
    ];
    let is_inside = |binding: &&FileBinding| {
        let rest = binding.path.strip_prefix(folder);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let inside = bound.into_iter().find(is_inside).map_or("none", |binding| binding.path.as_str());
    let message = "the folder of checkpoints holds a file that the contract binds";
    terms.require(inside == "none", pointer, message, "a folder of their own", inside);
}
