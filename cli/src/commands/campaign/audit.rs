//! `ledger campaign audit`: the validator's report on a campaign, printed.

use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use schemas::campaign::report::CampaignReport;
use validator::campaign::{CampaignRequest, audit, sarif, text};

use crate::arguments::OutputFormat;
use crate::campaign_arguments::CampaignAuditArguments;
use crate::failure::{Failure, OrFail};
use crate::output::{count, counted, print, say_done, write_out};

pub(crate) fn run(arguments: &CampaignAuditArguments) -> Result<u8, Failure> {
    let started = Instant::now();
    let report = report(arguments)?;
    let format = if arguments.json { OutputFormat::Json } else { arguments.output_format };
    match format {
        OutputFormat::Text => write_out(text(&report).as_bytes())?,
        OutputFormat::Json => print(serde_json::to_string_pretty(&report)?)?,
        OutputFormat::Sarif => print(serde_json::to_string_pretty(&sarif(&report))?)?,
    }
    say_done(
        format!(
            "Verified {} entries and {} under {} rules",
            count(report.num_entries),
            counted(report.runs.len(), "run"),
            report.rules.len()
        ),
        started,
    );
    Ok(report.verdict.exit_code())
}

/// Runs the audit with a progress bar on stderr.
fn report(arguments: &CampaignAuditArguments) -> Result<CampaignReport, Failure> {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{msg:>8} {bar:30} {pos}/{len}") {
        bar.set_style(style);
    }
    let request = CampaignRequest { head: arguments.head.clone(), ledger: arguments.campaign.clone() };
    let report = audit(&request, &mut |progress| {
        bar.set_message(progress.phase);
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    });
    bar.finish_and_clear();
    report.or_hint("name a campaign's ledger that can be read, and runs that can be read below its folder")
}
