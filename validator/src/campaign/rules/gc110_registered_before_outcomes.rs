//! GC110 `registered-before-outcomes`.

use schemas::report::Route;

use super::Ruled;
use crate::campaign::view::{Block, Campaign, Run};
use crate::note::Note;
use crate::rule::{At, Outcome, RuleInfo};

/// How far clocks of two hosts may be apart before an order of times counts:
/// what is left of a clock that nobody sets, against NTP's fractions of a second.
const CLOCK_ALLOWANCE_US: u64 = 60_000_000;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC110",
    name: "registered-before-outcomes",
    what: "The first entry of every run holds a head over its freeze alone, and its time is before the run's first entry behind the freeze (a minute is allowed for clocks of two hosts, and a warning is given; nothing is allowed behind its first evaluation or its end, which blocks its claims). A run that was bound late says so with a reason; that is a warning, and blocks the claims that rest on it.",
    why: "Who binds a run when its outcome is known can bind the good ones only.",
    remedy: "bind a run with `ledger campaign add` between its freeze and its first attempt; one that began already is bound with --late REASON",
    reference: "docs/FORMAT.md, \"Campaigns\"",
    gate: Route::RejectFrozenInputs,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    for run in &campaign.runs {
        match &run.first.obs.late {
            Some(reason) => report_late(run, reason, ruled),
            None => check_prompt(run, ruled),
        }
    }
    Outcome::Checked(campaign.runs.len() as u64)
}

fn report_late(run: &Run, reason: &str, ruled: &mut Ruled<'_>) {
    let at = At::entry(run.first.entry, "/body/obs/late");
    if reason.trim().is_empty() {
        ruled.sink.rejected(
            at,
            format!("{} was bound late, and nothing says why", run.name()),
            "a reason",
            "none",
        );
    } else {
        let message = format!("{} was bound when it had begun: its outcome may have been known", run.name());
        ruled.sink.warning(at, message, "a head over the freeze alone", reason);
    }
    ruled.block(Block::arm(run.arm(), format!("{} was bound late", run.name())));
}

fn check_prompt(run: &Run, ruled: &mut Ruled<'_>) {
    let at = || At::entry(run.first.entry, "/body/obs/head");
    // What is no head is told by the rule that compares heads.
    let size = Note::parse(run.first.obs.head.as_bytes()).ok().map(|note| note.size);
    if let Some(size) = size.filter(|size| *size != 1) {
        let message = format!("{} was bound when it had begun, and the entry does not say so", run.name());
        ruled.sink.rejected(at(), message, "a head of size 1", format!("size {size}"));
        ruled.block(Block::arm(run.arm(), format!("{} was bound late", run.name())));
    }
    if let Some((index, known_us)) = run.known().and_then(|facts| facts.first_outcome)
        && run.first.time_us > known_us
    {
        let reason = format!("{} was bound after its entry {index} told how it goes", run.name());
        ruled.block(Block::arm(run.arm(), reason));
    }
    let Some((index, began_us)) = run.known().and_then(|facts| facts.first_effect) else { return };
    let Some(after_us) = run.first.time_us.checked_sub(began_us).filter(|after| *after > 0) else { return };
    let at = At::entry(run.first.entry, "/time_us");
    let message = format!("{} was bound after its entry {index}, by the clocks", run.name());
    let expected = format!("at most {began_us}");
    if after_us > CLOCK_ALLOWANCE_US {
        ruled.sink.rejected(at, message, expected, run.first.time_us);
        ruled.block(Block::arm(run.arm(), format!("{} was bound late, by the clocks", run.name())));
    } else {
        ruled.sink.warning(at, message, expected, run.first.time_us);
    }
}
