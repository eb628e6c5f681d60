//! The committed inputs of a target.

use std::path::{Path, PathBuf};

/// A file of the corpus. Its name says what is expected: `refused-` at the
/// beginning is for what both sides refuse, everything else is accepted.
#[derive(Debug, Clone)]
pub(crate) struct Seed {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

impl Seed {
    pub(crate) fn is_accepted(&self) -> bool {
        !self.name.starts_with("refused-")
    }
}

/// Where bolero's tools look for the corpus of a target of this name.
pub(crate) fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/__fuzz__").join(target).join("corpus")
}

/// All files of a target's corpus, by name.
pub(crate) fn read(target: &str) -> Vec<Seed> {
    let folder = folder(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut seeds: Vec<Seed> = files
        .map(|file| {
            let file = file.expect("a file");
            let bytes = std::fs::read(file.path()).expect("a file that can be read");
            Seed { name: file.file_name().to_string_lossy().into_owned(), bytes }
        })
        .collect();
    seeds.sort_by(|left, right| left.name.cmp(&right.name));
    seeds
}
