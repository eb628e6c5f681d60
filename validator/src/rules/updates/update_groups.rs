//! Every update touches the card's groups, in its order, with its decay.

use schemas::report::Route;

use crate::frozen::Frozen;
use crate::rule::{At, Check, unavailable};
use crate::rules::common::{declare_rule, each_step_in_turn, same_float};

declare_rule!(
    /// `GL402`.
    UpdateGroups,
    {
        code: "GL402",
        name: "update-groups",
        what: "Every step updates exactly the policy card's groups, in the card's order, with the card's weight decay; where norms were \
               taken, a group's norm moves by no more than the norm of its change.",
        why: "A group that is left out of an update was frozen in secret; another decay is another optimizer; norms that break the \
              triangle inequality are of no parameters.",
        remedy: "None for a finished run. A change of groups or decay needs a new card and contract.",
        reference: "schemas::policy_card::ParameterGroup; schemas::body::GroupUpdate",
        gate: Route::RejectNumerics,
    }
);

/// Rounding that norms of binary32 values may have, relative to the larger one:
/// a thousand times what their sums in binary64 have.
const SLACK: f64 = 1e-4;

/// Whether no parameters have these norms before, after, and of the change.
fn are_of_no_parameters(before: f64, after: f64, change: f64) -> bool {
    // A norm that is not finite is another rule's matter.
    (after - before).abs() > change + SLACK * before.max(after)
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let card = match &frozen.card {
        Ok(card) => card,
        Err(reason) => return unavailable(format!("the policy card: {reason}")),
    };
    // Step and norms of the groups behind the step before.
    let mut before: (u64, Vec<Option<f64>>) = (0, Vec::new());
    each_step_in_turn(move |facts, sink| {
        let norms = facts.det.updates.iter().map(|update| update.parameter_norm.map(|norm| norm.0)).collect();
        let (last, before) = std::mem::replace(&mut before, (facts.step, norms));
        let is_next = last.checked_add(1) == Some(facts.step);
        let updates = &facts.det.updates;
        let names_equal = updates.len() == card.groups.len()
            && updates.iter().zip(&card.groups).all(|(update, group)| update.group == group.name);
        if !names_equal {
            let expected: Vec<&str> = card.groups.iter().map(|group| group.name.as_str()).collect();
            let actual: Vec<&str> = updates.iter().map(|update| update.group.as_str()).collect();
            let at = At::entry(facts.entry.index, "/body/det/updates");
            sink.rejected(at, "the update has other groups", expected.join(", "), actual.join(", "));
            return;
        }
        for (at, (update, group)) in updates.iter().zip(&card.groups).enumerate() {
            if !same_float(group.weight_decay, update.weight_decay.0) {
                let at = At::entry(facts.entry.index, format!("/body/det/updates/{at}/weight_decay"));
                sink.rejected(
                    at,
                    format!("group {} decayed otherwise", group.name),
                    group.weight_decay,
                    update.weight_decay,
                );
            }
            let norm = before.get(at).copied().flatten().filter(|_| is_next);
            if let (Some(before), Some(after), Some(change)) =
                (norm, update.parameter_norm, update.update_norm)
                && are_of_no_parameters(before, after.0, change.0)
            {
                let at = At::entry(facts.entry.index, format!("/body/det/updates/{at}/parameter_norm"));
                let message = format!("the norms of group {} are of no parameters", group.name);
                sink.rejected(at, message, format!("{before}, moved by at most {change}"), after);
            }
        }
    })
}
