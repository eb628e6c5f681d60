//! `ledger diff`: two contracts, or a contract and what ran, field by field.
//!
//! The comparison is the validator's (`validator::diff`); here files are read
//! and results printed. It gives no verdict: whether a ledger is whole is asked
//! of `ledger audit`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use ledger::strict::{ParseOptions, parse};
use serde_json::{Value, json};
use validator::diff::{Comparison, Field, Side, Status, contracts, ran};

use crate::failure::{FINDINGS, Failure, OrFail};
use crate::output::{blake3_of, print, print_json};

/// First bytes of a SQLite file, which no contract begins with.
const SQLITE_MAGIC: &[u8] = b"SQLite format 3\0";

/// Longest value that is printed in full.
const MAX_SHOWN_CHARACTERS: usize = 120;

#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// A contract file or a ledger: what the other one is compared with.
    pub(crate) a: PathBuf,
    /// A contract file or a ledger.
    pub(crate) b: PathBuf,
    /// Compare A's contract with what ran in B, also where A is another ledger.
    #[arg(long)]
    pub(crate) ran: bool,
    /// The preregistration whose arms declare where contracts may differ.
    #[arg(long, value_name = "FILE")]
    pub(crate) preregistration: Option<PathBuf>,
    /// List the fields that are the same too.
    #[arg(long)]
    pub(crate) all: bool,
    /// Print JSON, with every field.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(arguments: &DiffArguments) -> Result<u8, Failure> {
    let (a, b) = (open(&arguments.a)?, open(&arguments.b)?);
    let preregistration = arguments.preregistration.as_deref();
    let preregistration = preregistration.map(|path| read_preregistration(path, [&a, &b])).transpose()?;
    let is_one_ledger = a.frozen.is_some() && a.frozen == b.frozen;
    let asks_what_ran = arguments.ran || (b.frozen.is_some() && (a.frozen.is_none() || is_one_ledger));
    let contract = contracts(&a, &b, preregistration.as_ref());
    let ran = if asks_what_ran { Some(ran(&a, &b)?) } else { None };
    let parts: Vec<&Comparison> = std::iter::once(&contract).chain(&ran).collect();
    let num_undeclared: usize = parts.iter().map(|part| part.count(Status::Undeclared)).sum();
    if arguments.json {
        print_json(
            "diff",
            json!({
                "a": side_json(&a), "b": side_json(&b), "contract": part_json(&contract),
                "ran": ran.as_ref().map(part_json), "same_or_declared": num_undeclared == 0
            }),
        )?;
    } else {
        print(format!("A  {}", side_text(&a)))?;
        print(format!("B  {}", side_text(&b)))?;
        print_part("contract", &contract, arguments.all)?;
        if let Some(ran) = &ran {
            print_part("what ran in B", ran, arguments.all)?;
            let silent = ran.not_stated.len();
            print(format!(
                "  {silent} more fields are stated by no entry in words; `ledger audit` derives them"
            ))?;
        }
    }
    Ok(if num_undeclared == 0 { 0 } else { FINDINGS })
}

/// A ledger, or a contract file as a person writes it.
fn open(path: &Path) -> Result<Side, Failure> {
    let hint = "name a contract file, or a ledger such as run.db";
    let attempted = format!("reading {}", path.display());
    let file = File::open(path).or_fail(&attempted, hint)?;
    let mut start = Vec::new();
    file.take(SQLITE_MAGIC.len() as u64).read_to_end(&mut start).or_fail(&attempted, hint)?;
    if start == SQLITE_MAGIC {
        return Ok(Side::open(path)?);
    }
    let contract = read_json(path)?;
    let format = contract.get("format").and_then(Value::as_str);
    if format != Some(schemas::CONTRACT_FORMAT) {
        let found = format.map_or("no format".to_owned(), |format| format!("the format {format:?}"));
        return Err(Failure::new(format!("{} has {found} and is no contract", path.display()), hint));
    }
    Ok(Side::of_file(path, contract))
}

fn read_json(path: &Path) -> Result<Value, Failure> {
    let attempted = format!("reading {}", path.display());
    let hint = "name a JSON document; `ledger init --check` says what is wrong with a contract";
    let bytes = std::fs::read(path).or_fail(&attempted, hint)?;
    parse(&bytes, ParseOptions::without_comments()).or_fail(&attempted, hint)
}

/// The preregistration, which has to be the one that a side binds, if one does.
fn read_preregistration(path: &Path, sides: [&Side; 2]) -> Result<Value, Failure> {
    let value = read_json(path)?;
    let bytes = std::fs::read(path).or_fail(format!("reading {}", path.display()), "name a file")?;
    let digest = blake3_of(&bytes).to_string();
    let bound = |side: &Side| {
        let digest = side.contract.pointer("/membership/preregistration/digest");
        digest.and_then(Value::as_str).map(str::to_owned)
    };
    match sides.into_iter().find_map(bound) {
        Some(bound) if bound != digest => Err(Failure::new(
            format!(
                "{} is not the preregistration that the contract binds ({bound}), but {digest}",
                path.display()
            ),
            "name the file that `ledger campaign freeze` wrote beside the campaign's ledger",
        )),
        _ => Ok(value),
    }
}

fn side_json(side: &Side) -> Value {
    let frozen = side.frozen.as_ref();
    json!({
        "contract": frozen.map(|frozen| frozen.digest), "name": side.contract.get("name"),
        "path": side.path, "run": frozen.map(|frozen| &frozen.run)
    })
}

fn side_text(side: &Side) -> String {
    let name = side.contract.get("name").and_then(Value::as_str).unwrap_or("without a name");
    let kind =
        side.frozen.as_ref().map_or("a contract file".to_owned(), |frozen| format!("run {}", frozen.run));
    format!("{} ({name:?}, {kind})", side.path.display())
}

fn part_json(part: &Comparison) -> Value {
    json!({
        "fields": part.fields, "not_stated": part.not_stated, "num_declared": part.count(Status::Declared),
        "num_same": part.count(Status::Same), "num_undeclared": part.count(Status::Undeclared)
    })
}

fn print_part(title: &str, part: &Comparison, all: bool) -> Result<(), Failure> {
    let [same, declared, undeclared] =
        [Status::Same, Status::Declared, Status::Undeclared].map(|status| part.count(status));
    print(format!("\n{title}: {same} same, {declared} declared, {undeclared} undeclared"))?;
    for (status, word) in
        [(Status::Undeclared, "undeclared"), (Status::Declared, "declared"), (Status::Same, "same")]
    {
        if status == Status::Same && !all {
            continue;
        }
        for field in part.fields.iter().filter(|field| field.status == status) {
            print(format!("  {word:<10} {}", field_text(field)))?;
        }
    }
    Ok(())
}

fn field_text(field: &Field) -> String {
    let pointer = if field.pointer.is_empty() { "(the contract)" } else { &field.pointer };
    let values = if field.status == Status::Same {
        shown(field.a.as_ref())
    } else {
        format!("{} -> {}", shown(field.a.as_ref()), shown(field.b.as_ref()))
    };
    let entry = field.entry.map(|entry| format!(" (entry {entry})")).unwrap_or_default();
    let why = field.why.as_ref().map(|why| format!("; {}", one_line(why))).unwrap_or_default();
    format!("{pointer}: {values}{entry}{why}")
}

fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else { return "nothing".to_owned() };
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}... ({} characters)", &text[..end], text.chars().count()),
        None => text,
    }
}

/// Text from a contract without control characters that could move the cursor.
fn one_line(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}
