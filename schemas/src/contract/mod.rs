//! The contract: what a run is, frozen and signed before it starts.
//!
//! Canonical bytes are RFC 8785. In the file that a person writes, a
//! `digest` or `num_bytes` of a [`FileBinding`] may be null and any object may
//! hold a `$comment`; `ledger freeze` fills the former and drops the latter,
//! so that the frozen form is complete and says nothing that it does not bind.

mod authority;
mod equivalence;
mod execution;
mod external;
mod faults;
mod lineage;
mod model;
mod schedule;
mod stateful;

use serde::{Deserialize, Serialize};

pub use authority::*;
pub use equivalence::*;
pub use execution::*;
pub use external::*;
pub use faults::*;
pub use lineage::*;
pub use model::*;
pub use schedule::*;
pub use stateful::*;

use crate::digest::Digest;
use crate::entry::Extension;
use crate::present::present;
use crate::state::StateClassDeclaration;

/// A file that the contract names, by content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FileBinding {
    /// BLAKE3 of the bytes; null only before the freeze.
    pub digest: Option<Digest>,
    /// Size; null only before the freeze.
    pub num_bytes: Option<u64>,
    /// Relative to the contract's folder; no `..`, no leading `/`.
    pub path: String,
}

/// A training contract.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Contract {
    /// The model.
    pub architecture: Architecture,
    /// Averaged parameters; left out: none are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub averages: Option<Averages>,
    /// Batch arithmetic.
    pub batch: Batch,
    /// Budget that ends the run.
    pub budget: Budget,
    /// When state is saved and what is kept.
    pub checkpoints: CheckpointPolicy,
    /// The code that may execute this contract.
    pub code: Code,
    /// How credit is assigned to parameters.
    pub credit: CreditRule,
    /// The data lease.
    pub data: DataLease,
    /// Where dropout masks come from; left out: `keyed/1`.
    #[serde(default, skip_serializing_if = "DropoutDraws::is_keyed")]
    pub dropout_draws: DropoutDraws,
    /// How much a crash may lose.
    pub durability: Durability,
    /// The environment that may execute this contract.
    pub environment: Environment,
    /// Evaluation streams.
    pub evaluation: Evaluation,
    /// Memory and traffic that the team expects.
    pub expected: ExpectedEnvelope,
    /// Anything that a later edition adds.
    pub extensions: Vec<Extension>,
    /// The loop that executes the run, where it is not this project's trainer;
    /// there exactly under the evidence profile `external-loop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_loop: Option<ExternalLoop>,
    /// Injected faults, and what to do about any fault.
    pub faults: FaultPolicy,
    /// Limits under which the trainer leaves cleanly.
    pub floors: Floors,
    /// [`crate::CONTRACT_FORMAT`].
    pub format: String,
    /// Where the parameters of step 0 come from; left out: from
    /// `seeds.initialization`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialization: Option<Initialization>,
    /// Public keys by role.
    pub keys: Keys,
    /// Whether the run stands alone or belongs to a campaign.
    pub membership: Membership,
    /// Name of the run, for people.
    pub name: String,
    /// What the run will not show. At least one.
    pub nonclaims: Vec<String>,
    /// dtypes, reductions, determinism.
    pub numerics: Numerics,
    /// What is minimised.
    pub objective: Objective,
    /// Position to example.
    pub order: OrderPolicy,
    /// Manifest of parameters, as `trainer parameters` writes it. It may freeze
    /// some (`--freeze`): these keep their initial values, and checkpoints store
    /// them once.
    pub parameters: FileBinding,
    /// What is compiled and where it runs.
    pub plan: CompilerPlan,
    /// Why, and by whose authority.
    pub purpose: Purpose,
    /// The independent qualification.
    pub qualification: Qualification,
    /// A quality that the run must reach to be evidence of competence; null
    /// where none is claimed.
    pub quality_target: Option<QualityTarget>,
    /// Known gaps, each with an owner.
    pub residuals: Vec<Residual>,
    /// How a resumed run is compared with an uninterrupted one.
    pub resume: ResumeEquivalence,
    /// How long what is kept.
    pub retention: Retention,
    /// Edition of the validator's rules, and evidence profile.
    pub ruleset: RulesetBinding,
    /// Learning rate by parameter group.
    pub schedule: Vec<GroupSchedule>,
    /// Seeds by purpose.
    pub seeds: Seeds,
    /// Which candidate is handed off.
    pub selection: SelectionRule,
    /// Every state class, captured or not applicable.
    pub state_classes: Vec<StateClassDeclaration>,
    /// State digests every so many steps; null: only at checkpoints.
    pub state_digest_every_steps: Option<u64>,
    /// A tree over the tensors of saved state, whose root is on record wherever
    /// state digests are; left out: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[cfg_attr(feature = "json-schema", schemars(with = "StateTree"))]
    pub state_tree: Option<StateTree>,
    /// When training ends.
    pub stopping: StoppingRule,
    /// Workers and learners.
    pub topology: Topology,
    /// The optimizer policy card.
    pub update: UpdateBinding,
}
