//! `trainer init-from`: prepares a contract that starts from the weights of
//! another run's checkpoint.
//!
//! It copies the model shard beside the new contract, checks it against the
//! source's ledger and the new architecture, and puts a lineage block with every
//! digest into the contract. It freezes nothing and resumes nothing: the new run
//! is one of its own, with an empty optimizer, from its own step 0.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use ledger::note;
use ledger::reader::Reader;
use ledger::strict::{self, ParseOptions};
use schemas::contract::{Architecture, FileBinding, Initialization, Keys, Lineage, SourceHead, WarmStart};
use schemas::digest::Digest;
use schemas::ids::CheckpointId;
use schemas::state::{Shard, StateClass, TensorInfo};
use serde::Serialize;

use crate::checkpoint::retention::{Fact, Stage};
use crate::checkpoint::writer::sync_folder;
use crate::checkpoint::{MODEL_NAME, manifest};
use crate::cli::{self, Failure};
use crate::model::manifest::{PARAMETER_DTYPE, tensors};
use crate::run::error::{self, RunError};
use schemas::model_index::MODEL_INDEX_NAME;

use super::opened::OpenedRun;

/// What a candidate's name has before the checkpoint's.
const CANDIDATE_PREFIX: &str = "candidate-";

/// Most tensors that a refusal lists.
const MAX_LISTED: usize = 8;

/// Bytes that are read ahead while copying.
const BUFFER_BYTES: usize = 1 << 20;

#[derive(Debug, Args)]
pub(crate) struct InitFromArguments {
    /// Ledger of the run that made the weights; it is only read.
    #[arg(long, value_name = "FILE")]
    ledger: PathBuf,
    /// Name of its checkpoint or candidate, as `trainer checkpoint list` prints it.
    #[arg(long, value_name = "ID")]
    checkpoint: String,
    /// The new run's contract, not frozen yet; it gets the lineage block.
    #[arg(long, value_name = "FILE")]
    contract: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Prepared<'a> {
    contract: &'a Path,
    format: &'static str,
    initialization: &'a Initialization,
    next: String,
}

pub(crate) fn run(arguments: &InitFromArguments) -> Result<u8, Failure> {
    // Everything that can be refused, before anything is written.
    let text = read_contract(&arguments.contract)?;
    let source = OpenedRun::open(&arguments.ledger)?;
    let name = arguments.checkpoint.strip_prefix(CANDIDATE_PREFIX).unwrap_or(&arguments.checkpoint);
    let fact = source.fact(name)?;
    check_stage(fact)?;
    let shard = model_shard(&source, fact)?;
    check_tensors(&architecture(&text, &arguments.contract)?, &shard.tensors)?;
    let head = newest_head(&arguments.ledger, &source.frozen.contract.keys)?;

    // The weights, then what names them.
    let file_name = format!("initial-{}.safetensors", fact.checkpoint);
    let target = arguments.contract.with_file_name(&file_name);
    copy(&source.checkpoint_folder(&fact.checkpoint).join(MODEL_NAME), &target, &shard)?;
    let initialization = Initialization::WarmStart(WarmStart {
        lineage: Lineage {
            checkpoint: CheckpointId::from(name),
            contract: source.frozen.digest,
            head,
            model: shard.digest,
            run: source.frozen.run.clone(),
            step: fact.step,
        },
        weights: FileBinding {
            digest: Some(shard.digest),
            num_bytes: Some(shard.num_bytes),
            path: file_name,
        },
    });
    let written = with_initialization(&text, &initialization, &arguments.contract)?;
    replace(&arguments.contract, &written)?;

    let next = format!("ledger freeze {}", arguments.contract.display());
    if arguments.json {
        let (contract, format) = (arguments.contract.as_path(), "init-from/1");
        cli::print_json(&Prepared { contract, format, initialization: &initialization, next })?;
    } else {
        let Lineage { checkpoint, run, step, .. } = &initialization.warm_start().lineage;
        let text = format!(
            "source    checkpoint {checkpoint} (step {step}) of run {run}\nweights   {}, {} bytes, {}\n\
             contract  {}\n",
            target.display(),
            shard.num_bytes,
            shard.digest,
            arguments.contract.display()
        );
        cli::print(text.as_bytes())?;
        cli::say(&format!("next: {next}"));
    }
    Ok(0)
}

fn failure(message: impl Into<String>, hint: &'static str) -> Failure {
    Failure { message: message.into(), hint: Some(hint) }
}

fn io_failure(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Failure {
    let path = path.to_owned();
    move |error| {
        failure(
            format!("could not {action} {}: {error}", path.display()),
            "make room, or name a folder that can be written",
        )
    }
}

/// The contract's text, if it can still get an initialisation.
fn read_contract(path: &Path) -> Result<String, Failure> {
    let hint = "name the contract of the new run; `ledger init` makes one";
    let failed = |error: &dyn std::fmt::Display| failure(format!("{}: {error}", path.display()), hint);
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    let value =
        strict::parse(text.as_bytes(), ParseOptions::without_comments()).map_err(|error| failed(&error))?;
    let members = value.as_object().ok_or_else(|| failed(&"is no JSON object"))?;
    if members.contains_key("initialization") {
        let message = format!("{}: /initialization is there already", path.display());
        return Err(failure(message, "remove it to name another source"));
    }
    Ok(text)
}

fn architecture(text: &str, path: &Path) -> Result<Architecture, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        failure(
            format!("{}: /architecture: {error}", path.display()),
            "`ledger schema contract` prints what is expected",
        )
    };
    let value =
        strict::parse(text.as_bytes(), ParseOptions::without_comments()).map_err(|error| failed(&error))?;
    let architecture = value.get("architecture").cloned().unwrap_or_default();
    serde_json::from_value(architecture).map_err(|error| failed(&error))
}

/// Only bytes that were read back once are taken, and only where they stay.
fn check_stage(fact: &Fact) -> Result<(), Failure> {
    let stays = fact.stage == Stage::Retired && fact.kept.contains(&StateClass::Model);
    if fact.stage.is_usable() || stays {
        return Ok(());
    }
    let message =
        format!("{} is {}, so that its weights cannot be relied on", fact.checkpoint, fact.stage.name());
    Err(failure(message, "choose one that is validated; `trainer checkpoint list` says which are"))
}

fn model_shard(source: &OpenedRun, fact: &Fact) -> Result<Shard, Failure> {
    let hint = "`trainer checkpoint verify` says what else differs from the record, and `trainer checkpoint fetch` brings \
                a checkpoint from its store";
    let read =
        source.manifest(fact).ok_or_else(|| failure(format!("{} has no manifest", fact.checkpoint), hint))?;
    let listed = read.map_err(|problem| failure(error::chain(&problem), hint))?;
    if manifest::shard(&listed, StateClass::Model, MODEL_INDEX_NAME).is_some() {
        let message =
            format!("the model of {} lies in two files, since its run froze parameters", fact.checkpoint);
        return Err(failure(
            message,
            "a run of this edition starts from a model in one file: choose another source",
        ));
    }
    let shard = manifest::shard(&listed, StateClass::Model, MODEL_NAME).cloned();
    shard.ok_or_else(|| failure(format!("{} has no {MODEL_NAME}", fact.checkpoint), hint))
}

/// The weights have to be exactly the new architecture's.
fn check_tensors(architecture: &Architecture, found: &[TensorInfo]) -> Result<(), Failure> {
    let Architecture::LlamaDecoder(decoder) = architecture;
    let mut problems = Vec::new();
    let mut wanted = tensors(decoder);
    wanted.sort();
    for (name, shape) in &wanted {
        match found.iter().find(|tensor| tensor.name == *name) {
            None => problems.push(format!("{name} {shape:?} is missing")),
            Some(tensor) if tensor.shape != *shape || tensor.dtype != PARAMETER_DTYPE => {
                problems.push(format!(
                    "{name} is {} {:?}, the contract has {PARAMETER_DTYPE} {shape:?}",
                    tensor.dtype, tensor.shape
                ));
            }
            Some(_) => {}
        }
    }
    for tensor in found.iter().filter(|tensor| wanted.iter().all(|(name, _)| *name != tensor.name)) {
        problems.push(format!("{} {:?} is no parameter of the contract", tensor.name, tensor.shape));
    }
    if problems.is_empty() {
        return Ok(());
    }
    let more = problems.len().saturating_sub(MAX_LISTED);
    problems.truncate(MAX_LISTED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let message = format!("the weights are of another architecture: {}{more}", problems.join("; "));
    Err(failure(message, "give the new contract the source's /architecture, or choose another source"))
}

/// The newest head of the source, signed as its contract says: how long its
/// record was when the weights were taken.
fn newest_head(ledger: &Path, keys: &Keys) -> Result<SourceHead, Failure> {
    let reader = Reader::open(ledger).map_err(RunError::from)?;
    let heads = reader.heads().map_err(RunError::from)?;
    let hint = "`ledger audit` says what is wrong with the source";
    let newest = heads.last().ok_or_else(|| failure(format!("{} has no head", ledger.display()), hint))?;
    let verified = note::verify(&newest.note, &keys.trainer.public)
        .or_else(|_| note::verify(&newest.note, &keys.owner.public))
        .map_err(|problem| failure(format!("{}: {problem}", ledger.display()), hint))?;
    Ok(SourceHead { root: Digest::sha256(verified.root), size: verified.size })
}

/// Copies the shard, digesting what is written. A copy that is there already
/// is used where it has the same bytes.
fn copy(from: &Path, to: &Path, shard: &Shard) -> Result<(), Failure> {
    let opened = OpenOptions::new().write(true).create_new(true).open(to);
    let mut out = match opened {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
        Err(error) => return Err(io_failure("create", to)(error)),
    };
    let source = if out.is_some() { from } else { to };
    let result = hash_into(source, out.as_mut()).map_err(io_failure("copy", from)).and_then(|actual| {
        let hint = match out {
            Some(_) => "`trainer checkpoint verify` says what differs; choose another checkpoint",
            None => "move the file away; it is not overwritten",
        };
        let message = || format!("{}: expected {}, found {actual}", source.display(), shard.digest);
        if actual == shard.digest { Ok(()) } else { Err(failure(message(), hint)) }
    });
    if result.is_err() && out.is_some() {
        // What was copied is not what it was to be.
        let _ = fs::remove_file(to);
    }
    result?;
    sync_folder(folder_of(to)).map_err(|problem| Failure::from(RunError::from(problem)))
}

/// Digest of a file, which is written to `out` on the way.
fn hash_into(from: &Path, mut out: Option<&mut File>) -> io::Result<Digest> {
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, File::open(from)?);
    let mut hasher = blake3::Hasher::new();
    loop {
        let bytes = io::BufRead::fill_buf(&mut reader)?;
        if bytes.is_empty() {
            break;
        }
        hasher.update(bytes);
        if let Some(out) = &mut out {
            out.write_all(bytes)?;
        }
        let num_read = bytes.len();
        io::BufRead::consume(&mut reader, num_read);
    }
    if let Some(out) = out {
        out.sync_all()?;
    }
    Ok(Digest::blake3(*hasher.finalize().as_bytes()))
}

/// The contract's text with one member more, and otherwise as a person wrote it.
fn with_initialization(text: &str, initialization: &Initialization, path: &Path) -> Result<String, Failure> {
    let hint = "`ledger init` makes a contract";
    let failed = |error: &dyn std::fmt::Display| failure(format!("{}: {error}", path.display()), hint);
    let block = serde_json::to_string_pretty(initialization).map_err(|error| failed(&error))?;
    let block = block.replace('\n', "\n  ");
    // The text was parsed before: its first character that is no space opens an object.
    let (before, after) = text.split_once('{').ok_or_else(|| failed(&"is no JSON object"))?;
    let comma = if after.trim_start().starts_with('}') { "" } else { "," };
    let written = format!("{before}{{\n  \"initialization\": {block}{comma}{after}");
    strict::parse(written.as_bytes(), ParseOptions::without_comments()).map_err(|error| failed(&error))?;
    Ok(written)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Puts a text in a file's place in one step.
fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let temporary = path.with_file_name(format!(".{name}-{}", std::process::id()));
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    let written = write().map_err(io_failure("write", path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written?;
    sync_folder(folder_of(path)).map_err(|problem| Failure::from(RunError::from(problem)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contract_keeps_its_text_around_the_new_member() {
        let digest = Digest::blake3([1; 32]);
        let initialization = Initialization::WarmStart(WarmStart {
            lineage: Lineage {
                checkpoint: CheckpointId::from("s00000004-a1"),
                contract: Digest::sha256([2; 32]),
                head: SourceHead { root: Digest::sha256([3; 32]), size: 7 },
                model: digest,
                run: schemas::ids::RunId::from("source"),
                step: 4,
            },
            weights: FileBinding { digest: Some(digest), num_bytes: Some(1), path: "w".to_owned() },
        });
        for text in ["{}", " {\n  \"$comment\": \"a { in a text\",\n  \"name\": \"x\"\n}\n"] {
            let written = with_initialization(text, &initialization, Path::new("contract.json")).ok();
            let written = written.expect("JSON");
            let value: serde_json::Value = serde_json::from_str(&written).expect("JSON");
            let read: Initialization =
                serde_json::from_value(value["initialization"].clone()).expect("typed");
            assert_eq!(read, initialization);
            assert!(written.ends_with(text.trim_start().trim_start_matches('{')), "{written}");
        }
    }
}
