//! Submitting the newest head of a run to a witness, and keeping what comes back.
//!
//! The ledger is read from a private copy and its writer's lock never taken, so a
//! run can go on meanwhile. What is kept is verified first, and on disk before
//! success is told; a submission that was interrupted is simply made again.

use std::path::{Path, PathBuf};

use ledger::note::{self, NoteError, TreeHead};
use ledger::reader::{ReadError, Reader};
use ledger::tree::Hash;
use schemas::body::Kind;
use schemas::contract::Keys;

use crate::client::{Client, ClientError, Reply};
use crate::cosignature::{self, CosignatureError};
use crate::cosigned_file::{self, CosignedFile, CosignedFileError, with_cosignature};
use crate::leaves::{self, LeavesError};
use crate::verifier_key::VerifierKey;

/// Answers of a witness to one head: its size may be learnt once, and may have
/// grown meanwhile by another submission.
const MAX_TRIES: usize = 4;

/// A head that was not cosigned.
#[derive(Debug, thiserror::Error)]
pub enum SubmissionError {
    /// The ledger cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// There is no head, or not one of these entries.
    #[error(transparent)]
    Leaves(#[from] LeavesError),
    /// The head is not signed by the contract's owner or trainer.
    #[error("the newest head is not signed by who signs it under the contract")]
    Head(#[source] NoteError),
    /// The witness could not be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The file of cosigned heads.
    #[error(transparent)]
    File(#[from] CosignedFileError),
    /// The witness saw more of this run than there is.
    #[error(
        "{witness} cosigned {size} entries of this run, and its newest head here has {own}: this ledger was cut, or another copy \
         of it went on"
    )]
    Ahead {
        /// Origin of the head.
        origin: String,
        /// The witness.
        witness: String,
        /// The size that it has.
        size: u64,
        /// Size of the head here.
        own: u64,
    },
    /// The witness does not know what it cosigned itself.
    #[error(
        "{witness} says that it cosigned {size} entries of this run, and {} holds its cosignature of {held}: its state was \
         lost or put back, and what it cosigns from now on shows nothing of the time before",
        path.display()
    )]
    Behind {
        /// Size of the newest head by it in the file.
        held: u64,
        /// The file of cosigned heads.
        path: PathBuf,
        /// The size that it says.
        size: u64,
        /// The witness.
        witness: String,
    },
    /// The witness saw another history of this run.
    #[error(
        "{witness} cosigned another history of this run, of {size} entries: this one does not begin with it"
    )]
    Forked {
        /// Origin of the head.
        origin: String,
        /// The witness.
        witness: String,
        /// The size that it has.
        size: u64,
    },
    /// The witness said yes, and gave no cosignature that holds.
    #[error("{witness} answered without a cosignature by its key over this head")]
    NoCosignature {
        /// The witness.
        witness: String,
        /// What is wrong with the line, where there is one.
        #[source]
        source: Option<CosignatureError>,
    },
    /// The witness's size changes with every answer.
    #[error(
        "{witness} said another size each time that it was asked; hint: is another submission of this run going on?"
    )]
    Restless {
        /// The witness.
        witness: String,
    },
}

impl SubmissionError {
    /// Whether something is wrong with the ledger or the witness, and not only
    /// with reaching it.
    #[must_use]
    pub const fn is_finding(&self) -> bool {
        matches!(
            self,
            Self::Ahead { .. }
                | Self::Behind { .. }
                | Self::Forked { .. }
                | Self::NoCosignature { .. }
                | Self::Head(_)
                | Self::Leaves(LeavesError::Root { .. } | LeavesError::Behind { .. })
        )
    }
}

/// What became of a head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// The head.
    pub head: TreeHead,
    /// Whether it was cosigned before, so that nothing was asked.
    pub is_known: bool,
    /// Whether it covers the run's end.
    pub is_last: bool,
    /// Size of a head that the witness had cosigned and that is not in the file
    /// beside the ledger, where it told one: heads of before may be missing too.
    pub not_here: Option<u64>,
    /// When the witness cosigned it, in seconds since 1970; `None` where nothing
    /// was asked.
    pub time_s: Option<u64>,
}

/// The submissions of one run to one witness.
#[derive(Debug)]
pub struct Submission<'a> {
    client: Client,
    leaves: Vec<Hash>,
    ledger: &'a Path,
    num_searched: u64,
    run_end: Option<u64>,
    witness: VerifierKey,
}

impl<'a> Submission<'a> {
    /// Prepares submissions.
    #[must_use]
    pub fn new(ledger: &'a Path, client: Client, witness: VerifierKey) -> Self {
        Self { client, leaves: Vec::new(), ledger, num_searched: 0, run_end: None, witness }
    }

    /// Submits the newest head, unless the witness cosigned it already, and
    /// appends the cosigned head to the file beside the ledger.
    ///
    /// # Errors
    /// When there is no such head, it is refused, or cannot be kept.
    pub fn submit(&mut self) -> Result<Submitted, SubmissionError> {
        match self.submit_once() {
            // Another submission of this run may have been made since the ledger was read.
            Err(SubmissionError::Ahead { .. }) => self.submit_once(),
            other => other,
        }
    }

    fn submit_once(&mut self) -> Result<Submitted, SubmissionError> {
        let reader = Reader::open(self.ledger)?;
        let keys = reader.contract()?.contract.keys;
        let note = leaves::newest_head(&reader)?;
        let (head, public) = check_signature(&note, &keys)?;
        leaves::extend(&mut self.leaves, &reader)?;
        let levels = leaves::tree(&self.leaves, &head)?;
        self.find_end(&reader)?;
        let is_last = self.run_end.is_some_and(|end| head.size > end);
        let path = cosigned_file::path_for(self.ledger);
        // A witness that cannot be asked leaves no file behind.
        let newest = CosignedFile::newest_at(&path, &head.origin, &self.witness)?;
        if newest == Some((head.size, head.root)) {
            return Ok(Submitted { head, is_known: true, is_last, not_here: None, time_s: None });
        }
        // A size beyond the head is left for the witness to say.
        let mut old_size = newest.map_or(0, |(size, _)| size).min(head.size);
        let mut told = None;
        for _ in 0..MAX_TRIES {
            let proof = leaves::consistency(&levels, old_size, head.size)?;
            match self.client.add_checkpoint(old_size, &proof, &note)? {
                Reply::Cosigned(lines) => {
                    // Another submission may have kept that head meanwhile.
                    let held = CosignedFile::newest_at(&path, &head.origin, &self.witness)?;
                    let not_here = told.filter(|told| held.is_none_or(|(held, _)| held < *told));
                    let time_s = self.keep(&note, &public, &lines, &path)?;
                    return Ok(Submitted { head, is_known: false, is_last, not_here, time_s: Some(time_s) });
                }
                Reply::Conflict { size } if size > head.size => {
                    let (witness, own) = (self.name(), head.size);
                    return Err(SubmissionError::Ahead { origin: head.origin, witness, size, own });
                }
                Reply::Conflict { size } if newest.is_some_and(|(held, _)| size < held) => {
                    let held = newest.map_or(0, |(held, _)| held);
                    return Err(SubmissionError::Behind { held, path, size, witness: self.name() });
                }
                Reply::Conflict { size } if size == old_size => {
                    return Err(SubmissionError::Forked { origin: head.origin, witness: self.name(), size });
                }
                Reply::Conflict { size } => {
                    told = Some(size).filter(|size| *size > 0);
                    old_size = size;
                }
                Reply::BadProof => {
                    let (origin, witness) = (head.origin, self.name());
                    return Err(SubmissionError::Forked { origin, witness, size: old_size });
                }
            }
        }
        Err(SubmissionError::Restless { witness: self.name() })
    }

    /// Where the witness gives every head of a log that it cosigned, in the form of
    /// the file beside the ledger.
    #[must_use]
    pub fn cosigned_url(&self, origin: &str) -> String {
        self.client.cosigned_url(origin)
    }

    fn name(&self) -> String {
        self.witness.name.clone()
    }

    /// Verifies the witness's lines and appends the one that counts.
    fn keep(&self, note: &str, public: &str, lines: &str, path: &Path) -> Result<u64, SubmissionError> {
        let missing = |source| SubmissionError::NoCosignature { witness: self.name(), source };
        let parsed = note::parse(note).map_err(SubmissionError::Head)?;
        // Each line alone: a note holds few, and those of other keys are ignored.
        for line in lines.split_inclusive('\n') {
            let cosigned = with_cosignature(&parsed, public, line);
            let Ok(read) = note::parse(&cosigned) else { continue };
            match cosignature::verify(&read, &self.witness) {
                Ok(None) => {}
                Ok(Some(time_s)) => {
                    CosignedFile::open(path, &parsed.head.origin)?.append(&cosigned)?;
                    return Ok(time_s);
                }
                Err(error) => return Err(missing(Some(error))),
            }
        }
        Err(missing(None))
    }

    /// Looks for the run's end among the entries that were not seen yet.
    fn find_end(&mut self, reader: &Reader) -> Result<(), SubmissionError> {
        if self.run_end.is_some() {
            return Ok(());
        }
        for entry in reader.entries(self.num_searched) {
            let entry = entry?;
            self.num_searched = entry.index + 1;
            if entry.body.kind() == Kind::RunEnd {
                self.run_end = Some(entry.index);
                break;
            }
        }
        Ok(())
    }
}

/// The head with the key that signed it: the owner's for the freeze, the
/// trainer's from then on.
pub(crate) fn check_signature(note: &str, keys: &Keys) -> Result<(TreeHead, String), SubmissionError> {
    let size = note::parse(note).map_err(SubmissionError::Head)?.head.size;
    let public = if size <= 1 { &keys.owner.public } else { &keys.trainer.public };
    let head = note::verify(note, public).map_err(SubmissionError::Head)?;
    Ok((head, public.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_witness_forgot_is_told_in_one_line() {
        let error = SubmissionError::Behind {
            held: 9,
            path: PathBuf::from("run.db.cosigned"),
            size: 4,
            witness: "witness.example/w1".to_owned(),
        };
        assert_eq!(
            error.to_string(),
            "witness.example/w1 says that it cosigned 4 entries of this run, and run.db.cosigned holds its cosignature of 9: \
             its state was lost or put back, and what it cosigns from now on shows nothing of the time before"
        );
    }
}
