use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn check_refused(text: &str, expected: &str) {
    let error = parse(text.as_bytes(), ParseOptions::default()).expect_err("refused");
    assert_eq!(error.to_string(), expected, "for {text:?}");
}

#[test]
fn duplicates_are_refused_at_any_depth_and_with_any_spelling() {
    check_refused(
        "{\"a\": 1,\n \"a\": 2}",
        "duplicate key \"a\": which of the two counts would depend on the reader (at /a, line 2, column 2)",
    );
    check_refused(
        r#"{"b":[{"x/y":0,"x/y":0}]}"#,
        "duplicate key \"x/y\": which of the two counts would depend on the reader (at /b/0/x~1y, line 1, column 16)",
    );
    check_refused(
        r#"{"a":1,"\u0061":2}"#,
        "duplicate key \"a\": which of the two counts would depend on the reader (at /a, line 1, column 8)",
    );
}

#[test]
fn numbers_that_are_none_or_lose_their_value_are_refused() {
    check_refused("[1, NaN]", "NaN is not a JSON number (at /1, line 1, column 5)");
    check_refused("-Infinity", "-Infinity is not a JSON number (at the whole document, line 1, column 1)");
    check_refused("{\"a\":1e999}", "the number 1e999 is too large for a double (at /a, line 1, column 6)");
    check_refused(
        "1e-999",
        "the number 1e-999 is too small for a double and would read as zero (at the whole document, line 1, column 1)",
    );
    check_refused(
        "[9007199254740993]",
        "the integer 9007199254740993 is beyond 2^53; where all 64 bits are meant, write a decimal string \
         (at /0, line 1, column 2)",
    );
    for text in ["01", "1.", ".5", "+1", "1e", "-", "1e+", "0x10", "1_000", "--1"] {
        let error = parse(text.as_bytes(), ParseOptions::default()).expect_err("refused");
        assert!(matches!(error.kind, StrictErrorKind::BadNumber { .. }), "{text}: {error}");
    }
}

#[test]
fn the_limits_are_inclusive() {
    let value = parse(b"[9007199254740992, -9007199254740992, 0e-999]", ParseOptions::default());
    assert_eq!(value.expect("within"), json!([9_007_199_254_740_992_u64, -9_007_199_254_740_992_i64, 0.0]));
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse(nested(MAX_DEPTH).as_bytes(), ParseOptions::default()).is_ok());
    let error = parse(nested(MAX_DEPTH + 1).as_bytes(), ParseOptions::default()).expect_err("too deep");
    assert_eq!(error.kind, StrictErrorKind::TooDeep { max_depth: MAX_DEPTH });
    assert_eq!(error.position, Position { line: 1, column: MAX_DEPTH + 1 });
    let options = ParseOptions { max_bytes: 4, ..ParseOptions::default() };
    assert!(parse(b"1234", options).is_ok());
    let error = parse(b"12345", options).expect_err("too large");
    assert_eq!(error.kind, StrictErrorKind::TooLarge { num_bytes: 5, max_bytes: 4 });
}

#[test]
fn text_that_is_not_text_is_refused() {
    let error = parse(b"[\"\xff\"]", ParseOptions::default()).expect_err("refused");
    assert_eq!((error.kind, error.position), (StrictErrorKind::NotUtf8, Position { line: 1, column: 3 }));
    let error = parse(b"\xEF\xBB\xBF1", ParseOptions::default()).expect_err("refused");
    assert_eq!(error.kind, StrictErrorKind::ByteOrderMark);
    check_refused(
        r#""\ud800""#,
        "\\ud800 is half of a surrogate pair (at the whole document, line 1, column 2)",
    );
    check_refused(
        r#""\ud800\u0041""#,
        "\\ud800 is half of a surrogate pair (at the whole document, line 1, column 2)",
    );
    check_refused(
        r#""\udc00""#,
        "\\udc00 is half of a surrogate pair (at the whole document, line 1, column 2)",
    );
    check_refused(
        "\"a\tb\"",
        "control character U+0009 inside a string; write it as \\u0009 (at the whole document, line 1, column 3)",
    );
    check_refused(r#""\x""#, "no such escape in JSON (at the whole document, line 1, column 2)");
    assert_eq!(parse(r#""\ud83d\ude00é""#.as_bytes(), ParseOptions::default()), Ok(json!("😀é")));
}

#[test]
fn what_the_grammar_lacks_is_named() {
    check_refused(
        "",
        "the document ends where a value was expected (at the whole document, line 1, column 1)",
    );
    check_refused("{} x", "'x' after the end of the document (at the whole document, line 1, column 4)");
    check_refused(
        "{'a':1}",
        "'\\'' where a member's name in quotes was expected (at the whole document, line 1, column 2)",
    );
    check_refused(
        "{\"a\":1,}",
        "'}' where a member's name in quotes was expected (at the whole document, line 1, column 8)",
    );
    check_refused("[1,]", "']' where a value was expected (at /1, line 1, column 4)");
    check_refused("// no\n1", "'/' where a value was expected (at the whole document, line 1, column 1)");
    check_refused("{\"a\"", "the document ends where a colon was expected (at /a, line 1, column 5)");
    check_refused("[tru]", "'t' where a value was expected (at /0, line 1, column 2)");
}

#[test]
fn comments_are_dropped_on_request_and_still_read_strictly() {
    let text = br#"{"$comment":"why","a":{"$comment":["x"],"b":1}}"#;
    assert_eq!(parse(text, ParseOptions::without_comments()), Ok(json!({"a":{"b":1}})));
    assert_eq!(
        parse(text, ParseOptions::default()),
        Ok(json!({"$comment":"why","a":{"$comment":["x"],"b":1}}))
    );
    let twice = br#"{"$comment":1,"$comment":2}"#;
    let error = parse(twice, ParseOptions::without_comments()).expect_err("refused");
    assert_eq!(error.pointer, "/$comment");
    assert!(parse(br#"{"$comment":NaN}"#, ParseOptions::without_comments()).is_err());
}

#[test]
fn positions_follow_pointers_and_fall_back_to_ancestors() {
    let located =
        parse_located("{\n  \"é\": [10,\n 20]\n}".as_bytes(), ParseOptions::default()).expect("parses");
    assert_eq!(located.position("/é/1"), Some(Position { line: 3, column: 2 }));
    assert_eq!(located.position("/é/0"), Some(Position { line: 2, column: 9 }));
    assert_eq!(located.position("/é/7/x"), Some(Position { line: 2, column: 8 }));
    assert_eq!(located.position("/nothing"), Some(Position { line: 1, column: 1 }));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-(1_i64 << 53)..=(1_i64 << 53)).prop_map(Value::from),
        any::<f64>().prop_filter("finite", |value| value.is_finite()).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn agrees_with_serde_json_on_what_serde_json_writes(value in any_json()) {
        for text in [serde_json::to_vec(&value), serde_json::to_vec_pretty(&value)] {
            let text = text.expect("a value serialises");
            let expected: Value = serde_json::from_slice(&text).expect("and is read back");
            let located = parse_located(&text, ParseOptions::default());
            prop_assert_eq!(located.map(|located| located.value), Ok(expected));
        }
    }

    #[test]
    fn never_panics_and_accepts_nothing_that_serde_json_refuses(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(value) = parse(&bytes, ParseOptions::default()) {
            prop_assert_eq!(serde_json::from_slice::<Value>(&bytes).ok(), Some(value));
        }
    }

    #[test]
    fn never_panics_on_text_that_looks_like_json(text in "[\\[\\]{}:,\"\\\\ut0-9eE+.a-f \\n-]{0,60}") {
        if let Ok(value) = parse(text.as_bytes(), ParseOptions::default()) {
            prop_assert_eq!(serde_json::from_str::<Value>(&text).ok(), Some(value));
        }
    }

    #[test]
    fn a_cut_document_is_refused_or_shorter(value in any_json(), cut in any::<prop::sample::Index>()) {
        let text = serde_json::to_vec(&json!([value])).expect("a value serialises");
        let cut = &text[..cut.index(text.len())];
        prop_assert!(parse(cut, ParseOptions::default()).is_err());
    }
}
