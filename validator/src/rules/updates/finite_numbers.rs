//! Losses and norms are numbers.

use schemas::body::{Credit, StepDet};
use schemas::report::Route;

use crate::frozen::Frozen;
use crate::rule::{At, Check};
use crate::rules::common::{declare_rule, each_step};

declare_rule!(
    /// `GL404`.
    FiniteNumbers,
    {
        code: "GL404",
        name: "finite-numbers",
        what: "Loss, gradient norm, rates, coefficients and norms of every step are finite and not negative, unless a loss scaler \
               skipped the update.",
        why: "One NaN in an update makes every later parameter meaningless; a run that went on over one has no result.",
        remedy: "Find the step's cause (rate, data, precision) and run again under a contract that avoids it.",
        reference: "docs/FORMAT.md, \"Canonical JSON\" (values that are not finite); schemas::body::Credit",
        gate: Route::RejectNumerics,
    }
);

fn open(_: &Frozen) -> Box<dyn Check + '_> {
    each_step(|facts, sink| {
        if facts.det.overflow.as_ref().is_some_and(|overflow| overflow.skipped) {
            return;
        }
        each_number(facts.det, &mut |group, name, value| {
            if !(value.is_finite() && value >= 0.0) {
                let pointer = match group {
                    Some(at) => format!("/body/det/updates/{at}/{name}"),
                    None => format!("/body/det/credit/{name}"),
                };
                let message = format!("step {} has a number that cannot be", facts.step);
                sink.rejected(
                    At::entry(facts.entry.index, pointer),
                    message,
                    "finite and not negative",
                    value,
                );
            }
        });
    })
}

/// Calls `number` with the index of the group (none for credit), the field and
/// the value.
fn each_number(det: &StepDet, number: &mut dyn FnMut(Option<usize>, &str, f64)) {
    match &det.credit {
        Credit::Backpropagation { gradient_norm, loss, .. } => {
            number(None, "backpropagation/gradient_norm", gradient_norm.0);
            number(None, "backpropagation/loss", loss.0);
        }
        // A fitness may be negative.
        Credit::Evolution { fitness, .. } => number(None, "evolution/fitness", fitness.0.abs()),
    }
    for (at, update) in det.updates.iter().enumerate() {
        number(Some(at), "clip_coefficient", update.clip_coefficient.0);
        number(Some(at), "learning_rate", update.learning_rate.0);
        number(Some(at), "weight_decay", update.weight_decay.0);
        if let Some(norm) = update.parameter_norm {
            number(Some(at), "parameter_norm", norm.0);
        }
        if let Some(norm) = update.update_norm {
            number(Some(at), "update_norm", norm.0);
        }
    }
}
