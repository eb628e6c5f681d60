//! What is executed again gives the same determined half.

use std::collections::BTreeMap;

use schemas::body::{Body, Kind};
use schemas::contract::{EquivalenceClass, MidAccumulation};
use schemas::entry::Entry;
use schemas::report::Route;

use super::step_bytes;
use crate::derive::examples::Pieces;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL205`.
    ReplayEquality,
    {
        code: "GL205",
        name: "replay-equality",
        what: "Under determinism `bitwise`, every step, evaluation and committed checkpoint that a later attempt executes again \
               has the same `det` half: the same data, loss, norms, rates, and state digests.",
        why: "A resumed run that drifts from the one it continues is another run. Equal state digests after a crash are \
              evidence that the resume lost nothing.",
        remedy: "Find what the checkpoint did not restore (see the first differing field), or claim a weaker equivalence class \
                 in a new contract.",
        reference: "docs/FORMAT.md, \"Order of entries\"; docs/CONTRACT.md, \"ResumeEquivalence\"",
        gate: Route::RejectResumeDrift,
    }
);

/// Kind in order, and stream.
type Key = (u64, Kind, String);

/// Entries of one attempt between two saved steps, and their digest.
struct Span {
    digest: [u8; 32],
    first_step: u64,
}

struct Replay {
    /// Bytes of the half in hand; kept so that it is not allocated for each step.
    buffer: Vec<u8>,
    /// Digests since the newest validated checkpoint, by the running attempt.
    open: BTreeMap<Key, [u8; 32]>,
    /// The same by attempts that were lost since then.
    lost: BTreeMap<Key, [u8; 32]>,
    /// Older spans by the step that closes them, so that a run which falls back
    /// further is compared too without memory that grows with the steps.
    spans: BTreeMap<u64, Span>,
    first_step: u64,
    num_checked: u64,
    /// Whether an attempt may save where it ends.
    saves_at_end: bool,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    if frozen.contract.numerics.determinism == EquivalenceClass::Bitwise {
        Box::new(Replay {
            buffer: Vec::new(),
            open: BTreeMap::new(),
            lost: BTreeMap::new(),
            spans: BTreeMap::new(),
            first_step: 0,
            num_checked: 0,
            saves_at_end: frozen.contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients,
        })
    } else {
        let class = frozen.contract.numerics.determinism;
        crate::rules::common::at_end(move |_, _| {
            Outcome::NotEvaluated(format!(
                "the contract's determinism is {class:?}, and no probe of this edition compares repeated steps in it"
            ))
        })
    }
}

impl Replay {
    fn record(&mut self, entry: &Entry, key: Key, sink: &mut Sink) {
        self.buffer.clear();
        if let Body::Step(halves) = &entry.body {
            step_bytes::write(&halves.det, &mut self.buffer);
        } else if let Ok(det) = entry.body.det_json() {
            self.buffer.extend(det.as_bytes());
        }
        let digest = *blake3::hash(&self.buffer).as_bytes();
        self.num_checked += 1;
        if let Some(earlier) = self.lost.get(&key)
            && *earlier != digest
        {
            sink.rejected(
                At::entry(entry.index, "/body/det"),
                format!("{} {} executed again gives something else", entry.body.kind().name(), key.0),
                format!(
                    "the det half whose digest in this audit is {}",
                    schemas::digest::encode_hex(earlier)
                ),
                schemas::digest::encode_hex(&digest),
            );
        }
        self.open.insert(key, digest);
    }

    /// Closes the span that a validated checkpoint ends.
    fn close(&mut self, entry: &Entry, step: u64, sink: &mut Sink) {
        if step == self.first_step && self.open.is_empty() {
            // A second checkpoint of the step that was resumed at.
            return;
        }
        let mut pieces = Pieces::default();
        for (key, digest) in
            self.open.iter().filter(|(key, _)| key.0 > self.first_step || self.first_step == 0)
        {
            pieces.add(&key.0.to_le_bytes());
            pieces.add(key.1.name().as_bytes());
            pieces.add(key.2.as_bytes());
            pieces.add(digest);
        }
        let span = Span { digest: pieces.finish(), first_step: self.first_step };
        match self.spans.get(&step) {
            Some(earlier) if earlier.first_step == span.first_step && earlier.digest != span.digest => {
                sink.rejected(
                    At::entry(entry.index, ""),
                    format!("steps {} to {step} executed again give something else", span.first_step),
                    schemas::digest::encode_hex(&earlier.digest),
                    schemas::digest::encode_hex(&span.digest),
                );
            }
            Some(_) => {}
            None => {
                self.spans.insert(step, span);
            }
        }
        self.open.clear();
        self.lost.retain(|key, _| key.0 > step);
        self.first_step = step;
    }
}

impl Check for Replay {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        let kind = entry.body.kind();
        let step = entry.header.step.unwrap_or(0);
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.lost.append(&mut self.open);
                self.first_step = halves.det.from_step;
            }
            Body::Step(_) => self.record(entry, (step, kind, String::new()), sink),
            Body::Eval(halves) => self.record(entry, (step, kind, halves.det.stream.clone()), sink),
            // A signal may have saved a step at another microbatch than it is
            // saved at when it is executed again.
            Body::CheckpointDurablyCommitted(_) if self.saves_at_end => {}
            Body::CheckpointDurablyCommitted(halves) => {
                self.record(entry, (halves.det.step, kind, String::new()), sink);
            }
            Body::CheckpointValidated(halves) => self.close(entry, halves.det.step, sink),
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}
