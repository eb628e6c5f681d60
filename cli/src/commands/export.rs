//! `ledger export`: entries, heads, proofs and artifacts as text, checkable
//! without SQLite.

use std::path::Path;

use ledger::export::{ExportSummary, check, export};
use schemas::digest::encode_hex;
use serde_json::json;

use super::verify_head::trusted_keys;
use crate::arguments::ExportArguments;
use crate::failure::{Failure, OrFail};
use crate::output::{count, print, print_json, say};

pub(crate) fn run(arguments: &ExportArguments) -> Result<u8, Failure> {
    if let (Some(format), Some(ledger)) = (arguments.other.format, &arguments.ledger) {
        return super::export_format::run(arguments, ledger, format);
    }
    if let (Some(folder), Some(trust)) = (&arguments.check, &arguments.trust) {
        let keys = trusted_keys(trust)?;
        let hint = "compare with another copy, or export again";
        let summary =
            check(folder, &keys).map_err(|error| Failure::from(error).into_findings(folder, hint))?;
        show(&summary, folder, arguments.json)?;
        say(format!("Checked {}: every entry is under a head that a trusted key signed.", folder.display()));
        return Ok(0);
    }
    if let (Some(ledger), Some(folder)) = (&arguments.ledger, &arguments.tiles) {
        return super::tiles::run(ledger, folder, arguments.json);
    }
    let (Some(ledger), Some(folder)) = (&arguments.ledger, &arguments.output) else {
        return Err(Failure::new("no ledger is named", "ledger export run.db --output DIR"));
    };
    let summary =
        export(ledger, folder).or_hint("name a ledger that can be read, and a folder that does not exist")?;
    show(&summary, folder, arguments.json)?;
    say(format!("Exported {} to {}.", ledger.display(), folder.display()));
    Ok(0)
}

fn show(summary: &ExportSummary, folder: &Path, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(
            "export",
            json!({
                "folder": folder, "num_artifacts": summary.num_artifacts, "num_entries": summary.num_entries,
                "num_heads": summary.num_heads, "origin": summary.head.origin, "root": encode_hex(&summary.head.root),
                "run": summary.run, "size": summary.head.size
            }),
        );
    }
    print(format!("run      {}", summary.run))?;
    print(format!("entries  {}", count(summary.num_entries)))?;
    print(format!(
        "heads    {}, the newest of {} entries",
        count(summary.num_heads),
        count(summary.head.size)
    ))?;
    print(format!("root     {}", encode_hex(&summary.head.root)))
}
