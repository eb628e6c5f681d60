//! Runs whose checkpoints go to a bucket, against a real S3 server process, with
//! a proxy between that makes it slow, refusing or gone.

mod faults;
mod places;
mod whole_runs;
mod writers;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use system_tests::object_server::ObjectServer;
use system_tests::programs::{self, Finished, TRAINER};
use system_tests::proxy::Proxy;
use system_tests::run_folder::RunFolder;

const BUCKET: &str = "training-runs";
const STORE: &str = "s3://training-runs/team/nightly";
const PREFIX: &str = "team/nightly";

/// What no file and no message may hold.
const SECRET: &str = "a-secret-that-nobody-else-says";
const KEY_NAME: &str = "AKIDNAMEOFTHEKEY";
const TOKEN: &str = "a-token-that-nobody-else-says";

/// Longest wait for what takes seconds.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Pause between two looks.
const POLL_EVERY: Duration = Duration::from_millis(2);

/// A server, and the way to it.
struct Cloud {
    proxy: Proxy,
    server: ObjectServer,
}

impl Cloud {
    fn new() -> Self {
        let server = ObjectServer::start(BUCKET);
        let proxy = Proxy::start(server.address);
        Self { proxy, server }
    }

    /// A command with the environment of somebody who may use the bucket.
    fn command(&self, folder: &Path, arguments: &[&str]) -> Command {
        let mut command = programs::command(TRAINER, folder, arguments);
        command.env("AWS_ACCESS_KEY_ID", KEY_NAME).env("AWS_SECRET_ACCESS_KEY", SECRET);
        command.env("AWS_SESSION_TOKEN", TOKEN).env("AWS_ENDPOINT_URL", self.proxy.url());
        for variable in ["AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"] {
            command.env_remove(variable);
        }
        command
    }

    fn trainer(&self, run: &RunFolder, arguments: &[&str]) -> Finished {
        let finished = programs::finish(self.command(run.path(), arguments));
        for secret in [SECRET, KEY_NAME, TOKEN] {
            assert!(!finished.to_string().contains(secret), "{finished}");
        }
        finished
    }

    fn train(&self, run: &RunFolder) -> Finished {
        self.trainer(run, &["run", "--ledger", "run.db"])
    }

    /// As [`Self::train`], with this limit of an operation on the store.
    fn train_within(&self, run: &RunFolder, seconds: u32) -> Finished {
        let mut command = self.command(run.path(), &["run", "--ledger", "run.db"]);
        command.env("CHECKPOINT_STORE_TIMEOUT_S", seconds.to_string());
        programs::finish(command)
    }

    fn start_training(&self, run: &RunFolder) -> Child {
        let mut command = self.command(run.path(), &["run", "--ledger", "run.db"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the trainer starts")
    }

    fn checkpoint(&self, run: &RunFolder, arguments: &[&str]) -> Finished {
        let arguments = [&["checkpoint"], arguments, &["--ledger", "run.db"]].concat();
        self.trainer(run, &arguments)
    }

    /// Files of a checkpoint in the bucket.
    fn files(&self, run: &RunFolder, checkpoint: &str) -> Vec<String> {
        let below = format!("{}/{checkpoint}/", below(run));
        let keys = self.server.keys();
        keys.iter().filter_map(|key| key.strip_prefix(&below)).map(str::to_owned).collect()
    }
}

/// Key of everything of a run.
fn below(run: &RunFolder) -> String {
    let frozen = &run.entries()[0];
    let id = frozen["run"].as_str().expect("the first entry names the run");
    format!("{PREFIX}/{id}")
}

fn of_kind<'a>(entries: &'a [Value], kind: &'a str) -> Vec<&'a Value> {
    entries.iter().filter(|entry| entry["kind"] == kind).collect()
}

/// What the contract determines of every committed checkpoint, by step: the
/// latest of each.
fn committed(run: &RunFolder) -> std::collections::BTreeMap<u64, Value> {
    let entries = run.entries();
    let committed = of_kind(&entries, "checkpoint.durably_committed").into_iter();
    committed
        .map(|entry| {
            let det = &entry["body"]["det"];
            (det["step"].as_u64().expect("a step"), det.clone())
        })
        .collect()
}

/// A small run of so many steps with a checkpoint at every second.
fn small(num_steps: u64, store: &str, edit: impl FnOnce(&mut Value)) -> RunFolder {
    frozen(RunFolder::tiny(), num_steps, store, edit)
}

/// One whose optimizer state goes in two parts.
fn wide(num_steps: u64, store: &str, edit: impl FnOnce(&mut Value)) -> RunFolder {
    let changes = [
        "/architecture/context_length=16",
        "/architecture/head_dim=64",
        "/architecture/hidden_size=256",
        "/architecture/intermediate_size=1024",
        "/architecture/num_heads=4",
        "/architecture/num_kv_heads=4",
        "/architecture/num_layers=1",
    ];
    frozen(RunFolder::with(&changes), num_steps, store, edit)
}

fn frozen(run: RunFolder, num_steps: u64, store: &str, edit: impl FnOnce(&mut Value)) -> RunFolder {
    run.edit_contract(|contract| {
        contract["budget"]["max_attempts"] = 20.into();
        contract["budget"]["max_steps"] = num_steps.into();
        contract["stopping"]["step"] = num_steps.into();
        contract["checkpoints"]["every_steps"] = 2.into();
        contract["checkpoints"]["store"] = store.into();
        contract["evaluation"]["streams"][0]["every_steps"] = 2.into();
        edit(contract);
    });
    let _ = run.freeze().expect_code(0);
    run
}

fn accepted(run: &RunFolder) -> Value {
    let report = run.report();
    assert_eq!(report["verdict"], "accepted", "{:#}", report["findings"]);
    report
}

/// Waits until something holds.
#[track_caller]
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < MAX_WAIT, "not within {MAX_WAIT:?}: {what}");
        std::thread::sleep(POLL_EVERY);
    }
}
