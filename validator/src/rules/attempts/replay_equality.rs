//! What is executed again gives the same determined half.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher};

use schemas::body::{Body, Kind};
use schemas::contract::{EquivalenceClass, MidAccumulation};
use schemas::entry::Entry;
use schemas::report::Route;

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

/// Entries of one attempt between two saved steps.
struct Span {
    /// Over the hashes of its halves.
    digest: [u8; 32],
    first_step: u64,
    /// The first and the last of them, in the order of their steps.
    entries: Option<(u64, u64)>,
}

/// A determined half that was seen.
#[derive(Clone, Copy)]
struct Half {
    entry: u64,
    hash: u64,
}

struct Replay {
    /// Halves are compared by hashes under a key that is drawn for each audit and
    /// told to nobody, so that whoever wrote the ledger cannot have made two halves
    /// that agree in it; this takes a quarter of the time of a digest.
    key: RandomState,
    /// Halves since the newest validated checkpoint, by the running attempt, as they
    /// came: nearly always in order, so that a map would cost more than it saves.
    open: Vec<(Key, Half)>,
    /// The same by attempts that were lost since then.
    lost: BTreeMap<Key, Half>,
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
            key: RandomState::new(),
            open: Vec::new(),
            lost: BTreeMap::new(),
            spans: BTreeMap::new(),
            first_step: 0,
            num_checked: 0,
            saves_at_end: frozen.contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients,
        })
    } else {
        Box::new(Repeated {
            class: frozen.contract.numerics.determinism,
            earlier: Furthest::default(),
            running: Furthest::default(),
            num_repeated: 0,
        })
    }
}

impl Replay {
    fn record(&mut self, entry: &Entry, det: Option<&[u8]>, key: Key, sink: &mut Sink) {
        let mut hasher = self.key.build_hasher();
        match det {
            Some(det) => hasher.write(det),
            // What was read is canonical, so it is written as it was read.
            None => hasher.write(entry.body.det_json().unwrap_or_default().as_bytes()),
        }
        let half = Half { entry: entry.index, hash: hasher.finish() };
        self.num_checked += 1;
        if let Some(earlier) = self.lost.get(&key)
            && earlier.hash != half.hash
        {
            sink.rejected(
                At::entry(entry.index, "/body/det"),
                format!("{} {} executed again gives something else", entry.body.kind().name(), key.0),
                format!("the det half of entry {}", earlier.entry),
                "another",
            );
        }
        self.open.push((key, half));
    }

    /// Closes the span that a validated checkpoint ends.
    fn close(&mut self, entry: &Entry, step: u64, sink: &mut Sink) {
        if step == self.first_step && self.open.is_empty() {
            // A second checkpoint of the step that was resumed at.
            return;
        }
        sort(&mut self.open);
        let mut pieces = Pieces::default();
        let mut entries = None;
        for (key, half) in self.open.iter().filter(|(key, _)| key.0 > self.first_step || self.first_step == 0)
        {
            pieces.add(&key.0.to_le_bytes());
            pieces.add(key.1.name().as_bytes());
            pieces.add(key.2.as_bytes());
            pieces.add(&half.hash.to_le_bytes());
            entries = Some((entries.map_or(half.entry, |(first, _)| first), half.entry));
        }
        let span = Span { digest: pieces.finish(), first_step: self.first_step, entries };
        match self.spans.get(&step) {
            Some(earlier) if earlier.first_step == span.first_step && earlier.digest != span.digest => {
                sink.rejected(
                    At::entry(entry.index, ""),
                    format!("steps {} to {step} executed again give something else", span.first_step),
                    halves_of(earlier),
                    halves_of(&span),
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

/// In the order of their keys; of those with one key, the last.
fn sort(halves: &mut Vec<(Key, Half)>) {
    halves.sort_by(|(key, _), (other, _)| key.cmp(other));
    halves.dedup_by(|(key, half), (earlier, kept)| {
        let is_same = key == earlier;
        if is_same {
            *kept = *half;
        }
        is_same
    });
}

fn halves_of(span: &Span) -> String {
    match span.entries {
        Some((first, last)) => format!("the det halves of entries {first} to {last}"),
        None => "nothing".to_owned(),
    }
}

impl Check for Replay {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.entry_with_det(entry, None, sink);
    }

    fn entry_with_det(&mut self, entry: &Entry, det: Option<&[u8]>, sink: &mut Sink) {
        let kind = entry.body.kind();
        let step = entry.header.step.unwrap_or(0);
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.lost.extend(self.open.drain(..));
                self.first_step = halves.det.from_step;
            }
            Body::Step(_) => self.record(entry, det, (step, kind, String::new()), sink),
            Body::Eval(halves) => self.record(entry, det, (step, kind, halves.det.stream.clone()), sink),
            // A signal may have saved a step at another microbatch than it is
            // saved at when it is executed again.
            Body::CheckpointDurablyCommitted(_) if self.saves_at_end => {}
            Body::CheckpointDurablyCommitted(halves) => {
                self.record(entry, det, (halves.det.step, kind, String::new()), sink);
            }
            Body::CheckpointValidated(halves) => self.close(entry, halves.det.step, sink),
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_checked)
    }
}

/// The furthest step of which something is on record, and what of that one.
#[derive(Default)]
struct Furthest {
    step: Option<u64>,
    seen: BTreeSet<(Kind, String)>,
}

impl Furthest {
    fn note(&mut self, step: u64, what: (Kind, String)) {
        if self.step.is_none_or(|known| known < step) {
            *self = Self { step: Some(step), seen: BTreeSet::new() };
        }
        if self.step == Some(step) {
            self.seen.insert(what);
        }
    }

    fn take(&mut self, other: Self) {
        if other.step > self.step {
            *self = other;
        } else if other.step == self.step {
            self.seen.extend(other.seen);
        }
    }
}

/// Under a weaker class, whether anything was executed again: that it agrees as the
/// class has it, no probe of this edition compares.
struct Repeated {
    class: EquivalenceClass,
    /// Of the attempts before the running one.
    earlier: Furthest,
    running: Furthest,
    num_repeated: u64,
}

impl Repeated {
    fn record(&mut self, step: u64, what: (Kind, String)) {
        self.num_repeated += u64::from(self.earlier.step.is_some_and(|reached| {
            // What stands before the furthest step was passed by an earlier attempt.
            step < reached || (step == reached && self.earlier.seen.contains(&what))
        }));
        self.running.note(step, what);
    }
}

impl Check for Repeated {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        let kind = entry.body.kind();
        let step = entry.header.step.unwrap_or(0);
        match &entry.body {
            Body::AttemptStart(_) => self.earlier.take(std::mem::take(&mut self.running)),
            Body::Step(_) => self.record(step, (kind, String::new())),
            Body::Eval(halves) => self.record(step, (kind, halves.det.stream.clone())),
            Body::CheckpointDurablyCommitted(halves) => {
                self.record(halves.det.step, (kind, String::new()));
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        let class = self.class;
        if self.num_repeated == 0 {
            return Outcome::NotApplicable(format!(
                "the contract's determinism is {class:?}, and nothing was executed again"
            ));
        }
        Outcome::NotEvaluated(format!(
            "the contract's determinism is {class:?}, {} entries repeat what an earlier attempt executed, and no probe \
             of this edition compares repeated steps in that class",
            self.num_repeated
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_in_order_and_the_last_of_a_key_counts() {
        let at = |step: u64, hash: u64| ((step, Kind::Step, String::new()), Half { entry: step, hash });
        let mut halves = vec![at(2, 1), at(1, 2), at(2, 3), at(3, 4), at(2, 5)];
        sort(&mut halves);
        let seen: Vec<(u64, u64)> = halves.iter().map(|(key, half)| (key.0, half.hash)).collect();
        assert_eq!(seen, [(1, 2), (2, 5), (3, 4)]);
    }
}
