//! Ledgers on disk that pass and fail each rule which needs raw bytes, or comes
//! before there is a run to look at.
//!
//! `corruption` has many more of them; these are one of each kind by rule, under
//! the names that `ledger rules --coverage` prints.

use std::fs;

use schemas::contract::{Contract, EvidenceProfile};
use schemas::digest::Digest;
use schemas::dsse::REPORT_PAYLOAD_TYPE;
use schemas::entry::Extension;
use schemas::finding::Severity;
use schemas::report::{Report, RuleStatus, Verdict};

use super::attempts::body;
use super::{check_table, evaluation, fields};
use crate::coverage::FIRST_OF_RUNS;
use crate::evidence::ValNumbers;
use crate::fixture::{
    Fixture, RunBuilder, StoredRun, VALIDATOR, WITNESSES, contract_json, cosigned, external_loop, honest_run,
    json, name_witnesses, signed_envelope, signing_key, val_envelope, witness_name,
};
use crate::rules::catalogue;
use crate::{AuditRequest, audit};

/// A ledger and the rule that fails it.
struct Failing {
    code: &'static str,
    name: &'static str,
    report: fn() -> Report,
}

const fn fails(code: &'static str, name: &'static str, report: fn() -> Report) -> Failing {
    Failing { code, name, report }
}

fn damaged(change: impl FnOnce(&mut StoredRun)) -> Report {
    let mut run = StoredRun::new(honest_run());
    change(&mut run);
    run.audit()
}

fn changed(change: impl FnOnce(&mut Fixture)) -> Report {
    let mut fixture = honest_run();
    change(&mut fixture);
    StoredRun::new(fixture).audit()
}

/// The run of an external loop under a contract that was changed before it.
fn external(change: impl FnOnce(&mut Contract) + 'static) -> Report {
    let builder = external_loop().contract(change);
    StoredRun::new(builder.build()).audit()
}

fn sql(statement: &str) -> Report {
    damaged(|run| run.tamper(statement))
}

/// Replaces a text in the stored bytes of one entry, or of all.
fn text(found: &str, other: &str) -> Report {
    sql(&format!(
        "UPDATE entries SET entry = CAST(replace(CAST(entry AS TEXT), '{found}', '{other}') AS BLOB) WHERE seq > 0"
    ))
}

fn trusting(owner_role: u8) -> Report {
    let run = StoredRun::new(honest_run());
    let trust = run.beside("trust.json");
    let owner = schemas::digest::encode_hex(signing_key(owner_role).verifying_key().as_bytes());
    fs::write(&trust, format!("{{\"owner\":\"{owner}\"}}")).expect("writable");
    let request = AuditRequest { ledger: run.path(), trust: Some(trust), ..AuditRequest::default() };
    audit(&request, &mut |_| {}).expect("can look")
}

/// Val numbers beside a ledger, signed by some role.
fn with_numbers(role: u8) -> Report {
    let fixture = evaluation::with_val_numbers(|_| {});
    let envelope = val_numbers(&fixture, role).expect("the fixture has numbers");
    let run = StoredRun::new(fixture);
    fs::write(run.beside("run.db.val.dsse.json"), envelope).expect("writable");
    run.audit()
}

/// The file of a fixture's val numbers, where it has some, signed by some role.
pub(super) fn val_numbers(fixture: &Fixture, role: u8) -> Option<Vec<u8>> {
    let ValNumbers::Signed(results) = &fixture.val_numbers else { return None };
    Some(val_envelope(fixture, results.clone(), role))
}

/// A saved report beside its ledger, signed by some role.
fn with_report(role: u8) -> Report {
    damaged(|run| save_report(run, role))
}

/// Saves the report on a run beside its ledger, signed by some role.
pub(super) fn save_report(run: &StoredRun, role: u8) {
    let envelope = signed_envelope(REPORT_PAYLOAD_TYPE, &json(&run.audit()), role);
    fs::write(run.beside("run.db.report.dsse.json"), envelope).expect("writable");
}

/// A candidate that was handed off at an earlier head of the run.
fn with_handoff(is_root_kept: bool) -> Report {
    let before = StoredRun::new(honest_run()).audit();
    let head = before.head.expect("a head");
    let fixture = evaluation::with_handoff(|halves| {
        halves.obs.size = head.size;
        if is_root_kept {
            halves.obs.root.clone_from(&head.root);
        }
    });
    StoredRun::new(fixture).audit()
}

/// A run under a contract that asks two witnesses for both of their cosignatures.
fn under_witnesses() -> Fixture {
    RunBuilder::new().contract(|contract| name_witnesses(contract, 2, 2)).build()
}

/// Such a ledger with the heads that they cosigned.
fn witnessed(change: impl FnOnce(&mut Vec<String>)) -> Report {
    let run = StoredRun::new(under_witnesses());
    let mut notes = run.all_cosigned(&WITNESSES);
    change(&mut notes);
    run.write_cosigned(&notes);
    run.audit()
}

/// What an audit says of a ledger, by the ledger's name.
type Passing = (&'static str, fn() -> Report);

/// The passing ledgers by name; each is accepted, and a rule passes those in
/// which it looked at something.
static PASSING: &[Passing] = &[
    ("an honest ledger", || damaged(|_| {})),
    ("a ledger with a crash", || StoredRun::new(RunBuilder::new().crash_after_step(5).build()).audit()),
    ("a ledger whose owner the reviewer knows", || trusting(1)),
    ("a ledger with val numbers of the qualifier", || with_numbers(2)),
    ("a ledger with its saved report", || with_report(VALIDATOR)),
    ("a ledger with a handoff", || with_handoff(true)),
    ("a ledger that its witnesses stood by", || witnessed(|_| {})),
    ("a ledger of an external loop", || StoredRun::new(external_loop().build()).audit()),
];

static FAILING: &[Failing] = &[
    fails("GL001", "another table", || sql("CREATE TABLE other (x)")),
    fails("GL002", "a row that is gone", || sql("DELETE FROM entries WHERE seq = 5")),
    fails("GL003", "a number that has another form", || {
        text("\"from_step\":0", "\"from_step\":18446744073709551615")
    }),
    fails("GL004", "a member that is left out", || text(",\"origin\":null", "")),
    fails("GL005", "another leaf hash", || sql("UPDATE entries SET leaf = zeroblob(32) WHERE seq = 6")),
    fails("GL006", "another idempotency key", || {
        sql("UPDATE entries SET idem = randomblob(16) WHERE seq = 6")
    }),
    fails("GL007", "entries of another kind of ledger", || {
        text("\"ledger\":\"run\"", "\"ledger\":\"maintenance\"")
    }),
    fails("GL008", "heads of another run", || sql("UPDATE heads SET note = replace(note, 'run/', 'ran/')")),
    fails("GL009", "an empty head file", || {
        damaged(|run| fs::write(run.beside("run.db.head"), b"").expect("writable"))
    }),
    fails("GL010", "entries behind the last head", || changed_heads(|notes| notes.truncate(notes.len() - 1))),
    fails("GL011", "an owner whom the reviewer does not know", || trusting(9)),
    fails("GL012", "a clock that goes back", || changed(|fixture| fixture.entries[7].time_us -= 1_000_000)),
    fails("GL013", "a critical extension that nobody knows", || {
        let builder = RunBuilder::new().contract(|contract| {
            let (name, schema_digest) = ("example.org/x".to_owned(), Digest::sha256([4; 32]));
            let value = serde_json::json!({});
            contract.extensions.push(Extension { critical: true, name, schema_digest, value });
        });
        StoredRun::new(builder.build()).audit()
    }),
    fails("GL013", "an extension without a name", || {
        let builder = RunBuilder::new().contract(|contract| {
            let (name, schema_digest) = (String::new(), Digest::sha256([4; 32]));
            let value = serde_json::json!({});
            contract.extensions.push(Extension { critical: false, name, schema_digest, value });
        });
        StoredRun::new(builder.build()).audit()
    }),
    fails("GL014", "a quorum that is short of one", || {
        witnessed(|notes| notes.retain(|note| !note.contains(&witness_name(WITNESSES[1]))))
    }),
    fails("GL015", "witnesses who came behind the first step", || {
        witnessed(|notes| _ = notes.drain(..notes.len() - 2))
    }),
    fails("GL016", "a clock that stands before the entries'", || {
        let run = StoredRun::new(under_witnesses());
        let early = |(size, note): &(u64, String)| cosigned(note, WITNESSES[0], run.second_of(*size) - 3600);
        let mut notes: Vec<String> = run.notes.iter().map(early).collect();
        notes.extend(run.all_cosigned(&WITNESSES[1..]));
        run.write_cosigned(&notes);
        run.audit()
    }),
    fails("GL101", "a contract that leaves a null out", || {
        let run = honest_run();
        let mut contract = serde_json::to_value(&run.frozen.contract).expect("serialises");
        let members = contract.as_object_mut().expect("an object");
        members.remove("state_digest_every_steps").expect("it is null");
        fields::stored("an honest ledger", run, &contract_json(&contract)).audit()
    }),
    fails("GL101", "another digest than the contract's", || {
        changed(|fixture| fixture.frozen.contract.name.push('x'))
    }),
    fails("GL102", "a contract that its owner did not sign", || {
        let public = schemas::digest::encode_hex(signing_key(9).verifying_key().as_bytes());
        let builder = RunBuilder::new().contract(|contract| contract.keys.owner.public = public);
        StoredRun::new(builder.build()).audit()
    }),
    fails("GL103", "a nonce that no freeze draws", || {
        sql(
            "UPDATE entries SET entry = CAST(replace(CAST(entry AS TEXT), '\"nonce\":\"0123', '\"nonce\":\"XYZ3') AS BLOB) \
             WHERE seq = 0",
        )
    }),
    fails("GL104", "another policy card", || {
        sql("UPDATE artifacts SET bytes = CAST(replace(bytes, 'adamw', 'adamv') AS BLOB) WHERE rowid = 5")
    }),
    fails("GL105", "a data manifest of an unknown format", || {
        changed(|fixture| fixture.frozen.data.as_mut().expect("a manifest").format.push('x'))
    }),
    fails("GL106", "a run that the owner signed no freeze of", || changed_heads(|notes| _ = notes.remove(0))),
    fails("GL106", "an attempt under another contract", || {
        changed(|f| body!(f, AttemptStart, 0, |h| h.det.contract = Digest::sha256([1; 32])))
    }),
    fails("GL107", "an edition that nobody knows", || {
        let builder = RunBuilder::new().contract(|contract| contract.ruleset.edition.push('x'));
        StoredRun::new(builder.build()).audit()
    }),
    fails("GL107", "a native run of code that is an external loop's", || {
        external(|contract| contract.ruleset.profile = EvidenceProfile::Native)
    }),
    fails("GL107", "an external loop of another digest", || {
        external(|contract| contract.code.digest = Digest::sha256([9; 32]))
    }),
    fails("GL107", "an external loop that does not say so", || {
        external(|contract| _ = contract.nonclaims.pop())
    }),
    fails("GL107", "an external loop under another package", || {
        external(|contract| "trainer".clone_into(&mut contract.code.package))
    }),
    fails("GL104", "an external loop whose file is not stored", || {
        let run = StoredRun::new(external_loop().build());
        run.tamper("DELETE FROM artifacts WHERE rowid = 6");
        run.audit()
    }),
    fails("GL108", "another val shard", || {
        damaged(|run| fs::write(run.beside("data/val-0.txt"), b"x").expect("writable"))
    }),
    fails("GL109", "val numbers that the trainer signed", || with_numbers(3)),
    fails("GL110", "a checkpoint without its weights", || {
        damaged(|run| {
            let weights = "checkpoints/s00000004-a1/model.safetensors";
            fs::remove_file(run.beside(weights)).expect("a file");
        })
    }),
    fails("GL111", "a report that the trainer signed", || with_report(3)),
    fails("GL112", "a handoff of other entries", || with_handoff(false)),
];

/// The same entries under other heads, in database and head file.
fn changed_heads(change: impl FnOnce(&mut Vec<(u64, String)>)) -> Report {
    damaged(|run| {
        change(&mut run.notes);
        let kept: Vec<String> = run.notes.iter().map(|(size, _)| size.to_string()).collect();
        run.tamper(&format!("DELETE FROM heads WHERE size NOT IN ({})", kept.join(", ")));
        run.write_heads();
    })
}

#[test]
fn every_rule_over_bytes_has_a_ledger_that_passes_and_one_that_fails() {
    let mut table = Vec::new();
    for (name, report) in PASSING {
        let report = report();
        assert_eq!(report.verdict, Verdict::Accepted, "{name}: {:#?}", report.findings);
        let passed = report.rules.iter().filter(|rule| rule.code.as_str() < FIRST_OF_RUNS);
        for rule in passed.filter(|rule| rule.status == RuleStatus::Passed && rule.num_checked > 0) {
            table.push(format!("{}\tpasses\t{name}\n", rule.code));
        }
    }
    for Failing { code, name, report } in FAILING {
        let report = report();
        let is_told = |severity| {
            report.findings.iter().any(|finding| finding.code == *code && finding.severity == severity)
        };
        // Clocks that contradict are suspicious and change no verdict.
        let is_warning = matches!(*code, "GL012" | "GL016");
        assert!(
            is_told(if is_warning { Severity::Warning } else { Severity::Error }),
            "{code} does not see {name}: {:#?}",
            report.findings
        );
        assert_eq!(report.verdict == Verdict::Accepted, is_warning, "{name}");
        table.push(format!("{code}\tfails\t{name}\n"));
    }
    for info in catalogue().iter().filter(|info| info.code < FIRST_OF_RUNS) {
        for word in ["passes", "fails"] {
            let start = format!("{}\t{word}\t", info.code);
            assert!(table.iter().any(|line| line.starts_with(&start)), "{} lacks one that {word}", info.code);
        }
    }
    table.sort();
    check_table("ledgers.txt", &table.concat());
}
