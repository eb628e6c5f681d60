//! A tiny run for tests: text, examples, contract, card, and an engine.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "every test file uses a part of it")]

use std::path::Path;

use anyhow::Result;
use schemas::body::CheckpointStage;
use schemas::contract::*;
use schemas::data::{DataManifest, DataShard, ExampleRecord, LicenseClass, Split};
use schemas::digest::Digest;
use schemas::number::DecimalU64;
use schemas::parameters::ParameterManifest;
use schemas::policy_card::*;
use schemas::state::{NotApplicableReason, StateClass, StateClassDeclaration};
use trainer::data::ExampleSource;
use trainer::engine::{Engine, EngineConfig};
use trainer::model::manifest;

/// Words of the text; Cicero, De finibus, book 1.
const WORDS: [&str; 16] = [
    "sed",
    "ut",
    "perspiciatis",
    "unde",
    "omnis",
    "iste",
    "natus",
    "error",
    "sit",
    "voluptatem",
    "accusantium",
    "doloremque",
    "laudantium",
    "totam",
    "rem",
    "aperiam",
];

/// Text of `num_words` words in an order that a counter decides.
pub fn text(mut state: u64, num_words: usize) -> String {
    let mut text = String::new();
    for _ in 0..num_words {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(WORDS[(state >> 60) as usize]);
        text.push(' ');
    }
    text
}

pub fn digest_of(bytes: &[u8]) -> Digest {
    Digest::blake3(*blake3::hash(bytes).as_bytes())
}

/// A shape that trains in milliseconds: two key heads for four query heads.
pub fn decoder() -> LlamaDecoder {
    LlamaDecoder {
        context_length: 16,
        dropout: 0.1,
        head_dim: 4,
        hidden_size: 16,
        initializer_std: 0.05,
        intermediate_size: 24,
        num_heads: 4,
        num_kv_heads: 2,
        num_layers: 2,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tied_embeddings: true,
        vocab_size: 256,
    }
}

pub fn card() -> PolicyCard {
    let group = |name: &str, eligible, learning_rate_multiplier, weight_decay| ParameterGroup {
        eligible,
        learning_rate_multiplier,
        name: name.to_owned(),
        weight_decay,
    };
    let state = |suffix: &str| OptimizerTensor { dtype: "F32".to_owned(), suffix: suffix.to_owned() };
    PolicyCard {
        approximation: None,
        batch_semantics: BatchSemantics::MeanOverGlobalTokens,
        checkpoint_state: vec![state("exp_avg"), state("exp_avg_sq")],
        clipping: Clipping::GlobalNorm { epsilon: 1e-6, max_norm: 1.0 },
        distribution: Distribution { communication: "none".to_owned(), placement: "replicated".to_owned() },
        fallback: None,
        format: schemas::POLICY_CARD_FORMAT.to_owned(),
        groups: vec![
            group("matrices", Eligibility::Matrices, 1.0, 0.1),
            group("embeddings", Eligibility::Embeddings, 0.5, 0.0),
            group("vectors", Eligibility::Vectors, 1.0, 0.0),
        ],
        implementation: Implementation {
            name: "trainer::optimizer::adamw".to_owned(),
            reference: "PyTorch".to_owned(),
        },
        name: "adamw-test".to_owned(),
        nonclaims: vec!["nothing about other models".to_owned()],
        parameterization: Parameterization::Standard,
        preconditioner_every_steps: None,
        rescue_ladder: Vec::new(),
        stopping_rule: None,
        tuning: Tuning { num_trials: 0, search_space: String::new() },
        update: UpdateRule::Adamw { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, moment_dtype: "F32".to_owned() },
        version: "1".to_owned(),
    }
}

fn key(byte: u8) -> PublicKey {
    PublicKey { host: Digest::sha256([byte; 32]), public: schemas::digest::encode_hex(&[byte; 32]) }
}

fn binding(path: &str, bytes: &[u8]) -> FileBinding {
    FileBinding { digest: Some(digest_of(bytes)), num_bytes: Some(bytes.len() as u64), path: path.to_owned() }
}

/// The declarations of every state class that the fixture has.
fn state_classes() -> Vec<StateClassDeclaration> {
    use NotApplicableReason as Reason;
    let declare = |class, not_applicable| StateClassDeclaration { class, not_applicable };
    vec![
        declare(StateClass::Model, None),
        declare(StateClass::Optimizer, None),
        declare(StateClass::Scheduler, Some(Reason::FunctionOfStep)),
        declare(StateClass::RngCpu, Some(Reason::CounterBasedRandomness)),
        declare(StateClass::RngDevice, Some(Reason::NoDeviceRandomness)),
        declare(StateClass::LossScaler, Some(Reason::NoLossScaling)),
        declare(StateClass::DataCursor, None),
        declare(StateClass::Sampler, Some(Reason::FunctionOfPosition)),
        declare(StateClass::Topology, None),
        declare(StateClass::CompilerPlan, None),
        declare(StateClass::AccumulatedGradients, Some(Reason::UpdateBoundariesOnly)),
        declare(StateClass::SelectionState, None),
    ]
}

/// A contract for a shape and a batch, with a constant rate.
pub fn contract(decoder: &LlamaDecoder, microbatch_examples: u32, accumulation: u32) -> Contract {
    let shape = ScheduleShape::WarmupCosine { floor: 1e-4, peak: 1e-2, total_steps: 40, warmup_steps: 2 };
    let schedule = ["matrices", "embeddings", "vectors"]
        .map(|group| GroupSchedule { group: group.to_owned(), shape: shape.clone() });
    Contract {
        architecture: Architecture::LlamaDecoder(decoder.clone()),
        averages: None,
        batch: Batch {
            accumulation,
            data_parallel: 1,
            global_examples: microbatch_examples * accumulation,
            microbatch_examples,
        },
        budget: Budget { max_attempts: 4, max_steps: 8, max_tokens: None, max_wall_s: Some(3600) },
        checkpoints: CheckpointPolicy {
            after_microbatches: None,
            candidate_stage: CheckpointStage::Validated,
            every_steps: 4,
            keep: KeepPolicy::All,
            mid_accumulation: MidAccumulation::RoundToBoundary,
            mode: SaveMode::Synchronous,
            store: "checkpoints".to_owned(),
        },
        code: Code {
            digest: Digest::sha256([7; 32]),
            features: Vec::new(),
            package: "trainer".to_owned(),
            version: "0.1.0".to_owned(),
        },
        credit: CreditRule::Backpropagation,
        data: DataLease {
            admitted_license_classes: vec![LicenseClass::Green],
            expires: Some("2030-01-01".to_owned()),
            manifest: binding("data/manifest.json", b"manifest"),
            terms: "public domain".to_owned(),
            train_examples: binding("train.examples", b"train"),
            val_examples: binding("val.examples", b"val"),
        },
        dropout_draws: DropoutDraws::Keyed,
        durability: Durability { max_unsynced_ms: 250, max_unsynced_steps: 50 },
        environment: Environment {
            architecture: "x86_64".to_owned(),
            operating_system: "linux".to_owned(),
            rustc: "rustc 1.95.0".to_owned(),
        },
        evaluation: Evaluation {
            streams: vec![EvaluationStream {
                direction: Direction::Minimize,
                every_steps: 4,
                metric: Metric::BitsPerByte,
                name: "val".to_owned(),
                num_examples: None,
                split: Split::Val,
                view: ParameterView::Current,
            }],
        },
        expected: ExpectedEnvelope { communication_bytes_per_step: 0, memory_bytes: 1 << 30 },
        extensions: Vec::new(),
        external_loop: None,
        faults: FaultPolicy {
            detection: Detection::default(),
            plan: Vec::new(),
            recovery: Recovery::RestartFromLastValidated,
        },
        floors: Floors { free_disk_bytes: 0, free_memory_bytes: 0 },
        format: schemas::CONTRACT_FORMAT.to_owned(),
        initialization: None,
        keys: Keys {
            owner: key(1),
            qualifier: key(2),
            qualifier_recipient: "age1fixture".to_owned(),
            trainer: key(3),
            validator: key(4),
            witness_quorum: 0,
            witnesses: Vec::new(),
        },
        membership: Membership::Standalone,
        name: "fixture".to_owned(),
        nonclaims: vec!["no claim about other text".to_owned()],
        numerics: Numerics {
            accumulation_dtype: Dtype::F32,
            compute_dtype: Dtype::F32,
            determinism: EquivalenceClass::Bitwise,
            loss_scaler: None,
            parameter_dtype: Dtype::F32,
            reduction: Reduction::MicrobatchTree,
        },
        objective: Objective::NextTokenCrossEntropy,
        order: OrderPolicy::KeyedPermutation,
        parameters: binding("parameters.json", b"parameters"),
        plan: CompilerPlan {
            autotune: false,
            backend: "burn-flex 0.22.1".to_owned(),
            cpu_features: vec!["avx2".to_owned()],
            device: Device::Cpu,
        },
        purpose: Purpose {
            authority: Authority {
                expires: Some("2030-01-01".to_owned()),
                granted_by: "the test".to_owned(),
                non_authorities: vec!["release".to_owned()],
                scope: "to run".to_owned(),
            },
            statement: "to test rules".to_owned(),
        },
        qualification: Qualification {
            metric: Metric::BitsPerByte,
            plaintext: digest_of(b"sealed text"),
            sealed: binding("qualification.age", b"age"),
        },
        quality_target: Some(QualityTarget {
            derivation: "fixture".to_owned(),
            stream: "val".to_owned(),
            threshold: 7.9,
        }),
        residuals: vec![Residual { description: "tiny".to_owned(), owner: "the test".to_owned() }],
        resume: ResumeEquivalence { class: EquivalenceClass::Bitwise, test: None, tolerance: None },
        retention: Retention { custodian: "the test".to_owned(), days: 30 },
        ruleset: RulesetBinding { edition: "2026.1".to_owned(), profile: EvidenceProfile::Native },
        schedule: schedule.to_vec(),
        seeds: Seeds { data_order: DecimalU64(11), dropout: DecimalU64(12), initialization: DecimalU64(13) },
        selection: SelectionRule {
            family: CandidateFamily::EveryEvaluatedCheckpoint,
            stream: "val".to_owned(),
            tie: TieBreak::Earliest,
        },
        state_classes: state_classes(),
        state_digest_every_steps: None,
        state_tree: None,
        stopping: StoppingRule::AtStep { step: 8 },
        topology: Topology { collective: None, learners: 1, permitted_rewrites: Vec::new(), workers: 1 },
        update: UpdateBinding { card: binding("card.json", b"card") },
    }
}

/// Windows of a text, as `docs/FORMAT.md` ("Examples") says.
pub fn records(shard: u32, text: &[u8], context_length: u32) -> Vec<ExampleRecord> {
    let mut records = Vec::new();
    let mut offset = 0usize;
    while offset + 1 < text.len() {
        let num_targets = (text.len() - 1 - offset).min(context_length as usize);
        records.push(ExampleRecord {
            id: *blake3::hash(&text[offset..=offset + num_targets]).as_bytes(),
            num_targets: u32::try_from(num_targets).expect("a small window"),
            offset: offset as u64,
            shard,
        });
        offset += context_length as usize;
    }
    records
}

/// Everything that an engine needs, in memory and in a folder.
pub struct Fixture {
    pub contract: Contract,
    pub card: PolicyCard,
    pub parameters: ParameterManifest,
    pub data: DataManifest,
    pub train: Vec<ExampleRecord>,
    pub val: Vec<ExampleRecord>,
}

impl Fixture {
    /// Writes two shards into a folder.
    pub fn write(
        folder: &Path,
        decoder: &LlamaDecoder,
        microbatch_examples: u32,
        accumulation: u32,
    ) -> Result<Self> {
        let texts = [text(1, 300), text(2, 40)];
        let shards = [("train.txt", Split::Train), ("val.txt", Split::Val)].into_iter().zip(&texts);
        let shards = shards
            .map(|((path, split), text)| {
                std::fs::write(folder.join(path), text)?;
                Ok(DataShard {
                    digest: digest_of(text.as_bytes()),
                    license_class: LicenseClass::Green,
                    num_bytes: text.len() as u64,
                    path: path.to_owned(),
                    source: "test".to_owned(),
                    split,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let data = DataManifest {
            barrier: None,
            format: schemas::DATA_MANIFEST_FORMAT.to_owned(),
            name: "test".to_owned(),
            shards,
            tokenizer: "bytes".to_owned(),
        };
        let card = card();
        let contract = contract(decoder, microbatch_examples, accumulation);
        let parameters = manifest::parameters(&contract.architecture, &card)?;
        let train = records(0, texts[0].as_bytes(), decoder.context_length);
        let val = records(1, texts[1].as_bytes(), decoder.context_length);
        Ok(Self { contract, card, parameters, data, train, val })
    }

    /// The same global batch in the same microbatches, for so many workers.
    pub fn share(&mut self, num_workers: u32) {
        let batch = &mut self.contract.batch;
        let num_microbatches = batch.accumulation * batch.data_parallel;
        assert_eq!(num_microbatches % num_workers, 0);
        batch.accumulation = num_microbatches / num_workers;
        batch.data_parallel = num_workers;
        self.contract.topology.workers = num_workers;
        let several = num_workers > 1;
        self.contract.topology.collective = several.then_some(Collective {
            heartbeat_ms: 50,
            replica_digest_every_steps: 2,
            timeout_ms: 60_000,
        });
        self.contract.expected.communication_bytes_per_step = if several { 1 << 24 } else { 0 };
        self.card.distribution.communication = if several { "all_reduce" } else { "none" }.to_owned();
    }

    pub fn engine(&self, folder: &Path) -> Result<Engine> {
        let Architecture::LlamaDecoder(decoder) = &self.contract.architecture;
        let open = |split, records: &[ExampleRecord]| {
            ExampleSource::open(&self.data, folder, split, records.to_vec(), decoder.context_length)
        };
        Ok(Engine::initial(EngineConfig {
            contract: &self.contract,
            card: &self.card,
            parameters: &self.parameters,
            train: open(Split::Train, &self.train)?,
            val: open(Split::Val, &self.val)?,
            device: trainer::device::open(self.contract.plan.device)?,
        })?)
    }
}
