//! A contract with nothing wrong is frozen, completely and once.

use ledger::create::CreateError;
use ledger::freeze::{FreezeError, freeze};
use ledger::keys::{KeyRing, Role};
use serde_json::{Value, json};

use crate::fixture::{Fixture, lines};

#[test]
fn every_null_is_filled_and_the_canonical_bytes_are_stable() {
    let fixture = Fixture::new();
    let checked = fixture.check().expect("nothing is wrong");
    let contract = &checked.contract;
    let bindings = [
        &contract.data.manifest,
        &contract.data.train_examples,
        &contract.data.val_examples,
        &contract.parameters,
        &contract.qualification.sealed,
        &contract.update.card,
    ];
    for binding in bindings {
        let bytes = std::fs::read(fixture.path(&binding.path)).expect("readable");
        let digest = binding.digest.expect("filled in");
        assert_eq!(digest.bytes, *blake3::hash(&bytes).as_bytes(), "{}", binding.path);
        assert_eq!(binding.num_bytes, Some(bytes.len() as u64), "{}", binding.path);
    }
    // 78 bytes in windows of 8 give 10 examples, 58 give 8, 56 give 7.
    assert_eq!((checked.num_train_examples, checked.num_val_examples, checked.num_steps), (18, 7, 20));
    let pointers: Vec<&str> = checked.artifacts.iter().map(|artifact| artifact.pointer.as_str()).collect();
    assert_eq!(
        pointers,
        ["/data/manifest", "/data/train_examples", "/data/val_examples", "/parameters", "/update/card"]
    );
    // Freezing what was frozen changes nothing: no null is left to fill.
    let again: Value = serde_json::from_slice(&checked.canonical).expect("canonical bytes are JSON");
    let mut frozen = Fixture::new();
    std::fs::remove_dir_all(frozen.path("data")).expect("removed");
    for path in ["data/manifest.json", "data/train-0.txt", "data/train-1.txt", "data/val-0.txt"] {
        frozen.write(path, &std::fs::read(fixture.path(path)).expect("readable"));
    }
    for path in ["data/train.examples", "data/val.examples"] {
        frozen.write(path, &std::fs::read(fixture.path(path)).expect("readable"));
    }
    frozen.contract = again;
    assert_eq!(frozen.check().expect("nothing is wrong").canonical, checked.canonical);
}

#[test]
fn a_candidate_may_have_to_be_resume_qualified() {
    let mut fixture = Fixture::new();
    fixture.set("/checkpoints/candidate_stage", json!("resume_qualified"));
    fixture.check().expect("probes are made by the trainer");
}

/// A frozen parameter has no group, and takes no gradient and no moments.
#[test]
fn parameters_may_be_frozen_but_not_all_of_them() {
    let mut fixture = Fixture::new();
    let freeze = |fixture: &Fixture, index: usize| {
        fixture.edit_file("parameters.json", |manifest| {
            manifest["parameters"][index]["status"] = json!("frozen");
            manifest["parameters"][index]["group"] = Value::Null;
        });
    };
    let least = |fixture: &Fixture| -> u64 {
        let found = lines(fixture.check());
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number of bytes")
    };
    fixture.set("/expected/memory_bytes", json!(1));
    let all_trained = least(&fixture);
    // The embedding is [256, 8] in binary32.
    freeze(&fixture, 0);
    assert_eq!(least(&fixture), all_trained - 256 * 8 * 12);
    fixture.set("/expected/memory_bytes", json!(all_trained));
    let checked = fixture.check().expect("one frozen parameter");
    assert!(checked.contract.parameters.digest.is_some());
}

#[test]
fn comments_white_space_and_key_order_do_not_change_what_is_frozen() {
    let mut fixture = Fixture::new();
    let plain = fixture.check().expect("nothing is wrong");
    fixture.contract["$comment"] = json!(["why", {"any": "thing"}]);
    fixture.contract["batch"]["$comment"] = json!("four a step");
    let text = serde_json::to_string_pretty(&fixture.contract).expect("JSON");
    assert_eq!(fixture.check_text(&text).expect("nothing is wrong").digest, plain.digest);
}

/// The freeze writes the contract, and stores what is bound by the digest of a file
/// as that file is.
#[test]
fn what_is_null_may_be_left_out_and_is_written_in_the_contract_alone() {
    let mut fixture = Fixture::new();
    let plain = fixture.check().expect("nothing is wrong");
    for (parent, name) in
        [("", "state_digest_every_steps"), ("/budget", "max_tokens"), ("/update/card", "digest")]
    {
        let parent = fixture.contract.pointer_mut(parent).and_then(Value::as_object_mut);
        parent.expect("an object").remove(name).expect("it is null");
    }
    let less = fixture.check().expect("what is left out is null");
    assert_eq!(less.canonical, plain.canonical);
    fixture.edit_file("policy.json", |card| {
        card.as_object_mut().expect("an object").remove("fallback").expect("it is null");
    });
    let kept = fixture.check().expect("what is left out is null");
    let card = kept.artifacts.iter().find(|artifact| artifact.pointer == "/update/card");
    let file = std::fs::read(fixture.path("policy.json")).expect("readable");
    assert_eq!(card.expect("it is stored").bytes, file);
    assert_ne!(kept.digest, plain.digest);
}

#[test]
fn keys_may_be_left_to_the_freeze() {
    let mut fixture = Fixture::new();
    let keys = fixture.contract["keys"].clone();
    fixture.set("/keys", Value::Null);
    assert_eq!(lines(fixture.check()), ["contract.json /keys: is null, and no keys are at hand"]);
    let mut request = fixture.request();
    request.keys_when_null = Some(serde_json::from_value(keys.clone()).expect("keys"));
    let checked = ledger::freeze::check(&request).expect("nothing is wrong");
    assert_eq!(serde_json::to_value(checked.contract.keys).expect("JSON"), keys);
}

#[test]
fn a_ledger_is_made_once_and_holds_the_contract() {
    let fixture = Fixture::new();
    let checked = fixture.check().expect("nothing is wrong");
    let frozen = freeze(&fixture.request(), None, &fixture.key_ring(), "test 1").expect("frozen");
    assert_eq!(frozen.ledger, fixture.path("run.db"));
    assert_eq!(frozen.created.digest, checked.digest);
    let reader = ledger::reader::Reader::open(&frozen.ledger).expect("a ledger");
    let found = reader.contract().expect("a contract");
    assert_eq!((found.canonical, found.run), (checked.canonical, frozen.created.run));
    for artifact in &checked.artifacts {
        let digest = schemas::digest::Digest::blake3(*blake3::hash(&artifact.bytes).as_bytes());
        assert_eq!(reader.artifact(&digest).expect("stored"), artifact.bytes);
    }
    let before = std::fs::read(&frozen.ledger).expect("readable");
    let again = freeze(&fixture.request(), None, &fixture.key_ring(), "test 1");
    assert!(matches!(again, Err(FreezeError::Create(CreateError::Exists { .. }))));
    assert_eq!(std::fs::read(&frozen.ledger).expect("readable"), before);
}

#[test]
fn only_the_contracts_owner_can_sign() {
    let fixture = Fixture::new();
    fixture.check().expect("nothing is wrong");
    let other = fixture.path("other-keys");
    let pair = KeyRing::generate(&other, Role::Owner).expect("a fresh key");
    let ring = KeyRing::open(&other).expect("made");
    let refused = freeze(&fixture.request(), None, &ring, "test 1").map(|frozen| frozen.checked);
    let lines = lines(refused);
    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with("contract.json /keys/owner/public: is "), "{lines:?}");
    assert!(lines[0].ends_with(&pair.public_hex()), "{lines:?}");
    assert!(!fixture.path("run.db").exists());
    std::fs::remove_file(fixture.path("keys/owner.key")).expect("removed");
    let missing = freeze(&fixture.request(), None, &fixture.key_ring(), "test 1");
    assert!(matches!(missing, Err(FreezeError::Key(_))));
}

#[test]
fn bounds_and_patience_are_accepted_where_they_can_fail() {
    let mut fixture = Fixture::new();
    fixture.set("/numerics/determinism", json!("operation_order_bounded"));
    fixture.set(
        "/resume",
        json!({"class": "operation_order_bounded", "tolerance": {"max_absolute": 1e-6, "max_relative": 0}}),
    );
    fixture.set(
        "/stopping",
        json!({"kind": "patience", "max_step": 20, "min_delta": 0.001, "patience": 3, "stream": "val"}),
    );
    fixture.contract["state_classes"]
        .as_array_mut()
        .expect("a list")
        .push(json!({"class": "selection_state", "not_applicable": null}));
    let checked = fixture.check().expect("nothing is wrong");
    assert_eq!(checked.num_steps, 20);
}
