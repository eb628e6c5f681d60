//! Placeholder.
pub mod strict;
