//! Why a challenge could not be made or compared. That a replay contradicts the
//! record is a result and no error.

use std::path::PathBuf;

use crate::error::AuditError;

/// Why there is no draw, or no comparison.
#[derive(Debug, thiserror::Error)]
pub enum ChallengeError {
    /// The ledger cannot be read.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// It is no run's ledger, or a damaged one.
    #[error("{}: {reason}; hint: `ledger audit` says what is wrong with a ledger", path.display())]
    Ledger {
        /// As named.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// There is no head to bind a draw to.
    #[error(
        "{}: {reason}; hint: name the head that you kept with --head FILE, before you name a nonce",
        path.display()
    )]
    Head {
        /// Where it was looked for.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The ledger does not hold what the head signed.
    #[error(
        "the ledger does not hold the {size} entries that the head signed: {reason}; hint: `ledger audit --head FILE` \
         names the entries"
    )]
    OtherEntries {
        /// Size of the head.
        size: u64,
        /// What there is.
        reason: String,
    },
    /// The nonce is not one.
    #[error(
        "the nonce cannot be used: {0}; hint: leave out --nonce to draw one, or give 32 to 128 hex digits"
    )]
    Nonce(String),
    /// More segments than there are, or none.
    #[error(
        "{asked} segments were asked for, and {available} can be executed again; hint: ask for 1 to {available}"
    )]
    NumSegments {
        /// Asked for.
        asked: u64,
        /// That there are.
        available: u64,
    },
    /// Nothing of the run can be executed again.
    #[error(
        "no segment of the run can be executed again: {reason}; hint: `trainer checkpoint list` says what became of \
         its checkpoints"
    )]
    NoSegment {
        /// Why.
        reason: String,
    },
    /// The contract's class says nothing about one execution.
    #[error(
        "the contract claims no more than `statistical`, and a replay of single segments neither shows nor refutes \
         that; hint: `trainer probe` makes the test that the contract names"
    )]
    Statistical,
    /// A document is not one of its kind.
    #[error("{} is not a {what}: {reason}; hint: {hint}", path.display())]
    Document {
        /// What to do.
        hint: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
        /// `challenge`, `replay` or `tensor opening`.
        what: &'static str,
    },
    /// The challenge is not what its head and nonce give.
    #[error(
        "{}: the challenge is not the one that this ledger, its head and its nonce give: {reason}; hint: make it again \
         with `ledger challenge --segments N --nonce HEX`",
        path.display()
    )]
    OtherDraw {
        /// The file.
        path: PathBuf,
        /// The first member that differs.
        reason: String,
    },
    /// The replay is of something else.
    #[error("{}: the replay is not of this challenge: {reason}; hint: run `trainer replay` again", path.display())]
    OtherReplay {
        /// The file.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// An opening that does not lead to what is on record.
    #[error("{}: the opening does not hold: {reason}; hint: make it again with `trainer checkpoint open`", path.display())]
    Opening {
        /// The file.
        path: PathBuf,
        /// What does not hold.
        reason: String,
    },
}

impl ChallengeError {
    /// Whether something was found to be wrong, rather than not looked at.
    #[must_use]
    pub const fn is_finding(&self) -> bool {
        matches!(
            self,
            Self::OtherEntries { .. }
                | Self::OtherDraw { .. }
                | Self::OtherReplay { .. }
                | Self::Opening { .. }
                | Self::NoSegment { .. }
                | Self::Statistical
        )
    }
}
