//! A ledger as plain files, checkable with a hash function and Ed25519 alone.
//!
//! `entries.jsonl` holds the entries' bytes, one a line; `heads.txt` the signed
//! heads; `proofs.json` inclusion and consistency proofs; `artifacts/` the frozen
//! files by BLAKE3; `contract.json` the canonical contract. A folder that exists
//! is never written into, and [`check`] refuses files that it does not know.
//! [`crate::import`] makes a ledger of it again.

mod check;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use schemas::digest::encode_hex;
use schemas::ids::RunId;
use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::frozen::FrozenError;
use crate::note::{self, NoteError, TreeHead};
use crate::reader::{ReadError, Reader};
use crate::tree::{self, Hash, Levels};

pub use check::check;
pub(crate) use check::{CheckedHead, Inspected, Lines, inspect};

/// Format tag of `proofs.json`.
pub const PROOFS_FORMAT: &str = "proofs/1";

/// File of the entries.
pub(crate) const ENTRIES: &str = "entries.jsonl";

/// Folder of the artifacts.
pub(crate) const ARTIFACTS: &str = "artifacts";

const README: &str = "\
This folder is the export of one ledger. It can be checked without SQLite:

entries.jsonl   the bytes of entry 0, 1, 2, ..., each followed by one newline
heads.txt       signed tree heads (C2SP signed notes), each followed by an empty line
head-beside.txt the last head of the head file beside the ledger, where there was one
proofs.json     inclusion and consistency proofs, hashes in hex
contract.json   the frozen contract's canonical bytes (only for a run)
artifacts/      the files that the contract names and the ledger stores, named by BLAKE3

To check a head of size N:
1. leaf hash of an entry: SHA-256 of byte 0x00 and the line without its newline;
2. root of one leaf: its leaf hash; of n leaves: with k the largest power of two
   below n, SHA-256 of byte 0x01, the root of the first k and the root of the rest;
3. the root of the first N entries in base64 is the third line of the head, N the second;
4. the signature line's base64 is 4 bytes of key hash and 64 bytes of Ed25519 signature
   over the text before the empty line, with its last newline.

The shapes of entries are in schemas/json/entry.schema.json of the project, the
formats in docs/FORMAT.md. Whether the run is what it claims is for `ledger audit`.
";

/// Proof that one entry is in the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InclusionProof {
    /// Which entry.
    pub index: u64,
    /// Its leaf hash, 64 hex digits.
    pub leaf: String,
    /// Sibling hashes from the bottom up.
    pub proof: Vec<String>,
    /// Size of the tree.
    pub size: u64,
}

/// Proof that one tree is the beginning of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsistencyProof {
    /// Size of the smaller tree.
    pub from: u64,
    /// Hashes in the order of RFC 6962, 2.1.2.
    pub proof: Vec<String>,
    /// Size of the larger tree.
    pub to: u64,
}

/// Content of `proofs.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proofs {
    /// Between each head and the next.
    pub consistency: Vec<ConsistencyProof>,
    /// [`PROOFS_FORMAT`].
    pub format: String,
    /// Of the first and the last entry under the newest head.
    pub inclusion: Vec<InclusionProof>,
    /// Entries in `entries.jsonl`; may be more than the newest head covers.
    pub num_entries: u64,
    /// Root over all of them, 64 hex digits; unsigned where no head covers it.
    pub root: String,
}

/// What an export holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportSummary {
    /// Newest head.
    pub head: TreeHead,
    /// Artifacts.
    pub num_artifacts: u64,
    /// Entries.
    pub num_entries: u64,
    /// Heads.
    pub num_heads: u64,
    /// The run, or the ledger's own identifier.
    pub run: RunId,
}

/// An export that could not be made or does not hold.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The ledger cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The folder exists.
    #[error("{path} exists and is never written into; name another folder")]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("cannot access {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file does not say what it must.
    #[error("{path}{}: {what}", line_text(*.line))]
    Content {
        /// The file.
        path: PathBuf,
        /// Line from 1, where one is concerned.
        line: Option<u64>,
        /// What is wrong.
        what: String,
    },
    /// A head does not verify.
    #[error("{path}: a head does not verify")]
    Head {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: NoteError,
    },
}

fn line_text(line: Option<u64>) -> String {
    line.map_or_else(String::new, |line| format!(", line {line}"))
}

/// Writes the export of a ledger into a new folder.
///
/// # Errors
/// When the ledger cannot be read, the folder exists, or a file cannot be written.
pub fn export(ledger: &Path, folder: &Path) -> Result<ExportSummary, ExportError> {
    export_from(&Reader::open(ledger)?, folder)
}

/// The same of a ledger that is open: as it was when it was opened.
pub(crate) fn export_from(reader: &Reader, folder: &Path) -> Result<ExportSummary, ExportError> {
    let (_, run) = reader.identity()?;
    std::fs::create_dir(folder).map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => ExportError::Exists { path: folder.to_owned() },
        _ => ExportError::Io { path: folder.to_owned(), source },
    })?;
    let leaves = write_entries(reader, &folder.join(ENTRIES))?;
    let num_entries = leaves.len() as u64;
    let heads = reader.heads()?;
    let notes: String = heads.iter().map(|head| format!("{}\n", head.note)).collect();
    write_file(&folder.join("heads.txt"), notes.as_bytes())?;
    if let Some(note) = reader.head_beside() {
        write_file(&folder.join("head-beside.txt"), format!("{note}\n").as_bytes())?;
    }
    if reader.num_entries() > 0 {
        // A ledger without a contract has none to write; a damaged one is an error.
        match reader.contract() {
            Ok(frozen) => write_file(&folder.join("contract.json"), &frozen.canonical)?,
            Err(ReadError::Contract { source: FrozenError::Kind { .. }, .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let artifacts = reader.artifacts()?;
    let artifact_folder = folder.join(ARTIFACTS);
    std::fs::create_dir(&artifact_folder)
        .map_err(|source| ExportError::Io { path: artifact_folder.clone(), source })?;
    for digest in &artifacts {
        write_file(&artifact_folder.join(digest.hex()), &reader.artifact(digest)?)?;
    }
    let sizes: Vec<u64> = heads.iter().map(|head| head.size).collect();
    let proofs = make_proofs(&Levels::new(leaves), &sizes);
    let proofs = canonical::entry_json(&proofs).map_err(|error| ExportError::Content {
        path: folder.join("proofs.json"),
        line: None,
        what: error.to_string(),
    })?;
    write_file(&folder.join("proofs.json"), &proofs)?;
    write_file(&folder.join("README.txt"), README.as_bytes())?;
    let newest = heads.last().map_or("", |head| head.note.as_str());
    let head = note::parse(newest)
        .map_err(|source| ExportError::Head { path: reader.path().to_owned(), source })?
        .head;
    let (num_artifacts, num_heads) = (artifacts.len() as u64, heads.len() as u64);
    Ok(ExportSummary { head, num_artifacts, num_entries, num_heads, run })
}

fn write_entries(reader: &Reader, path: &Path) -> Result<Vec<Hash>, ExportError> {
    let io = |source| ExportError::Io { path: path.to_owned(), source };
    let mut file = BufWriter::new(File::create_new(path).map_err(io)?);
    let mut leaves = Vec::new();
    for row in reader.rows(0) {
        let (index, bytes) = row?;
        // An entry with a newline would not come back as it was.
        if bytes.contains(&b'\n') {
            let what = "its bytes hold a newline, so it is not canonical; run `ledger audit`".to_owned();
            let path = reader.path().to_owned();
            return Err(ExportError::Content { path, line: Some(index + 1), what });
        }
        leaves.push(tree::leaf_hash(&bytes));
        file.write_all(&bytes).and_then(|()| file.write_all(b"\n")).map_err(io)?;
    }
    let file = file.into_inner().map_err(|error| io(error.into_error()))?;
    file.sync_all().map_err(io)?;
    Ok(leaves)
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), ExportError> {
    let written = File::create_new(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|source| ExportError::Io { path: path.to_owned(), source })
}

fn hex_list(hashes: Option<Vec<Hash>>) -> Vec<String> {
    hashes.unwrap_or_default().iter().map(|hash| encode_hex(hash)).collect()
}

fn make_proofs(levels: &Levels, sizes: &[u64]) -> Proofs {
    let position = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    let consistency = sizes.windows(2).map(|pair| ConsistencyProof {
        from: pair[0],
        proof: hex_list(levels.consistency_proof(position(pair[0]), position(pair[1]))),
        to: pair[1],
    });
    let size = sizes.last().copied().unwrap_or(0);
    let mut indices = vec![0, size.saturating_sub(1)];
    indices.dedup();
    let inclusion = indices.into_iter().filter(|index| *index < size).filter_map(|index| {
        Some(InclusionProof {
            index,
            leaf: encode_hex(&levels.leaf(position(index))?),
            proof: hex_list(levels.inclusion_proof(position(index), position(size))),
            size,
        })
    });
    Proofs {
        consistency: consistency.collect(),
        format: PROOFS_FORMAT.to_owned(),
        inclusion: inclusion.collect(),
        num_entries: levels.size() as u64,
        root: encode_hex(&levels.root(levels.size()).unwrap_or_else(tree::empty_root)),
    }
}
