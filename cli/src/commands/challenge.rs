//! `ledger challenge`: draws segments of a run, compares a replay of them with
//! the record, and checks the opening of one tensor.
//!
//! All of it is the validator's (`validator::challenge`); here a nonce is drawn,
//! files are written and results printed and signed.

use std::io::Read;
use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use ledger::canonical::entry_json;
use ledger::dsse;
use ledger::reader::Reader;
use schemas::challenge::{ChallengeOutcome, SegmentUnit, TrainingWitness};
use schemas::digest::encode_hex;
use schemas::dsse::TRAINING_WITNESS_PAYLOAD_TYPE;
use serde_json::json;
use validator::challenge::{
    ChallengeError, DrawRequest, OpeningRequest, VerifyRequest, challenge_text, check_opening,
    draw_challenge, verify, witness_text,
};

use crate::failure::{FINDINGS, Failure, OrFail};
use crate::output::{print, print_json, say, say_done, write_file, write_out};

use super::audit;

/// Exit code where nothing is contradicted and something was not compared.
const INCOMPLETE: u8 = 4;

/// Bytes of a nonce that is drawn here.
const NONCE_BYTES: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnitArgument {
    /// Neighbouring checkpoints; a segment whose first one was retired is unverifiable.
    Adjacent,
    /// Checkpoints that can be resumed from; segments go over retired ones.
    Resumable,
}

impl From<UnitArgument> for SegmentUnit {
    fn from(argument: UnitArgument) -> Self {
        match argument {
            UnitArgument::Adjacent => Self::AdjacentCheckpoints,
            UnitArgument::Resumable => Self::ResumableCheckpoints,
        }
    }
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["segments", "verify", "opening"])))]
pub(crate) struct ChallengeArguments {
    /// The ledger: `run.db`.
    pub(crate) ledger: PathBuf,
    /// Draw so many segments into --output.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) segments: Option<u64>,
    /// Your own nonce, 32 to 128 hex digits, named after the head was kept [default: 64 digits from the system].
    #[arg(long, value_name = "HEX", requires = "segments")]
    pub(crate) nonce: Option<String>,
    /// Between which checkpoints segments lie.
    #[arg(long, value_enum, default_value_t = UnitArgument::Adjacent, requires = "segments")]
    pub(crate) between: UnitArgument,
    /// The challenge to make; never overwritten.
    #[arg(long, value_name = "FILE", default_value = "challenge.json", requires = "segments")]
    pub(crate) output: PathBuf,
    /// Compare a replay with the record and the checkpoints, and say what that shows.
    #[arg(long, num_args = 2, value_names = ["CHALLENGE", "REPLAY"])]
    pub(crate) verify: Option<Vec<PathBuf>>,
    /// Sign the training witness manifest with the validator's key, into `<ledger>.training-witness.dsse.json`.
    #[arg(long, requires = "verify")]
    pub(crate) save: bool,
    /// Sign it into this file instead.
    #[arg(long, value_name = "FILE", requires = "verify")]
    pub(crate) save_to: Option<PathBuf>,
    /// Folder of the validator's key [default: $LEDGER_KEYS, else `keys` beside the ledger].
    #[arg(long, value_name = "DIR", requires = "verify")]
    pub(crate) keys: Option<PathBuf>,
    /// Check the proof that `trainer checkpoint open` wrote of one tensor.
    #[arg(long, value_name = "FILE")]
    pub(crate) opening: Option<PathBuf>,
    /// The tensor's elements, to be compared with the proof.
    #[arg(long, value_name = "FILE", requires = "opening")]
    pub(crate) tensor: Option<PathBuf>,
    /// A head that was kept elsewhere; with --verify it has to be the challenge's [default: the last of `<ledger>.head`].
    #[arg(long, value_name = "FILE")]
    pub(crate) head: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(arguments: &ChallengeArguments) -> Result<u8, Failure> {
    match (arguments.segments, arguments.verify.as_deref(), &arguments.opening) {
        (Some(num_drawn), _, _) => draw(arguments, num_drawn),
        (_, Some([challenge, replay]), _) => compare(arguments, challenge, replay),
        (_, _, Some(opening)) => open(arguments, opening),
        _ => Err(Failure::new("nothing was asked for", "give --segments, --verify or --opening")),
    }
}

/// A failure that says whether something was found.
fn explain(error: ChallengeError, ledger: &std::path::Path) -> Failure {
    let is_finding = error.is_finding();
    let failure = Failure::from(error);
    if is_finding {
        failure.into_findings(ledger, "compare with another copy of the ledger")
    } else {
        failure.with_hint("name a regular file that is there and can be read")
    }
}

fn draw(arguments: &ChallengeArguments, num_drawn: u64) -> Result<u8, Failure> {
    let output = &arguments.output;
    if output.exists() {
        let message = format!("{} exists and is not overwritten", output.display());
        return Err(Failure::new(message, "name another file with --output, or move it away"));
    }
    let nonce = match &arguments.nonce {
        Some(nonce) => nonce.clone(),
        None => fresh_nonce()?,
    };
    let request = DrawRequest {
        head: arguments.head.clone(),
        ledger: arguments.ledger.clone(),
        nonce,
        num_drawn,
        unit: arguments.between.into(),
    };
    let challenge = draw_challenge(&request).map_err(|error| explain(error, &arguments.ledger))?;
    write_file(output, &entry_json(&challenge)?, false)?;
    if arguments.json {
        print(serde_json::to_string_pretty(&challenge)?)?;
    } else {
        write_out(challenge_text(&challenge).as_bytes())?;
    }
    if arguments.nonce.is_none() {
        say("The nonce was drawn from the system's randomness just now.");
    }
    if arguments.head.is_none() {
        say(
            "The head is the newest beside the ledger. The draw binds the trainer only if the head was out of its hands before the nonce was named: keep one, and name it with --head.",
        );
    }
    say(format!(
        "next: trainer replay --ledger {} --challenge {}",
        arguments.ledger.display(),
        output.display()
    ));
    Ok(0)
}

/// A nonce from the system.
fn fresh_nonce() -> Result<String, Failure> {
    let mut bytes = [0; NONCE_BYTES];
    let hint = "give your own with --nonce";
    let mut source = std::fs::File::open("/dev/urandom").or_fail("drawing a nonce", hint)?;
    source.read_exact(&mut bytes).or_fail("drawing a nonce", hint)?;
    Ok(encode_hex(&bytes))
}

fn compare(
    arguments: &ChallengeArguments,
    challenge: &std::path::Path,
    replay: &std::path::Path,
) -> Result<u8, Failure> {
    let started = Instant::now();
    let ledger = &arguments.ledger;
    let beside = audit::beside(ledger, ".training-witness.dsse.json");
    let target = audit::save_target(arguments.save_to.as_deref(), arguments.save, beside);
    // Before anything is computed, as an audit does.
    let signer = target.as_ref().map(|(_, is_beside)| {
        let key = audit::validator_key(arguments.keys.as_deref(), ledger)?;
        if *is_beside {
            let frozen = Reader::open(ledger).and_then(|reader| reader.contract())?;
            let hint = "name the folder with the contract's keys with --keys, or another file with --save-to";
            audit::require_signer(&key, &frozen.contract, hint)?;
        }
        Ok::<_, Failure>(key)
    });
    let signer = signer.transpose()?;
    let request = VerifyRequest {
        challenge: challenge.to_owned(),
        head: arguments.head.clone(),
        ledger: ledger.clone(),
        replay: replay.to_owned(),
    };
    let witness = verify(&request).map_err(|error| explain(error, ledger))?;
    if arguments.json {
        print(serde_json::to_string_pretty(&witness)?)?;
    } else {
        write_out(witness_text(&witness).as_bytes())?;
    }
    say_done(format!("Compared {} segments", witness.results.len()), started);
    if arguments.head.is_none() {
        say(
            "The challenge's head was looked for beside the ledger, where the trainer keeps it: name the one that you kept with --head.",
        );
    }
    if let (Some((path, is_beside)), Some(signer)) = (target, signer) {
        let payload = entry_json(&witness)?;
        let envelope = dsse::sign(TRAINING_WITNESS_PAYLOAD_TYPE, &payload, &signer);
        write_file(&path, &entry_json(&envelope)?, is_beside)?;
        say(format!("Signed the training witness manifest with {} into {}.", signer.id(), path.display()));
    }
    Ok(exit_code(&witness))
}

const fn exit_code(witness: &TrainingWitness) -> u8 {
    match witness.outcome {
        ChallengeOutcome::Consistent => 0,
        ChallengeOutcome::Contradicted => FINDINGS,
        ChallengeOutcome::Incomplete => INCOMPLETE,
    }
}

fn open(arguments: &ChallengeArguments, opening: &std::path::Path) -> Result<u8, Failure> {
    let request = OpeningRequest {
        head: arguments.head.clone(),
        ledger: arguments.ledger.clone(),
        opening: opening.to_owned(),
        tensor: arguments.tensor.clone(),
    };
    let opened = check_opening(&request).map_err(|error| explain(error, &arguments.ledger))?;
    let found = &opened.opening;
    let name = found.leaf.name.as_deref().unwrap_or(&found.leaf.path);
    if arguments.json {
        print_json(
            "opening",
            json!({
                "checkpoint": found.checkpoint, "compared_bytes": opened.has_bytes, "entry": found.entry,
                "head_size": opened.head_size, "leaf": found.leaf, "root": found.root, "step": found.step
            }),
        )?;
    } else {
        print(format!("tensor    {name} of {} (step {})", found.checkpoint, found.step))?;
        print(format!("digest    {}", found.leaf.digest))?;
        print(format!(
            "root      {} (entry {}, head of size {})",
            found.root, found.entry, opened.head_size
        ))?;
        let word = if opened.has_bytes { "compared with the digest" } else { "not given (--tensor FILE)" };
        print(format!("elements  {word}"))?;
    }
    Ok(0)
}
