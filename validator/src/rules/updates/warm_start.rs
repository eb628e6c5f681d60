//! A run that starts from another run's weights starts from exactly those, and
//! from nothing else of that run.

use std::fs::File;
use std::io::Read;

use schemas::body::{AttemptReason, Body};
use schemas::contract::{Initialization, Lineage, WarmStart};
use schemas::digest::{Algorithm, Digest};
use schemas::entry::Entry;
use schemas::report::Route;

use super::tensors::{MODEL_FILE, OPTIMIZER_FILE, TensorFile};
use crate::derive::mantissas::are_zeros;
use crate::evidence::{Evidence, describe};
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Checkpoints, declare_rule, or_null};

declare_rule!(
    /// `GL646`.
    WarmStartRule,
    {
        code: "GL646",
        name: "warm-start",
        what: "Where the contract names weights of another run, that file has the digest and size that were frozen and the digest that the lineage names, whose other names fit together; \
               the model of step 0 is that file, byte for byte; every moment is zero; the source is another run; and the first \
               attempt is a start and no resume.",
        why: "A warm start that passes for a resume, or for learning from nothing, claims another run's work as its own.",
        remedy: "Put the weights back beside the ledger, unchanged. What started from other weights is another run: prepare its \
                 contract with `trainer init-from`.",
        reference: "docs/FORMAT.md, \"Warm start\"; docs/CONTRACT.md, \"Lineage\"",
        gate: Route::RejectIdentity,
    }
);

struct Warm<'a> {
    checkpoints: Checkpoints,
    first_attempt: Option<(u64, AttemptReason, bool)>,
    frozen: &'a Frozen,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Warm { checkpoints: Checkpoints::default(), first_attempt: None, frozen })
}

/// BLAKE3 of a file below the ledger's folder; errors in words.
fn digest_of(evidence: &Evidence, path: &str) -> Result<Digest, String> {
    let mut file = evidence.open(path).map_err(|error| describe(&error))?;
    let mut hasher = blake3::Hasher::new();
    let mut bytes = vec![0; 1 << 16];
    loop {
        let num_read = file.read(&mut bytes).map_err(|error| format!("{path}: {error}"))?;
        if num_read == 0 {
            return Ok(Digest::blake3(*hasher.finalize().as_bytes()));
        }
        hasher.update(bytes.get(..num_read).unwrap_or_default());
    }
}

/// Bytes of an open file; errors in words.
#[allow(clippy::needless_pass_by_value, reason = "it follows an open")]
fn size_of(file: File) -> Result<u64, String> {
    file.metadata().map(|metadata| metadata.len()).map_err(|error| error.to_string())
}

impl Warm<'_> {
    fn lineage(&self, warm_start: &WarmStart, sink: &mut Sink) {
        let WarmStart { lineage, weights } = warm_start;
        let at = |field: &str| At::place(format!("contract /initialization/{field}"));
        let expected = weights.digest.map_or_else(|| "a digest".to_owned(), |digest| digest.to_string());
        if weights.digest != Some(lineage.model) {
            let message = "the weights are not those that the lineage names";
            sink.rejected(at("lineage/model"), message, expected, lineage.model);
        }
        if lineage.run == self.frozen.run {
            let message = "a run cannot be its own source";
            sink.rejected(at("lineage/run"), message, "another run", &lineage.run);
        }
        let prefix = format!("{}-", lineage.contract.hex().get(..16).unwrap_or_default());
        if !lineage.run.as_str().starts_with(&prefix) {
            let message = "the source's run does not follow from its contract";
            sink.rejected(at("lineage/run"), message, format!("{prefix}..."), &lineage.run);
        }
        self.names(lineage, sink);
        match self.first_attempt {
            Some((index, reason, is_resumed)) if reason != AttemptReason::Start || is_resumed => {
                let at = At::entry(index, "/body/det/reason");
                sink.rejected(at, "a warm start is no resume", "start", format!("{reason:?}").to_lowercase());
            }
            _ => {}
        }
    }

    /// What can be seen of the source's names without its ledger.
    fn names(&self, lineage: &Lineage, sink: &mut Sink) {
        let at = |field: &str| At::place(format!("contract /initialization/lineage/{field}"));
        let prefix = format!("s{:08}-a", lineage.step);
        if !lineage.checkpoint.as_str().starts_with(&prefix) {
            let message = "the source's checkpoint is not named as one of its step";
            sink.rejected(at("checkpoint"), message, format!("{prefix}..."), &lineage.checkpoint);
        }
        if lineage.head.size == 0 {
            sink.rejected(at("head/size"), "the source's head covers no entry", "at least 1", 0);
        }
        for (field, digest, algorithm) in [
            ("contract", lineage.contract, Algorithm::Sha256),
            ("head/root", lineage.head.root, Algorithm::Sha256),
            ("model", lineage.model, Algorithm::Blake3),
        ] {
            if digest.algorithm != algorithm {
                let message = "contracts and tree nodes are named by sha256, files by blake3";
                sink.rejected(at(field), message, format!("{algorithm:?}"), digest);
            }
        }
    }

    fn initial(
        &self,
        evidence: &Evidence,
        folder: &str,
        expected: Digest,
        sink: &mut Sink,
    ) -> Result<(), String> {
        let path = format!("{folder}/{MODEL_FILE}");
        let actual = digest_of(evidence, &path)?;
        if actual != expected {
            let message = "the model of step 0 is not the weights that the contract names";
            sink.rejected(At::place(path), message, expected, actual);
        }
        let mut file = TensorFile::open(evidence, &format!("{folder}/{OPTIMIZER_FILE}"))?;
        for tensor in file.header.tensors.clone() {
            let mut is_zero = true;
            file.read(&tensor, &mut |_, bytes| {
                is_zero = are_zeros(bytes);
                is_zero
            })?;
            if !is_zero {
                let at = At::place(format!("{} {}", file.path, tensor.info.name));
                sink.rejected(at, "a warm start carries optimizer state", "zeros", "other values");
            }
        }
        Ok(())
    }
}

impl Check for Warm<'_> {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.checkpoints.entry(entry);
        if let Body::AttemptStart(halves) = &entry.body {
            let det = &halves.det;
            self.first_attempt.get_or_insert((entry.index, det.reason, det.resumed_from.is_some()));
        }
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let Some(Initialization::WarmStart(warm_start)) = &self.frozen.contract.initialization else {
            return Outcome::NotApplicable("the contract draws its initial values".to_owned());
        };
        self.lineage(warm_start, sink);
        let WarmStart { lineage, weights } = warm_start;
        let at = || At::place("contract /initialization/lineage");
        sink.note(
            at(),
            "that the source's ledger holds these weights is the owner's statement; this audit does not read that ledger",
            format!("checkpoint {} of run {}", lineage.checkpoint, lineage.run),
            "not looked at",
        );
        let Some(expected) = weights.digest else {
            return Outcome::NotEvaluated("/initialization/weights has no digest".to_owned());
        };
        match digest_of(evidence, &weights.path) {
            Ok(actual) if actual == expected => {}
            Ok(actual) => {
                let message = "the initial weights are not what was frozen";
                sink.rejected(At::place(&weights.path), message, expected, actual);
            }
            Err(reason) => return Outcome::NotEvaluated(reason),
        }
        match evidence.open(&weights.path).map_err(|error| describe(&error)).and_then(size_of) {
            Ok(num_bytes) if weights.num_bytes == Some(num_bytes) => {}
            Ok(num_bytes) => {
                let message = "the initial weights have another size than was frozen";
                let expected = or_null(weights.num_bytes);
                sink.rejected(At::place(&weights.path), message, expected, num_bytes);
            }
            Err(reason) => return Outcome::NotEvaluated(reason),
        }
        let mut num_checked = 0;
        for (_, checkpoint, committed) in self.checkpoints.committed() {
            if checkpoint.step != 0 || checkpoint.is_unusable {
                continue;
            }
            match self.initial(evidence, &committed.path, expected, sink) {
                Ok(()) => num_checked += 1,
                Err(reason) => return Outcome::NotEvaluated(reason),
            }
        }
        match num_checked {
            0 => Outcome::NotEvaluated("no checkpoint of step 0 was committed".to_owned()),
            num_checked => Outcome::Checked(num_checked),
        }
    }
}
