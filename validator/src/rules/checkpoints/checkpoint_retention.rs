//! Only what the policy lets go is gone, and nothing without an entry.

use std::collections::BTreeMap;

use schemas::body::{Body, RetirementReason};
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::report::Route;
use schemas::state::StateClass;

use crate::derive::retention::{Retention, Standing};
use crate::evidence::{Evidence, describe};
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Checkpoints, Committed, declare_rule};
use crate::rules::elsewhere::Elsewhere;
use crate::rules::updates::tensors;

declare_rule!(
    /// `GL610`.
    CheckpointRetention,
    {
        code: "GL610",
        name: "checkpoint-retention",
        what: "A checkpoint is retired only where the contract's policy chooses it by no clause and nothing protects it, once, \
               with the reason and the kept classes that the record gives; a retired one still has its manifest, and a \
               candidate's model; one that is neither retired nor given up still has every file.",
        why: "What is gone cannot be compared any more: a pruning that may choose could remove the state that shows a fault, the \
              best candidate, or another run's files.",
        remedy: "Prune with `trainer checkpoint prune`, which shows with --dry-run what would go; restore missing files from a copy.",
        reference: "docs/FORMAT.md, \"Retention\"; schemas::contract::KeepPolicy",
        gate: Route::RejectTornCheckpoint,
    }
);

struct State<'a> {
    checkpoints: Checkpoints,
    frozen: &'a Frozen,
    retention: Retention<'a>,
    /// Entry of each retirement.
    retired: BTreeMap<CheckpointId, u64>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let retention = Retention::new(&frozen.contract);
    Box::new(State { checkpoints: Checkpoints::default(), frozen, retention, retired: BTreeMap::new() })
}

impl State<'_> {
    /// What had to hold before the entry.
    fn judge(&mut self, entry: &Entry, sink: &mut Sink) {
        let Body::CheckpointRetired(retired) = &entry.body else { return };
        let (det, id) = (&retired.det, &retired.obs.checkpoint);
        let at = |pointer: &str| At::entry(entry.index, pointer);
        self.retired.insert(id.clone(), entry.index);
        let reasons = self.retention.reasons(id);
        if !reasons.is_empty() {
            let message = format!("{id} is retired although it has to stay");
            sink.rejected(at("/body/obs/checkpoint"), message, reasons.join("; "), "checkpoint.retired");
        }
        let Some(known) = self.retention.get(id) else { return };
        if known.step != det.step {
            sink.rejected(at("/body/det/step"), "the retirement names another step", known.step, det.step);
        }
        let kept = if known.is_candidate { vec![StateClass::Model] } else { Vec::new() };
        if kept != det.kept {
            let message = "a retirement keeps the model of a candidate and nothing else";
            sink.rejected(at("/body/det/kept"), message, format!("{kept:?}"), format!("{:?}", det.kept));
        }
        let is_superseded = self.retention.is_superseded(id);
        let reason = if is_superseded { RetirementReason::Superseded } else { RetirementReason::NotChosen };
        if reason != det.reason {
            let message = "the retirement names another reason than the record gives";
            sink.rejected(at("/body/det/reason"), message, reason.text(), det.reason.text());
        }
    }

    /// The files that have to be there.
    fn files(&self, id: &CheckpointId, committed: &Committed, evidence: &Evidence, sink: &mut Sink) {
        let Some(known) = self.retention.get(id).filter(|known| known.standing != Standing::Lost) else {
            return;
        };
        let is_retired = known.standing == Standing::Retired;
        let folder = format!("{}/{id}", self.frozen.checkpoint_folder());
        let manifest = match tensors::manifest(evidence, committed) {
            Ok(manifest) => manifest,
            Err(reason) => {
                let place = self.retired.get(id).map_or_else(
                    || At::place(format!("{folder}/manifest.json")),
                    |index| At::entry(*index, "/body/obs/checkpoint"),
                );
                let message = if is_retired {
                    format!("the manifest of {id} is gone; a retired checkpoint keeps it")
                } else {
                    format!("the manifest of {id} is gone, and it was not retired")
                };
                sink.rejected(place, message, committed.manifest, reason);
                return;
            }
        };
        let stays = |class: StateClass| !is_retired || known.is_candidate && class == StateClass::Model;
        let classes = manifest.classes.iter().filter(|captured| stays(captured.class));
        for shard in classes.flat_map(|captured| &captured.shards) {
            let path = format!("{folder}/{}", shard.path);
            if let Err(error) = evidence.open(&path) {
                let message = if is_retired {
                    format!("a file of the candidate's model is gone with the retirement of {id}")
                } else {
                    format!("a file of {id} is gone, and it was not retired")
                };
                sink.rejected(At::place(path), message, shard.digest, describe(&error));
            }
        }
    }
}

impl Check for State<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.judge(entry, sink);
        self.retention.entry(entry);
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let committed = self.checkpoints.committed();
        let mut elsewhere = Elsewhere::new(self.frozen);
        for (id, _, committed) in &committed {
            let is_read = self.retention.get(id).is_some_and(|known| known.standing != Standing::Lost);
            if !is_read || !elsewhere.has(id.as_str(), evidence) {
                self.files(id, committed, evidence, sink);
            }
        }
        elsewhere.outcome(committed.len() as u64)
    }
}
