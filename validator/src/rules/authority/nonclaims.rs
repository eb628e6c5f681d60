//! The contract says what it does not show.

use schemas::report::Route;

use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome};
use crate::rules::common::{at_end, declare_rule};

declare_rule!(
    /// `GL701`.
    Nonclaims,
    {
        code: "GL701",
        name: "nonclaims",
        what: "The contract has a name, a purpose, at least one nonclaim, none of them empty, residuals with an owner each, and a retention period with a \
               custodian.",
        why: "A result without its limits is read as more than it shows; a gap without an owner stays open.",
        remedy: "Write the missing sentence into the contract and freeze again.",
        reference: "schemas::contract (nonclaims, residuals, retention)",
        gate: Route::RejectFrozenInputs,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let contract = &frozen.contract;
    at_end(move |_, sink| {
        let is_blank = |text: &String| text.trim().is_empty();
        if contract.nonclaims.is_empty() || contract.nonclaims.iter().any(is_blank) {
            sink.rejected(
                At::place("contract /nonclaims"),
                "the contract claims without limits",
                "a nonclaim, and no empty one",
                format!("{:?}", contract.nonclaims),
            );
        }
        if is_blank(&contract.name) {
            let at = At::place("contract /name");
            sink.rejected(at, "the run has no name", "a name for people", "nothing");
        }
        if is_blank(&contract.purpose.statement) {
            sink.rejected(
                At::place("contract /purpose/statement"),
                "the run has no purpose",
                "a sentence",
                "nothing",
            );
        }
        for (index, residual) in contract.residuals.iter().enumerate() {
            if is_blank(&residual.owner) || is_blank(&residual.description) {
                let at = At::place(format!("contract /residuals/{index}"));
                sink.rejected(
                    at,
                    "a known gap has no owner or no description",
                    "both",
                    format!("{residual:?}"),
                );
            }
        }
        if contract.retention.days == 0 || is_blank(&contract.retention.custodian) {
            let actual = format!("{} days, {:?}", contract.retention.days, contract.retention.custodian);
            sink.rejected(
                At::place("contract /retention"),
                "nothing is kept, or nobody keeps it",
                "days and a custodian",
                actual,
            );
        }
        Outcome::Checked(4 + (contract.nonclaims.len() + contract.residuals.len()) as u64)
    })
}
