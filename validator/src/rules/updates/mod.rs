//! `GL4xx`: rates, decay, clipping, numbers, the policy card, initial state.

mod clip_coefficient;
mod credit_rule;
mod finite_numbers;
mod frozen_parameters;
mod initial_optimizer;
mod initial_parameters;
mod learning_rate;
mod loss_scaler;
pub(crate) mod model_files;
mod model_terms;
mod parameter_manifest;
mod policy_card;
mod policy_card_edition;
mod rate_terms;
mod saved_norms;
mod second_moments;
pub(crate) mod tensors;
mod update_groups;
mod warm_start;

use crate::rule::Rule;

/// Rules of this group in the order of their codes.
pub(crate) static RULES: &[&dyn Rule] = &[
    &learning_rate::LearningRate,
    &update_groups::UpdateGroups,
    &clip_coefficient::ClipCoefficient,
    &finite_numbers::FiniteNumbers,
    &loss_scaler::LossScalerRule,
    &policy_card::PolicyCardRule,
    &parameter_manifest::ParameterManifestRule,
    &initial_parameters::InitialParameters,
    &frozen_parameters::FrozenParameters,
    &initial_optimizer::InitialOptimizer,
    &credit_rule::CreditRuleCheck,
    &policy_card_edition::PolicyCardEdition,
    &rate_terms::RateTerms,
    &model_terms::ModelTerms,
    &second_moments::SecondMoments,
    &saved_norms::SavedNorms,
    &warm_start::WarmStartRule,
];
