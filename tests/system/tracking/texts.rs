//! OpenMetrics by `prometheus-client`, MLPerf lines by `mlperf-logging`.

use serde_json::{Value, json};
use system_tests::run_folder::{RunFolder, flip_byte};
use system_tests::tracking::ask;

use super::{assert_same_bits, number, of, spelled, to_be_lost};

/// Exports in a format and gives the text, its path and what the export said.
#[track_caller]
fn export(run: &RunFolder, format: &str, folder: &str, name: &str) -> (String, String) {
    let _ = run.ledger_command("export", &["--format", format, "--output", folder]).expect_code(0);
    let path = run.path().join(folder).join(name);
    (std::fs::read_to_string(&path).expect("the export"), path.to_string_lossy().into_owned())
}

#[track_caller]
fn metrics(run: &RunFolder, folder: &str) -> (Value, String, String) {
    let (text, path) = export(run, "openmetrics", folder, "metrics.openmetrics.txt");
    (ask(&["openmetrics", &path]).expect_read(), text, path)
}

#[track_caller]
fn log(run: &RunFolder, folder: &str, ruleset: &str) -> (Value, String, String) {
    let (text, path) = export(run, "mlperf", folder, "mlperf.log");
    (ask(&["mlperf", &path, "--ruleset", ruleset]).expect_read(), text, path)
}

#[track_caller]
fn family<'a>(read: &'a Value, name: &str) -> &'a Value {
    let families = read["families"].as_array().expect("families");
    families.iter().find(|family| family["name"] == name).unwrap_or_else(|| panic!("no family {name}"))
}

/// Samples with these labels, in order.
#[track_caller]
fn samples<'a>(read: &'a Value, name: &str, labels: &[(&str, &str)]) -> Vec<&'a Value> {
    let all = family(read, name)["samples"].as_array().expect("samples");
    let fits = |sample: &&Value| labels.iter().all(|(label, value)| sample["labels"][*label] == *value);
    all.iter().filter(fits).collect()
}

#[track_caller]
fn verdict(read: &Value) -> String {
    let states = samples(read, "governed_ledger_verdict", &[]);
    let set: Vec<&&Value> =
        states.iter().filter(|state| spelled(&state["value"]).to_bits() == 1f64.to_bits()).collect();
    assert_eq!((states.len(), set.len()), (5, 1), "one verdict of five: {states:?}");
    set[0]["labels"]["governed_ledger_verdict"].as_str().expect("a name").to_owned()
}

/// Every step of an attempt is a point of its series, with its time and bits.
#[track_caller]
fn check_series(read: &Value, entries: &[Value], attempt: u64) {
    let label = attempt.to_string();
    let steps: Vec<&Value> = of(entries, "step", attempt).collect();
    assert!(!steps.is_empty(), "attempt {attempt} recorded steps");
    let losses = samples(read, "governed_ledger_loss_nats", &[("attempt", &label)]);
    let rates = samples(read, "governed_ledger_learning_rate", &[("attempt", &label), ("group", "matrices")]);
    let tokens = samples(read, "governed_ledger_tokens", &[("attempt", &label)]);
    assert_eq!((losses.len(), rates.len(), tokens.len()), (steps.len(), steps.len(), steps.len()));
    for (index, step) in steps.iter().enumerate() {
        let det = &step["body"]["det"];
        assert_eq!(losses[index]["time_us"], step["time_us"]);
        let loss = number(&det["credit"]["backpropagation"]["loss"]);
        assert_same_bits(spelled(&losses[index]["value"]), loss, "a loss");
        let update = det["updates"].as_array().expect("groups").iter().find(|it| it["group"] == "matrices");
        let rate = number(&update.expect("a group of matrices")["learning_rate"]);
        assert_same_bits(spelled(&rates[index]["value"]), rate, "a rate");
        assert_same_bits(spelled(&tokens[index]["value"]), number(&det["counters"]["tokens"]), "a counter");
    }
}

#[test]
fn openmetrics_are_the_record_to_the_parser_of_prometheus() {
    let run = to_be_lost();
    let _ = run.train().expect_code(128 + 9);
    let (read, _, _) = metrics(&run, "lost");
    assert_eq!(verdict(&read), "incomplete");
    let _ = run.train().expect_code(0);
    let (read, text, path) = metrics(&run, "whole");
    let entries = run.entries();
    assert_eq!(verdict(&read), "accepted");
    check_series(&read, &entries, 1);
    check_series(&read, &entries, 2);
    let outcomes = |attempt| {
        let states = samples(&read, "governed_ledger_attempt_outcome", &[("attempt", attempt)]);
        let set = states.into_iter().find(|state| spelled(&state["value"]) > 0.5).expect("an outcome");
        set["labels"]["governed_ledger_attempt_outcome"].as_str().expect("a name").to_owned()
    };
    assert_eq!([outcomes("1"), outcomes("2")], ["no_terminal_entry", "completed"]);
    // Nothing vanishes: the entries by kind are all of them.
    let counted: f64 =
        samples(&read, "governed_ledger_entries", &[]).iter().map(|it| spelled(&it["value"])).sum();
    assert_same_bits(counted, number(&json!(entries.len())), "entries");
    let evals = samples(&read, "governed_ledger_eval_bits_per_byte", &[]);
    let recorded: Vec<&Value> = of(&entries, "eval", 0).collect();
    assert_eq!(evals.len(), recorded.len());
    for (sample, eval) in evals.iter().zip(&recorded) {
        assert_same_bits(spelled(&sample["value"]), number(&eval["body"]["det"]["value"]), "an evaluation");
    }
    for family in read["families"].as_array().expect("families") {
        let (name, unit) =
            (family["name"].as_str().expect("a name"), family["unit"].as_str().expect("a unit"));
        assert!(name.starts_with("governed_ledger_") && name.ends_with(unit), "{family}");
        let counts = name.contains("_seconds") || name.contains("_bytes");
        assert!(!counts || ["seconds", "bytes"].contains(&unit), "{name} has no unit");
    }
    // The controls: the parser refuses a text that was cut, and one whose
    // series are mixed.
    let cut = run.path().join("cut.txt");
    std::fs::write(&cut, text.trim_end_matches("# EOF\n")).expect("writable");
    let said = ask(&["openmetrics", &cut.to_string_lossy()]);
    assert_eq!(said.code, 1, "a text that was cut was read");
    assert!(said.refusal.contains("prometheus-client: Missing # EOF"), "{}", said.refusal);
    let mut lines: Vec<&str> = text.lines().collect();
    let losses: Vec<usize> =
        (0..lines.len()).filter(|&index| lines[index].starts_with("governed_ledger_loss_nats{")).collect();
    lines.swap(losses[0], losses[losses.len() - 1]);
    std::fs::write(&path, lines.join("\n") + "\n").expect("writable");
    let said = ask(&["openmetrics", &path]);
    assert_eq!(said.code, 1, "series that are mixed were read");
    assert!(said.refusal.contains("prometheus-client"), "{}", said.refusal);
}

/// That the benchmark is none of MLPerf's, and that there are no rules for it.
const NO_BENCHMARK: [&str; 2] = ["rules_of_benchmark", "submission_benchmark"];

/// Complaints of MLCommons' checker about a log, by key.
fn complaints(read: &Value) -> Vec<&str> {
    read["complaints"].as_object().expect("complaints").keys().map(String::as_str).collect()
}

fn statuses(read: &Value) -> Vec<&Value> {
    let lines = read["lines"].as_array().expect("lines");
    lines.iter().filter(|line| line["key"] == "run_stop").map(|line| &line["metadata"]["status"]).collect()
}

#[test]
fn mlperf_lines_lack_nothing_but_a_benchmark_of_mlperf() {
    let run = to_be_lost();
    let _ = run.train().expect_code(128 + 9);
    // A run that is not over did not stop, and nothing calls it a success.
    let (read, text, _) = log(&run, "lost", "6.1.0");
    assert_eq!(complaints(&read), ["rules_of_benchmark", "run_stop", "submission_benchmark"]);
    assert!(!text.contains("success"), "an incomplete run is called a success");
    let _ = run.train().expect_code(0);
    for ruleset in ["6.0.0", "6.1.0"] {
        let (read, ..) = log(&run, &format!("whole-{ruleset}"), ruleset);
        assert_eq!(complaints(&read), NO_BENCHMARK, "{ruleset}: {}", read["complaints"]);
        assert_eq!(read["parse_errors"], json!([]));
        assert_eq!(statuses(&read), [&json!("success")]);
    }
    let (read, text, path) = log(&run, "whole", "6.1.0");
    let lines = read["lines"].as_array().expect("lines");
    let entries = run.entries();
    let accuracies: Vec<&Value> = lines.iter().filter(|line| line["key"] == "eval_accuracy").collect();
    let evals: Vec<&Value> = of(&entries, "eval", 0).collect();
    assert_eq!(accuracies.len(), evals.len());
    for (line, eval) in accuracies.iter().zip(&evals) {
        assert_same_bits(number(&line["value"]), number(&eval["body"]["det"]["value"]), "an evaluation");
        assert_eq!(line["metadata"]["step_num"], eval["step"]);
        assert_eq!(line["metadata"]["lineno"], eval["index"]);
    }
    for key in ["submission_benchmark", "run_stop"] {
        let line = lines.iter().find(|line| line["key"] == key).expect("it is there");
        let said = (&line["metadata"]["verdict"], &line["metadata"]["profile"]);
        assert_eq!(said, (&json!("accepted"), &json!("native")), "{key}");
    }
    // Both attempts are told, and blocks are opened and closed in turns.
    let keys: Vec<&str> = lines.iter().filter_map(|line| line["key"].as_str()).collect();
    assert_eq!(keys.iter().filter(|key| **key == "ledger_attempt_start").count(), 2);
    let blocks: Vec<&str> = keys.into_iter().filter(|key| key.starts_with("block_")).collect();
    assert!(blocks.chunks(2).all(|pair| pair == ["block_start", "block_stop"]), "{blocks:?}");
    let last = lines.iter().rfind(|line| line["key"] == "block_stop").expect("a block");
    let end = of(&entries, "run.end", 0).next().expect("an end");
    assert_eq!(last["metadata"]["samples_count"], end["body"]["det"]["counters"]["examples"]);
    let mut last_ms = 0.0;
    for line in lines {
        let time_ms = line["time_ms"].as_f64().expect("a time");
        assert!(time_ms >= last_ms, "time goes back at {line}");
        last_ms = time_ms;
    }
    // The controls: a line that is missing is asked for, one that is no JSON is
    // refused.
    let without: Vec<&str> = text.lines().filter(|line| !line.contains("\"train_samples\"")).collect();
    std::fs::write(&path, without.join("\n")).expect("writable");
    assert_eq!(
        complaints(&ask(&["mlperf", &path]).expect_read()),
        [&NO_BENCHMARK[..], &["train_samples"]].concat()
    );
    std::fs::write(&path, text.replacen("\"value\": ", "\"value\" ", 1)).expect("writable");
    assert_eq!(ask(&["mlperf", &path]).code, 1);
}

#[test]
fn an_export_of_numbers_says_what_the_audit_says_now() {
    let run = to_be_lost();
    let _ = run.train().expect_code(128 + 9);
    let _ = run.train().expect_code(0);
    let selected = run.report()["selected"]["path"].as_str().expect("a candidate").to_owned();
    flip_byte(&run.path().join(selected).join("model.safetensors"), 3000);
    let (read, _, _) = metrics(&run, "changed");
    assert_eq!(verdict(&read), "tampered");
    let (read, text, _) = log(&run, "changed", "6.1.0");
    assert_eq!(statuses(&read), [&json!("aborted")]);
    assert!(!text.contains("success"), "a tampered run is called a success");
    // Without a target that was met there is no success either, whatever the
    // verdict.
    let run = RunFolder::trained();
    assert_eq!(run.report()["verdict"], "accepted");
    let (read, _, _) = log(&run, "log", "6.1.0");
    assert_eq!(statuses(&read), [&json!("aborted")]);
}
