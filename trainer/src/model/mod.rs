//! The model: which tensors it has (`manifest`), its operations (`ops`) and
//! the forward pass over them (`decoder`).
//!
//! Tensors are found by their Hugging Face names and kept in the layouts in
//! which Llama checkpoints store them (a linear weight is `[out, in]`), so the
//! model shard of a checkpoint *is* the candidate that other tools load.

pub mod decoder;
pub mod freeze;
pub mod manifest;
pub mod ops;
