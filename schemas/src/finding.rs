//! What the validator says.

use serde::{Deserialize, Serialize};

use crate::contract::FaultKind;
use crate::present::present;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; changes no verdict.
    Note,
    /// Suspicious; changes no verdict.
    Warning,
    /// The claim does not hold.
    Error,
}

/// What an error finding does to the verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// None: notes and warnings.
    None,
    /// Something could not be evaluated.
    NotEvaluated,
    /// The run is not over, or a part of its record is missing.
    Incomplete,
    /// A rule is broken.
    Rejected,
    /// Bytes are not what was committed to.
    Tampered,
}

/// One thing that a rule found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// What is there.
    pub actual: String,
    /// The fault family that explains what was found; left out where the rule
    /// cannot tell.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[cfg_attr(feature = "json-schema", schemars(with = "FaultKind"))]
    pub cause: Option<FaultKind>,
    /// Stable code of the rule: `GL101`.
    pub code: String,
    /// What it does to the verdict.
    pub effect: Effect,
    /// Index of the entry concerned; null where it is a file or the whole.
    pub entry: Option<u64>,
    /// What should be there.
    pub expected: String,
    /// File, row, or JSON pointer.
    pub location: String,
    /// One sentence.
    pub message: String,
    /// What to do.
    pub remedy: String,
    /// Name of the rule: `leaf-hash`.
    pub rule: String,
    /// How bad.
    pub severity: Severity,
}
