//! The selected candidate signed as OpenSSF model signing defines it: a Sigstore
//! bundle v0.3 with a DSSE envelope, which `model_signing verify key` checks
//! against the candidate's folder (PyPI `model-signing` 1.x).
//!
//! Only of a run that was accepted. That format takes no Ed25519 key, so the
//! model is signed with an ECDSA P-256 key of its own, which no contract names;
//! a statement by the validator's key says which key that is. Who signs what:
//! the P-256 key signs the files of the model, the validator's key signs that
//! key, the contract names the validator's key.
//!
//! What is signed is what a handoff names: weights and configuration. The other
//! files of the checkpoint's folder, which a resume needs and a model does not,
//! are in the bundle's list of ignored paths, so that the folder verifies as it
//! is and a copy without them does too; a file that nobody knows is refused.

mod key;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ledger::canonical::entry_json;
use ledger::dsse::pae;
use ledger::keys::KeyPair;
use schemas::digest::Digest;
use schemas::dsse::{IN_TOTO_PAYLOAD_TYPE, IN_TOTO_STATEMENT_TYPE, Subject};
use schemas::report::SelectedCandidate;
use schemas::state::CheckpointManifest;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

pub use key::{KEY_FILE, ModelKey, ModelKeyError, PUBLIC_KEY_FILE};

use crate::statement::{digest_set, public_key, signed};
use crate::{Document, Evidence, ExportError, HashedFile, candidate_files};

/// Predicate of a signed model (`model_signing/_signing/signing.py`).
pub const SIGNATURE_PREDICATE_TYPE: &str = "https://model_signing/signature/v1.0";

/// Predicate of the statement that says whose model key it is.
pub const KEY_PREDICATE_TYPE: &str = "https://governed-ledger.invalid/model-signing-key/v1";

/// Media type of the bundle (docs.sigstore.dev/about/bundle).
const BUNDLE_MEDIA_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";

/// Name of the bundle, which is the tool's own default.
const BUNDLE_NAME: &str = "model.sig";

/// Name of a checkpoint's manifest.
const MANIFEST_NAME: &str = "manifest.json";

/// Largest manifest that is read: the bound of every document.
const MAX_MANIFEST_BYTES: u64 = 16 << 20;

/// The bundle, the public key that verifies it, and the validator's word on that
/// key.
///
/// # Errors
/// When the run was not accepted, nothing was selected, or a file is not what
/// the record says.
pub fn documents(
    evidence: &Evidence,
    key: &ModelKey,
    validator: &KeyPair,
) -> Result<Vec<Document>, ExportError> {
    evidence.require_accepted("model-signing")?;
    let selected = evidence.require_selected()?;
    let prefix = format!("{}/", selected.path);
    let mut files = candidate_files(evidence.folder(), &selected.path, &selected.model, &selected.config)?;
    for file in &mut files {
        file.name = file.name.strip_prefix(&prefix).unwrap_or(&file.name).to_owned();
    }
    // The order that the tool hashes in.
    files.sort_by(|left, right| left.name.cmp(&right.name));
    let ignored = other_files(evidence, selected, &files)?;
    let folder = selected.path.rsplit('/').next().unwrap_or(&selected.path);
    let public = key.public_pem()?;
    let bundle = Document::new(BUNDLE_NAME, bundle(&statement(folder, &files, &ignored), key, &public)?);
    let public = Document::new(PUBLIC_KEY_FILE, public.into_bytes());
    let statement = key_statement(evidence, selected, &[&bundle, &public], validator)?;
    Ok(vec![bundle, public, statement, public_key(validator)])
}

/// One subject, which is SHA-256 over the files' digests in order; the files
/// themselves are in the predicate.
fn statement(folder: &str, files: &[HashedFile], ignored: &BTreeSet<String>) -> Value {
    let mut all = Sha256::new();
    for file in files {
        all.update(file.sha256.bytes);
    }
    let resources = files
        .iter()
        .map(|file| json!({"algorithm": "sha256", "digest": file.sha256.hex(), "name": file.name}));
    json!({
        "_type": IN_TOTO_STATEMENT_TYPE,
        "predicate": {
            "resources": resources.collect::<Vec<_>>(),
            "serialization": {
                "allow_symlinks": false,
                "hash_type": "sha256",
                "ignore_paths": ignored,
                "method": "files",
            },
        },
        "predicateType": SIGNATURE_PREDICATE_TYPE,
        "subject": [{"digest": digest_set([&Digest::sha256(all.finalize().into())]), "name": folder}],
    })
}

fn bundle(statement: &Value, key: &ModelKey, public_pem: &str) -> Result<Vec<u8>, ExportError> {
    let payload = entry_json(statement)?;
    let signature = key.sign(&pae(IN_TOTO_PAYLOAD_TYPE, &payload));
    let hint = Digest::sha256(Sha256::digest(public_pem).into()).hex();
    Ok(entry_json(&json!({
        "dsseEnvelope": {
            "payload": STANDARD.encode(&payload),
            "payloadType": IN_TOTO_PAYLOAD_TYPE,
            "signatures": [{"keyid": "", "sig": STANDARD.encode(signature)}],
        },
        "mediaType": BUNDLE_MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": hint}, "tlogEntries": []},
    }))?)
}

/// The validator's word that this key signed this candidate.
fn key_statement(
    evidence: &Evidence,
    selected: &SelectedCandidate,
    documents: &[&Document],
    validator: &KeyPair,
) -> Result<Document, ExportError> {
    let subjects = documents.iter().map(|document| Subject {
        digest: digest_set([&Digest::sha256(Sha256::digest(&document.bytes).into())]),
        name: document.name.clone(),
    });
    let predicate = json!({
        "candidate": selected.candidate,
        "contract": evidence.contract.digest,
        "model": selected.model,
        "run": evidence.contract.run,
        "scheme": "ecdsa-sha2-nistp256",
        "step": selected.step,
    });
    signed("model-signing-key.dsse.json", KEY_PREDICATE_TYPE, subjects.collect(), predicate, validator)
}

/// Files of the candidate's folder that are not signed: what the checkpoint's
/// manifest names beside the model, and the manifest.
fn other_files(
    evidence: &Evidence,
    selected: &SelectedCandidate,
    files: &[HashedFile],
) -> Result<BTreeSet<String>, ExportError> {
    let path = evidence.folder().join(&selected.path).join(MANIFEST_NAME);
    let io = |source| ExportError::Io { path: path.clone(), source };
    let mut bytes = Vec::new();
    File::open(&path).map_err(io)?.take(MAX_MANIFEST_BYTES).read_to_end(&mut bytes).map_err(io)?;
    let actual = Digest::blake3(*blake3::hash(&bytes).as_bytes());
    let candidates = evidence.candidates.iter().filter(|it| it.candidate == selected.candidate);
    let expected = candidates.filter_map(|it| it.manifest).next();
    let expected = expected.ok_or_else(|| evidence.lacks("manifest of the selected candidate"))?;
    if actual != expected {
        return Err(ExportError::Changed { path, expected, actual });
    }
    let manifest: CheckpointManifest = serde_json::from_slice(&bytes)?;
    let shards = manifest.classes.into_iter().flat_map(|class| class.shards);
    let mut others: BTreeSet<String> = shards.map(|shard| shard.path).collect();
    others.insert(MANIFEST_NAME.to_owned());
    for file in files {
        others.remove(&file.name);
    }
    Ok(others)
}
