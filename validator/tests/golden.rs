//! The validator's own formats against the golden vectors, which a third
//! program made that shares no code with it or with the writer.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use schemas::digest::{decode_hex, encode_hex};
use schemas::dsse::EnvelopeSignature;
use schemas::entry::Entry;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use validator::canonical::{check_contract_json, check_entry_json};
use validator::dsse::{pre_authentication_encoding, verify_detached};
use validator::ed25519::{PublicKey, key_id};
use validator::note::{Note, key_hash};
use validator::tree::{Frontier, leaf_hash};

type TestResult = Result<(), Box<dyn Error>>;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../schemas/golden").join(name)
}

fn json(name: &str) -> Result<Vec<Value>, Box<dyn Error>> {
    let value: Value = serde_json::from_slice(&fs::read(path(name))?)?;
    Ok(value.as_array().ok_or("not an array")?.clone())
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, Box<dyn Error>> {
    Ok(value[key].as_str().ok_or_else(|| format!("{key} is not a string in {value}"))?)
}

#[test]
fn byte_strings_are_judged_alike() -> TestResult {
    let forms = json("forms.json")?;
    assert!(forms.len() > 20);
    for form in &forms {
        let bytes = decode_hex(text(form, "bytes")?).ok_or("not hex")?;
        let actual = check_entry_json(&bytes);
        let expected = form["canonical"].as_bool().ok_or("not a boolean")?;
        assert_eq!(actual.is_ok(), expected, "{form} {}: {actual:?}", bytes.escape_ascii());
    }
    Ok(())
}

#[test]
fn floats_are_spelled_alike_and_no_other_spelling_passes() -> TestResult {
    let floats = json("floats.json")?;
    assert!(floats.len() > 100);
    for float in &floats {
        let entry = text(float, "entry")?;
        let value = f64::from_bits(u64::from_str_radix(text(float, "bits")?, 16)?);
        if !value.is_finite() {
            check_entry_json(entry.as_bytes())?;
            continue;
        }
        check_entry_json(entry.as_bytes()).map_err(|problem| format!("{float}: {problem}"))?;
        if let Some(spelling) = float["ecmascript"].as_str() {
            let result = check_contract_json(spelling.as_bytes());
            if !spelling.contains(['.', 'e']) && value.abs() > 9_007_199_254_740_992.0 {
                assert!(result.is_err(), "an integer beyond 2^53 does not occur in contracts: {spelling}");
            } else {
                result.map_err(|problem| format!("{float}: {problem}"))?;
            }
        }
        // Neighbours in the last digit mean another double or are not shortest.
        let seventeen = format!("{value:.16e}");
        if seventeen != entry {
            assert!(check_entry_json(seventeen.as_bytes()).is_err(), "{seventeen}");
        }
    }
    Ok(())
}

#[test]
fn entries_and_tree_agree() -> TestResult {
    let lines = fs::read_to_string(path("entries.jsonl"))?;
    let tree: Value = serde_json::from_slice(&fs::read(path("tree.json"))?)?;
    let strings = |key: &str| -> Vec<&str> {
        tree[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let (leaves, roots) = (strings("leaves"), strings("roots"));
    let mut frontier = Frontier::new();
    assert_eq!(roots.first().copied(), Some(encode_hex(&frontier.root()).as_str()));
    for (index, line) in lines.lines().enumerate() {
        check_entry_json(line.as_bytes()).map_err(|problem| format!("entry {index}: {problem}"))?;
        let entry = Entry::from_slice(line.as_bytes())?;
        assert_eq!(entry.index, index as u64);
        let leaf = leaf_hash(line.as_bytes());
        assert_eq!(leaves.get(index).copied(), Some(encode_hex(&leaf).as_str()));
        frontier.append(leaf);
        assert_eq!(roots.get(index + 1).copied(), Some(encode_hex(&frontier.root()).as_str()));
    }
    assert!(frontier.size() > 30 && roots.len() as u64 == frontier.size() + 1);
    Ok(())
}

#[test]
fn notes_verify() -> TestResult {
    let notes = json("notes.json")?;
    assert!(!notes.is_empty());
    for expected in &notes {
        let note = Note::parse(text(expected, "note")?.as_bytes())?;
        let key = PublicKey::from_hex(text(expected, "public")?)?;
        assert_eq!(note.origin, text(expected, "origin")?);
        assert_eq!(Some(note.size), expected["size"].as_u64());
        assert_eq!(encode_hex(&note.root), text(expected, "root")?);
        assert_eq!(encode_hex(&key_hash(&note.origin, &key)), text(expected, "key_hash")?);
        note.verify(&key)?;
    }
    Ok(())
}

#[test]
fn notes_are_those_that_other_implementations_accept() -> TestResult {
    use signed_note::{StandardVerifier, VerifierList, new_ed25519_verifier_key};
    for expected in &json("notes.json")? {
        let bytes = text(expected, "note")?.as_bytes();
        let public = <[u8; 32]>::try_from(decode_hex(text(expected, "public")?).ok_or("not hex")?);
        let public = ed25519_dalek::VerifyingKey::from_bytes(&public.map_err(|_| "not a key")?)?;
        let verifier_key = new_ed25519_verifier_key(text(expected, "origin")?, &public);
        let verifier = StandardVerifier::new(&verifier_key).map_err(|error| format!("{error:?}"))?;
        let signed = signed_note::Note::from_bytes(bytes).map_err(|error| format!("{error:?}"))?;
        let verified = signed.verify(&VerifierList::new(vec![Box::new(verifier)]));
        assert_eq!(verified.map_err(|error| format!("{error:?}"))?.0.len(), 1);
        let checkpoint =
            tlog_tiles::Checkpoint::from_bytes(signed.text()).map_err(|error| format!("{error:?}"))?;
        let note = Note::parse(bytes)?;
        assert_eq!((checkpoint.origin(), checkpoint.size()), (note.origin.as_str(), note.size));
    }
    Ok(())
}

#[test]
fn envelopes_verify() -> TestResult {
    for expected in &json("dsse.json")? {
        use base64::Engine as _;
        let payload = base64::engine::general_purpose::STANDARD.decode(text(expected, "payload")?)?;
        let payload_type = text(expected, "payload_type")?;
        let encoding = pre_authentication_encoding(payload_type, &payload);
        assert_eq!(encode_hex(&encoding), text(expected, "pae")?);
        let public = text(expected, "public")?;
        let keyid = key_id(text(expected, "role")?, public).ok_or("a key")?;
        assert_eq!(keyid.as_str(), text(expected, "keyid")?);
        let signature = EnvelopeSignature { keyid: keyid.0, sig: text(expected, "sig")?.to_owned() };
        verify_detached(&signature, payload_type, &payload, &PublicKey::from_hex(public)?)?;
    }
    Ok(())
}

#[test]
fn the_contract_is_canonical_and_has_its_digest() -> TestResult {
    let bytes = fs::read(path("contract.canonical.json"))?;
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    check_contract_json(bytes)?;
    let digest = format!("sha256:{}", encode_hex(&Sha256::digest(bytes)));
    assert_eq!(digest, fs::read_to_string(path("contract.digest.txt"))?.trim());
    let wide = fs::read(path("contract.wide.json"))?;
    check_contract_json(&wide)?;
    let read: schemas::contract::Contract = serde_json::from_slice(&wide)?;
    assert!(read.averages.is_some() && read.initialization.is_some() && read.resume.test.is_some());
    let written = fs::read(path("contract.written.json"))?;
    assert!(check_contract_json(&written).is_err());
    Ok(())
}

#[test]
fn cosignatures_verify() -> TestResult {
    use validator::cosignature::Cosigner;
    let cases = json("cosignatures.json")?;
    assert!(cases.len() > 2);
    for expected in &cases {
        let cosigner = Cosigner::new(text(expected, "name")?, text(expected, "public")?)?;
        assert_eq!(encode_hex(&cosigner.key_hash()), text(expected, "key_id")?);
        let (note, line) = (text(expected, "note")?, text(expected, "line")?);
        let time: u64 = text(expected, "time")?.parse()?;
        let cosigned = Note::parse(format!("{note}{line}").as_bytes())?;
        assert_eq!(cosigner.verify(&cosigned)?, Some(time));
        assert_eq!(cosigner.verify(&Note::parse(note.as_bytes())?)?, None);
        let other = Cosigner::new("witness.example/other", text(expected, "public")?)?;
        assert_eq!(other.verify(&cosigned)?, None);
        // The same line under a head of another size.
        let (head, rest) = cosigned_parts(note)?;
        let moved = Note::parse(format!("{head}{rest}{line}").as_bytes())?;
        assert!(cosigner.verify(&moved).is_err());
    }
    Ok(())
}

/// The note with another size, which its own signature does not cover any more.
fn cosigned_parts(note: &str) -> Result<(String, &str), Box<dyn Error>> {
    let (origin, rest) = note.split_once('\n').ok_or("an origin")?;
    let (size, rest) = rest.split_once('\n').ok_or("a size")?;
    Ok((format!("{origin}\n{}\n", size.parse::<u64>()? + 1), rest))
}
