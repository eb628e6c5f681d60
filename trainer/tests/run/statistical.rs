//! Probes of the class `statistical`: repeated continuations, the test over
//! them, and what it must not pass.
#![allow(clippy::float_cmp, reason = "two continuations are equal in every bit or they are not")]

use anyhow::{Context, Result};
use schemas::contract::{
    Contract, EquivalenceClass, EquivalenceMetric, EquivalenceTest, ResumeEquivalence, VariedDraws,
};
use schemas::number::DecimalU64;
use serde_json::Value;
use trainer::export::NamedTensor;

use crate::folder::RunFolder;
use crate::probes::{checkpoint, leftovers, probe, windows, with_other_state};
use crate::stateful::stateful;

/// In nats a token.
const MARGIN: f64 = 1e-3;

fn test() -> EquivalenceTest {
    EquivalenceTest {
        alpha: 0.05,
        margin: MARGIN,
        metric: EquivalenceMetric::TrainingLoss,
        num_steps: 4,
        seeds: [3, 5, 8, 13, 21].map(DecimalU64).to_vec(),
        varies: vec![VariedDraws::DataOrder, VariedDraws::Dropout],
    }
}

fn claim(contract: &mut Contract, test: EquivalenceTest) {
    contract.resume =
        ResumeEquivalence { class: EquivalenceClass::Statistical, test: Some(test), tolerance: None };
}

fn statistical(contract: &mut Contract) {
    windows(contract);
    claim(contract, test());
}

fn trained(contract: impl FnOnce(&mut Contract)) -> Result<RunFolder> {
    let folder = RunFolder::new(contract)?;
    folder.train()?.expect(0);
    Ok(folder)
}

fn samples(probe: &Value) -> Vec<(f64, f64)> {
    let samples = probe["result"]["samples"].as_array().into_iter().flatten();
    let value = |pair: &Value, side: &str| pair[side]["value"].as_f64().unwrap_or(f64::NAN);
    samples.map(|pair| (value(pair, "reference"), value(pair, "resumed"))).collect()
}

#[test]
fn a_right_resume_is_equivalent_over_every_seed_and_a_cold_start_is_not() -> Result<()> {
    let folder = trained(statistical)?;
    let report = probe(&folder, 12, &["--controls"], 0)?;
    assert_eq!((&report["class"], &report["num_steps"]), (&"statistical".into(), &4.into()));
    assert!(report["qualified"].is_u64(), "{report}");
    assert_eq!(folder.bodies("checkpoint.resume_qualified")?[0]["det"]["class"], "statistical");
    let probes = report["probes"].as_array().context("probes")?;
    let restored = &probes[0];
    let pairs = samples(restored);
    assert_eq!(pairs.len(), 5);
    // Every seed is a continuation of its own, and each pair is one.
    for (place, (reference, resumed)) in pairs.iter().enumerate() {
        assert_eq!(reference.to_bits(), resumed.to_bits(), "restoring is exact here");
        assert!(pairs[..place].iter().all(|(other, _)| other != reference), "{pairs:?}");
    }
    assert_eq!(restored["equivalence"]["is_shown"], true);
    let cold = &probes[1];
    assert_eq!(cold["equivalence"]["is_shown"], false, "{cold}");
    let mean = cold["equivalence"]["mean"].as_f64().context("a number")?;
    assert!(mean.abs() > MARGIN, "{mean}");
    let by_class = |class: &str| probes.iter().find(|probe| probe["withheld"] == serde_json::json!([class]));
    let optimizer = by_class("optimizer").context("a control")?;
    assert_eq!(
        (&optimizer["verdict"], &optimizer["equivalence"]["is_shown"]),
        (&"differs".into(), &false.into())
    );
    let selection = by_class("selection_state").context("a control")?;
    assert_eq!(selection["inert"], "decides_nothing", "{selection}");
    assert_eq!(by_class("topology").context("a control")?["inert"], "equals_initial");
    // The raw numbers are in the entries.
    let results = folder.bodies("probe.result")?;
    assert_eq!(results[1]["det"]["samples"], cold["result"]["samples"]);
    assert!(leftovers(folder.path())?.is_empty());
    Ok(())
}

#[test]
fn the_report_says_what_was_shown_and_never_that_nothing_was_found() -> Result<()> {
    let folder = trained(statistical)?;
    let finished = folder.probe(&["--checkpoint", &checkpoint(12)])?.expect(0);
    assert!(
        finished.stdout.contains("equivalent within ±0.001 at alpha 0.05: all 5 differences are 0"),
        "{finished:?}"
    );
    assert!(
        finished.stdout.contains("equivalence within ±0.001 at alpha 0.05 not shown: mean difference"),
        "{finished:?}"
    );
    assert!(!finished.stdout.contains("no difference"), "{finished:?}");
    Ok(())
}

/// A bit of every first moment, a two-thousandth of it: too little for the
/// test, and not the same bits.
fn imprecise(tensor: &mut NamedTensor) {
    if tensor.name.ends_with(".exp_avg") {
        tensor.bytes.chunks_exact_mut(4).for_each(|word| word[1] ^= 0x10);
    }
}

/// What an optimizer forgets that is not restored.
fn zero(tensor: &mut NamedTensor) {
    tensor.bytes.fill(0);
}

#[test]
fn what_differs_less_than_the_margin_is_equivalent_although_its_bits_are_others() -> Result<()> {
    let honest = trained(statistical)?;
    let forged = with_other_state(&honest, statistical, 12, imprecise)?;
    let report = probe(&forged, 12, &[], 0)?;
    assert!(report["qualified"].is_u64(), "{report}");
    let restored = &report["probes"][0];
    assert_eq!(restored["first"]["what"], "optimizer", "the raw distances still say it");
    let pairs = samples(restored);
    assert!(pairs.iter().any(|(reference, resumed)| reference != resumed), "{pairs:?}");
    let (lower, upper) = (&restored["equivalence"]["lower"], &restored["equivalence"]["upper"]);
    assert!(lower.as_f64() < upper.as_f64(), "an interval, and no point: {restored}");
    Ok(())
}

#[test]
fn a_resume_without_its_optimizer_state_is_not_equivalent() -> Result<()> {
    let honest = trained(statistical)?;
    let forged = with_other_state(&honest, statistical, 12, zero)?;
    let report = probe(&forged, 12, &[], 1)?;
    assert_eq!(report["qualified"], Value::Null);
    assert!(forged.bodies("checkpoint.resume_qualified")?.is_empty());
    let restored = &report["probes"][0];
    assert_eq!(
        (&restored["verdict"], &restored["equivalence"]["is_shown"]),
        (&"differs".into(), &false.into())
    );
    let reason = report["reason"].as_str().context("a reason")?;
    assert!(reason.contains("was not shown"), "{reason}");
    Ok(())
}

#[test]
fn a_margin_that_a_cold_start_does_not_exceed_establishes_nothing() -> Result<()> {
    let folder = trained(|contract| {
        windows(contract);
        claim(contract, EquivalenceTest { margin: 0.999, ..test() });
    })?;
    let report = probe(&folder, 12, &[], 1)?;
    assert_eq!(report["probes"][0]["verdict"], "matches");
    assert_eq!(report["qualified"], Value::Null);
    let reason = report["reason"].as_str().context("a reason")?;
    assert!(reason.contains("could not tell a wrong resume"), "{reason}");
    Ok(())
}

/// Components that hold state keep it where the seed changes.
#[test]
fn state_that_is_drawn_from_goes_on_by_each_seed_and_an_evaluation_can_be_the_metric() -> Result<()> {
    let folder = trained(|contract| {
        stateful(contract);
        contract.schedule.clone_from(&crate::common::contract(&crate::common::decoder(), 2, 2).schedule);
        contract.state_classes.retain(|declared| declared.class != schemas::state::StateClass::Scheduler);
        let declared = crate::common::contract(&crate::common::decoder(), 2, 2).state_classes;
        let scheduler =
            declared.into_iter().find(|known| known.class == schemas::state::StateClass::Scheduler);
        contract.state_classes.insert(2, scheduler.expect("declared"));
        claim(contract, EquivalenceTest { metric: EquivalenceMetric::Evaluation, num_steps: 3, ..test() });
    })?;
    // The metric is of the trained weights, so that lost averages do not show in
    // it; that control says nothing for itself, and the call does not end well.
    let report = probe(&folder, 20, &["--controls"], 1)?;
    assert!(report["qualified"].is_u64(), "{report}");
    let probes = report["probes"].as_array().context("probes")?;
    let of = |class: &str| probes.iter().find(|probe| probe["withheld"] == serde_json::json!([class]));
    let averages = of("averages").context("a control")?;
    assert_eq!((&averages["verdict"], &averages["inert"]), (&"matches".into(), &Value::Null));
    let restored = samples(&probes[0]);
    assert!(restored.iter().all(|(reference, resumed)| reference == resumed), "{restored:?}");
    // Step 23 is not one at which the stream is due.
    assert!(restored.iter().all(|(reference, _)| *reference > 0.0 && *reference < 9.0), "{restored:?}");
    for class in ["sampler", "rng_cpu"] {
        assert_eq!(of(class).context("a control")?["verdict"], "differs", "{class}");
    }
    Ok(())
}

#[test]
fn a_frozen_test_is_neither_changed_nor_left_out() -> Result<()> {
    let folder = trained(statistical)?;
    let entries = folder.entries()?;
    let finished = folder.probe(&["--checkpoint", &checkpoint(12), "--steps", "5"])?.expect(2);
    finished.says("a frozen test is not changed").says("hint: leave out `--steps`");
    assert_eq!(folder.entries()?, entries);
    let untested = trained(|contract| contract.resume.class = EquivalenceClass::Statistical)?;
    let finished = untested.probe(&["--checkpoint", "s00000004-a1"])?.expect(2);
    finished.says("/resume/test is missing");
    Ok(())
}
