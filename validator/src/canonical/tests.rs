//! Accepted and refused spellings.

use super::numbers::{eight_digits, read_fixed, read_float, read_quickly};
use super::*;

fn check(text: &str, expected: Result<(), &str>) {
    let actual = check_entry_json(text.as_bytes());
    match expected {
        Ok(()) => assert!(actual.is_ok(), "{text}: {actual:?}"),
        Err(what) => assert_eq!(actual.map_err(|problem| problem.what).err(), Some(what), "{text}"),
    }
}

#[test]
fn canonical_entry_json_passes() {
    for text in [
        "{}",
        "[]",
        "null",
        r#"{"a":1,"b":[true,false,null],"c":{"d":"e"}}"#,
        r#""tab \t, bell \u0007, quote \", é, 😀""#,
        "9007199254740992",
        "-1",
        "0",
        "-0.0",
        "0.10000000149011612",
        "5e-324",
        "1e16",
    ] {
        check(text, Ok(()));
    }
}

#[test]
fn every_other_spelling_is_found() {
    check("{ }", Err("an object key is not a string"));
    check(" {}", Err("white space outside a string"));
    check("{} ", Err("something follows the value"));
    check(r#"{"b":1,"a":2}"#, Err("object keys do not ascend strictly"));
    check(r#"{"a":1,"a":2}"#, Err("object keys do not ascend strictly"));
    check(r#"{"é":1}"#, Err("an object key is not printable ASCII"));
    check(r#""\/""#, Err("an escape that canonical form does not use"));
    check(r#""\u000A""#, Err("an escape that canonical form does not use"));
    check(r#""\u000a""#, Err("a long escape where a short one exists"));
    check(r#""\u0041""#, Err("an escape that canonical form does not use"));
    check("\"\u{1}\"", Err("a control character is not escaped"));
    check("01", Err("an integer with a leading zero, or minus zero"));
    check("-0", Err("an integer with a leading zero, or minus zero"));
    check("9007199254740993", Err("an integer beyond 2^53"));
    check("-9223372036854775808", Err("an integer beyond 2^53"));
    check("1.00", Err("a number is not spelled canonically"));
    check("1e2", Err("a number is not spelled canonically"));
    check("1E22", Err("a number is not spelled canonically"));
    check("0.1000000000000000055", Err("more digits than a binary64 has"));
    check("0.10000000000000001", Err("a number does not have the shortest digits"));
    check("0.10000000149011611", Err("a number does not have the shortest digits"));
    check("1e999", Err("a number does not have the shortest digits"));
    check(&"[".repeat(65), Err("nested deeper than 64"));
    check(r#"{"a":1"#, Err("neither `,` nor `}` after a member"));
}

#[test]
fn contract_json_follows_ecmascript() {
    assert!(check_contract_json(br#"{"a":0.000001,"b":1e+21,"c":1}"#).is_ok());
    assert!(check_contract_json(b"1.0").is_err());
    assert!(check_contract_json(b"1e-6").is_err());
    assert!(check_contract_json(b"9007199254740992").is_ok());
    assert!(check_contract_json(b"9007199254740994").is_err(), "no integer beyond 2^53, whatever it means");
    assert!(check_contract_json(b"-0").is_err());
    // RFC 8785 sorts by UTF-16: U+1F600 (a surrogate pair) before U+FB33.
    assert!(check_contract_json("{\"\u{1f600}\":1,\"\u{fb33}\":2}".as_bytes()).is_ok());
    assert!(check_contract_json("{\"\u{fb33}\":2,\"\u{1f600}\":1}".as_bytes()).is_err());
}

/// A quick reading is that of the full checks; whether there was one.
fn check_quickly(text: &str) -> bool {
    let quick = read_quickly(text.as_bytes());
    // What follows a number is none of its business.
    assert_eq!(read_quickly(format!("{text},1.5e").as_bytes()), quick, "{text}");
    assert_eq!(read_quickly(format!("{text}e1").as_bytes()), None, "{text}");
    let Some((number, length)) = quick else { return false };
    assert_eq!(length, text.len(), "{text}");
    match number {
        Number::Integer(value) => assert_eq!(read_integer(text.as_bytes()), Ok(value), "{text}"),
        Number::Float(value) => {
            let full = read_float(text.as_bytes(), Dialect::Entry).expect(text);
            assert_eq!(value.to_bits(), full.to_bits(), "{text}");
            let read: f64 = text.parse().expect("a number");
            assert_eq!(value.to_bits(), read.to_bits(), "{text}");
        }
    }
    true
}

/// A reading by exact arithmetic is that of the full check; whether there was one.
fn check_exactly(text: &str) -> bool {
    check_quickly(text);
    let mut floats = Floats::new(Dialect::Entry);
    // The second time it is remembered.
    let [first, second] = [(); 2].map(|()| floats.read_entry_number(text.as_bytes()));
    assert_eq!(first, second, "{text}");
    let Some(value) = read_fixed(text.as_bytes()) else { return false };
    assert_eq!(first, Some((Number::Float(value), text.len())), "{text}");
    let full = read_float(text.as_bytes(), Dialect::Entry).expect(text);
    assert_eq!(value.to_bits(), full.to_bits(), "{text}");
    true
}

#[test]
fn eight_digits_are_read_as_one_by_one() {
    for number in [0_u64, 1, 9, 10, 12_345_678, 90_000_009, 99_999_999, 10_203_040] {
        let text = format!("{number:08}");
        let bytes: [u8; 8] = text.as_bytes().try_into().expect("eight digits");
        assert_eq!(eight_digits(bytes), Some(number));
        for at in 0..8 {
            for other in 0..=255_u8 {
                let mut changed = bytes;
                changed[at] = other;
                let read = std::str::from_utf8(&changed).ok().filter(|_| other.is_ascii_digit());
                assert_eq!(
                    eight_digits(changed),
                    read.map(|text| text.parse().expect("digits")),
                    "{changed:?}"
                );
            }
        }
    }
}

#[test]
fn every_canonical_integer_is_read_quickly() {
    let texts = [
        "0",
        "1",
        "-1",
        "10",
        "-10",
        "00",
        "01",
        "-0",
        "-",
        "",
        "--1",
        "9007199254740992",
        "9007199254740993",
        "-9007199254740992",
        "-9007199254740993",
        "-9223372036854775808",
        "10000000000000000",
        "18446744073709551616",
        "1-",
        "+1",
    ];
    for text in texts {
        assert_eq!(check_quickly(text), read_integer(text.as_bytes()).is_ok(), "{text}");
    }
}

#[test]
fn the_quick_reading_agrees_with_the_full_check() {
    let parts = [
        "",
        "0",
        "00",
        "1",
        "10",
        "01",
        "120",
        "00001",
        "000012",
        "00000123456789012345",
        "9007199254740993",
        "123456789012345",
        "123456789012345678",
        "99999999999999999999999",
        "1e5",
        "1E5",
        "+1",
    ];
    let mut num_quick = 0;
    for sign in ["", "-", "--", "+"] {
        for integer in parts {
            for fraction in parts {
                num_quick += u32::from(check_quickly(&format!("{sign}{integer}.{fraction}")));
            }
        }
    }
    assert!(num_quick > 40, "{num_quick}");
    for text in ["", ".", "-", "1", "1.", ".1", "1..2", "0.0", "-0.0", "0.00", "00.0", "1.0", "1.00"] {
        check_quickly(text);
    }
}

#[test]
fn long_floats_are_read_exactly_and_their_neighbours_as_by_the_full_check() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let (mut num_exact, mut num_doubles) = (0, 0);
    for round in 0..60_000u32 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // From 2^-17 to 2^47: what is written in fixed notation, mostly.
        let exponent = (1023 - 17 + (state >> 58)) << 52;
        let mut bits = exponent | (state >> 12);
        if round % 3 == 0 {
            // Widened from single precision, where two decimals can be equally close.
            bits &= !((1 << 29) - 1);
        }
        if round % 50 == 0 {
            bits &= !((1 << 52) - 1);
        }
        let text = f64::from_bits(bits).to_string();
        let Some((integer, fraction)) = text.split_once('.') else { continue };
        num_doubles += 1;
        num_exact += u32::from(check_exactly(&text));
        let digits: u64 = format!("{integer}{fraction}").parse().expect("at most 17 digits");
        for other in [digits - 1, digits + 1, digits - digits % 10 + 10, digits / 10, digits * 10 + 1] {
            let padded = format!("{other:0width$}", width = fraction.len() + 1);
            let (integer, fraction) = padded.split_at(padded.len() - fraction.len());
            check_exactly(&format!("-{integer}.{fraction}"));
        }
    }
    assert!(num_exact > num_doubles / 5 * 4, "{num_exact} of {num_doubles}");
}

#[test]
fn the_plain_part_ends_where_a_slow_search_says() {
    let mut bytes: Vec<u8> = (0x20..=0xff).filter(|byte| !matches!(byte, b'"' | b'\\')).collect();
    bytes.extend([b'x'; 13]);
    for stop in [b'"', b'\\', 0, 0x1f] {
        for at in 0..bytes.len() {
            let mut text = bytes.clone();
            text[at] = stop;
            assert_eq!(plain_length(&text), Some(at), "{stop:#x} at {at}");
        }
    }
    assert_eq!(plain_length(&bytes), None);
}

#[test]
fn the_determined_half_is_located() {
    let text = br#"{"actor":"x","body":{"det":{"det":1},"obs":{}},"det":2}"#;
    let scan = check_entry_json(text).expect("canonical");
    assert_eq!(&text[scan.det.expect("a half")], br#"{"det":1}"#);
}

#[test]
fn not_utf_8_is_a_problem_and_no_panic() {
    assert_eq!(check_entry_json(b"\"\xff\"").map_err(|problem| problem.offset), Err(1));
    assert!(check_entry_json(b"").is_err());
    assert!(check_entry_json(b"\"\\").is_err());
    assert!(check_entry_json(b"-").is_err());
}
