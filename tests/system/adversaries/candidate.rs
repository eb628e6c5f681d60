//! The candidate's files are another's, or lie elsewhere.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use ledger::canonical::entry_json;
use schemas::digest::{Digest, decode_hex};
use schemas::report::SelectionBasis;
use serde_json::{Value, json};
use system_tests::forgery::Forgery;
use system_tests::mutations::named::invented::another_selection;
use system_tests::mutations::{Attacker, Record};
use system_tests::norms;
use system_tests::run_folder::{RunFolder, copy_folder};

use super::{Attacked, Kept, at, audit, candidate_folder, hand_off, handed_off, keys};

/// The model of a checkpoint.
const MODEL: &str = "model.safetensors";

pub(super) fn swapped() -> Result<Attacked> {
    let run = handed_off()?;
    let kept = Kept::of(&run)?;
    let candidate = candidate_folder(&run)?;
    let folders = std::fs::read_dir(run.path().join("checkpoints"))?.flatten().map(|item| item.path());
    let other = folders.into_iter().find(|folder| *folder != candidate && folder.join(MODEL).is_file());
    std::fs::copy(other.context("another checkpoint")?.join(MODEL), candidate.join(MODEL))?;
    Ok(Attacked::new(run, kept))
}

pub(super) fn foreign_files() -> Result<Attacked> {
    let run = RunFolder::trained();
    let kept = Kept::of(&run)?;
    let other = RunFolder::with(&["/seeds/initialization=\"99\""]);
    let _ = other.freeze().expect_code(0);
    let _ = other.train().expect_code(0);
    let (from, to) = (candidate_folder(&other)?.join(MODEL), candidate_folder(&run)?.join(MODEL));
    ensure!(std::fs::read(&from)? != std::fs::read(&to)?, "one model");
    std::fs::copy(from, to)?;
    Ok(Attacked::new(run, kept))
}

/// Another run by the same team, under the same keys.
fn sibling(run: &RunFolder, edit: impl FnOnce(&mut Value)) -> RunFolder {
    let sibling = run.copy();
    sibling.edit_contract(edit);
    let _ = sibling.freeze().expect_code(0);
    let _ = sibling.train().expect_code(0);
    sibling
}

pub(super) fn foreign_handoff() -> Result<Attacked> {
    let run = RunFolder::tiny();
    let other = sibling(&run, |contract| contract["seeds"]["data_order"] = json!("99"));
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    for run in [&run, &other] {
        hand_off(run);
    }
    let kept = Kept::of(&run)?;
    for name in ["run.db.handoff.dsse.json", "run.db.report.dsse.json"] {
        std::fs::copy(other.path().join(name), run.path().join(name))?;
    }
    Ok(Attacked::new(run, kept))
}

fn blake3_of(bytes: &[u8]) -> Digest {
    Digest::blake3(*blake3::hash(bytes).as_bytes())
}

/// Digest of a state class, from its shards (FORMAT, "State digests").
fn class_digest(class: &Value) -> Result<Digest> {
    let mut covered = Vec::new();
    for shard in class["shards"].as_array().context("shards")? {
        let digest: Digest = serde_json::from_value(shard["digest"].clone())?;
        covered.extend_from_slice(shard["path"].as_str().context("a path")?.as_bytes());
        covered.push(0);
        covered.extend(decode_hex(&digest.hex()).context("a digest")?);
    }
    Ok(blake3_of(&covered))
}

/// Puts other bytes into a shard of the newest checkpoint, and their digests and
/// sizes in the place of the old ones in its manifest and in every entry.
fn put_shard(forgery: &mut Forgery, folder: &Path, (class, path): (&str, &str), bytes: &[u8]) -> Result<()> {
    let file = folder.join("manifest.json");
    let before = std::fs::read(&file)?;
    let mut manifest: Value = serde_json::from_slice(&before)?;
    ensure!(entry_json(&manifest)? == before, "the manifest has another form");
    let classes = manifest["classes"].as_array_mut().context("classes")?;
    let class = classes.iter_mut().find(|given| given["class"] == class).context("the class")?;
    let old_class = class_digest(class)?;
    let shards = class["shards"].as_array_mut().context("shards")?;
    let shard = shards.iter_mut().find(|shard| shard["path"] == path).context("the shard")?;
    let (old, new): (Digest, Digest) = (serde_json::from_value(shard["digest"].clone())?, blake3_of(bytes));
    ensure!(old != new, "these bytes are there already");
    let old_size = shard["num_bytes"].as_u64().context("a size")? + before.len() as u64;
    (shard["digest"], shard["num_bytes"]) = (json!(new), json!(bytes.len()));
    let new_class = class_digest(class)?;
    let after = entry_json(&manifest)?;
    std::fs::write(folder.join(path), bytes)?;
    std::fs::write(&file, &after)?;
    // Entries name the model's file; of other classes only their digest.
    if path == MODEL {
        forgery.replace(&old.to_string(), &new.to_string())?;
    }
    forgery.replace(&old_class.to_string(), &new_class.to_string())?;
    forgery.replace(&blake3_of(&before).to_string(), &blake3_of(&after).to_string())?;
    let new_size = (bytes.len() + after.len()) as u64;
    for (kind, pointer) in [
        ("checkpoint.durably_committed", "/body/obs/num_bytes"),
        ("attempt.end", "/body/obs/cost/checkpoint_bytes"),
        ("run.end", "/body/obs/cost/checkpoint_bytes"),
    ] {
        let size = at(forgery.last(kind)?, pointer)?;
        *size = json!(size.as_u64().context("a size")? + new_size - old_size);
    }
    Ok(())
}

/// Another candidate than the one that was handed off: the last bit of one of its
/// weights is another, in its files and wherever the record names them.
fn other_candidate(run: &RunFolder) -> Result<Forgery> {
    let mut forgery = Forgery::open(&run.ledger())?;
    let folder = run.path().join(newest(&mut forgery)?);
    ensure!(folder == candidate_folder(run)?, "an older candidate is the best");
    let mut weights = std::fs::read(folder.join(MODEL))?;
    // Nothing that is measured changes by it.
    let last = weights.len() - 4;
    weights[last] ^= 1;
    put_shard(&mut forgery, &folder, ("model", MODEL), &weights)?;
    Ok(forgery)
}

pub(super) fn swapped_on_record() -> Result<Attacked> {
    let run = handed_off()?;
    let kept = Kept::of(&run)?;
    other_candidate(&run)?.seal(Some(&keys(&run)?))?;
    Ok(Attacked::new(run, kept))
}

/// Nothing is left that says what was handed off.
pub(super) fn swapped_without_handoff() -> Result<Attacked> {
    let run = handed_off()?;
    let kept = Kept::of(&run)?;
    let mut forgery = other_candidate(&run)?;
    let issued = forgery.entries.iter().position(|entry| entry["kind"] == "handoff.issued");
    forgery.entries.truncate(issued.context("it was handed off")?);
    for name in ["run.db.handoff.dsse.json", "run.db.report.dsse.json", "run.db.val.dsse.json"] {
        std::fs::remove_file(run.path().join(name)).with_context(|| name.to_owned())?;
    }
    let _ = seal_with_norms(&run, &forgery)?;
    Ok(Attacked::new(run, kept))
}

/// Replaces the newest checkpoint's model by one that was trained for longer, and
/// signs a record in which this run made it.
fn recorded(run: &RunFolder) -> Result<()> {
    let longer = RunFolder::long(80);
    let _ = longer.freeze().expect_code(0);
    let _ = longer.train().expect_code(0);
    let weights = std::fs::read(candidate_folder(&longer)?.join(MODEL))?;
    let mut forgery = Forgery::open(&run.ledger())?;
    let folder = run.path().join(newest(&mut forgery)?);
    put_shard(&mut forgery, &folder, ("model", MODEL), &weights)?;
    forgery.clone().seal(Some(&keys(run)?))?;
    // The forger measures as the evaluator does, so that nobody contradicts.
    let _ = run.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let step = forgery.last("checkpoint.durably_committed")?["step"].clone();
    let measured = measured(run, &step)?;
    let path = "selection_state.json";
    let mut state: Value = serde_json::from_slice(&std::fs::read(folder.join(path))?)?;
    ensure!(state["best_step"] == step, "an older candidate is the best");
    state["best_value"] = measured["value"].clone();
    put_shard(&mut forgery, &folder, ("selection_state", path), &entry_json(&state)?)?;
    for entry in &mut forgery.entries {
        let is_of_step = entry["step"] == step;
        match entry["kind"].as_str() {
            Some("eval") if is_of_step => {
                *at(entry, "/body/det/total_nats")? = measured["total_nats"].clone();
                *at(entry, "/body/det/value")? = measured["value"].clone();
            }
            Some("candidate.admitted" | "candidate.selected") if is_of_step => {
                *at(entry, "/body/det/value")? = measured["value"].clone();
            }
            _ => {}
        }
    }
    ensure!(seal_with_norms(run, &forgery)? > 0, "the norms of this run's weights fit the other's");
    Ok(())
}

/// Seals, and writes the norms that an audit derives from the files; returns how
/// many were others.
fn seal_with_norms(run: &RunFolder, forgery: &Forgery) -> Result<usize> {
    let keys = keys(run)?;
    let (_, _, num_written) = norms::fit(forgery.entries.clone(), |entries| {
        let mut forged = forgery.clone();
        forged.entries = entries.to_vec();
        forged.seal(Some(&keys))?;
        Ok(((), audit(run, &[])?))
    })?;
    Ok(num_written)
}

/// The evaluator's own number of the candidate of a step.
fn measured(run: &RunFolder, step: &Value) -> Result<Value> {
    let entries = system_tests::dump::entries(&run.path().join("qualification.db"))?;
    let found = entries
        .into_iter()
        .rfind(|entry| entry["kind"] == "qualification.val" && entry["body"]["det"]["step"] == *step);
    Ok(found.context("the evaluator measured it")?["body"]["det"].clone())
}

pub(super) fn recorded_later() -> Result<Attacked> {
    let run = RunFolder::trained();
    let kept = Kept::of(&run)?;
    recorded(&run)?;
    Ok(Attacked::new(run, kept))
}

pub(super) fn recorded_at_once() -> Result<Attacked> {
    let run = RunFolder::trained();
    recorded(&run)?;
    let kept = Kept::of(&run)?;
    Ok(Attacked::new(run, kept))
}

/// The run with values by which another candidate was selected, signed again.
fn invented(run: &RunFolder) -> Result<RunFolder> {
    let mut record = Record::open(run.path())?;
    another_selection(&mut record)?;
    let sealed = record.seal(Attacker::Trainer)?;
    // What is sealed shares its unchanged files with the run that it was read from.
    let forged = run.copy();
    copy_folder(sealed.path(), forged.path())?;
    Ok(forged)
}

pub(super) fn values_invented() -> Result<Attacked> {
    let run = RunFolder::trained();
    let _ = run.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let kept = Kept::of(&run)?;
    Ok(Attacked::new(invented(&run)?, kept))
}

/// The evaluator's numbers disagree, and go; what is left is refused by `ledger
/// handoff` and accepted by an audit.
pub(super) fn values_unchecked() -> Result<Attacked> {
    let run = invented(&RunFolder::trained())?;
    let kept = Kept::of(&run)?;
    let _ = run.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let disagrees = audit(&run, &[])?.findings.iter().any(|finding| finding.code == "GL508");
    ensure!(disagrees, "the evaluator finds the values that were invented");
    std::fs::remove_file(run.path().join("run.db.val.dsse.json"))?;
    ensure!(audit(&run, &[])?.selection_basis == SelectionBasis::Trainer, "somebody checked the values");
    let refused = run.ledger_command("handoff", &[]);
    refused.expect_complaint(1, "run.db", &["the trainer's own numbers", "evaluator val"]);
    Ok(Attacked::new(run, kept))
}

/// Folder of the newest checkpoint, as its entry names it.
fn newest(forgery: &mut Forgery) -> Result<String> {
    let path =
        forgery.last("checkpoint.durably_committed")?["body"]["obs"]["path"].as_str().map(str::to_owned);
    path.context("a path")
}

pub(super) fn path_recorded() -> Result<Attacked> {
    let run = RunFolder::trained();
    let kept = Kept::of(&run)?;
    let mut forgery = Forgery::open(&run.ledger())?;
    let path = newest(&mut forgery)?;
    let inside = run.path().file_name().context("a name")?.to_string_lossy().into_owned();
    // The very files, by a way that leaves the folder.
    let outside = format!("../{inside}/{path}");
    ensure!(run.path().join(&outside).join(MODEL).is_file(), "the path leads nowhere");
    *at(forgery.last("checkpoint.durably_committed")?, "/body/obs/path")? = json!(outside);
    forgery.seal(Some(&keys(&run)?))?;
    Ok(Attacked::new(run, kept))
}

pub(super) fn path_linked() -> Result<Attacked> {
    let run = RunFolder::trained();
    let kept = Kept::of(&run)?;
    let folder: PathBuf = run.path().join(newest(&mut Forgery::open(&run.ledger())?)?);
    let elsewhere = kept.folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere)?;
    copy_folder(&folder, &elsewhere)?;
    std::fs::remove_dir_all(&folder)?;
    symlink(&elsewhere, &folder)?;
    Ok(Attacked::new(run, kept))
}
