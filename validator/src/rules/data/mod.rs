//! `GL3xx`: batch arithmetic, data order, inputs, multiplicity, the lease.

mod batch_arithmetic;
mod data_lease;
mod draw_ids;
mod draw_inputs;
mod draw_positions;
mod example_tables;
mod multiplicity;
mod split_overlap;
mod token_counts;

use crate::rule::Rule;

/// Rules of this group in the order of their codes.
pub(crate) static RULES: &[&dyn Rule] = &[
    &batch_arithmetic::BatchArithmetic,
    &draw_positions::DrawPositions,
    &draw_ids::DrawIds,
    &draw_inputs::DrawInputs,
    &token_counts::TokenCounts,
    &multiplicity::Multiplicity,
    &example_tables::ExampleTables,
    &data_lease::DataLeaseRule,
    &split_overlap::SplitOverlap,
];
