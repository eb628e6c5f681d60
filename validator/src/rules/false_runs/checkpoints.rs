//! False runs for `GL6xx`.

use std::fs;

use schemas::body::{Body, Kind};
use schemas::contract::{AverageOrder, Averages, MidAccumulation, ParameterView, SaveMode, StoppingRule};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::state::{
    CheckpointManifest, NotApplicableReason, StateClass, StateClassDeclaration, StateDigest,
};

use super::attempts::body;
use super::{Mutation, changed, error};
use crate::derive::state_json;
use crate::fixture::{Fixture, RunBuilder, asynchronous, blake3_of, honest_run, rewrite_manifest};

/// Rewrites the manifest of the last checkpoint and its digest in the entry.
fn with_manifest(change: impl FnOnce(&mut CheckpointManifest)) -> Fixture {
    changed(|f| {
        let digest = rewrite_manifest(f.folder.path(), "checkpoints/s00000008-a1", change);
        body!(f, CheckpointDurablyCommitted, 2, |h| h.obs.manifest = digest);
    })
}

/// Rewrites a JSON shard of the last checkpoint, with every digest above it.
fn with_shard(class: StateClass, name: &str, text: &str) -> Fixture {
    let (digest, num_bytes) = (blake3_of(text.as_bytes()), text.len() as u64);
    let fixture = with_manifest(|manifest| {
        let captured =
            manifest.classes.iter_mut().find(|captured| captured.class == class).expect("captured");
        let shard = captured.shards.iter_mut().find(|shard| shard.path == name).expect("listed");
        (shard.digest, shard.num_bytes) = (digest, num_bytes);
    });
    fs::write(fixture.checkpoint("s00000008-a1").join(name), text).expect("writable");
    fixture
}

/// A run whose steps carry state digests, every four steps.
pub(super) fn with_cadence(change: impl FnOnce(&mut Fixture, &mut Vec<StateDigest>)) -> Fixture {
    let mut fixture =
        RunBuilder::new().contract(|contract| contract.state_digest_every_steps = Some(4)).build();
    for step in [4, 8] {
        let classes = fixture.entries.iter().find_map(|entry| match &entry.body {
            Body::CheckpointDurablyCommitted(h) if h.det.step == step => Some(h.det.classes.clone()),
            _ => None,
        });
        let at =
            fixture.entries.iter().position(|e| e.body.kind() == Kind::Step && e.header.step == Some(step));
        if let Body::Step(h) = &mut fixture.entries[at.expect("a step")].body {
            h.det.state = classes;
        }
    }
    let mut last = Vec::new();
    body!(fixture, Step, 7, |h| last = h.det.state.clone().expect("just set"));
    change(&mut fixture, &mut last);
    body!(fixture, Step, 7, |h| h.det.state = Some(last));
    fixture
}

/// A run that keeps averages from its third update on, evaluates them, and is
/// saved at every step.
pub(super) fn with_averages(order: AverageOrder, change: impl FnOnce(&mut Fixture)) -> Fixture {
    let builder = RunBuilder::new().contract(|contract| {
        contract.averages = Some(Averages { decay: 0.75, first_step: 3, order });
        contract.checkpoints.every_steps = 1;
        let declared = StateClassDeclaration { class: StateClass::Averages, not_applicable: None };
        let classes = &mut contract.state_classes;
        let at = classes.iter().position(|other| other.class > declared.class).expect("later classes");
        classes.insert(at, declared);
        let mut stream = contract.evaluation.streams[0].clone();
        stream.name = "averaged".to_owned();
        stream.view = ParameterView::Averages;
        contract.evaluation.streams.push(stream);
    });
    let mut fixture = builder.build();
    change(&mut fixture);
    fixture
}

/// Changes one byte of the last tensor of a checkpoint's averages.
fn with_other_averages(fixture: &mut Fixture, checkpoint: &str) {
    let path = fixture.checkpoint(checkpoint).join("averages.safetensors");
    let mut bytes = fs::read(&path).expect("saved");
    *bytes.last_mut().expect("not empty") ^= 1;
    fs::write(path, bytes).expect("writable");
}

fn set_reason(fixture: &mut Fixture, class: StateClass, reason: Option<NotApplicableReason>) {
    let classes = &mut fixture.frozen.contract.state_classes;
    classes.iter_mut().find(|declaration| declaration.class == class).expect("declared").not_applicable =
        reason;
}

/// The stages of the second checkpoint once more, under a name of their own.
fn committed_twice(fixture: &mut Fixture) {
    let is_stage =
        |entry: &&Entry| entry.body.kind().name().starts_with("checkpoint.") && entry.header.step == Some(4);
    let stages: Vec<Entry> = fixture
        .entries
        .iter()
        .filter(is_stage)
        .map(|entry| {
            let text = serde_json::to_string(entry).expect("serialises");
            Entry::from_slice(text.replace("s00000004-a1", "s00000004-a1-2").as_bytes()).expect("an entry")
        })
        .collect();
    let last = fixture.entries.iter().rposition(|entry| is_stage(&entry)).expect("saved");
    fixture.entries.splice(last + 1..last + 1, stages);
    fixture.renumber();
}

/// An asynchronous run, with an entry of the last save but one moved behind the
/// first entry that is chosen and follows it.
fn moved_behind(kind: Kind, behind: fn(&Entry) -> bool) -> Fixture {
    let mut fixture = asynchronous(honest_run());
    let entries = &mut fixture.entries;
    let from = entries.iter().position(|e| e.body.kind() == kind && e.header.step == Some(4)).expect("saved");
    let entry = entries.remove(from);
    let to = from + entries[from..].iter().position(behind).expect("there");
    entries.insert(to + 1, entry);
    fixture.renumber();
    fixture
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL612", "updates beside a save that a synchronous contract waits for", || {
        let mut fixture = asynchronous(honest_run());
        fixture.frozen.contract.checkpoints.mode = SaveMode::Synchronous;
        fixture
    }),
    error("GL612", "two saves in flight", || {
        moved_behind(Kind::CheckpointValidated, |e| e.body.kind() == Kind::CheckpointRequested)
    }),
    error("GL612", "an attempt that ends before its save", || {
        changed(|f| {
            f.drop_where(|e| e.body.kind() == Kind::CheckpointValidated && e.header.step == Some(8));
        })
    }),
    error("GL612", "a candidate that did not wait for its save", || {
        moved_behind(Kind::CheckpointValidated, |e| e.body.kind() == Kind::CandidateAdmitted)
    }),
    error("GL612", "a save in flight beside too many updates", || {
        let mut fixture = asynchronous(honest_run());
        let step = fixture.entries.iter().position(|e| e.body.kind() == Kind::Step).expect("a step");
        let copy = fixture.entries[step].clone();
        fixture.entries.splice(step..step, std::iter::repeat_n(copy, 10_000));
        fixture.renumber();
        fixture
    }),
    error("GL505", "an admission that waited for the next save", || {
        moved_behind(Kind::CandidateAdmitted, |e| e.body.kind() == Kind::CheckpointRequested)
    }),
    error("GL504", "another model evaluated than was saved beside it", || {
        let mut fixture = asynchronous(honest_run());
        body!(fixture, Eval, 1, |h| h.det.model = Some(Digest::blake3([1; 32])));
        fixture
    }),
    error("GL602", "two checkpoints of a step by one attempt", || changed(committed_twice)),
    error("GL601", "a missing checkpoint", || {
        changed(|f| f.drop_where(|e| e.body.kind() == Kind::CheckpointValidated && e.header.step == Some(4)))
    }),
    error("GL601", "a checkpoint that is not due", || {
        changed(|f| f.frozen.contract.checkpoints.every_steps = 8)
    }),
    error("GL602", "a checkpoint that was never staged", || {
        changed(|f| f.drop_where(|e| e.body.kind() == Kind::CheckpointStaged && e.header.step == Some(4)))
    }),
    error("GL602", "an effect before its intent", || {
        changed(|f| {
            let at =
                f.entries.iter().position(|e| e.body.kind() == Kind::CheckpointRequested).expect("requested");
            f.entries.swap(at, at + 1);
            f.renumber();
        })
    }),
    error("GL602", "a checkpoint of another name", || {
        changed(|f| body!(f, CheckpointRequested, 0, |h| h.obs.checkpoint = CheckpointId::from("best")))
    }),
    error("GL602", "a checkpoint that changes its step", || {
        changed(|f| body!(f, CheckpointValidated, 1, |h| h.det.step = 5))
    }),
    error("GL603", "a required class that is absent", || {
        changed(|f| f.frozen.contract.state_classes.retain(|d| d.class != StateClass::RngCpu))
    }),
    error("GL603", "a model that is left out", || {
        changed(|f| set_reason(f, StateClass::Model, Some(NotApplicableReason::FunctionOfStep)))
    }),
    error("GL603", "a reason that does not hold", || {
        changed(|f| f.frozen.contract.checkpoints.mid_accumulation = MidAccumulation::SaveGradients)
    }),
    error("GL603", "patience without its counter", || {
        changed(|f| {
            f.frozen.contract.state_classes.retain(|d| d.class != StateClass::SelectionState);
            f.frozen.contract.stopping =
                StoppingRule::Patience { max_step: 8, min_delta: 0.0, patience: 2, stream: "val".to_owned() };
        })
    }),
    error("GL603", "averages that are not captured", || {
        changed(|f| {
            let order = AverageOrder::AfterUpdate;
            f.frozen.contract.averages = Some(Averages { decay: 0.5, first_step: 1, order });
        })
    }),
    error("GL611", "averages that were not copied at first", || {
        with_averages(AverageOrder::AfterUpdate, |f| with_other_averages(f, "s00000002-a1"))
    }),
    error("GL611", "averages that were not averaged", || {
        with_averages(AverageOrder::AfterUpdate, |f| with_other_averages(f, "s00000005-a1"))
    }),
    error("GL611", "averages that begin again from copies", || {
        with_averages(AverageOrder::BeforeUpdate, |f| {
            let folder = f.checkpoint("s00000006-a1");
            fs::copy(folder.join("model.safetensors"), folder.join("averages.safetensors")).expect("saved");
        })
    }),
    error("GL611", "a candidate that is chosen by its averages", || {
        with_averages(AverageOrder::AfterUpdate, |f| {
            f.frozen.contract.evaluation.streams[0].view = ParameterView::Averages;
        })
    }),
    error("GL504", "averages of another step", || {
        with_averages(AverageOrder::AfterUpdate, |f| {
            let mut model = None;
            body!(f, Eval, 1, |h| model = h.det.model);
            body!(f, Eval, 3, |h| h.det.model = model);
        })
    }),
    error("GL604", "a class of another step", || with_manifest(|manifest| manifest.classes[1].step = 7)),
    error("GL604", "a class that was not saved", || {
        with_manifest(|manifest| {
            manifest.classes.remove(6);
        })
    }),
    error("GL604", "a class without its file", || {
        with_manifest(|manifest| manifest.classes[6].shards.clear())
    }),
    error("GL605", "a tensor that the manifest does not list", || {
        with_manifest(|manifest| {
            manifest.classes[0].shards[1].tensors.pop();
        })
    }),
    error("GL605", "a parameter that was not saved", || {
        changed(|f| {
            let manifest = f.frozen.parameters.as_mut().expect("a manifest");
            let mut more = manifest.parameters[0].clone();
            more.path = "model.extra.weight".to_owned();
            manifest.parameters.push(more);
        })
    }),
    error("GL605", "a header with a gap", || {
        changed(|f| {
            let path = f.checkpoint("s00000008-a1").join("optimizer.safetensors");
            let mut bytes = fs::read(&path).expect("there");
            bytes.extend([0; 8]);
            fs::write(path, bytes).expect("writable");
        })
    }),
    error("GL606", "a state digest of other bytes", || {
        changed(|f| {
            body!(f, CheckpointDurablyCommitted, 2, |h| h.det.classes[1].digest =
                Some(Digest::blake3([1; 32])));
        })
    }),
    error("GL606", "a class without its digest", || {
        changed(|f| {
            body!(f, CheckpointDurablyCommitted, 2, |h| {
                h.det.classes.pop();
            });
        })
    }),
    error("GL607", "a cursor that is one step off", || {
        let text = r#"{"epoch":4,"examples":28,"position":0,"step":7,"tokens":413}"#;
        with_shard(StateClass::DataCursor, "data_cursor.json", text)
    }),
    error("GL607", "a patience counter that was reset", || {
        let text = r#"{"best_step":null,"best_value":null,"evaluations_without_improvement":0}"#;
        with_shard(StateClass::SelectionState, "selection_state.json", text)
    }),
    error("GL608", "a step without digests", || {
        changed(|f| f.frozen.contract.state_digest_every_steps = Some(4))
    }),
    error("GL608", "digests that are not due", || {
        let mut fixture = with_cadence(|_, _| {});
        fixture.frozen.contract.state_digest_every_steps = None;
        fixture
    }),
    error("GL608", "digests that differ from the checkpoint's", || {
        with_cadence(|_, state| state[0].digest = Some(Digest::blake3([1; 32])))
    }),
    error("GL608", "a cursor that the step does not determine", || {
        with_cadence(|f, state| {
            let text = state_json::data_cursor(&f.frozen.contract, 7, 7, 0).expect("representable");
            let digest = blake3_of(&text);
            state[6].digest = Some(state_json::class_digest([("data_cursor.json", &digest)]));
        })
    }),
];
