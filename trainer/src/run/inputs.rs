//! The frozen inputs of a run: policy card, parameter manifest, example
//! tables, and the data shards behind them.
//!
//! Documents come from the ledger, where the freeze stored them, and are
//! checked by digest; a copy on disk that changed since is refused rather than
//! silently ignored. Every shard of the train and val splits is read and
//! digested before the first step. The sealed set is never touched.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use corpus::examples::{ExampleTable, ExamplesError};
use ledger::reader::Reader;
use schemas::contract::{Contract, FileBinding};
use schemas::data::{DataManifest, Split};
use schemas::digest::Digest;
use schemas::parameters::ParameterManifest;
use schemas::policy_card::PolicyCard;
use serde::de::DeserializeOwned;

use crate::data::{DataError, ExampleSource};
use crate::export::{ExportError, NamedTensor};

use super::progress::Console;
use super::signals::Interrupt;

/// Bytes read at once while a shard is digested; also how often a signal is
/// looked for.
const BUFFER_BYTES: usize = 1 << 20;

/// Why the frozen inputs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// A binding without a digest: the contract was never frozen.
    #[error("{pointer}: the contract holds no digest")]
    Unfrozen {
        /// JSON pointer of the binding.
        pointer: &'static str,
    },
    /// A file cannot be read.
    #[error("{pointer}: cannot read {}", path.display())]
    Read {
        /// JSON pointer of the binding.
        pointer: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file changed after the freeze.
    #[error("{pointer}: {} changed after the freeze: expected {expected}, found {actual}", path.display())]
    Changed {
        /// JSON pointer of the binding.
        pointer: &'static str,
        /// The file.
        path: PathBuf,
        /// Frozen.
        expected: Digest,
        /// On disk.
        actual: Digest,
    },
    /// A document is not one.
    #[error("{pointer}: {} is not a document of its kind", path)]
    Document {
        /// JSON pointer of the binding.
        pointer: &'static str,
        /// The file, as the contract names it.
        path: String,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// An example table is not one.
    #[error("{pointer}")]
    Table {
        /// JSON pointer of the binding.
        pointer: &'static str,
        /// What is wrong with it.
        source: ExamplesError,
    },
    /// An example table is not the one that the shards give.
    #[error("{pointer}: the frozen table is not the one that the data manifest gives: record {record}")]
    TableDiffers {
        /// JSON pointer of the binding.
        pointer: &'static str,
        /// First record that differs.
        record: usize,
    },
    /// Initial weights that are no model shard.
    #[error("{pointer}: {} cannot be used as initial weights", path.display())]
    Weights {
        /// JSON pointer of the binding.
        pointer: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<ExportError>,
    },
    /// A data shard cannot be used.
    #[error("/data")]
    Data(#[from] DataError),
    /// The ledger could not be read.
    #[error("the ledger could not be read")]
    Ledger(#[from] ledger::reader::ReadError),
}

/// Everything that the engine is built from.
#[derive(Debug)]
pub struct Inputs {
    /// The optimizer policy card.
    pub card: PolicyCard,
    /// The manifest of the data.
    pub data: DataManifest,
    /// Folder of the data shards.
    pub folder: PathBuf,
    /// The manifest of parameters.
    pub parameters: ParameterManifest,
    /// Examples of the train split.
    pub train: ExampleSource,
    /// Examples of the val split.
    pub val: ExampleSource,
    /// Parameters of step 0, where another run made them.
    pub weights: Option<Vec<NamedTensor>>,
}

/// Where the files of a contract are.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// Folder that data shards are below; the manifest's own where `None`.
    pub data: Option<&'a Path>,
    /// Folder that the contract's paths are relative to.
    pub ledger: &'a Path,
}

/// Reads and checks everything, or returns `None` when a signal came in
/// between.
///
/// # Errors
/// [`InputError`] for the first input that is not what was frozen.
pub fn load(
    contract: &Contract,
    reader: &Reader,
    places: Places<'_>,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<Option<Inputs>, InputError> {
    let binding =
        |pointer: &'static str, binding: &FileBinding| frozen_file(pointer, binding, reader, places.ledger);
    let card: PolicyCard = document("/update/card", &contract.update.card, &binding)?;
    let parameters: ParameterManifest = document("/parameters", &contract.parameters, &binding)?;
    let data: DataManifest = document("/data/manifest", &contract.data.manifest, &binding)?;

    let folder = data_folder(contract, places);
    let schemas::contract::Architecture::LlamaDecoder(decoder) = &contract.architecture;
    if !verify_shards(&data, &folder, console, interrupt)? {
        return Ok(None);
    }
    let open = |pointer: &'static str, table: &FileBinding, split| {
        let bytes = binding(pointer, table)?;
        let table =
            ExampleTable::from_bytes(&bytes).map_err(|source| InputError::Table { pointer, source })?;
        let derived = corpus::examples::build(&data, &folder, split, decoder.context_length)
            .map_err(|source| InputError::Table { pointer, source })?;
        if table != derived {
            let pairs = table.records.iter().zip(&derived.records);
            let record = pairs.take_while(|(frozen, derived)| frozen == derived).count();
            return Err(InputError::TableDiffers { pointer, record });
        }
        Ok(ExampleSource::open(&data, &folder, split, table.records, decoder.context_length)?)
    };
    let train = open("/data/train_examples", &contract.data.train_examples, Split::Train)?;
    let val = open("/data/val_examples", &contract.data.val_examples, Split::Val)?;
    let weights = super::warm_start::load(contract, places.ledger)?;
    Ok(Some(Inputs { card, data, folder, parameters, train, val, weights }))
}

/// Folder that the data manifest's paths are relative to.
fn data_folder(contract: &Contract, places: Places<'_>) -> PathBuf {
    places.data.map_or_else(
        || {
            let manifest = places.ledger.join(&contract.data.manifest.path);
            manifest.parent().map_or_else(|| places.ledger.to_owned(), Path::to_path_buf)
        },
        Path::to_path_buf,
    )
}

/// Bytes of a frozen file: from the ledger where it stored them, else from
/// disk. Where both are there, both have to be what was frozen.
fn frozen_file(
    pointer: &'static str,
    binding: &FileBinding,
    reader: &Reader,
    folder: &Path,
) -> Result<Vec<u8>, InputError> {
    let expected = binding.digest.ok_or(InputError::Unfrozen { pointer })?;
    let path = folder.join(&binding.path);
    let stored = reader.artifact(&expected).ok();
    let on_disk = match fs::read(&path) {
        Ok(bytes) => Some(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && stored.is_some() => None,
        Err(source) => return Err(InputError::Read { pointer, path, source }),
    };
    for bytes in stored.iter().chain(&on_disk) {
        let actual = Digest::blake3(*blake3::hash(bytes).as_bytes());
        if actual != expected {
            return Err(InputError::Changed { pointer, path, expected, actual });
        }
    }
    // One of both is there: a missing file was refused above.
    Ok(stored.or(on_disk).unwrap_or_default())
}

fn document<T: DeserializeOwned>(
    pointer: &'static str,
    binding: &FileBinding,
    read: &impl Fn(&'static str, &FileBinding) -> Result<Vec<u8>, InputError>,
) -> Result<T, InputError> {
    let bytes = read(pointer, binding)?;
    serde_json::from_slice(&bytes).map_err(|source| InputError::Document {
        pointer,
        path: binding.path.clone(),
        source,
    })
}

/// Reads and digests every train and val shard; `false` when a signal came.
fn verify_shards(
    data: &DataManifest,
    folder: &Path,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<bool, InputError> {
    let shards = || data.shards.iter().filter(|shard| shard.split != Split::Qualification);
    let bar = console.bytes("Verifying data", shards().map(|shard| shard.num_bytes).sum());
    let mut buffer = vec![0; BUFFER_BYTES];
    for shard in shards() {
        let path = folder.join(&shard.path);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| InputError::Read { pointer: "/data/manifest", path, source }
        };
        let mut file = File::open(&path).map_err(failed(&path))?;
        let mut hasher = blake3::Hasher::new();
        loop {
            if interrupt.is_set() {
                return Ok(false);
            }
            let num_read = file.read(&mut buffer).map_err(failed(&path))?;
            if num_read == 0 {
                break;
            }
            hasher.update(&buffer[..num_read]);
            bar.inc(num_read as u64);
        }
        let actual = Digest::blake3(*hasher.finalize().as_bytes());
        if actual != shard.digest {
            let (pointer, expected) = ("/data/manifest", shard.digest);
            return Err(InputError::Changed { pointer, path, expected, actual });
        }
    }
    bar.finish_and_clear();
    Ok(true)
}
