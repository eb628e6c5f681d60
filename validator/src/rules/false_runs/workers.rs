//! Runs that several workers executed, and false ones among them.

use schemas::contract::{Contract, EquivalenceClass, FaultKind, PermittedRewrite, Tolerance};
use schemas::digest::Digest;
use schemas::finding::{Finding, Severity};
use schemas::ids::{SegmentId, WorkerId};
use schemas::report::RuleStatus;
use schemas::state::StateClass;

use super::attempts::body;
use super::stateful::{changed, dropout_stream, plateau};
use super::{Mutation, check_honest, error, rule, warning};
use crate::fixture::{Fixture, RunBuilder, asynchronous, rewrite_manifest};

/// A builder of a run of two workers.
pub(super) fn two() -> RunBuilder {
    RunBuilder::new().workers(2)
}

/// The same with streams of masks.
pub(super) fn streaming() -> RunBuilder {
    dropout_stream().workers(2)
}

pub(super) fn permits(contract: &mut Contract) {
    contract.topology.permitted_rewrites.push(PermittedRewrite::WorkerCount);
    contract.resume.class = EquivalenceClass::OperationOrderBounded;
    contract.resume.tolerance = Some(Tolerance { max_absolute: 1e-6, max_relative: 1e-6 });
}

/// A run whose second attempt four workers execute, of a contract of two.
fn rewritten(change: impl FnOnce(&mut Fixture)) -> Fixture {
    let builder = two().contract(permits).crash_after_step(6).then_workers(4);
    changed(builder, change)
}

pub(super) fn check_honest_runs() {
    let [windows_and_streams, ..] = super::scaling::windows_of_others();
    for (fixture, code) in [
        (two().build(), "GL214"),
        (two().build(), "GL215"),
        (two().crash_after_step(6).build(), "GL216"),
        (RunBuilder::new().workers(4).interrupt_after_step(7).build(), "GL215"),
        (streaming().crash_after_step(6).build(), "GL633"),
        (plateau().workers(2).crash_after_step(5).build(), "GL215"),
        (super::frozen::frozen().workers(2).build(), "GL215"),
        (asynchronous(two().crash_after_step(6).build()), "GL215"),
        (dropout_stream().build(), "GL633"),
        (windows_and_streams.build(), "GL633"),
    ] {
        check_honest(&fixture, "with workers, or streams");
        assert_eq!(fixture.check(rule(code)).0, RuleStatus::Passed, "{code} runs");
    }
}

/// What a change of the number of workers leaves: a segment of its own, a claim
/// that is said to be order-bounded, and nothing else.
#[test]
fn another_number_of_workers_is_a_segment_and_a_warning() {
    for num_workers in [1, 4] {
        let builder = two().contract(permits).crash_after_step(6).then_workers(num_workers);
        let fixture = builder.build();
        for rule in super::rules() {
            let (status, _, findings) = fixture.check(rule);
            let code = rule.info().code;
            assert_ne!(status, RuleStatus::Failed, "{code}: {findings:#?}");
            let warnings = findings.iter().filter(|finding| finding.severity == Severity::Warning).count();
            assert_eq!(warnings, usize::from(code == "GL208"), "{code}: {findings:#?}");
        }
    }
}

fn causes(fixture: &Fixture, code: &str) -> Vec<Option<FaultKind>> {
    let (_, _, findings) = fixture.check(rule(code));
    findings.iter().map(|finding: &Finding| finding.cause).collect()
}

#[test]
fn what_workers_do_wrong_has_its_family() {
    let late = changed(two(), |f| repeat_gradients(f, 1));
    assert_eq!(causes(&late, "GL214"), [Some(FaultKind::StaleOrDelayedGradient)]);
    let fewer = changed(two(), one_worker_less);
    assert!(causes(&fewer, "GL214").contains(&Some(FaultKind::TopologyChange)));
    let undeclared = changed(two(), |f| body!(f, AttemptStart, 0, |h| h.obs.plan.num_workers = 4));
    assert_eq!(causes(&undeclared, "GL207"), [Some(FaultKind::TopologyChange)]);
    let alone = changed(RunBuilder::new(), repeat_norm);
    assert_eq!(causes(&alone, "GL214"), [Some(FaultKind::StaleOrDelayedGradient)]);
    let lost = changed(streaming(), |f| lose_stream(f, "rng_cpu.1.json"));
    assert_eq!(causes(&lost, "GL633"), [Some(FaultKind::RngStateLoss)]);
}

/// A step that is executed again gives the same gradients, and so do steps
/// between which nothing moved.
#[test]
fn the_same_update_may_give_the_same_gradients() {
    let (status, _, findings) = two().crash_after_step(6).build().check(rule("GL214"));
    assert_eq!(status, RuleStatus::Passed, "{findings:#?}");
    let fixture = changed(two(), |f| {
        repeat_gradients(f, 1);
        for update in 0..3 {
            body!(f, Step, 4, |h| h.det.updates[update].learning_rate.0 = 0.0);
        }
    });
    let (status, _, findings) = fixture.check(rule("GL214"));
    assert_eq!(status, RuleStatus::Passed, "{findings:#?}");
}

/// Step 6 gives what a worker gave for step 5.
fn repeat_gradients(f: &mut Fixture, worker: usize) {
    let mut earlier = None;
    body!(f, Step, 4, |h| earlier = Some(h.obs.shares[worker].gradients));
    body!(f, Step, 5, |h| h.obs.shares[worker].gradients = earlier.expect("step 5 has shares"));
}

/// Step 6 has the norm of step 5, over other examples.
fn repeat_norm(f: &mut Fixture) {
    let mut earlier = None;
    body!(f, Step, 4, |h| earlier = Some(h.det.credit.clone()));
    body!(f, Step, 5, |h| h.det.credit = earlier.expect("step 5 has a norm"));
}

/// One process executes every update from step 5 on.
fn one_worker_less(f: &mut Fixture) {
    for n in 4..8 {
        body!(f, Step, n, |h| {
            h.obs.bytes_sent = 0;
            h.obs.shares.clear();
        });
    }
}

/// The stream of the last checkpoint stands at its beginning.
fn lose_stream(f: &mut Fixture, name: &str) {
    let path = f.checkpoint("s00000008-a1").join(name);
    let text = std::fs::read_to_string(&path).expect("saved");
    let mut value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    value["blocks"] = serde_json::json!(0);
    let bytes = serde_json::to_vec(&value).expect("serialises");
    std::fs::write(&path, &bytes).expect("writable");
    let digest = crate::fixture::blake3_of(&bytes);
    let manifest = rewrite_manifest(f.folder.path(), "checkpoints/s00000008-a1", |manifest| {
        let shards = manifest.classes.iter_mut().flat_map(|captured| &mut captured.shards);
        for shard in shards.filter(|shard| shard.path == name) {
            (shard.digest, shard.num_bytes) = (digest, bytes.len() as u64);
        }
    });
    body!(f, CheckpointDurablyCommitted, 2, |h| h.obs.manifest = manifest);
}

/// Changes the manifest of the last checkpoint.
fn relabel(f: &mut Fixture, change: impl FnOnce(&mut schemas::state::CheckpointManifest)) {
    let manifest = rewrite_manifest(f.folder.path(), "checkpoints/s00000008-a1", change);
    body!(f, CheckpointDurablyCommitted, 2, |h| h.obs.manifest = manifest);
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL207", "another number of workers that nobody permits", || {
        let builder = two().contract(|contract| {
            permits(contract);
            contract.topology.permitted_rewrites.clear();
        });
        builder.crash_after_step(6).then_workers(4).build()
    }),
    error("GL207", "a number of workers that cannot share", || {
        rewritten(|f| body!(f, AttemptStart, 1, |h| h.obs.plan.num_workers = 3))
    }),
    error("GL207", "a change of workers under a bitwise claim", || {
        rewritten(|f| f.frozen.contract.resume.class = EquivalenceClass::Bitwise)
    }),
    error("GL208", "another number of workers without a segment", || {
        rewritten(|f| {
            let second = |e: &schemas::entry::Entry| {
                e.body.kind() == schemas::body::Kind::SegmentStart && e.header.segment == Some(SegmentId(2))
            };
            f.drop_where(second);
        })
    }),
    error("GL208", "a segment of other workers than ran", || {
        rewritten(|f| body!(f, SegmentStart, 1, |h| h.det.identity = Digest::sha256([1; 32])))
    }),
    error("GL208", "a segment without a parent", || {
        rewritten(|f| body!(f, SegmentStart, 1, |h| h.det.parent = None))
    }),
    error("GL208", "a segment for another reason", || {
        rewritten(|f| body!(f, SegmentStart, 1, |h| h.det.adjudication = Some("because".to_owned())))
    }),
    error("GL208", "a segment from another step", || {
        rewritten(|f| body!(f, SegmentStart, 1, |h| h.det.from_step = 0))
    }),
    error("GL208", "steps of other workers in the first segment", || {
        rewritten(|f| {
            f.change(schemas::body::Kind::Step, 6, |entry| entry.header.segment = Some(SegmentId(1)));
        })
    }),
    warning("GL208", "a segment whose claim is order-bounded", || rewritten(|_| {})),
    error("GL213", "an end in the segment before", || {
        rewritten(|f| {
            f.change(schemas::body::Kind::AttemptEnd, 0, |entry| entry.header.segment = Some(SegmentId(1)));
        })
    }),
    error("GL213", "an injection at a worker that is not there", || {
        changed(two().struck_by(super::faults::lost_worker()), |f| {
            f.change(schemas::body::Kind::FaultInjected, 0, |entry| entry.header.worker = Some(WorkerId(2)));
        })
    }),
    error("GL212", "bytes sent that are not those of the steps", || {
        changed(two(), |f| body!(f, AttemptEnd, 0, |h| h.obs.cost.bytes_sent += 1))
    }),
    warning("GL706", "more traffic of a worker than expected", || {
        changed(two(), |f| f.frozen.contract.expected.communication_bytes_per_step = 100)
    }),
    error("GL214", "a worker that is left out", || {
        changed(two(), |f| body!(f, Step, 2, |h| h.obs.shares.truncate(1)))
    }),
    error("GL214", "shares of one process", || {
        changed(two(), |f| body!(f, AttemptStart, 0, |h| h.obs.plan.num_workers = 1))
    }),
    error("GL214", "workers out of order", || {
        changed(two(), |f| body!(f, Step, 2, |h| h.obs.shares.swap(0, 1)))
    }),
    error("GL214", "a microbatch that two workers executed", || {
        changed(two(), |f| body!(f, Step, 2, |h| h.obs.shares[1].first_microbatch -= 1))
    }),
    error("GL214", "a microbatch that nobody executed", || {
        changed(two(), |f| body!(f, Step, 2, |h| h.obs.shares[1].num_microbatches -= 1))
    }),
    error("GL214", "bytes that do not add up", || {
        changed(two(), |f| body!(f, Step, 2, |h| h.obs.bytes_sent += 1))
    }),
    error("GL214", "bytes of the process that records", || {
        changed(two(), |f| {
            body!(f, Step, 2, |h| {
                h.obs.shares[0].bytes_sent = 9;
                h.obs.bytes_sent += 9;
            });
        })
    }),
    error("GL214", "gradients that were not sent", || {
        changed(two(), |f| {
            body!(f, Step, 2, |h| {
                h.obs.shares[1].bytes_sent = 100;
                h.obs.bytes_sent = 100;
            });
        })
    }),
    error("GL214", "the gradients of an earlier update", || changed(two(), |f| repeat_gradients(f, 1))),
    error("GL214", "the gradient of an earlier update of one process", || {
        changed(RunBuilder::new(), repeat_norm)
    }),
    error("GL214", "fewer workers than planned", || changed(two(), one_worker_less)),
    error("GL214", "several workers without a collective", || {
        changed(two(), |f| f.frozen.contract.topology.collective = None)
    }),
    error("GL215", "a replica that parted", || {
        changed(two(), |f| body!(f, Step, 5, |h| h.obs.replicas[1].digest = Digest::blake3([1; 32])))
    }),
    error("GL215", "replicas that nobody looked at", || {
        changed(two(), |f| body!(f, Step, 5, |h| h.obs.replicas.clear()))
    }),
    error("GL215", "digests that are not due", || {
        changed(two(), |f| {
            let mut replicas = Vec::new();
            body!(f, Step, 5, |h| replicas.clone_from(&h.obs.replicas));
            body!(f, Step, 4, |h| h.obs.replicas = replicas);
        })
    }),
    error("GL215", "replicas in another order", || {
        changed(two(), |f| body!(f, Step, 5, |h| h.obs.replicas.swap(0, 1)))
    }),
    error("GL215", "replicas that are not what was saved", || {
        changed(two(), |f| {
            body!(f, Step, 7, |h| {
                for replica in &mut h.obs.replicas {
                    replica.digest = Digest::blake3([1; 32]);
                }
            });
        })
    }),
    error("GL215", "a checkpoint that is not what the replicas were", || {
        changed(two(), |f| super::anomalies::rewrite(f, 2, StateClass::Optimizer, |_, bits| bits ^ 1))
    }),
    error("GL604", "the stream of one worker for both", || {
        changed(streaming(), |f| {
            relabel(f, |manifest| {
                let second = |of: &schemas::state::CapturedClass| of.worker == Some(WorkerId(1));
                manifest.classes.retain(|captured| !second(captured));
            });
        })
    }),
    error("GL604", "streams under each other's numbers", || {
        changed(streaming(), |f| {
            relabel(f, |manifest| {
                for captured in manifest.classes.iter_mut().filter(|of| of.class == StateClass::RngCpu) {
                    captured.worker = captured.worker.map(|worker| WorkerId(1 - worker.0));
                }
            });
        })
    }),
    error("GL606", "a digest over the stream of one worker", || {
        changed(streaming(), |f| {
            relabel(f, |manifest| {
                let second = |of: &schemas::state::CapturedClass| of.worker == Some(WorkerId(1));
                manifest.classes.retain(|captured| !second(captured));
            });
        })
    }),
    error("GL607", "another number of workers in the saved topology", || {
        changed(two(), |f| body!(f, AttemptStart, 0, |h| h.obs.plan.num_workers = 4))
    }),
    error("GL633", "a stream that began again", || {
        changed(dropout_stream(), |f| lose_stream(f, "rng_cpu.json"))
    }),
    error("GL633", "the stream of a worker that began again", || {
        changed(streaming(), |f| lose_stream(f, "rng_cpu.1.json"))
    }),
    error("GL633", "streams of another seed", || {
        changed(streaming(), |f| f.frozen.contract.seeds.dropout.0 += 1)
    }),
];
