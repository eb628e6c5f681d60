//! The order of a shuffle buffer, and what is in the buffer at a step
//! (`docs/FORMAT.md`, "Shuffle buffer").
//!
//! Each draw is a function of how many came before it, so an epoch can be
//! worked through without the ones before it.

use super::philox;

/// A shuffle buffer within one epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buffer {
    /// Examples by place.
    pub places: Vec<u64>,
    /// Next example of the table that enters.
    pub next: u64,
}

/// Key of the draws of a stream.
#[must_use]
pub fn key(stream: &str, seed: u64) -> [u32; 2] {
    philox::draw_key(&format!("order:{stream}"), seed)
}

/// Draws the first `count` examples of an epoch, and gives them with the buffer
/// that is left.
#[must_use]
pub fn draw_epoch(
    key: [u32; 2],
    size: u32,
    num_examples: u64,
    epoch: u64,
    count: u64,
) -> Option<(Vec<u64>, Buffer)> {
    let first_draw = epoch.checked_mul(num_examples)?;
    let filled = u64::from(size.max(1)).min(num_examples);
    let buffer = Buffer { places: (0..filled).collect(), next: filled };
    if count > num_examples {
        return None;
    }
    continue_epoch(key, num_examples, buffer, first_draw, count)
}

/// Draws `count` more examples of an epoch, whose buffer is as `first_draw`
/// draws over the run have left it.
#[must_use]
pub fn continue_epoch(
    key: [u32; 2],
    num_examples: u64,
    mut buffer: Buffer,
    first_draw: u64,
    count: u64,
) -> Option<(Vec<u64>, Buffer)> {
    let mut drawn = Vec::new();
    for draw in first_draw..first_draw.checked_add(count)? {
        let low = u32::try_from(draw & u64::from(u32::MAX)).ok()?;
        let words = philox::philox4x32_10([low, u32::try_from(draw >> 32).ok()?, 0, 0], key);
        let random = u128::from(words[1]) << 32 | u128::from(words[0]);
        let place = usize::try_from((random * buffer.places.len() as u128) >> 64).ok()?;
        let last = buffer.places.len().checked_sub(1)?;
        drawn.push(*buffer.places.get(place)?);
        if buffer.next < num_examples {
            *buffer.places.get_mut(place)? = buffer.next;
            buffer.next += 1;
        } else {
            buffer.places.swap(place, last);
            buffer.places.pop();
        }
    }
    Some((drawn, buffer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_a_permutation_that_the_buffer_bounds() {
        let key = key("train", 7);
        let epoch = |epoch| draw_epoch(key, 4, 30, epoch, 30).expect("small numbers");
        let (order, left) = epoch(0);
        assert_eq!(left, Buffer { places: Vec::new(), next: 30 });
        assert!((0u64..).zip(&order).all(|(position, example)| *example < position + 4));
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..30).collect::<Vec<_>>());
        assert_ne!(order, epoch(1).0);
        assert_eq!(draw_epoch(key, 4, 30, 0, 7).expect("small numbers").0, order[..7]);
        assert_eq!(draw_epoch(key, 4, 0, 0, 0), Some((Vec::new(), Buffer::default())));
        assert_eq!(draw_epoch(key, 4, 30, 0, 31), None);
    }
}
