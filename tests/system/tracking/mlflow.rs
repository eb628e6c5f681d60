//! MLflow: what its own client reads back, a second export, exports that broke
//! off at every request, and what it may not take over.

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};

use rusqlite::Connection;
use serde_json::{Value, json};
use system_tests::honest::Honest;
use system_tests::programs::{Finished, LEDGER, exit_code, start};
use system_tests::proxy::{Fate, Proxy};
use system_tests::run_folder::RunFolder;
use system_tests::tracking::{MlflowServer, ask};

use super::{assert_same_bits, number, of, spelled, to_be_lost};

/// `ledger export --format mlflow` into an experiment.
#[track_caller]
fn export(run: &RunFolder, url: &str, experiment: &str) -> Finished {
    run.ledger_command("export", &["--format", "mlflow", "--url", url, "--experiment", experiment, "--json"])
}

/// What MLflow's client reads of an experiment, in the order of attempts.
#[track_caller]
fn runs(server: &MlflowServer, experiment: &str) -> Vec<Value> {
    let read = ask(&["mlflow", "--url", &server.url(), "--experiment", experiment]).expect_read();
    let mut runs = read["runs"].as_array().expect("runs").clone();
    runs.sort_by_key(|run| run["tags"]["governed_ledger.attempt"].as_str().map(str::to_owned));
    runs
}

fn statuses(runs: &[Value]) -> Vec<&str> {
    runs.iter().filter_map(|run| run["status"].as_str()).collect()
}

/// Every number of an attempt's steps and evaluations is a point, and nothing
/// else is.
#[track_caller]
fn check_points(run: &Value, entries: &[Value], attempt: u64) {
    let mut expected: BTreeMap<String, Vec<(u64, u64, f64)>> = BTreeMap::new();
    let mut put = |key: &str, entry: &Value, value: f64| {
        let step = entry["step"].as_u64().unwrap_or_default();
        let time_ms = entry["time_us"].as_u64().expect("a time") / 1000;
        expected.entry(key.to_owned()).or_default().push((step, time_ms, value));
    };
    for entry in of(entries, "step", attempt) {
        let (det, obs) = (&entry["body"]["det"], &entry["body"]["obs"]);
        let credit = &det["credit"]["backpropagation"];
        put("loss_nats", entry, number(&credit["loss"]));
        put("gradient_norm", entry, number(&credit["gradient_norm"]));
        for key in ["tokens", "examples"] {
            put(key, entry, number(&det["counters"][key]));
        }
        for key in ["duration_us", "recording_us", "resident_bytes"] {
            if !obs[key].is_null() {
                put(key, entry, number(&obs[key]));
            }
        }
        for group in det["updates"].as_array().expect("groups") {
            let name = group["group"].as_str().expect("a name");
            for (key, value) in group.as_object().expect("members") {
                if key != "group" && !value.is_null() {
                    put(&format!("group/{name}/{key}"), entry, number(value));
                }
            }
        }
    }
    for entry in of(entries, "eval", attempt) {
        let det = &entry["body"]["det"];
        let stream = det["stream"].as_str().expect("a name");
        put(&format!("eval/{stream}/bits_per_byte"), entry, number(&det["value"]));
        put(&format!("eval/{stream}/total_nats"), entry, number(&det["total_nats"]));
        put(&format!("eval/{stream}/num_tokens"), entry, number(&det["num_tokens"]));
        put(&format!("eval/{stream}/duration_us"), entry, number(&entry["body"]["obs"]["duration_us"]));
    }
    for entry in of(entries, "attempt.end", attempt) {
        for (key, value) in entry["body"]["obs"]["cost"].as_object().expect("costs") {
            if !value.is_null() {
                put(&format!("cost/{key}"), entry, number(value));
            }
        }
    }
    let history = run["history"].as_object().expect("metrics");
    let names = |keys: Vec<&String>| keys.into_iter().cloned().collect::<Vec<_>>();
    assert_eq!(names(history.keys().collect()), names(expected.keys().collect()), "attempt {attempt}");
    for (key, points) in expected {
        let mut read: Vec<&Value> = history[&key].as_array().expect("points").iter().collect();
        read.sort_by_key(|point| point[0].as_u64());
        assert_eq!(read.len(), points.len(), "{key} of attempt {attempt}");
        for (point, (step, time_ms, value)) in read.into_iter().zip(points) {
            assert_eq!((&point[0], &point[1]), (&json!(step), &json!(time_ms)), "{key}");
            assert_same_bits(spelled(&point[2]), value, &key);
        }
    }
}

/// Leaves of a document by the path of their names.
fn leaves(path: &str, value: &Value, all: &mut BTreeMap<String, String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
    match value {
        Value::Object(members) if !members.is_empty() => {
            members.iter().for_each(|(name, value)| leaves(&below(name), value, all));
        }
        Value::Array(items) if !items.is_empty() => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, value)| leaves(&below(&index.to_string()), value, all));
        }
        Value::String(text) if !text.is_empty() && serde_json::from_str::<Value>(text).is_err() => {
            all.insert(path.to_owned(), text.clone());
        }
        other => {
            all.insert(path.to_owned(), other.to_string());
        }
    }
}

#[track_caller]
fn tag<'a>(run: &'a Value, name: &str) -> &'a str {
    run["tags"][format!("governed_ledger.{name}")].as_str().unwrap_or_default()
}

#[test]
fn every_attempt_is_a_run_of_mlflow_and_grows_with_the_ledger() {
    let server = MlflowServer::start();
    let url = server.url();
    let run = to_be_lost();
    // Frozen only: an experiment, and no run in it.
    let said = export(&run, &url, "grows").expect_code(0);
    assert_eq!(said.json()["attempts"], json!([]));
    let _ = run.train().expect_code(128 + 9);
    let said = export(&run, &url, "grows").expect_code(0);
    assert_eq!(said.json()["verdict"], "incomplete");
    assert_eq!(said.json()["profile"], "native");
    let first = runs(&server, "grows");
    assert_eq!(statuses(&first), ["KILLED"]);
    assert_eq!((tag(&first[0], "verdict"), tag(&first[0], "outcome")), ("incomplete", "no terminal entry"));
    assert!(!first[0].to_string().contains("accepted"), "an incomplete run is called accepted");
    check_points(&first[0], &run.entries(), 1);

    let _ = run.train().expect_code(0);
    let said = export(&run, &url, "grows").expect_code(0);
    said.expect_message(&[
        "cannot hold",
        "executed again",
        "draws of steps",
        "signed heads",
        "fault.observed",
    ]);
    let entries = run.entries();
    let read = runs(&server, "grows");
    assert_eq!(statuses(&read), ["KILLED", "FINISHED"]);
    assert_eq!(read[0]["id"], first[0]["id"], "the first attempt is the run that it was");
    check_points(&read[0], &entries, 1);
    check_points(&read[1], &entries, 2);
    let mut expected = BTreeMap::new();
    let contract = entries[0]["body"]["det"]["contract"].as_str().expect("a contract");
    leaves("", &serde_json::from_str(contract).expect("JSON"), &mut expected);
    let report = run.report();
    for (index, attempt) in read.iter().enumerate() {
        assert_eq!(attempt["params"], json!(expected), "one param a leaf of the contract");
        assert_eq!(tag(attempt, "run"), entries[0]["run"]);
        assert_eq!(tag(attempt, "attempt"), (index + 1).to_string());
        assert_eq!(tag(attempt, "verdict"), "accepted");
        assert_eq!(tag(attempt, "head_root"), report["head"]["root"]);
        assert!(tag(attempt, "not_held_of_run").contains("executed again"), "{}", attempt["tags"]);
        assert!(attempt["tags"]["mlflow.note.content"].as_str().expect("a note").contains("no evidence"));
    }
    let from = of(&entries, "attempt.start", 2).next().expect("a second attempt")["body"]["det"]["from_step"]
        .clone();
    let lost = format!("steps {}..{} by attempt 2", from.as_u64().expect("a step") + 1, super::LOST_AT - 1);
    assert_eq!(tag(&read[0], "executed_again"), lost);
    assert!(tag(&read[1], "selected_candidate").starts_with("candidate-"), "{}", read[1]["tags"]);

    // Once more: nothing changes.
    let before = server.rows();
    let said = export(&run, &url, "grows").expect_code(0).json();
    assert_eq!(said["attempts"].as_array().map(Vec::len), Some(2));
    assert!(
        said["attempts"].as_array().expect("attempts").iter().all(|attempt| attempt["unchanged"] == true),
        "{said:#}"
    );
    assert_eq!(server.rows(), before);

    // What somebody changed on the server is not taken for the record, and is
    // not changed back.
    let database = Connection::open(server.database()).expect("the server's database");
    let sql = "UPDATE params SET value = '9999' WHERE key = 'budget/max_steps'";
    assert_eq!(database.execute(sql, []).expect("changed"), 2);
    let before = server.rows();
    let refused = export(&run, &url, "grows");
    refused.expect_complaint(1, "MLflow", &["budget/max_steps", "9999"]);
    assert_eq!(server.rows(), before);
}

#[test]
fn attempts_that_failed_are_runs_too() {
    let server = MlflowServer::start();
    for (honest, expected, outcome) in
        [(Honest::Failed, "KILLED", "no terminal entry"), (Honest::Refused, "FAILED", "failed")]
    {
        let run = honest.make();
        let experiment = format!("{honest:?}");
        let _ = export(&run, &server.url(), &experiment).expect_code(0);
        let read = runs(&server, &experiment);
        assert_eq!(statuses(&read), [expected]);
        assert_eq!((tag(&read[0], "outcome"), tag(&read[0], "verdict")), (outcome, "accepted"));
        assert_ne!(tag(&read[0], "run_outcome"), "completed");
        check_points(&read[0], &run.entries(), 1);
    }
}

/// Everything that the server holds of an experiment, without the identifiers
/// that it drew.
#[track_caller]
fn content(server: &MlflowServer, experiment: &str) -> Vec<String> {
    let database = Connection::open(server.database()).expect("the server's database");
    let of = "FROM {} AS it JOIN runs ON it.run_uuid = runs.run_uuid
              JOIN experiments ON runs.experiment_id = experiments.experiment_id WHERE experiments.name = ?1";
    let mut all = Vec::new();
    for (table, columns) in [
        ("params", "it.key || ' ' || it.value"),
        ("tags", "it.key || ' ' || it.value"),
        ("metrics", "it.key || ' ' || it.step || ' ' || it.timestamp || ' ' || hex(it.value)"),
        (
            "runs",
            "it.status || ' ' || it.start_time || ' ' || coalesce(it.end_time, 'no end') || ' ' || it.name",
        ),
    ] {
        let sql = format!("SELECT {columns} {}", of.replace("{}", table));
        let mut statement = database.prepare(&sql).expect("the tables are there");
        let rows = statement.query_map([experiment], |row| row.get::<_, String>(0)).expect("rows");
        all.extend(rows.map(|row| format!("{table} {}", row.expect("a row"))));
    }
    all.sort();
    all
}

/// Enough updates for several requests.
const LONG: &str = "150";

#[test]
fn an_export_that_broke_off_at_any_request_goes_on() {
    let server = MlflowServer::start();
    let run = RunFolder::with(&[&format!("/budget/max_steps={LONG}"), &format!("/stopping/step={LONG}")]);
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    let proxy = Proxy::start(server.address);
    let _ = export(&run, &proxy.url(), "whole").expect_code(0);
    let num_requests = u32::try_from(proxy.count(Fate::Passed, "")).expect("a few");
    assert!(proxy.count(Fate::Passed, "log-batch") >= 5, "params, points in several requests, tags");
    let whole = content(&server, "whole");
    assert!(whole.len() > 2000, "{} rows", whole.len());
    for index in 0..num_requests {
        for fate in [Fate::CutAnswer, Fate::CutRequest] {
            let experiment = format!("{fate:?} {index}");
            let proxy = Proxy::start(server.address);
            proxy.strike(Fate::Passed, index, "");
            proxy.strike(fate, 1, "");
            export(&run, &proxy.url(), &experiment).expect_complaint(2, "MLflow", &["does not answer"]);
            assert_eq!(proxy.count(fate, ""), 1, "the fault struck");
            let _ = export(&run, &server.url(), &experiment).expect_code(0);
            assert_eq!(content(&server, &experiment), whole, "{experiment}");
        }
    }
    // Killed while points are on their way.
    let proxy = Proxy::start(server.address);
    proxy.limit(Some(30_000));
    let url = proxy.url();
    let arguments = ["export", "run.db", "--format", "mlflow", "--url", &url, "--experiment", "killed"];
    let mut child = start(LEDGER, run.path(), &arguments);
    while proxy.count(Fate::Passed, "log-batch") < 4 || !proxy.is_passing("log-batch") {
        assert!(child.try_wait().expect("a child").is_none(), "the export was over before it was killed");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    child.kill().expect("a child can be killed");
    assert_eq!(exit_code(child.wait().expect("a child")), 128 + 9);
    assert_ne!(content(&server, "killed"), whole, "the kill came before the end");
    let _ = export(&run, &server.url(), "killed").expect_code(0);
    assert_eq!(content(&server, "killed"), whole);
}

#[test]
fn what_is_no_server_of_mlflow_is_refused_with_its_address() {
    let run = RunFolder::frozen();
    let refused =
        |arguments: &[&str]| run.ledger_command("export", &[&["--format", "mlflow"], arguments].concat());
    refused(&[]).expect_complaint(2, "MLflow", &["no MLflow server is named"]);
    refused(&["--url", "https://example.invalid"]).expect_complaint(
        2,
        "https://example.invalid",
        &["http://"],
    );
    // A port on which nobody listens. The connection that came in by it keeps it: one
    // that is only free may be another program's by the time that it is asked.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let kept =
        (TcpStream::connect(address).expect("a connection"), listener.accept().expect("its other end"));
    drop(listener);
    let url = format!("http://{address}");
    refused(&["--url", &url]).expect_complaint(2, &url, &["does not answer"]);
    refused(&["--url", &url, "--output", "x"]).expect_complaint(2, "x", &["writes no files"]);
    drop(kept);
}
