//! Roots of the state tree, computed again from the checkpoints' tensors.

use std::collections::BTreeMap;

use schemas::body::{Body, StepDet};
use schemas::challenge::StateLeaf;
use schemas::contract::{Contract, MidAccumulation, StateTree};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::report::Route;
use schemas::state::{CheckpointManifest, Shard, StateClass};

use crate::derive::state_tree;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Checkpoints, declare_rule, or_null};
use crate::rules::updates::tensors::{self, TensorFile};

declare_rule!(
    /// `GL614`.
    StateTreeRule,
    {
        code: "GL614",
        name: "state-tree",
        what: "Where the contract keeps a state tree, every checkpoint.durably_committed entry and every step with state digests has \
               its root, which is the one that the checkpoint's tensors and shards give, and equal at a step and its checkpoint; \
               where it keeps none, no entry has a root.",
        why: "One tensor is opened against this root without the others, so that it has to be a root over the bytes that exist.",
        remedy: "None for a finished run. Compute the root over the state as it is saved.",
        reference: "docs/FORMAT.md, \"State tree\"",
        gate: Route::RejectTornCheckpoint,
    }
);

struct Trees<'a> {
    checkpoints: Checkpoints,
    contract: &'a Contract,
    /// Root and entry of the current step.
    current: Option<(u64, u64, Option<Digest>)>,
    num_checked: u64,
    /// Root in the commit's entry.
    roots: BTreeMap<CheckpointId, Option<Digest>>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Trees {
        checkpoints: Checkpoints::default(),
        contract: &frozen.contract,
        current: None,
        num_checked: 0,
        roots: BTreeMap::new(),
    })
}

impl Trees<'_> {
    fn is_kept(&self) -> bool {
        match self.contract.state_tree {
            Some(StateTree::Tensors) => true,
            None => false,
        }
    }

    /// Whether a root is there exactly where it has to be.
    fn presence(&self, index: u64, is_due: bool, root: Option<Digest>, sink: &mut Sink) {
        if is_due == root.is_some() {
            return;
        }
        let at = At::entry(index, "/body/det/state_root");
        let (message, expected) = if is_due {
            ("the entry has no root of the state tree", "the root of the state")
        } else {
            ("the entry has a root of a state tree that is not due", "no such member")
        };
        sink.rejected(at, message, expected, or_null(root));
    }

    fn step(&mut self, entry: &Entry, det: &StepDet, sink: &mut Sink) {
        self.presence(entry.index, self.is_kept() && det.state.is_some(), det.state_root, sink);
        self.current = det.state_root.map(|root| (entry.header.step.unwrap_or(0), entry.index, Some(root)));
    }

    /// A checkpoint at an update's boundary has the root of its step.
    fn same_step(&self, entry: &Entry, step: u64, root: Option<Digest>, sink: &mut Sink) {
        let is_boundary = self.contract.checkpoints.mid_accumulation == MidAccumulation::RoundToBoundary;
        let Some((current, index, of_step)) = self.current.filter(|_| is_boundary) else { return };
        if current == step && of_step != root {
            let at = At::entry(entry.index, "/body/det/state_root");
            let message = format!("the checkpoint of step {step} has another root than entry {index}");
            sink.rejected(at, message, or_null(of_step), or_null(root));
        }
    }
}

/// Leaves of a shard: its tensors, or itself where it has none.
fn leaves_of(
    evidence: &Evidence,
    folder: &str,
    (class, shard): (StateClass, &Shard),
    leaves: &mut Vec<StateLeaf>,
) -> Result<(), String> {
    let path = &shard.path;
    if !path.ends_with(".safetensors") {
        let leaf = StateLeaf {
            class,
            digest: shard.digest,
            dtype: None,
            name: None,
            path: path.clone(),
            shape: None,
        };
        leaves.push(leaf);
        return Ok(());
    }
    let mut file = TensorFile::open(evidence, &format!("{folder}/{path}"))?;
    for tensor in file.header.tensors.clone() {
        let mut hasher = blake3::Hasher::new();
        file.read(&tensor, &mut |_, bytes| {
            hasher.update(bytes);
            true
        })?;
        leaves.push(StateLeaf {
            class,
            digest: Digest::blake3(*hasher.finalize().as_bytes()),
            dtype: Some(tensor.info.dtype),
            name: Some(tensor.info.name),
            path: path.clone(),
            shape: Some(tensor.info.shape),
        });
    }
    Ok(())
}

fn derive(evidence: &Evidence, folder: &str, manifest: &CheckpointManifest) -> Result<Digest, String> {
    let mut leaves = Vec::new();
    for captured in &manifest.classes {
        for shard in &captured.shards {
            leaves_of(evidence, folder, (captured.class, shard), &mut leaves)?;
        }
    }
    leaves.sort_by(|a, b| (a.class, &a.path, &a.name).cmp(&(b.class, &b.path, &b.name)));
    Ok(Digest::sha256(state_tree::root(&leaves)))
}

impl Check for Trees<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.checkpoints.entry(entry);
        match &entry.body {
            Body::Step(halves) => self.step(entry, &halves.det, sink),
            Body::CheckpointDurablyCommitted(halves) => {
                let root = halves.det.state_root;
                self.presence(entry.index, self.is_kept(), root, sink);
                self.same_step(entry, halves.det.step, root, sink);
                self.roots.insert(halves.obs.checkpoint.clone(), root);
            }
            _ => {}
        }
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        if !self.is_kept() {
            return Outcome::NotApplicable("the contract keeps no state tree".to_owned());
        }
        let mut problem = "no checkpoint was committed whose files stay".to_owned();
        for (id, checkpoint, committed) in self.checkpoints.committed() {
            if checkpoint.is_retired {
                continue;
            }
            let derived = tensors::manifest(evidence, committed)
                .and_then(|manifest| derive(evidence, &committed.path, &manifest));
            let derived = match derived {
                Ok(derived) => derived,
                Err(reason) if checkpoint.is_unusable => {
                    problem = reason;
                    continue;
                }
                Err(reason) => return Outcome::NotEvaluated(reason),
            };
            self.num_checked += 1;
            // One that is missing was told above.
            let recorded = self.roots.get(id).copied().flatten();
            if let Some(recorded) = recorded.filter(|recorded| *recorded != derived) {
                let at = At::entry(committed.index, "/body/det/state_root");
                sink.rejected(at, format!("{id} has another root than its tensors give"), derived, recorded);
            }
        }
        if self.num_checked == 0 {
            Outcome::NotEvaluated(problem)
        } else {
            Outcome::Checked(self.num_checked)
        }
    }
}
