//! Mutations of the run as a transaction: the reference's twenty-one and two more.
//!
//! One or two for each part of the record that the reference names: identity,
//! frozen inputs, data order, mesh, parallelism, plan, numerics, optimizer step,
//! attempts and faults, state inventory, commit, resume claim, family, selection,
//! handoff, qualification, costs, residuals, authority.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::edits::{
    append, contract, exchange, in_manifest, next_float, other_digest, remove, remove_where, stale,
};
use super::runs::{HANDED, RECOVERED, VALUED, WORKERS};
use crate::mutations::records::PLAIN;
use crate::mutations::{Mutation, Record, Records};

pub(super) const SUITE: &str = "transaction";

/// Why the digests differ from those of any run.
const SOME_DIGEST: &str = "blake3:1111111111111111111111111111111111111111111111111111111111111111";

type Edit = fn(&mut Record) -> Result<()>;

/// The suite.
///
/// # Errors
/// None; the list is fixed.
pub(super) fn mutations(_: &Records) -> Result<Vec<Mutation>> {
    let new = |name: &str, origin, killers: &[&'static str], edit: Edit| {
        Mutation::new(SUITE, name, origin, killers, edit)
    };
    let mut all = identity_and_inputs();
    all.extend([
        new("rate edited after the step", PLAIN, &["GL401"], |r| {
            let place = r.at_step("step", 7)?;
            next_float(r, place, "/body/det/updates/0/learning_rate")
        }),
        new("failed attempt erased", RECOVERED, &["GL202", "GL204"], erase_first_attempt),
        new("state class left out of one checkpoint", PLAIN, &["GL604"], |r| {
            let path = r.checkpoint(10)?.join("manifest.json");
            r.edit_json(path, |manifest| {
                let classes = manifest["classes"].as_array_mut().context("a list")?;
                classes.retain(|class| class["class"] != "optimizer");
                Ok(())
            })
        }),
        new("torn checkpoint", PLAIN, &["GL604", "GL643"], |r| {
            stale(r, "optimizer.safetensors", 5, 10)?;
            in_manifest(r, 10, "optimizer", |class| {
                class["step"] = json!(5);
                Ok(())
            })
        }),
        new("checkpoint that was never validated", PLAIN, &["GL601", "GL505"], |r| {
            remove(r, "checkpoint.validated", 10)
        }),
        new("resume claim weakened afterwards", HANDED, &["GL620", "GL622"], |r| {
            for kind in ["probe.start", "probe.result", "checkpoint.resume_qualified"] {
                for place in r.places(kind) {
                    r.set(place, "/body/det/class", "operation_order_bounded")?;
                }
            }
            Ok(())
        }),
        new("candidate dropped from the family", PLAIN, &["GL505"], |r| {
            remove(r, "candidate.admitted", 10)?;
            let selected = r.first("candidate.selected")?;
            super::edits::add(r, selected, "/body/det/num_candidates", -1)
        }),
        new("worse candidate selected", PLAIN, &["GL507"], select_another),
        new("another candidate handed off than was selected", HANDED, &["GL511"], hand_off_another),
        new("qualification opened in the run", VALUED, &["GL705"], |r| {
            let det = json!({"handoff": SOME_DIGEST, "model": SOME_DIGEST, "sealed": SOME_DIGEST});
            append(r, "qualification.opened", &det, &json!({"num_earlier_openings": 0, "tool": "trainer"}))
        }),
        new("trainer is its own qualifier", VALUED, &["GL703"], |r| {
            let public = r.contract["keys"]["trainer"]["public"].clone();
            contract(r, "/keys/qualifier/public", public)
        })
        .with_owner(),
        new("cost without the attempt that vanished", RECOVERED, &["GL212"], |r| {
            let (end, run_end) = (r.last("attempt.end")?, r.first("run.end")?);
            let cost = r.value(end, "/body/obs/cost")?.clone();
            r.set(run_end, "/body/obs/cost", cost)
        }),
        new("gap that nobody owns", PLAIN, &["GL701"], |r| contract(r, "/residuals/0/owner", ""))
            .with_owner(),
        new("authority to release", PLAIN, &["GL702"], |r| {
            contract(r, "/purpose/authority/non_authorities", json!([]))
        })
        .with_owner(),
    ]);
    Ok(all)
}

fn identity_and_inputs() -> Vec<Mutation> {
    let new = |name: &str, origin, killers: &[&'static str], edit: Edit| {
        Mutation::new(SUITE, name, origin, killers, edit)
    };
    vec![
        new("code of another build", PLAIN, &["GL206"], |r| {
            let place = r.first("attempt.start")?;
            other_digest(r, place, "/body/det/code/digest")
        }),
        new("contract frozen again after outcomes", PLAIN, &["GL106"], |r| {
            let again = r.entries.first().context("a freeze")?.clone();
            let end = r.last("attempt.end")?;
            r.entries.insert(end, again);
            Ok(())
        }),
        new("examples in another order", PLAIN, &["GL303"], |r| {
            let places = (r.at_step("step", 5)?, r.at_step("step", 6)?);
            exchange(r, places, "/body/det/draws/0/ids")
        }),
        new("cursor rewound over a batch", PLAIN, &["GL302", "GL306"], |r| {
            let (earlier, later) = (r.at_step("step", 8)?, r.at_step("step", 9)?);
            let draws = r.value(earlier, "/body/det/draws")?.clone();
            r.set(later, "/body/det/draws", draws)
        }),
        new("mesh of more workers", PLAIN, &["GL207"], |r| {
            let place = r.first("attempt.start")?;
            r.set(place, "/body/obs/plan/num_workers", 2)
        }),
        new("gradients of one worker counted twice", WORKERS, &["GL214"], |r| {
            let place = r.at_step("step", 7)?;
            let gradients = r.value(place, "/body/obs/shares/0/gradients")?.clone();
            r.set(place, "/body/obs/shares/1/gradients", gradients)
        }),
        new("batch that does not reconcile", PLAIN, &["GL301"], |r| {
            contract(r, "/batch/microbatch_examples", 1)
        })
        .with_owner(),
        new("plan of another machine", PLAIN, &["GL207"], |r| {
            let place = r.first("attempt.start")?;
            r.set(place, "/body/obs/plan/compiler/cpu_features", json!([]))
        }),
        new("precision changed in a recovery", RECOVERED, &["GL207"], |r| {
            let place = r.last("attempt.start")?;
            r.set(place, "/body/obs/plan/compute_dtype", "bf16")
        }),
    ]
}

/// Nothing of the first attempt is left but what the second one needs: the
/// checkpoints up to where it goes on from.
fn erase_first_attempt(record: &mut Record) -> Result<()> {
    let second = record.last("attempt.start")?;
    let from_step = record.value(second, "/body/det/from_step")?.as_u64().context("a step")?;
    remove_where(record, |entry| {
        let kind = entry["kind"].as_str().unwrap_or_default();
        let is_lost = entry["attempt"] == 1 && entry["step"].as_u64() > Some(from_step);
        is_lost || ["fault.injected", "fault.observed", "fault.recovered", "cost"].contains(&kind)
    })
}

/// The admission of an earlier step as the selected one.
fn select_another(record: &mut Record) -> Result<()> {
    let (admitted, selected) =
        (record.at_step("candidate.admitted", 5)?, record.first("candidate.selected")?);
    for pointer in ["/body/det/model", "/body/det/step", "/body/det/value", "/body/obs"] {
        let value: Value = record.value(admitted, pointer)?.clone();
        record.set(selected, pointer, value)?;
    }
    Ok(())
}

/// A handoff of the candidate of an earlier step, in every field that names one.
fn hand_off_another(record: &mut Record) -> Result<()> {
    let (admitted, issued) = (record.at_step("candidate.admitted", 5)?, record.first("handoff.issued")?);
    for pointer in ["/body/det/model", "/body/det/step", "/body/obs/candidate"] {
        let value: Value = record.value(admitted, pointer)?.clone();
        record.set(issued, pointer, value)?;
    }
    Ok(())
}
