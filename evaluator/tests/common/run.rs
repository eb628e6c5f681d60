//! A small run with real files, a real ledger and real keys.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use corpus::build::{Build, build_liber_primus};
use ledger::canonical::{contract_json, entry_json};
use ledger::create::{FrozenArtifact, create_run_ledger};
use ledger::keys::{KeyPair, KeyRing, Role};
use ledger::recorder::{Receipt, Record, Recorder};
use schemas::body::*;
use schemas::contract::{Architecture, Contract, EvaluationStream, FileBinding, LlamaDecoder, PublicKey};
use schemas::data::Split;
use schemas::digest::{Digest, encode_hex};
use schemas::dsse::{
    HANDOFF_PREDICATE_TYPE, HandoffHead, HandoffPredicate, IN_TOTO_PAYLOAD_TYPE, IN_TOTO_STATEMENT_TYPE,
    Statement, Subject,
};
use schemas::ids::{CandidateId, CheckpointId, RunId};
use schemas::number::Float;
use schemas::report::{Independence, SelectionBasis};
use sha2::Digest as _;

use crate::common::{Shape, config_json, model_bytes, tensors};

const CONTRACT: &str = include_str!("../../../schemas/golden/contract.canonical.json");

pub(crate) fn blake3_of(bytes: &[u8]) -> Digest {
    Digest::blake3(*blake3::hash(bytes).as_bytes())
}

/// What a fixture deviates in.
#[derive(Default, Clone)]
pub(crate) struct Deviation {
    /// The contract binds the plaintext of another set.
    pub(crate) other_plaintext: bool,
    /// The sealed file is sealed to somebody else.
    pub(crate) other_recipient: bool,
    /// The ledger records no handoff.
    pub(crate) no_handoff_entry: bool,
    /// The qualifier's key has a host of its own.
    pub(crate) other_host: bool,
}

pub(crate) struct Fixture {
    pub(crate) build: Build,
    pub(crate) contract: Contract,
    pub(crate) handoff: HandoffPredicate,
    pub(crate) keys: PathBuf,
    pub(crate) root: tempfile::TempDir,
    pub(crate) subjects: Vec<Subject>,
}

/// Context length of the fixture's model.
pub(crate) const CONTEXT: u32 = 32;

fn binding(folder: &Path, path: &Path) -> Result<FileBinding> {
    let bytes = fs::read(path)?;
    let relative = path.strip_prefix(folder)?.to_str().context("a path in UTF-8")?;
    let num_bytes = Some(bytes.len() as u64);
    Ok(FileBinding { digest: Some(blake3_of(&bytes)), num_bytes, path: relative.to_owned() })
}

fn public(keys: &KeyRing, role: Role) -> Result<PublicKey> {
    let key = keys.public(role)?;
    Ok(PublicKey { host: key.host, public: key.public })
}

impl Fixture {
    pub(crate) fn ledger(&self) -> PathBuf {
        self.folder().join("run.db")
    }

    /// The ledger's folder; the plaintext of the sealed set lies outside it.
    pub(crate) fn folder(&self) -> PathBuf {
        self.root.path().join("run")
    }

    pub(crate) fn handoff_path(&self) -> PathBuf {
        self.folder().join("run.db.handoff.dsse.json")
    }

    pub(crate) fn key(&self, role: Role) -> Result<KeyPair> {
        Ok(KeyRing::open(&self.keys)?.get(role)?)
    }

    pub(crate) fn new(deviation: &Deviation) -> Result<Self> {
        let root = tempfile::tempdir()?;
        let (folder, keys) = (root.path().join("run"), root.path().join("keys"));
        for role in [Role::Owner, Role::Trainer, Role::Validator, Role::Qualifier] {
            KeyRing::generate(&keys, role)?;
        }
        let identity = corpus::seal::generate_identity();
        let identity_path = keys.join(evaluator::IDENTITY_NAME);
        fs::write(&identity_path, &identity.identity_file)?;
        set_mode(&identity_path, 0o600)?;
        let plaintext = root.path().join("qualification.txt");
        let build = build_liber_primus(&folder.join("data"), &plaintext, CONTEXT)?;
        let other = corpus::seal::generate_identity().recipient;
        let recipient = if deviation.other_recipient { &other } else { &identity.recipient };
        let sealed = corpus::seal::seal_file(&plaintext, recipient, &folder.join("qualification.age"))?;
        let mut contract: Contract = serde_json::from_str(CONTRACT)?;
        fill(&mut contract, &KeyRing::open(&keys)?, &folder, &build)?;
        contract.keys.qualifier_recipient = identity.recipient;
        contract.qualification.plaintext =
            if deviation.other_plaintext { blake3_of(b"another set") } else { sealed.plaintext };
        contract.qualification.sealed = binding(&folder, &folder.join("qualification.age"))?;
        if deviation.other_host {
            contract.keys.qualifier.host = Digest::sha256([0x5a; 32]);
        }
        let handoff = HandoffPredicate {
            candidate: CandidateId::from(""),
            contract: Digest::sha256([0; 32]),
            head: HandoffHead { origin: String::new(), root: String::new(), size: 0 },
            independence: Independence {
                reason: "one host".to_owned(),
                status: "not established".to_owned(),
            },
            non_authorities: contract.purpose.authority.non_authorities.clone(),
            nonclaims: contract.nonclaims.clone(),
            report: blake3_of(b"the signed report"),
            run: RunId::from(""),
            selection_basis: SelectionBasis::Trainer,
            step: 0,
        };
        let mut fixture = Self { build, contract, handoff, keys, root, subjects: Vec::new() };
        fixture.record(deviation)?;
        fixture.write_handoff(&fixture.key(Role::Validator)?)?;
        Ok(fixture)
    }

    /// Freezes the contract and records two candidates, of which the second is
    /// selected and handed off.
    fn record(&mut self, deviation: &Deviation) -> Result<()> {
        let canonical = contract_json(&serde_json::to_value(&self.contract)?)?;
        let artifacts = [
            ("/data/manifest", &self.build.manifest_file.path),
            ("/data/train_examples", &self.build.train_examples.path),
            ("/data/val_examples", &self.build.val_examples.path),
        ];
        let artifacts = artifacts
            .map(|(pointer, path)| Ok(FrozenArtifact { pointer: pointer.to_owned(), bytes: fs::read(path)? }))
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        let ledger = self.ledger();
        let created = create_run_ledger(&ledger, &canonical, &artifacts, &self.key(Role::Owner)?, "test 0")?;
        self.handoff.contract = created.digest;
        self.handoff.run = created.run;
        let recorder = Recorder::open(&ledger, self.key(Role::Trainer)?)?;
        for step in [5, 10] {
            self.candidate(&recorder, step)?;
        }
        let det = CandidateSelectedDet {
            model: blake3_of(&candidate_bytes(10)),
            num_candidates: 2,
            step: 10,
            stream: self.contract.selection.stream.clone(),
            value: Float(3.0),
        };
        let obs = CandidateObs { candidate: candidate_id(10), checkpoint: checkpoint_id(10) };
        let body = Body::CandidateSelected(Box::new(Halves { det, obs }));
        let receipt = recorder.append_durable(Record::new(body).step(10))?;
        self.hand_off(&receipt);
        if !deviation.no_handoff_entry {
            let det = HandoffIssuedDet { model: blake3_of(&candidate_bytes(10)), step: 10 };
            let obs = HandoffIssuedObs {
                candidate: candidate_id(10),
                report: self.handoff.report,
                root: self.handoff.head.root.clone(),
                size: self.handoff.head.size,
            };
            recorder
                .append_durable(Record::new(Body::HandoffIssued(Box::new(Halves { det, obs }))).step(10))?;
        }
        recorder.close()?;
        Ok(())
    }

    fn hand_off(&mut self, receipt: &Receipt) {
        self.handoff.candidate = candidate_id(10);
        self.handoff.step = 10;
        let origin = format!("governed-ledger/run/{}", self.handoff.run);
        self.handoff.head = HandoffHead { origin, root: encode_hex(&receipt.root), size: receipt.size };
        self.subjects = [("model.safetensors", candidate_bytes(10)), ("config.json", config_json(&shape()))]
            .map(|(file, bytes)| subject(&format!("{}/{file}", checkpoint_folder(10)), &bytes))
            .into();
    }

    fn candidate(&self, recorder: &Recorder, step: u64) -> Result<()> {
        let folder = self.folder().join(checkpoint_folder(step));
        fs::create_dir_all(&folder)?;
        let (model, config) = (candidate_bytes(step), config_json(&shape()));
        fs::write(folder.join("model.safetensors"), &model)?;
        fs::write(folder.join("config.json"), &config)?;
        let det =
            CheckpointCommittedDet { classes: Vec::new(), model: blake3_of(&model), state_root: None, step };
        let obs = CheckpointCommittedObs {
            checkpoint: checkpoint_id(step),
            duration_us: 1,
            manifest: blake3_of(b"manifest"),
            num_bytes: model.len() as u64,
            path: checkpoint_folder(step),
        };
        recorder.append(
            Record::new(Body::CheckpointDurablyCommitted(Box::new(Halves { det, obs }))).step(step),
        )?;
        let det = CandidateAdmittedDet {
            config: blake3_of(&config),
            model: blake3_of(&model),
            step,
            value: Float(3.0),
        };
        let obs = CandidateObs { candidate: candidate_id(step), checkpoint: checkpoint_id(step) };
        recorder.append(Record::new(Body::CandidateAdmitted(Box::new(Halves { det, obs }))).step(step))?;
        Ok(())
    }

    /// Writes the handoff as it stands in the fixture, signed by `key`.
    pub(crate) fn write_handoff(&self, key: &KeyPair) -> Result<()> {
        let statement = Statement {
            statement_type: IN_TOTO_STATEMENT_TYPE.to_owned(),
            predicate: self.handoff.clone(),
            predicate_type: HANDOFF_PREDICATE_TYPE.to_owned(),
            subject: self.subjects.clone(),
        };
        let envelope = ledger::dsse::sign(IN_TOTO_PAYLOAD_TYPE, &entry_json(&statement)?, key);
        fs::write(self.handoff_path(), entry_json(&envelope)?)?;
        Ok(())
    }
}

pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

pub(crate) fn shape() -> Shape {
    Shape { context: CONTEXT as usize, ..Shape::TINY }
}

/// Weights of the candidate of a step.
pub(crate) fn candidate_bytes(step: u64) -> Vec<u8> {
    model_bytes(&tensors(&shape(), step))
}

pub(crate) fn checkpoint_id(step: u64) -> CheckpointId {
    CheckpointId(format!("s{step:08}-a1"))
}

pub(crate) fn candidate_id(step: u64) -> CandidateId {
    CandidateId(format!("candidate-{}", checkpoint_id(step)))
}

pub(crate) fn checkpoint_folder(step: u64) -> String {
    format!("checkpoints/{}", checkpoint_id(step))
}

pub(crate) fn subject(name: &str, bytes: &[u8]) -> Subject {
    let sha256 = encode_hex(&sha2::Sha256::digest(bytes));
    let digest = [("blake3".to_owned(), blake3_of(bytes).hex()), ("sha256".to_owned(), sha256)];
    Subject { digest: digest.into(), name: name.to_owned() }
}

fn fill(contract: &mut Contract, keys: &KeyRing, folder: &Path, build: &Build) -> Result<()> {
    let shape = shape();
    let narrow = |value: usize| u32::try_from(value).context("a small number");
    contract.architecture = Architecture::LlamaDecoder(LlamaDecoder {
        context_length: CONTEXT,
        dropout: 0.0,
        head_dim: narrow(shape.head_dim)?,
        hidden_size: narrow(shape.hidden)?,
        initializer_std: 0.02,
        intermediate_size: narrow(shape.intermediate)?,
        num_heads: narrow(shape.heads)?,
        num_kv_heads: narrow(shape.kv_heads)?,
        num_layers: narrow(shape.layers)?,
        rms_norm_eps: shape.eps,
        rope_theta: shape.theta,
        tied_embeddings: shape.tied,
        vocab_size: 256,
    });
    contract.data.manifest = binding(folder, &build.manifest_file.path)?;
    contract.data.train_examples = binding(folder, &build.train_examples.path)?;
    contract.data.val_examples = binding(folder, &build.val_examples.path)?;
    contract.keys.owner = public(keys, Role::Owner)?;
    contract.keys.trainer = public(keys, Role::Trainer)?;
    contract.keys.validator = public(keys, Role::Validator)?;
    contract.keys.qualifier = public(keys, Role::Qualifier)?;
    let name = contract.selection.stream.clone();
    let stream = contract.evaluation.streams.iter().find(|stream| stream.name == name).cloned();
    let stream = stream.context("the golden contract selects by a stream that it has")?;
    contract.evaluation.streams =
        vec![EvaluationStream { num_examples: Some(7), split: Split::Val, ..stream }];
    contract.quality_target = None;
    Ok(())
}
