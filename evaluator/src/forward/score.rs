//! Many windows, on many threads, with one result.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::decoder::{Decoder, Scratch};

/// What a decoder gives on a list of windows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// Windows.
    pub num_examples: u64,
    /// Target tokens.
    pub num_tokens: u64,
    /// Sum of the negative log likelihood in nats.
    pub total_nats: f64,
}

impl Score {
    /// `total_nats / (num_tokens * ln 2)`; NaN where there is no token.
    #[must_use]
    pub fn bits_per_byte(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "token counts stay far below 2^53")]
        let num_tokens = self.num_tokens as f64;
        self.total_nats / (num_tokens * std::f64::consts::LN_2)
    }
}

/// Scores windows. Each window's sum is kept at its own place and the sums are
/// added in the order of the windows, so the result has the same bits on any
/// number of threads. `progress` is called with the target tokens done so far.
pub fn score(
    decoder: &Decoder,
    windows: &[&[u8]],
    num_threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Score {
    let next = AtomicUsize::new(0);
    let sums = Mutex::new((vec![0.0; windows.len()], 0u64));
    let work = || {
        let mut scratch = Scratch::default();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(window) = windows.get(index) else { break };
            let nats = decoder.nats(window, &mut scratch);
            let done = {
                // A thread that panicked left a whole value or none.
                let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
                sums.0[index] = nats;
                sums.1 += num_targets(window);
                sums.1
            };
            progress(done);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..num_threads.clamp(1, windows.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let (sums, num_tokens) = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    Score { num_examples: windows.len() as u64, num_tokens, total_nats: sums.iter().sum() }
}

fn num_targets(window: &[u8]) -> u64 {
    (window.len() as u64).saturating_sub(1)
}
