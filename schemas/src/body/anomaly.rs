//! Anomalies, and what those of saved state say of it.

use serde::{Deserialize, Serialize};

use crate::present::present;
use crate::state::StateClass;

/// Name of the anomaly of tensors that are stored as binary32 and hold nothing
/// that bfloat16 could not; `docs/FORMAT.md` ("Anomalies of saved state").
pub const BF16_ONLY_MANTISSAS: &str = "bf16_only_mantissas";

/// Name of the anomaly of workers that draw from one stream of random numbers.
pub const SHARED_RANDOM_STREAM: &str = "shared_random_stream";

/// Name of the anomaly of a class that updates did not change.
pub const UNCHANGED_STATE: &str = "unchanged_state";

/// Name of the anomaly of moments that are zero after an update.
pub const ZERO_MOMENTS: &str = "zero_moments";

/// `anomaly`, determined half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AnomalyDet {
    /// Stable name, such as `loss_not_finite`.
    pub name: String,
    /// Of which saved state it is; left out, and never null, where it is of
    /// none.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json-schema", schemars(with = "StateAnomaly"))]
    pub state: Option<StateAnomaly>,
}

impl AnomalyDet {
    /// An anomaly of something else than saved state.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), state: None }
    }
}

/// What of a checkpoint is odd: the one within whose save the entry lies. One
/// entry for each name and class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StateAnomaly {
    /// Class of the tensors.
    pub class: StateClass,
    /// Elements of those tensors together.
    pub num_elements: u64,
    /// Tensors that are odd.
    pub num_tensors: u64,
    /// The first of them in name order; null where the class as a whole is.
    pub tensor: Option<String>,
}

/// `anomaly`, observed half.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AnomalyObs {
    /// In words.
    pub description: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anomaly_of_no_state_has_the_bytes_that_it_always_had() {
        let text = r#"{"name":"loss_not_finite"}"#;
        let read: AnomalyDet = serde_json::from_str(text).expect("without state");
        assert_eq!(read, AnomalyDet::named("loss_not_finite"));
        assert_eq!(serde_json::to_string(&read).expect("serialises"), text);
        assert!(serde_json::from_str::<AnomalyDet>(r#"{"name":"loss_not_finite","state":null}"#).is_err());
        let state = StateAnomaly { class: StateClass::Model, num_elements: 1, num_tensors: 1, tensor: None };
        let odd = AnomalyDet { name: UNCHANGED_STATE.to_owned(), state: Some(state) };
        let text = serde_json::to_string(&odd).expect("serialises");
        assert_eq!(serde_json::from_str::<AnomalyDet>(&text).expect("with state"), odd);
    }
}
