//! All workers of an attempt, from the side of the one that records.
//!
//! An update is one round: every worker is told its microbatches, this process
//! executes its own, the shares are put together in the order of microbatches,
//! and the total goes to every worker, each of which makes the update by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use corpus::examples::ExampleTable;
use schemas::body::{ReplicaDigest, WorkerShare};
use schemas::contract::{self, Contract};
use schemas::data::DataManifest;
use schemas::digest::Digest;
use schemas::ids::WorkerId;
use schemas::parameters::ParameterManifest;
use schemas::policy_card::PolicyCard;
use serde::Serialize;

use super::Exchange;
use super::clock::Clock;
use super::error::WorkerError;
use super::frames::{Frame, FrameError, Kind};
use super::message::{self, Failure, Setup, State, Update, WorkerFault};
use super::odd::odd_one;
use super::peer::{Arrival, Peer};
use super::repeats::{self, Repeats};
use crate::engine::share::{self, Share};
use crate::engine::{Engine, EngineError, StepOutcome};
use crate::identity;
use crate::run::costs::micros;
use crate::run::error::RunError;

/// Pause between two looks at whether something came, a signal or the end of
/// patience.
const SLICE: Duration = Duration::from_millis(20);
/// Shortest time that workers get to start: a process, its kernels and the
/// initial parameters take longer than an update.
const START_MS: u32 = 60_000;
/// Bytes of a frame beyond tensors: documents, tables, what was consumed.
const MARGIN_BYTES: u64 = 1 << 30;

/// What the workers of an attempt are made of.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The optimizer policy card.
    pub card: &'a PolicyCard,
    /// How workers exchange.
    pub collective: &'a contract::Collective,
    /// Whether sums that a worker gave before are looked for.
    pub detects: bool,
    /// Whether workers keep what they gave last, for faults that give it again.
    pub keeps_last: bool,
    /// The run's contract.
    pub contract: &'a Contract,
    /// The manifest of the data.
    pub data: &'a DataManifest,
    /// Folder of the data shards.
    pub folder: &'a Path,
    /// Threads of each process.
    pub num_threads: u32,
    /// Processes, this one included; more than one.
    pub num_workers: u32,
    /// The manifest of parameters.
    pub parameters: &'a ParameterManifest,
    /// What a worker executes; this program where `None`.
    pub program: Option<PathBuf>,
}

/// What one worker gave for an update.
#[derive(Debug)]
struct Given {
    at: Instant,
    bytes_sent: u64,
    gradients: Digest,
    share: Share,
}

/// The workers of an attempt.
#[derive(Debug)]
pub struct Collective {
    clock: Clock,
    config: contract::Collective,
    inbox: Receiver<Arrival>,
    /// Whether something was ordered of the next update; no signal stops that.
    is_ordered: bool,
    /// Whether the share of the update before is kept, for faults.
    keeps_last: bool,
    /// This process's share of the update before, where it is kept.
    last: Option<Share>,
    /// The last update that was executed together.
    last_step: Option<u64>,
    /// Those that have microbatches of the next update; all, unless a fault says
    /// otherwise.
    num_executing: u32,
    num_workers: u32,
    orders: BTreeMap<u32, WorkerFault>,
    /// From worker 1 on.
    peers: Vec<Peer>,
    /// None where the contract leaves finding damage to the validator.
    repeats: Option<Repeats>,
}

impl Collective {
    /// Starts the workers and gives each the state of this process's engine;
    /// returns when all of them hold it. `None` when `interrupt` was set before.
    ///
    /// # Errors
    /// When one cannot be started, or does not come to the same state.
    pub fn start(plan: &Plan<'_>, engine: &Engine, interrupt: &AtomicBool) -> Result<Option<Self>, RunError> {
        // The file that this process executes, also where another has its path by now.
        let program = plan.program.clone().unwrap_or_else(|| PathBuf::from("/proc/self/exe"));
        let clock = Clock::start().map_err(RunError::Process)?;
        let (sender, inbox) = mpsc::channel();
        let max_bytes = MARGIN_BYTES + engine.num_replica_bytes() as u64 * u64::from(u32::BITS);
        let mut peers = Vec::new();
        for worker in 1..plan.num_workers {
            peers.push(Peer::start(&program, worker, max_bytes, &clock.reading(), &sender)?);
        }
        let mut collective = Self {
            clock,
            config: plan.collective.clone(),
            inbox,
            is_ordered: false,
            keeps_last: plan.keeps_last,
            last: None,
            last_step: None,
            num_executing: plan.num_workers,
            num_workers: plan.num_workers,
            orders: BTreeMap::new(),
            peers,
            repeats: plan.detects.then(Repeats::default),
        };
        Ok(collective.set_up(plan, engine, max_bytes, interrupt)?.then_some(collective))
    }

    /// Gives every worker what it is made of; `false` when a signal came.
    fn set_up(
        &mut self,
        plan: &Plan<'_>,
        engine: &Engine,
        max_bytes: u64,
        interrupt: &AtomicBool,
    ) -> Result<bool, RunError> {
        let table = ExampleTable { records: engine.train.records().to_vec() }.to_bytes();
        let step = engine.step_number();
        let patience_ms = self.config.timeout_ms.max(START_MS);
        let until = (self.clock.deadline_ms(patience_ms), patience_ms);
        for index in 0..self.peers.len() {
            let worker = index_of(index);
            let setup = Setup {
                card: plan.card.clone(),
                code: identity::code().digest,
                contract: plan.contract.clone(),
                data: plan.data.clone(),
                folder: plan.folder.to_owned(),
                heartbeat_ms: self.config.heartbeat_ms,
                keeps_last: self.keeps_last,
                max_bytes,
                num_threads: plan.num_threads,
                parameters: plan.parameters.clone(),
                timeout_ms: self.config.timeout_ms,
                worker,
            };
            if !self.send(index, (step, Kind::Setup), &json(&setup)?, until, interrupt)?
                || !self.send(index, (step, Kind::Examples), &table, until, interrupt)?
            {
                return Ok(false);
            }
        }
        self.give_state(engine, until, interrupt)
    }

    /// Gives every worker the state of this process's engine again, where
    /// something changed it here alone. `false` when a signal came.
    ///
    /// # Errors
    /// When a worker does not come to the same state.
    pub fn restate(&mut self, engine: &Engine, interrupt: &AtomicBool) -> Result<bool, RunError> {
        let until = (self.clock.deadline_ms(self.config.timeout_ms), self.config.timeout_ms);
        self.give_state(engine, until, interrupt)
    }

    fn give_state(
        &mut self,
        engine: &Engine,
        until: (u64, u32),
        interrupt: &AtomicBool,
    ) -> Result<bool, RunError> {
        let (step, replica) = (engine.step_number(), engine.replica()?);
        for index in 0..self.peers.len() {
            let position = engine.position(index_of(index));
            let compute = message::Compute::of(engine.compute_dtype());
            let state = State { compute, position, shuffle: engine.shuffle_state() };
            if !self.send(index, (step, Kind::State), &json(&state)?, until, interrupt)?
                || !self.send(index, (step, Kind::Replica), &replica, until, interrupt)?
            {
                return Ok(false);
            }
        }
        let own = Digest::blake3(*blake3::hash(&replica).as_bytes());
        Ok(self.replicas(own, step, until, interrupt)?.is_some())
    }

    /// Lets a worker do something to itself in the next update. Worker 0, which
    /// is this process, can give a stale share.
    pub fn order(&mut self, worker: u32, fault: WorkerFault) {
        self.orders.insert(worker, fault);
        self.is_ordered = true;
    }

    /// Whether something was ordered of the next update.
    #[must_use]
    pub const fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// Lets the next update be executed by another number of workers than the
    /// attempt says, at most as many; a number that does not divide the
    /// microbatches is an error of that update.
    pub fn execute_with(&mut self, num_workers: u32) {
        self.num_executing = num_workers.clamp(1, self.num_workers);
        self.is_ordered = true;
    }

    /// Workers that execute microbatches of the next update.
    #[must_use]
    pub const fn num_executing(&self) -> u32 {
        self.num_executing
    }

    /// Whether the workers executed this update, and could give its share again.
    #[must_use]
    pub fn has_executed(&self, step: u64) -> bool {
        self.last_step == Some(step)
    }

    /// Processes, this one included.
    #[must_use]
    pub const fn num_workers(&self) -> u32 {
        self.num_workers
    }

    /// The most memory that a worker other than this process said to have had.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.peers.iter().map(Peer::peak_bytes).max().unwrap_or(0)
    }

    /// Executes one update together. `None` when `interrupt` was set
    /// before every share was there; then nothing has changed here, and the
    /// workers are of no further use. An update that something was ordered of
    /// is not given up: the order is on record, and has to act.
    ///
    /// # Errors
    /// When this process's engine fails, or a worker is lost, late or wrong.
    pub fn update(
        &mut self,
        engine: &mut Engine,
        interrupt: &AtomicBool,
    ) -> Result<Option<(StepOutcome, Exchange)>, RunError> {
        let started = Instant::now();
        let step = engine.step_number() + 1;
        let until = (self.clock.deadline_ms(self.config.timeout_ms), self.config.timeout_ms);
        let wants_digest = step.is_multiple_of(self.config.replica_digest_every_steps.max(1));
        let ranges = self.ranges(engine.num_microbatches(), step)?;
        let orders = std::mem::take(&mut self.orders);
        let never = AtomicBool::new(false);
        let interrupt = if std::mem::take(&mut self.is_ordered) { &never } else { interrupt };

        // Everybody at once: the others, then this process.
        for (index, (worker, range)) in (1..).zip(ranges.iter().skip(1)).enumerate() {
            let command = Update {
                digest: wants_digest,
                fault: orders.get(&worker).copied(),
                microbatches: range.clone(),
                position: engine.position(worker),
            };
            if !self.send(index, (step, Kind::Update), &json(&command)?, until, interrupt)? {
                return Ok(None);
            }
        }
        let own_range = ranges.first().cloned().unwrap_or(0..0);
        let Some(own) = engine.execute_share(0, own_range, interrupt)? else { return Ok(None) };
        let own = self.own(own, orders.get(&0).copied());
        let Some(given) = self.gather(engine, step, own, &ranges, until, interrupt)? else { return Ok(None) };

        // In the order of microbatches.
        let mut exchange = Exchange::default();
        let shares = (0..).zip(&given).filter_map(|(worker, given)| Some((worker, given.as_ref()?)));
        let copied = repeats::copied(shares.map(|(worker, given)| (worker, given.gradients, &given.share)));
        for (worker, given) in (0..).zip(given) {
            let Some(given) = given else { continue };
            exchange.shares.push(WorkerShare {
                bytes_sent: given.bytes_sent,
                duration_us: micros(given.at.saturating_duration_since(started)),
                first_microbatch: given.share.microbatches.start,
                gradients: given.gradients,
                num_microbatches: given.share.microbatches.end - given.share.microbatches.start,
                worker: WorkerId(worker),
            });
            let taken = engine.take_share(worker, given.share);
            taken.map_err(|reason| WorkerError::Disagrees { worker, step, reason, is_stale: false })?;
        }
        let total = engine.total();
        let until = (self.clock.deadline_ms(self.config.timeout_ms), self.config.timeout_ms);
        // The shares are taken: the update is made, or the attempt fails.
        for index in 0..self.peers.len() {
            self.send(index, (step, Kind::Total), &total, until, &never)?;
        }
        let outcome = engine.step(&never)?;
        let Some(outcome) = outcome else { return Ok(None) };
        self.last_step = Some(step);
        if let Some(repeats) = &mut self.repeats {
            repeats.look(step, &exchange, copied, &outcome)?;
        }
        if wants_digest {
            let own = engine.replica_digest()?;
            exchange.replicas = self.replicas(own, step, until, &never)?.unwrap_or_default();
        }
        Ok(Some((outcome, exchange)))
    }

    /// Microbatches of each worker; of none for those that are left out.
    fn ranges(&mut self, num_microbatches: u32, step: u64) -> Result<Vec<Range<u32>>, RunError> {
        let num_workers = std::mem::replace(&mut self.num_executing, self.num_workers);
        if !num_microbatches.is_multiple_of(num_workers) {
            let reason = format!("{num_microbatches} microbatches cannot be shared by {num_workers} workers");
            return Err(WorkerError::Disagrees { worker: 0, step, reason, is_stale: false }.into());
        }
        let each = num_microbatches / num_workers;
        let range = |worker| if worker < num_workers { worker * each..(worker + 1) * each } else { 0..0 };
        Ok((0..self.num_workers).map(range).collect())
    }

    /// This process's share, or the sums of the one before where that is
    /// ordered.
    fn own(&mut self, mut share: Share, order: Option<WorkerFault>) -> Given {
        let fresh = self.keeps_last.then(|| share.clone());
        if let (Some(WorkerFault::Stale { .. }), Some(last)) = (order, self.last.take()) {
            share.blocks = last.blocks;
        }
        self.last = fresh;
        let gradients = share::digest_blocks(&share.blocks);
        Given { at: Instant::now(), bytes_sent: 0, gradients, share }
    }

    /// Waits for the shares of all workers that have microbatches.
    fn gather(
        &mut self,
        engine: &Engine,
        step: u64,
        own: Given,
        ranges: &[Range<u32>],
        until: (u64, u32),
        interrupt: &AtomicBool,
    ) -> Result<Option<Vec<Option<Given>>>, RunError> {
        let mut given: Vec<Option<Given>> = ranges.iter().map(|_| None).collect();
        let mut consumed: BTreeMap<u32, (u64, Share)> = BTreeMap::new();
        let mut missing: BTreeSet<u32> = BTreeSet::new();
        missing
            .extend((1..).zip(ranges.iter().skip(1)).filter(|(_, range)| !range.is_empty()).map(|(w, _)| w));
        if let Some(slot) = given.first_mut() {
            *slot = Some(own);
        }
        while !missing.is_empty() {
            let arrival = self.next(step, &missing, "its share was not there", until, interrupt)?;
            let Some((worker, at, frame)) = arrival else { return Ok(None) };
            let disagrees = |reason: String| WorkerError::Disagrees { worker, step, reason, is_stale: false };
            match frame.kind {
                Kind::Consumed if !consumed.contains_key(&worker) => {
                    let share = message::decode_consumed(&frame.payload);
                    let share =
                        share.ok_or_else(|| disagrees("what it consumed is not readable".to_owned()))?;
                    let range = ranges.get(worker as usize).cloned().unwrap_or(0..0);
                    if share.microbatches != range {
                        let found = share.microbatches;
                        let reason = format!("it executed the microbatches {found:?}, not {range:?}");
                        return Err(disagrees(reason).into());
                    }
                    consumed.insert(worker, (frame.num_bytes(), share));
                }
                Kind::Gradients if missing.contains(&worker) => {
                    let share = consumed.remove(&worker);
                    let (bytes_sent, mut share) =
                        share.ok_or_else(|| disagrees("its sums came before what they are of".to_owned()))?;
                    share.blocks =
                        engine.decode_blocks(&share.microbatches, &frame.payload).map_err(disagrees)?;
                    let gradients = Digest::blake3(frame.digest);
                    let bytes_sent = bytes_sent + frame.num_bytes();
                    missing.remove(&worker);
                    if let Some(slot) = given.get_mut(worker as usize) {
                        *slot = Some(Given { at, bytes_sent, gradients, share });
                    }
                }
                kind => return Err(disagrees(format!("it sent {kind:?}, which nobody asked for")).into()),
            }
        }
        Ok(Some(given))
    }

    /// The next frame of the update, from any worker. `None` when a signal came.
    fn next(
        &mut self,
        step: u64,
        missing: &BTreeSet<u32>,
        how: &'static str,
        (until_ms, timeout_ms): (u64, u32),
        interrupt: &AtomicBool,
    ) -> Result<Option<(u32, Instant, Frame)>, RunError> {
        loop {
            let arrival = match self.inbox.recv_timeout(SLICE) {
                Ok(arrival) => Some(arrival),
                Err(RecvTimeoutError::Timeout) => None,
                // The peers' threads are gone, and each said why before.
                Err(RecvTimeoutError::Disconnected) => {
                    let worker = missing.first().copied().unwrap_or(0);
                    let how = "nobody listens to it any more".to_owned();
                    return Err(WorkerError::Lost { worker, step, how }.into());
                }
            };
            if interrupt.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let Some(Arrival { at_ms, at, frame, worker }) = arrival else {
                self.check_patience(step, missing, how, (until_ms, timeout_ms))?;
                continue;
            };
            let frame = match frame {
                Ok(frame) => frame,
                Err(FrameError::Malformed(reason)) => {
                    return Err(WorkerError::Disagrees { worker, step, reason, is_stale: false }.into());
                }
                Err(error) => return Err(self.lost(worker, step, &error.to_string()).into()),
            };
            if frame.kind == Kind::Failure {
                return Err(failure(worker, step, &frame.payload).into());
            }
            if frame.step != step {
                let reason = format!("it sent {:?} of step {}", frame.kind, frame.step);
                let is_stale = frame.step < step;
                return Err(WorkerError::Disagrees { worker, step, reason, is_stale }.into());
            }
            if at_ms > until_ms {
                return Err(WorkerError::Late { worker, step, how, timeout_ms }.into());
            }
            return Ok(Some((worker, at, frame)));
        }
    }

    /// Whether somebody who is waited for is silent, or the time is over.
    fn check_patience(
        &self,
        step: u64,
        missing: &BTreeSet<u32>,
        how: &'static str,
        (until_ms, timeout_ms): (u64, u32),
    ) -> Result<(), WorkerError> {
        let now_ms = self.clock.now_ms();
        let waited_for = self.peers.iter().filter(|peer| missing.contains(&peer.worker()));
        for peer in waited_for {
            let worker = peer.worker();
            if now_ms > until_ms {
                return Err(WorkerError::Late { worker, step, how, timeout_ms });
            }
            if now_ms > Clock::after_ms(peer.heard_ms(), timeout_ms) {
                let how = "it gave no sign of life";
                return Err(WorkerError::Late { worker, step, how, timeout_ms });
            }
        }
        Ok(())
    }

    fn lost(&mut self, worker: u32, step: u64, seen: &str) -> WorkerError {
        match self.peers.iter_mut().find(|peer| peer.worker() == worker) {
            Some(peer) => peer.lost(step, seen),
            None => WorkerError::Lost { worker, step, how: seen.to_owned() },
        }
    }

    /// Sends a frame to a peer; `false` when a signal came first.
    fn send(
        &mut self,
        index: usize,
        (step, kind): (u64, Kind),
        payload: &[u8],
        until: (u64, u32),
        interrupt: &AtomicBool,
    ) -> Result<bool, RunError> {
        let reading = self.clock.reading();
        let Some(peer) = self.peers.get_mut(index) else { return Ok(true) };
        let sent = peer.send(kind, step, payload, &reading, until, interrupt);
        // What it said before it left tells more than that it left.
        if let Err(WorkerError::Lost { worker, .. }) = &sent {
            let said = self.inbox.try_iter().filter(|arrival| arrival.worker == *worker);
            for arrival in said {
                if let Ok(frame) = arrival.frame
                    && frame.kind == Kind::Failure
                {
                    return Err(failure(*worker, step, &frame.payload).into());
                }
            }
        }
        Ok(sent?)
    }

    /// Compares the digests of all replicas. `None` when a signal came.
    fn replicas(
        &mut self,
        own: Digest,
        step: u64,
        until: (u64, u32),
        interrupt: &AtomicBool,
    ) -> Result<Option<Vec<ReplicaDigest>>, RunError> {
        let mut digests = BTreeMap::from([(0, own)]);
        let mut missing: BTreeSet<u32> = (1..self.num_workers).collect();
        while !missing.is_empty() {
            let how = "the digest of its replica was not there";
            let Some((worker, _, frame)) = self.next(step, &missing, how, until, interrupt)? else {
                return Ok(None);
            };
            let digest = <[u8; 32]>::try_from(frame.payload.as_slice()).ok();
            let digest = digest.filter(|_| frame.kind == Kind::Digest && missing.remove(&worker));
            let reason = || format!("it sent {:?} in the place of its digest", frame.kind);
            let Some(digest) = digest else {
                let disagrees = WorkerError::Disagrees { worker, step, reason: reason(), is_stale: false };
                return Err(disagrees.into());
            };
            digests.insert(worker, Digest::blake3(digest));
        }
        if let Some(worker) = odd_one(&digests) {
            let found = digests.get(&worker).copied().unwrap_or(own);
            let others =
                digests.iter().find(|(other, _)| **other != worker).map_or(own, |(_, digest)| *digest);
            let reason = format!("its replica is {found}, the others' {others}");
            return Err(WorkerError::Disagrees { worker, step, reason, is_stale: false }.into());
        }
        let all = digests.into_iter();
        Ok(Some(all.map(|(worker, digest)| ReplicaDigest { digest, worker: WorkerId(worker) }).collect()))
    }

    /// Ends the workers and waits for them; gives the most memory that one had.
    pub fn close(mut self) -> u64 {
        let peak_bytes = self.peak_bytes();
        self.dismiss();
        peak_bytes
    }

    /// All at once, so that they leave side by side.
    fn dismiss(&mut self) {
        self.peers.iter_mut().for_each(Peer::dismiss);
        self.peers.clear();
    }
}

impl Drop for Collective {
    fn drop(&mut self) {
        self.dismiss();
    }
}

fn failure(worker: u32, step: u64, payload: &[u8]) -> WorkerError {
    let said = serde_json::from_slice::<Failure>(payload);
    let Failure { is_data, message } =
        said.unwrap_or_else(|error| Failure { is_data: false, message: error.to_string() });
    WorkerError::Failed { worker, step, is_data, message }
}

/// Worker of the peer at an index.
fn index_of(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1)
}

fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, EngineError> {
    serde_json::to_vec(value).map_err(|error| EngineError::device("writing a command", &error))
}
