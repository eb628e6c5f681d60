//! Runs whose durations, losses, resources and heads no execution leaves.

use schemas::body::Credit;
use schemas::contract::StoppingRule;
use schemas::finding::Severity;
use schemas::number::Float;
use schemas::report::RuleStatus;

use super::attempts::body;
use super::{Mutation, changed, error, note, rule, warning};
use crate::fixture::{Fixture, RunBuilder, honest_run};

/// A run of so many updates that its own scale is known, and then changed.
fn long(change: impl FnOnce(&mut Fixture)) -> Fixture {
    let mut fixture = RunBuilder::new()
        .contract(|contract| {
            contract.stopping = StoppingRule::AtStep { step: 40 };
            contract.budget.max_steps = 40;
        })
        .build();
    scatter(&mut fixture);
    change(&mut fixture);
    fixture
}

/// Gives updates durations that differ, as those of real ones do.
fn scatter(fixture: &mut Fixture) {
    for n in 0..40 {
        body!(fixture, Step, n, |h| h.obs.duration_us = 500 + (n as u64 * 37) % 11);
    }
}

fn set_loss(fixture: &mut Fixture, n: usize, value: f64) {
    body!(fixture, Step, n, |h| {
        if let Credit::Backpropagation { loss, .. } = &mut h.det.credit {
            *loss = Float(value);
        }
    });
}

fn loss(fixture: &mut Fixture, n: usize) -> f64 {
    let mut found = 0.0;
    body!(fixture, Step, n, |h| {
        if let Credit::Backpropagation { loss, .. } = &h.det.credit {
            found = loss.0;
        }
    });
    found
}

/// Copies the losses of the first updates over later ones.
fn copy_losses(fixture: &mut Fixture, count: usize) {
    for n in 0..count {
        let value = loss(fixture, n);
        set_loss(fixture, n + 20, value);
    }
}

#[test]
fn a_long_run_of_scattered_numbers_is_plausible() {
    for code in ["GL219", "GL220"] {
        let (status, num_checked, findings) = long(|_| {}).check(rule(code));
        assert_eq!((status, num_checked), (RuleStatus::Passed, 40), "{code}");
        assert!(findings.is_empty(), "{code}: {findings:#?}");
    }
    // A few equal losses are chance, and a rate of 0 changes nothing.
    let short = long(|f| copy_losses(f, 15));
    assert!(short.check(rule("GL220")).2.is_empty());
    let still = long(|f| {
        copy_losses(f, 20);
        for n in 20..40 {
            body!(f, Step, n, |h| h.det.updates.iter_mut().for_each(|u| u.learning_rate = Float(0.0)));
        }
    });
    assert!(still.check(rule("GL220")).2.is_empty());
    // A jump is judged by the run's own scale: where losses move by as much, it is none.
    let wild = long(|f| {
        for n in 1..40 {
            set_loss(f, n, 5.5 + 3.0 * ((n * 7) % 5) as f64);
        }
    });
    let jumps = wild.check(rule("GL220")).2;
    assert!(!jumps.iter().any(|finding| finding.message.contains("jumps")), "{jumps:#?}");
}

/// Steps that were executed again have the same losses, and that is honest.
#[test]
fn a_resume_repeats_nothing_that_tells() {
    let fixture = RunBuilder::new()
        .contract(|contract| {
            contract.stopping = StoppingRule::AtStep { step: 40 };
            contract.budget.max_steps = 40;
            contract.checkpoints.every_steps = 20;
            contract.evaluation.streams[0].every_steps = 20;
        })
        .crash_after_step(39)
        .build();
    let (status, _, findings) = fixture.check(rule("GL220"));
    assert_eq!((status, findings.len()), (RuleStatus::Passed, 0), "{findings:#?}");
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL218", "no bound of what a crash may lose", || {
        changed(|f| f.frozen.contract.durability.max_unsynced_steps = 0)
    }),
    error("GL218", "a bound of hours", || {
        changed(|f| f.frozen.contract.durability.max_unsynced_ms = 3_600_000)
    }),
    warning("GL219", "an update that took no time", || {
        changed(|f| body!(f, Step, 3, |h| h.obs.duration_us = 0))
    }),
    warning("GL219", "arithmetic that no device does in its time", || {
        changed(|f| {
            let parameters = &mut f.frozen.parameters.as_mut().expect("a manifest").parameters;
            parameters[0].shape = vec![1 << 20, 1 << 20];
        })
    }),
    warning("GL219", "updates that all took the same time", || {
        long(|f| (0..40).for_each(|n| body!(f, Step, n, |h| h.obs.duration_us = 500)))
    }),
    warning("GL219", "updates that took longer than their attempt", || {
        changed(|f| body!(f, Step, 3, |h| h.obs.duration_us = 60_000_000))
    }),
    warning("GL219", "a share that took longer than its update", || {
        let mut fixture = RunBuilder::new().workers(2).build();
        body!(fixture, Step, 3, |h| h.obs.shares[1].duration_us = 5_000_000);
        fixture
    }),
    warning("GL220", "a first loss below that of any initial values", || changed(|f| set_loss(f, 0, 2.0))),
    warning("GL220", "losses that jump", || long(|f| set_loss(f, 36, 50.0))),
    warning("GL220", "losses that repeat those of earlier steps", || long(|f| copy_losses(f, 20))),
    error("GL221", "evaluations that took longer than they are charged", || {
        changed(|f| body!(f, AttemptEnd, 0, |h| h.obs.cost.eval_us -= 1))
    }),
    error("GL221", "recording that is charged to nobody", || {
        changed(|f| body!(f, Step, 3, |h| h.obs.recording_us = 5_000))
    }),
    warning("GL221", "a peak of memory below what was resident", || {
        changed(|f| body!(f, Step, 3, |h| h.obs.resident_bytes = Some(1 << 29)))
    }),
    warning("GL221", "more memory than the machine has", || {
        changed(|f| body!(f, AttemptStart, 0, |h| h.obs.total_memory_bytes = 1 << 10))
    }),
    warning("GL221", "more processor time than there was", || {
        changed(|f| body!(f, AttemptEnd, 0, |h| h.obs.cost.cpu_us = 1 << 40))
    }),
    note("GL647", "a run that nobody probed", honest_run),
];

#[test]
fn a_note_of_closure_falls_silent_with_the_probes() {
    let (_, _, findings) = super::probes::probed(|_| {}).check(rule("GL647"));
    assert!(findings.is_empty(), "{findings:#?}");
    let (_, _, findings) = honest_run().check(rule("GL647"));
    assert_eq!(findings[0].severity, Severity::Note);
}
