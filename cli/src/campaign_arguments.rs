//! The command line of `ledger campaign`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use schemas::campaign::RunPurpose;

use crate::arguments::OutputFormat;

#[derive(Debug, Args)]
pub(crate) struct CampaignArguments {
    #[command(subcommand)]
    pub(crate) command: CampaignCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CampaignCommand {
    /// Check a preregistration, sign it, create the campaign's ledger.
    ///
    /// Exit codes: 0 frozen; 1 the preregistration is refused; 2 it could not
    /// run.
    Freeze(CampaignFreezeArguments),
    /// Bind a run before it is trained, or the newest head of a bound one.
    ///
    /// Arm, trial and rescue level come from the run's contract.
    ///
    /// Exit codes: 0 bound; 1 the run is refused; 2 it could not run.
    Add(CampaignAddArguments),
    /// List arms and runs, and the confirmation runs that are missing.
    List(CampaignListArguments),
    /// Re-derive everything from the campaign and the ledgers of its runs.
    ///
    /// Exit codes: 0 the record is whole and every claim's outcome is stated;
    /// 1 rejected; 2 could not run; 3 tampered; 4 incomplete or not evaluated.
    Audit(CampaignAuditArguments),
}

#[derive(Debug, Args)]
pub(crate) struct CampaignFreezeArguments {
    /// The preregistration.
    pub(crate) preregistration: PathBuf,
    /// The ledger to create [default: campaign.db beside the preregistration].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Folder of the keys [default: $LEDGER_KEYS, else `keys` beside the preregistration].
    #[arg(long, value_name = "DIR")]
    pub(crate) keys: Option<PathBuf>,
    /// Check it, and write nothing.
    #[arg(long, conflicts_with = "output")]
    pub(crate) check: bool,
    /// Print the result, or what was refused, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum PurposeArgument {
    /// A trial of the arm's tuning.
    Tuning,
    /// One of the runs that the claims are decided by.
    Confirmation,
    /// It has to show that the arm works.
    PositiveControl,
}

impl From<PurposeArgument> for RunPurpose {
    fn from(argument: PurposeArgument) -> Self {
        match argument {
            PurposeArgument::Tuning => Self::Tuning,
            PurposeArgument::Confirmation => Self::Confirmation,
            PurposeArgument::PositiveControl => Self::PositiveControl,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct CampaignAddArguments {
    /// The campaign's ledger: `campaign.db`.
    pub(crate) campaign: PathBuf,
    /// The run's ledger, in a folder below the campaign's.
    pub(crate) run: PathBuf,
    /// What the run is for; needed the first time, and never changed.
    #[arg(long, value_enum)]
    pub(crate) purpose: Option<PurposeArgument>,
    /// Bind a run that was trained already, and say why it was not bound before.
    #[arg(long, value_name = "REASON", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) late: Option<String>,
    /// Folder of the owner's key [default: $LEDGER_KEYS, else `keys` beside the campaign].
    #[arg(long, value_name = "DIR")]
    pub(crate) keys: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CampaignListArguments {
    /// The campaign's ledger: `campaign.db`.
    pub(crate) campaign: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CampaignAuditArguments {
    /// The campaign's ledger: `campaign.db`.
    pub(crate) campaign: PathBuf,
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
    /// A head of the campaign that was kept elsewhere [default: `<ledger>.head`].
    #[arg(long, value_name = "FILE")]
    pub(crate) head: Option<PathBuf>,
}
