//! Arms of a comparison: what each is called, where it may differ, how it is
//! tuned, shown to work and rescued.

use serde::{Deserialize, Serialize};

use super::ContractPointer;
use crate::digest::Digest;

/// One arm of the comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// BLAKE3 of the optimizer policy card of its confirmation runs; null: the
    /// tuning chooses it, and `tuning.pointers` reach into `/update/card`.
    pub card: Option<Digest>,
    /// Where its contracts may differ from those of the reference arm. Empty
    /// for the reference arm, and for no other.
    pub declared: Vec<DeclaredDifference>,
    /// Groups of its card that another family than `family` handles, in the
    /// card's order; empty: none.
    pub fallback_groups: Vec<String>,
    /// Family of update rule that it stands for, as in its card: `adamw`.
    pub family: String,
    /// The method that its results are credited to. Two arms of one label have
    /// cards that differ only in what tuning or rescue chose.
    pub label: String,
    /// Name, as in `membership.arm` of its runs' contracts.
    pub name: String,
    /// What shows that this arm works at all; null where no claim that it is
    /// worse or no different is made.
    pub positive_control: Option<PositiveControl>,
    /// What may be tried when its confirmation run goes wrong, in order; empty:
    /// nothing.
    pub rescue: Vec<RescueLevel>,
    /// What it is in the comparison.
    pub role: ArmRole,
    /// How its values are chosen before the confirmation runs.
    pub tuning: ArmTuning,
}

/// What an arm is in a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ArmRole {
    /// What the proposed method has to be measured against.
    Baseline,
    /// The method in question.
    Proposed,
    /// Neither: it separates one cause from another.
    Control,
}

/// A place where an arm's contracts may differ from the reference arm's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeclaredDifference {
    /// The place, with everything below it.
    pub pointer: ContractPointer,
    /// Why it has to differ for the comparison that is meant.
    pub why: String,
}

/// The search for an arm's values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ArmTuning {
    /// Runs of purpose `tuning` that it gets; 0: its values are taken as they
    /// are.
    pub num_trials: u32,
    /// Where its contracts may differ from trial to trial; empty only without
    /// trials.
    pub pointers: Vec<ContractPointer>,
    /// What one trial may cost, in train tokens; 0 only without trials.
    pub price_tokens: u64,
    /// What is searched, in words; empty only without trials.
    pub search_space: String,
    /// Why this arm gets other trials or another price than the reference arm;
    /// null exactly where both are equal.
    pub unequal_because: Option<String>,
}

/// What an arm has to reach before a result against it counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PositiveControl {
    /// Value of the campaign's metric that one of its runs of purpose
    /// `positive_control` has to reach.
    pub threshold: f64,
    /// Why that value shows that the arm was made and run properly, such as
    /// from where it is known.
    pub why: String,
}

/// One rung of a rescue ladder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RescueLevel {
    /// From 1, without a gap; `membership.rescue_level` of its runs.
    pub level: u32,
    /// Runs at this level over the whole campaign, at most; at least 1.
    pub max_runs: u32,
    /// Where its contracts may differ from the arm's run of level 0.
    pub pointers: Vec<ContractPointer>,
    /// When it may be tried.
    pub when: String,
}
