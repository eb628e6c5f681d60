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
        for (pointer, value) in numbers(facts.det) {
            if !(value.is_finite() && value >= 0.0) {
                let at = At::entry(facts.entry.index, format!("/body/det/{pointer}"));
                let message = format!("step {} has a number that cannot be", facts.step);
                sink.rejected(at, message, "finite and not negative", value);
            }
        }
    })
}

fn numbers(det: &StepDet) -> Vec<(String, f64)> {
    let mut all = match &det.credit {
        Credit::Backpropagation { gradient_norm, loss, .. } => vec![
            ("credit/backpropagation/gradient_norm".to_owned(), gradient_norm.0),
            ("credit/backpropagation/loss".to_owned(), loss.0),
        ],
        // A fitness may be negative.
        Credit::Evolution { fitness, .. } => vec![("credit/evolution/fitness".to_owned(), fitness.0.abs())],
    };
    for (at, update) in det.updates.iter().enumerate() {
        let known = [
            ("clip_coefficient", Some(update.clip_coefficient)),
            ("learning_rate", Some(update.learning_rate)),
            ("parameter_norm", update.parameter_norm),
            ("update_norm", update.update_norm),
            ("weight_decay", Some(update.weight_decay)),
        ];
        all.extend(
            known.into_iter().filter_map(|(name, value)| Some((format!("updates/{at}/{name}"), value?.0))),
        );
    }
    all
}
