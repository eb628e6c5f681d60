//! Mutations of the optimizer's policy card, the reference's eighteen and five more, and of
//! what the schedule and the averages add to it.
//!
//! The attacker has the owner's key: after the run the card says something else
//! than the run was executed by, or something that no run of this edition does,
//! so that one label would stand for several methods.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::edits::{card, contract, refreeze};
use super::runs::STATEFUL;
use crate::mutations::records::{Origin, PLAIN};
use crate::mutations::{Mutation, Record, Records};

pub(super) const SUITE: &str = "optimizer-card";

/// The suite.
///
/// # Errors
/// None; the list is fixed.
pub(super) fn mutations(_: &Records) -> Result<Vec<Mutation>> {
    let set = |name: &str, killers: &[&'static str], pointer: &'static str, value: Value| {
        let edit = move |record: &mut Record| card(record, pointer, value.clone());
        Mutation::new(SUITE, name, PLAIN, killers, edit).with_owner()
    };
    let new = |name: &str, origin: Origin, killers: &[&'static str], edit: fn(&mut Record) -> Result<()>| {
        Mutation::new(SUITE, name, origin, killers, edit).with_owner()
    };
    let concealed = json!({
        "groups": ["embeddings"],
        "update": {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-8, "family": "adamw", "moment_dtype": "F32"},
    });
    let one_moment = json!([{"dtype": "F32", "suffix": "exp_avg"}]);
    let newton_schulz = json!({"algorithm": "newton-schulz", "num_iterations": 5, "precision": "BF16"});
    Ok(vec![
        set("implementation without a name", &["GL412"], "/implementation/name", json!("")),
        set(
            "implementation by another program",
            &["GL412"],
            "/implementation/name",
            json!("torch.optim.AdamW"),
        ),
        new("groups take each other's parameters", PLAIN, &["GL407"], |r| {
            card(r, "/groups/0/eligible", "embeddings")?;
            card(r, "/groups/1/eligible", "matrices")
        }),
        new("group that is left out", PLAIN, &["GL402", "GL406"], |r| {
            refreeze(r, |r| {
                r.edit_artifact("/update/card", |card| {
                    card["groups"].as_array_mut().context("groups")?.pop();
                    Ok(())
                })
            })
        }),
        set("fallback that did not run", &["GL412"], "/fallback", concealed),
        set("first moment that never decays", &["GL406"], "/update/beta1", json!(1.0)),
        set("another decay of the second moment", &["GL415", "GL416"], "/update/beta2", json!(0.99)),
        set("epsilon of zero", &["GL406"], "/update/epsilon", json!(0.0)),
        new("moments of half precision", PLAIN, &["GL605"], |r| {
            card(r, "/update/moment_dtype", "BF16")?;
            card(r, "/checkpoint_state", halved_moments())
        }),
        set("moment that is not saved", &["GL406"], "/checkpoint_state", one_moment),
        set("decay of the embeddings", &["GL402"], "/groups/1/weight_decay", json!(0.1)),
        set("rate of a group doubled", &["GL401"], "/groups/2/learning_rate_multiplier", json!(2.0)),
        set("clipping at a lower norm", &["GL403"], "/clipping/max_norm", json!(0.01)),
        set("another epsilon of clipping", &["GL403"], "/clipping/epsilon", json!(1e-3)),
        new("warmup of other length", PLAIN, &["GL401"], |r| {
            contract(r, "/schedule/0/shape/warmup_steps", 2)
        }),
        new("averages of another decay", STATEFUL, &["GL611"], |r| contract(r, "/averages/decay", 0.99)),
        set("approximation of an exact rule", &["GL412"], "/approximation", newton_schulz),
        set("preconditioner that is never refreshed", &["GL412"], "/preconditioner_every_steps", json!(10)),
        set("state sharded over one process", &["GL412"], "/distribution/placement", json!("sharded")),
        set("exchange with nobody", &["GL412"], "/distribution/communication", json!("all_reduce")),
        set("rescue that was never tried", &["GL412"], "/rescue_ladder", json!(["half the rate"])),
        set("stopping rule of its own", &["GL412"], "/stopping_rule", json!("when it diverges")),
        set("claims without limits", &["GL406"], "/nonclaims", json!([])),
    ])
}

/// Both moments as a card declares them in half precision.
fn halved_moments() -> Value {
    json!([{"dtype": "BF16", "suffix": "exp_avg"}, {"dtype": "BF16", "suffix": "exp_avg_sq"}])
}
