//! `trainer checkpoint` and `trainer resume --explain` on what runs left.

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::folder::{LONG, RunFolder, flip_last_byte};
use crate::retention::{keep, long_with};

fn json_of(folder: &RunFolder, arguments: &[&str], code: i32) -> Result<Value> {
    let arguments = [arguments, &["--ledger", "run.db", "--json"]].concat();
    let finished = folder.trainer(&arguments)?.expect(code);
    Ok(serde_json::from_str(&finished.stdout)?)
}

/// A run that was killed at step 25, with what a crash in a save leaves.
fn killed() -> Result<RunFolder> {
    let folder = long_with(keep(1, None, 1, &[]), 10, |_| ())?;
    let mut training = folder.start()?;
    training.wait_for_step(25)?.send(Signal::KILL)?;
    training.finish()?;
    let store = folder.path().join("checkpoints");
    std::fs::create_dir(store.join(".staging-s00000030-a1-99"))?;
    std::fs::write(store.join(".staging-s00000030-a1-99/manifest.json"), "{}")?;
    std::fs::create_dir(store.join("s00000099-a1"))?;
    Ok(folder)
}

#[test]
fn the_list_is_numeric_and_derived_from_the_entries_wherever_the_folder_is() -> Result<()> {
    let folder = killed()?;
    let moved = folder.moved()?;
    let list = json_of(&moved, &["checkpoint", "list"], 0)?;
    let rows = list["checkpoints"].as_array().context("a list")?;
    let column = |name: &str| -> Vec<Value> { rows.iter().map(|row| row[name].clone()).collect() };
    assert_eq!(column("step"), [json!(0), json!(10), json!(20)]);
    assert_eq!(column("stage"), [json!("validated"), json!("retired"), json!("validated")]);
    assert_eq!(column("complete"), [json!(true), json!(false), json!(true)]);
    assert_eq!(column("best"), [json!(false), json!(false), json!(true)]);
    assert_eq!(column("candidate"), [json!(false), json!(true), json!(true)]);
    assert_eq!(rows[1]["kept"], json!(["model"]));
    assert!(rows.iter().all(|row| row["problem"].is_null()), "{rows:?}");
    assert!(rows[2]["value"].is_f64());
    // What lies in the store and was never validated is no checkpoint.
    let leftovers: Vec<&Value> = list["leftovers"].as_array().context("a list")?.iter().collect();
    assert_eq!(leftovers[0]["name"], ".staging-s00000030-a1-99");
    assert_eq!(leftovers[1], &json!({"name": "s00000099-a1", "what": "not a checkpoint of this run"}));

    // A request without a stage is in flight; a missing file is a problem.
    std::fs::remove_file(moved.path().join("checkpoints/s00000020-a1/optimizer.safetensors"))?;
    let text = moved.trainer(&["checkpoint", "list", "--ledger", "run.db"])?.expect(0).stdout;
    assert!(text.contains("PROBLEM: optimizer.safetensors"), "{text}");
    assert!(text.contains("only the model is left"), "{text}");
    Ok(())
}

#[test]
fn inspecting_shows_classes_shards_tensors_and_what_a_retirement_took() -> Result<()> {
    let folder = killed()?;
    let inspection = json_of(&folder, &["checkpoint", "inspect", "s00000010-a1"], 0)?;
    assert_eq!(inspection["stage"], "retired");
    assert_eq!(inspection["shards_kept"], json!(["config.json", "model.safetensors"]));
    let classes = inspection["manifest"]["classes"].as_array().context("classes")?;
    assert!(classes.iter().any(|class| class["not_applicable"] == "counter_based_randomness"));
    let committed = folder.bodies("checkpoint.durably_committed")?;
    assert_eq!(inspection["classes"], committed[1]["det"]["classes"]);
    let text =
        folder.trainer(&["checkpoint", "inspect", "s00000010-a1", "--ledger", "run.db"])?.expect(0).stdout;
    for part in ["optimizer.safetensors", "(removed by the retirement)", "model.embed_tokens.weight", "F32"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    let unknown = folder.trainer(&["checkpoint", "inspect", "s9", "--ledger", "run.db"])?.expect(2);
    unknown.says("knows no checkpoint s9").says("hint: ");
    Ok(())
}

#[test]
fn verifying_names_every_file_that_differs_with_both_digests() -> Result<()> {
    let folder = killed()?;
    let verification = json_of(&folder, &["checkpoint", "verify", "--all"], 0)?;
    assert_eq!(verification["num_differences"], 0);
    assert_eq!(verification["checkpoints"].as_array().map(Vec::len), Some(3));
    // The payload of one, the end of another, and all of a third.
    let store = folder.path().join("checkpoints");
    let flipped = store.join("s00000020-a1/optimizer.safetensors");
    flip_last_byte(&flipped)?;
    std::fs::write(store.join("s00000020-a1/topology.json"), "{}")?;
    std::fs::remove_file(store.join("s00000010-a1/model.safetensors"))?;
    let verification = json_of(&folder, &["checkpoint", "verify", "--all"], 1)?;
    assert_eq!(verification["num_differences"], 3);
    let of_last = &verification["checkpoints"][2];
    assert_eq!(of_last["checkpoint"], "s00000020-a1");
    let difference = &of_last["differences"][0];
    assert!(difference["file"].as_str().is_some_and(|file| file.ends_with("optimizer.safetensors")));
    assert_eq!(difference["actual"], crate::common::digest_of(&std::fs::read(&flipped)?).to_string());
    assert_ne!(difference["actual"], difference["expected"]);
    // One by its name, and the others are not looked at.
    let one = json_of(&folder, &["checkpoint", "verify", "s00000000-a1"], 0)?;
    assert_eq!(one["checkpoints"].as_array().map(Vec::len), Some(1));
    folder.trainer(&["checkpoint", "verify", "--ledger", "run.db"])?.expect(2);
    Ok(())
}

#[test]
fn a_difference_is_named_by_class_tensor_element_and_distance() -> Result<()> {
    let folder = killed()?;
    let same = json_of(&folder, &["checkpoint", "diff", "s00000020-a1", "s00000020-a1"], 0)?;
    assert_eq!(same["equal"], true);
    // One bit of one element of one moment, in a folder outside the store.
    let store = folder.path().join("checkpoints");
    let copy = folder.path().join("copy");
    std::fs::create_dir(&copy)?;
    for item in std::fs::read_dir(store.join("s00000020-a1"))? {
        let item = item?;
        std::fs::copy(item.path(), copy.join(item.file_name()))?;
    }
    let changed = copy.join("optimizer.safetensors");
    let mut bytes = std::fs::read(&changed)?;
    // The last element of the last tensor: little-endian, so its lowest byte.
    let lowest = bytes.len() - 4;
    bytes[lowest] ^= 1;
    std::fs::write(&changed, bytes)?;
    let text = std::fs::read_to_string(copy.join("scheduler.json")).unwrap_or_default();
    let cursor = std::fs::read_to_string(copy.join("data_cursor.json"))?;
    std::fs::write(copy.join("data_cursor.json"), cursor.replace("\"step\":20", "\"step\":21"))?;
    let diff = json_of(&folder, &["checkpoint", "diff", "s00000020-a1", &copy.to_string_lossy()], 1)?;
    let classes = diff["classes"].as_array().context("classes")?;
    let of = |name: &str| classes.iter().find(|class| class["class"] == name).cloned().unwrap_or_default();
    assert_eq!(of("model")["equal"], true);
    let first = &of("optimizer")["first"];
    assert_eq!(first["shard"], "optimizer.safetensors");
    assert_eq!(first["distance"]["num_different"], 1);
    assert_eq!(first["distance"]["max_ulp"], 1);
    assert!(first["place"].as_str().is_some_and(|name| name.ends_with("exp_avg_sq")), "{first}");
    assert_eq!(of("data_cursor")["first"]["place"], "/step");
    assert_eq!(of("data_cursor")["first"]["what"], "20 against 21");
    assert!(text.is_empty() || text.contains("step"));

    // Two steps differ in their weights; what a retirement took is known by digest.
    let diff = json_of(&folder, &["checkpoint", "diff", "s00000010-a1", "s00000020-a1"], 1)?;
    let classes = diff["classes"].as_array().context("classes")?;
    let of = |name: &str| classes.iter().find(|class| class["class"] == name).cloned().unwrap_or_default();
    assert_eq!(of("model")["equal"], false);
    assert!(of("model")["first"]["distance"]["num_different"].as_u64().is_some_and(|num| num > 1));
    assert!(of("optimizer")["first"]["what"].as_str().is_some_and(|what| what.contains("cannot be read")));
    assert_eq!(of("topology")["equal"], true);
    assert_eq!(of("rng_cpu")["equal"], true);
    folder.trainer(&["checkpoint", "diff", "s00000010-a1", "s00000020-a1"])?.expect(2).says("--ledger");
    Ok(())
}

#[test]
fn pruning_says_first_what_it_would_do_and_then_does_only_that() -> Result<()> {
    // The attempt stops before anything newer than step 20 lets step 10 go: the
    // policy of the contract keeps three, of which the initial one is no matter.
    let folder = long_with(keep(1, None, 1, &[]), 20, |_| ())?;
    let mut training = folder.start()?;
    training.wait_for_step(35)?.send(Signal::TERM)?;
    training.finish()?.expect(143);
    let before = folder.entries()?;
    let dry = json_of(&folder, &["checkpoint", "prune", "--dry-run"], 0)?;
    assert_eq!(dry["retired"], json!([]), "the run retired as it went");
    let kept: Vec<&Value> = dry["kept"].as_array().context("kept")?.iter().collect();
    assert_eq!(kept[0]["protections"], json!(["initial"]));
    assert_eq!(
        kept[1],
        &json!({"checkpoint": "s00000020-a1", "protections": ["among_best", "best"], "step": 20})
    );
    assert_eq!(kept[2]["protections"], json!(["among_last", "latest_validated", "last_finite"]), "{kept:?}");
    assert_eq!(folder.entries()?, before, "a dry run writes nothing");
    folder.trainer(&["checkpoint", "prune", "--ledger", "run.db"])?.expect(0);
    assert_eq!(folder.entries()?, before, "there was nothing to do");
    let other = folder.path().join("other-keys");
    ledger::keys::KeyRing::generate(&other, ledger::keys::Role::Trainer)?;
    let keys = other.to_string_lossy().into_owned();
    folder.trainer(&["checkpoint", "prune", "--ledger", "run.db", "--keys", &keys])?.expect(2).says("key");
    folder.train()?.expect(0);
    assert_eq!(folder.entries()?.last().map(|entry| entry.body.kind().name()), Some("run.end"));
    Ok(())
}

#[test]
fn the_explanation_of_a_resume_is_what_the_resume_then_does() -> Result<()> {
    let folder = killed()?;
    let before = folder.entries()?;
    let explained = json_of(&folder, &["resume", "--explain"], 0)?;
    assert_eq!(folder.entries()?, before, "it changes nothing");
    assert_eq!((&explained["checkpoint"], &explained["from_step"]), (&json!("s00000020-a1"), &json!(20)));
    let last = before.iter().rfind(|entry| entry.body.kind().name() == "step");
    let last = last.and_then(|entry| entry.header.step).context("steps were recorded")?;
    let again = if last > 20 { json!([21, last]) } else { Value::Null };
    assert_eq!(explained["re_executes"], again);
    let classes = explained["classes"].as_array().context("classes")?;
    let of = |name: &str| {
        let found = classes.iter().find(|class| class["class"] == name);
        found.and_then(|class| class["source"].as_str()).unwrap_or_default().to_owned()
    };
    assert!(of("optimizer").starts_with("optimizer.safetensors (blake3:"), "{classes:?}");
    assert_eq!(of("rng_cpu"), "not applicable: counter_based_randomness");

    // The newest is damaged: an older one, and why.
    std::fs::remove_file(folder.path().join("checkpoints/s00000020-a1/manifest.json"))?;
    let explained = json_of(&folder, &["resume", "--explain"], 0)?;
    assert_eq!(explained["checkpoint"], "s00000000-a1");
    let unusable: Vec<&Value> = explained["unusable"].as_array().context("a list")?.iter().collect();
    assert_eq!(unusable[0]["checkpoint"], "s00000020-a1");
    assert!(unusable[0]["reason"].as_str().is_some_and(|reason| reason.contains("manifest.json")));
    assert_eq!(
        (&unusable[1]["checkpoint"], &unusable[1]["reason"]),
        (&json!("s00000010-a1"), &json!("retired"))
    );
    folder.train()?.expect(0).says("checkpoint s00000000-a1 (step 0)");
    let text = folder.trainer(&["resume", "--explain", "--ledger", "run.db"])?.expect(0).stdout;
    assert!(text.contains("has ended"), "{text}");
    assert_eq!(folder.bodies("run.end")?[0]["det"]["last_step"], LONG);
    Ok(())
}
