//! `ledger export --format mlflow`: every attempt to a tracking server.

use std::path::Path;

use exports::mlflow::{AttemptExport, MlflowError, MlflowExport, MlflowTarget, NotHeld, export};
use schemas::report::Report;
use serde_json::{Value, json};

use super::export_format::gather;
use crate::arguments::ExportArguments;
use crate::failure::{Failure, OrFail};
use crate::output::{count, print, print_json, say};

pub(super) fn run(arguments: &ExportArguments, ledger: &Path) -> Result<u8, Failure> {
    let usage = "ledger export run.db --format mlflow --url http://127.0.0.1:5000";
    let Some(url) = arguments.other.url.clone() else {
        return Err(Failure::new("no MLflow server is named", usage));
    };
    if let Some(folder) = &arguments.output {
        let message = format!("--format mlflow writes no files, and --output names {}", folder.display());
        return Err(Failure::new(message, usage));
    }
    let evidence = gather(arguments, ledger)?;
    let name = &evidence.contract.contract.name;
    let experiment = arguments.other.experiment.clone().unwrap_or_else(|| name.clone());
    let target = MlflowTarget { experiment, url };
    let exported = export(&evidence, &target).map_err(refused)?;
    show(&exported, &target, &evidence.report, arguments.json)?;
    Ok(0)
}

/// What the server holds against the record is a finding; everything else is
/// an export that did not come to its end.
fn refused(error: MlflowError) -> Failure {
    let hint = match &error {
        MlflowError::Differs { .. } => "somebody changed that run; name another experiment with --experiment",
        MlflowError::Twice { .. } => "delete one of them in MLflow and export again",
        MlflowError::Url { .. } => {
            return Failure::new(error.to_string(), "name it as http://host:port");
        }
        error if error.may_still_be_stored() => {
            "wait until the server is idle, for it may still store what it was sent; then the same command goes on"
        }
        _ => "what the server took stays there; the same command goes on from it",
    };
    match error {
        MlflowError::Differs { .. } | MlflowError::Twice { .. } => Failure::findings(error.to_string(), hint),
        other => Err::<(), _>(other).or_hint(hint).err().unwrap_or_else(Failure::reader_is_gone),
    }
}

fn show(exported: &MlflowExport, target: &MlflowTarget, report: &Report, json: bool) -> Result<(), Failure> {
    let MlflowExport { attempts, experiment, experiment_created, not_held } = exported;
    if !not_held.is_empty() {
        say("What MLflow cannot hold of this ledger:");
    }
    for NotHeld { number, what, why } in not_held {
        say(format!("  {} {what}: {why}", count(*number)));
    }
    if json {
        let attempts: Vec<Value> = attempts.iter().map(attempt_json).collect();
        let not_held: Vec<Value> = not_held
            .iter()
            .map(|part| json!({"number": part.number, "what": part.what, "why": part.why}))
            .collect();
        return print_json(
            "export-mlflow",
            json!({
                "attempts": attempts, "experiment": experiment, "experiment_created": experiment_created,
                "experiment_name": target.experiment, "not_held": not_held, "profile": report.profile,
                "verdict": report.verdict.name()
            }),
        );
    }
    for attempt in attempts {
        let done = if attempt.is_unchanged() {
            "unchanged".to_owned()
        } else {
            format!(
                "{}, {} points, {} params, {} tags sent",
                if attempt.created { "new" } else { "continued" },
                count(attempt.num_points),
                count(attempt.num_params),
                count(attempt.num_tags)
            )
        };
        print(format!(
            "attempt {}  {:<8}  run {}  {done}",
            attempt.attempt, attempt.status, attempt.mlflow_run
        ))?;
    }
    if attempts.is_empty() {
        say("The run has no attempts yet, so MLflow has no runs of it.");
    }
    Ok(())
}

fn attempt_json(attempt: &AttemptExport) -> Value {
    json!({
        "attempt": attempt.attempt, "created": attempt.created, "mlflow_run": attempt.mlflow_run,
        "num_params": attempt.num_params, "num_points": attempt.num_points, "num_tags": attempt.num_tags,
        "status": attempt.status, "unchanged": attempt.is_unchanged()
    })
}
