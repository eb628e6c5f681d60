//! The qualifier's own ledger: created with its first entry, never the run's.

use std::path::Path;

use ledger::create::create_qualification_ledger;
use ledger::keys::KeyPair;
use ledger::note;
use ledger::reader::Reader;
use ledger::recorder::{Receipt, Record, Recorder};
use schemas::body::{AnomalyDet, AnomalyObs, Body, Halves};
use schemas::digest::Digest;
use schemas::dsse::HandoffHead;
use schemas::entry::LedgerKind;
use schemas::ids::RunId;

use crate::error::{EvaluateError, Refusal};

/// Program and version, for entries.
pub(crate) const TOOL: &str = concat!("evaluator ", env!("CARGO_PKG_VERSION"));

/// Identifier of the qualification ledger of a contract: `qualification-` and
/// the first 16 hex digits of the contract's digest. It depends on the
/// contract and not on the run, so that two runs of one contract share their
/// count of openings when they share the ledger.
#[must_use]
pub fn qualification_run_id(contract: &Digest) -> RunId {
    RunId(format!("qualification-{}", &contract.hex()[..16]))
}

/// A qualification ledger, open for writing.
pub(crate) struct OwnLedger {
    recorder: Recorder,
}

impl OwnLedger {
    /// Opens the ledger, or makes it.
    pub(crate) fn open(path: &Path, key: &KeyPair, contract: &Digest) -> Result<Self, EvaluateError> {
        let run = qualification_run_id(contract);
        if !path.exists() {
            create_qualification_ledger(path, key, &run)?;
        }
        let recorder = Recorder::open(path, key.clone())?;
        if recorder.kind() != LedgerKind::Qualification || *recorder.run() != run {
            let kind = note::kind_name(recorder.kind());
            let reason = format!(
                "it is the {kind} ledger {}, expected the qualification ledger {run}",
                recorder.run()
            );
            return Err(Refusal::Record { place: path.display().to_string(), reason }.into());
        }
        Ok(Self { recorder })
    }

    /// Appends an entry that is durable, under a signed head, on return.
    pub(crate) fn append(&self, body: Body, step: Option<u64>) -> Result<Receipt, EvaluateError> {
        let mut record = Record::new(body);
        record.step = step;
        Ok(self.recorder.append_durable(record)?)
    }

    /// Records that an opening gave no result, and why.
    pub(crate) fn append_anomaly(&self, name: &str, description: &str) -> Result<Receipt, EvaluateError> {
        let det = AnomalyDet::named(name);
        let obs = AnomalyObs { description: description.to_owned() };
        self.append(Body::Anomaly(Box::new(Halves { det, obs })), None)
    }

    /// Openings of a sealed set that this ledger holds.
    pub(crate) fn num_openings(&self, sealed: &Digest) -> Result<u64, EvaluateError> {
        let reader = Reader::open(self.recorder.path())?;
        let mut count = 0;
        for entry in reader.entries(0) {
            if let Body::QualificationOpened(opened) = &entry?.body {
                count += u64::from(opened.det.sealed == *sealed);
            }
        }
        Ok(count)
    }

    /// Closes it; the head that its result lies under.
    pub(crate) fn close(self) -> Result<HandoffHead, EvaluateError> {
        let origin = note::origin(self.recorder.kind(), self.recorder.run());
        let receipt = self.recorder.close()?;
        Ok(HandoffHead { origin, root: schemas::digest::encode_hex(&receipt.root), size: receipt.size })
    }
}
