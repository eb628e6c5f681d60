//! Runs with components that hold state, and false ones among them: a rate that
//! goes by evaluations, a generator that remembers what it drew.

use schemas::contract::{Architecture, DropoutDraws, OrderPolicy, ScheduleShape};
use schemas::number::Float;
use schemas::state::{NotApplicableReason, StateClass};

use super::attempts::body;
use super::{Mutation, error};
use crate::fixture::{Fixture, RunBuilder, blake3_of, rewrite_manifest};

/// A builder of a run with a plateau: no evaluation improves by enough, so that
/// rates fall by half after step 4.
pub(super) fn plateau() -> RunBuilder {
    RunBuilder::new().contract(|contract| {
        let stream = contract.evaluation.streams[0].name.clone();
        for schedule in &mut contract.schedule[1..] {
            schedule.shape = ScheduleShape::Plateau {
                cooldown: 0,
                factor: 0.5,
                floor: 1e-4,
                min_delta: 1.0,
                patience: 0,
                rate: 1e-2,
                stream: stream.clone(),
            };
        }
        capture(contract, StateClass::Scheduler);
    })
}

/// A builder of a run whose dropout masks come from a stream.
pub(super) fn dropout_stream() -> RunBuilder {
    RunBuilder::new().contract(|contract| {
        let Architecture::LlamaDecoder(decoder) = &mut contract.architecture;
        decoder.dropout = 0.1;
        contract.dropout_draws = DropoutDraws::PhiloxStream;
        capture(contract, StateClass::RngCpu);
    })
}

/// A builder of a run whose examples come through a shuffle buffer.
pub(super) fn shuffle_buffer() -> RunBuilder {
    RunBuilder::new().contract(|contract| {
        contract.order = OrderPolicy::ShuffleBuffer { size: 3 };
        capture(contract, StateClass::Sampler);
    })
}

fn capture(contract: &mut schemas::contract::Contract, class: StateClass) {
    let declared = contract.state_classes.iter_mut().find(|declared| declared.class == class);
    declared.expect("a required class").not_applicable = None;
}

pub(super) fn changed(builder: RunBuilder, change: impl FnOnce(&mut Fixture)) -> Fixture {
    let mut fixture = builder.build();
    change(&mut fixture);
    fixture
}

/// Replaces a text in a JSON shard of the last checkpoint, with every digest
/// above it.
pub(super) fn with_shard(fixture: &mut Fixture, class: StateClass, found: &str, other: &str) {
    let name = format!("{}.json", class.name());
    let path = fixture.checkpoint("s00000008-a1").join(&name);
    let text = std::fs::read_to_string(&path).expect("saved");
    let changed = text.replacen(found, other, 1);
    assert_ne!(changed, text, "the mutation acts");
    std::fs::write(&path, &changed).expect("writable");
    let (digest, num_bytes) = (blake3_of(changed.as_bytes()), changed.len() as u64);
    let manifest = rewrite_manifest(fixture.folder.path(), "checkpoints/s00000008-a1", |manifest| {
        let captured = manifest.classes.iter_mut().find(|captured| captured.class == class);
        let shard = &mut captured.expect("captured").shards[0];
        (shard.digest, shard.num_bytes) = (digest, num_bytes);
    });
    body!(fixture, CheckpointDurablyCommitted, 2, |h| h.obs.manifest = manifest);
}

fn leave_out(fixture: &mut Fixture, class: StateClass, reason: NotApplicableReason) {
    let classes = &mut fixture.frozen.contract.state_classes;
    let declared = classes.iter_mut().find(|declared| declared.class == class).expect("declared");
    declared.not_applicable = Some(reason);
}

#[test]
fn a_plateau_falls_in_the_fixture() {
    let fixture = plateau().build();
    let rates: Vec<f64> = fixture
        .entries
        .iter()
        .filter_map(|entry| match &entry.body {
            schemas::body::Body::Step(halves) => Some(halves.det.updates[2].learning_rate.0),
            _ => None,
        })
        .collect();
    assert!(rates[3] > rates[4] && rates[4] > 0.0, "{rates:?}");
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL401", "a rate that did not fall with the evaluations", || {
        changed(plateau(), |f| {
            let mut rate = Float(0.0);
            body!(f, Step, 1, |h| rate = h.det.updates[2].learning_rate);
            body!(f, Step, 5, |h| h.det.updates[2].learning_rate = rate);
        })
    }),
    error("GL401", "a resume that forgot the plateau", || {
        changed(plateau().crash_after_step(6), |f| {
            let mut rate = Float(0.0);
            body!(f, Step, 1, |h| rate = h.det.updates[2].learning_rate);
            body!(f, Step, 6, |h| h.det.updates[2].learning_rate = rate);
        })
    }),
    error("GL603", "a plateau that is called a function of the step", || {
        changed(plateau(), |f| leave_out(f, StateClass::Scheduler, NotApplicableReason::FunctionOfStep))
    }),
    error("GL603", "a stream that is called counter-based", || {
        changed(dropout_stream(), |f| {
            leave_out(f, StateClass::RngCpu, NotApplicableReason::CounterBasedRandomness);
        })
    }),
    error("GL603", "a device whose randomness is called counter-based", || {
        changed(dropout_stream(), |f| {
            leave_out(f, StateClass::RngDevice, NotApplicableReason::CounterBasedRandomness);
        })
    }),
    error("GL603", "a shuffle buffer that is called a function of the position", || {
        changed(shuffle_buffer(), |f| {
            leave_out(f, StateClass::Sampler, NotApplicableReason::FunctionOfPosition);
        })
    }),
    error("GL607", "a shuffle buffer with other examples", || {
        changed(shuffle_buffer(), |f| with_shard(f, StateClass::Sampler, "\"buffer\":[", "\"buffer\":[1"))
    }),
    error("GL303", "another size of the shuffle buffer", || {
        changed(shuffle_buffer(), |f| f.frozen.contract.order = OrderPolicy::ShuffleBuffer { size: 4 })
    }),
    error("GL607", "a stream that began again", || {
        changed(dropout_stream(), |f| with_shard(f, StateClass::RngCpu, "\"blocks\":", "\"blocks\":1"))
    }),
    error("GL607", "a plateau that waits for longer than it has to", || {
        changed(plateau(), |f| with_shard(f, StateClass::Scheduler, "\"cooldown\":0", "\"cooldown\":3"))
    }),
];
