//! The frozen preregistration as entry 0 of a campaign's ledger holds it.

use schemas::body::Body;
use schemas::campaign::Preregistration;
use schemas::digest::Digest;
use schemas::dsse::PREREGISTRATION_PAYLOAD_TYPE;
use schemas::entry::Entry;
use schemas::ids::RunId;
use sha2::{Digest as _, Sha256};

use crate::dsse::{self, DsseError};
use crate::frozen::run_id;

/// A preregistration that was frozen, with what binds it.
#[derive(Debug, Clone, PartialEq)]
pub struct CampaignContract {
    /// The campaign's identifier.
    pub campaign: RunId,
    /// The canonical bytes that were signed (RFC 8785).
    pub canonical: Vec<u8>,
    /// SHA-256 of `canonical`.
    pub digest: Digest,
    /// The preregistration.
    pub preregistration: Preregistration,
}

/// An entry 0 that does not hold a preregistration that was frozen properly.
#[derive(Debug, thiserror::Error)]
pub enum CampaignContractError {
    /// The first entry is of another kind.
    #[error("entry 0 is {kind}, expected campaign.frozen; the ledger is not that of a campaign")]
    Kind {
        /// What it is.
        kind: &'static str,
    },
    /// The text is not a preregistration.
    #[error("entry 0 holds a preregistration that this version cannot read")]
    Shape(#[source] serde_json::Error),
    /// The digest is not that of the text.
    #[error("entry 0 says that its preregistration is {stated}, its bytes are {actual}")]
    Digest {
        /// What the entry says.
        stated: Digest,
        /// What the bytes give.
        actual: Digest,
    },
    /// The owner did not sign these bytes.
    #[error("the owner's signature of the preregistration does not hold")]
    Signature(#[source] DsseError),
    /// The identifier does not follow from the preregistration.
    #[error(
        "entry 0 belongs to campaign {campaign}, which its preregistration {digest} and nonce do not give"
    )]
    Campaign {
        /// What the entry says.
        campaign: RunId,
        /// Digest of the preregistration.
        digest: Digest,
    },
}

impl CampaignContract {
    /// Takes the preregistration out of entry 0 and checks digest, signature
    /// and identifier.
    ///
    /// # Errors
    /// When entry 0 is of another kind or one of these does not hold.
    pub fn from_entry(entry: &Entry) -> Result<Self, CampaignContractError> {
        let Body::CampaignFrozen(halves) = &entry.body else {
            return Err(CampaignContractError::Kind { kind: entry.body.kind().name() });
        };
        let canonical = halves.det.preregistration.clone().into_bytes();
        let actual = Digest::sha256(Sha256::digest(&canonical).into());
        if actual != halves.det.digest {
            return Err(CampaignContractError::Digest { stated: halves.det.digest, actual });
        }
        let preregistration: Preregistration =
            serde_json::from_slice(&canonical).map_err(CampaignContractError::Shape)?;
        let owner = &preregistration.keys.owner.public;
        dsse::verify_detached(&halves.det.signature, PREREGISTRATION_PAYLOAD_TYPE, &canonical, owner)
            .map_err(CampaignContractError::Signature)?;
        let campaign = entry.header.run.clone();
        if campaign != run_id(&actual, &halves.obs.nonce) {
            return Err(CampaignContractError::Campaign { campaign, digest: actual });
        }
        Ok(Self { campaign, canonical, digest: actual, preregistration })
    }
}
