//! `ledger proof`: that an entry is in a ledger, or that one head follows from
//! another, as a file that anybody can check with the keys alone.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use ledger::head_file;
use ledger::note;
use ledger::reader::Reader;
use schemas::digest::encode_hex;
use serde_json::{Value, json};
use witness::cosigned_file;
use witness::leaves;
use witness::proof::{InclusionProof, MAX_PROOF_BYTES, ProofError, Shown, check_consistency};
use witness::request::AddCheckpoint;
use witness::verifier_key::{SignatureKind, VerifierKey};

use super::open_ledger;
use crate::failure::{Failure, OrFail};
use crate::output::{count, print, print_json, say, write_file, write_out};

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["ledger", "check"])))]
pub(crate) struct ProofArguments {
    /// The ledger: `run.db`.
    pub(crate) ledger: Option<PathBuf>,
    /// Index of the entry to prove.
    #[arg(required_unless_present_any = ["from", "check"], conflicts_with_all = ["from", "check"])]
    pub(crate) index: Option<u64>,
    /// Prove instead that the newest head follows from the one of this size.
    #[arg(long, value_name = "SIZE", requires = "ledger")]
    pub(crate) from: Option<u64>,
    /// File to write [default: standard output].
    #[arg(long, value_name = "FILE", requires = "ledger")]
    pub(crate) output: Option<PathBuf>,
    /// Check a proof instead; needs --vkey.
    #[arg(long, value_name = "FILE", conflicts_with = "ledger", requires = "vkey")]
    pub(crate) check: Option<PathBuf>,
    /// Verifier key NAME+HASH+KEY of the log, or of a witness that has to have cosigned. May be repeated; of the log's keys
    /// one has to have signed.
    #[arg(long, value_name = "VKEY")]
    pub(crate) vkey: Vec<VerifierKey>,
    /// The entry's bytes [default: those that the proof carries].
    #[arg(long, value_name = "FILE", requires = "check")]
    pub(crate) entry: Option<PathBuf>,
    /// The old head that a consistency proof begins with.
    #[arg(long, value_name = "FILE", requires = "check")]
    pub(crate) old_head: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(arguments: &ProofArguments) -> Result<u8, Failure> {
    match (&arguments.check, &arguments.ledger) {
        (Some(file), _) => check(file, arguments),
        (None, Some(ledger)) => write(ledger, arguments),
        (None, None) => Err(Failure::new("no ledger is named", "ledger proof run.db INDEX")),
    }
}

fn write(ledger: &Path, arguments: &ProofArguments) -> Result<u8, Failure> {
    let reader = open_ledger(ledger)?;
    let signed = leaves::newest_head(&reader)?;
    let parsed = note::parse(&signed)?;
    let mut all = Vec::new();
    leaves::extend(&mut all, &reader)?;
    let levels = leaves::tree(&all, &parsed.head)?;
    let size = parsed.head.size;
    let beyond = |given: u64| {
        Failure::new(
            format!(
                "{given} is beyond the newest head of {}, which covers {} entries",
                ledger.display(),
                count(size)
            ),
            "indices begin at 0; entries behind the head are covered by the next one",
        )
    };
    let served = cosigned(ledger, &parsed)?.unwrap_or(signed);
    let (text, what) = match (arguments.index, arguments.from) {
        (_, Some(from)) => {
            let proof = leaves::consistency(&levels, from, size).map_err(|_| beyond(from))?;
            (AddCheckpoint::body(from, &proof, &served), format!("size {from} to {size}"))
        }
        (Some(index), None) => {
            let places = usize::try_from(index).ok().zip(usize::try_from(size).ok());
            let hashes = places.and_then(|(index, size)| levels.inclusion_proof(index, size));
            let hashes = hashes.ok_or_else(|| beyond(index))?;
            let extra = Some(reader.entry_bytes(index)?);
            (
                InclusionProof { extra, hashes, index, note: served }.to_text(),
                format!("entry {index} of {size}"),
            )
        }
        (None, None) => {
            return Err(Failure::new("no entry is named", "ledger proof run.db INDEX, or --from SIZE"));
        }
    };
    let keys = log_keys(&reader, &parsed.head.origin);
    match &arguments.output {
        Some(path) => {
            write_file(path, text.as_bytes(), false)?;
            if arguments.json {
                let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
                print_json(
                    "proof",
                    json!({"file": path, "origin": parsed.head.origin, "size": size, "vkeys": keys}),
                )?;
            }
            say(format!("Proved {what} in {}.", path.display()));
        }
        None => write_out(text.as_bytes())?,
    }
    for key in keys {
        say(format!("vkey: {key}"));
    }
    say("The keys are those that the ledger's own contract names; whoever checks needs them from elsewhere.");
    Ok(0)
}

/// The newest head of a ledger with its cosignatures, where it has some.
pub(super) fn newest_cosigned(ledger: &Path) -> Result<Option<String>, Failure> {
    let signed = leaves::newest_head(&open_ledger(ledger)?)?;
    cosigned(ledger, &note::parse(&signed)?)
}

/// The head with all cosignatures of it that lie beside the ledger.
fn cosigned(ledger: &Path, head: &note::ParsedNote) -> Result<Option<String>, Failure> {
    let path = cosigned_file::path_for(ledger);
    if !path.exists() {
        return Ok(None);
    }
    let notes = head_file::read_all(&path, 64 << 20)?;
    let of_head = notes.iter().filter(|text| note::parse(text).is_ok_and(|parsed| parsed.head == head.head));
    let mut lines: Vec<&str> = Vec::new();
    for text in of_head {
        for line in text.lines().filter(|line| line.starts_with('\u{2014}')) {
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    // A note holds few lines; what is beyond them proves no more.
    lines.truncate(16);
    let joined: String = lines.iter().map(|line| format!("{line}\n")).collect();
    Ok((!lines.is_empty()).then(|| format!("{}\n{joined}", head.text)))
}

/// Verifier keys of the run's owner and trainer, where the contract can be read.
fn log_keys(reader: &Reader, origin: &str) -> Vec<VerifierKey> {
    let Ok(frozen) = reader.contract() else { return Vec::new() };
    let keys = frozen.contract.keys;
    let of = |public: &str| VerifierKey::from_hex(SignatureKind::Log, origin, public).ok();
    [of(&keys.owner.public), of(&keys.trainer.public)].into_iter().flatten().collect()
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let hint = "name a file that can be read";
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_PROOF_BYTES + 1).read_to_end(&mut bytes))
        .or_fail(format!("reading {}", path.display()), hint)?;
    if bytes.len() as u64 > MAX_PROOF_BYTES {
        return Err(Failure::new(format!("{} is larger than any proof", path.display()), hint));
    }
    Ok(bytes)
}

fn check(file: &Path, arguments: &ProofArguments) -> Result<u8, Failure> {
    let bytes = read(file)?;
    let refuse = |error: ProofError| match error {
        ProofError::NoKey | ProofError::NoEntry => Failure::from(error),
        _ => Failure::from(error)
            .into_findings(file, "compare with another copy, and with keys that came another way"),
    };
    let (shown, members) = if bytes.starts_with(b"old ") {
        let Some(old) = &arguments.old_head else {
            return Err(Failure::new(
                format!("{} is a consistency proof", file.display()),
                "name the old head that you kept with --old-head",
            ));
        };
        let old = head_file::read_last(old).or_hint("name a file with the old head as a signed note")?;
        let shown = check_consistency(&bytes, &old, &arguments.vkey).map_err(refuse)?;
        let old_size = note::parse(&old)?.head.size;
        (shown, json!({"kind": "consistency", "old_size": old_size}))
    } else {
        let text = String::from_utf8(bytes)
            .or_fail(format!("reading {}", file.display()), "name a proof: it is text")?;
        let proof = InclusionProof::parse(&text).map_err(refuse)?;
        let entry = arguments.entry.as_deref().map(read).transpose()?;
        let shown = proof.check(&arguments.vkey, entry.as_deref()).map_err(refuse)?;
        (shown, json!({"index": proof.index, "kind": "inclusion"}))
    };
    tell(&shown, members, arguments.json)
}

fn tell(shown: &Shown, members: Value, json: bool) -> Result<u8, Failure> {
    let head = &shown.note.head;
    if json {
        let witnesses: Vec<Value> =
            shown.witnesses.iter().map(|(name, time_s)| json!({"name": name, "time_s": time_s})).collect();
        let mut all = json!({
            "origin": head.origin, "root": encode_hex(&head.root), "size": head.size, "witnesses": witnesses
        });
        if let (Value::Object(all), Value::Object(members)) = (&mut all, members) {
            all.extend(members);
        }
        print_json("proof-check", all)?;
        return Ok(0);
    }
    match members["index"].as_u64() {
        Some(index) => print(format!("entry   {} of {}", count(index), count(head.size)))?,
        None => print(format!("sizes   {} to {}", members["old_size"], head.size))?,
    }
    print(format!("origin  {}", head.origin))?;
    print(format!("root    {}", encode_hex(&head.root)))?;
    for (name, time_s) in &shown.witnesses {
        print(format!("witness {name} at {time_s} s since 1970"))?;
    }
    Ok(0)
}
