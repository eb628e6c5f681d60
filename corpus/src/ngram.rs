//! The baseline: an interpolated byte 3-gram model with Witten-Bell weights.
//!
//! For a history h with c(h) occurrences followed by T(h) distinct bytes,
//! `p(w | h) = (c(h w) + T(h) * p(w | h')) / (c(h) + T(h))`, h' being h
//! without its first byte; the empty history falls back to 1/256, and a
//! history that never occurred to h' alone (Witten and Bell 1991; Chen and
//! Goodman 1999, section 2.2). Nothing is fitted but counts, so the score is a
//! function of train and val text alone. `ln` is that of the `libm` crate.
//!
//! Counts are taken within shards, never across them. The predicted bytes are
//! the targets of the val split's examples. Their histories reach back across
//! the borders of examples, where a model sees nothing: this favours the
//! baseline, so that beating it is not an artefact of windows.

use schemas::data::ExampleRecord;

/// Length of the longest history in bytes.
const HISTORY: usize = 2;

/// Counts of a train text.
pub struct Trigram {
    /// By `h` of two bytes and `w`: `h0 << 16 | h1 << 8 | w`.
    triples: Vec<u32>,
    /// By `h1 << 8 | w`.
    pairs: Vec<u32>,
    singles: Vec<u32>,
    /// Occurrences and distinct continuations of each two-byte history.
    after_two: Vec<(u64, u32)>,
    after_one: Vec<(u64, u32)>,
    after_none: (u64, u32),
    num_bytes: u64,
}

/// A score on some text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// Summed negative log2 likelihood over the number of target bytes.
    pub bits_per_byte: f64,
    /// Target bytes.
    pub num_tokens: u64,
    /// Sum of the negative log likelihood in nats.
    pub total_nats: f64,
}

fn totals(counts: &[u32]) -> Vec<(u64, u32)> {
    let (rows, _) = counts.as_chunks::<256>();
    rows.iter()
        .map(|row| {
            let total = row.iter().map(|&count| u64::from(count)).sum();
            let distinct = row.iter().map(|&count| u32::from(count > 0)).sum();
            (total, distinct)
        })
        .collect()
}

impl Trigram {
    /// Counts the shards of a train split.
    pub fn fit<'a>(shards: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut triples = vec![0u32; 1 << 24];
        let mut pairs = vec![0u32; 1 << 16];
        let mut singles = vec![0u32; 1 << 8];
        let mut num_bytes = 0;
        for shard in shards {
            num_bytes += shard.len() as u64;
            let mut key = 0usize;
            for (position, &byte) in shard.iter().enumerate() {
                key = (key << 8 | usize::from(byte)) & 0xff_ffff;
                // Saturating: a count beyond 2^32 would need a shard of its size.
                singles[key & 0xff] = singles[key & 0xff].saturating_add(1);
                if position >= 1 {
                    pairs[key & 0xffff] = pairs[key & 0xffff].saturating_add(1);
                }
                if position >= HISTORY {
                    triples[key] = triples[key].saturating_add(1);
                }
            }
        }
        let after_two = totals(&triples);
        let after_one = totals(&pairs);
        let after_none = totals(&singles).first().copied().unwrap_or((0, 0));
        Self { triples, pairs, singles, after_two, after_one, after_none, num_bytes }
    }

    /// Bytes that were counted.
    #[must_use]
    pub fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    /// Probability of `byte` after `history`, of which the last two bytes
    /// count. Positive for every byte; the 256 of them sum to 1.
    #[must_use]
    pub fn probability(&self, history: &[u8], byte: u8) -> f64 {
        let byte = usize::from(byte);
        let mut probability = interpolate(self.singles[byte], self.after_none, 1.0 / 256.0);
        if let [.., last] = history {
            let key = usize::from(*last);
            probability = interpolate(self.pairs[key << 8 | byte], self.after_one[key], probability);
        }
        if let [.., first, last] = history {
            let key = usize::from(*first) << 8 | usize::from(*last);
            probability = interpolate(self.triples[key << 8 | byte], self.after_two[key], probability);
        }
        probability
    }

    /// Scores the targets of the given records. `shard` gives the bytes of a
    /// shard by its index in the manifest.
    ///
    /// A record whose window is not within its shard gives `None`.
    pub fn score<'a>(
        &self,
        records: &[ExampleRecord],
        shard: impl Fn(u32) -> Option<&'a [u8]>,
    ) -> Option<Score> {
        let mut total_nats = 0.0;
        let mut num_tokens = 0u64;
        for record in records {
            let bytes = shard(record.shard)?;
            let first = usize::try_from(record.offset).ok()?.checked_add(1)?;
            let end = first.checked_add(record.num_targets as usize)?;
            let targets = bytes.get(first..end)?;
            for (index, &byte) in targets.iter().enumerate() {
                let history = &bytes[(first + index).saturating_sub(HISTORY)..first + index];
                total_nats -= libm::log(self.probability(history, byte));
            }
            num_tokens += u64::from(record.num_targets);
        }
        if num_tokens == 0 {
            return None;
        }
        #[allow(clippy::cast_precision_loss, reason = "token counts stay far below 2^53")]
        let bits_per_byte = total_nats / (num_tokens as f64 * std::f64::consts::LN_2);
        Some(Score { bits_per_byte, num_tokens, total_nats })
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts of bytes stay far below 2^53")]
fn interpolate(count: u32, (total, distinct): (u64, u32), lower: f64) -> f64 {
    if total == 0 {
        return lower;
    }
    let distinct = f64::from(distinct);
    (f64::from(count) + distinct * lower) / (total as f64 + distinct)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_after_seen_and_unseen_histories() {
        let model = Trigram::fit([&b"abracadabra"[..], &b"banana"[..]]);
        for history in [&b""[..], b"a", b"ab", b"zz", b"za", b"xan"] {
            let sum: f64 = (0..=255).map(|byte| model.probability(history, byte)).sum();
            assert!((sum - 1.0).abs() < 1e-12, "after {history:?} they sum to {sum}");
        }
    }

    #[test]
    fn a_hand_computed_case() {
        // Of "aab": singles a 2, b 1 (total 3, distinct 2); after "a": a, b.
        let model = Trigram::fit([&b"aab"[..]]);
        let a = (2.0 + 2.0 / 256.0) / 5.0;
        assert!((model.probability(b"", b'a') - a).abs() < 1e-15);
        let a_after_a = (1.0 + 2.0 * a) / 4.0;
        assert!((model.probability(b"a", b'a') - a_after_a).abs() < 1e-15);
        let b = (1.0 + 2.0 / 256.0) / 5.0;
        let b_after_a = (1.0 + 2.0 * b) / 4.0;
        // After "aa": b once, distinct 1.
        assert!((model.probability(b"aa", b'b') - (1.0 + b_after_a) / 2.0).abs() < 1e-15);
    }

    #[test]
    fn shards_are_not_joined_and_a_bad_record_scores_nothing() {
        let model = Trigram::fit([&b"x"[..], &b"y"[..]]);
        assert!((model.probability(b"x", b'y') - model.probability(b"q", b'y')).abs() < 1e-15);
        let record = ExampleRecord { id: [0; 32], num_targets: 9, offset: 0, shard: 0 };
        assert_eq!(model.score(&[record], |_| Some(&b"short"[..])), None);
        assert_eq!(model.score(&[], |_| None), None);
    }
}
