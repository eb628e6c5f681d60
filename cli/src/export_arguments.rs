//! Arguments of `ledger export --format`: the formats of other tools.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// A format of another tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// in-toto attestations of the audit in DSSE, signed by the validator: a
    /// test result, and the whole report.
    InToto,
    /// One MLflow run an attempt, on the tracking server of --url; a second
    /// export changes nothing.
    Mlflow,
    /// MLPerf training log lines; `success` only of an accepted run that met its
    /// target.
    Mlperf,
    /// OpenMetrics text, the updates with their times.
    Openmetrics,
    /// The selected candidate of an accepted run, signed as OpenSSF model
    /// signing defines it: a Sigstore bundle, and the key that verifies it.
    ModelSigning,
    /// The run's folder as a research object: ro-crate-metadata.json in it, with
    /// one action for every attempt.
    RoCrate,
    /// SLSA provenance v1 of the selected candidate of an accepted run, in DSSE,
    /// signed by the validator.
    Slsa,
}

impl ExportFormat {
    /// As the command line spells it.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

#[derive(Debug, Args)]
pub(crate) struct FormatArguments {
    /// Audit the run now, and write what the audit says in this format.
    #[arg(long, value_enum, conflicts_with = "check")]
    pub(crate) format: Option<ExportFormat>,
    /// Folder of the validator's key [default: $LEDGER_KEYS, else `keys` beside the ledger].
    #[arg(long, value_name = "DIR", requires = "format")]
    pub(crate) keys: Option<PathBuf>,
    /// ECDSA P-256 key in PEM that signs the model [default: `model-signing.pem` in the key folder].
    #[arg(long, value_name = "FILE", requires = "format")]
    pub(crate) model_key: Option<PathBuf>,
    /// A head that was kept elsewhere [default: `<ledger>.head`].
    #[arg(long, value_name = "FILE", requires = "format")]
    pub(crate) head: Option<PathBuf>,
    /// Heads that witnesses cosigned [default: `<ledger>.cosigned` where it exists].
    #[arg(long, value_name = "FILE", requires = "format")]
    pub(crate) cosigned: Option<PathBuf>,
    /// The evaluator's val numbers [default: `<ledger>.val.dsse.json` where it exists].
    #[arg(long, value_name = "FILE", requires = "format")]
    pub(crate) val: Option<PathBuf>,
    /// Tracking server of --format mlflow, over plain HTTP: `http://127.0.0.1:5000`.
    #[arg(long, value_name = "URL", requires = "format")]
    pub(crate) url: Option<String>,
    /// MLflow experiment [default: the contract's name].
    #[arg(long, value_name = "NAME", requires = "url")]
    pub(crate) experiment: Option<String>,
}
