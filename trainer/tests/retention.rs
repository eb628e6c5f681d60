//! Retention over random histories: each protection by itself, against an
//! oracle that is written the slow way; and whole runs, entry by entry, where
//! what was retired is never what a later step turns out to need.
#![allow(missing_docs, unreachable_pub, reason = "a test program")]

mod common;

use std::collections::BTreeSet;

use ledger::FrozenContract;
use proptest::prelude::*;
use schemas::body::{
    AttemptReason, AttemptStartDet, AttemptStartObs, Body, CandidateAdmittedDet, CandidateObs,
    CandidateSelectedDet, CheckpointCommittedDet, CheckpointCommittedObs, CheckpointDet, CheckpointFailedObs,
    CheckpointObs, CheckpointQualifiedDet, CheckpointRetiredDet, EvalDet, EvalObs, ExecutedPlan,
    FaultObservedDet, FaultObservedObs, FaultRecoveredDet, FaultRecoveredObs, Halves, ObservedFault,
    ResumePoint, RetirementReason,
};
use schemas::contract::{Direction, EquivalenceClass, KeepPolicy};
use schemas::digest::Digest;
use schemas::dsse::EnvelopeSignature;
use schemas::ids::{AttemptId, CandidateId, CheckpointId, RunId};
use schemas::number::Float;
use schemas::state::StateClass;
use trainer::checkpoint::checkpoint_id;
use trainer::checkpoint::retention::{self, Decision, Fact, Policy, Protection, Stage};
use trainer::checkpoint::roster::Roster;

const DIGEST: Digest = Digest::blake3([7; 32]);

fn fact(step: u64, attempt: u32, place: u64) -> Fact {
    Fact {
        attempt: AttemptId(attempt),
        candidate: None,
        checkpoint: checkpoint_id(step, AttemptId(attempt)),
        is_finite: true,
        is_parent: false,
        is_post_recovery: false,
        is_pre_fault: false,
        is_selected: false,
        kept: Vec::new(),
        manifest: Some(DIGEST),
        num_bytes: 1,
        qualified: None,
        run: RunId::from("own"),
        stage: Stage::Validated,
        step,
        validated: Some(place),
        value: None,
    }
}

fn decide(keep: &KeepPolicy, direction: Direction, last_step: Option<u64>, facts: &[Fact]) -> Decision {
    retention::decide(&Policy { direction, keep, last_step, run: &RunId::from("own") }, facts)
}

fn chosen(best: u32, every_steps: Option<u64>, last: u32, pinned: &[u64]) -> KeepPolicy {
    KeepPolicy::Chosen { best, every_steps, last, pinned: pinned.to_vec() }
}

fn retired(decision: &Decision) -> Vec<u64> {
    decision.retire.iter().map(|retirement| retirement.step).collect()
}

/// Five checkpoints of which nothing but `change` protects the second and
/// third; the others are initial, next to newest, and newest.
fn check(change: impl Fn(&mut Vec<Fact>), keep: &KeepPolicy, expected: &[u64]) {
    let mut facts: Vec<Fact> = (0..5).map(|number| fact(number * 10, 1, number)).collect();
    change(&mut facts);
    let decision = decide(keep, Direction::Minimize, None, &facts);
    assert_eq!(retired(&decision), expected, "{decision:?}");
}

#[test]
fn each_protection_alone_keeps_a_checkpoint() {
    let smallest = chosen(1, None, 1, &[]);
    check(|_| {}, &smallest, &[10, 20, 30]);
    check(|facts| facts[1].is_selected = true, &smallest, &[20, 30]);
    check(|facts| facts[1].is_pre_fault = true, &smallest, &[20, 30]);
    check(|facts| facts[1].is_post_recovery = true, &smallest, &[20, 30]);
    check(|facts| facts[1].is_parent = true, &smallest, &[20, 30]);
    check(|facts| facts[1].value = Some(3.0), &smallest, &[20, 30]);
    check(|facts| facts[1].stage = Stage::ResumeQualified, &smallest, &[20, 30]);
    check(|facts| facts[1].stage = Stage::DurablyCommitted, &smallest, &[20, 30]);
    check(|facts| facts[1].stage = Stage::Quarantined, &smallest, &[20, 30]);
    check(|facts| facts[1].run = RunId::from("other"), &smallest, &[20, 30]);
    // The last with finite values, where none of the newer ones has them.
    check(|facts| facts[2..].iter_mut().for_each(|fact| fact.is_finite = false), &smallest, &[20, 30]);
    // The newest is unusable: the one before it is the latest.
    check(|facts| facts[4].stage = Stage::Quarantined, &smallest, &[10, 20]);
    check(|_| {}, &chosen(1, None, 2, &[]), &[10, 20]);
    check(|_| {}, &chosen(1, Some(20), 1, &[]), &[10, 30]);
    check(|_| {}, &chosen(1, None, 1, &[10, 30]), &[20]);
    check(|_| {}, &KeepPolicy::All, &[]);
    let valued = |facts: &mut Vec<Fact>| {
        for (fact, value) in facts.iter_mut().zip([9.0, 3.0, 1.0, 2.0, 5.0]) {
            fact.value = Some(value);
        }
    };
    check(valued, &smallest, &[10, 30]);
    check(valued, &chosen(2, None, 1, &[]), &[10]);
    // Of one step the newest copy is chosen, and the older one superseded.
    let again = |facts: &mut Vec<Fact>| facts.push(fact(20, 2, 9));
    check(again, &chosen(1, Some(20), 1, &[]), &[10, 20, 30]);
    let mut facts: Vec<Fact> = (0..5).map(|number| fact(number * 10, 1, number)).collect();
    again(&mut facts);
    let decision = decide(&chosen(1, Some(20), 1, &[]), Direction::Minimize, None, &facts);
    assert_eq!(decision.retire[1].checkpoint.as_str(), "s00000020-a1");
    assert_eq!(decision.retire[1].reason, RetirementReason::Superseded);
    let ended = decide(&smallest, Direction::Minimize, Some(30), &facts);
    assert!(!retired(&ended).contains(&30), "the final state of a run whose newest copy is another");
}

/// Wherever a value that is not finite comes, it is never the best, and the
/// best of the others stays it.
#[test]
fn what_is_not_finite_is_never_the_best() {
    for direction in [Direction::Minimize, Direction::Maximize] {
        for bad in [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for place in 1..5 {
                let mut facts: Vec<Fact> = (0..6).map(|number| fact(number * 10, 1, number)).collect();
                for (fact, value) in facts.iter_mut().zip([0.0, 2.0, 2.0, 2.0, 2.0, 2.0]) {
                    fact.value = Some(value);
                }
                facts[place].value = Some(bad);
                let decision = decide(&chosen(1, None, 1, &[]), direction, None, &facts);
                let best: Vec<u64> = decision
                    .keep
                    .iter()
                    .filter(|kept| kept.protections.contains(&Protection::Best))
                    .map(|kept| kept.step)
                    .collect();
                // Equal values: the earliest.
                assert_eq!(best, [if place == 1 { 20 } else { 10 }], "{direction:?} {bad} at {place}");
            }
        }
    }
}

fn any_value() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        2 => Just(None),
        6 => (0_u32..6).prop_map(|value| Some(f64::from(value))),
        1 => Just(Some(f64::NAN)),
        1 => Just(Some(f64::INFINITY)),
        1 => Just(Some(f64::NEG_INFINITY)),
    ]
}

fn any_stage() -> impl Strategy<Value = Stage> {
    prop_oneof![
        8 => Just(Stage::Validated),
        2 => Just(Stage::ResumeQualified),
        1 => Just(Stage::Requested),
        1 => Just(Stage::Staged),
        1 => Just(Stage::DurablyCommitted),
        1 => Just(Stage::Failed),
        1 => Just(Stage::Quarantined),
        2 => Just(Stage::Retired),
    ]
}

fn any_fact() -> impl Strategy<Value = Fact> {
    let flags = proptest::collection::vec(proptest::bool::weighted(0.12), 6);
    ((0_u64..9), 1_u32..4, any_stage(), any_value(), flags).prop_map(
        |(step, attempt, stage, value, flags)| {
            let mut fact = fact(step * 10, attempt, 0);
            fact.stage = stage;
            fact.value = value;
            fact.is_finite = value.is_none_or(f64::is_finite);
            fact.is_parent = flags[0];
            fact.is_post_recovery = flags[1];
            fact.is_pre_fault = flags[2];
            fact.is_selected = flags[3];
            fact.candidate = flags[4].then(|| CandidateId(format!("candidate-{}", fact.checkpoint)));
            if flags[5] {
                fact.run = RunId::from("other");
            }
            fact
        },
    )
}

fn any_policy() -> impl Strategy<Value = KeepPolicy> {
    let every = prop_oneof![Just(None), Just(Some(20)), Just(Some(30))];
    let pinned = proptest::collection::btree_set((1_u64..9).prop_map(|step| step * 10), 0..3);
    prop_oneof![
        1 => Just(KeepPolicy::All),
        9 => (1_u32..4, every, 1_u32..4, pinned).prop_map(|(best, every_steps, last, pinned)| {
            KeepPolicy::Chosen { best, every_steps, last, pinned: pinned.into_iter().collect() }
        }),
    ]
}

fn any_direction() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Direction::Minimize), Just(Direction::Maximize)]
}

/// One name each, and each validated at a place of its own.
fn distinct(facts: Vec<Fact>) -> Vec<Fact> {
    let mut seen = BTreeSet::new();
    let mut facts: Vec<Fact> =
        facts.into_iter().filter(|fact| seen.insert((fact.run.clone(), fact.checkpoint.clone()))).collect();
    for (place, fact) in (1..).zip(&mut facts) {
        fact.validated = (!fact.stage.is_in_flight()).then_some(place);
    }
    facts
}

/// What no retirement may be, each condition by itself.
fn check_protections(policy: &KeepPolicy, direction: Direction, last_step: Option<u64>, facts: &[Fact]) {
    let decision = decide(policy, direction, last_step, facts);
    let own: Vec<&Fact> =
        facts.iter().filter(|fact| fact.run.as_str() == "own" && fact.stage.is_usable()).collect();
    let newer = |a: &Fact, b: &Fact| (a.step, a.validated) > (b.step, b.validated);
    for retirement in &decision.retire {
        let found = own.iter().find(|fact| fact.checkpoint == retirement.checkpoint);
        let fact = found.expect("only usable checkpoints of this run are retired");
        assert!(matches!(policy, KeepPolicy::Chosen { .. }));
        assert_ne!(fact.step, 0, "initial");
        assert!(own.iter().any(|other| newer(other, fact)), "nothing newer is validated");
        assert!(!fact.is_selected && !fact.is_pre_fault && !fact.is_post_recovery && !fact.is_parent);
        if fact.is_finite {
            assert!(own.iter().any(|other| other.is_finite && newer(other, fact)), "last finite");
        }
        if fact.stage == Stage::ResumeQualified {
            let others = own.iter().filter(|other| other.stage == Stage::ResumeQualified);
            assert!(others.into_iter().any(|other| newer(other, fact)), "latest qualified");
        }
        let is_copied = facts.iter().any(|other| {
            let stands = other.stage.is_usable() || other.stage == Stage::Retired;
            other.run.as_str() == "own" && stands && other.step == fact.step && newer(other, fact)
        });
        if last_step == Some(fact.step) {
            assert!(is_copied, "final");
        }
        if let Some(value) = fact.value.filter(|value| value.is_finite()) {
            let beats = |other: &&&Fact| {
                other.value.is_some_and(|theirs| match direction {
                    _ if !theirs.is_finite() => false,
                    Direction::Minimize => theirs < value,
                    Direction::Maximize => theirs > value,
                }) || other.value == Some(value) && other.step < fact.step
            };
            assert!(
                is_copied || own.iter().filter(|other| other.step > 0).any(|other| beats(&other)),
                "best"
            );
        }
        let expected = if is_copied { RetirementReason::Superseded } else { RetirementReason::NotChosen };
        assert_eq!(retirement.reason, expected);
        assert_eq!(retirement.kept == [StateClass::Model], fact.candidate.is_some());
        assert_eq!(retirement.kept.is_empty(), fact.candidate.is_none());
    }
    // Everything is in one list, and nothing in two.
    let listed = decision.keep.len() + decision.retire.len();
    let gone = facts.iter().filter(|fact| fact.stage == Stage::Retired && fact.run.as_str() == "own");
    assert_eq!(listed + gone.count(), facts.len());
    assert!(decision.keep.iter().all(|kept| !kept.protections.is_empty()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_protected_checkpoint_is_retired_in_any_history(
        policy in any_policy(),
        direction in any_direction(),
        last_step in prop_oneof![Just(None), (0_u64..9).prop_map(|step| Some(step * 10))],
        facts in proptest::collection::vec(any_fact(), 0..24),
    ) {
        check_protections(&policy, direction, last_step, &distinct(facts));
    }

    #[test]
    fn deciding_again_after_retiring_retires_nothing_new(
        policy in any_policy(),
        direction in any_direction(),
        facts in proptest::collection::vec(any_fact(), 0..24),
    ) {
        let mut facts = distinct(facts);
        let first = decide(&policy, direction, None, &facts);
        // Also half-way: in whatever order, the rest stays the rest.
        let half = first.retire.len() / 2;
        let mut expected = first.retire.clone();
        let mut reasons = Vec::new();
        for retirement in first.retire.iter().take(half) {
            let found = facts.iter_mut().find(|fact| fact.checkpoint == retirement.checkpoint && fact.run.as_str() == "own");
            found.expect("it was decided on").stage = Stage::Retired;
        }
        expected.drain(..half);
        let second = decide(&policy, direction, None, &facts);
        prop_assert_eq!(&second.retire.iter().map(|one| one.checkpoint.clone()).collect::<Vec<_>>(),
            &expected.iter().map(|one| one.checkpoint.clone()).collect::<Vec<_>>());
        reasons.extend(second.retire);
        for retirement in &reasons {
            let found = facts.iter_mut().find(|fact| fact.checkpoint == retirement.checkpoint && fact.run.as_str() == "own");
            found.expect("it was decided on").stage = Stage::Retired;
        }
        prop_assert!(decide(&policy, direction, None, &facts).retire.is_empty());
    }
}

// ---------------------------------------------------------------- Whole runs

#[derive(Debug, Clone)]
enum Event {
    /// The next checkpoint, with the value of its step.
    Save(Option<f64>),
    /// The attempt vanishes and another resumes.
    Crash,
    /// The same, and the newest checkpoint's bytes are no longer what they were.
    CrashAndCorrupt,
    /// A probe qualifies the newest.
    Qualify,
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => any_value().prop_map(Event::Save),
        2 => Just(Event::Crash),
        1 => Just(Event::CrashAndCorrupt),
        1 => Just(Event::Qualify),
    ]
}

/// A run that retires as it goes, and the same one under a policy that keeps
/// everything.
struct Run {
    attempt: u32,
    kept: Roster,
    contract: schemas::contract::Contract,
    pruned: Roster,
    step: u64,
}

fn halves<D, O>(det: D, obs: O) -> Box<Halves<D, O>> {
    Box::new(Halves { det, obs })
}

impl Run {
    fn new(policy: KeepPolicy) -> Self {
        let mut contract = common::contract(&common::decoder(), 2, 2);
        let roster = |contract: &schemas::contract::Contract| {
            Roster::new(&FrozenContract {
                contract: contract.clone(),
                digest: Digest::sha256([1; 32]),
                canonical: Vec::new(),
                run: RunId::from("own"),
                signature: EnvelopeSignature { keyid: String::new(), sig: String::new() },
            })
        };
        let kept = roster(&contract);
        contract.checkpoints.keep = policy;
        let pruned = roster(&contract);
        Self { attempt: 0, kept, contract, pruned, step: 0 }
    }

    fn say(&mut self, body: &Body) {
        let attempt = Some(AttemptId(self.attempt));
        self.kept.observe(attempt, Some(self.step), body);
        self.pruned.observe(attempt, Some(self.step), body);
    }

    fn start(&mut self, from: Option<CheckpointId>, from_step: u64) {
        self.attempt += 1;
        self.step = from_step;
        let det = AttemptStartDet {
            attempt: AttemptId(self.attempt),
            code: self.contract.code.clone(),
            contract: Digest::sha256([1; 32]),
            from_step,
            reason: if from.is_some() { AttemptReason::Resume } else { AttemptReason::Start },
            resumed_from: from.map(|checkpoint| ResumePoint {
                checkpoint,
                manifest: DIGEST,
                step: from_step,
            }),
        };
        let obs = AttemptStartObs {
            cpu: String::new(),
            environment: self.contract.environment.clone(),
            host: DIGEST,
            plan: ExecutedPlan {
                compiler: self.contract.plan.clone(),
                compute_dtype: self.contract.numerics.compute_dtype,
                instrumentation: Vec::new(),
                num_threads: 1,
                num_workers: 1,
            },
            process: 1,
            total_memory_bytes: 1,
        };
        self.say(&Body::AttemptStart(halves(det, obs)));
    }

    fn save(&mut self, value: Option<f64>) {
        let step = self.step;
        if let Some(value) = value {
            let stream = &self.contract.evaluation.streams[0];
            let det = EvalDet {
                metric: stream.metric,
                model: None,
                num_examples: 1,
                num_tokens: 1,
                split: stream.split,
                stream: stream.name.clone(),
                total_nats: Float(value),
                value: Float(value),
                view: stream.view,
            };
            self.say(&Body::Eval(halves(det, EvalObs { duration_us: 1 })));
        }
        let checkpoint = checkpoint_id(step, AttemptId(self.attempt));
        let stage = || {
            let obs = CheckpointObs { checkpoint: checkpoint.clone(), duration_us: 1 };
            halves(CheckpointDet { step }, obs)
        };
        self.say(&Body::CheckpointRequested(stage()));
        self.say(&Body::CheckpointStaged(stage()));
        let det = CheckpointCommittedDet { classes: Vec::new(), model: DIGEST, state_root: None, step };
        let obs = CheckpointCommittedObs {
            checkpoint: checkpoint.clone(),
            duration_us: 1,
            manifest: DIGEST,
            num_bytes: 1,
            path: String::new(),
        };
        self.say(&Body::CheckpointDurablyCommitted(halves(det, obs)));
        self.say(&Body::CheckpointValidated(stage()));
        if let Some(value) = value.filter(|_| step > 0) {
            let det = CandidateAdmittedDet { config: DIGEST, model: DIGEST, step, value: Float(value) };
            let candidate = CandidateId(format!("candidate-{checkpoint}"));
            self.say(&Body::CandidateAdmitted(halves(det, CandidateObs { candidate, checkpoint })));
        }
        self.retire();
    }

    fn retire(&mut self) {
        for retirement in self.pruned.decide().retire {
            let det = CheckpointRetiredDet {
                kept: retirement.kept,
                reason: retirement.reason,
                step: retirement.step,
            };
            let obs = CheckpointObs { checkpoint: retirement.checkpoint, duration_us: 0 };
            let body = Body::CheckpointRetired(halves(det, obs));
            self.pruned.observe(Some(AttemptId(self.attempt)), Some(retirement.step), &body);
        }
        assert!(self.pruned.decide().retire.is_empty(), "deciding again retires nothing new");
    }

    fn newest(&self) -> Option<(CheckpointId, u64)> {
        let facts = self.pruned.facts();
        retention::newest_usable(facts).map(|fact| (fact.checkpoint.clone(), fact.step))
    }

    fn crash(&mut self, is_corrupt: bool) {
        let (attempt, last_step) = (AttemptId(self.attempt), self.step);
        let fault = |fault, checkpoint: Option<CheckpointId>| {
            let det = FaultObservedDet { attempt, cause: None, fault, last_step };
            Body::FaultObserved(halves(det, FaultObservedObs { checkpoint, description: String::new() }))
        };
        let corrupt = self.newest().filter(|_| is_corrupt);
        self.say(&fault(ObservedFault::AttemptVanished, None));
        if let Some((checkpoint, step)) = corrupt {
            self.say(&fault(ObservedFault::CheckpointCorrupt, Some(checkpoint.clone())));
            let obs = CheckpointFailedObs { checkpoint, reason: String::new() };
            self.say(&Body::CheckpointQuarantined(halves(CheckpointDet { step }, obs)));
        }
        let from = self.newest();
        let from_step = from.as_ref().map_or(0, |(_, step)| *step);
        let det =
            FaultRecoveredDet { attempt, from_step, num_steps_lost: last_step.saturating_sub(from_step) };
        let obs = FaultRecoveredObs { checkpoint: None, fallback: None };
        self.say(&Body::FaultRecovered(halves(det, obs)));
        let is_fresh = from.is_none();
        self.start(from.map(|(checkpoint, _)| checkpoint), from_step);
        if is_fresh {
            self.save(Some(9.0));
        }
    }

    fn qualify(&mut self) {
        let Some((checkpoint, step)) = self.newest() else { return };
        let det = CheckpointQualifiedDet { class: EquivalenceClass::Bitwise, probe: 0, step };
        let obs = CheckpointObs { checkpoint, duration_us: 1 };
        self.say(&Body::CheckpointResumeQualified(halves(det, obs)));
    }

    /// What the run that kept everything has, and this one would need.
    fn check(&self, has_corrupted: bool) {
        let still_whole = |checkpoint: &CheckpointId| {
            self.pruned.fact(checkpoint).is_some_and(|fact| fact.stage.is_usable())
        };
        let kept = self.kept.facts();
        // Where the next attempt would go on.
        let expected = retention::newest_usable(kept.iter().copied()).map(|fact| fact.checkpoint.clone());
        if !has_corrupted {
            assert_eq!(self.newest().map(|(checkpoint, _)| checkpoint), expected);
        }
        for fact in kept {
            let is_needed = fact.step == 0
                || fact.is_parent
                || fact.is_selected
                || fact.is_post_recovery
                || !has_corrupted && fact.is_pre_fault;
            if is_needed && fact.stage.is_usable() {
                assert!(still_whole(&fact.checkpoint), "{fact:?}");
            }
            // Every candidate's value can still be recomputed.
            if fact.candidate.is_some() && fact.stage.is_usable() {
                let own = self.pruned.fact(&fact.checkpoint).expect("the same entries");
                assert!(own.stage.is_usable() || own.kept == [StateClass::Model], "{own:?}");
            }
        }
    }

    fn select(&mut self) {
        let candidates: Vec<Fact> = self
            .kept
            .facts()
            .into_iter()
            .filter(|fact| fact.candidate.is_some() && fact.stage.is_usable())
            .filter(|fact| fact.value.is_some_and(f64::is_finite))
            .cloned()
            .collect();
        // The first of the smallest, as `select::winner` has it.
        let winner = candidates.iter().reduce(|best, next| if next.value < best.value { next } else { best });
        let Some(winner) = winner else { return };
        let det = CandidateSelectedDet {
            model: DIGEST,
            num_candidates: candidates.len() as u64,
            step: winner.step,
            stream: self.contract.selection.stream.clone(),
            value: Float(winner.value.expect("finite")),
        };
        let obs = CandidateObs {
            candidate: winner.candidate.clone().expect("a candidate"),
            checkpoint: winner.checkpoint.clone(),
        };
        self.say(&Body::CandidateSelected(halves(det, obs)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn replaying_any_prefix_never_retires_what_a_later_step_needs(
        policy in any_policy(),
        events in proptest::collection::vec(any_event(), 0..40),
    ) {
        let mut run = Run::new(policy);
        run.start(None, 0);
        run.save(Some(9.0));
        let mut has_corrupted = false;
        for event in events {
            match event {
                Event::Save(value) => {
                    run.step += 10;
                    run.save(value);
                }
                Event::Crash => run.crash(false),
                Event::CrashAndCorrupt => {
                    has_corrupted = true;
                    run.crash(true);
                }
                Event::Qualify => run.qualify(),
            }
            run.check(has_corrupted);
        }
        run.select();
        if !has_corrupted {
            run.check(false);
        }
        run.retire();
        let selected = run.pruned.facts().into_iter().filter(|fact| fact.is_selected).count();
        let could_select = run.kept.facts().iter().any(|fact| fact.is_selected);
        prop_assert_eq!(selected > 0, could_select);
    }
}
