//! `evaluator qualify`: one opening of the sealed set for one candidate.
//!
//! Everything that can be checked without the set is checked first. Then the
//! opening is recorded, durably, and only then is the set opened. Whatever
//! happens afterwards, the opening stays recorded.

use std::io::{self, Read};
use std::iter;
use std::path::{Path, PathBuf};
use std::time::Instant;

use age::x25519::Identity;
use schemas::body::{
    Body, Halves, Overlap, QualificationOpenedDet, QualificationOpenedObs, QualificationResultDet,
    QualificationResultObs,
};
use schemas::contract::Metric;
use schemas::data::{DataManifest, DataShard, Split};
use schemas::digest::Digest;
use schemas::dsse::{HandoffHead, QUALIFICATION_PREDICATE_TYPE};
use schemas::number::Float;
use serde::Serialize;

use crate::data::{DataFolder, data_folder, windows};
use crate::error::{EvaluateError, Refusal};
use crate::files::{blake3_of, check_digest, read, with_suffix};
use crate::forward::score;
use crate::handoff::{self, Handoff};
use crate::identity::{age_identity, key_folder, signing_key};
use crate::overlap::OverlapCount;
use crate::own_ledger::{OwnLedger, TOOL};
use crate::run::{LoadedCandidate, RunLedger};
use crate::statement::{QualificationPredicate, independence, sign_and_write};
use crate::val::{default_ledger, duration_us};
use crate::{Progress, Watch};

/// What no result of this kind shows.
const NONCLAIMS: [&str; 3] = [
    "The value holds for the opened set alone; it says nothing about any other text, and grants neither quality nor readiness nor release.",
    "A set that was published before it was sealed shows the protocol and not secrecy.",
    "Overlap is measured verbatim on sampled spans; paraphrase and text outside the named shards are not seen.",
];

/// What to qualify, and where things are.
#[derive(Debug, Clone, Default)]
pub struct QualifyRequest {
    /// Folder of the data shards, for overlap; `None`: that of the manifest.
    pub data: Option<PathBuf>,
    /// The handoff's envelope.
    pub handoff: PathBuf,
    /// Key folder; `None`: `LEDGER_KEYS`, else `keys` beside the ledger.
    pub keys: Option<PathBuf>,
    /// The run's ledger, as it is after the handoff.
    pub ledger: PathBuf,
    /// Where the result goes; `None`: `<qualification ledger>.result.dsse.json`,
    /// with the number of the opening in the name from the second one on.
    pub output: Option<PathBuf>,
    /// The qualifier's own ledger; `None`: `qualification.db` beside the run's.
    pub qualification: Option<PathBuf>,
    /// The sealed file; `None`: where the contract says.
    pub sealed: Option<PathBuf>,
    /// Threads; 0 counts as 1. The result does not depend on it.
    pub num_threads: usize,
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct QualifyOutcome {
    /// BLAKE3 of the result's envelope.
    pub envelope: Digest,
    /// The result's file.
    pub output: PathBuf,
    /// Why overlap was not measured; null where it was.
    pub overlap_not_measured: Option<String>,
    /// What was signed.
    pub predicate: QualificationPredicate,
}

/// Everything that was checked before the opening.
struct Prepared {
    candidate: LoadedCandidate,
    handoff: Handoff,
    identity: Identity,
    /// `Err` says what is not at hand.
    manifest: Result<DataManifest, String>,
    run: RunLedger,
    sealed: Vec<u8>,
    sealed_digest: Digest,
}

/// Checks the handoff, records the opening, opens the set, evaluates the
/// candidate on it, records and signs the result.
///
/// # Errors
/// A refusal when anything is not what was frozen, recorded or handed off;
/// otherwise when something cannot be read or written.
pub fn qualify(request: &QualifyRequest, watch: &Watch<'_>) -> Result<QualifyOutcome, EvaluateError> {
    let run = RunLedger::open(&request.ledger)?;
    let key = signing_key(&key_folder(request.keys.as_deref(), &request.ledger), run.contract())?;
    let prepared = prepare(request, run, watch)?;
    let path = request.qualification.clone().unwrap_or_else(|| default_ledger(&request.ledger));
    let own = OwnLedger::open(&path, &key, &prepared.run.frozen.digest)?;
    let num_earlier_openings = own.num_openings(&prepared.sealed_digest)?;
    let output = output_path(request, &path, num_earlier_openings);
    if output.exists() {
        return Err(Refusal::Occupied { path: output }.into());
    }
    record_opening(&prepared, &own, num_earlier_openings)?;
    let start = Instant::now();
    let plaintext = open_set(&prepared, &own)?;
    let (overlap, overlap_not_measured) = measure_overlap(request, &prepared, &plaintext, watch)?;
    let det = evaluate(request, &prepared, &plaintext, overlap, watch);
    let obs = QualificationResultObs { duration_us: duration_us(start), tool: TOOL.to_owned() };
    let body = Body::QualificationResult(Box::new(Halves { det: det.clone(), obs }));
    own.append(body, Some(prepared.handoff.candidate.step))?;
    let head = own.close()?;
    let predicate = predicate(&prepared, head, num_earlier_openings, det);
    let subjects = prepared.candidate.subjects.clone();
    let envelope =
        sign_and_write(QUALIFICATION_PREDICATE_TYPE, predicate.clone(), subjects, &key, &output, false)?;
    Ok(QualifyOutcome { envelope, output, overlap_not_measured, predicate })
}

fn output_path(request: &QualifyRequest, ledger: &Path, num_earlier_openings: u64) -> PathBuf {
    let default = || match num_earlier_openings {
        0 => with_suffix(ledger, ".result.dsse.json"),
        earlier => with_suffix(ledger, &format!(".result-{}.dsse.json", earlier + 1)),
    };
    request.output.clone().unwrap_or_else(default)
}

fn prepare(request: &QualifyRequest, run: RunLedger, watch: &Watch<'_>) -> Result<Prepared, EvaluateError> {
    let identity = age_identity(&key_folder(request.keys.as_deref(), &request.ledger), run.contract())?;
    if matches!(request.handoff.try_exists(), Ok(false)) {
        let (handoff, ledger) = (request.handoff.clone(), request.ledger.clone());
        return Err(EvaluateError::NoHandoff { handoff, ledger });
    }
    let handoff = handoff::check(&request.handoff, &run)?;
    let candidate = run.load(&handoff.candidate)?;
    handoff::check_subjects(&handoff, &candidate.subjects)?;
    let binding = &run.contract().qualification.sealed;
    let missing = |what: &str| Refusal::Record {
        place: "/qualification/sealed".to_owned(),
        reason: format!("the contract binds no {what}"),
    };
    let sealed_digest = binding.digest.ok_or_else(|| missing("digest"))?;
    let num_bytes = binding.num_bytes.ok_or_else(|| missing("size"))?;
    let path = match &request.sealed {
        Some(path) => path.clone(),
        None => crate::files::below(&run.folder, &binding.path, "/qualification/sealed/path")?,
    };
    // One byte more than bound, so that a longer file shows by its digest.
    let sealed = match read(&path, num_bytes.saturating_add(1)) {
        Err(EvaluateError::TooLarge { path, .. }) => {
            let found = blake3_of_file(&path)?;
            let (expected, authority) = (sealed_digest, "the contract");
            return Err(Refusal::Digest { path, found, expected, authority }.into());
        }
        other => other?,
    };
    check_digest(&path, &sealed, sealed_digest, "the contract")?;
    let manifest = data_at_hand(request, &run, watch)?;
    Ok(Prepared { candidate, handoff, identity, manifest, run, sealed, sealed_digest })
}

fn blake3_of_file(path: &Path) -> Result<Digest, EvaluateError> {
    let mut hasher = blake3::Hasher::new();
    let mut file = std::fs::File::open(path).map_err(EvaluateError::io("open", path))?;
    io::copy(&mut file, &mut hasher).map_err(EvaluateError::io("read", path))?;
    Ok(Digest::blake3(*hasher.finalize().as_bytes()))
}

/// Train and val shards, in the manifest's order.
fn visible(manifest: &DataManifest) -> impl Iterator<Item = &DataShard> {
    manifest.shards.iter().filter(|shard| shard.split != Split::Qualification)
}

/// The manifest, when every train and val shard is there. A shard that is
/// there and holds something else is refused.
fn data_at_hand(
    request: &QualifyRequest,
    run: &RunLedger,
    watch: &Watch<'_>,
) -> Result<Result<DataManifest, String>, EvaluateError> {
    let manifest = run.data_manifest()?;
    let folder = DataFolder {
        folder: data_folder(run.contract(), &run.folder, request.data.as_deref()),
        manifest: &manifest,
    };
    let total = visible(&manifest).count() as u64;
    for (done, shard) in (0u64..).zip(visible(&manifest)) {
        watch(Progress { phase: "train and val shards", done, total });
        let path = folder.path(shard)?;
        if !path.exists() {
            return Ok(Err(format!("{} is not at hand", path.display())));
        }
        let found = blake3_of_file(&path)?;
        if found != shard.digest {
            let (expected, authority) = (shard.digest, "the frozen data manifest");
            return Err(Refusal::Digest { path, found, expected, authority }.into());
        }
    }
    Ok(Ok(manifest))
}

fn record_opening(
    prepared: &Prepared,
    own: &OwnLedger,
    num_earlier_openings: u64,
) -> Result<(), EvaluateError> {
    let handoff = &prepared.handoff;
    let det = QualificationOpenedDet {
        handoff: handoff.digest,
        model: handoff.candidate.model,
        sealed: prepared.sealed_digest,
    };
    let obs = QualificationOpenedObs { num_earlier_openings, tool: TOOL.to_owned() };
    own.append(Body::QualificationOpened(Box::new(Halves { det, obs })), Some(handoff.candidate.step))?;
    Ok(())
}

/// Opens the set. A set that does not open, or is not the frozen one, leaves
/// an anomaly behind its opening.
fn open_set(prepared: &Prepared, own: &OwnLedger) -> Result<Vec<u8>, EvaluateError> {
    let opened = decrypt(&prepared.sealed, &prepared.identity);
    let plaintext = match opened {
        Ok(plaintext) => plaintext,
        Err(reason) => {
            own.append_anomaly("sealed_set_does_not_open", &reason)?;
            return Err(Refusal::Unsealable { reason }.into());
        }
    };
    let (found, expected) = (blake3_of(&plaintext), prepared.run.contract().qualification.plaintext);
    if found != expected {
        own.append_anomaly("plaintext_mismatch", &format!("opened {found}, the contract says {expected}"))?;
        return Err(Refusal::Plaintext { found, expected }.into());
    }
    Ok(plaintext)
}

fn decrypt(sealed: &[u8], identity: &Identity) -> Result<Vec<u8>, String> {
    let decryptor = age::Decryptor::new_buffered(sealed).map_err(|error| error.to_string())?;
    let reader =
        decryptor.decrypt(iter::once(identity as &dyn age::Identity)).map_err(|error| error.to_string())?;
    // An age file is larger than its plaintext, so this bounds memory.
    let mut plaintext = Vec::new();
    reader.take(sealed.len() as u64).read_to_end(&mut plaintext).map_err(|error| error.to_string())?;
    Ok(plaintext)
}

fn measure_overlap(
    request: &QualifyRequest,
    prepared: &Prepared,
    plaintext: &[u8],
    watch: &Watch<'_>,
) -> Result<(Option<Overlap>, Option<String>), EvaluateError> {
    let manifest = match &prepared.manifest {
        Ok(manifest) => manifest,
        Err(reason) => return Ok((None, Some(reason.clone()))),
    };
    let run = &prepared.run;
    let folder =
        DataFolder { folder: data_folder(run.contract(), &run.folder, request.data.as_deref()), manifest };
    let mut count = OverlapCount::new(plaintext);
    let total = visible(manifest).count() as u64;
    for (done, shard) in (0u64..).zip(visible(manifest)) {
        watch(Progress { phase: "overlap with train and val", done, total });
        let path = folder.path(shard)?;
        let found = count.look_in_file(&path).map_err(EvaluateError::io("read", &path))?;
        if found != shard.digest {
            let (expected, authority) = (shard.digest, "the frozen data manifest");
            return Err(Refusal::Digest { path, found, expected, authority }.into());
        }
    }
    Ok((Some(count.finish()), None))
}

fn evaluate(
    request: &QualifyRequest,
    prepared: &Prepared,
    plaintext: &[u8],
    overlap: Option<Overlap>,
    watch: &Watch<'_>,
) -> QualificationResultDet {
    let windows: Vec<&[u8]> = windows(plaintext, prepared.run.context_length()).collect();
    let total = (plaintext.len() as u64).saturating_sub(1);
    let progress = |done| watch(Progress { phase: "qualification set", done, total });
    let score = score(&prepared.candidate.decoder, &windows, request.num_threads, &progress);
    let qualification = &prepared.run.contract().qualification;
    let Metric::BitsPerByte = qualification.metric;
    QualificationResultDet {
        handoff: prepared.handoff.digest,
        metric: qualification.metric,
        model: prepared.handoff.candidate.model,
        num_tokens: score.num_tokens,
        overlap,
        plaintext: qualification.plaintext,
        total_nats: Float(score.total_nats),
        value: Float(score.bits_per_byte()),
    }
}

fn predicate(
    prepared: &Prepared,
    head: HandoffHead,
    num_earlier_openings: u64,
    result: QualificationResultDet,
) -> QualificationPredicate {
    let (handoff, contract) = (&prepared.handoff.predicate, prepared.run.contract());
    let nonclaims = contract.nonclaims.iter().cloned().chain(NONCLAIMS.map(str::to_owned));
    QualificationPredicate {
        candidate: handoff.candidate.clone(),
        contract: handoff.contract,
        head,
        independence: independence(&contract.keys),
        nonclaims: nonclaims.collect(),
        num_earlier_openings,
        result,
        run: handoff.run.clone(),
        scope: "Bits per byte of this candidate on the opened set that `plaintext` names, in windows of the contract's context length, computed by the evaluator's own forward pass.".to_owned(),
        step: handoff.step,
    }
}
