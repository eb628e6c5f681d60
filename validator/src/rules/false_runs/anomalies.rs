//! Runs whose saved state is odd, with and without saying so.

use std::fs;

use schemas::body::{
    AnomalyDet, AnomalyObs, BF16_ONLY_MANTISSAS, Body, Halves, Kind, StateAnomaly, UNCHANGED_STATE,
    ZERO_MOMENTS,
};
use schemas::contract::Architecture;
use schemas::finding::Severity;
use schemas::ids::WorkerId;
use schemas::number::Float;
use schemas::report::RuleStatus;
use schemas::state::StateClass;

use super::attempts::body;
use super::stateful::dropout_stream;
use super::{Mutation, changed, error, rule, warning};
use crate::derive::state_json::class_digest;
use crate::fixture::{Fixture, RunBuilder, asynchronous, blake3_of, honest_run, rewrite_manifest};

/// Names of the fixture's checkpoints, in the order of their commits.
pub(super) const NAMES: [&str; 3] = ["s00000000-a1", "s00000004-a1", "s00000008-a1"];

fn file_of(class: StateClass) -> &'static str {
    if class == StateClass::Model { "model.safetensors" } else { "optimizer.safetensors" }
}

/// Changes the elements of a class in the n-th checkpoint, by place and bits,
/// with every digest above them.
pub(super) fn rewrite(f: &mut Fixture, n: usize, class: StateClass, change: impl Fn(usize, u32) -> u32) {
    let path = f.checkpoint(NAMES[n]).join(file_of(class));
    let mut bytes = fs::read(&path).expect("saved");
    let header = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().expect("eight"))).expect("small");
    for (place, word) in bytes[8 + header..].chunks_exact_mut(4).enumerate() {
        let bits = u32::from_le_bytes(word.try_into().expect("a word"));
        word.copy_from_slice(&change(place, bits).to_le_bytes());
    }
    fs::write(&path, &bytes).expect("writable");
    let digest = blake3_of(&bytes);
    let mut of_class = None;
    let manifest = rewrite_manifest(f.folder.path(), &format!("checkpoints/{}", NAMES[n]), |manifest| {
        let captured = manifest.classes.iter_mut().find(|of| of.class == class).expect("captured");
        let shard = captured.shards.iter_mut().find(|shard| shard.path == file_of(class)).expect("listed");
        shard.digest = digest;
        of_class =
            Some(class_digest(captured.shards.iter().map(|shard| (shard.path.as_str(), &shard.digest))));
    });
    body!(f, CheckpointDurablyCommitted, n, |h| {
        h.obs.manifest = manifest;
        let state = h.det.classes.iter_mut().find(|of| of.class == class).expect("captured");
        state.digest = of_class;
        if class == StateClass::Model {
            h.det.model = digest;
        }
    });
}

/// Different values that bfloat16 holds.
fn cut(place: usize, _: u32) -> u32 {
    0x3f81_0000 + (u32::try_from(place % 100).expect("small") << 16)
}

/// Bits, cut to what bfloat16 holds.
pub(super) fn rounded(_: usize, bits: u32) -> u32 {
    bits & 0xffff_0000
}

/// Elements of the tensors of a class, and the name of the first.
fn sizes(f: &Fixture, class: StateClass) -> (Vec<u64>, String) {
    let text = fs::read(f.checkpoint(NAMES[2]).join("manifest.json")).expect("saved");
    let manifest: schemas::state::CheckpointManifest = serde_json::from_slice(&text).expect("a manifest");
    let captured = manifest.classes.iter().find(|of| of.class == class).expect("captured");
    let tensors = captured.shards.iter().flat_map(|shard| &shard.tensors);
    let sizes = tensors.clone().map(|tensor| tensor.shape.iter().product()).collect();
    (sizes, tensors.clone().next().expect("a tensor").name.clone())
}

/// Records an anomaly of a step behind the first entry of a kind there.
fn record(f: &mut Fixture, behind: Kind, step: u64, name: &str, state: StateAnomaly) {
    let is_it =
        |entry: &schemas::entry::Entry| entry.body.kind() == behind && entry.header.step == Some(step);
    let at = f.entries.iter().position(is_it).expect("the mutation acts");
    let mut entry = f.entries[at].clone();
    entry.header.learner = None;
    let det = AnomalyDet { name: name.to_owned(), state: Some(state) };
    let obs = AnomalyObs { description: "odd".to_owned() };
    entry.body = Body::Anomaly(Box::new(Halves { det, obs }));
    f.entries.insert(at + 1, entry);
    f.renumber();
}

fn whole_class(f: &Fixture, class: StateClass, has_tensor: bool) -> StateAnomaly {
    let (sizes, first) = sizes(f, class);
    StateAnomaly {
        class,
        num_elements: sizes.iter().sum(),
        num_tensors: sizes.len() as u64,
        tensor: has_tensor.then_some(first),
    }
}

/// A run that lost its moments before the last save, and says so.
fn reset_and_recorded(behind: Kind) -> Fixture {
    changed(|f| {
        rewrite(f, 2, StateClass::Optimizer, |_, _| 0);
        let state = whole_class(f, StateClass::Optimizer, true);
        record(f, behind, 8, ZERO_MOMENTS, state);
    })
}

/// A run that saved the model of its middle at its end.
fn with_class_of_middle(class: StateClass, change: impl FnOnce(&mut Fixture)) -> Fixture {
    changed(|f| {
        let file = file_of(class);
        let bytes = fs::read(f.checkpoint(NAMES[1]).join(file)).expect("saved");
        fs::write(f.checkpoint(NAMES[2]).join(file), bytes).expect("writable");
        // The identity gives everything above the new bytes its digest.
        rewrite(f, 2, class, |_, bits| bits);
        change(f);
    })
}

/// Takes no norm of any change.
pub(super) fn without_norms(f: &mut Fixture) {
    for entry in &mut f.entries {
        if let Body::Step(halves) = &mut entry.body {
            halves.det.updates.iter_mut().for_each(|update| update.update_norm = None);
        }
    }
}

/// A run of two workers, whose last checkpoint holds the random state of both.
fn two_workers(key_of_second: Option<&str>) -> Fixture {
    let mut f = dropout_stream().build();
    f.frozen.contract.topology.workers = 2;
    for (n, name) in NAMES.iter().enumerate() {
        let folder = f.checkpoint(name);
        let first = fs::read_to_string(folder.join("rng_cpu.json")).expect("saved");
        let mut value: serde_json::Value = serde_json::from_str(&first).expect("JSON");
        if let Some(key) = key_of_second {
            value["key"] = serde_json::from_str(key).expect("a key");
        }
        let second = serde_json::to_vec(&value).expect("serialises");
        fs::write(folder.join("rng_cpu-1.json"), &second).expect("writable");
        let manifest = rewrite_manifest(f.folder.path(), &format!("checkpoints/{name}"), |manifest| {
            let at = manifest.classes.iter().position(|of| of.class == StateClass::RngCpu).expect("captured");
            let mut other = manifest.classes[at].clone();
            manifest.classes[at].worker = Some(WorkerId(0));
            other.worker = Some(WorkerId(1));
            other.shards[0].path = "rng_cpu-1.json".to_owned();
            other.shards[0].digest = blake3_of(&second);
            manifest.classes.insert(at + 1, other);
        });
        body!(f, CheckpointDurablyCommitted, n, |h| h.obs.manifest = manifest);
    }
    f
}

#[test]
fn what_is_on_record_and_shown_is_no_finding_of_its_own() {
    let mut fixtures = vec![honest_run(), reset_and_recorded(Kind::CheckpointDurablyCommitted)];
    fixtures.push(asynchronous(reset_and_recorded(Kind::CheckpointDurablyCommitted)));
    fixtures.push(changed(|f| {
        rewrite(f, 1, StateClass::Optimizer, cut);
        // Norms have too few elements to be judged.
        let (mut sizes, _) = sizes(f, StateClass::Optimizer);
        sizes.retain(|size| *size >= 32);
        let (num_tensors, num_elements) = (sizes.len() as u64, sizes.iter().sum());
        let state = StateAnomaly { num_elements, num_tensors, ..whole_class(f, StateClass::Optimizer, true) };
        record(f, Kind::CheckpointDurablyCommitted, 4, BF16_ONLY_MANTISSAS, state);
    }));
    fixtures.push(with_class_of_middle(StateClass::Model, |f| {
        let state = whole_class(f, StateClass::Model, false);
        record(f, Kind::CheckpointDurablyCommitted, 8, UNCHANGED_STATE, state);
    }));
    for fixture in fixtures {
        let (status, num_checked, findings) = fixture.check(rule("GL640"));
        assert_eq!((status, num_checked), (RuleStatus::Passed, 3), "{findings:#?}");
        assert!(findings.is_empty(), "{findings:#?}");
    }
}

#[test]
fn workers_with_streams_of_their_own_are_in_order() {
    let (status, num_streams, findings) = two_workers(Some("[1,2]")).check(rule("GL644"));
    assert_eq!((status, num_streams), (RuleStatus::Passed, 6), "{findings:#?}");
    let (status, _, findings) = dropout_stream().build().check(rule("GL644"));
    assert_eq!(status, RuleStatus::Passed, "{findings:#?}");
}

/// The same update that leaves the model is a warning where the record agrees.
#[test]
fn a_model_that_the_record_says_moved_is_worse() {
    let severity = |fixture: Fixture| fixture.check(rule("GL643")).2[0].severity;
    assert_eq!(severity(with_class_of_middle(StateClass::Model, without_norms)), Severity::Warning);
    let moved = |f: &mut Fixture| {
        without_norms(f);
        body!(f, Step, 6, |h| h.det.updates[0].update_norm = Some(Float(0.5)));
    };
    assert_eq!(severity(with_class_of_middle(StateClass::Model, moved)), Severity::Error);
}

fn untied() -> RunBuilder {
    RunBuilder::new().contract(|contract| {
        let Architecture::LlamaDecoder(decoder) = &mut contract.architecture;
        decoder.tied_embeddings = false;
    })
}

fn tie(f: &mut Fixture, is_tied: bool) {
    let Architecture::LlamaDecoder(decoder) = &mut f.frozen.contract.architecture;
    decoder.tied_embeddings = is_tied;
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL640", "moments that vanished without a word", || {
        changed(|f| rewrite(f, 2, StateClass::Optimizer, |_, _| 0))
    }),
    error("GL640", "a rounded model without a word", || {
        changed(|f| rewrite(f, 2, StateClass::Model, rounded))
    }),
    error("GL640", "an unchanged model without a word", || with_class_of_middle(StateClass::Model, |_| {})),
    error("GL640", "an anomaly that the bytes do not show", || {
        changed(|f| {
            let state = whole_class(f, StateClass::Optimizer, true);
            record(f, Kind::CheckpointDurablyCommitted, 8, ZERO_MOMENTS, state);
        })
    }),
    error("GL640", "an anomaly with other counts", || {
        changed(|f| {
            rewrite(f, 2, StateClass::Optimizer, |_, _| 0);
            let state = StateAnomaly { num_tensors: 1, ..whole_class(f, StateClass::Optimizer, true) };
            record(f, Kind::CheckpointDurablyCommitted, 8, ZERO_MOMENTS, state);
        })
    }),
    error("GL640", "an anomaly that is told when the save is over", || {
        reset_and_recorded(Kind::CheckpointValidated)
    }),
    error("GL640", "an anomaly of a step that was not saved", || {
        changed(|f| {
            let state = whole_class(f, StateClass::Optimizer, true);
            record(f, Kind::Step, 3, ZERO_MOMENTS, state);
        })
    }),
    error("GL641", "masters that were rounded to bfloat16", || {
        changed(|f| rewrite(f, 2, StateClass::Model, rounded))
    }),
    warning("GL641", "moments that were rounded to bfloat16", || {
        changed(|f| rewrite(f, 2, StateClass::Optimizer, cut))
    }),
    warning("GL641", "initial values that were rounded", || {
        changed(|f| rewrite(f, 0, StateClass::Model, rounded))
    }),
    error("GL642", "an optimizer that was reset", || reset_and_recorded(Kind::CheckpointDurablyCommitted)),
    warning("GL642", "a moment that is empty", || {
        changed(|f| {
            let first = usize::try_from(sizes(f, StateClass::Optimizer).0[0]).expect("small");
            rewrite(f, 2, StateClass::Optimizer, |place, bits| if place < first { 0 } else { bits });
        })
    }),
    warning("GL643", "a model that no update changed", || {
        with_class_of_middle(StateClass::Model, without_norms)
    }),
    error("GL643", "an optimizer that gradients did not change", || {
        with_class_of_middle(StateClass::Optimizer, |_| {})
    }),
    error("GL644", "two workers with one stream", || two_workers(None)),
    error("GL644", "two workers restored from the state of one", || {
        let mut f = dropout_stream().build();
        f.frozen.contract.topology.workers = 2;
        f
    }),
    error("GL645", "a tied head with a tensor of its own", || {
        let mut f = untied().build();
        tie(&mut f, true);
        f
    }),
    error("GL645", "an untied head without one", || changed(|f| tie(f, false))),
    error("GL407", "a tied head that is frozen alone", || {
        changed(|f| {
            let parameters = &mut f.frozen.parameters.as_mut().expect("a manifest").parameters;
            let embedding =
                parameters.iter().find(|p| p.path == "model.embed_tokens.weight").expect("listed");
            let mut head = embedding.clone();
            (head.path, head.group) = ("lm_head.weight".to_owned(), None);
            head.tied_to = Some(embedding.path.clone());
            head.status = schemas::parameters::ParameterStatus::Frozen;
            parameters.insert(0, head);
        })
    }),
];

#[test]
fn a_manifest_may_list_what_the_head_is_tied_to() {
    let fixture = changed(|f| {
        let parameters = &mut f.frozen.parameters.as_mut().expect("a manifest").parameters;
        let embedding = parameters.iter().find(|p| p.path == "model.embed_tokens.weight").expect("listed");
        let mut head = embedding.clone();
        (head.path, head.group) = ("lm_head.weight".to_owned(), None);
        head.tied_to = Some(embedding.path.clone());
        parameters.insert(0, head);
    });
    for code in ["GL402", "GL406", "GL407", "GL408", "GL605", "GL645"] {
        let (status, _, findings) = fixture.check(rule(code));
        assert_eq!(status, RuleStatus::Passed, "{code}: {findings:#?}");
    }
}
