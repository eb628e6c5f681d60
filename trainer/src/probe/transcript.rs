//! What a trajectory leaves in its folder: a line for each step that is
//! compared, with digests of the state and what a run would record of the step,
//! and beside it the shards themselves.
//!
//! A shard whose digest is that of the reference at the same place is not
//! written, so that a trajectory which matches leaves digests alone.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use schemas::body::{Counters, Credit, Draw, EvalDet, GroupUpdate, ReplayedRun};
use schemas::digest::Digest;
use schemas::state::StateClass;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::ProbeError;
use super::state_bytes::{StateBytes, digest_of};
use crate::checkpoint::manifest;

/// Name of the file with the lines.
const FILE_NAME: &str = "transcript.jsonl";

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opening {
    /// Whether everything that was withheld has the bytes of the initial state
    /// in the checkpoint too.
    pub equals_initial: bool,
    /// What the reference was up to the checkpoint's step; null for a resumed
    /// trajectory.
    pub replayed: Option<ReplayedRun>,
}

/// A shard at a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardDigest {
    /// BLAKE3 of its bytes.
    pub digest: Digest,
    /// Its file name.
    pub path: String,
}

/// A state class at a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassState {
    /// The class.
    pub class: StateClass,
    /// Its state digest.
    pub digest: Digest,
    /// Its shards in path order.
    pub shards: Vec<ShardDigest>,
}

/// What a run would record of an update and what follows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Records {
    /// After the update.
    pub counters: Counters,
    /// Loss, gradient norm, counts.
    pub credit: Credit,
    /// What was consumed.
    pub draws: Vec<Draw>,
    /// Streams that were due.
    pub evaluations: Vec<EvalDet>,
    /// Whether the stopping rule's patience has run out.
    pub stop: bool,
    /// By group.
    pub updates: Vec<GroupUpdate>,
}

/// One compared step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Every captured class, in order.
    pub classes: Vec<ClassState>,
    /// Updates since the checkpoint.
    pub offset: u64,
    /// Null at the checkpoint itself.
    pub records: Option<Records>,
}

/// A transcript that was read back.
#[derive(Debug, Clone)]
pub struct Transcript {
    folder: PathBuf,
    /// One a step, in order; as many as were asked for.
    pub lines: Vec<Line>,
    /// The first line.
    pub opening: Opening,
}

/// A transcript that is being written.
#[derive(Debug)]
pub struct TranscriptWriter {
    against: Option<Transcript>,
    file: BufWriter<File>,
    folder: PathBuf,
}

impl TranscriptWriter {
    /// Makes the folder, which must not exist, and writes the first line.
    ///
    /// # Errors
    /// [`ProbeError::Io`].
    pub fn create(folder: &Path, against: Option<Transcript>, opening: &Opening) -> Result<Self, ProbeError> {
        fs::create_dir(folder).map_err(ProbeError::io("create", folder))?;
        let path = folder.join(FILE_NAME);
        let file = File::create_new(&path).map_err(ProbeError::io("create", &path))?;
        let mut writer = Self { against, file: BufWriter::new(file), folder: folder.to_owned() };
        writer.line(opening)?;
        Ok(writer)
    }

    fn line<T: Serialize>(&mut self, value: &T) -> Result<(), ProbeError> {
        let path = self.folder.join(FILE_NAME);
        let mut bytes = ledger::canonical::entry_json(value)
            .map_err(|error| ProbeError::Transcript { path: path.clone(), reason: error.to_string() })?;
        bytes.push(b'\n');
        self.file.write_all(&bytes).map_err(ProbeError::io("write", &path))
    }

    /// Writes the state after `offset` updates.
    ///
    /// # Errors
    /// [`ProbeError::Io`].
    pub fn step(
        &mut self,
        offset: u64,
        state: &StateBytes,
        records: Option<Records>,
    ) -> Result<(), ProbeError> {
        let folder = self.folder.join(offset.to_string());
        let mut classes = Vec::new();
        for (class, shards) in state.iter() {
            let mut digests = Vec::new();
            for (path, bytes) in shards {
                let shard = ShardDigest { digest: digest_of(bytes), path: path.clone() };
                let known = self.against.as_ref().and_then(|reference| reference.class(offset, class));
                if !known.is_some_and(|known| known.shards.contains(&shard)) {
                    fs::create_dir_all(&folder).map_err(ProbeError::io("create", &folder))?;
                    let path = folder.join(path);
                    fs::write(&path, bytes).map_err(ProbeError::io("write", &path))?;
                }
                digests.push(shard);
            }
            let paths = digests.iter().map(|shard| (shard.path.as_str(), shard.digest));
            classes.push(ClassState { class, digest: manifest::class_digest(paths), shards: digests });
        }
        self.line(&Line { classes, offset, records })
    }

    /// Hands everything to the system. It need not survive a power cut.
    ///
    /// # Errors
    /// [`ProbeError::Io`].
    pub fn finish(mut self) -> Result<(), ProbeError> {
        let path = self.folder.join(FILE_NAME);
        self.file.flush().map_err(ProbeError::io("write", &path))
    }
}

impl Transcript {
    /// Reads a transcript of exactly `num_steps` updates.
    ///
    /// # Errors
    /// [`ProbeError::Io`], and [`ProbeError::Transcript`] where a line is
    /// missing or is not one.
    pub fn read(folder: &Path, num_steps: u64) -> Result<Self, ProbeError> {
        let path = folder.join(FILE_NAME);
        let refuse = |reason: String| ProbeError::Transcript { path: path.clone(), reason };
        let file = File::open(&path).map_err(ProbeError::io("open", &path))?;
        let mut texts = BufReader::new(file).lines();
        let first = texts.next().ok_or_else(|| refuse("it is empty".to_owned()))?;
        let opening = parse(&path, first)?;
        let lines = texts.map(|text| parse(&path, text)).collect::<Result<Vec<Line>, _>>()?;
        if !lines.iter().map(|line| line.offset).eq(0..=num_steps) {
            return Err(refuse(format!("it has {} steps, expected 0 to {num_steps}", lines.len())));
        }
        Ok(Self { folder: folder.to_owned(), lines, opening })
    }

    /// A class after so many updates.
    #[must_use]
    pub fn class(&self, offset: u64, class: StateClass) -> Option<&ClassState> {
        let line = self.lines.iter().find(|line| line.offset == offset)?;
        line.classes.iter().find(|state| state.class == class)
    }

    /// Where a shard's bytes lie.
    #[must_use]
    pub fn shard(&self, offset: u64, path: &str) -> PathBuf {
        self.folder.join(offset.to_string()).join(path)
    }
}

fn parse<T: DeserializeOwned>(path: &Path, text: std::io::Result<String>) -> Result<T, ProbeError> {
    let text = text.map_err(ProbeError::io("read", path))?;
    serde_json::from_str(&text)
        .map_err(|error| ProbeError::Transcript { path: path.to_owned(), reason: error.to_string() })
}
