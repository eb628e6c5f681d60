//! What a run's folder holds, as an observer outside of the programs sees it:
//! which heads were acknowledged, which entries are there, and which checkpoints
//! are whole.
//!
//! Nothing here uses the project's own readers, so that a mistake of theirs does
//! not hide a loss.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::dump;

/// What was promised before a fault.
#[derive(Debug, Clone, Default)]
pub struct Acknowledged {
    /// The entries' own bytes where they could be read while the process stood
    /// still; else empty, and the notes speak for them.
    pub entries: Vec<Vec<u8>>,
    /// Signed notes that were flushed, oldest first.
    pub notes: Vec<String>,
    /// Entries that were flushed.
    pub num_entries: u64,
}

impl Acknowledged {
    /// Reads the head file of a ledger that is being written. A note is written
    /// only after the one before it was flushed, so all but the last are
    /// acknowledged; `is_flushed` says that the last one is too.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn observe(folder: &Path, is_flushed: bool) -> Result<Self> {
        let mut notes = notes(folder)?;
        if !is_flushed {
            notes.pop();
        }
        let num_entries = notes.last().map_or(0, |note| size(note));
        Ok(Self { entries: Vec::new(), notes, num_entries })
    }

    /// Takes the entries' bytes too: of a process that stands still, or is gone.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn with_entries(mut self, folder: &Path) -> Result<Self> {
        self.entries = dump::raw_entries(&folder.join("run.db"))?;
        Ok(self)
    }

    /// All entries that are in the database were flushed, under a head or not: of
    /// a process that is gone, or stands where their commit has returned.
    #[must_use]
    pub fn of_all_entries(mut self) -> Self {
        self.num_entries = self.num_entries.max(self.entries.len() as u64);
        self
    }

    /// How many of the acknowledged entries and heads are gone or other ones.
    #[must_use]
    pub fn num_lost(&self, folder: &Path) -> u64 {
        let stored = dump::raw_entries(&folder.join("run.db")).unwrap_or_default();
        let differs = |index: u64| {
            let Ok(index) = usize::try_from(index) else { return true };
            match (stored.get(index), self.entries.get(index)) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(stored), Some(before)) => stored != before,
            }
        };
        let num_entries = (0..self.num_entries).filter(|index| differs(*index)).count();
        let kept = notes(folder).unwrap_or_default();
        let num_notes = self.notes.iter().filter(|note| !kept.contains(note)).count();
        (num_entries + num_notes) as u64
    }
}

/// Complete notes of a run's head file; none where there is no file.
fn notes(folder: &Path) -> Result<Vec<String>> {
    let path = folder.join("run.db.head");
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    // What a cut tore is no text, and no note.
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let mut notes = Vec::new();
    let mut note = String::new();
    let mut is_signed = false;
    for line in text.split_inclusive('\n') {
        if line == "\n" && is_signed {
            notes.push(std::mem::take(&mut note));
            is_signed = false;
            continue;
        }
        is_signed |= line.starts_with('\u{2014}');
        note.push_str(line);
    }
    Ok(notes)
}

/// Complete notes that a run's head file holds now; none where it cannot be read.
#[must_use]
pub fn num_notes(folder: &Path) -> usize {
    notes(folder).map_or(0, |notes| notes.len())
}

/// The tree size that a note signs: its second line.
fn size(note: &str) -> u64 {
    note.lines().nth(1).and_then(|line| line.parse().ok()).unwrap_or(0)
}

/// What the record says of a checkpoint, and what its files are.
#[derive(Debug, Clone, Default)]
pub struct Checkpoint {
    /// BLAKE3 of its manifest, once it is committed.
    manifest: Option<String>,
    /// Index of its `checkpoint.validated`.
    pub validated: Option<u64>,
    /// Failed, quarantined or retired: nobody may rely on all of its files.
    pub is_given_up: bool,
}

/// Every checkpoint of a ledger, by name.
#[must_use]
pub fn checkpoints(entries: &[Value]) -> BTreeMap<String, Checkpoint> {
    let mut found: BTreeMap<String, Checkpoint> = BTreeMap::new();
    for (index, entry) in (0_u64..).zip(entries) {
        let obs = &entry["body"]["obs"];
        let (Some(kind), Some(name)) = (entry["kind"].as_str(), obs["checkpoint"].as_str()) else { continue };
        let known = found.entry(name.to_owned()).or_default();
        match kind {
            "checkpoint.durably_committed" => known.manifest = obs["manifest"].as_str().map(str::to_owned),
            "checkpoint.validated" => known.validated = Some(index),
            "checkpoint.failed" | "checkpoint.quarantined" | "checkpoint.retired" => known.is_given_up = true,
            _ => {}
        }
    }
    found
}

/// Whether every file of a checkpoint is what its manifest says, and the
/// manifest what the ledger says.
#[must_use]
pub fn is_whole(folder: &Path, name: &str, checkpoint: &Checkpoint) -> bool {
    let folder = folder.join("checkpoints").join(name);
    let digest = |name: &str| {
        let bytes = std::fs::read(folder.join(name)).ok()?;
        Some((format!("blake3:{}", blake3::hash(&bytes).to_hex()), bytes))
    };
    let Some((actual, bytes)) = digest("manifest.json") else { return false };
    let Ok(manifest) = serde_json::from_slice::<Value>(&bytes) else { return false };
    let classes = manifest["classes"].as_array();
    let shards = classes.into_iter().flatten().filter_map(|class| class["shards"].as_array()).flatten();
    let mut num_shards = 0;
    let are_whole = shards.into_iter().all(|shard| {
        num_shards += 1;
        let (Some(path), Some(expected)) = (shard["path"].as_str(), shard["digest"].as_str()) else {
            return false;
        };
        digest(path).is_some_and(|(actual, _)| actual == expected)
    });
    checkpoint.manifest.as_ref() == Some(&actual) && are_whole && num_shards > 0
}

/// Names of the checkpoints that are not whole.
#[must_use]
pub fn torn(folder: &Path, checkpoints: &BTreeMap<String, Checkpoint>) -> BTreeSet<String> {
    let torn = checkpoints.iter().filter(|(name, checkpoint)| !is_whole(folder, name, checkpoint));
    torn.map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn note(size: u64) -> String {
        format!("origin\n{size}\nroot\n\n\u{2014} origin c2ln\n")
    }

    fn write(folder: &Path, num_entries: u64, num_notes: u64) -> Result<()> {
        let path = folder.join("run.db");
        let _ = std::fs::remove_file(&path);
        let database = rusqlite::Connection::open(&path)?;
        database.execute_batch("CREATE TABLE entries (seq INTEGER PRIMARY KEY, entry BLOB)")?;
        for index in 0..num_entries {
            let entry = format!("entry {index}").into_bytes();
            database.execute("INSERT INTO entries VALUES (?, ?)", (index.cast_signed(), entry))?;
        }
        let notes: Vec<String> = (1..=num_notes).map(|number| format!("{}\n", note(2 * number))).collect();
        Ok(std::fs::write(folder.join("run.db.head"), notes.concat())?)
    }

    #[test]
    fn what_is_gone_or_another_is_counted_and_what_was_never_promised_is_not() -> Result<()> {
        let folder = tempfile::tempdir()?;
        write(folder.path(), 7, 3)?;
        let last_is_open = Acknowledged::observe(folder.path(), false)?;
        assert_eq!((last_is_open.num_entries, last_is_open.notes.len()), (4, 2));
        let seen = Acknowledged::observe(folder.path(), true)?.with_entries(folder.path())?;
        assert_eq!((seen.num_entries, seen.num_lost(folder.path())), (6, 0));
        let all = seen.clone().of_all_entries();
        assert_eq!(all.num_entries, 7);

        // One entry without a head is gone: only who was promised it counts it.
        write(folder.path(), 6, 3)?;
        assert_eq!((seen.num_lost(folder.path()), all.num_lost(folder.path())), (0, 1));
        // Two entries and a head.
        write(folder.path(), 4, 2)?;
        assert_eq!((seen.num_lost(folder.path()), last_is_open.num_lost(folder.path())), (3, 0));
        // Another entry in the place of one.
        write(folder.path(), 7, 3)?;
        let database = rusqlite::Connection::open(folder.path().join("run.db"))?;
        database.execute("UPDATE entries SET entry = x'00' WHERE seq = 2", [])?;
        assert_eq!(seen.num_lost(folder.path()), 1);
        drop(database);
        std::fs::write(folder.path().join("run.db"), "no database")?;
        assert_eq!(seen.num_lost(folder.path()), 6);
        Ok(())
    }

    #[test]
    fn a_checkpoint_is_whole_where_every_file_is_what_the_record_says() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("checkpoints/s1");
        std::fs::create_dir_all(&path)?;
        let digest = |bytes: &[u8]| format!("blake3:{}", blake3::hash(bytes).to_hex());
        std::fs::write(path.join("model"), "weights")?;
        let manifest = json!({"classes": [{"shards": [{"path": "model", "digest": digest(b"weights")}]}]});
        let manifest = manifest.to_string();
        std::fs::write(path.join("manifest.json"), &manifest)?;
        let entry = |kind: &str| {
            let obs = json!({"checkpoint": "s1", "manifest": digest(manifest.as_bytes())});
            json!({"kind": kind, "body": {"obs": obs}})
        };
        let mut entries = vec![entry("checkpoint.durably_committed"), entry("checkpoint.validated")];
        let known = checkpoints(&entries);
        assert_eq!((known["s1"].validated, known["s1"].is_given_up), (Some(1), false));
        assert!(torn(folder.path(), &known).is_empty());
        entries.push(entry("checkpoint.retired"));
        assert!(checkpoints(&entries)["s1"].is_given_up);
        for (name, bytes) in [("model", "weight"), ("manifest.json", "{}")] {
            let before = std::fs::read(path.join(name))?;
            std::fs::write(path.join(name), bytes)?;
            assert!(torn(folder.path(), &known).contains("s1"), "{name}");
            std::fs::write(path.join(name), before)?;
            assert!(torn(folder.path(), &known).is_empty());
        }
        std::fs::remove_file(path.join("model"))?;
        assert!(torn(folder.path(), &known).contains("s1"));
        Ok(())
    }
}
