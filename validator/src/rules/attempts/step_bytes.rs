//! The determined half of a step as bytes, for comparing two executions.
//!
//! These bytes are compared within one audit and never stored, so they need
//! not be canonical JSON, which costs several times as much to write. Every
//! struct is taken apart by name, so that a field which a later format adds
//! cannot be forgotten here.

use schemas::body::{Counters, Credit, Draw, GroupUpdate, Overflow, PositionRange, StepDet};
use schemas::digest::Digest;
use schemas::number::Float;
use schemas::state::StateDigest;

/// Appends the bytes of a step's determined half; equal bytes mean equal halves.
pub(super) fn write(det: &StepDet, out: &mut Vec<u8>) {
    let StepDet { counters, credit, draws, overflow, state, state_root, updates } = det;
    let Counters { evaluations, examples, tokens } = *counters;
    numbers(&[evaluations, examples, tokens], out);
    write_credit(credit, out);
    count(draws.len(), out);
    draws.iter().for_each(|draw| write_draw(draw, out));
    write_overflow(overflow.as_ref(), out);
    match state {
        None => out.push(0),
        Some(classes) => {
            out.push(1);
            count(classes.len(), out);
            for StateDigest { class, digest } in classes {
                text(class.name(), out);
                optional(digest.as_ref(), out, write_digest);
            }
        }
    }
    optional(state_root.as_ref(), out, write_digest);
    count(updates.len(), out);
    updates.iter().for_each(|update| write_update(update, out));
}

fn write_credit(credit: &Credit, out: &mut Vec<u8>) {
    match credit {
        Credit::Backpropagation { gradient_norm, loss, num_microbatches, num_tokens } => {
            out.push(0);
            float(gradient_norm, out);
            float(loss, out);
            numbers(&[u64::from(*num_microbatches), *num_tokens], out);
        }
        Credit::Evolution { evaluations, fitness, population } => {
            out.push(1);
            float(fitness, out);
            numbers(&[*evaluations, *population], out);
        }
    }
}

fn write_draw(draw: &Draw, out: &mut Vec<u8>) {
    let Draw { ids, inputs, purpose, ranges, stream } = draw;
    write_digest(ids, out);
    write_digest(inputs, out);
    text(purpose, out);
    text(stream, out);
    count(ranges.len(), out);
    for PositionRange { epoch, first, num_examples } in ranges {
        numbers(&[*epoch, *first, *num_examples], out);
    }
}

fn write_overflow(overflow: Option<&Overflow>, out: &mut Vec<u8>) {
    optional(overflow, out, |Overflow { found, scale, skipped }, out| {
        out.extend([u8::from(*found), u8::from(*skipped)]);
        float(scale, out);
    });
}

fn write_update(update: &GroupUpdate, out: &mut Vec<u8>) {
    let GroupUpdate { clip_coefficient, group, learning_rate, parameter_norm, update_norm, weight_decay } =
        update;
    text(group, out);
    for value in [clip_coefficient, learning_rate, weight_decay] {
        float(value, out);
    }
    optional(parameter_norm.as_ref(), out, float);
    optional(update_norm.as_ref(), out, float);
}

fn optional<T>(value: Option<&T>, out: &mut Vec<u8>, write: impl FnOnce(&T, &mut Vec<u8>)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        write(value, out);
    }
}

fn write_digest(digest: &Digest, out: &mut Vec<u8>) {
    out.push(digest.algorithm as u8);
    out.extend_from_slice(&digest.bytes);
}

fn float(value: &Float, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.0.to_bits().to_le_bytes());
}

/// Seven bits to a byte, from the lowest, with the top bit set in all but the
/// last (LEB128): most numbers of a step are small.
fn numbers(values: &[u64], out: &mut Vec<u8>) {
    for &value in values {
        let mut rest = value;
        while rest >= 0x80 {
            out.push(rest.to_le_bytes()[0] | 0x80);
            rest >>= 7;
        }
        out.push(rest.to_le_bytes()[0]);
    }
}

fn count(length: usize, out: &mut Vec<u8>) {
    numbers(&[length as u64], out);
}

fn text(value: &str, out: &mut Vec<u8>) {
    count(value.len(), out);
    out.extend_from_slice(value.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use schemas::body::{Body, Overflow};
    use schemas::digest::Digest;

    use super::*;
    use crate::fixture::honest_run;

    type Change = fn(&mut StepDet);

    const CHANGES: &[Change] = &[
        |_| {},
        |det| det.counters.evaluations += 1,
        |det| det.counters.examples += 1,
        |det| det.counters.tokens += 1,
        |det| det.credit = Credit::Evolution { evaluations: 1, fitness: Float(1.0), population: 1 },
        |det| det.draws.clear(),
        |det| det.draws[0].ids = Digest::blake3([0; 32]),
        |det| det.draws[0].ids.algorithm = schemas::digest::Algorithm::Sha256,
        |det| det.draws[0].inputs = Digest::blake3([0; 32]),
        |det| det.draws[0].purpose.push('x'),
        |det| det.draws[0].stream.push('x'),
        |det| det.draws[0].ranges[0].first += 1,
        |det| det.draws[0].ranges[0].epoch += 1,
        |det| det.draws[0].ranges[0].num_examples += 1,
        |det| det.overflow = Some(Overflow { found: false, scale: Float(1.0), skipped: false }),
        |det| det.overflow = Some(Overflow { found: true, scale: Float(1.0), skipped: false }),
        |det| det.overflow = Some(Overflow { found: false, scale: Float(1.0), skipped: true }),
        |det| det.overflow = Some(Overflow { found: false, scale: Float(2.0), skipped: false }),
        |det| det.state = Some(Vec::new()),
        |det| det.updates.truncate(1),
        |det| det.updates[0].group.push('x'),
        |det| det.updates[0].clip_coefficient = Float(0.0),
        |det| det.updates[0].learning_rate = Float(-0.0),
        |det| det.updates[0].weight_decay = Float(9.0),
        |det| det.updates[0].parameter_norm = None,
        |det| det.updates[0].update_norm = Some(Float(2.0)),
    ];

    #[test]
    fn every_field_changes_the_bytes() {
        let run = honest_run();
        let step = run.entries.iter().find_map(|entry| match &entry.body {
            Body::Step(halves) => Some(halves.det.clone()),
            _ => None,
        });
        let step = step.expect("the fixture has steps");
        let mut seen = BTreeSet::new();
        for change in CHANGES {
            let mut changed = step.clone();
            change(&mut changed);
            let mut bytes = Vec::new();
            write(&changed, &mut bytes);
            assert!(seen.insert(bytes), "two halves have the same bytes: {changed:?}");
        }
        assert_eq!(seen.len(), CHANGES.len());
    }
}
