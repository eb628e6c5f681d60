//! Makes a changed record whole again, as an attacker with keys would.
//!
//! [`Record::seal`] recomputes what follows from what was changed: the contract's
//! digest and signature and the run's identifier (with the owner's key), digests
//! and sizes of replaced files in manifests and entries, indices and what refers
//! to an entry by its index, idempotency keys that would occur twice, canonical
//! bytes, leaf hashes, roots, and a head at every size that had one, in the
//! database and beside it. What no key of the attacker can make stays as it
//! was: a trainer who changes entry 0 leaves the owner's signature behind.
//!
//! Of what an entry *says* nothing is recomputed: counters, values and digests of
//! what was computed are the mutation's own business.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ledger::canonical;
use ledger::dsse;
use ledger::keys::KeyPair;
use ledger::note::TreeHead;
use ledger::tree::{Frontier, leaf_hash};
use rusqlite::{Connection, params};
use schemas::digest::{Digest, decode_hex, encode_hex};
use schemas::dsse::CONTRACT_PAYLOAD_TYPE;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::carry;
use super::record::{FileChange, LEDGER_NAME, Record};

/// Layout of a ledger's database.
const MIGRATION: &str = include_str!("../../../migrations/0001_ledger.sql");

/// Whose keys the attacker has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attacker {
    /// The trainer's: can sign any history after the freeze.
    Trainer,
    /// The owner's too: can freeze another contract and sign a run under it.
    OwnerAndTrainer,
}

/// A mutated run on disk, removed when this is dropped.
#[derive(Debug)]
pub struct Sealed {
    folder: TempDir,
}

impl Sealed {
    /// The run's folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.path().join(LEDGER_NAME)
    }
}

impl Record {
    /// Writes the record as a run of its own: see the module.
    ///
    /// # Errors
    /// When the attacker lacks the key for what was changed, an entry has no
    /// canonical form or no idempotency key, or a file cannot be written.
    pub fn seal(&self, attacker: Attacker) -> Result<Sealed> {
        let folder = TempDir::with_prefix("governed-ledger-mutated-")?;
        let mut record = self.clone();
        record.refreeze(attacker)?;
        carry::files(&mut record)?;
        record.renumber();
        record.write_files(folder.path())?;
        record.write_ledger(folder.path(), attacker)?;
        Ok(Sealed { folder })
    }

    /// Signs a changed contract, and carries its digest and the run's identifier
    /// through entries and manifests.
    fn refreeze(&mut self, attacker: Attacker) -> Result<()> {
        let is_changed = self.contract != self.source.contract || self.artifacts != self.source.artifacts;
        if is_changed && attacker != Attacker::OwnerAndTrainer {
            bail!("contract or frozen files were changed, which needs the owner's key");
        }
        if is_changed {
            self.bind_artifacts()?;
            let canonical = canonical::contract_json(&self.contract)?;
            let signature = dsse::sign_detached(CONTRACT_PAYLOAD_TYPE, &canonical, &self.source.owner);
            let artifacts = self.listed_artifacts()?;
            let det = self.frozen_mut().context("entry 0 is no longer the contract")?;
            det["artifacts"] = artifacts;
            det["digest"] = sha256(&canonical).to_string().into();
            det["signature"] = serde_json::to_value(signature)?;
            det["contract"] = String::from_utf8(canonical)?.into();
        }
        if attacker == Attacker::OwnerAndTrainer
            && let (Some(old), Some(new)) = (identity(&self.source.entries), identity(&self.entries))
            && old != new
        {
            self.carry_identity(&old, &new)?;
        }
        Ok(())
    }

    fn frozen_mut(&mut self) -> Option<&mut Value> {
        let first = self.entries.first_mut()?;
        if first["kind"] != "contract.frozen" { None } else { first.pointer_mut("/body/det") }
    }

    /// Digest and size of changed frozen files, where the contract binds them.
    fn bind_artifacts(&mut self) -> Result<()> {
        for (pointer, bytes) in &self.artifacts {
            if self.source.artifacts.get(pointer) == Some(bytes) {
                continue;
            }
            let binding = self.contract.pointer_mut(pointer);
            let binding = binding.with_context(|| format!("the contract has no binding {pointer}"))?;
            binding["digest"] = blake3_of(bytes).to_string().into();
            binding["num_bytes"] = bytes.len().into();
        }
        Ok(())
    }

    fn listed_artifacts(&self) -> Result<Value> {
        let stored: Vec<Value> = self
            .artifacts
            .iter()
            .map(|(pointer, bytes)| {
                json!({"digest": blake3_of(bytes).to_string(), "num_bytes": bytes.len(), "pointer": pointer})
            })
            .collect();
        Ok(stored.into())
    }

    /// Replaces digest of the contract, run and identities of segments wherever
    /// they stand.
    fn carry_identity(&mut self, old: &Identity, new: &Identity) -> Result<()> {
        let mut new_text: BTreeMap<String, String> = BTreeMap::new();
        new_text.insert(old.digest.clone(), new.digest.clone());
        new_text.insert(old.run.clone(), new.run.clone());
        for workers in 1..=MAX_WORKERS {
            let of = |identity: &Identity| segment_identity(&identity.digest, workers);
            new_text.insert(of(old)?, of(new)?);
        }
        for entry in &mut self.entries {
            carry::substitute(entry, &new_text);
        }
        carry::manifests(self, &new_text)
    }

    /// Lets what names an entry by its index follow it, numbers entries by their
    /// place, and gives a repeated idempotency key a value of its own.
    fn renumber(&mut self) {
        let key = |entry: &Value| entry["idem"].as_str().map(str::to_owned);
        let mut place_of: HashMap<String, usize> = HashMap::new();
        for (place, entry) in self.entries.iter().enumerate() {
            if let Some(key) = key(entry) {
                place_of.entry(key).or_insert(place);
            }
        }
        let source = std::sync::Arc::clone(&self.source);
        let source_of: HashMap<String, &Value> =
            source.entries.iter().filter_map(|entry| Some((key(entry)?, entry))).collect();
        let mut seen = HashSet::new();
        for (place, entry) in self.entries.iter_mut().enumerate() {
            for pointer in ["/body/det/amends", "/body/det/probe"] {
                let original = key(entry).and_then(|key| source_of.get(&key)?.pointer(pointer)?.as_u64());
                let Some(original) = original else { continue };
                let target = usize::try_from(original).ok().and_then(|index| source.entries.get(index));
                let target = target.and_then(key).and_then(|key| place_of.get(&key));
                if let (Some(target), Some(value)) = (target, entry.pointer_mut(pointer))
                    && *value == original
                {
                    *value = (*target).into();
                }
            }
            if let Some(object) = entry.as_object_mut() {
                object.insert("index".to_owned(), place.into());
                let key = object.get("idem").and_then(Value::as_str).unwrap_or_default().to_owned();
                if !seen.insert(key.clone()) {
                    let fresh = blake3::hash(format!("{key} at {place}").as_bytes());
                    let fresh = encode_hex(&fresh.as_bytes()[..16]);
                    seen.insert(fresh.clone());
                    object.insert("idem".to_owned(), fresh.into());
                }
            }
        }
    }

    /// Everything but the ledger: as it is in the source, by another name of the
    /// same file, or changed.
    fn write_files(&self, folder: &Path) -> Result<()> {
        for name in self.file_names()? {
            if name.to_string_lossy().starts_with(LEDGER_NAME) && is_of_the_ledger(&name) {
                continue;
            }
            let target = folder.join(&name);
            if let Some(parent) = target.parent() {
                std::fs::create_dir_all(parent)?;
            }
            match self.files.get(&name) {
                Some(FileChange::Written { bytes, .. }) => std::fs::write(&target, bytes)?,
                Some(FileChange::Removed) => {}
                None => {
                    let source = self.source.folder.join(&name);
                    if std::fs::hard_link(&source, &target).is_err() {
                        std::fs::copy(&source, &target).with_context(|| source.display().to_string())?;
                    }
                }
            }
        }
        Ok(())
    }

    fn write_ledger(&self, folder: &Path, attacker: Attacker) -> Result<()> {
        let path = folder.join(LEDGER_NAME);
        let connection = Connection::open(&path)?;
        connection.execute_batch("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF;")?;
        connection.execute_batch(MIGRATION)?;
        connection.execute_batch("BEGIN")?;
        let notes = self.write_entries(&connection, attacker)?;
        for (size, note) in &notes {
            let size = i64::try_from(*size)?;
            connection.execute("INSERT INTO heads (size, note) VALUES (?1, ?2)", params![size, note])?;
        }
        for bytes in self.artifacts.values() {
            let digest = blake3::hash(bytes);
            connection.execute(
                "INSERT INTO artifacts (digest, bytes) SELECT ?1, ?2
                 WHERE NOT EXISTS (SELECT 1 FROM artifacts WHERE digest = ?1)",
                params![digest.as_bytes(), bytes],
            )?;
        }
        connection.execute_batch("COMMIT")?;
        let beside: String = notes.iter().map(|(_, note)| format!("{note}\n")).collect();
        std::fs::write(ledger::head_file::path_for(&path), beside)?;
        Ok(())
    }

    /// Appends the rows and returns a signed head for each size that had one.
    fn write_entries(&self, connection: &Connection, attacker: Attacker) -> Result<Vec<(u64, String)>> {
        let num_entries = self.entries.len() as u64;
        let mut sizes: BTreeMap<u64, Option<&str>> = BTreeMap::from([(num_entries, None)]);
        for (size, note) in self.source.heads.iter().filter(|(size, _)| *size <= num_entries) {
            sizes.insert(*size, Some(note));
        }
        sizes.retain(|size, _| !self.heads_left_out.contains(size));
        let origin = self.origin(attacker)?;
        let mut roots: BTreeMap<u64, [u8; 32]> = BTreeMap::new();
        let mut frontier = Frontier::new();
        let mut notes = Vec::new();
        let insert = "INSERT INTO entries (seq, idem, entry, leaf) VALUES (?1, ?2, ?3, ?4)";
        let mut statement = connection.prepare(insert)?;
        for (place, entry) in self.entries.iter().enumerate() {
            let mut entry = entry.clone();
            self.carry_head(&mut entry, &roots);
            let bytes = canonical::entry_json(&entry).with_context(|| format!("entry {place}"))?;
            let idem = entry["idem"].as_str().and_then(decode_hex).filter(|idem| idem.len() == 16);
            let idem = idem.with_context(|| format!("entry {place} has no idempotency key"))?;
            let leaf = leaf_hash(&bytes);
            statement.execute(params![i64::try_from(place)?, idem, bytes, leaf])?;
            frontier.append(leaf);
            let size = frontier.size();
            roots.insert(size, frontier.root());
            if let Some(old) = sizes.get(&size) {
                let head = TreeHead { origin: origin.clone(), size, root: frontier.root() };
                notes.push((size, self.sign(&head, *old, attacker)));
            }
        }
        Ok(notes)
    }

    /// A handoff names a head; where the entry still names the one that it named,
    /// it gets that of the changed entries.
    fn carry_head(&self, entry: &mut Value, roots: &BTreeMap<u64, [u8; 32]>) {
        if entry["kind"] != "handoff.issued" {
            return;
        }
        let same = |other: &&Value| other["idem"] == entry["idem"];
        let Some(original) = self.source.entries.iter().find(same) else { return };
        let (root, size) = ("/body/obs/root", "/body/obs/size");
        let is_as_it_was = [root, size].iter().all(|at| entry.pointer(at) == original.pointer(at));
        let size = entry.pointer(size).and_then(Value::as_u64);
        if let (true, Some(new)) = (is_as_it_was, size.and_then(|size| roots.get(&size)))
            && let Some(root) = entry.pointer_mut(root)
        {
            *root = encode_hex(new).into();
        }
    }

    fn origin(&self, attacker: Attacker) -> Result<String> {
        let entries = match attacker {
            Attacker::OwnerAndTrainer => &self.entries,
            Attacker::Trainer => &self.source.entries,
        };
        let identity = identity(entries).or_else(|| identity(&self.source.entries));
        let run = identity.context("entry 0 names the run")?.run;
        Ok(ledger::note::origin(schemas::entry::LedgerKind::Run, &run.as_str().into()))
    }

    /// The owner signs the head of the freeze, the trainer every later one. A
    /// head that the attacker cannot sign stays as it was.
    fn sign(&self, head: &TreeHead, old: Option<&str>, attacker: Attacker) -> String {
        let key: &KeyPair = match (head.size, attacker) {
            (0..=1, Attacker::Trainer) => match old {
                Some(old) => return old.to_owned(),
                None => &self.source.trainer,
            },
            (0..=1, Attacker::OwnerAndTrainer) => &self.source.owner,
            _ => &self.source.trainer,
        };
        head.sign(key)
    }
}

/// Most workers of a contract's segments whose identity is carried through.
const MAX_WORKERS: u64 = 64;

/// What names the run in its entries.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    /// Digest of the contract.
    digest: String,
    run: String,
}

/// The identity that entry 0 gives: derived from digest and nonce.
fn identity(entries: &[Value]) -> Option<Identity> {
    let first = entries.first()?;
    let digest = first.pointer("/body/det/digest")?.as_str()?;
    let nonce = first.pointer("/body/obs/nonce")?.as_str()?;
    let hex = digest.strip_prefix("sha256:")?;
    Some(Identity { digest: digest.to_owned(), run: format!("{}-{nonce}", hex.get(..16)?) })
}

/// Identity of a segment with another number of workers (`docs/FORMAT.md`,
/// "Another number of workers").
fn segment_identity(contract: &str, workers: u64) -> Result<String> {
    let bytes = canonical::contract_json(&json!({"contract": contract, "workers": workers}))?;
    Ok(sha256(&bytes).to_string())
}

fn sha256(bytes: &[u8]) -> Digest {
    Digest::sha256(Sha256::digest(bytes).into())
}

/// BLAKE3 of bytes as a digest.
pub(super) fn blake3_of(bytes: &[u8]) -> Digest {
    Digest::blake3(*blake3::hash(bytes).as_bytes())
}

/// The database with what SQLite and the writer keep beside it.
fn is_of_the_ledger(name: &Path) -> bool {
    let name = name.to_string_lossy();
    ["", "-wal", "-shm", "-journal", ".head", ".lock"]
        .iter()
        .any(|suffix| name.strip_prefix(LEDGER_NAME) == Some(suffix))
}
