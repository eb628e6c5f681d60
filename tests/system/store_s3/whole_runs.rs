//! A run with a bucket is the run that it would be with a folder: killed in the
//! middle of an upload, moved to another machine, audited and qualified there.

use std::fs;

use serde_json::json;

use super::*;

const NUM_STEPS: u64 = 6;

/// Speed at which a part of 8 MiB takes ten seconds: time to be killed in it.
const SLOW: u64 = 800_000;

fn edit_seed(contract: &mut Value) {
    contract["seeds"]["data_order"] = "77".into();
}

/// Asserts that nothing that looks like a checkpoint is left of an upload.
fn check_torn(cloud: &Cloud, run: &RunFolder, checkpoint: &str) {
    let files = cloud.files(run, checkpoint);
    assert!(!files.contains(&"manifest.json".to_owned()), "{files:?}");
    assert!(files.contains(&"writer.json".to_owned()), "the upload had begun: {files:?}");
    assert!(!files.contains(&"optimizer.safetensors".to_owned()), "it was half-way: {files:?}");
    let unfinished = cloud.server.unfinished();
    assert_eq!(unfinished, [format!("{}/{checkpoint}/optimizer.safetensors", below(run))]);

    let listing = cloud.checkpoint(run, &["list", "--json"]).expect_code(0).json();
    let rows = listing["checkpoints"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["checkpoint"] == checkpoint).expect("it was announced");
    assert_eq!(row["complete"], false);
    // The entry of a stage is durable with its group, and the kill may come first.
    assert!([json!("requested"), json!("staged")].contains(&row["stage"]), "{row}");
    let leftovers = listing["leftovers"].as_array().expect("leftovers");
    let of_store = leftovers.iter().filter(|leftover| leftover["name"] == checkpoint);
    let words: Vec<&str> = of_store.filter_map(|leftover| leftover["what"].as_str()).collect();
    assert!(words.iter().any(|what| what.starts_with("in the store: an upload")), "{words:?}");
}

#[test]
fn a_run_in_a_bucket_ends_as_one_in_a_folder() {
    let local = wide(NUM_STEPS, "checkpoints", |_| {});
    let _ = local.train().expect_code(0);
    let expected = committed(&local);
    assert_eq!(expected.len(), 4, "steps 0, 2, 4 and 6");

    // Killed in the middle of a part of the optimizer's state at step 4.
    let cloud = Cloud::new();
    let run = wide(NUM_STEPS, STORE, |_| {});
    cloud.proxy.limit_from("s00000004-a1/writer.json", SLOW);
    let mut child = cloud.start_training(&run);
    wait_for("a part of the optimizer's state of step 4 is under way", || {
        cloud.proxy.is_passing("PUT s00000004-a1/optimizer.safetensors partNumber=")
    });
    child.kill().expect("a child can be killed");
    let _ = child.wait().expect("a killed child can be waited for");
    cloud.proxy.heal();
    check_torn(&cloud, &run, "s00000004-a1");
    assert_eq!(run.report()["verdict"], "incomplete");

    // Another machine: the ledger and its inputs, and no checkpoint.
    let other = run.copy();
    fs::remove_dir_all(other.path().join("checkpoints")).expect("there was a working folder");
    let resumed = cloud.train(&other).expect_code(0);
    resumed.expect_message(&[
        "Fetched s3://training-runs/team/nightly",
        "RESUMING",
        "s00000002-a1",
        "Removed incomplete s00000004-a1 from the store",
        "1 unfinished uploads, no manifest",
    ]);
    assert_eq!(cloud.server.unfinished(), Vec::<String>::new());
    assert_eq!(cloud.files(&other, "s00000004-a1"), Vec::<String>::new());
    assert_eq!(committed(&other), expected, "the same state at every step, bit for bit");

    // The cold control: another order of data is another run.
    let control = wide(NUM_STEPS, "checkpoints", edit_seed);
    let _ = control.train().expect_code(0);
    let control = committed(&control);
    assert_eq!(control[&0]["model"], expected[&0]["model"], "the initial state is the same");
    assert_ne!(control[&NUM_STEPS]["model"], expected[&NUM_STEPS]["model"]);

    // In parts, by the server's own word: two for the optimizer's state.
    let folder = format!("{}/s00000006-a2", below(&other));
    let mark = cloud.server.mark(&format!("{folder}/optimizer.safetensors"));
    assert!(mark.ends_with("-2"), "{mark}");
    let mark = cloud.server.mark(&format!("{folder}/manifest.json"));
    assert!(!mark.contains('-'), "{mark}");
    let stored = cloud.server.get(&format!("{folder}/optimizer.safetensors"));
    let here = other.path().join("checkpoints/s00000006-a2/optimizer.safetensors");
    assert!(stored == Some(fs::read(here).expect("a working copy")), "the same bytes");

    // What nobody may read is nowhere: neither in the ledger nor beside it.
    for name in ["run.db", "run.db-wal", "run.db.head", "checkpoints/s00000006-a2/manifest.json"] {
        let Ok(bytes) = fs::read(other.path().join(name)) else { continue };
        for secret in [SECRET, KEY_NAME, TOKEN] {
            assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()), "{name}");
        }
    }

    // Audited, evaluated, handed off and qualified from what was fetched.
    // Only what was resumed from is here so far.
    assert_eq!(other.report()["verdict"], "not_evaluated");
    let _ = cloud.checkpoint(&other, &["fetch", "--all"]).expect_code(0);
    let mine = accepted(&other)["projection"].clone();
    assert_eq!(mine, accepted(&local)["projection"]);
    fs::rename(other.path().join("checkpoints"), other.path().join("elsewhere")).expect("it can be moved");
    assert_eq!(other.report()["verdict"], "not_evaluated");
    let fetched = cloud.checkpoint(&other, &["fetch", "--all", "--json"]).expect_code(0).json();
    assert_eq!(fetched["checkpoints"].as_array().map(Vec::len), Some(4));
    accepted(&other);
    let _ = other.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let _ = other.audit(&["--save"]).expect_code(0);
    let _ = other.ledger_command("handoff", &[]).expect_code(0);
    let handoff = ["--ledger", "run.db", "--handoff", "run.db.handoff.dsse.json"];
    let _ = other.evaluator_command("qualify", &handoff).expect_code(0);
}

#[test]
fn an_asynchronous_run_uploads_beside_training() {
    let local = small(20, "checkpoints", |_| {});
    let _ = local.train().expect_code(0);
    let cloud = Cloud::new();
    let run = small(20, STORE, |contract| contract["checkpoints"]["mode"] = "asynchronous".into());
    cloud.proxy.limit(Some(100_000));
    let _ = cloud.train(&run).expect_code(0);
    assert_eq!(committed(&run), committed(&local));
    accepted(&run);
    let entries = run.entries();
    let place = |kind: &str, step: u64| {
        let is_it = |entry: &&Value| entry["kind"] == kind && entry["step"] == step;
        entries.iter().find(is_it).and_then(|entry| entry["index"].as_u64()).expect("it is on record")
    };
    // The update after a save is on record before the store has acknowledged it.
    let is_beside =
        (2..20).step_by(2).any(|step| place("step", step + 1) < place("checkpoint.durably_committed", step));
    assert!(is_beside, "no update was made beside an upload");
}
