//! `ledger keygen` and `ledger seal`.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::folder::Folder;

#[test]
fn keys_are_made_where_missing_and_never_replaced() {
    let folder = Folder::empty();
    let _ = folder.run(&["keygen", "--role", "trainer"]).expect(0);
    let trainer = folder.read("keys/trainer.key");
    let finished = folder.run(&["keygen", "--json"]).expect(0);
    let keys = finished.json();
    let made: Vec<(String, bool)> = keys["keys"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|key| (key["role"].as_str().unwrap_or_default().to_owned(), key["made"] == json!(true)))
        .collect();
    let expected = [("owner", true), ("trainer", false), ("validator", true), ("qualifier", true)];
    assert_eq!(made, expected.map(|(role, made)| (role.to_owned(), made)));
    assert!(keys["keys"][3]["recipient"].as_str().is_some_and(|recipient| recipient.starts_with("age1")));
    assert_eq!(folder.read("keys/trainer.key"), trainer);
    for name in ["owner.key", "qualifier.key", "qualifier.age-identity"] {
        let mode = std::fs::metadata(folder.path("keys").join(name)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let finished = folder.run(&["keygen", "--role", "trainer"]).expect(2);
    assert!(finished.stderr.contains("exists; a key is never overwritten"), "{}", finished.stderr);
    assert_eq!(folder.read("keys/trainer.key"), trainer);
    // No secret reaches the screen.
    let secret: serde_json::Value = serde_json::from_slice(&folder.read("keys/owner.key")).expect("JSON");
    let secret = secret["secret"].as_str().expect("a secret");
    assert!(!finished.stderr.contains(secret) && !folder.run(&["keygen"]).stdout.contains(secret));
}

#[test]
fn a_text_is_sealed_once() {
    let folder = Folder::empty();
    folder.write("text", b"held out");
    let finished = folder.run(&["seal", "text", "--output", "text.age"]).expect(2);
    assert!(finished.stderr.contains("hint: `ledger keygen` makes keys"), "{}", finished.stderr);
    let _ = folder.run(&["keygen", "--keys", "k"]).expect(0);
    let sealed =
        folder.run(&["seal", "text", "--output", "text.age", "--keys", "k", "--json"]).expect(0).json();
    assert_eq!(sealed["plaintext"], json!(format!("blake3:{}", blake3::hash(b"held out").to_hex())));
    let bytes = folder.read("text.age");
    assert_eq!(sealed["sealed"], json!(format!("blake3:{}", blake3::hash(&bytes).to_hex())));
    assert!(bytes.starts_with(b"age-encryption.org/v1\n"));
    assert!(!bytes.windows(8).any(|window| window == b"held out"));
    let _ = folder.run(&["seal", "text", "--output", "text.age", "--keys", "k"]).expect(2);
    assert_eq!(folder.read("text.age"), bytes);
    let _ = folder.run(&["seal", "none", "--output", "none.age", "--keys", "k"]).expect(2);
    let finished = folder.run(&["seal", "text", "--output", "x.age", "--recipient", "age1wrong"]).expect(2);
    assert!(finished.stderr.contains("\"age1wrong\" is not an age X25519 recipient"), "{}", finished.stderr);
    assert!(!folder.path("x.age").exists());
}
