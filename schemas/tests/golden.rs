//! The types read the golden documents and write them back as the same bytes,
//! which also shows that fields are declared in key order.

use std::collections::BTreeSet;
use std::path::Path;

use schemas::body::Kind;
use schemas::campaign::Preregistration;
use schemas::contract::Contract;
use schemas::data::DataManifest;
use schemas::dsse::Envelope;
use schemas::entry::Entry;
use schemas::number::{EntryFormatter, Float};
use schemas::parameters::ParameterManifest;
use schemas::policy_card::PolicyCard;
use schemas::report::Report;
use schemas::state::CheckpointManifest;
use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

fn golden(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_kind_has_a_sample_that_comes_back_as_the_same_bytes() {
    let text = golden("entries.jsonl");
    let mut kinds = BTreeSet::new();
    for (index, line) in (0..).zip(text.lines()) {
        let entry =
            Entry::from_slice(line.as_bytes()).unwrap_or_else(|error| panic!("line {index}: {error}"));
        assert_eq!(entry.index, index);
        let mut written = Vec::new();
        let mut serializer = serde_json::Serializer::with_formatter(&mut written, EntryFormatter);
        entry.serialize(&mut serializer).expect("writable");
        assert_eq!(String::from_utf8_lossy(&written), line);
        let det = entry.body.det_json().expect("writable");
        assert!(line.contains(&format!("\"body\":{{\"det\":{det},\"obs\":")), "line {index}");
        kinds.insert(entry.body.kind());
    }
    let missing: Vec<&str> =
        Kind::ALL.iter().filter(|kind| !kinds.contains(kind)).map(|kind| kind.name()).collect();
    assert!(missing.is_empty(), "no sample of {missing:?}");
}

#[test]
fn unknown_missing_and_mistyped_members_are_refused() {
    let text = golden("entries.jsonl");
    let line = text.lines().find(|line| line.contains("\"kind\":\"step\"")).expect("a step");
    let check = |from: &str, to: &str| {
        assert!(line.contains(from), "{from}");
        assert!(Entry::from_slice(line.replacen(from, to, 1).as_bytes()).is_err(), "{from} as {to}");
    };
    check("\"format\":\"entry/1\"", "\"format\":\"entry/2\"");
    check("\"kind\":\"step\"", "\"kind\":\"stop\"");
    check("\"kind\":\"step\"", "\"kind\":\"eval\"");
    check("\"learner\":null", "\"learner\":null,\"level\":1");
    check("\"learner\":null", "\"learner\":null,\"learner\":null");
    check("\"det\":{", "\"det\":{\"a\":1,");
    check("\"loss\":5.545177444479562", "\"loss\":5");
    check("\"loss\":5.545177444479562", "\"loss\":null");
    check("\"num_tokens\":512", "\"num_tokens\":-512");
    check("\"ids\":\"blake3:", "\"ids\":\"BLAKE3:");
}

#[test]
fn serde_json_features_that_would_change_bytes_are_off() {
    // Any crate of the build could switch them on: `preserve_order` would keep
    // "b" first, `arbitrary_precision` would keep the zero.
    let value: serde_json::Value = serde_json::from_str(r#"{"b":1.10,"a":1}"#).expect("JSON");
    assert_eq!(value.to_string(), r#"{"a":1,"b":1.1}"#);
    // Without `float_roundtrip` about one double in ten would change its bits.
    let cases: Vec<serde_json::Value> = serde_json::from_str(&golden("floats.json")).expect("JSON");
    assert!(cases.len() > 500, "several hundred");
    for case in cases {
        let bits = u64::from_str_radix(case["bits"].as_str().expect("hex"), 16).expect("64 bits");
        let spelling = case["entry"].as_str().expect("text");
        let read: Float = serde_json::from_str(spelling).expect("a float");
        assert_eq!(read.0.to_bits(), bits, "{spelling}");
        let mut written = Vec::new();
        let mut serializer = serde_json::Serializer::with_formatter(&mut written, EntryFormatter);
        read.serialize(&mut serializer).expect("writable");
        assert_eq!(String::from_utf8_lossy(&written), spelling);
    }
}

/// A JSON document as the order of its keys: what a map type would forget.
struct KeyOrder(Vec<Vec<String>>);

impl<'de> Deserialize<'de> for KeyOrder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collector;
        impl<'de> Visitor<'de> for Collector {
            type Value = KeyOrder;
            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("JSON")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<KeyOrder, A::Error> {
                let (mut keys, mut inner) = (Vec::new(), Vec::new());
                while let Some((key, value)) = map.next_entry::<String, KeyOrder>()? {
                    keys.push(key);
                    inner.extend(value.0);
                }
                inner.push(keys);
                Ok(KeyOrder(inner))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<KeyOrder, A::Error> {
                let mut inner = Vec::new();
                while let Some(value) = list.next_element::<KeyOrder>()? {
                    inner.extend(value.0);
                }
                Ok(KeyOrder(inner))
            }
            fn visit_unit<E>(self) -> Result<KeyOrder, E> {
                Ok(KeyOrder(Vec::new()))
            }
            fn visit_bool<E>(self, _: bool) -> Result<KeyOrder, E> {
                Ok(KeyOrder(Vec::new()))
            }
            fn visit_u64<E>(self, _: u64) -> Result<KeyOrder, E> {
                Ok(KeyOrder(Vec::new()))
            }
            fn visit_i64<E>(self, _: i64) -> Result<KeyOrder, E> {
                Ok(KeyOrder(Vec::new()))
            }
            fn visit_f64<E>(self, _: f64) -> Result<KeyOrder, E> {
                Ok(KeyOrder(Vec::new()))
            }
            fn visit_str<E>(self, _: &str) -> Result<KeyOrder, E> {
                Ok(KeyOrder(Vec::new()))
            }
        }
        deserializer.deserialize_any(Collector)
    }
}

/// Reads a document as its type, writes it, and checks the keys' order.
fn check_order<T: DeserializeOwned + Serialize>(text: &str) -> T {
    let document: T = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"));
    let written = serde_json::to_string(&document).expect("writable");
    let order: KeyOrder = serde_json::from_str(&written).expect("JSON");
    assert!(!order.0.is_empty());
    for keys in order.0 {
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{keys:?} are not in order");
    }
    document
}

const DIGEST: &str = "\"blake3:0000000000000000000000000000000000000000000000000000000000000000\"";

#[test]
fn documents_that_are_written_as_entry_json_declare_fields_in_key_order() {
    check_order::<CheckpointManifest>(
        &r#"{"attempt":1,"checkpoint":"s00000010-a1","classes":[{"class":"model","learner":0,
        "not_applicable":null,"shards":[{"digest":D,"num_bytes":9,"path":"model.safetensors",
        "tensors":[{"dtype":"F32","name":"a","shape":[2,3]}]}],"step":10,"worker":null}],"contract":D,
        "format":"checkpoint-manifest/1","run":"r","step":10}"#
            .replace('D', DIGEST)
            .replace(&format!("s00000010-{DIGEST}"), "s00000010-a1"),
    );
    check_order::<DataManifest>(
        &r#"{"barrier":{"digest":@,"method":"spans","num_caught":0,"path":"b"},"format":"data-manifest/1",
        "name":"n","shards":[{"digest":@,"license_class":"green","num_bytes":9,"path":"p","source":"s",
        "split":"train"}],"tokenizer":"bytes"}"#
            .replace('@', DIGEST),
    );
    check_order::<ParameterManifest>(
        r#"{"format":"parameter-manifest/1","parameters":[{"dtype":"F32","group":"all",
        "initializer":{"scheme":"normal","std":0.02},"path":"p","shape":[1],"status":"trainable",
        "tied_to":null},{"dtype":"F32","group":null,"initializer":{"scheme":"ones"},"path":"q","shape":[],
        "status":"frozen","tied_to":"p"}]}"#,
    );
    check_order::<Envelope>(r#"{"payload":"","payloadType":"t","signatures":[{"keyid":"k","sig":"s"}]}"#);
    check_order::<Report>(
        &r#"{"contract":@,"denominators":{"attempted":1,"candidates":1,"checkpoints":1,"completed":1,
        "failed":0,"interrupted":0,"qualified":0,"recovered":0,"released":0,"selected":1,
        "steps_executed":1,"steps_logical":1},"findings":[{"actual":"a","code":"GL101",
        "effect":"tampered","entry":null,"expected":"e","location":"l","message":"m","remedy":"r",
        "rule":"leaf-hash","severity":"error"}],"format":"report/1","head":{"origin":"o","root":"r",
        "size":1,"source":"beside"},"independence":{"reason":"r","status":"s"},"nonclaims":["n"],
        "num_entries":1,"profile":"native","projection":@,"route":"accept_handoff","rules":[{"code":"c",
        "num_checked":1,"reason":null,"rule":"r","status":"passed"}],"ruleset":"2026.1","run":"r",
        "selected":{"candidate":"c","config":@,"model":@,"path":"p","step":1,"value":2.0},
        "selection_basis":"trainer","target_met":null,"tool":"t","verdict":"accepted"}"#
            .replace('@', DIGEST),
    );
}

#[test]
fn the_golden_contract_is_read_whole() {
    let canonical = golden("contract.canonical.json");
    let contract: Contract = serde_json::from_str(&canonical).expect("a contract");
    // Numbers are spelled otherwise in RFC 8785, so values are compared.
    let value: serde_json::Value = serde_json::from_str(&canonical).expect("JSON");
    let written: Contract = serde_json::from_value(value).expect("a contract");
    assert_eq!(contract, written);
    let other: Contract = serde_json::from_str(&golden("contract.written.json")).expect("a contract");
    assert_eq!(contract, other);
    let unknown = canonical.replacen("{\"architecture\"", "{\"aa\":1,\"architecture\"", 1);
    assert!(serde_json::from_str::<Contract>(&unknown).is_err());
}

#[test]
fn the_golden_preregistration_is_read_whole() {
    let canonical = golden("preregistration.canonical.json");
    let read: Preregistration = serde_json::from_str(&canonical).expect("a preregistration");
    assert_eq!((read.arms.len(), read.seeds.len(), read.axes[0].points.len()), (2, 3, 2));
    let value: serde_json::Value = serde_json::from_str(&canonical).expect("JSON");
    let written = serde_json::to_value(&read).expect("writable");
    let names = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().expect("an object").keys().cloned().collect()
    };
    assert_eq!(names(&written), names(&value));
    for (from, to) in [
        ("{\"arms\"", "{\"aa\":1,\"arms\""),
        ("\"label\":\"Adam\"", "\"labels\":\"Adam\""),
        ("\"tokens_to_quality\"", "\"tokens_per_second\""),
        ("\"seeds\":[\"1\"", "\"seeds\":[1"),
    ] {
        assert!(canonical.contains(from), "{from}");
        let changed = canonical.replacen(from, to, 1);
        assert!(serde_json::from_str::<Preregistration>(&changed).is_err(), "{to}");
    }
}

#[test]
fn a_policy_card_refuses_what_it_does_not_know() {
    let card = r#"{"approximation":null,"batch_semantics":"mean_over_global_tokens",
        "checkpoint_state":[{"dtype":"F32","suffix":"exp_avg"}],"clipping":{"kind":"global_norm","epsilon":1e-6,
        "max_norm":1.0},"distribution":{"communication":"none","placement":"replicated"},"fallback":null,
        "format":"policy-card/1","groups":[{"eligible":"rest","learning_rate_multiplier":1.0,"name":"all",
        "weight_decay":0.1}],"implementation":{"name":"n","reference":"r"},"name":"adamw","nonclaims":["n"],
        "parameterization":"standard","preconditioner_every_steps":null,"rescue_ladder":[],
        "stopping_rule":null,"tuning":{"num_trials":0,"search_space":""},"update":{"family":"adamw",
        "beta1":0.9,"beta2":0.95,"epsilon":1e-8,"moment_dtype":"F32"},"version":"1"}"#;
    let read: PolicyCard = serde_json::from_str(card).expect("a card");
    assert_eq!(read.groups.len(), 1);
    for (from, to) in [
        ("\"beta1\":0.9", "\"beta1\":0.9,\"beta3\":0.9"),
        ("\"family\":\"adamw\"", "\"family\":\"adam\""),
        ("\"fallback\":null", "\"fall_back\":null"),
    ] {
        assert!(serde_json::from_str::<PolicyCard>(&card.replacen(from, to, 1)).is_err(), "{to}");
    }
}
