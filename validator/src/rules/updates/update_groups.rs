//! Every update touches the card's groups, in its order, with its decay.

use schemas::report::Route;

use crate::frozen::Frozen;
use crate::rule::{At, Check, unavailable};
use crate::rules::common::{declare_rule, each_step, same_float};

declare_rule!(
    /// `GL402`.
    UpdateGroups,
    {
        code: "GL402",
        name: "update-groups",
        what: "Every step updates exactly the policy card's groups, in the card's order, with the card's weight decay.",
        why: "A group that is left out of an update was frozen in secret; another decay is another optimizer.",
        remedy: "None for a finished run. A change of groups or decay needs a new card and contract.",
        reference: "schemas::policy_card::ParameterGroup; schemas::body::GroupUpdate",
        gate: Route::RejectNumerics,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let card = match &frozen.card {
        Ok(card) => card,
        Err(reason) => return unavailable(format!("the policy card: {reason}")),
    };
    each_step(move |facts, sink| {
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
        }
    })
}
