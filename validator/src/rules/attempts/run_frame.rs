//! `run.start` once before everything, `run.end` once after it.

use schemas::body::{Body, Kind};
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL201`.
    RunFrame,
    {
        code: "GL201",
        name: "run-frame",
        what: "run.start occurs once, after the freeze and before every attempt; run.end occurs once, and only probes, \
               retirements, witness heads, handoffs, amendments and costs follow it.",
        why: "Work before run.start would have no frozen contract in force, and work after run.end could add steps or \
              candidates to a run whose selection is already known.",
        remedy: "Let `trainer run` continue the run until it writes run.end; entries outside the frame cannot be repaired \
                 and need a new run.",
        reference: "docs/FORMAT.md, \"Order of entries\"",
        gate: Route::RejectIdentity,
    }
);

struct Frame<'a> {
    frozen: &'a Frozen,
    num_entries: u64,
    started: Option<u64>,
    ended: Option<u64>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Frame { frozen, num_entries: 0, started: None, ended: None })
}

/// What may be written before execution begins.
const fn may_precede(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::ContractFrozen | Kind::RunStart | Kind::WitnessHead | Kind::Amendment | Kind::Intervention
    )
}

/// What may be written after execution has ended.
const fn may_follow(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::ProbeStart
            | Kind::ProbeResult
            | Kind::CheckpointResumeQualified
            | Kind::CheckpointRetired
            | Kind::WitnessHead
            | Kind::HandoffIssued
            | Kind::Amendment
            | Kind::Cost
    )
}

impl Check for Frame<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.num_entries += 1;
        let kind = entry.body.kind();
        let at = || At::entry(entry.index, "/kind");
        if let Some(end) = self.ended {
            if kind == Kind::RunEnd {
                sink.rejected(
                    at(),
                    "the run ends a second time",
                    "one run.end",
                    format!("another at entry {end}"),
                );
            } else if !may_follow(kind) {
                sink.rejected(
                    at(),
                    format!("{} follows run.end", kind.name()),
                    "only probes, retirements, witness heads, handoffs, amendments and costs",
                    kind.name(),
                );
            }
            return;
        }
        if self.started.is_none() && !may_precede(kind) {
            sink.rejected(at(), format!("{} precedes run.start", kind.name()), "run.start", kind.name());
        }
        match &entry.body {
            Body::RunStart(halves) => {
                if let Some(first) = self.started {
                    sink.rejected(
                        at(),
                        "the run starts twice",
                        "one run.start",
                        format!("another at entry {first}"),
                    );
                }
                self.started.get_or_insert(entry.index);
                if halves.det.contract != self.frozen.digest {
                    sink.rejected(
                        At::entry(entry.index, "/body/det/contract"),
                        "run.start names another contract",
                        self.frozen.digest,
                        halves.det.contract,
                    );
                }
            }
            Body::RunEnd(_) => self.ended = Some(entry.index),
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        if self.started.is_none() {
            sink.incomplete(At::place("ledger"), "the run has not started", "run.start", "no such entry");
        }
        if self.ended.is_none() {
            sink.incomplete(At::place("ledger"), "the run has not ended", "run.end", "no such entry");
        }
        Outcome::Checked(self.num_entries)
    }
}
