//! False campaigns that an owner who wants a claim to be supported could make:
//! each is an honest campaign with one change, as in `false_campaigns`.

use schemas::body::Outcome as End;
use schemas::campaign::report::ClaimOutcome;
use schemas::campaign::*;
use schemas::report::Verdict;
use serde_json::json;

use super::false_campaigns::{Mutation, error, pointer, record, warm_start, warning};
use crate::campaign::fixture::*;
use crate::campaign::view::{Campaign, OtherCopy, Run};

use RunPurpose::{Confirmation, PositiveControl, Tuning};

const BLOCKED: ClaimOutcome = ClaimOutcome::Blocked;

/// The claim "better" told of the baseline against the proposed arm, which says
/// that it has a positive control.
fn turn_round(campaign: &mut Campaign) {
    let claim = &mut campaign.prereg.claims[0];
    claim.arms = vec![ArmPair { against: PROPOSED.to_owned(), arm: BASELINE.to_owned() }];
    campaign.prereg.arms[1].positive_control =
        Some(schemas::campaign::PositiveControl { threshold: 7.8, why: "known".to_owned() });
}

/// A trial that its operator stopped before it had a value.
fn stop(run: &mut Run) {
    run.reported_value = None;
    let facts = run.facts_mut();
    (facts.selected_value, facts.selected_step, facts.reach) = (None, None, None);
    facts.ended = Some(End::Failed);
}

/// Its numbers went out of range, and its audit says no more than that.
pub(super) fn diverge(run: &mut Run) {
    stop(run);
    run.facts_mut().is_diverged = true;
    run.verdict = Some(Verdict::Incomplete);
    run.is_incomplete_alone = true;
}

/// Points of the width axis at which the arms of the claim "better" are.
fn widths(campaign: &mut Campaign, baseline: u32, proposed: u32) {
    campaign.prereg.axes.push(TestedAxis {
        axis: Axis::Width,
        points: vec![vec![json!(baseline)], vec![json!(proposed)]],
        pointers: vec![pointer("/architecture/hidden_size")],
    });
    campaign.prereg.claims[0].scope = vec![Axis::Width];
    for n in 0..3 {
        campaign.run_mut(PROPOSED, Confirmation, n).refreeze(|contract, _| {
            let schemas::contract::Architecture::LlamaDecoder(model) = &mut contract.architecture;
            model.hidden_size = proposed;
        });
    }
}

fn width_of(campaign: &mut Campaign) -> u32 {
    let frozen = &campaign.run_mut(BASELINE, Confirmation, 0).facts_mut().frozen;
    let schemas::contract::Architecture::LlamaDecoder(model) = &frozen.contract.architecture;
    model.hidden_size
}

/// Moves a run of the campaign behind all others.
fn put_last(campaign: &mut Campaign, purpose: RunPurpose) {
    let id = campaign.run_mut(PROPOSED, purpose, 1).id.clone();
    let place = campaign.runs.iter().position(|run| run.id == id).expect("it is there");
    let mut run = campaign.runs.remove(place);
    run.first.entry = 90;
    campaign.runs.push(run);
}

pub(super) static MUTATIONS: &[Mutation] = &[
    error("GC108", "better in steps", "cheaper", |campaign| {
        let claim = &mut campaign.prereg.claims[1];
        (claim.kind, claim.dimension) = (ClaimKind::Better, ClaimDimension::StepsToQuality);
    }),
    error("GC108", "no worse in tokens", "cheaper", |campaign| {
        campaign.prereg.claims[1].kind = ClaimKind::NotWorse;
    }),
    error("GC108", "the baseline is worse in steps", "cheaper", |campaign| {
        let claim = &mut campaign.prereg.claims[1];
        (claim.kind, claim.dimension) = (ClaimKind::Negative, ClaimDimension::StepsToQuality);
        claim.arms = vec![ArmPair { against: PROPOSED.to_owned(), arm: BASELINE.to_owned() }];
        campaign.prereg.arms[0].positive_control = campaign.prereg.arms[2].positive_control.clone();
    }),
    error("GC108", "better than an arm that nothing shows to work", "better", |campaign| {
        turn_round(campaign);
        campaign.prereg.arms[1].positive_control = None;
    }),
    error("GC108", "an arm with examples of its own to be measured on", "better", |campaign| {
        campaign.prereg.arms[1].declared[0].pointer = pointer("/data/val_examples");
    }),
    error("GC108", "an arm with data of its own, the val table among it", "better", |campaign| {
        campaign.prereg.arms[1].declared[0].pointer = pointer("/data");
    }),
    error("GC108", "a width that is a decay", "better", |campaign| {
        campaign.prereg.axes[0].axis = Axis::Width;
        campaign.prereg.claims[0].scope = vec![Axis::Width];
    }),
    error("GC109", "a later entry says another purpose, and blocks", "better", |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).later[0].det.purpose = Tuning;
    }),
    error("GC109", "the same head again, from the same place", "better", |campaign| {
        let run = campaign.run_mut(PROPOSED, Confirmation, 0);
        let mut again = run.later[0].clone();
        again.entry += 100;
        run.later.push(again);
    }),
    error("GC109", "a smaller head from another place", "better", |campaign| {
        let run = campaign.run_mut(PROPOSED, Confirmation, 0);
        let mut again = run.first.clone();
        again.entry = 300;
        again.obs.path = "elsewhere/run.db".to_owned();
        run.later.push(again);
    }),
    error("GC109", "a run whose end nobody holds", "better", |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).later.clear();
    }),
    error("GC109", "a run that was made twice", "better", |campaign| {
        let run = campaign.run_mut(PROPOSED, Confirmation, 0).id.clone();
        let what = "other entries, among the first 20".to_owned();
        campaign.copies.push(OtherCopy { path: "qualification.db".to_owned(), run, what });
    }),
    warning("GC110", "bound within the minute, and its first value was known", Some(("better", BLOCKED)), {
        |campaign| {
            let run = campaign.run_mut(PROPOSED, Confirmation, 0);
            let (_, known_us) = run.facts_mut().first_outcome.expect("it was evaluated");
            run.first.time_us = known_us + 1;
        }
    }),
    warning("GC111", "a run that went out of numbers", None, |campaign| {
        diverge(campaign.run_mut(PROPOSED, Confirmation, 0));
    }),
    error("GC111", "a run that failed for another reason", "worse", |campaign| {
        let run = campaign.run_mut(CONTROL, Tuning, 0);
        diverge(run);
        run.facts_mut().is_diverged = false;
    }),
    error("GC111", "a run that went out of numbers, with other things wrong", "better", |campaign| {
        let run = campaign.run_mut(PROPOSED, Confirmation, 0);
        diverge(run);
        run.is_incomplete_alone = false;
    }),
    error("GC115", "a trial that was stopped counts as one", "better", |campaign| {
        stop(campaign.run_mut(BASELINE, Tuning, 1));
    }),
    error("GC115", "no trial gave a value", "better", |campaign| {
        for n in 0..2 {
            diverge(campaign.run_mut(BASELINE, Tuning, n));
        }
    }),
    error("GC115", "a trial that was bound behind a confirmation run", "better", |campaign| {
        put_last(campaign, Tuning);
    }),
    error("GC115", "a trial that ended an hour into the confirmation runs", "better", |campaign| {
        let facts = campaign.run_mut(PROPOSED, Tuning, 1).facts_mut();
        let (_, ended_us) = facts.ended_at.as_mut().expect("it ended");
        *ended_us += 3_600_000_000;
    }),
    warning("GC115", "a trial that ended a second into them", Some(("better", BLOCKED)), |campaign| {
        let facts = campaign.run_mut(PROPOSED, Tuning, 1).facts_mut();
        let (_, ended_us) = facts.ended_at.as_mut().expect("it ended");
        *ended_us += 1_000_000;
    }),
    warning("GC122", "a negative result turned round", Some(("better", BLOCKED)), turn_round),
    warning("GC122", "a baseline that its budget ended", Some(("better", BLOCKED)), |campaign| {
        campaign.run_mut(BASELINE, Confirmation, 0).facts_mut().ended = Some(End::BudgetExhausted);
    }),
    warning("GC122", "trials that were stopped", Some(("worse", BLOCKED)), |campaign| {
        stop(campaign.run_mut(CONTROL, Tuning, 1));
    }),
    warning("GC122", "a positive control with another policy", Some(("worse", BLOCKED)), |campaign| {
        let control = campaign.run_mut(CONTROL, PositiveControl, 0);
        control.refreeze(|_, card| card.groups[0].weight_decay = 0.3);
    }),
    warning("GC122", "a positive control that starts elsewhere", Some(("worse", BLOCKED)), |campaign| {
        campaign.run_mut(CONTROL, PositiveControl, 0).refreeze(|contract, _| {
            contract.initialization = Some(schemas::contract::Initialization::WarmStart(warm_start()));
        });
    }),
    warning("GC122", "a positive control measured on other examples", Some(("worse", BLOCKED)), |campaign| {
        campaign.run_mut(CONTROL, PositiveControl, 0).refreeze(|contract, _| {
            contract.data.val_examples.digest = Some(schemas::digest::Digest::blake3([7; 32]));
        });
    }),
    warning("GC125", "a value that only the trainer computed", Some(("better", BLOCKED)), |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).is_by_evaluator = false;
    }),
    warning("GC125", "a trial of the baseline that only the trainer valued", Some(("better", BLOCKED)), {
        |campaign| campaign.run_mut(BASELINE, Tuning, 0).is_by_evaluator = false
    }),
    warning("GC125", "a positive control by the trainer's word", Some(("worse", BLOCKED)), |campaign| {
        campaign.run_mut(CONTROL, PositiveControl, 0).is_by_evaluator = false;
    }),
    warning("GC125", "an evaluator who looked at another stream", Some(("better", BLOCKED)), |campaign| {
        let run = campaign.run_mut(PROPOSED, Confirmation, 0);
        run.reported_value.as_mut().expect("it has a value").0 = "other".to_owned();
    }),
    warning("GC124", "arms at different widths", Some(("better", BLOCKED)), |campaign| {
        let own = width_of(campaign);
        widths(campaign, own, own * 2);
    }),
    record("GC124", "a width that no run has", |campaign| {
        let own = width_of(campaign);
        widths(campaign, own + 1, own * 2);
    }),
];
