//! GL011 `trusted-keys`.

use std::collections::BTreeMap;

use schemas::contract::Keys;
use schemas::report::Route;

use crate::rule::{At, Outcome, RuleInfo, Sink};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL011",
    name: "trusted-keys",
    what: "The contract's keys are those that the reviewer named with `--trust FILE`.",
    why: "A ledger brings its own keys; only keys that came another way show who signed.",
    remedy: "ask the team for its public keys over a channel that you trust",
    reference: "docs/CONTRACT.md, \"Keys\"",
    gate: Route::RejectIdentity,
};

/// Compares the contract's keys with the named ones, by role.
pub(crate) fn check(
    keys: Option<&Keys>,
    trust: Option<&BTreeMap<String, String>>,
    sink: &mut Sink,
) -> Outcome {
    let Some(trust) = trust else {
        return Outcome::NotApplicable(
            "no --trust file was given: keys are those that the contract names".to_owned(),
        );
    };
    let Some(keys) = keys else {
        return Outcome::NotEvaluated("the contract, which names the keys, could not be read".to_owned());
    };
    for (role, expected) in trust {
        let actual = match role.as_str() {
            "owner" => &keys.owner.public,
            "trainer" => &keys.trainer.public,
            "validator" => &keys.validator.public,
            _ => &keys.qualifier.public,
        };
        if actual != expected {
            sink.tampered(
                At::entry(0, format!("/body/det/contract#/keys/{role}/public")),
                format!("the contract's {role} key is not the one that you trust"),
                expected,
                actual,
            );
        }
    }
    Outcome::Checked(trust.len() as u64)
}
