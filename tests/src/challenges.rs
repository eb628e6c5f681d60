//! Forged runs for segment challenges: complete ledgers, put together again with
//! the trainer's keys, in which some updates were not what is on record.
//!
//! All hashes, heads, checkpoints and evaluations agree, the updates behind the
//! forged ones are the trainer's own, and an audit accepts each: what it can
//! derive is as it should be. Nothing here knows how a challenge is compared;
//! whether a forgery is caught is the question.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::mutations::{Attacker, Record, Sealed, report};
use crate::norms;
use crate::programs::{self, Finished, LEDGER, TRAINER};
use crate::run_folder::RunFolder;

/// Updates between two checkpoints of a run that is forged.
pub const EVERY_STEPS: u64 = 2;
/// Updates of a run that is forged.
pub const NUM_STEPS: u64 = 20;

/// How some updates of a run are forged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgery {
    /// A state that was never computed: halfway between its neighbours.
    InterpolatedWeights,
    /// Updates by twice the rate that is on record.
    OtherRate,
    /// Updates by another optimizer than the card's.
    SubstitutedOptimizer,
    /// Updates on other examples than those on record.
    SwappedData,
}

impl Forgery {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 4] =
        [Self::InterpolatedWeights, Self::SwappedData, Self::OtherRate, Self::SubstitutedOptimizer];

    /// Name in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InterpolatedWeights => "interpolated weights",
            Self::OtherRate => "another learning rate",
            Self::SubstitutedOptimizer => "a substituted optimizer",
            Self::SwappedData => "swapped data",
        }
    }

    /// Numbers of the segments whose updates do not come to what is on record.
    #[must_use]
    pub fn forged(self) -> BTreeSet<u64> {
        match self {
            // Into the state that was made up, and out of it.
            Self::InterpolatedWeights => BTreeSet::from([3, 4]),
            Self::OtherRate => BTreeSet::from([0]),
            Self::SwappedData => BTreeSet::from([0, 1]),
            Self::SubstitutedOptimizer => BTreeSet::from([0, 1, 2]),
        }
    }

    /// The last forged step of a run whose first updates are forged.
    fn last_step(self) -> u64 {
        self.forged().len() as u64 * EVERY_STEPS
    }
}

/// The contract that all of them are forged under.
fn contract(contract: &mut Value) {
    contract["budget"]["max_steps"] = json!(NUM_STEPS);
    contract["stopping"]["step"] = json!(NUM_STEPS);
    contract["checkpoints"]["every_steps"] = json!(EVERY_STEPS);
    contract["evaluation"]["streams"][0]["every_steps"] = json!(EVERY_STEPS);
}

/// A run of that contract, trained to its end: nothing is forged.
#[must_use]
pub fn honest() -> RunFolder {
    let run = RunFolder::tiny();
    run.edit_contract(contract);
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    run
}

/// What the forger really executed: another contract, which nobody gets to see.
fn executed(forgery: Forgery) -> Result<RunFolder> {
    let run = RunFolder::tiny();
    let mut card = None;
    run.edit_contract(|value| {
        contract(value);
        match forgery {
            Forgery::OtherRate => {
                for group in value["schedule"].as_array_mut().into_iter().flatten() {
                    for name in ["peak", "floor"] {
                        let rate = group["shape"][name].as_f64().unwrap_or_default();
                        group["shape"][name] = json!(rate * 2.0);
                    }
                }
            }
            Forgery::SwappedData => value["seeds"]["data_order"] = json!("12345"),
            Forgery::SubstitutedOptimizer | Forgery::InterpolatedWeights => {
                card = value["update"]["card"]["path"].as_str().map(str::to_owned);
                value["update"]["card"]["digest"] = Value::Null;
                value["update"]["card"]["num_bytes"] = Value::Null;
            }
        }
    });
    if let Some(path) = card {
        let path = run.path().join(path);
        let mut card: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        // Without a first moment it is RMSProp.
        card["update"]["beta1"] = json!(0.0);
        std::fs::write(&path, serde_json::to_vec(&card)?)?;
    }
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    Ok(run)
}

/// A forged run, removed when this is dropped.
#[derive(Debug)]
pub struct Forged {
    /// Its folder, with ledger and checkpoints.
    pub sealed: Sealed,
}

/// Forges an honest run.
///
/// # Errors
/// When a record cannot be read or put together again, or the trainer does not go
/// on from it.
pub fn forge(honest: &RunFolder, forgery: Forgery) -> Result<Forged> {
    let mut record = Record::open(honest.path())?;
    let sealed = match forgery {
        Forgery::InterpolatedWeights => {
            interpolate(&mut record, 6, 8, 10)?;
            agree_with_the_audit(&mut record)?
        }
        _ => {
            graft(&mut record, &Record::open(executed(forgery)?.path())?, forgery.last_step())?;
            let sealed = agree_with_the_audit(&mut record)?;
            // The forger's own trainer goes on, so that everything behind is honest.
            let finished = programs::run(TRAINER, sealed.path(), &["run", "--ledger", "run.db", "--quiet"]);
            ensure!(finished.code == 0, "the trainer does not go on from the forgery\n{finished}");
            sealed
        }
    };
    Ok(Forged { sealed })
}

/// Puts the record together with the norms that an audit derives from the saved
/// bytes.
fn agree_with_the_audit(record: &mut Record) -> Result<Sealed> {
    let (sealed, _, _) = norms::fit(record.entries.clone(), |entries| {
        record.entries = entries.to_vec();
        let sealed = record.seal(Attacker::Trainer)?;
        let report = report(&sealed.ledger())?;
        Ok((sealed, report))
    })?;
    Ok(sealed)
}

/// Replaces the weights of a step by the mean of two others'.
fn interpolate(record: &mut Record, before: u64, step: u64, behind: u64) -> Result<()> {
    const NAME: &str = "model.safetensors";
    let file = |step| record.file(record.checkpoint(step)?.join(NAME));
    let (left, right) = (file(before)?, file(behind)?);
    ensure!(left.len() == right.len(), "two files of one model have one size");
    let header = left.get(..8).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
    let header = 8 + usize::try_from(header.context("a header's length")?)?;
    ensure!(left[..header] == right[..header], "two files of one model have one header");
    let mut mean = left[..header].to_vec();
    for (left, right) in left[header..].chunks_exact(4).zip(right[header..].chunks_exact(4)) {
        let value = |bytes: &[u8]| Some(f32::from_le_bytes(bytes.try_into().ok()?));
        let (left, right) = (value(left).context("four bytes")?, value(right).context("four bytes")?);
        mean.extend((0.5 * (left + right)).to_le_bytes());
    }
    record.replace_file(record.checkpoint(step)?.join(NAME), mean);
    Ok(())
}

/// Puts what another run did up to a step in the place of what this one did, under
/// this one's rates and data, and forgets what followed.
fn graft(record: &mut Record, other: &Record, last: u64) -> Result<()> {
    for step in (EVERY_STEPS..=last).step_by(usize::try_from(EVERY_STEPS)?) {
        let (own, foreign) = (record.checkpoint(step)?, other.checkpoint(step)?);
        for name in ["model.safetensors", "optimizer.safetensors", "selection_state.json"] {
            record.replace_file(own.join(name), other.file(foreign.join(name))?);
        }
        ensure!(
            record.file(own.join("data_cursor.json"))? == other.file(foreign.join("data_cursor.json"))?,
            "both consumed as many tokens"
        );
        for kind in ["eval", "candidate.admitted"] {
            let (place, there) = (record.at_step(kind, step)?, other.at_step(kind, step)?);
            let det = other.value(there, "/body/det")?.clone();
            record.set(place, "/body/det", det)?;
        }
    }
    for step in 1..=last {
        let (place, there) = (record.at_step("step", step)?, other.at_step("step", step)?);
        let mut det = other.value(there, "/body/det")?.clone();
        // What the contract determines is said as it should be.
        det["draws"] = record.value(place, "/body/det/draws")?.clone();
        let claimed = record.value(place, "/body/det/updates")?.clone();
        let updates = det["updates"].as_array_mut().context("updates by group")?;
        for (update, claimed) in updates.iter_mut().zip(claimed.as_array().into_iter().flatten()) {
            update["learning_rate"] = claimed["learning_rate"].clone();
        }
        // The first gradient is the same where only what follows it differs.
        if *record.value(place, "/body/det")? != det {
            record.set(place, "/body/det", det)?;
        }
    }
    let end = record.at_step("candidate.admitted", last)?;
    record.entries.truncate(end + 1);
    for step in (last + EVERY_STEPS..=NUM_STEPS).step_by(usize::try_from(EVERY_STEPS)?) {
        let folder = format!("s{step:08}-a1");
        for name in record.file_names()? {
            if name.components().any(|part| part.as_os_str() == folder.as_str()) {
                record.remove_file(name);
            }
        }
    }
    Ok(())
}

/// What a reviewer found by drawing every segment of a run.
#[derive(Debug, Clone)]
pub struct Reviewed {
    /// Segments that another execution contradicts.
    pub contradicted: BTreeSet<u64>,
    /// Segments that could be drawn.
    pub num_segments: u64,
    /// Root of the head.
    pub root: [u8; 32],
    /// Size of the head.
    pub size: u64,
    /// What the comparison printed.
    pub witness: Value,
}

/// A nonce that a test names.
pub const NONCE: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// `ledger challenge` with a number of segments; what it wrote is `NAME`.
#[must_use]
pub fn draw(folder: &Path, num_drawn: u64, name: &str, further: &[&str]) -> Finished {
    draw_by(folder, NONCE, num_drawn, name, further)
}

/// The same by another nonce.
fn draw_by(folder: &Path, nonce: &str, num_drawn: u64, name: &str, further: &[&str]) -> Finished {
    let number = num_drawn.to_string();
    let fixed = ["challenge", "run.db", "--segments", &number, "--output", name, "--nonce", nonce, "--json"];
    programs::run(LEDGER, folder, &[&fixed, further].concat())
}

/// `trainer replay` of a challenge.
#[must_use]
pub fn replay(folder: &Path, challenge: &str, output: &str) -> Finished {
    let arguments =
        ["replay", "--ledger", "run.db", "--challenge", challenge, "--output", output, "--quiet", "--json"];
    programs::run(TRAINER, folder, &arguments)
}

/// `ledger challenge --verify`.
#[must_use]
pub fn verify(folder: &Path, challenge: &str, replay: &str, further: &[&str]) -> Finished {
    let fixed = ["challenge", "run.db", "--verify", challenge, replay];
    programs::run(LEDGER, folder, &[&fixed, further].concat())
}

/// Draws every segment that there is, has each executed, and compares.
///
/// # Errors
/// When a program fails, or says something else than its form.
pub fn review(folder: &Path, further: &[&str]) -> Result<Reviewed> {
    // Apart from the run, whose folder may be copied and forged afterwards.
    let scratch = tempfile::TempDir::with_prefix("governed-ledger-challenge-")?;
    let named = |name: &str| scratch.path().join(name).to_string_lossy().into_owned();
    let (one, all, replayed) = (named("one.json"), named("all.json"), named("replay.json"));
    let drawn = draw(folder, 1, &one, further);
    ensure!(drawn.code == 0, "{drawn}");
    let num_segments = drawn.json()["num_segments"].as_u64().context("a number")?;
    let drawn = draw(folder, num_segments, &all, further);
    ensure!(drawn.code == 0, "{drawn}");
    let head = drawn.json()["head"].clone();
    let executed = replay(folder, &all, &replayed);
    ensure!(executed.code == 0, "{executed}");
    let verified = verify(folder, &all, &replayed, &["--json"]);
    ensure!(verified.code != 2, "{verified}");
    let witness = verified.json();
    let results = witness["results"].as_array().context("results")?;
    ensure!(results.len() as u64 == num_segments, "every segment has a result");
    let root = head["root"].as_str().context("a root")?.parse::<schemas::digest::Digest>()?;
    Ok(Reviewed {
        contradicted: contradicted(&witness)?,
        num_segments,
        root: root.bytes,
        size: head["size"].as_u64().context("a size")?,
        witness,
    })
}

/// Numbers of the segments that a manifest says are contradicted.
fn contradicted(witness: &Value) -> Result<BTreeSet<u64>> {
    let results = witness["results"].as_array().context("results")?;
    let contradicted = results.iter().filter(|result| result["outcome"] == "contradicted");
    contradicted.map(|result| result["number"].as_u64().context("a segment's number")).collect()
}

/// What became of draws that were executed and compared.
#[derive(Debug, Clone)]
pub struct Executed {
    /// Draws in which a segment was contradicted.
    pub num_caught: u32,
    /// The chance that their manifests print for so many forged segments.
    pub printed: f64,
    /// What was not as it has to be; empty where every draw was that of its nonce,
    /// and just the forged segments in it were contradicted.
    pub wrong: Vec<String>,
}

/// Draws segments so many times, each time by a nonce of its own, and has each draw
/// executed and compared, all by the programs.
///
/// # Errors
/// When a program fails, or says something else than its form.
pub fn execute(folder: &Path, reviewed: &Reviewed, num_drawn: u64, num_draws: u32) -> Result<Executed> {
    let scratch = tempfile::TempDir::with_prefix("governed-ledger-draws-")?;
    let named = |name: String| scratch.path().join(name).to_string_lossy().into_owned();
    let (mut num_caught, mut printed, mut wrong) = (0, None, Vec::new());
    for number in 0..num_draws {
        let nonce = blake3::hash(&number.to_le_bytes());
        let (challenge, replayed) = (named(format!("{number}.json")), named(format!("{number}-replay.json")));
        let drawn = draw_by(folder, nonce.to_hex().as_str(), num_drawn, &challenge, &[]);
        ensure!(drawn.code == 0, "{drawn}");
        let executed = replay(folder, &challenge, &replayed);
        ensure!(executed.code == 0, "{executed}");
        let verified = verify(folder, &challenge, &replayed, &["--json"]);
        ensure!(verified.code != 2, "{verified}");

        let drawn = drawn.json();
        let drawn = drawn["drawn"].as_array().context("what was drawn")?;
        let drawn = drawn.iter().map(|segment| segment["number"].as_u64().context("a segment's number"));
        let drawn = drawn.collect::<Result<BTreeSet<u64>>>()?;
        let places = places(reviewed, nonce.as_bytes(), num_drawn);
        if drawn != places {
            wrong.push(format!("nonce {nonce} draws {drawn:?}, and was said to draw {places:?}"));
        }
        let witness = verified.json();
        let (found, forged) = (contradicted(&witness)?, &drawn & &reviewed.contradicted);
        if found != forged || (verified.code == 1) == forged.is_empty() {
            let code = verified.code;
            wrong.push(format!(
                "of {drawn:?} {found:?} are contradicted with {code}, and {forged:?} are forged"
            ));
        }
        num_caught += u32::from(!found.is_empty());
        let chances = witness["detection"].as_array().context("chances")?;
        let of_forged = |chance: &&Value| chance["num_forged"] == reviewed.contradicted.len();
        let chance = chances.iter().find(of_forged).and_then(|chance| chance["probability"].as_f64());
        let chance = chance.context("the chance for so many forged segments")?;
        if printed.replace(chance).is_some_and(|before| before.to_bits() != chance.to_bits()) {
            wrong.push(format!("nonce {nonce} prints another chance: {chance}"));
        }
    }
    Ok(Executed { num_caught, printed: printed.context("a draw")?, wrong })
}

/// Numbers of the segments that a nonce draws.
fn places(reviewed: &Reviewed, nonce: &[u8], num_drawn: u64) -> BTreeSet<u64> {
    let Reviewed { root, size, num_segments, .. } = reviewed;
    validator::challenge::drawn_places(root, *size, nonce, *num_segments, num_drawn).into_iter().collect()
}

/// How often draws of some size meet a forged segment, over so many nonces.
#[must_use]
pub fn measured(reviewed: &Reviewed, num_drawn: u64, num_nonces: u32) -> f64 {
    let mut num_met = 0u32;
    for nonce in 0..num_nonces {
        let nonce = blake3::hash(&nonce.to_le_bytes());
        let places = places(reviewed, nonce.as_bytes(), num_drawn);
        num_met += u32::from(!places.is_disjoint(&reviewed.contradicted));
    }
    f64::from(num_met) / f64::from(num_nonces)
}
