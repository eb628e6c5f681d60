//! The test of a statistical resume claim: present where it is claimed, and one
//! that something can fail.
//!
//! Whether it can tell a right resume from a wrong one is not known before the
//! run: that is what the cold control of each probe has to show.

use std::collections::BTreeSet;

use schemas::contract::{
    Architecture, Contract, EquivalenceClass, EquivalenceTest, MidAccumulation, VariedDraws,
};

use super::problem::Problems;

/// Fewest seeds: with two, the interval's width is a guess from one degree of
/// freedom (a quantile of 6.3 at 0.05, against 2.9 with three).
const MIN_SEEDS: usize = 3;
/// Most seeds: `probe.result` holds a pair for each in one entry.
const MAX_SEEDS: usize = 64;
/// Largest level: above it the interval that has to lie within the margin is
/// narrower than 80 %, and noise alone meets it often.
const MAX_ALPHA: f64 = 0.1;
/// Smallest level: below it the quantile is more about the tails of a
/// distribution that nobody checked than about the runs.
const MIN_ALPHA: f64 = 1e-6;
/// Margin of a nat or a bit that no resume misses by accident: a model that
/// guesses among 256 bytes is 8 bits away from one that knows.
const VACUOUS_MARGIN: f64 = 1.0;
/// Fewest updates, as of every probe: the second is the first that starts from
/// an update with restored state.
const MIN_STEPS: u64 = 2;
/// Most updates of one continuation.
const MAX_STEPS: u64 = 1_000;

pub(super) fn check(contract: &Contract, problems: &mut Problems) {
    match (contract.resume.class, &contract.resume.test) {
        (EquivalenceClass::Statistical, Some(test)) => check_test(contract, test, problems),
        (EquivalenceClass::Statistical, None) => problems.add(
            "/resume/class",
            "is \"statistical\", and /resume/test is missing",
            "name the test in advance: metric, seeds, num_steps, varies, margin, alpha",
        ),
        (_, Some(_)) => problems.add(
            "/resume/test",
            format!("is given, and the class is {:?}", contract.resume.class),
            "leave it out; a stronger class is not judged by a test",
        ),
        (_, None) => {}
    }
}

fn check_test(contract: &Contract, test: &EquivalenceTest, problems: &mut Problems) {
    // A continuation draws whole updates by its seed; a part of one that was
    // drawn by the contract's would be neither.
    problems.require(
        contract.checkpoints.mid_accumulation == MidAccumulation::RoundToBoundary,
        "/checkpoints/mid_accumulation",
        "is \"save_gradients\", and /resume/class is \"statistical\"",
        "say \"round_to_boundary\": continuations by other seeds start at an update's boundary",
    );
    problems.require(
        (MIN_ALPHA..=MAX_ALPHA).contains(&test.alpha),
        "/resume/test/alpha",
        format!("is {:?}; expected {MIN_ALPHA:?} to {MAX_ALPHA:?}", test.alpha),
        "0.05 is usual: a wrong resume passes in at most one of twenty cases",
    );
    problems.require(
        test.margin > 0.0 && test.margin < VACUOUS_MARGIN,
        "/resume/test/margin",
        format!(
            "is {:?}; expected above 0 and below {VACUOUS_MARGIN:?}: a margin that nothing exceeds is vacuous",
            test.margin
        ),
        "freeze less than what a start with the weights alone costs after num_steps updates; a probe whose cold \
         control is not beyond the margin shows nothing",
    );
    problems.require(
        (MIN_STEPS..=MAX_STEPS).contains(&test.num_steps),
        "/resume/test/num_steps",
        format!("is {}; expected {MIN_STEPS} to {MAX_STEPS}", test.num_steps),
        "enough for a lost state class to show in the metric, such as 20",
    );
    let different: BTreeSet<u64> = test.seeds.iter().map(|seed| seed.0).collect();
    problems.require(
        (MIN_SEEDS..=MAX_SEEDS).contains(&test.seeds.len()),
        "/resume/test/seeds",
        format!("has {} seeds; expected {MIN_SEEDS} to {MAX_SEEDS}", test.seeds.len()),
        "each seed is one pair of continuations; 8 are usual",
    );
    problems.require(
        different.len() == test.seeds.len(),
        "/resume/test/seeds",
        "names a seed twice",
        "a pair that is counted twice makes the interval look narrower than it is",
    );
    check_varies(contract, test, problems);
}

/// Something has to vary, or every seed gives the same pair.
fn check_varies(contract: &Contract, test: &EquivalenceTest, problems: &mut Problems) {
    problems.require(
        test.varies.is_sorted_by(|left, right| left < right),
        "/resume/test/varies",
        format!("is {:?}; expected each once, in order", test.varies),
        "write [\"data_order\"], [\"dropout\"] or [\"data_order\", \"dropout\"]",
    );
    let Architecture::LlamaDecoder(decoder) = &contract.architecture;
    let has_effect = |varied: &VariedDraws| match varied {
        VariedDraws::DataOrder => true,
        VariedDraws::Dropout => decoder.dropout > 0.0,
    };
    problems.require(
        test.varies.iter().any(has_effect),
        "/resume/test/varies",
        format!("is {:?}: every seed would give the same pair", test.varies),
        "name data_order, or dropout where /architecture/dropout is above 0",
    );
}
