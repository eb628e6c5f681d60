//! `ledger init`: a folder with everything that a freeze needs.
//!
//! The plaintext of the sealed set never lies in the folder: it is built in a
//! private temporary folder and removed once it is sealed.

use std::path::{Path, PathBuf};
use std::time::Instant;

use corpus::build::{
    Build, BuildRequest, FileSource, build, build_from_files, build_liber_primus, split_lines,
};
use corpus::examples::{self, ShardBytes};
use corpus::ngram::Trigram;
use corpus::texts::Shares;
use ledger::canonical::entry_json;
use ledger::freeze::{FreezeRequest, check};
use schemas::data::{LicenseClass, Split};
use schemas::policy_card::PolicyCard;
use serde_json::{Value, json};

use super::freeze;
use crate::arguments::InitArguments;
use crate::failure::{Failure, OrFail};
use crate::output::{count, print, print_json, say, say_done, write_file};
use crate::template::{self, CARD, CONTRACT, DATA_FOLDER, PARAMETERS, SEALED};
use crate::{key_folder, trainer_program};

/// The policy card that a new contract starts with.
const ADAMW: &str = include_str!("../../../policy-cards/adamw.json");

pub(crate) fn run(arguments: &InitArguments) -> Result<u8, Failure> {
    if let Some(contract) = &arguments.check {
        return run_check(contract, arguments.json);
    }
    let started = Instant::now();
    let Some(output) = &arguments.output else {
        return Err(Failure::new("no folder is named", "name one with --output"));
    };
    // What can fail without a trace comes first.
    let mut contract = edited_contract(arguments, output)?;
    let trainer = trainer_program::locate(arguments.trainer.as_deref());
    let identity = trainer_program::identity(&trainer, arguments.device.name())?;
    make_folder(output)?;
    let keys = key_folder::locate(arguments.keys.as_deref(), output);
    let made = key_folder::make_missing(&keys)?;
    key_folder::say_made(&keys, &made);
    contract["keys"] = serde_json::to_value(key_folder::contract_keys(&keys)?)?;
    let build = build_data(arguments, output, &mut contract)?;
    say(format!(
        "Built {} train and {} val examples from {} shards, and sealed the qualification text.",
        count(build.num_train_examples),
        count(build.num_val_examples),
        build.manifest.shards.len()
    ));
    if arguments.baseline || arguments.preset.has_baseline() {
        contract["quality_target"] = baseline(&build, &contract, &output.join(DATA_FOLDER))?;
    }
    let card: PolicyCard = serde_json::from_str(ADAMW)?;
    write_file(&output.join(CARD), &entry_json(&card)?, false)?;
    let parameters = trainer_program::parameters(&trainer, &contract["architecture"], &output.join(CARD))?;
    write_file(&output.join(PARAMETERS), &parameters, false)?;
    say(format!("Bound {} {}, code {}.", identity.code.package, identity.code.version, identity.code.digest));
    contract["code"] = serde_json::to_value(identity.code)?;
    contract["environment"] = serde_json::to_value(identity.environment)?;
    contract["plan"] = serde_json::to_value(identity.plan)?;
    apply_edits(arguments, &mut contract, Phase::Filled)?;
    template::add_comments(&mut contract);
    let path = output.join(CONTRACT);
    write_file(&path, format!("{}\n", serde_json::to_string_pretty(&contract)?).as_bytes(), false)?;
    let checked = match check(&FreezeRequest::new(&path)) {
        Ok(checked) => checked,
        Err(error) => return freeze::refuse(error, &path, arguments.json),
    };
    if arguments.json {
        print_json("init", json!({"contract": path, "keys": keys, "ok": true}))?;
    } else {
        print(path.display())?;
    }
    freeze::say_checked(&checked);
    say_done(format!("Made {}", output.display()), started);
    say("Every block of the contract has a $comment; edit /purpose and /retention at least.");
    say(format!("next: ledger freeze {}", path.display()));
    Ok(0)
}

/// `--check`: what a freeze would refuse, without writing.
fn run_check(contract: &Path, json: bool) -> Result<u8, Failure> {
    let started = Instant::now();
    let checked = match check(&FreezeRequest::new(contract)) {
        Ok(checked) => checked,
        Err(error) => return freeze::refuse(error, contract, json),
    };
    if json {
        print_json("init", json!({"contract": contract, "digest": checked.digest, "ok": true}))?;
    } else {
        print(format!("{}: nothing is wrong", contract.display()))?;
    }
    freeze::say_checked(&checked);
    say_done(format!("Checked {}", contract.display()), started);
    say(format!("next: ledger freeze {}", contract.display()));
    Ok(0)
}

/// An empty folder; what is there already is somebody's.
fn make_folder(output: &Path) -> Result<(), Failure> {
    let attempted = format!("making {}", output.display());
    let hint = "name a folder that can be written";
    std::fs::create_dir_all(output).or_fail(&attempted, hint)?;
    let mut listing = std::fs::read_dir(output).or_fail(&attempted, hint)?;
    if listing.next().is_some() {
        return Err(Failure::new(
            format!("{} is not empty", output.display()),
            "name a new folder with --output",
        ));
    }
    Ok(())
}

/// The preset's contract with the edits of the command line.
fn edited_contract(arguments: &InitArguments, output: &Path) -> Result<Value, Failure> {
    let folder_name = || output.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = arguments.name.clone().or_else(folder_name).unwrap_or_else(|| "run".to_owned());
    let mut contract = template::contract(arguments.preset, &name);
    let class = LicenseClass::from(arguments.license);
    contract["data"]["admitted_license_classes"] = json!([class]);
    apply_edits(arguments, &mut contract, Phase::Template)?;
    Ok(contract)
}

/// When an edit applies: data and parameters depend on most of the contract,
/// and a few blocks are filled in after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Template,
    Filled,
}

/// Blocks that are filled in after the data was built.
const FILLED: [&str; 6] = ["code", "environment", "keys", "plan", "qualification", "quality_target"];

fn apply_edits(arguments: &InitArguments, contract: &mut Value, phase: Phase) -> Result<(), Failure> {
    for edit in &arguments.set {
        let fail = |message: String| {
            Failure::new(format!("--set {edit}: {message}"), "write for example --set /batch/accumulation=4")
        };
        let (pointer, value) = template::parse_edit(edit).map_err(fail)?;
        let block = pointer.split('/').nth(1).unwrap_or_default();
        let its_phase = if FILLED.contains(&block) { Phase::Filled } else { Phase::Template };
        if its_phase == phase {
            template::apply_edit(contract, &pointer, value).map_err(fail)?;
        }
    }
    Ok(())
}

/// Builds shards, manifest and tables, and seals what is held out.
fn build_data(arguments: &InitArguments, output: &Path, contract: &mut Value) -> Result<Build, Failure> {
    let context_length = contract["architecture"]["context_length"].as_u64();
    let context_length = context_length.and_then(|length| u32::try_from(length).ok()).ok_or_else(|| {
        Failure::new(
            "/architecture/context_length is not a number of tokens",
            "set it to a number such as 64",
        )
    })?;
    let data = output.join(DATA_FOLDER);
    // Its own folder, readable by nobody else, removed at the end of this scope.
    let private = tempfile::tempdir()?;
    let held_out = private.path().join("qualification.txt");
    let hint = "give each split text of its own, with line breaks where one file is cut";
    let build = if arguments.lipsum {
        build_liber_primus(&data, &held_out, context_length).or_hint(hint)?
    } else if let Some(text) = &arguments.text {
        let source = arguments.source.clone().unwrap_or_else(|| name_of(text));
        let shards =
            split_lines(text, Shares::NINETY_FIVE_FIVE, arguments.license.into(), &source).or_hint(hint)?;
        build(&BuildRequest {
            context_length,
            folder: data,
            name: name_of(text),
            qualification: Some(held_out.clone()),
            shards,
        })
        .or_hint(hint)?
    } else {
        let name = contract["name"].as_str().unwrap_or("data").to_owned();
        build_from_files(&file_sources(arguments), &data, Some(&held_out), &name, context_length)
            .or_hint(hint)?
    };
    let recipient = contract["keys"]["qualifier_recipient"].as_str().unwrap_or_default().to_owned();
    let sealed = corpus::seal::seal_file(&held_out, &recipient, &output.join(SEALED)).or_hint(hint)?;
    contract["qualification"]["plaintext"] = serde_json::to_value(sealed.plaintext)?;
    Ok(build)
}

fn file_sources(arguments: &InitArguments) -> Vec<FileSource> {
    let splits = [
        (Split::Train, &arguments.train),
        (Split::Val, &arguments.val),
        (Split::Qualification, &arguments.qualification),
    ];
    let source = |split: Split, path: &PathBuf| FileSource {
        license_class: arguments.license.into(),
        path: path.clone(),
        source: arguments
            .source
            .clone()
            .map_or_else(|| name_of(path), |source| format!("{source}, {}", name_of(path))),
        split,
    };
    splits.into_iter().flat_map(|(split, paths)| paths.iter().map(move |path| source(split, path))).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// The quality target: what an interpolated byte 3-gram model, fitted on the
/// train split, scores on the examples of the selection stream.
fn baseline(build: &Build, contract: &Value, data: &Path) -> Result<Value, Failure> {
    let name = contract["selection"]["stream"].as_str().unwrap_or(template::STREAM);
    let streams = contract["evaluation"]["streams"].as_array();
    let stream = streams.into_iter().flatten().find(|stream| stream["name"] == name);
    let num_examples = stream.and_then(|stream| stream["num_examples"].as_u64());
    let train = ShardBytes::load(&build.manifest, data, Split::Train)?;
    let val = ShardBytes::load(&build.manifest, data, Split::Val)?;
    let indices = (0_u32..).take(build.manifest.shards.len());
    let model = Trigram::fit(indices.filter_map(|index| train.shard(index)));
    let table = examples::read(&build.val_examples.path)?;
    let num_records = num_examples.map_or(table.num_examples(), |number| {
        usize::try_from(number).unwrap_or(usize::MAX).min(table.num_examples())
    });
    let score = model.score(&table.records[..num_records], |index| val.shard(index));
    let score =
        score.ok_or_else(|| Failure::new("the val split has nothing to score", "give it more text"))?;
    say(format!(
        "Baseline: {:.4} bits per byte on {} val examples.",
        score.bits_per_byte,
        count(num_records as u64)
    ));
    Ok(json!({
        "derivation": format!(
            "Interpolated byte 3-gram model (Witten-Bell) fitted on the {} bytes of the train split, scored on the \
             same {} examples of the val split as stream {name}.",
            count(model.num_bytes()),
            count(num_records as u64)
        ),
        "stream": name,
        "threshold": score.bits_per_byte
    }))
}
