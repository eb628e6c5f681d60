//! Preregistrations that are refused, each with its place.

use ledger::freeze::{PreregistrationError, check_preregistration};
use serde_json::{Value, json};

use super::{preregistration, request};
use crate::fixture::Fixture;

/// Places of what is refused, after changes of a preregistration that is not.
#[track_caller]
fn check(changes: &[(&str, Value)], expected: &[(&str, &str)]) {
    let fixture = Fixture::new();
    let mut document = preregistration(&fixture);
    for (pointer, value) in changes {
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        match document.pointer_mut(parent).expect("the parent exists") {
            Value::Array(list) if name == "-" => list.push(value.clone()),
            Value::Array(list) => list[name.parse::<usize>().expect("an index")] = value.clone(),
            parent => parent[name] = value.clone(),
        }
    }
    let problems = match check_preregistration(&request(&fixture, &document)) {
        Err(PreregistrationError::Refused { problems, .. }) => problems,
        Err(other) => panic!("refused for another reason: {other}"),
        Ok(_) => Vec::new(),
    };
    let places: Vec<&str> = problems.iter().map(|problem| problem.pointer.as_str()).collect();
    assert_eq!(places, expected.iter().map(|(place, _)| *place).collect::<Vec<_>>(), "{problems:#?}");
    for (problem, (_, words)) in problems.iter().zip(expected) {
        assert!(problem.message.contains(words), "{problem} lacks {words:?}");
        assert!(!problem.hint.is_empty() && problem.position.is_some(), "{problem:?}");
    }
}

#[test]
fn nothing_is_wrong_with_the_fixture() {
    check(&[], &[]);
}

#[test]
fn what_the_format_does_not_have() {
    check(&[("/arms/0/throughput", json!(1))], &[("/arms/0/throughput", "unknown member")]);
    check(&[("/format", json!("preregistration/2"))], &[("/format", "expected \"governed-ledger")]);
    check(
        &[("/claims/0/dimension", json!("tokens_per_second"))],
        &[("/claims/0/dimension", "unknown variant")],
    );
    check(&[("/seeds/0", json!(1))], &[("/seeds/0", "expected a string")]);
    check(&[("/ruleset/edition", json!("2027.1"))], &[("/ruleset/edition", "expected \"2026.1\"")]);
    let extension = json!({
        "critical": true, "name": "org.example.x", "schema_digest": format!("sha256:{}", "00".repeat(32)), "value": 1
    });
    check(&[("/extensions", json!([extension]))], &[("/extensions/0", "critical")]);
}

#[test]
fn the_frame() {
    check(
        &[("/question", json!(" ")), ("/name", json!("")), ("/nonclaims", json!([]))],
        &[("/name", "is empty"), ("/question", "is empty"), ("/nonclaims", "at least one")],
    );
    check(
        &[("/authority/expires", json!("2026-01-01")), ("/authority/scope", json!(""))],
        &[("/authority/scope", "is empty"), ("/authority/expires", "ended on 2026-01-01")],
    );
    let fixture = Fixture::new();
    let owner = fixture.contract["keys"]["owner"].clone();
    check(
        &[("/keys/owner", owner.clone()), ("/keys/validator", owner)],
        &[("/keys/validator/public", "is the key of owner too")],
    );
    check(&[("/keys/owner/public", json!("00"))], &[("/keys/owner/public", "64 lower-case hex digits")]);
    check(&[("/keys", Value::Null)], &[("/keys", "no keys are at hand")]);
}

#[test]
fn seeds_and_decision() {
    check(&[("/seeds", json!(["1", "2"]))], &[("/seeds", "has 2; expected at least 3")]);
    check(&[("/seeds", json!(["1", "2", "1"]))], &[("/seeds/2", "1 is an earlier seed")]);
    check(&[("/claims/0/min_seeds", json!(4))], &[("/claims/0/min_seeds", "is 4; expected 3 to 3")]);
    check(&[("/claims/0/min_seeds", json!(2))], &[("/claims/0/min_seeds", "is 2")]);
    check(&[("/decision/confidence", json!(0.5))], &[("/decision/confidence", "is 0.5")]);
    check(&[("/decision/confidence", json!(1))], &[("/decision/confidence", "below 1.0")]);
}

#[test]
fn arms_that_cannot_be_told_apart() {
    check(
        &[("/reference_arm", json!("none"))],
        &[("/reference_arm", "is no arm"), ("/arms/0/declared", "is empty")],
    );
    check(
        &[("/arms/1/name", json!("plain"))],
        &[
            ("/arms/1/name", "is the name of an earlier arm"),
            ("/arms/1/declared", "the reference arm differs from itself"),
            ("/claims/0/arms/0/arm", "\"dry\" is no arm"),
            ("/claims/1/arms/0/arm", "\"dry\" is no arm"),
        ],
    );
    check(&[("/arms/1/role", json!("baseline"))], &[("/arms", "has not both a baseline and another role")]);
    check(
        &[("/arms/1/name", json!("a/b")), ("/claims", json!([]))],
        &[("/arms/1/name", "is no name"), ("/claims", "is empty")],
    );
    check(
        &[("/arms/1/declared", json!([])), ("/axes", json!([])), ("/claims/1/scope", json!([]))],
        &[("/arms/1/declared", "is empty: the arm would be the reference arm again")],
    );
    check(
        &[("/arms/0/declared", json!([{"pointer": "/batch", "why": "w"}]))],
        &[("/arms/0/declared", "the reference arm differs from itself")],
    );
    check(&[("/arms/1/declared/0/why", json!(""))], &[("/arms/1/declared/0/why", "is empty")]);
    check(
        &[("/arms/1/declared/-", json!({"pointer": "/seeds", "why": "w"}))],
        &[("/arms/1/declared/2/pointer", "/seeds may not differ")],
    );
}

#[test]
fn one_label_for_two_cards() {
    let other = format!("blake3:{}", "11".repeat(32));
    check(
        &[("/arms/1/card", json!(other)), ("/arms/1/label", json!("AdamW"))],
        &[("/arms/1/card", "is another card than that of \"plain\", under one label")],
    );
    check(&[("/arms/1/card", Value::Null)], &[("/arms/1/card", "no tuning chooses it")]);
    check(
        &[("/arms/1/tuning/pointers/-", json!("/update/card#/groups/0/weight_decay"))],
        &[("/arms/1/card", "names a card that the tuning may change")],
    );
    let sha = format!("sha256:{}", "11".repeat(32));
    check(&[("/arms/1/card", json!(sha))], &[("/arms/1/card", "named by BLAKE3")]);
    check(
        &[("/arms/1/fallback_groups", json!(["vectors", "vectors"]))],
        &[("/arms/1/fallback_groups/1", "is named before")],
    );
}

#[test]
fn a_baseline_that_is_tuned_less() {
    check(
        &[("/arms/1/tuning/num_trials", json!(9))],
        &[("/arms/1/tuning/unequal_because", "the arm gets 9 trials of 640 tokens, \"plain\" gets 1 of 640")],
    );
    check(&[("/arms/1/tuning/price_tokens", json!(9))], &[("/arms/1/tuning/unequal_because", "9 tokens")]);
    check(
        &[
            ("/arms/1/tuning/num_trials", json!(9)),
            ("/arms/1/tuning/unequal_because", json!("two more values")),
        ],
        &[],
    );
    check(
        &[("/arms/1/tuning/unequal_because", json!("why not"))],
        &[("/arms/1/tuning/unequal_because", "the tuning is equal")],
    );
    check(
        &[("/arms/0/tuning/unequal_because", json!("why not"))],
        &[("/arms/0/tuning/unequal_because", "the reference arm")],
    );
    check(
        &[("/arms/0/tuning/price_tokens", json!(0))],
        &[
            ("/arms/0/tuning/price_tokens", "the price of 1 trials is missing"),
            ("/arms/1/tuning/unequal_because", "is null"),
        ],
    );
    let untuned = json!({
        "num_trials": 0, "pointers": ["/batch"], "price_tokens": 5, "search_space": "x", "unequal_because": "w"
    });
    check(
        &[("/arms/1/tuning", untuned)],
        &[
            ("/arms/1/tuning/price_tokens", "is given for 0 trials"),
            ("/arms/1/tuning/search_space", "is given for 0 trials"),
            ("/arms/1/tuning/pointers", "is given for 0 trials"),
            ("/claims/1/arms/0/arm", "\"dry\" is not tuned"),
        ],
    );
}

#[test]
fn a_ladder_with_a_gap() {
    check(&[("/arms/1/rescue/1/level", json!(3))], &[("/arms/1/rescue/1/level", "is 3; expected 2")]);
    check(
        &[("/arms/1/rescue/0/max_runs", json!(0)), ("/arms/1/rescue/0/pointers", json!([]))],
        &[("/arms/1/rescue/0/max_runs", "is 0"), ("/arms/1/rescue/0/pointers", "is empty")],
    );
}

#[test]
fn axes_along_which_nothing_varies() {
    check(&[("/axes/0/points", json!([[8]]))], &[("/axes/0/points", "has 1; expected at least 2")]);
    check(&[("/axes/0/points/1", json!([8]))], &[("/axes/0/points/1", "is an earlier point")]);
    // Written another way; frozen it is the same number.
    check(&[("/axes/0/points/1", json!([8.0]))], &[("/axes/0/points/1", "is an earlier point")]);
    check(&[("/axes/0/points/1", json!([16, 2]))], &[("/axes/0/points/1", "has 2 values for 1 places")]);
    check(
        &[("/axes/0/pointers/0", json!("/batch/accumulation"))],
        &[
            ("/axes/0/pointers/0", "is no place of this axis"),
            ("/axes/0/pointers/0", "no arm may differ at /batch/accumulation"),
        ],
    );
    check(
        &[("/axes/0/pointers/0", json!("/architecture/dropout"))],
        &[("/axes/0/pointers/0", "/architecture/dropout is no place of this axis")],
    );
    check(&[("/claims/1/scope", json!(["depth"]))], &[("/claims/1/scope/0", "not among the axes")]);
}

#[test]
fn claims_that_nothing_could_decide() {
    check(&[("/claims/1/id", json!("better"))], &[("/claims/1/id", "name of an earlier claim")]);
    check(&[("/claims/0/arms/0/arm", json!("plain"))], &[("/claims/0/arms/0/against", "is the arm itself")]);
    check(&[("/claims/0/arms", json!([]))], &[("/claims/0/arms", "is empty")]);
    check(&[("/claims/0/margin", json!(-0.1))], &[("/claims/0/margin", "is -0.1; expected at least 0")]);
    check(&[("/claims/0/kind", json!("not_worse"))], &[("/claims/0/margin", "is 0; expected above 0")]);
    check(
        &[("/claims/1/dimension", json!("tokens_to_quality")), ("/claims/1/margin", json!(1))],
        &[("/claims/1/margin", "below 1")],
    );
    let costs = [
        ("better", "tokens_to_quality"),
        ("not_worse", "steps_to_quality"),
        ("negative", "steps_to_quality"),
    ];
    for (kind, dimension) in costs {
        let edits = [
            ("/claims/0/kind", json!(kind)),
            ("/claims/0/dimension", json!(dimension)),
            ("/claims/0/margin", json!(0.05)),
        ];
        check(&edits, &[("/claims/0/dimension", "is a cost")]);
    }
    // The same against the proposed arm, told from the other side.
    let turned = [
        ("/claims/0/arms/0", json!({"against": "dry", "arm": "plain"})),
        ("/claims/1/kind", json!("better")),
        ("/arms/1/positive_control", Value::Null),
    ];
    check(&turned, &[("/claims/0/arms/0/against", "\"dry\" has no positive control")]);
    check(
        &[("/arms/1/positive_control", Value::Null)],
        &[("/claims/1/arms/0/arm", "\"dry\" has no positive control")],
    );
}

#[test]
fn efficiency_without_its_costs() {
    let efficiency = |dimension: &str| {
        json!({
            "arms": [{"against": "plain", "arm": "dry"}], "dimension": dimension, "id": "cheaper",
            "kind": "efficiency", "margin": 0.05, "min_seeds": 3, "scope": []
        })
    };
    check(&[("/claims/-", efficiency("tokens_to_quality"))], &[]);
    check(
        &[("/claims/-", efficiency("tokens_to_quality")), ("/costs", json!(["steps", "tokens", "energy"]))],
        &[("/costs", "lacks bytes, device_seconds, evaluations, examples, wall_time")],
    );
    check(&[("/claims/-", efficiency("quality"))], &[("/claims/2/dimension", "which is no cost")]);
    check(&[("/claims/-", efficiency("steps_to_quality"))], &[("/claims/2/dimension", "fewer steps alone")]);
    let mut other = efficiency("tokens_to_quality");
    other["id"] = json!("fewer-tokens");
    check(&[("/claims/-", efficiency("steps_to_quality")), ("/claims/-", other)], &[]);
    check(
        &[("/costs", json!(["steps", "steps"]))],
        &[("/costs/1", "is named before"), ("/costs", "lacks tokens")],
    );
}
