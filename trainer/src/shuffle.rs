//! Data order `shuffle_buffer/1`: the examples of an epoch in table order
//! through a buffer, as `docs/FORMAT.md` ("Shuffle buffer") specifies it.
//!
//! Unlike a keyed permutation it holds state: what is in the buffer depends on
//! everything that was drawn. It is saved with the class `sampler`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::randomness::philox::{key, philox};

/// What a buffer has come to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShuffleState {
    /// Examples in the buffer, by place.
    pub buffer: Vec<u64>,
    /// Examples drawn over the run, which is also the number of random draws.
    pub drawn: u64,
    /// Epoch of the last draw.
    pub epoch: u64,
    /// Next example of the table that enters the buffer.
    pub next: u64,
}

/// The order of one stream, drawn one example at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShuffleBuffer {
    key: [u32; 2],
    num_examples: u64,
    size: u64,
    state: ShuffleState,
}

impl ShuffleBuffer {
    /// Before the first draw, over `num_examples` (at least 1) examples.
    #[must_use]
    pub fn new(stream: &str, seed: u64, size: u32, num_examples: u64) -> Self {
        let key = key(&format!("order:{stream}"), seed);
        Self { key, num_examples, size: u64::from(size.max(1)), state: ShuffleState::default() }
    }

    /// Key of the draws.
    #[must_use]
    pub const fn key(&self) -> [u32; 2] {
        self.key
    }

    /// What it has come to.
    #[must_use]
    pub const fn state(&self) -> &ShuffleState {
        &self.state
    }

    /// Draws by another seed from here on; what is in the buffer stays.
    pub fn rekey(&mut self, stream: &str, seed: u64) {
        self.key = key(&format!("order:{stream}"), seed);
    }

    /// Draws the next example.
    #[allow(clippy::cast_possible_truncation, reason = "words of a counter, and a place below the length")]
    pub fn draw(&mut self) -> u64 {
        let state = &mut self.state;
        if state.buffer.is_empty() {
            state.epoch += u64::from(state.drawn > 0);
            state.next = self.size.min(self.num_examples);
            state.buffer.extend(0..state.next);
        }
        let words = philox(self.key, [state.drawn as u32, (state.drawn >> 32) as u32, 0, 0]);
        let random = u128::from(words[0]) | (u128::from(words[1]) << 32);
        let place = ((random * state.buffer.len() as u128) >> 64) as usize;
        let example = if state.next < self.num_examples {
            state.next += 1;
            std::mem::replace(&mut state.buffer[place], state.next - 1)
        } else {
            state.buffer.swap_remove(place)
        };
        state.drawn += 1;
        example
    }

    /// Goes on from a saved state. Nothing changes when it is refused.
    ///
    /// # Errors
    /// In words, when no run over these examples could have come to it.
    pub fn restore(&mut self, state: ShuffleState) -> Result<(), String> {
        let within = match state.drawn {
            0 => 0,
            drawn => drawn - (drawn - 1) / self.num_examples * self.num_examples,
        };
        let capacity = self.size.min(self.num_examples);
        let (epoch, next, length) = match state.drawn {
            0 => (0, 0, 0),
            drawn => (
                (drawn - 1) / self.num_examples,
                self.num_examples.min(capacity + within),
                capacity.min(self.num_examples - within),
            ),
        };
        let found = (state.epoch, state.next, state.buffer.len() as u64);
        if found != (epoch, next, length) {
            return Err(format!(
                "after {} draws of {} examples it is in epoch {}, next {}, with {} in the buffer; expected \
                 {epoch}, {next}, {length}",
                state.drawn, self.num_examples, state.epoch, state.next, found.2
            ));
        }
        let distinct: BTreeSet<u64> =
            state.buffer.iter().copied().filter(|example| *example < next).collect();
        if distinct.len() as u64 != length {
            return Err(format!("the buffer does not hold {length} different examples below {next}"));
        }
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_has_every_example_once_and_the_buffer_bounds_how_early() {
        for (num_examples, size) in [(1, 2), (5, 2), (20, 4), (20, 100), (37, 8)] {
            let mut buffer = ShuffleBuffer::new("train", 7, size, num_examples);
            let mut epochs = Vec::new();
            for _ in 0..3 {
                let order: Vec<u64> = (0..num_examples).map(|_| buffer.draw()).collect();
                for (position, example) in (0u64..).zip(&order) {
                    assert!(*example < position + u64::from(size), "{order:?}");
                }
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..num_examples).collect::<Vec<_>>());
                epochs.push(order);
            }
            assert_eq!(buffer.state().epoch, 2);
            if num_examples > 10 {
                assert_ne!(epochs[0], epochs[1]);
                assert_ne!(epochs[0], (0..num_examples).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn every_state_comes_back_and_others_are_refused() {
        let fresh = ShuffleBuffer::new("train", 7, 4, 9);
        let mut whole = fresh.clone();
        for drawn in 0..30 {
            let state = whole.state().clone();
            let mut resumed = fresh.clone();
            resumed.restore(state.clone()).expect("a state of the order");
            assert_eq!(resumed, whole);
            assert_eq!(resumed.draw(), whole.draw(), "after {drawn}");
            for change in [
                |state: &mut ShuffleState| state.next += 1,
                |state: &mut ShuffleState| state.epoch += 1,
                |state: &mut ShuffleState| state.buffer.push(0),
                |state: &mut ShuffleState| match state.buffer.first_mut() {
                    Some(first) => *first = 9,
                    None => state.drawn += 1,
                },
            ] {
                let mut other = state.clone();
                change(&mut other);
                fresh.clone().restore(other).expect_err("no such state");
            }
        }
    }
}
