//! Independent qualification of one candidate.
//!
//! This crate computes the numbers that a claim rests on with a forward pass
//! of its own, and opens the sealed set, once, after it has recorded that it
//! will. It depends on no tensor library and on nothing of the trainer. It
//! refuses to open the set for a candidate that was not handed off, and it
//! says nothing beyond the set that it measured on.

pub mod forward;
