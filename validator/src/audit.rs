//! The audit: opens the ledger, reads what was frozen, lets the entries pass by
//! every rule (`crate::pass`), and puts the report together.

use std::collections::BTreeSet;

use schemas::report::{Report, SelectionBasis};

use crate::assemble::{self, Ruling};
use crate::contract::{self, ContractRead, ContractSinks};
use crate::cosigned::{Cosignatures, CosignedFile};
use crate::documents;
use crate::error::AuditError;
use crate::frozen::Frozen;
use crate::left_out::LeftOut;
use crate::pass::{Pass, Place};
use crate::profile;
use crate::request::{AuditRequest, folder_of, read_head_file, read_trust, read_val_file};
use crate::rows;
use crate::rule::{Outcome, Sink};
use crate::rules::{self, EDITION};
use crate::said::{Said, SaidFiles};
use crate::since::{Since, TOOL};
use crate::store::{Access, Store};
use crate::trust;
use crate::val_numbers;

/// How far an audit has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// `entries`, then `files`.
    pub phase: &'static str,
    /// Entries or rules done.
    pub done: u64,
    /// Of how many.
    pub total: u64,
}

/// Audits a run's ledger. Reads only; writes nothing but a private copy.
///
/// # Errors
/// When the audit could not look: the ledger or a named file cannot be read,
/// or there is no room for the copy. Everything that it sees and finds wrong
/// is in the report.
pub fn audit(request: &AuditRequest, progress: &mut dyn FnMut(Progress)) -> Result<Report, AuditError> {
    audit_leaving_out(request, BTreeSet::new(), progress)
}

/// The same where files, by their names below the ledger's folder, were left out
/// of what is audited: a rule that asks for one of them is not evaluated.
pub(crate) fn audit_leaving_out(
    request: &AuditRequest,
    left_out: BTreeSet<String>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, AuditError> {
    let left_out = LeftOut::new(left_out);
    // Pages that are not as they should be are read by SQLite. Where a writer was
    // at work, what was read may be a mixture.
    let mut accesses = [Access::Pages, Access::InPlace, Access::Copy].into_iter();
    let (mut next, mut goes_on) = (accesses.next(), request.since.is_some());
    while let Some(access) = next {
        let how = How { access, goes_on, shows_all_steps: false };
        match audit_once(request, how, &left_out, progress)? {
            Tried::Report(report) => return Ok(*report),
            Tried::OtherAccess => next = accesses.next(),
            Tried::OtherEntries => goes_on = false,
        }
    }
    Err(AuditError::Busy { path: request.ledger.clone() })
}

/// An audit that leaves the pages to SQLite, and shows steps to rules that say
/// they ignore them.
#[cfg(test)]
pub(crate) fn audit_by_sqlite(request: &AuditRequest) -> Result<Report, AuditError> {
    let how = How { access: Access::InPlace, goes_on: false, shows_all_steps: true };
    match audit_once(request, how, &LeftOut::default(), &mut |_| {})? {
        Tried::Report(report) => Ok(*report),
        _ => Err(AuditError::Busy { path: request.ledger.clone() }),
    }
}

/// What came of an audit.
enum Tried {
    Report(Box<Report>),
    /// The ledger changed while it was read, or has to be read in another way.
    OtherAccess,
    /// The entries do not begin with those of the report to go on from.
    OtherEntries,
}

/// How an audit is made; none of it changes what it says.
#[derive(Clone, Copy)]
struct How {
    access: Access,
    goes_on: bool,
    /// Whether rules see steps that they say they ignore.
    shows_all_steps: bool,
}

fn audit_once(
    request: &AuditRequest,
    How { access, goes_on, shows_all_steps }: How,
    left_out: &LeftOut,
    progress: &mut dyn FnMut(Progress),
) -> Result<Tried, AuditError> {
    let trust = request.trust.as_deref().map(read_trust).transpose()?;
    let head_file = read_head_file(request)?;
    let val_file = read_val_file(request)?;
    let cosigned_file = CosignedFile::read(&request.ledger, request.cosigned.as_deref())?;
    let said_files = SaidFiles::read(&request.ledger, request.since.as_deref())?;
    let mut rulings = Vec::new();
    let mut layout_sink = Sink::new(&rules::gl001_store_layout::INFO);
    let store = Store::open(&request.ledger, access, &mut layout_sink)?;
    let mut contract_sinks = ContractSinks {
        frozen: Sink::new(&rules::gl101_contract_frozen::INFO),
        signature: Sink::new(&rules::gl102_contract_signature::INFO),
        identity: Sink::new(&rules::gl103_run_identity::INFO),
    };
    let first_entry = store.as_ref().and_then(Store::first_entry);
    let (read, outcomes) = contract::read(first_entry.as_deref(), &mut contract_sinks);
    let [frozen_outcome, signature_outcome, identity_outcome] = outcomes;
    rulings.push(Ruling::new(&rules::gl101_contract_frozen::INFO, contract_sinks.frozen, frozen_outcome));
    rulings.push(Ruling::new(
        &rules::gl102_contract_signature::INFO,
        contract_sinks.signature,
        signature_outcome,
    ));
    rulings.push(Ruling::new(&rules::gl103_run_identity::INFO, contract_sinks.identity, identity_outcome));
    let since = match (&request.since, said_files.named(), &read) {
        // A ledger without a readable contract is looked at as a whole.
        (Some(path), Some(bytes), Some(read)) => Some(Since::read(bytes, path, read)?).filter(|_| goes_on),
        _ => None,
    };
    let frozen = read_documents(read.as_ref(), store.as_ref(), &mut rulings);
    let contract = read.as_ref().map(|read| &read.contract);
    let mut sink = Sink::new(&rules::gl011_trusted_keys::INFO);
    let outcome =
        rules::gl011_trusted_keys::check(contract.map(|contract| &contract.keys), trust.as_ref(), &mut sink);
    rulings.push(Ruling::new(&rules::gl011_trusted_keys::INFO, sink, outcome));
    let mut sink = Sink::new(&rules::gl109_val_numbers::INFO);
    let (bytes, place) = &val_file;
    let (numbers, outcome) = val_numbers::read(bytes.as_deref(), place, read.as_ref(), &mut sink);
    rulings.push(Ruling::new(&rules::gl109_val_numbers::INFO, sink, outcome));

    let said = Said::read(&said_files, read.as_ref());
    let mut pass = Pass::new(
        read.as_ref(),
        frozen.as_ref(),
        store.as_ref(),
        head_file.as_ref(),
        (said, since.as_ref()),
        Cosignatures::read(&cosigned_file, read.as_ref()),
        &mut layout_sink,
    );
    if shows_all_steps {
        pass.show_all_steps();
    }
    let threads = request.threads.unwrap_or_else(rows::default_threads);
    if !pass.run(store.as_ref(), threads, &request.ledger, &mut layout_sink, progress) {
        return Ok(Tried::OtherAccess);
    }
    if store.as_ref().is_some_and(|store| !store.is_unchanged()) {
        return Ok(Tried::OtherAccess);
    }
    if !pass.goes_on() {
        return Ok(Tried::OtherEntries);
    }
    rulings.push(Ruling::new(&rules::gl001_store_layout::INFO, layout_sink, Outcome::Checked(1)));
    let folder = folder_of(&request.ledger);
    let place = Place { folder, left_out: left_out.clone(), threads };
    let (evidence, summary) = pass.finish(place, numbers, &mut rulings, progress);
    rulings.sort_by_key(|ruling| ruling.info.code);
    let conclusions = summary.finish(contract, &evidence.val_numbers);
    let (rule_results, verdict, route) = assemble::judge(&rulings);
    let route = assemble::route(route, conclusions.has_candidate);
    let scope = trust::scope(
        head_file.as_ref().map(|file| file.source),
        &evidence.heads,
        request.trust.is_some(),
        &rule_results,
    );
    Ok(Tried::Report(Box::new(Report {
        contract: read.as_ref().map(|read| read.digest),
        denominators: conclusions.denominators,
        findings: assemble::findings(rulings),
        format: schemas::REPORT_FORMAT.to_owned(),
        head: assemble::head_seen(&evidence.heads),
        independence: assemble::independence(contract),
        nonclaims: assemble::nonclaims(contract),
        not_promised: profile::not_promised(contract),
        num_entries: evidence.num_entries,
        profile: contract.map(|contract| contract.ruleset.profile),
        projection: conclusions.projection,
        route,
        rules: rule_results,
        ruleset: EDITION.to_owned(),
        run: read.as_ref().map(|read| read.run.clone()),
        selected: conclusions.selected,
        selection_basis: conclusions.basis.unwrap_or(SelectionBasis::None),
        since: since.as_ref().map(Since::audited_before),
        target_met: conclusions.target_met,
        tool: TOOL.to_owned(),
        trust: Some(scope),
        verdict,
    })))
}

fn read_documents(
    read: Option<&ContractRead>,
    store: Option<&Store>,
    rulings: &mut Vec<Ruling>,
) -> Option<Frozen> {
    let mut artifacts = Sink::new(&rules::gl104_frozen_artifacts::INFO);
    let mut documents = Sink::new(&rules::gl105_frozen_documents::INFO);
    let (frozen, [artifact_outcome, document_outcome]) = match (read, store) {
        (Some(read), Some(store)) => {
            let (frozen, outcomes) = documents::read(read, store, (&mut artifacts, &mut documents));
            (Some(frozen), outcomes)
        }
        _ => {
            let reason = || Outcome::NotEvaluated("the contract could not be read".to_owned());
            (None, [reason(), reason()])
        }
    };
    rulings.push(Ruling::new(&rules::gl104_frozen_artifacts::INFO, artifacts, artifact_outcome));
    rulings.push(Ruling::new(&rules::gl105_frozen_documents::INFO, documents, document_outcome));
    frozen
}
