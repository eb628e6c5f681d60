//! `ledger campaign audit`: the validator's report on a campaign, printed, and
//! signed on request.

use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ledger::campaign::read_campaign;
use ledger::keys::KeyPair;
use ledger::reader::Reader;
use schemas::campaign::report::CampaignReport;
use schemas::dsse::CAMPAIGN_REPORT_PAYLOAD_TYPE;
use schemas::entry::LedgerKind;
use validator::campaign::{CampaignRequest, audit, sarif, text};

use crate::arguments::OutputFormat;
use crate::campaign_arguments::CampaignAuditArguments;
use crate::commands::audit::{
    refuse_other_kind, refuse_to_hide, report_path, save_target, sign_as, validator_key,
};
use crate::failure::{Failure, OrFail};
use crate::output::{count, counted, print, say, say_done, write_file, write_out};

/// The rule that compares a campaign's ledger with the report beside it.
const STORED_REPORT: &str = "GC126";

pub(crate) fn run(arguments: &CampaignAuditArguments) -> Result<u8, Failure> {
    let started = Instant::now();
    let ledger = &arguments.campaign;
    let target = save_target(arguments.save_to.as_deref(), arguments.save, report_path(ledger));
    // A key that may not sign is told before the work.
    let signer = target.as_ref().map(|_| signer(arguments)).transpose()?;
    let report = report(arguments)?;
    if report.campaign.is_none() {
        refuse_other_kind(ledger, LedgerKind::Campaign)?;
    }
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
    if let (Some((path, is_beside)), Some(signer)) = (target, signer) {
        if is_beside {
            refuse_to_hide(&path, report.campaign.is_some(), STORED_REPORT, &report.rules)?;
        }
        write_file(&path, &sign_as(CAMPAIGN_REPORT_PAYLOAD_TYPE, &report, &signer)?, is_beside)?;
        say(format!("Signed the report with {} into {}.", signer.id(), path.display()));
    }
    Ok(report.verdict.exit_code())
}

/// The validator's key, which has to be the one that the preregistration names:
/// a report by another key would count for nobody. A campaign that cannot be read
/// names none, and its report says what is wrong with it.
fn signer(arguments: &CampaignAuditArguments) -> Result<KeyPair, Failure> {
    let ledger = &arguments.campaign;
    let key = validator_key(arguments.keys.as_deref(), ledger)?;
    let state = Reader::open(ledger).ok().and_then(|reader| read_campaign(&reader).ok());
    let named = state.map(|state| state.contract.preregistration.keys.validator.public);
    match named {
        Some(named) if named != key.public_hex() => Err(Failure::new(
            format!(
                "{}: the preregistration names validator key {named}, the key folder holds {}",
                ledger.display(),
                key.public_hex()
            ),
            "name the folder with the campaign's keys with --keys",
        )),
        _ => Ok(key),
    }
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
