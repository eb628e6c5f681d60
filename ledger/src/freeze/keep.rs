//! What retention may let go: a clause that chooses nothing, or everything,
//! looks like a promise and is none.

use schemas::contract::{Contract, KeepPolicy};

use super::problem::Problems;
use super::schedule::num_steps;

/// Most steps that a contract pins: what else is kept is a rule and not a list.
const MAX_PINNED: usize = 1000;

pub(super) fn check(contract: &Contract, problems: &mut Problems) {
    let KeepPolicy::Chosen { best, every_steps, last, pinned } = &contract.checkpoints.keep else { return };
    problems.require(
        *best > 0,
        "/checkpoints/keep/best",
        "is 0; expected at least 1",
        "the best checkpoint is never retired; say 1",
    );
    problems.require(
        *last > 0,
        "/checkpoints/keep/last",
        "is 0; expected at least 1",
        "the newest checkpoint is never retired; say 1",
    );
    if let Some(every_steps) = every_steps {
        check_interval(contract, *every_steps, problems);
    }
    check_pinned(contract, pinned, problems);
}

fn check_interval(contract: &Contract, every_steps: u64, problems: &mut Problems) {
    let pointer = "/checkpoints/keep/every_steps";
    let saved = contract.checkpoints.every_steps.max(1);
    problems.require_count(every_steps, pointer);
    problems.require(
        every_steps.is_multiple_of(saved),
        pointer,
        format!(
            "is {every_steps}; checkpoints come every {saved} steps, so that not every multiple is saved"
        ),
        "choose a multiple of /checkpoints/every_steps",
    );
    problems.require(
        every_steps != saved,
        pointer,
        format!("is {every_steps}, as /checkpoints/every_steps: every checkpoint would be kept"),
        "say {\"kind\": \"all\"} for that, or choose a larger interval",
    );
}

fn check_pinned(contract: &Contract, pinned: &[u64], problems: &mut Problems) {
    let pointer = "/checkpoints/keep/pinned";
    let (saved, last_step) = (contract.checkpoints.every_steps.max(1), num_steps(contract));
    problems.require(
        pinned.len() <= MAX_PINNED,
        pointer,
        format!("names {} steps; at most {MAX_PINNED}", pinned.len()),
        "use /checkpoints/keep/every_steps for many",
    );
    problems.require(
        pinned.windows(2).all(|pair| pair[0] < pair[1]),
        pointer,
        "is not in ascending order, or names a step twice",
        "sort the steps and name each once",
    );
    for (index, step) in pinned.iter().enumerate() {
        problems.require(
            (1..=last_step).contains(step) && (step.is_multiple_of(saved) || *step == last_step),
            format!("{pointer}/{index}"),
            format!("is {step}; no checkpoint is due there: they come every {saved} steps up to {last_step}"),
            "name steps at which a checkpoint is taken; step 0 is always kept",
        );
    }
}
