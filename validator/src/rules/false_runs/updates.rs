//! False runs for `GL4xx`.

use schemas::body::{Credit, Overflow};
use schemas::contract::CreditRule;
use schemas::number::Float;
use schemas::parameters::ParameterStatus;
use schemas::policy_card::PolicyCard;

use super::attempts::body;
use super::{Mutation, changed, error};
use crate::fixture::{Fixture, RunBuilder};

fn card(fixture: &mut Fixture) -> &mut PolicyCard {
    fixture.frozen.card.as_mut().expect("the fixture has a card")
}

fn parameters(fixture: &mut Fixture) -> &mut Vec<schemas::parameters::ParameterDeclaration> {
    &mut fixture.frozen.parameters.as_mut().expect("the fixture has a manifest").parameters
}

/// Changes the last byte of a file, which is in its last tensor.
fn flip_last_byte(fixture: &Fixture, checkpoint: &str, name: &str) {
    let path = fixture.checkpoint(checkpoint).join(name);
    let mut bytes = std::fs::read(&path).expect("the fixture wrote it");
    *bytes.last_mut().expect("not empty") ^= 1;
    std::fs::write(&path, bytes).expect("writable");
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL401", "a rate that is one bit off", || {
        changed(|f| {
            body!(f, Step, 3, |h| {
                let rate = &mut h.det.updates[1].learning_rate;
                *rate = Float(f64::from_bits(rate.0.to_bits() + 1));
            });
        })
    }),
    error("GL401", "a schedule that restarts after a crash", || {
        let mut fixture = RunBuilder::new().crash_after_step(6).build();
        let first = fixture.entries.iter().find_map(|entry| match &entry.body {
            schemas::body::Body::Step(h) => Some(h.det.updates.clone()),
            _ => None,
        });
        body!(fixture, Step, 6, |h| h.det.updates = first.expect("a step"));
        fixture
    }),
    error("GL402", "a group that was left out", || {
        changed(|f| body!(f, Step, 3, |h| h.det.updates.truncate(2)))
    }),
    error("GL402", "another decay", || {
        changed(|f| body!(f, Step, 3, |h| h.det.updates[0].weight_decay = Float(0.2)))
    }),
    error("GL402", "norms of no parameters", || {
        changed(|f| {
            body!(f, Step, 3, |h| {
                h.det.updates[0].parameter_norm = Some(Float(3.0));
                h.det.updates[0].update_norm = Some(Float(0.5));
            });
        })
    }),
    error("GL403", "an update that was not clipped", || {
        changed(|f| body!(f, Step, 3, |h| h.det.updates[0].clip_coefficient = Float(1.0)))
    }),
    error("GL404", "a loss that is not a number", || {
        changed(|f| {
            body!(f, Step, 3, |h| if let Credit::Backpropagation { loss, .. } = &mut h.det.credit {
                *loss = Float(f64::NAN);
            });
        })
    }),
    error("GL405", "an overflow without a scaler", || {
        changed(|f| {
            body!(f, Step, 3, |h| {
                h.det.overflow = Some(Overflow { found: false, scale: Float(1.0), skipped: false });
            });
        })
    }),
    error("GL406", "a group without a schedule", || {
        changed(|f| {
            f.frozen.contract.schedule.pop();
        })
    }),
    error("GL406", "a moment that is not saved", || {
        changed(|f| {
            card(f).checkpoint_state.pop();
        })
    }),
    error("GL406", "a card without nonclaims", || changed(|f| card(f).nonclaims.clear())),
    error("GL406", "a parameter of no group", || changed(|f| parameters(f)[3].group = None)),
    error("GL407", "a parameter that is not listed", || {
        changed(|f| {
            parameters(f).pop();
        })
    }),
    error("GL407", "another initialiser", || {
        changed(|f| parameters(f)[0].initializer = schemas::parameters::Initializer::Ones)
    }),
    error("GL407", "parameters out of order", || changed(|f| parameters(f).swap(0, 1))),
    error("GL407", "a parameter that is called unreachable", || {
        changed(|f| parameters(f)[2].status = ParameterStatus::Unreachable)
    }),
    error("GL408", "an initial value that the seed does not give", || {
        changed(|f| flip_last_byte(f, "s00000000-a1", "model.safetensors"))
    }),
    error("GL408", "another seed", || changed(|f| f.frozen.contract.seeds.initialization.0 += 1)),
    error("GL410", "a moment before the first update", || {
        changed(|f| flip_last_byte(f, "s00000000-a1", "optimizer.safetensors"))
    }),
    error("GL411", "credit by another rule", || {
        changed(|f| {
            f.frozen.contract.credit = CreditRule::Evolution { antithetic: true, population: 8, rank: None }
        })
    }),
];
