//! The freeze: from the file that a person wrote to a signed contract that a
//! run can be held to.
//!
//! Every file that the contract names is read and digested; what is missing,
//! ambiguous, contradictory or vacuous is refused, and all of it is reported
//! at once, each with a JSON pointer and a hint. Nothing is written unless
//! nothing is wrong, and nothing is ever overwritten.
//!
//! Limits that the trainer of this edition has (one process, binary32, no
//! pruning) are refused here rather than at the first step,
//! because a contract that cannot be executed is no contract.

mod authority;
mod card;
mod data;
mod date;
mod document;
mod equivalence;
mod execution;
mod external;
mod faults;
mod files;
mod initialization;
mod keep;
mod membership;
mod model;
mod plateau;
mod preregistration;
mod problem;
mod schedule;
mod state;
mod stateful;
mod store;
mod tables;
mod workers;

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use schemas::contract::{Contract, FileBinding, Keys};
use schemas::digest::Digest;
use schemas::{CONTRACT_FORMAT, MAX_ENTRY_BYTES};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

pub use authority::RULESET_EDITION;
pub use external::external_code_digest;
pub use model::parameter_manifest;
pub(crate) use preregistration::refuse_owner;
pub use preregistration::{
    CAMPAIGN_RULESET_EDITION, CheckedPreregistration, MIN_SEEDS, PreregistrationError,
    PreregistrationRequest, check_preregistration, check_preregistration_text,
};
pub use problem::FreezeProblem;

use self::files::{Folder, bind, read_small};
use self::problem::Problems;
use self::tables::TableSummary;
use crate::canonical;
use crate::create::{CreateError, Created, FrozenArtifact, create_run_ledger};
use crate::keys::{KeyError, KeyRing, Role};
use crate::strict::{MAX_DOCUMENT_BYTES, ParseOptions};

/// Largest contract in canonical bytes. It is a string inside entry 0, which
/// holds at most 65,535 bytes with the escapes of its quotation marks, the
/// artifacts' list and the signature.
pub const MAX_CONTRACT_BYTES: usize = 48 * 1024;

/// What entry 0 holds besides the contract, at most.
const ENTRY_OVERHEAD_BYTES: usize = 4 * 1024;

/// Largest example table that is stored in the ledger. A larger one is named
/// by digest only; it can be derived from the shards.
pub const MAX_STORED_TABLE_BYTES: u64 = 64 << 20;

/// What to freeze.
#[derive(Debug, Clone)]
pub struct FreezeRequest {
    /// The contract file.
    pub contract: PathBuf,
    /// Keys for a contract whose `/keys` is null; null: such a contract is refused.
    pub keys_when_null: Option<Keys>,
    /// The day that expiries are compared with, `YYYY-MM-DD` in UTC; null: the clock's.
    pub today: Option<String>,
}

impl FreezeRequest {
    /// A contract that has its keys, as of today.
    #[must_use]
    pub fn new(contract: &Path) -> Self {
        Self { contract: contract.to_owned(), keys_when_null: None, today: None }
    }
}

/// A contract with nothing wrong: complete, and equal to the files it names.
#[derive(Debug, Clone)]
pub struct CheckedContract {
    /// Files to be stored, in the order of pointers.
    pub artifacts: Vec<FrozenArtifact>,
    /// RFC 8785 bytes.
    pub canonical: Vec<u8>,
    /// With every digest and size filled in.
    pub contract: Contract,
    /// SHA-256 of the canonical bytes.
    pub digest: Digest,
    /// Examples of the train split.
    pub num_train_examples: u64,
    /// Examples of the val split.
    pub num_val_examples: u64,
    /// The step at which the run ends at the latest.
    pub num_steps: u64,
}

/// Why a contract was not frozen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FreezeError {
    /// The contract could not be read.
    #[error("cannot read the contract {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something is wrong with it, or with a file that it names.
    #[error("{} cannot be frozen: {} found", path.display(), num_problems(problems))]
    Refused {
        /// The contract.
        path: PathBuf,
        /// Everything that was found.
        problems: Vec<FreezeProblem>,
    },
    /// The owner's key could not be read.
    #[error("the owner's key is needed to sign")]
    Key(#[from] KeyError),
    /// The ledger could not be created.
    #[error("the contract was not frozen")]
    Create(#[from] CreateError),
}

fn num_problems(problems: &[FreezeProblem]) -> String {
    match problems.len() {
        1 => "1 problem".to_owned(),
        number => format!("{number} problems"),
    }
}

/// What reading the named files gave.
#[derive(Debug, Default)]
struct Inputs {
    artifacts: Vec<FrozenArtifact>,
    train: Option<TableSummary>,
    val: Option<TableSummary>,
}

/// Reads a contract and everything that it names, and checks it. Writes
/// nothing.
///
/// # Errors
/// When the file cannot be read, or anything is wrong; [`FreezeError::Refused`]
/// lists all of it.
pub fn check(request: &FreezeRequest) -> Result<CheckedContract, FreezeError> {
    let path = &request.contract;
    let read_error = |source| FreezeError::Read { path: path.clone(), source };
    let mut problems = Problems::new(path);
    let bytes = read_contract(path).map_err(read_error)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = Folder::open(parent.unwrap_or(Path::new("."))).map_err(read_error)?;
    let today = request.today.clone().unwrap_or_else(|| date::day_of(SystemTime::now()));

    let checked = document::parse(&bytes, ParseOptions::without_comments(), &mut problems)
        .and_then(|value| fill_keys(value, request.keys_when_null.as_ref(), &mut problems))
        .and_then(|value| document::typed::<Contract>(value, "contract", &mut problems))
        .and_then(|contract| check_contract(contract, &folder, &today, &mut problems));
    match checked {
        Some(checked) if problems.is_empty() => Ok(checked),
        _ => Err(FreezeError::Refused { path: path.clone(), problems: problems.into_list() }),
    }
}

/// A frozen contract and where its ledger lies.
#[derive(Debug, Clone)]
pub struct Frozen {
    /// The contract.
    pub checked: CheckedContract,
    /// The ledger's run, contract digest and first head.
    pub created: Created,
    /// The ledger.
    pub ledger: PathBuf,
}

/// Checks a contract and, where nothing is wrong, signs it and creates its
/// ledger: `output`, or `run.db` beside the contract. `tool` is program and
/// version, for the record.
///
/// # Errors
/// As [`check`], and when the owner's key is missing or not the contract's, or
/// the ledger exists or cannot be written.
pub fn freeze(
    request: &FreezeRequest,
    output: Option<&Path>,
    keys: &KeyRing,
    tool: &str,
) -> Result<Frozen, FreezeError> {
    let ledger = output.map_or_else(|| request.contract.with_file_name("run.db"), Path::to_owned);
    if ledger.exists() {
        return Err(CreateError::Exists { path: ledger }.into());
    }
    let checked = check(request)?;
    let owner = keys.get(Role::Owner)?;
    if owner.public_hex() != checked.contract.keys.owner.public {
        let mut problems = Problems::new(&request.contract);
        problems.add(
            "/keys/owner/public",
            format!(
                "is {}; the owner key in {} is {}",
                checked.contract.keys.owner.public,
                keys.folder().display(),
                owner.public_hex()
            ),
            "name the folder of the contract's keys with `--keys`, or put this key into the contract",
        );
        return Err(FreezeError::Refused { path: request.contract.clone(), problems: problems.into_list() });
    }
    let created = create_run_ledger(&ledger, &checked.canonical, &checked.artifacts, &owner, tool)?;
    Ok(Frozen { checked, created, ledger })
}

/// Reads at most one byte more than the strict parser accepts.
fn read_contract(path: &Path) -> io::Result<Vec<u8>> {
    use io::Read;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    file.take(MAX_DOCUMENT_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A contract may leave its keys to the first freeze.
fn fill_keys(mut value: Value, keys: Option<&Keys>, problems: &mut Problems) -> Option<Value> {
    let slot = value.get_mut("keys").filter(|slot| slot.is_null());
    match (slot, keys) {
        (None, _) => Some(value),
        (Some(slot), Some(keys)) => {
            *slot = serde_json::to_value(keys).ok()?;
            Some(value)
        }
        (Some(_), None) => {
            problems.add("/keys", "is null, and no keys are at hand", "make them with `ledger keygen`");
            None
        }
    }
}

fn check_contract(
    mut contract: Contract,
    folder: &Folder,
    today: &str,
    problems: &mut Problems,
) -> Option<CheckedContract> {
    let mut inputs = Inputs::default();
    require_tag(&contract.format, CONTRACT_FORMAT, problems);
    authority::check(&contract, today, problems);
    let is_shape_possible = model::check_architecture(&contract, problems);
    data::check(&mut contract, folder, today, &mut inputs, problems);
    let card = card::check(&mut contract, folder, &mut inputs, problems);
    let num_frozen = model::check_parameters(
        &mut contract,
        card.as_ref(),
        is_shape_possible,
        folder,
        &mut inputs,
        problems,
    );
    initialization::check(&mut contract, is_shape_possible, num_frozen, folder, problems);
    membership::check(&mut contract, folder, &mut inputs, problems);
    external::check(&mut contract, folder, &mut inputs, problems);
    schedule::check(&contract, card.as_ref(), &inputs, problems);
    execution::check(&contract, is_shape_possible, num_frozen, problems);
    state::check(&contract, problems);
    stateful::check(&contract, problems);
    let canonical = canonical_bytes(&contract, problems)?;
    let Inputs { mut artifacts, train, val } = inputs;
    artifacts.sort_by(|a, b| a.pointer.cmp(&b.pointer));
    Some(CheckedContract {
        artifacts,
        digest: Digest::sha256(Sha256::digest(&canonical).into()),
        canonical,
        num_steps: schedule::num_steps(&contract),
        num_train_examples: train.map_or(0, |table| table.num_examples),
        num_val_examples: val.map_or(0, |table| table.num_examples),
        contract,
    })
}

/// The canonical bytes, within the size that entry 0 can hold.
fn canonical_bytes<T: Serialize>(document: &T, problems: &mut Problems) -> Option<Vec<u8>> {
    let canonical = serde_json::to_value(document).map_err(|error| error.to_string());
    let canonical =
        canonical.and_then(|value| canonical::contract_json(&value).map_err(|error| error.to_string()));
    let bytes = match canonical {
        Ok(bytes) => bytes,
        Err(message) => {
            problems.add("", format!("has no canonical form: {message}"), "correct the values that it names");
            return None;
        }
    };
    let num_escapes = bytes.iter().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    let num_entry_bytes = bytes.len() + num_escapes + ENTRY_OVERHEAD_BYTES;
    problems.require(
        bytes.len() <= MAX_CONTRACT_BYTES && num_entry_bytes <= MAX_ENTRY_BYTES,
        "",
        format!(
            "has {} canonical bytes; expected at most {MAX_CONTRACT_BYTES}, and with escapes at most {}",
            bytes.len(),
            MAX_ENTRY_BYTES - ENTRY_OVERHEAD_BYTES
        ),
        "move long texts into files of their own",
    );
    Some(bytes)
}

/// Adds a problem where a document is of another format.
fn require_tag(found: &str, expected: &str, problems: &mut Problems) {
    problems.require(
        found == expected,
        "/format",
        format!("is {found:?}; expected {expected:?}"),
        "this version reads that format only",
    );
}

/// Reads a JSON document that the contract names, binds and keeps it, and
/// opens a collector for the problems inside it.
fn named_document(
    binding: &mut FileBinding,
    pointer: &str,
    folder: &Folder,
    inputs: &mut Inputs,
    problems: &mut Problems,
) -> Option<(Value, Problems)> {
    let read = folder.resolve(&binding.path).and_then(|path| {
        let (bytes, content) = read_small(&path, MAX_DOCUMENT_BYTES as u64)?;
        Ok((path, bytes, content))
    });
    let (path, bytes, content) = data::keep(read, format!("{pointer}/path"), problems)?;
    bind(binding, pointer, content, problems);
    let mut collector = Problems::new(&path);
    let value = document::parse(&bytes, ParseOptions::default(), &mut collector);
    inputs.artifacts.push(FrozenArtifact { pointer: pointer.to_owned(), bytes });
    match value {
        Some(value) => Some((value, collector)),
        None => {
            problems.extend(collector);
            None
        }
    }
}
