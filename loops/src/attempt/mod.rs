//! A running attempt: what a loop says of its steps and evaluations, and how the
//! attempt ends. Saving is in [`save`], what it can be asked for in [`offers`].
//!
//! Time between two calls is the loop's work, and is charged to the call that
//! reports it. An attempt that is dropped without an end has vanished: the next
//! one says so.

mod offers;
mod save;
mod select;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ledger::costs::{self, micros};
use ledger::recorder::{Record, Recorder, RecorderError};
use schemas::body::{
    AnomalyDet, AnomalyObs, AttemptEndDet, AttemptEndObs, Body, CandidateObs, CandidateSelectedDet, Counters,
    Credit, DiagnosticDet, DiagnosticObs, Draw, EvalDet, EvalObs, FaultObservedDet, FaultObservedObs,
    GroupUpdate, Halves, ObservedFault, Outcome, RunEndDet, StepDet, StepObs,
};
use schemas::contract::{Contract, EvaluationStream};
use schemas::digest::Digest;
use schemas::ids::{AttemptId, LearnerId, SegmentId, WorkerId};
use schemas::number::Float;
use schemas::policy_card::PolicyCard;

pub(crate) use select::meets_target;
use select::{value_of, winner};

use crate::checkpoint::Resumed;
use crate::error::LoopError;
use crate::history::Candidate;
use crate::inputs::UPDATE_STREAM;
use crate::run::{Finished, Run, end_run, last_step};

/// The only segment: its identity is the contract's.
pub(crate) const SEGMENT: SegmentId = SegmentId(1);

/// Steps between two readings of resident memory, which cost a system call.
const RESIDENT_EVERY_STEPS: u64 = 50;

/// What the contract asks for before the next update.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Due {
    /// Whether the state has to be saved.
    pub checkpoint: bool,
    /// Streams that have to be evaluated, before the state is saved.
    pub evaluations: Vec<String>,
    /// Whether there is no next update.
    pub is_last: bool,
}

/// What an update did to one parameter group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupStep {
    /// What gradients were multiplied by.
    pub clip_coefficient: f64,
    /// Name of the group in the policy card.
    pub group: String,
    /// The rate that was used.
    pub learning_rate: f64,
    /// Norm of the group's parameters after the update, where it was taken.
    pub parameter_norm: Option<f64>,
    /// Norm of the change, where it was taken.
    pub update_norm: Option<f64>,
    /// Decoupled decay that was used.
    pub weight_decay: f64,
}

/// One update, as the loop made it.
#[derive(Debug, Clone, PartialEq)]
pub struct Step<'a> {
    /// What entered the model: of each example, in order of consumption, the
    /// bytes of its inputs and of the last target.
    pub fed: &'a [Vec<u8>],
    /// Norm of the gradient over all trainable parameters, before clipping.
    pub gradient_norm: f64,
    /// In the order of the policy card's groups.
    pub groups: Vec<GroupStep>,
    /// Mean over the target tokens, in nats.
    pub loss: f64,
    /// Microbatches that made the gradient.
    pub num_microbatches: u32,
    /// Examples that updates had consumed before this one.
    pub position: u64,
}

/// One evaluation, as the loop made it.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation<'a> {
    /// Examples that were evaluated, from the first of the table.
    pub num_examples: u64,
    /// Their target tokens.
    pub num_tokens: u64,
    /// Name of the stream.
    pub stream: &'a str,
    /// Sum over the target tokens of the negative log likelihood, in nats.
    pub total_nats: f64,
}

/// A running attempt.
#[derive(Debug)]
pub struct Attempt {
    candidates: BTreeMap<u64, Candidate>,
    counters: Counters,
    /// Streams whose evaluation at this step is known.
    evaluated: BTreeSet<String>,
    is_over: bool,
    last_step: u64,
    /// A save began and did not come to its end: its name is on record, and a
    /// second request of it would make the run one that no audit accepts.
    must_end: bool,
    number: AttemptId,
    /// Evaluations of this step that wait for the digest of the saved model.
    pending: Vec<(EvalDet, Duration)>,
    resumed: Option<Resumed>,
    pub(crate) run: Run,
    /// The step whose state is saved.
    saved_step: Option<u64>,
    /// When the last call came back.
    since: Instant,
    pub(crate) store: PathBuf,
    values: BTreeMap<String, BTreeMap<u64, f64>>,
    /// Waiting for the recorder since the last step.
    waited: Duration,
    pub(crate) warnings: Vec<String>,
}

impl Attempt {
    /// Takes over a run whose `attempt.start` is durable.
    pub(crate) fn new(run: Run, number: AttemptId, resumed: Option<Resumed>, store: PathBuf) -> Self {
        let last_step = resumed.as_ref().map_or(0, |resumed| resumed.step);
        let counters = resumed.as_ref().map_or_else(Counters::default, |resumed| resumed.counters);
        let (candidates, values) = match &resumed {
            Some(_) => (run.history.standing_candidates(last_step), run.history.evaluations.clone()),
            None => (BTreeMap::new(), BTreeMap::new()),
        };
        // What was saved had been evaluated.
        let streams = run.frozen.contract.evaluation.streams.iter().map(|stream| stream.name.clone());
        let evaluated = if resumed.is_some() { streams.collect() } else { BTreeSet::new() };
        Self {
            candidates,
            counters,
            evaluated,
            is_over: false,
            last_step,
            must_end: false,
            number,
            pending: Vec::new(),
            saved_step: resumed.as_ref().map(|resumed| resumed.step),
            resumed,
            run,
            since: Instant::now(),
            store,
            values,
            waited: Duration::ZERO,
            warnings: Vec::new(),
        }
    }

    /// Its number, from 1.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number.0
    }

    /// The frozen contract.
    #[must_use]
    pub const fn contract(&self) -> &Contract {
        &self.run.frozen.contract
    }

    /// The optimizer policy card.
    #[must_use]
    pub const fn card(&self) -> &PolicyCard {
        &self.run.inputs.card
    }

    /// The run's identifier.
    #[must_use]
    pub fn run_id(&self) -> &str {
        self.run.id()
    }

    /// The checkpoint that it begins from; `None`: the initial state.
    #[must_use]
    pub const fn resumed(&self) -> Option<&Resumed> {
        self.resumed.as_ref()
    }

    /// Completed updates on record.
    #[must_use]
    pub const fn last_step(&self) -> u64 {
        self.last_step
    }

    /// Whether it has ended on record.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// What could not be cleaned up behind earlier attempts, in words.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What the contract asks for before the next update.
    #[must_use]
    pub fn due(&self) -> Due {
        let contract = self.contract();
        let (last, _, _) = last_step(contract);
        let is_last = self.last_step >= last;
        let is_at = |every: u64| is_last || every > 0 && self.last_step.is_multiple_of(every);
        let streams = contract.evaluation.streams.iter();
        let evaluations = streams
            .filter(|stream| is_at(stream.every_steps) && !self.evaluated.contains(&stream.name))
            .map(|stream| stream.name.clone())
            .collect();
        let checkpoint = is_at(contract.checkpoints.every_steps) && self.saved_step != Some(self.last_step);
        Due { checkpoint, evaluations, is_last }
    }

    /// Records one update. A loss or norm that is not finite is recorded too, and
    /// ends the attempt as failed.
    ///
    /// # Errors
    /// When an evaluation, a save or the end of the run is due instead, a save
    /// failed, the loss or norm is not finite, or the ledger cannot be written.
    pub fn step(&mut self, step: &Step<'_>) -> Result<u64, LoopError> {
        let work = self.since.elapsed();
        self.require_nothing_due()?;
        let number = self.last_step + 1;
        let det = self.step_det(step)?;
        let obs = StepObs {
            bytes_sent: 0,
            duration_us: micros(work),
            recording_us: micros(std::mem::take(&mut self.waited)),
            replicas: Vec::new(),
            resident_bytes: if number.is_multiple_of(RESIDENT_EVERY_STEPS) {
                costs::resident_bytes()
            } else {
                None
            },
            shares: Vec::new(),
        };
        let counters = det.counters;
        let record = Record {
            worker: Some(WorkerId(0)),
            ..self.header(number, Body::Step(Box::new(Halves { det, obs })))
        };
        self.timed(|recorder| recorder.append(record))?;
        (self.last_step, self.counters) = (number, counters);
        self.evaluated.clear();
        self.run.costs.step();
        for (what, value) in [("the loss", step.loss), ("the gradient norm", step.gradient_norm)] {
            if !value.is_finite() {
                let reason = format!("{what} is {value} at step {number}");
                self.fail(&reason, Some(ObservedFault::NotFinite))?;
                return Err(LoopError::NotFinite { what, step: number, value });
            }
        }
        self.since = Instant::now();
        Ok(number)
    }

    fn step_det(&self, step: &Step<'_>) -> Result<StepDet, LoopError> {
        let num_examples = step.fed.len() as u64;
        let is_empty = step.fed.is_empty() || step.fed.iter().any(|example| example.len() < 2);
        if is_empty {
            return Err(LoopError::value("fed", "has an example without a target, or no example"));
        }
        let (mut ids, mut inputs) = (blake3::Hasher::new(), blake3::Hasher::new());
        let mut num_tokens = 0;
        for example in step.fed {
            ids.update(blake3::hash(example).as_bytes());
            let length = u32::try_from(example.len())
                .map_err(|_| LoopError::value("fed", "has an example of 4 GiB or more"))?;
            inputs.update(&length.to_le_bytes());
            inputs.update(example);
            num_tokens += u64::from(length) - 1;
        }
        let digest = |hasher: &blake3::Hasher| Digest::blake3(*hasher.finalize().as_bytes());
        let updates = step.groups.iter().map(|group| GroupUpdate {
            clip_coefficient: Float(group.clip_coefficient),
            group: group.group.clone(),
            learning_rate: Float(group.learning_rate),
            parameter_norm: group.parameter_norm.map(Float),
            update_norm: group.update_norm.map(Float),
            weight_decay: Float(group.weight_decay),
        });
        Ok(StepDet {
            counters: Counters {
                evaluations: 0,
                examples: self.counters.examples + num_examples,
                tokens: self.counters.tokens + num_tokens,
            },
            credit: Credit::Backpropagation {
                gradient_norm: Float(step.gradient_norm),
                loss: Float(step.loss),
                num_microbatches: step.num_microbatches,
                num_tokens,
            },
            draws: vec![Draw {
                ids: digest(&ids),
                inputs: digest(&inputs),
                purpose: "update".to_owned(),
                ranges: self.run.inputs.order.ranges(step.position, num_examples),
                stream: UPDATE_STREAM.to_owned(),
            }],
            overflow: None,
            state: None,
            state_root: None,
            updates: updates.collect(),
        })
    }

    /// Records an evaluation of the state after the last step. Where that state
    /// is to be saved, the entry waits for the save, since it names the model.
    /// Returns the value.
    ///
    /// # Errors
    /// When the stream is not due, a save failed, or the ledger cannot be written.
    pub fn evaluation(&mut self, evaluation: &Evaluation<'_>) -> Result<f64, LoopError> {
        let work = self.since.elapsed();
        self.require_usable()?;
        let due = self.due();
        if !due.evaluations.iter().any(|name| name == evaluation.stream) {
            let (stream, step) = (evaluation.stream, self.last_step);
            return Err(LoopError::order(format!("no evaluation of {stream:?} is due at step {step}")));
        }
        let stream = self.stream(evaluation.stream)?;
        let value = value_of(stream.metric, evaluation.total_nats, evaluation.num_tokens);
        let det = EvalDet {
            metric: stream.metric,
            model: None,
            num_examples: evaluation.num_examples,
            num_tokens: evaluation.num_tokens,
            split: stream.split,
            stream: stream.name.clone(),
            total_nats: Float(evaluation.total_nats),
            value: Float(value),
            view: stream.view,
        };
        self.run.costs.eval(work);
        self.evaluated.insert(evaluation.stream.to_owned());
        self.values.entry(evaluation.stream.to_owned()).or_default().insert(self.last_step, value);
        if due.checkpoint {
            self.pending.push((det, work));
        } else {
            self.record_evaluation(det, work)?;
        }
        self.since = Instant::now();
        Ok(value)
    }

    fn record_evaluation(&mut self, det: EvalDet, duration: Duration) -> Result<(), LoopError> {
        let obs = EvalObs { duration_us: micros(duration) };
        self.record(self.last_step, Body::Eval(Box::new(Halves { det, obs })))
    }

    /// Records numbers that explain and decide nothing.
    ///
    /// # Errors
    /// When the attempt is over, a save failed, or the ledger cannot be written.
    pub fn diagnostic(&mut self, name: &str, values: &BTreeMap<String, f64>) -> Result<(), LoopError> {
        self.require_usable()?;
        let det = DiagnosticDet { name: name.to_owned(), values: BTreeMap::new() };
        let values = values.iter().map(|(name, value)| (name.clone(), Float(*value))).collect();
        self.record(self.last_step, Body::Diagnostic(Box::new(Halves { det, obs: DiagnosticObs { values } })))
    }

    /// Ends the run at its last step: selects by the contract's rule, and writes
    /// both terminal entries.
    ///
    /// # Errors
    /// When the last step is not reached, something is still due, a save failed,
    /// or the ledger cannot be written.
    pub fn finish(&mut self) -> Result<Finished, LoopError> {
        self.require_usable()?;
        let due = self.due();
        if due.checkpoint || !due.evaluations.is_empty() {
            return Err(self.is_due(&due));
        }
        let (last, outcome, reason) = last_step(self.contract());
        if !due.is_last {
            let at = self.last_step;
            return Err(LoopError::order(format!("the run ends at step {last}, and step {at} was the last")));
        }
        let contract = self.run.frozen.contract.clone();
        let winner = winner(&contract, &self.candidates).cloned();
        let target_met = winner.as_ref().and_then(|winner| {
            meets_target(&contract, |stream| self.values.get(stream)?.get(&winner.det.step).copied())
        });
        if let Some(winner) = &winner {
            let det = CandidateSelectedDet {
                model: winner.det.model,
                num_candidates: self.candidates.len() as u64,
                step: winner.det.step,
                stream: contract.selection.stream.clone(),
                value: winner.det.value,
            };
            let (candidate, checkpoint) = (winner.candidate.clone(), winner.checkpoint.clone());
            let halves = Halves { det, obs: CandidateObs { candidate, checkpoint } };
            // A crash after the selection leaves it standing.
            let history = &self.run.history;
            let stands = history.selected.as_ref() == Some(&halves) && history.candidates == self.candidates;
            if !stands {
                let step = self.last_step;
                self.record_durably(step, Body::CandidateSelected(Box::new(halves)))?;
            }
        }
        let cost = self.end(outcome, &reason)?;
        let (counters, last_step) = (self.counters, self.last_step);
        let det = RunEndDet { counters, last_step, outcome, reason, target_met };
        end_run(&self.run.recorder, &self.run.history, det, Some(cost))?;
        self.run.recorder.clone().close()?;
        let candidate = winner.map(|winner| winner.candidate.0);
        Ok(Finished { candidate, last_step, target_met })
    }

    /// Ends the attempt because somebody interrupted it; the run may go on.
    ///
    /// # Errors
    /// When it is over, or the ledger cannot be written.
    pub fn interrupt(&mut self, reason: &str) -> Result<(), LoopError> {
        self.require_running()?;
        self.end(Outcome::Interrupted, reason)?;
        Ok(self.run.recorder.clone().close().map(|_| ())?)
    }

    /// Ends the attempt as failed, with what was seen: a fault of its own state,
    /// data or storage, or an anomaly by any other name.
    ///
    /// # Errors
    /// When it is over, or the ledger cannot be written.
    pub fn fail(&mut self, reason: &str, fault: Option<ObservedFault>) -> Result<(), LoopError> {
        self.require_running()?;
        let step = self.last_step;
        let (body, worker) = match fault {
            Some(fault) => {
                let det = FaultObservedDet { attempt: self.number, cause: None, fault, last_step: step };
                let obs = FaultObservedObs { checkpoint: None, description: reason.to_owned() };
                (Body::FaultObserved(Box::new(Halves { det, obs })), Some(WorkerId(0)))
            }
            None => {
                let det = AnomalyDet::named("loop_failed");
                let obs = AnomalyObs { description: reason.to_owned() };
                (Body::Anomaly(Box::new(Halves { det, obs })), None)
            }
        };
        let record = Record { worker, ..self.header(step, body) };
        self.timed(|recorder| recorder.append(record))?;
        self.end(Outcome::Failed, reason)?;
        Ok(self.run.recorder.clone().close().map(|_| ())?)
    }

    /// Writes `attempt.end`.
    fn end(&mut self, outcome: Outcome, reason: &str) -> Result<schemas::body::CostTotals, LoopError> {
        let cost = self.run.costs.totals();
        let det = AttemptEndDet { attempt: self.number, last_step: self.last_step, outcome };
        let obs = AttemptEndObs { cost, reason: reason.to_owned() };
        let step = self.last_step;
        self.record_durably(step, Body::AttemptEnd(Box::new(Halves { det, obs })))?;
        self.is_over = true;
        Ok(cost)
    }

    fn require_running(&self) -> Result<(), LoopError> {
        if self.is_over { Err(LoopError::order("the attempt has ended")) } else { Ok(()) }
    }

    /// Running, and not behind a save that failed: everything but the end asks
    /// for it.
    fn require_usable(&self) -> Result<(), LoopError> {
        self.require_running()?;
        if self.must_end { Err(LoopError::failed_save(self.last_step)) } else { Ok(()) }
    }

    fn require_nothing_due(&self) -> Result<(), LoopError> {
        self.require_usable()?;
        let due = self.due();
        if due == Due::default() { Ok(()) } else { Err(self.is_due(&due)) }
    }

    fn is_due(&self, due: &Due) -> LoopError {
        let mut what: Vec<String> =
            due.evaluations.iter().map(|stream| format!("an evaluation of {stream:?}")).collect();
        if due.checkpoint {
            what.push("a checkpoint".to_owned());
        }
        if what.is_empty() {
            what.push("the end of the run".to_owned());
        }
        LoopError::order(format!("{} is due at step {}", what.join(" and "), self.last_step))
    }

    fn stream(&self, name: &str) -> Result<&EvaluationStream, LoopError> {
        let streams = &self.contract().evaluation.streams;
        let found = streams.iter().find(|stream| stream.name == name);
        found.ok_or_else(|| LoopError::value("stream", format!("{name:?} is none of the contract's")))
    }

    /// Appends an entry, which becomes durable with its group.
    pub(crate) fn record(&mut self, step: u64, body: Body) -> Result<(), LoopError> {
        let record = self.header(step, body);
        self.timed(|recorder| recorder.append(record))
    }

    /// Appends an entry and returns once it is durable under a signed head.
    pub(crate) fn record_durably(&mut self, step: u64, body: Body) -> Result<(), LoopError> {
        let record = self.header(step, body);
        self.timed(|recorder| recorder.append_durable(record).map(|_| ()))
    }

    /// Makes everything durable that was appended.
    pub(crate) fn flush(&mut self) -> Result<(), LoopError> {
        self.timed(|recorder| recorder.flush().map(|_| ()))
    }

    fn timed(
        &mut self,
        append: impl FnOnce(&Recorder) -> Result<(), RecorderError>,
    ) -> Result<(), LoopError> {
        let started = Instant::now();
        let result = append(&self.run.recorder);
        let duration = started.elapsed();
        self.waited += duration;
        self.run.costs.recording(duration);
        Ok(result?)
    }

    /// Header of an entry of the attempt, as its kind determines it.
    fn header(&self, step: u64, body: Body) -> Record {
        let is_of_learner = matches!(
            body,
            Body::Step(_)
                | Body::Eval(_)
                | Body::CandidateAdmitted(_)
                | Body::CandidateSelected(_)
                | Body::CheckpointRequested(_)
                | Body::CheckpointStaged(_)
                | Body::CheckpointDurablyCommitted(_)
                | Body::CheckpointValidated(_)
                | Body::CheckpointFailed(_)
                | Body::CheckpointQuarantined(_)
        );
        Record {
            attempt: Some(self.number),
            segment: Some(SEGMENT),
            learner: is_of_learner.then_some(LearnerId(0)),
            step: Some(step),
            ..Record::new(body)
        }
    }
}
