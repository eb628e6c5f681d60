//! The freeze is made again, the sealed set is opened early, roles are one.

use anyhow::{Context, Result, ensure};
use ledger::canonical::contract_json;
use ledger::create::{FrozenArtifact, create_run_ledger};
use ledger::keys::Role;
use ledger::reader::Reader;
use schemas::digest::Digest;
use serde_json::{Value, json};
use system_tests::forgery::Forgery;
use system_tests::run_folder::RunFolder;

use super::{Attacked, Kept, at, handed_off, keys};

/// The owner signs a contract that differs from the run's; the ledger of the new
/// freeze, in the run's folder. The commands of the project would refuse some of
/// these; a forger calls what lies below them.
fn frozen_anew(run: &RunFolder, edit: impl FnOnce(&mut Value)) -> Result<Forgery> {
    let reader = Reader::open(&run.ledger())?;
    let frozen = &run.entries()[0]["body"]["det"];
    let mut contract: Value = serde_json::from_str(frozen["contract"].as_str().context("a contract")?)?;
    edit(&mut contract);
    let listed = frozen["artifacts"].as_array().context("artifacts")?;
    let artifacts = listed.iter().map(|artifact| {
        let digest = serde_json::from_value(artifact["digest"].clone())?;
        let pointer = artifact["pointer"].as_str().context("a pointer")?.to_owned();
        Ok(FrozenArtifact { pointer, bytes: reader.artifact(&digest)? })
    });
    let artifacts: Vec<FrozenArtifact> = artifacts.collect::<Result<_>>()?;
    let path = run.path().join("again.db");
    let owner = keys(run)?.get(Role::Owner)?;
    create_run_ledger(&path, &contract_json(&contract)?, &artifacts, &owner, "forger 1.0")?;
    let forgery = Forgery::open(&path)?;
    for name in ["again.db", "again.db.head"] {
        std::fs::remove_file(run.path().join(name))?;
    }
    Ok(forgery)
}

pub(super) fn into_the_ledger() -> Result<Attacked> {
    let run = RunFolder::trained();
    let kept = Kept::of(&run)?;
    let mut second =
        frozen_anew(&run, |contract| contract["stopping"]["step"] = json!(10))?.entries.remove(0);
    let mut forgery = Forgery::open(&run.ledger())?;
    second["run"] = forgery.entries[0]["run"].clone();
    // Before the end, where it would be in force.
    let end = forgery.entries.iter().position(|entry| entry["kind"] == "candidate.selected");
    let end = end.context("a selection")?;
    second["time_us"] = forgery.entries[end]["time_us"].clone();
    forgery.entries.insert(end, second);
    forgery.seal(Some(&keys(&run)?))?;
    Ok(Attacked::new(run, kept))
}

/// The first run's outcomes are known; a shorter one is frozen and shown.
pub(super) fn as_a_new_run() -> Result<Attacked> {
    let first = RunFolder::tiny();
    let second = first.copy();
    let _ = first.freeze().expect_code(0);
    let kept = Kept::of(&first)?;
    let _ = first.train().expect_code(0);
    second.edit_contract(|contract| {
        contract["stopping"]["step"] = json!(10);
        contract["budget"]["max_steps"] = json!(10);
    });
    let _ = second.freeze().expect_code(0);
    let _ = second.train().expect_code(0);
    Ok(Attacked::new(second, kept))
}

pub(super) fn opened_on_record() -> Result<Attacked> {
    let run = RunFolder::trained();
    let kept = Kept::of(&run)?;
    let mut forgery = Forgery::open(&run.ledger())?;
    *at(forgery.last("eval")?, "/body/det/split")? = json!("qualification");
    forgery.seal(Some(&keys(&run)?))?;
    Ok(Attacked::new(run, kept))
}

/// The set is opened on a copy with everything that its opening takes, the
/// number is seen, and the copy is thrown away.
pub(super) fn opened_in_private() -> Result<Attacked> {
    let run = RunFolder::trained();
    let kept = Kept::of(&run)?;
    let copy = handed_off_copy(&run)?;
    let value = qualify(&copy)?;
    ensure!(value["result"]["value"].as_f64().is_some_and(|bits| bits > 0.0), "nothing was seen: {value:#}");
    drop(copy);
    // The qualifier's own ledger says that the set was never opened.
    let official = qualify(&handed_off_copy(&run)?)?;
    ensure!(official["num_earlier_openings"] == json!(0), "{official:#}");
    ensure!(official["result"]["value"] == value["result"]["value"], "another number");
    Ok(Attacked::new(run, kept))
}

fn handed_off_copy(run: &RunFolder) -> Result<RunFolder> {
    let copy = run.copy();
    super::hand_off(&copy);
    Ok(copy)
}

/// What the qualification signed.
fn qualify(run: &RunFolder) -> Result<Value> {
    let finished = run.evaluator_command("qualify", &["--ledger", "run.db", "--json"]).expect_code(0);
    let printed = finished.json();
    let predicate = printed.get("predicate").cloned();
    predicate.with_context(|| format!("a predicate in {printed:#}"))
}

/// The whole run under a contract in which the trainer qualifies itself: every
/// entry names the other freeze, and every head is signed again.
pub(super) fn one_key() -> Result<Attacked> {
    let run = RunFolder::trained();
    let kept = Kept::of(&run)?;
    let trainer = keys(&run)?.get(Role::Trainer)?.public_hex();
    let again = frozen_anew(&run, |contract| contract["keys"]["qualifier"]["public"] = json!(trainer))?;
    let mut forgery = Forgery::open(&run.ledger())?;
    let (old, new) = (forgery.entries[0].clone(), again.entries[0].clone());
    let text =
        |entry: &Value, pointer: &str| entry.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let mut changes = Vec::new();
    for pointer in ["/run", "/body/det/digest"] {
        let pair = text(&old, pointer).zip(text(&new, pointer));
        changes.push(pair.with_context(|| format!("no text at {pointer}"))?);
    }
    // The manifests name run and contract too.
    for item in std::fs::read_dir(run.path().join("checkpoints"))? {
        let file = item?.path().join("manifest.json");
        let before = std::fs::read_to_string(&file)?;
        let after = changes.iter().fold(before.clone(), |text, (old, new)| text.replace(old, new));
        std::fs::write(&file, &after)?;
        let digest = |text: &str| Digest::blake3(*blake3::hash(text.as_bytes()).as_bytes()).to_string();
        forgery.replace(&digest(&before), &digest(&after))?;
    }
    for (old, new) in &changes {
        forgery.replace(old, new)?;
    }
    forgery.entries[0] = new;
    forgery.entries[0]["time_us"] = old["time_us"].clone();
    forgery.seal(Some(&keys(&run)?))?;
    Ok(Attacked::new(run, kept))
}

pub(super) fn two_keys() -> Result<Attacked> {
    let run = handed_off()?;
    let kept = Kept::of(&run)?;
    let independence = run.report()["independence"]["status"].clone();
    ensure!(independence == "not established", "{independence}");
    Ok(Attacked::new(run, kept))
}
