//! GC120 `campaign-qualification`.

use schemas::campaign::RunPurpose;
use schemas::contract::Contract;
use schemas::data::Split;
use schemas::report::Route;

use super::Ruled;
use crate::campaign::facts::RunFacts;
use crate::campaign::view::{Block, Campaign, Concern, Run};
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC120",
    name: "campaign-qualification",
    what: "In every run the selection and the campaign's metric are of the val split, in the campaign's direction, and no evaluation was of the qualification split; all runs bind one sealed text, in whatever file; and no qualifier's ledger beside a run records an opening of it before every confirmation run has selected, by the clocks.",
    why: "A sealed set that one arm saw, or that was opened while runs were still to be made, decides which arm wins.",
    remedy: "leave the sealed set closed until every run has selected; a set that was opened early is an ordinary val set from then on",
    reference: "docs/FORMAT.md, \"Campaigns\" and \"Qualification\"",
    gate: Route::RejectSelectionLeakage,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    let mut num_checked = 0;
    let mut first: Option<&Run> = None;
    for run in &campaign.runs {
        let Some(facts) = run.known() else { continue };
        num_checked += 1;
        check_streams(campaign, run, facts, ruled);
        match first {
            None => first = Some(run),
            Some(first) => check_sealed(run, facts, first, ruled),
        }
    }
    check_openings(campaign, ruled);
    Outcome::Checked(num_checked)
}

fn check_streams(campaign: &Campaign, run: &Run, facts: &RunFacts, ruled: &mut Ruled<'_>) {
    let contract: &Contract = &facts.frozen.contract;
    let metric = &campaign.prereg.metric;
    let before = ruled.sink.num_errors();
    for (name, pointer) in
        [(&contract.selection.stream, "/selection/stream"), (&metric.stream, "/evaluation/streams")]
    {
        let stream = contract.evaluation.streams.iter().find(|stream| stream.name == *name);
        if stream.is_none_or(|stream| stream.split != Split::Val) {
            let at = At::entry(run.first.entry, format!("contract {pointer}"));
            let actual = stream.map_or("no such stream", |stream| stream.split.name());
            let message = format!("{} decides by stream {name:?}, which is not of the val split", run.name());
            ruled.sink.rejected(at, message, "val", actual);
        }
        if *name == metric.stream
            && let Some(stream) = stream.filter(|stream| stream.direction != metric.direction)
        {
            let at = At::entry(run.first.entry, "contract /evaluation/streams");
            let message =
                format!("in {} other values of {name:?} are better than in the preregistration", run.name());
            ruled.sink.rejected(
                at,
                message,
                format!("{:?}", metric.direction),
                format!("{:?}", stream.direction),
            );
        }
    }
    if facts.has_qualification_eval {
        let at = At::entry(run.first.entry, "");
        let message = format!("{} was evaluated on the qualification split while it was trained", run.name());
        ruled.sink.rejected(at, message, "no evaluation of it", "an `eval` entry");
    }
    if ruled.sink.num_errors() > before {
        ruled.block(Block::arm(run.arm(), format!("{} does not decide by the val split alone", run.name())));
    }
}

fn check_sealed(run: &Run, facts: &RunFacts, first: &Run, ruled: &mut Ruled<'_>) {
    let Some(firsts) = first.known() else { return };
    let (own, other) = (&facts.frozen.contract.qualification, &firsts.frozen.contract.qualification);
    // Every sealing gives another file; the qualifier finds this text in it, or says so.
    if own.plaintext != other.plaintext {
        let at = At::entry(run.first.entry, "contract /qualification/sealed");
        let message = format!("{} binds another sealed set than {}", run.name(), first.name());
        ruled.sink.rejected(at, message, other.plaintext, own.plaintext);
        ruled.block(Block::arm(run.arm(), format!("{} binds another sealed set", run.name())));
    }
}

fn check_openings(campaign: &Campaign, ruled: &mut Ruled<'_>) {
    let confirmations: Vec<&Run> =
        campaign.runs.iter().filter(|run| run.purpose() == RunPurpose::Confirmation).collect();
    let last_selected = confirmations.iter().filter_map(|run| run.known()?.selected_us).max();
    let is_open = |run: &&&Run| run.known().is_some_and(|facts| facts.ended.is_none());
    let unfinished = confirmations.iter().find(is_open);
    for run in &campaign.runs {
        let openings = match run.known().map(|facts| &facts.openings) {
            Some(Ok(openings)) => openings,
            Some(Err(reason)) => {
                let at = At::entry(run.first.entry, "");
                let message = format!("whether the sealed set of {} was opened cannot be told", run.name());
                ruled.sink.not_evaluated(at, message, "the qualifier's ledger", reason);
                continue;
            }
            None => continue,
        };
        for opening in openings {
            let is_early = last_selected.is_none_or(|last| opening.time_us < last) || unfinished.is_some();
            if !is_early {
                continue;
            }
            let at = At::place(&opening.place);
            let message = "the sealed set was opened before every confirmation run had selected";
            let expected = match (unfinished, last_selected) {
                (Some(run), _) => format!("not before {} has ended", run.name()),
                (None, Some(last)) => format!("a time after {last}"),
                (None, None) => "not before a run has selected".to_owned(),
            };
            ruled.sink.rejected(at, message, expected, opening.time_us);
            ruled.block(Block { concern: Concern::All, is_refutation: false, reason: message.to_owned() });
        }
    }
}
