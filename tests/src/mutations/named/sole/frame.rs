//! `GL0xx` and `GL1xx`: whose the entries are, who stood by, what was frozen, and
//! the files beside it.
//!
//! The rules of form and integrity among them have none: what they would find is
//! made whole again before the audit looks.

use anyhow::{Context, Result, ensure};
use ledger::keys::{self, KeyPair, Role};
use serde_json::json;

use super::edits::{add, contract, other_digest};
use super::{joined, owner, trainer};
use crate::mutations::named::runs::WITNESSED;
use crate::mutations::records::{HANDED_OFF, PLAIN};
use crate::mutations::{Mutation, Record};

/// What witnesses said, beside the ledger.
const COSIGNED: &str = "run.db.cosigned";

/// The validator's report and handoff beside the ledger.
const REPORT: &str = "run.db.report.dsse.json";
const HANDOFF: &str = "run.db.handoff.dsse.json";

pub(super) fn list() -> Vec<Mutation> {
    joined([entries(), frozen(), files()])
}

fn entries() -> Vec<Mutation> {
    vec![
        trainer("GL007", "a step of another kind of ledger", PLAIN, |r| {
            let place = r.at_step("step", 7)?;
            r.set(place, "/ledger", "maintenance")
        }),
        owner("GL011", "a validator of the owner's own making", PLAIN, |r| {
            let own = KeyPair::from_seed(Role::Validator, &[11; 32], keys::host_identity());
            contract(r, "/keys/validator/public", own.public_hex())
        })
        .before_named_keys(),
        trainer("GL013", "a critical extension that nobody knows", PLAIN, |r| {
            let place = r.at_step("step", 7)?;
            let digest = format!("sha256:{}", "4".repeat(64));
            let unknown =
                json!([{"critical": true, "name": "example.org/x", "schema_digest": digest, "value": {}}]);
            r.set(place, "/extensions", unknown)
        }),
        trainer("GL014", "a run whose end no witness saw", WITNESSED, |r| {
            let notes = cosigned(r)?;
            r.write_file(COSIGNED, notes[0].clone().into_bytes());
            Ok(())
        }),
        trainer("GL015", "a run that no witness saw before its first step", WITNESSED, |r| {
            let notes = cosigned(r)?;
            r.write_file(COSIGNED, notes[notes.len() - 1].clone().into_bytes());
            Ok(())
        }),
    ]
}

fn frozen() -> Vec<Mutation> {
    vec![
        owner("GL103", "a nonce that no freeze draws", PLAIN, |r| {
            // Sixteen characters, of which one is no digit: nothing changes its size.
            r.set(0, "/body/obs/nonce", "g123456789abcdef")
        }),
        trainer("GL106", "a freeze that its owner signed no head of", PLAIN, |r| r.leave_head_out(1)),
        owner("GL107", "an edition that nobody has", PLAIN, |r| contract(r, "/ruleset/edition", "2000.1")),
    ]
}

fn files() -> Vec<Mutation> {
    vec![
        trainer("GL108", "another sealed set", PLAIN, |r| {
            let path = r.contract["qualification"]["sealed"]["path"].as_str().context("a path")?.to_owned();
            let mut bytes = r.file(&path)?;
            *bytes.last_mut().context("a sealed set")? ^= 1;
            r.write_file(path, bytes);
            Ok(())
        }),
        trainer("GL110", "a file among a checkpoint's that its manifest does not list", PLAIN, |r| {
            let path = r.checkpoint(10)?.join("notes.txt");
            r.write_file(path, b"what was tried before\n".to_vec());
            Ok(())
        }),
        trainer("GL111", "a record that was rewritten behind its report", HANDED_OFF, |r| {
            r.remove_file(HANDOFF);
            longer_step(r)
        }),
        trainer("GL112", "a record that was rewritten behind its handoff", HANDED_OFF, |r| {
            r.remove_file(REPORT);
            longer_step(r)
        }),
        trainer("GL112", "a handoff on another report", HANDED_OFF, |r| {
            let place = r.first("handoff.issued")?;
            other_digest(r, place, "/body/obs/report")
        }),
    ]
}

/// A step that took longer, by which nothing but the entries' root is another.
fn longer_step(record: &mut Record) -> Result<()> {
    let place = record.at_step("step", 7)?;
    add(record, place, "/body/obs/duration_us", 1)
}

/// The notes of the file of cosigned heads, each with its signatures: at least
/// one of before the training and one of behind it.
fn cosigned(record: &Record) -> Result<Vec<String>> {
    let text = String::from_utf8(record.file(COSIGNED)?)?;
    // An empty line stands between a note and its signatures, and behind them.
    let parts: Vec<&str> = text.trim_end().split("\n\n").collect();
    ensure!(parts.len() >= 4 && parts.len().is_multiple_of(2), "{} parts of notes", parts.len());
    Ok(parts.chunks_exact(2).map(|note| format!("{}\n\n{}\n\n", note[0], note[1])).collect())
}
