//! One side of a comparison: a contract file as a person wrote it, or a ledger.
//!
//! A ledger is read through the validator's own store and never written. What
//! is not a contract or a run's ledger is an error, since there is then nothing
//! to compare.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemas::body::{Body, ContractFrozenDet};
use schemas::contract::FileBinding;
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::RunId;
use serde_json::Value;

use crate::error::AuditError;
use crate::evidence::{MAX_DOCUMENT_BYTES, read_below};
use crate::rule::Sink;
use crate::rules::gl001_store_layout;
use crate::store::{Access, Store};

/// Why there is nothing to compare.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// The ledger cannot be read.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// It can be read and is no run's ledger.
    #[error(
        "{} is no run's ledger: {reason}; hint: name a contract file or what `ledger freeze` wrote; `ledger audit` says what is wrong with a ledger",
        path.display()
    )]
    NoRun {
        /// As named.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// What ran is asked of a contract file.
    #[error("{} is a contract file, so nothing ran in it; hint: name the ledger as B", path.display())]
    NothingRan {
        /// As named.
        path: PathBuf,
    },
}

/// What a ledger adds to its contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frozen {
    /// SHA-256 of the contract, as entry 0 names it.
    pub digest: Digest,
    /// The run.
    pub run: RunId,
}

/// One side.
#[derive(Debug, Clone, PartialEq)]
pub struct Side {
    /// The contract.
    pub contract: Value,
    /// JSON documents that it binds, by the pointer of the binding, as far as
    /// they are at hand.
    pub documents: BTreeMap<String, Value>,
    /// Of a ledger; none of a contract file.
    pub frozen: Option<Frozen>,
    /// As named.
    pub path: PathBuf,
}

impl Side {
    /// Reads a ledger.
    ///
    /// # Errors
    /// When it cannot be read, or is no run's ledger.
    pub fn open(path: &Path) -> Result<Self, DiffError> {
        let store = open_store(path, Access::Copy)?;
        let no_run = |reason: String| DiffError::NoRun { path: path.to_owned(), reason };
        let bytes = store.first_entry().ok_or_else(|| no_run("it holds no entry".to_owned()))?;
        let entry = Entry::from_slice(&bytes).map_err(|error| no_run(format!("entry 0: {error}")))?;
        let run = entry.header.run.clone();
        let kind = entry.body.kind();
        let Body::ContractFrozen(halves) = entry.body else {
            return Err(no_run(format!("entry 0 is {}", kind.name())));
        };
        let det = halves.det;
        let contract = serde_json::from_str(&det.contract)
            .map_err(|error| no_run(format!("the contract of entry 0: {error}")))?;
        let documents = stored_documents(&det, &store);
        Ok(Self {
            contract,
            documents,
            frozen: Some(Frozen { digest: det.digest, run }),
            path: path.to_owned(),
        })
    }

    /// A contract file that was read by whoever calls. Documents that it binds
    /// are read beside it where they are there and have the digest that it
    /// names, if it names one.
    #[must_use]
    pub fn of_file(path: &Path, contract: Value) -> Self {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        let mut documents = BTreeMap::new();
        find_bindings(&contract, String::new(), &mut |pointer, binding| {
            let bytes = read_below(&folder, &binding.path, MAX_DOCUMENT_BYTES).ok();
            let bytes = bytes.filter(|bytes| binding.digest.is_none_or(|digest| digest == blake3_of(bytes)));
            if let Some(document) = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
                documents.insert(pointer, document);
            }
        });
        Self { contract, documents, frozen: None, path: path.to_owned() }
    }
}

/// Opens a ledger; what the layout's check would report is left to an audit.
pub(super) fn open_store(path: &Path, access: Access) -> Result<Store, DiffError> {
    let mut sink = Sink::new(&gl001_store_layout::INFO);
    Store::open(path, access, &mut sink)?.ok_or_else(|| {
        let reason = sink.into_findings().first().map(|finding| finding.message.clone());
        let reason = reason.unwrap_or_else(|| "it cannot be read".to_owned());
        DiffError::NoRun { path: path.to_owned(), reason }
    })
}

/// The artifacts of the freeze that are JSON, each under its binding.
fn stored_documents(det: &ContractFrozenDet, store: &Store) -> BTreeMap<String, Value> {
    let mut by_digest: BTreeMap<Digest, Vec<&str>> = BTreeMap::new();
    for artifact in &det.artifacts {
        by_digest.entry(artifact.digest).or_default().push(&artifact.pointer);
    }
    let mut documents = BTreeMap::new();
    // A damaged table leaves documents out; the bindings' digests are compared
    // all the same.
    let _ = store.for_each_artifact(|_, bytes| {
        let Some(pointers) = by_digest.get(&blake3_of(bytes)) else { return };
        let Ok(document) = serde_json::from_slice::<Value>(bytes) else { return };
        for pointer in pointers {
            documents.insert((*pointer).to_owned(), document.clone());
        }
    });
    documents
}

fn find_bindings(value: &Value, pointer: String, found: &mut impl FnMut(String, FileBinding)) {
    match value {
        Value::Object(members) => {
            if let Ok(binding) = serde_json::from_value::<FileBinding>(value.clone()) {
                return found(pointer, binding);
            }
            for (key, member) in members {
                find_bindings(
                    member,
                    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1")),
                    found,
                );
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                find_bindings(item, format!("{pointer}/{index}"), found);
            }
        }
        _ => {}
    }
}

fn blake3_of(bytes: &[u8]) -> Digest {
    Digest::blake3(*blake3::hash(bytes).as_bytes())
}
