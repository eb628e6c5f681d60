//! Runs with a state tree, honest and false, for `GL614`.

use std::fs;

use schemas::body::{Body, Kind};
use schemas::contract::StateTree;
use schemas::digest::Digest;

use super::attempts::body;
use super::{Mutation, changed, error};
use crate::fixture::{Fixture, RunBuilder};

/// A run that keeps a state tree and takes state digests at every fourth step.
pub(super) fn with_tree(change: impl FnOnce(&mut Fixture)) -> Fixture {
    let builder = RunBuilder::new().contract(|contract| {
        contract.state_digest_every_steps = Some(4);
        contract.state_tree = Some(StateTree::Tensors);
    });
    let mut fixture = builder.build();
    for step in [4, 8] {
        let committed = fixture.entries.iter().find_map(|entry| match &entry.body {
            Body::CheckpointDurablyCommitted(h) if h.det.step == step => Some(h.det.clone()),
            _ => None,
        });
        let committed = committed.expect("saved");
        let mut entries = fixture.entries.iter_mut();
        let found = entries.find(|e| e.body.kind() == Kind::Step && e.header.step == Some(step));
        if let Some(Body::Step(h)) = found.map(|entry| &mut entry.body) {
            h.det.state = Some(committed.classes);
            h.det.state_root = committed.state_root;
        }
    }
    change(&mut fixture);
    fixture
}

const OTHER: Digest = Digest::sha256([5; 32]);

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL614", "a checkpoint without the root of its tree", || {
        with_tree(|f| body!(f, CheckpointDurablyCommitted, 1, |h| h.det.state_root = None))
    }),
    error("GL614", "a root over other tensors", || {
        with_tree(|f| {
            body!(f, CheckpointDurablyCommitted, 2, |h| h.det.state_root = Some(OTHER));
            body!(f, Step, 7, |h| h.det.state_root = Some(OTHER));
        })
    }),
    error("GL614", "a step without the root of its tree", || {
        with_tree(|f| body!(f, Step, 7, |h| h.det.state_root = None))
    }),
    error("GL614", "a step with another root than its checkpoint", || {
        with_tree(|f| body!(f, Step, 7, |h| h.det.state_root = Some(OTHER)))
    }),
    error("GL614", "a root that the contract does not ask for", || {
        changed(|f| body!(f, CheckpointDurablyCommitted, 1, |h| h.det.state_root = Some(OTHER)))
    }),
    error("GL614", "one element of one tensor is another", || {
        with_tree(|f| {
            let path = f.checkpoint("s00000008-a1").join("optimizer.safetensors");
            let mut bytes = fs::read(&path).expect("saved");
            *bytes.last_mut().expect("not empty") ^= 1;
            fs::write(path, bytes).expect("writable");
        })
    }),
];
