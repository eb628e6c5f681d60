//! Reading an export back: everything in it is checked, and nothing is believed
//! because a file of the folder says so. What the run is worth is not decided here.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use schemas::MAX_ENTRY_BYTES;
use schemas::digest::{Digest, decode_hex, encode_hex};
use schemas::entry::Entry;

use super::{ARTIFACTS, ENTRIES, ExportError, ExportSummary, PROOFS_FORMAT, Proofs, README};
use crate::canonical;
use crate::frozen::{FrozenContract, FrozenError};
use crate::head_file;
use crate::note::{self, TreeHead};
use crate::tree::{self, Hash, Levels};

/// Largest file besides `entries.jsonl` and artifacts, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// Reads an export back and checks everything in it: canonical bytes, index and
/// idempotency key of every entry, every head and its signature, every proof,
/// the contract, and every artifact. Heads must be signed by one of
/// `public_keys` (64 hex digits each) or, where that is empty, by the keys that
/// the contract names.
///
/// # Errors
/// The first thing that does not hold, with its file and line.
pub fn check(folder: &Path, public_keys: &[String]) -> Result<ExportSummary, ExportError> {
    Ok(inspect(folder, public_keys)?.summary)
}

/// A head of an export that holds, with its note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckedHead {
    pub(crate) head: TreeHead,
    pub(crate) note: String,
}

/// An export that holds, with what an import takes from it.
pub(crate) struct Inspected {
    /// In ascending order.
    pub(crate) artifacts: Vec<Digest>,
    /// The last head of the head file beside the exported ledger.
    pub(crate) beside: Option<CheckedHead>,
    /// Smallest first; at least one.
    pub(crate) heads: Vec<CheckedHead>,
    /// Idempotency keys in the order of the entries; each occurs once.
    pub(crate) keys: Vec<[u8; 16]>,
    /// Over all entries.
    pub(crate) levels: Levels,
    pub(crate) summary: ExportSummary,
}

/// Does what [`check`] says.
pub(crate) fn inspect(folder: &Path, public_keys: &[String]) -> Result<Inspected, ExportError> {
    check_names(folder)?;
    let readme = folder.join("README.txt");
    if read_small(&readme)? != README.as_bytes() {
        let what = "it is not the description that this version writes".to_owned();
        return Err(ExportError::Content { path: readme, line: None, what });
    }
    let Entries { first, keys, levels } = read_entries(&folder.join(ENTRIES))?;
    let frozen = check_contract(folder, first.as_ref())?;
    let heads_path = folder.join("heads.txt");
    let heads = check_heads(&heads_path, &levels, frozen.as_ref(), public_keys)?;
    let content = |path: &Path, what: &str| ExportError::Content {
        path: path.to_owned(),
        line: None,
        what: what.to_owned(),
    };
    let newest = heads.last().ok_or_else(|| content(&heads_path, "no signed head"))?.head.clone();
    let beside_path = folder.join("head-beside.txt");
    let mut beside = None;
    if beside_path.exists() {
        let beside_heads = check_heads(&beside_path, &levels, frozen.as_ref(), public_keys)?;
        if beside_heads.iter().any(|head| !heads.contains(head)) {
            return Err(content(&beside_path, "a head that heads.txt does not hold"));
        }
        beside = beside_heads.into_iter().next_back();
    }
    check_proofs(&folder.join("proofs.json"), &levels, &heads)?;
    let artifacts = check_artifacts(&folder.join(ARTIFACTS), first.as_ref())?;
    let (_, run) = note::parse_origin(&newest.origin)
        .ok_or_else(|| content(&heads_path, "an origin that is not a ledger's"))?;
    let summary = ExportSummary {
        head: newest,
        num_artifacts: artifacts.len() as u64,
        num_entries: levels.size() as u64,
        num_heads: heads.len() as u64,
        run,
    };
    Ok(Inspected { artifacts, beside, heads, keys, levels, summary })
}

/// A file that nothing accounts for could be taken for evidence.
fn check_names(folder: &Path) -> Result<(), ExportError> {
    const KNOWN: [&str; 7] =
        ["README.txt", ARTIFACTS, "contract.json", ENTRIES, "head-beside.txt", "heads.txt", "proofs.json"];
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

/// What the entries of an export give.
struct Entries {
    first: Option<Entry>,
    keys: Vec<[u8; 16]>,
    levels: Levels,
}

fn read_entries(path: &Path) -> Result<Entries, ExportError> {
    let mut lines = Lines::open(path)?;
    let (mut leaves, mut keys, mut first) = (Vec::new(), Vec::new(), None);
    // Where each key was met first.
    let mut known: HashMap<[u8; 16], u64> = HashMap::new();
    while let Some((index, line)) = lines.next_line()? {
        let wrong =
            |what: String| ExportError::Content { path: path.to_owned(), line: Some(index + 1), what };
        canonical::check_entry_json(line).map_err(|error| wrong(error.to_string()))?;
        let entry = Entry::from_slice(line).map_err(|error| wrong(format!("not an entry: {error}")))?;
        if entry.index != index {
            return Err(wrong(format!("the line holds entry {}", entry.index)));
        }
        // A null member that is left out would read as the same entry.
        if canonical::entry_json(&entry).ok().as_deref() != Some(line) {
            return Err(wrong("a member is missing or spelled in another way".to_owned()));
        }
        let idem = &entry.header.idem.0;
        let key = decode_hex(idem).and_then(|bytes| bytes.try_into().ok());
        let key = key.ok_or_else(|| wrong(format!("{idem:?} is not an idempotency key")))?;
        if let Some(earlier) = known.insert(key, index) {
            return Err(wrong(format!("its idempotency key {idem} belongs to entry {earlier}")));
        }
        leaves.push(tree::leaf_hash(line));
        keys.push(key);
        if index == 0 {
            first = Some(entry);
        }
    }
    Ok(Entries { first, keys, levels: Levels::new(leaves) })
}

/// The entries of an export, one at a time, in bounded memory.
pub(crate) struct Lines {
    file: BufReader<File>,
    line: Vec<u8>,
    next: u64,
    path: PathBuf,
}

impl Lines {
    /// Opens `entries.jsonl`.
    pub(crate) fn open(path: &Path) -> Result<Self, ExportError> {
        let file = File::open(path).map_err(|source| ExportError::Io { path: path.to_owned(), source })?;
        Ok(Self { file: BufReader::new(file), line: Vec::new(), next: 0, path: path.to_owned() })
    }

    /// Index and bytes of the next entry; `None` at the end.
    pub(crate) fn next_line(&mut self) -> Result<Option<(u64, &[u8])>, ExportError> {
        self.line.clear();
        let limit = MAX_ENTRY_BYTES as u64 + 2;
        let read = (&mut self.file).take(limit).read_until(b'\n', &mut self.line);
        let num_bytes = read.map_err(|source| ExportError::Io { path: self.path.clone(), source })?;
        if num_bytes == 0 {
            return Ok(None);
        }
        let index = self.next;
        self.next += 1;
        if self.line.pop() != Some(b'\n') {
            let what = "the line is incomplete or longer than an entry may be".to_owned();
            return Err(ExportError::Content { path: self.path.clone(), line: Some(index + 1), what });
        }
        Ok(Some((index, &self.line)))
    }
}

fn check_contract(folder: &Path, first: Option<&Entry>) -> Result<Option<FrozenContract>, ExportError> {
    let path = folder.join("contract.json");
    let wrong = |what: String| ExportError::Content { path: path.clone(), line: None, what };
    let frozen = match first.map(FrozenContract::from_entry) {
        Some(Ok(frozen)) => frozen,
        None | Some(Err(FrozenError::Kind { .. })) => {
            let what = format!("entry 0 of {ENTRIES} holds no contract");
            return if path.exists() { Err(wrong(what)) } else { Ok(None) };
        }
        Some(Err(error)) => {
            let (path, what) = (folder.join(ENTRIES), error.to_string());
            return Err(ExportError::Content { path, line: Some(1), what });
        }
    };
    if read_small(&path)? != frozen.canonical {
        return Err(wrong(format!("it is not the contract that entry 0 of {ENTRIES} holds")));
    }
    Ok(Some(frozen))
}

fn check_heads(
    path: &Path,
    levels: &Levels,
    frozen: Option<&FrozenContract>,
    public_keys: &[String],
) -> Result<Vec<CheckedHead>, ExportError> {
    let wrong = |what: String| ExportError::Content { path: path.to_owned(), line: None, what };
    let bytes = read_small(path)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| wrong("not text".to_owned()))?;
    let notes = head_file::split_notes(text);
    let rebuilt: String = notes.iter().map(|note| format!("{note}\n")).collect();
    if rebuilt != text {
        return Err(wrong("text that is not a complete head".to_owned()));
    }
    let mut heads: Vec<CheckedHead> = Vec::new();
    for text in notes {
        let failed = |source| ExportError::Head { path: path.to_owned(), source };
        let parsed = note::parse(&text).map_err(failed)?;
        if parsed.signatures.len() != 1 {
            return Err(wrong(format!("the head of size {} has other signatures besides", parsed.head.size)));
        }
        let keys = head_keys(frozen, public_keys, parsed.head.size);
        if keys.is_empty() {
            return Err(wrong("no public key to check heads with; name one".to_owned()));
        }
        let results: Vec<_> = keys.iter().map(|public| note::verify(&text, public)).collect();
        if !results.iter().any(Result::is_ok) {
            let error = results.into_iter().find_map(Result::err);
            return Err(error.map_or_else(|| wrong("no key".to_owned()), failed));
        }
        let head = parsed.head;
        let size = usize::try_from(head.size).unwrap_or(usize::MAX);
        if size > levels.size() {
            let num_entries = levels.size();
            return Err(wrong(format!(
                "a head was signed over {size} entries, {ENTRIES} ends at {num_entries}"
            )));
        }
        let last = heads.last().map(|last| &last.head);
        if levels.root(size) != Some(head.root) {
            // The head is signed, and what the one before covers is in order.
            let first = last.map_or(0, |last| last.size) + 1;
            return Err(wrong(format!(
                "the entries do not give the root signed at size {size}: of {ENTRIES} one of the lines {first} to {size} \
                 is another one"
            )));
        }
        if last.is_some_and(|last| last.size >= head.size || last.origin != head.origin) {
            return Err(wrong(format!("the head of size {} does not follow the one before", head.size)));
        }
        heads.push(CheckedHead { head, note: text });
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

fn check_proofs(path: &Path, levels: &Levels, heads: &[CheckedHead]) -> Result<(), ExportError> {
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
        let (old, new) = (&pair[0].head, &pair[1].head);
        let holds = (stated.from, stated.to) == (old.size, new.size)
            && hashes(&stated.proof).is_some_and(|proof| {
                tree::verify_consistency(old.size, &old.root, new.size, &new.root, &proof)
            });
        if !holds {
            return Err(wrong(format!("the consistency proof {} to {} fails", stated.from, stated.to)));
        }
    }
    let newest = heads.last().map(|newest| &newest.head);
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

fn check_artifacts(folder: &Path, first: Option<&Entry>) -> Result<Vec<Digest>, ExportError> {
    let mut artifacts = Vec::new();
    let names = file_names(folder)?;
    for name in &names {
        let path = folder.join(name);
        let mut hasher = blake3::Hasher::new();
        let hashed = File::open(&path).and_then(|file| hasher.update_reader(file).map(|_| ()));
        hashed.map_err(|source| ExportError::Io { path: path.clone(), source })?;
        let digest = hasher.finalize();
        if digest.to_hex().as_str() != name {
            let what = "its bytes do not have the digest that its name says".to_owned();
            return Err(ExportError::Content { path, line: None, what });
        }
        artifacts.push(Digest::blake3(*digest.as_bytes()));
    }
    if let Some(schemas::body::Body::ContractFrozen(halves)) = first.map(|entry| &entry.body) {
        let missing = |digest: &Digest| !names.contains(&digest.hex());
        if let Some(stored) = halves.det.artifacts.iter().find(|stored| missing(&stored.digest)) {
            let what = format!("{} of the contract is missing", stored.pointer);
            return Err(ExportError::Content { path: folder.join(stored.digest.hex()), line: None, what });
        }
        let is_named = |digest: &&Digest| halves.det.artifacts.iter().any(|named| named.digest == **digest);
        if let Some(other) = artifacts.iter().find(|digest| !is_named(digest)) {
            let what = "the contract names no such artifact; remove the file".to_owned();
            return Err(ExportError::Content { path: folder.join(other.hex()), line: None, what });
        }
    }
    Ok(artifacts)
}
