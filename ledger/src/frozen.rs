//! The frozen contract as entry 0 of a run's ledger holds it.

use schemas::body::Body;
use schemas::contract::Contract;
use schemas::digest::Digest;
use schemas::dsse::{CONTRACT_PAYLOAD_TYPE, EnvelopeSignature};
use schemas::entry::Entry;
use schemas::ids::RunId;
use sha2::{Digest as _, Sha256};

use crate::dsse::{self, DsseError};

/// A contract that was frozen, with what binds it.
#[derive(Debug, Clone, PartialEq)]
pub struct FrozenContract {
    /// The contract.
    pub contract: Contract,
    /// SHA-256 of `canonical`.
    pub digest: Digest,
    /// The canonical bytes that were signed (RFC 8785).
    pub canonical: Vec<u8>,
    /// The run.
    pub run: RunId,
    /// The owner's signature.
    pub signature: EnvelopeSignature,
}

/// An entry 0 that does not hold a contract that was frozen properly.
#[derive(Debug, thiserror::Error)]
pub enum FrozenError {
    /// The first entry is of another kind.
    #[error("entry 0 is {kind}, expected contract.frozen; the ledger is not that of a run")]
    Kind {
        /// What it is.
        kind: &'static str,
    },
    /// The contract's text is not a contract.
    #[error("entry 0 holds a contract that this version cannot read")]
    Shape(#[source] serde_json::Error),
    /// The digest is not that of the text.
    #[error("entry 0 says that its contract is {stated}, its bytes are {actual}")]
    Digest {
        /// What the entry says.
        stated: Digest,
        /// What the bytes give.
        actual: Digest,
    },
    /// The owner did not sign these bytes.
    #[error("the owner's signature of the contract does not hold")]
    Signature(#[source] DsseError),
    /// The run's identifier does not follow from the contract.
    #[error("entry 0 belongs to run {run}, which its contract {digest} and nonce do not give")]
    Run {
        /// What the entry says.
        run: RunId,
        /// Digest of the contract.
        digest: Digest,
    },
}

/// Identifier of a run: from the contract's digest and the nonce of the freeze.
pub(crate) fn run_id(digest: &Digest, nonce_hex: &str) -> RunId {
    RunId(format!("{}-{nonce_hex}", &digest.hex()[..16]))
}

impl FrozenContract {
    /// Takes the contract out of entry 0 and checks digest, signature and run.
    ///
    /// # Errors
    /// When entry 0 is of another kind or one of these does not hold.
    pub fn from_entry(entry: &Entry) -> Result<Self, FrozenError> {
        let Body::ContractFrozen(halves) = &entry.body else {
            return Err(FrozenError::Kind { kind: entry.body.kind().name() });
        };
        let canonical = halves.det.contract.clone().into_bytes();
        let actual = Digest::sha256(Sha256::digest(&canonical).into());
        if actual != halves.det.digest {
            return Err(FrozenError::Digest { stated: halves.det.digest, actual });
        }
        let contract: Contract = serde_json::from_slice(&canonical).map_err(FrozenError::Shape)?;
        let signature = halves.det.signature.clone();
        dsse::verify_detached(&signature, CONTRACT_PAYLOAD_TYPE, &canonical, &contract.keys.owner.public)
            .map_err(FrozenError::Signature)?;
        let run = entry.header.run.clone();
        if run != run_id(&actual, &halves.obs.nonce) {
            return Err(FrozenError::Run { run, digest: actual });
        }
        Ok(Self { contract, digest: actual, canonical, run, signature })
    }
}
