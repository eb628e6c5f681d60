//! A data folder: shards, the build manifest, the example tables.
//!
//! Layout, names relative to the folder:
//! `manifest.json`, `shards/<split>-<nnn>.txt`, `train.examples`,
//! `val.examples`. The qualification text is written to a path of its own,
//! which must not lie in the folder: the trainer reads the folder, and the
//! sealed set's plaintext must not be within its reach.
//!
//! Large files are copied and cut in pieces; memory does not grow with them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};

use schemas::DATA_MANIFEST_FORMAT;
use schemas::data::{DataManifest, DataShard, LicenseClass, Split};
use schemas::digest::Digest;

use crate::examples::{self, ExamplesError, MAX_CONTEXT_LENGTH};
use crate::texts::{LIBER_PRIMUS_SOURCE, Shares, liber_primus, split_paragraphs};
use crate::write::{BUFFER_BYTES, WriteError, write_bytes, write_whole};

/// Name of the manifest in the folder.
pub const MANIFEST_NAME: &str = "manifest.json";
/// Name of the train split's table in the folder.
pub const TRAIN_EXAMPLES_NAME: &str = "train.examples";
/// Name of the val split's table in the folder.
pub const VAL_EXAMPLES_NAME: &str = "val.examples";

/// Why a data folder could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A split that must have examples has none.
    #[error("the {split} split has no example: its text has fewer than two bytes; give it more text", split = split.name())]
    EmptySplit {
        /// The split.
        split: Split,
    },
    /// The qualification text would lie where the trainer reads.
    #[error(
        "the qualification text {} would lie in the data folder {}; name a path outside it",
        path.display(),
        folder.display()
    )]
    QualificationInFolder {
        /// The path that was named.
        path: PathBuf,
        /// The data folder.
        folder: PathBuf,
    },
    /// There is qualification text and no path for it, or a path and no text.
    #[error("{reason}")]
    Qualification {
        /// Which of the two.
        reason: &'static str,
    },
    /// A text cannot be cut where the shares ask for it.
    #[error(
        "{} has no line break to cut at between byte {first} and its end; break its lines, or give one file a split",
        path.display()
    )]
    NoLineBreak {
        /// The text.
        path: PathBuf,
        /// Where the search began.
        first: u64,
    },
    /// A source file could not be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The manifest could not be spelled.
    #[error("cannot spell the manifest as JSON")]
    Json(#[from] serde_json::Error),
    /// A table could not be built.
    #[error(transparent)]
    Examples(#[from] ExamplesError),
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl BuildError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// Bytes of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// In memory.
    Bytes(Vec<u8>),
    /// A part of a file, which is streamed.
    File {
        /// The file.
        path: PathBuf,
        /// First byte.
        first: u64,
        /// Number of bytes.
        num_bytes: u64,
    },
}

impl Content {
    /// A whole file.
    ///
    /// # Errors
    /// When its size cannot be read.
    pub fn file(path: &Path) -> Result<Self, BuildError> {
        let num_bytes = std::fs::metadata(path).map_err(BuildError::io(path))?.len();
        Ok(Self::File { path: path.to_owned(), first: 0, num_bytes })
    }

    fn num_bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { num_bytes, .. } => *num_bytes,
        }
    }

    /// Reads the last byte: the file may be read, and is as long as it was
    /// found to be.
    fn probe(&self) -> Result<(), BuildError> {
        let Self::File { path, first, num_bytes } = self else { return Ok(()) };
        let mut file = File::open(path).map_err(BuildError::io(path))?;
        let Some(before_last) = num_bytes.checked_sub(1) else { return Ok(()) };
        file.seek(SeekFrom::Start(first.saturating_add(before_last))).map_err(BuildError::io(path))?;
        file.read_exact(&mut [0u8]).map_err(BuildError::io(path))
    }

    fn write(&self, writer: &mut dyn Write, target: &Path) -> Result<(), BuildError> {
        match self {
            Self::Bytes(bytes) => writer.write_all(bytes).map_err(WriteError::io("write", target))?,
            Self::File { path, first, num_bytes } => {
                let mut file = File::open(path).map_err(BuildError::io(path))?;
                file.seek(SeekFrom::Start(*first)).map_err(BuildError::io(path))?;
                let mut rest = *num_bytes;
                let mut buffer = vec![0u8; BUFFER_BYTES];
                while rest > 0 {
                    let length = usize::try_from(rest).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES);
                    file.read_exact(&mut buffer[..length]).map_err(BuildError::io(path))?;
                    writer.write_all(&buffer[..length]).map_err(WriteError::io("write", target))?;
                    rest -= length as u64;
                }
            }
        }
        Ok(())
    }
}

/// One shard to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardSource {
    /// Its bytes.
    pub content: Content,
    /// How freely the text may be used.
    pub license_class: LicenseClass,
    /// Where the text comes from.
    pub source: String,
    /// The split; qualification shards are joined into one text.
    pub split: Split,
}

/// What to build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRequest {
    /// Longest input of the model in tokens, which are bytes.
    pub context_length: u32,
    /// The data folder; made where missing.
    pub folder: PathBuf,
    /// Name of the build.
    pub name: String,
    /// Where the qualification text goes; null exactly when no shard is of
    /// that split. It must not lie in `folder`.
    pub qualification: Option<PathBuf>,
    /// In the order that the manifest, and so the tables, will have.
    pub shards: Vec<ShardSource>,
}

impl BuildRequest {
    /// Refuses what [`build`] cannot build from: sources that cannot be read,
    /// splits without an example, a context without windows, a path for the
    /// qualification text in the folder. Writes nothing.
    ///
    /// # Errors
    /// As [`build`], but for what can go wrong only while files are written.
    pub fn check(&self) -> Result<(), BuildError> {
        if self.context_length == 0 || self.context_length > MAX_CONTEXT_LENGTH {
            return Err(ExamplesError::ContextLength { found: self.context_length }.into());
        }
        self.check_qualification()?;
        for split in [Split::Train, Split::Val, Split::Qualification] {
            let is_left_out = split == Split::Qualification && self.qualification.is_none();
            if !is_left_out && self.is_empty(split) {
                return Err(BuildError::EmptySplit { split });
            }
        }
        self.shards.iter().try_for_each(|shard| shard.content.probe())
    }

    fn check_qualification(&self) -> Result<(), BuildError> {
        let sealed = self.shards.iter().any(|shard| shard.split == Split::Qualification);
        let refused = |reason| Err(BuildError::Qualification { reason });
        match (&self.qualification, sealed) {
            (None, true) => refused(
                "there is qualification text and no path to write it to; name one outside the data folder",
            ),
            (Some(_), false) => refused(
                "a path for qualification text is named and no text; give the split text or drop the path",
            ),
            (Some(path), true) => {
                let (path, folder) = (absolute(path)?, absolute(&self.folder)?);
                if path.starts_with(&folder) {
                    return Err(BuildError::QualificationInFolder { path, folder });
                }
                Ok(())
            }
            (None, false) => Ok(()),
        }
    }

    /// Whether a split gives no window of two bytes. Its shards are cut one by
    /// one, those of the qualification split as the one text that they become.
    fn is_empty(&self, split: Split) -> bool {
        let shards = self.shards.iter().filter(|shard| shard.split == split);
        let sizes = shards.map(|shard| shard.content.num_bytes());
        let num_bytes = match split {
            Split::Qualification => sizes.fold(0, u64::saturating_add),
            Split::Train | Split::Val => sizes.max().unwrap_or(0),
        };
        num_bytes < 2
    }
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltFile {
    /// BLAKE3 of its bytes.
    pub digest: Digest,
    /// Size in bytes.
    pub num_bytes: u64,
    /// Where it lies.
    pub path: PathBuf,
}

/// What was built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    /// The manifest, as it was written.
    pub manifest: DataManifest,
    /// The manifest's file.
    pub manifest_file: BuiltFile,
    /// Examples of the train split.
    pub num_train_examples: u64,
    /// Examples of the val split.
    pub num_val_examples: u64,
    /// The text to be sealed; null where there is none.
    pub qualification: Option<BuiltFile>,
    /// Example table of the train split.
    pub train_examples: BuiltFile,
    /// Example table of the val split.
    pub val_examples: BuiltFile,
}

/// Writes a data folder.
///
/// Building again from the same texts changes nothing; a file that holds
/// something else is refused, since a contract may have bound it.
///
/// # Errors
/// When a split is empty, a file cannot be read or written or is occupied, or
/// the qualification text would lie in the folder.
pub fn build(request: &BuildRequest) -> Result<Build, BuildError> {
    request.check()?;
    let mut shards = Vec::new();
    let mut numbers = [0u32; 2];
    for shard in &request.shards {
        let number = match shard.split {
            Split::Train => &mut numbers[0],
            Split::Val => &mut numbers[1],
            Split::Qualification => continue,
        };
        let path = format!("shards/{}-{:03}.txt", shard.split.name(), *number);
        *number += 1;
        let target = request.folder.join(&path);
        let (digest, num_bytes) = write_whole(&target, |writer| shard.content.write(writer, &target))?;
        shards.push(DataShard {
            digest,
            license_class: shard.license_class,
            num_bytes,
            path,
            source: shard.source.clone(),
            split: shard.split,
        });
    }
    let manifest = DataManifest {
        barrier: None,
        format: DATA_MANIFEST_FORMAT.to_owned(),
        name: request.name.clone(),
        shards,
        tokenizer: "bytes".to_owned(),
    };
    let path = request.folder.join(MANIFEST_NAME);
    // Fields are declared in key order and hold no floats, so serde_json's
    // compact form is entry JSON.
    let (digest, num_bytes) = write_bytes(&path, &serde_json::to_vec(&manifest)?)?;
    let manifest_file = BuiltFile { digest, num_bytes, path };
    let (train_examples, num_train_examples) =
        write_table(request, &manifest, Split::Train, TRAIN_EXAMPLES_NAME)?;
    let (val_examples, num_val_examples) = write_table(request, &manifest, Split::Val, VAL_EXAMPLES_NAME)?;
    let qualification = write_qualification(request)?;
    Ok(Build {
        manifest,
        manifest_file,
        num_train_examples,
        num_val_examples,
        qualification,
        train_examples,
        val_examples,
    })
}

/// The path from the root, without `.` and `..`, and through links as far as
/// it exists.
fn absolute(path: &Path) -> Result<PathBuf, BuildError> {
    let path = std::path::absolute(path).map_err(BuildError::io(path))?;
    let mut resolved = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                resolved.pop();
            }
            Component::CurDir => {}
            other => {
                resolved.push(other);
                if let Ok(real) = resolved.canonicalize() {
                    resolved = real;
                }
            }
        }
    }
    Ok(resolved)
}

fn write_table(
    request: &BuildRequest,
    manifest: &DataManifest,
    split: Split,
    name: &str,
) -> Result<(BuiltFile, u64), BuildError> {
    let path = request.folder.join(name);
    let (digest, num_bytes, num_examples) =
        examples::build_into(manifest, &request.folder, split, request.context_length, &path)?;
    Ok((BuiltFile { digest, num_bytes, path }, num_examples))
}

fn write_qualification(request: &BuildRequest) -> Result<Option<BuiltFile>, BuildError> {
    let Some(path) = &request.qualification else { return Ok(None) };
    let (digest, num_bytes) = write_whole(path, |writer| {
        let sealed = request.shards.iter().filter(|shard| shard.split == Split::Qualification);
        sealed.into_iter().try_for_each(|shard| shard.content.write(writer, path))
    })?;
    Ok(Some(BuiltFile { digest, num_bytes, path: path.clone() }))
}

/// What to build from the text that comes with the project, split by
/// paragraphs into 80, 10 and 10 parts of a hundred.
#[must_use]
pub fn liber_primus_request(folder: &Path, qualification: &Path, context_length: u32) -> BuildRequest {
    let text = split_paragraphs(liber_primus(), Shares::EIGHTY_TEN_TEN);
    let parts =
        [(Split::Train, text.train), (Split::Val, text.val), (Split::Qualification, text.qualification)];
    let shards = parts.map(|(split, text)| ShardSource {
        content: Content::Bytes(text.into_bytes()),
        license_class: LicenseClass::Green,
        source: LIBER_PRIMUS_SOURCE.to_owned(),
        split,
    });
    BuildRequest {
        context_length,
        folder: folder.to_owned(),
        name: "liber-primus".to_owned(),
        qualification: Some(qualification.to_owned()),
        shards: shards.into(),
    }
}

/// Builds a [`liber_primus_request`].
///
/// # Errors
/// As [`build`].
pub fn build_liber_primus(
    folder: &Path,
    qualification: &Path,
    context_length: u32,
) -> Result<Build, BuildError> {
    build(&liber_primus_request(folder, qualification, context_length))
}

/// Cuts one text into three contiguous parts at line breaks.
///
/// Each cut is after the first line break at or beyond the byte that the
/// shares ask for, so that no line is torn.
///
/// # Errors
/// When the file cannot be read, or has no line break left to cut at.
pub fn split_lines(
    path: &Path,
    shares: Shares,
    license_class: LicenseClass,
    source: &str,
) -> Result<Vec<ShardSource>, BuildError> {
    let mut file = BufReader::with_capacity(BUFFER_BYTES, File::open(path).map_err(BuildError::io(path))?);
    let total = file.seek(SeekFrom::End(0)).map_err(BuildError::io(path))?;
    let (train_share, val_share) = shares.boundaries(total);
    let train_end = line_end(&mut file, path, train_share)?;
    let val_end =
        if shares.qualification == 0 { total } else { line_end(&mut file, path, val_share.max(train_end))? };
    let parts = [
        (Split::Train, 0, train_end),
        (Split::Val, train_end, val_end),
        (Split::Qualification, val_end, total),
    ];
    let mut shards = Vec::new();
    for (split, first, end) in parts {
        if split == Split::Qualification && shares.qualification == 0 {
            continue;
        }
        if end - first < 2 {
            return Err(BuildError::NoLineBreak { path: path.to_owned(), first: first.min(train_share) });
        }
        shards.push(ShardSource {
            content: Content::File { path: path.to_owned(), first, num_bytes: end - first },
            license_class,
            source: source.to_owned(),
            split,
        });
    }
    Ok(shards)
}

/// The byte after the first line break at or beyond `first`; the end of the
/// file where there is none.
fn line_end(file: &mut BufReader<File>, path: &Path, first: u64) -> Result<u64, BuildError> {
    file.seek(SeekFrom::Start(first)).map_err(BuildError::io(path))?;
    let mut position = first;
    loop {
        let buffer = file.fill_buf().map_err(BuildError::io(path))?;
        if buffer.is_empty() {
            return Ok(position);
        }
        if let Some(at) = buffer.iter().position(|&byte| byte == b'\n') {
            return Ok(position + at as u64 + 1);
        }
        let length = buffer.len();
        position += length as u64;
        file.consume(length);
    }
}

/// Builds from one text of a user's own, cut at line breaks into 90, 5 and 5
/// parts of a hundred.
///
/// # Errors
/// As [`build`] and [`split_lines`].
pub fn build_from_text(
    text: &Path,
    folder: &Path,
    qualification: &Path,
    name: &str,
    license_class: LicenseClass,
    context_length: u32,
) -> Result<Build, BuildError> {
    let source = text.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    build(&BuildRequest {
        context_length,
        folder: folder.to_owned(),
        name: name.to_owned(),
        qualification: Some(qualification.to_owned()),
        shards: split_lines(text, Shares::NINETY_FIVE_FIVE, license_class, &source)?,
    })
}
