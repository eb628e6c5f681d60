//! A run that somebody's own training loop executes and the recorder records:
//! what stands for its code, and what every such contract admits.

use serde::{Deserialize, Serialize};

use super::FileBinding;

/// `code.package` of every external loop, and of no native run: the recorder
/// for other loops writes it into each attempt, whatever the contract says.
pub const EXTERNAL_PACKAGE: &str = "external-loop";

/// The nonclaim that a contract under the profile `external-loop` has to carry
/// word for word, so that reports, handoffs and exports carry it too.
pub const EXTERNAL_NONCLAIM: &str = "That the program computed what the contract says: a loop of the owner's own \
                                     trained it and gave these numbers to a recorder (evidence profile external-loop).";

/// First bytes that the digest of an external loop's code is over.
pub const EXTERNAL_CODE_DOMAIN: &[u8] = b"governed-ledger external-loop/1\0";

/// A training loop that is not this project's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExternalLoop {
    /// The files that are the loop, in ascending byte order of their paths, at
    /// least one: what runs, and what it imports of its owner's. The ledger
    /// stores them, and `code.digest` is of them (`docs/FORMAT.md`, "External
    /// loops"). Packages that are installed are not among them.
    pub files: Vec<FileBinding>,
}
