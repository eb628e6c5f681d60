//! Anomalies of saved state: each is derived from the bytes, and compared with
//! what the run said of itself.

mod bf16_mantissas;
mod random_streams;
mod recorded_anomalies;
mod saves;
mod unchanged_state;
mod zero_moments;

pub(super) use bf16_mantissas::Bf16Mantissas;
pub(super) use random_streams::RandomStreams;
pub(super) use recorded_anomalies::RecordedAnomalies;
pub(super) use unchanged_state::UnchangedState;
pub(super) use zero_moments::ZeroMoments;
