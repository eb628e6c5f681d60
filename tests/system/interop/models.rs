//! Signed models, verified by OpenSSF's `model_signing`.

use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};
use system_tests::interop::{Said, ask, ask_of_envelope};
use system_tests::programs::{LEDGER, run as run_program};
use system_tests::run_folder::{RunFolder, copy_folder, flip_byte};

use super::{candidate, export, statement};

fn verify(model: &Path, signed: &Path) -> Said {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let signature = text(&signed.join("model.sig"));
    let public = text(&signed.join("model-signing.pub.pem"));
    ask(&["model", &text(model), "--signature", &signature, "--public", &public])
}

#[test]
fn the_candidate_verifies_as_it_lies_and_as_it_is_published() {
    let run = RunFolder::trained();
    // Without a key of that kind it says how to make one.
    export(&run, "model-signing", "signed").expect_complaint(
        2,
        "model-signing.pem",
        &["keygen --model-signing"],
    );
    let _ = run_program(LEDGER, run.path(), &["keygen", "--model-signing", "--keys", "keys"]).expect_code(0);
    let _ = export(&run, "model-signing", "signed").expect_code(0);
    let signed = run.path().join("signed");
    let folder = run.path().join(candidate(&run));
    let said = verify(&folder, &signed).taken();
    assert!(said["said"].as_str().is_some_and(|said| said.contains("Verification succeeded")), "{said}");

    // What is published is the model without the state of training.
    let published = tempfile::tempdir().expect("a temporary folder");
    for file in ["model.safetensors", "config.json"] {
        std::fs::copy(folder.join(file), published.path().join(file)).expect("copied");
    }
    let _ = verify(published.path(), &signed).taken();

    // Controls: another weight, another configuration, a file too many, one too few.
    let check = |change: &dyn Fn(&Path), words: &str| {
        let copy = tempfile::tempdir().expect("a temporary folder");
        copy_folder(published.path(), copy.path()).expect("copied");
        change(copy.path());
        verify(copy.path(), &signed).refused(words);
    };
    check(&|copy| flip_byte(&copy.join("model.safetensors"), 100), "model.safetensors");
    check(&|copy| flip_byte(&copy.join("config.json"), 5), "config.json");
    check(&|copy| std::fs::write(copy.join("more.py"), "x").expect("written"), "Extra files");
    check(&|copy| std::fs::remove_file(copy.join("config.json")).expect("removed"), "Missing files");
    // Another key.
    let _ = run_program(LEDGER, run.path(), &["keygen", "--model-signing", "--keys", "other"]).expect_code(0);
    let swapped = tempfile::tempdir().expect("a temporary folder");
    copy_folder(&signed, swapped.path()).expect("copied");
    let other = run.path().join("other/model-signing.pub.pem");
    std::fs::copy(other, swapped.path().join("model-signing.pub.pem")).expect("copied");
    verify(published.path(), swapped.path()).refused("Key mismatch");
}

#[test]
fn a_model_in_several_files_is_signed_with_its_index() {
    let run = RunFolder::tiny();
    run.freeze_parameters(&["model.embed_tokens.*"]);
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    let _ = run_program(LEDGER, run.path(), &["keygen", "--model-signing", "--keys", "keys"]).expect_code(0);
    let _ = export(&run, "model-signing", "signed").expect_code(0);
    let signed = run.path().join("signed");
    let folder = run.path().join(candidate(&run));
    let _ = verify(&folder, &signed).taken();
    let published = tempfile::tempdir().expect("a temporary folder");
    let files = [
        "model.safetensors.index.json",
        "model-frozen.safetensors",
        "model-trainable.safetensors",
        "config.json",
    ];
    for file in files {
        std::fs::copy(folder.join(file), published.path().join(file)).expect("copied");
    }
    let _ = verify(published.path(), &signed).taken();
    flip_byte(&published.path().join("model-frozen.safetensors"), 200);
    verify(published.path(), &signed).refused("model-frozen.safetensors");
}

#[test]
fn the_validators_key_says_which_key_signed_the_model() {
    let run = RunFolder::trained();
    let _ = run_program(LEDGER, run.path(), &["keygen", "--model-signing", "--keys", "keys"]).expect_code(0);
    let _ = export(&run, "model-signing", "signed").expect_code(0);
    let said = ask_of_envelope(&run, "signed/model-signing-key.dsse.json", "validator").taken();
    assert_eq!(said["predicate_type"], "https://governed-ledger.invalid/model-signing-key/v1");
    ask_of_envelope(&run, "signed/model-signing-key.dsse.json", "trainer").refused("securesystemslib");
    let statement = statement(&run.path().join("signed/model-signing-key.dsse.json"));
    for name in ["model.sig", "model-signing.pub.pem"] {
        let bytes = std::fs::read(run.path().join("signed").join(name)).expect("the file");
        let subjects = statement["subject"].as_array().expect("subjects");
        let subject = subjects.iter().find(|subject| subject["name"] == name).expect("it is a subject");
        assert_eq!(subject["digest"]["sha256"], schemas::digest::encode_hex(&Sha256::digest(bytes)));
    }
    let report = run.report();
    assert_eq!(statement["predicate"]["model"], report["selected"]["model"]);
    assert_eq!(statement["predicate"]["run"], report["run"]);
    // Signing a model changes nothing of the run.
    assert_eq!(report["verdict"], "accepted");
    // A key that others can read signs nothing, and a changed model is not signed.
    let key = run.path().join("keys/model-signing.pem");
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("mode set");
    export(&run, "model-signing", "again").expect_complaint(2, "model-signing.pem", &["read by others"]);
    assert!(!run.path().join("again").exists());
    let json = run
        .ledger_command("export", &["--format", "slsa", "--output", "json", "--json"])
        .expect_code(0)
        .json();
    assert_eq!((&json["verdict"], &json["format"]), (&Value::from("accepted"), &Value::from("slsa")));
    assert_eq!(json["profile"], "native");
}
