//! The clip coefficient follows from the recorded norm.

use schemas::body::Credit;
use schemas::report::Route;

use crate::derive::clip;
use crate::frozen::Frozen;
use crate::rule::{At, Check, unavailable};
use crate::rules::common::{declare_rule, each_step, same_float};

declare_rule!(
    /// `GL403`.
    ClipCoefficient,
    {
        code: "GL403",
        name: "clip-coefficient",
        what: "The clip coefficient of every group at every step is the card's function of the recorded gradient norm, bit for bit.",
        why: "Clipping hides instability. Where coefficient and norm agree, the recorded norm shows how much was clipped.",
        remedy: "None for a finished run. Compute the coefficient in binary64 from the recorded norm.",
        reference: "docs/FORMAT.md, \"Clipping\"",
        gate: Route::RejectNumerics,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let card = match &frozen.card {
        Ok(card) => card,
        Err(reason) => return unavailable(format!("the policy card: {reason}")),
    };
    each_step(move |facts, sink| {
        let Credit::Backpropagation { gradient_norm, .. } = &facts.det.credit else { return };
        let expected = clip::coefficient(&card.clipping, gradient_norm.0);
        for (at, update) in facts.det.updates.iter().enumerate() {
            if !same_float(expected, update.clip_coefficient.0) {
                let at = At::entry(facts.entry.index, format!("/body/det/updates/{at}/clip_coefficient"));
                let message = format!("the coefficient does not follow from the norm {gradient_norm}");
                sink.rejected(at, message, expected, update.clip_coefficient);
            }
        }
    })
}
