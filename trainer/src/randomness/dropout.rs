//! Dropout masks on the host: a function of seed, site, example position,
//! token and channel, so the same for any split of a batch
//! (`docs/FORMAT.md`, "Dropout").
//!
//! The factor of a kept element is `1 / (1 - p)` made in binary64 and rounded
//! to binary32; the multiplication is in binary32. No mask is made outside of
//! training.

use std::cell::Cell;

use schemas::contract::DropoutDraws;

use super::philox::{key, philox};

/// Purpose of the draws of a stream.
const STREAM_PURPOSE: &str = "dropout-stream";

/// The masks of a run.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    draws: DropoutDraws,
    key: [u32; 2],
    /// Words below it are dropped: round(p * 2^32), at most 2^32.
    threshold: u64,
    keep: f32,
    hidden_size: usize,
}

/// Site of the attention branch of a layer.
#[must_use]
pub const fn attention_site(layer: u32) -> u32 {
    2 * layer + 1
}

/// Site of the MLP branch of a layer.
#[must_use]
pub const fn mlp_site(layer: u32) -> u32 {
    2 * layer + 2
}

impl Dropout {
    /// Masks with a probability in `0 < p < 1`; `None` for 0, which drops
    /// nothing and multiplies nothing.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the threshold lies in 0 ..= 2^32 and the factor is meant in binary32"
    )]
    pub fn new(seed: u64, probability: f64, hidden_size: usize) -> Option<Self> {
        (probability > 0.0).then(|| Self {
            draws: DropoutDraws::Keyed,
            key: key("dropout", seed),
            threshold: (probability * 4_294_967_296.0).round() as u64,
            keep: (1.0 / (1.0 - probability)) as f32,
            hidden_size,
        })
    }

    /// The same masks as another scheme draws them.
    #[must_use]
    pub fn drawn_by(self, draws: DropoutDraws, seed: u64) -> Self {
        let purpose = if draws.is_keyed() { "dropout" } else { STREAM_PURPOSE };
        Self { draws, key: key(purpose, seed), ..self }
    }

    /// The same masks from the stream of one of several workers; worker 0's is
    /// the one that there is without others.
    #[must_use]
    pub fn of_worker(self, seed: u64, worker: u32) -> Self {
        if self.draws.is_keyed() || worker == 0 {
            return self;
        }
        Self { key: key(&format!("{STREAM_PURPOSE}:{worker}"), seed), ..self }
    }

    /// Key of the stream; `None` where masks are functions of coordinates.
    #[must_use]
    pub fn stream_key(&self) -> Option<[u32; 2]> {
        (!self.draws.is_keyed()).then_some(self.key)
    }

    /// Factors of one branch for examples at global positions, each with
    /// `num_tokens` tokens: `[positions.len(), num_tokens, hidden_size]`,
    /// row-major, each 0 or `1 / (1 - p)`. A stream draws from block `drawn` on
    /// and moves it; coordinates leave it alone.
    #[must_use]
    pub fn factors(&self, site: u32, positions: &[u64], num_tokens: usize, drawn: &Cell<u64>) -> Vec<f32> {
        match self.draws {
            DropoutDraws::Keyed => self.keyed_factors(site, positions, num_tokens),
            DropoutDraws::PhiloxStream => self.next_factors(positions.len() * num_tokens, drawn),
        }
    }

    /// The next factors of the stream, for so many tokens.
    #[allow(clippy::cast_possible_truncation, reason = "the words of a counter are meant")]
    fn next_factors(&self, num_tokens: usize, drawn: &Cell<u64>) -> Vec<f32> {
        let count = num_tokens * self.hidden_size;
        let first = drawn.get();
        let end = first + count.div_ceil(4) as u64;
        drawn.set(end);
        let mut factors = Vec::with_capacity(count + 4);
        for block in first..end {
            let words = philox(self.key, [block as u32, (block >> 32) as u32, 0, 0]);
            factors.extend(words.map(|word| self.factor(word)));
        }
        factors.truncate(count);
        factors
    }

    fn factor(&self, word: u32) -> f32 {
        if u64::from(word) < self.threshold { 0.0 } else { self.keep }
    }

    #[allow(clippy::cast_possible_truncation, reason = "the words of a counter are meant")]
    fn keyed_factors(&self, site: u32, positions: &[u64], num_tokens: usize) -> Vec<f32> {
        let per_example = num_tokens * self.hidden_size;
        let mut factors = Vec::with_capacity(positions.len() * per_example);
        for &position in positions {
            let (low, high) = (position as u32, (position >> 32) as u32);
            let end = factors.len() + per_example;
            for block in 0..per_example.div_ceil(4) as u32 {
                let words = philox(self.key, [block, site, low, high]);
                factors.extend(words.map(|word| self.factor(word)));
            }
            factors.truncate(end);
        }
        factors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_does_not_depend_on_the_split() {
        let dropout = Dropout::new(5, 0.25, 6).expect("a probability above 0");
        let drawn = Cell::new(0);
        let whole = dropout.factors(1, &[8, 9, 10, 11], 3, &drawn);
        let parts: Vec<f32> =
            [[8, 9], [10, 11]].iter().flat_map(|part| dropout.factors(1, part, 3, &drawn)).collect();
        assert_eq!(whole, parts);
        assert_ne!(whole, dropout.factors(2, &[8, 9, 10, 11], 3, &drawn));
        assert_eq!(drawn.get(), 0, "coordinates need no count");
    }

    #[test]
    #[allow(clippy::cast_precision_loss, reason = "a small count")]
    fn about_the_declared_share_is_dropped_and_the_mean_stays() {
        let dropout = Dropout::new(5, 0.25, 64).expect("a probability above 0");
        let factors = dropout.factors(1, &(0..16).collect::<Vec<_>>(), 128, &Cell::new(0));
        let count = factors.len() as f64;
        let dropped = factors.iter().filter(|factor| factor.abs() < f32::EPSILON).count() as f64;
        assert!((dropped / count - 0.25).abs() < 0.005, "dropped {}", dropped / count);
        let mean = factors.iter().map(|factor| f64::from(*factor)).sum::<f64>() / count;
        assert!((mean - 1.0).abs() < 0.01, "mean {mean}");
        assert!(Dropout::new(5, 0.0, 64).is_none());
    }

    #[test]
    fn every_worker_has_a_stream_of_its_own_and_the_first_has_the_only_one() {
        let dropout = Dropout::new(5, 0.25, 6).expect("a probability above 0");
        let stream = dropout.drawn_by(DropoutDraws::PhiloxStream, 5);
        let mut keys: Vec<_> = (0..64).map(|worker| stream.of_worker(5, worker).stream_key()).collect();
        assert_eq!(keys[0], stream.stream_key());
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 64);
        assert_eq!(dropout.of_worker(5, 3).key, dropout.key, "coordinates need no worker");
    }

    #[test]
    fn a_stream_goes_on_from_where_it_stopped_and_nowhere_else() {
        let dropout = Dropout::new(5, 0.25, 6).expect("a probability above 0");
        let stream = dropout.drawn_by(DropoutDraws::PhiloxStream, 5);
        assert_eq!(dropout.stream_key(), None);
        assert_ne!(stream.stream_key(), Some(dropout.key));
        let drawn = Cell::new(0);
        // Three tokens of six channels are eighteen words: five blocks.
        let first = stream.factors(1, &[8], 3, &drawn);
        let second = stream.factors(1, &[8], 3, &drawn);
        assert_eq!((first.len(), second.len(), drawn.get()), (18, 18, 10));
        assert_ne!(first, second, "the same site and example draw other words");
        assert_eq!(stream.factors(9, &[77], 3, &Cell::new(5)), second);
    }
}
