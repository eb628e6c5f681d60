//! Trials of crashes: something happens to a trainer, and what it had
//! acknowledged has to be there, no torn checkpoint may be resumed from or
//! accepted, and the run has to end at the bits of one that nothing happened to.
//!
//! An acknowledgement is what can be seen from outside: a signed head in the
//! head file that was followed by another (the writer flushes one before it
//! writes the next), or any where the process stands behind the flush; and every
//! entry below that head. Entries are compared byte by byte where the process
//! stood still before, and through the heads that the final audit verifies.

pub mod baseline;
pub mod disk;
pub mod failing;
pub mod faults;
pub mod losses;
pub mod points;
pub mod power;
pub mod process;
pub mod record;
pub mod signals;
pub mod table;
pub mod trial;
pub mod workers;

pub use baseline::Baseline;
pub use trial::{Kind, Outcome, Trial};

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A trial that was made.
#[derive(Debug)]
pub struct Made {
    /// How long it took.
    pub duration: Duration,
    /// What came of it.
    pub outcome: Outcome,
    /// What was tried.
    pub trial: Trial,
}

/// Makes trials on so many threads. `progress` hears of each as it ends.
///
/// # Panics
/// When a thread did.
pub fn make(
    baseline: &Baseline,
    trials: Vec<Trial>,
    num_threads: usize,
    progress: &(dyn Fn(&Made) + Sync),
) -> Vec<Made> {
    let left = Mutex::new(VecDeque::from(trials));
    let made = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..num_threads.max(1) {
            scope.spawn(|| {
                loop {
                    let next = left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(trial) = next else { return };
                    let started = Instant::now();
                    let outcome = trial.run(baseline);
                    let one = Made { duration: started.elapsed(), outcome, trial };
                    progress(&one);
                    made.lock().unwrap_or_else(PoisonError::into_inner).push(one);
                }
            });
        }
    });
    made.into_inner().unwrap_or_else(PoisonError::into_inner)
}
