//! False runs for `GL2xx`.

use schemas::body::{
    AttemptReason, Body, CheckpointDet, CheckpointFailedObs, CostTotals, Halves, Kind, Outcome, RunEndObs,
};
use schemas::contract::{Contract, EXTERNAL_PACKAGE, EquivalenceClass, Recovery, StoppingRule};
use schemas::digest::Digest;
use schemas::ids::{AttemptId, LearnerId, SegmentId};
use schemas::number::Float;
use schemas::report::RuleStatus;

use super::{Mutation, changed, error, warning};
use crate::fixture::{Fixture, RunBuilder};

/// A run with two attempts, the first of which vanished.
fn crashed(change: impl FnOnce(&mut Fixture)) -> Fixture {
    let mut fixture = RunBuilder::new().crash_after_step(6).build();
    change(&mut fixture);
    fixture
}

/// A run that ends because its values stop improving enough.
pub(super) fn with_patience() -> Fixture {
    let stopping =
        StoppingRule::Patience { max_step: 40, min_delta: 0.3, patience: 2, stream: "val".to_owned() };
    RunBuilder::new()
        .contract(|contract| {
            contract.stopping = stopping;
            contract.budget.max_steps = 40;
        })
        .build()
}

macro_rules! body {
    ($fixture:expr, $kind:ident, $n:expr, |$halves:ident| $change:expr) => {
        $fixture.change(schemas::body::Kind::$kind, $n, |entry| {
            if let schemas::body::Body::$kind($halves) = &mut entry.body {
                $change;
            }
        })
    };
}
pub(super) use body;

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL201", "a run without an end", || changed(|f| f.drop_where(|e| e.body.kind() == Kind::RunEnd))),
    error("GL201", "a run without a start", || {
        changed(|f| f.drop_where(|e| e.body.kind() == Kind::RunStart))
    }),
    error("GL201", "a run of another contract", || {
        changed(|f| body!(f, RunStart, 0, |h| h.det.contract = Digest::sha256([1; 32])))
    }),
    error("GL201", "a step after the end", || {
        changed(|f| {
            let step = f.entries.iter().find(|e| e.body.kind() == Kind::Step).cloned().expect("a step");
            f.entries.push(step);
            f.renumber();
        })
    }),
    error("GL202", "a vanished attempt that nobody reported", || {
        crashed(|f| f.drop_where(|e| e.body.kind() == Kind::FaultObserved))
    }),
    error("GL202", "a vanished attempt that nobody recovered from", || {
        crashed(|f| f.drop_where(|e| e.body.kind() == Kind::FaultRecovered))
    }),
    error("GL202", "a missing attempt", || {
        crashed(|f| {
            f.drop_where(|e| {
                e.header.attempt == Some(AttemptId(1))
                    || matches!(e.body.kind(), Kind::FaultObserved | Kind::FaultRecovered)
            });
        })
    }),
    error("GL202", "a false last step of a vanished attempt", || {
        crashed(|f| body!(f, FaultObserved, 0, |h| h.det.last_step = 4))
    }),
    error("GL202", "an attempt without an end", || {
        changed(|f| f.drop_where(|e| e.body.kind() == Kind::AttemptEnd))
    }),
    error("GL202", "progress of an attempt that is over", || {
        crashed(|f| f.change(Kind::Step, 7, |entry| entry.header.attempt = Some(AttemptId(1))))
    }),
    error("GL202", "a run that ends otherwise than its last attempt", || {
        changed(|f| body!(f, AttemptEnd, 0, |h| h.det.outcome = Outcome::Interrupted))
    }),
    error("GL202", "steps after an attempt that completed", || {
        let mut fixture = RunBuilder::new().interrupt_after_step(6).build();
        body!(fixture, AttemptEnd, 0, |h| h.det.outcome = Outcome::Completed);
        fixture
    }),
    error("GL202", "a recovery before its fault was observed", || {
        crashed(|f| {
            let at = f.entries.iter().position(|e| e.body.kind() == Kind::FaultObserved).expect("a fault");
            f.entries.swap(at, at + 1);
            f.renumber();
        })
    }),
    error("GL203", "a resume from an older checkpoint", || {
        crashed(|f| {
            let first = f.entries.iter().find_map(|e| match &e.body {
                Body::CheckpointDurablyCommitted(h) => Some((h.obs.checkpoint.clone(), h.obs.manifest)),
                _ => None,
            });
            let (checkpoint, manifest) = first.expect("a checkpoint of step 0");
            body!(f, AttemptStart, 1, |h| {
                let point = h.det.resumed_from.as_mut().expect("it resumes");
                (point.checkpoint, point.manifest, point.step, h.det.from_step) =
                    (checkpoint, manifest, 0, 0);
            });
        })
    }),
    error("GL203", "a resume from a checkpoint that was not validated", || {
        crashed(|f| f.drop_where(|e| e.body.kind() == Kind::CheckpointValidated && e.header.step == Some(4)))
    }),
    error("GL203", "a resume from other bytes", || {
        crashed(|f| {
            body!(f, AttemptStart, 1, |h| {
                h.det.resumed_from.as_mut().expect("it resumes").manifest = Digest::blake3([3; 32]);
            });
        })
    }),
    error("GL203", "a resume from a checkpoint that the policy would have qualified first", || {
        let by_qualification =
            |contract: &mut Contract| contract.faults.recovery = Recovery::RestartFromLastQualified;
        RunBuilder::new().contract(by_qualification).crash_after_step(6).build()
    }),
    error("GL203", "a restart although there is a checkpoint", || {
        crashed(|f| body!(f, AttemptStart, 1, |h| h.det.reason = AttemptReason::Restart))
    }),
    error("GL204", "a missing step", || {
        changed(|f| f.drop_where(|e| e.body.kind() == Kind::Step && e.header.step == Some(3)))
    }),
    error("GL204", "a repeated step", || {
        changed(|f| f.repeat_where(|e| e.body.kind() == Kind::Step && e.header.step == Some(3)))
    }),
    error("GL204", "a false number of lost steps", || {
        crashed(|f| body!(f, FaultRecovered, 0, |h| h.det.num_steps_lost = 0))
    }),
    error("GL204", "a recovery from another step", || {
        crashed(|f| body!(f, FaultRecovered, 0, |h| h.det.from_step = 3))
    }),
    error("GL204", "a recovery from another checkpoint", || {
        crashed(|f| body!(f, FaultRecovered, 0, |h| h.obs.checkpoint = None))
    }),
    error("GL204", "an attempt that begins beyond what was reached", || {
        crashed(|f| body!(f, AttemptStart, 1, |h| h.det.from_step = 7))
    }),
    error("GL204", "an evaluation at another step", || {
        changed(|f| f.change(Kind::Eval, 1, |entry| entry.header.step = Some(5)))
    }),
    error("GL205", "a step that gives another loss the second time", || {
        crashed(|f| {
            // Steps 5 and 6 are executed twice; the second 6 is the eighth step.
            body!(f, Step, 7, |h| {
                if let schemas::body::Credit::Backpropagation { loss, .. } = &mut h.det.credit {
                    *loss = Float(5.25);
                }
            });
        })
    }),
    error("GL206", "an attempt of an external loop under a native contract", || {
        changed(|f| body!(f, AttemptStart, 0, |h| h.det.code.package = EXTERNAL_PACKAGE.to_owned()))
    }),
    error("GL206", "another binary", || {
        changed(|f| body!(f, AttemptStart, 0, |h| h.det.code.digest = Digest::sha256([8; 32])))
    }),
    error("GL206", "another compiler", || {
        changed(|f| body!(f, AttemptStart, 0, |h| h.obs.environment.rustc.push('x')))
    }),
    error("GL207", "instrumentation", || {
        changed(|f| body!(f, AttemptStart, 0, |h| h.obs.plan.instrumentation.push("failpoints".to_owned())))
    }),
    error("GL207", "other CPU features", || {
        changed(|f| body!(f, AttemptStart, 0, |h| h.obs.plan.compiler.cpu_features.clear()))
    }),
    error("GL207", "another number of threads", || {
        crashed(|f| body!(f, AttemptStart, 1, |h| h.obs.plan.num_threads += 1))
    }),
    error("GL208", "a segment of another identity", || {
        changed(|f| body!(f, SegmentStart, 0, |h| h.det.identity = Digest::sha256([1; 32])))
    }),
    error("GL208", "a step of another segment", || {
        changed(|f| f.change(Kind::Step, 2, |entry| entry.header.segment = Some(SegmentId(2))))
    }),
    error("GL208", "no segment", || changed(|f| f.drop_where(|e| e.body.kind() == Kind::SegmentStart))),
    error("GL208", "a segment although nothing changed", || {
        changed(|f| f.repeat_where(|e| e.body.kind() == Kind::SegmentStart))
    }),
    error("GL209", "an end before the rule", || {
        changed(|f| f.frozen.contract.stopping = StoppingRule::AtStep { step: 9 })
    }),
    error("GL209", "a step beyond the rule", || {
        changed(|f| f.frozen.contract.stopping = StoppingRule::AtStep { step: 7 })
    }),
    error("GL209", "an end that is no completion", || {
        changed(|f| body!(f, RunEnd, 0, |h| h.det.outcome = Outcome::Failed))
    }),
    error("GL209", "patience that had ended before", || {
        let mut fixture = with_patience();
        fixture.frozen.contract.stopping =
            StoppingRule::Patience { max_step: 40, min_delta: 0.2, patience: 1, stream: "val".to_owned() };
        fixture
    }),
    error("GL210", "more attempts than the budget", || {
        crashed(|f| f.frozen.contract.budget.max_attempts = 1)
    }),
    error("GL210", "more steps than the budget", || changed(|f| f.frozen.contract.budget.max_steps = 7)),
    error("GL210", "more tokens than the budget", || {
        changed(|f| f.frozen.contract.budget.max_tokens = Some(100))
    }),
    error("GL210", "more time than the budget", || {
        changed(|f| {
            f.frozen.contract.budget.max_wall_s = Some(1);
            body!(f, AttemptEnd, 0, |h| h.obs.cost.wall_us = 100_000_000);
        })
    }),
    error("GL210", "an attempt that goes on although the time was used up before", || {
        let mut fixture = RunBuilder::new().interrupt_after_step(6).build();
        fixture.frozen.contract.budget.max_wall_s = Some(1);
        body!(fixture, AttemptEnd, 0, |h| h.obs.cost.wall_us = 2_000_000);
        fixture
    }),
    warning("GL210", "more time than the budget by the system's clock", || {
        changed(|f| {
            f.frozen.contract.budget.max_wall_s = Some(1);
            for (at, entry) in (0u64..).zip(&mut f.entries) {
                entry.time_us += at * 1_000_000;
            }
        })
    }),
    error("GL210", "a budget that was not exhausted", || {
        changed(|f| {
            f.frozen.contract.budget.max_steps = 20;
            body!(f, RunEnd, 0, |h| h.det.outcome = Outcome::BudgetExhausted);
        })
    }),
    error("GL211", "a token counter that does not add up", || {
        changed(|f| body!(f, Step, 4, |h| h.det.counters.tokens += 1))
    }),
    error("GL211", "an attempt that is not counted", || {
        crashed(|f| body!(f, RunEnd, 0, |h| h.obs.num_attempts = 1))
    }),
    error("GL211", "an incomplete attempt that is not counted", || {
        crashed(|f| body!(f, RunEnd, 0, |h| h.obs.num_attempts_incomplete = 0))
    }),
    error("GL211", "another last step", || changed(|f| body!(f, RunEnd, 0, |h| h.det.last_step = 7))),
    error("GL212", "repeated steps left out of the cost", || {
        crashed(|f| body!(f, RunEnd, 0, |h| h.obs.cost.num_steps_executed = 8))
    }),
    error("GL212", "the vanished attempt left out of the cost", || {
        crashed(|f| body!(f, RunEnd, 0, |h| h.obs.cost.wall_us -= 1))
    }),
    error("GL212", "recording that takes longer than the attempt", || {
        changed(|f| body!(f, AttemptEnd, 0, |h| h.obs.cost.recording_us = h.obs.cost.wall_us + 1))
    }),
    error("GL212", "checkpoint bytes that were not saved", || {
        changed(|f| {
            body!(f, AttemptEnd, 0, |h| h.obs.cost.checkpoint_bytes = 1);
            body!(f, RunEnd, 0, |h| h.obs.cost.checkpoint_bytes = 1);
        })
    }),
    error("GL213", "steps of another learner", || {
        changed(|f| f.change(Kind::Step, 2, |entry| entry.header.learner = Some(LearnerId(9))))
    }),
    error("GL213", "steps of another worker", || {
        changed(|f| f.change(Kind::Step, 2, |entry| entry.header.worker = None))
    }),
    error("GL213", "an end in a segment", || {
        changed(|f| f.change(Kind::RunEnd, 0, |entry| entry.header.segment = Some(SegmentId(7))))
    }),
    error("GL213", "an end at another step than it says", || {
        changed(|f| f.change(Kind::RunEnd, 0, |entry| entry.header.step = Some(2)))
    }),
    error("GL213", "a checkpoint at another step than it says", || {
        changed(|f| f.change(Kind::CheckpointDurablyCommitted, 1, |entry| entry.header.step = Some(2)))
    }),
    error("GL213", "an admission at another step than it says", || {
        changed(|f| f.change(Kind::CandidateAdmitted, 1, |entry| entry.header.step = Some(2)))
    }),
];

#[test]
fn under_a_weaker_class_only_what_is_executed_again_is_not_evaluated() {
    let status = |builder: RunBuilder, class: EquivalenceClass| {
        let mut fixture = builder.build();
        fixture.frozen.contract.numerics.determinism = class;
        fixture.check(super::rule("GL205")).0
    };
    for class in [EquivalenceClass::OperationOrderBounded, EquivalenceClass::Statistical] {
        let once = status(RunBuilder::new(), class);
        let twice = status(RunBuilder::new().crash_after_step(6), class);
        assert_eq!((once, twice), (RuleStatus::NotApplicable, RuleStatus::NotEvaluated), "{class:?}");
    }
}

/// A third attempt that passes over the checkpoint which the second, lost
/// before it made progress, had named.
fn passes_over(quarantines: bool) -> Fixture {
    let mut fixture = RunBuilder::new().crash_after_step(6).build();
    let at = fixture.entries.iter().rposition(|e| e.body.kind() == Kind::AttemptStart).expect("two");
    let mut third = fixture.entries[at].clone();
    let old = fixture.entries.iter().find_map(|e| match &e.body {
        Body::CheckpointDurablyCommitted(h) => Some((h.obs.checkpoint.clone(), h.obs.manifest)),
        _ => None,
    });
    let old = old.expect("a checkpoint of step 0");
    let mut newest = None;
    if let Body::AttemptStart(h) = &mut third.body {
        (h.det.attempt, h.det.from_step) = (AttemptId(3), 0);
        let point = h.det.resumed_from.as_mut().expect("it resumes");
        newest = Some(point.checkpoint.clone());
        (point.checkpoint, point.manifest, point.step) = (old.0, old.1, 0);
    }
    let step = fixture.entries.iter().find(|e| e.body.kind() == Kind::Step).cloned().expect("a step");
    let mut quarantine = third.clone();
    quarantine.body = Body::CheckpointQuarantined(Box::new(Halves {
        det: CheckpointDet { step: 4 },
        obs: CheckpointFailedObs {
            checkpoint: newest.expect("the second resumed"),
            reason: "corrupt".to_owned(),
        },
    }));
    fixture.entries.truncate(at + 1);
    fixture.entries.push(third);
    if quarantines {
        fixture.entries.push(quarantine);
    }
    fixture.entries.push(step);
    fixture.renumber();
    fixture
}

#[test]
fn an_attempt_that_did_nothing_may_have_named_a_corrupt_checkpoint() {
    let (status, _, findings) = passes_over(true).check(super::rule("GL203"));
    assert_eq!(status, RuleStatus::Passed, "{findings:#?}");
    let (status, _, _) = passes_over(false).check(super::rule("GL203"));
    assert_eq!(status, RuleStatus::Failed);
}

#[test]
fn a_run_that_is_ended_without_an_attempt_counts_the_one_that_vanished() {
    let mut fixture = RunBuilder::new().crash_after_step(6).build();
    fixture.frozen.contract.budget.max_attempts = 1;
    let observed = fixture.entries.iter().position(|e| e.body.kind() == Kind::FaultObserved).expect("one");
    let mut end = fixture.entries.last().cloned().expect("run.end");
    fixture.entries.truncate(observed + 1);
    let first = fixture.entries.iter().find(|e| e.body.kind() == Kind::AttemptStart).expect("one").time_us;
    let last = fixture.entries[observed - 1].time_us;
    let counters = fixture.entries.iter().rev().find_map(|e| match &e.body {
        Body::Step(h) => Some(h.det.counters),
        _ => None,
    });
    if let Body::RunEnd(h) = &mut end.body {
        h.det.outcome = Outcome::BudgetExhausted;
        (h.det.counters, h.det.last_step, h.det.target_met) = (counters.expect("six steps"), 6, None);
        let cost = CostTotals { num_steps_executed: 6, wall_us: last - first, ..CostTotals::default() };
        h.obs = RunEndObs { cost, num_attempts: 1, num_attempts_incomplete: 1 };
    }
    end.header.step = Some(6);
    fixture.entries.push(end);
    fixture.renumber();
    for code in ["GL210", "GL211", "GL212", "GL213"] {
        let (status, _, findings) = fixture.check(super::rule(code));
        assert_eq!(status, RuleStatus::Passed, "{code}: {findings:#?}");
    }
}
