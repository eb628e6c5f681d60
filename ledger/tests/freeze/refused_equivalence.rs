//! Statistical resume claims that promise nothing.

use serde_json::{Value, json};

use crate::fixture::{Fixture, lines};
use crate::refused_content::check_pointers;

fn test() -> Value {
    json!({
        "alpha": 0.05, "margin": 0.001, "metric": "training_loss", "num_steps": 8, "seeds": ["1", "2", "3"],
        "varies": ["data_order"],
    })
}

/// A statistical claim by [`test`] with one field changed.
#[track_caller]
fn check(field: &str, value: Value, expected: &[&str]) {
    let mut changed = test();
    changed[field] = value;
    let resume = json!({"class": "statistical", "test": changed, "tolerance": null});
    if expected.is_empty() {
        let mut fixture = Fixture::new();
        let checked = fixture.set("/resume", resume).check();
        assert!(checked.is_ok(), "{:?}", lines(checked));
    } else {
        check_pointers(&[("/resume", resume)], expected);
    }
}

#[test]
fn a_test_that_is_named_in_advance_is_frozen_and_a_class_without_one_is_not() {
    check("num_steps", json!(8), &[]);
    check("varies", json!(["data_order", "dropout"]), &[]);
    check("metric", json!("evaluation"), &[]);
    let without = json!({"class": "statistical", "tolerance": null});
    check_pointers(&[("/resume", without)], &["/resume/class"]);
    let tolerance = json!({"max_absolute": 1e-6, "max_relative": 1e-6});
    let both = json!({"class": "statistical", "test": test(), "tolerance": tolerance});
    check_pointers(&[("/resume", both)], &["/resume/tolerance"]);
    let stronger = json!({"class": "bitwise", "test": test(), "tolerance": null});
    check_pointers(&[("/resume", stronger)], &["/resume/test"]);
}

#[test]
fn tests_that_cannot_fail_or_cannot_pass_are_refused() {
    for alpha in [json!(0), json!(-0.05), json!(1e-7), json!(0.1000001), json!(1)] {
        check("alpha", alpha, &["/resume/test/alpha"]);
    }
    check("alpha", json!(0.1), &[]);
    for margin in [json!(0), json!(-1e-3), json!(1), json!(1e300)] {
        check("margin", margin, &["/resume/test/margin"]);
    }
    for num_steps in [0, 1, 1_001] {
        check("num_steps", json!(num_steps), &["/resume/test/num_steps"]);
    }
    check("seeds", json!(["1", "2"]), &["/resume/test/seeds"]);
    check("seeds", json!([]), &["/resume/test/seeds"]);
    check("seeds", json!(["1", "2", "1"]), &["/resume/test/seeds"]);
    let many: Vec<String> = (0..65).map(|seed: u32| seed.to_string()).collect();
    check("seeds", json!(many), &["/resume/test/seeds"]);
    check("seeds", json!(many[..64]), &[]);
    check("varies", json!([]), &["/resume/test/varies"]);
    check("varies", json!(["dropout", "data_order"]), &["/resume/test/varies"]);
    check("varies", json!(["data_order", "data_order"]), &["/resume/test/varies"]);
}

#[test]
fn seeds_that_nothing_is_drawn_by_are_refused() {
    let mut fixture = Fixture::new();
    let mut only_dropout = test();
    only_dropout["varies"] = json!(["dropout"]);
    fixture.set("/architecture/dropout", json!(0.0));
    fixture.set("/resume", json!({"class": "statistical", "test": only_dropout, "tolerance": null}));
    let found = lines(fixture.check());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("/resume/test/varies: is [Dropout]: every seed would give the same pair"),
        "{found:?}"
    );
}
