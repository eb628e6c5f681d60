//! False runs for `GL5xx`.

use std::fs;

use schemas::body::{
    Body, CandidateObs, CheckpointStage, Halves, HandoffIssuedDet, HandoffIssuedObs, Kind,
    QualificationValDet,
};
use schemas::data::Split;
use schemas::digest::Digest;
use schemas::ids::CandidateId;
use schemas::number::Float;

use super::attempts::body;
use super::{Mutation, changed, error, warning};
use crate::evidence::ValNumbers;
use crate::fixture::{Fixture, RunBuilder, honest_run};

/// A run with the evaluator's own numbers, close to the trainer's.
pub(super) fn with_val_numbers(change: impl FnOnce(&mut Vec<QualificationValDet>)) -> Fixture {
    let mut fixture = honest_run();
    let mut numbers = Vec::new();
    let mut last = None;
    for entry in &fixture.entries {
        match &entry.body {
            Body::Eval(h) => last = Some(h.det.clone()),
            Body::CandidateAdmitted(h) => {
                let eval = last.clone().expect("evaluated before it is admitted");
                let total_nats = eval.total_nats.0 * 1.000_01;
                numbers.push(QualificationValDet {
                    metric: eval.metric,
                    model: h.det.model,
                    num_examples: eval.num_examples,
                    num_tokens: eval.num_tokens,
                    step: h.det.step,
                    stream: eval.stream,
                    total_nats: Float(total_nats),
                    value: Float(crate::derive::metrics::value(eval.metric, total_nats, eval.num_tokens)),
                });
            }
            _ => {}
        }
    }
    change(&mut numbers);
    fixture.val_numbers = ValNumbers::Signed(numbers);
    fixture
}

fn scale(number: &mut QualificationValDet, by: f64) {
    number.total_nats = Float(number.total_nats.0 * by);
    number.value =
        Float(crate::derive::metrics::value(number.metric, number.total_nats.0, number.num_tokens));
}

/// A run whose selected candidate was handed off.
pub(super) fn with_handoff(change: impl FnOnce(&mut Halves<HandoffIssuedDet, HandoffIssuedObs>)) -> Fixture {
    let mut fixture = honest_run();
    let selected = fixture.entries.iter().find_map(|entry| match &entry.body {
        Body::CandidateSelected(h) => Some(h.clone()),
        _ => None,
    });
    let selected = selected.expect("a selection");
    let det = HandoffIssuedDet { model: selected.det.model, step: selected.det.step };
    let obs = HandoffIssuedObs {
        candidate: selected.obs.candidate.clone(),
        report: Digest::blake3([1; 32]),
        root: "00".repeat(32),
        size: fixture.entries.len() as u64,
    };
    let mut halves = Halves { det, obs };
    change(&mut halves);
    let mut entry = fixture.entries.last().expect("run.end").clone();
    entry.body = Body::HandoffIssued(Box::new(halves));
    fixture.entries.push(entry);
    fixture.renumber();
    fixture
}

fn set_eval(fixture: &mut Fixture, n: usize, value: f64) {
    body!(fixture, Eval, n, |h| h.det.value = Float(value));
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL501", "a missing evaluation", || {
        changed(|f| f.drop_where(|e| e.body.kind() == Kind::Eval && e.header.step == Some(4)))
    }),
    error("GL501", "a missing last evaluation", || {
        changed(|f| f.drop_where(|e| e.body.kind() == Kind::Eval && e.header.step == Some(8)))
    }),
    error("GL501", "an evaluation that is not due", || {
        changed(|f| {
            let mut eval =
                f.entries.iter().find(|e| e.body.kind() == Kind::Eval).cloned().expect("an evaluation");
            eval.header.step = Some(2);
            let at = f.entries.iter().position(|e| e.header.step == Some(2)).expect("step 2");
            f.entries.insert(at + 1, eval);
            f.renumber();
        })
    }),
    error("GL501", "a second try of an evaluation", || {
        changed(|f| f.repeat_where(|e| e.body.kind() == Kind::Eval && e.header.step == Some(4)))
    }),
    error("GL502", "an evaluation of training text", || {
        changed(|f| body!(f, Eval, 1, |h| h.det.split = Split::Train))
    }),
    error("GL502", "fewer examples", || changed(|f| body!(f, Eval, 1, |h| h.det.num_examples -= 1))),
    error("GL502", "other target tokens", || changed(|f| body!(f, Eval, 1, |h| h.det.num_tokens -= 1))),
    error("GL503", "a value that does not follow", || changed(|f| set_eval(f, 1, 1.0))),
    error("GL503", "a negative sum", || {
        changed(|f| body!(f, Eval, 1, |h| h.det.total_nats = Float(-h.det.total_nats.0)))
    }),
    warning("GL503", "an untrained model that is good", || {
        changed(|f| {
            body!(f, Eval, 0, |h| {
                h.det.total_nats = Float(h.det.total_nats.0 * 0.5);
                h.det.value =
                    Float(crate::derive::metrics::value(h.det.metric, h.det.total_nats.0, h.det.num_tokens));
            });
        })
    }),
    error("GL504", "another model evaluated than saved", || {
        changed(|f| body!(f, Eval, 1, |h| h.det.model = Some(Digest::blake3([1; 32]))))
    }),
    error("GL504", "no model named although it is saved", || {
        changed(|f| body!(f, Eval, 1, |h| h.det.model = None))
    }),
    error("GL505", "a candidate that was left out", || {
        changed(|f| f.drop_where(|e| e.body.kind() == Kind::CandidateAdmitted && e.header.step == Some(4)))
    }),
    error("GL505", "the initial state as a candidate", || {
        changed(|f| {
            let validated =
                f.entries.iter().position(|e| e.body.kind() == Kind::CheckpointValidated).expect("step 0");
            let mut entry =
                f.entries.iter().find(|e| e.body.kind() == Kind::CandidateAdmitted).cloned().expect("one");
            entry.header.step = Some(0);
            if let Body::CandidateAdmitted(h) = &mut entry.body {
                h.det.step = 0;
            }
            f.entries.insert(validated + 1, entry);
            f.renumber();
        })
    }),
    error("GL505", "a candidate before it was validated", || {
        changed(|f| f.drop_where(|e| e.body.kind() == Kind::CheckpointValidated && e.header.step == Some(4)))
    }),
    error("GL505", "a candidate with another value", || {
        changed(|f| body!(f, CandidateAdmitted, 0, |h| h.det.value = Float(1.0)))
    }),
    error("GL506", "a candidate whose weights are gone", || {
        changed(|f| fs::remove_file(f.checkpoint("s00000004-a1").join("model.safetensors")).expect("there"))
    }),
    error("GL506", "another configuration", || {
        changed(|f| {
            let path = f.checkpoint("s00000004-a1").join("config.json");
            let text = fs::read_to_string(&path).expect("there").replace("\"silu\"", "\"gelu\"");
            fs::write(path, text).expect("writable");
        })
    }),
    error("GL507", "a selection of the worse candidate", || {
        changed(|f| {
            let worse = f.entries.iter().find_map(|e| match &e.body {
                Body::CandidateAdmitted(h) => Some(h.clone()),
                _ => None,
            });
            let worse = worse.expect("a candidate of step 4");
            body!(f, CandidateSelected, 0, |h| {
                (h.det.step, h.det.model, h.det.value) = (4, worse.det.model, worse.det.value);
                h.obs = worse.obs;
            });
        })
    }),
    error("GL507", "no selection", || {
        changed(|f| f.drop_where(|e| e.body.kind() == Kind::CandidateSelected))
    }),
    error("GL507", "two selections", || {
        changed(|f| f.repeat_where(|e| e.body.kind() == Kind::CandidateSelected))
    }),
    error("GL507", "a smaller family", || {
        changed(|f| body!(f, CandidateSelected, 0, |h| h.det.num_candidates = 1))
    }),
    error("GL507", "a selection by another stream", || {
        changed(|f| body!(f, CandidateSelected, 0, |h| h.det.stream = "train".to_owned()))
    }),
    error("GL507", "another name for the winner", || {
        changed(|f| {
            body!(f, CandidateSelected, 0, |h| {
                let candidate = CandidateId::from("candidate-s00000004-a1");
                h.obs = CandidateObs { candidate, checkpoint: h.obs.checkpoint.clone() };
            });
        })
    }),
    error("GL507", "a value that is not finite and wins", || changed(|f| set_eval(f, 2, f64::NEG_INFINITY))),
    error("GL508", "an evaluator that disagrees", || {
        with_val_numbers(|numbers| scale(&mut numbers[0], 1.001))
    }),
    error("GL508", "an evaluator by whose numbers another wins", || {
        with_val_numbers(|numbers| scale(&mut numbers[0], 0.5))
    }),
    error("GL508", "a candidate that was not evaluated", || {
        with_val_numbers(|numbers| {
            numbers.pop();
        })
    }),
    error("GL509", "a selection on training text", || {
        changed(|f| f.frozen.contract.evaluation.streams[0].split = Split::Train)
    }),
    error("GL509", "a selection by no stream", || {
        changed(|f| f.frozen.contract.selection.stream = "test".to_owned())
    }),
    error("GL510", "a missed target that is called met", || {
        changed(|f| f.frozen.contract.quality_target.as_mut().expect("a target").threshold = 1.0)
    }),
    error("GL510", "a target that is not judged", || {
        changed(|f| body!(f, RunEnd, 0, |h| h.det.target_met = None))
    }),
    warning("GL510", "a missed target", || {
        let missed = |contract: &mut schemas::contract::Contract| {
            contract.quality_target.as_mut().expect("a target").threshold = 1.0;
        };
        RunBuilder::new().contract(missed).build()
    }),
    error("GL511", "another candidate handed off", || {
        with_handoff(|h| h.det.model = Digest::blake3([2; 32]))
    }),
    error("GL511", "a handoff that saw the future", || with_handoff(|h| h.obs.size += 5)),
    error("GL511", "a handoff before the stage was reached", || {
        let mut fixture = with_handoff(|_| {});
        fixture.frozen.contract.checkpoints.candidate_stage = CheckpointStage::ResumeQualified;
        fixture
    }),
    error("GL511", "a handoff before the end", || {
        let mut fixture = with_handoff(|_| {});
        fixture.drop_where(|entry| entry.body.kind() == Kind::RunEnd);
        fixture
    }),
];

#[test]
fn unusable_val_numbers_are_not_evaluated() {
    let mut fixture = honest_run();
    fixture.val_numbers = ValNumbers::Unusable("signed by another key".to_owned());
    let (status, _, _) = fixture.check(super::rule("GL508"));
    assert_eq!(status, schemas::report::RuleStatus::NotEvaluated);
}
