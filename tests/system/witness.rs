//! Witnesses by the real programs: what they refuse, what an audit then says,
//! and that a run is followed while it goes on.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;
use system_tests::programs::{self, LEDGER, TRAINER};
use system_tests::run_folder::RunFolder;
use system_tests::witnesses::{NAME, WitnessServer, add, cosigned, expected, frozen, name, table, trained};

#[test]
fn forgeries_are_refused_by_the_witness_or_shown_by_the_audit() -> Result<()> {
    assert_eq!(table()?, expected());
    Ok(())
}

#[test]
fn a_run_without_cosignatures_is_not_accepted() -> Result<()> {
    let (run, server) = frozen()?;
    let _ = run.train().expect_code(0);
    let audited = run.audit(&[]).expect_code(4);
    assert!(audited.stdout.contains("GL014") && audited.stdout.contains("ledger witness add"), "{audited}");
    // Nothing that the audit said made the witness know the run.
    assert_eq!(server.list()["logs"].as_array().map(Vec::len), Some(0));
    Ok(())
}

#[test]
fn what_a_witness_refuses_is_on_its_list() -> Result<()> {
    let (run, mut server) = trained()?;
    let known = &server.list()["logs"][0];
    assert_eq!(known["size"].as_u64(), Some(run.entries().len() as u64));
    let notes = std::fs::read(cosigned(&run))?;
    // Killed and started again, it remembers.
    server.restart()?;
    let again = add(&run, &server, &["--json"]).expect_code(0).json();
    assert_eq!((again["is_known"].as_bool(), again["covers_run_end"].as_bool()), (Some(true), Some(true)));
    assert_eq!(std::fs::read(cosigned(&run))?, notes, "asked twice, one note");
    let twin = run.copy();
    let mut forgery = system_tests::forgery::Forgery::open(&twin.ledger())?;
    let step = forgery.first("step")?;
    step["time_us"] = Value::from(step["time_us"].as_u64().expect("a time") + 1);
    forgery.seal(Some(&ledger::keys::KeyRing::open(&twin.path().join("keys"))?))?;
    add(&twin, &server, &[]).expect_complaint(1, "run.db", &["another history", NAME]);
    let listed = server.list();
    let refused = listed["refused"].as_array().expect("a list");
    assert_eq!(refused.len(), 1, "{refused:#?}");
    assert!(refused[0]["reason"].as_str().is_some_and(|reason| reason.contains("another root")));
    // The same head in one more copy of the state's own words: what was lost is had again.
    let fetched = server.folder().join("fetched");
    let origin = listed["logs"][0]["origin"].as_str().expect("an origin");
    fetch(&format!("{}/cosigned/{origin}", server.url), &fetched)?;
    std::fs::remove_file(cosigned(&run))?;
    let head = fetched.display().to_string();
    let audited = run.audit(&["--cosigned", &head]).expect_code(0);
    assert!(audited.stdout.contains("accepted"), "{audited}");
    Ok(())
}

#[test]
fn what_a_witness_has_and_the_ledger_has_not_is_said() -> Result<()> {
    let (run, server) = trained()?;
    std::fs::remove_file(cosigned(&run))?;
    let again = add(&run, &server, &[]).expect_code(0);
    let url = format!(
        "{}/cosigned/{}",
        server.url,
        server.list()["logs"][0]["origin"].as_str().expect("an origin")
    );
    again.expect_message(&["did not hold it", "--cosigned FILE", &url]);
    // What was lost is had again: the head of before the first step is there.
    let _ = run.audit(&[]).expect_code(4);
    fetch(&url, &cosigned(&run))?;
    let _ = run.audit(&[]).expect_code(0);
    let once_more = add(&run, &server, &[]).expect_code(0);
    assert!(!once_more.stderr.contains("did not hold it"), "{once_more}");

    // A ledger that is behind is told where to look.
    let twin = run.copy();
    let mut forgery = system_tests::forgery::Forgery::open(&twin.ledger())?;
    let kept = forgery.signed_size(forgery.entries.len() - 1)?;
    forgery.entries.truncate(kept);
    forgery.seal(Some(&ledger::keys::KeyRing::open(&twin.path().join("keys"))?))?;
    add(&twin, &server, &[]).expect_complaint(1, "run.db", &["this ledger was cut", &url]);
    Ok(())
}

#[test]
fn a_witness_that_lost_its_state_is_found_by_its_own_cosignature() -> Result<()> {
    let (run, mut server) = frozen()?;
    let _ = add(&run, &server, &[]).expect_code(0);
    server.forget()?;
    let _ = run.train().expect_code(0);
    let notes = std::fs::read(cosigned(&run))?;
    let refused = add(&run, &server, &[]);
    refused.expect_complaint(1, "run.db", &["its state was lost or put back", NAME]);
    assert_eq!(std::fs::read(cosigned(&run))?, notes, "nothing is kept of it");
    Ok(())
}

/// One GET, without a client of the project.
fn fetch(url: &str, to: &std::path::Path) -> Result<()> {
    use std::io::{Read, Write};
    let (host, path) = url.trim_start_matches("http://").split_once('/').expect("a path");
    let mut stream = std::net::TcpStream::connect(host)?;
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    let (_, body) = text.split_once("\r\n\r\n").expect("a body");
    Ok(std::fs::write(to, body)?)
}

#[test]
fn a_run_is_followed_to_its_end() -> Result<()> {
    let run = RunFolder::long(200);
    let server = WitnessServer::start(&run)?;
    name(&run, &server);
    let frozen = run.freeze().expect_code(0);
    frozen.expect_message(&["ledger witness add", NAME, "before the first step"]);
    let arguments = ["witness", "add", "run.db", "--url", &server.url, "--follow", "--interval", "1"];
    let mut follower = programs::command(LEDGER, run.path(), &arguments);
    let mut follower = follower.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while !cosigned(&run).exists() || std::fs::metadata(cosigned(&run))?.len() == 0 {
        assert!(Instant::now() < deadline, "the freeze was not cosigned");
        std::thread::sleep(Duration::from_millis(50));
    }
    let trained = programs::run(TRAINER, run.path(), &["run", "--ledger", "run.db"]).expect_code(0);
    drop(trained);
    let deadline = Instant::now() + Duration::from_secs(60);
    while follower.try_wait()?.is_none() {
        assert!(Instant::now() < deadline, "the follower does not end with the run");
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = follower.wait_with_output()?;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report = run.report();
    assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
    let notes = ledger::head_file::read_all(&cosigned(&run), 1 << 20)?;
    assert!(notes.len() >= 2, "the freeze and the end");
    Ok(())
}

#[test]
fn who_cannot_be_asked_is_said() -> Result<()> {
    let (run, server) = frozen()?;
    let url = server.url.clone();
    let other = RunFolder::frozen();
    let ask = |folder: &RunFolder, further: &[&str]| {
        let arguments = [&["witness", "add", "run.db"], further].concat();
        programs::run(LEDGER, folder.path(), &arguments)
    };
    ask(&other, &["--url", &url]).expect_complaint(2, "run.db", &["names no witness", "--vkey"]);
    // Of keys that the witness does not know: another team's run.
    ask(&other, &["--url", &url, "--vkey", &server.vkey]).expect_complaint(2, "403", &["--trust"]);
    ask(&run, &["--url", &url, "--name", "nobody"]).expect_complaint(2, "nobody", &[NAME]);
    ask(&run, &["--url", "127.0.0.1:1"]).expect_complaint(2, "127.0.0.1:1", &["http"]);
    drop(server);
    ask(&run, &["--url", &url]).expect_complaint(2, &url, &["no answer"]);
    assert!(!cosigned(&run).exists() || std::fs::metadata(cosigned(&run))?.len() == 0);
    Ok(())
}

#[test]
fn proofs_and_tiles_stand_alone() -> Result<()> {
    let (run, server) = trained()?;
    let written =
        run.ledger_command("proof", &["7", "--output", "7.tlog-proof", "--json"]).expect_code(0).json();
    let keys: Vec<String> = written["vkeys"]
        .as_array()
        .expect("keys")
        .iter()
        .map(|key| key.as_str().expect("text").to_owned())
        .collect();
    let folder = tempfile::tempdir()?;
    std::fs::copy(run.path().join("7.tlog-proof"), folder.path().join("proof"))?;
    std::fs::copy(run.path().join("run.db.head"), folder.path().join("head"))?;
    let check = |further: &[&str]| {
        let arguments =
            [&["proof", "--check", "proof", "--vkey", &keys[0], "--vkey", &keys[1]], further].concat();
        programs::run(LEDGER, folder.path(), &arguments)
    };
    let shown = check(&["--vkey", &server.vkey, "--json"]).expect_code(0).json();
    assert_eq!((shown["index"].as_u64(), shown["witnesses"][0]["name"].as_str()), (Some(7), Some(NAME)));
    // Another index, another entry, a key that did not sign.
    let text = std::fs::read_to_string(folder.path().join("proof"))?;
    std::fs::write(folder.path().join("proof"), text.replace("\nindex 7\n", "\nindex 6\n"))?;
    check(&[]).expect_complaint(1, "proof", &["do not lead"]);
    std::fs::write(folder.path().join("proof"), &text)?;
    std::fs::write(folder.path().join("entry"), b"{}")?;
    check(&["--entry", "entry"]).expect_complaint(1, "proof", &["do not lead"]);
    let stranger = server.vkey.replacen("w1", "w2", 1);
    check(&["--vkey", &stranger]).expect_code(2).expect_message(&["--vkey", "hash of name and key"]);
    // That the newest head follows from the freeze's.
    let _ = run.ledger_command("proof", &["--from", "1", "--output", "from-1"]).expect_code(0);
    std::fs::copy(run.path().join("from-1"), folder.path().join("proof"))?;
    let first = ledger::head_file::read_all(&run.path().join("run.db.head"), 1 << 20)?.remove(0);
    std::fs::write(folder.path().join("old"), format!("{first}\n"))?;
    let shown = check(&["--old-head", "old", "--json"]).expect_code(0).json();
    assert_eq!(shown["old_size"].as_u64(), Some(1));
    check(&["--old-head", "head"]).expect_complaint(1, "proof", &["the proof begins at 1"]);
    let tiles = run.ledger_command("export", &["--tiles", "tiles", "--json"]).expect_code(0).json();
    assert_eq!(tiles["size"].as_u64(), Some(run.entries().len() as u64));
    let served = std::fs::read_to_string(run.path().join("tiles/checkpoint"))?;
    assert!(served.contains(NAME), "the cosigned head is served: {served}");
    run.ledger_command("export", &["--tiles", "tiles"]).expect_complaint(2, "tiles", &["exists"]);
    Ok(())
}
