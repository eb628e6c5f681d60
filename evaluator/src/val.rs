//! `evaluator val`: the deciding val metrics of every candidate, recomputed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use schemas::body::{Body, Halves, QualificationResultObs, QualificationValDet};
use schemas::contract::{EvaluationStream, Metric, ParameterView};
use schemas::data::Split;
use schemas::digest::Digest;
use schemas::dsse::{HandoffHead, VAL_PREDICATE_TYPE};
use schemas::ids::{CandidateId, RunId};
use schemas::number::Float;
use schemas::report::Independence;
use serde::Serialize;
use validator::val_numbers::ValPredicate;

use crate::data::{DataFolder, data_folder, first_windows, table_digest};
use crate::error::{EvaluateError, Refusal};
use crate::files::with_suffix;
use crate::forward::score;
use crate::identity::{key_folder, signing_key};
use crate::own_ledger::{OwnLedger, TOOL};
use crate::run::{Candidate, LoadedCandidate, RunLedger};
use crate::statement::{independence, sign_and_write};
use crate::{Progress, Watch};

/// What to evaluate, and where things are.
#[derive(Debug, Clone, Default)]
pub struct ValRequest {
    /// Folder of the data shards; `None`: that of the manifest.
    pub data: Option<PathBuf>,
    /// Key folder; `None`: `LEDGER_KEYS`, else `keys` beside the ledger.
    pub keys: Option<PathBuf>,
    /// The run's ledger.
    pub ledger: PathBuf,
    /// Where the statement goes; `None`: `<ledger>.val.dsse.json`.
    pub output: Option<PathBuf>,
    /// The qualifier's own ledger; `None`: `qualification.db` beside the run's.
    pub qualification: Option<PathBuf>,
    /// Threads; 0 counts as 1. The result does not depend on it.
    pub num_threads: usize,
}

/// One candidate's numbers, with its name and the trainer's for people.
#[derive(Debug, Clone, Serialize)]
pub struct ValResult {
    /// Which candidate.
    pub candidate: CandidateId,
    /// As the ledger's entry holds them.
    pub numbers: QualificationValDet,
}

/// What was recomputed.
#[derive(Debug, Clone, Serialize)]
pub struct ValOutcome {
    /// SHA-256 of the contract.
    pub contract: Digest,
    /// BLAKE3 of the statement's envelope.
    pub envelope: Digest,
    /// Head of the qualification ledger.
    pub head: HandoffHead,
    /// Whether the qualifier could be somebody else.
    pub independence: Independence,
    /// The statement's file.
    pub output: PathBuf,
    /// In the order of steps.
    pub results: Vec<ValResult>,
    /// The run.
    pub run: RunId,
}

/// Recomputes the val metric of every candidate, records and signs it.
///
/// # Errors
/// When the ledger, its data or a candidate is not what was signed, the key is
/// not the contract's, or something cannot be read or written.
pub fn val(request: &ValRequest, watch: &Watch<'_>) -> Result<ValOutcome, EvaluateError> {
    let run = RunLedger::open(&request.ledger)?;
    let key = signing_key(&key_folder(request.keys.as_deref(), &request.ledger), run.contract())?;
    if run.candidates.is_empty() {
        let reason = "it admits no candidate under a signed head";
        return Err(Refusal::Record {
            place: request.ledger.display().to_string(),
            reason: reason.to_owned(),
        }
        .into());
    }
    let texts = val_texts(&run, request.data.as_deref())?;
    let path = request.qualification.clone().unwrap_or_else(|| default_ledger(&request.ledger));
    let own = OwnLedger::open(&path, &key, &run.frozen.digest)?;
    let (mut results, mut subjects, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for candidate in &run.candidates {
        // Two steps with the same weights are one model with one result.
        if !seen.insert(candidate.model) {
            continue;
        }
        let loaded = run.load(candidate)?;
        for stream in run.deciding_streams()? {
            let numbers =
                evaluate(&run, candidate, &loaded, stream, &texts, request.num_threads, watch, &own)?;
            results.push(ValResult { candidate: candidate.candidate.clone(), numbers });
        }
        // One file stands for the model: where there are several, their index.
        subjects.extend(loaded.subjects.into_iter().take(1));
    }
    let head = own.close()?;
    let predicate = ValPredicate {
        contract: run.frozen.digest,
        results: results.iter().map(|result| result.numbers.clone()).collect(),
        run: run.frozen.run.clone(),
    };
    let output = request.output.clone().unwrap_or_else(|| with_suffix(&request.ledger, ".val.dsse.json"));
    // A later statement of the same numbers may take the place of an earlier
    // one; every evaluation stays in the qualification ledger.
    let envelope = sign_and_write(VAL_PREDICATE_TYPE, predicate, subjects, &key, &output, true)?;
    Ok(ValOutcome {
        contract: run.frozen.digest,
        envelope,
        head,
        independence: independence(&run.contract().keys),
        output,
        results,
        run: run.frozen.run,
    })
}

/// `qualification.db` beside the run's ledger.
pub(crate) fn default_ledger(run_ledger: &Path) -> PathBuf {
    crate::files::folder_of(run_ledger).join("qualification.db")
}

/// The val shards, with the table that they give checked against the contract.
fn val_texts(run: &RunLedger, data: Option<&Path>) -> Result<Vec<(u32, Vec<u8>)>, EvaluateError> {
    let manifest = run.data_manifest()?;
    let folder = DataFolder { folder: data_folder(run.contract(), &run.folder, data), manifest: &manifest };
    let texts = folder.load(Split::Val)?;
    let (found, expected) =
        (table_digest(&texts, run.context_length()), run.contract().data.val_examples.digest);
    if expected != Some(found) {
        let expected = expected.map_or_else(|| "nothing".to_owned(), |digest| digest.to_string());
        let reason = format!("the val shards give an example table {found}, the contract binds {expected}");
        return Err(Refusal::Record { place: "/data/val_examples".to_owned(), reason }.into());
    }
    Ok(texts)
}

#[allow(clippy::too_many_arguments, reason = "one caller; each is a different thing")]
fn evaluate(
    run: &RunLedger,
    candidate: &Candidate,
    loaded: &LoadedCandidate,
    stream: &EvaluationStream,
    texts: &[(u32, Vec<u8>)],
    num_threads: usize,
    watch: &Watch<'_>,
    own: &OwnLedger,
) -> Result<QualificationValDet, EvaluateError> {
    if stream.view != ParameterView::Current {
        let reason = format!("stream {:?} is of averaged parameters, which no candidate holds", stream.name);
        return Err(Refusal::Record { place: "/evaluation/streams".to_owned(), reason }.into());
    }
    let start = Instant::now();
    let windows = first_windows(texts, run.context_length(), stream.num_examples);
    let total = windows.iter().map(|window| window.len() as u64 - 1).sum();
    let phase = format!("{} on {}", candidate.candidate, stream.name);
    let progress = |done| watch(Progress { phase: &phase, done, total });
    let score = score(&loaded.decoder, &windows, num_threads, &progress);
    let Metric::BitsPerByte = stream.metric;
    let det = QualificationValDet {
        metric: stream.metric,
        model: candidate.model,
        num_examples: score.num_examples,
        num_tokens: score.num_tokens,
        step: candidate.step,
        stream: stream.name.clone(),
        total_nats: Float(score.total_nats),
        value: Float(score.bits_per_byte()),
    };
    let obs = QualificationResultObs { duration_us: duration_us(start), tool: TOOL.to_owned() };
    let body = Body::QualificationVal(Box::new(Halves { det: det.clone(), obs }));
    own.append(body, Some(candidate.step))?;
    Ok(det)
}

/// Microseconds since `start`.
pub(crate) fn duration_us(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)
}
