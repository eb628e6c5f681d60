//! False runs for `GL3xx`.

use std::fs;

use schemas::body::{Body, Credit, Kind};
use schemas::data::{LicenseClass, Split};
use schemas::digest::Digest;

use super::attempts::body;
use super::{Mutation, changed, error};
use crate::fixture::{Fixture, RunBuilder, table_of};

fn data(fixture: &mut Fixture) -> &mut schemas::data::DataManifest {
    fixture.frozen.data.as_mut().expect("the fixture has a manifest")
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL304", "inputs digested by another function", || {
        changed(|f| {
            body!(f, Step, 2, |h| h.det.draws[0].inputs.algorithm = schemas::digest::Algorithm::Sha256);
        })
    }),
    error("GL301", "arithmetic that does not reconcile", || {
        changed(|f| f.frozen.contract.batch.microbatch_examples = 3)
    }),
    error("GL301", "another number of microbatches", || {
        changed(|f| {
            body!(
                f,
                Step,
                1,
                |h| if let Credit::Backpropagation { num_microbatches, .. } = &mut h.det.credit {
                    *num_microbatches = 1;
                }
            );
        })
    }),
    error("GL301", "another number of workers", || changed(|f| f.frozen.contract.topology.workers = 2)),
    error("GL302", "a skipped position", || {
        changed(|f| body!(f, Step, 3, |h| h.det.draws[0].ranges[0].first += 1))
    }),
    error("GL302", "a second draw", || {
        changed(|f| body!(f, Step, 3, |h| h.det.draws.push(h.det.draws[0].clone())))
    }),
    error("GL302", "a draw of another stream", || {
        changed(|f| body!(f, Step, 3, |h| h.det.draws[0].stream = "val".to_owned()))
    }),
    error("GL303", "examples in another order", || {
        changed(|f| body!(f, Step, 3, |h| h.det.draws[0].ids = Digest::blake3([1; 32])))
    }),
    error("GL303", "another seed", || changed(|f| f.frozen.contract.seeds.data_order.0 += 1)),
    error("GL304", "other bytes fed to a step", || {
        changed(|f| body!(f, Step, 5, |h| h.det.draws[0].inputs = Digest::blake3([1; 32])))
    }),
    error("GL304", "other bytes fed before a crash that were not executed again", || {
        let mut fixture = RunBuilder::new().crash_after_step(6).build();
        body!(fixture, Step, 1, |h| h.det.draws[0].inputs = Digest::blake3([1; 32]));
        fixture
    }),
    error("GL305", "another number of tokens", || {
        changed(|f| {
            body!(f, Step, 5, |h| if let Credit::Backpropagation { num_tokens, .. } = &mut h.det.credit {
                *num_tokens += 1;
            });
        })
    }),
    error("GL306", "an example that was trained on twice", || {
        changed(|f| body!(f, Step, 5, |h| h.det.draws[0].ranges[0].first -= 1))
    }),
    error("GL306", "a rewound cursor after a crash", || {
        let mut fixture = RunBuilder::new().crash_after_step(6).build();
        let ranges = fixture.entries.iter().find_map(|entry| match &entry.body {
            Body::Step(h) if entry.header.step == Some(4) => Some(h.det.draws[0].ranges.clone()),
            _ => None,
        });
        // The seventh step is step 5 of the second attempt.
        let ranges = ranges.expect("step 4 drew");
        body!(fixture, Step, 6, |h| h.det.draws[0].ranges = ranges);
        fixture
    }),
    error("GL307", "a changed data shard", || {
        changed(|f| fs::write(f.folder.path().join("data/train-1.txt"), "another text").expect("writable"))
    }),
    error("GL307", "a table of other windows", || {
        changed(|f| {
            let table = f.frozen.train_examples.as_ref().expect("a table");
            let mut records: Vec<_> = table.iter().collect();
            records[1].offset += 1;
            f.frozen.train_examples = Ok(table_of(&records));
        })
    }),
    error("GL307", "a table that lacks its last example", || {
        changed(|f| {
            let table = f.frozen.val_examples.as_ref().expect("a table");
            let mut records: Vec<_> = table.iter().collect();
            records.pop();
            f.frozen.val_examples = Ok(table_of(&records));
        })
    }),
    error("GL308", "a qualification shard in the manifest", || {
        changed(|f| data(f).shards[1].split = Split::Qualification)
    }),
    error("GL308", "a license class that is not admitted", || {
        changed(|f| data(f).shards[0].license_class = LicenseClass::Red)
    }),
    error("GL308", "the sealed text among the shards", || {
        changed(|f| f.frozen.contract.qualification.plaintext = data(f).shards[0].digest)
    }),
    error("GL308", "val text in the train split", || {
        changed(|f| data(f).shards[0].digest = data(f).shards[1].digest)
    }),
    error("GL308", "a lease that ended before", || {
        changed(|f| f.frozen.contract.data.expires = Some("2026-01-01".to_owned()))
    }),
    error("GL308", "a last day that is none", || {
        changed(|f| f.frozen.contract.data.expires = Some("2026-02-30".to_owned()))
    }),
];

#[test]
fn without_the_data_inputs_and_tables_are_not_evaluated() {
    let fixture = changed(|f| fs::remove_file(f.folder.path().join("data/train-0.txt")).expect("there"));
    for code in ["GL304", "GL307"] {
        let (status, _, findings) = fixture.check(super::rule(code));
        assert_eq!(status, schemas::report::RuleStatus::NotEvaluated, "{code}: {findings:?}");
    }
    let (status, _, _) = fixture.check(super::rule("GL306"));
    assert_eq!(status, schemas::report::RuleStatus::Passed);
}

#[test]
fn a_false_input_is_placed_at_its_entry() {
    let mut fixture = changed(|_| {});
    body!(fixture, Step, 5, |h| h.det.draws[0].inputs = Digest::blake3([1; 32]));
    let entry =
        fixture.entries.iter().filter(|e| e.body.kind() == Kind::Step).nth(5).expect("a sixth step").index;
    let (_, _, findings) = fixture.check(super::rule("GL304"));
    assert_eq!(findings.iter().map(|finding| finding.entry).collect::<Vec<_>>(), [Some(entry)]);
}
