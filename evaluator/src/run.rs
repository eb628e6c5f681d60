//! The run's ledger as the qualifier reads it: contract, heads, candidates.
//!
//! Only entries under a head that the run's own keys signed count. Rows come
//! through the ledger's reader; their hashes and signatures are checked with
//! the validator's code and not with the writer's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ledger::FrozenContract;
use ledger::reader::{ReadError, Reader};
use schemas::body::{Body, CandidateSelectedDet, HandoffIssuedDet, HandoffIssuedObs};
use schemas::contract::{Architecture, Contract, EvaluationStream};
use schemas::data::{DataManifest, Split};
use schemas::digest::{Digest, encode_hex};
use schemas::dsse::Subject;
use schemas::entry::Entry;
use schemas::ids::{CandidateId, CheckpointId};
use validator::ed25519::PublicKey;
use validator::note::Note;
use validator::tree::{Frontier, leaf_hash};

use crate::error::{EvaluateError, Refusal};
use crate::files::{below, check_digest, folder_of, read};
use crate::forward::Decoder;
use crate::model_files::ModelFiles;
use crate::statement::subject;

/// Largest `config.json` that is read, in bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// A candidate as the ledger admits it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) candidate: CandidateId,
    /// BLAKE3 of `config.json`.
    pub(crate) config: Digest,
    /// Checkpoint folder, relative to the ledger's folder.
    pub(crate) folder: String,
    /// BLAKE3 of the weights file.
    pub(crate) model: Digest,
    pub(crate) step: u64,
}

/// A candidate's files, verified.
pub(crate) struct LoadedCandidate {
    pub(crate) decoder: Decoder,
    /// The file whose digest stands for the model, other files of it, then
    /// `config.json`.
    pub(crate) subjects: Vec<Subject>,
}

/// A run's ledger at one moment.
pub(crate) struct RunLedger {
    /// In the order of steps: for each, the one that was admitted last.
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) folder: PathBuf,
    pub(crate) frozen: FrozenContract,
    pub(crate) handoffs: Vec<(HandoffIssuedDet, HandoffIssuedObs)>,
    reader: Reader,
    pub(crate) selected: Option<(CandidateId, CandidateSelectedDet)>,
    /// Entries under the newest signed head.
    pub(crate) signed_size: u64,
}

fn ledger_refusal(reason: impl Into<String>) -> Refusal {
    Refusal::Ledger { reason: reason.into() }
}

impl RunLedger {
    /// Opens a run's ledger and checks it against its newest head.
    pub(crate) fn open(path: &Path) -> Result<Self, EvaluateError> {
        let reader = Reader::open(path)?;
        let frozen = reader.contract().map_err(|error| match error {
            ReadError::Contract { source, .. } => ledger_refusal(source.to_string()).into(),
            other => EvaluateError::from(other),
        })?;
        let folder = folder_of(path);
        let mut run = Self {
            candidates: Vec::new(),
            folder,
            frozen,
            handoffs: Vec::new(),
            reader,
            selected: None,
            signed_size: 0,
        };
        let heads = run.signed_heads()?;
        let newest = heads.last().ok_or_else(|| ledger_refusal("it has no signed head"))?;
        run.signed_size = newest.size;
        run.check_root(newest.size, &newest.root)?;
        run.read_entries()?;
        Ok(run)
    }

    /// The contract.
    pub(crate) fn contract(&self) -> &Contract {
        &self.frozen.contract
    }

    /// Origin line of this run's heads.
    pub(crate) fn origin(&self) -> String {
        format!("governed-ledger/run/{}", self.frozen.run)
    }

    /// Every head that is stored, and the one beside the ledger, smallest
    /// first; each must be signed by the trainer, or by the owner at the freeze.
    fn signed_heads(&self) -> Result<Vec<Note>, EvaluateError> {
        let stored = self.reader.heads()?;
        let texts = stored.iter().map(|head| head.note.as_str()).chain(self.reader.head_beside());
        let keys = &self.contract().keys;
        let key = |role: &str, text: &str| {
            PublicKey::from_hex(text).map_err(|error| ledger_refusal(format!("the {role}'s key: {error}")))
        };
        let (trainer, owner) = (key("trainer", &keys.trainer.public)?, key("owner", &keys.owner.public)?);
        let mut heads = Vec::new();
        for text in texts {
            let note =
                Note::parse(text.as_bytes()).map_err(|error| ledger_refusal(format!("a head: {error}")))?;
            let signer = if note.size <= 1 { &owner } else { &trainer };
            if note.origin != self.origin() || note.verify(signer).is_err() {
                let reason = format!("a head of size {} is not signed by this run's key", note.size);
                return Err(ledger_refusal(reason).into());
            }
            if note.size > self.reader.num_entries() {
                let found = self.reader.num_entries();
                let reason = format!("it has {found} entries, and a signed head says {}", note.size);
                return Err(ledger_refusal(reason).into());
            }
            heads.push(note);
        }
        heads.sort_by_key(|note| note.size);
        Ok(heads)
    }

    /// Recomputes the root over the first `size` entries.
    fn check_root(&self, size: u64, root: &[u8; 32]) -> Result<(), EvaluateError> {
        let mut frontier = Frontier::new();
        for row in self.reader.rows(0) {
            if frontier.size() == size {
                break;
            }
            let (index, bytes) = row?;
            if index != frontier.size() {
                return Err(ledger_refusal(format!("entry {} is missing", frontier.size())).into());
            }
            frontier.append(leaf_hash(&bytes));
        }
        if frontier.size() == size && frontier.root() == *root {
            return Ok(());
        }
        let (found, size) = (encode_hex(&frontier.root()), frontier.size());
        let reason =
            format!("the first {size} entries give root {found}, not the signed {}", encode_hex(root));
        Err(ledger_refusal(reason).into())
    }

    /// Checks that a head is one that this run signed, over these entries.
    pub(crate) fn check_head(&self, size: u64, root_hex: &str) -> Result<(), EvaluateError> {
        let heads = self.signed_heads()?;
        let signed = heads.iter().find(|note| note.size == size && encode_hex(&note.root) == root_hex);
        let note = signed.ok_or_else(|| {
            ledger_refusal(format!("no signed head of this run has size {size} and root {root_hex}"))
        })?;
        self.check_root(size, &note.root)
    }

    fn read_entries(&mut self) -> Result<(), EvaluateError> {
        let mut admitted: BTreeMap<u64, (CandidateId, CheckpointId, Digest, Digest)> = BTreeMap::new();
        let mut folders: BTreeMap<CheckpointId, (String, Digest)> = BTreeMap::new();
        for entry in self.reader.entries(0) {
            let entry: Entry = entry?;
            if entry.index >= self.signed_size {
                break;
            }
            match entry.body {
                Body::CheckpointDurablyCommitted(body) => {
                    folders.insert(body.obs.checkpoint, (body.obs.path, body.det.model));
                }
                Body::CandidateAdmitted(body) => {
                    let digests = (body.det.model, body.det.config);
                    let one = (body.obs.candidate, body.obs.checkpoint, digests.0, digests.1);
                    admitted.insert(body.det.step, one);
                }
                Body::CandidateSelected(body) => self.selected = Some((body.obs.candidate, body.det)),
                Body::HandoffIssued(body) => self.handoffs.push((body.det, body.obs)),
                _ => {}
            }
        }
        for (step, (candidate, checkpoint, model, config)) in admitted {
            let place = format!("candidate {candidate}");
            let record = |reason: String| Refusal::Record { place: place.clone(), reason };
            let (folder, committed) = folders
                .get(&checkpoint)
                .ok_or_else(|| record(format!("its checkpoint {checkpoint} was never durably committed")))?;
            if *committed != model {
                let reason = format!(
                    "it is admitted with weights {model}, its checkpoint was committed with {committed}"
                );
                return Err(record(reason).into());
            }
            self.candidates.push(Candidate { candidate, config, folder: folder.clone(), model, step });
        }
        Ok(())
    }

    /// The data manifest, as it was frozen.
    pub(crate) fn data_manifest(&self) -> Result<DataManifest, EvaluateError> {
        let pointer = "/data/manifest";
        let record = |reason: String| Refusal::Record { place: pointer.to_owned(), reason };
        let digest =
            self.contract().data.manifest.digest.ok_or_else(|| record("it has no digest".to_owned()))?;
        let bytes = self.reader.artifact(&digest)?;
        let manifest: DataManifest =
            serde_json::from_slice(&bytes).map_err(|error| record(error.to_string()))?;
        if manifest.tokenizer != "bytes" {
            return Err(record(format!(
                "the tokenizer is {:?}; only \"bytes\" is evaluated",
                manifest.tokenizer
            ))
            .into());
        }
        Ok(manifest)
    }

    /// Longest input in tokens.
    pub(crate) fn context_length(&self) -> usize {
        let Architecture::LlamaDecoder(decoder) = &self.contract().architecture;
        usize::try_from(decoder.context_length).unwrap_or(usize::MAX)
    }

    /// The val streams that decide: the selection's, and the quality target's
    /// where it is another one of the val split.
    pub(crate) fn deciding_streams(&self) -> Result<Vec<&EvaluationStream>, Refusal> {
        let contract = self.contract();
        let find = |name: &str| contract.evaluation.streams.iter().find(|stream| stream.name == name);
        let selection = find(&contract.selection.stream).filter(|stream| stream.split == Split::Val);
        let selection = selection.ok_or_else(|| Refusal::Record {
            place: "/selection/stream".to_owned(),
            reason: format!("{:?} is not a stream of the val split", contract.selection.stream),
        })?;
        let target = contract.quality_target.as_ref().and_then(|target| find(&target.stream));
        let other = target.filter(|stream| stream.split == Split::Val && stream.name != selection.name);
        Ok(std::iter::once(selection).chain(other).collect())
    }

    /// Reads a candidate's files, checks them against the ledger, and builds
    /// the decoder from the very bytes that were checked.
    pub(crate) fn load(&self, candidate: &Candidate) -> Result<LoadedCandidate, EvaluateError> {
        let folder = below(&self.folder, &candidate.folder, candidate.candidate.as_str())?;
        let config_path = folder.join("config.json");
        let model = ModelFiles::read(&folder, candidate.model)?;
        let config = read(&config_path, MAX_CONFIG_BYTES)?;
        check_digest(&config_path, &config, candidate.config, "candidate.admitted")?;
        let refused = |source| Refusal::Candidate { folder: folder.clone(), source };
        let decoder = Decoder::from_files(&config, model.index(), &model.weights()).map_err(refused)?;
        decoder
            .config()
            .check_contract(&self.contract().architecture)
            .map_err(|error| refused(error.into()))?;
        let name = |file: &str| format!("{}/{file}", candidate.folder);
        let mut subjects: Vec<Subject> =
            model.files.iter().map(|(file, bytes)| subject(&name(file), bytes)).collect();
        subjects.push(subject(&name("config.json"), &config));
        Ok(LoadedCandidate { decoder, subjects })
    }
}
