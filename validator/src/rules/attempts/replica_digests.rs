//! Every worker has the same parameters and moments, and they are those saved.

use schemas::body::{Body, ReplicaDigest};
use schemas::contract::{Contract, FaultKind};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::{CheckpointId, WorkerId};
use schemas::parameters::{ParameterManifest, ParameterStatus};
use schemas::policy_card::PolicyCard;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{Checkpoints, Committed, LastStep, declare_rule};
use crate::rules::updates::model_files::ModelFiles;
use crate::rules::updates::tensors::{OPTIMIZER_FILE, TensorFile};

declare_rule!(
    /// `GL215`.
    ReplicaDigests,
    {
        code: "GL215",
        name: "replica-digests",
        what: "At the contract's cadence, and nowhere else, an update of several workers has a digest of each worker's parameters and \
               moments, in order and all equal; where the step is saved, it is the digest of the tensors in the checkpoint. Warns where \
               no update of several workers came to the cadence.",
        why: "Replicas that part train on as several models, of which one is saved; the loss of all of them looks like one run.",
        remedy: "None for a finished run. Compare replicas before a step is recorded, and end the attempt where one differs.",
        reference: "docs/FORMAT.md, \"Shares\"; schemas::body::ReplicaDigest",
        gate: Route::RejectTopology,
    }
);

/// A checkpoint of a step that has digests.
struct Saved {
    checkpoint: CheckpointId,
    digest: Digest,
    index: u64,
}

struct Replicas<'a> {
    card: &'a PolicyCard,
    checkpoints: Checkpoints,
    contract: &'a Contract,
    /// The newest step with digests: its entry, number and the first digest.
    current: Option<(u64, u64, Digest)>,
    last: LastStep,
    manifest: &'a ParameterManifest,
    num_checked: u64,
    /// Updates that several workers executed.
    num_shared: u64,
    num_workers: u32,
    saved: Vec<Saved>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    match (&frozen.card, &frozen.parameters) {
        (Ok(card), Ok(manifest)) => Box::new(Replicas {
            card,
            checkpoints: Checkpoints::default(),
            contract: &frozen.contract,
            current: None,
            last: LastStep::default(),
            manifest,
            num_checked: 0,
            num_shared: 0,
            num_workers: frozen.contract.topology.workers,
            saved: Vec::new(),
        }),
        (Err(reason), _) => unavailable(format!("the policy card: {reason}")),
        (_, Err(reason)) => unavailable(format!("the parameter manifest: {reason}")),
    }
}

impl Replicas<'_> {
    /// Whether a step of the running attempt has digests.
    fn is_due(&self, step: u64) -> bool {
        let collective = self.contract.topology.collective.as_ref();
        let every = collective.map_or(0, |collective| collective.replica_digest_every_steps);
        self.num_workers > 1 && every > 0 && step.is_multiple_of(every)
    }

    fn step(&mut self, entry: &Entry, replicas: &[ReplicaDigest], sink: &mut Sink) {
        let step = entry.header.step.unwrap_or(0);
        let at = |pointer: &str| At::entry(entry.index, format!("/body/obs/replicas{pointer}"));
        let is_due = self.is_due(step);
        self.current = replicas.first().map(|first| (entry.index, step, first.digest));
        self.num_checked += u64::from(is_due || !replicas.is_empty());
        self.num_shared += u64::from(self.num_workers > 1);
        let expected = if is_due { self.num_workers } else { 0 };
        if replicas.len() != expected as usize {
            let is_fewer = is_due && !replicas.is_empty();
            let message = if is_due {
                format!("step {step} has not a digest of each replica")
            } else {
                format!("step {step} has digests of replicas that are not due")
            };
            let at = at("").cause(is_fewer.then_some(FaultKind::TopologyChange));
            sink.rejected(at, message, format!("{expected} digests"), replicas.len());
        }
        for (worker, replica) in (0u32..).zip(replicas) {
            if replica.worker != WorkerId(worker) {
                let at = at(&format!("/{worker}/worker"));
                sink.rejected(at, "digests are not in the order of workers", worker, replica.worker);
            }
            if let Some((_, _, first)) = self.current
                && replica.digest != first
            {
                let at = at(&format!("/{worker}/digest"));
                let message = format!("worker {} has other parameters or moments", replica.worker);
                sink.rejected(at, message, first, replica.digest);
            }
        }
    }

    /// The digest of what a checkpoint holds; errors in words.
    fn derive(&self, evidence: &Evidence, committed: &Committed) -> Result<Digest, String> {
        let folder = &committed.path;
        let mut hasher = blake3::Hasher::new();
        let mut stored: Vec<_> = self.manifest.parameters.iter().filter(|p| p.tied_to.is_none()).collect();
        stored.sort_by(|one, other| one.path.cmp(&other.path));
        let mut model = ModelFiles::open(evidence, folder, self.manifest)?;
        for parameter in &stored {
            feed(&mut model, &parameter.path, &mut hasher)?;
        }
        let optimizer = TensorFile::open(evidence, &format!("{folder}/{OPTIMIZER_FILE}"))?;
        let mut optimizer = ModelFiles { files: vec![optimizer] };
        for parameter in stored.iter().filter(|parameter| parameter.status == ParameterStatus::Trainable) {
            for state in &self.card.checkpoint_state {
                feed(&mut optimizer, &format!("{}.{}", parameter.path, state.suffix), &mut hasher)?;
            }
        }
        Ok(Digest::blake3(*hasher.finalize().as_bytes()))
    }
}

/// Hashes the elements of a tensor; errors in words.
fn feed(files: &mut ModelFiles, name: &str, hasher: &mut blake3::Hasher) -> Result<(), String> {
    let (file, tensor) = files.find(name).ok_or_else(|| format!("the checkpoint has no {name}"))?;
    file.read(&tensor, &mut |_, bytes| {
        hasher.update(bytes);
        true
    })
}

impl Check for Replicas<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::AttemptStart(halves) => {
                self.num_workers = halves.obs.plan.num_workers;
                self.current = None;
            }
            Body::Step(halves) => self.step(entry, &halves.obs.replicas, sink),
            Body::CheckpointDurablyCommitted(halves) => {
                let current = self.current.filter(|(_, step, _)| *step == halves.det.step);
                if let Some((index, _, digest)) = current {
                    self.saved.push(Saved { checkpoint: halves.obs.checkpoint.clone(), digest, index });
                }
            }
            _ => {}
        }
        self.checkpoints.entry(entry);
        self.last.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        for saved in &self.saved {
            let known = self.checkpoints.all.get(&saved.checkpoint);
            let whole = known.filter(|known| !known.is_unusable && known.validated.is_some());
            let Some(committed) = whole.and_then(|known| known.committed.as_ref()) else { continue };
            let digest = match self.derive(evidence, committed) {
                Ok(digest) => digest,
                Err(reason) => return Outcome::NotEvaluated(reason),
            };
            self.num_checked += 1;
            if digest != saved.digest {
                let at = At::entry(saved.index, "/body/obs/replicas/0/digest");
                let message = format!("the replicas are not what {} holds", saved.checkpoint);
                sink.rejected(at, message, digest, saved.digest);
            }
        }
        let every = self.contract.topology.collective.as_ref().map(|of| of.replica_digest_every_steps);
        if self.num_checked == 0 && self.num_shared > 0 && self.last.is_over {
            let at = At::place("contract /topology/collective/replica_digest_every_steps");
            let message = "replicas were never compared: no update of several workers came to the cadence";
            sink.warning(at, message, "a cadence within the run", every.unwrap_or(0));
        }
        match (self.num_checked, self.num_shared) {
            (0, 0) => Outcome::NotApplicable("one process executed every update".to_owned()),
            (0, _) => {
                Outcome::NotApplicable("no update of several workers has digests that are due".to_owned())
            }
            (num_checked, _) => Outcome::Checked(num_checked),
        }
    }
}
