//! What a checkpoint holds of an unfinished update is there in full, and of the
//! microbatches that come next.

use std::collections::BTreeMap;

use schemas::body::{Body, Outcome as Ended};
use schemas::contract::{Contract, MidAccumulation};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::number::Float;
use schemas::parameters::{ParameterManifest, ParameterStatus};
use schemas::report::Route;
use schemas::state::{CheckpointManifest, StateClass, TensorInfo};
use serde::{Deserialize, Serialize};

use crate::derive::examples::{self, Pieces};
use crate::derive::order::Order;
use crate::derive::{batch, state_json, steps};
use crate::evidence::Evidence;
use crate::frozen::{ExampleTable, Frozen};
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{Checkpoints, Rewindable, declare_rule, or_null};
use crate::rules::updates::tensors::{self, TensorFile};

declare_rule!(
    /// `GL632`.
    AccumulationWindow,
    {
        code: "GL632",
        name: "accumulation-window",
        what: "Where the contract saves inside of accumulation windows, every checkpoint holds the sums of as many microbatches as the \
               contract says, unless the attempt ended with it: one sum for each complete subtree and trainable parameter, \
               of the examples that come next, with the data cursor and the stream of masks behind exactly those.",
        why: "Gradients that were lost or of other examples leave an update that looks like any other and is not the run's.",
        remedy: "None for a finished run. Save sums, cursor and streams of one microbatch.",
        reference: "docs/FORMAT.md, \"Accumulation windows\"",
        gate: Route::RequestStateInventory,
    }
);

const STATE_FILE: &str = "accumulated_gradients.json";
const TENSORS_FILE: &str = "accumulated_gradients.safetensors";

/// Largest state file that is read: it has four members.
const MAX_STATE_BYTES: u64 = 4096;

/// `accumulated_gradients.json`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WindowState {
    ids: Digest,
    inputs: Digest,
    microbatches: u32,
    nats: Float,
}

/// One committed checkpoint.
struct Saved {
    checkpoint: CheckpointId,
    /// Nothing of its attempt followed it.
    is_end: bool,
    /// Nothing of its attempt followed it, and the attempt took its step for the
    /// last.
    is_final: bool,
    /// Where its attempt resumed at the same step.
    resumed: Option<CheckpointId>,
    step: u64,
    /// Target tokens of the completed updates.
    tokens: u64,
}

struct Windows<'a> {
    checkpoints: Checkpoints,
    contract: &'a Contract,
    manifest: &'a ParameterManifest,
    /// Whether nothing of the attempt followed the newest of `saved` yet.
    is_open: bool,
    resumed: Option<(u64, CheckpointId)>,
    saved: Vec<Saved>,
    table: &'a ExampleTable,
    tokens: Rewindable<u64>,
}

struct AtBoundaries;

impl Check for AtBoundaries {
    fn entry(&mut self, _: &Entry, _: &mut Sink) {}

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::NotApplicable("the contract saves at update boundaries only".to_owned())
    }
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    if frozen.contract.checkpoints.mid_accumulation == MidAccumulation::RoundToBoundary {
        return Box::new(AtBoundaries);
    }
    match (&frozen.parameters, &frozen.train_examples) {
        (Ok(manifest), Ok(table)) => Box::new(Windows {
            checkpoints: Checkpoints::default(),
            contract: &frozen.contract,
            manifest,
            is_open: false,
            resumed: None,
            saved: Vec::new(),
            table,
            tokens: Rewindable::new(0),
        }),
        (Err(reason), _) => unavailable(format!("the parameter manifest: {reason}")),
        (_, Err(reason)) => unavailable(format!("the train example table: {reason}")),
    }
}

/// Sums of so many microbatches: complete subtrees of the contract's tree.
fn sums(manifest: &ParameterManifest, microbatches: u32) -> Vec<TensorInfo> {
    let sizes: Vec<u32> =
        (0..u32::BITS).map(|bit| 1 << bit).filter(|size| microbatches & size != 0).collect();
    let trainable = manifest
        .parameters
        .iter()
        .filter(|parameter| parameter.status == ParameterStatus::Trainable && parameter.tied_to.is_none());
    let mut tensors: Vec<TensorInfo> = trainable
        .flat_map(|parameter| {
            sizes.iter().map(|size| TensorInfo {
                dtype: "F32".to_owned(),
                name: format!("{}.sum_{size}", parameter.path),
                shape: parameter.shape.clone(),
            })
        })
        .collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

impl Windows<'_> {
    /// Microbatches that the contract saves behind. Which step is the last is what
    /// the attempt knew that saved it: a later one may find the time used up.
    fn scheduled(&self, saved: &Saved) -> u32 {
        let is_due = steps::is_due(saved.step, self.contract.checkpoints.every_steps, u64::MAX);
        let inside = self.contract.checkpoints.after_microbatches;
        inside.filter(|_| saved.step > 0 && is_due && !saved.is_final).unwrap_or(0)
    }

    fn state(&self, evidence: &Evidence, folder: &str, sink: &mut Sink) -> Option<WindowState> {
        let path = format!("{folder}/{STATE_FILE}");
        let read = evidence.read(&path, MAX_STATE_BYTES).map_err(|error| error.to_string());
        let parsed = read.and_then(|bytes| {
            let state: WindowState = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
            let written = serde_json::to_vec(&state).map_err(|error| error.to_string())?;
            if written == bytes { Ok(state) } else { Err("it is not in canonical form".to_owned()) }
        });
        match parsed {
            Ok(state) => Some(state),
            Err(reason) => {
                let message = "the account of an unfinished update cannot be read";
                sink.rejected(At::place(path), message, "ids, inputs, microbatches, nats", reason);
                None
            }
        }
    }

    /// Ids and target tokens of the examples that the microbatches consumed.
    fn consumed(&self, step: u64, microbatches: u32) -> Option<(Digest, u64)> {
        let batch = &self.contract.batch;
        if !batch::reconciles(batch) || u64::from(microbatches) >= u64::from(batch.accumulation) {
            return None;
        }
        let first = step.checked_mul(u64::from(batch.global_examples))?;
        let count = u64::from(microbatches).checked_mul(u64::from(batch.microbatch_examples))?;
        let end = first.checked_add(count)?;
        let num_examples = self.table.num_examples();
        let (mut tokens, mut is_known) = (0u64, true);
        let visit = |take: &mut dyn FnMut(u64)| {
            let mut order = Order::of(self.contract, num_examples);
            let drawn = order.for_each(first..end, |example| {
                let targets = self.table.get(example).map(|record| u64::from(record.num_targets));
                tokens = tokens.saturating_add(targets.unwrap_or(0));
                take(example);
            });
            is_known = drawn.is_some();
        };
        let ids = examples::ids_digest(self.table, visit, &mut Pieces::default())?;
        is_known.then_some((Digest::blake3(ids), tokens))
    }

    fn compare(
        &self,
        saved: &Saved,
        state: &WindowState,
        place: (&str, &CheckpointManifest),
        evidence: &Evidence,
        sink: &mut Sink,
    ) {
        let (folder, manifest) = place;
        let at = |name: &str| At::place(format!("{folder}/{name}"));
        let Some((ids, tokens)) = self.consumed(saved.step, state.microbatches) else {
            sink.rejected(
                at(STATE_FILE),
                "the examples of these microbatches do not exist",
                "examples",
                "none",
            );
            return;
        };
        if ids != state.ids {
            let message = format!("{} sums the gradients of other examples", saved.checkpoint);
            sink.rejected(at(STATE_FILE), message, ids, state.ids);
        }
        let nothing = Digest::blake3(*blake3::hash(b"").as_bytes());
        let is_empty = state.inputs == nothing && state.nats.0.to_bits() == 0;
        if !state.nats.is_finite() || (state.microbatches == 0) != is_empty {
            let message = "inputs and loss are there exactly where microbatches are, and finite";
            sink.rejected(at(STATE_FILE), message, "of the same microbatches", state.nats);
        }
        let num_examples = self.table.num_examples();
        let cursor = state_json::data_cursor_inside(
            self.contract,
            num_examples,
            (saved.step, state.microbatches),
            saved.tokens.saturating_add(tokens),
        );
        let masks = state_json::rng_cpu_inside(self.contract, 0, saved.step, state.microbatches);
        for (class, text) in [(StateClass::DataCursor, cursor), (StateClass::RngCpu, masks)] {
            let name = format!("{class}.json");
            let Some(shard) = tensors::shard(manifest, class, &name) else { continue };
            let text = text.unwrap_or_default();
            if shard.digest != Digest::blake3(*blake3::hash(&text).as_bytes()) {
                let message = format!("{class} of {} is not behind the same microbatches", saved.checkpoint);
                let shown = evidence.read(&format!("{folder}/{name}"), MAX_STATE_BYTES).unwrap_or_default();
                let shown = String::from_utf8_lossy(&shown).into_owned();
                sink.rejected(at(&name), message, String::from_utf8_lossy(&text), shown);
            }
        }
        let expected = sums(self.manifest, state.microbatches);
        let listed = tensors::shard(manifest, StateClass::AccumulatedGradients, TENSORS_FILE);
        let listed = listed.map_or(&[][..], |shard| shard.tensors.as_slice());
        let found = TensorFile::open(evidence, &format!("{folder}/{TENSORS_FILE}"));
        let found: Result<Vec<TensorInfo>, String> = found.and_then(|file| {
            if file.header.is_marked_pt {
                return Err("it is marked as a model".to_owned());
            }
            Ok(file.header.tensors.iter().map(|tensor| tensor.info.clone()).collect())
        });
        if found.as_ref() != Ok(&expected) || listed != expected {
            let message = format!("{} does not hold the sums of its microbatches", saved.checkpoint);
            let shown = found.map_or_else(|reason| reason, |found| format!("{found:?}"));
            sink.rejected(at(TENSORS_FILE), message, format!("{expected:?}"), shown);
        }
    }
}

impl Check for Windows<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.is_open = false;
                let point = halves.det.resumed_from.as_ref();
                self.resumed = point.map(|point| (point.step, point.checkpoint.clone()));
            }
            Body::AttemptEnd(halves) => {
                let outcome = halves.det.outcome;
                if let Some(saved) = self.saved.last_mut().filter(|_| self.is_open) {
                    saved.is_end &= matches!(outcome, Ended::Interrupted | Ended::Failed);
                    saved.is_final = matches!(outcome, Ended::Completed | Ended::BudgetExhausted);
                }
                self.is_open = false;
            }
            Body::Step(_) | Body::Eval(_) | Body::CheckpointRequested(_) => {
                if let Some(saved) = self.saved.last_mut().filter(|_| self.is_open) {
                    saved.is_end = false;
                }
                self.is_open = false;
            }
            Body::CheckpointDurablyCommitted(halves) => {
                let step = halves.det.step;
                let resumed = self.resumed.as_ref().filter(|(resumed, _)| *resumed == step);
                self.saved.push(Saved {
                    checkpoint: halves.obs.checkpoint.clone(),
                    is_end: true,
                    is_final: false,
                    resumed: resumed.map(|(_, checkpoint)| checkpoint.clone()),
                    step,
                    tokens: self.tokens.now,
                });
                self.is_open = true;
            }
            _ => {}
        }
        if let Body::Step(halves) = &entry.body {
            self.tokens.now = halves.det.counters.tokens;
        }
        self.tokens.entry(entry);
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let mut num_checked = 0;
        let mut counts: BTreeMap<&CheckpointId, u32> = BTreeMap::new();
        for saved in &self.saved {
            let known = self.checkpoints.all.get(&saved.checkpoint);
            let Some(known) = known.filter(|known| !known.is_unusable) else { continue };
            let Some(committed) = &known.committed else { continue };
            let manifest = match tensors::manifest(evidence, committed) {
                Ok(manifest) => manifest,
                Err(reason) => return Outcome::NotEvaluated(reason),
            };
            num_checked += 1;
            let Some(state) = self.state(evidence, &committed.path, sink) else { continue };
            counts.insert(&saved.checkpoint, state.microbatches);
            let resumed = saved.resumed.as_ref().and_then(|resumed| counts.get(resumed).copied());
            let (scheduled, accumulation) = (self.scheduled(saved), self.contract.batch.accumulation);
            let is_allowed = saved.is_end
                || state.microbatches == scheduled
                || saved.resumed.is_some() && (resumed.is_none() || resumed == Some(state.microbatches));
            if !is_allowed || state.microbatches >= accumulation {
                let at = At::place(format!("{}/{STATE_FILE}", committed.path));
                let message = format!("{} is of another place in the update", saved.checkpoint);
                let expected = format!("{scheduled}, or {} of the resume", or_null(resumed));
                sink.rejected(at, message, expected, state.microbatches);
                continue;
            }
            self.compare(saved, &state, (&committed.path, &manifest), evidence, sink);
        }
        if num_checked == 0 {
            Outcome::NotEvaluated("no checkpoint was committed".to_owned())
        } else {
            Outcome::Checked(num_checked)
        }
    }
}
