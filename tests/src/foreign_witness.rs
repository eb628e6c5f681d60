//! Somebody else's witness and verifier, from PyPI: `aics-witness` cosigns what
//! this project's client submits, and `aics-tlog` verifies what comes of it. What
//! is asked of them is in `scripts/interop_witness.py`.
//!
//! `scripts/test` makes their environment. A missing one fails the test; it is
//! never skipped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::interop::Said;
use crate::workspace_root;

/// Name of the witness in cosignatures.
pub const NAME: &str = "other.example/w2";

/// Where `scripts/lib.sh` makes the environment, below the cache folder.
const ENVIRONMENT: &str = "governed-ledger/python-witness/bin";

/// Longest wait until a server says where it serves.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Pause between two looks at what it says.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// Configuration of the witness, in its folder.
const CONFIG: &str = "witness.json";

/// What the server says, in its folder.
const LOG: &str = "server.log";

/// What stands before the server's address in its log.
const LISTENING: &str = " listening on ";

fn environment(program: &str) -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let path = cache.context("a cache folder")?.join(ENVIRONMENT).join(program);
    ensure!(path.is_file(), "{} is missing\nhint: scripts/interop --install", path.display());
    Ok(path)
}

/// A witness that is not this project's; it serves until it is dropped.
#[derive(Debug)]
pub struct ForeignWitness {
    child: Option<Child>,
    folder: TempDir,
    /// Its entry of `/keys/witnesses`.
    pub named: Value,
    /// Where it serves; empty until it does.
    pub url: String,
    /// Its verifier key.
    pub vkey: String,
}

impl ForeignWitness {
    /// Makes its key and state. It serves once it knows a log.
    ///
    /// # Errors
    /// When it is not installed, or does something else than it documents.
    pub fn make() -> Result<Self> {
        let folder = TempDir::with_prefix("governed-ledger-foreign-witness-")?;
        // Any free port, of which the server says the number once it has it: one
        // that was looked for before might be another program's by then.
        let made = run(folder.path(), &["init", "--name", NAME, "--listen", "127.0.0.1:0"])?;
        let vkey = made.trim().to_owned();
        let key = vkey.splitn(3, '+').nth(2).context("a verifier key")?;
        let key = STANDARD.decode(key)?;
        // C2SP signed-note: a byte for the algorithm, and then the key.
        let (algorithm, public) = key.split_first().context("an algorithm")?;
        ensure!(*algorithm == 4, "the witness does not cosign with Ed25519: {vkey}");
        let public: String = public.iter().map(|byte| format!("{byte:02x}")).collect();
        let named = json!({"name": NAME, "public": public});
        Ok(Self { child: None, folder, named, url: String::new(), vkey })
    }

    /// Lets it know a log by its verifier keys, and serve.
    ///
    /// # Errors
    /// When it refuses a key, or does not serve.
    pub fn serve(&mut self, origin: &str, vkeys: &[String]) -> Result<()> {
        for vkey in vkeys {
            run(self.folder.path(), &["add-log", "--origin", origin, "--vkey", vkey])?;
        }
        let mut server = command(self.folder.path(), &["serve"])?;
        let log = self.folder.path().join(LOG);
        let child = self.child.insert(server.stdout(Stdio::null()).stderr(File::create(&log)?).spawn()?);
        let started = Instant::now();
        loop {
            let said = std::fs::read_to_string(&log)?;
            if let Some(url) = served_at(&said) {
                url.clone_into(&mut self.url);
                return Ok(());
            }
            ensure!(child.try_wait()?.is_none(), "the witness ended: {said}");
            ensure!(started.elapsed() < MAX_WAIT, "the witness does not serve: {said}");
            std::thread::sleep(POLL_EVERY);
        }
    }

    /// What it says of its logs.
    ///
    /// # Errors
    /// When it says something else than JSON.
    pub fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&run(self.folder.path(), &["status", "--json"])?)?)
    }
}

impl Drop for ForeignWitness {
    fn drop(&mut self) {
        // It may have ended by itself; nothing is to be done about it here.
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The address in a server's log, once its line is whole.
fn served_at(log: &str) -> Option<&str> {
    let mut whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let (_, address) = whole.find_map(|line| line.split_once(LISTENING))?;
    address.split_whitespace().next()
}

fn command(folder: &Path, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(environment("aics-witness")?);
    command.args(arguments).args(["--config", CONFIG]).current_dir(folder).stdin(Stdio::null());
    // What a person set for a witness of their own.
    command.env_remove("AICS_WITNESS_CONFIG").env_remove("WITNESS_SEED_HEX");
    Ok(command)
}

fn run(folder: &Path, arguments: &[&str]) -> Result<String> {
    let output = command(folder, arguments)?.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "aics-witness {arguments:?}: {said}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Asks the verifier: arguments of `scripts/interop_witness.py`.
///
/// # Errors
/// When it is not installed, or could not run.
pub fn ask(arguments: &[&str]) -> Result<Said> {
    let mut command = Command::new(environment("python")?);
    command.arg(workspace_root().join("scripts/interop_witness.py")).args(arguments).stdin(Stdio::null());
    let output = command.output()?;
    let code = output.status.code().unwrap_or(-1);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let answer = serde_json::from_str(&stdout)
        .with_context(|| format!("exit code {code}: {stdout}{}", String::from_utf8_lossy(&output.stderr)))?;
    Ok(Said { code, answer })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_from_a_whole_line() {
        let line = "12:00:00 INFO listening on http://127.0.0.1:34919 (add-checkpoint at http://127.0.0.1:34919/x)\n";
        let log = format!("12:00:00 INFO aics-witness 0.1.0\n{line}");
        assert_eq!(served_at(&log), Some("http://127.0.0.1:34919"));
        assert_eq!(served_at(log.trim_end()), None, "the number may be cut");
        assert_eq!(served_at("12:00:00 INFO aics-witness 0.1.0\n"), None);
    }
}
