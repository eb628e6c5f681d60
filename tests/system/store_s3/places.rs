//! Where checkpoints are, and whether they are what they should be: list, verify,
//! fetch, and retention in the bucket.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use super::*;

fn places(cloud: &Cloud, run: &RunFolder) -> Vec<(String, Value, Value)> {
    let listing = cloud.checkpoint(run, &["list", "--json"]).expect_code(0).json();
    assert_eq!(listing["store_is_url"], true);
    let rows = listing["checkpoints"].as_array().expect("rows");
    let row = |row: &Value| {
        let name = row["checkpoint"].as_str().expect("a name").to_owned();
        (name, row["places"].clone(), row["problem"].clone())
    };
    rows.iter().map(row).collect()
}

#[test]
fn a_flipped_bit_in_the_bucket_is_found() {
    let cloud = Cloud::new();
    let run = small(2, STORE, |_| {});
    let _ = cloud.train(&run).expect_code(0);
    let both = json!(["local", "store"]);
    for (name, places, problem) in places(&cloud, &run) {
        assert_eq!((places, problem), (both.clone(), Value::Null), "{name}");
    }
    let _ = cloud.checkpoint(&run, &["verify", "--all"]).expect_code(0);

    let folder = format!("{}/s00000002-a1", below(&run));
    for name in ["model.safetensors", "manifest.json", "data_cursor.json"] {
        let key = format!("{folder}/{name}");
        let honest = cloud.server.get(&key).expect("it was uploaded");
        let mut flipped = honest.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        cloud.server.put(&key, &flipped);

        let verified = cloud.checkpoint(&run, &["verify", "s00000002-a1", "--json"]).expect_code(1).json();
        let differences = verified["checkpoints"][0]["differences"].as_array().expect("differences").clone();
        assert_eq!(differences.len(), 1, "{differences:?}");
        assert_eq!(differences[0]["file"], format!("s3://{BUCKET}/{key}"));

        // Nothing of it is left where it was fetched to.
        let fetched = cloud.checkpoint(&run, &["fetch", "s00000002-a1", "--to", "fetched"]).expect_code(1);
        fetched.expect_message(&[name, "expected", "hint:"]);
        let left = fs::read_dir(run.path().join("fetched")).expect("the folder was made");
        assert_eq!(left.count(), 0);

        // Nor does a bare machine go on from it: there it is an older one.
        let bare = run.copy();
        fs::remove_dir_all(bare.path().join("checkpoints")).expect("a working folder");
        let explained = cloud.trainer(&bare, &["resume", "--explain", "--ledger", "run.db"]);
        explained.clone().expect_code(0).expect_message(&["s00000002-a1 cannot be fetched", name]);
        assert!(explained.stdout.contains("s00000000-a1"), "{explained}");
        cloud.server.put(&key, &honest);
    }
    // What the run itself has is as it was.
    accepted(&run);
    let fetched = cloud.checkpoint(&run, &["fetch", "s00000002-a1", "--to", "fetched"]).expect_code(0);
    assert!(fetched.stdout.contains("Fetched: s00000002-a1"), "{fetched}");
    let again = cloud.checkpoint(&run, &["fetch", "--all", "--to", "fetched"]).expect_code(0);
    assert!(again.stdout.contains("Already there: s00000002-a1"), "{again}");
    let model = |folder: &str| fs::read(run.path().join(folder).join("s00000002-a1/model.safetensors"));
    assert_eq!(model("fetched").expect("fetched"), model("checkpoints").expect("made here"));
}

#[test]
fn a_damaged_copy_is_fetched_again() {
    let cloud = Cloud::new();
    let run = small(20, STORE, |_| {});
    cloud.proxy.strike(system_tests::proxy::Fate::Refused, u32::MAX, "s00000008-a1");
    let _ = cloud.train_within(&run, 2).expect_code(1);
    cloud.proxy.heal();
    let model = run.path().join("checkpoints/s00000006-a1/model.safetensors");
    let mut bytes = fs::read(&model).expect("a working copy");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&model, bytes).expect("it can be written");
    cloud.train(&run).expect_code(0).expect_message(&["fetching it again", "RESUMING", "s00000006-a1"]);
    assert_eq!(of_kind(&run.entries(), "checkpoint.quarantined").len(), 0, "the bucket has it");
    accepted(&run);
}

#[test]
fn retention_reaches_the_bucket() {
    let cloud = Cloud::new();
    let run = small(20, STORE, |contract| {
        contract["checkpoints"]["keep"] =
            json!({"kind": "chosen", "best": 1, "every_steps": null, "last": 1, "pinned": [6]});
    });
    let _ = cloud.train(&run).expect_code(0);
    accepted(&run);
    let entries = run.entries();
    let retired = of_kind(&entries, "checkpoint.retired");
    assert!(retired.len() >= 5, "{} were retired", retired.len());
    for entry in &retired {
        let id = entry["body"]["obs"]["checkpoint"].as_str().expect("a name");
        let mut expected = vec!["manifest.json", "writer.json"];
        if entry["body"]["det"]["kept"] == json!(["model"]) {
            expected.extend(["config.json", "model.safetensors"]);
        }
        expected.sort_unstable();
        assert_eq!(cloud.files(&run, id), expected, "{id}");
    }
    assert!(cloud.files(&run, "s00000006-a1").contains(&"optimizer.safetensors".to_owned()), "pinned");

    // On a machine that has nothing yet, everything that stays is fetched.
    fs::remove_dir_all(run.path().join("checkpoints")).expect("a working folder");
    for (name, places, problem) in places(&cloud, &run) {
        assert_eq!((places, problem), (json!(["store"]), Value::Null), "{name}");
    }
    let _ = cloud.checkpoint(&run, &["verify", "--all"]).expect_code(0);
    let _ = cloud.checkpoint(&run, &["fetch", "--all"]).expect_code(0);
    accepted(&run);
}

#[test]
fn an_audit_without_the_files_says_what_to_fetch() {
    let cloud = Cloud::new();
    let run = small(4, STORE, |_| {});
    let _ = cloud.train(&run).expect_code(0);
    accepted(&run);
    fs::remove_dir_all(run.path().join("checkpoints")).expect("a working folder");
    let report = run.report();
    assert_eq!(report["verdict"], "not_evaluated", "{:#}", report["findings"]);
    let rules = report["rules"].as_array().expect("rules");
    let rule = rules.iter().find(|rule| rule["code"] == "GL110").expect("it is in the catalogue");
    assert_eq!(rule["status"], "not_evaluated", "{rule}");
    let reason = rule.to_string();
    assert!(reason.contains("trainer checkpoint fetch --all") && reason.contains(STORE), "{reason}");
    let _ = cloud.checkpoint(&run, &["fetch", "--all"]).expect_code(0);
    accepted(&run);
    // One that was not fetched is none that is gone, and a file that is gone is.
    fs::remove_dir_all(run.path().join("checkpoints/s00000002-a1")).expect("a checkpoint");
    let report = run.report();
    assert_eq!(report["verdict"], "not_evaluated", "{:#}", report["findings"]);
    assert!(report["rules"].to_string().contains("s00000002-a1: not in `checkpoints`"), "{report}");
    let _ = cloud.checkpoint(&run, &["fetch", "s00000002-a1"]).expect_code(0);
    accepted(&run);
    fs::remove_file(run.path().join("checkpoints/s00000002-a1/model.safetensors")).expect("a file");
    assert_eq!(run.report()["verdict"], "tampered");
}

#[test]
fn a_dry_run_of_a_pruning_says_what_would_go_from_the_bucket() {
    let cloud = Cloud::new();
    let run = small(12, STORE, |contract| {
        contract["checkpoints"]["keep"] =
            json!({"kind": "chosen", "best": 1, "every_steps": null, "last": 1, "pinned": []});
    });
    let _ = cloud.train(&run).expect_code(0);
    let planned = || cloud.checkpoint(&run, &["prune", "--dry-run", "--json"]).expect_code(0).json();
    assert_eq!(planned()["unfinished"], json!([]));

    // A shard that a retirement took is there again.
    let entries = run.entries();
    let retired = of_kind(&entries, "checkpoint.retired");
    let id = retired.first().expect("one was retired")["body"]["obs"]["checkpoint"].as_str().expect("a name");
    let key = format!("{}/{id}/optimizer.safetensors", below(&run));
    let before = cloud.server.keys();
    cloud.server.put(&key, b"bytes of a shard");
    let said = planned();
    let unfinished = said["unfinished"].as_array().expect("a list");
    assert_eq!(unfinished.len(), 1, "{said:#}");
    assert_eq!(unfinished[0]["checkpoint"], id);
    assert_eq!(unfinished[0]["removes"], json!([]), "nothing of it is here");
    assert_eq!(unfinished[0]["removes_in_store"], json!([format!("s3://{BUCKET}/{key}")]));
    assert!(cloud.server.get(&key).is_some(), "a dry run removes nothing");
    let _ = cloud.checkpoint(&run, &["prune"]).expect_code(0);
    assert_eq!(cloud.server.keys(), before);
    assert_eq!(planned()["unfinished"], json!([]));
}

#[test]
fn what_only_the_bucket_has_is_fetched_to_be_looked_at() {
    let cloud = Cloud::new();
    let run = small(4, STORE, |_| {});
    let _ = cloud.train(&run).expect_code(0);
    let folder = run.path().join("checkpoints");
    fs::remove_dir_all(&folder).expect("a working folder");
    let inspected = cloud.checkpoint(&run, &["inspect", "s00000002-a1", "--json"]).expect_code(0).json();
    assert_eq!(inspected["manifest"]["step"], 2);
    assert!(folder.join("s00000002-a1/model.safetensors").is_file());
    let differs = cloud.checkpoint(&run, &["diff", "s00000000-a1", "s00000004-a1", "--json"]).expect_code(1);
    assert_eq!(differs.json()["equal"], false);
    let _ = cloud.checkpoint(&run, &["diff", "s00000004-a1", "s00000004-a1"]).expect_code(0);

    // Where the store has it no more, or does not answer, that is said.
    fs::remove_dir_all(&folder).expect("a working folder");
    cloud.proxy.strike(system_tests::proxy::Fate::Refused, u32::MAX, "s00000002-a1");
    let mut command =
        cloud.command(run.path(), &["checkpoint", "inspect", "s00000002-a1", "--ledger", "run.db"]);
    command.env("CHECKPOINT_STORE_TIMEOUT_S", "2");
    let refused = programs::finish(command).expect_code(2);
    refused.expect_message(&["s00000002-a1 is not here", "trainer checkpoint fetch", "hint:"]);
    cloud.proxy.heal();
    assert!(!folder.join("s00000002-a1").exists());
}

/// No audit reads through a link what would be fetched through it. A folder that
/// somebody names may be anywhere.
#[test]
fn nothing_is_fetched_through_a_link() {
    let cloud = Cloud::new();
    let run = small(2, STORE, |_| {});
    let _ = cloud.train(&run).expect_code(0);
    let (folder, moved) = (run.path().join("checkpoints"), run.path().join("moved"));
    let refused = |arguments: &[&str], link: &str| {
        let refused = cloud.checkpoint(&run, arguments).expect_code(2);
        let said = format!("{link} is a symbolic link");
        refused.expect_message(&[&said, "hint: put what it leads to in its place"]);
    };
    fs::remove_dir_all(folder.join("s00000002-a1")).expect("a checkpoint");
    fs::rename(&folder, &moved).expect("a working folder");
    symlink(&moved, &folder).expect("a link");
    for arguments in [["fetch", "--all"], ["fetch", "s00000002-a1"], ["inspect", "s00000002-a1"]] {
        refused(&arguments, "checkpoints");
    }
    assert!(!moved.join("s00000002-a1").exists(), "nothing came through the link");
    let _ = cloud.checkpoint(&run, &["fetch", "--all", "--to", "checkpoints"]).expect_code(0);
    fs::remove_file(&folder).expect("a link");
    fs::rename(&moved, &folder).expect("a folder");

    // Nor is one called there that lies behind one.
    fs::rename(folder.join("s00000002-a1"), &moved).expect("it was fetched");
    symlink(&moved, folder.join("s00000002-a1")).expect("a link");
    refused(&["fetch", "--all"], "s00000002-a1");
    fs::remove_file(folder.join("s00000002-a1")).expect("a link");
    fs::rename(&moved, folder.join("s00000002-a1")).expect("a folder");
    let _ = cloud.checkpoint(&run, &["fetch", "--all"]).expect_code(0);
    accepted(&run);
}

#[test]
fn what_a_killed_fetch_left_goes_with_the_next_one() {
    let cloud = Cloud::new();
    let run = small(2, STORE, |_| {});
    let _ = cloud.train(&run).expect_code(0);
    let folder = run.path().join("checkpoints");
    fs::remove_dir_all(folder.join("s00000002-a1")).expect("a checkpoint");
    // A fetch that gets on no further, and is killed there.
    cloud.proxy.strike(system_tests::proxy::Fate::Refused, u32::MAX, "s00000002-a1/optimizer.safetensors");
    let arguments = ["checkpoint", "fetch", "s00000002-a1", "--ledger", "run.db"];
    let mut command = cloud.command(run.path(), &arguments);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let left = folder.join(format!(".staging-s00000002-a1-{}", child.id()));
    wait_for("a shard was fetched", || left.join("model.safetensors").is_file());
    // As long as it lives, another one leaves its folder alone.
    let _ = cloud.checkpoint(&run, &["fetch", "s00000000-a1"]).expect_code(0);
    assert!(left.is_dir());
    child.kill().expect("a child can be killed");
    let _ = child.wait().expect("a killed child can be waited for");
    cloud.proxy.heal();
    // Neither a folder of a checkpoint that nobody committed, nor another file.
    let kept = folder.join(".staging-s00000009-a1-77");
    fs::create_dir(&kept).expect("a folder");
    assert!(left.is_dir());
    let fetched = cloud.checkpoint(&run, &["fetch", "s00000002-a1"]).expect_code(0);
    fetched.expect_message(&["removed", ".staging-s00000002-a1"]);
    assert!(!left.exists() && kept.is_dir());
    accepted(&run);
}

#[test]
fn a_qualified_checkpoint_that_only_the_bucket_has_is_gone_on_from() {
    let cloud = Cloud::new();
    let run = small(12, STORE, |contract| {
        contract["faults"]["recovery"] = json!("restart_from_last_qualified");
    });
    cloud.proxy.strike(system_tests::proxy::Fate::Refused, u32::MAX, "s00000008-a1");
    let _ = cloud.train_within(&run, 2).expect_code(1);
    cloud.proxy.heal();
    let probe = ["probe", "--ledger", "run.db", "--checkpoint", "s00000004-a1", "--quiet"];
    let _ = cloud.trainer(&run, &probe).expect_code(0);
    fs::remove_dir_all(run.path().join("checkpoints")).expect("a working folder");
    let finished = cloud.train(&run).expect_code(0);
    finished.expect_message(&["RESUMING", "from checkpoint s00000004-a1", "s00000006-a1 is newer"]);
    assert!(!run.path().join("checkpoints/s00000006-a1").exists(), "of others nothing is decided");
    let _ = cloud.checkpoint(&run, &["fetch", "--all"]).expect_code(0);
    accepted(&run);
}
