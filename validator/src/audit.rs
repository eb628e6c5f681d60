//! The audit: opens the ledger, reads what was frozen, passes over the entries
//! once, and asks every rule.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use schemas::digest::decode_hex;
use schemas::entry::Entry;
use schemas::report::{HeadSource, Report, SelectionBasis};

use crate::assemble::{self, Ruling};
use crate::contract::{self, ContractRead, ContractSinks};
use crate::documents;
use crate::error::AuditError;
use crate::evidence::{Evidence, MAX_DOCUMENT_BYTES, ValNumbers};
use crate::frozen::Frozen;
use crate::heads::{HeadSinks, HeadWatch, MAX_HEAD_FILE_BYTES};
use crate::left_out::LeftOut;
use crate::logical::Logical;
use crate::roots::{RootAt, Roots};
use crate::row::{Looked, RowCheck, RowContext};
use crate::rows;
use crate::rule::{At, Check, Outcome, Rule, RuleInfo, Sink, unavailable};
use crate::rules::{self, EDITION};
use crate::said::{Said, SaidFiles, read_limited};
use crate::since::{Since, TOOL};
use crate::store::{self, Access, RowsEnd, Store, beside};
use crate::summary::Summary;
use crate::tree::Frontier;
use crate::trust;
use crate::val_numbers;

/// Entries between two reports of progress.
const PROGRESS_EVERY: u64 = 4096;

/// What to audit.
#[derive(Debug, Clone, Default)]
pub struct AuditRequest {
    /// The ledger: `run.db`.
    pub ledger: PathBuf,
    /// A head file that was kept elsewhere; `None`: `<ledger>.head`.
    pub head: Option<PathBuf>,
    /// Public keys that the reviewer trusts; `None`: those of the contract.
    pub trust: Option<PathBuf>,
    /// The evaluator's val numbers; `None`: `<ledger>.val.dsse.json` if it exists.
    pub val_numbers: Option<PathBuf>,
    /// A report of an earlier audit to go on from; `None`: everything is looked at.
    pub since: Option<PathBuf>,
    /// Threads to compute on; `None`: those that the machine offers. Their number
    /// changes no answer.
    pub threads: Option<NonZeroUsize>,
}

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
    let (mut access, mut goes_on) = (accesses.next(), request.since.is_some());
    while let Some(current) = access {
        match audit_once(request, (current, goes_on), &left_out, progress)? {
            Tried::Report(report) => return Ok(*report),
            Tried::OtherAccess => access = accesses.next(),
            Tried::OtherEntries => goes_on = false,
        }
    }
    Err(AuditError::Busy { path: request.ledger.clone() })
}

/// An audit that leaves the pages to SQLite.
#[cfg(test)]
pub(crate) fn audit_by_sqlite(request: &AuditRequest) -> Result<Report, AuditError> {
    match audit_once(request, (Access::InPlace, false), &LeftOut::default(), &mut |_| {})? {
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

fn audit_once(
    request: &AuditRequest,
    (access, goes_on): (Access, bool),
    left_out: &LeftOut,
    progress: &mut dyn FnMut(Progress),
) -> Result<Tried, AuditError> {
    let trust = request.trust.as_deref().map(read_trust).transpose()?;
    let head_file = read_head_file(request)?;
    let val_file = read_val_file(request)?;
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
        &mut layout_sink,
    );
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

/// Where files are looked for, and how.
struct Place {
    folder: PathBuf,
    left_out: LeftOut,
    threads: NonZeroUsize,
}

/// A rule at work: its check with its findings.
struct Running<C: ?Sized> {
    info: &'static RuleInfo,
    sink: Sink,
    check: Box<C>,
    /// Whether an earlier audit found nothing by this rule.
    is_settled: bool,
}

/// One pass over the entries.
struct Pass<'a> {
    rows: Vec<Running<dyn RowCheck>>,
    checks: Vec<Running<dyn Check + 'a>>,
    /// The same for rules that see the recorded order.
    recorded: Vec<Running<dyn Check + 'a>>,
    logical: Logical,
    heads: HeadWatch,
    head_sinks: HeadSinks,
    read: Option<&'a ContractRead>,
    summary: Summary,
    frontier: Frontier,
    roots: Roots,
    said: Said,
    since: Option<&'a Since>,
    /// Whether every entry's own index is its place so far.
    is_in_place: bool,
}

impl<'a> Pass<'a> {
    fn new(
        read: Option<&'a ContractRead>,
        frozen: Option<&'a Frozen>,
        store: Option<&Store>,
        head_file: Option<&HeadFile>,
        (said, since): (Said, Option<&'a Since>),
        layout_sink: &mut Sink,
    ) -> Self {
        let mut head_sinks = HeadSinks {
            database: Sink::new(&rules::gl008_signed_heads::INFO),
            external: Sink::new(&rules::gl009_external_head::INFO),
        };
        let rows = match store.map_or(Ok(Vec::new()), Store::heads) {
            Ok(rows) => rows,
            Err(error) => {
                layout_sink.tampered(At::place("heads"), "SQLite finds the table damaged", "rows", error);
                Vec::new()
            }
        };
        let external = head_file.map(|file| (file.bytes.as_slice(), file.source, file.path.as_path()));
        let signers = read.and_then(|read| read.signers.as_ref());
        let heads = HeadWatch::collect(&rows, external, signers, &mut head_sinks);
        let (recorded, checks): (Vec<_>, Vec<_>) =
            rules::run_rules().partition(|rule| rule.follows_recorded_order());
        let open = |rule: &'static dyn Rule| Running {
            info: rule.info(),
            sink: Sink::new(rule.info()),
            is_settled: since.is_some_and(|since| since.is_settled(rule.info().code)),
            check: match frozen {
                Some(frozen) => rule.open(frozen),
                None => unavailable("the contract could not be read"),
            },
        };
        Self {
            rows: row_checks(read),
            checks: checks.into_iter().map(open).collect(),
            recorded: recorded.into_iter().map(open).collect(),
            logical: Logical::new(read.map(|read| &read.contract)),
            heads,
            head_sinks,
            read,
            summary: Summary::new(read.map(|read| &read.contract)),
            frontier: Frontier::new(),
            roots: Roots::new(said.sizes().chain(since.map(Since::size))),
            said,
            since,
            is_in_place: true,
        }
    }

    /// `false` where the rows have to be read in another way.
    fn run(
        &mut self,
        store: Option<&Store>,
        threads: NonZeroUsize,
        ledger: &Path,
        layout_sink: &mut Sink,
        progress: &mut dyn FnMut(Progress),
    ) -> bool {
        let Some(store) = store else { return true };
        let total = store.num_rows();
        let end = rows::for_each(store, threads, &mut |row, looked| {
            let done = self.frontier.size();
            if done.is_multiple_of(PROGRESS_EVERY) {
                progress(Progress { phase: "entries", done, total });
            }
            self.row(row, looked);
        });
        match end {
            RowsEnd::Complete => {}
            RowsEnd::Damaged(error) => store::unreadable(ledger, layout_sink, &error),
            RowsEnd::Refused => return false,
        }
        self.end_of_rows();
        self.again(store, threads)
    }

    fn row(&mut self, row: store::Row<'_>, looked: Looked) {
        let context =
            RowContext::new(self.frontier.size(), row, looked, self.read.map(|read| &read.identity));
        for running in &mut self.rows {
            running.check.row(&context, &mut running.sink);
        }
        if let Some(entry) = context.canonical_entry() {
            self.is_in_place &= entry.index == context.position;
            self.said.handoffs.entry(entry);
            for running in &mut self.recorded {
                running.check.entry(entry, &mut running.sink);
            }
            self.summary.entry(entry);
            let det = context.det();
            // Places are known by indices, which is so while every one is in its place.
            let num_settled = self.since.filter(|_| self.is_in_place).map_or(0, Since::size);
            let (checks, summary) = (&mut self.checks, &mut self.summary);
            self.logical.take(entry, &mut |given| {
                // One that was held comes without its row.
                let det = det.filter(|_| std::ptr::eq(given, entry));
                follow(checks, given, det, given.index < num_settled);
                summary.project(given, det);
            });
        }
        self.frontier.append(context.leaf);
        let size = self.frontier.size();
        let is_head = self.heads.is_at(size);
        if is_head || self.roots.is_wanted(size) {
            let root = self.frontier.root();
            self.roots.keep(size, root);
            if is_head {
                self.heads.compare(size, root, &mut self.head_sinks);
            }
        }
    }

    fn end_of_rows(&mut self) {
        let (checks, summary) = (&mut self.checks, &mut self.summary);
        self.logical.end(&mut |entry| {
            follow(checks, entry, None, false);
            summary.project(entry, None);
        });
    }

    /// Whether the entries begin with those that the earlier audit saw.
    fn goes_on(&self) -> bool {
        self.since.is_none_or(|since| match self.roots.at(since.size()) {
            RootAt::Known(root) => root == *since.root(),
            RootAt::Beyond | RootAt::Unknown => false,
        })
    }

    /// Shows the entries once more to the checks that need it; `false` as for
    /// [`Pass::run`].
    fn again(&mut self, store: &Store, threads: NonZeroUsize) -> bool {
        let asks = |running: &mut &mut Running<dyn Check + 'a>| running.check.needs_all_again();
        let mut checks: Vec<_> =
            self.checks.iter_mut().filter_map(|mut running| asks(&mut running).then_some(running)).collect();
        if checks.is_empty() {
            return true;
        }
        let mut give = |given: &Entry, det: Option<&[u8]>| {
            for running in &mut checks {
                running.check.entry_with_det(given, det, &mut running.sink);
            }
        };
        let mut logical = Logical::new(self.read.map(|read| &read.contract));
        let end = rows::for_each(store, threads, &mut |row, looked| {
            let context = RowContext::new(0, row, looked, None);
            let Some(entry) = context.canonical_entry() else { return };
            let det = context.det();
            logical.take(entry, &mut |given| give(given, det.filter(|_| std::ptr::eq(given, entry))));
        });
        logical.end(&mut |entry| give(entry, None));
        // Damage was told the first time.
        !matches!(end, RowsEnd::Refused)
    }

    fn finish(
        mut self,
        place: Place,
        numbers: ValNumbers,
        rulings: &mut Vec<Ruling>,
        progress: &mut dyn FnMut(Progress),
    ) -> (Evidence, Summary) {
        let num_entries = self.frontier.size();
        let mut coverage = Sink::new(&rules::gl010_head_coverage::INFO);
        let can_verify = self.read.is_some_and(|read| read.signers.is_some());
        let run_ended = self.summary.run_ended;
        let (heads, [database, external, covered]) =
            self.heads.finish(num_entries, run_ended, can_verify, &mut self.head_sinks, &mut coverage);
        rulings.push(Ruling::new(&rules::gl008_signed_heads::INFO, self.head_sinks.database, database));
        rulings.push(Ruling::new(&rules::gl009_external_head::INFO, self.head_sinks.external, external));
        rulings.push(Ruling::new(&rules::gl010_head_coverage::INFO, coverage, covered));
        self.roots.end(num_entries);
        rulings.extend(self.said.finish(&self.roots));
        for mut running in self.rows {
            let outcome = running.check.finish(&mut running.sink);
            rulings.push(Ruling::new(running.info, running.sink, outcome));
        }
        let mut evidence = Evidence::new(place.folder, num_entries, heads, numbers);
        evidence.threads = place.threads;
        evidence.left_out = place.left_out;
        if let Some(since) = self.since.filter(|_| self.is_in_place) {
            evidence.settled = since.settled();
        }
        let total = (self.checks.len() + self.recorded.len()) as u64;
        for (done, mut running) in (0..).zip(self.checks.into_iter().chain(self.recorded)) {
            progress(Progress { phase: "files", done, total });
            running.sink.excuse(evidence.left_out.clone());
            let outcome = running.check.finish(&evidence, &mut running.sink);
            let outcome = evidence.left_out.outcome(outcome);
            rulings.push(Ruling::new(running.info, running.sink, outcome));
        }
        progress(Progress { phase: "files", done: total, total });
        (evidence, self.summary)
    }
}

fn follow(checks: &mut [Running<dyn Check + '_>], entry: &Entry, det: Option<&[u8]>, is_settled: bool) {
    for running in checks {
        if is_settled && running.is_settled {
            running.check.settled_entry(entry, det, &mut running.sink);
        } else {
            running.check.entry_with_det(entry, det, &mut running.sink);
        }
    }
}

fn row_checks(read: Option<&ContractRead>) -> Vec<Running<dyn RowCheck>> {
    let mut extension_sink = Sink::new(&rules::gl013_extensions::INFO);
    let mut extensions = rules::gl013_extensions::Extensions::default();
    if let Some(read) = read {
        extensions.contract(&read.contract.extensions, &mut extension_sink);
    }
    let checks: [Box<dyn RowCheck>; 7] = [
        Box::new(rules::gl002_entry_sequence::EntrySequence::default()),
        Box::new(rules::gl003_canonical_bytes::CanonicalBytes::default()),
        Box::new(rules::gl004_entry_shape::EntryShape::default()),
        Box::new(rules::gl005_leaf_hash::LeafHash::default()),
        Box::new(rules::gl006_idempotency_key::IdempotencyKey::default()),
        Box::new(rules::gl007_envelope::Envelope::default()),
        Box::new(rules::gl012_entry_time::EntryTime::default()),
    ];
    let mut running: Vec<Running<dyn RowCheck>> = checks
        .into_iter()
        .map(|check| Running { info: check.info(), sink: Sink::new(check.info()), check, is_settled: false })
        .collect();
    running.push(Running {
        info: extensions.info(),
        sink: extension_sink,
        check: Box::new(extensions),
        is_settled: false,
    });
    running
}

struct HeadFile {
    bytes: Vec<u8>,
    source: HeadSource,
    path: PathBuf,
}

/// The named head file, or the one beside the ledger if it exists.
fn read_head_file(request: &AuditRequest) -> Result<Option<HeadFile>, AuditError> {
    let (path, source) = match &request.head {
        Some(path) => (path.clone(), HeadSource::Named),
        None => (beside(&request.ledger, ".head"), HeadSource::Beside),
    };
    match read_limited(&path, MAX_HEAD_FILE_BYTES) {
        Ok(bytes) => Ok(Some(HeadFile { bytes, source, path })),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && request.head.is_none() => Ok(None),
        Err(source) => Err(AuditError::Named { what: "the head file", path, source }),
    }
}

/// The val numbers' bytes, if there are any, and their place as text.
fn read_val_file(request: &AuditRequest) -> Result<(Option<Vec<u8>>, String), AuditError> {
    let path = request.val_numbers.clone().unwrap_or_else(|| beside(&request.ledger, ".val.dsse.json"));
    let place = path.display().to_string();
    match read_limited(&path, MAX_DOCUMENT_BYTES) {
        Ok(bytes) => Ok((Some(bytes), place)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && request.val_numbers.is_none() => {
            Ok((None, place))
        }
        Err(source) => Err(AuditError::Named { what: "the file of val numbers", path, source }),
    }
}

/// Reads `{"owner":"<64 hex digits>", ...}`.
fn read_trust(path: &Path) -> Result<BTreeMap<String, String>, AuditError> {
    let bytes = read_limited(path, MAX_DOCUMENT_BYTES).map_err(|source| AuditError::Named {
        what: "the trust file",
        path: path.to_owned(),
        source,
    })?;
    let wrong = |reason: String| AuditError::Trust { path: path.to_owned(), reason };
    let keys: BTreeMap<String, String> =
        serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    for (role, key) in &keys {
        if !["owner", "trainer", "validator", "qualifier"].contains(&role.as_str()) {
            return Err(wrong(format!("there is no role {role:?}")));
        }
        if decode_hex(key).is_none_or(|bytes| bytes.len() != 32) {
            return Err(wrong(format!("the key of {role} is not 64 lower-case hex digits")));
        }
    }
    if keys.is_empty() { Err(wrong("it names no key".to_owned())) } else { Ok(keys) }
}

fn folder_of(ledger: &Path) -> PathBuf {
    match ledger.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}
