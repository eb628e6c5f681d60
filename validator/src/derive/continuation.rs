//! The examples of a continuation that draws by another seed from a step on
//! (`docs/FORMAT.md`, "Statistical probes").

use std::fmt::Write as _;

use schemas::contract::{Contract, EquivalenceTest, OrderPolicy, VariedDraws};
use schemas::digest::Digest;
use sha2::{Digest as _, Sha256};

use super::order::{Order, UPDATE_STREAM};
use super::{batch, examples, shuffle};
use crate::frozen::ExampleTable;

/// SHA-256 over the lines `<step> <ids>\n` of the updates after `step`; `None`
/// where the contract has no such positions.
#[must_use]
pub fn ids(
    contract: &Contract,
    test: &EquivalenceTest,
    table: &ExampleTable,
    step: u64,
    seed: u64,
) -> Option<Digest> {
    let is_varied = test.varies.contains(&VariedDraws::DataOrder);
    let mut order = Continued::new(contract, table.num_examples(), is_varied.then_some((step, seed)))?;
    let mut pieces = examples::Pieces::default();
    let mut lines = String::new();
    for step in step.checked_add(1)?..=step.checked_add(test.num_steps)? {
        let first = batch::first_position(&contract.batch, step)?;
        let end = first.checked_add(u64::from(contract.batch.global_examples))?;
        let mut is_complete = true;
        let drawn = |visit: &mut dyn FnMut(u64)| is_complete = order.for_each(first, end, visit).is_some();
        let ids = examples::ids_digest(table, drawn, &mut pieces)?;
        if !is_complete {
            return None;
        }
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "{step} {}", Digest::blake3(ids));
    }
    Some(Digest::sha256(Sha256::digest(lines.as_bytes()).into()))
}

/// The order of a contract up to a step, and by a seed behind it.
enum Continued {
    /// Positions stand for themselves, so that only the seed changes.
    Keyed(Order),
    /// What is in the buffer at the step was drawn by the contract's seed.
    Shuffled {
        epoch: Option<(u64, u64, Vec<u64>)>,
        first: u64,
        keys: [[u32; 2]; 2],
        num_examples: u64,
        size: u32,
    },
}

impl Continued {
    fn new(contract: &Contract, num_examples: u64, varied: Option<(u64, u64)>) -> Option<Self> {
        let own = contract.seeds.data_order.0;
        let (step, seed) = varied.unwrap_or((0, own));
        match contract.order {
            OrderPolicy::KeyedPermutation => Some(Self::Keyed(Order::new(UPDATE_STREAM, seed, num_examples))),
            OrderPolicy::ShuffleBuffer { size } => Some(Self::Shuffled {
                epoch: None,
                first: step.checked_mul(u64::from(contract.batch.global_examples))?,
                keys: [own, seed].map(|seed| shuffle::key(UPDATE_STREAM, seed)),
                num_examples,
                size,
            }),
        }
    }

    fn for_each(&mut self, first: u64, end: u64, visit: &mut dyn FnMut(u64)) -> Option<()> {
        match self {
            Self::Keyed(order) => order.for_each(first..end, visit),
            Self::Shuffled { epoch: known, first: start, keys, num_examples, size } => {
                for position in first..end {
                    let epoch = position.checked_div(*num_examples)?;
                    if known.as_ref().is_none_or(|(of, _, _)| *of != epoch) {
                        let begin = epoch.checked_mul(*num_examples)?;
                        // Draws of this epoch that came before the step.
                        let before = start.saturating_sub(begin).min(*num_examples);
                        let (_, buffer) = shuffle::draw_epoch(keys[0], *size, *num_examples, epoch, before)?;
                        let from = begin.checked_add(before)?;
                        let (drawn, _) = shuffle::continue_epoch(
                            keys[1],
                            *num_examples,
                            buffer,
                            from,
                            *num_examples - before,
                        )?;
                        *known = Some((epoch, from, drawn));
                    }
                    let (_, from, drawn) = known.as_ref()?;
                    visit(*drawn.get(usize::try_from(position.checked_sub(*from)?).ok()?)?);
                }
                Some(())
            }
        }
    }
}
