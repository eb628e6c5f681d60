//! `ledger witness`: heads that somebody else cosigns, and the somebody else.
//!
//! `add` opens the network to the URL that it is given and `serve` on the address
//! that it is given, and neither anywhere else. What a cosignature is worth is
//! said by `ledger audit`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, Subcommand};
use ledger::keys::{KeyPair, Role};
use ledger::reader::Reader;
use schemas::contract::WitnessKey;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use witness::client::{Client, ClientError};
use witness::cosigned_file;
use witness::policy::{Policy, Team};
use witness::server::{Witness, serve};
use witness::state::State;
use witness::submission::{Submission, SubmissionError, Submitted};
use witness::verifier_key::{SignatureKind, VerifierKey};

use crate::failure::{Failure, OrFail};
use crate::key_folder;
use crate::output::{count, print, print_json, say};

/// How often a run that has not ended is looked at again, to notice a signal.
const TICK: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(crate) struct WitnessArguments {
    #[command(subcommand)]
    pub(crate) command: WitnessCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WitnessCommand {
    /// Submit the newest head of a run to a witness, and keep what it cosigned in `<ledger>.cosigned`.
    ///
    /// Exit codes: 0 cosigned, now or before; 1 the witness saw another history of this run, or more of it, or gave no
    /// cosignature that holds; 2 it could not be asked.
    Add(AddArguments),
    /// Make the state of a new witness.
    Init(InitArguments),
    /// List what a witness saw: every log, and the heads that it refused.
    List(ListArguments),
    /// Be a witness: cosign heads of known keys, each only where it follows from the last one.
    Serve(ServeArguments),
}

#[derive(Debug, Args)]
pub(crate) struct AddArguments {
    /// The ledger: `run.db`.
    pub(crate) ledger: PathBuf,
    /// Address of the witness, such as http://127.0.0.1:8646.
    #[arg(long)]
    pub(crate) url: String,
    /// Which of the contract's witnesses that is [default: the one that it names].
    #[arg(long, conflicts_with = "vkey")]
    pub(crate) name: Option<String>,
    /// Verifier key of a witness that the contract does not name: NAME+HASH+KEY, as `ledger witness init` prints it.
    #[arg(long)]
    pub(crate) vkey: Option<VerifierKey>,
    /// Go on with every new head until one that covers the run's end is cosigned.
    #[arg(long)]
    pub(crate) follow: bool,
    /// Seconds between two looks at the ledger.
    #[arg(long, default_value_t = 5, value_name = "SECONDS", requires = "follow", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) interval: u64,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InitArguments {
    /// The state to make.
    #[arg(long, value_name = "FILE", default_value = "witness.db")]
    pub(crate) state: PathBuf,
    /// The witness's name in cosignatures, such as witness.example/w1.
    #[arg(long)]
    pub(crate) name: String,
    /// Folder of the witness's key, made by `ledger keygen --role witness` [default: $LEDGER_KEYS, else `keys`].
    #[arg(long, value_name = "DIR")]
    pub(crate) keys: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// The state.
    #[arg(long, value_name = "FILE", default_value = "witness.db")]
    pub(crate) state: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// The state that `ledger witness init` made.
    #[arg(long, value_name = "FILE", default_value = "witness.db")]
    pub(crate) state: PathBuf,
    /// Folder of the witness's key [default: $LEDGER_KEYS, else `keys`].
    #[arg(long, value_name = "DIR")]
    pub(crate) keys: Option<PathBuf>,
    /// Cosign ledgers of these keys: a JSON object of roles and public keys, as for `ledger audit --trust`. May be repeated.
    #[arg(long, value_name = "FILE", required_unless_present = "log")]
    pub(crate) trust: Vec<PathBuf>,
    /// Cosign this log: a verifier key NAME+HASH+KEY whose name is the log's origin. May be repeated.
    #[arg(long, value_name = "VKEY")]
    pub(crate) log: Vec<VerifierKey>,
    /// Address and port; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:8646", value_name = "ADDRESS:PORT")]
    pub(crate) listen: SocketAddr,
    /// Print the address as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(command: &WitnessCommand) -> Result<u8, Failure> {
    match command {
        WitnessCommand::Add(arguments) => add(arguments),
        WitnessCommand::Init(arguments) => init(arguments),
        WitnessCommand::List(arguments) => list(arguments),
        WitnessCommand::Serve(arguments) => be(arguments),
    }
}

fn key(keys: Option<&Path>) -> Result<KeyPair, Failure> {
    let folder = key_folder::locate(keys, Path::new(""));
    let hint = "name the folder of the witness's key with --keys; `ledger keygen --role witness --keys DIR` makes one";
    key_folder::open(&folder).or_hint(hint)?.get(Role::Witness).or_hint(hint)
}

fn init(arguments: &InitArguments) -> Result<u8, Failure> {
    let key = key(arguments.keys.as_deref())?;
    let state = State::create(&arguments.state, &arguments.name, &key.public_hex())
        .or_hint("name another file with --state, or another name")?;
    let vkey = VerifierKey {
        kind: SignatureKind::Witness,
        name: state.name().to_owned(),
        public: key.public_bytes(),
    };
    let named = WitnessKey { name: vkey.name.clone(), public: key.public_hex() };
    if arguments.json {
        print_json(
            "witness-init",
            json!({"contract": named, "state": arguments.state, "vkey": vkey.to_string()}),
        )?;
    } else {
        print(format!("vkey      {vkey}"))?;
        print(format!("contract  {}", serde_json::to_string(&named)?))?;
    }
    say(
        "A contract names the witness in /keys/witnesses with the object above, and how many have to cosign in /keys/witness_quorum.",
    );
    say(format!(
        "Losing {} is losing the witness: do not go on under this key without it.",
        arguments.state.display()
    ));
    Ok(0)
}

fn list(arguments: &ListArguments) -> Result<u8, Failure> {
    let state = State::open(&arguments.state)?;
    let (logs, refused) = (state.logs()?, state.refused()?);
    if arguments.json {
        print_json("witness-list", json!({"logs": logs, "name": state.name(), "refused": refused}))?;
        return Ok(0);
    }
    for log in &logs {
        print(format!(
            "{}  size {}  first seen {}  last {}  refused {}",
            log.origin,
            count(log.size),
            log.first_time,
            log.time,
            log.num_refused
        ))?;
    }
    for head in &refused {
        print(format!(
            "refused  {}  size {}  {}  {}",
            head.origin,
            count(head.size),
            head.time,
            head.reason
        ))?;
    }
    for (contract, num) in restarts(logs.iter().map(|log| log.origin.as_str())) {
        say(format!("{num} runs of one contract ({contract}...): it was frozen or run more than once."));
    }
    Ok(0)
}

/// Contracts, by the beginning of their digest, of which more than one run was
/// seen: a run's name begins with it.
fn restarts<'a>(origins: impl Iterator<Item = &'a str>) -> Vec<(String, usize)> {
    let mut counts = std::collections::BTreeMap::new();
    for origin in origins {
        let contract = origin.strip_prefix("governed-ledger/run/").and_then(|run| run.split_once('-'));
        if let Some((contract, _)) = contract {
            *counts.entry(contract.to_owned()).or_insert(0) += 1;
        }
    }
    counts.into_iter().filter(|(_, num)| *num > 1).collect()
}

fn be(arguments: &ServeArguments) -> Result<u8, Failure> {
    let teams = arguments.trust.iter().map(|path| Team::read(path)).collect::<Result<Vec<_>, _>>();
    let policy = Policy::new(arguments.log.clone(), teams.or_hint("name a trust file that can be read")?)?;
    let state = State::open(&arguments.state)?;
    let name = state.name().to_owned();
    let witness = Witness::new(state, key(arguments.keys.as_deref())?, policy)
        .or_hint("name the folder of this witness's own key with --keys")?;
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let mut stop = Some(stop);
        for signal in signals.forever() {
            match stop.take() {
                // Requests that have begun are answered. The server may have ended by itself.
                Some(stop) => _ = stop.send(()),
                // Whoever asks twice does not wait; what was cosigned is on disk.
                None => std::process::exit(128 + signal),
            }
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut printed = Ok(());
    let served = runtime.block_on(serve(
        arguments.listen,
        witness,
        |address| {
            let url = format!("http://{address}");
            printed = if arguments.json {
                print_json("witness-serve", json!({"name": name, "url": url}))
            } else {
                print(&url)
            };
            say(format!("Cosigning as {name}. Ctrl-C ends it."));
        },
        async move {
            // A closed channel ends the server too.
            let _ = stopped.await;
        },
    ));
    printed?;
    served.or_hint("name a free address with --listen, such as 127.0.0.1:0")?;
    Ok(0)
}

fn add(arguments: &AddArguments) -> Result<u8, Failure> {
    let witness = match &arguments.vkey {
        Some(vkey) if vkey.kind == SignatureKind::Witness => vkey.clone(),
        Some(vkey) => {
            let message = format!("{vkey} is the key of a log, which cosigns nothing");
            return Err(Failure::new(message, "`ledger witness init` prints the key of a witness"));
        }
        None => named_witness(arguments)?,
    };
    let client = Client::new(&arguments.url)?;
    let mut submission = Submission::new(&arguments.ledger, client, witness.clone());
    let stop = Arc::new(AtomicBool::new(false));
    if arguments.follow {
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
    }
    let mut told = false;
    loop {
        let submitted = match submission.submit() {
            Ok(submitted) => submitted,
            Err(error) if arguments.follow && !error.is_finding() && told => {
                // A witness that is away for a while misses heads, and no run waits for it.
                say(format!("warning: {}", with_causes(&error)));
                if !wait(arguments.interval, &stop) {
                    return Ok(stopped(&arguments.ledger));
                }
                continue;
            }
            Err(error) => return Err(explain(error, &submission, &arguments.ledger)),
        };
        tell(&submitted, &witness, arguments, told)?;
        if let Some(size) = submitted.not_here {
            say(format!(
                "{} had cosigned {} entries of this run before, and {} did not hold it. Every head that it cosigned: \
                 curl -o FILE {} (then `ledger audit --cosigned FILE`, or put it in that file's place)",
                witness.name,
                count(size),
                cosigned_file::path_for(&arguments.ledger).display(),
                submission.cosigned_url(&submitted.head.origin)
            ));
        }
        told = true;
        if !arguments.follow || submitted.is_last {
            return Ok(0);
        }
        if !wait(arguments.interval, &stop) {
            return Ok(stopped(&arguments.ledger));
        }
    }
}

fn stopped(ledger: &Path) -> u8 {
    say(format!(
        "Stopped before the end of the run was cosigned; the same command goes on with {}.",
        ledger.display()
    ));
    0
}

/// Sleeps; `false` where a signal came.
fn wait(seconds: u64, stop: &AtomicBool) -> bool {
    let until = std::time::Instant::now() + Duration::from_secs(seconds);
    while std::time::Instant::now() < until {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        std::thread::sleep(TICK);
    }
    !stop.load(Ordering::Relaxed)
}

fn with_causes(error: &SubmissionError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    text
}

fn explain(error: SubmissionError, submission: &Submission<'_>, ledger: &Path) -> Failure {
    let hint = match &error {
        SubmissionError::Ahead { origin, .. } | SubmissionError::Forked { origin, .. } => format!(
            "what it cosigned is at {}, and `ledger audit --cosigned FILE` compares the ledger with it; submit the copy \
             of the run that has those entries",
            submission.cosigned_url(origin)
        ),
        SubmissionError::Behind { .. } => {
            "keep the file, which an audit takes as it is, and ask whoever runs the witness; another witness of the \
             contract may still cosign"
                .to_owned()
        }
        SubmissionError::Client(ClientError::Answer { status: 403, .. }) => {
            "the witness knows this run, or its team, under other keys: whoever runs it names the keys of this one with \
             `ledger witness serve --trust FILE`"
                .to_owned()
        }
        SubmissionError::Client(ClientError::Answer { status: 404, .. }) => {
            "the witness knows no key of this run: whoever runs it names the team's keys with `ledger witness serve \
             --trust FILE`, or the log's own with --log; or the address is not that of a witness"
                .to_owned()
        }
        SubmissionError::Client(ClientError::Answer { status: 500..=599, .. }) => {
            "the witness could not decide, and cosigned nothing: submit again later, which asks for the same head"
                .to_owned()
        }
        _ if error.is_finding() => {
            "`ledger audit` says what is wrong with the ledger; ask the witness what it saw (`ledger witness list`)"
                .to_owned()
        }
        _ => "is the witness running at that address, and does it know the team's keys (--trust)?".to_owned(),
    };
    let is_finding = error.is_finding();
    let failure = Failure::from(error);
    if is_finding { failure.into_findings(ledger, &hint) } else { failure.with_hint(hint) }
}

fn tell(
    submitted: &Submitted,
    witness: &VerifierKey,
    arguments: &AddArguments,
    told: bool,
) -> Result<(), Failure> {
    let Submitted { head, is_known, is_last, time_s, .. } = submitted;
    if told && *is_known {
        return Ok(());
    }
    if arguments.json {
        return print_json(
            "witness-add",
            json!({
                "covers_run_end": is_last, "is_known": is_known, "root": schemas::digest::encode_hex(&head.root),
                "size": head.size, "time_s": time_s, "witness": witness.name
            }),
        );
    }
    let verb = if *is_known { "had cosigned" } else { "cosigned" };
    let end = if *is_last { ", which covers the end of the run" } else { "" };
    print(format!("{} {verb} the head of size {}{end}", witness.name, count(head.size)))
}

/// The witness of that name, or the only one, of the ledger's contract.
fn named_witness(arguments: &AddArguments) -> Result<VerifierKey, Failure> {
    let ledger = &arguments.ledger;
    let contract = Reader::open(ledger)
        .and_then(|reader| reader.contract())
        .or_hint("name the ledger of a run, by default run.db")?
        .contract;
    let witnesses = &contract.keys.witnesses;
    let names: Vec<&str> = witnesses.iter().map(|witness| witness.name.as_str()).collect();
    let found = match &arguments.name {
        Some(name) => witnesses.iter().find(|witness| witness.name == *name),
        None if witnesses.len() == 1 => witnesses.first(),
        None => None,
    };
    let Some(found) = found else {
        let (message, hint) = match (witnesses.is_empty(), &arguments.name) {
            (true, _) => (
                format!("the contract of {} names no witness", ledger.display()),
                "name the key of one with --vkey; a contract names witnesses in /keys/witnesses".to_owned(),
            ),
            (false, Some(name)) => (
                format!("the contract names no witness {name:?}"),
                format!("name one of {}", names.join(", ")),
            ),
            (false, None) => (
                format!("the contract names {} witnesses", names.len()),
                format!("say with --name which of them answers there: {}", names.join(", ")),
            ),
        };
        return Err(Failure::new(message, hint));
    };
    VerifierKey::from_hex(SignatureKind::Witness, &found.name, &found.public)
        .or_hint("the contract's witness cannot cosign anything; `ledger audit` says so too")
}
