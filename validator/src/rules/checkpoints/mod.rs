//! `GL6xx`: when state is saved, in which stages, and whether it is all there.

mod accumulation_window;
mod anomalies;
mod averages;
mod captured_classes;
mod checkpoint_retention;
mod checkpoint_schedule;
mod checkpoint_stages;
mod checkpoint_tensors;
mod closure_evidence;
mod derived_state;
mod frozen_file;
mod kept_checkpoints;
mod loss_scale_trace;
pub(super) mod probes;
mod saves_in_flight;
mod saving_terms;
mod skipped_steps;
mod state_cadence;
mod state_digests;
mod state_inventory;
mod state_tree;
mod stream_positions;
mod tied_parameters;

use crate::rule::Rule;

/// Rules of this group in the order of their codes.
pub(crate) static RULES: &[&dyn Rule] = &[
    &checkpoint_schedule::CheckpointSchedule,
    &checkpoint_stages::CheckpointStages,
    &state_inventory::StateInventory,
    &captured_classes::CapturedClasses,
    &checkpoint_tensors::CheckpointTensors,
    &state_digests::StateDigests,
    &derived_state::DerivedState,
    &state_cadence::StateCadence,
    &checkpoint_retention::CheckpointRetention,
    &averages::AveragesRule,
    &saves_in_flight::SavesInFlight,
    &frozen_file::FrozenFileRule,
    &state_tree::StateTreeRule,
    &probes::probe_record::ProbeRecord,
    &probes::probe_reference::ProbeReference,
    &probes::resume_qualified::ResumeQualified,
    &probes::statistical_probe::StatisticalProbe,
    &loss_scale_trace::LossScaleTrace,
    &skipped_steps::SkippedSteps,
    &accumulation_window::AccumulationWindow,
    &stream_positions::StreamPositions,
    &anomalies::RecordedAnomalies,
    &anomalies::Bf16Mantissas,
    &anomalies::ZeroMoments,
    &anomalies::UnchangedState,
    &anomalies::RandomStreams,
    &tied_parameters::TiedParameters,
    &closure_evidence::ClosureEvidence,
    &probes::resume_terms::ResumeTerms,
    &saving_terms::SavingTerms,
    &kept_checkpoints::KeptCheckpoints,
];
