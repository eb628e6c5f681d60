//! Parts of a run that hold state of their own, where a contract asks for them.
//!
//! A contract without them has the bytes that it had before they existed:
//! members that are left out mean what was always done.

use serde::{Deserialize, Serialize};

/// Averaged parameters (EMA), beside the parameters that are trained; see
/// `docs/FORMAT.md` ("Averages").
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Averages {
    /// Weight of the old average; above 0 and below 1, also in binary32.
    pub decay: f64,
    /// First update that is averaged, from 1; until then the averages are copies.
    pub first_step: u64,
    /// Which parameters an update adds.
    pub order: AverageOrder,
}

/// Where dropout masks come from; see `docs/FORMAT.md` ("Dropout").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "scheme", deny_unknown_fields)]
pub enum DropoutDraws {
    /// A function of seed, site, example, token and channel; no state.
    #[default]
    #[serde(rename = "keyed/1")]
    Keyed,
    /// The next words of one stream, as most frameworks draw them: what a mask
    /// is depends on how many were drawn before.
    #[serde(rename = "philox_stream/1")]
    PhiloxStream,
}

impl DropoutDraws {
    /// Whether masks are functions of coordinates.
    #[must_use]
    pub fn is_keyed(&self) -> bool {
        *self == Self::Keyed
    }
}

/// A tree over the tensors of saved state, whose root goes on record with the
/// state digests, so that one tensor can be opened alone; see `docs/FORMAT.md`
/// ("State tree").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "scheme", deny_unknown_fields)]
pub enum StateTree {
    /// A leaf for each tensor, and for each shard that holds none.
    #[serde(rename = "tensors/1")]
    Tensors,
}

/// Whether parameters are averaged before or after an update changes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AverageOrder {
    /// Update `t` adds the parameters that it leaves.
    AfterUpdate,
    /// Update `t` adds the parameters that it finds.
    BeforeUpdate,
}
