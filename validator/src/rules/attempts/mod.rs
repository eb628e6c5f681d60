//! `GL2xx`: attempts, steps, recovery, stopping, budget, counters, costs.

mod attempt_resources;
mod attempt_sequence;
mod budget;
mod code_identity;
mod costs;
mod counters;
pub(super) mod doubt;
mod durability;
mod entry_header;
mod executed_plan;
mod execution_terms;
mod plausible_durations;
mod plausible_losses;
mod recovery_costs;
mod recovery_point;
mod replay_equality;
mod replica_digests;
mod resume_point;
mod run_frame;
mod run_limits;
mod segment;
mod step_sequence;
mod stopped_attempts;
mod stopping;
mod worker_shares;

use crate::rule::Rule;

/// Rules of this group in the order of their codes.
pub(crate) static RULES: &[&dyn Rule] = &[
    &run_frame::RunFrame,
    &attempt_sequence::AttemptSequence,
    &resume_point::ResumePointRule,
    &step_sequence::StepSequence,
    &replay_equality::ReplayEquality,
    &code_identity::CodeIdentity,
    &executed_plan::ExecutedPlanRule,
    &segment::Segment,
    &stopping::Stopping,
    &budget::BudgetRule,
    &counters::CountersRule,
    &costs::Costs,
    &entry_header::EntryHeader,
    &worker_shares::WorkerShares,
    &replica_digests::ReplicaDigests,
    &recovery_costs::RecoveryCosts,
    &recovery_point::RecoveryPoint,
    &durability::DurabilityRule,
    &plausible_durations::PlausibleDurations,
    &plausible_losses::PlausibleLosses,
    &attempt_resources::AttemptResources,
    &execution_terms::ExecutionTerms,
    &run_limits::RunLimits,
    &stopped_attempts::StoppedAttempts,
];
