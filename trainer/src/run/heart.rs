//! Heartbeats: a sign of life in the ledger while no other entry is made, such
//! as during a long evaluation.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ledger::recorder::{Record, Recorder};
use schemas::body::{Body, Halves, HeartbeatDet, HeartbeatObs};
use schemas::ids::{AttemptId, SegmentId};

use super::costs;

/// Longest silence before a heartbeat.
const SILENCE: Duration = Duration::from_secs(30);

/// What the loop tells the heart.
#[derive(Debug)]
struct Shared {
    /// Locked for moments by both threads; woken to stop.
    state: Mutex<State>,
    /// Last completed step.
    step: AtomicU64,
    /// Signalled when the heart is to stop.
    stop: Condvar,
}

#[derive(Debug)]
struct State {
    is_stopping: bool,
    last_entry: Instant,
    phase: &'static str,
}

/// A thread that writes heartbeats until it is stopped.
#[derive(Debug)]
pub struct Heart {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Heart {
    /// Starts to watch. Where no thread can be had there are no heartbeats,
    /// which nothing depends on.
    #[must_use]
    pub fn start(recorder: Recorder, attempt: (AttemptId, SegmentId), step: u64) -> Self {
        let state = State { is_stopping: false, last_entry: Instant::now(), phase: "start" };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), step: AtomicU64::new(step), stop: Condvar::new() });
        let watched = Arc::clone(&shared);
        let watch = move || watch(&watched, &recorder, attempt);
        let thread = std::thread::Builder::new().name("heart".to_owned()).spawn(watch).ok();
        Self { shared, thread }
    }

    fn with_state(&self, change: impl FnOnce(&mut State)) {
        // A panic of the other thread leaves the three fields whole.
        change(&mut self.shared.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// An entry was made.
    pub fn beat(&self) {
        self.with_state(|state| state.last_entry = Instant::now());
    }

    /// The process turned to something else.
    pub fn enter(&self, phase: &'static str) {
        self.with_state(|state| state.phase = phase);
    }

    /// A step was completed.
    pub fn step(&self, step: u64) {
        self.shared.step.store(step, Ordering::Relaxed);
    }

    /// Stops the thread and waits for it, so that no heartbeat follows the
    /// attempt's end.
    pub fn stop(&mut self) {
        self.with_state(|state| state.is_stopping = true);
        self.shared.stop.notify_all();
        if let Some(thread) = self.thread.take() {
            // Its panic would have been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.stop();
    }
}

fn watch(shared: &Shared, recorder: &Recorder, (attempt, segment): (AttemptId, SegmentId)) {
    let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    while !state.is_stopping {
        let silence = state.last_entry.elapsed();
        if silence >= SILENCE {
            state.last_entry = Instant::now();
            let det = HeartbeatDet { phase: state.phase.to_owned() };
            drop(state);
            let obs = HeartbeatObs { resident_bytes: costs::resident_bytes().unwrap_or(0) };
            let record = Record {
                attempt: Some(attempt),
                segment: Some(segment),
                step: Some(shared.step.load(Ordering::Relaxed)),
                ..Record::new(Body::Heartbeat(Box::new(Halves { det, obs })))
            };
            // A ledger that fails is met, and reported, by the loop itself.
            if recorder.append(record).is_err() {
                return;
            }
            state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let wait = shared.stop.wait_timeout(state, SILENCE - silence);
        state = wait.unwrap_or_else(PoisonError::into_inner).0;
    }
}
