//! What nobody can know from a record: false runs that an audit accepts.
//!
//! The other suites say what is found; this one says where that ends. Each
//! mutation is as consistent as an honest run, so that only somebody who executes
//! the contract again, or measured by themselves, can contradict it. A mutation
//! of this list that is killed fails the suite: then the reason is wrong, and it
//! belongs into another list.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::edits::{card, contract, next_float, scale, tensors};
use super::invented::another_selection;
use crate::mutations::records::PLAIN;
use crate::mutations::{Mutation, Record, Records};

pub(super) const SUITE: &str = "unknowable";

/// Nothing on record but norms tells constants of an update apart.
const CONSTANTS: &str = "where a saved state has no other one an update before it, the norm of the parameters in between is the \
                         trainer's word, and whoever asks the audit can write the one that fits: only executing the segment \
                         again tells (`ledger challenge`), or a probe of that checkpoint";
/// Masks are functions of seed and coordinates and leave nothing behind.
const MASKS: &str = "which elements were dropped shows in losses and weights alone: only executing the run again \
                     by the contract tells";
const STATE: &str = "what the numbers of a step are, only executing the run again tells: a resume probe compares \
                     with such a trajectory (GL621), a segment challenge with the states on record, and the evaluator's own numbers \
                     with these weights (GL508); GL416 tells a bit of a weight until somebody writes the norms that fit it";
const LOSS: &str = "a loss is what the trainer says that it computed: where a step is executed twice both have to \
                    agree (GL205), and a probe executes it again (GL621)";
const VALUES: &str = "what an evaluation gives, only somebody who computes it from the same weights tells: with the evaluator's \
                      numbers beside the ledger GL508 does, and without them report and handoff say that the selection rests on \
                      the trainer's own, and `ledger handoff` refuses it unless it is told otherwise";
/// What names a card, and where its values come from.
const LABEL: &str = "a label of the card decides no update and is derived from nothing: a campaign compares what cards do, \
                     whatever they are called (GC116), and a run that stands alone has no second card to compare with";
const TUNING: &str = "trials before the run leave nothing in it: a campaign counts those that it binds as runs (GC112, GC115), \
                      and what a card says of others is its owner's word";
const CODE: &str =
    "which program ran is the word of the process that ran; whoever has the binary compares its digest";

/// The suite.
///
/// # Errors
/// None; the list is fixed.
pub(super) fn mutations(_: &Records) -> Result<Vec<Mutation>> {
    let new = |name: &str, reason, edit: fn(&mut Record) -> Result<()>| {
        Mutation::new(SUITE, name, PLAIN, &[], edit).survives(reason)
    };
    Ok(vec![
        new("another rate of dropout", MASKS, |r| contract(r, "/architecture/dropout", 0.2)).with_owner(),
        new("another seed of dropout", MASKS, |r| contract(r, "/seeds/dropout", "99")).with_owner(),
        new("weights that are one bit off, with norms that fit", STATE, |r| {
            tensors(r, 20, "model.safetensors", |place, bits| bits ^ u32::from(place == 0))
        })
        .with_norms_that_fit(),
        new("another epsilon, with norms that fit", CONSTANTS, |r| card(r, "/update/epsilon", 1e-6))
            .with_owner()
            .with_norms_that_fit(),
        new("another decay of first moments, with norms that fit", CONSTANTS, |r| {
            card(r, "/update/beta1", 0.85)
        })
        .with_owner()
        .with_norms_that_fit(),
        new("moments that are one bit off", STATE, |r| {
            tensors(r, 10, "optimizer.safetensors", |place, bits| bits ^ u32::from(place == 0))
        }),
        new("a loss that is one bit off", LOSS, |r| {
            let place = r.at_step("step", 7)?;
            next_float(r, place, "/body/det/credit/backpropagation/loss")
        }),
        new("every loss a tenth lower", LOSS, |r| {
            let mut steps = r.places("step").into_iter();
            steps.try_for_each(|place| scale(r, place, "/body/det/credit/backpropagation/loss", 0.9))
        }),
        new("values of evaluations by which another candidate wins", VALUES, another_selection),
        new("another version of the card", LABEL, |r| card(r, "/version", "2")).with_owner(),
        new("another name of the card", LABEL, |r| card(r, "/name", "tuned-adamw")).with_owner(),
        new("another reference of the implementation", LABEL, |r| {
            card(r, "/implementation/reference", "a result that nobody published")
        })
        .with_owner(),
        new("trials that were never made", TUNING, |r| {
            card(r, "/tuning", json!({"num_trials": 40, "search_space": "rates from 1e-4 to 1e-2"}))
        })
        .with_owner(),
        new("another build in contract and attempt", CODE, another_build).with_owner(),
    ])
}

/// The same digest of another binary wherever the run names its code.
fn another_build(record: &mut Record) -> Result<()> {
    let digest = json!(format!("sha256:{}", "5".repeat(64)));
    let algorithm = record.contract["code"]["digest"].as_str().context("the code's digest")?;
    let digest: Value =
        if algorithm.starts_with("blake3:") { json!(format!("blake3:{}", "5".repeat(64))) } else { digest };
    contract(record, "/code/digest", digest.clone())?;
    for place in record.places("attempt.start") {
        record.set(place, "/body/det/code/digest", digest.clone())?;
    }
    Ok(())
}
