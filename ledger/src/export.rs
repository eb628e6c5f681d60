//! A ledger as plain files, checkable with a hash function and Ed25519 alone.
//!
//! `entries.jsonl` holds the entries' bytes, one a line; `heads.txt` the signed
//! heads; `proofs.json` inclusion and consistency proofs; `artifacts/` the frozen
//! files by BLAKE3; `contract.json` the canonical contract. A folder that exists
//! is never written into, and [`check`] refuses files that it does not know.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use schemas::MAX_ENTRY_BYTES;
use schemas::digest::{Digest, decode_hex, encode_hex};
use schemas::entry::Entry;
use schemas::ids::RunId;
use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::frozen::FrozenContract;
use crate::head_file;
use crate::note::{self, NoteError, TreeHead};
use crate::reader::{ReadError, Reader};
use crate::tree::{self, Hash, Levels};

/// Format tag of `proofs.json`.
pub const PROOFS_FORMAT: &str = "proofs/1";

/// Largest file besides `entries.jsonl` and artifacts, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024 * 1024;

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
    let reader = Reader::open(ledger)?;
    let (_, run) = reader.identity()?;
    std::fs::create_dir(folder).map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => ExportError::Exists { path: folder.to_owned() },
        _ => ExportError::Io { path: folder.to_owned(), source },
    })?;
    let leaves = write_entries(&reader, &folder.join("entries.jsonl"))?;
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
            Err(ReadError::Contract { source: crate::frozen::FrozenError::Kind { .. }, .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let artifacts = reader.artifacts()?;
    let artifact_folder = folder.join("artifacts");
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
    let head =
        note::parse(newest).map_err(|source| ExportError::Head { path: ledger.to_owned(), source })?.head;
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

/// Reads an export back and checks everything in it: canonical bytes and index
/// of every entry, every head and its signature, every proof, the contract, and
/// every artifact. Heads must be signed by one of `public_keys` (64 hex digits
/// each) or, where that is empty, by the keys that the contract names.
///
/// # Errors
/// The first thing that does not hold, with its file and line.
pub fn check(folder: &Path, public_keys: &[String]) -> Result<ExportSummary, ExportError> {
    check_names(folder)?;
    let readme = folder.join("README.txt");
    if read_small(&readme)? != README.as_bytes() {
        let what = "it is not the description that this version writes".to_owned();
        return Err(ExportError::Content { path: readme, line: None, what });
    }
    let entries_path = folder.join("entries.jsonl");
    let (levels, first) = read_entries(&entries_path)?;
    let frozen = check_contract(folder, first.as_ref())?;
    let heads_path = folder.join("heads.txt");
    let heads = check_heads(&heads_path, &levels, frozen.as_ref(), public_keys)?;
    let content = |path: &Path, what: &str| ExportError::Content {
        path: path.to_owned(),
        line: None,
        what: what.to_owned(),
    };
    let newest = heads.last().ok_or_else(|| content(&heads_path, "no signed head"))?.clone();
    let beside = folder.join("head-beside.txt");
    if beside.exists() {
        let beside_heads = check_heads(&beside, &levels, frozen.as_ref(), public_keys)?;
        if beside_heads.iter().any(|head| !heads.contains(head)) {
            return Err(content(&beside, "a head that heads.txt does not hold"));
        }
    }
    check_proofs(&folder.join("proofs.json"), &levels, &heads)?;
    let num_artifacts = check_artifacts(&folder.join("artifacts"), first.as_ref())?;
    let (_, run) = note::parse_origin(&newest.origin)
        .ok_or_else(|| content(&heads_path, "an origin that is not a ledger's"))?;
    Ok(ExportSummary {
        head: newest,
        num_artifacts,
        num_entries: levels.size() as u64,
        num_heads: heads.len() as u64,
        run,
    })
}

/// A file that nothing accounts for could be taken for evidence.
fn check_names(folder: &Path) -> Result<(), ExportError> {
    const KNOWN: [&str; 7] = [
        "README.txt",
        "artifacts",
        "contract.json",
        "entries.jsonl",
        "head-beside.txt",
        "heads.txt",
        "proofs.json",
    ];
    for name in file_names(folder)? {
        if !KNOWN.contains(&name.as_str()) {
            let what = "a file that no export holds".to_owned();
            return Err(ExportError::Content { path: folder.join(name), line: None, what });
        }
    }
    Ok(())
}

fn file_names(folder: &Path) -> Result<Vec<String>, ExportError> {
    let io = |source| ExportError::Io { path: folder.to_owned(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        names.push(entry.map_err(io)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn read_small(path: &Path) -> Result<Vec<u8>, ExportError> {
    let io = |source| ExportError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(io)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let what = format!("larger than {MAX_FILE_BYTES} bytes");
        return Err(ExportError::Content { path: path.to_owned(), line: None, what });
    }
    Ok(bytes)
}

fn read_entries(path: &Path) -> Result<(Levels, Option<Entry>), ExportError> {
    let io = |source| ExportError::Io { path: path.to_owned(), source };
    let mut file = BufReader::new(File::open(path).map_err(io)?);
    let mut leaves: Vec<Hash> = Vec::new();
    let mut first = None;
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = MAX_ENTRY_BYTES as u64 + 2;
        let num_bytes = (&mut file).take(limit).read_until(b'\n', &mut line).map_err(io)?;
        if num_bytes == 0 {
            return Ok((Levels::new(leaves), first));
        }
        let index = leaves.len() as u64;
        let wrong =
            |what: String| ExportError::Content { path: path.to_owned(), line: Some(index + 1), what };
        if line.pop() != Some(b'\n') {
            return Err(wrong("the line is incomplete or longer than an entry may be".to_owned()));
        }
        canonical::check_entry_json(&line).map_err(|error| wrong(error.to_string()))?;
        let entry = Entry::from_slice(&line).map_err(|error| wrong(format!("not an entry: {error}")))?;
        if entry.index != index {
            return Err(wrong(format!("the line holds entry {}", entry.index)));
        }
        // A null member that is left out would read as the same entry.
        if canonical::entry_json(&entry).ok().as_deref() != Some(line.as_slice()) {
            return Err(wrong("a member is missing or spelled in another way".to_owned()));
        }
        leaves.push(tree::leaf_hash(&line));
        if index == 0 {
            first = Some(entry);
        }
    }
}

fn check_contract(folder: &Path, first: Option<&Entry>) -> Result<Option<FrozenContract>, ExportError> {
    let path = folder.join("contract.json");
    let wrong = |what: String| ExportError::Content { path: path.clone(), line: None, what };
    let frozen = match first.map(FrozenContract::from_entry) {
        Some(Ok(frozen)) => frozen,
        None | Some(Err(crate::frozen::FrozenError::Kind { .. })) => {
            return if path.exists() { Err(wrong("entry 0 holds no contract".to_owned())) } else { Ok(None) };
        }
        Some(Err(error)) => return Err(wrong(error.to_string())),
    };
    if read_small(&path)? != frozen.canonical {
        return Err(wrong("it is not the contract that entry 0 holds".to_owned()));
    }
    Ok(Some(frozen))
}

fn check_heads(
    path: &Path,
    levels: &Levels,
    frozen: Option<&FrozenContract>,
    public_keys: &[String],
) -> Result<Vec<TreeHead>, ExportError> {
    let wrong = |what: String| ExportError::Content { path: path.to_owned(), line: None, what };
    let bytes = read_small(path)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| wrong("not text".to_owned()))?;
    let notes = head_file::split_notes(text);
    let rebuilt: String = notes.iter().map(|note| format!("{note}\n")).collect();
    if rebuilt != text {
        return Err(wrong("text that is not a complete head".to_owned()));
    }
    let mut heads: Vec<TreeHead> = Vec::new();
    for text in &notes {
        let failed = |source| ExportError::Head { path: path.to_owned(), source };
        let parsed = note::parse(text).map_err(failed)?;
        if parsed.signatures.len() != 1 {
            return Err(wrong(format!("the head of size {} has other signatures besides", parsed.head.size)));
        }
        let keys = head_keys(frozen, public_keys, parsed.head.size);
        if keys.is_empty() {
            return Err(wrong("no public key to check heads with; name one".to_owned()));
        }
        let results: Vec<_> = keys.iter().map(|public| note::verify(text, public)).collect();
        if !results.iter().any(Result::is_ok) {
            let error = results.into_iter().find_map(Result::err);
            return Err(error.map_or_else(|| wrong("no key".to_owned()), failed));
        }
        let head = parsed.head;
        let size = usize::try_from(head.size).unwrap_or(usize::MAX);
        if levels.root(size) != Some(head.root) {
            return Err(wrong(format!("the entries do not give the root signed at size {}", head.size)));
        }
        if heads.last().is_some_and(|last| last.size >= head.size || last.origin != head.origin) {
            return Err(wrong(format!("the head of size {} does not follow the one before", head.size)));
        }
        heads.push(head);
    }
    Ok(heads)
}

fn head_keys(frozen: Option<&FrozenContract>, public_keys: &[String], size: u64) -> Vec<String> {
    let Some(frozen) = frozen.filter(|_| public_keys.is_empty()) else { return public_keys.to_vec() };
    let mut keys = vec![frozen.contract.keys.trainer.public.clone()];
    if size <= 1 {
        keys.push(frozen.contract.keys.owner.public.clone());
    }
    keys
}

fn check_proofs(path: &Path, levels: &Levels, heads: &[TreeHead]) -> Result<(), ExportError> {
    let wrong = |what: String| ExportError::Content { path: path.to_owned(), line: None, what };
    let bytes = read_small(path)?;
    canonical::check_entry_json(&bytes).map_err(|error| wrong(error.to_string()))?;
    let proofs: Proofs = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    if proofs.format != PROOFS_FORMAT || proofs.num_entries != levels.size() as u64 {
        return Err(wrong("another format or number of entries".to_owned()));
    }
    let root = levels.root(levels.size()).unwrap_or_else(tree::empty_root);
    if proofs.root != encode_hex(&root) {
        return Err(wrong("the entries do not give its root".to_owned()));
    }
    let hashes = |texts: &[String]| -> Option<Vec<Hash>> {
        texts.iter().map(|text| decode_hex(text)?.try_into().ok()).collect()
    };
    let pairs: Vec<_> = heads.windows(2).collect();
    if proofs.consistency.len() != pairs.len() {
        return Err(wrong("not one consistency proof for each pair of heads".to_owned()));
    }
    for (stated, pair) in proofs.consistency.iter().zip(pairs) {
        let (old, new) = (&pair[0], &pair[1]);
        let holds = (stated.from, stated.to) == (old.size, new.size)
            && hashes(&stated.proof).is_some_and(|proof| {
                tree::verify_consistency(old.size, &old.root, new.size, &new.root, &proof)
            });
        if !holds {
            return Err(wrong(format!("the consistency proof {} to {} fails", stated.from, stated.to)));
        }
    }
    let newest = heads.last();
    for stated in &proofs.inclusion {
        let leaf = usize::try_from(stated.index).ok().and_then(|index| levels.leaf(index));
        let holds = leaf.zip(newest).zip(hashes(&stated.proof)).is_some_and(|((leaf, head), proof)| {
            encode_hex(&leaf) == stated.leaf
                && head.size == stated.size
                && tree::verify_inclusion(&head.root, head.size, stated.index, &leaf, &proof)
        });
        if !holds {
            return Err(wrong(format!("the inclusion proof of entry {} fails", stated.index)));
        }
    }
    Ok(())
}

fn check_artifacts(folder: &Path, first: Option<&Entry>) -> Result<u64, ExportError> {
    let mut num_artifacts = 0;
    let names = file_names(folder)?;
    for name in &names {
        let path = folder.join(name);
        let mut hasher = blake3::Hasher::new();
        let hashed = File::open(&path).and_then(|file| hasher.update_reader(file).map(|_| ()));
        hashed.map_err(|source| ExportError::Io { path: path.clone(), source })?;
        if hasher.finalize().to_hex().as_str() != name {
            let what = "its bytes do not have the digest that its name says".to_owned();
            return Err(ExportError::Content { path, line: None, what });
        }
        num_artifacts += 1;
    }
    if let Some(schemas::body::Body::ContractFrozen(halves)) = first.map(|entry| &entry.body) {
        let missing = |digest: &Digest| !names.contains(&digest.hex());
        if let Some(stored) = halves.det.artifacts.iter().find(|stored| missing(&stored.digest)) {
            let what = format!("{} of the contract is missing", stored.pointer);
            return Err(ExportError::Content { path: folder.join(stored.digest.hex()), line: None, what });
        }
    }
    Ok(num_artifacts)
}
