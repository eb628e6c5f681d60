//! One pass over a ledger's rows: what follows from a row alone, then each rule
//! over the entries, in recorded or in logical order; and, behind the last of
//! them, the files. It decides nothing: each rule has its findings to itself.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use schemas::body::Kind;
use schemas::entry::Entry;

use crate::assemble::Ruling;
use crate::audit::Progress;
use crate::contract::ContractRead;
use crate::cosigned::Cosignatures;
use crate::evidence::{Evidence, ValNumbers};
use crate::frozen::Frozen;
use crate::heads::{HeadSinks, HeadWatch};
use crate::left_out::LeftOut;
use crate::logical::Logical;
use crate::profile;
use crate::request::HeadFile;
use crate::roots::{RootAt, Roots};
use crate::row::{Looked, RowCheck, RowContext};
use crate::rows;
use crate::rule::{At, Check, Rule, RuleInfo, Sink, unavailable};
use crate::rules;
use crate::said::Said;
use crate::since::Since;
use crate::store::{self, RowsEnd, Store};
use crate::summary::Summary;
use crate::tree::Frontier;

/// Entries between two reports of progress.
const PROGRESS_EVERY: u64 = 4096;

/// Where files are looked for, and how.
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    pub(crate) left_out: LeftOut,
    pub(crate) threads: NonZeroUsize,
}

/// A rule at work: its check with its findings.
struct Running<C: ?Sized> {
    info: &'static RuleInfo,
    sink: Sink,
    check: Box<C>,
    /// Whether an earlier audit found nothing by this rule.
    is_settled: bool,
    /// Whether it is not called for steps.
    ignores_steps: bool,
}

/// One pass over the entries.
pub(crate) struct Pass<'a> {
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
    cosignatures: Cosignatures,
    since: Option<&'a Since>,
    /// Whether every entry's own index is its place so far.
    is_in_place: bool,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(
        read: Option<&'a ContractRead>,
        frozen: Option<&'a Frozen>,
        store: Option<&Store>,
        head_file: Option<&HeadFile>,
        (said, since): (Said, Option<&'a Since>),
        cosignatures: Cosignatures,
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
        let open = |rule: &'static dyn Rule| {
            let check = match frozen {
                Some(frozen) => profile::open(rule, frozen),
                None => unavailable("the contract could not be read"),
            };
            Running {
                info: rule.info(),
                sink: Sink::new(rule.info()),
                is_settled: since.is_some_and(|since| since.is_settled(rule.info().code)),
                ignores_steps: check.ignores_steps(),
                check,
            }
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
            roots: Roots::new(said.sizes().chain(since.map(Since::size)).chain(cosignatures.sizes())),
            said,
            cosignatures,
            since,
            is_in_place: true,
        }
    }

    /// Shows steps to the rules that ignore them too.
    pub(crate) fn show_all_steps(&mut self) {
        self.checks.iter_mut().for_each(|running| running.ignores_steps = false);
    }

    /// `false` where the rows have to be read in another way.
    pub(crate) fn run(
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
            self.cosignatures.entry(context.position, entry);
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
    pub(crate) fn goes_on(&self) -> bool {
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

    pub(crate) fn finish(
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
        rulings.extend(self.cosignatures.finish(&self.roots));
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
    let is_step = entry.body.kind() == Kind::Step;
    for running in checks.iter_mut().filter(|running| !(is_step && running.ignores_steps)) {
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
        .map(|check| Running {
            info: check.info(),
            sink: Sink::new(check.info()),
            check,
            is_settled: false,
            ignores_steps: false,
        })
        .collect();
    running.push(Running {
        info: extensions.info(),
        sink: extension_sink,
        check: Box::new(extensions),
        is_settled: false,
        ignores_steps: false,
    });
    running
}
