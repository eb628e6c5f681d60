//! Runs that scale losses, and runs that save inside of accumulation windows;
//! and false ones among them.

use schemas::body::{Credit, Overflow};
use schemas::contract::{Contract, Dtype, LossScaler, MidAccumulation};
use schemas::digest::Digest;
use schemas::number::Float;
use schemas::parameters::ParameterStatus;
use schemas::state::{StateClass, StateClassDeclaration};

use super::attempts::body;
use super::stateful::{changed, dropout_stream, shuffle_buffer, with_shard};
use super::{Mutation, error};
use crate::fixture::{Fixture, RunBuilder};

fn capture(contract: &mut Contract, class: StateClass) {
    let classes = &mut contract.state_classes;
    classes.retain(|declared| declared.class != class);
    let at = classes.iter().position(|other| other.class > class).unwrap_or(classes.len());
    classes.insert(at, StateClassDeclaration { class, not_applicable: None });
}

/// A builder of a run in binary16, whose first step overflows, and so do all
/// after its second checkpoint.
pub(super) fn scaled() -> RunBuilder {
    RunBuilder::new().contract(|contract| {
        contract.numerics.compute_dtype = Dtype::F16;
        contract.numerics.loss_scaler =
            Some(LossScaler { backoff: 0.25, growth: 2.0, growth_interval: 2, initial: 65536.0 });
        capture(contract, StateClass::LossScaler);
    })
}

/// Saves after one microbatch of two.
fn save_inside(contract: &mut Contract) {
    contract.checkpoints.mid_accumulation = MidAccumulation::SaveGradients;
    contract.checkpoints.after_microbatches = Some(1);
    capture(contract, StateClass::AccumulatedGradients);
}

/// A builder of a run that saves inside of accumulation windows.
pub(super) fn windows() -> RunBuilder {
    RunBuilder::new().contract(save_inside)
}

/// The same with a stream of masks, a shuffle buffer, or a loss scaler.
pub(super) fn windows_of_others() -> [RunBuilder; 3] {
    [dropout_stream(), shuffle_buffer(), scaled()].map(|builder| builder.contract(save_inside))
}

fn overflow(fixture: &mut Fixture, at: usize, change: impl FnOnce(&mut Overflow)) {
    body!(fixture, Step, at, |h| change(h.det.overflow.as_mut().expect("a scaler reports")));
}

fn scaler(fixture: &mut Fixture) -> &mut LossScaler {
    fixture.frozen.contract.numerics.loss_scaler.as_mut().expect("scaled")
}

#[test]
fn the_fixture_skips_and_its_scale_moves_both_ways() {
    let fixture = scaled().build();
    let overflows: Vec<Overflow> = fixture
        .entries
        .iter()
        .filter_map(|entry| match &entry.body {
            schemas::body::Body::Step(halves) => halves.det.overflow.clone(),
            _ => None,
        })
        .collect();
    let scales: Vec<f64> = overflows.iter().map(|overflow| overflow.scale.0).collect();
    assert_eq!(scales, [65536.0, 16384.0, 16384.0, 32768.0, 32768.0, 8192.0, 2048.0, 512.0]);
    assert!(overflows[0].skipped && !overflows[1].skipped && overflows[7].skipped);
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL405", "a scaler that reports nothing", || {
        changed(scaled(), |f| body!(f, Step, 2, |h| h.det.overflow = None))
    }),
    error("GL630", "a scale that did not back off", || {
        changed(scaled(), |f| overflow(f, 1, |overflow| overflow.scale = Float(65536.0)))
    }),
    error("GL630", "a scale that did not grow", || {
        changed(scaled(), |f| overflow(f, 3, |overflow| overflow.scale = Float(16384.0)))
    }),
    error("GL630", "a resume that began again with the first scale", || {
        // The seventh step is the fifth, executed again.
        changed(scaled().crash_after_step(6), |f| {
            overflow(f, 6, |overflow| overflow.scale = Float(65536.0));
        })
    }),
    error("GL630", "an overflow that is not called one", || {
        changed(scaled(), |f| {
            overflow(f, 0, |overflow| (overflow.found, overflow.skipped) = (false, false));
        })
    }),
    error("GL630", "a scaler that overflows do not move", || changed(scaled(), |f| scaler(f).backoff = 1.0)),
    error("GL630", "a scaler where nothing is computed in f16", || {
        changed(scaled(), |f| f.frozen.contract.numerics.compute_dtype = Dtype::F32)
    }),
    error("GL630", "f16 without a scaler", || {
        changed(RunBuilder::new(), |f| f.frozen.contract.numerics.compute_dtype = Dtype::F16)
    }),
    error("GL631", "a skipped step that does not say what it changed", || {
        changed(scaled(), |f| body!(f, Step, 4, |h| h.det.updates[0].update_norm = None))
    }),
    error("GL631", "a skipped step that changed something", || {
        changed(scaled(), |f| body!(f, Step, 4, |h| h.det.updates[0].update_norm = Some(Float(0.5))))
    }),
    error("GL631", "a skipped step that left other parameters", || {
        changed(scaled(), |f| body!(f, Step, 5, |h| h.det.updates[1].parameter_norm = Some(Float(2.5))))
    }),
    error("GL631", "a skipped step with a loss that is not a number", || {
        changed(scaled(), |f| {
            body!(f, Step, 4, |h| if let Credit::Backpropagation { loss, .. } = &mut h.det.credit {
                *loss = Float(f64::NAN);
            });
        })
    }),
    error("GL631", "moments that moved while every step was skipped", || {
        changed(scaled(), |f| {
            body!(f, CheckpointDurablyCommitted, 2, |h| {
                let classes = h.det.classes.iter_mut();
                for class in classes.filter(|class| class.class == StateClass::Optimizer) {
                    class.digest = Some(Digest::blake3([9; 32]));
                }
            });
        })
    }),
    error("GL607", "a scaler that forgot a skipped step", || {
        changed(scaled(), |f| with_shard(f, StateClass::LossScaler, "\"skipped\":5", "\"skipped\":4"))
    }),
    error("GL601", "a checkpoint that is not due, and its attempt goes on", || {
        changed(windows(), |f| f.frozen.contract.checkpoints.every_steps = 8)
    }),
    error("GL603", "accumulated gradients that are not captured", || {
        changed(windows(), |f| {
            let classes = &mut f.frozen.contract.state_classes;
            classes.retain(|declared| declared.class != StateClass::AccumulatedGradients);
        })
    }),
    error("GL632", "a checkpoint of another microbatch", || {
        changed(windows(), |f| f.frozen.contract.checkpoints.after_microbatches = None)
    }),
    error("GL632", "sums of a microbatch at the last step", || {
        changed(windows(), |f| {
            let class = StateClass::AccumulatedGradients;
            with_shard(f, class, "\"microbatches\":0", "\"microbatches\":1");
        })
    }),
    error("GL632", "sums of other examples", || {
        changed(windows(), |f| {
            let class = StateClass::AccumulatedGradients;
            with_shard(f, class, "\"ids\":\"blake3:af", "\"ids\":\"blake3:00");
        })
    }),
    error("GL632", "a loss of nothing", || {
        changed(windows(), |f| {
            with_shard(f, StateClass::AccumulatedGradients, "\"nats\":0.0", "\"nats\":3.5");
        })
    }),
    error("GL632", "a cursor that is ahead of the sums", || {
        changed(windows(), |f| with_shard(f, StateClass::DataCursor, "\"tokens\":", "\"tokens\":1"))
    }),
    error("GL632", "a stream of masks that is ahead of the sums", || {
        let builder = dropout_stream().contract(save_inside);
        changed(builder, |f| with_shard(f, StateClass::RngCpu, "\"blocks\":", "\"blocks\":1"))
    }),
    error("GL632", "sums of a parameter that is frozen", || {
        changed(windows(), |f| {
            let manifest = f.frozen.parameters.as_mut().expect("the fixture has a manifest");
            manifest.parameters[0].status = ParameterStatus::Frozen;
        })
    }),
];
