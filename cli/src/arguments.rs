//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use schemas::data::LicenseClass;

use crate::campaign_arguments::CampaignArguments;
use crate::commands::bundle::BundleArguments;
use crate::commands::challenge::ChallengeArguments;
use crate::commands::diff::DiffArguments;
use crate::commands::proof::ProofArguments;
use crate::commands::trust::TrustArguments;
use crate::commands::witness::WitnessArguments;
use crate::export_arguments::FormatArguments;
use crate::preset::Preset;

/// Freezes what a training run is, records it, and checks the claim afterwards.
#[derive(Debug, Parser)]
#[command(name = "ledger", version, about, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a folder with a commented contract, data, keys and a sealed set.
    Init(Box<InitArguments>),
    /// Make role keys: Ed25519, mode 0600, never overwritten.
    Keygen(KeygenArguments),
    /// Seal a text to the qualifier's key.
    Seal(SealArguments),
    /// Check a contract and everything it names, sign it, create its ledger.
    ///
    /// Exit codes: 0 frozen; 1 the contract, or a file that it names, is
    /// refused; 2 it could not run.
    Freeze(FreezeArguments),
    /// Say which version trained, on which data, in which order, and what came of it.
    Show(LedgerArguments),
    /// List entries, oldest first.
    List(ListArguments),
    /// Print one entry.
    Get(GetArguments),
    /// Run one SELECT over a private copy of the ledger.
    Query(QueryArguments),
    /// Check a signed head against the stored entries.
    VerifyHead(VerifyHeadArguments),
    /// Export entries, heads, proofs and artifacts as text, or check an export;
    /// or write what an audit says in the format of another tool.
    ///
    /// Exit codes: 0 written, or checked; 1 the export does not hold, or the
    /// format states that a run is in order and this one was not accepted; 2 it
    /// could not run.
    Export(ExportArguments),
    /// Make a ledger of an export again, or append to one what it lacks of it.
    ///
    /// Exit codes: 0 the ledger holds what the export holds; 1 the export is
    /// refused, or the ledger says something else; 2 it could not run.
    Import(ImportArguments),
    /// Write a proof that an entry is in a ledger, or that one head follows from another; or check one.
    ///
    /// Exit codes: 0 written, or it holds; 1 it does not hold; 2 could not run.
    Proof(ProofArguments),
    /// Have heads cosigned by somebody else, or be that somebody.
    Witness(WitnessArguments),
    /// Put a run and all that an audit of it needs into one file.
    ///
    /// The same evidence gives the same bytes. Keys and what is no evidence stay
    /// where they are. `ledger audit` and `ledger import` take the file.
    Bundle(BundleArguments),
    /// Re-derive everything from the stored bytes and give a verdict.
    ///
    /// Exit codes: 0 accepted; 1 rejected; 2 could not run; 3 tampered;
    /// 4 incomplete or not evaluated.
    Audit(AuditArguments),
    /// Draw segments of a run to be executed again, and compare what came out.
    ///
    /// A draw follows from a signed head, which the reviewer keeps first, and a
    /// nonce that the reviewer names afterwards. The reviewer executes it with
    /// `trainer replay`; a replay from the trainer's own hands shows nothing.
    ///
    /// Exit codes: 0 drawn, or everything that was drawn is confirmed; 1 the
    /// record is contradicted, or a document is not of this ledger; 2 could not
    /// run; 4 nothing is contradicted and something could not be compared.
    Challenge(ChallengeArguments),
    /// Explain one rule of the validator.
    Rule(RuleArguments),
    /// List the validator's rules, or what they cover.
    Rules(RulesArguments),
    /// List what an adversary can do, with which keys, and what shows it.
    Trust(TrustArguments),
    /// Compare two contracts, or a contract with what ran, field by field.
    ///
    /// A and B are contract files or ledgers. What ran in B is compared too
    /// where A is a contract file or the same ledger, or with --ran.
    ///
    /// Exit codes: 0 the same, or different only where that was declared;
    /// 1 a difference that nothing declares; 2 could not run.
    Diff(DiffArguments),
    /// Hand the selected candidate to qualification, after an audit that accepts.
    Handoff(HandoffArguments),
    /// Compare runs under one preregistration: freeze it, bind every run, audit them together.
    Campaign(CampaignArguments),
    /// Serve read-only pages about ledgers on this machine.
    Serve(ServeArguments),
    /// Print the JSON Schema of a document, or check a document against it.
    Schema(SchemaArguments),
}

#[derive(Debug, Args)]
pub(crate) struct JsonArguments {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RulesArguments {
    /// Say what guards each invariant and failure mode of the protocol, which
    /// runs each rule passes and catches, and which rules react to each field
    /// of the contract; exit code 1 where something is not covered.
    #[arg(long)]
    pub(crate) coverage: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LedgerArguments {
    /// The ledger: `run.db`.
    pub(crate) ledger: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("from").required(true).args(["text", "train", "lipsum", "check"])))]
pub(crate) struct InitArguments {
    /// One text, cut at line breaks into 90 parts train, 5 val, 5 qualification.
    #[arg(long, value_name = "FILE", requires = "output")]
    pub(crate) text: Option<PathBuf>,
    /// Files of the train split, one shard each; needs --val and --qualification.
    #[arg(long, value_name = "FILE", num_args = 1.., requires_all = ["output", "val", "qualification"])]
    pub(crate) train: Vec<PathBuf>,
    /// Files of the val split.
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "train")]
    pub(crate) val: Vec<PathBuf>,
    /// Files that are joined and sealed for the qualifier.
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "train")]
    pub(crate) qualification: Vec<PathBuf>,
    /// The Latin of Cicero that comes with the program.
    #[arg(long, requires = "output")]
    pub(crate) lipsum: bool,
    /// Check a contract as `freeze` would, and write nothing.
    #[arg(long, value_name = "CONTRACT", conflicts_with_all = ["output", "preset", "set", "name"])]
    pub(crate) check: Option<PathBuf>,
    /// Folder to make; it must be empty or missing.
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Size of model and run.
    #[arg(long, value_enum, default_value_t = Preset::Demo)]
    pub(crate) preset: Preset,
    /// Worker processes that share the preset's global batch; with the same bits as one of the same microbatches.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: u16,
    /// Change a value of the contract: a JSON pointer, `=`, a JSON value.
    #[arg(long, value_name = "/POINTER=VALUE")]
    pub(crate) set: Vec<String>,
    /// Make a run of this campaign: fills membership and seeds, and copies the preregistration.
    #[arg(long, value_name = "CAMPAIGN", requires_all = ["arm", "seed", "output"])]
    pub(crate) campaign: Option<PathBuf>,
    /// Arm of the campaign.
    #[arg(long, requires = "campaign")]
    pub(crate) arm: Option<String>,
    /// The run's seed, for everything that is drawn.
    #[arg(long, value_name = "N", requires = "campaign")]
    pub(crate) seed: Option<u64>,
    /// Number among all runs of the arm [default: the next that no bound run has].
    #[arg(long, value_name = "N", requires = "campaign", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) trial: Option<u32>,
    /// Rung of the arm's rescue ladder.
    #[arg(long, value_name = "N", requires = "campaign", default_value_t = 0)]
    pub(crate) rescue_level: u32,
    /// Name of the run [default: that of the folder].
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// License class of the text.
    #[arg(long, value_enum, default_value_t = LicenseArgument::Green)]
    pub(crate) license: LicenseArgument,
    /// Where the text comes from [default: the files' names].
    #[arg(long)]
    pub(crate) source: Option<String>,
    /// Freeze the score of an interpolated byte 3-gram model as the quality target.
    #[arg(long)]
    pub(crate) baseline: bool,
    /// Folder of the role keys [default: $LEDGER_KEYS, else `keys` in the new folder, or beside the campaign].
    #[arg(long, value_name = "DIR")]
    pub(crate) keys: Option<PathBuf>,
    /// Who trains: this project's trainer, or a loop of your own, which the Python package or the crate `loops` records.
    #[arg(long, value_enum, default_value_t = ProfileArgument::Native)]
    pub(crate) profile: ProfileArgument,
    /// The script of your loop, and what it imports of your own; copied into the new folder.
    #[arg(long = "loop", value_name = "FILE", num_args = 1.., requires = "output")]
    pub(crate) loop_files: Vec<PathBuf>,
    /// What your loop computes with, such as "torch 2.1.0".
    #[arg(long, value_name = "TEXT")]
    pub(crate) backend: Option<String>,
    /// What your loop runs in, as the Python package says it: "Python 3.11.2".
    #[arg(long, value_name = "TEXT")]
    pub(crate) runtime: Option<String>,
    /// Where the contract's plan runs; the trainer must have been built with it.
    #[arg(long, value_enum, default_value_t = DeviceArgument::Cpu)]
    pub(crate) device: DeviceArgument,
    /// The trainer that will execute the contract [default: $LEDGER_TRAINER, beside this program, PATH].
    #[arg(long, value_name = "FILE")]
    pub(crate) trainer: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileArgument {
    /// This project's trainer; every rule of the edition.
    Native,
    /// A loop of your own; an audit says what that does not show.
    ExternalLoop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceArgument {
    /// Any processor.
    Cpu,
    /// A GPU through burn-wgpu.
    Wgpu,
    /// An NVIDIA GPU through burn-cuda.
    Cuda,
}

impl DeviceArgument {
    /// As the trainer's `--device` takes it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Wgpu => "wgpu",
            Self::Cuda => "cuda",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LicenseArgument {
    /// Permissive, public domain, or one's own.
    Green,
    /// Output of third-party models, or of an unnamed generator.
    Yellow,
    /// Non-commercial, unstated or restrictive terms.
    Red,
}

impl From<LicenseArgument> for LicenseClass {
    fn from(argument: LicenseArgument) -> Self {
        match argument {
            LicenseArgument::Green => Self::Green,
            LicenseArgument::Yellow => Self::Yellow,
            LicenseArgument::Red => Self::Red,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct KeygenArguments {
    /// Make the ECDSA P-256 key that signs models for OpenSSF model signing, in PEM; that format takes no Ed25519 key.
    #[arg(long, conflicts_with = "role")]
    pub(crate) model_signing: bool,
    /// Role [default: owner, trainer, validator and qualifier, as far as missing].
    #[arg(long, value_enum)]
    pub(crate) role: Vec<RoleArgument>,
    /// Folder of the keys [default: $LEDGER_KEYS, else `keys`].
    #[arg(long, value_name = "DIR")]
    pub(crate) keys: Option<PathBuf>,
    /// Print the public keys as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleArgument {
    Owner,
    Trainer,
    Validator,
    Qualifier,
    Witness,
}

impl From<RoleArgument> for ledger::keys::Role {
    fn from(argument: RoleArgument) -> Self {
        match argument {
            RoleArgument::Owner => Self::Owner,
            RoleArgument::Trainer => Self::Trainer,
            RoleArgument::Validator => Self::Validator,
            RoleArgument::Qualifier => Self::Qualifier,
            RoleArgument::Witness => Self::Witness,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct SealArguments {
    /// The text to seal.
    pub(crate) plaintext: PathBuf,
    /// The sealed file to make.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// age recipient (`age1...`) [default: that of the qualifier in the key folder].
    #[arg(long, conflicts_with = "keys")]
    pub(crate) recipient: Option<String>,
    /// Folder with `qualifier.pub` [default: $LEDGER_KEYS, else `keys`].
    #[arg(long, value_name = "DIR")]
    pub(crate) keys: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FreezeArguments {
    /// The contract file.
    pub(crate) contract: PathBuf,
    /// The ledger to create [default: run.db beside the contract].
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Folder of the keys [default: $LEDGER_KEYS, else `keys` beside the contract].
    #[arg(long, value_name = "DIR")]
    pub(crate) keys: Option<PathBuf>,
    /// Print the result, or what was refused, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// The ledger: `run.db`.
    pub(crate) ledger: PathBuf,
    /// Only entries of this kind, such as `step`.
    #[arg(long)]
    pub(crate) kind: Option<String>,
    /// Only entries of this attempt.
    #[arg(long)]
    pub(crate) attempt: Option<u32>,
    /// Only entries at this step.
    #[arg(long)]
    pub(crate) step: Option<u64>,
    /// From this index on.
    #[arg(long, default_value_t = 0)]
    pub(crate) from: u64,
    /// At most so many.
    #[arg(long)]
    pub(crate) limit: Option<u64>,
    /// Print the entries' bytes, one a line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GetArguments {
    /// The ledger: `run.db`.
    pub(crate) ledger: PathBuf,
    /// Index of the entry.
    pub(crate) index: u64,
    /// Print the stored bytes.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct QueryArguments {
    /// The ledger: `run.db`.
    pub(crate) ledger: PathBuf,
    /// One SELECT over `entries`, `heads`, `artifacts` and the views `entry`,
    /// `steps`, `evals`, `checkpoints`, `attempts`.
    #[arg(long)]
    pub(crate) sql: String,
    /// Most rows.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) max_rows: usize,
    /// Longest time in seconds.
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    pub(crate) max_time: u64,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyHeadArguments {
    /// The ledger: `run.db`.
    pub(crate) ledger: PathBuf,
    /// The head [default: the last note of `<ledger>.head`].
    #[arg(long, value_name = "FILE")]
    pub(crate) head: Option<PathBuf>,
    /// JSON object of roles and public keys that you trust [default: the contract's keys].
    #[arg(long, value_name = "FILE")]
    pub(crate) trust: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArguments {
    /// The ledger: `run.db`.
    #[arg(required_unless_present = "check")]
    pub(crate) ledger: Option<PathBuf>,
    /// Folder to make; with --format one that exists takes new files too.
    #[arg(long, value_name = "DIR", required_unless_present_any = ["check", "format", "tiles"], conflicts_with = "check")]
    pub(crate) output: Option<PathBuf>,
    /// Folder to make of tiles (c2sp.org/tlog-tiles) instead, which any web server can serve.
    #[arg(long, value_name = "DIR", requires = "ledger", conflicts_with_all = ["check", "format", "output"])]
    pub(crate) tiles: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) other: FormatArguments,
    /// Check an exported folder instead; needs --trust.
    #[arg(long, value_name = "DIR", conflicts_with = "ledger", requires = "trust")]
    pub(crate) check: Option<PathBuf>,
    /// JSON object of roles and public keys that you trust.
    #[arg(long, value_name = "FILE")]
    pub(crate) trust: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArguments {
    /// The folder that `ledger export` made, or a bundle.
    pub(crate) export: PathBuf,
    /// The ledger to make, or to append to.
    #[arg(short, long, value_name = "FILE", default_value = "run.db")]
    pub(crate) output: PathBuf,
    /// JSON object of roles and public keys that you trust [default: the contract's keys].
    #[arg(long, value_name = "FILE")]
    pub(crate) trust: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people.
    Text,
    /// The report.
    Json,
    /// SARIF 2.1.0, for editors and code review.
    Sarif,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArguments {
    /// The ledger: `run.db`; or a bundle of it, such as `run.tar.zst`.
    pub(crate) ledger: PathBuf,
    /// How to print the report.
    #[arg(long, visible_alias = "format", value_enum, default_value_t = OutputFormat::Text)]
    pub(crate) output_format: OutputFormat,
    /// Same as `--output-format json`.
    #[arg(long, conflicts_with = "output_format")]
    pub(crate) json: bool,
    /// Sign the report with the validator's key, into `<ledger>.report.dsse.json`.
    #[arg(long)]
    pub(crate) save: bool,
    /// Sign it into this file instead.
    #[arg(long, value_name = "FILE")]
    pub(crate) save_to: Option<PathBuf>,
    /// Folder of the validator's key [default: $LEDGER_KEYS, else `keys` beside the ledger].
    #[arg(long, value_name = "DIR")]
    pub(crate) keys: Option<PathBuf>,
    /// A head that was kept elsewhere [default: `<ledger>.head`].
    #[arg(long, value_name = "FILE")]
    pub(crate) head: Option<PathBuf>,
    /// JSON object of roles and public keys that you trust [default: the contract's keys].
    #[arg(long, value_name = "FILE")]
    pub(crate) trust: Option<PathBuf>,
    /// The evaluator's val numbers [default: `<ledger>.val.dsse.json` where it exists].
    #[arg(long, value_name = "FILE")]
    pub(crate) val: Option<PathBuf>,
    /// Heads that witnesses cosigned [default: `<ledger>.cosigned` where it exists].
    #[arg(long, value_name = "FILE")]
    pub(crate) cosigned: Option<PathBuf>,
    /// Go on from the report that an earlier audit signed: of the entries that it saw, what was found to be in order and
    /// follows from them alone is not computed again. An audit without this looks at everything.
    #[arg(long, value_name = "REPORT")]
    pub(crate) since: Option<PathBuf>,
    /// Threads to compute on; their number changes no answer [default: those that the machine offers].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
}

#[derive(Debug, Args)]
pub(crate) struct RuleArguments {
    /// Code of the rule, such as GL101.
    pub(crate) code: String,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HandoffArguments {
    /// The ledger: `run.db`.
    pub(crate) ledger: PathBuf,
    /// Folder of the validator's and the trainer's key [default: $LEDGER_KEYS, else `keys` beside the ledger].
    #[arg(long, value_name = "DIR")]
    pub(crate) keys: Option<PathBuf>,
    /// A head that was kept elsewhere [default: `<ledger>.head`].
    #[arg(long, value_name = "FILE")]
    pub(crate) head: Option<PathBuf>,
    /// JSON object of roles and public keys that you trust [default: the contract's keys].
    #[arg(long, value_name = "FILE")]
    pub(crate) trust: Option<PathBuf>,
    /// The evaluator's val numbers [default: `<ledger>.val.dsse.json` where it exists].
    #[arg(long, value_name = "FILE")]
    pub(crate) val: Option<PathBuf>,
    /// Hand off although the selection rests on the trainer's own numbers; the handoff says so.
    #[arg(long)]
    pub(crate) on_trainer_numbers: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// Ledgers, or folders in which every `*.db` is one.
    #[arg(required = true)]
    pub(crate) ledgers: Vec<PathBuf>,
    /// Loopback address and port; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:8642", value_name = "ADDRESS:PORT")]
    pub(crate) listen: SocketAddr,
    /// Print the address as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SchemaArguments {
    /// Name of the document, such as `contract`; none lists the names.
    pub(crate) name: Option<String>,
    /// Check this document instead of printing the schema.
    #[arg(long, value_name = "FILE", requires = "name")]
    pub(crate) check: Option<PathBuf>,
}
