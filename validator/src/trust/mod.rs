//! Who might want the claim to be false, what each of them can do, and what
//! shows it: the trust statement as a table.
//!
//! The table is a promise, and each line of it is carried out against a real
//! run in `tests/system/adversaries/`: with the keys that the line names, first
//! with what lies beside the ledger alone and then with a head that was kept
//! elsewhere, and the audit has to show what the line says and nothing more.
//! What an audit could have shown, given the evidence that it had, is a member
//! of its report; it changes no verdict, since that an adversary could have
//! acted is no evidence that one did.

mod markdown;
mod table;

use schemas::report::{HeadSource, RuleResult, RuleStatus};
use schemas::trust::{ClassInReach, Reach, ShownBy, TrustScope, WayInReach};

use crate::evidence::VerifiedHead;

pub use markdown::markdown;
pub use table::CLASSES;

/// A class of adversaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdversaryClass {
    /// Kebab-case name: `tail-cut`.
    pub name: &'static str,
    /// What is done, in one sentence.
    pub what: &'static str,
    /// In which ways; at least one.
    pub ways: &'static [Way],
}

/// One way in which a class acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Kebab-case name, unique within its class: `after-the-end`.
    pub name: &'static str,
    /// What is done, in one sentence.
    pub what: &'static str,
    /// Keys and means that it takes.
    pub holds: &'static str,
    /// The least evidence that shows it.
    pub shown_by: ShownBy,
    /// Whether public keys that came another way (`--trust FILE`) show it too.
    pub keys_show_it: bool,
    /// Whether what is shown is a warning, which changes no verdict.
    pub is_warning: bool,
    /// Rules that see it with that evidence, each of them; for what nothing
    /// shows, rules whose notes say so.
    pub rules: &'static [&'static str],
    /// Why no less is enough, or what is left to do.
    pub why: &'static str,
}

/// A class by its name, in any case.
#[must_use]
pub fn find(name: &str) -> Option<&'static AdversaryClass> {
    CLASSES.iter().find(|class| class.name.eq_ignore_ascii_case(name))
}

/// The evidence in words.
const fn shown_by_text(shown_by: ShownBy) -> &'static str {
    match shown_by {
        ShownBy::Alone => "the audit alone",
        ShownBy::ExternalHead => "only a head kept elsewhere",
        ShownBy::Witness => "only a witness",
        ShownBy::NotAtAll => "nothing",
    }
}

/// What shows a way, with the rules that do.
#[must_use]
pub fn shown_in_words(way: &Way) -> String {
    let mut text = shown_by_text(way.shown_by).to_owned();
    if way.keys_show_it {
        text.push_str(", or public keys that came another way (`--trust`)");
    }
    if way.is_warning {
        text.push_str(", as a warning");
    }
    let rules = way.rules.join(", ");
    match (way.rules.is_empty(), way.shown_by) {
        (true, _) => {}
        (false, ShownBy::NotAtAll) => text.push_str(&format!("; a note says that it could be ({rules})")),
        (false, _) => text.push_str(&format!(" ({rules})")),
    }
    text
}

/// What an audit could have shown: `head_file` says where the head file lay that
/// it had, `heads` are those that verified, `keys_compared` says whether there
/// was a trust file, `rules` what became of each rule.
pub(crate) fn scope(
    head_file: Option<HeadSource>,
    heads: &[VerifiedHead],
    keys_compared: bool,
    rules: &[RuleResult],
) -> TrustScope {
    // A named head file is read in the place of the one beside the ledger. One
    // whose heads do not verify was evidence too, and its finding says so.
    let head_source = head_file.unwrap_or(HeadSource::Database);
    let of_file = heads.iter().filter(|head| head.source != HeadSource::Database);
    let head_size = of_file.map(|head| head.size).max().unwrap_or(0);
    let evidence = Evidence { head_source, keys_compared, rules };
    let classes = CLASSES
        .iter()
        .map(|class| ClassInReach {
            class: class.name.to_owned(),
            ways: class.ways.iter().map(|way| evidence.judge(way)).collect(),
        })
        .collect();
    TrustScope { classes, head_size, head_source, keys_compared }
}

/// A quorum at the end and before the first step: what a witness shows takes
/// both. The second does not apply where the contract names none.
const WITNESS_RULES: [&str; 2] = ["GL014", "GL015"];

/// What one audit had.
struct Evidence<'a> {
    head_source: HeadSource,
    keys_compared: bool,
    rules: &'a [RuleResult],
}

impl Evidence<'_> {
    fn judge(&self, way: &Way) -> WayInReach {
        let (reach, lacks) = self.reach(way);
        WayInReach { lacks, reach, shown_by: way.shown_by, way: way.name.to_owned() }
    }

    fn reach(&self, way: &Way) -> (Reach, Option<String>) {
        let not_shown = |lacks: &str| (Reach::NotShown, Some(lacks.to_owned()));
        match way.shown_by {
            ShownBy::NotAtAll => return not_shown("no evidence that an audit could read shows it"),
            ShownBy::Witness if self.is_witnessed() => return (Reach::Shown, None),
            ShownBy::Witness => {
                return not_shown("cosignatures of witnesses that the contract names (`ledger witness add`)");
            }
            ShownBy::ExternalHead if way.keys_show_it && self.keys_compared => return (Reach::Shown, None),
            ShownBy::ExternalHead if self.head_source == HeadSource::Database => {
                let keys = if way.keys_show_it { ", or public keys (--trust FILE)" } else { "" };
                return not_shown(&format!("a head that was kept elsewhere (--head FILE){keys}"));
            }
            ShownBy::ExternalHead | ShownBy::Alone => {}
        }
        if let Some(silent) = self.silent(way) {
            return not_shown(&silent);
        }
        match (way.shown_by, self.head_source) {
            (ShownBy::ExternalHead, HeadSource::Beside) => (Reach::ShownUnlessHeadFileToo, None),
            _ => (Reach::Shown, None),
        }
    }

    /// Whether the contract's witnesses cosigned the run from before its first
    /// step to its end.
    fn is_witnessed(&self) -> bool {
        WITNESS_RULES
            .iter()
            .all(|code| self.rules.iter().any(|rule| rule.code == *code && rule.status == RuleStatus::Passed))
    }

    /// The rules of a way that looked at nothing, and why. A rule that does not
    /// apply has shown no more than one that could not run: where no handoff lies
    /// beside the ledger, none can tell that the candidate is another.
    fn silent(&self, way: &Way) -> Option<String> {
        let silent = way.rules.iter().filter_map(|code| {
            let result = self.rules.iter().find(|rule| rule.code == *code);
            let looked = |rule: &RuleResult| matches!(rule.status, RuleStatus::Passed | RuleStatus::Failed);
            if result.is_some_and(looked) {
                return None;
            }
            let reason = result.and_then(|rule| rule.reason.as_deref()).unwrap_or("it could not run");
            Some(format!("something for {code} to look at ({reason})"))
        });
        let silent: Vec<String> = silent.collect();
        (!silent.is_empty()).then(|| silent.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fixture::{StoredRun, honest_run};
    use crate::rules;

    /// The classes that the issue names, and no line that says nothing.
    #[test]
    fn thirteen_classes_with_names_rules_and_reasons() {
        assert_eq!(CLASSES.len(), 13);
        let mut seen = BTreeSet::new();
        for class in CLASSES {
            assert!(seen.insert(class.name.to_owned()), "{} is used twice", class.name);
            assert!(!class.ways.is_empty(), "{}", class.name);
            for way in class.ways {
                let name = format!("{}/{}", class.name, way.name);
                assert!(seen.insert(name.clone()), "{name} is used twice");
                for text in [class.what, way.what, way.holds, way.why] {
                    assert!(text.len() > 3 && !text.ends_with('.'), "{name}: {text:?}");
                }
                for code in way.rules {
                    assert!(rules::find(code).is_some(), "{name} names {code}, which is no rule");
                }
                let needs_rules = way.shown_by != ShownBy::NotAtAll;
                assert!(!needs_rules || !way.rules.is_empty(), "{name} is shown by no rule");
                let has_extras = way.keys_show_it || way.is_warning;
                assert!(way.shown_by != ShownBy::NotAtAll || !has_extras, "{name} contradicts itself");
            }
        }
    }

    fn reach(scope: &TrustScope, class: &str, way: &str) -> (Reach, bool) {
        let class = scope.classes.iter().find(|given| given.class == class).expect("the class");
        let way = class.ways.iter().find(|given| given.way == way).expect("the way");
        (way.reach, way.lacks.is_some())
    }

    #[test]
    fn the_report_says_what_its_evidence_could_show() {
        let run = StoredRun::new(honest_run());
        let scope_of = |run: &StoredRun| run.audit().trust.expect("every report has it");
        let beside = scope_of(&run);
        assert_eq!((beside.head_source, beside.keys_compared), (HeadSource::Beside, false));
        assert_eq!(beside.head_size, run.audit().num_entries);
        assert_eq!(reach(&beside, "sql-edits", "row-updated"), (Reach::Shown, false));
        let cut = |scope: &TrustScope| reach(scope, "tail-cut", "after-the-end");
        assert_eq!(cut(&beside), (Reach::ShownUnlessHeadFileToo, false));
        assert_eq!(reach(&beside, "two-ledgers", "one-freeze-run-twice"), (Reach::NotShown, true));
        assert_eq!(reach(&beside, "opened-early", "in-private"), (Reach::NotShown, true));
        // No candidate was handed off: nothing says what a handoff saw.
        assert_eq!(reach(&beside, "checkpoint-swapped", "files"), (Reach::Shown, false));
        assert_eq!(reach(&beside, "checkpoint-swapped", "files-and-record"), (Reach::NotShown, true));
        assert_eq!(reach(&beside, "foreign-candidate", "handoff"), (Reach::NotShown, true));
        std::fs::remove_file(run.beside("run.db.head")).expect("a head file");
        let without = scope_of(&run);
        assert_eq!((without.head_source, without.head_size), (HeadSource::Database, 0));
        assert_eq!(cut(&without), (Reach::NotShown, true));
        assert_eq!(reach(&without, "sql-edits", "row-updated"), (Reach::Shown, false));
    }

    #[test]
    fn a_named_head_and_a_trust_file_reach_farther_and_a_silent_rule_less_far() {
        let head = |source| VerifiedHead { origin: String::new(), root: [0; 32], size: 9, source };
        let result = |code: &str, status| RuleResult {
            code: code.to_owned(),
            num_checked: 1,
            reason: None,
            rule: String::new(),
            status,
        };
        let rules = [
            result("GL009", RuleStatus::Passed),
            result("GL106", RuleStatus::NotEvaluated),
            result("GL111", RuleStatus::Passed),
            result("GL112", RuleStatus::NotApplicable),
        ];
        let heads = [head(HeadSource::Database), head(HeadSource::Named)];
        let named = scope(Some(HeadSource::Named), &heads, false, &rules);
        assert_eq!((named.head_source, named.head_size), (HeadSource::Named, 9));
        let foreign = scope(Some(HeadSource::Named), &heads[..1], false, &rules);
        assert_eq!((foreign.head_source, foreign.head_size), (HeadSource::Named, 0));
        assert_eq!(reach(&named, "tail-cut", "after-the-end"), (Reach::Shown, false));
        assert_eq!(reach(&named, "frozen-again", "into-the-ledger"), (Reach::NotShown, true));
        // One of two rules is not enough, and one that does not apply is none.
        assert_eq!(reach(&named, "foreign-candidate", "handoff"), (Reach::NotShown, true));
        let handed_off = rules.clone().map(|rule| RuleResult { status: RuleStatus::Passed, ..rule });
        let named = scope(Some(HeadSource::Named), &heads, false, &handed_off);
        assert_eq!(reach(&named, "foreign-candidate", "handoff"), (Reach::Shown, false));
        let stranger = |scope: &TrustScope| reach(scope, "ledger-replaced", "by-a-stranger");
        assert_eq!(stranger(&scope(None, &[], true, &rules)), (Reach::Shown, false));
        assert_eq!(stranger(&scope(None, &[], false, &rules)), (Reach::NotShown, true));
        assert_eq!(
            reach(&scope(None, &[], true, &rules), "tail-cut", "after-the-end"),
            (Reach::NotShown, true)
        );
    }
}
