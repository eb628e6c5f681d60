//! All candidates are still there, as Hugging Face tools load them.

use schemas::contract::Architecture;
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::report::Route;
use schemas::state::{Shard, StateClass};

use super::candidates::{Admitted, Candidates};
use crate::derive::configuration;
use crate::evidence::{Evidence, FileError, MAX_DOCUMENT_BYTES, describe};
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Committed, declare_rule, or_null};
use crate::rules::elsewhere::Elsewhere;
use crate::rules::updates::{model_files, tensors};

declare_rule!(
    /// `GL506`.
    CandidateRetained,
    {
        code: "GL506",
        name: "candidate-retained",
        what: "The checkpoint of every candidate still has its weights files, of the recorded digest and size, and a config.json \
               that is byte for byte what the architecture gives; none was failed or quarantined. A retirement leaves these files.",
        why: "A selection can be checked only while the losers exist; a false configuration turns the same weights into another \
              function.",
        remedy: "Restore the candidate's folder from the store. No policy lets a candidate's model go.",
        reference: "docs/FORMAT.md, \"Checkpoint\" and \"Configuration\"; schemas::contract::Retention",
        gate: Route::RejectSelectionLeakage,
    }
);

/// The configuration, which is compared byte by byte.
const CONFIG_FILE: &str = "config.json";

struct Retained<'a> {
    candidates: Candidates<'a>,
    frozen: &'a Frozen,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Retained { candidates: Candidates::new(&frozen.contract), frozen })
}

impl Retained<'_> {
    fn inspect(&self, admitted: &Admitted, committed: &Committed, evidence: &Evidence, sink: &mut Sink) {
        let at = |pointer: &str| At::entry(admitted.index, pointer);
        let manifest = match tensors::manifest(evidence, committed) {
            Ok(manifest) => manifest,
            Err(reason) => {
                sink.rejected(at(""), "the candidate's manifest is gone", "its manifest", reason);
                return;
            }
        };
        let model = model_files::root(&manifest);
        if model.map(|shard| shard.digest) != Some(admitted.det.model) {
            let listed = or_null(model.map(|shard| shard.digest));
            sink.rejected(
                at("/body/det/model"),
                "the manifest lists another model",
                admitted.det.model,
                listed,
            );
        }
        let captured = manifest.classes.iter().filter(|captured| captured.class == StateClass::Model);
        let shards = captured.flat_map(|captured| &captured.shards);
        for shard in shards.filter(|shard| shard.path != CONFIG_FILE) {
            check_size(shard, committed, evidence, sink);
        }
        self.configuration(admitted, committed, evidence, sink);
    }

    fn configuration(
        &self,
        admitted: &Admitted,
        committed: &Committed,
        evidence: &Evidence,
        sink: &mut Sink,
    ) {
        let Architecture::LlamaDecoder(shape) = &self.candidates.contract.architecture;
        let Ok(expected) = configuration::config_json(shape) else { return };
        let expected_digest = Digest::blake3(*blake3::hash(&expected).as_bytes());
        if admitted.det.config != expected_digest {
            let at = At::entry(admitted.index, "/body/det/config");
            sink.rejected(
                at,
                "the configuration is not the architecture's",
                expected_digest,
                admitted.det.config,
            );
        }
        let path = format!("{}/{CONFIG_FILE}", committed.path);
        match evidence.read(&path, MAX_DOCUMENT_BYTES) {
            Ok(actual) if actual == expected => {}
            Ok(actual) => {
                let (expected, actual) =
                    (String::from_utf8_lossy(&expected), String::from_utf8_lossy(&actual));
                let cut: String = actual.chars().take(600).collect();
                sink.rejected(At::place(&path), "the configuration is not the architecture's", expected, cut);
            }
            Err(error) => {
                sink.rejected(
                    At::place(&path),
                    "the candidate's configuration is gone",
                    "the file",
                    describe(&error),
                );
            }
        }
    }
}

/// A weights file is there, and of the listed size.
fn check_size(shard: &Shard, committed: &Committed, evidence: &Evidence, sink: &mut Sink) {
    let path = format!("{}/{}", committed.path, shard.path);
    let size = evidence.open(&path).and_then(|file| {
        file.metadata()
            .map_err(|source| FileError::Io { path: path.clone(), source })
            .map(|metadata| metadata.len())
    });
    let at = At::place(&path);
    match size {
        Ok(size) if shard.num_bytes == size => {}
        Ok(size) => sink.rejected(at, "the candidate's weights have another size", shard.num_bytes, size),
        Err(error) => sink.rejected(at, "the candidate's weights are gone", "the file", describe(&error)),
    }
}

impl Check for Retained<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.candidates.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let is_over = self.candidates.last.is_over;
        let mut elsewhere = Elsewhere::new(self.frozen);
        for (_, admitted) in self.candidates.family() {
            let Some(checkpoint) = self.candidates.checkpoints.all.get(&admitted.obs.checkpoint) else {
                continue;
            };
            if checkpoint.is_lost {
                // Of a run that is not over a later attempt may still replace it.
                if is_over {
                    let message = "a candidate's checkpoint was failed or quarantined";
                    let at = At::entry(admitted.index, "/body/obs/checkpoint");
                    sink.rejected(at, message, "a checkpoint that may be used", &admitted.obs.checkpoint);
                }
            } else if let Some(committed) = &checkpoint.committed
                && !elsewhere.has(admitted.obs.checkpoint.as_str(), evidence)
            {
                self.inspect(admitted, committed, evidence, sink);
            }
        }
        elsewhere.outcome(self.candidates.admitted.len() as u64)
    }
}
