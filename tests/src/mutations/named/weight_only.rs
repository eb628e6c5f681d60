//! Seven classes that a checkpoint of weights and step alone leaves out.
//!
//! Two states can have the same weights and the same step and differ in any of
//! these, so that nothing restores the one that was meant. The attacker has the
//! owner's key and makes the omission consistent: the contract says that the
//! class holds nothing, no manifest lists it, no file holds it, no digest names
//! it. What is left to be found is that the reason is not true.

use anyhow::Result;

use super::edits::leave_out;
use super::runs::{HALF, STATEFUL};
use crate::mutations::records::{Origin, PLAIN};
use crate::mutations::{Mutation, Record, Records};

pub(super) const SUITE: &str = "weight-only";

/// Class, the run that has it, and the reason that the contract gives.
static OMITTED: [(&str, Origin, &str); 7] = [
    ("optimizer", PLAIN, "function_of_step"),
    ("scheduler", STATEFUL, "function_of_step"),
    ("rng_cpu", STATEFUL, "counter_based_randomness"),
    ("loss_scaler", HALF, "no_loss_scaling"),
    ("data_cursor", PLAIN, "function_of_position"),
    ("sampler", STATEFUL, "function_of_position"),
    ("topology", PLAIN, "no_device_randomness"),
];

/// The suite.
///
/// # Errors
/// None; the list is fixed.
pub(super) fn mutations(_: &Records) -> Result<Vec<Mutation>> {
    let omitted = OMITTED.iter().map(|(class, origin, reason)| {
        let edit = move |record: &mut Record| leave_out(record, class, reason);
        Mutation::new(SUITE, format!("{class} is left out"), *origin, &["GL603"], edit).with_owner()
    });
    Ok(omitted.collect())
}
