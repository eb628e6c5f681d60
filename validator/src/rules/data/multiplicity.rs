//! Along the logical run each example was consumed as often as the contract
//! says.

use schemas::body::{Body, Draw};
use schemas::entry::Entry;
use schemas::report::Route;

use crate::derive::order::{Order, UPDATE_STREAM};
use crate::derive::steps;
use crate::evidence::Evidence;
use crate::frozen::{ExampleTable, Frozen};
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{LastStep, Rewindable, declare_rule};

declare_rule!(
    /// `GL306`.
    Multiplicity,
    {
        code: "GL306",
        name: "multiplicity",
        what: "Over the logical run, from all recorded ranges together, every example was consumed exactly as often as the \
               contract's order and number of steps determine.",
        why: "A crash that rewinds or skips the cursor duplicates or omits examples; every single step can look right while the \
              whole does not.",
        remedy: "None for a finished run. The examples listed were trained on too often or too rarely.",
        reference: "docs/FORMAT.md, \"Data order\"",
        gate: Route::RejectFrozenInputs,
    }
);

/// Runs of consecutive global positions that are kept; an honest run needs one.
const MAX_SPANS: usize = 1 << 16;
/// Positions that are counted one by one to name the examples that differ;
/// beyond it only the spans are reported.
const MAX_COUNTED: u64 = 1 << 28;
/// Examples that are named one by one.
const MAX_NAMED: usize = 20;

/// How far the list of spans had come at a saved step.
#[derive(Clone, Copy, Default)]
struct Mark {
    last_end: u64,
    num_spans: usize,
}

struct Coverage<'a> {
    frozen: &'a Frozen,
    last: LastStep,
    num_steps: u64,
    mark: Rewindable<Mark>,
    /// `first..end` of global positions in the order of consumption.
    spans: Vec<(u64, u64)>,
    table: &'a ExampleTable,
    too_many: bool,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    match &frozen.train_examples {
        Ok(table) => Box::new(Coverage {
            frozen,
            last: LastStep::default(),
            num_steps: 0,
            mark: Rewindable::new(Mark::default()),
            spans: Vec::new(),
            table,
            too_many: false,
        }),
        Err(reason) => unavailable(format!("the train example table: {reason}")),
    }
}

impl Coverage<'_> {
    fn consume(&mut self, draw: &Draw) {
        for range in &draw.ranges {
            let first = range
                .epoch
                .checked_mul(self.table.num_examples())
                .and_then(|start| start.checked_add(range.first));
            let Some((first, end)) =
                first.and_then(|first| Some((first, first.checked_add(range.num_examples)?)))
            else {
                self.too_many = true;
                return;
            };
            let is_full = self.spans.len() >= MAX_SPANS;
            match self.spans.last_mut().filter(|span| span.1 == first) {
                Some(span) => span.1 = end,
                None if is_full => self.too_many = true,
                None => self.spans.push((first, end)),
            }
        }
        self.mark.now =
            Mark { last_end: self.spans.last().map_or(0, |span| span.1), num_spans: self.spans.len() };
    }

    /// Takes back what a lost attempt consumed beyond the state that is resumed.
    fn rewind(&mut self) {
        self.spans.truncate(self.mark.now.num_spans);
        if let Some(span) = self.spans.last_mut() {
            span.1 = self.mark.now.last_end;
        }
    }

    /// Adds to `counts`, for each position, one use of its example.
    fn count(&self, counts: &mut [i64], spans: &[(u64, u64)], by: i64) {
        let mut order = Order::of(&self.frozen.contract, self.table.num_examples());
        for position in spans.iter().flat_map(|(first, end)| *first..*end) {
            let example = order.global(position).and_then(|example| usize::try_from(example).ok());
            if let Some(count) = example.and_then(|example| counts.get_mut(example)) {
                *count += by;
            }
        }
    }

    fn judge(&self, sink: &mut Sink) -> u64 {
        let global = u64::from(self.frozen.contract.batch.global_examples);
        let expected_end = self.last.step().saturating_mul(global);
        let length = |(first, end): &(u64, u64)| end.saturating_sub(*first);
        let consumed: u64 = self.spans.iter().map(length).fold(0, u64::saturating_add);
        // Every step of the logical run has an entry, so a step number beyond
        // them, or beyond the contract, says nothing of what was consumed.
        let contract = &self.frozen.contract;
        let limit = self.num_steps.min(steps::max_step(&contract.stopping, &contract.budget));
        if self.last.step() > limit {
            let message = "the run says that it is at a step which its entries and its contract do not reach";
            sink.rejected(At::place("ledger"), message, format!("step {limit} or less"), self.last.step());
            return consumed;
        }
        if self.spans.as_slice() == [(0, expected_end)] || (expected_end == 0 && self.spans.is_empty()) {
            return consumed;
        }
        // More positions than the entries could honestly name would keep an
        // audit busy for ever.
        if consumed.saturating_add(expected_end) > MAX_COUNTED {
            let message =
                "the positions that the steps drew are not those of the contract, and too many to count";
            sink.rejected(
                At::place("ledger"),
                message,
                format!("positions 0 to {expected_end}, once each"),
                format!("{consumed} positions in {} spans", self.spans.len()),
            );
            return consumed;
        }
        let Ok(num_examples) = usize::try_from(self.table.num_examples()) else { return 0 };
        let mut counts = vec![0i64; num_examples];
        self.count(&mut counts, &self.spans, 1);
        self.count(&mut counts, &[(0, expected_end)], -1);
        let wrong: Vec<(usize, i64)> =
            counts.into_iter().enumerate().filter(|(_, count)| *count != 0).collect();
        for (example, count) in wrong.iter().take(MAX_NAMED) {
            let word = if *count > 0 { "more often" } else { "less often" };
            let at = At::place(format!("train example {example}"));
            let message = format!("the example was consumed {word} than the contract says");
            sink.rejected(at, message, "a difference of 0", format!("{count:+}"));
        }
        let message = "the positions that the steps drew are not those of the contract";
        let expected = format!("positions 0 to {expected_end}, once each");
        let actual =
            format!("{consumed} positions in {} spans; {} examples differ", self.spans.len(), wrong.len());
        sink.rejected(At::place("ledger"), message, expected, actual);
        consumed
    }
}

impl Check for Coverage<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        if let Body::Step(halves) = &entry.body {
            self.num_steps += 1;
            halves
                .det
                .draws
                .iter()
                .filter(|draw| draw.stream == UPDATE_STREAM)
                .for_each(|draw| self.consume(draw));
        }
        self.last.entry(entry);
        self.mark.entry(entry);
        if matches!(entry.body, Body::AttemptStart(_)) {
            self.rewind();
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        if self.too_many {
            let message = "the positions that the steps drew are scattered or beyond 64 bits";
            sink.rejected(
                At::place("ledger"),
                message,
                "one span of positions",
                format!("more than {MAX_SPANS}"),
            );
        }
        Outcome::Checked(self.judge(sink))
    }
}
