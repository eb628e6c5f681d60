//! What a rule is: its text, its check over the entries, and the sink that
//! takes its findings.
//!
//! A rule never stops an audit and never sees the findings of another one, so
//! that one finding cannot suppress another. Every finding carries what was
//! expected, what is there, where, and what to do; the sink's methods take all
//! of them, so none can be left out.

use std::fmt::Display;

use schemas::contract::FaultKind;
use schemas::entry::Entry;
use schemas::finding::{Effect, Finding, Severity};
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::left_out::LeftOut;

/// Findings of one rule that are listed one by one; further ones are counted.
/// A run whose every step is wrong would otherwise fill the report.
pub const MAX_LISTED_FINDINGS: usize = 100;

/// The text of a rule: what `ledger rule CODE`, the pages and the report show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleInfo {
    /// Stable code: `GL101`.
    pub code: &'static str,
    /// Kebab-case name.
    pub name: &'static str,
    /// What it checks.
    pub what: &'static str,
    /// Why it matters.
    pub why: &'static str,
    /// How to resolve a finding.
    pub remedy: &'static str,
    /// Where the requirement is specified.
    pub reference: &'static str,
    /// Gate that fails with this rule.
    pub gate: Route,
}

/// A rule over the entries of a run whose contract could be read.
pub trait Rule: Sync {
    /// Its text.
    fn info(&self) -> &'static RuleInfo;

    /// Begins a check of one ledger. Where an input of the freeze that the
    /// rule needs is missing, return [`unavailable`].
    fn open<'a>(&self, frozen: &'a Frozen) -> Box<dyn Check + 'a>;

    /// Whether its check sees the entries in the order in which they were
    /// recorded, and not in logical order ([`crate::logical`]).
    fn follows_recorded_order(&self) -> bool {
        false
    }
}

/// One pass of a rule over one ledger; memory must not grow with the steps.
pub trait Check {
    /// Whether `step` entries mean nothing to it, so that it need not be called for
    /// the most frequent kind. Tests show such checks the steps all the same, and
    /// require that it makes no difference.
    fn ignores_steps(&self) -> bool {
        false
    }

    /// Sees every entry that could be parsed, in logical order or in that of
    /// recording, as its rule says.
    fn entry(&mut self, entry: &Entry, sink: &mut Sink);

    /// The same with the stored bytes of the entry's determined half, where they
    /// are at hand: for a check that hashes them.
    fn entry_with_det(&mut self, entry: &Entry, _det: Option<&[u8]>, sink: &mut Sink) {
        self.entry(entry, sink);
    }

    /// The same for an entry in which an earlier audit by the same rule found
    /// nothing, and whose bytes and predecessors are what it saw. Work whose result
    /// follows from these and the frozen inputs alone may be left out; what later
    /// entries are compared with may not, and everything is counted as ever.
    fn settled_entry(&mut self, entry: &Entry, det: Option<&[u8]>, sink: &mut Sink) {
        self.entry_with_det(entry, det, sink);
    }

    /// Called before the first entry by whoever cannot show the entries twice.
    fn sees_all_once(&mut self) {}

    /// Whether, after the last entry, it has to see all of them once more from the
    /// first on: for a check whose work is seldom needed, and that learns late that
    /// it is. Until then it has reported nothing.
    fn needs_all_again(&mut self) -> bool {
        false
    }

    /// Sees what is beside the entries, after the last of them.
    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome;
}

/// What became of a check, apart from its findings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It looked at so many things.
    Checked(u64),
    /// The contract has nothing for it to check, because of this.
    NotApplicable(String),
    /// It lacked this.
    NotEvaluated(String),
}

struct Unavailable {
    reason: String,
}

impl Check for Unavailable {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, _: &Entry, _: &mut Sink) {}

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::NotEvaluated(self.reason.clone())
    }
}

/// A check that cannot run, and says why.
#[must_use]
pub fn unavailable<'a>(reason: impl Into<String>) -> Box<dyn Check + 'a> {
    Box::new(Unavailable { reason: reason.into() })
}

/// Where a finding is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At {
    cause: Option<FaultKind>,
    entry: Option<u64>,
    location: String,
    remedy: Option<String>,
}

impl At {
    /// In an entry; `pointer` is a JSON pointer into it, such as
    /// `/body/det/draws/0/ids`, or empty for the entry as a whole.
    #[must_use]
    pub fn entry(index: u64, pointer: impl Into<String>) -> Self {
        Self { cause: None, entry: Some(index), location: pointer.into(), remedy: None }
    }

    /// In a file, a table or the ledger as a whole.
    #[must_use]
    pub fn place(location: impl Into<String>) -> Self {
        Self { cause: None, entry: None, location: location.into(), remedy: None }
    }

    /// Names the fault family that explains what was found, where the rule can
    /// tell.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<Option<FaultKind>>) -> Self {
        self.cause = cause.into();
        self
    }

    /// Replaces the rule's own remedy by a closer one.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// Takes the findings of one rule.
#[derive(Debug)]
pub struct Sink {
    info: &'static RuleInfo,
    findings: Vec<Finding>,
    num_unlisted: u64,
    worst_unlisted: Effect,
    num_errors: u64,
    /// Files that were left out, so that nothing follows from their absence.
    excused: LeftOut,
}

impl Sink {
    /// A sink for one rule.
    #[must_use]
    pub fn new(info: &'static RuleInfo) -> Self {
        Self {
            info,
            findings: Vec::new(),
            num_unlisted: 0,
            worst_unlisted: Effect::None,
            num_errors: 0,
            excused: LeftOut::default(),
        }
    }

    /// From now on nothing is found of files that were left out of what is audited,
    /// once the rule has asked for them, but what could not be evaluated. Asking
    /// makes the rule itself not evaluated, so no text that an entry holds can
    /// silence a rule that would pass.
    pub(crate) fn excuse(&mut self, left_out: LeftOut) {
        self.excused = left_out;
    }

    /// Bytes are not what was committed to.
    pub fn tampered(&mut self, at: At, message: impl Display, expected: impl Display, actual: impl Display) {
        self.push(Severity::Error, Effect::Tampered, at, &message, &expected, &actual);
    }

    /// The rule is broken.
    pub fn rejected(&mut self, at: At, message: impl Display, expected: impl Display, actual: impl Display) {
        self.push(Severity::Error, Effect::Rejected, at, &message, &expected, &actual);
    }

    /// The run is not over, or a part of its record is missing.
    pub fn incomplete(
        &mut self,
        at: At,
        message: impl Display,
        expected: impl Display,
        actual: impl Display,
    ) {
        self.push(Severity::Error, Effect::Incomplete, at, &message, &expected, &actual);
    }

    /// One thing could not be evaluated; the rule as a whole may have run.
    pub fn not_evaluated(
        &mut self,
        at: At,
        message: impl Display,
        expected: impl Display,
        actual: impl Display,
    ) {
        self.push(Severity::Error, Effect::NotEvaluated, at, &message, &expected, &actual);
    }

    /// Suspicious; changes no verdict.
    pub fn warning(&mut self, at: At, message: impl Display, expected: impl Display, actual: impl Display) {
        self.push(Severity::Warning, Effect::None, at, &message, &expected, &actual);
    }

    /// Worth knowing; changes no verdict.
    pub fn note(&mut self, at: At, message: impl Display, expected: impl Display, actual: impl Display) {
        self.push(Severity::Note, Effect::None, at, &message, &expected, &actual);
    }

    /// Errors so far, listed or not.
    #[must_use]
    pub fn num_errors(&self) -> u64 {
        self.num_errors
    }

    fn push(
        &mut self,
        severity: Severity,
        effect: Effect,
        at: At,
        message: &dyn Display,
        expected: &dyn Display,
        actual: &dyn Display,
    ) {
        let actual = actual.to_string();
        // The rule is not evaluated then, and its reason names the file.
        let asked = actual.strip_suffix(crate::evidence::WAS_LEFT_OUT);
        if asked.is_some_and(|file| self.excused.was_asked_for(file)) {
            return;
        }
        let is_excused = self.excused.was_asked_for(&at.location);
        let effect = if is_excused { effect.min(Effect::NotEvaluated) } else { effect };
        if severity == Severity::Error {
            self.num_errors += 1;
        }
        if self.findings.len() >= MAX_LISTED_FINDINGS {
            self.num_unlisted += 1;
            self.worst_unlisted = self.worst_unlisted.max(effect);
            return;
        }
        self.findings.push(Finding {
            actual,
            cause: at.cause,
            code: self.info.code.to_owned(),
            effect,
            entry: at.entry,
            expected: expected.to_string(),
            location: at.location,
            message: message.to_string(),
            remedy: at.remedy.unwrap_or_else(|| self.info.remedy.to_owned()),
            rule: self.info.name.to_owned(),
            severity,
        });
    }

    /// The findings, with a last one that counts those beyond the limit and
    /// carries the worst of their effects.
    pub(crate) fn into_findings(mut self) -> Vec<Finding> {
        if self.num_unlisted > 0 {
            let severity = if self.worst_unlisted == Effect::None { Severity::Note } else { Severity::Error };
            self.findings.push(Finding {
                actual: format!("{} more", self.num_unlisted),
                cause: None,
                code: self.info.code.to_owned(),
                effect: self.worst_unlisted,
                entry: None,
                expected: format!("at most {MAX_LISTED_FINDINGS} findings of one rule"),
                location: "ledger".to_owned(),
                message: format!(
                    "{} more findings of this rule are not listed one by one",
                    self.num_unlisted
                ),
                remedy: self.info.remedy.to_owned(),
                rule: self.info.name.to_owned(),
                severity,
            });
        }
        self.findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static INFO: RuleInfo = RuleInfo {
        code: "GL000",
        name: "test",
        what: "",
        why: "",
        remedy: "do it again",
        reference: "",
        gate: Route::RejectIdentity,
    };

    #[test]
    fn findings_beyond_the_limit_are_counted_and_keep_their_effect() {
        let mut sink = Sink::new(&INFO);
        for index in 0..MAX_LISTED_FINDINGS as u64 {
            sink.warning(At::entry(index, ""), "odd", 1, 2);
        }
        sink.warning(At::entry(100, ""), "odd", 1, 2);
        sink.rejected(At::entry(101, "").remedy("look"), "wrong", 1, 2);
        assert_eq!(sink.num_errors(), 1);
        let findings = sink.into_findings();
        assert_eq!(findings.len(), MAX_LISTED_FINDINGS + 1);
        let last = &findings[MAX_LISTED_FINDINGS];
        assert_eq!((last.effect, last.severity), (Effect::Rejected, Severity::Error));
        assert_eq!(last.actual, "2 more");
        assert_eq!(findings[0].remedy, "do it again");
    }

    #[test]
    fn only_a_rule_that_asked_is_silent_of_what_was_left_out() {
        let text = "a was left out of the bundle";
        let left_out = LeftOut::new(["a".to_owned()].into());
        let mut sink = Sink::new(&INFO);
        sink.excuse(left_out.clone());
        // Anybody can write these words into an entry.
        sink.tampered(At::entry(1, ""), "wrong", 1, text);
        assert!(left_out.has("a") && !left_out.has("b"));
        sink.tampered(At::place("a"), "gone", 1, text);
        sink.tampered(At::place("a"), "another size", 1, 2);
        sink.tampered(At::place("b"), "gone", 1, "b was left out of the bundle");
        let effects: Vec<Effect> = sink.into_findings().iter().map(|finding| finding.effect).collect();
        assert_eq!(effects, [Effect::Tampered, Effect::NotEvaluated, Effect::Tampered]);
    }
}
