//! Val numbers and qualification on a run with real files, ledger and keys.

mod common;
#[path = "common/run.rs"]
mod run;

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use evaluator::forward::{Decoder, score};
use evaluator::{
    EvaluateError, QualificationPredicate, QualifyOutcome, QualifyRequest, ValRequest, qualification_run_id,
    qualify, val, windows,
};
use ledger::keys::{KeyRing, Role};
use ledger::reader::Reader;
use run::{
    CONTEXT, Deviation, Fixture, blake3_of, candidate_bytes, candidate_id, checkpoint_folder, shape, subject,
};
use schemas::body::{Body, Kind};
use schemas::digest::Digest;
use schemas::dsse::{IN_TOTO_PAYLOAD_TYPE, QUALIFICATION_PREDICATE_TYPE, Statement, VAL_PREDICATE_TYPE};
use validator::ed25519::PublicKey;
use validator::val_numbers::ValPredicate;

fn val_request(fixture: &Fixture) -> ValRequest {
    ValRequest {
        keys: Some(fixture.keys.clone()),
        ledger: fixture.ledger(),
        num_threads: 2,
        ..ValRequest::default()
    }
}

fn qualify_request(fixture: &Fixture) -> QualifyRequest {
    QualifyRequest {
        handoff: fixture.handoff_path(),
        keys: Some(fixture.keys.clone()),
        ledger: fixture.ledger(),
        num_threads: 2,
        ..QualifyRequest::default()
    }
}

fn run_qualify(fixture: &Fixture) -> Result<QualifyOutcome, EvaluateError> {
    qualify(&qualify_request(fixture), &|_| {})
}

fn kinds(fixture: &Fixture) -> Result<Vec<Kind>> {
    let path = fixture.folder().join("qualification.db");
    if !path.exists() {
        return Ok(Vec::new());
    }
    Reader::open(&path)?.entries(0).map(|entry| Ok(entry?.body.kind())).collect()
}

/// Qualification must fail with exit code 1 and a message that names `part`,
/// and nothing may have been opened.
fn refused(fixture: &Fixture, request: &QualifyRequest, part: &str) -> Result<()> {
    let error = qualify(request, &|_| {}).err().with_context(|| format!("{part}: it was not refused"))?;
    assert_eq!(error.exit_code(), 1, "{part}: {error}");
    assert!(error.to_string().contains(part), "{part:?} is not in {error}");
    assert!(!kinds(fixture)?.contains(&Kind::QualificationOpened), "{part}: the set was opened");
    Ok(())
}

fn payload(path: &std::path::Path, public: &str) -> Result<Vec<u8>> {
    let key = PublicKey::from_hex(public)?;
    Ok(validator::dsse::verify(&fs::read(path)?, IN_TOTO_PAYLOAD_TYPE, &key)?)
}

#[test]
fn val_recomputes_every_candidate_and_signs() -> Result<()> {
    let fixture = Fixture::new(&Deviation::default())?;
    let outcome = val(&val_request(&fixture), &|_| {})?;
    let steps: Vec<u64> = outcome.results.iter().map(|result| result.numbers.step).collect();
    assert_eq!(steps, [5, 10]);
    let text = fs::read(fixture.folder().join("data/shards/val-000.txt"))?;
    let first: Vec<&[u8]> = windows(&text, CONTEXT as usize).take(7).collect();
    for result in &outcome.results {
        let model = candidate_bytes(result.numbers.step);
        let decoder = Decoder::from_bytes(&common::config_json(&shape()), &model)?;
        let expected = score(&decoder, &first, 1, &|_| {});
        assert_eq!(result.numbers.total_nats.0.to_bits(), expected.total_nats.to_bits());
        assert_eq!((result.numbers.num_examples, result.numbers.num_tokens), (7, 7 * 32));
        assert_eq!(result.numbers.model, blake3_of(&model));
        assert!((result.numbers.value.0 - expected.bits_per_byte()).abs() < 1e-15);
    }
    assert_ne!(outcome.results[0].numbers.value, outcome.results[1].numbers.value);

    let payload =
        payload(&fixture.folder().join("run.db.val.dsse.json"), &fixture.contract.keys.qualifier.public)?;
    let statement: Statement<ValPredicate> = serde_json::from_slice(&payload)?;
    assert_eq!(statement.predicate_type, VAL_PREDICATE_TYPE);
    assert_eq!(statement.predicate.contract, fixture.handoff.contract);
    assert_eq!(statement.predicate.run, fixture.handoff.run);
    let numbers: Vec<_> = outcome.results.iter().map(|result| result.numbers.clone()).collect();
    assert_eq!(statement.predicate.results, numbers);
    let expected = [5, 10].map(|step| {
        subject(&format!("{}/model.safetensors", checkpoint_folder(step)), &candidate_bytes(step))
    });
    assert_eq!(statement.subject, expected);
    assert_eq!(kinds(&fixture)?, [Kind::QualificationVal, Kind::QualificationVal]);
    let own = Reader::open(&fixture.folder().join("qualification.db"))?;
    assert_eq!(own.identity()?.1, qualification_run_id(&fixture.handoff.contract));

    // A second time gives the same numbers and keeps the first entries.
    let again = val(&ValRequest { num_threads: 1, ..val_request(&fixture) }, &|_| {})?;
    assert_eq!(again.results[1].numbers, outcome.results[1].numbers);
    assert_eq!(kinds(&fixture)?.len(), 4);
    Ok(())
}

#[test]
fn val_refuses_what_is_not_what_was_frozen() -> Result<()> {
    let fixture = Fixture::new(&Deviation::default())?;
    let check = |part: &str| -> Result<()> {
        let error =
            val(&val_request(&fixture), &|_| {}).err().with_context(|| format!("{part}: not refused"))?;
        assert_eq!(error.exit_code(), 1, "{error}");
        assert!(error.to_string().contains(part), "{part:?} is not in {error}");
        assert!(!fixture.folder().join("run.db.val.dsse.json").exists());
        Ok(())
    };
    let shard = fixture.folder().join("data/shards/val-000.txt");
    let honest = fs::read(&shard)?;
    fs::write(&shard, [&honest[..honest.len() - 1], b"!"].concat())?;
    check("val-000.txt")?;
    fs::write(&shard, honest)?;
    let model = fixture.folder().join(checkpoint_folder(5)).join("model.safetensors");
    fs::write(&model, candidate_bytes(6))?;
    check("model.safetensors")?;
    fs::write(&model, candidate_bytes(5))?;
    let config = fixture.folder().join(checkpoint_folder(10)).join("config.json");
    fs::write(&config, b"{}")?;
    check("config.json")
}

#[test]
fn a_candidate_is_qualified_once_and_the_result_is_signed() -> Result<()> {
    let fixture = Fixture::new(&Deviation::default())?;
    let outcome = run_qualify(&fixture)?;
    let text = fs::read(fixture.root.path().join("qualification.txt"))?;
    let decoder = Decoder::from_bytes(&common::config_json(&shape()), &candidate_bytes(10))?;
    let all: Vec<&[u8]> = windows(&text, CONTEXT as usize).collect();
    let expected = score(&decoder, &all, 1, &|_| {});
    let result = &outcome.predicate.result;
    assert_eq!(result.total_nats.0.to_bits(), expected.total_nats.to_bits());
    assert_eq!(result.num_tokens, text.len() as u64 - 1);
    assert_eq!(result.plaintext, blake3_of(&text));
    assert_eq!(result.handoff, blake3_of(&fs::read(fixture.handoff_path())?));
    let overlap = result.overlap.as_ref().context("train and val are at hand")?;
    assert!(overlap.num_spans > 100 && overlap.num_shared < overlap.num_spans / 10, "{overlap:?}");
    assert_eq!(outcome.predicate.num_earlier_openings, 0);
    assert_eq!(outcome.predicate.independence.status, "not established");
    assert!(outcome.predicate.nonclaims.starts_with(&fixture.contract.nonclaims));
    assert_eq!(kinds(&fixture)?, [Kind::QualificationOpened, Kind::QualificationResult]);

    let output = fixture.folder().join("qualification.db.result.dsse.json");
    let payload = payload(&output, &fixture.contract.keys.qualifier.public)?;
    let statement: Statement<QualificationPredicate> = serde_json::from_slice(&payload)?;
    assert_eq!(statement.predicate_type, QUALIFICATION_PREDICATE_TYPE);
    assert_eq!(statement.predicate, outcome.predicate);
    assert_eq!(statement.subject, fixture.subjects);
    let own = Reader::open(&fixture.folder().join("qualification.db"))?;
    assert_eq!(outcome.predicate.head.size, own.num_entries());
    let Body::QualificationResult(body) = own.entry(1)?.body else { anyhow::bail!("entry 1 is the result") };
    assert_eq!(&body.det, result);
    Ok(())
}

#[test]
fn a_second_opening_is_recorded_as_such_and_replaces_nothing() -> Result<()> {
    let fixture = Fixture::new(&Deviation::default())?;
    run_qualify(&fixture)?;
    let output = fixture.folder().join("qualification.db.result.dsse.json");
    let first = fs::read(&output)?;
    let request = QualifyRequest { output: Some(output.clone()), ..qualify_request(&fixture) };
    let error = qualify(&request, &|_| {}).expect_err("the first result stays");
    assert_eq!(error.exit_code(), 1, "{error}");
    assert_eq!(kinds(&fixture)?.len(), 2, "and nothing was opened for it");
    let second = run_qualify(&fixture)?;
    assert_eq!(second.predicate.num_earlier_openings, 1);
    assert_eq!(second.output, fixture.folder().join("qualification.db.result-2.dsse.json"));
    assert_eq!(fs::read(&output)?, first);
    let own = Reader::open(&fixture.folder().join("qualification.db"))?;
    let Body::QualificationOpened(body) = own.entry(2)?.body else { anyhow::bail!("entry 2 is the opening") };
    assert_eq!(body.obs.num_earlier_openings, 1);
    Ok(())
}

#[test]
fn without_train_text_overlap_is_not_measured_and_said_so() -> Result<()> {
    let fixture = Fixture::new(&Deviation { other_host: true, ..Deviation::default() })?;
    fs::remove_file(fixture.folder().join("data/shards/train-000.txt"))?;
    let outcome = run_qualify(&fixture)?;
    assert_eq!(outcome.predicate.result.overlap, None);
    assert!(outcome.overlap_not_measured.context("a reason")?.contains("train-000.txt"));
    assert_eq!(outcome.predicate.independence.status, "declared");
    Ok(())
}

#[test]
fn a_wrong_key_opens_nothing() -> Result<()> {
    let fixture = Fixture::new(&Deviation::default())?;
    let other = fixture.root.path().join("other-keys");
    KeyRing::generate(&other, Role::Qualifier)?;
    let request = QualifyRequest { keys: Some(other.clone()), ..qualify_request(&fixture) };
    refused(&fixture, &request, "the qualifier's public key")?;
    // The right signing key with somebody else's identity.
    let identity = fixture.keys.join(evaluator::IDENTITY_NAME);
    fs::write(&identity, corpus::seal::generate_identity().identity_file)?;
    refused(&fixture, &qualify_request(&fixture), "the recipient of the identity file")?;
    run::set_mode(&identity, 0o644)?;
    let error = run_qualify(&fixture).expect_err("others can read it");
    assert!(error.to_string().contains("chmod 600"), "{error}");
    assert_eq!(error.exit_code(), 2);
    Ok(())
}

#[test]
fn without_a_handoff_the_hint_is_to_make_one() -> Result<()> {
    let fixture = Fixture::new(&Deviation::default())?;
    fs::remove_file(fixture.handoff_path())?;
    let error = run_qualify(&fixture).expect_err("there is no handoff");
    assert_eq!(error.exit_code(), 2);
    let expected = format!("there is no handoff at {}", fixture.handoff_path().display());
    assert_eq!(error.to_string(), expected);
    let command = format!("run `ledger handoff {}`", fixture.ledger().display());
    assert!(error.hint().starts_with(&command), "{}", error.hint());
    assert!(!kinds(&fixture)?.contains(&Kind::QualificationOpened), "the set was opened");
    Ok(())
}

#[test]
fn a_handoff_that_is_not_the_runs_own_opens_nothing() -> Result<()> {
    let mut fixture = Fixture::new(&Deviation::default())?;
    let validator = fixture.key(Role::Validator)?;
    fixture.write_handoff(&fixture.key(Role::Owner)?)?;
    refused(&fixture, &qualify_request(&fixture), "validator key")?;
    fixture.write_handoff(&validator)?;
    let honest = fs::read(fixture.handoff_path())?;
    let middle = honest.len() / 2;
    let mut tampered = honest;
    tampered[middle] = if tampered[middle] == b'A' { b'B' } else { b'A' };
    fs::write(fixture.handoff_path(), &tampered)?;
    refused(&fixture, &qualify_request(&fixture), "handoff")?;
    fs::write(fixture.handoff_path(), b"{}")?;
    refused(&fixture, &qualify_request(&fixture), "handoff")?;

    // Everything below is signed by the right key.
    let (predicate, subjects) = (fixture.handoff.clone(), fixture.subjects.clone());
    let mut change = |edit: &dyn Fn(&mut Fixture), part: &str| -> Result<()> {
        fixture.handoff = predicate.clone();
        fixture.subjects = subjects.clone();
        edit(&mut fixture);
        fixture.write_handoff(&validator)?;
        refused(&fixture, &qualify_request(&fixture), part)
    };
    change(&|f| f.handoff.candidate = candidate_id(5), "names candidate")?;
    change(&|f| f.handoff.step = 5, "names candidate")?;
    change(&|f| f.handoff.contract = Digest::sha256([9; 32]), "under contract")?;
    change(&|f| f.handoff.run = "another".into(), "it is of run another")?;
    change(&|f| f.handoff.head.root = "00".repeat(32), "no signed head")?;
    change(&|f| f.handoff.head.size = 3, "no signed head")?;
    change(&|f| f.handoff.head.origin = "x".to_owned(), "its head")?;
    change(&|f| f.handoff.report = blake3_of(b"another report"), "no handoff.issued entry")?;
    change(&|f| f.subjects = vec![f.subjects[0].clone()], "subjects")?;
    let other = subject(&format!("{}/model.safetensors", checkpoint_folder(5)), &candidate_bytes(5));
    change(&|f| f.subjects[0] = other.clone(), "model.safetensors")?;
    change(&|_| {}, "not refused").expect_err("the honest one is not refused");
    Ok(())
}

#[test]
fn a_ledger_without_the_handoff_opens_nothing() -> Result<()> {
    let fixture = Fixture::new(&Deviation { no_handoff_entry: true, ..Deviation::default() })?;
    refused(&fixture, &qualify_request(&fixture), "no handoff.issued entry")
}

#[test]
fn a_ledger_that_was_changed_or_cut_opens_nothing() -> Result<()> {
    let fixture = Fixture::new(&Deviation::default())?;
    let (path, honest) = (fixture.ledger(), fs::read(fixture.ledger())?);
    let entry = b"\"num_candidates\":2";
    let at =
        honest.windows(entry.len()).position(|bytes| bytes == entry).context("the entry is in the file")?;
    let mut changed = honest.clone();
    changed[at + entry.len() - 1] = b'3';
    fs::write(&path, &changed)?;
    refused(&fixture, &qualify_request(&fixture), "does not match its signed heads")?;
    fs::write(&path, &honest)?;
    // A head of more entries than are stored, as after a rollback.
    let head = fixture.folder().join("run.db.head");
    let key = fixture.key(Role::Trainer)?;
    let origin = format!("governed-ledger/run/{}", fixture.handoff.run);
    let ahead = ledger::note::TreeHead { origin, size: 1_000, root: [7; 32] }.sign(&key);
    let notes = fs::read(&head)?;
    fs::write(&head, [&notes[..], ahead.as_bytes(), b"\n"].concat())?;
    refused(&fixture, &qualify_request(&fixture), "a signed head says 1000")?;
    fs::write(&head, &notes)?;
    assert_eq!(run_qualify(&fixture)?.predicate.num_earlier_openings, 0);
    Ok(())
}

#[test]
fn changed_files_open_nothing() -> Result<()> {
    let fixture = Fixture::new(&Deviation::default())?;
    let sealed = fixture.folder().join("qualification.age");
    let honest = fs::read(&sealed)?;
    let mut changed = honest.clone();
    *changed.last_mut().context("it has bytes")? ^= 1;
    fs::write(&sealed, &changed)?;
    refused(&fixture, &qualify_request(&fixture), "qualification.age")?;
    fs::write(&sealed, [&honest[..], b"more"].concat())?;
    refused(&fixture, &qualify_request(&fixture), "qualification.age")?;
    let elsewhere = fixture.root.path().join("elsewhere.age");
    fs::write(&elsewhere, &honest)?;
    let model = fixture.folder().join(checkpoint_folder(10)).join("model.safetensors");
    fs::write(&model, candidate_bytes(11))?;
    let request = QualifyRequest { sealed: Some(elsewhere.clone()), ..qualify_request(&fixture) };
    refused(&fixture, &request, "model.safetensors")?;
    fs::write(&model, candidate_bytes(10))?;
    let train = fixture.folder().join("data/shards/train-000.txt");
    let text = fs::read(&train)?;
    fs::write(&train, b"another text")?;
    refused(&fixture, &request, "train-000.txt")?;
    fs::write(&train, text)?;
    assert_eq!(qualify(&request, &|_| {})?.predicate.num_earlier_openings, 0);
    Ok(())
}

#[test]
fn a_set_that_is_not_the_frozen_one_leaves_an_opening_and_no_result() -> Result<()> {
    let fixture = Fixture::new(&Deviation { other_plaintext: true, ..Deviation::default() })?;
    let error = run_qualify(&fixture).expect_err("another plaintext");
    assert_eq!(error.exit_code(), 1);
    assert!(error.to_string().contains("the opened set has digest"), "{error}");
    assert_eq!(kinds(&fixture)?, [Kind::QualificationOpened, Kind::Anomaly]);
    assert!(!fixture.folder().join("qualification.db.result.dsse.json").exists());

    let fixture = Fixture::new(&Deviation { other_recipient: true, ..Deviation::default() })?;
    let error = run_qualify(&fixture).expect_err("sealed to somebody else");
    assert_eq!(error.exit_code(), 1);
    assert_eq!(kinds(&fixture)?, [Kind::QualificationOpened, Kind::Anomaly]);
    Ok(())
}

#[test]
fn the_program_prints_json_and_keeps_its_exit_codes() -> Result<()> {
    let fixture = Fixture::new(&Deviation::default())?;
    let evaluator = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_evaluator"))
            .args(arguments)
            .args(["--keys", &fixture.keys.to_string_lossy(), "--json"])
            .output()
    };
    let (ledger, handoff) = (fixture.ledger(), fixture.handoff_path());
    let (ledger, handoff) = (ledger.to_string_lossy(), handoff.to_string_lossy());
    let output = evaluator(&["val", "--ledger", &ledger])?;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(value["results"].as_array().map(Vec::len), Some(2));
    let qualify = ["qualify", "--ledger", &ledger, "--handoff", &handoff];
    let output = evaluator(&qualify)?;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    assert!(value["predicate"]["result"]["value"].as_f64().is_some());
    // The second one finds the handoff by its default name.
    let output = evaluator(&qualify[..3])?;
    assert!(String::from_utf8_lossy(&output.stderr).contains("opened 1 time(s) before"));
    let output = evaluator(&["val", "--ledger", "/nowhere/run.db"])?;
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/run.db"));
    fs::write(fixture.handoff_path(), b"{}")?;
    assert_eq!(evaluator(&qualify)?.status.code(), Some(1));
    Ok(())
}
