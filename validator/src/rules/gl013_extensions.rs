//! GL013 `extensions`.

use schemas::entry::Extension;
use schemas::report::Route;

use crate::row::{RowCheck, RowContext};
use crate::rule::{At, Outcome, RuleInfo, Sink};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL013",
    name: "extensions",
    what: "Extensions of contract and entries have names of their own and are known to this edition, or not critical. This edition knows none.",
    why: "Who marks an extension critical says that a verdict without it would be wrong.",
    remedy: "audit it with a validator that knows the extension",
    reference: "docs/CONTRACT.md, \"Extension\"; docs/FORMAT.md, \"Entry\"",
    gate: Route::RejectFrozenInputs,
};

#[derive(Default)]
pub(crate) struct Extensions {
    num_checked: u64,
}

impl Extensions {
    /// Looks at the contract's own extensions.
    pub(crate) fn contract(&mut self, extensions: &[Extension], sink: &mut Sink) {
        self.check(extensions, 0, "/body/det/contract#/extensions", sink);
    }

    fn check(&mut self, extensions: &[Extension], position: u64, pointer: &str, sink: &mut Sink) {
        self.num_checked += 1;
        for (index, extension) in extensions.iter().enumerate() {
            let at = At::entry(position, format!("{pointer}/{index}"));
            let mut earlier = extensions.iter().take(index);
            if extension.name.trim().is_empty() || earlier.any(|other| other.name == extension.name) {
                let message = "an extension has no name, or that of another";
                sink.rejected(at.clone(), message, "a name of its own", format!("{:?}", extension.name));
            }
            let actual = format!("{} with schema {}", extension.name, extension.schema_digest);
            if extension.critical {
                sink.not_evaluated(at, "a critical extension is not known", "a known extension", actual);
            } else {
                sink.note(at, "an extension that is not known is hashed and listed only", "any", actual);
            }
        }
    }
}

impl RowCheck for Extensions {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn row(&mut self, context: &RowContext<'_>, sink: &mut Sink) {
        let Ok(entry) = &context.entry else { return };
        self.check(&entry.header.extensions, context.position, "/extensions", sink);
    }

    fn finish(&mut self, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
