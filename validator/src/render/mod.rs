//! A report as text and as SARIF. The JSON form is the report itself.

mod sarif;
mod text;
mod trust;

pub use sarif::sarif;
pub(crate) use sarif::{result as sarif_result, rule as sarif_rule};
pub use text::text;
pub(crate) use text::{one_line, write_findings, write_rules};

use schemas::finding::{Finding, Severity};
use schemas::report::{Route, SelectionBasis};

/// A serde name of a unit variant, such as `reject_identity`.
fn route_name(route: Route) -> String {
    serde_json::to_value(route).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn basis_text(basis: SelectionBasis) -> &'static str {
    match basis {
        SelectionBasis::Evaluator => "selection rests on the evaluator's own numbers",
        SelectionBasis::Trainer => "selection rests on the trainer's own numbers",
        SelectionBasis::None => "nothing was selected",
    }
}

fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

/// Entry and location of a finding in one phrase.
fn place(finding: &Finding) -> String {
    match (finding.entry, finding.location.as_str()) {
        (Some(entry), "") => format!("entry {entry}"),
        (Some(entry), location) => format!("entry {entry}, {location}"),
        (None, location) => location.to_owned(),
    }
}
