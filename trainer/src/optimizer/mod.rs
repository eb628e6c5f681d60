//! The update: clipping (`clip`) and the update rule of the policy card
//! (`adamw`).
//!
//! State lives in host memory as binary32 and the arithmetic is plain Rust over
//! slices in one pass. On the CPU the parameters' buffers are changed in
//! place; on another device they make a round trip through the host at every
//! update, which is slower and gives the same bits.

pub mod adamw;
pub mod clip;
