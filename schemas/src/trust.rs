//! What an audit could have shown of each class of adversary, given the
//! evidence that it had: a member of the report.
//!
//! The classes themselves, with what each does and which rules see it, are the
//! validator's table (`validator::trust`); a report names them and says which
//! of them were within its reach.

use serde::{Deserialize, Serialize};

use crate::present::present;
use crate::report::HeadSource;

/// The least evidence that shows what an adversary did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ShownBy {
    /// The ledger and what lies beside it, all of it within the adversary's
    /// reach.
    Alone,
    /// A signed head that was kept out of the adversary's reach before the act.
    ExternalHead,
    /// Somebody who keeps every head of the run as it is signed, and compares
    /// what different readers hold.
    Witness,
    /// Nothing that an audit can read.
    NotAtAll,
}

/// Whether an audit would have shown it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// The evidence was enough.
    Shown,
    /// The head that it saw lay beside the ledger, where whoever changed the
    /// ledger could have changed it too.
    ShownUnlessHeadFileToo,
    /// The evidence was not enough.
    NotShown,
}

/// One way in which an adversary acts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WayInReach {
    /// What was missing; left out where nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[cfg_attr(feature = "json-schema", schemars(with = "String"))]
    pub lacks: Option<String>,
    /// Whether this audit would have shown it.
    pub reach: Reach,
    /// The least evidence that shows it.
    pub shown_by: ShownBy,
    /// Name of the way: `after-the-end`.
    pub way: String,
}

/// A class of adversaries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClassInReach {
    /// Name of the class: `tail-cut`.
    pub class: String,
    /// Its ways, each on its own: one class may be seen in one way and not in
    /// another.
    pub ways: Vec<WayInReach>,
}

/// What an audit could have shown, and what it had to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TrustScope {
    /// Every class of the validator's table.
    pub classes: Vec<ClassInReach>,
    /// Entries that the newest head of the head file covers that verified; 0
    /// where none did. What a kept head shows is what was done to these entries.
    pub head_size: u64,
    /// Where the head file lay; `database` where there was none.
    pub head_source: HeadSource,
    /// Whether the keys were compared with some that came another way.
    pub keys_compared: bool,
}
