//! What `ledger init` reads and checks before it makes anything.
//!
//! An argument, text, key or trainer that cannot be used is refused here, so
//! that the corrected command finds its folder still missing or empty. Nothing
//! is written but into a private temporary folder. Whether the contract can be
//! frozen is not asked: that is checked, and corrected, where it lies.

use std::path::{Path, PathBuf};

use corpus::build::{BuildError, BuildRequest, Content, ShardSource, liber_primus_request, split_lines};
use corpus::texts::Shares;
use ledger::canonical::entry_json;
use ledger::private_folder::PrivateFolder;
use schemas::contract::{Code, Keys, PublicKey};
use schemas::data::{LicenseClass, Split};
use schemas::digest::Digest;
use schemas::policy_card::PolicyCard;
use serde_json::{Value, json};

use crate::arguments::{InitArguments, ProfileArgument};
use crate::external_loop::ExternalLoop;
use crate::failure::Failure;
use crate::membership::{self, CampaignMembership};
use crate::template::{self, CARD, DATA_FOLDER};
use crate::{key_folder, trainer_program, workers};

/// The policy card that a new contract starts with.
const ADAMW: &str = include_str!("../../policy-cards/adamw.json");

/// File of the text that is to be sealed, in the private folder.
const HELD_OUT: &str = "qualification.txt";

/// The examples of the val split that a quality target is scored on.
#[derive(Debug)]
pub(crate) struct BaselineStream {
    pub(crate) name: String,
    /// First so many of the val table; none: all.
    pub(crate) num_examples: Option<u64>,
}

/// Everything that `init` was given, with nothing wrong.
#[derive(Debug)]
pub(crate) struct Inputs {
    /// The stream of the quality target, where one is wanted.
    pub(crate) baseline: Option<BaselineStream>,
    /// What to build; its qualification text goes into `private`.
    pub(crate) build: BuildRequest,
    /// Bytes of the policy card.
    pub(crate) card: Vec<u8>,
    pub(crate) code: Code,
    /// The loop of one's own, where there is one.
    pub(crate) external: Option<ExternalLoop>,
    /// Without keys, sealed set and quality target.
    pub(crate) contract: Value,
    /// The key folder; it may be missing, and so may keys in it.
    pub(crate) keys: PathBuf,
    /// Bytes of the parameter manifest.
    pub(crate) parameters: Vec<u8>,
    /// The campaign's preregistration, for a run of one.
    pub(crate) preregistration: Option<Vec<u8>>,
    /// Readable by nobody else, removed when it is dropped, or by the next such
    /// command where this one was killed (not where the machine went down): the
    /// plaintext of the sealed set lies here until it is sealed.
    pub(crate) private: PrivateFolder,
}

impl Inputs {
    /// Reads and checks what the arguments name. Makes nothing.
    pub(crate) fn read(arguments: &InitArguments, output: &Path) -> Result<Self, Failure> {
        let membership = membership::read(arguments)?;
        let mut contract = edited_contract(arguments, output, membership.as_ref())?;
        let trainer = trainer_program::locate(arguments.trainer.as_deref());
        let external = ExternalLoop::read(arguments)?;
        let code = match &external {
            Some(external) => external.fill(&mut contract, arguments.device.name())?,
            None => fill_identity(&mut contract, &trainer, arguments.device.name())?,
        };
        let wants_baseline = arguments.baseline || arguments.preset.has_baseline();
        let baseline = if wants_baseline { Some(baseline_stream(&contract)?) } else { None };
        check_late_edits(arguments, &contract, wants_baseline)?;
        // A run of a campaign is owned by who owns the campaign.
        let beside = arguments.campaign.as_deref().map_or(output, key_folder::folder_of);
        let keys = key_folder::locate(arguments.keys.as_deref(), beside);
        key_folder::check(&keys)?;
        let private = PrivateFolder::held_in(&tempfile::env::temp_dir(), "ledger-init-")?;
        let build = build_request(arguments, output, &contract, &private.path().join(HELD_OUT))?;
        build.check().map_err(refused_text)?;
        let mut card = serde_json::from_str::<PolicyCard>(ADAMW)?;
        workers::communication(&contract).clone_into(&mut card.distribution.communication);
        if let Some(external) = &external {
            external.card(&mut card);
        }
        let parameters = match &external {
            Some(_) => ExternalLoop::parameters(&contract, &card)?,
            None => {
                let card_file = private.path().join(CARD);
                std::fs::write(&card_file, entry_json(&card)?)?;
                trainer_program::parameters(&trainer, &contract["architecture"], &card_file)?
            }
        };
        let card = entry_json(&card)?;
        workers::fill_traffic(&mut contract, &serde_json::from_slice(&parameters)?);
        let preregistration = membership.map(|membership| membership.preregistration);
        Ok(Self {
            baseline,
            build,
            card,
            code,
            contract,
            external,
            keys,
            parameters,
            preregistration,
            private,
        })
    }
}

/// The trainer's identity, in the contract.
fn fill_identity(contract: &mut Value, trainer: &Path, device: &str) -> Result<Code, Failure> {
    let identity = trainer_program::identity(trainer, device)?;
    contract["code"] = serde_json::to_value(&identity.code)?;
    contract["environment"] = serde_json::to_value(identity.environment)?;
    contract["plan"] = serde_json::to_value(identity.plan)?;
    Ok(identity.code)
}

/// Applies the edits of the blocks that have been filled in by now.
pub(crate) fn edit_filled(arguments: &InitArguments, contract: &mut Value) -> Result<(), Failure> {
    apply_edits(arguments, contract, Phase::Filled)
}

/// The preset's contract with the edits of the command line.
fn edited_contract(
    arguments: &InitArguments,
    output: &Path,
    membership: Option<&CampaignMembership>,
) -> Result<Value, Failure> {
    let folder_name = || output.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = arguments.name.clone().or_else(folder_name).unwrap_or_else(|| "run".to_owned());
    let mut contract = template::contract(arguments.preset, &name);
    if let Some(membership) = membership {
        membership.fill(&mut contract)?;
    }
    if arguments.profile == ProfileArgument::ExternalLoop {
        ExternalLoop::adapt(&mut contract);
    }
    let class = LicenseClass::from(arguments.license);
    contract["data"]["admitted_license_classes"] = json!([class]);
    workers::share(&mut contract, arguments.workers)?;
    apply_edits(arguments, &mut contract, Phase::Template)?;
    workers::fit_digests(&mut contract);
    Ok(contract)
}

/// When an edit applies: data and parameters depend on most of the contract,
/// and a few blocks are filled in after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Template,
    Filled,
}

/// Blocks that are filled in after the preset was edited.
const FILLED: [&str; 6] = ["code", "environment", "keys", "plan", "qualification", "quality_target"];

fn apply_edits(arguments: &InitArguments, contract: &mut Value, phase: Phase) -> Result<(), Failure> {
    for edit in &arguments.set {
        let fail = |message: String| {
            Failure::new(format!("--set {edit}: {message}"), "write for example --set /batch/accumulation=4")
        };
        let (pointer, value) = template::parse_edit(edit).map_err(fail)?;
        let block = pointer.split('/').nth(1).unwrap_or_default();
        let its_phase = if FILLED.contains(&block) { Phase::Filled } else { Phase::Template };
        if its_phase == phase {
            template::apply_edit(contract, &pointer, value).map_err(fail)?;
        }
    }
    Ok(())
}

/// Applies the edits of filled blocks to a contract whose keys and quality
/// target have their members already, since only those decide whether an edit
/// has a place.
fn check_late_edits(arguments: &InitArguments, contract: &Value, has_baseline: bool) -> Result<(), Failure> {
    let mut contract = contract.clone();
    let key = || PublicKey { host: Digest::sha256([0; 32]), public: String::new() };
    contract["keys"] = serde_json::to_value(Keys {
        owner: key(),
        qualifier: key(),
        qualifier_recipient: String::new(),
        trainer: key(),
        validator: key(),
        witness_quorum: 0,
        witnesses: Vec::new(),
    })?;
    if has_baseline {
        contract["quality_target"] = json!({});
    }
    edit_filled(arguments, &mut contract)
}

/// The stream that selects, as far as a baseline needs it.
fn baseline_stream(contract: &Value) -> Result<BaselineStream, Failure> {
    let name = contract["selection"]["stream"].as_str().unwrap_or(template::STREAM).to_owned();
    let streams = contract["evaluation"]["streams"].as_array();
    let stream = streams.into_iter().flatten().find(|stream| stream["name"] == name.as_str());
    let num_examples = stream.and_then(|stream| stream["num_examples"].as_u64());
    if num_examples == Some(0) {
        return Err(Failure::new(
            format!("the stream {name} has no example, so that there is no baseline"),
            "set its num_examples in /evaluation/streams to null, for all of the val split",
        ));
    }
    Ok(BaselineStream { name, num_examples })
}

fn build_request(
    arguments: &InitArguments,
    output: &Path,
    contract: &Value,
    held_out: &Path,
) -> Result<BuildRequest, Failure> {
    let context_length = contract["architecture"]["context_length"].as_u64();
    let context_length = context_length.and_then(|length| u32::try_from(length).ok()).ok_or_else(|| {
        Failure::new(
            "/architecture/context_length is not a number of tokens",
            "set it to a number such as 64",
        )
    })?;
    let folder = output.join(DATA_FOLDER);
    if arguments.lipsum {
        return Ok(liber_primus_request(&folder, held_out, context_length));
    }
    let (name, shards) = if let Some(text) = &arguments.text {
        let source = arguments.source.clone().unwrap_or_else(|| name_of(text));
        let class = LicenseClass::from(arguments.license);
        (name_of(text), split_lines(text, Shares::NINETY_FIVE_FIVE, class, &source))
    } else {
        (contract["name"].as_str().unwrap_or("data").to_owned(), file_shards(arguments))
    };
    let (shards, qualification) = (shards.map_err(refused_text)?, Some(held_out.to_owned()));
    Ok(BuildRequest { context_length, folder, name, qualification, shards })
}

/// One shard a file; each belongs to one split as a whole.
fn file_shards(arguments: &InitArguments) -> Result<Vec<ShardSource>, BuildError> {
    let splits = [
        (Split::Train, &arguments.train),
        (Split::Val, &arguments.val),
        (Split::Qualification, &arguments.qualification),
    ];
    let mut shards = Vec::new();
    for (split, paths) in splits {
        for path in paths {
            let source = match &arguments.source {
                Some(source) => format!("{source}, {}", name_of(path)),
                None => name_of(path),
            };
            let license_class = arguments.license.into();
            shards.push(ShardSource { content: Content::file(path)?, license_class, source, split });
        }
    }
    Ok(shards)
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// A text that cannot be used, and what to do about it.
fn refused_text(error: BuildError) -> Failure {
    let hint = match &error {
        BuildError::Io { .. } => "name a file that is there and can be read",
        BuildError::Examples(_) => "set /architecture/context_length to a number such as 64",
        _ => {
            "give each split text of its own, with line breaks where one file is cut (`fold -s` breaks long lines at spaces)"
        }
    };
    Failure::from(error).with_hint(hint)
}
