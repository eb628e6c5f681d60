//! State digests in entries, recomputed from the manifests.

use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::report::Route;
use schemas::state::{CheckpointManifest, StateDigest};

use crate::derive::state_json;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Checkpoints, Committed, declare_rule, or_null};
use crate::rules::updates::tensors;

declare_rule!(
    /// `GL606`.
    StateDigests,
    {
        code: "GL606",
        name: "state-digests",
        what: "The state digests of every checkpoint.durably_committed entry are those of its manifest's shards, class by class in \
               the contract's order.",
        why: "Exact replay and resume are judged by these digests; they must be of the bytes that exist.",
        remedy: "None for a finished run. Derive the digests from the shards as written.",
        reference: "docs/FORMAT.md, \"State digests\"",
        gate: Route::RejectTornCheckpoint,
    }
);

struct Digests {
    checkpoints: Checkpoints,
}

fn open(_: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Digests { checkpoints: Checkpoints::default() })
}

/// Digests of every class of a manifest: where each worker has state of its
/// own, over the shards of all of them.
fn derive(manifest: &CheckpointManifest) -> Vec<StateDigest> {
    let of_one_class = manifest.classes.chunk_by(|one, other| one.class == other.class);
    let classes = of_one_class.filter_map(|of_workers| {
        let class = of_workers.first()?.class;
        let is_captured = of_workers.iter().any(|captured| captured.not_applicable.is_none());
        let shards = of_workers.iter().flat_map(|captured| &captured.shards);
        let mut shards: Vec<_> = shards.map(|shard| (shard.path.as_str(), &shard.digest)).collect();
        shards.sort();
        Some(StateDigest { class, digest: is_captured.then(|| state_json::class_digest(shards)) })
    });
    classes.collect()
}

fn compare(id: &CheckpointId, committed: &Committed, expected: &[StateDigest], sink: &mut Sink) {
    if expected.len() != committed.classes.len() {
        let at = At::entry(committed.index, "/body/det/classes");
        let (expected, actual) = (expected.len(), committed.classes.len());
        sink.rejected(at, format!("{id} has digests of another number of classes"), expected, actual);
    }
    for (at, (expected, actual)) in expected.iter().zip(&committed.classes).enumerate() {
        if expected != actual {
            let at = At::entry(committed.index, format!("/body/det/classes/{at}"));
            let expected = format!("{} {}", expected.class, or_null(expected.digest));
            let actual = format!("{} {}", actual.class, or_null(actual.digest));
            sink.rejected(at, format!("{id} has another state digest than its files give"), expected, actual);
        }
    }
}

impl Check for Digests {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let (mut num_checked, mut problem) = (0, "no checkpoint was committed".to_owned());
        for (id, checkpoint, committed) in self.checkpoints.committed() {
            match tensors::manifest(evidence, committed) {
                Ok(manifest) => {
                    let expected = derive(&manifest);
                    num_checked += expected.len() as u64;
                    compare(id, committed, &expected, sink);
                }
                Err(reason) if checkpoint.is_unusable && !checkpoint.is_retired => problem = reason,
                Err(reason) => return Outcome::NotEvaluated(reason),
            }
        }
        if num_checked == 0 { Outcome::NotEvaluated(problem) } else { Outcome::Checked(num_checked) }
    }
}
