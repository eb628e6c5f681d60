//! `ledger audit`: the validator's verdict, printed, and signed on request.

use std::path::{Path, PathBuf};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ledger::canonical::entry_json;
use ledger::dsse;
use ledger::keys::{KeyPair, Role};
use ledger::reader::Reader;
use schemas::contract::Contract;
use schemas::dsse::REPORT_PAYLOAD_TYPE;
use schemas::entry::LedgerKind;
use schemas::report::{Report, RuleResult, RuleStatus};
use validator::bundle::BundleAudit;
use validator::{AuditRequest, render};

use super::bundle;
use crate::arguments::{AuditArguments, OutputFormat};
use crate::failure::{Failure, OrFail};
use crate::key_folder;
use crate::output::{count, print, say, say_done, write_file, write_out};

/// The rule that compares a run's ledger with reports that were signed before.
const STORED_REPORT: &str = "GL111";

pub(crate) fn run(arguments: &AuditArguments) -> Result<u8, Failure> {
    let started = Instant::now();
    let is_bundle = bundle::is_bundle(&arguments.ledger)?;
    if is_bundle && arguments.save {
        return Err(Failure::new(
            format!("{}: a report of a bundle has no ledger to lie beside", arguments.ledger.display()),
            "name the report's own file with --save-to, and the folder of the validator's key with --keys",
        ));
    }
    let target = save_target(arguments.save_to.as_deref(), arguments.save, report_path(&arguments.ledger));
    if let Some((_, true)) = &target {
        refuse_to_replace_handed_off(&arguments.ledger)?;
    }
    let signer = match &target {
        Some((_, beside)) => {
            let key = validator_key(arguments.keys.as_deref(), &arguments.ledger)?;
            if *beside {
                refuse_stranger(&key, &arguments.ledger)?;
            }
            Some(key)
        }
        None => None,
    };
    let report = if is_bundle { report_of_bundle(arguments)? } else { report_of_ledger(arguments)? };
    if report.run.is_none() && !is_bundle {
        refuse_other_kind(&arguments.ledger, LedgerKind::Run)?;
    }
    if let Some(path) = arguments.since.as_deref().filter(|_| report.since.is_none()) {
        say(format!(
            "The entries do not begin with those that {} saw, so everything was looked at.",
            path.display()
        ));
    }
    let format = if arguments.json { OutputFormat::Json } else { arguments.output_format };
    match format {
        OutputFormat::Text => write_out(render::text(&report).as_bytes())?,
        OutputFormat::Json => print(serde_json::to_string_pretty(&report)?)?,
        OutputFormat::Sarif => print(serde_json::to_string_pretty(&render::sarif(&report))?)?,
    }
    say_done(
        format!("Verified {} entries under {} rules", count(report.num_entries), report.rules.len()),
        started,
    );
    if let (Some((path, is_beside)), Some(signer)) = (target, signer) {
        if is_beside {
            refuse_to_hide(&path, report.run.is_some(), STORED_REPORT, &report.rules)?;
        }
        write_file(&path, &sign(&report, &signer)?, is_beside)?;
        say(format!("Signed the report with {} into {}.", signer.id(), path.display()));
    }
    Ok(report.verdict.exit_code())
}

fn report_of_ledger(arguments: &AuditArguments) -> Result<Report, Failure> {
    audit(&AuditRequest {
        ledger: arguments.ledger.clone(),
        head: arguments.head.clone(),
        trust: arguments.trust.clone(),
        val_numbers: arguments.val.clone(),
        cosigned: arguments.cosigned.clone(),
        since: arguments.since.clone(),
        threads: arguments.threads,
    })
}

fn report_of_bundle(arguments: &AuditArguments) -> Result<Report, Failure> {
    let request = BundleAudit {
        head: arguments.head.clone(),
        trust: arguments.trust.clone(),
        val_numbers: arguments.val.clone(),
        cosigned: arguments.cosigned.clone(),
        since: arguments.since.clone(),
        threads: arguments.threads,
    };
    bundle::audit(&arguments.ledger, &request)
}

/// A ledger of another kind than the one that is audited: what these rules say of it
/// would only tell that it is none, and nothing about what is in it.
pub(super) fn refuse_other_kind(ledger: &Path, audited: LedgerKind) -> Result<(), Failure> {
    let Some(found) = kind_of(ledger).filter(|found| *found != audited) else { return Ok(()) };
    let path = ledger.display();
    let hint = match found {
        LedgerKind::Run => format!("ledger audit {path}"),
        LedgerKind::Campaign => format!("ledger campaign audit {path}"),
        LedgerKind::Qualification => {
            "`ledger list` reads it, and `ledger verify-head --trust FILE` checks its heads; `ledger audit` audits the \
             run beside it, and `ledger campaign audit` what it opened of a campaign's runs"
                .to_owned()
        }
        // No program writes one: the rules say what it lacks.
        LedgerKind::Maintenance => return Ok(()),
    };
    let (of, wanted) = (owner_of(found), owner_of(audited));
    Err(Failure::new(
        format!("{path} is the ledger of {of}, and this command audits the ledger of {wanted}"),
        hint,
    ))
}

const fn owner_of(kind: LedgerKind) -> &'static str {
    match kind {
        LedgerKind::Run => "a run",
        LedgerKind::Campaign => "a campaign",
        LedgerKind::Qualification => "a qualifier",
        LedgerKind::Maintenance => "maintenance",
    }
}

/// What its first entry says of which kind a ledger is; nothing is checked.
fn kind_of(ledger: &Path) -> Option<LedgerKind> {
    let entry = Reader::open(ledger).ok()?.entry(0).ok()?;
    Some(entry.header.ledger)
}

/// Where a signed document goes, and whether that is the place beside the ledger:
/// what lies there is read by others, however it was named.
pub(super) fn save_target(save_to: Option<&Path>, save: bool, beside: PathBuf) -> Option<(PathBuf, bool)> {
    match save_to {
        Some(path) => Some((path.to_owned(), is_one_place(path, &beside))),
        None => save.then_some((beside, true)),
    }
}

/// Whether two paths name one place, a file being there or not: the same name in the
/// same folder, however that is spelled or reached.
fn is_one_place(left: &Path, right: &Path) -> bool {
    let folder = |path: &Path| key_folder::folder_of(path).canonicalize();
    let is_one_name = left.file_name().is_some() && left.file_name() == right.file_name();
    is_one_name && matches!((folder(left), folder(right)), (Ok(left), Ok(right)) if left == right)
}

/// Where a saved report lies.
pub(super) fn report_path(ledger: &Path) -> PathBuf {
    beside(ledger, ".report.dsse.json")
}

/// Where a handoff lies.
pub(super) fn handoff_path(ledger: &Path) -> PathBuf {
    beside(ledger, ".handoff.dsse.json")
}

/// A file that belongs to a ledger.
pub(super) fn beside(ledger: &Path, suffix: &str) -> PathBuf {
    let mut name = ledger.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// A handoff names its report by digest; another report in its place would
/// leave it without one.
fn refuse_to_replace_handed_off(ledger: &Path) -> Result<(), Failure> {
    let handoff = handoff_path(ledger);
    if !handoff.exists() {
        return Ok(());
    }
    Err(Failure::new(
        format!("{} names the report that is saved beside it", handoff.display()),
        "sign the new report into another file with --save-to FILE",
    ))
}

/// What lies beside a ledger is compared with it by every later audit. A report that
/// this ledger contradicts, or that could not be compared with it, may be all that
/// shows a cut; and one that names nobody's run or campaign would be called false once
/// the ledger is restored. `code` is of the rule that compares.
pub(super) fn refuse_to_hide(
    path: &Path,
    is_identified: bool,
    code: &str,
    rules: &[RuleResult],
) -> Result<(), Failure> {
    let compared = rules.iter().find(|rule| rule.code == code).map(|rule| rule.status);
    let reason = match compared {
        Some(RuleStatus::Passed | RuleStatus::NotApplicable) if is_identified => return Ok(()),
        Some(RuleStatus::Passed | RuleStatus::NotApplicable) => {
            "what was frozen could not be read, and the new report would name nothing that it is of"
                .to_owned()
        }
        Some(RuleStatus::Failed) => {
            format!("{code} is broken, and a new report there would hide that from the next audit")
        }
        Some(RuleStatus::NotEvaluated) | None => {
            format!("{code} could not be evaluated, and what may lie there would be lost to the next audit")
        }
    };
    Err(Failure::new(
        format!("{} is left as it is: {reason}", path.display()),
        format!(
            "sign the new report into another file with --save-to FILE; `ledger rule {code}` says what to restore"
        ),
    ))
}

/// A report beside the ledger by a key that the contract does not name would be
/// a finding of every later audit. A ledger whose contract cannot be read names
/// no key; the report says what is wrong with it.
fn refuse_stranger(signer: &KeyPair, ledger: &Path) -> Result<(), Failure> {
    let Ok(frozen) = Reader::open(ledger).and_then(|reader| reader.contract()) else { return Ok(()) };
    let hint =
        "name the folder with the contract's keys with --keys, or the report's own file with --save-to";
    require_signer(signer, &frozen.contract, hint)
}

/// Reports and statements beside a ledger count only when the contract's
/// validator signs them.
pub(super) fn require_signer(signer: &KeyPair, contract: &Contract, hint: &str) -> Result<(), Failure> {
    if signer.public_hex() == contract.keys.validator.public {
        return Ok(());
    }
    Err(Failure::new(
        format!(
            "the contract names validator key {}, the key folder holds {}",
            contract.keys.validator.public,
            signer.public_hex()
        ),
        hint,
    ))
}

/// Runs the audit with a progress bar on stderr.
pub(super) fn audit(request: &AuditRequest) -> Result<Report, Failure> {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{msg:>8} {bar:30} {pos}/{len}") {
        bar.set_style(style);
    }
    let report = validator::audit(request, &mut |progress| {
        bar.set_message(progress.phase);
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    });
    bar.finish_and_clear();
    report.or_hint("name a ledger that can be read")
}

/// The key that signs reports and handoffs.
pub(super) fn validator_key(keys: Option<&Path>, ledger: &Path) -> Result<KeyPair, Failure> {
    let folder = key_folder::locate(keys, key_folder::folder_of(ledger));
    key_folder::open(&folder)?
        .get(Role::Validator)
        .or_hint("name the folder with the validator's key with --keys or $LEDGER_KEYS")
}

/// The signed report, as it lies in a file.
pub(super) fn sign(report: &Report, signer: &KeyPair) -> Result<Vec<u8>, Failure> {
    sign_as(REPORT_PAYLOAD_TYPE, report, signer)
}

/// A signed report of a payload type, as it lies in a file.
pub(super) fn sign_as(
    payload_type: &str,
    report: &impl serde::Serialize,
    signer: &KeyPair,
) -> Result<Vec<u8>, Failure> {
    Ok(entry_json(&dsse::sign(payload_type, &entry_json(report)?, signer))?)
}
