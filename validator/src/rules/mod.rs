//! The catalogue: every rule of the edition, one file a rule, in the order of
//! their codes.
//!
//! `GL0xx` integrity and identity, `GL1xx` contract and frozen inputs, from
//! `GL2xx` on what happened in the run. An edition is never edited: a change
//! of what a rule accepts is a new edition.

use crate::rule::{Rule, RuleInfo};

/// Edition of the rules below; a contract names the one it is judged by.
pub const EDITION: &str = "2026.1";

/// Rules over parsed entries, opened with the frozen inputs.
pub(crate) static RUN_RULES: &[&dyn Rule] = &[];

/// The text of every rule, in the order of their codes.
#[must_use]
pub fn catalogue() -> &'static [&'static RuleInfo] {
    static CATALOGUE: std::sync::OnceLock<Vec<&'static RuleInfo>> = std::sync::OnceLock::new();
    CATALOGUE.get_or_init(|| {
        let mut all: Vec<&'static RuleInfo> = RUN_RULES.iter().map(|rule| rule.info()).collect();
        all.sort_by_key(|info| info.code);
        all
    })
}

/// A rule by its code, in any case: `GL101`.
#[must_use]
pub fn find(code: &str) -> Option<&'static RuleInfo> {
    catalogue().iter().copied().find(|info| info.code.eq_ignore_ascii_case(code))
}
