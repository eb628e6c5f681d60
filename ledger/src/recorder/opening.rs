//! What has to hold before a ledger is written to.
//!
//! Every stored entry is read and hashed, every head in the database and the
//! last one outside it is compared with the tree, and the key has to be the one
//! that signs this ledger's heads. Rows beyond the last head are what a crash
//! left after its last durable point: they are kept and come under the next head.

use std::path::{Path, PathBuf};

use schemas::entry::{Entry, LedgerKind};
use schemas::ids::RunId;

use super::RecorderError;
use crate::frozen::FrozenContract;
use crate::head_file::{self, HeadFile};
use crate::keys::{self, KeyPair, Role};
use crate::lock::WriterLock;
use crate::note::{self, TreeHead};
use crate::snapshot::WriterMark;
use crate::store::{HeadRow, Store, StoreError};
use crate::tree::Frontier;

/// A ledger that may be written to.
pub(super) struct Opened {
    pub(super) contract: Option<FrozenContract>,
    pub(super) frontier: Frontier,
    pub(super) head_file: HeadFile,
    pub(super) kind: LedgerKind,
    pub(super) last_time_us: u64,
    pub(super) lock: WriterLock,
    pub(super) mark: WriterMark,
    pub(super) origin: String,
    pub(super) run: RunId,
    pub(super) signed: TreeHead,
    pub(super) store: Store,
}

/// What reading the whole ledger gave.
struct Inspected {
    contract: Option<FrozenContract>,
    frontier: Frontier,
    head_file: HeadFile,
    kind: LedgerKind,
    last_time_us: u64,
    run: RunId,
    signed: TreeHead,
}

pub(super) fn open(path: &Path, key: &KeyPair) -> Result<Opened, RecorderError> {
    if !path.exists() {
        return Err(StoreError::Missing { path: path.to_owned() }.into());
    }
    let lock = WriterLock::acquire(path)?;
    let mut store = Store::open(path)?;
    let mark = WriterMark::set(path).map_err(|source| StoreError::Io { path: path.to_owned(), source })?;
    match inspect(path, key, &mut store) {
        Ok(Inspected { contract, frontier, head_file, kind, last_time_us, run, signed }) => {
            let origin = signed.origin.clone();
            Ok(Opened {
                contract,
                frontier,
                head_file,
                kind,
                last_time_us,
                lock,
                mark,
                origin,
                run,
                signed,
                store,
            })
        }
        Err(error) => {
            // Dropping a connection closes it later, on another thread; the
            // lock must not be free before.
            store.close()?;
            Err(error)
        }
    }
}

fn inspect(path: &Path, key: &KeyPair, store: &mut Store) -> Result<Inspected, RecorderError> {
    let head_path = head_file::path_for(path);
    let (mut head_file, external) = HeadFile::open(&head_path)?;
    let heads = store.heads()?;
    let newest = heads.last().ok_or_else(|| RecorderError::NoHead { path: path.to_owned() })?;
    let malformed = |path: &Path| {
        let path = path.to_owned();
        move |source| RecorderError::Head { path, source }
    };
    let signed = note::parse(&newest.note).map_err(malformed(path))?.head;
    let external_head = note::parse(&external).map_err(malformed(&head_path))?.head;
    let (kind, run) = note::parse_origin(&signed.origin)
        .ok_or(note::NoteError::Malformed { what: "its origin is not that of a ledger" })
        .map_err(malformed(path))?;

    let sizes: Vec<u64> = heads.iter().map(|head| head.size).collect();
    let scan = store.scan(&sizes)?;
    let num_entries = scan.frontier.size();
    let behind = |head_path: PathBuf, head_size| RecorderError::Behind {
        path: path.to_owned(),
        head_path,
        num_entries,
        head_size,
    };
    if external_head.size > num_entries {
        return Err(behind(head_path, external_head.size));
    }
    check_heads(path, &heads, &scan.roots, &signed.origin)?;
    check_external(path, &head_path, &external_head, &signed, &heads)?;

    let contract = match (&scan.first, kind) {
        (Some(bytes), LedgerKind::Run) => Some(read_contract(path, bytes)?),
        (None, LedgerKind::Run) => return Err(behind(path.to_owned(), signed.size)),
        _ => None,
    };
    check_key(path, key, kind, contract.as_ref(), &newest.note, &external, &head_path)?;
    let last_time_us = match &scan.last {
        Some(bytes) => read_entry(path, num_entries - 1, bytes)?.time_us,
        None => 0,
    };
    if external_head.size < signed.size {
        // A crash came between the commit of this head and its publication.
        head_file.append(&newest.note)?;
    }
    Ok(Inspected { contract, frontier: scan.frontier, head_file, kind, last_time_us, run, signed })
}

/// Every head of the database agrees with the entries.
fn check_heads(
    path: &Path,
    heads: &[HeadRow],
    roots: &[Option<[u8; 32]>],
    origin: &str,
) -> Result<(), RecorderError> {
    for (row, root) in heads.iter().zip(roots) {
        let head = note::parse(&row.note)
            .map_err(|source| RecorderError::Head { path: path.to_owned(), source })?
            .head;
        if head.origin != origin {
            let (expected, actual) = (origin.to_owned(), head.origin);
            return Err(RecorderError::Origin { path: path.to_owned(), expected, actual });
        }
        if head.size != row.size || Some(head.root) != *root {
            return Err(RecorderError::Root { path: path.to_owned(), size: head.size });
        }
    }
    Ok(())
}

/// The external head is one of the database's: it is appended only after it.
fn check_external(
    path: &Path,
    head_path: &Path,
    external: &TreeHead,
    newest: &TreeHead,
    heads: &[HeadRow],
) -> Result<(), RecorderError> {
    if external.origin != newest.origin {
        return Err(RecorderError::Origin {
            path: head_path.to_owned(),
            expected: newest.origin.clone(),
            actual: external.origin.clone(),
        });
    }
    let same = heads
        .iter()
        .filter(|row| row.size == external.size)
        .any(|row| note::parse(&row.note).is_ok_and(|parsed| parsed.head.root == external.root));
    if same { Ok(()) } else { Err(RecorderError::Root { path: path.to_owned(), size: external.size }) }
}

fn read_entry(path: &Path, index: u64, bytes: &[u8]) -> Result<Entry, RecorderError> {
    let path = path.to_owned();
    let entry = Entry::from_slice(bytes);
    let entry = entry.map_err(|source| RecorderError::Entry { path: path.clone(), index, source })?;
    if entry.index == index {
        return Ok(entry);
    }
    let what = format!("its bytes say that it is entry {}", entry.index);
    Err(StoreError::Row { path, index, what }.into())
}

fn read_contract(path: &Path, bytes: &[u8]) -> Result<FrozenContract, RecorderError> {
    let entry = read_entry(path, 0, bytes)?;
    FrozenContract::from_entry(&entry)
        .map_err(|source| RecorderError::Contract { path: path.to_owned(), source })
}

/// The given key is the one that signs this ledger's heads, and the newest
/// heads are signed as they must be.
fn check_key(
    path: &Path,
    key: &KeyPair,
    kind: LedgerKind,
    contract: Option<&FrozenContract>,
    newest: &str,
    external: &str,
    head_path: &Path,
) -> Result<(), RecorderError> {
    let wrong_key =
        |expected: String| RecorderError::WrongKey { path: path.to_owned(), expected, given: key.id() };
    let mut signers = vec![key.public_hex()];
    if let Some(frozen) = contract {
        let trainer = &frozen.contract.keys.trainer.public;
        if key.role() != Role::Trainer || *trainer != key.public_hex() {
            let public = keys::public_from_hex(trainer).map(|public| public.to_bytes());
            let expected =
                public.map_or_else(|| trainer.clone(), |bytes| keys::key_id(Role::Trainer, &bytes).0);
            return Err(wrong_key(expected));
        }
        signers.push(frozen.contract.keys.owner.public.clone());
    } else if kind == LedgerKind::Qualification && key.role() != Role::Qualifier {
        return Err(wrong_key(format!("of role {}", Role::Qualifier)));
    } else if kind == LedgerKind::Campaign && key.role() != Role::Owner {
        return Err(wrong_key(format!("of role {}", Role::Owner)));
    }
    for (note, path) in [(newest, path), (external, head_path)] {
        let mut failure = None;
        for (position, public) in signers.iter().enumerate() {
            match note::verify(note, public) {
                // The owner signs the freeze and nothing after it.
                Ok(head) if position == 0 || head.size <= 1 => {
                    failure = None;
                    break;
                }
                Ok(head) => {
                    let what = note::NoteError::Signature {
                        origin: head.origin,
                        size: head.size,
                        public: signers[0].clone(),
                    };
                    failure = Some(what);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if let Some(source) = failure {
            if contract.is_none() {
                return Err(wrong_key("that signed its heads".to_owned()));
            }
            return Err(RecorderError::Head { path: path.to_owned(), source });
        }
    }
    Ok(())
}
