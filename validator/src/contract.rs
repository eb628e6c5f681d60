//! Reads the frozen contract out of entry 0: canonical bytes, digest,
//! signature and run identifier.
//!
//! What can be read is used even where a check fails, so that every other rule
//! still runs; the failed check is a finding of its own.

use std::fmt::Display;

use schemas::body::{Body, ContractFrozenDet};
use schemas::contract::Contract;
use schemas::digest::Digest;
use schemas::dsse::CONTRACT_PAYLOAD_TYPE;
use schemas::entry::Entry;
use schemas::ids::RunId;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::canonical::check_contract_json;
use crate::dsse::verify_detached;
use crate::ed25519::{PublicKey, key_id};
use crate::form;
use crate::heads::Signers;
use crate::row::Identity;
use crate::rule::{At, Outcome, Sink};

/// Where the contract's text is in entry 0.
const CONTRACT: &str = "/body/det/contract";

/// The contract as read.
pub(crate) struct ContractRead {
    pub(crate) contract: Contract,
    pub(crate) det: ContractFrozenDet,
    pub(crate) digest: Digest,
    pub(crate) identity: Identity,
    pub(crate) run: RunId,
    /// `None` where the owner's or trainer's key is not usable.
    pub(crate) signers: Option<Signers>,
    pub(crate) qualifier: Option<PublicKey>,
    pub(crate) validator: Option<PublicKey>,
    pub(crate) value: Value,
}

/// The findings of the three rules about the contract itself.
pub(crate) struct ContractSinks {
    pub(crate) frozen: Sink,
    pub(crate) signature: Sink,
    pub(crate) identity: Sink,
}

/// Reads the contract; outcomes in the order of [`ContractSinks`].
pub(crate) fn read(
    first_entry: Option<&[u8]>,
    sinks: &mut ContractSinks,
) -> (Option<ContractRead>, [Outcome; 3]) {
    let Some(parsed) = parse(first_entry, &mut sinks.frozen) else {
        let reason = || Outcome::NotEvaluated("the contract could not be read".to_owned());
        return (None, [Outcome::Checked(1), reason(), reason()]);
    };
    let Parsed { contract, det, nonce, value } = parsed;
    let digest = Digest::sha256(Sha256::digest(det.contract.as_bytes()).into());
    if det.digest != digest {
        sinks.frozen.tampered(
            At::entry(0, "/body/det/digest"),
            "the contract's digest is not that of its bytes",
            digest,
            det.digest,
        );
    }
    let run = check_run(digest, &nonce, &mut sinks.identity);
    let owner = check_signature(&contract, &det, &mut sinks.signature);
    let trainer = usable_key("trainer", &contract.keys.trainer.public, &mut sinks.signature);
    let qualifier = usable_key("qualifier", &contract.keys.qualifier.public, &mut sinks.signature);
    let validator = usable_key("validator", &contract.keys.validator.public, &mut sinks.signature);
    let signers = match (owner, trainer) {
        (Some(owner), Some(trainer)) => {
            Some(Signers { origin: format!("governed-ledger/run/{run}"), owner, trainer })
        }
        _ => None,
    };
    let id = |role: &str, public: &str| key_id(role, public).unwrap_or_else(|| role.into());
    let identity = Identity {
        run: run.clone(),
        owner: id("owner", &contract.keys.owner.public),
        trainer: id("trainer", &contract.keys.trainer.public),
        validator: id("validator", &contract.keys.validator.public),
    };
    let read = ContractRead { contract, det, digest, identity, run, signers, qualifier, validator, value };
    (Some(read), [Outcome::Checked(1), Outcome::Checked(1), Outcome::Checked(1)])
}

struct Parsed {
    contract: Contract,
    det: ContractFrozenDet,
    nonce: String,
    value: Value,
}

fn parse(first_entry: Option<&[u8]>, sink: &mut Sink) -> Option<Parsed> {
    let entry = match Entry::from_slice(first_entry?) {
        Ok(entry) => entry,
        Err(error) => {
            wrong(sink, "", "entry 0 cannot be read", &error);
            return None;
        }
    };
    let kind = entry.body.kind();
    let Body::ContractFrozen(halves) = entry.body else {
        wrong(sink, "/kind", "entry 0 is not the frozen contract: this is not a run's ledger", &kind.name());
        return None;
    };
    let det = halves.det;
    let (contract, value) = document(&det.contract, sink)?;
    Some(Parsed { contract, det, nonce: halves.obs.nonce, value })
}

fn wrong(sink: &mut Sink, pointer: &str, message: &str, actual: &dyn Display) {
    let expected = "contract.frozen with a contract of this version";
    sink.rejected(At::entry(0, pointer), message, expected, actual);
}

/// Reads the text of a contract, as what it says and as JSON.
pub(crate) fn document(text: &str, sink: &mut Sink) -> Option<(Contract, Value)> {
    let is_canonical = check_contract_json(text.as_bytes());
    if let Err(problem) = is_canonical {
        sink.rejected(
            At::entry(0, format!("{CONTRACT}, byte {}", problem.offset)),
            format!("the contract's bytes are not canonical: {}", problem.what),
            "RFC 8785",
            excerpt(text, problem.offset),
        );
    }
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => {
            wrong(sink, CONTRACT, "the contract is not JSON", &error);
            return None;
        }
    };
    let contract: Contract = match serde_json::from_str(text) {
        Ok(contract) => contract,
        Err(error) => {
            wrong(sink, CONTRACT, "the contract does not have its shape", &error);
            return None;
        }
    };
    if contract.format != schemas::CONTRACT_FORMAT {
        wrong(sink, &format!("{CONTRACT}#/format"), "the contract has another format", &contract.format);
    }
    // Of bytes that are not canonical, that is said already.
    if is_canonical.is_ok()
        && let Some(place) = form::first_other_place(&contract, text.as_bytes())
    {
        let message = "the contract leaves a field out, or has it in another form";
        let expected = "every field, in the one form that a freeze writes";
        sink.rejected(At::entry(0, format!("{CONTRACT}#{place}")), message, expected, &place);
    }
    Some((contract, value))
}

fn excerpt(text: &str, offset: usize) -> String {
    let bytes = text.as_bytes();
    let end = (offset + 24).min(bytes.len());
    format!("...{}...", bytes[offset.min(end)..end].escape_ascii())
}

fn check_run(digest: Digest, nonce: &str, sink: &mut Sink) -> RunId {
    let is_hex = nonce.len() == 16 && nonce.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if !is_hex {
        sink.rejected(
            At::entry(0, "/body/obs/nonce"),
            "the nonce is malformed",
            "16 lower-case hex digits",
            nonce,
        );
    }
    RunId(format!("{}-{nonce}", &digest.hex()[..16]))
}

fn check_signature(contract: &Contract, det: &ContractFrozenDet, sink: &mut Sink) -> Option<PublicKey> {
    let owner = usable_key("owner", &contract.keys.owner.public, sink)?;
    if let Err(error) =
        verify_detached(&det.signature, CONTRACT_PAYLOAD_TYPE, det.contract.as_bytes(), &owner)
    {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        sink.tampered(
            At::entry(0, "/body/det/signature"),
            "the contract is not signed by its owner's key",
            format!("a signature by {}", contract.keys.owner.public),
            format!("{error}{cause}"),
        );
    }
    let expected = key_id("owner", &contract.keys.owner.public)?;
    if det.signature.keyid != expected.as_str() {
        sink.rejected(
            At::entry(0, "/body/det/signature/keyid"),
            "the signature names another key than the one that made it",
            expected,
            &det.signature.keyid,
        );
    }
    Some(owner)
}

fn usable_key(role: &str, public: &str, sink: &mut Sink) -> Option<PublicKey> {
    PublicKey::from_hex(public)
        .map_err(|error| {
            sink.rejected(
                At::entry(0, format!("{CONTRACT}#/keys/{role}/public")),
                format!("the contract's {role} key cannot verify anything"),
                "an Ed25519 public key",
                error,
            );
        })
        .ok()
}
