//! What was fed to the model are the bytes of the frozen shards.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use schemas::body::Body;
use schemas::data::{DataManifest, DataShard, ExampleRecord, Split};
use schemas::digest::{Algorithm, encode_hex};
use schemas::entry::Entry;
use schemas::report::Route;

use crate::derive::batch;
use crate::derive::examples::Pieces;
use crate::derive::order::Order;
use crate::evidence::{Evidence, FileError, describe};
use crate::frozen::{ExampleTable, Frozen};
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{Rewindable, beside, declare_rule};
use crate::rules::gl108_data_files::measure;

declare_rule!(
    /// `GL304`.
    DrawInputs,
    {
        code: "GL304",
        name: "draw-inputs",
        what: "The digest of what entered the model at every update, taken by the trainer from its tensors, is the digest of the \
               drawn windows of the data shards.",
        why: "Ids show which examples were announced; only the inputs show that their text is what was trained on.",
        remedy: "Place the data shards beside the manifest to let this rule run. A difference needs a new run.",
        reference: "schemas::body::Draw; docs/FORMAT.md, \"Examples\"",
        gate: Route::RejectFrozenInputs,
    }
);

/// Steps whose digests are kept one by one, so that a difference can be placed;
/// beyond it only a running hash of them between saved steps is kept, so that
/// memory does not grow with the steps.
const MAX_LISTED_STEPS: usize = 1 << 16;

/// Consecutive steps of the logical run.
#[derive(Clone)]
struct Span {
    first_step: u64,
    last_step: u64,
    listed: Vec<(u64, [u8; 32])>,
    /// How many of its first steps are settled.
    num_settled: u64,
    /// Over the digests of the steps that are not listed.
    rolling: blake3::Hasher,
}

impl Span {
    fn new(after_step: u64) -> Self {
        Self {
            first_step: after_step.saturating_add(1),
            last_step: after_step,
            listed: Vec::new(),
            num_settled: 0,
            rolling: blake3::Hasher::new(),
        }
    }
}

struct Inputs<'a> {
    data: &'a DataManifest,
    frozen: &'a Frozen,
    table: &'a ExampleTable,
    /// Closed spans of the logical run, and the open one.
    spans: Vec<Span>,
    is_contiguous: bool,
    closed: Rewindable<usize>,
    num_listed: usize,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    match (&frozen.train_examples, &frozen.data) {
        (Ok(table), Ok(data)) => Box::new(Inputs {
            data,
            frozen,
            table,
            spans: vec![Span::new(0)],
            is_contiguous: true,
            closed: Rewindable::new(0),
            num_listed: 0,
        }),
        (Err(reason), _) => unavailable(format!("the train example table: {reason}")),
        (_, Err(reason)) => unavailable(format!("the data manifest: {reason}")),
    }
}

impl Inputs<'_> {
    fn record(&mut self, entry: &Entry, inputs: [u8; 32], is_settled: bool) {
        let step = entry.header.step.unwrap_or(0);
        let Some(span) = self.spans.last_mut() else { return };
        if step != span.last_step.saturating_add(1) {
            self.is_contiguous = false;
            return;
        }
        let is_first_open = span.num_settled == step.saturating_sub(span.first_step);
        span.num_settled += u64::from(is_settled && is_first_open);
        span.last_step = step;
        // Within a span the listed steps come first.
        if self.num_listed < MAX_LISTED_STEPS {
            span.listed.push((entry.index, inputs));
            self.num_listed += 1;
        } else {
            span.rolling.update(&inputs);
        }
    }

    /// The digest that a step must have; errors in words.
    fn expected(
        &self,
        files: &mut ShardFiles<'_>,
        order: &mut Order,
        pieces: &mut Pieces,
        step: u64,
    ) -> Result<[u8; 32], String> {
        let global = u64::from(self.frozen.contract.batch.global_examples);
        let first =
            batch::first_position(&self.frozen.contract.batch, step).ok_or("the position leaves 64 bits")?;
        let mut fed = Ok(());
        let drawn = order.for_each(first..first.saturating_add(global), |index| {
            if let (Ok(()), Some(record)) = (&fed, self.table.get(index)) {
                fed = files.feed(&record, self.data, pieces);
            }
        });
        drawn.ok_or("the example table is empty")?;
        fed.map(|()| pieces.finish())
    }

    /// The first step of a span that has to be looked at. The digests that are not
    /// listed can be compared together only.
    fn first_open(&self, span: &Span) -> u64 {
        let num_steps = span.last_step.saturating_add(1).saturating_sub(span.first_step);
        let num_open = if span.num_settled == num_steps {
            num_steps
        } else {
            span.num_settled.min(span.listed.len() as u64)
        };
        span.first_step.saturating_add(num_open)
    }

    /// Whether the shards are what the entries that were settled were compared
    /// with.
    fn are_shards_unchanged(&self, evidence: &Evidence) -> bool {
        let train = self.data.shards.iter().filter(|shard| shard.split == Split::Train);
        let mut found = train.map(|shard| {
            let path = beside(&self.frozen.contract.data.manifest.path, &shard.path);
            let measured = measure(&path, Some(shard.num_bytes), evidence);
            measured.is_ok_and(|measured| measured.is(shard.digest, Some(shard.num_bytes)))
        });
        found.all(|is_unchanged| is_unchanged)
    }

    fn compare(
        &self,
        span: &Span,
        first: u64,
        files: &mut ShardFiles<'_>,
        order: &mut Order,
        sink: &mut Sink,
    ) -> Result<(), String> {
        let (mut rolling, mut pieces) = (blake3::Hasher::new(), Pieces::default());
        let errors = sink.num_errors();
        for step in first..=span.last_step {
            let expected = self.expected(files, order, &mut pieces, step)?;
            let listed = usize::try_from(step - span.first_step).ok().and_then(|at| span.listed.get(at));
            let Some((index, actual)) = listed else {
                rolling.update(&expected);
                continue;
            };
            if *actual != expected {
                let at = At::entry(*index, "/body/det/draws/0/inputs");
                let message = format!("step {step} was fed other bytes than its examples have");
                sink.rejected(at, message, encode_hex(&expected), encode_hex(actual));
            }
        }
        let is_rolling_open = first <= span.last_step;
        if is_rolling_open && rolling.finalize() != span.rolling.finalize() && sink.num_errors() == errors {
            let message = format!("steps {} to {} were fed other bytes", span.first_step, span.last_step);
            let (expected, actual) = (rolling.finalize().to_hex(), span.rolling.finalize().to_hex());
            sink.rejected(At::place("ledger"), message, expected, actual);
        }
        Ok(())
    }
}

impl Inputs<'_> {
    fn follow(&mut self, entry: &Entry, is_settled: bool, sink: &mut Sink) {
        match &entry.body {
            Body::Step(halves) => {
                for (at, draw) in halves.det.draws.iter().enumerate() {
                    let inputs = draw.inputs;
                    if inputs.algorithm != Algorithm::Blake3 {
                        let at = At::entry(entry.index, format!("/body/det/draws/{at}/inputs"));
                        sink.rejected(at, "the inputs are digested otherwise", "blake3", inputs);
                    }
                }
                let inputs = halves.det.draws.first().map_or([0; 32], |draw| draw.inputs.bytes);
                self.record(entry, inputs, is_settled);
            }
            Body::CheckpointDurablyCommitted(halves) => {
                self.closed.now = self.spans.len();
                self.spans.push(Span::new(halves.det.step));
            }
            _ => {}
        }
        self.closed.entry(entry);
        if let Body::AttemptStart(halves) = &entry.body {
            self.spans.truncate(self.closed.now);
            self.spans.push(Span::new(halves.det.from_step));
            self.num_listed = self.spans.iter().map(|span| span.listed.len()).sum();
        }
    }
}

impl Check for Inputs<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.follow(entry, false, sink);
    }

    fn settled_entry(&mut self, entry: &Entry, _: Option<&[u8]>, sink: &mut Sink) {
        self.follow(entry, true, sink);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        if !self.is_contiguous {
            return Outcome::NotEvaluated(
                "steps are not contiguous, so no step's inputs can be told".to_owned(),
            );
        }
        let contract = &self.frozen.contract;
        let mut files = ShardFiles::new(evidence, &contract.data.manifest.path);
        let mut order = Order::of(contract, self.table.num_examples());
        let mut num_steps = 0;
        let is_unchanged =
            self.spans.iter().any(|span| span.num_settled > 0) && self.are_shards_unchanged(evidence);
        // What an earlier audit compared with was the shards as they were frozen only
        // where the rules that say so passed too.
        let is_unchanged =
            is_unchanged && ["GL108", "GL307"].iter().all(|code| evidence.settled.num_entries(code) > 0);
        for span in &self.spans {
            let first = if is_unchanged { self.first_open(span) } else { span.first_step };
            if let Err(reason) = self.compare(span, first, &mut files, &mut order, sink) {
                return Outcome::NotEvaluated(reason);
            }
            num_steps += span.last_step.saturating_add(1).saturating_sub(span.first_step);
        }
        Outcome::Checked(num_steps)
    }
}

/// Shards up to this many bytes together are held in memory, because a system
/// call for each window costs more than hashing it; larger ones are read window
/// by window.
const MAX_CACHED_BYTES: u64 = 256 << 20;

/// Where a shard's bytes come from.
enum Source {
    Memory(Vec<u8>),
    File(File),
}

/// Data shards, opened once each.
struct ShardFiles<'a> {
    evidence: &'a Evidence,
    manifest: &'a str,
    open: Vec<(u32, Source)>,
    num_cached_bytes: u64,
    window: Vec<u8>,
}

impl<'a> ShardFiles<'a> {
    fn new(evidence: &'a Evidence, manifest: &'a str) -> Self {
        Self { evidence, manifest, open: Vec::new(), num_cached_bytes: 0, window: Vec::new() }
    }

    /// Hashes what an example feeds: its number of bytes and the bytes.
    fn feed(
        &mut self,
        record: &ExampleRecord,
        data: &DataManifest,
        pieces: &mut Pieces,
    ) -> Result<(), String> {
        let shard = usize::try_from(record.shard).ok().and_then(|at| data.shards.get(at));
        let shard = shard.ok_or_else(|| {
            format!("the example table names shard {} of {}", record.shard, data.shards.len())
        })?;
        let num_bytes = u64::from(record.num_targets) + 1;
        let too_short = || format!("the example table covers bytes beyond the end of {}", shard.path);
        let end = record.offset.checked_add(num_bytes).filter(|end| *end <= shard.num_bytes);
        let end = end.ok_or_else(too_short)?;
        let at = match self.open.iter().position(|(index, _)| *index == record.shard) {
            Some(at) => at,
            None => {
                let source = self.source(shard)?;
                self.open.push((record.shard, source));
                self.open.len() - 1
            }
        };
        pieces.add(&(record.num_targets + 1).to_le_bytes());
        match &mut self.open[at].1 {
            Source::Memory(bytes) => {
                let range = usize::try_from(record.offset).ok().zip(usize::try_from(end).ok());
                let window = range.and_then(|(start, end)| bytes.get(start..end));
                pieces.add(window.ok_or_else(too_short)?);
            }
            Source::File(file) => {
                self.window.clear();
                let read = file.seek(SeekFrom::Start(record.offset));
                let read = read.and_then(|_| file.take(num_bytes).read_to_end(&mut self.window));
                read.map_err(|error| format!("{}: {error}", shard.path))?;
                pieces.add(&self.window);
            }
        }
        Ok(())
    }

    fn source(&mut self, shard: &DataShard) -> Result<Source, String> {
        let path = beside(self.manifest, &shard.path);
        let mut file = self.evidence.open(&path).map_err(|error: FileError| describe(&error))?;
        let total = self.num_cached_bytes.saturating_add(shard.num_bytes);
        if total > MAX_CACHED_BYTES {
            return Ok(Source::File(file));
        }
        self.num_cached_bytes = total;
        let mut bytes = Vec::new();
        let read = (&mut file).take(shard.num_bytes).read_to_end(&mut bytes);
        read.map_err(|error| format!("{path}: {error}"))?;
        Ok(Source::Memory(bytes))
    }
}
