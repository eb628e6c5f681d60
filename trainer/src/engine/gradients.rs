//! The sum of microbatch gradients in the contract's order, `microbatch_tree`:
//! `sum(a..b) = sum(a..m) + sum(m..b)` with `m - a` the largest power of two
//! below `b - a`.
//!
//! Leaves are merged as they arrive, as a binary counter does, so memory holds
//! at most one gradient for each bit of the number of microbatches.

/// One gradient for each trainable parameter, in path order.
pub type Gradients = Vec<Vec<f32>>;

/// Sums gradients in tree order.
#[derive(Debug, Clone, Default)]
pub struct GradientTree {
    /// Complete subtrees, each with its number of leaves, left to right; sizes
    /// are powers of two and fall strictly.
    subtrees: Vec<(u32, Gradients)>,
    num_leaves: u32,
}

impl GradientTree {
    /// Adds the next microbatch's gradients.
    pub fn push(&mut self, gradients: Gradients) {
        self.push_block(1, gradients);
    }

    /// Adds the sum over the next so many microbatches: a power of two of them,
    /// that begins at a multiple of itself, as [`BlockSums`] gives them.
    pub fn push_block(&mut self, num_microbatches: u32, gradients: Gradients) {
        self.num_leaves += num_microbatches;
        let mut subtree = (num_microbatches, gradients);
        while let Some((size, left)) = self.subtrees.pop_if(|(size, _)| *size == subtree.0) {
            subtree = (2 * size, sum(left, &subtree.1));
        }
        self.subtrees.push(subtree);
    }

    /// Puts together what is there, as [`Self::finish`] does, and keeps it.
    /// Nothing more may be added.
    pub fn reduce(&mut self) -> &[Vec<f32>] {
        let total = std::mem::take(&mut self.subtrees);
        let total = Self { num_leaves: self.num_leaves, subtrees: total }.finish();
        self.subtrees.push((self.num_leaves, total));
        self.subtrees.first().map_or(&[], |(_, total)| total.as_slice())
    }

    /// Microbatches so far.
    #[must_use]
    pub const fn num_leaves(&self) -> u32 {
        self.num_leaves
    }

    /// Complete subtrees of so many leaves, largest first.
    #[must_use]
    pub fn sizes(num_leaves: u32) -> Vec<u32> {
        (0..u32::BITS).rev().map(|bit| 1 << bit).filter(|size| num_leaves & size != 0).collect()
    }

    /// Complete subtrees so far, left to right, each with its number of leaves.
    #[must_use]
    pub fn subtrees(&self) -> &[(u32, Gradients)] {
        &self.subtrees
    }

    /// A tree that goes on from subtrees as [`Self::subtrees`] gives them.
    #[must_use]
    pub fn from_subtrees(subtrees: Vec<(u32, Gradients)>) -> Self {
        let num_leaves = subtrees.iter().map(|(size, _)| size).sum();
        Self { subtrees, num_leaves }
    }

    /// The sum; empty where nothing was added.
    #[must_use]
    pub fn finish(mut self) -> Gradients {
        let mut total = self.subtrees.pop().map(|(_, gradients)| gradients).unwrap_or_default();
        while let Some((_, left)) = self.subtrees.pop() {
            total = sum(left, &total);
        }
        total
    }
}

/// The sum over a block: microbatches in a row, a power of two of them, that
/// begin at a multiple of their number.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// Its first microbatch.
    pub first: u32,
    /// One for each trainable parameter.
    pub gradients: Gradients,
    /// Microbatches.
    pub num_microbatches: u32,
}

/// Sums gradients of some neighbouring microbatches of an update into the
/// fewest blocks. Each block is a subtree of the contract's tree, whatever lies
/// on either side of it.
#[derive(Debug, Clone, Default)]
pub struct BlockSums {
    blocks: Vec<Block>,
}

impl BlockSums {
    /// Adds the gradients of a microbatch, the one behind those before.
    pub fn push(&mut self, microbatch: u32, gradients: Gradients) {
        let mut block = Block { first: microbatch, gradients, num_microbatches: 1 };
        while let Some(left) = self.blocks.pop_if(|left| {
            left.num_microbatches == block.num_microbatches
                && left.first.is_multiple_of(2 * left.num_microbatches)
        }) {
            block = Block {
                first: left.first,
                gradients: sum(left.gradients, &block.gradients),
                num_microbatches: 2 * left.num_microbatches,
            };
        }
        self.blocks.push(block);
    }

    /// The blocks, left to right.
    #[must_use]
    pub fn into_blocks(self) -> Vec<Block> {
        self.blocks
    }

    /// Sizes of the blocks that microbatches from `first` to before `end` make.
    #[must_use]
    pub fn sizes(first: u32, end: u32) -> Vec<u32> {
        let mut sizes = Vec::new();
        let mut next = first;
        while next < end {
            let room = 1 << (end - next).ilog2();
            let size = if next == 0 { room } else { room.min(1 << next.trailing_zeros()) };
            sizes.push(size);
            next += size;
        }
        sizes
    }
}

fn sum(mut left: Gradients, right: &Gradients) -> Gradients {
    for (left, right) in left.iter_mut().zip(right) {
        for (left, right) in left.iter_mut().zip(right) {
            *left += right;
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, word for word.
    fn reference(values: &[f32]) -> f32 {
        match values {
            [] => 0.0,
            [value] => *value,
            _ => {
                let half = values.len().next_power_of_two() / 2;
                reference(&values[..half]) + reference(&values[half..])
            }
        }
    }

    #[test]
    fn streaming_gives_the_bits_of_the_definition() {
        for count in 1..40u16 {
            let values: Vec<f32> = (0..count).map(|i| 1.0 / (f32::from(i) + 0.7)).collect();
            let mut tree = GradientTree::default();
            for value in &values {
                tree.push(vec![vec![*value]]);
            }
            assert_eq!(tree.num_leaves(), u32::from(count));
            assert_eq!(tree.finish()[0][0].to_bits(), reference(&values).to_bits(), "{count} leaves");
        }
    }

    #[test]
    fn a_tree_that_was_taken_apart_goes_on_to_the_same_bits() {
        let values: Vec<f32> = (0..23u16).map(|i| 1.0 / (f32::from(i) + 0.7)).collect();
        for cut in 0..23usize {
            let mut tree = GradientTree::default();
            values[..cut].iter().for_each(|value| tree.push(vec![vec![*value]]));
            let sizes: Vec<u32> = tree.subtrees().iter().map(|(size, _)| *size).collect();
            assert_eq!(sizes, GradientTree::sizes(tree.num_leaves()));
            let mut tree = GradientTree::from_subtrees(tree.subtrees().to_vec());
            assert_eq!(tree.num_leaves() as usize, cut);
            values[cut..].iter().for_each(|value| tree.push(vec![vec![*value]]));
            assert_eq!(tree.finish()[0][0].to_bits(), reference(&values).to_bits(), "cut at {cut}");
        }
    }

    #[test]
    fn workers_blocks_give_the_bits_of_the_definition() {
        for (num_workers, per_worker) in [(1, 7), (2, 1), (2, 3), (3, 2), (4, 4), (5, 3), (7, 5)] {
            let count = num_workers * per_worker;
            let value = |i: u32| 1.0 / (f32::from(u16::try_from(i).expect("few")) + 0.7);
            let values: Vec<f32> = (0..count).map(value).collect();
            let mut tree = GradientTree::default();
            for worker in 0..num_workers {
                let (first, end) = (worker * per_worker, (worker + 1) * per_worker);
                let mut sums = BlockSums::default();
                (first..end).for_each(|i| sums.push(i, vec![vec![value(i)]]));
                let blocks = sums.into_blocks();
                let sizes: Vec<u32> = blocks.iter().map(|block| block.num_microbatches).collect();
                assert_eq!(sizes, BlockSums::sizes(first, end));
                for block in blocks {
                    assert_eq!(block.first, tree.num_leaves());
                    tree.push_block(block.num_microbatches, block.gradients);
                }
            }
            assert_eq!(tree.num_leaves(), count);
            let expected = reference(&values).to_bits();
            assert_eq!(tree.reduce()[0][0].to_bits(), expected, "{num_workers} x {per_worker}");
            assert_eq!(tree.num_leaves(), count);
            assert_eq!(tree.finish()[0][0].to_bits(), expected);
        }
    }

    #[test]
    fn the_order_is_visible_in_the_bits() {
        let differ = (3..40u16).filter(|count| {
            let values: Vec<f32> = (0..*count).map(|i| 1.0 / (f32::from(i) + 0.7)).collect();
            let sequential: f32 = values.iter().sum();
            reference(&values).to_bits() != sequential.to_bits()
        });
        assert!(differ.count() > 10, "the test above must be able to fail");
    }
}
