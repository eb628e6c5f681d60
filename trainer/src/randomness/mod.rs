//! Randomness as a function of (seed, purpose, coordinates).
//!
//! No generator state exists anywhere in the trainer: a draw depends only on
//! the contract's seed, a purpose and the coordinates of what is drawn, never
//! on what was drawn before or on how a batch was split. That is why the state
//! classes `rng_cpu` and `rng_device` are not applicable.

pub mod dropout;
pub mod init;
pub mod philox;
