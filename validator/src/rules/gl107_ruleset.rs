//! GL107 `ruleset`.

use schemas::contract::EvidenceProfile;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Rule, RuleInfo, Sink};
use crate::rules::EDITION;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL107",
    name: "ruleset",
    what: "The contract names the edition and evidence profile of the rules that this validator evaluates.",
    why: "A contract is judged by the rules that it was frozen under, neither by milder nor by stricter ones.",
    remedy: "audit it with a validator of that edition, or name this one's edition before the freeze",
    reference: "docs/CONTRACT.md, \"RulesetBinding\"",
    gate: Route::RejectFrozenInputs,
};

pub(crate) struct Ruleset;

impl Rule for Ruleset {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn open<'a>(&self, frozen: &'a Frozen) -> Box<dyn Check + 'a> {
        Box::new(State { frozen })
    }
}

struct State<'a> {
    frozen: &'a Frozen,
}

impl Check for State<'_> {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, _: &Entry, _: &mut Sink) {}

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        let ruleset = &self.frozen.contract.ruleset;
        if ruleset.edition != EDITION {
            sink.not_evaluated(
                At::entry(0, "/body/det/contract#/ruleset/edition"),
                "the contract asks for an edition of the rules that this validator does not have",
                EDITION,
                &ruleset.edition,
            );
        }
        if ruleset.profile != EvidenceProfile::Native {
            sink.not_evaluated(
                At::entry(0, "/body/det/contract#/ruleset/profile"),
                "the contract asks for an evidence profile that this edition does not evaluate",
                "native",
                "external-loop",
            );
        }
        Outcome::Checked(2)
    }
}
