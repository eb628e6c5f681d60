//! What an evidence profile asks of a run, and what it does not promise.
//!
//! `native` is the project's own trainer, whose code digest stands for what was
//! computed, and promises every rule of the edition. `external-loop` is a loop
//! of somebody's own that gave its numbers to the recorder. The table below says
//! rule by rule what that shows less of, and which rules have nothing to look
//! at; a report of such a run carries all of it. A rule is left out only where
//! the honest run of an external loop could not keep it: everything that can be
//! compared is compared, whoever recorded it.

use schemas::contract::{Contract, EXTERNAL_CODE_DOMAIN, EvidenceProfile};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::report::NotPromised;
use sha2::{Digest as _, Sha256};

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{Check, Outcome, Rule, Sink};
use crate::rules;

/// A line of the table.
struct Line {
    code: &'static str,
    /// Whether the rule runs all the same.
    evaluated: bool,
    why: &'static str,
}

const fn left_out(code: &'static str, why: &'static str) -> Line {
    Line { code, evaluated: false, why }
}

const fn shows_less(code: &'static str, why: &'static str) -> Line {
    Line { code, evaluated: true, why }
}

/// What `external-loop` does not promise, in the order of codes.
static EXTERNAL_LOOP: &[Line] = &[
    shows_less(
        "GL205",
        "Steps that were executed again have the numbers that the loop gave both times; that it computed them twice is its word.",
    ),
    shows_less(
        "GL206",
        "The code is that of the files that the owner named. What they import, the interpreter and the framework are not in its \
         digest, and that these files are what ran is the word of whoever held the trainer's key.",
    ),
    shows_less(
        "GL207",
        "Backend and number of threads are what the loop said of itself; nobody looked at CPU features or kernels.",
    ),
    shows_less(
        "GL212",
        "Costs are of the recording process. Time is measured between calls of the recorder, and other processes are not seen.",
    ),
    shows_less(
        "GL304",
        "The bytes are those that the loop handed over as what entered its model. A native run takes them from the tensors.",
    ),
    shows_less(
        "GL401",
        "The rate is the one that the loop says it used; that its optimizer did is not shown.",
    ),
    shows_less("GL402", "Decay and groups are those that the loop says it used, and norms may be left out."),
    shows_less(
        "GL403",
        "The coefficient follows from the recorded norm; that gradients were multiplied by it is the loop's word.",
    ),
    left_out(
        "GL408",
        "The loop makes its initial parameters itself, so that seed and path do not determine them. The checkpoint of step 0 \
         holds them as they were.",
    ),
    shows_less(
        "GL416",
        "A loop need not take norms. Where it takes none, the card's epsilon, decay and betas are compared with no saved state, \
         and the rule is not applicable.",
    ),
    shows_less(
        "GL503",
        "The sum behind a value is the loop's. Only where the evaluator recomputed the candidates (GL508) is it somebody else's.",
    ),
    shows_less(
        "GL604",
        "State that the framework keeps for itself, such as generators, caches and graphs, is in no class.",
    ),
    shows_less(
        "GL607",
        "The recorder writes cursor, topology and plan. That a resumed loop went on from them shows only in what it drew \
         afterwards (GL302 to GL304) and in steps that it executed again (GL205).",
    ),
    left_out(
        "GL640",
        "The recorder does not look at the tensors that it saves. The rules that judge them (GL641 and on) read the bytes as ever.",
    ),
    shows_less(
        "GL647",
        "Nothing can execute the loop a second time, so that there is no probe of a resume: qualification stays open.",
    ),
];

fn table(profile: EvidenceProfile) -> &'static [Line] {
    match profile {
        EvidenceProfile::Native => &[],
        EvidenceProfile::ExternalLoop => EXTERNAL_LOOP,
    }
}

/// Begins a check of a run, or says why its profile leaves the rule out.
pub(crate) fn open<'a>(rule: &dyn Rule, frozen: &'a Frozen) -> Box<dyn Check + 'a> {
    let lines = table(frozen.contract.ruleset.profile);
    let line = lines.iter().find(|line| line.code == rule.info().code && !line.evaluated);
    match line {
        Some(line) => Box::new(LeftOut { why: line.why }),
        None => rule.open(frozen),
    }
}

/// Stands for a rule that the profile does not promise.
struct LeftOut {
    why: &'static str,
}

impl Check for LeftOut {
    fn entry(&mut self, _: &Entry, _: &mut Sink) {}

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::NotApplicable(format!("the profile external-loop does not promise it: {}", self.why))
    }
}

/// What the profile of a contract does not promise, for its report.
pub(crate) fn not_promised(contract: Option<&Contract>) -> Vec<NotPromised> {
    let lines = contract.map_or(&[][..], |contract| table(contract.ruleset.profile));
    let line = |line: &Line| NotPromised {
        code: line.code.to_owned(),
        evaluated: line.evaluated,
        rule: rules::find(line.code).map_or_else(String::new, |info| info.name.to_owned()),
        why: line.why.to_owned(),
    };
    lines.iter().map(line).collect()
}

/// Where the contract binds files of a loop, which the ledger has to hold.
pub(crate) fn pointers(contract: &Contract) -> impl Iterator<Item = String> {
    let num_files = contract.external_loop.as_ref().map_or(0, |external| external.files.len());
    (0..num_files).map(|index| format!("/external_loop/files/{index}"))
}

/// The digest that the files of a contract's loop give its code; `None` where
/// it names none, names one twice or out of order, or binds no digest.
pub(crate) fn code_digest(contract: &Contract) -> Option<Digest> {
    let files = &contract.external_loop.as_ref()?.files;
    if files.is_empty() || !files.is_sorted_by(|left, right| left.path < right.path) {
        return None;
    }
    let mut hasher = Sha256::new();
    hasher.update(EXTERNAL_CODE_DOMAIN);
    for file in files {
        hasher.update(file.path.as_bytes());
        hasher.update([0]);
        hasher.update(file.digest?.bytes);
    }
    Some(Digest::sha256(hasher.finalize().into()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use schemas::report::{RuleStatus, Verdict};

    use super::*;
    use crate::fixture::{StoredRun, external_loop};

    #[test]
    fn every_line_is_of_a_rule_and_the_table_is_in_order() {
        let codes: Vec<&str> = EXTERNAL_LOOP.iter().map(|line| line.code).collect();
        assert!(codes.is_sorted_by(|left, right| left < right), "{codes:?}");
        for line in EXTERNAL_LOOP {
            assert!(rules::find(line.code).is_some(), "{} is no rule", line.code);
            assert!(line.why.len() > 20 && line.why.ends_with('.'), "{}", line.code);
        }
    }

    /// Accepted, and nobody can read it as what a native run is.
    #[test]
    fn an_external_loop_is_accepted_under_its_own_name() {
        let report = StoredRun::new(external_loop().crash_after_step(6).build()).audit();
        assert_eq!(report.verdict, Verdict::Accepted, "{:#?}", report.findings);
        assert_eq!(report.verdict_text(), "accepted (external-loop)");
        assert_eq!(report.not_promised.len(), EXTERNAL_LOOP.len());
        let left_out: BTreeSet<&str> =
            EXTERNAL_LOOP.iter().filter(|line| !line.evaluated).map(|line| line.code).collect();
        for rule in &report.rules {
            if left_out.contains(rule.code.as_str()) {
                assert_eq!(rule.status, RuleStatus::NotApplicable, "{}", rule.code);
                assert!(rule.reason.as_deref().is_some_and(|reason| reason.contains("external-loop")));
            }
        }
        let text = crate::render::text(&report);
        assert!(text.starts_with("accepted (external-loop): "), "{text}");
        assert!(text.contains("GL408 initial-parameters (not evaluated)"), "{text}");
        let native = StoredRun::new(crate::fixture::honest_run()).audit();
        assert!(native.not_promised.is_empty() && native.verdict_text() == "accepted");
        assert!(!serde_json::to_string(&native).expect("serialises").contains("not_promised"));
    }
}
