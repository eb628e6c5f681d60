//! Runs that start from another run's weights, and such that only say so.

use std::fs;

use schemas::body::{AttemptReason, ResumePoint};
use schemas::contract::{FileBinding, Initialization, Lineage, SourceHead, WarmStart};
use schemas::digest::Digest;
use schemas::finding::Severity;
use schemas::ids::{CheckpointId, RunId};
use schemas::report::RuleStatus;
use schemas::state::StateClass;

use super::anomalies::rewrite;
use super::attempts::body;
use super::{Mutation, NOT_IN_FIXTURE, error, note, rules};
use crate::fixture::{Fixture, blake3_of, honest_run};

const WEIGHTS: &str = "initial.safetensors";

/// A run whose step 0 is the model that its contract names.
pub(super) fn warm(change: impl FnOnce(&mut Fixture)) -> Fixture {
    let mut f = honest_run();
    let bytes = fs::read(f.checkpoint("s00000000-a1").join("model.safetensors")).expect("saved");
    fs::write(f.folder.path().join(WEIGHTS), &bytes).expect("writable");
    let contract = Digest::sha256([5; 32]);
    let lineage = Lineage {
        checkpoint: CheckpointId::from("s00000200-a1"),
        contract,
        head: SourceHead { root: Digest::sha256([6; 32]), size: 900 },
        model: blake3_of(&bytes),
        run: RunId(format!("{}-0123456789abcdef", &contract.hex()[..16])),
        step: 200,
    };
    let (digest, num_bytes) = (Some(lineage.model), Some(bytes.len() as u64));
    let weights = FileBinding { digest, num_bytes, path: WEIGHTS.to_owned() };
    f.frozen.contract.initialization = Some(Initialization::WarmStart(WarmStart { lineage, weights }));
    change(&mut f);
    f
}

fn lineage(f: &mut Fixture) -> &mut Lineage {
    let Some(Initialization::WarmStart(warm_start)) = &mut f.frozen.contract.initialization else {
        panic!("the fixture starts warm")
    };
    &mut warm_start.lineage
}

#[test]
fn an_honest_warm_start_passes_every_rule() {
    let fixture = warm(|_| {});
    for rule in rules() {
        let info = rule.info();
        let (status, _, findings) = fixture.check(rule);
        let is_silent = NOT_IN_FIXTURE.contains(&info.code) || info.code == "GL408";
        if is_silent && info.code != "GL646" && status == RuleStatus::NotApplicable {
            continue;
        }
        assert_eq!(status, RuleStatus::Passed, "{} {}: {findings:#?}", info.code, info.name);
        assert!(findings.iter().all(|finding| finding.severity == Severity::Note), "{findings:#?}");
    }
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL646", "a checkpoint of another step than the lineage names", || warm(|f| lineage(f).step = 100)),
    error("GL646", "a source of which no head was seen", || warm(|f| lineage(f).head.size = 0)),
    error("GL646", "a root by another hash", || warm(|f| lineage(f).head.root = Digest::blake3([6; 32]))),
    error("GL646", "weights of another size than was frozen", || {
        warm(|f| {
            if let Some(Initialization::WarmStart(warm_start)) = &mut f.frozen.contract.initialization {
                warm_start.weights.num_bytes = Some(1);
            }
        })
    }),
    note("GL646", "a source that the audit does not read", || warm(|_| {})),
    error("GL646", "weights that changed after the freeze", || {
        warm(|f| {
            let path = f.folder.path().join(WEIGHTS);
            let mut bytes = fs::read(&path).expect("just written");
            *bytes.last_mut().expect("not empty") ^= 1;
            fs::write(path, bytes).expect("writable");
        })
    }),
    error("GL646", "a step 0 with other weights", || {
        warm(|f| rewrite(f, 0, StateClass::Model, |_, bits| bits ^ 1))
    }),
    error("GL646", "moments that came along", || {
        warm(|f| rewrite(f, 0, StateClass::Optimizer, |_, _| 0x3f00_0000))
    }),
    error("GL646", "a lineage that names other weights", || {
        warm(|f| lineage(f).model = Digest::blake3([9; 32]))
    }),
    error("GL646", "a run that is its own source", || {
        warm(|f| {
            let run = f.frozen.run.clone();
            lineage(f).run = run;
        })
    }),
    error("GL646", "a source that its contract does not give", || {
        warm(|f| lineage(f).contract = Digest::sha256([8; 32]))
    }),
    error("GL646", "a warm start that calls itself a resume", || {
        warm(|f| {
            body!(f, AttemptStart, 0, |h| {
                h.det.reason = AttemptReason::Resume;
                h.det.resumed_from = Some(ResumePoint {
                    checkpoint: CheckpointId::from("s00000200-a1"),
                    manifest: Digest::blake3([7; 32]),
                    step: 0,
                });
            });
        })
    }),
];
