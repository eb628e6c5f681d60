//! `GL5xx`: evaluations, candidates, selection, target, handoff.

mod candidate_family;
mod candidate_retained;
mod candidates;
mod clock;
mod evaluation_content;
mod evaluation_model;
mod evaluation_schedule;
mod evaluation_terms;
mod evaluation_value;
mod evaluator_agreement;
mod handoff;
mod quality_target;
mod selection;
mod selection_split;

use crate::rule::Rule;

/// Rules of this group in the order of their codes.
pub(crate) static RULES: &[&dyn Rule] = &[
    &evaluation_schedule::EvaluationSchedule,
    &evaluation_content::EvaluationContent,
    &evaluation_value::EvaluationValue,
    &evaluation_model::EvaluationModel,
    &candidate_family::CandidateFamilyRule,
    &candidate_retained::CandidateRetained,
    &selection::Selection,
    &evaluator_agreement::EvaluatorAgreement,
    &selection_split::SelectionSplit,
    &quality_target::QualityTargetRule,
    &handoff::Handoff,
    &evaluation_terms::EvaluationTerms,
];
