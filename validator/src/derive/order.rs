//! Data order: position to example by a keyed permutation with random access
//! (`docs/FORMAT.md`, "Data order").
//!
//! Eight Feistel rounds make a permutation of a power of four; cycle walking
//! (Black and Rogaway, CT-RSA 2002) restricts it to the number of examples.

use std::cell::RefCell;
use std::ops::Range;

use schemas::contract::{Contract, OrderPolicy};
use sha2::{Digest as _, Sha512};

use super::shuffle;

/// Name of the stream that updates are drawn from.
pub const UPDATE_STREAM: &str = "train";

/// The permutation of one epoch.
#[derive(Debug, Clone)]
pub struct EpochOrder {
    half_bits: u32,
    /// The order itself, where it is a shuffle buffer's.
    listed: Option<Vec<u64>>,
    num_examples: u64,
    round_keys: [u64; 8],
}

impl EpochOrder {
    /// The order that a shuffle buffer of `size` draws in `epoch`.
    #[must_use]
    pub fn shuffled(stream: &str, seed: u64, size: u32, epoch: u64, num_examples: u64) -> Option<Self> {
        let key = shuffle::key(stream, seed);
        let (listed, _) = shuffle::draw_epoch(key, size, num_examples, epoch, num_examples)?;
        (num_examples > 0).then_some(Self {
            half_bits: 1,
            listed: Some(listed),
            num_examples,
            round_keys: [0; 8],
        })
    }

    /// The order of `stream` in `epoch`; `None` when there are no examples.
    #[must_use]
    pub fn new(stream: &str, seed: u64, epoch: u64, num_examples: u64) -> Option<Self> {
        if num_examples == 0 {
            return None;
        }
        let mut hasher = Sha512::new();
        hasher.update(b"governed-ledger order/1\0");
        hasher.update(stream.as_bytes());
        hasher.update([0]);
        hasher.update(seed.to_le_bytes());
        hasher.update(epoch.to_le_bytes());
        let digest = hasher.finalize();
        let mut round_keys = [0u64; 8];
        for (key, bytes) in round_keys.iter_mut().zip(digest.chunks_exact(8)) {
            *key = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        let mut half_bits = 1;
        while half_bits < 32 && 1u64 << (2 * half_bits) < num_examples {
            half_bits += 1;
        }
        Some(Self { half_bits, listed: None, num_examples, round_keys })
    }

    /// The example at `position`, which is below the number of examples.
    #[must_use]
    pub fn example(&self, position: u64) -> u64 {
        if let Some(listed) = &self.listed {
            let at = usize::try_from(position).ok().and_then(|at| listed.get(at));
            return at.copied().unwrap_or(0);
        }
        let mut value = self.pass(position);
        while value >= self.num_examples {
            value = self.pass(value);
        }
        value
    }

    /// The examples at `positions`, each of which is below the number of
    /// examples. Rounds wait for each other, and those of several positions do not.
    #[must_use]
    pub fn examples(&self, positions: [u64; LANES]) -> [u64; LANES] {
        if self.listed.is_some() {
            return positions.map(|position| self.example(position));
        }
        let mut values = self.passes(positions);
        for value in &mut values {
            while *value >= self.num_examples {
                *value = self.pass(*value);
            }
        }
        values
    }

    fn pass(&self, value: u64) -> u64 {
        let [value] = self.passes([value]);
        value
    }

    #[inline]
    fn passes<const N: usize>(&self, values: [u64; N]) -> [u64; N] {
        let mask = (1u64 << self.half_bits) - 1;
        let mut halves = values.map(|value| (value >> self.half_bits, value & mask));
        for key in self.round_keys {
            for (left, right) in &mut halves {
                (*left, *right) = (*right, *left ^ (mix(right.wrapping_add(key)) & mask));
            }
        }
        halves.map(|(left, right)| left << self.half_bits | right)
    }
}

/// Positions whose examples are computed together.
pub const LANES: usize = 4;

/// Most positions of which the examples are remembered: more than an update's.
const MAX_REMEMBERED: u64 = 1 << 12;

/// The examples that were computed last on this thread. Two rules ask for those
/// of one update, one behind the other; what they get is a function of what they
/// ask for, so that neither can be misled by the other.
#[derive(Default)]
struct Recent {
    buffer: Option<u32>,
    examples: Vec<u64>,
    num_examples: u64,
    positions: Range<u64>,
    seed: u64,
    stream: String,
}

thread_local! {
    static RECENT: RefCell<Recent> = RefCell::default();
}

impl Recent {
    fn remember(&mut self, order: &Order, positions: Range<u64>) {
        self.buffer = order.buffer;
        self.num_examples = order.num_examples;
        self.positions = positions;
        self.seed = order.seed;
        self.stream.clone_from(&order.stream);
    }
}

/// The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
fn mix(mut z: u64) -> u64 {
    z ^= z >> 30;
    z = z.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^= z >> 27;
    z = z.wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// The order of all epochs of a stream; remembers the epoch in use.
#[derive(Debug, Clone)]
pub struct Order {
    /// Size of the shuffle buffer, where the contract has one.
    buffer: Option<u32>,
    current: Option<(u64, EpochOrder)>,
    num_examples: u64,
    seed: u64,
    stream: String,
}

impl Order {
    /// The order of `stream` over `num_examples` examples.
    #[must_use]
    pub fn new(stream: &str, seed: u64, num_examples: u64) -> Self {
        Self { buffer: None, current: None, num_examples, seed, stream: stream.to_owned() }
    }

    /// The order of the contract's updates.
    #[must_use]
    pub fn of(contract: &Contract, num_examples: u64) -> Self {
        let order = Self::new(UPDATE_STREAM, contract.seeds.data_order.0, num_examples);
        match contract.order {
            OrderPolicy::KeyedPermutation => order,
            OrderPolicy::ShuffleBuffer { size } => Self { buffer: Some(size), ..order },
        }
    }

    /// The example at a position of an epoch; `None` when the position is not
    /// within the epoch.
    pub fn example(&mut self, epoch: u64, position: u64) -> Option<u64> {
        if position >= self.num_examples {
            return None;
        }
        self.epoch(epoch).map(|order| order.example(position))
    }

    /// Calls `visit` with the example at each of the global positions, in order;
    /// `None` when there are no examples.
    pub fn for_each(&mut self, positions: Range<u64>, mut visit: impl FnMut(u64)) -> Option<()> {
        let count = positions.end.saturating_sub(positions.start);
        if !(1..=MAX_REMEMBERED).contains(&count) {
            return self.compute(positions, visit);
        }
        let mut recent = RECENT.take();
        let is_it = recent.positions == positions
            && (recent.seed, recent.num_examples, recent.buffer)
                == (self.seed, self.num_examples, self.buffer)
            && recent.stream == self.stream;
        let found = if is_it {
            Some(())
        } else {
            recent.examples.clear();
            let found = self.compute(positions.clone(), |example| recent.examples.push(example));
            recent.remember(self, if found.is_some() { positions } else { 0..0 });
            found
        };
        recent.examples.iter().for_each(|example| visit(*example));
        RECENT.set(recent);
        found
    }

    fn compute(&mut self, positions: Range<u64>, mut visit: impl FnMut(u64)) -> Option<()> {
        let mut at = positions.start;
        while at < positions.end {
            let epoch = at.checked_div(self.num_examples)?;
            let first = at % self.num_examples;
            let count = (self.num_examples - first).min(positions.end - at);
            let mut lanes = first..first + count;
            // Positions behind the last one repeat it, and are not visited.
            let order = self.epoch(epoch)?;
            while !lanes.is_empty() {
                let last = lanes.end - 1;
                let start = lanes.start;
                let examples = order.examples(std::array::from_fn(|lane| (start + lane as u64).min(last)));
                let num_visited = (lanes.end - start).min(LANES as u64);
                lanes.start += num_visited;
                examples.iter().zip(0..num_visited).for_each(|(example, _)| visit(*example));
            }
            at += count;
        }
        Some(())
    }

    fn epoch(&mut self, epoch: u64) -> Option<&EpochOrder> {
        if self.current.as_ref().is_none_or(|(current, _)| *current != epoch) {
            let (stream, seed, num_examples) = (&self.stream, self.seed, self.num_examples);
            let order = match self.buffer {
                None => EpochOrder::new(stream, seed, epoch, num_examples)?,
                Some(size) => EpochOrder::shuffled(stream, seed, size, epoch, num_examples)?,
            };
            self.current = Some((epoch, order));
        }
        self.current.as_ref().map(|(_, order)| order)
    }

    /// The example at a global position; `None` when there are no examples.
    pub fn global(&mut self, position: u64) -> Option<u64> {
        let epoch = position.checked_div(self.num_examples)?;
        self.example(epoch, position % self.num_examples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed with Python's `hashlib` from the text of the format page.
    #[test]
    fn vectors_of_the_format_page() {
        let order = |seed, epoch, num_examples: u64| {
            let order = EpochOrder::new("train", seed, epoch, num_examples).expect("not empty");
            (0..num_examples.min(12)).map(|p| order.example(p)).collect::<Vec<_>>()
        };
        assert_eq!(order(1, 0, 10), [1, 8, 3, 5, 4, 2, 7, 9, 0, 6]);
        assert_eq!(order(1, 1, 10), [4, 5, 9, 2, 6, 1, 0, 7, 8, 3]);
        assert_eq!(order(u64::MAX, 3, 1000), [409, 828, 127, 39, 496, 371, 310, 791, 621, 521, 298, 882]);
        assert_eq!(
            order(5, 0, (1 << 40) + 3),
            [
                828_934_927_036,
                181_316_798_102,
                725_979_722_329,
                38_041_746_393,
                357_403_559_587,
                333_208_652_857,
                1_048_775_486_577,
                439_844_455_574,
                967_942_072_376,
                176_641_231_047,
                578_024_912_744,
                720_198_078_918
            ]
        );
    }

    #[test]
    fn every_size_gives_a_permutation() {
        for num_examples in 1..70u64 {
            let order = EpochOrder::new("train", 9, 2, num_examples).expect("not empty");
            let mut seen: Vec<u64> = (0..num_examples).map(|position| order.example(position)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..num_examples).collect::<Vec<_>>());
        }
    }

    #[test]
    fn ranges_visit_what_single_positions_give() {
        for num_examples in [1, 2, 3, 10, 13, 64] {
            for buffer in [None, Some(3)] {
                let mut order = Order { buffer, ..Order::new("train", 7, num_examples) };
                for (first, count) in [(0, 0), (0, 1), (5, 3), (0, 40), (9, 8), (63, 66), (1 << 40, 9)] {
                    let mut visited = Vec::new();
                    order.for_each(first..first + count, |example| visited.push(example)).expect("examples");
                    let expected: Vec<u64> =
                        (first..first + count).filter_map(|at| order.global(at)).collect();
                    assert_eq!(visited.len() as u64, count);
                    assert_eq!(visited, expected, "{count} from {first} of {num_examples}");
                }
            }
        }
        assert_eq!(Order::new("train", 7, 0).for_each(0..1, |_| panic!("there is nothing")), None);
        let listed = |buffer| {
            let mut order = Order { buffer, ..Order::new("train", 7, 13) };
            (0..13).filter_map(|at| order.global(at)).collect::<Vec<_>>()
        };
        assert_ne!(listed(None), listed(Some(3)));
        let mut order = Order::new("train", 7, u64::MAX);
        let mut num_visited = 0;
        order.for_each(u64::MAX - 3..u64::MAX, |_| num_visited += 1).expect("examples");
        assert_eq!(num_visited, 3);
    }

    #[test]
    fn largest_and_empty_sizes_are_answered() {
        assert!(EpochOrder::new("train", 0, 0, 0).is_none());
        assert_eq!(Order::new("train", 0, 0).global(0), None);
        let order = EpochOrder::new("train", 0, 0, u64::MAX).expect("not empty");
        assert!(order.example(u64::MAX - 1) < u64::MAX);
        let mut order = Order::new("train", 1, 10);
        assert_eq!(order.global(13), order.example(1, 3));
        assert_eq!(order.example(0, 10), None);
    }
}
