//! What happens at which step: batch, budget, stopping, rates, evaluation,
//! checkpoints, selection, target. A bound that nothing can exceed and a rule
//! that never fires are refused: they look like a promise and are none.

use std::collections::BTreeSet;

use schemas::body::CheckpointStage;
use schemas::contract::{
    CandidateFamily, Contract, Direction, EvaluationStream, Metric, MidAccumulation, ScheduleShape,
    StoppingRule,
};
use schemas::data::Split;
use schemas::policy_card::PolicyCard;

use super::Inputs;
use super::plateau;
use super::problem::Problems;

/// Bits per byte of a model that knows nothing of its 256 symbols.
const UNIFORM_BITS_PER_BYTE: f64 = 8.0;

pub(super) fn check(
    contract: &Contract,
    card: Option<&PolicyCard>,
    inputs: &Inputs,
    problems: &mut Problems,
) {
    check_batch(contract, problems);
    check_budget(contract, inputs, problems);
    check_stopping(contract, problems);
    check_rates(contract, card, problems);
    for index in 0..contract.evaluation.streams.len() {
        check_stream(contract, index, inputs, problems);
    }
    problems.require(
        !contract.evaluation.streams.is_empty(),
        "/evaluation/streams",
        "is empty",
        "declare at least one stream of the val split",
    );
    check_checkpoints(contract, problems);
    check_selection(contract, problems);
    check_target(contract, problems);
    problems.require(
        contract.state_digest_every_steps != Some(0),
        "/state_digest_every_steps",
        "is 0; expected at least 1, or null",
        "null records state digests at checkpoints only",
    );
}

fn check_batch(contract: &Contract, problems: &mut Problems) {
    let batch = &contract.batch;
    let counts = [
        ("accumulation", batch.accumulation),
        ("data_parallel", batch.data_parallel),
        ("global_examples", batch.global_examples),
        ("microbatch_examples", batch.microbatch_examples),
    ];
    for (field, count) in counts {
        problems.require_count(u64::from(count), format!("/batch/{field}"));
    }
    let (microbatch, accumulation) = (u64::from(batch.microbatch_examples), u64::from(batch.accumulation));
    let product = microbatch.saturating_mul(accumulation).saturating_mul(u64::from(batch.data_parallel));
    problems.require(
        product == u64::from(batch.global_examples),
        "/batch/global_examples",
        format!(
            "is {}; expected {product} = microbatch_examples {microbatch} x accumulation {accumulation} x data_parallel {}",
            batch.global_examples, batch.data_parallel
        ),
        "change one of the four so that the product holds",
    );
    problems.require(
        batch.data_parallel == contract.topology.workers,
        "/batch/data_parallel",
        format!(
            "is {}; expected {}, the value of /topology/workers",
            batch.data_parallel, contract.topology.workers
        ),
        "each worker takes one share of the batch",
    );
}

/// The step at which the stopping rule ends the run at the latest.
fn last_step(contract: &Contract) -> u64 {
    match contract.stopping {
        StoppingRule::AtStep { step } => step,
        StoppingRule::Patience { max_step, .. } => max_step,
    }
}

fn check_budget(contract: &Contract, inputs: &Inputs, problems: &mut Problems) {
    let budget = &contract.budget;
    problems.require_count(u64::from(budget.max_attempts), "/budget/max_attempts");
    problems.require_count(budget.max_steps, "/budget/max_steps");
    problems.require_count(budget.max_wall_s.unwrap_or(1), "/budget/max_wall_s");
    let Some(max_tokens) = budget.max_tokens else { return };
    problems.require_count(max_tokens, "/budget/max_tokens");
    let (StoppingRule::AtStep { step }, Some(train)) = (&contract.stopping, inputs.train) else { return };
    // What is left of the last epoch counts one token an example: a lower
    // bound, so that only what is certain is refused.
    let num_examples = step.saturating_sub(1).saturating_mul(u64::from(contract.batch.global_examples));
    let (num_epochs, rest) =
        (num_examples / train.num_examples.max(1), num_examples % train.num_examples.max(1));
    let least = num_epochs.saturating_mul(train.num_targets).saturating_add(rest);
    problems.require(
        max_tokens > least,
        "/budget/max_tokens",
        format!("is {max_tokens}, and step {step} is reached after at least {least}"),
        "the stopping rule could never be reached; raise the budget or stop earlier",
    );
}

fn check_stopping(contract: &Contract, problems: &mut Problems) {
    let max_steps = contract.budget.max_steps;
    let (field, step) = match &contract.stopping {
        StoppingRule::AtStep { step } => ("/stopping/step", *step),
        StoppingRule::Patience { max_step, .. } => ("/stopping/max_step", *max_step),
    };
    problems.require(
        step > 0,
        field,
        "is 0: the rule fires before the first update",
        "stop at step 1 or later",
    );
    problems.require(
        step <= max_steps,
        field,
        format!("is {step}, beyond /budget/max_steps = {max_steps}: the rule never fires"),
        "raise the budget or stop earlier",
    );
    let StoppingRule::Patience { max_step, min_delta, patience, stream } = &contract.stopping else { return };
    problems.require_count(u64::from(*patience), "/stopping/patience");
    problems.require_between(*min_delta, 0.0..UNIFORM_BITS_PER_BYTE, "/stopping/min_delta");
    let Some(stream) = val_stream(contract, stream, "/stopping/stream", problems) else { return };
    let earliest = stream.every_steps.saturating_mul(u64::from(*patience));
    problems.require(
        earliest <= *max_step,
        "/stopping/patience",
        format!(
            "is {patience} evaluations of {} steps, which do not fit before max_step = {max_step}",
            stream.every_steps
        ),
        "patience could never run out; evaluate more often, lower it, or use at_step",
    );
}

/// The stream of a name, which must exist and be of the val split.
fn val_stream<'a>(
    contract: &'a Contract,
    name: &str,
    pointer: &str,
    problems: &mut Problems,
) -> Option<&'a EvaluationStream> {
    let Some(stream) = contract.evaluation.streams.iter().find(|stream| stream.name == name) else {
        let names: Vec<&str> =
            contract.evaluation.streams.iter().map(|stream| stream.name.as_str()).collect();
        problems.add(
            pointer,
            format!("{name:?} is no stream; there are {names:?}"),
            "name a stream of /evaluation/streams",
        );
        return None;
    };
    problems.require(
        stream.split == Split::Val,
        pointer,
        format!("{name:?} is measured on the {} split; expected val", stream.split.name()),
        "what is trained on, and what qualifies, may not decide; name a stream of the val split",
    );
    Some(stream)
}

fn check_rates(contract: &Contract, card: Option<&PolicyCard>, problems: &mut Problems) {
    let mut scheduled = BTreeSet::new();
    for (index, group) in contract.schedule.iter().enumerate() {
        let pointer = format!("/schedule/{index}");
        problems.require(
            scheduled.insert(group.group.as_str()),
            format!("{pointer}/group"),
            format!("{:?} is scheduled twice", group.group),
            "give each group one schedule",
        );
        problems.require(
            card.is_none_or(|card| card.groups.iter().any(|other| other.name == group.group)),
            format!("{pointer}/group"),
            format!("{:?} is no group of the policy card", group.group),
            "schedule exactly the card's groups",
        );
        check_shape(contract, &group.shape, &format!("{pointer}/shape"), problems);
    }
    for group in card.iter().flat_map(|card| &card.groups) {
        problems.require(
            scheduled.contains(group.name.as_str()),
            "/schedule",
            format!("has no rate for group {:?} of the policy card", group.name),
            "schedule exactly the card's groups",
        );
    }
}

fn check_shape(contract: &Contract, shape: &ScheduleShape, pointer: &str, problems: &mut Problems) {
    match shape {
        ScheduleShape::Plateau { .. } => plateau::check(contract, shape, pointer, problems),
        ScheduleShape::Constant { rate } => problems.require_positive(*rate, format!("{pointer}/rate")),
        ScheduleShape::WarmupCosine { floor, peak, total_steps, warmup_steps } => {
            problems.require_positive(*peak, format!("{pointer}/peak"));
            problems.require(
                (0.0..=*peak).contains(floor),
                format!("{pointer}/floor"),
                format!("is {floor}; expected 0 to the peak, {peak}"),
                "a cosine falls from its peak to its floor",
            );
            problems.require(
                warmup_steps < total_steps,
                format!("{pointer}/warmup_steps"),
                format!("is {warmup_steps}; expected less than total_steps = {total_steps}"),
                "leave steps for the cosine",
            );
        }
    }
}

fn check_stream(contract: &Contract, index: usize, inputs: &Inputs, problems: &mut Problems) {
    let stream = &contract.evaluation.streams[index];
    let at = |field: &str| format!("/evaluation/streams/{index}/{field}");
    problems.require_text(&stream.name, at("name"));
    let earlier = &contract.evaluation.streams[..index];
    problems.require(
        earlier.iter().all(|other| other.name != stream.name),
        at("name"),
        format!("{:?} is the name of an earlier stream", stream.name),
        "give each stream a name of its own",
    );
    problems.require_count(stream.every_steps, at("every_steps"));
    let Metric::BitsPerByte = stream.metric;
    problems.require(
        stream.direction == Direction::Minimize,
        at("direction"),
        "is \"maximize\"; expected \"minimize\"",
        "fewer bits per byte are better",
    );
    let table = match stream.split {
        Split::Train => inputs.train,
        Split::Val => inputs.val,
        Split::Qualification => {
            problems.add(
                at("split"),
                "is \"qualification\"; expected \"val\" or \"train\"",
                "the sealed set is opened once, by the qualifier, after the handoff",
            );
            None
        }
    };
    let Some(num_examples) = stream.num_examples else { return };
    problems.require_count(num_examples, at("num_examples"));
    let available = table.map_or(u64::MAX, |table| table.num_examples);
    problems.require(
        num_examples <= available,
        at("num_examples"),
        format!("is {num_examples}; the {} split has {available}", stream.split.name()),
        "ask for no more than there are, or say null for all of them",
    );
}

fn check_checkpoints(contract: &Contract, problems: &mut Problems) {
    let checkpoints = &contract.checkpoints;
    problems.require_count(checkpoints.every_steps, "/checkpoints/every_steps");
    match checkpoints.candidate_stage {
        CheckpointStage::Validated | CheckpointStage::ResumeQualified => {}
        _ => problems.add(
            "/checkpoints/candidate_stage",
            "is weaker than \"validated\", and every candidate is validated before it is admitted",
            "say \"validated\": a weaker stage would promise less than is done",
        ),
    }
    super::keep::check(contract, problems);
    check_windows(contract, problems);
    super::store::check(contract, problems);
}

fn check_windows(contract: &Contract, problems: &mut Problems) {
    let (checkpoints, accumulation) = (&contract.checkpoints, contract.batch.accumulation);
    let saves_gradients = checkpoints.mid_accumulation == MidAccumulation::SaveGradients;
    problems.require(
        !saves_gradients || accumulation > 1,
        "/checkpoints/mid_accumulation",
        "is \"save_gradients\", and an update has one microbatch",
        "say \"round_to_boundary\": there is no window to save in",
    );
    let Some(count) = checkpoints.after_microbatches else { return };
    problems.require(
        saves_gradients,
        "/checkpoints/after_microbatches",
        format!("is {count}, and /checkpoints/mid_accumulation is \"round_to_boundary\""),
        "leave it out, or say \"save_gradients\"",
    );
    problems.require(
        (1..accumulation).contains(&count),
        "/checkpoints/after_microbatches",
        format!("is {count}; expected 1 to {}", accumulation.saturating_sub(1)),
        "count the microbatches of an update that are done before it is saved",
    );
}

fn check_selection(contract: &Contract, problems: &mut Problems) {
    let selection = &contract.selection;
    let Some(stream) = val_stream(contract, &selection.stream, "/selection/stream", problems) else { return };
    if selection.family != CandidateFamily::EveryEvaluatedCheckpoint {
        return;
    }
    let (evaluated, saved) = (stream.every_steps.max(1), contract.checkpoints.every_steps.max(1));
    problems.require(
        evaluated.is_multiple_of(saved) || saved.is_multiple_of(evaluated),
        "/selection/family",
        format!(
            "checkpoints come every {saved} steps and {:?} every {evaluated}: they hardly ever meet",
            stream.name
        ),
        "let one interval be a multiple of the other, so that every candidate has a value",
    );
}

fn check_target(contract: &Contract, problems: &mut Problems) {
    let Some(target) = &contract.quality_target else { return };
    problems.require_text(&target.derivation, "/quality_target/derivation");
    problems.require(
        target.threshold > 0.0 && target.threshold < UNIFORM_BITS_PER_BYTE,
        "/quality_target/threshold",
        format!(
            "is {}; expected above 0 and below {UNIFORM_BITS_PER_BYTE}, which a model that knows nothing reaches",
            target.threshold
        ),
        "take a baseline's score, such as that of a byte 3-gram model",
    );
    let Some(stream) = val_stream(contract, &target.stream, "/quality_target/stream", problems) else {
        return;
    };
    let Some(selection) =
        contract.evaluation.streams.iter().find(|other| other.name == contract.selection.stream)
    else {
        return;
    };
    // Candidates come at steps of the selection stream that are checkpointed.
    let candidates_every = selection.every_steps.max(contract.checkpoints.every_steps).max(1);
    problems.require(
        stream.name == selection.name || candidates_every.is_multiple_of(stream.every_steps.max(1)),
        "/quality_target/stream",
        format!("{:?} has no value at every candidate's step (every {candidates_every} steps)", stream.name),
        "measure the target on the selection stream, or at an interval that divides the candidates'",
    );
}

/// For other checks: whether the run can end at all.
pub(super) fn num_steps(contract: &Contract) -> u64 {
    last_step(contract).min(contract.budget.max_steps)
}
