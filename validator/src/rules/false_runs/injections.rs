//! Where injections may lie and what may follow them, what an end and a loss
//! need for a reason; and false runs among them.

use schemas::body::{
    AnomalyDet, AnomalyObs, Body, CheckpointDet, CheckpointFailedObs, FaultInjectedDet, Halves, Kind,
    Nothing, ObservedFault, Outcome,
};
use schemas::contract::{FaultKind, FaultPhase, PlannedFault, Recovery};
use schemas::entry::Entry;
use schemas::finding::Severity;
use schemas::ids::{AttemptId, CheckpointId, WorkerId};
use schemas::number::{DecimalU64, Float};
use schemas::report::RuleStatus;

use super::attempts::body;
use super::faults::{lost_worker, planned, rewound, rolled_back, rolls_back, struck};
use super::stateful::changed;
use super::workers::{permits, two};
use super::{Mutation, error, rule, warning};
use crate::fixture::{Fixture, RunBuilder, Strike};

/// A fault of a step, at the process that records.
fn at_step(fault: FaultKind, phase: FaultPhase, step: u64) -> PlannedFault {
    PlannedFault { fault, phase, seed: DecimalU64(1), step, worker: None }
}

fn place(f: &Fixture, kind: Kind, step: u64) -> usize {
    let is_it = |entry: &Entry| entry.body.kind() == kind && entry.header.step == Some(step);
    f.entries.iter().position(is_it).expect("the fixture has it")
}

/// Plans a fault and puts its injection before an entry, as of the attempt that
/// the entry before it is of.
fn inject(f: &mut Fixture, planned: PlannedFault, at: usize) {
    let mut entry = f.entries[at - 1].clone();
    let PlannedFault { fault, phase, step, worker, .. } = planned;
    f.frozen.contract.faults.plan.push(planned);
    let plan_index = u32::try_from(f.frozen.contract.faults.plan.len() - 1).expect("small");
    (entry.header.learner, entry.header.step) = (None, Some(step));
    entry.header.worker = Some(WorkerId(worker.unwrap_or(0)));
    let det = FaultInjectedDet { fault, phase, plan_index };
    entry.body = Body::FaultInjected(Box::new(Halves { det, obs: Nothing {} }));
    f.entries.insert(at, entry);
    f.renumber();
}

/// The same before the first entry of a kind and step.
fn injected(builder: RunBuilder, planned: PlannedFault, (kind, step): (Kind, u64)) -> Fixture {
    changed(builder, |f| {
        let at = place(f, kind, step);
        inject(f, planned, at);
    })
}

fn status(fixture: &Fixture, code: &str) -> RuleStatus {
    let (status, _, findings) = fixture.check(rule(code));
    if status == RuleStatus::Failed {
        assert!(!findings.is_empty(), "{code} says why");
    }
    status
}

fn assert_passed(fixture: &Fixture, code: &str) {
    let (status, _, findings) = fixture.check(rule(code));
    assert_eq!(status, RuleStatus::Passed, "{code}: {findings:#?}");
}

fn corrupted(phase: FaultPhase) -> PlannedFault {
    at_step(FaultKind::SingleShardCorruption, phase, 4)
}

/// A fault that strikes a checkpoint behind its validation lies between that and
/// the admission.
#[test]
fn a_candidate_may_be_struck_as_soon_as_it_is_validated() {
    let fixture = injected(RunBuilder::new(), corrupted(FaultPhase::Validated), (Kind::CandidateAdmitted, 4));
    for code in ["GL505", "GL602", "GL707"] {
        assert_passed(&fixture, code);
    }
}

/// The entry of a step that carries state digests follows its evaluations.
#[test]
fn an_evaluation_is_struck_before_the_entry_of_a_digest_step() {
    let leak = || at_step(FaultKind::ValidationLeakageInSelection, FaultPhase::Evaluation, 4);
    let builder = RunBuilder::new().contract(|contract| contract.state_digest_every_steps = Some(4));
    assert_passed(&injected(builder, leak(), (Kind::Step, 4)), "GL707");
    let fixture = injected(RunBuilder::new(), leak(), (Kind::Step, 4));
    assert_eq!(status(&fixture, "GL707"), RuleStatus::Failed, "without digests it comes too early");
}

/// A fault of a worker waits for an attempt that has it.
#[test]
fn a_fault_between_workers_is_not_reached_by_one_process() {
    for (fault, phase) in [
        (FaultKind::CollectiveTimeout, FaultPhase::BeforeForward),
        (FaultKind::WorkerLoss, FaultPhase::BeforeForward),
        (FaultKind::StaleOrDelayedGradient, FaultPhase::InExchange),
    ] {
        let planned = planned(fault, phase, Some(1));
        let plans =
            |builder: RunBuilder| builder.contract(|contract| contract.faults.plan.push(planned.clone()));
        // Steps from 5 on are executed by one process alone.
        let alone = plans(two().contract(permits).crash_after_step(5).then_workers(1)).build();
        let (status, _, findings) = alone.check(rule("GL707"));
        assert_eq!(status, RuleStatus::Passed, "{fault}: {findings:#?}");
        assert_eq!(findings.len(), 1, "{fault}: {findings:#?}");
        assert_eq!(findings[0].severity, Severity::Warning, "{fault}: {findings:#?}");
        let together = plans(two()).build();
        assert_eq!(together.check(rule("GL707")).0, RuleStatus::Failed, "{fault} was left out");
    }
    let change = at_step(FaultKind::TopologyChange, FaultPhase::BeforeForward, 6);
    let plans = |builder: RunBuilder| builder.contract(|contract| contract.faults.plan.push(change.clone()));
    let alone = plans(two().contract(permits).crash_after_step(5).then_workers(1)).build();
    assert_passed(&alone, "GL707");
    assert_eq!(status(&plans(two()).build(), "GL707"), RuleStatus::Failed);
}

/// The recording process was killed, and the next one says so.
#[test]
fn a_fault_that_ended_its_process_has_acted() {
    let fixture = changed(RunBuilder::new().crash_after_step(5), |f| {
        let at = f.entries.iter().position(|e| e.body.kind() == Kind::FaultObserved).expect("seen");
        inject(f, at_step(FaultKind::WorkerLoss, FaultPhase::BeforeForward, 6), at);
    });
    for code in ["GL707", "GL710", "GL711"] {
        assert_passed(&fixture, code);
    }
}

/// A run that is refused a second attempt: the first vanished inside of a save,
/// and the process that ends the run says so.
fn ended_without_attempt() -> Fixture {
    changed(RunBuilder::new().crash_after_step(6), |f| {
        f.frozen.contract.faults.recovery = Recovery::Refuse;
        let end = f.entries.last().cloned().expect("run.end");
        let seen = f.entries.iter().position(|e| e.body.kind() == Kind::FaultObserved).expect("seen");
        f.entries.truncate(seen + 1);
        f.entries.push(end);
        f.drop_where(|e| {
            let kind = e.body.kind();
            matches!(kind, Kind::CheckpointValidated | Kind::CandidateAdmitted) && e.header.step == Some(4)
        });
        body!(f, RunEnd, 0, |h| h.det.outcome = Outcome::Refused);
    })
}

#[test]
fn a_run_may_end_without_another_attempt() {
    let fixture = ended_without_attempt();
    for code in ["GL202", "GL209", "GL501", "GL505", "GL507", "GL602", "GL707"] {
        assert_passed(&fixture, code);
    }
    // Nothing is due at a last step that nobody reached, but to a selection.
    let selecting = {
        let mut fixture = ended_without_attempt();
        let selected = RunBuilder::new().build();
        let selected = selected.entries.iter().find(|e| e.body.kind() == Kind::CandidateSelected).cloned();
        let at = fixture.entries.len() - 1;
        fixture.entries.insert(at, selected.expect("it selects"));
        fixture.renumber();
        fixture
    };
    for code in ["GL501", "GL507"] {
        assert!(!selecting.check(rule(code)).2.is_empty(), "{code}");
    }
    let (_, _, findings) = fixture.check(rule("GL602"));
    assert_eq!(findings.len(), 1, "the save that was left is a note: {findings:#?}");
    let silent = {
        let mut fixture = ended_without_attempt();
        fixture.drop_where(|e| e.body.kind() == Kind::FaultObserved);
        fixture
    };
    assert_eq!(status(&silent, "GL202"), RuleStatus::Failed);
}

/// Nothing is thrown away where the run goes on from a later step.
#[test]
fn a_recovery_that_goes_forward_costs_no_time() {
    let forward = |seconds: f64| {
        changed(RunBuilder::new().crash_after_step(6), |f| {
            body!(f, FaultRecovered, 0, |h| (h.det.from_step, h.det.num_steps_lost) = (8, 0));
            body!(f, Cost, 0, |h| h.obs.amount = Float(0.0));
            body!(f, Cost, 1, |h| h.obs.amount = Float(seconds));
        })
    };
    assert_passed(&forward(0.0), "GL216");
    assert_eq!(status(&forward(1e-3), "GL216"), RuleStatus::Failed);
}

/// Ends the attempt that recovers before it has charged.
fn end_uncharged(f: &mut Fixture) {
    let end =
        f.entries[f.entries.iter().position(|e| e.body.kind() == Kind::AttemptEnd).expect("failed")].clone();
    let at = f.entries.iter().position(|e| e.body.kind() == Kind::Cost).expect("charged");
    f.entries.insert(at, end);
    f.renumber();
}

#[test]
fn the_next_attempt_charges_what_was_not_charged() {
    assert_passed(&changed(struck(), end_uncharged), "GL216");
}

/// Another fault than the injected one, which cannot look so, is nobody's
/// mistake.
#[test]
fn a_real_fault_beside_an_unseen_one_is_a_warning() {
    let strike = Strike {
        planned: corrupted(FaultPhase::Validated),
        seen: ObservedFault::WorkerTimeout,
        is_withheld: false,
    };
    let fixture = changed(two().struck_by(strike), |f| {
        body!(f, FaultObserved, 0, |h| h.det.cause = Some(FaultKind::CollectiveTimeout));
    });
    let (status, _, findings) = fixture.check(rule("GL710"));
    assert_eq!(status, RuleStatus::Passed, "{findings:#?}");
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert_eq!(findings[0].severity, Severity::Warning, "{findings:#?}");
}

/// The fault that struck is an anomaly of its own name where none fits.
#[test]
fn an_attempt_may_fail_by_an_anomaly() {
    let fixture = changed(struck(), |f| {
        unsaid(f);
        let at = f.entries.iter().position(|e| e.body.kind() == Kind::AttemptEnd).expect("failed");
        let mut entry = f.entries[at].clone();
        let obs = AnomalyObs { description: "the device is gone".to_owned() };
        entry.body = Body::Anomaly(Box::new(Halves { det: AnomalyDet::named("engine_failed"), obs }));
        f.entries.insert(at, entry);
        f.renumber();
    });
    assert_passed(&fixture, "GL217");
}

/// Nothing says why the first attempt failed, nor what that cost.
fn unsaid(f: &mut Fixture) {
    f.drop_where(|e| matches!(e.body.kind(), Kind::FaultObserved | Kind::FaultRecovered | Kind::Cost));
}

/// Gives up the checkpoint of step 4, behind its admission.
fn give_up(f: &mut Fixture, is_quarantine: bool) {
    let at = place(f, Kind::CandidateAdmitted, 4);
    let entry = given_up(f, at, is_quarantine);
    f.entries.insert(at + 1, entry);
    f.renumber();
}

/// An entry that gives up the checkpoint of step 4 of the first attempt, with
/// the header of another entry.
fn given_up(f: &Fixture, like: usize, is_quarantine: bool) -> Entry {
    let obs = CheckpointFailedObs {
        checkpoint: CheckpointId("s00000004-a1".to_owned()),
        reason: "it is in the way".to_owned(),
    };
    let halves = Box::new(Halves { det: CheckpointDet { step: 4 }, obs });
    let mut entry = f.entries[like].clone();
    entry.header.step = Some(4);
    entry.body = match is_quarantine {
        true => Body::CheckpointQuarantined(halves),
        false => Body::CheckpointFailed(halves),
    };
    entry
}

/// The second attempt resumes, finds another state before its first step, and
/// fails; the third goes on, with or without the checkpoint that both began at.
fn refused_state(is_quarantined: bool) -> Fixture {
    changed(RunBuilder::new().contract(rolls_back).interrupt_after_step(7), |f| {
        let start = f
            .entries
            .iter()
            .position(|e| e.body.kind() == Kind::AttemptStart && e.header.attempt == Some(AttemptId(2)))
            .expect("a second attempt");
        let donor = RunBuilder::new().struck_by(rewound()).build();
        let of_donor = |kind: Kind| {
            donor.entries.iter().find(|e| e.body.kind() == kind).cloned().expect("the donor has it")
        };
        let mut added: Vec<Entry> =
            [Kind::FaultObserved, Kind::AttemptEnd].into_iter().map(of_donor).collect();
        added.push(f.entries[start].clone());
        added.push(of_donor(Kind::FaultRecovered));
        if is_quarantined {
            added.push(given_up(f, start, true));
        }
        for entry in &mut added {
            match &mut entry.body {
                Body::FaultObserved(h) => (h.det.attempt, h.det.last_step) = (AttemptId(2), 4),
                Body::AttemptEnd(h) => h.det.attempt = AttemptId(2),
                Body::AttemptStart(h) => h.det.attempt = AttemptId(3),
                Body::FaultRecovered(h) => h.det.attempt = AttemptId(2),
                _ => {}
            }
        }
        f.entries.splice(start + 1..start + 1, added);
        f.renumber();
    })
}

#[test]
fn a_checkpoint_that_a_restore_refuses_is_in_doubt() {
    for code in ["GL217", "GL602"] {
        assert_passed(&refused_state(true), code);
    }
}

/// Worker 1 gives what worker 0 gives.
fn copy_gradients(f: &mut Fixture) {
    body!(f, Step, 5, |h| h.obs.shares[1].gradients = h.obs.shares[0].gradients);
}

/// Over the same text the same gradients are right.
#[test]
fn workers_may_give_the_same_gradients_over_the_same_text() {
    let fixture = changed(two(), |f| {
        copy_gradients(f);
        let table = f.frozen.train_examples.as_ref().expect("a table");
        let mut bytes = table.as_bytes().to_vec();
        // Every record ends with the identity of its text.
        for record in bytes[16..].chunks_exact_mut(48) {
            record[16..].fill(7);
        }
        f.frozen.train_examples = crate::frozen::ExampleTable::parse(bytes);
    });
    assert_passed(&fixture, "GL214");
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL505", "a candidate that another save comes before", || {
        changed(RunBuilder::new(), |f| {
            let at = place(f, Kind::CandidateAdmitted, 4);
            f.entries.swap(at, at + 1);
            f.renumber();
        })
    }),
    error("GL707", "a killed process that goes on", || {
        let planned = at_step(FaultKind::WorkerLoss, FaultPhase::BeforeForward, 6);
        injected(RunBuilder::new(), planned, (Kind::Step, 6))
    }),
    error("GL707", "a killed worker whose update is recorded", || {
        let planned = planned(FaultKind::WorkerLoss, FaultPhase::BeforeForward, Some(1));
        injected(two(), planned, (Kind::Step, 6))
    }),
    error("GL707", "a late worker whose update is recorded", || {
        let planned = planned(FaultKind::CollectiveTimeout, FaultPhase::AfterBackward, Some(1));
        injected(two(), planned, (Kind::Step, 6))
    }),
    error("GL707", "a frame that was sent again and an update that is recorded", || {
        let planned = planned(FaultKind::StaleOrDelayedGradient, FaultPhase::InExchange, Some(1));
        injected(two(), planned, (Kind::Step, 6))
    }),
    error("GL707", "an interrupted save that is validated", || {
        let planned = at_step(FaultKind::CheckpointWriteInterruption, FaultPhase::Renamed, 4);
        injected(RunBuilder::new(), planned, (Kind::CheckpointDurablyCommitted, 4))
    }),
    error("GL707", "an interrupted save beside training that is validated", || {
        let planned = at_step(FaultKind::CheckpointWriteInterruption, FaultPhase::Renamed, 4);
        crate::fixture::asynchronous(injected(
            RunBuilder::new(),
            planned,
            (Kind::CheckpointDurablyCommitted, 4),
        ))
    }),
    error("GL707", "a corrupt shard that is validated", || {
        injected(RunBuilder::new(), corrupted(FaultPhase::Staged), (Kind::CheckpointDurablyCommitted, 4))
    }),
    error("GL707", "a validated checkpoint that was to be struck, of an attempt that vanished", || {
        changed(RunBuilder::new().crash_after_step(6), |f| {
            f.frozen.contract.faults.plan.push(corrupted(FaultPhase::Validated));
        })
    }),
    error("GL217", "an attempt that failed of nothing", || changed(struck(), unsaid)),
    error("GL217", "an attempt that failed of what it went on behind", || {
        changed(RunBuilder::new().struck_by(rewound()), |f| {
            let at = f.entries.iter().position(|e| e.body.kind() == Kind::FaultObserved).expect("seen");
            let seen = f.entries.remove(at);
            let at = place(f, Kind::Step, 5);
            f.entries.insert(at, seen);
            f.renumber();
            body!(f, FaultObserved, 0, |h| h.det.fault = ObservedFault::StorageFailed);
        })
    }),
    error("GL217", "a state that was refused and that the run goes on from", || refused_state(false)),
    error("GL216", "a recovery that nobody charges, since its attempt ended", || {
        changed(struck(), |f| {
            end_uncharged(f);
            f.drop_where(|e| e.body.kind() == Kind::Cost);
        })
    }),
    error("GL602", "a checkpoint that is quarantined for nothing", || {
        changed(RunBuilder::new(), |f| give_up(f, true))
    }),
    error("GL602", "a validated checkpoint that fails for nothing", || {
        changed(RunBuilder::new(), |f| give_up(f, false))
    }),
    error("GL602", "a checkpoint that is quarantined before anybody doubts it", || {
        changed(rolled_back(), |f| give_up(f, true))
    }),
    error("GL214", "the gradients of another worker", || changed(two(), copy_gradients)),
    error("GL214", "the gradients of another worker's earlier update", || {
        changed(two(), |f| {
            let mut earlier = None;
            body!(f, Step, 3, |h| earlier = Some(h.obs.shares[0].gradients));
            body!(f, Step, 5, |h| h.obs.shares[1].gradients = earlier.expect("step 4 has shares"));
        })
    }),
    warning("GL215", "replicas that no step is there to compare", || {
        changed(two(), |f| {
            let collective = f.frozen.contract.topology.collective.as_mut().expect("two workers");
            collective.replica_digest_every_steps = 1_000_000_000;
            for n in 0..8 {
                body!(f, Step, n, |h| h.obs.replicas.clear());
            }
        })
    }),
    error("GL202", "a fault that names another last step", || {
        changed(struck(), |f| body!(f, FaultObserved, 0, |h| h.det.last_step += 1))
    }),
    error("GL710", "a fault that is seen at another worker than was struck", || {
        changed(two().struck_by(lost_worker()), |f| {
            f.change(Kind::FaultObserved, 0, |entry| entry.header.worker = Some(WorkerId(0)));
        })
    }),
    error("GL710", "a fault whose family nobody names", || {
        changed(struck(), |f| body!(f, FaultObserved, 0, |h| h.det.cause = None))
    }),
    error("GL710", "an attempt that vanished, and nobody says of what", || {
        changed(RunBuilder::new().crash_after_step(6), |f| {
            body!(f, FaultObserved, 0, |h| h.det.cause = None);
        })
    }),
    warning("GL711", "a fault that only another attempt saw", || {
        changed(struck(), |f| body!(f, FaultObserved, 0, |h| h.det.attempt = AttemptId(2)))
    }),
];
