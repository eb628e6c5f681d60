//! What the validator said of this ledger before, in files beside it: a stored
//! report (GL111) and a handoff (GL112). Neither is believed; both are compared
//! with the entries.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use schemas::digest::Digest;

use crate::assemble::Ruling;
use crate::contract::ContractRead;
use crate::error::AuditError;
use crate::evidence::MAX_DOCUMENT_BYTES;
use crate::roots::Roots;
use crate::rule::{Outcome, Sink};
use crate::rules::gl111_stored_report;
use crate::rules::gl112_handoff_file::{self, Handoffs};
use crate::store::beside;
use crate::stored_report::StoredReport;

/// Bytes and place of a file.
pub(crate) type Named = (Vec<u8>, String);

/// The two files, as far as they exist.
pub(crate) struct SaidFiles {
    report: Option<Named>,
    handoff: Option<Named>,
    /// A report that the reviewer names, unless it is the one beside the ledger.
    named: Option<Named>,
}

impl SaidFiles {
    /// Reads them from beside the ledger, and a report that was named.
    ///
    /// # Errors
    /// When one exists and cannot be read, or the named one does not exist.
    pub(crate) fn read(ledger: &Path, named: Option<&Path>) -> Result<Self, AuditError> {
        let report = read_optional(beside(ledger, ".report.dsse.json"), "the stored report")?;
        let handoff = read_optional(beside(ledger, ".handoff.dsse.json"), "the handoff")?;
        let named = named.map(|path| match read_limited(path, MAX_DOCUMENT_BYTES) {
            Ok(bytes) => Ok((bytes, path.display().to_string())),
            Err(source) => {
                let what = "the report to go on from";
                Err(AuditError::Named { what, path: path.to_owned(), source })
            }
        });
        Ok(Self { report, handoff, named: named.transpose()? })
    }

    /// Bytes of the report that the reviewer named.
    pub(crate) fn named(&self) -> Option<&[u8]> {
        self.named.as_ref().map(|(bytes, _)| bytes.as_slice())
    }

    /// The same, where it is another one than the report beside the ledger.
    fn further(&self) -> Option<(&[u8], &str)> {
        let beside = self.report.as_ref().map(|(bytes, _)| bytes);
        borrowed(&self.named).filter(|(bytes, _)| beside.is_none_or(|beside| beside != bytes))
    }
}

/// Bytes and place of a file beside a ledger, where it exists.
pub(crate) fn read_optional(path: PathBuf, what: &'static str) -> Result<Option<Named>, AuditError> {
    match read_limited(&path, MAX_DOCUMENT_BYTES) {
        Ok(bytes) => Ok(Some((bytes, path.display().to_string()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(AuditError::Named { what, path, source }),
    }
}

/// Opens a regular file that somebody named, with its size. What is none (a FIFO,
/// a socket, a device) is refused before it is opened, since opening may block.
pub(crate) fn open_regular(path: &Path) -> io::Result<(fs::File, u64)> {
    let refused = || io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
    if !fs::metadata(path)?.is_file() {
        return Err(refused());
    }
    let file = fs::File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok((file, metadata.len())) } else { Err(refused()) }
}

/// Reads a regular file of at most `limit` bytes; see [`open_regular`].
pub(crate) fn read_limited(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    use io::Read;
    let (file, _) = open_regular(path)?;
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let message = format!("it has more than the {limit} bytes that are read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

fn borrowed(file: &Option<Named>) -> Option<(&[u8], &str)> {
    file.as_ref().map(|(bytes, place)| (bytes.as_slice(), place.as_str()))
}

/// The outcome of looking at two reports: that there is none beside the ledger
/// takes nothing from the other.
fn both(beside: Outcome, named: Outcome) -> Outcome {
    match (beside, named) {
        (Outcome::Checked(one), Outcome::Checked(other)) => Outcome::Checked(one + other),
        (Outcome::NotApplicable(_), named) => named,
        (beside, _) => beside,
    }
}

/// What was said, with the findings about it.
pub(crate) struct Said {
    report: Result<StoredReport, Outcome>,
    /// A report that the reviewer named: it commits the validator as much.
    further: Option<Result<StoredReport, Outcome>>,
    report_digest: Option<Digest>,
    report_sink: Sink,
    pub(crate) handoffs: Handoffs,
    handoff_sink: Sink,
}

impl Said {
    /// Verifies signatures and shapes.
    pub(crate) fn read(files: &SaidFiles, read: Option<&ContractRead>) -> Self {
        let mut report_sink = Sink::new(&gl111_stored_report::INFO);
        let mut handoff_sink = Sink::new(&gl112_handoff_file::INFO);
        let report = gl111_stored_report::read(borrowed(&files.report), read, &mut report_sink);
        let further = files.further();
        let further = further.map(|file| gl111_stored_report::read(Some(file), read, &mut report_sink));
        Self {
            report,
            further,
            report_digest: files
                .report
                .as_ref()
                .map(|(bytes, _)| Digest::blake3(*blake3::hash(bytes).as_bytes())),
            report_sink,
            handoffs: Handoffs::read(borrowed(&files.handoff), read, &mut handoff_sink),
            handoff_sink,
        }
    }

    /// Sizes at which roots are needed.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = u64> {
        let size = |report: &Result<StoredReport, Outcome>| report.as_ref().ok().and_then(StoredReport::size);
        let further = self.further.as_ref().and_then(size);
        size(&self.report).into_iter().chain(further).chain(self.handoffs.size())
    }

    /// Compares with the entries, after the last of them.
    pub(crate) fn finish(mut self, roots: &Roots) -> [Ruling; 2] {
        let mut outcome = match self.report {
            Ok(report) => report.compare(roots, &mut self.report_sink),
            Err(outcome) => outcome,
        };
        if let Some(further) = self.further {
            let compared =
                further.map_or_else(|outcome| outcome, |report| report.compare(roots, &mut self.report_sink));
            outcome = both(outcome, compared);
        }
        let handoff = self.handoffs.compare(roots, self.report_digest, &mut self.handoff_sink);
        [
            Ruling::new(&gl111_stored_report::INFO, self.report_sink, outcome),
            Ruling::new(&gl112_handoff_file::INFO, self.handoff_sink, handoff),
        ]
    }
}
