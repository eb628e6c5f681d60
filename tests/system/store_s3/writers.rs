//! Two writers of one checkpoint: whoever comes second overwrites nothing.

use super::*;
use system_tests::proxy::Fate;

const FOREIGN: &[u8] = b"{\"somebody\":\"else\"}";

/// Trains into a bucket in which somebody else's object lies, and asserts that
/// it stays, that the save failed on record, and that no shard was written.
fn check_refused(name: &str) {
    let cloud = Cloud::new();
    let run = small(2, STORE, |_| {});
    let key = format!("{}/s00000000-a1/{name}", below(&run));
    cloud.server.put(&key, FOREIGN);
    cloud.train(&run).expect_code(1).expect_message(&["is there already", name, "nothing was overwritten"]);
    assert_eq!(cloud.server.get(&key).as_deref(), Some(FOREIGN));
    let files = cloud.files(&run, "s00000000-a1");
    assert!(files.iter().all(|file| file == name || file == "writer.json"), "{files:?}");
    let entries = run.entries();
    assert_eq!(of_kind(&entries, "checkpoint.durably_committed").len(), 0);
    let failed = of_kind(&entries, "checkpoint.failed");
    assert_eq!(failed.len(), 1);
    let reason = failed[0]["body"]["obs"]["reason"].as_str().expect("a reason");
    assert!(reason.contains("is there already") && reason.contains(&key), "{reason}");
    // Nor does a folder stay behind that the record does not know.
    assert!(!run.path().join("checkpoints/s00000000-a1").exists());

    // The next attempt saves under a name of its own, and leaves the other alone.
    cloud.train(&run).expect_code(0).expect_message(&["the store holds s00000000-a1", "it stays"]);
    assert_eq!(cloud.server.get(&key).as_deref(), Some(FOREIGN));
    accepted(&run);
}

#[test]
fn a_foreign_manifest_is_not_overwritten() {
    check_refused("manifest.json");
}

#[test]
fn a_checkpoint_that_another_process_writes_is_left_to_it() {
    check_refused("writer.json");
}

#[test]
fn a_manifest_that_appears_at_the_last_moment_is_not_overwritten() {
    let cloud = Cloud::new();
    let run = small(2, STORE, |_| {});
    let key = format!("{}/s00000000-a1/manifest.json", below(&run));
    // Between the look and the conditional put there is nothing but the latter.
    let (server, bucket_key) = (cloud.server.address, format!("/{BUCKET}/{key}"));
    let injected = bucket_key.clone();
    cloud.proxy.before_each(move |line| {
        if line == format!("PUT {injected}") {
            system_tests::object_server::put(server, &injected, FOREIGN);
        }
    });
    cloud.train(&run).expect_code(1).expect_message(&["is there already", "manifest.json"]);
    assert_eq!(cloud.proxy.count(Fate::Passed, &format!("PUT {bucket_key}")), 1, "the put was made once");
    assert_eq!(cloud.server.get(&key).as_deref(), Some(FOREIGN));
    assert_eq!(of_kind(&run.entries(), "checkpoint.failed").len(), 1);

    // The next attempt has another name for it, and goes on. What somebody else
    // wrote it takes neither for a checkpoint nor away.
    cloud.proxy.before_each(|_| {});
    let resumed = cloud.train(&run).expect_code(0);
    resumed.expect_message(&["the store holds s00000000-a1", "somebody else's", "it stays"]);
    assert_eq!(cloud.server.get(&key).as_deref(), Some(FOREIGN));
    accepted(&run);
}
