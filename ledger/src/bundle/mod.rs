//! A run as one file: what an offline audit of it needs, the same bytes for the
//! same evidence.
//!
//! It owns which files belong to a run and how they are put together, and judges
//! none of them: a run with something wrong is bundled as it is. It signs nothing,
//! adds nothing of the day, and writes over no file. Keys, texts that are no
//! evidence, and what else lies in the folder stay where they are. The reader is
//! the validator's, which shares no code with this (docs/FORMAT.md, "Bundles").

pub mod archive;
mod files;
mod plain;
mod publish;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use schemas::bundle::{
    BUNDLE_DISK_BLOCK_BYTES, BUNDLE_EXPORT, BUNDLE_MANIFEST, BUNDLE_RUN, BUNDLE_SLACK_BYTES, BundleManifest,
    BundleMember, BundledHead, BundledLedger, LedgerForm, LeftOut, MAX_BUNDLE_FOLDERS,
    MAX_BUNDLE_MANIFEST_BYTES, MAX_BUNDLE_NAME_PARTS, MAX_BUNDLE_RATIO,
};
use schemas::digest::{Digest, encode_hex};
use schemas::entry::LedgerKind;

use self::archive::Source;
use self::files::{WITHOUT_CHECKPOINTS, WITHOUT_DATA};
use crate::canonical::{self, CanonicalError};
use crate::export::{ExportError, export_from};
use crate::head_file;
use crate::lock::with_suffix;
use crate::note;
use crate::reader::{ReadError, Reader};
use crate::snapshot::{Snapshot, SnapshotError};

/// What to bundle.
#[derive(Debug, Clone)]
pub struct BundleRequest {
    /// The run's ledger: `run.db`.
    pub ledger: PathBuf,
    /// The file to make; it must not exist.
    pub output: PathBuf,
    /// An empty folder of the caller's, on the file system of `output`. What is
    /// in it afterwards is for the caller to remove.
    pub scratch: PathBuf,
    /// Leaves out all files of checkpoints but their manifests, and the weights
    /// of a warm start.
    pub without_checkpoints: bool,
    /// Leaves out the shards of the data.
    pub without_data: bool,
}

/// What a bundle holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleSummary {
    /// Its manifest.
    pub manifest: BundleManifest,
    /// Size of the bundle.
    pub num_bytes: u64,
    /// Size of everything in it.
    pub num_unpacked_bytes: u64,
}

/// How far it has come: `hashing`, then `packing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BundleProgress {
    /// What is being done.
    pub phase: &'static str,
    /// Bytes done.
    pub done: u64,
    /// Of how many; 0 while that is not known.
    pub total: u64,
}

/// A bundle that was not made; nothing is left under its name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// There is no ledger.
    #[error("no ledger at {}; hint: name the file that `ledger freeze` made, by default run.db", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// It is another kind of ledger.
    #[error(
        "{} is a {kind} ledger, and a bundle holds one run; hint: bundle the run, by default run.db",
        path.display()
    )]
    NotARun {
        /// The ledger.
        path: PathBuf,
        /// Its kind.
        kind: &'static str,
    },
    /// The output exists.
    #[error("{} exists and is never overwritten; hint: name another file, or move it away", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Something that is neither a file nor a folder, or has a name that no
    /// archive holds.
    #[error(
        "{} is a link, a special file, or has a name that is not printable ASCII, which no bundle holds; hint: \
         put the file itself there",
        path.display()
    )]
    NotPlain {
        /// Where it is.
        path: PathBuf,
    },
    /// A name in too many folders.
    #[error(
        "{name} has more than the {MAX_BUNDLE_NAME_PARTS} parts that a name in a bundle may have; hint: the files \
         of a run do not lie that deep: move away what is none of its"
    )]
    TooDeep {
        /// Name in the archive.
        name: String,
    },
    /// Names that imply more folders than a reader takes.
    #[error(
        "the files lie in {num_folders} folders, and a reader takes {MAX_BUNDLE_FOLDERS}; hint: move away what in \
         the folder of checkpoints is none of the run's"
    )]
    TooManyFolders {
        /// Folders.
        num_folders: usize,
    },
    /// A name or size beyond the archive's form.
    #[error(
        "{name}, {num_bytes} bytes: a member has at most {} bytes and a name of at most 255, with a slash in \
         its last 101; hint: leave checkpoints or data out with {WITHOUT_CHECKPOINTS} or {WITHOUT_DATA}",
        schemas::bundle::MAX_BUNDLE_MEMBER_BYTES
    )]
    DoesNotFit {
        /// Name in the archive.
        name: String,
        /// Its size.
        num_bytes: u64,
    },
    /// The manifest would be larger than what is read.
    #[error(
        "the manifest of {num_members} members is larger than the {MAX_BUNDLE_MANIFEST_BYTES} bytes that are read"
    )]
    Manifest {
        /// Files.
        num_members: usize,
    },
    /// More would come out of it than a reader takes.
    #[error(
        "{num_unpacked_bytes} bytes became {num_bytes}: a reader refuses what unpacks to more than \
         {MAX_BUNDLE_RATIO} times its size"
    )]
    TooDense {
        /// Unpacked.
        num_unpacked_bytes: u64,
        /// Packed.
        num_bytes: u64,
    },
    /// A file is another one than was hashed.
    #[error("{} changed while it was bundled; hint: try again when the trainer has stopped", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The disk is too small.
    #[error(
        "{} has {num_free} bytes free, and the bundle may take {num_needed}; hint: make room, or leave out \
         checkpoints or data with {WITHOUT_CHECKPOINTS} or {WITHOUT_DATA}",
        path.display()
    )]
    Room {
        /// The folder.
        path: PathBuf,
        /// Free.
        num_free: u64,
        /// Needed at most.
        num_needed: u64,
    },
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}; hint: make room, or name a folder that can be written", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The ledger could not be copied.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The copy of the ledger could not be read, for no reason in the ledger.
    #[error("the copy of the ledger cannot be read; hint: make room in TMPDIR, and try again")]
    Copy {
        /// Why.
        source: Box<ReadError>,
    },
    /// The manifest has no canonical form.
    #[error("the manifest cannot be written")]
    Canonical(#[from] CanonicalError),
}

/// Bundles a run. What it needs of memory does not grow with the files.
///
/// # Errors
/// When the ledger is missing or another kind, the output exists, a file cannot
/// be read, changes meanwhile, or does not fit, or there is no room.
pub fn bundle(
    request: &BundleRequest,
    progress: &mut dyn FnMut(BundleProgress),
) -> Result<BundleSummary, BundleError> {
    let ledger = &request.ledger;
    if !ledger.is_file() {
        return Err(BundleError::Missing { path: ledger.clone() });
    }
    if request.output.symlink_metadata().is_ok() {
        return Err(BundleError::Exists { path: request.output.clone() });
    }
    let file = file_name(ledger)?;
    let beside = files::copy_beside(ledger, &request.scratch)?;
    // A file that is no database, or that the reader refuses, is bundled as it is.
    // What is read of one that is comes from the reader's copy alone: a trainer may
    // go on meanwhile.
    let reader = match Reader::open(ledger) {
        Ok(reader) => Some(reader),
        Err(ReadError::Snapshot(error)) => return Err(error.into()),
        Err(error) if is_of_the_machine(&error) => return Err(BundleError::Copy { source: Box::new(error) }),
        Err(_) => None,
    };
    if let Some((kind, _)) = reader.as_ref().and_then(|reader| reader.identity().ok())
        && kind != LedgerKind::Run
    {
        return Err(BundleError::NotARun { path: ledger.clone(), kind: note::kind_name(kind) });
    }
    let mut parts = Parts { sources: Vec::new(), left_out: Vec::new(), num_hashed: 0, progress };
    let (form, snapshot) = parts.ledger(request, reader.as_ref(), &file)?;
    for (suffix, copy) in &beside {
        parts.add(&format!("{BUNDLE_RUN}{file}{suffix}"), copy)?;
    }
    let contract = reader.as_ref().and_then(files::contract);
    let named = match (&reader, &contract) {
        (Some(reader), Some(contract)) => files::named(reader, contract)?,
        _ => files::RunFiles::default(),
    };
    for (name, (path, reason)) in &named.files {
        let is_out = |option: &str| {
            (request.without_data && option == WITHOUT_DATA)
                || (request.without_checkpoints && option == WITHOUT_CHECKPOINTS)
        };
        let name = format!("{BUNDLE_RUN}{name}");
        match reason.filter(|option| is_out(option)) {
            Some(option) => parts.leave_out(&name, path, option)?,
            None => parts.add(&name, path)?,
        }
    }
    let Parts { mut sources, mut left_out, .. } = parts;
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    left_out.sort_by(|a, b| a.name.cmp(&b.name));
    let manifest = BundleManifest {
        folders: named.empty.iter().map(|folder| format!("{BUNDLE_RUN}{folder}")).collect(),
        format: schemas::BUNDLE_FORMAT.to_owned(),
        head: reader.as_ref().and_then(newest_head),
        ledger: BundledLedger { file, form },
        left_out,
        members: sources
            .iter()
            .map(|source| BundleMember {
                digest: source.digest,
                name: source.name.clone(),
                num_bytes: source.num_bytes,
            })
            .collect(),
        run: reader.as_ref().and_then(|reader| reader.contract().ok()).map(|frozen| frozen.run),
    };
    let summary = pack(request, manifest, &sources, progress)?;
    drop(snapshot);
    Ok(summary)
}

/// Writes the archive under another name, and gives it its own.
fn pack(
    request: &BundleRequest,
    manifest: BundleManifest,
    sources: &[Source],
    progress: &mut dyn FnMut(BundleProgress),
) -> Result<BundleSummary, BundleError> {
    let bytes = canonical::entry_json(&manifest)?;
    if bytes.len() as u64 > MAX_BUNDLE_MANIFEST_BYTES {
        return Err(BundleError::Manifest { num_members: sources.len() });
    }
    let num_folders = num_folders(&manifest);
    if num_folders > MAX_BUNDLE_FOLDERS {
        return Err(BundleError::TooManyFolders { num_folders });
    }
    let num_unpacked_bytes = archive::unpacked_bytes(bytes.len() as u64, sources);
    refuse_small_disk(&request.scratch, num_unpacked_bytes)?;
    let target = request.scratch.join("bundle.tar.zst");
    let total: u64 = sources.iter().map(|source| source.num_bytes).sum();
    let num_bytes = archive::write(&target, (BUNDLE_MANIFEST, &bytes), sources, &mut |done| {
        progress(BundleProgress { phase: "packing", done, total });
    })?;
    // A reader counts a block for each file and folder as well.
    let num_blocks = num_folders.saturating_add(sources.len()) as u64;
    let num_on_disk = num_unpacked_bytes.saturating_add(num_blocks.saturating_mul(BUNDLE_DISK_BLOCK_BYTES));
    if num_on_disk > num_bytes.saturating_mul(MAX_BUNDLE_RATIO).saturating_add(BUNDLE_SLACK_BYTES) {
        return Err(BundleError::TooDense { num_unpacked_bytes, num_bytes });
    }
    let output = &request.output;
    publish::publish(&target, output).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => BundleError::Exists { path: output.clone() },
        _ => BundleError::Write { path: output.clone(), source },
    })?;
    head_file::sync_folder(output).map_err(|source| BundleError::Write { path: output.clone(), source })?;
    Ok(BundleSummary { manifest, num_bytes, num_unpacked_bytes })
}

fn file_name(ledger: &Path) -> Result<String, BundleError> {
    let name = ledger.file_name().and_then(|name| name.to_str());
    let name = name.filter(|name| is_printable(name));
    Ok(name.ok_or_else(|| BundleError::NotPlain { path: ledger.to_owned() })?.to_owned())
}

/// Names are of printable ASCII, so that no two of them can be the same to a file
/// system that folds case or composes characters differently.
fn is_printable(name: &str) -> bool {
    name.bytes().all(|byte| (0x20..0x7f).contains(&byte))
}

fn newest_head(reader: &Reader) -> Option<BundledHead> {
    let heads = reader.heads().ok()?;
    let head = note::parse(&heads.last()?.note).ok()?.head;
    Some(BundledHead { origin: head.origin, root: encode_hex(&head.root), size: head.size })
}

/// Folders that the names of a manifest imply, as its reader counts them.
fn num_folders(manifest: &BundleManifest) -> usize {
    let mut folders: BTreeSet<&str> = manifest.folders.iter().map(String::as_str).collect();
    let members = manifest.members.iter().map(|member| &member.name);
    let left_out = manifest.left_out.iter().map(|file| &file.name);
    for name in members.chain(left_out).chain(&manifest.folders) {
        folders.extend(name.match_indices('/').map(|(at, _)| &name[..at]));
    }
    folders.len()
}

/// No name goes deeper than a reader takes.
fn refuse_depth(name: &str) -> Result<(), BundleError> {
    if name.split('/').count() > MAX_BUNDLE_NAME_PARTS {
        return Err(BundleError::TooDeep { name: name.to_owned() });
    }
    Ok(())
}

/// Whether reading failed because of disk or memory, and not of what is read.
fn is_of_the_machine(error: &ReadError) -> bool {
    use rusqlite::ErrorCode;
    let ReadError::Database { source, .. } = error else { return false };
    let Some(error) = source.sqlite_error() else { return false };
    match error.code {
        ErrorCode::DiskFull | ErrorCode::OutOfMemory => true,
        // A file that is too short is one that was cut.
        ErrorCode::SystemIoFailure => error.extended_code != rusqlite::ffi::SQLITE_IOERR_SHORT_READ,
        _ => false,
    }
}

fn refuse_small_disk(folder: &Path, num_needed: u64) -> Result<(), BundleError> {
    // Where the system does not say, writing will.
    let Ok(found) = rustix::fs::statvfs(folder) else { return Ok(()) };
    let num_free = found.f_bavail.saturating_mul(found.f_frsize);
    if num_free >= num_needed {
        return Ok(());
    }
    Err(BundleError::Room { path: folder.to_owned(), num_free, num_needed })
}

/// Members as they are found.
struct Parts<'a> {
    sources: Vec<Source>,
    left_out: Vec<LeftOut>,
    num_hashed: u64,
    progress: &'a mut dyn FnMut(BundleProgress),
}

impl Parts<'_> {
    /// The ledger itself, as the reader has it: an export where it gives the same
    /// rows again, else the database with its log. The snapshot is there where no
    /// reader has one.
    fn ledger(
        &mut self,
        request: &BundleRequest,
        reader: Option<&Reader>,
        file: &str,
    ) -> Result<(LedgerForm, Option<Snapshot>), BundleError> {
        let folder = request.scratch.join("export");
        let failed = |source| BundleError::Copy { source: Box::new(source) };
        if let Some(reader) = reader
            && plain::is_plain(reader).map_err(failed)?
            && exported(reader, &folder)?
        {
            fit_head_beside(request, &folder)?;
            self.add_folder(&folder, BUNDLE_EXPORT)?;
            return Ok((LedgerForm::Export, None));
        }
        let own = if reader.is_some() { None } else { Some(Snapshot::take(&request.ledger)?) };
        let Some(snapshot) = reader.map(Reader::snapshot).or(own.as_ref()) else {
            return Err(BundleError::Missing { path: request.ledger.clone() });
        };
        let database = snapshot.database();
        self.add(&format!("{BUNDLE_RUN}{file}"), &database)?;
        // A reader of a copy without a log may leave an empty one, which says nothing.
        let log = with_suffix(&database, "-wal");
        if log.metadata().is_ok_and(|metadata| metadata.len() > 0) {
            self.add(&format!("{BUNDLE_RUN}{file}-wal"), &log)?;
        }
        let journal = with_suffix(&request.ledger, "-journal");
        if journal.is_file() {
            self.add(&format!("{BUNDLE_RUN}{file}-journal"), &journal)?;
        }
        Ok((LedgerForm::Database, own))
    }

    fn add_folder(&mut self, folder: &Path, prefix: &str) -> Result<(), BundleError> {
        let read = |source| BundleError::Read { path: folder.to_owned(), source };
        for item in fs::read_dir(folder).map_err(read)? {
            let item = item.map_err(read)?;
            let name = format!("{prefix}{}", item.file_name().to_string_lossy());
            if item.path().is_dir() {
                self.add_folder(&item.path(), &format!("{name}/"))?;
            } else {
                self.add(&name, &item.path())?;
            }
        }
        Ok(())
    }

    fn add(&mut self, name: &str, path: &Path) -> Result<(), BundleError> {
        let (digest, num_bytes) = self.hash(name, path)?;
        self.sources.push(Source { digest, name: name.to_owned(), num_bytes, path: path.to_owned() });
        Ok(())
    }

    fn leave_out(&mut self, name: &str, path: &Path, reason: &str) -> Result<(), BundleError> {
        let (digest, num_bytes) = self.hash(name, path)?;
        self.left_out.push(LeftOut { digest, name: name.to_owned(), num_bytes, reason: reason.to_owned() });
        Ok(())
    }

    fn hash(&mut self, name: &str, path: &Path) -> Result<(Digest, u64), BundleError> {
        let read = |source| BundleError::Read { path: path.to_owned(), source };
        if !is_printable(name) {
            return Err(BundleError::NotPlain { path: path.to_owned() });
        }
        refuse_depth(name)?;
        let mut file = File::open(path).map_err(read)?;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; 1 << 17];
        loop {
            let count = match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(read(error)),
            };
            hasher.update(buffer.get(..count).unwrap_or_default());
            self.num_hashed += count as u64;
            (self.progress)(BundleProgress { phase: "hashing", done: self.num_hashed, total: 0 });
        }
        let num_bytes = hasher.count();
        if archive::header(name, num_bytes).is_none() {
            return Err(BundleError::DoesNotFit { name: name.to_owned(), num_bytes });
        }
        Ok((Digest::blake3(*hasher.finalize().as_bytes()), num_bytes))
    }
}

/// Exports a ledger; `false` where something in it has no export. That a disk is
/// full is no reason for another form.
fn exported(reader: &Reader, folder: &Path) -> Result<bool, BundleError> {
    match export_from(reader, folder) {
        Ok(_) => Ok(true),
        Err(ExportError::Io { path, source }) => Err(BundleError::Write { path, source }),
        Err(ExportError::Exists { path }) => Err(BundleError::Exists { path }),
        Err(ExportError::Read(error)) if is_of_the_machine(&error) => {
            Err(BundleError::Copy { source: Box::new(error) })
        }
        Err(ExportError::Read(_) | ExportError::Content { .. } | ExportError::Head { .. }) => Ok(false),
    }
}

/// Makes the export name the last head of the head file that was copied, which
/// may be older than the one beside the ledger by now.
fn fit_head_beside(request: &BundleRequest, export: &Path) -> Result<(), BundleError> {
    let path = export.join("head-beside.txt");
    let write = |source| BundleError::Write { path: path.clone(), source };
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(write(error)),
        _ => {}
    }
    match head_file::read_last(&request.scratch.join("beside.head")) {
        Ok(note) => fs::write(&path, format!("{note}\n")).map_err(write),
        Err(_) => Ok(()),
    }
}
