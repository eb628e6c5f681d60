//! GL107 `ruleset`.

use schemas::contract::{Contract, EXTERNAL_NONCLAIM, EXTERNAL_PACKAGE, EvidenceProfile};
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::profile;
use crate::rule::{At, Check, Outcome, Rule, RuleInfo, Sink};
use crate::rules::EDITION;

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL107",
    name: "ruleset",
    what: "The contract names the edition and evidence profile of the rules that this validator evaluates. The profile external-loop \
           is that of code package external-loop, names the loop's files in order, whose digests give the code's, and \
           carries its nonclaim; native is that of other packages and names no loop.",
    why: "A contract is judged by the rules that it was frozen under, neither by milder nor by stricter ones. What a loop of \
          one's own recorded shows less than what the project's trainer did, and has to say so.",
    remedy: "audit it with a validator of that edition, or name this one's edition before the freeze; freeze a loop of your own \
             with the profile external-loop",
    reference: "docs/CONTRACT.md, \"RulesetBinding\"; docs/FORMAT.md, \"External loops\"",
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

fn at(pointer: &str) -> At {
    At::entry(0, format!("/body/det/contract#{pointer}"))
}

/// Whether profile, package, files and nonclaim belong together.
fn check_profile(contract: &Contract, sink: &mut Sink) {
    let is_external = contract.ruleset.profile == EvidenceProfile::ExternalLoop;
    let (package, wanted) = (&contract.code.package, if is_external { "only" } else { "any other than" });
    if (package == EXTERNAL_PACKAGE) != is_external {
        let message = "the profile is not that of the code which the contract names";
        sink.rejected(at("/code/package"), message, format!("{wanted} {EXTERNAL_PACKAGE}"), package);
    }
    if contract.external_loop.is_some() != is_external {
        let message = "the files of a loop are named exactly where the profile is external-loop";
        let (expected, actual) = if is_external { ("files", "none") } else { ("none", "files") };
        sink.rejected(at("/external_loop"), message, expected, actual);
    }
    if !is_external {
        return;
    }
    let expected = profile::code_digest(contract);
    if expected != Some(contract.code.digest) {
        let message = "the code's digest is not that of the loop's files";
        let expected = expected.map_or("files in order, each once".to_owned(), |digest| digest.to_string());
        sink.rejected(at("/code/digest"), message, expected, contract.code.digest);
    }
    if !contract.nonclaims.iter().any(|nonclaim| nonclaim == EXTERNAL_NONCLAIM) {
        let message = "the contract does not say that a loop of its owner's own trained";
        sink.rejected(at("/nonclaims"), message, EXTERNAL_NONCLAIM, contract.nonclaims.join("; "));
    }
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
                at("/ruleset/edition"),
                "the contract asks for an edition of the rules that this validator does not have",
                EDITION,
                &ruleset.edition,
            );
        }
        check_profile(&self.frozen.contract, sink);
        Outcome::Checked(2)
    }
}
