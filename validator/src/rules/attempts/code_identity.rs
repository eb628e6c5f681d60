//! The code and environment that ran are the frozen ones.

use schemas::body::Body;
use schemas::contract::Contract;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL206`.
    CodeIdentity,
    {
        code: "GL206",
        name: "code-identity",
        what: "Every attempt names the contract's digest, the contract's code (package, version, features, digest embedded in \
               the binary) and the contract's environment.",
        why: "Another binary is another experiment: without its identity nobody can say which version trained the model.",
        remedy: "Rebuild the frozen code, or freeze a contract for the code at hand (`trainer identity --json` prints it).",
        reference: "docs/CONTRACT.md, \"Code\"",
        gate: Route::RejectIdentity,
    }
);

struct Identity<'a> {
    contract: &'a Contract,
    frozen: &'a Frozen,
    num_attempts: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Identity { contract: &frozen.contract, frozen, num_attempts: 0 })
}

impl Check for Identity<'_> {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        let Body::AttemptStart(halves) = &entry.body else { return };
        self.num_attempts += 1;
        let at = |pointer: &str| At::entry(entry.index, pointer);
        if halves.det.contract != self.frozen.digest {
            let message = "the attempt ran under another contract";
            sink.rejected(at("/body/det/contract"), message, self.frozen.digest, halves.det.contract);
        }
        let (expected, actual) = (&self.contract.code, &halves.det.code);
        if expected.digest != actual.digest {
            sink.rejected(at("/body/det/code/digest"), "another build ran", expected.digest, actual.digest);
        } else if expected != actual {
            let message = "the code is described differently";
            sink.rejected(at("/body/det/code"), message, format!("{expected:?}"), format!("{actual:?}"));
        }
        let (expected, actual) = (&self.contract.environment, &halves.obs.environment);
        if expected != actual {
            let message = "it ran in another environment";
            sink.rejected(
                at("/body/obs/environment"),
                message,
                format!("{expected:?}"),
                format!("{actual:?}"),
            );
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_attempts)
    }
}
