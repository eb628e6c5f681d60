//! Why a run was not bound to its campaign.

use std::path::PathBuf;

use schemas::campaign::RunPurpose;
use schemas::ids::RunId;

use super::CampaignReadError;
use crate::keys::KeyError;
use crate::reader::ReadError;
use crate::recorder::RecorderError;
use crate::verify::VerifyHeadError;

/// A run that was not bound. Nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The owner's key could not be read.
    #[error("the owner's key is needed to bind a run")]
    Key(#[from] KeyError),
    /// The campaign cannot be read.
    #[error(transparent)]
    Campaign(#[from] CampaignReadError),
    /// The campaign cannot be written.
    #[error("the campaign's ledger cannot be written")]
    Recorder(#[from] RecorderError),
    /// The run's ledger cannot be read, or holds no frozen contract.
    #[error("the run's ledger cannot be read")]
    Run(#[from] ReadError),
    /// The run's newest head does not hold.
    #[error("{}: its newest head does not hold", path.display())]
    Head {
        /// The run's ledger.
        path: PathBuf,
        /// Why.
        source: VerifyHeadError,
    },
    /// The key is not the campaign's owner's.
    #[error("the campaign's owner is {expected}; the owner key at hand is {actual}")]
    Owner {
        /// Public key that the preregistration names.
        expected: String,
        /// Public key at hand.
        actual: String,
    },
    /// The run's contract says that it stands alone.
    #[error("run {run} stands alone by its contract")]
    Standalone {
        /// The run.
        run: RunId,
    },
    /// The run's contract names another campaign.
    #[error("run {run} belongs to campaign {actual} by its contract, and this is {expected}")]
    OtherCampaign {
        /// The run.
        run: RunId,
        /// This campaign.
        expected: RunId,
        /// The one that the contract names.
        actual: RunId,
    },
    /// The run's contract says something that the preregistration does not hold.
    #[error("run {run}: {what}")]
    NotPreregistered {
        /// The run.
        run: RunId,
        /// What does not fit.
        what: String,
    },
    /// It is not said what the run is for.
    #[error("it is not said what run {run} is for")]
    NoPurpose {
        /// The run.
        run: RunId,
    },
    /// The run was bound for something else.
    #[error("run {run} was bound as {was:?}, and stays what it was")]
    PurposeChanged {
        /// The run.
        run: RunId,
        /// What it is for.
        was: RunPurpose,
    },
    /// Another run has its place.
    #[error("run {run}: {what}, which is {other}")]
    PlaceTaken {
        /// The run.
        run: RunId,
        /// The place.
        what: String,
        /// The run that has it.
        other: RunId,
    },
    /// There are as many such runs as were preregistered.
    #[error("run {run}: {what}")]
    NoMoreRuns {
        /// The run.
        run: RunId,
        /// What is used up.
        what: String,
    },
    /// Something was recorded already when the run was first bound.
    #[error(
        "run {run} has {num_entries} entries already; a run is bound before it is trained, or with a reason"
    )]
    Late {
        /// The run.
        run: RunId,
        /// Entries of its ledger.
        num_entries: u64,
    },
    /// A reason for being late, of a run that is not.
    #[error("run {run} is not late: {what}")]
    NotLate {
        /// The run.
        run: RunId,
        /// Why.
        what: &'static str,
    },
    /// The run's ledger is not the one whose head was bound.
    #[error("run {run}: its first {size} entries are not those that were bound, or it has fewer")]
    OtherHistory {
        /// The run.
        run: RunId,
        /// Size of the head that was bound.
        size: u64,
    },
    /// The run lies elsewhere.
    #[error("{} is not below {}, the campaign's folder", path.display(), folder.display())]
    Outside {
        /// The run's ledger.
        path: PathBuf,
        /// The folder.
        folder: PathBuf,
    },
    /// A path cannot be resolved.
    #[error("cannot access {}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl BindError {
    /// Whether the run is refused, and nothing failed.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        !matches!(
            self,
            Self::Key(_)
                | Self::Campaign(_)
                | Self::Recorder(_)
                | Self::Run(_)
                | Self::Owner { .. }
                | Self::Io { .. }
        )
    }

    /// What to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Key(_) | Self::Owner { .. } => {
                "name the folder with the campaign owner's key with --keys or $LEDGER_KEYS"
            }
            Self::Campaign(_) | Self::Recorder(_) => {
                "name the file that `ledger campaign freeze` made, by default campaign.db"
            }
            Self::Run(_) => "name the file that `ledger freeze` made, by default run.db",
            Self::Head { .. } | Self::OtherHistory { .. } => {
                "find the copy of the ledger whose head was bound; `ledger audit` says what is wrong with this one"
            }
            Self::Standalone { .. } => {
                "a run is part of a campaign by its contract: `ledger init --campaign CAMPAIGN --arm NAME --seed N`"
            }
            Self::OtherCampaign { .. } => "bind it to the campaign that its contract names",
            Self::NotPreregistered { .. } => {
                "freeze the contract again as the preregistration has it; this one cannot be part of the campaign"
            }
            Self::NoPurpose { .. } => "say --purpose tuning, confirmation or positive_control",
            Self::PurposeChanged { .. } => {
                "leave out --purpose: what a run is for is decided before its result is known"
            }
            Self::PlaceTaken { .. } => {
                "give the contract another trial number, or another seed; a run is never replaced"
            }
            Self::NoMoreRuns { .. } => {
                "a search that goes on until it pleases is another search; preregister a new campaign for it"
            }
            Self::Late { .. } => {
                "say why with --late REASON; the audit will say that its outcome may have been known"
            }
            Self::NotLate { .. } => "leave out --late",
            Self::Outside { .. } => {
                "move the run's folder below the campaign's, so that they travel together"
            }
            Self::Io { .. } => "name files that are there and can be read",
        }
    }
}
