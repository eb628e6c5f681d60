//! A ledger taken apart, changed and put together again, as somebody does who
//! owns the file and holds some of the keys.
//!
//! Rows are written past the triggers, which are put back; heads are signed
//! again at the sizes that they had, with the keys that the forger is given and
//! no others, and one that still holds keeps its bytes. What was not changed
//! keeps its bytes too. It knows nothing of the rules: whether a forgery is
//! found is the question.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use ledger::canonical::entry_json;
use ledger::head_file;
use ledger::keys::{KeyRing, Role};
use ledger::note::{self, TreeHead};
use ledger::tree::{Frontier, leaf_hash};
use rusqlite::{Connection, params};
use schemas::digest::decode_hex;
use serde_json::Value;

use crate::dump;

/// A ledger in parts.
#[derive(Debug, Clone)]
pub struct Forgery {
    /// Every entry, in order; change, remove and add as you like.
    pub entries: Vec<Value>,
    /// As they were stored, to keep the bytes of what is not changed.
    original: Vec<(Value, Vec<u8>)>,
    ledger: PathBuf,
    notes: BTreeMap<u64, String>,
}

impl Forgery {
    /// Takes a ledger apart.
    ///
    /// # Errors
    /// When it cannot be read, or an entry is not JSON.
    pub fn open(ledger: &Path) -> Result<Self> {
        let raw = dump::raw_entries(ledger)?;
        let parsed = raw.into_iter().map(|bytes| Ok((serde_json::from_slice(&bytes)?, bytes)));
        let original: Vec<(Value, Vec<u8>)> = parsed.collect::<Result<_>>()?;
        let connection = Connection::open(ledger)?;
        let mut statement = connection.prepare("SELECT size, note FROM heads")?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?)))?;
        let mut notes = BTreeMap::new();
        for row in rows {
            let (size, note) = row?;
            notes.insert(u64::try_from(size)?, note);
        }
        let entries = original.iter().map(|(value, _)| value.clone()).collect();
        Ok(Self { entries, original, ledger: ledger.to_owned(), notes })
    }

    /// The first entry of a kind.
    ///
    /// # Errors
    /// When there is none.
    pub fn first(&mut self, kind: &str) -> Result<&mut Value> {
        let found = self.entries.iter_mut().find(|entry| entry["kind"] == kind);
        found.with_context(|| format!("no entry {kind}"))
    }

    /// The last entry of a kind.
    ///
    /// # Errors
    /// When there is none.
    pub fn last(&mut self, kind: &str) -> Result<&mut Value> {
        let found = self.entries.iter_mut().rfind(|entry| entry["kind"] == kind);
        found.with_context(|| format!("no entry {kind}"))
    }

    /// Puts one text in the place of another in every string of every entry.
    ///
    /// # Errors
    /// When it does not occur: then nothing is forged.
    pub fn replace(&mut self, old: &str, new: &str) -> Result<()> {
        let mut num_replaced = 0;
        for entry in &mut self.entries {
            replace_in(entry, old, new, &mut num_replaced);
        }
        ensure!(num_replaced > 0, "no entry holds {old:?}");
        Ok(())
    }

    /// The largest signed size up to `size`.
    ///
    /// # Errors
    /// When there is none.
    pub fn signed_size(&self, size: usize) -> Result<usize> {
        let newest = self.notes.keys().rfind(|signed| **signed <= size as u64);
        Ok(usize::try_from(*newest.with_context(|| format!("no head up to {size}"))?)?)
    }

    /// Numbers the entries, and writes ledger and head file again. Heads that do
    /// not hold any more are signed with `keys`; without keys there must be none.
    ///
    /// # Errors
    /// When a head would have to be signed and there is no key, or a file cannot
    /// be written.
    pub fn seal(mut self, keys: Option<&KeyRing>) -> Result<()> {
        let bytes = self.renumber()?;
        let notes = self.sign(&bytes, keys)?;
        write_rows(&self.ledger, &bytes, &self.entries, &notes)?;
        let text: String = notes.values().map(|note| format!("{note}\n")).collect();
        std::fs::write(head_file::path_for(&self.ledger), text)?;
        Ok(())
    }

    fn renumber(&mut self) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        for (index, entry) in self.entries.iter_mut().enumerate() {
            entry["index"] = Value::from(index);
            let unchanged = self.original.get(index).filter(|(value, _)| value == entry);
            all.push(match unchanged {
                Some((_, bytes)) => bytes.clone(),
                None => entry_json(entry)?,
            });
        }
        Ok(all)
    }

    fn sign(&self, bytes: &[Vec<u8>], keys: Option<&KeyRing>) -> Result<BTreeMap<u64, String>> {
        let text =
            |name: &str| self.entries[0][name].as_str().with_context(|| format!("no {name} in entry 0"));
        let (kind, name) = (text("ledger")?, text("run")?);
        let origin = format!("governed-ledger/{kind}/{name}");
        // Whoever owns a campaign, or qualifies a run, signs all of the ledger.
        let signer = |size: u64| match kind {
            "campaign" => Role::Owner,
            "qualification" => Role::Qualifier,
            _ if size == 1 => Role::Owner,
            _ => Role::Trainer,
        };
        let num_entries = bytes.len() as u64;
        let mut frontier = Frontier::new();
        let mut notes = BTreeMap::new();
        // A qualifier's ledger begins with a head over nothing.
        for entry in std::iter::once(None).chain(bytes.iter().map(Some)) {
            if let Some(entry) = entry {
                frontier.append(leaf_hash(entry));
            }
            let (size, root) = (frontier.size(), frontier.root());
            let old = self.notes.get(&size);
            if old.is_none() && size < num_entries {
                continue;
            }
            let head = TreeHead { origin: origin.clone(), size, root };
            let holds = |note: &&String| note::parse(note).is_ok_and(|parsed| parsed.head == head);
            let note = match old.filter(holds) {
                Some(note) => note.clone(),
                None => {
                    let keys =
                        keys.with_context(|| format!("a head of size {size} would have to be signed"))?;
                    head.sign(&keys.get(signer(size))?)
                }
            };
            notes.insert(size, note);
        }
        Ok(notes)
    }
}

fn replace_in(value: &mut Value, old: &str, new: &str, num_replaced: &mut usize) {
    match value {
        Value::String(text) if text.contains(old) => {
            *text = text.replace(old, new);
            *num_replaced += 1;
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace_in(item, old, new, num_replaced)),
        Value::Object(members) => {
            members.values_mut().for_each(|member| replace_in(member, old, new, num_replaced));
        }
        _ => {}
    }
}

fn write_rows(
    ledger: &Path,
    bytes: &[Vec<u8>],
    entries: &[Value],
    notes: &BTreeMap<u64, String>,
) -> Result<()> {
    past_triggers(ledger, |connection| {
        connection.execute_batch("DELETE FROM entries; DELETE FROM heads;")?;
        for (index, (bytes, entry)) in bytes.iter().zip(entries).enumerate() {
            let idem = entry["idem"].as_str().and_then(decode_hex).context("an idempotency key")?;
            let (seq, leaf) = (i64::try_from(index)?, leaf_hash(bytes));
            let row = params![seq, idem, bytes, leaf.as_slice()];
            connection
                .execute("INSERT INTO entries (seq, idem, entry, leaf) VALUES (?1, ?2, ?3, ?4)", row)?;
        }
        for (size, note) in notes {
            let row = params![i64::try_from(*size)?, note];
            connection.execute("INSERT INTO heads (size, note) VALUES (?1, ?2)", row)?;
        }
        Ok(())
    })
}

/// Changes a ledger's rows with its triggers dropped, and puts them back.
///
/// # Errors
/// When SQLite refuses.
pub fn past_triggers(ledger: &Path, change: impl FnOnce(&Connection) -> Result<()>) -> Result<()> {
    let connection = Connection::open(ledger)?;
    let triggers: Vec<(String, String)> = {
        let query = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' ORDER BY rowid";
        let mut statement = connection.prepare(query)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect::<rusqlite::Result<_>>()?
    };
    connection.execute_batch("BEGIN")?;
    for (name, _) in &triggers {
        connection.execute_batch(&format!("DROP TRIGGER {name}"))?;
    }
    change(&connection)?;
    for (_, sql) in &triggers {
        connection.execute_batch(sql)?;
    }
    connection.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE)")?;
    Ok(())
}
