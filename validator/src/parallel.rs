//! The same work on several things, on several threads.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Results of `work` in the order of `items`, on at most so many threads.
pub(crate) fn map<T: Sync, R: Send>(
    num_threads: NonZeroUsize,
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let num_threads = num_threads.get().min(items.len());
    if num_threads < 2 {
        return items.iter().map(work).collect();
    }
    // Whoever is free takes the next one: they may differ in size.
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            match items.get(place) {
                Some(item) => done.push((place, work(item))),
                None => return done,
            }
        }
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..num_threads).map(|_| scope.spawn(take)).collect();
        let mut done = take();
        for other in others {
            match other.join() {
                Ok(further) => done.extend(further),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_unstable_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_their_items() {
        for threads in 1..6 {
            let threads = NonZeroUsize::new(threads).expect("from 1 on");
            for num_items in [0, 1, 2, 100] {
                let items: Vec<u64> = (0..num_items).collect();
                let expected: Vec<u64> = items.iter().map(|item| item * item).collect();
                assert_eq!(map(threads, &items, |item| item * item), expected);
            }
        }
    }
}
