//! A probe is announced, complete, consistent, and shows what the contract
//! claims.

use std::collections::BTreeMap;

use schemas::body::{
    Body, ClassDistance, Distance, InertReason, ProbeResultDet, ProbeResultObs, ProbeStartDet, ProbeStartObs,
    RecordField,
};
use schemas::contract::{Contract, EquivalenceClass, GroupSchedule, ScheduleShape, StoppingRule};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::report::Route;
use schemas::state::StateClass;

use super::{MAX_ULP, MIN_STEPS, beyond, captured};
use crate::derive::selection::followed_stream;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Checkpoints, declare_rule, or_null};

declare_rule!(
    /// `GL620`.
    ProbeRecord,
    {
        code: "GL620",
        name: "probe-record",
        what: "A probe is announced by probe.start before its result, for a checkpoint that was validated, with the contract's code, \
               plan and resume class and at least 2 updates; its result compares every captured class and every part of the step \
               records, with distances that agree with each other, with digests and with the checkpoint's tensors; a probe with \
               nothing withheld is within the contract's class; a control that changed nothing says why, and the reason holds.",
        why: "The contract claims that a resumed run is the same run. A probe that leaves out what differs, or a control that is \
              quietly explained away, would make that claim without evidence.",
        remedy: "Find the state class that the distances name first and what the checkpoint does not restore of it; a corrected \
                 trainer is a new contract and a new run. A result that does not agree with itself needs a trainer that is not \
                 altered: probe again with `trainer probe`.",
        reference: "docs/FORMAT.md, \"Resume probes\"; schemas::body::ProbeResultDet",
        gate: Route::RejectResumeDrift,
    }
);

struct Started {
    checkpoint: CheckpointId,
    det: ProbeStartDet,
    is_answered: bool,
}

/// A tensor that a result names, to be looked up in the checkpoint's manifest.
struct Named {
    checkpoint: CheckpointId,
    class: StateClass,
    index: u64,
    pointer: String,
    tensor: String,
}

struct Record<'a> {
    checkpoints: Checkpoints,
    contract: &'a Contract,
    named: Vec<Named>,
    num_results: u64,
    started: BTreeMap<u64, Started>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Record {
        checkpoints: Checkpoints::default(),
        contract: &frozen.contract,
        named: Vec::new(),
        num_results: 0,
        started: BTreeMap::new(),
    })
}

impl Record<'_> {
    fn start(&mut self, index: u64, det: &ProbeStartDet, obs: &ProbeStartObs, sink: &mut Sink) {
        let at = |pointer: &str| At::entry(index, pointer);
        if det.class != self.contract.resume.class {
            let (expected, actual) =
                (format!("{:?}", self.contract.resume.class), format!("{:?}", det.class));
            sink.rejected(at("/body/det/class"), "a probe judges in another class", expected, actual);
        }
        if det.code != self.contract.code || obs.plan.compiler != self.contract.plan {
            let expected = format!("{}, {:?}", self.contract.code.digest, self.contract.plan);
            let actual = format!("{}, {:?}", det.code.digest, obs.plan.compiler);
            sink.rejected(at("/body/det/code"), "a probe runs other code or another plan", expected, actual);
        }
        let executes = (obs.plan.compute_dtype, obs.plan.num_workers);
        if executes != (self.contract.numerics.compute_dtype, 1) {
            let expected = format!("{:?}, one process", self.contract.numerics.compute_dtype);
            let actual = format!("{:?}, {} processes", executes.0, executes.1);
            sink.rejected(at("/body/obs/plan"), "a probe executes otherwise than it can", expected, actual);
        }
        if det.num_steps < MIN_STEPS {
            let expected = format!("at least {MIN_STEPS}");
            sink.rejected(at("/body/det/num_steps"), "a probe runs too few updates", expected, det.num_steps);
        }
        let known = captured(self.contract);
        let is_ordered = det.withheld.is_sorted_by(|left, right| left < right);
        if !is_ordered || det.withheld.iter().any(|class| !known.contains(class)) {
            let message = "a probe withholds what no checkpoint holds, or not in order";
            let actual = format!("{:?}", det.withheld);
            sink.rejected(at("/body/det/withheld"), message, format!("classes of {known:?}"), actual);
        }
        let checkpoint = self.checkpoints.all.get(&obs.checkpoint);
        let is_usable = checkpoint
            .is_some_and(|known| known.validated.is_some() && !known.is_unusable && known.step == det.step);
        if !is_usable {
            let actual = checkpoint.map_or_else(
                || "no such checkpoint".to_owned(),
                |known| format!("{:?} at step {}, given up: {}", known.stage, known.step, known.is_unusable),
            );
            let message = format!("{} is probed, which a run could not go on from", obs.checkpoint);
            let expected = format!("validated, at step {}", det.step);
            sink.rejected(at("/body/obs/checkpoint"), message, expected, actual);
        }
        let started = Started { checkpoint: obs.checkpoint.clone(), det: det.clone(), is_answered: false };
        self.started.insert(index, started);
    }

    fn result(&mut self, index: u64, det: &ProbeResultDet, obs: &ProbeResultObs, sink: &mut Sink) {
        self.num_results += 1;
        let at = |pointer: &str| At::entry(index, pointer);
        let told = |checkpoint: &CheckpointId, class, num_steps, step, withheld: &[StateClass]| {
            format!("{checkpoint}, step {step}, {class:?}, {num_steps} updates, without {withheld:?}")
        };
        let actual = told(&obs.checkpoint, det.class, det.num_steps, det.step, &det.withheld);
        match self.started.get_mut(&obs.start) {
            Some(started) if !started.is_answered => {
                started.is_answered = true;
                let begun = &started.det;
                let expected =
                    told(&started.checkpoint, begun.class, begun.num_steps, begun.step, &begun.withheld);
                if expected != actual {
                    sink.rejected(at("/body/obs/start"), "a result is of another probe", expected, actual);
                }
            }
            _ => {
                let message = "a probe has a result that was not begun, or has two";
                sink.rejected(at("/body/obs/start"), message, "a probe.start of its own before", obs.start);
            }
        }
        self.completeness(index, det, sink);
        let first = det.step + u64::from(!det.withheld.is_empty());
        let last = det.step.saturating_add(det.num_steps);
        for (position, record) in det.records.iter().enumerate() {
            let pointer = format!("/body/det/records/{position}");
            consistency(index, &pointer, &record.distance, record.equal, (det.step + 1, last), sink);
        }
        for (position, class) in det.distances.iter().enumerate() {
            let pointer = format!("/body/det/distances/{position}");
            consistency(index, &pointer, &class.distance, class.equal, (first, last), sink);
            digests(index, &pointer, class, sink);
            if let Some(tensor) = &class.first_tensor {
                self.named.push(Named {
                    checkpoint: obs.checkpoint.clone(),
                    class: class.class,
                    index,
                    pointer: format!("{pointer}/first_tensor"),
                    tensor: tensor.clone(),
                });
            }
        }
        self.judge(index, det, &obs.checkpoint, sink);
    }

    /// Nothing is left out of a comparison.
    fn completeness(&self, index: u64, det: &ProbeResultDet, sink: &mut Sink) {
        let at = |pointer: &str| At::entry(index, pointer);
        let (expected, actual): (Vec<StateClass>, Vec<StateClass>) =
            (captured(self.contract), det.distances.iter().map(|class| class.class).collect());
        if expected != actual {
            let message = "a probe does not compare every captured class, once, in order";
            sink.rejected(at("/body/det/distances"), message, format!("{expected:?}"), format!("{actual:?}"));
        }
        if !det.records.iter().map(|record| record.record).eq(RecordField::ALL) {
            let actual: Vec<RecordField> = det.records.iter().map(|record| record.record).collect();
            let message = "a probe does not compare every part of the step records, once, in order";
            let expected = format!("{:?}", RecordField::ALL);
            sink.rejected(at("/body/det/records"), message, expected, format!("{actual:?}"));
        }
    }

    /// What the numbers say, against what the contract claims.
    fn judge(&self, index: u64, det: &ProbeResultDet, checkpoint: &CheckpointId, sink: &mut Sink) {
        let at = |pointer: &str| At::entry(index, pointer);
        let found = beyond(det, self.contract, &[]);
        if det.withheld.is_empty() {
            if !found.is_empty() {
                let said = match self.contract.resume.class {
                    EquivalenceClass::Statistical => "is not shown to be equivalent to the uninterrupted one",
                    _ => "is not the uninterrupted one",
                };
                let message = format!("resumed from {checkpoint}, the run {said}");
                let expected = format!("{:?} in every class", self.contract.resume.class);
                sink.rejected(at("/body/det/distances"), message, expected, found.join(", "));
            }
            if let Some(reason) = det.inert {
                let message = "a probe that withholds nothing cannot be inert";
                sink.rejected(at("/body/det/inert"), message, "null", format!("{reason:?}"));
            }
            return;
        }
        match det.inert {
            None if found.is_empty() => {
                let message = format!("a control of {checkpoint} changes nothing, and nothing says why");
                let expected = "a difference, or a reason";
                sink.warning(at("/body/det/inert"), message, expected, format!("without {:?}", det.withheld));
            }
            None => {}
            Some(reason) => {
                if let Some(problem) = self.refute(det, checkpoint, reason) {
                    let message = "the reason for which a control is said to change nothing does not hold";
                    sink.rejected(at("/body/det/inert"), message, format!("{reason:?}"), problem);
                }
            }
        }
    }

    /// Why a reason does not hold.
    fn refute(&self, det: &ProbeResultDet, checkpoint: &CheckpointId, reason: InertReason) -> Option<String> {
        let left_out = if reason == InertReason::DecidesNothing { det.withheld.as_slice() } else { &[] };
        let found = beyond(det, self.contract, left_out);
        if !found.is_empty() {
            return Some(format!("{} differs", found.join(", ")));
        }
        let selection = [StateClass::SelectionState];
        match reason {
            InertReason::EqualsInitial => {
                let digest = |class: StateClass, of: &crate::rules::common::Checkpoint| {
                    let committed = of.committed.as_ref()?;
                    committed.classes.iter().find(|digest| digest.class == class)?.digest
                };
                let probed = self.checkpoints.all.get(checkpoint)?;
                let initial = self.checkpoints.all.values().find(|known| known.step == 0)?;
                let of_both = |class: &StateClass| (digest(*class, probed), digest(*class, initial));
                let differs = |class: &&StateClass| {
                    let (left, right): (Option<Digest>, Option<Digest>) = of_both(class);
                    left.is_none() || left != right
                };
                let class = det.withheld.iter().find(differs)?;
                Some(format!("{class} is not what it was at step 0"))
            }
            InertReason::FunctionOfStep => {
                let has_plateau =
                    |group: &GroupSchedule| matches!(group.shape, ScheduleShape::Plateau { .. });
                let holds_state = self.contract.schedule.iter().any(has_plateau);
                (det.withheld != [StateClass::Scheduler] || holds_state)
                    .then(|| format!("withheld is {:?}, a schedule holds state: {holds_state}", det.withheld))
            }
            InertReason::ReplacedByEvaluation => {
                let every = followed_stream(self.contract).map(|(stream, _)| stream.every_steps);
                let is_due = every.is_some_and(|every| (det.step + 1).is_multiple_of(every));
                (det.withheld != selection || !is_due).then(|| {
                    format!("withheld is {:?}, evaluated every {} steps", det.withheld, or_null(every))
                })
            }
            InertReason::DecidesNothing => {
                let is_used = matches!(self.contract.stopping, StoppingRule::Patience { .. });
                (det.withheld != selection || is_used)
                    .then(|| format!("withheld is {:?}, patience: {is_used}", det.withheld))
            }
        }
    }
}

/// The numbers of one distance agree with each other.
fn consistency(
    index: u64,
    pointer: &str,
    distance: &Distance,
    equal: bool,
    (first, last): (u64, u64),
    sink: &mut Sink,
) {
    let numbers = [distance.max_absolute.0, distance.max_absolute_beyond_relative.0, distance.max_relative.0];
    let is_zero = numbers.iter().all(|number| *number == 0.0)
        && (distance.first_step, distance.max_ulp, distance.num_different) == (None, 0, 0);
    // Equal magnitudes of other sign are two magnitudes apart.
    let is_relative =
        (0.0..=2.0).contains(&distance.max_relative.0) || distance.max_relative.0 == f64::INFINITY;
    let is_apart = distance.first_step.is_some_and(|step| (first..=last).contains(&step))
        && (1..=MAX_ULP).contains(&distance.max_ulp)
        && distance.num_different > 0
        && numbers.iter().all(|number| *number >= 0.0)
        && is_relative
        && distance.max_absolute_beyond_relative.0 <= distance.max_absolute.0;
    if if equal { is_zero } else { is_apart } {
        return;
    }
    let expected = if equal {
        "every number 0 and no step".to_owned()
    } else {
        format!("numbers above 0, first at a step from {first} to {last}")
    };
    let actual = format!("equal: {equal}, {distance:?}");
    sink.rejected(At::entry(index, pointer), "a distance does not agree with itself", expected, actual);
}

/// Digests and names agree with the distance beside them.
fn digests(index: u64, pointer: &str, class: &ClassDistance, sink: &mut Sink) {
    if class.equal && class.reference != class.resumed {
        let at = At::entry(index, format!("{pointer}/equal"));
        let message = format!("{} is called equal, and its digests differ", class.class);
        sink.rejected(at, message, class.reference, class.resumed);
    }
    if class.equal == class.first_tensor.is_some() {
        let at = At::entry(index, format!("{pointer}/first_tensor"));
        let expected = if class.equal { "null" } else { "the first tensor that differs" };
        sink.rejected(at, "a difference is not named", expected, or_null(class.first_tensor.as_ref()));
    }
}

impl Check for Record<'_> {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::ProbeStart(halves) => self.start(entry.index, &halves.det, &halves.obs, sink),
            Body::ProbeResult(halves) => self.result(entry.index, &halves.det, &halves.obs, sink),
            _ => {}
        }
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        for (index, _) in self.started.iter().filter(|(_, started)| !started.is_answered) {
            let message = "a probe was begun and has no result";
            sink.note(At::entry(*index, ""), message, "probe.result", "none: it was interrupted");
        }
        for named in &self.named {
            let known = self.checkpoints.all.get(&named.checkpoint);
            let Some(committed) = known.and_then(|known| known.committed.as_ref()) else { continue };
            // A manifest that cannot be read is the finding of other rules.
            let Ok(manifest) = evidence.checkpoint_manifest(&committed.path, committed.manifest) else {
                continue;
            };
            let mut shards = manifest
                .classes
                .iter()
                .filter(|held| held.class == named.class)
                .flat_map(|held| &held.shards);
            let is_known = shards.any(|shard| {
                shard.tensors.iter().any(|tensor| tensor.name == named.tensor)
                    || shard.tensors.is_empty() && named.tensor.starts_with(&shard.path)
            });
            if !is_known {
                let at = At::entry(named.index, &named.pointer);
                let message = format!("{} has no such tensor", named.class);
                sink.rejected(at, message, format!("one of {}", named.checkpoint), &named.tensor);
            }
        }
        if self.started.is_empty() && self.num_results == 0 {
            return Outcome::NotApplicable("no checkpoint was probed".to_owned());
        }
        Outcome::Checked(self.started.len() as u64 + self.num_results)
    }
}
