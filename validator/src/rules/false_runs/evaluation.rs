//! False runs for `GL5xx`.

use std::fs;

use schemas::body::{
    Body, CandidateObs, CheckpointDet, CheckpointFailedObs, CheckpointStage, EvalDet, Halves,
    HandoffIssuedDet, HandoffIssuedObs, Kind, QualificationValDet, ResumePoint,
};
use schemas::data::Split;
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CandidateId, CheckpointId};
use schemas::number::Float;

use super::attempts::body;
use super::{Mutation, changed, error, warning};
use crate::evidence::ValNumbers;
use crate::fixture::{Fixture, RunBuilder, evaluated, honest_run};

/// A run with the evaluator's own numbers, close to the trainer's.
pub(super) fn with_val_numbers(change: impl FnOnce(&mut Vec<QualificationValDet>)) -> Fixture {
    let mut fixture = honest_run();
    let mut numbers = evaluated(&fixture.entries);
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
    entry.header.step = Some(halves.det.step);
    entry.header.idem = schemas::ids::IdempotencyKey("e".repeat(32));
    entry.body = Body::HandoffIssued(Box::new(halves));
    fixture.entries.push(entry);
    fixture.renumber();
    fixture
}

fn set_eval(fixture: &mut Fixture, n: usize, value: f64) {
    body!(fixture, Eval, n, |h| h.det.value = Float(value));
}

/// Inserts an entry after the first one that a predicate names.
fn insert_after(fixture: &mut Fixture, predicate: impl Fn(&Entry) -> bool, entry: Entry) {
    let at = fixture.entries.iter().position(predicate).expect("the mutation acts");
    fixture.entries.insert(at + 1, entry);
    fixture.renumber();
}

/// A run whose first attempt evaluates step 6, which is neither due nor the
/// last one, and vanishes.
fn evaluated_and_lost(change: impl FnOnce(&mut EvalDet)) -> Fixture {
    let mut fixture = RunBuilder::new().crash_after_step(6).build();
    let mut eval = fixture.entries.iter().find(|e| e.body.kind() == Kind::Eval).cloned().expect("one");
    eval.header.step = Some(6);
    if let Body::Eval(h) = &mut eval.body {
        h.det.model = None;
        change(&mut h.det);
    }
    insert_after(&mut fixture, |e| e.body.kind() == Kind::Step && e.header.step == Some(6), eval);
    fixture
}

fn quarantine(like: &Entry, checkpoint: &str, step: u64) -> Entry {
    let mut entry = like.clone();
    let obs = CheckpointFailedObs {
        checkpoint: CheckpointId(checkpoint.to_owned()),
        reason: "the bytes are others".to_owned(),
    };
    entry.body = Body::CheckpointQuarantined(Box::new(Halves { det: CheckpointDet { step }, obs }));
    entry.header.step = Some(step);
    entry
}

/// Quarantines the last candidate's checkpoint after its admission.
fn give_up_last(fixture: &mut Fixture) {
    let is_last = |e: &Entry| e.body.kind() == Kind::CandidateAdmitted && e.header.step == Some(8);
    let like = fixture.entries.iter().find(|e| is_last(e)).cloned().expect("a candidate");
    insert_after(fixture, is_last, quarantine(&like, "s00000008-a1", 8));
}

/// A crash after the selection, behind which the last checkpoint turns out to
/// be corrupt: it is quarantined, made again and selected again.
fn selected_again() -> Fixture {
    let mut fixture = honest_run();
    let kinds = |f: &Fixture, kind| f.entries.iter().position(|e| e.body.kind() == kind).expect("one");
    let (from, selected) =
        (kinds(&fixture, Kind::CandidateAdmitted), kinds(&fixture, Kind::CandidateSelected));
    let again: Vec<Entry> = fixture.entries[from + 1..=selected]
        .iter()
        .map(|entry| {
            let text = serde_json::to_string(entry).expect("serialises");
            let mut entry = Entry::from_slice(text.replace("s00000008-a1", "s00000008-a2").as_bytes());
            entry.as_mut().expect("still an entry").header.attempt = Some(AttemptId(2));
            entry.expect("still an entry")
        })
        .collect();
    let mut start = fixture.entries[kinds(&fixture, Kind::AttemptStart)].clone();
    let newest = fixture.entries.iter().find_map(|e| match &e.body {
        Body::CheckpointDurablyCommitted(h) if h.det.step == 4 => {
            Some(ResumePoint { checkpoint: h.obs.checkpoint.clone(), manifest: h.obs.manifest, step: 4 })
        }
        _ => None,
    });
    if let Body::AttemptStart(h) = &mut start.body {
        (h.det.attempt, h.det.from_step, h.det.resumed_from) = (AttemptId(2), 4, newest);
    }
    let given_up = quarantine(&fixture.entries[selected], "s00000008-a1", 8);
    let rest = fixture.entries.split_off(selected + 1);
    fixture.entries.extend([start, given_up]);
    fixture.entries.extend(again);
    fixture.entries.extend(rest);
    fixture.renumber();
    fixture
}

#[test]
fn a_selection_whose_checkpoint_was_lost_is_replaced() {
    let fixture = selected_again();
    for code in ["GL501", "GL504", "GL505", "GL507", "GL510"] {
        let (status, _, findings) = fixture.check(super::rule(code));
        assert_eq!(status, schemas::report::RuleStatus::Passed, "{code}: {findings:#?}");
    }
}

#[test]
fn values_that_are_not_finite_agree_where_they_are_the_same() {
    let mut fixture = with_val_numbers(|numbers| {
        (numbers[0].total_nats, numbers[0].value) = (Float(f64::NAN), Float(f64::NAN));
    });
    // The evaluation of step 4, which the first candidate is of.
    body!(fixture, Eval, 1, |h| (h.det.total_nats, h.det.value) = (Float(f64::NAN), Float(f64::NAN)));
    body!(fixture, CandidateAdmitted, 0, |h| h.det.value = Float(f64::NAN));
    let (status, _, findings) = fixture.check(super::rule("GL508"));
    assert_eq!(status, schemas::report::RuleStatus::Passed, "{findings:#?}");
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
    error("GL501", "the state that an attempt resumed from evaluated again", || {
        let mut fixture = RunBuilder::new().crash_after_step(6).build();
        let is_eval = |e: &&Entry| e.body.kind() == Kind::Eval && e.header.step == Some(4);
        let eval = fixture.entries.iter().find(is_eval).cloned().expect("evaluated");
        insert_after(&mut fixture, |e| e.header.attempt == Some(AttemptId(2)), eval);
        fixture
    }),
    error("GL501", "an evaluation that is not due by an attempt that vanished", || {
        evaluated_and_lost(|_| {})
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
    error("GL504", "a second checkpoint of a step with another model", || {
        changed(|f| {
            f.repeat_where(|e| e.body.kind() == Kind::CheckpointDurablyCommitted && e.header.step == Some(4));
            body!(f, CheckpointDurablyCommitted, 2, |h| h.det.model = Digest::blake3([1; 32]));
        })
    }),
    error("GL504", "a model that a vanished attempt named and did not save", || {
        evaluated_and_lost(|det| det.model = Some(Digest::blake3([1; 32])))
    }),
    error("GL505", "a checkpoint admitted twice", || {
        changed(|f| f.repeat_where(|e| e.body.kind() == Kind::CandidateAdmitted))
    }),
    error("GL505", "an admission that waited for later values", || {
        changed(|f| {
            let at = f.entries.iter().position(|e| e.body.kind() == Kind::CandidateAdmitted).expect("one");
            f.entries.swap(at, at + 1);
            f.renumber();
        })
    }),
    error("GL505", "a candidate whose checkpoint was quarantined", || changed(give_up_last)),
    error("GL506", "a candidate whose checkpoint was quarantined", || changed(give_up_last)),
    error("GL507", "a selected checkpoint that was quarantined", || changed(give_up_last)),
    error("GL507", "a selection before the last admission", || {
        changed(|f| {
            let at = f.entries.iter().position(|e| e.body.kind() == Kind::CandidateSelected).expect("one");
            f.entries.swap(at - 1, at);
            f.renumber();
        })
    }),
    error("GL507", "a second selection although the first one stood", || {
        let mut fixture = selected_again();
        fixture.drop_where(|e| e.body.kind() == Kind::CheckpointQuarantined);
        fixture
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
    error("GL508", "an evaluator that went over fewer examples", || {
        with_val_numbers(|numbers| numbers[0].num_examples -= 1)
    }),
    error("GL508", "an evaluator that counted other tokens", || {
        with_val_numbers(|numbers| {
            numbers[0].num_tokens *= 2;
            scale(&mut numbers[0], 2.0);
        })
    }),
    error("GL508", "an evaluator's number of another step", || {
        with_val_numbers(|numbers| numbers[0].step = 5)
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
    warning("GL510", "a target that the evaluator's number misses", || {
        let mut fixture = with_val_numbers(|_| {});
        let selected = fixture.entries.iter().find_map(|e| match &e.body {
            Body::CandidateSelected(h) => Some(h.det.value.0),
            _ => None,
        });
        let target = fixture.frozen.contract.quality_target.as_mut().expect("a target");
        target.threshold = selected.expect("a selection");
        fixture
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
