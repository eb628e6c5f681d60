//! What a power cut takes from files: which are gone, which are empty, and which
//! are there in part.
//!
//! It compares the bytes before a cut, of a process that stood still, with those
//! behind it. Who may lose something is not its business.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::dump;

/// Files of one kind are flushed alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The database and its write-ahead log.
    Database,
    /// The file of signed heads.
    Head,
    /// Files of checkpoints, in staging folders too.
    Checkpoint,
}

/// What is left of a file that a cut changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// No name.
    Gone,
    /// A name, and no byte.
    Empty,
    /// Some bytes, and not those that were there.
    InPart,
}

/// Files by what they are and what is left of them.
pub type Losses = BTreeMap<(Part, Loss), u64>;

/// Every part, with its name in the table.
const PARTS: [(Part, &str); 3] =
    [(Part::Database, "database"), (Part::Head, "head file"), (Part::Checkpoint, "checkpoint files")];

/// Every loss, with its name in the table.
const LOSSES: [(Loss, &str); 3] = [(Loss::Gone, "gone"), (Loss::Empty, "empty"), (Loss::InPart, "in part")];

/// What power cuts and their controls have to do to files, of each line one at
/// least: else they took nothing, or tore nothing. The head file was flushed by
/// the freeze and only grows, so that some of it is left always. Of a log some is
/// left only where the kernel writes back less than all of it.
const EXPECTED: [(Part, &[Loss]); 5] = [
    (Part::Database, &[Loss::Gone, Loss::Empty]),
    (Part::Database, &[Loss::InPart]),
    (Part::Head, &[Loss::InPart]),
    (Part::Checkpoint, &[Loss::Gone]),
    (Part::Checkpoint, &[Loss::InPart]),
];

/// Bytes of every file of the ledger and the store, but for the index of the log,
/// which is shared memory.
///
/// # Errors
/// When one cannot be read.
pub fn content(folder: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let names = dump::names(folder)?.into_iter().filter(|name| part_of(name).is_some());
    names
        .map(|name| {
            let path = folder.join(&name);
            let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
            Ok((name, bytes))
        })
        .collect()
}

fn part_of(path: &Path) -> Option<Part> {
    match path.to_str() {
        Some("run.db" | "run.db-wal") => Some(Part::Database),
        Some("run.db.head") => Some(Part::Head),
        _ => path.starts_with("checkpoints").then_some(Part::Checkpoint),
    }
}

/// What is left of files whose bytes were these.
#[must_use]
pub fn losses(before: &BTreeMap<PathBuf, Vec<u8>>, after: &BTreeMap<PathBuf, Vec<u8>>) -> Losses {
    let mut found = Losses::new();
    for (path, bytes) in before {
        let Some(part) = part_of(path) else { continue };
        let loss = match after.get(path) {
            None => Loss::Gone,
            Some(left) if left == bytes => continue,
            Some(left) if left.is_empty() => Loss::Empty,
            Some(_) => Loss::InPart,
        };
        *found.entry((part, loss)).or_default() += 1;
    }
    found
}

/// What no cut did and some have to, a line each. `tears_logs` is whether this
/// system can write back a part of the database's log.
#[must_use]
pub fn unseen(losses: &Losses, tears_logs: bool) -> Vec<String> {
    let is_seen = |part: Part, any: &[Loss]| any.iter().any(|loss| number(losses, part, *loss) > 0);
    let is_possible =
        |part: Part, any: &[Loss]| tears_logs || part != Part::Database || any != [Loss::InPart];
    let missing = EXPECTED.iter().filter(|(part, any)| is_possible(*part, any) && !is_seen(*part, any));
    missing
        .map(|(part, any)| {
            let part = PARTS.iter().find(|(known, _)| known == part).map_or("", |(_, name)| *name);
            let of_these = LOSSES.iter().filter(|(loss, _)| any.contains(loss)).map(|(_, name)| *name);
            let how = of_these.collect::<Vec<_>>().join(" or ");
            format!("no power cut left files of this kind {how}: {part}")
        })
        .collect()
}

fn number(losses: &Losses, part: Part, loss: Loss) -> u64 {
    losses.get(&(part, loss)).copied().unwrap_or(0)
}

/// A table of them, the head first.
#[must_use]
pub fn cells(losses: &Losses) -> Vec<Vec<String>> {
    let head = std::iter::once("files that a cut left").chain(LOSSES.map(|(_, name)| name));
    let mut cells = vec![head.map(str::to_owned).collect()];
    for (part, name) in PARTS {
        let numbers = LOSSES.map(|(loss, _)| number(losses, part, loss).to_string());
        cells.push(std::iter::once(name.to_owned()).chain(numbers).collect());
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files<const N: usize>(files: [(&str, &str); N]) -> BTreeMap<PathBuf, Vec<u8>> {
        files.map(|(path, bytes)| (PathBuf::from(path), bytes.as_bytes().to_vec())).into()
    }

    #[test]
    fn what_is_left_of_a_file_is_told() {
        let before = files([
            ("checkpoints/s1/model", "weights"),
            ("checkpoints/s2/model", "weights"),
            ("checkpoints/s3/model", "weights"),
            ("run.db", "pages"),
            ("run.db-wal", "frames"),
            ("run.db.head", "note, note"),
            ("contract.json", "{}"),
        ]);
        let after = files([
            ("checkpoints/s2/model", "wei\0\0\0\0"),
            ("checkpoints/s3/model", "weights"),
            ("run.db", "pages"),
            ("run.db-wal", ""),
            ("run.db.head", "note"),
        ]);
        let found = losses(&before, &after);
        let expected = [
            ((Part::Database, Loss::Empty), 1),
            ((Part::Head, Loss::InPart), 1),
            ((Part::Checkpoint, Loss::Gone), 1),
            ((Part::Checkpoint, Loss::InPart), 1),
        ];
        assert_eq!(found, Losses::from(expected));
        // Nothing tore the database.
        assert_eq!(unseen(&found, true), ["no power cut left files of this kind in part: database"]);
        assert_eq!(unseen(&found, false), Vec::<String>::new());
        assert_eq!(unseen(&Losses::new(), true).len(), EXPECTED.len());
        assert_eq!(unseen(&Losses::new(), false).len(), EXPECTED.len() - 1);
        assert_eq!(cells(&found)[1], ["database", "0", "1", "0"]);
        assert_eq!(losses(&before, &before), Losses::new());
    }

    #[test]
    fn the_files_of_a_run_are_read_and_no_others() -> Result<()> {
        let folder = tempfile::tempdir()?;
        for (path, bytes) in files([("run.db", "pages"), ("run.db-shm", "index"), ("checkpoints/s1/a", "b")])
        {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().context("a parent")?)?;
            std::fs::write(path, bytes)?;
        }
        assert_eq!(content(folder.path())?, files([("run.db", "pages"), ("checkpoints/s1/a", "b")]));
        Ok(())
    }
}
