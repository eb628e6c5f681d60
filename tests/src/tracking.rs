//! Tools that read metrics, and a real MLflow server, for tests of exports: all
//! of them from PyPI, in the environment `tracking` of `scripts/lib.sh`.
//!
//! `scripts/test` makes the environment. A missing one fails the test; it is
//! never skipped.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

use crate::workspace_root;

/// Where `scripts/lib.sh` makes the environment, below the cache folder.
const ENVIRONMENT: &str = "governed-ledger/python-tracking/bin";

/// The script that asks the tools.
const SCRIPT: &str = "scripts/interop_tracking.py";

/// Longest wait for a server's first answer; on a busy machine it takes half a
/// minute.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// What stands before its address in its log.
const SERVING: &str = " running on http://";

/// Pause between two looks whether it answers.
const POLL_EVERY: Duration = Duration::from_millis(100);

fn environment(program: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let path = cache.map(|cache| cache.join(ENVIRONMENT).join(program)).unwrap_or_default();
    assert!(path.is_file(), "{} is missing\nhint: scripts/test makes it", path.display());
    path
}

/// What a tool did with an export.
#[derive(Debug, Clone)]
pub struct Said {
    /// 0: it read it; 1: it refused it.
    pub code: i32,
    /// What it read; null where it refused.
    pub read: Value,
    /// What it said against it.
    pub refusal: String,
}

impl Said {
    /// What the tool read.
    ///
    /// # Panics
    /// When it refused.
    #[must_use]
    #[track_caller]
    pub fn expect_read(self) -> Value {
        assert_eq!(self.code, 0, "the tool refused: {}", self.refusal);
        self.read
    }
}

/// Asks a tool: arguments of `scripts/interop_tracking.py`.
///
/// # Panics
/// When the tool could not run.
#[must_use]
#[track_caller]
pub fn ask(arguments: &[&str]) -> Said {
    let mut command = Command::new(environment("python"));
    command.arg(workspace_root().join(SCRIPT)).args(arguments).stdin(Stdio::null());
    let output = command.output().expect("the environment's Python starts");
    let refusal = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code().unwrap_or(-1);
    assert!(code == 0 || code == 1, "{arguments:?} could not run: {refusal}");
    let read =
        if code == 0 { serde_json::from_slice(&output.stdout).expect("it prints JSON") } else { Value::Null };
    Said { code, read, refusal }
}

/// A running MLflow server over SQLite in a folder of its own, gone with its
/// value.
#[derive(Debug)]
pub struct MlflowServer {
    /// Where it listens.
    pub address: SocketAddr,
    child: Child,
    folder: TempDir,
}

impl MlflowServer {
    /// Starts a server on a free port.
    ///
    /// # Panics
    /// When it is not installed or does not start.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        let folder = TempDir::with_prefix("governed-ledger-mlflow-").expect("a temporary folder");
        let log = std::fs::File::create(folder.path().join("server.log")).expect("writable");
        let mut command = Command::new(environment("mlflow"));
        command.args(["server", "--backend-store-uri", "sqlite:///mlflow.db", "--workers", "1"]);
        // Any free port, which it says: one that was looked for before might be
        // another program's by then.
        command.args(["--artifacts-destination", "./artifacts", "--host", "127.0.0.1", "--port", "0"]);
        command.current_dir(folder.path());
        command.env("MLFLOW_DISABLE_TELEMETRY", "true");
        command.env("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false");
        // Its workers are processes of their own; a group of its own ends them all.
        command.process_group(0).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a second handle")).stderr(log);
        let child = command.spawn().expect("MLflow starts");
        let mut server = Self { address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), child, folder };
        let started = Instant::now();
        loop {
            let log = std::fs::read(server.folder.path().join("server.log")).expect("its log");
            let log = String::from_utf8_lossy(&log);
            if let Some(address) = served_at(&log) {
                server.address = address;
                if server.get("/health").is_some_and(|answer| answer.starts_with("HTTP/1.1 200")) {
                    return server;
                }
            }
            let ended = server.child.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "the MLflow server ended: {log}");
            assert!(started.elapsed() < MAX_WAIT, "the MLflow server does not answer: {log}");
            std::thread::sleep(POLL_EVERY);
        }
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// Its address for people.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its database, while it runs.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.folder.path().join("mlflow.db")
    }

    /// Every row of its tables of experiments and runs, as text.
    ///
    /// # Panics
    /// When the database cannot be read.
    #[must_use]
    #[track_caller]
    pub fn rows(&self) -> Vec<String> {
        rows(&self.database())
    }
}

/// The address in a server's log; a word behind it shows that it is whole.
fn served_at(log: &str) -> Option<SocketAddr> {
    let (_, rest) = log.split_once(SERVING)?;
    rest.split_once(' ')?.0.parse().ok()
}

impl Drop for MlflowServer {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Rows of the tables that an export writes to.
#[track_caller]
fn rows(database: &Path) -> Vec<String> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let connection = rusqlite::Connection::open_with_flags(database, flags).expect("the server's database");
    let mut all = Vec::new();
    for table in ["experiments", "runs", "params", "tags", "metrics", "latest_metrics"] {
        let mut statement =
            connection.prepare(&format!("SELECT * FROM {table}")).expect("the table is there");
        let num_columns = statement.column_count();
        let read = statement.query_map([], |row| {
            let values: Result<Vec<String>, _> =
                (0..num_columns).map(|index| row.get_ref(index).map(|value| format!("{value:?}"))).collect();
            Ok(format!("{table} {}", values?.join("|")))
        });
        all.extend(read.expect("rows").map(|row| row.expect("a row")));
    }
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_once_it_is_whole() {
        let log =
            "12:00:00 INFO:     Started\n12:00:01 INFO:     Uvicorn running on http://127.0.0.1:39955 (Press";
        assert_eq!(served_at(log), Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 39955))));
        let cut = log.trim_end_matches(" (Press");
        assert_eq!(served_at(cut), None, "the number may be cut");
        assert_eq!(served_at("12:00:00 INFO:     Started\n"), None);
    }
}
