//! `ledger get`: one entry.

use serde_json::Value;

use crate::arguments::GetArguments;
use crate::failure::{Failure, OrFail};
use crate::output::{print, say, write_out};

pub(crate) fn run(arguments: &GetArguments) -> Result<u8, Failure> {
    let reader = super::open_ledger(&arguments.ledger)?;
    let bytes = reader
        .entry_bytes(arguments.index)
        .or_hint(format!("indices begin at 0; `ledger list {}` shows them", arguments.ledger.display()))?;
    if arguments.json {
        let mut line = bytes;
        line.push(b'\n');
        write_out(&line)?;
        return Ok(0);
    }
    let value: Value = serde_json::from_slice(&bytes)
        .or_fail(format!("reading entry {}", arguments.index), "`ledger audit` says what is wrong with it")?;
    print(serde_json::to_string_pretty(&value)?)?;
    let leaf = ledger::tree::leaf_hash(&bytes);
    say(format!("{} bytes, leaf hash {}", bytes.len(), schemas::digest::encode_hex(&leaf)));
    Ok(0)
}
