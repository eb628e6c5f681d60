//! Runs that faults struck: planned, observed, recovered from and charged; and
//! false ones among them.

use schemas::body::{
    AnomalyDet, AnomalyObs, Body, CheckpointFailedObs, Halves, Kind, ObservedFault, Outcome,
};
use schemas::contract::{
    Architecture, Contract, DropoutDraws, FaultKind, FaultPhase, PlannedFault, Recovery, SaveMode,
};
use schemas::finding::Severity;
use schemas::ids::LearnerId;
use schemas::number::{DecimalU64, Float};
use schemas::report::RuleStatus;
use schemas::state::StateClass;

use super::attempts::body;
use super::damages::announce;
use super::stateful::{changed, plateau, with_shard};
use super::workers::{streaming, two};
use super::{Mutation, check_honest, error, note, rule, warning};
use crate::fixture::{Fixture, RunBuilder, Strike, asynchronous, rewrite_manifest};

pub(super) fn planned(fault: FaultKind, phase: FaultPhase, worker: Option<u32>) -> PlannedFault {
    PlannedFault { fault, phase, seed: DecimalU64(1), step: 6, worker }
}

/// Worker 1 is killed before update 6, and seen to be lost.
pub(super) fn lost_worker() -> Strike {
    let planned = planned(FaultKind::WorkerLoss, FaultPhase::BeforeForward, Some(1));
    Strike { planned, seen: ObservedFault::WorkerLost, is_withheld: false }
}

/// The data cursor is rewound before update 6, and seen to be.
pub(super) fn rewound() -> Strike {
    let planned = planned(FaultKind::DataCursorRewind, FaultPhase::BeforeForward, None);
    Strike { planned, seen: ObservedFault::StateMismatch, is_withheld: false }
}

pub(super) fn rolls_back(contract: &mut Contract) {
    contract.faults.recovery = Recovery::RollBack;
}

/// A run of two workers with streams and a plateau, which loses one of them.
pub(super) fn struck() -> RunBuilder {
    plateau()
        .contract(|contract| {
            let Contract { architecture, dropout_draws, state_classes, .. } = contract;
            let Architecture::LlamaDecoder(decoder) = architecture;
            decoder.dropout = 0.1;
            *dropout_draws = DropoutDraws::PhiloxStream;
            let declared = state_classes.iter_mut().find(|declared| declared.class == StateClass::RngCpu);
            declared.expect("a required class").not_applicable = None;
        })
        .workers(2)
        .struck_by(lost_worker())
}

/// A run of two workers in which one is called late at once.
fn late_at_once() -> Fixture {
    let planned = planned(FaultKind::CollectiveTimeout, FaultPhase::BeforeForward, Some(1));
    let strike = Strike { planned, seen: ObservedFault::WorkerTimeout, is_withheld: false };
    RunBuilder::new().workers(2).struck_by(strike).build()
}

/// The same, behind the evaluation and the save of step 4.
fn late_behind_a_save() -> Fixture {
    let mut fixture = late_at_once();
    fixture.drop_where(|e| e.body.kind() == Kind::Step && e.header.step == Some(5));
    fixture
}

/// The contract's timeout of the fixture's runs of several workers.
const TIMEOUT_US: u64 = 10_000_000;
/// Longest time between two signs of life in them.
const HEARTBEAT_US: u64 = 100_000;

/// Lets so much time pass before the fault is seen.
fn delay(fixture: &mut Fixture, by_us: u64) {
    let seen = fixture.entries.iter().position(|e| e.body.kind() == Kind::FaultObserved);
    delay_from(fixture, seen.expect("it was seen"), by_us);
}

/// Lets so much time pass before an entry.
fn delay_from(fixture: &mut Fixture, place: usize, by_us: u64) {
    for entry in &mut fixture.entries[place..] {
        entry.time_us += by_us;
    }
}

/// What `GL230` says of the attempt that stopped, with the family that it names.
fn stopped(fixture: &Fixture) -> (String, Option<FaultKind>) {
    let findings = fixture.check(rule("GL230")).2;
    let [finding] = findings.as_slice() else { panic!("{findings:#?}") };
    (format!("{}; {}", finding.message, finding.actual), finding.cause)
}

#[test]
fn stages_and_times_tell_why_an_attempt_stopped() {
    let vanished = RunBuilder::new().crash_after_step(6).build();
    let (text, cause) = stopped(&vanished);
    assert!(text.contains("without a terminal entry") && text.contains("behind step 6"), "{text}");
    assert_eq!(cause, Some(FaultKind::WorkerLoss));

    let inside = changed(RunBuilder::new().crash_after_step(6), |f| {
        f.drop_where(|e| e.body.kind() == Kind::CheckpointValidated && e.header.step == Some(4));
    });
    let (text, cause) = stopped(&inside);
    assert!(text.contains("durably_committed"), "{text}");
    assert_eq!(cause, Some(FaultKind::CheckpointWriteInterruption));

    // Who failed for whatever reason names no family; who waited as long as the
    // contract lets a worker take was late.
    assert_eq!(stopped(&struck().build()).1, None);
    let mut late = late_at_once();
    delay(&mut late, TIMEOUT_US);
    let (text, cause) = stopped(&late);
    assert!(text.contains("of 2 workers failed"), "{text}");
    assert_eq!(cause, Some(FaultKind::CollectiveTimeout));
}

/// Nobody says that a worker was late: the time alone tells it, and not too
/// little of it.
#[test]
fn a_late_worker_is_told_by_the_time_where_nobody_says_it() {
    let late = Some(FaultKind::CollectiveTimeout);
    // One that stands still altogether may have been heard of that much before it
    // was asked.
    let cases = [
        (TIMEOUT_US, late),
        (TIMEOUT_US - HEARTBEAT_US, late),
        (TIMEOUT_US - 2 * HEARTBEAT_US, None),
        (TIMEOUT_US * 9 / 10, None),
    ];
    for (waited_us, expected) in cases {
        let mut silent = late_at_once();
        delay(&mut silent, waited_us);
        silent.drop_where(|e| e.body.kind() == Kind::FaultObserved);
        assert_eq!(stopped(&silent).1, expected, "{waited_us} us");
    }
}

/// Signs of life that are almost as rare as the timeout make no late worker of every
/// attempt that failed.
#[test]
fn half_of_the_timeout_is_a_wait_however_rare_signs_of_life_are() {
    let late = Some(FaultKind::CollectiveTimeout);
    for (waited_us, expected) in [(TIMEOUT_US / 2, late), (TIMEOUT_US / 2 - HEARTBEAT_US, None), (0, None)] {
        let mut silent = late_at_once();
        let collective = silent.frozen.contract.topology.collective.as_mut().expect("several workers");
        collective.heartbeat_ms = collective.timeout_ms - 1;
        delay(&mut silent, waited_us);
        silent.drop_where(|e| e.body.kind() == Kind::FaultObserved);
        assert_eq!(stopped(&silent).1, expected, "{waited_us} us");
    }
}

/// A loop that waits for a worker comes no further by what its saver does beside
/// it.
#[test]
fn a_save_beside_the_wait_hides_no_late_worker() {
    for (mode, expected) in
        [(SaveMode::Asynchronous, Some(FaultKind::CollectiveTimeout)), (SaveMode::Synchronous, None)]
    {
        let mut late = late_behind_a_save();
        late.frozen.contract.checkpoints.mode = mode;
        delay(&mut late, TIMEOUT_US);
        late.drop_where(|e| e.body.kind() == Kind::CandidateAdmitted && e.header.step == Some(4));
        for kind in [Kind::CheckpointStaged, Kind::CheckpointDurablyCommitted] {
            late.change(kind, 1, |entry| entry.time_us += TIMEOUT_US / 2);
        }
        assert_eq!(stopped(&late).1, expected, "{mode:?}");
    }
}

/// A worker that stood still while the others evaluated or saved is late as soon
/// as it is asked again. A step with digests is written behind its evaluations.
#[test]
fn a_worker_that_fell_silent_before_it_was_asked_may_be_late_at_once() {
    for (kind, has_digests, is_warned) in [
        (Kind::Eval, false, false),
        (Kind::CheckpointDurablyCommitted, false, false),
        (Kind::Step, true, false),
        (Kind::Step, false, true),
    ] {
        let mut late = late_behind_a_save();
        if has_digests {
            body!(late, Step, 3, |h| h.det.state = Some(Vec::new()));
        }
        let place = late.entries.iter().position(|e| e.body.kind() == kind && e.header.step == Some(4));
        delay_from(&mut late, place.expect("step 4 has one"), TIMEOUT_US);
        let (text, cause) = stopped(&late);
        assert_eq!(text.contains("sooner than the contract's timeout"), is_warned, "{kind:?}: {text}");
        assert_eq!(cause, None, "{kind:?}: {text}");
    }
}

/// A worker that is lost on a slow machine, or a device that hangs, takes as
/// long; an honest attempt says so.
#[test]
fn a_long_wait_for_something_else_is_no_late_worker() {
    let mut lost = struck().build();
    delay(&mut lost, TIMEOUT_US);
    assert_eq!(stopped(&lost).1, None);

    let mut gone = late_at_once();
    delay(&mut gone, TIMEOUT_US);
    gone.change(Kind::FaultObserved, 0, |entry| {
        let obs = AnomalyObs { description: "the device is gone".to_owned() };
        entry.body = Body::Anomaly(Box::new(Halves { det: AnomalyDet::named("engine_failed"), obs }));
    });
    assert_eq!(stopped(&gone).1, None);
}

#[test]
fn a_committed_checkpoint_that_its_own_attempt_gives_up_did_not_read_back() {
    let fixture = changed(RunBuilder::new(), |f| {
        let at = f.entries.iter().position(|e| e.body.kind() == Kind::CheckpointValidated).expect("one");
        let Body::CheckpointValidated(halves) = &f.entries[at].body else { panic!("just found") };
        let obs = CheckpointFailedObs {
            checkpoint: halves.obs.checkpoint.clone(),
            reason: "other bytes".to_owned(),
        };
        f.entries[at].body = Body::CheckpointFailed(Box::new(Halves { det: halves.det.clone(), obs }));
    });
    assert_eq!(stopped(&fixture).1, Some(FaultKind::SingleShardCorruption));
}

pub(super) fn rolled_back() -> RunBuilder {
    RunBuilder::new().contract(rolls_back).struck_by(rewound())
}

pub(super) fn check_honest_runs() {
    for (fixture, codes) in [
        (struck().build(), &["GL214", "GL215", "GL216", "GL217", "GL633", "GL710", "GL711"][..]),
        (asynchronous(struck().build()), &["GL216", "GL217", "GL710", "GL711"]),
        (rolled_back().build(), &["GL216", "GL217", "GL710", "GL711"]),
        (RunBuilder::new().contract(rolls_back).crash_after_step(6).build(), &["GL217", "GL710"]),
    ] {
        check_honest(&fixture, "with a fault");
        for code in codes {
            assert_eq!(fixture.check(rule(code)).0, RuleStatus::Passed, "{code} runs");
        }
    }
    // That somebody intervened is a warning of its own.
    let intervened = RunBuilder::new().intervention(12).build();
    for code in ["GL202", "GL208", "GL212", "GL213", "GL216"] {
        let (status, _, findings) = intervened.check(rule(code));
        assert_eq!(status, RuleStatus::Passed, "{code}: {findings:#?}");
    }
}

/// The fault itself is on record in neither contract nor entries, but for what
/// the run observed; that is a warning with its cause.
#[test]
fn an_observed_fault_that_no_plan_explains_is_a_warning() {
    let withheld = |strike: Strike| Strike { is_withheld: true, ..strike };
    let fixture = RunBuilder::new().struck_by(withheld(rewound())).build();
    let (status, _, findings) = fixture.check(rule("GL710"));
    assert_eq!(status, RuleStatus::Passed);
    let told: Vec<_> = findings.iter().map(|finding| (finding.severity, finding.cause)).collect();
    assert_eq!(told, [(Severity::Warning, Some(FaultKind::DataCursorRewind))]);
    let fixture = two().struck_by(withheld(lost_worker())).build();
    let (_, _, findings) = fixture.check(rule("GL710"));
    let told: Vec<_> = findings.iter().map(|finding| (finding.severity, finding.cause)).collect();
    assert_eq!(told, [(Severity::Note, Some(FaultKind::WorkerLoss))]);
}

fn with_unseen(fault: FaultKind, phase: FaultPhase) -> Fixture {
    announce(RunBuilder::new().build(), (fault, phase))
}

#[test]
fn what_only_a_probe_reveals_is_said() {
    let message = |fault, phase| with_unseen(fault, phase).check(rule("GL711")).2[0].message.clone();
    let precision = message(FaultKind::PrecisionPolicyChange, FaultPhase::BeforeForward);
    assert!(precision.contains("only a probe"), "{precision}");
    let leakage = message(FaultKind::ValidationLeakageInSelection, FaultPhase::Evaluation);
    assert!(leakage.contains("only the evaluator"), "{leakage}");
    let skip = message(FaultKind::DataCursorSkip, FaultPhase::BeforeForward);
    assert!(skip.contains("unseen"), "{skip}");
}

fn cost(f: &mut Fixture, unit: usize, by: f64) {
    body!(f, Cost, unit, |h| h.obs.amount = Float(h.obs.amount.0 + by));
}

fn drop_kind(f: &mut Fixture, kind: Kind) {
    f.drop_where(|entry| entry.body.kind() == kind);
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL216", "fewer steps charged than were lost", || changed(struck(), |f| cost(f, 0, -1.0))),
    error("GL216", "other seconds than the lost steps took", || changed(struck(), |f| cost(f, 1, 1e-6))),
    error("GL216", "bytes of nothing", || changed(struck(), |f| cost(f, 2, 1.0))),
    error("GL216", "a quarantined checkpoint that is not charged", || {
        changed(rolled_back(), |f| body!(f, Cost, 2, |h| h.obs.amount = Float(0.0)))
    }),
    warning("GL216", "a cost that follows from nothing", || {
        changed(struck(), |f| {
            let mut cost = f.entries.iter().find(|e| e.body.kind() == Kind::Cost).cloned().expect("one");
            if let Body::Cost(h) = &mut cost.body {
                "run".clone_into(&mut h.det.charged_to);
            }
            f.entries.push(cost);
            f.renumber();
        })
    }),
    error("GL216", "a recovery that is not charged", || changed(struck(), |f| drop_kind(f, Kind::Cost))),
    error("GL216", "costs in another order", || {
        changed(struck(), |f| {
            let at = f.entries.iter().position(|e| e.body.kind() == Kind::Cost).expect("charged");
            f.entries.swap(at, at + 1);
            f.renumber();
        })
    }),
    error("GL216", "a cost that is charged twice", || {
        changed(struck(), |f| f.repeat_where(|e| e.body.kind() == Kind::Cost))
    }),
    error("GL216", "other minutes than the intervention names", || {
        changed(RunBuilder::new().intervention(12), |f| cost(f, 0, 1.0))
    }),
    error("GL216", "minutes that are not charged", || {
        changed(RunBuilder::new().intervention(12), |f| drop_kind(f, Kind::Cost))
    }),
    error("GL216", "minutes without an intervention", || {
        changed(RunBuilder::new().intervention(12), |f| drop_kind(f, Kind::Intervention))
    }),
    error("GL217", "an attempt that goes on after its fault", || {
        changed(struck(), |f| {
            let at = f.entries.iter().position(|e| e.body.kind() == Kind::FaultObserved).expect("seen");
            let step = f.entries[..at].iter().rfind(|e| e.body.kind() == Kind::Step).cloned();
            f.entries.insert(at + 1, step.expect("a step before"));
            f.renumber();
        })
    }),
    error("GL217", "an attempt that its fault did not end", || {
        changed(struck(), |f| body!(f, AttemptEnd, 0, |h| h.det.outcome = Outcome::Interrupted))
    }),
    error("GL217", "a fault that nobody recovered from", || {
        changed(struck(), |f| drop_kind(f, Kind::FaultRecovered))
    }),
    error("GL217", "a state in doubt that the run goes on beside", || {
        changed(rolled_back(), |f| drop_kind(f, Kind::CheckpointQuarantined))
    }),
    error("GL217", "a policy that would have rolled back", || {
        changed(RunBuilder::new().struck_by(rewound()), |f| rolls_back(&mut f.frozen.contract))
    }),
    note("GL230", "an attempt that stopped without a terminal entry", || {
        RunBuilder::new().crash_after_step(6).build()
    }),
    note("GL230", "an attempt of several workers that failed", || struck().build()),
    warning("GL230", "a worker that is called late before its time", late_at_once),
    error("GL710", "a cause that cannot look like this", || {
        changed(struck(), |f| {
            body!(f, FaultObserved, 0, |h| h.det.cause = Some(FaultKind::DataCursorSkip));
        })
    }),
    error("GL710", "another family than was injected", || {
        changed(RunBuilder::new().struck_by(rewound()), |f| {
            body!(f, FaultObserved, 0, |h| h.det.cause = Some(FaultKind::RngStateLoss));
        })
    }),
    error("GL710", "a crash that is taken for an interrupted save", || {
        changed(RunBuilder::new().crash_after_step(6), |f| {
            let cause = Some(FaultKind::CheckpointWriteInterruption);
            body!(f, FaultObserved, 0, |h| h.det.cause = cause);
        })
    }),
    error("GL710", "an interrupted save that is taken for a lost worker", || {
        changed(RunBuilder::new().crash_after_step(6), |f| {
            f.drop_where(|e| e.body.kind() == Kind::CheckpointValidated && e.header.step == Some(4));
        })
    }),
    warning("GL710", "a cause that no injection explains", || {
        let strike = Strike { is_withheld: true, ..rewound() };
        RunBuilder::new().struck_by(strike).build()
    }),
    note("GL710", "a crash that nobody planned", || RunBuilder::new().crash_after_step(6).build()),
    warning("GL711", "a fault that nobody saw", || {
        with_unseen(FaultKind::DataCursorSkip, FaultPhase::BeforeForward)
    }),
    warning("GL711", "a fault that only a probe can reveal", || {
        with_unseen(FaultKind::PrecisionPolicyChange, FaultPhase::BeforeForward)
    }),
    note("GL711", "a fault that the run saw", || struck().build()),
    error("GL213", "an injection of a learner", || {
        changed(struck(), |f| {
            f.change(Kind::FaultInjected, 0, |entry| {
                entry.header.learner = Some(LearnerId(0));
            });
        })
    }),
    error("GL607", "a saved topology of fewer workers", || {
        changed(two(), |f| with_shard(f, StateClass::Topology, "\"workers\":2", "\"workers\":1"))
    }),
    error("GL604", "a stream that no worker has", || {
        changed(streaming(), |f| {
            let manifest = rewrite_manifest(f.folder.path(), "checkpoints/s00000008-a1", |manifest| {
                let captured = manifest.classes.iter_mut().filter(|of| of.class == StateClass::RngCpu);
                captured.for_each(|captured| captured.worker = None);
            });
            body!(f, CheckpointDurablyCommitted, 2, |h| h.obs.manifest = manifest);
        })
    }),
];
