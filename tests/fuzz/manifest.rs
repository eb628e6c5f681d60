//! Manifests of checkpoints: what the trainer writes and an audit reads.

use schemas::state::CheckpointManifest;

use super::document::{FACTOR, by_writer};
use super::memory::bounded;
use super::run;

fn property(bytes: &[u8]) -> bool {
    let validator = bounded(bytes, FACTOR, || validator::fuzzing::manifest(bytes));
    let writer: Option<CheckpointManifest> = bounded(bytes, FACTOR, || by_writer(bytes));
    assert_eq!(writer, validator, "both accept the same, with the same values");
    writer.is_some()
}

#[test]
fn manifest() {
    run::target("manifest", property);
}
