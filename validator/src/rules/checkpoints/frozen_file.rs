//! The file that checkpoints share is what the contract determines.

use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::model_index::{FROZEN_MODEL_NAME, MODEL_INDEX_NAME, TRAINABLE_MODEL_NAME};
use schemas::parameters::ParameterManifest;
use schemas::report::Route;
use schemas::state::{CheckpointManifest, StateClass};

use crate::derive::split::{self, FrozenFile};
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{Checkpoints, declare_rule, or_null};
use crate::rules::updates::tensors;

declare_rule!(
    /// `GL613`.
    FrozenFileRule,
    {
        code: "GL613",
        name: "frozen-file",
        what: "Where parameters are frozen, every checkpoint, retired ones too, lists the same file of them, of the digest and size \
               that seed and paths determine; and its index is byte for byte what the parameter manifest and the listed digests \
               give.",
        why: "Checkpoints share that file on the disk, so that one false byte is in all of them; and the index is what entries, \
              handoff and evaluator call the model.",
        remedy: "None for a finished run. Write the file once, before the first update, and link it from then on.",
        reference: "docs/FORMAT.md, \"Frozen parameters\"",
        gate: Route::RejectTornCheckpoint,
    }
);

struct Shared<'a> {
    checkpoints: Checkpoints,
    manifest: &'a ParameterManifest,
    seed: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    match &frozen.parameters {
        Ok(manifest) => Box::new(Shared {
            checkpoints: Checkpoints::default(),
            manifest,
            seed: frozen.contract.seeds.initialization.0,
        }),
        Err(reason) => unavailable(format!("the parameter manifest: {reason}")),
    }
}

/// A size that a manifest claims is no reason to hash for days: one file of it
/// has to exist.
fn exists(evidence: &Evidence, folder: &str, num_bytes: u64) -> bool {
    let file = evidence.open(&format!("{folder}/{FROZEN_MODEL_NAME}"));
    file.and_then(|file| {
        file.metadata().map_err(|source| crate::evidence::FileError::Io { path: folder.to_owned(), source })
    })
    .is_ok_and(|metadata| metadata.len() == num_bytes)
}

impl Shared<'_> {
    fn compare(&self, folder: &str, manifest: &CheckpointManifest, expected: (Digest, u64), sink: &mut Sink) {
        let listed = |name| tensors::shard(manifest, StateClass::Model, name);
        let at = |name: &str| At::place(format!("{folder}/manifest.json {name}"));
        let frozen = listed(FROZEN_MODEL_NAME).map(|shard| (shard.digest, shard.num_bytes));
        if frozen != Some(expected) {
            let shown = |(digest, num_bytes): (Digest, u64)| format!("{digest} with {num_bytes} bytes");
            let message = "the frozen parameters are another file than the contract determines";
            let actual = or_null(frozen.map(shown));
            sink.rejected(at(FROZEN_MODEL_NAME), message, shown(expected), actual);
        }
        let digests = listed(FROZEN_MODEL_NAME).zip(listed(TRAINABLE_MODEL_NAME));
        let index = digests.and_then(|(frozen, trainable)| {
            let index = split::index_json(self.manifest, frozen.digest, trainable.digest)?;
            Some((Digest::blake3(*blake3::hash(&index).as_bytes()), String::from_utf8(index).ok()?))
        });
        let actual = listed(MODEL_INDEX_NAME).map(|shard| shard.digest);
        match index {
            Some((digest, _)) if actual == Some(digest) => {}
            Some((digest, text)) => {
                let message = "the index is not the one of the files that the manifest lists";
                let text: String = text.chars().take(600).collect();
                sink.rejected(at(MODEL_INDEX_NAME), message, format!("{digest}: {text}"), or_null(actual));
            }
            None => {
                let message = "a model with frozen parameters does not lie in two files";
                let expected = format!("{FROZEN_MODEL_NAME} and {TRAINABLE_MODEL_NAME}");
                sink.rejected(at("model"), message, expected, "not both");
            }
        }
    }
}

impl Check for Shared<'_> {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        if !split::is_split(self.manifest) {
            return Outcome::NotApplicable("the parameter manifest freezes none".to_owned());
        }
        let Some(file) = FrozenFile::new(self.manifest) else {
            return Outcome::NotEvaluated("the frozen parameters exceed 64-bit sizes".to_owned());
        };
        let committed = self.checkpoints.committed();
        if !committed.iter().any(|(_, _, committed)| exists(evidence, &committed.path, file.num_bytes)) {
            let reason = format!("no checkpoint has a {FROZEN_MODEL_NAME} of {} bytes", file.num_bytes);
            return Outcome::NotEvaluated(reason);
        }
        let expected = (file.digest(self.seed), file.num_bytes);
        let mut num_checked = 0;
        for (_, checkpoint, committed) in committed {
            match tensors::manifest(evidence, committed) {
                Ok(manifest) => {
                    num_checked += 1;
                    self.compare(&committed.path, &manifest, expected, sink);
                }
                Err(_) if checkpoint.is_lost => {}
                Err(reason) => return Outcome::NotEvaluated(reason),
            }
        }
        Outcome::Checked(num_checked)
    }
}
