//! `validator audit run.db`: an audit by a program that links no writer.
//!
//! It prints the report and signs nothing; `ledger audit --save` does that.
//! Results go to stdout, all else to stderr. Exit codes: 0 accepted, 1
//! rejected, 2 could not run, 3 tampered, 4 incomplete or not evaluated.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use validator::{AuditRequest, audit, render};

const USAGE: &str =
    "usage: validator audit LEDGER [--head FILE] [--trust FILE] [--val FILE] [--since REPORT] [--threads N] [--format text|json|sarif]
       validator rules

Audits a run's ledger and prints the report. Reads only.
  --head FILE    a head file that was kept elsewhere (default: LEDGER.head)
  --trust FILE   JSON object of roles and public keys that you trust
  --val FILE     the evaluator's val numbers (default: LEDGER.val.dsse.json)
  --since REPORT go on from the report that an earlier audit signed
  --threads N    threads to compute on; their number changes no answer (default: those that there are)
  --format F     text (default), json or sarif
Exit codes: 0 accepted, 1 rejected, 2 could not run, 3 tampered, 4 incomplete or not evaluated.
";

/// Exit code of everything that is not an audit's verdict.
const COULD_NOT_RUN: u8 = 2;

#[derive(Clone, Copy)]
enum Format {
    Text,
    Json,
    Sarif,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let mut message = format!("error: {error}");
            let mut cause = error.source();
            while let Some(inner) = cause {
                message.push_str(&format!(": {inner}"));
                cause = inner.source();
            }
            // Nothing is left to be told to when stderr is closed.
            let _ = writeln!(std::io::stderr(), "{message}");
            ExitCode::from(COULD_NOT_RUN)
        }
    }
}

fn run(arguments: &[String]) -> Result<u8, Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    match arguments.first().map(String::as_str) {
        Some("audit") => {
            let (request, format) = parse(&arguments[1..])?;
            let report = audit(&request, &mut |_| {})?;
            let text = match format {
                Format::Text => render::text(&report),
                Format::Json => serde_json::to_string_pretty(&report)? + "\n",
                Format::Sarif => serde_json::to_string_pretty(&render::sarif(&report))? + "\n",
            };
            out.write_all(text.as_bytes())?;
            Ok(report.verdict.exit_code())
        }
        Some("rules") => {
            for info in validator::rules::catalogue() {
                writeln!(out, "{} {}: {}", info.code, info.name, info.what)?;
            }
            Ok(0)
        }
        Some("--help" | "-h" | "help") => {
            out.write_all(USAGE.as_bytes())?;
            Ok(0)
        }
        _ => Err(USAGE.into()),
    }
}

fn parse(arguments: &[String]) -> Result<(AuditRequest, Format), Box<dyn Error>> {
    let mut request = AuditRequest::default();
    let mut format = Format::Text;
    let mut ledger = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{argument} needs a value\n{USAGE}"));
        match argument.as_str() {
            "--head" => request.head = Some(PathBuf::from(value()?)),
            "--trust" => request.trust = Some(PathBuf::from(value()?)),
            "--val" => request.val_numbers = Some(PathBuf::from(value()?)),
            "--since" => request.since = Some(PathBuf::from(value()?)),
            "--threads" => {
                let count = value()?;
                let number =
                    count.parse().map_err(|_| format!("--threads {count}: not a number from 1 on"))?;
                request.threads = Some(number);
            }
            "--format" => {
                format = match value()?.as_str() {
                    "text" => Format::Text,
                    "json" => Format::Json,
                    "sarif" => Format::Sarif,
                    other => return Err(format!("there is no format {other:?}\n{USAGE}").into()),
                }
            }
            path if !path.starts_with('-') && ledger.is_none() => ledger = Some(PathBuf::from(path)),
            other => return Err(format!("unexpected argument {other:?}\n{USAGE}").into()),
        }
    }
    request.ledger = ledger.ok_or(format!("no ledger was named\n{USAGE}"))?;
    Ok((request, format))
}
