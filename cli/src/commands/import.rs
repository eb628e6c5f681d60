//! `ledger import`: a ledger from its export, with the same bytes and heads.

use std::time::Instant;

use ledger::import::{ImportError, ImportSummary, import};
use schemas::digest::encode_hex;
use serde_json::json;

use super::bundle;
use super::verify_head::trusted_keys;
use crate::arguments::ImportArguments;
use crate::failure::Failure;
use crate::output::{count, print, print_json, say, say_done};
use crate::scratch::Scratch;

pub(crate) fn run(arguments: &ImportArguments) -> Result<u8, Failure> {
    let started = Instant::now();
    let keys = arguments.trust.as_deref().map(trusted_keys).transpose()?.unwrap_or_default();
    let (folder, ledger) = (&arguments.export, &arguments.output);
    let summary = if bundle::is_bundle(folder)? {
        let scratch = Scratch::new()?;
        let unpacked = bundle::unpacked(folder, &scratch)?;
        let Some(export) = unpacked.export() else {
            return Err(Failure::findings(
                format!("{}: the ledger in it is not as an export holds one", folder.display()),
                "`ledger audit` of the bundle says what is wrong with it; `tar --zstd -xf` unpacks it",
            ));
        };
        import(&export, ledger, &keys).map_err(|error| explain(error, arguments))?
    } else {
        import(folder, ledger, &keys).map_err(|error| explain(error, arguments))?
    };
    show(&summary, arguments)?;
    let (from, to) = (folder.display(), ledger.display());
    match (summary.is_created, summary.num_new_entries) {
        (true, _) => say_done(format!("Imported {from} into {to}"), started),
        (false, 0) => say(format!("{to} held all entries of {from} already.")),
        (false, num) => say_done(format!("Appended {} entries of {from} to {to}", count(num)), started),
    }
    if keys.is_empty() {
        say("The key is the one that the ledger's own contract names; --trust FILE checks who that is.");
    }
    Ok(0)
}

fn explain(error: ImportError, arguments: &ImportArguments) -> Failure {
    let (is_finding, hint) = (error.is_finding(), error.hint());
    let failure = Failure::from(error);
    if is_finding { failure.into_findings(&arguments.export, hint) } else { failure.with_hint(hint) }
}

fn show(summary: &ImportSummary, arguments: &ImportArguments) -> Result<(), Failure> {
    let export = &summary.export;
    if arguments.json {
        return print_json(
            "import",
            json!({
                "created": summary.is_created, "ledger": arguments.output, "num_artifacts": export.num_artifacts,
                "num_entries": summary.num_entries, "num_heads": export.num_heads,
                "num_new_entries": summary.num_new_entries, "num_new_heads": summary.num_new_heads,
                "num_unsigned": summary.num_unsigned, "origin": export.head.origin, "root": encode_hex(&export.head.root), "run": export.run,
                "size": export.head.size
            }),
        );
    }
    print(format!("run      {}", export.run))?;
    print(format!(
        "entries  {}, of them {} new",
        count(summary.num_entries),
        count(summary.num_new_entries)
    ))?;
    if summary.num_unsigned > 0 {
        let last = count(summary.num_unsigned);
        print(format!("unsigned {last}, the last ones of the export, which no head is over: not taken"))?;
    }
    print(format!(
        "heads    {}, the newest of the export of {} entries",
        count(export.num_heads),
        count(export.head.size)
    ))?;
    print(format!("root     {}", encode_hex(&export.head.root)))
}
