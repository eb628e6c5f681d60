//! GC111 `run-audits`.

use schemas::report::{Route, Verdict};

use super::Ruled;
use crate::campaign::view::{Block, Campaign};
use crate::rule::{At, Outcome, RuleInfo};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC111",
    name: "run-audits",
    what: "Every bound run is accepted by its own audit, which is made again here: trials, controls and runs that ended with a failure as well. One whose record is whole, and that is incomplete only because its numbers went out of range and ended it, is a warning: it has an outcome. Verdicts are counted apart.",
    why: "A number from a run that breaks a rule, is not over, or could not be looked at is no evidence for any arm.",
    remedy: "`ledger audit` of the run's ledger says what is wrong; an interrupted run is resumed to its end, and a run that stays as it is stays in the denominator",
    reference: "docs/FORMAT.md, \"Campaigns\"",
    gate: Route::RejectResumeDrift,
};

/// Evaluates the rule.
pub(crate) fn check(campaign: &Campaign, ruled: &mut Ruled<'_>) -> Outcome {
    for run in &campaign.runs {
        // One without a ledger is told by the rule that looks for it.
        let Some(verdict) = run.verdict else { continue };
        if verdict == Verdict::Accepted {
            continue;
        }
        let at = At::entry(run.first.entry, "");
        let message = format!("the audit of {} gives {}", run.name(), verdict.name());
        let actual = run.first_error.as_deref().unwrap_or("no error was listed");
        let expected = Verdict::Accepted.name();
        if verdict == Verdict::Incomplete && run.is_diverged() {
            let message = format!("{} went out of numbers and ended there", run.name());
            ruled.sink.warning(at, message, "a run that its stopping rule ends", actual);
            continue;
        }
        match verdict {
            Verdict::Tampered => ruled.sink.tampered(at, message, expected, actual),
            Verdict::Incomplete => ruled.sink.incomplete(at, message, expected, actual),
            Verdict::NotEvaluated => ruled.sink.not_evaluated(at, message, expected, actual),
            Verdict::Rejected | Verdict::Accepted => ruled.sink.rejected(at, message, expected, actual),
        }
        ruled.block(Block::arm(run.arm(), format!("{} is {}: {actual}", run.name(), verdict.name())));
    }
    Outcome::Checked(campaign.runs.len() as u64)
}
