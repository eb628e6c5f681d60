//! Loss scaling is there exactly where the contract has it.

use schemas::report::Route;

use crate::frozen::Frozen;
use crate::rule::{At, Check};
use crate::rules::common::{declare_rule, each_step};

declare_rule!(
    /// `GL405`.
    LossScalerRule,
    {
        code: "GL405",
        name: "loss-scaler",
        what: "Without a loss scaler in the contract no step reports overflow; with one every step does, its scale is positive \
               and finite, and an update is skipped exactly when an overflow was found.",
        why: "A skipped update that is not reported changes the number of updates behind the same step count.",
        remedy: "Declare the loss scaler in the contract, or run without one.",
        reference: "schemas::body::Overflow; schemas::contract::LossScaler",
        gate: Route::RejectNumerics,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let has_scaler = frozen.contract.numerics.loss_scaler.is_some();
    each_step(move |facts, sink| {
        let at = |pointer: &str| At::entry(facts.entry.index, pointer);
        match (&facts.det.overflow, has_scaler) {
            (None, false) => {}
            (Some(overflow), true) => {
                if overflow.found != overflow.skipped {
                    let at = at("/body/det/overflow/skipped");
                    sink.rejected(
                        at,
                        "an overflow decides whether the update is skipped",
                        overflow.found,
                        overflow.skipped,
                    );
                }
                if !(overflow.scale.is_finite() && overflow.scale.0 > 0.0) {
                    sink.rejected(
                        at("/body/det/overflow/scale"),
                        "the scale cannot be",
                        "finite, above 0",
                        overflow.scale,
                    );
                }
            }
            (Some(_), false) => {
                sink.rejected(
                    at("/body/det/overflow"),
                    "the contract has no loss scaler",
                    "null",
                    "an overflow report",
                );
            }
            (None, true) => {
                sink.rejected(
                    at("/body/det/overflow"),
                    "the loss scaler is not reported",
                    "an overflow report",
                    "null",
                );
            }
        }
    })
}
