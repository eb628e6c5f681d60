//! False runs for the rules on resume probes, `GL620` to `GL622`.

use schemas::body::{
    Body, CheckpointObs, CheckpointQualifiedDet, CheckpointStage, ClassDistance, Distance, ExecutedPlan,
    Halves, InertReason, Kind, ProbeResultDet, ProbeResultObs, ProbeStartDet, ProbeStartObs, RecordDistance,
    RecordField, ReplayedRun,
};
use schemas::contract::{Contract, EquivalenceClass, StoppingRule, Tolerance};
use schemas::digest::Digest;
use schemas::ids::{CheckpointId, IdempotencyKey, LearnerId};
use schemas::number::Float;
use schemas::report::{Route, RuleStatus, Verdict};
use schemas::state::StateClass;

use super::attempts::body;
use super::{Mutation, error, note, warning};
use crate::derive::replay::Replay;
use crate::fixture::{Fixture, RunBuilder, StoredRun};

/// The checkpoint that is probed, and its step.
const CHECKPOINT: &str = "s00000004-a1";
pub(super) const STEP: u64 = 4;
pub(super) const NUM_STEPS: u64 = 3;

const EQUAL: Distance = Distance {
    first_step: None,
    max_absolute: Float(0.0),
    max_absolute_beyond_relative: Float(0.0),
    max_relative: Float(0.0),
    max_ulp: 0,
    num_different: 0,
};

const APART: Distance = Distance {
    first_step: Some(STEP + 1),
    max_absolute: Float(0.5),
    max_absolute_beyond_relative: Float(0.25),
    max_relative: Float(1.5),
    max_ulp: 7,
    num_different: 3,
};

fn push(fixture: &mut Fixture, body: Body) -> u64 {
    let mut entry = fixture.entries.last().cloned().expect("run.end");
    entry.body = body;
    entry.header.attempt = None;
    entry.header.learner = Some(LearnerId(0));
    entry.header.step = Some(STEP);
    entry.header.idem = IdempotencyKey(format!("{:032x}", fixture.entries.len()));
    fixture.entries.push(entry);
    fixture.renumber();
    fixture.entries.len() as u64 - 1
}

/// A class as a result has it, equal or not.
fn class_distance(class: StateClass, equal: bool) -> ClassDistance {
    let tensor = match class {
        StateClass::Model => "model.norm.weight".to_owned(),
        StateClass::Optimizer => "model.norm.weight.exp_avg".to_owned(),
        _ => format!("{class}.json/step"),
    };
    ClassDistance {
        class,
        distance: if equal { EQUAL } else { APART },
        equal,
        first_tensor: (!equal).then_some(tensor),
        reference: Digest::blake3([1; 32]),
        resumed: Digest::blake3([if equal { 1 } else { 2 }; 32]),
    }
}

/// A probe with its result; the model differs, and what is withheld, unless the
/// control is inert.
fn probe(fixture: &mut Fixture, withheld: &[StateClass], inert: Option<InertReason>) -> u64 {
    let contract = fixture.frozen.contract.clone();
    let (class, checkpoint) = (contract.resume.class, CheckpointId::from(CHECKPOINT));
    let withheld = withheld.to_vec();
    let det = ProbeStartDet {
        class,
        code: contract.code.clone(),
        num_steps: NUM_STEPS,
        step: STEP,
        withheld: withheld.clone(),
    };
    let plan = ExecutedPlan { num_workers: 1, ..crate::fixture::plan(&contract) };
    let obs = ProbeStartObs { checkpoint: checkpoint.clone(), plan };
    let start = push(fixture, Body::ProbeStart(Box::new(Halves { det, obs })));
    let differs = |class: StateClass| match inert {
        None => !withheld.is_empty() && (class == StateClass::Model || withheld.contains(&class)),
        Some(InertReason::DecidesNothing) => withheld.contains(&class),
        Some(_) => false,
    };
    let classes = crate::rules::checkpoints::probes::captured(&contract);
    let distances = classes.into_iter().map(|class| class_distance(class, !differs(class))).collect();
    let record = |record| RecordDistance { distance: EQUAL, equal: true, record };
    let mut replay = Replay::default();
    fixture.entries.iter().for_each(|entry| replay.entry(entry, None));
    let committed = fixture.entries.iter().find_map(|entry| match &entry.body {
        Body::CheckpointDurablyCommitted(halves) if halves.det.step == STEP => {
            Some(halves.det.classes.clone())
        }
        _ => None,
    });
    let reference = ReplayedRun {
        classes: committed.expect("a checkpoint"),
        records: replay.up_to(STEP).expect("a saved step"),
    };
    let records = RecordField::ALL.map(record).to_vec();
    let det = ProbeResultDet {
        class,
        distances,
        inert,
        num_steps: NUM_STEPS,
        records,
        reference,
        samples: Vec::new(),
        step: STEP,
        withheld,
    };
    let obs = ProbeResultObs { checkpoint, duration_us: 1, start };
    push(fixture, Body::ProbeResult(Box::new(Halves { det, obs })))
}

/// A run whose second checkpoint was probed with its controls and is called
/// resume-qualified.
pub(super) fn probed_under(
    contract: impl FnOnce(&mut Contract) + 'static,
    change: impl FnOnce(&mut Fixture),
) -> Fixture {
    let mut fixture = RunBuilder::new().contract(contract).build();
    let index = probe(&mut fixture, &[], None);
    let cold = crate::rules::checkpoints::probes::cold(&fixture.frozen.contract);
    probe(&mut fixture, &cold, None);
    probe(&mut fixture, &[StateClass::Optimizer], None);
    probe(&mut fixture, &[StateClass::Topology], Some(InertReason::EqualsInitial));
    probe(&mut fixture, &[StateClass::SelectionState], Some(InertReason::DecidesNothing));
    let class = fixture.frozen.contract.resume.class;
    let det = CheckpointQualifiedDet { class, probe: index, step: STEP };
    let obs = CheckpointObs { checkpoint: CheckpointId::from(CHECKPOINT), duration_us: 1 };
    push(&mut fixture, Body::CheckpointResumeQualified(Box::new(Halves { det, obs })));
    change(&mut fixture);
    fixture
}

pub(super) fn probed(change: impl FnOnce(&mut Fixture)) -> Fixture {
    probed_under(|_| {}, change)
}

/// Bounds that [`APART`] exceeds by its absolute difference alone.
pub(super) fn bounded(contract: &mut Contract) {
    contract.resume.class = EquivalenceClass::OperationOrderBounded;
    contract.resume.tolerance = Some(Tolerance { max_absolute: 0.125, max_relative: 0.5 });
}

/// A probe whose model differs within the bounds.
pub(super) fn within(fixture: &mut Fixture) {
    body!(fixture, ProbeResult, 0, |h| {
        let class = &mut h.det.distances[0];
        *class = class_distance(StateClass::Model, false);
        class.distance.max_absolute_beyond_relative = Float(0.125);
    });
}

#[test]
fn numbers_within_frozen_bounds_qualify_and_ids_have_to_be_exact() {
    for code in ["GL620", "GL622"] {
        let (status, _, findings) = probed_under(bounded, within).check(super::rule(code));
        assert_eq!(status, RuleStatus::Passed, "{code}: {findings:#?}");
        let beyond = |f: &mut Fixture| {
            within(f);
            body!(f, ProbeResult, 0, |h| {
                h.det.distances[0].distance.max_absolute_beyond_relative = Float(0.126);
            });
        };
        assert_eq!(probed_under(bounded, beyond).check(super::rule(code)).0, RuleStatus::Failed, "{code}");
        let other_ids = |f: &mut Fixture| {
            body!(f, ProbeResult, 0, |h| {
                h.det.records[2].equal = false;
                h.det.records[2].distance = Distance { max_absolute_beyond_relative: Float(0.0), ..APART };
            });
        };
        assert_eq!(probed_under(bounded, other_ids).check(super::rule(code)).0, RuleStatus::Failed, "{code}");
    }
}

/// Numbers that a trainer with its key wrote itself are judged all the same.
#[test]
fn an_audit_accepts_a_probed_run_and_not_one_whose_distances_were_made_up() {
    let report = StoredRun::new(probed(|_| {})).audit();
    assert_eq!(report.verdict, Verdict::Accepted, "{:#?}", report.findings);
    let made_up = |f: &mut Fixture| {
        body!(f, ProbeResult, 0, |h| h.det.distances[0].resumed = Digest::blake3([3; 32]));
    };
    let report = StoredRun::new(probed(made_up)).audit();
    assert_eq!(report.verdict, Verdict::Rejected, "{:#?}", report.findings);
    assert!(report.findings.iter().any(|finding| finding.code == "GL620"));
    let drifted = StoredRun::new(probed(differing_probe)).audit();
    assert_eq!((drifted.verdict, drifted.route), (Verdict::Rejected, Route::RejectResumeDrift));
}

fn differing_probe(fixture: &mut Fixture) {
    body!(fixture, ProbeResult, 0, |h| h.det.distances[0] = class_distance(StateClass::Model, false));
}

pub(super) const MUTATIONS: &[Mutation] = &[
    // What a probe records.
    error("GL620", "a probe of other code", || {
        probed(|f| body!(f, ProbeStart, 0, |h| h.det.code.digest = Digest::sha256([9; 32])))
    }),
    error("GL620", "a probe in a weaker class", || {
        probed(|f| body!(f, ProbeStart, 0, |h| h.det.class = EquivalenceClass::Statistical))
    }),
    error("GL620", "a probe of one update", || {
        probed(|f| {
            body!(f, ProbeStart, 0, |h| h.det.num_steps = 1);
            body!(f, ProbeResult, 0, |h| h.det.num_steps = 1);
        })
    }),
    error("GL620", "a probe of a checkpoint that was given up", || {
        probed(|f| f.drop_where(|e| e.body.kind() == Kind::CheckpointValidated && e.header.step == Some(4)))
    }),
    error("GL620", "a class withheld that is not captured", || {
        probed(|f| body!(f, ProbeStart, 2, |h| h.det.withheld = vec![StateClass::RngCpu]))
    }),
    error("GL620", "a probe without a beginning", || {
        probed(|f| f.drop_where(|e| e.body.kind() == Kind::ProbeStart))
    }),
    error("GL620", "a result of another probe", || {
        probed(|f| body!(f, ProbeResult, 2, |h| h.det.withheld = vec![StateClass::Model]))
    }),
    error("GL620", "two results of one probe", || {
        probed(|f| {
            let start = f.entries.iter().position(|e| e.body.kind() == Kind::ProbeStart);
            let start = start.expect("a probe") as u64;
            body!(f, ProbeResult, 1, |h| h.obs.start = start);
        })
    }),
    error("GL620", "a class that is not compared", || {
        probed(|f| body!(f, ProbeResult, 0, |h| h.det.distances.truncate(1)))
    }),
    error("GL620", "records that are not compared", || {
        probed(|f| {
            body!(f, ProbeResult, 0, |h| {
                h.det.records.remove(2);
            });
        })
    }),
    error("GL620", "a difference that is called equal", || {
        probed(|f| body!(f, ProbeResult, 0, |h| h.det.distances[0].resumed = Digest::blake3([3; 32])))
    }),
    error("GL620", "a distance that is called equal", || {
        probed(|f| body!(f, ProbeResult, 0, |h| h.det.distances[0].distance.max_ulp = 1))
    }),
    error("GL620", "a difference outside the compared steps", || {
        probed(|f| body!(f, ProbeResult, 1, |h| h.det.distances[0].distance.first_step = Some(STEP)))
    }),
    error("GL620", "a distance that is not a number", || {
        probed(|f| body!(f, ProbeResult, 1, |h| h.det.distances[0].distance.max_absolute = Float(f64::NAN)))
    }),
    error("GL620", "a tensor that the checkpoint does not have", || {
        probed(|f| {
            body!(f, ProbeResult, 1, |h| h.det.distances[0].first_tensor = Some("model.other".to_owned()));
        })
    }),
    error("GL620", "a resumed run that is not the uninterrupted one", || probed(differing_probe)),
    error("GL620", "a probe that is explained away", || {
        probed(|f| body!(f, ProbeResult, 0, |h| h.det.inert = Some(InertReason::FunctionOfStep)))
    }),
    error("GL620", "a difference that is called inert", || {
        probed(|f| body!(f, ProbeResult, 2, |h| h.det.inert = Some(InertReason::DecidesNothing)))
    }),
    error("GL620", "a class that changed and is said to equal the initial one", || {
        probed(|f| {
            body!(f, ProbeStart, 3, |h| h.det.withheld = vec![StateClass::DataCursor]);
            body!(f, ProbeResult, 3, |h| h.det.withheld = vec![StateClass::DataCursor]);
        })
    }),
    error("GL620", "patience that is said to decide nothing", || {
        let patience = |contract: &mut Contract| {
            contract.stopping =
                StoppingRule::Patience { max_step: 8, min_delta: 0.0, patience: 9, stream: "val".to_owned() };
        };
        probed_under(patience, |_| {})
    }),
    error("GL620", "an evaluation that did not happen", || {
        probed(|f| body!(f, ProbeResult, 4, |h| h.det.inert = Some(InertReason::ReplacedByEvaluation)))
    }),
    warning("GL620", "a control that changes nothing and does not say why", || {
        probed(|f| body!(f, ProbeResult, 3, |h| h.det.inert = None))
    }),
    note("GL620", "a probe without a result", || {
        probed(|f| {
            let last = f.entries.iter().rposition(|e| e.body.kind() == Kind::ProbeResult).expect("a result");
            f.entries.remove(last);
            f.renumber();
        })
    }),
    // Whether the reference is the run.
    error("GL621", "a reference that recorded something else", || {
        probed(|f| body!(f, ProbeResult, 0, |h| h.det.reference.records = Digest::sha256([7; 32])))
    }),
    error("GL621", "a reference with another state", || {
        probed(|f| {
            body!(f, ProbeResult, 0, |h| h.det.reference.classes[1].digest = Some(Digest::blake3([7; 32])));
        })
    }),
    error("GL621", "a run that recorded another loss than its reference", || {
        probed(|f| body!(f, Step, 1, |h| h.det.counters.tokens += 1))
    }),
    // What is called qualified.
    warning("GL622", "a stage that a probe gave, and no entry says", || {
        let asks = |contract: &mut Contract| {
            contract.checkpoints.candidate_stage = CheckpointStage::ResumeQualified;
        };
        probed_under(asks, |f| f.drop_where(|entry| entry.body.kind() == Kind::CheckpointResumeQualified))
    }),
    error("GL622", "qualified without a probe", || {
        probed(|f| body!(f, CheckpointResumeQualified, 0, |h| h.det.probe = 1))
    }),
    error("GL622", "qualified in another class than the contract's", || {
        probed(|f| {
            body!(f, CheckpointResumeQualified, 0, |h| h.det.class = EquivalenceClass::OperationOrderBounded);
        })
    }),
    error("GL622", "qualified by a probe of another step", || {
        probed(|f| body!(f, ProbeResult, 0, |h| h.det.step = 8))
    }),
    error("GL622", "qualified by a probe of another checkpoint", || {
        probed(|f| body!(f, ProbeResult, 0, |h| h.obs.checkpoint = CheckpointId::from("s00000008-a1")))
    }),
    error("GL622", "qualified by a control", || {
        probed(|f| {
            let at = f.entries.iter().position(|e| e.body.kind() == Kind::ProbeResult).expect("a result");
            body!(f, CheckpointResumeQualified, 0, |h| h.det.probe = at as u64 + 6);
        })
    }),
    error("GL622", "qualified by a probe of one update", || {
        probed(|f| body!(f, ProbeResult, 0, |h| h.det.num_steps = 1))
    }),
    error("GL622", "qualified by a probe that found a difference", || probed(differing_probe)),
    error("GL622", "qualified although what was drawn differs", || {
        probed(|f| {
            body!(f, ProbeResult, 0, |h| {
                h.det.records[2].equal = false;
                h.det.records[2].distance = APART;
            });
        })
    }),
    error("GL622", "qualified by a probe that left a class out", || {
        probed(|f| body!(f, ProbeResult, 0, |h| h.det.distances.truncate(1)))
    }),
    error("GL622", "qualified although the cold control does not differ", || {
        probed(|f| {
            body!(f, ProbeResult, 1, |h| h.det.distances[0] = class_distance(StateClass::Model, true));
        })
    }),
    error("GL622", "qualified without a cold control", || {
        probed(|f| body!(f, ProbeResult, 1, |h| h.det.withheld = vec![StateClass::Optimizer]))
    }),
    error("GL622", "a cold control that was made afterwards", || {
        probed(|f| {
            let at = |kind, f: &Fixture| f.entries.iter().position(|e| e.body.kind() == kind).expect("there");
            let (qualified, control) = (at(Kind::CheckpointResumeQualified, f), at(Kind::ProbeResult, f) + 2);
            f.entries.swap(qualified, control);
            f.renumber();
        })
    }),
];
