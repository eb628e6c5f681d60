//! A store that fails for a while, for ever, or only slowly. Every test asserts
//! that its fault struck.

use std::fs;

use super::*;
use system_tests::proxy::Fate;

#[test]
fn a_store_that_fails_for_a_while_is_tried_again() {
    let cloud = Cloud::new();
    let run = small(4, STORE, |_| {});
    cloud.proxy.strike(Fate::Refused, 4, "PUT");
    cloud.proxy.strike(Fate::CutRequest, 3, "s00000002-a1/model.safetensors");
    // Acknowledgements that are lost: of the first and the last object, which
    // are put only where they are not there yet.
    cloud.proxy.strike(Fate::CutAnswer, 1, "PUT /training-runs/team/nightly");
    cloud.proxy.strike(Fate::CutAnswer, 1, "PUT s00000002-a1/manifest.json");
    cloud.proxy.strike(Fate::CutAnswer, 2, "GET");
    let trained = cloud.train(&run).expect_code(0);
    trained.expect_message(&["failed, trying again", "503", "SlowDown"]);
    assert_eq!(cloud.proxy.count(Fate::Refused, "PUT"), 4);
    assert_eq!(cloud.proxy.count(Fate::CutRequest, "s00000002-a1/model.safetensors"), 3);
    assert_eq!(cloud.proxy.count(Fate::CutAnswer, "PUT writer.json"), 1);
    assert_eq!(cloud.proxy.count(Fate::CutAnswer, "PUT s00000002-a1/manifest.json"), 1);
    assert_eq!(cloud.proxy.count(Fate::CutAnswer, "GET"), 2);
    let entries = run.entries();
    assert_eq!(of_kind(&entries, "checkpoint.failed").len(), 0);
    assert_eq!(of_kind(&entries, "checkpoint.validated").len(), 3);
    accepted(&run);

    // And with the faults the state is what it is without them.
    let local = small(4, "checkpoints", |_| {});
    let _ = local.train().expect_code(0);
    assert_eq!(committed(&run), committed(&local));
}

#[test]
fn parts_that_are_cut_are_sent_again() {
    let cloud = Cloud::new();
    let run = wide(2, STORE, |_| {});
    cloud.proxy.strike(Fate::CutRequest, 2, "partNumber=1");
    cloud.proxy.strike(Fate::CutAnswer, 1, "partNumber=2");
    // The upload is finished, and nobody hears of it.
    cloud.proxy.strike(Fate::CutAnswer, 1, "POST uploadId=");
    let _ = cloud.train(&run).expect_code(0);
    assert_eq!(cloud.proxy.count(Fate::CutRequest, "partNumber=1"), 2);
    assert_eq!(cloud.proxy.count(Fate::CutAnswer, "partNumber=2"), 1);
    assert_eq!(cloud.proxy.count(Fate::CutAnswer, "POST uploadId="), 1);
    accepted(&run);
    let _ = cloud.checkpoint(&run, &["verify", "--all"]).expect_code(0);
}

fn check_ends_on_record(mode: &str) {
    let cloud = Cloud::new();
    let run = small(20, STORE, |contract| contract["checkpoints"]["mode"] = mode.into());
    cloud.proxy.strike(Fate::Refused, u32::MAX, "s00000004-a1/model.safetensors");
    let failed = cloud.train_within(&run, 2).expect_code(1);
    failed.expect_message(&["s00000004-a1/model.safetensors", "limit of 2 s", "503", "hint:"]);
    assert!(cloud.proxy.count(Fate::Refused, "PUT") >= 3, "it was tried again");
    let entries = run.entries();
    let failed = of_kind(&entries, "checkpoint.failed");
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0]["step"], 4);
    let reason = failed[0]["body"]["obs"]["reason"].as_str().expect("a reason");
    for word in ["limit of 2 s", "tries", "503", "SlowDown", STORE] {
        assert!(reason.contains(word), "{word}: {reason}");
    }
    let observed = of_kind(&entries, "fault.observed");
    assert_eq!(observed.len(), 1);
    assert_eq!(observed[0]["body"]["det"]["fault"], "storage_failed");
    assert_eq!(of_kind(&entries, "attempt.end").len(), 1);
    assert!(!committed(&run).contains_key(&4), "what the store has not is not committed");
    assert!(!run.path().join("checkpoints/s00000004-a1").exists());

    // The store is there again.
    cloud.proxy.heal();
    cloud.train(&run).expect_code(0).expect_message(&["RESUMING", "Removed incomplete s00000004-a1"]);
    accepted(&run);
    let local = small(20, "checkpoints", |_| {});
    let _ = local.train().expect_code(0);
    assert_eq!(committed(&run), committed(&local));
}

#[test]
fn a_store_that_fails_for_ever_ends_the_attempt_on_record() {
    check_ends_on_record("synchronous");
}

#[test]
fn it_does_so_beside_training_too() {
    check_ends_on_record("asynchronous");
}

#[test]
fn a_slow_store_is_waited_for() {
    let cloud = Cloud::new();
    let run = wide(2, STORE, |_| {});
    // 13 MB a checkpoint: more than five seconds, after which a line tells.
    cloud.proxy.limit(Some(1_500_000));
    let trained = cloud.train(&run).expect_code(0);
    trained.expect_message(&["Uploading", "bytes"]);
    let entries = run.entries();
    let committed = of_kind(&entries, "checkpoint.durably_committed");
    let slowest = committed.iter().filter_map(|entry| entry["body"]["obs"]["duration_us"].as_u64()).max();
    assert!(slowest.is_some_and(|micros| micros > 2_000_000), "the limit was felt: {slowest:?}");
    accepted(&run);
}

#[test]
fn a_store_that_cannot_be_asked_costs_no_checkpoint() {
    let cloud = Cloud::new();
    let run = small(20, STORE, |_| {});
    cloud.proxy.strike(Fate::Refused, u32::MAX, "s00000008-a1");
    let _ = cloud.train_within(&run, 2).expect_code(1);
    // On another machine, while the store says nothing at all.
    let other = run.copy();
    fs::remove_dir_all(other.path().join("checkpoints")).expect("there was a working folder");
    let before = other.entries().len();
    cloud.proxy.strike(Fate::Refused, u32::MAX, "");
    cloud.train_within(&other, 2).expect_code(2).expect_message(&["503", "limit of 2 s", "hint:"]);
    assert_eq!(other.entries().len(), before, "nothing was decided, and nothing recorded");
    let mut explain = cloud.command(other.path(), &["resume", "--explain", "--ledger", "run.db"]);
    explain.env("CHECKPOINT_STORE_TIMEOUT_S", "2");
    let _ = programs::finish(explain).expect_code(2);
    cloud.proxy.heal();
    cloud.train(&other).expect_code(0).expect_message(&["Fetched", "RESUMING", "s00000006-a1"]);
    assert_eq!(of_kind(&other.entries(), "checkpoint.quarantined").len(), 0);
    let _ = cloud.checkpoint(&other, &["fetch", "--all"]).expect_code(0);
    accepted(&other);
}

#[test]
fn what_the_environment_lacks_is_said_before_anything_is_recorded() {
    let cloud = Cloud::new();
    let run = small(2, STORE, |_| {});
    let before = run.entries().len();
    let check = |variable: &str, value: Option<&str>, words: &[&str]| {
        let mut command = cloud.command(run.path(), &["run", "--ledger", "run.db"]);
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
        let refused = programs::finish(command).expect_code(2);
        refused.expect_message(&[&[variable, "hint:"], words].concat());
        for secret in [SECRET, KEY_NAME, TOKEN] {
            assert!(!refused.to_string().contains(secret), "{refused}");
        }
        assert_eq!(run.entries().len(), before);
    };
    check("AWS_ACCESS_KEY_ID", None, &["is not set"]);
    check("AWS_SECRET_ACCESS_KEY", None, &["is not set"]);
    check("AWS_ENDPOINT_URL", Some("http://203.0.113.7:9000"), &["http to another machine"]);
    check("CHECKPOINT_STORE_TIMEOUT_S", Some("soon"), &["whole seconds"]);
    // The control: with nothing changed it trains.
    let _ = cloud.train(&run).expect_code(0);
}
