//! Tools that read metrics, and a real MLflow server, for tests of exports: all
//! of them from PyPI, in the environment `tracking` of `scripts/lib.sh`.
//!
//! `scripts/test` makes the environment. A missing one fails the test; it is
//! never skipped.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
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
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound port has an address");
        drop(listener);
        let log = std::fs::File::create(folder.path().join("server.log")).expect("writable");
        let mut command = Command::new(environment("mlflow"));
        command.args(["server", "--backend-store-uri", "sqlite:///mlflow.db", "--workers", "1"]);
        command.args(["--artifacts-destination", "./artifacts", "--host", "127.0.0.1"]);
        command.args(["--port", &address.port().to_string()]).current_dir(folder.path());
        command.env("MLFLOW_DISABLE_TELEMETRY", "true");
        command.env("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false");
        // Its workers are processes of their own; a group of its own ends them all.
        command.process_group(0).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a second handle")).stderr(log);
        let child = command.spawn().expect("MLflow starts");
        let mut server = Self { address, child, folder };
        let started = Instant::now();
        while server.get("/health").is_none_or(|answer| !answer.starts_with("HTTP/1.1 200")) {
            let ended = server.child.try_wait().expect("a child can be asked");
            let log = || std::fs::read_to_string(server.folder.path().join("server.log")).unwrap_or_default();
            assert!(ended.is_none(), "the MLflow server ended: {}", log());
            assert!(started.elapsed() < MAX_WAIT, "the MLflow server does not answer: {}", log());
            std::thread::sleep(POLL_EVERY);
        }
        server
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
