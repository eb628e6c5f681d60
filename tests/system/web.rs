//! The reviewer's pages over a real run: in a real browser, as they are sent
//! (what a browser without scripts shows), and as JSON. A screenshot is kept in
//! the target folder.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use system_tests::programs::{self, LEDGER};
use system_tests::run_folder::RunFolder;

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
