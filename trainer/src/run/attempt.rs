//! One process lifetime in the ledger: what it writes, and under which header.
//!
//! It owns the recorder, the meter of costs and the heart. The training loop
//! calls it and never touches the ledger itself.

use std::time::{Duration, Instant};

use ledger::recorder::{Record, Recorder};
use schemas::body::{AttemptEndDet, AttemptEndObs, Body, CostTotals, Counters, Halves, Outcome};
use schemas::ids::{AttemptId, LearnerId, SegmentId, WorkerId};

use crate::checkpoint::roster::Roster;
use crate::faults::Injector;
use crate::workers::Collective;

use super::costs::CostMeter;
use super::error::RunError;
use super::failpoint;
use super::heart::Heart;
use super::progress::Console;
use super::save::Stages;

/// The only learner.
const LEARNER: LearnerId = LearnerId(0);

/// The only worker.
const WORKER: WorkerId = WorkerId(0);

/// A running attempt.
#[derive(Debug)]
pub struct Attempt {
    /// Its number.
    pub attempt: AttemptId,
    /// The other workers, where there are several.
    pub collective: Option<Collective>,
    /// Where messages for people go.
    pub console: Console,
    /// What it costs.
    pub costs: CostMeter,
    counters: Counters,
    /// Faults that are planned; none in a run without such a plan.
    pub faults: Option<Injector>,
    heart: Heart,
    /// Last completed step that the ledger was given, or the step that the
    /// attempt started from.
    last_step: u64,
    recorder: Recorder,
    /// Every checkpoint, up to the last entry that the ledger was given.
    roster: Roster,
    /// The segment that it works in.
    segment: SegmentId,
    /// Waiting for the recorder since the last step entry.
    waited: Duration,
}

impl Attempt {
    /// Takes over the recorder; `attempt.start` is already durable. The step
    /// and its counters are those that the attempt starts from.
    #[must_use]
    pub fn new(
        (attempt, segment): (AttemptId, SegmentId),
        (last_step, counters): (u64, Counters),
        recorder: Recorder,
        roster: Roster,
        costs: CostMeter,
        console: Console,
    ) -> Self {
        let heart = Heart::start(recorder.clone(), (attempt, segment), last_step);
        let waited = Duration::ZERO;
        let (collective, faults) = (None, None);
        Self {
            attempt,
            collective,
            console,
            costs,
            counters,
            faults,
            heart,
            last_step,
            recorder,
            roster,
            segment,
            waited,
        }
    }

    /// Whether the trainer looks for damage, as every run does whose contract
    /// does not leave that to the validator.
    #[must_use]
    pub fn detects(&self) -> bool {
        self.faults.as_ref().is_none_or(Injector::detects)
    }

    /// Cumulative counters after the last completed step.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Last completed step that the ledger was given.
    #[must_use]
    pub const fn last_step(&self) -> u64 {
        self.last_step
    }

    /// What the ledger says of every checkpoint, up to now.
    #[must_use]
    pub const fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Entries of the ledger that a crash would leave.
    #[must_use]
    pub fn num_durable(&self) -> u64 {
        self.recorder.num_durable()
    }

    /// Takes the time that the loop waited for the recorder since the last
    /// call.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// What the process is doing, for heartbeats: `train`, `eval`,
    /// `checkpoint`.
    pub fn enter(&self, phase: &'static str) {
        self.heart.enter(phase);
    }

    /// Appends an entry, which becomes durable with its group.
    ///
    /// # Errors
    /// When the ledger cannot be written, by this entry or an earlier one.
    pub fn record(&mut self, step: u64, body: Body) -> Result<(), RunError> {
        let record = self.header(step, body);
        self.timed(|recorder| recorder.append(record).map(|_| ()))
    }

    /// Appends an entry and returns once it is durable with a signed head.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub fn record_durably(&mut self, step: u64, body: Body) -> Result<(), RunError> {
        let record = self.header(step, body);
        self.timed(|recorder| recorder.append_durable(record).map(|_| ()))
    }

    /// As [`Self::record`], of what one worker did, or in a segment that begins
    /// with it.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub fn record_of(
        &mut self,
        step: u64,
        body: Body,
        worker: Option<WorkerId>,
        segment: Option<SegmentId>,
    ) -> Result<(), RunError> {
        let record = self.header(step, body);
        let segment = segment.or(record.segment);
        let record = Record { worker: worker.or(record.worker), segment, ..record };
        self.timed(|recorder| recorder.append(record).map(|_| ()))
    }

    /// As [`Self::record_durably`], of a worker.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub fn record_durably_of(&mut self, worker: WorkerId, step: u64, body: Body) -> Result<(), RunError> {
        let record = Record { worker: Some(worker), ..self.header(step, body) };
        self.timed(|recorder| recorder.append_durable(record).map(|_| ()))
    }

    /// A hand for another thread, which appends entries of this attempt while
    /// the loop goes on.
    #[must_use]
    pub fn scribe(&self) -> Scribe {
        Scribe {
            appended: Vec::new(),
            attempt: self.attempt,
            console: self.console.clone(),
            faults: self.faults.as_ref().map(Injector::of_saves),
            recorder: self.recorder.clone(),
            segment: self.segment,
        }
    }

    /// Takes note of what a [`Scribe`] appended, in its order. Until then the
    /// roster does not know it: it is the loop's, and decides for the loop.
    pub fn adopt(&mut self, appended: Vec<(u64, Body)>) {
        for (step, body) in appended {
            self.roster.observe(Some(self.attempt), Some(step), &body);
        }
    }

    /// Makes everything durable that was appended.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub fn flush(&mut self) -> Result<(), RunError> {
        self.timed(|recorder| recorder.flush().map(|_| ()))
    }

    fn timed(
        &mut self,
        append: impl FnOnce(&Recorder) -> Result<(), ledger::recorder::RecorderError>,
    ) -> Result<(), RunError> {
        let started = Instant::now();
        let result = append(&self.recorder);
        let duration = started.elapsed();
        self.waited += duration;
        self.costs.recording(duration);
        self.heart.beat();
        Ok(result?)
    }

    fn header(&mut self, step: u64, body: Body) -> Record {
        let worker = match &body {
            Body::Step(halves) => {
                self.counters = halves.det.counters;
                self.last_step = step;
                self.heart.step(step);
                if let Some(injector) = &mut self.faults {
                    injector.observe_step(step, &halves.det);
                }
                Some(WORKER)
            }
            _ => None,
        };
        self.roster.observe(Some(self.attempt), Some(step), &body);
        Record { worker, ..record((self.attempt, self.segment), step, body) }
    }

    /// Ends the workers and waits for them.
    pub fn dismiss(&mut self) {
        if let Some(collective) = self.collective.take() {
            self.costs.worker_peak(collective.close());
        }
    }

    /// Writes `attempt.end` durably and gives the recorder back, together with
    /// what the attempt cost.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub fn end(mut self, outcome: Outcome, reason: String) -> Result<(Recorder, CostTotals), RunError> {
        // Before the totals: what its workers cost is known when they have ended.
        self.dismiss();
        self.heart.stop();
        self.console.finish();
        let cost = self.costs.totals();
        let det = AttemptEndDet { attempt: self.attempt, last_step: self.last_step, outcome };
        let obs = AttemptEndObs { cost, reason };
        let last_step = self.last_step;
        self.record_durably(last_step, Body::AttemptEnd(Box::new(Halves { det, obs })))?;
        failpoint::pass("attempt.ended");
        Ok((self.recorder, cost))
    }
}

/// Header of an entry of an attempt, as its kind determines it; the worker is
/// the loop's to name.
fn record((attempt, segment): (AttemptId, SegmentId), step: u64, body: Body) -> Record {
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
            | Body::CheckpointRetired(_)
    );
    Record {
        attempt: Some(attempt),
        segment: Some(segment),
        learner: is_of_learner.then_some(LEARNER),
        step: Some(step),
        ..Record::new(body)
    }
}

/// Appends entries of an attempt from another thread than its loop's. It keeps
/// what it appended, for [`Attempt::adopt`].
#[derive(Debug)]
pub struct Scribe {
    appended: Vec<(u64, Body)>,
    attempt: AttemptId,
    console: Console,
    faults: Option<Injector>,
    recorder: Recorder,
    segment: SegmentId,
}

impl Scribe {
    /// Makes everything durable, under a signed head, that anybody appended to
    /// the ledger before.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub fn flush(&self) -> Result<(), RunError> {
        self.recorder.flush()?;
        Ok(())
    }

    /// What it appended, with the step of each header, in order.
    #[must_use]
    pub fn into_appended(self) -> Vec<(u64, Body)> {
        self.appended
    }
}

impl Stages for Scribe {
    fn attempt(&self) -> AttemptId {
        self.attempt
    }

    fn console(&self) -> &Console {
        &self.console
    }

    fn append(&mut self, step: u64, body: Body) -> Result<(), RunError> {
        self.recorder.append(record((self.attempt, self.segment), step, body.clone()))?;
        self.appended.push((step, body));
        Ok(())
    }

    fn append_durably(&mut self, step: u64, body: Body) -> Result<(), RunError> {
        self.recorder.append_durable(record((self.attempt, self.segment), step, body.clone()))?;
        self.appended.push((step, body));
        Ok(())
    }

    fn append_durably_of(&mut self, worker: WorkerId, step: u64, body: Body) -> Result<(), RunError> {
        let record =
            Record { worker: Some(worker), ..record((self.attempt, self.segment), step, body.clone()) };
        self.recorder.append_durable(record)?;
        self.appended.push((step, body));
        Ok(())
    }

    fn faults(&mut self) -> Option<&mut Injector> {
        self.faults.as_mut()
    }
}
