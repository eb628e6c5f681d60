//! The reviewer's pages over a real run: in a real browser, as they are sent
//! (what a browser without scripts shows), and as JSON. A screenshot is kept in
//! the target folder.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ledger::keys::{KeyPair, KeyRing, Role};
use ledger::reader::Reader;
use ledger::recorder::{Record, Recorder};
use schemas::body::{AmendmentDet, Body, Halves, Nothing};
use schemas::digest::Digest;
use schemas::dsse::{Envelope, REPORT_PAYLOAD_TYPE};
use schemas::report::{AuditedBefore, Report, Verdict};
use serde_json::Value;
use system_tests::programs::{self, LEDGER};
use system_tests::run_folder::RunFolder;

/// Where a saved report lies.
const REPORT: &str = "run.db.report.dsse.json";

/// What the list of runs says of a report that is not this ledger's.
const UNUSABLE: &str = "stored report is not usable";

/// What every answer has to say: nothing inline, nothing from elsewhere, no
/// frames, no forms away; no guessing of types, no address handed on.
const HEADERS: [&str; 4] = [
    "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'",
    "x-content-type-options: nosniff",
    "referrer-policy: no-referrer",
    "cross-origin-resource-policy: same-origin",
];

/// A server that ends with the test.
struct Server {
    address: String,
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(folder: &Path) -> Server {
    let arguments = ["serve", "run.db", "--listen", "127.0.0.1:0"];
    let mut command = programs::command(LEDGER, folder, &arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the server starts");
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).expect("the server prints its address");
    let address = line.trim().trim_end_matches('/').to_owned();
    assert!(address.starts_with("http://127.0.0.1:"), "an address on loopback, not {address:?}");
    Server { address, child }
}

fn chromium(arguments: &[&str]) -> Vec<u8> {
    let profile = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("chromium is installed (scripts/test installs it)");
    assert!(output.status.success(), "chromium failed: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The page as the browser holds it after its scripts ran.
fn dom(address: &str) -> String {
    let bytes = chromium(&["--virtual-time-budget=8000", "--dump-dom", address]);
    String::from_utf8(bytes).expect("a page is UTF-8")
}

fn screenshot(address: &str, name: &str) -> PathBuf {
    let folder = programs::program(LEDGER).with_file_name("screenshots");
    std::fs::create_dir_all(&folder).expect("a folder for screenshots");
    let file = folder.join(name);
    let _ = std::fs::remove_file(&file);
    let option = format!("--screenshot={}", file.display());
    chromium(&[&option, "--window-size=1200,2400", "--virtual-time-budget=8000", address]);
    file
}

/// A plain GET without a client library: status line and headers, then body.
fn get(address: &str, path: &str, host: Option<&str>) -> (String, String) {
    use std::io::{Read, Write};
    let authority = address.trim_start_matches("http://");
    let mut stream = std::net::TcpStream::connect(authority).expect("the server listens");
    let host = host.unwrap_or(authority);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("headers, then a body");
    (head.to_owned(), body.to_owned())
}

/// An answer in JSON, under its own type.
#[track_caller]
fn get_json(server: &Server, path: &str) -> Value {
    let (head, body) = get(&server.address, path, None);
    assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
    assert!(head.to_lowercase().contains("\r\ncontent-type: application/json"), "{path}: {head}");
    match serde_json::from_str(&body) {
        Ok(value) => value,
        Err(error) => panic!("{path} is not JSON: {error}\n{body}"),
    }
}

/// What a twin says is what the ledger and the stored report hold.
#[test]
fn every_page_has_a_json_twin_of_what_it_shows() {
    let folder = RunFolder::trained();
    let _ = folder.audit(&["--save"]).expect_code(0);
    let (entries, report) = (folder.entries(), folder.report());
    let server = serve(folder.path());
    let run = entries[0]["run"].as_str().expect("an entry names its run");

    let page = get_json(&server, &format!("/runs/{run}.json"));
    assert_eq!(page["schema_version"], 1);
    assert_eq!((&page["status"], &page["summary"]["run"]), (&"ended: completed".into(), &run.into()));
    assert_eq!(page["summary"]["num_entries"], entries.len());
    let frozen = entries[0]["body"]["det"]["contract"].as_str().expect("entry 0 holds the contract");
    let frozen: Value = serde_json::from_str(frozen).expect("a contract is JSON");
    for member in ["name", "purpose", "seeds", "data", "keys", "nonclaims"] {
        assert_eq!(page["contract"][member], frozen[member], "{member}");
    }
    assert_eq!(page["report"]["status"], "signed");
    for member in ["verdict", "run", "contract", "num_entries", "selected"] {
        assert_eq!(page["report"]["report"][member], report[member], "{member}");
    }

    let list = get_json(&server, &format!("/runs/{run}/entries.json"));
    assert_eq!((&list["run"], &list["from"]), (&run.into(), &0.into()));
    assert_eq!(list["num_entries"], entries.len());
    let lines = list["entries"].as_array().expect("a list");
    assert!(!lines.is_empty() && lines.len() == entries.len().min(100), "{} lines", lines.len());
    for (line, entry) in lines.iter().zip(&entries) {
        for member in ["attempt", "index", "kind", "step", "time_us"] {
            assert_eq!(line[member], entry[member], "{member} of {entry:#}");
        }
    }
    let rest = get_json(&server, &format!("/runs/{run}/entries.json?from=7"));
    assert_eq!((&rest["from"], &rest["entries"][0]["index"]), (&7.into(), &7.into()));

    let curves = get_json(&server, &format!("/runs/{run}/series.json"));
    let curve = |name: &str| {
        let curves = curves["series"].as_array().expect("a list of curves");
        curves.iter().find(|curve| curve["name"] == name).cloned().unwrap_or_default()
    };
    let recorded = |kind: &str, pointer: &str| {
        let of_kind = entries.iter().filter(|entry| entry["kind"] == kind);
        let points = of_kind.map(|entry| (entry["step"].clone(), entry.pointer(pointer).cloned()));
        let (steps, values): (Vec<Value>, Vec<Option<Value>>) = points.unzip();
        let values = values.into_iter().map(|value| value.expect("it is recorded")).collect::<Vec<Value>>();
        assert!(!steps.is_empty(), "no {kind} is on record");
        (Value::from(steps), Value::from(values))
    };
    for (name, kind, pointer) in [
        ("loss", "step", "/body/det/credit/backpropagation/loss"),
        ("gradient_norm", "step", "/body/det/credit/backpropagation/gradient_norm"),
        ("eval:val", "eval", "/body/det/value"),
    ] {
        let curve = curve(name);
        assert_eq!((curve["steps"].clone(), curve["values"].clone()), recorded(kind, pointer), "{name}");
    }
}

/// Pages, twins, assets and refusals alike.
#[test]
fn every_answer_has_the_whole_policy() {
    let folder = RunFolder::trained();
    let server = serve(folder.path());
    let run = folder.entries()[0]["run"].as_str().expect("an entry names its run").to_owned();
    let pages = ["", "/entries", "/entries/0"].map(|page| format!("/runs/{run}{page}"));
    let twins = pages.iter().map(|page| format!("{page}.json"));
    let series = format!("/runs/{run}/series.json");
    let paths =
        ["/", "/runs.json", "/assets/charts.js", "/assets/style.css", "/none-such", "/runs/none-such"];
    let paths =
        paths.into_iter().map(str::to_owned).chain(pages.iter().cloned()).chain(twins).chain([series]);
    let refused = ("/".to_owned(), Some("ledger.example"));
    for (path, host) in paths.map(|path| (path, None)).chain([refused]) {
        let (head, body) = get(&server.address, &path, host);
        let expected = match path.as_str() {
            _ if host.is_some() => 403,
            "/none-such" | "/runs/none-such" => 404,
            _ => 200,
        };
        assert!(head.starts_with(&format!("HTTP/1.1 {expected} ")), "{path}: {head}");
        for header in HEADERS {
            let name = header.split_once(':').map_or(header, |(name, _)| name);
            let found: Vec<&str> =
                head.lines().filter(|line| line.to_lowercase().starts_with(&format!("{name}:"))).collect();
            assert_eq!(found, [header], "{path}");
        }
        if body.starts_with("<!DOCTYPE html>") {
            assert!(!body.contains(" style="), "{path} has a style that its policy forbids");
            assert_eq!(
                body.matches("<script").count(),
                body.matches("<script src=\"/assets/").count(),
                "{path}"
            );
            assert!(!body.contains("<style"), "{path} has a style that its policy forbids");
        }
    }
}

/// A finding that a fault family explains names it, on the run's page and on that
/// of the entry.
#[test]
fn the_cause_of_a_finding_is_shown() {
    let folder = RunFolder::tiny();
    folder.edit_contract(|contract| {
        contract["faults"]["plan"] = serde_json::json!([
            {"fault": "worker_loss", "phase": "before_forward", "seed": "1", "step": 3, "worker": null},
        ]);
    });
    let _ = folder.freeze().expect_code(0);
    let _ = folder.train().expect_code(128 + 9);
    let _ = folder.train().expect_code(0);
    let _ = folder.audit(&["--save"]).expect_code(0);
    let findings = folder.report()["findings"].clone();
    let stopped = findings.as_array().into_iter().flatten().find(|finding| finding["code"] == "GL230");
    let stopped = stopped.expect("the attempt that was killed is noted");
    assert_eq!(stopped["cause"], "worker_loss");

    let server = serve(folder.path());
    let (_, body) = get(&server.address, "/runs.json", None);
    let runs: Value = serde_json::from_str(&body).expect("the list has a JSON twin");
    let run = runs["runs"][0]["run"].as_str().expect("one run is served");
    let (_, page) = get(&server.address, &format!("/runs/{run}"), None);
    assert!(page.contains("cause: worker_loss"), "{page}");
    let (_, page) = get(&server.address, &format!("/runs/{run}/entries/{}", stopped["entry"]), None);
    assert!(page.contains("Cause: worker_loss"), "{page}");
}

#[test]
fn a_reviewer_reads_a_run_in_a_browser() {
    let folder = RunFolder::trained();
    let _ = folder.audit(&["--save"]).expect_code(0);
    let server = serve(folder.path());
    let (_, body) = get(&server.address, "/runs.json", None);
    let runs: Value = serde_json::from_str(&body).expect("the list has a JSON twin");
    let run = runs["runs"][0]["run"].as_str().expect("one run is served").to_owned();
    assert_eq!(runs["runs"][0]["verdict"], "accepted");
    let page = format!("{}/runs/{run}", server.address);

    // With scripts, uPlot draws; what the server sends has the charts already.
    let scripted = dom(&page);
    assert!(scripted.contains("data-drawn=\"true\""), "the charts were drawn");
    assert!(scripted.contains("<canvas"), "uPlot draws on a canvas");
    assert!(!scripted.contains("<svg class=\"plot\""), "and takes the place of the drawn charts");
    let (_, plain) = get(&server.address, &format!("/runs/{run}"), None);
    assert!(plain.contains("<svg class=\"plot\""), "the drawn charts are there");
    for text in [&scripted, &plain] {
        assert!(text.contains("verdict-accepted"), "the stored verdict is shown");
        assert!(text.contains("What the run does not show"), "nonclaims are shown");
        assert!(text.contains("selected"), "the selected candidate is marked");
        assert!(text.contains("two-ledgers/one-freeze-run-twice"), "what the audit could not show is said");
    }

    // The twin of the entry page is the stored bytes.
    let first = folder.entries().into_iter().next().expect("a ledger has entries");
    let (_, body) = get(&server.address, &format!("/runs/{run}/entries/0.json"), None);
    assert_eq!(serde_json::from_str::<Value>(&body).expect("an entry is JSON"), first);
    let entry = dom(&format!("{page}/entries/0"));
    assert!(entry.contains("contract.frozen"));

    let file = screenshot(&page, "run-page.png");
    let size = std::fs::metadata(&file).expect("a screenshot was written").len();
    assert!(size > 20_000, "a screenshot of {size} bytes shows nothing");
}

#[test]
fn the_server_reads_only_from_loopback_names() {
    let folder = RunFolder::frozen();
    let server = serve(folder.path());
    let (head, _) = get(&server.address, "/", None);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let head = head.to_lowercase();
    assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self'"), "{head}");
    assert!(!head.contains("unsafe"), "{head}");
    let (head, _) = get(&server.address, "/", Some("ledger.example"));
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    let (head, body) = get(&server.address, "/runs/none-such", None);
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    assert!(body.contains("no ledger here holds the run none-such"), "{body}");
    let before = std::fs::read(folder.ledger()).expect("the ledger can be read");
    let _ = get(&server.address, "/runs.json", None);
    let after = std::fs::read(folder.ledger()).expect("the ledger can be read");
    assert_eq!(before, after, "a page changes nothing");
}

#[test]
fn a_damaged_ledger_is_listed_with_its_reason() {
    let folder = RunFolder::frozen();
    std::fs::write(
        folder.ledger(),
        b"this is not a database, and it is longer than a header would be.........",
    )
    .expect("the ledger can be overwritten");
    let server = serve(folder.path());
    let (head, body) = get(&server.address, "/", None);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(body.contains("cannot be read"), "{body}");
}

fn key(folder: &RunFolder, role: Role) -> KeyPair {
    let keys = KeyRing::open(&folder.path().join("keys")).expect("the run's keys");
    keys.get(role).expect("init made a key for each role")
}

/// Appends one entry, which says `statement`, under a signed head.
fn append(folder: &RunFolder, statement: &str) {
    let recorder = Recorder::open(&folder.ledger(), key(folder, Role::Trainer)).expect("nobody else writes");
    let det = AmendmentDet { amends: 0, statement: statement.to_owned() };
    let record = Record::new(Body::Amendment(Box::new(Halves { det, obs: Nothing {} })));
    recorder.append_durable(record).expect("one more entry");
    recorder.close().expect("the ledger is released");
}

/// Audits and saves the report; what it says is not the question here.
fn save_report(folder: &RunFolder) {
    let finished = folder.audit(&["--save"]);
    assert_ne!(finished.code, 2, "the audit could not run\n{finished}");
}

fn copy_report(from: &RunFolder, to: &RunFolder) {
    std::fs::copy(from.path().join(REPORT), to.path().join(REPORT)).expect("a report was saved");
}

/// Changes the saved report and signs it again with the contract's validator key.
fn change_report(folder: &RunFolder, change: impl FnOnce(&mut Report)) {
    sign_report_again(folder, &key(folder, Role::Validator), change);
}

fn sign_report_again(folder: &RunFolder, signer: &KeyPair, change: impl FnOnce(&mut Report)) {
    let path = folder.path().join(REPORT);
    let key = key(folder, Role::Validator);
    let bytes = std::fs::read(&path).expect("a report was saved");
    let envelope: Envelope = serde_json::from_slice(&bytes).expect("an envelope");
    let payload =
        ledger::dsse::verify(&envelope, REPORT_PAYLOAD_TYPE, &key.public_hex()).expect("it is signed");
    let mut report: Report = serde_json::from_slice(&payload).expect("a report");
    change(&mut report);
    let payload = ledger::canonical::entry_json(&report).expect("canonical JSON");
    let envelope = ledger::dsse::sign(REPORT_PAYLOAD_TYPE, &payload, signer);
    std::fs::write(&path, serde_json::to_vec(&envelope).expect("JSON")).expect("the report can be written");
}

/// What the list says of the stored report, and the page of the run.
fn shown(folder: &RunFolder) -> (String, String) {
    let server = serve(folder.path());
    let (_, body) = get(&server.address, "/runs.json", None);
    let runs: Value = serde_json::from_str(&body).expect("the list has a JSON twin");
    let line = &runs["runs"][0];
    let run = line["run"].as_str().expect("one run is served");
    let (_, page) = get(&server.address, &format!("/runs/{run}"), None);
    (line["verdict"].as_str().expect("a text").to_owned(), page)
}

/// A stored report that is not usable shows its reason and no verdict.
#[track_caller]
fn check_unusable(folder: &RunFolder, reason: &str) {
    let (verdict, page) = shown(folder);
    assert_eq!(verdict, UNUSABLE);
    assert!(page.contains(reason), "the page does not say {reason:?}\n{page}");
    assert!(!page.contains("class=\"verdict "), "a verdict is shown\n{page}");
}

#[test]
fn a_report_of_another_run_is_not_shown_as_this_run_s() {
    let folder = RunFolder::tiny();
    let other = folder.copy();
    for folder in [&folder, &other] {
        let _ = folder.freeze().expect_code(0);
    }
    save_report(&folder);
    let (verdict, page) = shown(&folder);
    assert_eq!(verdict, "incomplete", "its own report is shown");
    assert!(page.contains("verdict-incomplete"), "{page}");
    assert!(page.contains("It saw every entry that the ledger holds now"), "{page}");
    // The same contract and keys, frozen again, are another run.
    copy_report(&folder, &other);
    check_unusable(&other, "it is of run");
    change_report(&folder, |report| report.contract = Some(Digest::sha256([0; 32])));
    check_unusable(&folder, "it is of contract");
}

#[test]
fn a_report_of_other_entries_is_not_shown_as_of_these() {
    let folder = RunFolder::frozen();
    let (shorter, other) = (folder.copy(), folder.copy());
    append(&folder, "one");
    append(&other, "another");
    assert_eq!(folder.entries().len(), other.entries().len());
    assert_eq!(folder.entries()[0], other.entries()[0], "run and contract are the same");
    save_report(&folder);
    let (verdict, page) = shown(&folder);
    assert_ne!(verdict, UNUSABLE);
    assert!(page.contains("It saw every entry that the ledger holds now"), "{page}");
    for ledger in [&shorter, &other] {
        copy_report(&folder, ledger);
    }
    check_unusable(&other, "the first 2 entries have root");
    check_unusable(&shorter, "it saw 2 entries, this ledger holds 1");
    // The ledger grows after its report.
    append(&folder, "two");
    let (verdict, page) = shown(&folder);
    assert!(verdict.ends_with(" (of an older state)"), "{verdict}");
    assert!(page.contains("It saw 2 entries; the ledger holds 3 now"), "{page}");
    assert!(!page.contains("It is incremental"), "it looked at everything: {page}");
    // What an audit that went on from an earlier one says of that.
    let digest = Digest::blake3([7; 32]);
    let since = AuditedBefore { report: digest, root: "00".repeat(32), size: 1 };
    change_report(&folder, |report| report.since = Some(since));
    let (_, page) = shown(&folder);
    let said = format!(
        "It is incremental: it goes on from the report <code>{digest}</code>, which saw the first 1 entries"
    );
    assert!(page.contains(&said), "{page}");
    // Without a head nothing says what the entries were.
    change_report(&folder, |report| report.head = None);
    let (verdict, page) = shown(&folder);
    assert!(verdict.ends_with(" (its head is not of every entry)"), "{verdict}");
    assert!(page.contains("its head covers 0 of them"), "{page}");
}

#[test]
fn only_the_frozen_contract_names_the_validator() {
    let folder = RunFolder::frozen();
    let stranger = KeyPair::random(Role::Validator).expect("the system gives random bytes");
    // The trainer appends a contract that names another validator.
    let first = Reader::open(&folder.ledger()).and_then(|reader| reader.entry(0)).expect("an entry");
    let Body::ContractFrozen(mut halves) = first.body else { panic!("entry 0 is the contract") };
    let own = key(&folder, Role::Validator).public_hex();
    halves.det.contract = halves.det.contract.replace(&own, &stranger.public_hex());
    let recorder = Recorder::open(&folder.ledger(), key(&folder, Role::Trainer)).expect("nobody else writes");
    recorder.append_durable(Record::new(Body::ContractFrozen(halves))).expect("one more entry");
    recorder.close().expect("the ledger is released");
    save_report(&folder);
    assert_ne!(shown(&folder).0, UNUSABLE, "the contract's validator is believed");
    sign_report_again(&folder, &stranger, |report| report.verdict = Verdict::Accepted);
    check_unusable(&folder, "signature does not verify");
}
