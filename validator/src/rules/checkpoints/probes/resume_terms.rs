//! The claim of a resume is one that something could contradict.

use schemas::contract::{Contract, EquivalenceClass, Tolerance};
use schemas::report::Route;

use crate::frozen::Frozen;
use crate::rule::Check;
use crate::rules::common::{at_end, declare_rule};
use crate::rules::terms::Terms;

declare_rule!(
    /// `GL648`.
    ResumeTerms,
    {
        code: "GL648",
        name: "resume-terms",
        what: "The resume class claims no more than the determinism of the run; bounds are given exactly for the class \
               `operation_order_bounded`, at least one above 0 and all below 1, and a test exactly for the class `statistical`.",
        why: "A bound that nothing exceeds, and one that is given for a class which does not use it, promise what no probe could \
              find broken.",
        remedy: "Freeze a class with the bounds or the test that it is judged by.",
        reference: "docs/CONTRACT.md, \"ResumeEquivalence\"; docs/FORMAT.md, \"Resume probes\"",
        gate: Route::RejectResumeDrift,
    }
);

/// A difference that no resume of weights near 1 has by accident.
const VACUOUS: f64 = 1.0;

const fn rank(class: EquivalenceClass) -> u8 {
    match class {
        EquivalenceClass::Bitwise => 0,
        EquivalenceClass::OperationOrderBounded => 1,
        EquivalenceClass::Statistical => 2,
    }
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let contract = &frozen.contract;
    at_end(move |_, sink| {
        let mut terms = Terms::new(sink);
        class(contract, &mut terms);
        if let Some(bounds) = &contract.resume.tolerance {
            tolerance(bounds, &mut terms);
        }
        terms.outcome()
    })
}

fn class(contract: &Contract, terms: &mut Terms<'_>) {
    let (resume, determinism) = (&contract.resume, contract.numerics.determinism);
    let is_weaker = rank(resume.class) >= rank(determinism);
    let message = "a resumed run cannot be closer than two uninterrupted ones are";
    let (expected, actual) = (format!("{determinism:?}, or weaker"), format!("{:?}", resume.class));
    terms.require(is_weaker, "/resume/class", message, expected, actual);
    let is_bounded = resume.class == EquivalenceClass::OperationOrderBounded;
    let given = |given: bool| if given { "given" } else { "null" };
    let has_bounds = resume.tolerance.is_some();
    let message = "bounds do not belong to the class, or are missing";
    let fits = has_bounds == is_bounded;
    terms.require(fits, "/resume/tolerance", message, given(is_bounded), given(has_bounds));
    let is_tested = resume.class == EquivalenceClass::Statistical;
    let has_test = resume.test.is_some();
    let message = "a test does not belong to the class, or is missing";
    terms.require(has_test == is_tested, "/resume/test", message, given(is_tested), given(has_test));
}

fn tolerance(bounds: &Tolerance, terms: &mut Terms<'_>) {
    for (pointer, bound) in [
        ("/resume/tolerance/max_absolute", bounds.max_absolute),
        ("/resume/tolerance/max_relative", bounds.max_relative),
    ] {
        let message = "a bound that nothing exceeds, or that is none";
        terms.require((0.0..VACUOUS).contains(&bound), pointer, message, "0 to below 1", bound);
    }
    let is_apart = bounds.max_absolute > 0.0 || bounds.max_relative > 0.0;
    let message = "both bounds are 0, which is equality of bits";
    terms.require(is_apart, "/resume/tolerance", message, "one above 0, or the class bitwise", "0 and 0");
}
