//! False runs for `GL4xx`.

use schemas::body::{Body, Credit, Kind, Overflow};
use schemas::contract::CreditRule;
use schemas::number::Float;
use schemas::parameters::ParameterStatus;
use schemas::policy_card::{PolicyCard, UpdateRule};
use schemas::report::RuleStatus;
use schemas::state::StateClass;

use super::anomalies::rewrite;
use super::attempts::body;
use super::{Mutation, changed, error, rule};
use crate::fixture::{Fixture, RunBuilder, external_loop};

fn card(fixture: &mut Fixture) -> &mut PolicyCard {
    fixture.frozen.card.as_mut().expect("the fixture has a card")
}

fn parameters(fixture: &mut Fixture) -> &mut Vec<schemas::parameters::ParameterDeclaration> {
    &mut fixture.frozen.parameters.as_mut().expect("the fixture has a manifest").parameters
}

/// Changes the constants of the card's update: both betas and epsilon.
fn constants(fixture: &mut Fixture, change: impl FnOnce(&mut f64, &mut f64, &mut f64)) {
    let UpdateRule::Adamw { beta1, beta2, epsilon, .. } = &mut card(fixture).update;
    change(beta1, beta2, epsilon);
}

fn scale(norm: &mut Option<Float>, factor: f64) {
    let norm = norm.as_mut().expect("the fixture takes norms");
    *norm = Float(norm.0 * factor);
}

/// Changes the last byte of a file, which is in its last tensor.
fn flip_last_byte(fixture: &Fixture, checkpoint: &str, name: &str) {
    let path = fixture.checkpoint(checkpoint).join(name);
    let mut bytes = std::fs::read(&path).expect("the fixture wrote it");
    *bytes.last_mut().expect("not empty") ^= 1;
    std::fs::write(&path, bytes).expect("writable");
}

/// Takes no norm of parameters and of what updates changed.
fn leave_norms_out(fixture: &mut Fixture) {
    for entry in &mut fixture.entries {
        if let Body::Step(halves) = &mut entry.body {
            for update in &mut halves.det.updates {
                (update.parameter_norm, update.update_norm) = (None, None);
            }
        }
    }
}

/// Only a loop whose code is not the project's may take none.
#[test]
fn an_external_loop_that_takes_no_norms_has_none_to_compare() {
    let mut fixture = external_loop().build();
    assert_eq!(fixture.check(rule("GL416")).0, RuleStatus::Passed);
    leave_norms_out(&mut fixture);
    assert_eq!(fixture.check(rule("GL416")).0, RuleStatus::NotApplicable);
    // Gradients have a norm all the same.
    assert_eq!(fixture.check(rule("GL415")).0, RuleStatus::Passed);
}

/// Each constant shows in every checkpoint by itself: what a run was made by is
/// not a matter of one file.
#[test]
fn every_checkpoint_tells_the_constants() {
    let fixture = changed(|f| constants(f, |_, _, epsilon| *epsilon = 1e-4));
    let (_, _, findings) = fixture.check(rule("GL416"));
    let of = |name: &str| findings.iter().filter(|finding| finding.message.contains(name)).count();
    assert!(of("s00000004-a1") > 0 && of("s00000008-a1") > 0, "{findings:#?}");
    let fixture = changed(|f| constants(f, |_, beta2, _| *beta2 = 0.9));
    let (_, _, findings) = fixture.check(rule("GL415"));
    assert_eq!(findings.len(), 2, "{findings:#?}");
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
            Body::Step(h) => Some(h.det.updates.clone()),
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
    error("GL415", "a gradient norm that is a little off", || {
        changed(|f| {
            body!(f, Step, 6, |h| if let Credit::Backpropagation { gradient_norm, .. } = &mut h.det.credit {
                // Below the norm at which gradients are clipped, where it decides.
                *gradient_norm = Float(0.999);
            });
        })
    }),
    error("GL415", "a card with another decay of second moments", || {
        changed(|f| constants(f, |_, beta2, _| *beta2 = 0.951))
    }),
    error("GL415", "second moments of other gradients", || {
        changed(|f| {
            rewrite(f, 1, StateClass::Optimizer, |_, bits| {
                let value = f32::from_bits(bits);
                if value > 0.0 { (value * 1.00001).to_bits() } else { bits }
            });
        })
    }),
    error("GL415", "a step that was not executed", || {
        changed(|f| f.drop_where(|entry| entry.header.step == Some(6) && entry.body.kind() == Kind::Step))
    }),
    error("GL416", "a card with another epsilon", || {
        changed(|f| constants(f, |_, _, epsilon| *epsilon = 1e-4))
    }),
    error("GL416", "a card with another decay of first moments", || {
        changed(|f| constants(f, |beta1, _, _| *beta1 = 0.85))
    }),
    error("GL416", "a card with another decay of a group", || {
        changed(|f| card(f).groups[0].weight_decay = 0.11)
    }),
    error("GL416", "a norm of other parameters", || {
        changed(|f| body!(f, Step, 7, |h| scale(&mut h.det.updates[0].parameter_norm, 1.0 + 1e-9)))
    }),
    error("GL416", "a norm of another change", || {
        changed(|f| body!(f, Step, 7, |h| scale(&mut h.det.updates[1].update_norm, 1.001)))
    }),
    error("GL416", "norms that are left out where nothing would fit them", || {
        changed(|f| body!(f, Step, 7, |h| h.det.updates[2].update_norm = None))
    }),
    error("GL416", "norms that an external loop leaves out of one step", || {
        let mut fixture = external_loop().build();
        body!(fixture, Step, 7, |h| h.det.updates[0].parameter_norm = None);
        fixture
    }),
    error("GL416", "a native run that takes no norms", || changed(leave_norms_out)),
    error("GL416", "a norm before the last update", || {
        changed(|f| body!(f, Step, 6, |h| scale(&mut h.det.updates[0].parameter_norm, 1.0 + 1e-5)))
    }),
    error("GL416", "a model that the step did not leave", || {
        changed(|f| {
            rewrite(f, 2, StateClass::Model, |place, bits| bits ^ (u32::from(place == 9) << 20));
        })
    }),
    error("GL416", "a first moment of another gradient", || {
        changed(|f| {
            // The first tensor is the first moment of the embedding.
            rewrite(f, 2, StateClass::Optimizer, |place, bits| {
                let value = f32::from_bits(bits);
                if (1..=4).contains(&place) { (value * 1.01).to_bits() } else { bits }
            });
        })
    }),
    error("GL411", "credit by another rule", || {
        changed(|f| {
            f.frozen.contract.credit = CreditRule::Evolution { antithetic: true, population: 8, rank: None }
        })
    }),
];
