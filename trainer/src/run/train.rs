//! The training loop, top to bottom: update, record, evaluate, stop or not,
//! save, admit, and again.
//!
//! Where the contract saves asynchronously, the loop hands a copy over and goes
//! on; it awaits the save before the next one, before the end, and otherwise
//! takes note of it between two updates, and then does what it would have done
//! at the step itself: admit, and let retention act. So the entries of saves,
//! candidates and retirements have one order among themselves in both modes.
//!
//! The loop decides nothing that the contract does not: which steps are
//! evaluated and saved, and when it stops, are functions of the contract, the
//! step, the evaluations and, for the wall-time budget alone, the clock.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ledger::FrozenContract;
use schemas::body::Outcome;
use schemas::contract::{CompilerPlan, EvaluationStream, MidAccumulation, SaveMode};

use crate::detect::{self, Detectors};
use crate::engine::Engine;
use crate::faults;
use crate::state::anomaly::SinceLast;
use crate::state::registry::{self, CapturedState, Source};
use crate::state::{Derivation, SelectionTracker};
use crate::store::working_folder;
use crate::workers::Exchange;

use super::attempt::Attempt;
use super::calendar;
use super::costs::micros;
use super::error::RunError;
use super::floors::{self, FloorReached};
use super::history::{History, PastCandidate};
use super::records::{Evaluated, Pending, admit, check_finite, evaluate, record_evaluation, record_step};
use super::resume::ResumeState;
use super::retire;
use super::save::{self, EvaluatedShards, Saved, Snapshot};
use super::saver::{InFlight, Saver};
use super::signals::{Interrupt, ReceivedSignal};

/// Shortest time between two readings of what is free.
const FLOORS_EVERY: Duration = Duration::from_secs(1);

/// Updates that are made beside one save at most; the loop then waits for it, so
/// that what a reader has to hold to follow the record is bounded
/// (`docs/FORMAT.md`, "Order of entries").
const MAX_UPDATES_BESIDE: u64 = 10_000;

/// Size of the next checkpoint as long as none was written: parameters and two
/// moments in binary32, and room for headers.
const BYTES_PER_PARAMETER: u64 = 12;

/// Averages in binary32.
const BYTES_PER_AVERAGE: u64 = 4;
/// Bytes of a sum of gradients for each parameter.
const BYTES_PER_SUM: u64 = 4;

/// What does not change while the loop runs.
#[derive(Debug, Clone, Copy)]
pub struct Loop<'a> {
    /// The run's contract.
    pub frozen: &'a FrozenContract,
    /// What happened before this attempt.
    pub history: &'a History,
    /// Set by a signal.
    pub interrupt: &'a Interrupt,
    /// Folder that the contract's paths are relative to.
    pub ledger_folder: &'a Path,
    /// Elements of all parameters.
    pub num_parameters: u64,
    /// Processes that execute the attempt.
    pub num_workers: u32,
    /// The plan that runs.
    pub plan: &'a CompilerPlan,
}

/// How the loop came to its end.
#[derive(Debug)]
pub enum Ending {
    /// The last step was reached, evaluated, saved and admitted.
    Last {
        /// `completed` or `budget_exhausted`.
        outcome: Outcome,
        /// What was reached, in words.
        reason: String,
    },
    /// A floor was reached; the run may go on when there is room.
    Floor(FloorReached),
    /// A signal asked the attempt to end.
    Interrupted(ReceivedSignal),
}

/// What the loop leaves behind.
#[derive(Debug)]
pub struct Trained {
    /// The family, by step.
    pub candidates: BTreeMap<u64, PastCandidate>,
    /// How it ended.
    pub ending: Ending,
    /// Values of the streams that were evaluated, by stream and step.
    pub values: BTreeMap<String, BTreeMap<u64, f64>>,
}

impl Trained {
    /// A signal came before the loop had begun.
    #[must_use]
    pub const fn interrupted(signal: ReceivedSignal) -> Self {
        let ending = Ending::Interrupted(signal);
        Self { candidates: BTreeMap::new(), ending, values: BTreeMap::new() }
    }
}

/// What becomes of a checkpoint once it is validated.
#[derive(Debug, Clone, Copy)]
struct Due {
    /// Whether its step is the last.
    is_last: bool,
    /// What was said to be evaluated at its step; none where nothing was.
    shards: Option<EvaluatedShards>,
    step: u64,
    /// Value of the selection stream at its step.
    value: Option<f64>,
}

/// The loop between two turns: what it carries from one update to the next.
#[derive(Debug)]
pub struct Training<'a> {
    /// Step and microbatches of the next update that the attempt began at.
    begun_at: (u64, u32),
    /// The family so far, by step.
    candidates: BTreeMap<u64, PastCandidate>,
    /// Bytes that the next checkpoint is expected to add to the disk.
    checkpoint_bytes: u64,
    /// Bytes of the sums that one inside of an accumulation window may hold on
    /// top.
    window_bytes: u64,
    context: Loop<'a>,
    /// Unless the contract leaves looking for damage to the validator.
    detectors: Option<Detectors>,
    /// When what is free was read last.
    floors_read: Option<Instant>,
    pending: Option<Pending>,
    /// The checkpoint that the loop stands at, as long as it stands there: what
    /// the ledger holds already is not done again.
    resumed: Option<Saved>,
    /// The last step that this attempt saved.
    saved_step: Option<u64>,
    /// Where the contract saves asynchronously.
    saver: Option<Saver>,
    /// The save that training goes on beside.
    saving: Option<(InFlight, Due)>,
    selection: SelectionTracker,
    /// What lies behind the last checkpoint.
    since: SinceLast,
    /// Completed updates.
    step: u64,
    /// Folder of the checkpoints.
    store: PathBuf,
    values: BTreeMap<String, BTreeMap<u64, f64>>,
}

/// Runs from the resume state to the end.
///
/// # Errors
/// When data, device, store or ledger fail, or a number is not finite. What was
/// recorded up to then stays.
pub fn train(
    attempt: &mut Attempt,
    engine: &mut Engine,
    context: &Loop<'_>,
    resume: ResumeState,
) -> Result<Trained, RunError> {
    let mut training = Training::begin(attempt, context, resume)?;
    loop {
        if let Some(ending) = training.turn(attempt, engine)? {
            return Ok(training.finish(ending));
        }
    }
}

impl<'a> Training<'a> {
    /// At the resume state, before the first turn.
    ///
    /// # Errors
    /// When the checkpoint that is resumed from has no model.
    pub fn begin(attempt: &mut Attempt, context: &Loop<'a>, resume: ResumeState) -> Result<Self, RunError> {
        let contract = &context.frozen.contract;
        let step = resume.step;
        let resumed = resume.checkpoint.as_ref().map(Saved::from_located).transpose()?;
        let from = resumed.is_some().then_some(step);
        let of_averages = if contract.averages.is_some() { BYTES_PER_AVERAGE } else { 0 };
        let initial_bytes = context.num_parameters * (BYTES_PER_PARAMETER + of_averages);
        attempt.console.start_steps(step, calendar::last_step_bound(contract));
        let is_asynchronous = contract.checkpoints.mode == SaveMode::Asynchronous;
        Ok(Self {
            begun_at: (step, resume.num_microbatches()?),
            candidates: surviving_candidates(context.history, step),
            window_bytes: context.num_parameters * BYTES_PER_SUM * calendar::max_sums(contract),
            checkpoint_bytes: resumed.as_ref().map_or(initial_bytes, Saved::num_new_bytes),
            context: *context,
            detectors: attempt.detects().then(|| Detectors::new(contract, context.history, from)),
            floors_read: None,
            pending: None,
            since: resumed.as_ref().map(|saved| SinceLast::after(saved.updated())).unwrap_or_default(),
            resumed,
            saved_step: None,
            saver: is_asynchronous.then(|| Saver::new(context.frozen, context.ledger_folder)),
            saving: None,
            selection: resume.selection,
            step,
            store: context.ledger_folder.join(working_folder(&contract.checkpoints.store)),
            values: context.history.evaluations.clone(),
        })
    }

    /// What the loop leaves behind. A driver that makes an ending of its own
    /// calls [`Self::settle`] before.
    #[must_use]
    pub fn finish(self, ending: Ending) -> Trained {
        Trained { candidates: self.candidates, ending, values: self.values }
    }

    /// Once around: everything that the step that was reached asks for, and the
    /// next update, whose entry the next turn writes. An ending where the loop
    /// is over; then it may not be turned again, and no save is in flight.
    ///
    /// # Errors
    /// As [`train`].
    pub fn turn(&mut self, attempt: &mut Attempt, engine: &mut Engine) -> Result<Option<Ending>, RunError> {
        let turned = self.advance(attempt, engine);
        if let Ok(None) = &turned {
            return turned;
        }
        match (self.settle(attempt), turned) {
            (Ok(()), turned) | (Err(_), turned @ Err(RunError::Record(_))) => turned,
            (Err(failure), Ok(_)) => Err(failure),
            (Err(second), Err(first)) => {
                // The attempt ends by the first; the save's own is on record.
                attempt.console.say(&format!("warning: {}", super::error::chain(&second)));
                Err(first)
            }
        }
    }

    /// Waits for the save in flight, if there is one, and does what follows it.
    ///
    /// # Errors
    /// What made the save fail, or as [`train`].
    pub fn settle(&mut self, attempt: &mut Attempt) -> Result<(), RunError> {
        let Some((saving, due)) = self.saving.take() else { return Ok(()) };
        let saved = saving.wait(attempt)?;
        self.keep(attempt, &saved, &due)
    }

    /// What follows a checkpoint that this attempt saved.
    fn keep(&mut self, attempt: &mut Attempt, saved: &Saved, due: &Due) -> Result<(), RunError> {
        if let Some(shards) = due.shards {
            save::check_evaluated(saved, shards, &self.store)?;
        }
        for anomaly in &saved.anomalies {
            attempt.console.say(&format!("warning: {} is odd: {anomaly}", saved.checkpoint));
        }
        self.since.saved(saved.updated());
        self.checkpoint_bytes = saved.num_new_bytes();
        if let Some(reason) = &saved.not_shared {
            let checkpoint = &saved.checkpoint;
            let text = format!("warning: {checkpoint} has a copy of its frozen parameters: {reason}");
            attempt.console.say(&text);
        }
        self.admit(attempt, saved, due)?;
        // After the last step the selection is recorded first.
        if !due.is_last {
            retire::apply(attempt, self.context.frozen, self.context.ledger_folder)?;
        }
        Ok(())
    }

    /// Makes a checkpoint a candidate where it is of the family and is none yet.
    fn admit(&mut self, attempt: &mut Attempt, saved: &Saved, due: &Due) -> Result<(), RunError> {
        let contract = &self.context.frozen.contract;
        let is_known =
            self.candidates.get(&due.step).is_some_and(|known| known.checkpoint == saved.checkpoint);
        if let Some(value) = due.value
            && calendar::is_of_family(contract, due.step, due.is_last)
            && !is_known
        {
            let candidate = admit(attempt, due.step, saved, value)?;
            self.candidates.insert(due.step, candidate);
        }
        Ok(())
    }

    /// A copy of everything at the current step, and of an update that was begun.
    fn capture(&self, engine: &Engine) -> Result<CapturedState, RunError> {
        let derivation = Derivation {
            contract: &self.context.frozen.contract,
            counters: engine.consumed(),
            num_train_examples: engine.num_train_examples(),
            num_workers: self.context.num_workers,
            plan: self.context.plan,
            selection: self.selection.state(),
            step: self.step,
        };
        Ok(registry::capture(&Source { derivation, engine })?)
    }

    /// A signal ends the attempt, and everything of the step but the next update
    /// is done. Where the contract saves inside of accumulation windows, what was
    /// computed since the last save is kept, unless the attempt has saved this
    /// step or there is nothing new. Such a checkpoint is a candidate only where
    /// an attempt that resumes from it admits it.
    fn interrupted(&mut self, attempt: &mut Attempt, engine: &Engine) -> Result<Option<Ending>, RunError> {
        let Loop { frozen, interrupt, ledger_folder, .. } = self.context;
        let ending = Ok(Some(Ending::Interrupted(interrupt.received())));
        let contract = &frozen.contract;
        let is_kept = contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients;
        let is_new = self.begun_at != (self.step, engine.num_consumed_microbatches());
        if !is_kept || !is_new || self.saved_step == Some(self.step) {
            return ending;
        }
        self.settle(attempt)?;
        if floors::check(&contract.floors, &self.store, self.checkpoint_bytes + self.window_bytes)?.is_none()
        {
            let state = self.capture(engine)?;
            self.saved_step = Some(self.step);
            save::save(attempt, &Snapshot { frozen, since: self.since, state: &state }, ledger_folder)?;
        }
        ending
    }

    /// Tells what goes by evaluations: selection, schedules, and who compares
    /// them.
    fn observe(&mut self, engine: &mut Engine, evaluated: &[Evaluated<'_>]) {
        for Evaluated { outcome, stream, .. } in evaluated {
            engine.observe_evaluation(&stream.name, outcome.value);
            if let Some(detectors) = &mut self.detectors {
                detectors.observe_evaluation(&stream.name, outcome.value);
            }
        }
        let tracked = evaluated.iter().find(|evaluation| evaluation.stream.name == self.selection.stream());
        if let Some(evaluation) = tracked {
            self.selection.observe(self.step, evaluation.outcome.value);
        }
    }

    #[allow(clippy::too_many_lines, reason = "the loop reads top to bottom in one place")]
    fn advance(&mut self, attempt: &mut Attempt, engine: &mut Engine) -> Result<Option<Ending>, RunError> {
        let Loop { frozen, history, interrupt, ledger_folder, .. } = self.context;
        let contract = &frozen.contract;
        let step = self.step;

        // ------------------------------------------------------- Record update
        // A step that carries state digests is recorded after its evaluations,
        // because the selection state is part of the state.
        let has_digests = self.pending.is_some() && calendar::is_digest_step(contract, step);
        if let Some(update) =
            self.pending.as_ref().filter(|update| check_finite(step, &update.outcome).is_err())
        {
            record_step(attempt, step, update, None)?;
            check_finite(step, &update.outcome)?;
        }
        if !has_digests && let Some(update) = self.pending.take() {
            record_step(attempt, step, &update, None)?;
        }

        // ------------------------------------------------------------ Evaluate
        attempt.enter("eval");
        let is_resumed = self.resumed.is_some();
        let is_known =
            |stream: &EvaluationStream| is_resumed && history.evaluation(&stream.name, step).is_some();
        let streams = &contract.evaluation.streams;
        let mut evaluated = Vec::new();
        let mut is_interrupted = false;
        for stream in
            streams.iter().filter(|stream| step.is_multiple_of(stream.every_steps) && !is_known(stream))
        {
            match evaluate(attempt, engine, stream, interrupt)? {
                Some(evaluation) => evaluated.push(evaluation),
                None => is_interrupted = true,
            }
        }
        if is_interrupted {
            return Ok(Some(Ending::Interrupted(interrupt.received())));
        }
        self.observe(engine, &evaluated);

        // ---------------------------------------------------------------- Stop
        // Not the totals: they read /proc, which costs more than the record of a step.
        let wall_us = history.cost().wall_us + micros(attempt.costs.wall());
        let stop = calendar::stop(contract, step, engine.counters(), &self.selection, wall_us);
        // A signal saved a step that was not due: its evaluations name no model.
        let is_unnamed = is_resumed && !step.is_multiple_of(contract.checkpoints.every_steps);
        if stop.is_some() && (is_unnamed || !streams.iter().all(is_known)) {
            // Where the clock makes a resume point the last step, its state
            // gains evaluations and is saved again.
            self.resumed = None;
            let is_done = |stream: &EvaluationStream| {
                evaluated.iter().any(|done: &Evaluated<'_>| done.stream.name == stream.name)
            };
            let missing: Vec<&EvaluationStream> = streams.iter().filter(|stream| !is_done(stream)).collect();
            let first_missing = evaluated.len();
            for stream in missing {
                match evaluate(attempt, engine, stream, interrupt)? {
                    Some(evaluation) => evaluated.push(evaluation),
                    None => is_interrupted = true,
                }
            }
            if is_interrupted {
                return Ok(Some(Ending::Interrupted(interrupt.received())));
            }
            // What was known when the state was saved, the state has seen.
            for evaluation in evaluated[first_missing..].iter().filter(|of| !is_known(of.stream)) {
                self.observe(engine, std::slice::from_ref(evaluation));
            }
        }
        for evaluation in &evaluated {
            let of_stream = self.values.entry(evaluation.stream.name.clone()).or_default();
            of_stream.insert(step, evaluation.outcome.value);
        }

        // --------------------------------------------------- Record evaluations
        let is_saved = self.resumed.is_some();
        let is_due = step.is_multiple_of(contract.checkpoints.every_steps) || stop.is_some();
        if is_due && !is_saved {
            // Before the copy is taken, so that there is one at a time.
            self.settle(attempt)?;
        }
        let needs_state = is_due && !is_saved || has_digests;
        let captured = Instant::now();
        let mut state = match needs_state {
            true => Some(self.capture(engine)?),
            false => None,
        };
        let mut held = captured.elapsed();
        let snapshot = state.as_ref().map(|state| Snapshot { frozen, since: self.since, state });
        if let Some(update) = self.pending.take() {
            let recorded = snapshot.as_ref().map(|snapshot| save::recorded_state(attempt, snapshot));
            record_step(attempt, step, &update, recorded.transpose()?)?;
        }
        // In a loop that goes on, a digest that no evaluation needs is left to
        // the saver.
        let needs_shards = self.saver.is_none() || !evaluated.is_empty();
        let shards = match (&state, &self.resumed) {
            (_, Some(saved)) => Some(EvaluatedShards::of_saved(saved)),
            (Some(state), None) if is_due && needs_shards => Some(EvaluatedShards::of_state(state)?),
            _ => None,
        };
        for evaluation in &evaluated {
            let shard = shards.and_then(|shards| shards.of_view(evaluation.stream.view));
            record_evaluation(attempt, step, evaluation, shard)?;
        }

        // ------------------------------------------------------- Save and admit
        attempt.enter("train");
        let num_microbatches = calendar::microbatches_before_save(contract, step, stop.is_some());
        if state.is_some() && is_due && num_microbatches > 0 {
            // The state of the step, and of the update that follows it so far.
            drop(state);
            if !engine.accumulate(num_microbatches, interrupt.flag())? {
                return self.interrupted(attempt, engine);
            }
            let captured = Instant::now();
            state = Some(self.capture(engine)?);
            held = captured.elapsed();
        }
        let value = self.values.get(&contract.selection.stream).and_then(|values| values.get(&step)).copied();
        let due = Due { is_last: stop.is_some(), shards, step, value };
        if let Some(saved) = self.resumed.take() {
            self.admit(attempt, &saved, &due)?;
        } else if let Some(state) = state.filter(|_| is_due) {
            if let Some(floor) =
                floors::check(&contract.floors, &self.store, self.checkpoint_bytes + self.window_bytes)?
            {
                return Ok(Some(Ending::Floor(floor)));
            }
            let since = std::mem::take(&mut self.since);
            self.saved_step = Some(step);
            if let Some(saver) = &self.saver {
                self.saving = Some((saver.begin(attempt, (state, since), held)?, due));
                if step == 0 {
                    // Until there is a state to go on from, an update that was
                    // made beside the save could only be thrown away.
                    self.settle(attempt)?;
                }
            } else {
                let snapshot = Snapshot { frozen, since, state: &state };
                let saved = save::save(attempt, &snapshot, ledger_folder)?;
                self.keep(attempt, &saved, &due)?;
            }
        }

        // ---------------------------------------------------------- Go on or not
        if let Some((outcome, reason)) = stop {
            return Ok(Some(Ending::Last { outcome, reason }));
        }
        // Here no update waits for its entry.
        let is_over = |(saving, due): &(InFlight, Due)| {
            saving.is_finished() || step.saturating_sub(due.step) >= MAX_UPDATES_BESIDE
        };
        if self.saving.as_ref().is_some_and(is_over) {
            self.settle(attempt)?;
        }
        if self.floors_read.is_none_or(|read| read.elapsed() >= FLOORS_EVERY) {
            self.floors_read = Some(Instant::now());
            if let Some(floor) =
                floors::check(&contract.floors, &self.store, self.checkpoint_bytes + self.window_bytes)?
            {
                return Ok(Some(Ending::Floor(floor)));
            }
        }
        if interrupt.is_set() {
            return self.interrupted(attempt, engine);
        }

        // -------------------------------------------------------------- Update
        let started = Instant::now();
        if attempt.faults.is_some() {
            faults::before_forward(attempt, engine, contract, step + 1)?;
        }
        if let Some(detectors) = &mut self.detectors {
            detectors.before_update(engine)?;
        }
        if attempt.faults.is_some()
            && !faults::before_exchange(attempt, engine, contract, step + 1, interrupt.flag())?
        {
            return self.interrupted(attempt, engine);
        }
        let update = match &mut attempt.collective {
            Some(collective) => collective.update(engine, interrupt.flag())?,
            None => engine.step(interrupt.flag())?.map(|outcome| (outcome, Exchange::default())),
        };
        let Some((outcome, exchange)) = update else {
            return self.interrupted(attempt, engine);
        };
        self.step += 1;
        if attempt.faults.is_some() {
            faults::after_update(attempt, engine, contract, self.step)?;
        }
        if let Some(detectors) = &mut self.detectors {
            detectors.after_update(engine, &outcome)?;
            let num_workers = self.context.num_workers;
            detect::shares(self.step, num_workers, engine.num_microbatches(), &exchange.shares)?;
        }
        self.since.update(&outcome);
        self.pending = Some(Pending { duration: started.elapsed(), exchange, outcome });
        Ok(None)
    }
}

/// Candidates of earlier attempts that still stand at the resume point.
fn surviving_candidates(history: &History, step: u64) -> BTreeMap<u64, PastCandidate> {
    let ended = history.ended_checkpoints();
    let stands =
        |candidate: &&PastCandidate| candidate.det.step <= step && !ended.contains(&candidate.checkpoint);
    let standing = history.candidates.values().filter(stands).cloned();
    standing.map(|candidate| (candidate.det.step, candidate)).collect()
}
