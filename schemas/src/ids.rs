//! Identifiers as newtypes, so that one cannot be passed for another.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! text_id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            /// The identifier as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }
    };
}

macro_rules! number_id {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, formatter)
            }
        }
    };
}

text_id! {
    /// A run: the first 16 hex digits of the contract's SHA-256, a hyphen, and
    /// the 16 hex digits of the nonce drawn at the freeze.
    RunId
}
text_id! {
    /// Names a public key: `<role>:<first 16 hex digits of its SHA-256>`.
    KeyId
}
text_id! {
    /// A checkpoint within its run: `s<step, 8 digits>-a<attempt>`; a second
    /// save at the same step by the same attempt appends `-<n>`.
    CheckpointId
}
text_id! {
    /// A candidate within its run: `candidate-` and its checkpoint's id.
    CandidateId
}
text_id! {
    /// Makes an append idempotent: 32 hex digits, unique within a ledger.
    IdempotencyKey
}
number_id! {
    /// One process lifetime within a run, from 1, in the order of starting.
    AttemptId
}
number_id! {
    /// A span of a run with one unchanged identity, from 1.
    SegmentId
}
number_id! {
    /// One adaptive identity; 0 unless the contract declares more.
    LearnerId
}
number_id! {
    /// One process or device that executes work for a learner, from 0.
    WorkerId
}
