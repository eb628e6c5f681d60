//! Whether roles could be different people is said, never assumed.

use schemas::report::Route;

use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome};
use crate::rules::common::{at_end, declare_rule};

declare_rule!(
    /// `GL704`.
    IndependenceRule,
    {
        code: "GL704",
        name: "independence",
        what: "Notes which roles' keys were made on one host, and where heads are kept by the operator alone.",
        why: "Keys that were made on one host may be in one hand, and whoever holds the trainer's key and every copy of the heads \
              could rewrite the ledger. A reader must know which of it was excluded.",
        remedy: "Let the qualifier and a witness make their keys on hosts of their own. A note changes no verdict.",
        reference: "docs/CONTRACT.md, \"Keys\"",
        gate: Route::RejectIdentity,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let keys = &frozen.contract.keys;
    at_end(move |_, sink| {
        let roles = [
            ("owner", keys.owner.host),
            ("trainer", keys.trainer.host),
            ("validator", keys.validator.host),
            ("qualifier", keys.qualifier.host),
        ];
        for (index, (role, host)) in roles.iter().enumerate() {
            if let Some((other, _)) = roles[..index].iter().find(|(_, earlier)| earlier == host) {
                let message = format!("independence of {other} and {role} is not established");
                sink.note(
                    At::place("contract /keys"),
                    message,
                    "keys made on different hosts",
                    format!("both on {host}"),
                );
            }
        }
        if keys.witness_quorum == 0 {
            let message = "no witness must cosign heads";
            sink.note(
                At::place("contract /keys/witness_quorum"),
                message,
                "a head kept by somebody else",
                "0",
            );
        }
        Outcome::Checked(roles.len() as u64)
    })
}
