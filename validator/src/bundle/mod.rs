//! An audit of a run that came as one file.
//!
//! A bundle is unpacked into a folder of its own and audited there like any run:
//! same verdict, same findings. It owns what may come out of a bundle and
//! where it may go, and it is strict, since anybody may have made one: what is
//! refused is refused before a byte of it is judged (docs/FORMAT.md, "Bundles").
//! It shares no code with the writer, executes nothing, follows nothing, and
//! takes from the manifest limits and no evidence. What was left out is not
//! evaluated, and nothing is accepted on less than an audit needs.

mod archive;
mod error;
mod find;
mod names;
mod rebuild;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use schemas::bundle::{
    BUNDLE_DISK_BLOCK_BYTES, BUNDLE_EXPORT, BUNDLE_RUN, BUNDLE_SLACK_BYTES, BundleManifest, LedgerForm,
    MAX_BUNDLE_RATIO,
};
use schemas::digest::encode_hex;
use schemas::report::Report;

pub use error::{BundleError, Refusal};

use self::archive::{BLOCK_BYTES, Failed, Fault, Frame, Members};
use crate::audit::{Progress, audit_leaving_out};
use crate::note::Note;
use crate::request::AuditRequest;
use crate::rule::Sink;
use crate::rules;
use crate::store::{Access, Store};

/// First bytes of a Zstandard frame.
const FRAME_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// First bytes of a SQLite file.
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Largest last head of a head file: what a writer looks at for it, room for two
/// of the longest notes, and its newlines.
const MAX_HEAD_BESIDE_BYTES: u64 = (2 << 16) + 4;

/// Whether a file is a bundle and no ledger, by its first bytes.
///
/// # Errors
/// When it cannot be read.
pub fn is_bundle(path: &Path) -> io::Result<bool> {
    if !fs::metadata(path)?.is_file() {
        return Ok(false);
    }
    let mut first = Vec::new();
    File::open(path)?.take(FRAME_MAGIC.len() as u64).read_to_end(&mut first)?;
    Ok(first == FRAME_MAGIC)
}

/// What an audit of a bundle is asked; see [`AuditRequest`].
#[derive(Debug, Clone, Default)]
pub struct BundleAudit {
    /// A head file that was kept elsewhere.
    pub head: Option<PathBuf>,
    /// Public keys that the reviewer trusts.
    pub trust: Option<PathBuf>,
    /// The evaluator's val numbers, where they are not in the bundle.
    pub val_numbers: Option<PathBuf>,
    /// Cosigned heads, where they are not in the bundle.
    pub cosigned: Option<PathBuf>,
    /// A report of an earlier audit to go on from.
    pub since: Option<PathBuf>,
    /// Threads to compute on.
    pub threads: Option<NonZeroUsize>,
}

/// A bundle that was unpacked.
#[derive(Debug, Clone)]
pub struct Unpacked {
    bundle: PathBuf,
    manifest: BundleManifest,
    scratch: PathBuf,
}

/// Names places of one bundle in errors.
pub(crate) struct Place<'a> {
    bundle: &'a Path,
}

impl Place<'_> {
    fn refused(&self, place: &str, refusal: Refusal) -> BundleError {
        BundleError::Refused { bundle: self.bundle.to_owned(), place: place.to_owned(), refusal }
    }

    fn failed(&self, (place, fault): Failed) -> BundleError {
        match fault {
            Fault::Refused(refusal) => self.refused(&place, refusal),
            Fault::Io(source) => BundleError::Io { path: self.bundle.to_owned(), source },
        }
    }
}

/// Unpacks a bundle into an empty folder of the caller's, which the caller
/// removes. `progress` counts bytes.
///
/// # Errors
/// When the bundle is refused, cannot be read, or there is no room.
pub fn unpack(
    bundle: &Path,
    scratch: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Unpacked, BundleError> {
    let place = Place { bundle };
    let io = |source| BundleError::Io { path: bundle.to_owned(), source };
    let file = File::open(bundle).map_err(io)?;
    let packed = file.metadata().map_err(io)?.len();
    let frame = Frame::open(io::BufReader::with_capacity(1 << 17, file));
    let mut members = Members::new(frame.map_err(|fault| place.failed(("its beginning".to_owned(), fault)))?);
    let manifest = members.manifest().map_err(|failed| place.failed(failed))?;
    let num_folders = names::check(&manifest).map_err(|(name, refusal)| place.refused(&name, refusal))?;
    check_size(&manifest, num_folders, packed, scratch, &place)?;
    let total = manifest.members.iter().map(|member| member.num_bytes).sum();
    let mut done = 0;
    for (at, member) in manifest.members.iter().enumerate() {
        let path = scratch.join(&member.name);
        let write = |source| BundleError::Io { path: path.clone(), source };
        // Every name was checked: below the folder, and no two of them alike.
        fs::create_dir_all(path.parent().unwrap_or(scratch)).map_err(write)?;
        let mut target = File::create_new(&path).map_err(write)?;
        let mut written = Ok(());
        let mut begins = Vec::new();
        let taken = members.member(&manifest, at, &mut |bytes| {
            if begins.len() < SQLITE_MAGIC.len() {
                begins
                    .extend_from_slice(bytes.get(..SQLITE_MAGIC.len().min(bytes.len())).unwrap_or_default());
            }
            written = target.write_all(bytes);
            done += bytes.len() as u64;
            progress(Progress { phase: "unpacking", done, total });
            if written.is_ok() { Ok(()) } else { Err(Fault::Io(io::ErrorKind::Other.into())) }
        });
        written.map_err(write)?;
        taken.map_err(|failed| place.failed(failed))?;
        if begins.starts_with(SQLITE_MAGIC) && !is_ledger(&manifest, &member.name) {
            let what = "a database that is not the ledger".to_owned();
            return Err(place.refused(&member.name, Refusal::SecondSubject(what)));
        }
    }
    members.end(&manifest).map_err(|failed| place.failed(failed))?;
    for folder in &manifest.folders {
        let path = scratch.join(folder);
        fs::create_dir_all(&path).map_err(|source| BundleError::Io { path, source })?;
    }
    let unpacked = Unpacked { bundle: bundle.to_owned(), manifest, scratch: scratch.to_owned() };
    unpacked.complete(&place)?;
    Ok(unpacked)
}

/// Whether a member may be a database: the ledger, and what lies too deep to be
/// one, such as a shard of data.
fn is_ledger(manifest: &BundleManifest, name: &str) -> bool {
    let inner = name.strip_prefix(BUNDLE_RUN).unwrap_or(name);
    let is_held = manifest.ledger.form == LedgerForm::Database && inner == manifest.ledger.file;
    is_held || (inner.contains('/') && !inner.ends_with(".db"))
}

/// Limits come from the manifest, and the manifest's from the file's size.
fn check_size(
    manifest: &BundleManifest,
    num_folders: usize,
    packed: u64,
    scratch: &Path,
    place: &Place<'_>,
) -> Result<(), BundleError> {
    let block = BLOCK_BYTES as u64;
    let padded = |num_bytes: u64| num_bytes.div_ceil(block).saturating_mul(block).saturating_add(block);
    let num_blocks = num_folders.saturating_add(manifest.members.len()) as u64;
    let blocks = num_blocks.saturating_mul(BUNDLE_DISK_BLOCK_BYTES);
    let unpacked =
        manifest.members.iter().fold(blocks, |sum, member| sum.saturating_add(padded(member.num_bytes)));
    if unpacked > packed.saturating_mul(MAX_BUNDLE_RATIO).saturating_add(BUNDLE_SLACK_BYTES) {
        return Err(place.refused("manifest.json", Refusal::Bomb { packed, unpacked }));
    }
    // An export becomes a database beside it, whose rows repeat keys and hashes.
    let export = manifest.members.iter().filter(|member| member.name.starts_with(BUNDLE_EXPORT));
    let rows = export.fold(0u64, |sum, member| sum.saturating_add(member.num_bytes.saturating_mul(2)));
    let num_needed = unpacked.saturating_add(rows);
    let Ok(found) = rustix::fs::statvfs(scratch) else { return Ok(()) };
    let num_free = found.f_bavail.saturating_mul(found.f_frsize);
    if num_free >= num_needed {
        return Ok(());
    }
    Err(BundleError::Room { path: scratch.to_owned(), num_free, num_needed })
}

/// Reads a document; `None` where there is none, or it is larger.
pub(crate) fn read_document(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, BundleError> {
    let io = |source| BundleError::Io { path: path.to_owned(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(io)?,
    };
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(io)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}

impl Unpacked {
    /// The manifest, of which nothing but its form was believed.
    #[must_use]
    pub const fn manifest(&self) -> &BundleManifest {
        &self.manifest
    }

    /// The ledger as it was unpacked or made of the export.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.folder().join(&self.manifest.ledger.file)
    }

    /// The export, where the bundle holds the ledger as one.
    #[must_use]
    pub fn export(&self) -> Option<PathBuf> {
        (self.manifest.ledger.form == LedgerForm::Export).then(|| self.scratch.join("export"))
    }

    /// The run's folder.
    fn folder(&self) -> PathBuf {
        self.scratch.join("run")
    }

    /// Makes the database of an export, and asserts that there is one subject.
    fn complete(&self, place: &Place<'_>) -> Result<(), BundleError> {
        let folder = self.folder();
        fs::create_dir_all(&folder).map_err(|source| BundleError::Io { path: folder.clone(), source })?;
        if let Some(export) = self.export() {
            rebuild::rebuild(&export, &self.ledger(), place)?;
            self.check_head_beside(&export, place)?;
        }
        let (Some(stated), Some(found)) = (&self.manifest.head, self.newest_head()) else { return Ok(()) };
        if (&stated.origin, stated.size) == (&found.origin, found.size)
            && stated.root == encode_hex(&found.root)
        {
            return Ok(());
        }
        let what = format!(
            "the manifest is of {} with {} entries and root {}, the ledger's newest head is of {} with {} and root {}",
            stated.origin,
            stated.size,
            stated.root,
            found.origin,
            found.size,
            encode_hex(&found.root)
        );
        Err(place.refused("manifest.json", Refusal::SecondSubject(what)))
    }

    /// The last head of the head file is told twice: there, and in the export.
    fn check_head_beside(&self, export: &Path, place: &Place<'_>) -> Result<(), BundleError> {
        let refused = |what: &str| {
            Err(place.refused("export/head-beside.txt", Refusal::SecondSubject(what.to_owned())))
        };
        let path = export.join("head-beside.txt");
        if !path.exists() {
            return Ok(());
        }
        let Some(beside) = read_document(&path, MAX_HEAD_BESIDE_BYTES)? else {
            return refused("it is longer than a head is");
        };
        let file = self.folder().join(format!("{}.head", self.manifest.ledger.file));
        let held = read_document(&file, crate::heads::MAX_HEAD_FILE_BYTES)?.unwrap_or_default();
        // A torn note may follow it, as a power cut leaves one. Whether it is a note
        // at all is not asked here: that the file is damaged is for the audit to find.
        let note = beside.trim_ascii_end();
        if !note.is_empty() && find::contains(&held, note) {
            return Ok(());
        }
        refused("it is no head of the head file")
    }

    /// The newest head of the ledger, where it can be read.
    fn newest_head(&self) -> Option<Note> {
        let mut sink = Sink::new(&rules::gl001_store_layout::INFO);
        let store = Store::open(&self.ledger(), Access::InPlace, &mut sink).ok()??;
        Note::parse(&store.heads().ok()?.last()?.note).ok()
    }

    /// Audits the run. Places in the report are relative to the run's folder, so
    /// that it is the report of an audit made there.
    ///
    /// # Errors
    /// When the audit could not look, or the ledger is of another run than the
    /// manifest says.
    pub fn audit(
        &self,
        request: &BundleAudit,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Report, BundleError> {
        let left_out: BTreeSet<String> = self
            .manifest
            .left_out
            .iter()
            .filter_map(|file| file.name.strip_prefix(BUNDLE_RUN))
            .map(str::to_owned)
            .collect();
        let request = AuditRequest {
            ledger: self.ledger(),
            head: request.head.clone(),
            trust: request.trust.clone(),
            val_numbers: request.val_numbers.clone(),
            cosigned: request.cosigned.clone(),
            since: request.since.clone(),
            threads: request.threads,
        };
        let mut report = audit_leaving_out(&request, left_out, progress)?;
        relocate(&mut report, &format!("{}/", self.folder().display()));
        match (&self.manifest.run, &report.run) {
            (Some(stated), Some(found)) if stated != found => {
                let what = format!("the manifest is of run {stated}, the ledger of run {found}");
                let place = Place { bundle: &self.bundle };
                Err(place.refused("manifest.json", Refusal::SecondSubject(what)))
            }
            _ => Ok(report),
        }
    }
}

/// Takes the folder out of every text that names it.
fn relocate(report: &mut Report, folder: &str) {
    let relative = |text: &mut String| {
        if text.contains(folder) {
            *text = text.replace(folder, "");
        }
    };
    for finding in &mut report.findings {
        relative(&mut finding.actual);
        relative(&mut finding.expected);
        relative(&mut finding.location);
        relative(&mut finding.message);
        relative(&mut finding.remedy);
    }
    for rule in &mut report.rules {
        if let Some(reason) = &mut rule.reason {
            relative(reason);
        }
    }
}

/// Reads an archive that is not compressed and keeps nothing: for fuzz tests.
/// The names and sizes of its members, or why it is refused.
#[doc(hidden)]
pub fn read_archive(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>, Refusal> {
    let refusal = |(_, fault): Failed| match fault {
        Fault::Refused(refusal) => refusal,
        Fault::Io(error) => Refusal::Frame(error.to_string()),
    };
    let mut members = Members::new(bytes);
    let manifest = members.manifest().map_err(refusal)?;
    names::check(&manifest).map_err(|(_, refusal)| refusal)?;
    let mut found = Vec::new();
    for (at, member) in manifest.members.iter().enumerate() {
        let mut content = Vec::new();
        members
            .member(&manifest, at, &mut |bytes| {
                content.extend_from_slice(bytes);
                Ok(())
            })
            .map_err(refusal)?;
        found.push((member.name.clone(), content));
    }
    members.end(&manifest).map_err(refusal)?;
    Ok(found)
}

/// Reads a frame and keeps nothing: for fuzz tests. Bytes that it gave, or why it
/// is refused.
#[doc(hidden)]
pub fn read_frame(bytes: &[u8], most: u64) -> Result<u64, Refusal> {
    use self::archive::Stream;
    let refusal = |fault| match fault {
        Fault::Refused(refusal) => refusal,
        Fault::Io(error) => Refusal::Frame(error.to_string()),
    };
    let mut frame = Frame::open(bytes).map_err(refusal)?;
    let (mut piece, mut total) = (vec![0; 1 << 12], 0);
    loop {
        let count = frame.fill(&mut piece).map_err(refusal)? as u64;
        total += count;
        if count == 0 {
            break;
        }
        if total > most {
            return Err(Refusal::Bomb { packed: bytes.len() as u64, unpacked: total });
        }
    }
    frame.finish().map_err(refusal)?;
    Ok(total)
}
