//! GL110 `checkpoint-files`.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use schemas::body::{Body, CheckpointCommittedObs};
use schemas::contract::FaultKind;
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::report::Route;
use schemas::state::{CheckpointManifest, Shard, StateClass};

use super::elsewhere::Elsewhere;
use super::gl108_data_files::measure;
use super::updates::model_files;
use crate::evidence::{Evidence, FileError, MAX_DOCUMENT_BYTES, describe};
use crate::frozen::Frozen;
use crate::parallel;
use crate::rule::{At, Check, Outcome, Rule, RuleInfo, Sink};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL110",
    name: "checkpoint-files",
    what: "Every durably committed checkpoint has its manifest with the recorded digest, and every file of the manifest with digest and size, read back; nothing else lies in its folder, which is `<store>/<checkpoint id>`, and its recorded size is that of these files and the manifest. A retired one keeps its manifest and, where it is a candidate, the model; of its other files what is still there is what was committed. One that failed is not read, unless it is the selected or handed-off candidate.",
    why: "The candidate is a file; an entry about it is worth nothing when the file is another one.",
    remedy: "restore the checkpoint's folder from a copy; without it the run cannot be accepted",
    reference: "docs/FORMAT.md, \"Checkpoint\"",
    gate: Route::RejectTornCheckpoint,
};

pub(crate) struct CheckpointFiles;

impl Rule for CheckpointFiles {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn open<'a>(&self, frozen: &'a Frozen) -> Box<dyn Check + 'a> {
        Box::new(State {
            frozen,
            committed: Vec::new(),
            known: BTreeSet::new(),
            status: BTreeMap::new(),
            final_candidates: BTreeSet::new(),
            candidates: BTreeMap::new(),
        })
    }
}

/// Why a committed checkpoint's shards may be gone or wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Withdrawn {
    Retired,
    Unusable,
}

struct Committed {
    entry: u64,
    step: u64,
    model: Digest,
    attempt: Option<schemas::ids::AttemptId>,
    obs: CheckpointCommittedObs,
}

struct State<'a> {
    frozen: &'a Frozen,
    committed: Vec<Committed>,
    /// Checkpoints that were at least requested.
    known: BTreeSet<String>,
    status: BTreeMap<String, Withdrawn>,
    /// Checkpoints whose weights were selected or handed off.
    final_candidates: BTreeSet<String>,
    /// Checkpoint of each admitted candidate.
    candidates: BTreeMap<String, String>,
}

impl Check for State<'_> {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        match &entry.body {
            Body::CheckpointRequested(halves) => {
                self.known.insert(halves.obs.checkpoint.0.clone());
            }
            Body::CheckpointDurablyCommitted(halves) => self.committed.push(Committed {
                entry: entry.index,
                step: halves.det.step,
                model: halves.det.model,
                attempt: entry.header.attempt,
                obs: halves.obs.clone(),
            }),
            Body::CheckpointRetired(halves) => {
                self.status.insert(halves.obs.checkpoint.0.clone(), Withdrawn::Retired);
            }
            Body::CheckpointFailed(halves) => {
                self.status.insert(halves.obs.checkpoint.0.clone(), Withdrawn::Unusable);
            }
            Body::CheckpointQuarantined(halves) => {
                self.status.insert(halves.obs.checkpoint.0.clone(), Withdrawn::Unusable);
            }
            Body::CandidateAdmitted(halves) => {
                self.candidates.insert(halves.obs.candidate.to_string(), halves.obs.checkpoint.to_string());
            }
            Body::CandidateSelected(halves) => {
                self.final_candidates.insert(halves.obs.checkpoint.to_string());
            }
            Body::HandoffIssued(halves) => {
                self.final_candidates.extend(self.candidates.get(halves.obs.candidate.as_str()).cloned());
            }
            _ => {}
        }
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let store = self.frozen.checkpoint_folder();
        let mut elsewhere = Elsewhere::new(self.frozen);
        let mut num_files = 0;
        for committed in &self.committed {
            if self.withdrawn(committed) == Some(Withdrawn::Unusable)
                || !elsewhere.has(committed.obs.checkpoint.as_str(), evidence)
            {
                num_files += self.check(committed, evidence, sink);
            }
        }
        self.leftovers(store, evidence, sink);
        elsewhere.outcome(num_files)
    }
}

impl State<'_> {
    /// Where the files are looked for, whatever the entry says.
    fn folder(&self, committed: &Committed) -> String {
        format!("{}/{}", self.frozen.checkpoint_folder(), committed.obs.checkpoint)
    }

    /// Why its files may be gone or wrong; a final candidate that failed is read.
    fn withdrawn(&self, committed: &Committed) -> Option<Withdrawn> {
        let checkpoint = committed.obs.checkpoint.as_str();
        let is_final = self.final_candidates.contains(checkpoint);
        let withdrawn = self.status.get(checkpoint).copied();
        withdrawn.filter(|withdrawn| !is_final || *withdrawn == Withdrawn::Retired)
    }

    fn check(&self, committed: &Committed, evidence: &Evidence, sink: &mut Sink) -> u64 {
        let obs = &committed.obs;
        let withdrawn = self.withdrawn(committed);
        let folder = self.folder(committed);
        if obs.path != folder {
            sink.rejected(
                At::entry(committed.entry, "/body/obs/path"),
                "the checkpoint's folder is not the one that the contract's store gives",
                &folder,
                &obs.path,
            );
        }
        if withdrawn == Some(Withdrawn::Unusable) {
            sink.note(
                At::entry(committed.entry, &obs.path),
                "a checkpoint that the run itself gave up is not read",
                "no claim about its files",
                "failed or quarantined",
            );
            return 0;
        }
        let Some((manifest, manifest_bytes)) = self.manifest(committed, evidence, sink) else { return 1 };
        self.check_identity(committed, &manifest, sink);
        let mut listed = BTreeSet::from(["manifest.json".to_owned()]);
        let mut total = manifest_bytes;
        let mut to_read = Vec::new();
        let is_candidate = self.candidates.values().any(|checkpoint| *checkpoint == obs.checkpoint.0);
        let stays = |class: StateClass| is_candidate && class == StateClass::Model;
        let shards =
            manifest.classes.iter().flat_map(|class| class.shards.iter().map(move |shard| (class, shard)));
        for (class, shard) in shards {
            total = total.saturating_add(shard.num_bytes);
            if !listed.insert(shard.path.clone()) {
                let at = At::place(format!("{folder}/manifest.json"));
                sink.rejected(at, "the manifest lists a file twice", "each file once", &shard.path);
            } else if withdrawn != Some(Withdrawn::Retired)
                || stays(class.class)
                || evidence.open(&format!("{folder}/{}", shard.path)).is_ok()
            {
                to_read.push(shard);
            }
        }
        let num_bytes = to_read.iter().fold(0u64, |sum, shard| sum.saturating_add(shard.num_bytes));
        let threads = if num_bytes < MIN_SHARED_BYTES { NonZeroUsize::MIN } else { evidence.threads };
        let problems =
            parallel::map(threads, &to_read, |shard| check_shard(committed, &folder, shard, evidence));
        report(problems.into_iter().flatten().collect(), sink);
        self.check_model(committed, &manifest, sink);
        if total != obs.num_bytes {
            sink.rejected(
                At::entry(committed.entry, "/body/obs/num_bytes"),
                "the checkpoint's size is not that of its files and its manifest",
                total,
                obs.num_bytes,
            );
        }
        check_folder(&folder, "", &listed, evidence, sink);
        listed.len() as u64
    }

    fn manifest(
        &self,
        committed: &Committed,
        evidence: &Evidence,
        sink: &mut Sink,
    ) -> Option<(CheckpointManifest, u64)> {
        let folder = self.folder(committed);
        let path = format!("{folder}/manifest.json");
        let num_bytes = match evidence.read(&path, MAX_DOCUMENT_BYTES) {
            Ok(bytes) => bytes.len() as u64,
            Err(error) => {
                let at = At::place(&path);
                let message = format!("the manifest of {} cannot be read", committed.obs.checkpoint);
                sink.tampered(at, message, committed.obs.manifest, describe(&error));
                return None;
            }
        };
        match evidence.checkpoint_manifest(&folder, committed.obs.manifest) {
            Ok(manifest) => Some((manifest, num_bytes)),
            Err(reason) => {
                sink.tampered(
                    At::place(&path),
                    format!(
                        "the manifest of {} is not the one that entry {} records",
                        committed.obs.checkpoint, committed.entry
                    ),
                    committed.obs.manifest,
                    reason,
                );
                None
            }
        }
    }

    fn check_identity(&self, committed: &Committed, manifest: &CheckpointManifest, sink: &mut Sink) {
        let path = format!("{}/manifest.json", self.folder(committed));
        let mut compare = |field: &str, expected: String, actual: String| {
            if expected != actual {
                sink.rejected(
                    At::place(format!("{path}#/{field}")),
                    "the manifest is of another checkpoint than its entry says",
                    expected,
                    actual,
                );
            }
        };
        compare("checkpoint", committed.obs.checkpoint.to_string(), manifest.checkpoint.to_string());
        compare("step", committed.step.to_string(), manifest.step.to_string());
        compare("run", self.frozen.run.to_string(), manifest.run.to_string());
        compare("contract", self.frozen.digest.to_string(), manifest.contract.to_string());
        compare("format", schemas::CHECKPOINT_MANIFEST_FORMAT.to_owned(), manifest.format.clone());
        if let Some(attempt) = committed.attempt {
            compare("attempt", attempt.to_string(), manifest.attempt.to_string());
        }
    }

    fn check_model(&self, committed: &Committed, manifest: &CheckpointManifest, sink: &mut Sink) {
        let model = model_files::root(manifest).map(|shard| shard.digest);
        if model != Some(committed.model) {
            sink.rejected(
                At::entry(committed.entry, "/body/det/model"),
                "the recorded weights are not the manifest's model.safetensors, or its index",
                model.map_or("no such shard".to_owned(), |digest| digest.to_string()),
                committed.model,
            );
        }
    }

    /// What a crash left: folders that no entry committed to.
    fn leftovers(&self, store: &str, evidence: &Evidence, sink: &mut Sink) {
        let Ok(names) = evidence.list(store) else { return };
        let committed: BTreeSet<&str> =
            self.committed.iter().map(|one| one.obs.checkpoint.as_str()).collect();
        for found in names.iter().filter(|found| !committed.contains(found.name.as_str())) {
            let message = if found.name.starts_with(".staging-") {
                "a folder of a checkpoint that was being written when its attempt stopped"
            } else if self.known.contains(&found.name) {
                "a checkpoint that was announced and never committed"
            } else {
                "not a checkpoint of this run"
            };
            let is_unfinished = found.name.starts_with(".staging-") || self.known.contains(&found.name);
            let at = At::place(format!("{store}/{}", found.name));
            sink.note(
                at.cause(is_unfinished.then_some(FaultKind::CheckpointWriteInterruption)),
                message,
                "committed checkpoints",
                "left as it is",
            );
        }
    }
}

/// Bytes of a checkpoint that are worth starting threads for.
const MIN_SHARED_BYTES: u64 = 4 << 20;

/// What is wrong with a file that the manifest lists.
struct Problem {
    path: String,
    message: String,
    expected: String,
    actual: String,
    kind: ProblemKind,
}

#[derive(PartialEq, Eq)]
enum ProblemKind {
    NotPlain,
    Unreadable,
    OtherContent,
}

fn check_shard(committed: &Committed, folder: &str, shard: &Shard, evidence: &Evidence) -> Option<Problem> {
    let path = format!("{folder}/{}", shard.path);
    let checkpoint = &committed.obs.checkpoint;
    let (kind, message, expected, actual) = match measure(&path, Some(shard.num_bytes), evidence) {
        Err(error @ FileError::Unsafe { .. }) => {
            let expected = "a file in the folder".to_owned();
            (ProblemKind::NotPlain, "a shard's path is not plain".to_owned(), expected, describe(&error))
        }
        Err(error) => {
            let message = format!("a file of {checkpoint} cannot be read");
            (ProblemKind::Unreadable, message, shard.digest.to_string(), describe(&error))
        }
        Ok(actual) if actual.is(shard.digest, Some(shard.num_bytes)) => return None,
        Ok(actual) => {
            let message = format!("a file of {checkpoint} is not the one that was committed");
            let expected = format!("{} with {} bytes", shard.digest, shard.num_bytes);
            (ProblemKind::OtherContent, message, expected, actual.to_string())
        }
    };
    Some(Problem { path, message, expected, actual, kind })
}

/// One file of a checkpoint whose content alone is another is what rot or a
/// flipped bit leaves; where several are wrong nothing is said of the cause.
fn report(problems: Vec<Problem>, sink: &mut Sink) {
    let is_alone = problems.len() == 1;
    for Problem { path, message, expected, actual, kind } in problems {
        let is_corrupt = is_alone && kind == ProblemKind::OtherContent;
        let at = At::place(path).cause(is_corrupt.then_some(FaultKind::SingleShardCorruption));
        match kind {
            ProblemKind::NotPlain => sink.rejected(at, message, expected, actual),
            ProblemKind::Unreadable | ProblemKind::OtherContent => {
                sink.tampered(at, message, expected, actual);
            }
        }
    }
}

/// Nothing but the listed files may lie in the folder.
fn check_folder(root: &str, inner: &str, listed: &BTreeSet<String>, evidence: &Evidence, sink: &mut Sink) {
    let root = root.trim_end_matches('/');
    let folder = if inner.is_empty() { root.to_owned() } else { format!("{root}/{inner}") };
    let Ok(names) = evidence.list(&folder) else { return };
    for found in names {
        let relative = if inner.is_empty() { found.name.clone() } else { format!("{inner}/{}", found.name) };
        let is_above_listed =
            found.is_folder && listed.iter().any(|path| path.starts_with(&format!("{relative}/")));
        if is_above_listed {
            check_folder(root, &relative, listed, evidence, sink);
        } else if !listed.contains(&relative) || found.is_folder || found.is_link {
            sink.rejected(
                At::place(format!("{root}/{relative}")),
                "something lies in a checkpoint's folder that its manifest does not list",
                "only the manifest and its files",
                if found.is_folder {
                    "a folder"
                } else if found.is_link {
                    "a link"
                } else {
                    "a file"
                },
            );
        }
    }
}
