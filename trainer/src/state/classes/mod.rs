//! The components of training state, one file each. [`super::registry`] lists
//! them.

pub(super) mod accumulated_gradients;
pub(super) mod averages;
pub(super) mod compiler_plan;
pub(super) mod data_cursor;
pub(super) mod loss_scaler;
pub(super) mod model;
pub(super) mod optimizer;
pub(super) mod rng_cpu;
pub(super) mod rng_device;
pub(super) mod sampler;
pub(super) mod scheduler;
pub(super) mod selection_state;
pub(super) mod topology;
