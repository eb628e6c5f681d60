//! False runs for probes of the class `statistical`: `GL623`, and what `GL620`
//! and `GL622` make of its numbers.

use schemas::body::{Body, Continuation, SeedPair};
use schemas::contract::{
    Architecture, Contract, EquivalenceClass, EquivalenceMetric, EquivalenceTest, MidAccumulation,
    OrderPolicy, VariedDraws,
};
use schemas::digest::Digest;
use schemas::number::{DecimalU64, Float};
use schemas::report::{RuleStatus, Verdict};
use schemas::state::StateClass;

use super::attempts::body;
use super::probes::{NUM_STEPS, STEP, probed, probed_under};
use super::{Mutation, check_honest, error, rule, warning};
use crate::derive::continuation;
use crate::fixture::{Fixture, StoredRun};

/// Below the differences of controls, and above those of a right resume.
const MARGIN: f64 = 0.01;

/// A test by four seeds.
fn by_seeds(contract: &mut Contract) {
    contract.resume.class = EquivalenceClass::Statistical;
    contract.resume.test = Some(EquivalenceTest {
        alpha: 0.05,
        margin: MARGIN,
        metric: EquivalenceMetric::TrainingLoss,
        num_steps: NUM_STEPS,
        seeds: [5, 6, 7, 8].map(DecimalU64).to_vec(),
        varies: vec![VariedDraws::DataOrder, VariedDraws::Dropout],
    });
}

/// Gives every probe its pairs: near 0 apart where everything was restored, and
/// far apart in the controls that are not inert.
fn with_samples(fixture: &mut Fixture) {
    let contract = fixture.frozen.contract.clone();
    let test = contract.resume.test.clone().expect("a test");
    let table = fixture.frozen.train_examples.as_ref().expect("a table");
    let ids: Vec<Digest> = test
        .seeds
        .iter()
        .map(|seed| continuation::ids(&contract, &test, table, STEP, seed.0).expect("positions"))
        .collect();
    for entry in &mut fixture.entries {
        let Body::ProbeResult(halves) = &mut entry.body else { continue };
        let det = &mut halves.det;
        let is_lost = det.withheld.contains(&StateClass::DataCursor);
        let shift = if det.withheld.contains(&StateClass::Optimizer) { 0.5 } else { 0.0 };
        det.samples = (0u32..)
            .zip(test.seeds.iter().zip(&ids))
            .map(|(place, (seed, ids))| {
                let reference = 2.0 + f64::from(place);
                let noise = if det.withheld.is_empty() { 1e-4 * f64::from(place) } else { 0.0 };
                let drawn = if is_lost { Digest::sha256([3; 32]) } else { *ids };
                SeedPair {
                    reference: Continuation { ids: *ids, value: Float(reference) },
                    resumed: Continuation { ids: drawn, value: Float(reference + noise + shift) },
                    seed: *seed,
                }
            })
            .collect();
    }
}

/// Varies what draws nothing.
fn without_masks(contract: &mut Contract) {
    by_seeds(contract);
    let Architecture::LlamaDecoder(decoder) = &mut contract.architecture;
    decoder.dropout = 0.0;
    contract.resume.test.as_mut().expect("a test").varies = vec![VariedDraws::Dropout];
}

fn inside_of_windows(contract: &mut Contract) {
    by_seeds(contract);
    contract.checkpoints.mid_accumulation = MidAccumulation::SaveGradients;
}

/// Nothing answers the probe that withholds nothing.
fn stopped(fixture: &mut Fixture) {
    for entry in &mut fixture.entries {
        if let Body::ProbeResult(halves) = &mut entry.body
            && halves.det.withheld.is_empty()
        {
            halves.det.withheld = vec![StateClass::Optimizer];
        }
    }
}

/// Controls that are compared with nothing.
fn no_references(fixture: &mut Fixture) {
    for entry in &mut fixture.entries {
        if let Body::ProbeResult(halves) = &mut entry.body
            && !halves.det.withheld.is_empty()
        {
            halves.det.samples.iter_mut().for_each(|pair| pair.reference.value = Float(f64::NAN));
        }
    }
}

/// A run that was probed by a test and qualified, and then changed.
pub(super) fn tested(change: impl FnOnce(&mut Fixture)) -> Fixture {
    tested_under(by_seeds, change)
}

fn tested_under(
    contract: impl FnOnce(&mut Contract) + 'static,
    change: impl FnOnce(&mut Fixture),
) -> Fixture {
    probed_under(contract, |fixture| {
        with_samples(fixture);
        change(fixture);
    })
}

fn shuffled(contract: &mut Contract) {
    by_seeds(contract);
    contract.order = OrderPolicy::ShuffleBuffer { size: 5 };
}

pub(super) fn check_honest_runs() {
    let fixture = tested(|_| {});
    check_honest(&fixture, "with statistical probes");
    for code in ["GL620", "GL622", "GL623"] {
        assert_eq!(fixture.check(rule(code)).0, RuleStatus::Passed, "{code}");
    }
    // Of the buffer itself nothing is checked here: the run was not made with one.
    let fixture = tested_under(shuffled, |_| {});
    let (status, num_checked, findings) = fixture.check(rule("GL623"));
    assert_eq!((status, num_checked), (RuleStatus::Passed, 5), "{findings:#?}");
}

#[test]
fn an_audit_accepts_a_run_that_was_probed_by_a_test_and_not_one_whose_number_was_moved() {
    let report = StoredRun::new(tested(|_| {})).audit();
    assert_eq!(report.verdict, Verdict::Accepted, "{:#?}", report.findings);
    let moved = StoredRun::new(tested(moved_number)).audit();
    assert_eq!(moved.verdict, Verdict::Rejected, "{:#?}", moved.findings);
    for code in ["GL620", "GL622", "GL623"] {
        let mut findings = moved.findings.iter().filter(|finding| finding.code == code);
        assert!(findings.any(|finding| finding.actual.contains("equivalence not shown")), "{code}");
    }
}

/// Seeds give other orders, from the step on and not before.
#[test]
fn a_continuation_keeps_what_was_drawn_and_goes_by_its_seed() {
    for contract in [by_seeds, shuffled] {
        let fixture = tested_under(contract, |_| {});
        let contract = &fixture.frozen.contract;
        let test = contract.resume.test.clone().expect("a test");
        let table = fixture.frozen.train_examples.as_ref().expect("a table");
        let ids = |test: &EquivalenceTest, step, seed| continuation::ids(contract, test, table, step, seed);
        assert_ne!(ids(&test, STEP, 5), ids(&test, STEP, 6));
        let own = contract.seeds.data_order.0;
        let fixed = EquivalenceTest { varies: vec![VariedDraws::Dropout], ..test.clone() };
        assert_eq!(ids(&fixed, STEP, 5), ids(&fixed, STEP, 6));
        assert_eq!(ids(&fixed, STEP, 5), ids(&test, STEP, own));
        assert_eq!(ids(&test, u64::MAX, 5), None);
    }
}

fn moved_number(fixture: &mut Fixture) {
    body!(fixture, ProbeResult, 0, |h| h.det.samples[2].resumed.value = Float(4.2));
}

fn cold_control_within(fixture: &mut Fixture) {
    body!(fixture, ProbeResult, 1, |h| {
        for pair in &mut h.det.samples {
            pair.resumed.value = pair.reference.value;
        }
    });
}

fn vacuous(contract: &mut Contract) {
    by_seeds(contract);
    if let Some(test) = &mut contract.resume.test {
        test.margin = 9.0;
    }
}

fn two_seeds(contract: &mut Contract) {
    by_seeds(contract);
    if let Some(test) = &mut contract.resume.test {
        test.seeds.truncate(2);
    }
}

fn untested(contract: &mut Contract) {
    contract.resume.class = EquivalenceClass::Statistical;
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL623", "a seed that was left out", || {
        tested(|f| {
            body!(f, ProbeResult, 0, |h| {
                h.det.samples.remove(1);
            });
        })
    }),
    error("GL623", "a seed that counts twice", || {
        tested(|f| body!(f, ProbeResult, 0, |h| h.det.samples[1] = h.det.samples[0].clone()))
    }),
    error("GL623", "a seed that was not frozen", || {
        tested(|f| body!(f, ProbeResult, 0, |h| h.det.samples[0].seed = DecimalU64(99)))
    }),
    error("GL623", "no pair at all", || tested(|f| body!(f, ProbeResult, 1, |h| h.det.samples.clear()))),
    error("GL623", "one raw number that was moved", || tested(moved_number)),
    error("GL623", "an interval that is too wide to show anything", || {
        tested(|f| {
            body!(f, ProbeResult, 0, |h| {
                for (pair, noise) in h.det.samples.iter_mut().zip([0.02, -0.02, 0.02, -0.02]) {
                    pair.resumed.value = Float(pair.reference.value.0 + noise);
                }
            });
        })
    }),
    error("GL623", "a loss that is not a number", || {
        tested(|f| body!(f, ProbeResult, 0, |h| h.det.samples[0].resumed.value = Float(f64::NAN)))
    }),
    error("GL623", "a reference that is another one in a control", || {
        tested(|f| body!(f, ProbeResult, 2, |h| h.det.samples[0].reference.value = Float(2.000_001)))
    }),
    error("GL623", "a reference of other examples", || {
        tested(|f| body!(f, ProbeResult, 0, |h| h.det.samples[3].reference.ids = Digest::sha256([9; 32])))
    }),
    error("GL623", "a resumed side of other examples", || {
        tested(|f| body!(f, ProbeResult, 0, |h| h.det.samples[3].resumed.ids = Digest::sha256([9; 32])))
    }),
    error("GL623", "another number of updates than was frozen", || {
        tested(|f| body!(f, ProbeResult, 0, |h| h.det.num_steps = NUM_STEPS + 1))
    }),
    error("GL623", "continuations in another class", || {
        probed(|f| {
            let side = Continuation { ids: Digest::sha256([1; 32]), value: Float(2.0) };
            let pair = SeedPair { reference: side.clone(), resumed: side, seed: DecimalU64(1) };
            body!(f, ProbeResult, 0, |h| h.det.samples = vec![pair]);
        })
    }),
    error("GL623", "a margin that nothing exceeds", || tested_under(vacuous, |_| {})),
    error("GL623", "masks that vary where there are none", || tested_under(without_masks, |_| {})),
    error("GL623", "continuations from inside of windows", || tested_under(inside_of_windows, |_| {})),
    warning("GL623", "a probe that was stopped before its result", || tested(stopped)),
    error("GL622", "a cold control whose references are no numbers", || tested(no_references)),
    error("GL623", "two seeds", || tested_under(two_seeds, |_| {})),
    error("GL623", "a statistical claim without a test", || probed_under(untested, |_| {})),
    warning("GL623", "a cold control within the margin", || tested(cold_control_within)),
    error("GL620", "a probe that does not show equivalence", || tested(moved_number)),
    error("GL620", "a probe whose data went on elsewhere", || {
        tested(|f| body!(f, ProbeResult, 0, |h| h.det.samples[3].resumed.ids = Digest::sha256([9; 32])))
    }),
    error("GL622", "qualified although equivalence was not shown", || tested(moved_number)),
    error("GL622", "qualified although the test passes the cold control", || tested(cold_control_within)),
];

/// A list that is left out when it is empty has no other form.
#[test]
fn an_empty_list_of_pairs_is_not_another_form_of_none() {
    let fixture = probed(|_| {});
    let det = fixture.entries.iter().find_map(|entry| match &entry.body {
        Body::ProbeResult(halves) => Some(&halves.det),
        _ => None,
    });
    let mut value = serde_json::to_value(det.expect("a probe")).expect("JSON");
    assert!(value.get("samples").is_none());
    let read = |value: &serde_json::Value| {
        serde_json::from_value::<schemas::body::ProbeResultDet>(value.clone())
            .map_err(|error| error.to_string())
    };
    assert!(read(&value).is_ok());
    for empty in [serde_json::json!([]), serde_json::Value::Null] {
        value["samples"] = empty;
        assert!(read(&value).is_err(), "{value}");
    }
}
