//! `ledger init`: a folder with everything that a freeze needs.
//!
//! Nothing is made before every input was read and checked
//! ([`crate::inputs`]). The plaintext of the sealed set never lies in the
//! folder: it is built in a private temporary folder and removed once it is
//! sealed.

use std::path::Path;
use std::time::Instant;

use corpus::build::{Build, BuildRequest, build};
use corpus::examples::{self, ShardBytes};
use corpus::ngram::Trigram;
use ledger::freeze::{FreezeRequest, check};
use schemas::data::Split;
use serde_json::{Value, json};

use super::freeze;
use crate::arguments::InitArguments;
use crate::failure::{Failure, OrFail};
use crate::inputs::{self, BaselineStream, Inputs};
use crate::key_folder;
use crate::membership::PREREGISTRATION;
use crate::output::{count, print, print_json, say, say_done, write_file};
use crate::template::{self, CARD, CONTRACT, DATA_FOLDER, PARAMETERS, SEALED};

pub(crate) fn run(arguments: &InitArguments) -> Result<u8, Failure> {
    if let Some(contract) = &arguments.check {
        return run_check(contract, arguments.json);
    }
    let started = Instant::now();
    let Some(output) = &arguments.output else {
        return Err(Failure::new("no folder is named", "name one with --output"));
    };
    let Inputs {
        baseline: stream,
        build: request,
        card,
        code,
        mut contract,
        external,
        keys,
        parameters,
        preregistration,
        private,
    } = Inputs::read(arguments, output)?;
    make_folder(output)?;
    let made = key_folder::make_missing(&keys)?;
    key_folder::say_made(&keys, &made);
    contract["keys"] = serde_json::to_value(key_folder::contract_keys(&keys)?)?;
    let build = build_data(&request, output, &mut contract)?;
    // The plaintext of the sealed set goes with it.
    drop(private);
    say(format!(
        "Built {} train and {} val examples from {} shards, and sealed the qualification text.",
        count(build.num_train_examples),
        count(build.num_val_examples),
        build.manifest.shards.len()
    ));
    if let Some(stream) = stream {
        contract["quality_target"] = baseline(&build, &stream, &output.join(DATA_FOLDER))?;
    }
    write_file(&output.join(CARD), &card, false)?;
    write_file(&output.join(PARAMETERS), &parameters, false)?;
    if let Some(external) = &external {
        external.write(output)?;
    }
    if let Some(preregistration) = preregistration {
        write_file(&output.join(PREREGISTRATION), &preregistration, false)?;
    }
    say(format!("Bound {} {}, code {}.", code.package, code.version, code.digest));
    inputs::edit_filled(arguments, &mut contract)?;
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

/// Builds shards, manifest and tables, and seals what is held out.
fn build_data(request: &BuildRequest, output: &Path, contract: &mut Value) -> Result<Build, Failure> {
    let hint = "make room, or name a folder that can be written";
    let build = build(request).or_hint(hint)?;
    if let Some(held_out) = &build.qualification {
        let recipient = contract["keys"]["qualifier_recipient"].as_str().unwrap_or_default();
        let sealed =
            corpus::seal::seal_file(&held_out.path, recipient, &output.join(SEALED)).or_hint(hint)?;
        contract["qualification"]["plaintext"] = serde_json::to_value(sealed.plaintext)?;
    }
    Ok(build)
}

/// The quality target: what an interpolated byte 3-gram model, fitted on the
/// train split, scores on the examples of the selection stream.
fn baseline(build: &Build, stream: &BaselineStream, data: &Path) -> Result<Value, Failure> {
    let BaselineStream { name, num_examples } = stream;
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
