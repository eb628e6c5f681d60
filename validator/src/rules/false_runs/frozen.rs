//! False runs of contracts that freeze parameters, whose model lies in two
//! files that checkpoints may share.

use std::fs;

use schemas::contract::KeepPolicy;
use schemas::digest::Digest;
use schemas::model_index::{FROZEN_MODEL_NAME, MODEL_INDEX_NAME, TRAINABLE_MODEL_NAME};
use schemas::report::RuleStatus;
use schemas::state::{Shard, StateClass};

use super::attempts::body;
use super::retention::retire;
use super::{Mutation, error, rule};
use crate::fixture::{Fixture, RunBuilder, blake3_of, rewrite_manifest};

const MIDDLE: &str = "s00000004-a1";
const LAST: &str = "s00000008-a1";

/// A run that freezes a vector and a matrix.
pub(super) fn frozen() -> RunBuilder {
    RunBuilder::new().freeze_parameter("model.embed_tokens.weight").freeze_parameter("model.norm.weight")
}

/// The same, with the checkpoint of its middle retired but for the candidate.
pub(super) fn retired() -> Fixture {
    let keep = KeepPolicy::Chosen { best: 1, every_steps: None, last: 1, pinned: Vec::new() };
    let mut fixture = frozen().contract(|contract| contract.checkpoints.keep = keep).build();
    retire(&mut fixture, MIDDLE, &[StateClass::Model]);
    fixture
}

fn flip_last_byte(fixture: &Fixture, checkpoint: &str, name: &str) -> Digest {
    let path = fixture.checkpoint(checkpoint).join(name);
    let mut bytes = fs::read(&path).expect("written");
    *bytes.last_mut().expect("not empty") ^= 1;
    fs::write(&path, &bytes).expect("writable");
    blake3_of(&bytes)
}

/// Changes the shards that the last checkpoint lists of its model.
fn with_listed(mut fixture: Fixture, change: impl FnOnce(&mut Vec<Shard>)) -> Fixture {
    let digest = rewrite_manifest(fixture.folder.path(), &format!("checkpoints/{LAST}"), |manifest| {
        let model = manifest.classes.iter_mut().find(|captured| captured.class == StateClass::Model);
        change(&mut model.expect("captured").shards);
    });
    body!(fixture, CheckpointDurablyCommitted, 2, |h| h.obs.manifest = digest);
    fixture
}

fn with_digest(fixture: Fixture, name: &str, digest: Digest) -> Fixture {
    with_listed(fixture, |shards| {
        shards.iter_mut().find(|shard| shard.path == name).expect("listed").digest = digest;
    })
}

#[test]
fn a_retired_candidates_frozen_parameters_are_read_too() {
    let fixture = retired();
    let before = fixture.check(rule("GL409"));
    assert_eq!(before.0, RuleStatus::Passed, "{:#?}", before.2);
    // Two parameters in three checkpoints.
    assert_eq!(before.1, 6);
    // What is gone without being a candidate is not looked for.
    let mut fixture = retired();
    fixture.drop_where(|entry| {
        matches!(&entry.body, schemas::body::Body::CandidateAdmitted(h) if h.obs.checkpoint.0 == MIDDLE)
    });
    let (status, num_checked, findings) = fixture.check(rule("GL409"));
    assert_eq!((status, num_checked), (RuleStatus::Passed, 4), "{findings:#?}");
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL409", "a frozen parameter that moved", || {
        let fixture = frozen().build();
        flip_last_byte(&fixture, LAST, FROZEN_MODEL_NAME);
        fixture
    }),
    error("GL409", "a frozen parameter of a retired candidate that moved", || {
        let fixture = retired();
        flip_last_byte(&fixture, MIDDLE, FROZEN_MODEL_NAME);
        fixture
    }),
    error("GL408", "an initial value of a trained parameter that the seed does not give", || {
        let fixture = frozen().build();
        flip_last_byte(&fixture, "s00000000-a1", TRAINABLE_MODEL_NAME);
        fixture
    }),
    error("GL604", "frozen parameters that lie with the others", || {
        with_listed(frozen().build(), |shards| {
            shards.retain(|shard| shard.path != FROZEN_MODEL_NAME);
        })
    }),
    error("GL605", "a tensor in the other file", || {
        let fixture = frozen().build();
        let folder = fixture.checkpoint(LAST);
        fs::copy(folder.join(TRAINABLE_MODEL_NAME), folder.join(FROZEN_MODEL_NAME)).expect("writable");
        fixture
    }),
    error("GL605", "a retired candidate's model that is no tensor file", || {
        let fixture = retired();
        fs::write(fixture.checkpoint(MIDDLE).join(TRAINABLE_MODEL_NAME), "none").expect("writable");
        fixture
    }),
    error("GL506", "a candidate without its frozen parameters", || {
        let fixture = frozen().build();
        fs::remove_file(fixture.checkpoint(MIDDLE).join(FROZEN_MODEL_NAME)).expect("there");
        fixture
    }),
    error("GL613", "another file of frozen parameters, recorded as it is", || {
        let fixture = frozen().build();
        let digest = flip_last_byte(&fixture, LAST, FROZEN_MODEL_NAME);
        with_digest(fixture, FROZEN_MODEL_NAME, digest)
    }),
    error("GL613", "an index of other files", || {
        let fixture = frozen().build();
        let path = fixture.checkpoint(LAST).join(MODEL_INDEX_NAME);
        fs::copy(fixture.checkpoint(MIDDLE).join(MODEL_INDEX_NAME), &path).expect("writable");
        let digest = blake3_of(&fs::read(&path).expect("readable"));
        with_digest(fixture, MODEL_INDEX_NAME, digest)
    }),
    error("GL613", "a model of one file", || {
        with_listed(frozen().build(), |shards| shards.retain(|shard| shard.path == "config.json"))
    }),
    error("GL613", "frozen parameters of another seed", || {
        let mut fixture = frozen().build();
        fixture.frozen.contract.seeds.initialization.0 += 1;
        fixture
    }),
];
