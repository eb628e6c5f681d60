//! A witness by the real program, runs whose contracts name it, and what becomes
//! of histories that somebody with the trainer's key would rather have had.
//!
//! It owns the server's process, the table of forgeries, and what each line of it
//! has to be, which `tests/system/witness.rs` and `scripts/witness` compare it with.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail, ensure};
use ledger::keys::{KeyRing, Role};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::forgery::Forgery;
use crate::programs::{Finished, LEDGER, command, run};
use crate::run_folder::RunFolder;

/// Name of the witness in cosignatures.
pub const NAME: &str = "witness.example/w1";

/// A witness that serves until it is dropped.
#[derive(Debug)]
pub struct WitnessServer {
    child: Child,
    folder: TempDir,
    /// Its entry of `/keys/witnesses`.
    pub named: Value,
    /// Its address.
    pub url: String,
    /// Its verifier key.
    pub vkey: String,
}

impl WitnessServer {
    /// Makes a witness that cosigns the ledgers of a run's owner and trainer.
    ///
    /// # Errors
    /// When a key cannot be read, or the program does not serve.
    pub fn start(of: &RunFolder) -> Result<Self> {
        let folder = TempDir::with_prefix("governed-ledger-witness-")?;
        let _ = run(LEDGER, folder.path(), &["keygen", "--role", "witness"]).expect_code(0);
        let made =
            run(LEDGER, folder.path(), &["witness", "init", "--name", NAME, "--json"]).expect_code(0).json();
        let keys = KeyRing::open(&of.path().join("keys"))?;
        let trust = json!({
            "owner": keys.public(Role::Owner)?.public, "trainer": keys.public(Role::Trainer)?.public
        });
        std::fs::write(folder.path().join("team.json"), trust.to_string())?;
        let (child, url) = serve(folder.path())?;
        let vkey = made["vkey"].as_str().context("a verifier key")?.to_owned();
        Ok(Self { child, folder, named: made["contract"].clone(), url, vkey })
    }

    /// Kills it as a power cut would, and starts it again on its state.
    ///
    /// # Errors
    /// When it does not serve again.
    pub fn restart(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        (self.child, self.url) = serve(self.folder.path())?;
        Ok(())
    }

    /// Kills it, and starts it again with its key and without its state, as nobody
    /// should.
    ///
    /// # Errors
    /// When it does not serve again.
    ///
    /// # Panics
    /// When no new state is made.
    pub fn forget(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        for item in std::fs::read_dir(self.folder.path())? {
            let item = item?;
            if item.file_name().to_string_lossy().starts_with("witness.db") {
                std::fs::remove_file(item.path())?;
            }
        }
        let _ = run(LEDGER, self.folder.path(), &["witness", "init", "--name", NAME]).expect_code(0);
        (self.child, self.url) = serve(self.folder.path())?;
        Ok(())
    }

    /// What `ledger witness list` says.
    #[must_use]
    pub fn list(&self) -> Value {
        run(LEDGER, self.folder.path(), &["witness", "list", "--json"]).expect_code(0).json()
    }

    /// Folder of its state and key.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for WitnessServer {
    fn drop(&mut self) {
        // It may have ended by itself; nothing is to be done about it here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(folder: &Path) -> Result<(Child, String)> {
    let arguments = ["witness", "serve", "--trust", "team.json", "--listen", "127.0.0.1:0", "--json"];
    let mut server = command(LEDGER, folder, &arguments);
    let mut child = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let out = child.stdout.take().context("its standard output")?;
    for line in BufReader::new(out).lines() {
        let line = line?;
        if let Some((_, url)) = line.split_once("\"url\": \"") {
            let url = url.split('"').next().context("an address")?.to_owned();
            return Ok((child, url));
        }
    }
    let _ = child.wait();
    bail!("the witness does not serve")
}

/// A frozen run whose contract names a witness, and that witness.
///
/// # Errors
/// When the witness does not serve.
///
/// # Panics
/// When the freeze is refused.
pub fn frozen() -> Result<(RunFolder, WitnessServer)> {
    let folder = RunFolder::tiny();
    let server = WitnessServer::start(&folder)?;
    name(&folder, &server);
    let _ = folder.freeze().expect_code(0);
    Ok((folder, server))
}

/// Puts a witness into a contract that is not frozen yet.
///
/// # Panics
/// When the contract cannot be written.
pub fn name(folder: &RunFolder, server: &WitnessServer) {
    folder.edit_contract(|contract| {
        contract["keys"]["witnesses"] = json!([server.named]);
        contract["keys"]["witness_quorum"] = json!(1);
    });
}

/// `ledger witness add run.db` with further arguments.
#[must_use]
#[track_caller]
pub fn add(folder: &RunFolder, server: &WitnessServer, further: &[&str]) -> Finished {
    let arguments = [&["witness", "add", "run.db", "--url", &server.url], further].concat();
    run(LEDGER, folder.path(), &arguments)
}

/// A run that the witness saw when it was frozen and when it had ended.
///
/// # Errors
/// When the witness does not serve.
///
/// # Panics
/// When a step fails.
pub fn trained() -> Result<(RunFolder, WitnessServer)> {
    let (folder, server) = frozen()?;
    let _ = add(&folder, &server, &[]).expect_code(0);
    let _ = folder.train().expect_code(0);
    let _ = add(&folder, &server, &[]).expect_code(0);
    Ok((folder, server))
}

/// The file of cosigned heads.
#[must_use]
pub fn cosigned(folder: &RunFolder) -> PathBuf {
    folder.path().join("run.db.cosigned")
}

/// A history that was not the first, and who says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What was done.
    pub forgery: &'static str,
    /// What the witness said to it: cosigned, refused, or that nobody asked it.
    pub witness: String,
    /// Verdict of the audit, with the file of cosigned heads that there is.
    pub verdict: String,
    /// Rules about witnesses that speak in it.
    pub rules: Vec<String>,
}

/// What each line of [`table`] has to be, in its order.
#[must_use]
pub fn expected() -> Vec<Line> {
    let line = |forgery, witness: &str, verdict: &str, rules: &[&str]| Line {
        forgery,
        witness: witness.to_owned(),
        verdict: verdict.to_owned(),
        rules: rules.iter().map(|code| (*code).to_owned()).collect(),
    };
    vec![
        line("none", "cosigned", "accepted", &[]),
        line(ROLLBACK, "refused (1)", "tampered", &["GL014"]),
        line(OTHER_ROOT, "refused (1)", "tampered", &["GL014"]),
        line(SPLIT_VIEW, "refused (1)", "tampered", &["GL014"]),
        // Its head is the run's own, so the witness cosigns it once more; the line
        // that does not hold stays.
        line(DATED_BACK, "cosigned", "tampered", &["GL014"]),
        // The newest head has its cosignature.
        line(REMOVED, "not asked", "incomplete", &["GL015"]),
        line(RUN_TWICE, "refused (1)", "incomplete", &["GL014"]),
        line(ASKED_LATE, "cosigned", "incomplete", &["GL015"]),
        // No rule of one run can know; the witness's list has both.
        line(FROZEN_AGAIN, "cosigned", "accepted", &[]),
    ]
}

const ROLLBACK: &str = "rollback: the newest entries are removed";
const OTHER_ROOT: &str = "same size, other root: a time is changed, everything signed again";
const SPLIT_VIEW: &str = "split view: the same, with an entry more";
const DATED_BACK: &str = "a cosignature is dated back";
const REMOVED: &str = "the cosigned heads of before the training are removed";
const RUN_TWICE: &str = "one freeze is run twice, and the second run shown";
const ASKED_LATE: &str = "the witness is asked when the run is over";
const FROZEN_AGAIN: &str = "the contract is frozen and run again, and the first run not mentioned";

/// The rules about witnesses.
const RULES: [&str; 3] = ["GL014", "GL015", "GL016"];

fn line(forgery: &'static str, folder: &RunFolder, submitted: &Finished) -> Line {
    let report = folder.report();
    let findings = report["findings"].as_array().cloned().unwrap_or_default();
    let speaks = |code: &&str| {
        let of_rule = |finding: &&Value| finding["code"] == **code && finding["severity"] != "note";
        findings.iter().any(|finding| of_rule(&finding))
    };
    let unevaluated = |code: &&str| {
        let rules = report["rules"].as_array().cloned().unwrap_or_default();
        rules.iter().any(|rule| rule["code"] == **code && rule["status"] == "not_evaluated")
    };
    let rules = RULES.iter().filter(|code| speaks(code) || unevaluated(code));
    let witness = match submitted.code {
        // Where the newest head has its cosignature already, nothing is sent.
        0 if submitted.json()["is_known"] == true => "not asked".to_owned(),
        0 => "cosigned".to_owned(),
        code => format!("refused ({code})"),
    };
    Line {
        forgery,
        witness,
        verdict: report["verdict"].as_str().unwrap_or("none").to_owned(),
        rules: rules.map(|code| (*code).to_owned()).collect(),
    }
}

/// Submits the newest head, and says in JSON whether the witness was asked.
#[track_caller]
fn submit(folder: &RunFolder, server: &WitnessServer) -> Finished {
    add(folder, server, &["--json"])
}

fn keys(folder: &RunFolder) -> Result<KeyRing> {
    Ok(KeyRing::open(&folder.path().join("keys"))?)
}

/// Changes a duration that only the day decided, and signs everything again.
fn edit_time(forgery: &mut Forgery) -> Result<()> {
    let entry = forgery.first("step")?;
    let time = entry["time_us"].as_u64().context("a time")?;
    entry["time_us"] = json!(time + 1);
    Ok(())
}

/// Every forgery against a run that a witness saw, by a forger with the trainer's
/// and the owner's keys.
///
/// # Errors
/// When a run cannot be made or forged.
///
/// # Panics
/// When a program that has to work fails.
pub fn table() -> Result<Vec<Line>> {
    let (first, server) = frozen()?;
    let _ = add(&first, &server, &[]).expect_code(0);
    let _ = first.train().expect_code(0);
    let mut lines = vec![line("none", &first, &submit(&first, &server).expect_code(0))];
    let mut try_on = |forgery: &'static str, make: &dyn Fn(&RunFolder) -> Result<()>| -> Result<()> {
        let copy = first.copy();
        make(&copy)?;
        let submitted = submit(&copy, &server);
        ensure!(submitted.code != 2, "{forgery}: {submitted}");
        lines.push(line(forgery, &copy, &submitted));
        Ok(())
    };
    try_on(ROLLBACK, &|copy| {
        let mut forgery = Forgery::open(&copy.ledger())?;
        let kept = forgery.signed_size(forgery.entries.len() - 1)?;
        forgery.entries.truncate(kept);
        forgery.seal(Some(&keys(copy)?))
    })?;
    try_on(OTHER_ROOT, &|copy| {
        let mut forgery = Forgery::open(&copy.ledger())?;
        edit_time(&mut forgery)?;
        forgery.seal(Some(&keys(copy)?))
    })?;
    try_on(SPLIT_VIEW, &|copy| {
        let mut forgery = Forgery::open(&copy.ledger())?;
        edit_time(&mut forgery)?;
        let mut last = forgery.last("run.end")?.clone();
        last["idem"] = json!("0123456789abcdef0123456789abcdef");
        forgery.entries.push(last);
        forgery.seal(Some(&keys(copy)?))
    })?;
    try_on(DATED_BACK, &|copy| {
        let path = cosigned(copy);
        let text = std::fs::read_to_string(&path)?;
        std::fs::write(&path, redated(&text)?)?;
        Ok(())
    })?;
    try_on(REMOVED, &|copy| {
        let path = cosigned(copy);
        let notes = ledger::head_file::read_all(&path, 1 << 20)?;
        std::fs::write(&path, format!("{}\n", notes.last().context("a note")?))?;
        Ok(())
    })?;
    drop(server);
    lines.push(started_over()?);
    lines.push(witnessed_late()?);
    lines.push(frozen_again()?);
    Ok(lines)
}

/// The text of cosigned heads with another time in the last line.
fn redated(text: &str) -> Result<String> {
    use std::fmt::Write;
    let (rest, last) = text.trim_end().rsplit_once(' ').context("a signature line")?;
    let mut blob = decode(last).context("base64")?;
    blob[11] ^= 0x40;
    let mut out = format!("{rest} ");
    write!(out, "{}\n\n", encode(&blob))?;
    Ok(out)
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn decode(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    for four in text.as_bytes().chunks(4) {
        let mut bits = 0u32;
        let padding = four.iter().filter(|byte| **byte == b'=').count();
        for byte in four {
            let place = if *byte == b'=' { 0 } else { ALPHABET.iter().position(|known| known == byte)? };
            bits = bits << 6 | u32::try_from(place).ok()?;
        }
        out.extend(&bits.to_be_bytes()[1..4 - padding]);
    }
    Some(out)
}

fn encode(bytes: &[u8]) -> String {
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let mut word = [0u8; 4];
        word[1..=three.len()].copy_from_slice(three);
        let bits = u32::from_be_bytes(word);
        for place in 0..4 {
            let index = (bits >> (18 - 6 * place)) as usize & 63;
            out.push(if place <= three.len() { char::from(ALPHABET[index]) } else { '=' });
        }
    }
    out
}

/// The frozen ledger is copied and run twice, and the second is to be shown.
fn started_over() -> Result<Line> {
    let (run, server) = frozen()?;
    let _ = add(&run, &server, &[]).expect_code(0);
    let twin = run.copy();
    for folder in [&run, &twin] {
        let _ = folder.train().expect_code(0);
    }
    let _ = add(&run, &server, &[]).expect_code(0);
    let submitted = submit(&twin, &server);
    Ok(line(RUN_TWICE, &twin, &submitted))
}

/// Nobody was asked before the run had ended.
fn witnessed_late() -> Result<Line> {
    let (run, server) = frozen()?;
    let _ = run.train().expect_code(0);
    let submitted = submit(&run, &server);
    Ok(line(ASKED_LATE, &run, &submitted))
}

/// The contract is frozen and run again. Both are whole; the witness's list has
/// two runs of one contract.
fn frozen_again() -> Result<Line> {
    let (run, server) = frozen()?;
    let again = RunFolder::copy(&run);
    for name in ["run.db", "run.db.head", "run.db.lock"] {
        let path = again.path().join(name);
        if path.exists() {
            std::fs::remove_file(path)?;
        }
    }
    let _ = again.freeze().expect_code(0);
    for folder in [&run, &again] {
        let _ = add(folder, &server, &[]).expect_code(0);
        let _ = folder.train().expect_code(0);
    }
    let submitted = submit(&again, &server);
    let listed = server.list();
    let origins: Vec<&str> =
        listed["logs"].as_array().into_iter().flatten().filter_map(|log| log["origin"].as_str()).collect();
    ensure!(origins.len() == 2, "the witness lists {origins:?}");
    let contract = |origin: &str| origin.rsplit_once('-').map(|(contract, _)| contract.to_owned());
    ensure!(contract(origins[0]) == contract(origins[1]), "two contracts: {origins:?}");
    Ok(line(FROZEN_AGAIN, &again, &submitted))
}
