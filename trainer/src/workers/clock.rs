//! Time as this process lived through it: what passes while it is stopped
//! (`SIGSTOP`, a suspended machine) does not count, so that workers are not
//! called late for time in which nobody could have listened to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pause between two ticks.
const TICK: Duration = Duration::from_millis(10);
/// The most that one tick counts, though more passed: a busy machine may let a
/// thread wait for this long, and a process that stood still counts no more.
const MAX_TICK: Duration = Duration::from_millis(200);

/// Milliseconds since it was started. Written by its own thread only.
#[derive(Debug)]
pub(super) struct Clock {
    is_stopping: Arc<AtomicBool>,
    now_ms: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// Reads a clock from another thread.
#[derive(Debug, Clone)]
pub(super) struct Reading(Arc<AtomicU64>);

impl Reading {
    /// Milliseconds since the clock was started.
    pub(super) fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clock {
    /// Starts to count.
    ///
    /// # Errors
    /// When no thread can be had: then nobody could be called late.
    pub(super) fn start() -> std::io::Result<Self> {
        let (is_stopping, now_ms) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stop, now) = (Arc::clone(&is_stopping), Arc::clone(&now_ms));
        let count = move || {
            let mut counted = Duration::ZERO;
            let mut last = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(TICK);
                let passed = last.elapsed();
                last += passed;
                counted += passed.min(MAX_TICK);
                now.store(u64::try_from(counted.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        };
        let thread = std::thread::Builder::new().name("clock".to_owned()).spawn(count)?;
        Ok(Self { is_stopping, now_ms, thread: Some(thread) })
    }

    /// When so many milliseconds from now will be over. The hand may be behind
    /// by a tick, and nobody is called late before the time.
    pub(super) fn deadline_ms(&self, timeout_ms: u32) -> u64 {
        Self::after_ms(self.now_ms(), timeout_ms)
    }

    /// When so many milliseconds behind a reading will be over.
    pub(super) fn after_ms(reading_ms: u64, timeout_ms: u32) -> u64 {
        let lag_ms = u64::try_from(MAX_TICK.as_millis()).unwrap_or(u64::MAX);
        reading_ms.saturating_add(u64::from(timeout_ms)).saturating_add(lag_ms)
    }

    /// For another thread.
    pub(super) fn reading(&self) -> Reading {
        Reading(Arc::clone(&self.now_ms))
    }

    /// Milliseconds since it was started.
    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panic would have been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_while_the_process_runs() {
        let clock = Clock::start().expect("a thread");
        let started = Instant::now();
        while clock.now_ms() < 30 {
            assert!(started.elapsed() < Duration::from_secs(20), "it stands still");
            std::thread::sleep(TICK);
        }
        let reading = clock.reading();
        assert!(u128::from(reading.now_ms()) <= started.elapsed().as_millis() + 1);
    }
}
