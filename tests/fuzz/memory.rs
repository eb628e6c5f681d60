//! How much memory a piece of work takes, by an allocator that counts.

use std::sync::{Mutex, MutexGuard, PoisonError};

use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// One target at a time: the counter is of the whole process.
static TARGET: Mutex<()> = Mutex::new(());

/// What any reading may take, however short the input: errors, first buffers.
const FIXED_BYTES: usize = 64 * 1024;

/// Held by a target from before it allocates anything until it has measured.
pub(crate) type Alone = MutexGuard<'static, ()>;

/// Waits until no other target is there.
pub(crate) fn alone() -> Alone {
    TARGET.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does some work on an input and asserts that it took at most `factor` bytes for
/// each byte of it.
#[track_caller]
pub(crate) fn bounded<T>(input: &[u8], factor: usize, work: impl FnOnce() -> T) -> T {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let result = work();
    let taken = MEMORY.peak_usage().saturating_sub(before);
    let allowed = FIXED_BYTES + factor * input.len();
    assert!(taken <= allowed, "{taken} bytes for an input of {}, allowed {allowed}", input.len());
    result
}

#[test]
fn what_takes_more_is_seen() {
    let _alone = alone();
    let input = [0; 1000];
    let within = bounded(&input, 100, || vec![1u8; 100_000].len());
    let beyond = std::panic::catch_unwind(|| bounded(&input, 10, || vec![1u8; 100_000].len()));
    assert_eq!(within, 100_000);
    assert!(beyond.is_err(), "a hundred times the input");
}
