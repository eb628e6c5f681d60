//! A campaign's ledger: what is compared, frozen and signed before any run, and
//! every run of it by its contract and a head of its ledger.
//!
//! This module freezes a preregistration, binds runs and lists them. It counts
//! nothing and decides nothing: which runs are missing, whether arms differ
//! only where that was declared, and what becomes of a claim is the validator's
//! business. There is no verb that takes a run out again.

mod bind;
mod create;
mod error;
mod frozen;
mod state;

pub use bind::{BindRequest, Bound, bind};
pub use create::{CampaignFreezeError, FrozenCampaign, freeze_campaign, preregistration_path};
pub use error::BindError;
pub use frozen::{CampaignContract, CampaignContractError};
pub use state::{BoundRun, CampaignReadError, CampaignState, read_campaign};
