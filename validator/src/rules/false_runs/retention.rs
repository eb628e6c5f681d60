//! False runs for `GL610`, and what the rules that read files say of a run
//! that retired a checkpoint as its contract allows.

use std::fs;

use schemas::body::{Body, CheckpointObs, CheckpointRetiredDet, Halves, Kind, ResumePoint, RetirementReason};
use schemas::contract::{Direction, KeepPolicy};
use schemas::entry::Entry;
use schemas::ids::{CheckpointId, LearnerId};
use schemas::number::Float;
use schemas::report::RuleStatus;
use schemas::state::StateClass;

use super::attempts::body;
use super::{Mutation, changed, check_honest, error, rule, warning};
use crate::fixture::{Fixture, RunBuilder, asynchronous};

/// The smallest policy: the newest and the best, which here is the newest.
const fn newest() -> KeepPolicy {
    KeepPolicy::Chosen { best: 1, every_steps: None, last: 1, pinned: Vec::new() }
}

fn run_with(keep: KeepPolicy) -> Fixture {
    RunBuilder::new().contract(|contract| contract.checkpoints.keep = keep).build()
}

/// Records a retirement at a place among the entries, and removes what it says.
fn retire_at(fixture: &mut Fixture, place: usize, name: &str, kept: &[StateClass]) {
    let step = name.get(1..9).and_then(|digits| digits.parse().ok()).expect("a checkpoint's name");
    let mut entry = fixture.entries.last().cloned().expect("run.end");
    let det = CheckpointRetiredDet { kept: kept.to_vec(), reason: RetirementReason::NotChosen, step };
    let obs = CheckpointObs { checkpoint: CheckpointId::from(name), duration_us: 0 };
    entry.body = Body::CheckpointRetired(Box::new(Halves { det, obs }));
    entry.header.step = Some(step);
    fixture.entries.insert(place, entry);
    fixture.renumber();
    for item in fs::read_dir(fixture.checkpoint(name)).expect("a checkpoint") {
        let path = item.expect("an item").path();
        let file = path.file_name().expect("a name").to_string_lossy().into_owned();
        let is_model = file.starts_with("model") || file == "config.json";
        if file != "manifest.json" && !(is_model && kept.contains(&StateClass::Model)) {
            fs::remove_file(path).expect("writable");
        }
    }
}

/// Records a retirement as the last attempt does, behind its selection.
pub(super) fn retire(fixture: &mut Fixture, name: &str, kept: &[StateClass]) {
    let is_end = |entry: &Entry| entry.body.kind() == Kind::AttemptEnd;
    let end = fixture.entries.iter().rposition(is_end).expect("the attempt ended");
    retire_in_attempt(fixture, end, name, kept);
}

/// Records it at a place within the attempt of the entry before that place.
fn retire_in_attempt(fixture: &mut Fixture, place: usize, name: &str, kept: &[StateClass]) {
    retire_at(fixture, place, name, kept);
    let before = fixture.entries[place - 1].clone();
    let entry = &mut fixture.entries[place];
    entry.time_us = before.time_us;
    let header = before.header;
    entry.header.attempt = header.attempt;
    entry.header.learner = Some(LearnerId(0));
    entry.header.segment = header.segment;
}

/// Records it as `trainer checkpoint prune` does, behind the run.
fn prune(fixture: &mut Fixture, name: &str, kept: &[StateClass]) {
    let place = fixture.entries.len();
    retire_at(fixture, place, name, kept);
    fixture.entries[place].header.learner = Some(LearnerId(0));
}

const MODEL: &[StateClass] = &[StateClass::Model];
const MIDDLE: &str = "s00000004-a1";
const LAST: &str = "s00000008-a1";

/// A run that retired the checkpoint of its middle, as its policy allows.
pub(super) fn with_retirement(change: impl FnOnce(&mut Fixture)) -> Fixture {
    let mut fixture = run_with(newest());
    retire(&mut fixture, MIDDLE, MODEL);
    change(&mut fixture);
    fixture
}

/// The same retirement under another policy.
fn under(keep: KeepPolicy) -> Fixture {
    let mut fixture = run_with(keep);
    retire(&mut fixture, MIDDLE, MODEL);
    fixture
}

fn after(fixture: &Fixture, kind: Kind, n: usize) -> usize {
    let places = fixture.entries.iter().enumerate().filter(|(_, entry)| entry.body.kind() == kind);
    places.map(|(place, _)| place + 1).nth(n).expect("there")
}

/// The middle is the best, and something else than the newest.
fn with_best_in_the_middle() -> Fixture {
    let mut fixture = RunBuilder::new()
        .contract(|contract| {
            contract.checkpoints.keep = newest();
            contract.evaluation.streams[0].direction = Direction::Maximize;
        })
        .build();
    retire(&mut fixture, MIDDLE, MODEL);
    fixture
}

/// An attempt resumed from the middle.
fn with_parent() -> Fixture {
    let mut fixture = RunBuilder::new()
        .contract(|contract| contract.checkpoints.keep = newest())
        .interrupt_after_step(6)
        .build();
    retire(&mut fixture, MIDDLE, MODEL);
    fixture
}

/// A fault was observed while the middle was the newest, and the run started
/// again from the beginning.
fn with_fault_behind_the_middle() -> Fixture {
    let mut fixture = RunBuilder::new()
        .contract(|contract| contract.checkpoints.keep = newest())
        .crash_after_step(6)
        .build();
    let initial = fixture.entries.iter().find_map(|entry| match &entry.body {
        Body::CheckpointDurablyCommitted(h) => {
            Some(ResumePoint { checkpoint: h.obs.checkpoint.clone(), manifest: h.obs.manifest, step: 0 })
        }
        _ => None,
    });
    body!(fixture, AttemptStart, 1, |h| h.det.resumed_from = initial);
    retire(&mut fixture, MIDDLE, MODEL);
    fixture
}

/// A builder of a run that saves every other step and keeps the newest.
fn dense() -> RunBuilder {
    RunBuilder::new().contract(|contract| {
        contract.checkpoints.keep = newest();
        contract.checkpoints.every_steps = 2;
        contract.evaluation.streams.iter_mut().for_each(|stream| stream.every_steps = 2);
    })
}

/// The same, with the retirements that its trainer records.
fn dense_and_retired() -> Fixture {
    let mut fixture = dense().build();
    for (n, name) in [(2, "s00000002-a1"), (3, MIDDLE)] {
        let place = after(&fixture, Kind::CandidateAdmitted, n - 1);
        retire_in_attempt(&mut fixture, place, name, MODEL);
    }
    retire(&mut fixture, "s00000006-a1", MODEL);
    fixture
}

pub(super) fn check_honest_runs() {
    for fixture in [
        with_retirement(|_| {}),
        dense_and_retired(),
        asynchronous(dense_and_retired()),
        // Nothing of it may go, since nothing newer is the best.
        run_with(KeepPolicy::Chosen { best: 2, every_steps: None, last: 1, pinned: Vec::new() }),
    ] {
        assert_eq!(fixture.check(rule("GL650")).0, RuleStatus::Passed);
        check_honest(&fixture, "with retirements as they are due");
    }
}

fn kept(fixture: &Fixture) -> Vec<String> {
    let (status, _, findings) = fixture.check(rule("GL650"));
    assert_eq!(status, RuleStatus::Passed, "a warning rejects nothing: {findings:#?}");
    let name = |message: &str| message.split(' ').next().expect("a name").to_owned();
    findings.iter().map(|finding| name(&finding.message)).collect()
}

#[test]
fn what_was_not_retired_in_time_is_named_once() {
    assert_eq!(kept(&dense().build()), ["s00000002-a1", MIDDLE, "s00000006-a1"]);
    assert_eq!(kept(&asynchronous(dense().build())), ["s00000002-a1", MIDDLE, "s00000006-a1"]);
    // What is pruned afterwards was there all the same when the run ended.
    let mut fixture = run_with(newest());
    assert_eq!(kept(&fixture), [MIDDLE]);
    prune(&mut fixture, MIDDLE, MODEL);
    assert_eq!(kept(&fixture), [MIDDLE]);
    assert_eq!(fixture.check(rule("GL610")).0, RuleStatus::Passed);
    assert_eq!(kept(&dense_and_retired()), [""; 0]);
}

/// A process that is lost behind a save did not decide, and the next one decides
/// when it saves: then the parent of its resume stays.
#[test]
fn a_decision_that_a_crash_prevented_is_no_finding() {
    let mut fixture = dense().crash_after_step(4).build();
    // The parent of the resume stays, and the first that is validated behind it.
    assert_eq!(kept(&fixture), ["s00000002-a1"]);
    let place = after(&fixture, Kind::CandidateAdmitted, 2);
    retire_in_attempt(&mut fixture, place, "s00000002-a1", MODEL);
    assert_eq!(kept(&fixture), [""; 0]);
}

#[test]
fn a_retirement_that_was_not_allowed_is_named_with_what_forbids_it() {
    let check = |fixture: Fixture, expected: &str| {
        let (status, _, findings) = fixture.check(rule("GL610"));
        assert_eq!(status, RuleStatus::Failed);
        assert!(
            findings.iter().any(|finding| finding.expected.split("; ").any(|reason| reason == expected)),
            "{expected}: {findings:#?}"
        );
    };
    check(with_best_in_the_middle(), "the best so far");
    check(with_parent(), "the parent of a resume");
    check(with_fault_behind_the_middle(), "the newest usable one when a fault was observed");
    let pinned = KeepPolicy::Chosen { best: 1, every_steps: None, last: 1, pinned: vec![4] };
    check(under(pinned), "pinned by the policy");
    let second = KeepPolicy::Chosen { best: 2, every_steps: None, last: 1, pinned: Vec::new() };
    check(under(second), "among the best 2 that the policy keeps");
    let two = KeepPolicy::Chosen { best: 1, every_steps: None, last: 2, pinned: Vec::new() };
    check(under(two), "among the last 2 that the policy keeps");
    let multiple = KeepPolicy::Chosen { best: 1, every_steps: Some(4), last: 1, pinned: Vec::new() };
    check(under(multiple), "a multiple of 4, which the policy keeps");
    check(under(KeepPolicy::All), "the policy keeps everything");
}

/// What is not finite is never the best, wherever it comes.
#[test]
fn a_value_that_is_not_finite_never_keeps_a_checkpoint_as_the_best() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut fixture = with_retirement(|_| {});
        // At the middle, whose value would otherwise be second.
        body!(fixture, Eval, 1, |h| h.det.value = Float(bad));
        let (status, _, findings) = fixture.check(rule("GL610"));
        assert_eq!(status, RuleStatus::Passed, "{bad}: {findings:#?}");
        // At the end: the middle is then the best, and the last finite one.
        let mut fixture = with_retirement(|_| {});
        body!(fixture, Eval, 2, |h| h.det.value = Float(bad));
        let (_, _, findings) = fixture.check(rule("GL610"));
        let expected = "the last with finite values; the best so far";
        assert!(findings.iter().any(|finding| finding.expected == expected), "{bad}: {findings:#?}");
        // At the beginning.
        let mut fixture = with_retirement(|_| {});
        body!(fixture, Eval, 0, |h| h.det.value = Float(bad));
        let (status, _, findings) = fixture.check(rule("GL610"));
        assert_eq!(status, RuleStatus::Passed, "{bad}: {findings:#?}");
    }
}

#[test]
fn files_of_a_retired_checkpoint_are_judged_by_what_stays() {
    let files = || rule_of_files();
    let (status, _, findings) = with_retirement(|_| {}).check(files());
    assert_eq!(status, RuleStatus::Passed, "{findings:#?}");
    let false_runs: [fn(&mut Fixture); 3] = [
        |f| fs::write(f.checkpoint(MIDDLE).join("model.safetensors"), "other").expect("writable"),
        |f| fs::write(f.checkpoint(MIDDLE).join("optimizer.safetensors"), "other").expect("writable"),
        |f| fs::remove_file(f.checkpoint(MIDDLE).join("config.json")).expect("there"),
    ];
    for change in false_runs {
        let (status, _, findings) = with_retirement(change).check(files());
        assert_eq!(status, RuleStatus::Failed, "{findings:#?}");
    }
}

fn rule_of_files() -> &'static dyn crate::rule::Rule {
    crate::rules::run_rules().find(|rule| rule.info().code == "GL110").expect("a rule of the catalogue")
}

fn is_middle(entry: &Entry) -> bool {
    entry.header.step == Some(4)
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL610", "the best retired", with_best_in_the_middle),
    error("GL610", "the parent of a resume retired", with_parent),
    error("GL610", "the last before a fault retired", with_fault_behind_the_middle),
    error("GL610", "the initial state retired", || with_retirement(|f| retire(f, "s00000000-a1", &[]))),
    error("GL610", "the final and selected state retired", || with_retirement(|f| retire(f, LAST, MODEL))),
    error("GL610", "a retirement that no policy asks for", || under(KeepPolicy::All)),
    error("GL610", "a retirement before anything newer was validated", || {
        let mut fixture = run_with(newest());
        let place = after(&fixture, Kind::CandidateAdmitted, 0);
        retire_at(&mut fixture, place, MIDDLE, MODEL);
        fixture
    }),
    error("GL610", "a retirement in flight", || {
        let mut fixture = run_with(newest());
        let place = after(&fixture, Kind::CheckpointDurablyCommitted, 1);
        retire_at(&mut fixture, place, MIDDLE, &[]);
        fixture
    }),
    error("GL610", "retired twice", || with_retirement(|f| retire(f, MIDDLE, MODEL))),
    error("GL610", "another run's checkpoint", || {
        with_retirement(|f| {
            body!(f, CheckpointRetired, 0, |h| h.obs.checkpoint = CheckpointId::from("s00000004-a9"));
        })
    }),
    error("GL610", "a candidate's model that is let go", || {
        let mut fixture = run_with(newest());
        retire(&mut fixture, MIDDLE, &[]);
        fixture
    }),
    error("GL610", "a candidate's model that is gone all the same", || {
        with_retirement(|f| fs::remove_file(f.checkpoint(MIDDLE).join("model.safetensors")).expect("there"))
    }),
    error("GL610", "a reason that the record does not give", || {
        with_retirement(|f| {
            body!(f, CheckpointRetired, 0, |h| h.det.reason = RetirementReason::Superseded);
        })
    }),
    error("GL610", "a step that is another one", || {
        with_retirement(|f| body!(f, CheckpointRetired, 0, |h| h.det.step = 5))
    }),
    error("GL213", "a retirement at another step than it says", || {
        with_retirement(|f| f.change(Kind::CheckpointRetired, 0, |entry| entry.header.step = Some(5)))
    }),
    error("GL213", "a retirement of no learner", || {
        with_retirement(|f| f.change(Kind::CheckpointRetired, 0, |entry| entry.header.learner = None))
    }),
    error("GL213", "a retirement in a segment and of no attempt", || {
        with_retirement(|f| f.change(Kind::CheckpointRetired, 0, |entry| entry.header.attempt = None))
    }),
    error("GL610", "files that are gone without a retirement", || {
        changed(|f| fs::remove_file(f.checkpoint(MIDDLE).join("optimizer.safetensors")).expect("there"))
    }),
    error("GL610", "a retired checkpoint without its manifest", || {
        with_retirement(|f| fs::remove_file(f.checkpoint(MIDDLE).join("manifest.json")).expect("there"))
    }),
    warning("GL650", "a checkpoint that the policy lets go and nobody retired", || run_with(newest())),
    warning("GL650", "checkpoints that were retired at the end and not when they were due", || {
        let mut fixture = dense().build();
        for name in ["s00000002-a1", MIDDLE, "s00000006-a1"] {
            retire(&mut fixture, name, MODEL);
        }
        fixture
    }),
    error("GL602", "a stage after the retirement", || {
        let mut fixture = run_with(newest());
        let place = after(&fixture, Kind::CheckpointDurablyCommitted, 1);
        retire_at(&mut fixture, place, MIDDLE, MODEL);
        assert!(fixture.entries.iter().any(is_middle));
        fixture
    }),
    error("GL203", "an attempt that begins from a retired checkpoint", || {
        let mut fixture = RunBuilder::new()
            .contract(|contract| contract.checkpoints.keep = newest())
            .interrupt_after_step(6)
            .build();
        let place = after(&fixture, Kind::AttemptEnd, 0);
        retire_at(&mut fixture, place, MIDDLE, MODEL);
        fixture
    }),
    error("GL506", "a retired candidate without its weights", || {
        with_retirement(|f| fs::remove_file(f.checkpoint(MIDDLE).join("model.safetensors")).expect("there"))
    }),
];
