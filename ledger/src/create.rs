//! Creation of ledgers: the freeze of a run, and a qualifier's own ledger.
//!
//! A ledger is built under a temporary name, flushed, and linked to its final
//! name only when its head file is in place. An existing file is never
//! replaced, and a failure leaves nothing under the final name.

use std::path::{Path, PathBuf};

use schemas::body::{Body, ContractFrozenDet, ContractFrozenObs, Halves, StoredArtifact};
use schemas::contract::Contract;
use schemas::digest::{Digest, encode_hex};
use schemas::dsse::CONTRACT_PAYLOAD_TYPE;
use schemas::entry::{Entry, Header, LedgerKind};
use schemas::ids::{IdempotencyKey, RunId};
use schemas::{MAX_ENTRY_BYTES, SQLITE_LAYOUT_VERSION};
use sha2::{Digest as _, Sha256};

use crate::canonical::{self, CanonicalError};
use crate::dsse;
use crate::frozen::run_id;
use crate::head_file::{self, HeadFileError};
use crate::keys::{KeyPair, Role};
use crate::lock::with_suffix;
use crate::note::{self, TreeHead};
use crate::recorder::Receipt;
use crate::store::{HeadRow, NewRow, Store, StoreError, on_own_thread};
use crate::tree::{Frontier, leaf_hash};

/// A ledger that was not created; nothing is left under its name.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The file exists.
    #[error("{path} exists and is never overwritten; choose another name with `--output`")]
    Exists {
        /// The existing file.
        path: PathBuf,
    },
    /// Another database was there.
    #[error(
        "{path} is the log of a database that is gone, and would be read into a new one; move it away with \
         what it belongs to"
    )]
    StaleLog {
        /// The log.
        path: PathBuf,
    },
    /// The key may not sign this.
    #[error("a key of role {role} cannot do this; it takes the {expected} key that the contract names")]
    WrongKey {
        /// Role of the key that was given.
        role: Role,
        /// What is needed.
        expected: Role,
    },
    /// The contract bytes are not a contract in canonical form.
    #[error("the contract is not in canonical form")]
    Contract(#[source] serde_json::Error),
    /// The contract bytes are a contract, but not its canonical bytes.
    #[error("the contract's bytes are not the canonical ones (RFC 8785)")]
    ContractNotCanonical,
    /// The contract bytes are canonical, but say less or more than a freeze writes.
    #[error("the contract leaves a field out, or has it in another form than a freeze writes")]
    ContractForm,
    /// The identifier cannot stand in an origin line.
    #[error("{run:?} cannot be an identifier: 1 to 128 letters, digits, `-`, `_` or `.`")]
    RunId {
        /// What was given.
        run: String,
    },
    /// The freeze does not fit into one entry.
    #[error("the freeze takes {num_bytes} bytes, an entry holds {MAX_ENTRY_BYTES}; shorten the contract")]
    TooLarge {
        /// Size of the entry.
        num_bytes: usize,
    },
    /// Something in the freeze has no canonical form.
    #[error("the freeze cannot be written")]
    Canonical(#[from] CanonicalError),
    /// The operating system gave no random bytes.
    #[error("the operating system gave no random bytes: {0}")]
    Random(String),
    /// The database could not be made.
    #[error("the ledger could not be created")]
    Store(#[from] StoreError),
    /// The head file could not be made.
    #[error("the head file could not be created")]
    HeadFile(#[from] HeadFileError),
    /// The operating system refused.
    #[error("cannot access {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// A small file that the contract names, stored whole.
#[derive(Debug, Clone)]
pub struct FrozenArtifact {
    /// JSON pointer of its binding in the contract: `/update/card`.
    pub pointer: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// What a freeze made.
#[derive(Debug, Clone)]
pub struct Created {
    /// Identifier of the run.
    pub run: RunId,
    /// SHA-256 of the contract.
    pub digest: Digest,
    /// The first head.
    pub receipt: Receipt,
}

/// Creates the ledger of a run: artifacts, the signed contract as entry 0, and
/// a head signed by the owner.
///
/// `contract` is canonical ([`canonical::contract_json`]) and already checked;
/// this verifies that it is a contract in the one form of it whose owner is `owner`.
/// `tool` is program and version, for the record.
///
/// # Errors
/// When the file exists, the key is not the owner's, the contract is not
/// canonical or too large, or storage refuses.
pub fn create_run_ledger(
    path: &Path,
    contract: &[u8],
    artifacts: &[FrozenArtifact],
    owner: &KeyPair,
    tool: &str,
) -> Result<Created, CreateError> {
    let value: serde_json::Value = serde_json::from_slice(contract).map_err(CreateError::Contract)?;
    if canonical::contract_json(&value)? != contract {
        return Err(CreateError::ContractNotCanonical);
    }
    let parsed: Contract = serde_json::from_value(value).map_err(CreateError::Contract)?;
    let written = serde_json::to_value(&parsed).map_err(CreateError::Contract)?;
    if canonical::contract_json(&written)? != contract {
        return Err(CreateError::ContractForm);
    }
    if owner.role() != Role::Owner || parsed.keys.owner.public != owner.public_hex() {
        return Err(CreateError::WrongKey { role: owner.role(), expected: Role::Owner });
    }
    let text = String::from_utf8(contract.to_vec()).map_err(|_| CreateError::ContractNotCanonical)?;
    let digest = Digest::sha256(Sha256::digest(contract).into());
    let nonce = encode_hex(&random::<8>()?);
    let run = run_id(&digest, &nonce);
    let digests: Vec<[u8; 32]> =
        artifacts.iter().map(|artifact| *blake3::hash(&artifact.bytes).as_bytes()).collect();
    let stored = artifacts.iter().zip(&digests).map(|(artifact, digest)| StoredArtifact {
        digest: Digest::blake3(*digest),
        num_bytes: artifact.bytes.len() as u64,
        pointer: artifact.pointer.clone(),
    });
    let det = ContractFrozenDet {
        artifacts: stored.collect(),
        contract: text,
        digest,
        signature: dsse::sign_detached(CONTRACT_PAYLOAD_TYPE, contract, owner),
    };
    let obs = ContractFrozenObs { nonce, tool: tool.to_owned() };
    let idem = random::<16>()?;
    let entry = Entry {
        body: Body::ContractFrozen(Box::new(Halves { det, obs })),
        header: first_header(owner, idem, &run),
        index: 0,
        time_us: crate::recorder::now_us(),
    };
    let entry = canonical::entry_json(&entry)?;
    if entry.len() > MAX_ENTRY_BYTES {
        return Err(CreateError::TooLarge { num_bytes: entry.len() });
    }
    let leaf = leaf_hash(&entry);
    let row = NewRow { index: 0, idem, entry, leaf };
    let mut unique: Vec<(&[u8; 32], &[u8])> = Vec::new();
    for (digest, artifact) in digests.iter().zip(artifacts) {
        if !unique.iter().any(|(known, _)| *known == digest) {
            unique.push((digest, &artifact.bytes));
        }
    }
    let origin = note::origin(LedgerKind::Run, &run);
    let receipt = build(path, &origin, owner, &unique, Some(&row))?;
    Ok(Created { run, digest, receipt })
}

/// Creates an empty qualification ledger whose heads `key` signs. `run` is the
/// ledger's own identifier.
///
/// # Errors
/// When the file exists, the key is not a qualifier's, the identifier cannot
/// stand in an origin, or storage refuses.
pub fn create_qualification_ledger(path: &Path, key: &KeyPair, run: &RunId) -> Result<Receipt, CreateError> {
    if key.role() != Role::Qualifier {
        return Err(CreateError::WrongKey { role: key.role(), expected: Role::Qualifier });
    }
    if !note::is_run_id(run.as_str()) {
        return Err(CreateError::RunId { run: run.0.clone() });
    }
    build(path, &note::origin(LedgerKind::Qualification, run), key, &[], None)
}

pub(crate) fn first_header(owner: &KeyPair, idem: [u8; 16], run: &RunId) -> Header {
    Header {
        actor: owner.id(),
        attempt: None,
        extensions: Vec::new(),
        idem: IdempotencyKey(encode_hex(&idem)),
        learner: None,
        ledger: LedgerKind::Run,
        origin: None,
        run: run.clone(),
        segment: None,
        step: None,
        worker: None,
    }
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], CreateError> {
    let mut bytes = [0u8; N];
    getrandom::fill(&mut bytes).map_err(|error| CreateError::Random(error.to_string()))?;
    Ok(bytes)
}

/// Refuses a name beside which another database left its log: SQLite would read
/// the log's pages into the new one.
pub(crate) fn refuse_stale_log(path: &Path) -> Result<(), CreateError> {
    for suffix in ["-wal", "-journal"] {
        let log = with_suffix(path, suffix);
        if std::fs::symlink_metadata(&log).is_ok_and(|found| found.len() > 0) {
            return Err(CreateError::StaleLog { path: log });
        }
    }
    Ok(())
}

/// Builds the database under a temporary name and puts head and database in place.
pub(crate) fn build(
    path: &Path,
    origin: &str,
    key: &KeyPair,
    artifacts: &[(&[u8; 32], &[u8])],
    row: Option<&NewRow>,
) -> Result<Receipt, CreateError> {
    const { assert!(SQLITE_LAYOUT_VERSION == 1, "a new layout needs its own migration") };
    if path.exists() {
        return Err(CreateError::Exists { path: path.to_owned() });
    }
    refuse_stale_log(path)?;
    let temporary = Temporary(with_suffix(path, &format!(".creating-{}", std::process::id())));
    let mut frontier = Frontier::new();
    if let Some(row) = row {
        frontier.append(row.leaf);
    }
    let head = TreeHead { origin: origin.to_owned(), size: frontier.size(), root: frontier.root() };
    let note = head.sign(key);
    let stored_head = HeadRow { size: head.size, note: note.clone() };
    on_own_thread(|| {
        let mut store = Store::create(&temporary.0)?;
        store.insert_artifacts(artifacts)?;
        let rows = row.map_or(&[][..], std::slice::from_ref);
        store.write_with(|appending| appending.commit(rows, || Some(stored_head)))??;
        store.close()
    })?;
    let io = |source: std::io::Error| CreateError::Io { path: path.to_owned(), source };
    std::fs::File::open(&temporary.0).and_then(|file| file.sync_all()).map_err(io)?;
    let head_path = head_file::path_for(path);
    head_file::create(&head_path, &note)?;
    // A hard link fails where the name exists, which a rename would replace.
    if let Err(source) = std::fs::hard_link(&temporary.0, path) {
        let _ = std::fs::remove_file(&head_path);
        return Err(match source.kind() {
            std::io::ErrorKind::AlreadyExists => CreateError::Exists { path: path.to_owned() },
            _ => io(source),
        });
    }
    drop(temporary);
    head_file::sync_folder(path).map_err(io)?;
    Ok(Receipt { index: head.size.saturating_sub(1), size: head.size, root: head.root })
}

/// A file that is removed, with SQLite's companions, when this is dropped.
pub(crate) struct Temporary(pub(crate) PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(with_suffix(&self.0, suffix));
        }
    }
}
