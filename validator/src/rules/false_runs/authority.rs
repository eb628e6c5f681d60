//! False runs for `GL7xx`.

use schemas::body::{AmendmentDet, AnomalyDet, AnomalyObs, Body, FaultInjectedDet, Halves, Kind, Nothing};
use schemas::contract::{FaultKind, FaultPhase, PlannedFault, Recovery};
use schemas::data::Split;
use schemas::finding::{Effect, Severity};
use schemas::ids::WorkerId;
use schemas::number::DecimalU64;
use schemas::report::{RuleStatus, Verdict};

use super::attempts::body;
use super::{Mutation, changed, error, note, warning};
use crate::fixture::{Fixture, RunBuilder, StoredRun, honest_run, name_witnesses};

/// Appends an entry before the run's end; an injection before its step.
fn insert(fixture: &mut Fixture, body: Body) {
    let is_fault = body.kind() == Kind::FaultInjected;
    let is_place = |e: &schemas::entry::Entry| {
        e.body.kind() == if is_fault { Kind::Step } else { Kind::AttemptEnd }
            && (!is_fault || e.header.step == Some(3))
    };
    let at = fixture.entries.iter().position(is_place).expect("a place");
    let mut entry = fixture.entries[at].clone();
    if is_fault {
        (entry.header.learner, entry.header.worker) = (None, Some(WorkerId(0)));
    }
    entry.body = body;
    fixture.entries.insert(at, entry);
    fixture.renumber();
}

fn injected() -> Body {
    let det = FaultInjectedDet {
        fault: FaultKind::DataCursorSkip,
        phase: FaultPhase::BeforeForward,
        plan_index: 0,
    };
    Body::FaultInjected(Box::new(Halves { det, obs: Nothing {} }))
}

fn planned() -> PlannedFault {
    PlannedFault {
        fault: FaultKind::DataCursorSkip,
        phase: FaultPhase::BeforeForward,
        seed: DecimalU64(1),
        step: 3,
        worker: None,
    }
}

#[test]
fn a_fault_that_acts_as_planned_passes() {
    let fixture = changed(|f| {
        f.frozen.contract.faults.plan.push(planned());
        insert(f, injected());
    });
    let (status, _, findings) = fixture.check(super::rule("GL707"));
    assert_eq!(status, RuleStatus::Passed, "{findings:#?}");
}

#[test]
fn witnesses_whose_cosignatures_are_not_at_hand_are_never_accepted() {
    let builder = RunBuilder::new().contract(|contract| name_witnesses(contract, 1, 1));
    let report = StoredRun::new(builder.build()).audit();
    assert_eq!(report.verdict, Verdict::NotEvaluated, "{:#?}", report.findings);
    let unevaluated = report.rules.iter().filter(|rule| rule.status == RuleStatus::NotEvaluated);
    let codes: Vec<&str> = unevaluated.map(|rule| rule.code.as_str()).collect();
    assert_eq!(codes, ["GL014", "GL015", "GL016"]);
}

#[test]
fn an_accepted_run_says_that_the_number_of_runs_is_not_evaluated() {
    let report = StoredRun::new(honest_run()).audit();
    assert_eq!(report.verdict, Verdict::Accepted, "{:#?}", report.findings);
    let of_rule: Vec<_> = report.findings.iter().filter(|finding| finding.code == "GL709").collect();
    assert_eq!(of_rule.len(), 1, "{of_rule:#?}");
    assert_eq!((of_rule[0].severity, of_rule[0].effect), (Severity::Note, Effect::None));
    let text = crate::render::text(&report);
    assert!(text.contains("the number of runs that were tried is not evaluated"), "{text}");
}

/// It is more than not evaluated.
#[test]
fn a_quorum_that_cannot_be_reached_is_rejected() {
    let fixture = changed(|f| f.frozen.contract.keys.witness_quorum = 1);
    let (_, _, findings) = fixture.check(super::rule("GL703"));
    assert!(findings.iter().any(|finding| finding.effect == Effect::Rejected), "{findings:#?}");
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL701", "no nonclaims", || changed(|f| f.frozen.contract.nonclaims.clear())),
    error("GL701", "a gap without an owner", || changed(|f| f.frozen.contract.residuals[0].owner.clear())),
    error("GL701", "nothing is kept", || changed(|f| f.frozen.contract.retention.days = 0)),
    error("GL702", "no non-authority", || {
        changed(|f| f.frozen.contract.purpose.authority.non_authorities.clear())
    }),
    error("GL702", "a grant that had expired", || {
        changed(|f| f.frozen.contract.purpose.authority.expires = Some("2026-01-01".to_owned()))
    }),
    error("GL702", "a grant of nobody", || {
        changed(|f| f.frozen.contract.purpose.authority.granted_by = " ".to_owned())
    }),
    error("GL703", "one key in two roles", || {
        changed(|f| f.frozen.contract.keys.qualifier.public = f.frozen.contract.keys.trainer.public.clone())
    }),
    error("GL703", "a quorum of nobody", || changed(|f| f.frozen.contract.keys.witness_quorum = 1)),
    error("GL703", "a witness whose name no note can hold", || {
        changed(|f| {
            name_witnesses(&mut f.frozen.contract, 1, 1);
            f.frozen.contract.keys.witnesses[0].name = "a neighbour".to_owned();
        })
    }),
    error("GL703", "two witnesses of one name", || {
        changed(|f| {
            name_witnesses(&mut f.frozen.contract, 2, 1);
            f.frozen.contract.keys.witnesses[1].name = f.frozen.contract.keys.witnesses[0].name.clone();
        })
    }),
    note("GL704", "keys of one host", || {
        changed(|f| f.frozen.contract.keys.qualifier.host = f.frozen.contract.keys.trainer.host)
    }),
    note("GL704", "heads that only the operator keeps", || changed(|_| {})),
    error("GL705", "an evaluation of the sealed set", || {
        changed(|f| body!(f, Eval, 1, |h| h.det.split = Split::Qualification))
    }),
    error("GL705", "a set that is not sealed", || {
        changed(|f| {
            f.frozen.contract.qualification.sealed.digest = Some(f.frozen.contract.qualification.plaintext);
        })
    }),
    warning("GL706", "more memory than expected", || {
        changed(|f| f.frozen.contract.expected.memory_bytes = 1000)
    }),
    warning("GL706", "more traffic than expected", || {
        changed(|f| body!(f, Step, 1, |h| h.obs.bytes_sent = 9))
    }),
    error("GL707", "a fault that is not planned", || changed(|f| insert(f, injected()))),
    error("GL707", "a planned fault that did not act", || {
        changed(|f| f.frozen.contract.faults.plan.push(planned()))
    }),
    error("GL707", "a fault of the last step that did not act", || {
        changed(|f| f.frozen.contract.faults.plan.push(PlannedFault { step: 8, ..planned() }))
    }),
    error("GL707", "a fault at another step than planned", || {
        changed(|f| {
            f.frozen.contract.faults.plan.push(PlannedFault { step: 4, ..planned() });
            insert(f, injected());
        })
    }),
    error("GL707", "a fault at another worker than planned", || {
        changed(|f| {
            f.frozen.contract.faults.plan.push(PlannedFault { worker: Some(1), ..planned() });
            insert(f, injected());
        })
    }),
    error("GL707", "a planned fault that acted twice", || {
        changed(|f| {
            f.frozen.contract.faults.plan.push(planned());
            insert(f, injected());
            insert(f, injected());
        })
    }),
    error("GL707", "a fault that is on record behind the step that it acts in", || {
        changed(|f| {
            f.frozen.contract.faults.plan.push(planned());
            insert(f, injected());
            let at = f.entries.iter().position(|e| e.body.kind() == Kind::FaultInjected).expect("inserted");
            f.entries.swap(at, at + 1);
            f.renumber();
        })
    }),
    error("GL707", "a fault in a phase that is not its family's", || {
        changed(|f| {
            let phase = FaultPhase::Selection;
            f.frozen.contract.faults.plan.push(PlannedFault { phase, ..planned() });
            insert(f, injected());
            body!(f, FaultInjected, 0, |h| h.det.phase = phase);
        })
    }),
    error("GL707", "a fault without a worker", || {
        changed(|f| {
            f.frozen.contract.faults.plan.push(planned());
            insert(f, injected());
            f.change(Kind::FaultInjected, 0, |entry| entry.header.worker = None);
        })
    }),
    warning("GL707", "a fault of a resume that never was", || {
        changed(|f| {
            let (fault, phase) = (FaultKind::DataCursorSkip, FaultPhase::Restore);
            f.frozen.contract.faults.plan.push(PlannedFault { fault, phase, step: 4, ..planned() });
        })
    }),
    error("GL707", "a fault of a resume that did not act", || {
        let mut fixture = RunBuilder::new().crash_after_step(6).build();
        let (fault, phase) = (FaultKind::DataCursorSkip, FaultPhase::Restore);
        fixture.frozen.contract.faults.plan.push(PlannedFault { fault, phase, step: 4, ..planned() });
        fixture
    }),
    error("GL707", "a fault of a save that did not act", || {
        changed(|f| {
            let (fault, phase) = (FaultKind::SingleShardCorruption, FaultPhase::Staged);
            f.frozen.contract.faults.plan.push(PlannedFault { fault, phase, step: 4, ..planned() });
        })
    }),
    error("GL707", "a recovery that is refused", || {
        let mut fixture = RunBuilder::new().crash_after_step(6).build();
        fixture.frozen.contract.faults.recovery = Recovery::Refuse;
        fixture
    }),
    warning("GL708", "an anomaly", || {
        changed(|f| {
            let det = AnomalyDet::named("loss_not_finite");
            let obs = AnomalyObs { description: "at step 3".to_owned() };
            insert(f, Body::Anomaly(Box::new(Halves { det, obs })));
        })
    }),
    error("GL708", "an amendment of the future", || {
        changed(|f| {
            let det = AmendmentDet { amends: 10_000, statement: "not so".to_owned() };
            insert(f, Body::Amendment(Box::new(Halves { det, obs: Nothing {} })));
        })
    }),
    note("GL709", "a run that stands alone", || changed(|_| {})),
];
