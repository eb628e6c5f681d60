//! Files that are missing, are others than named, or lie elsewhere.

use serde_json::json;

use crate::fixture::{Fixture, QUALIFICATION, lines, table};

#[test]
fn wrong_digest_and_size_name_both() {
    let mut fixture = Fixture::new();
    let frozen = fixture.check().expect("nothing is wrong").contract.update.card;
    let named = format!("blake3:{}", "00".repeat(32));
    fixture.set("/update/card/digest", json!(named));
    fixture.set("/update/card/num_bytes", json!(7));
    let (digest, num_bytes) = (frozen.digest.expect("filled"), frozen.num_bytes.expect("filled"));
    assert_eq!(
        lines(fixture.check()),
        [
            format!("contract.json /update/card/digest: policy.json has digest {digest}; expected {named}"),
            format!("contract.json /update/card/num_bytes: policy.json has {num_bytes} bytes; expected 7"),
        ]
    );
}

#[test]
fn a_shard_that_changed_is_named_with_its_table() {
    let fixture = Fixture::new();
    let mut bytes = std::fs::read(fixture.path("data/train-1.txt")).expect("readable");
    let before = blake3::hash(&bytes);
    bytes[20] ^= 1;
    fixture.write("data/train-1.txt", &bytes);
    let found = lines(fixture.check());
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("contract.json /data/train_examples: data/train.examples is not the table of the train split: record 12 is (shard 1, offset 16, 8 targets, id "), "{found:?}");
    assert_eq!(
        found[1],
        format!(
            "manifest.json /shards/1/digest: train-1.txt has digest blake3:{}; expected blake3:{}",
            blake3::hash(&bytes).to_hex(),
            before.to_hex()
        )
    );
}

#[test]
fn missing_files() {
    let fixture = Fixture::new();
    for path in ["sealed.age", "parameters.json", "policy.json", "data/val.examples", "data/train-0.txt"] {
        std::fs::remove_file(fixture.path(path)).expect("removed");
    }
    let found = lines(fixture.check());
    let starts: Vec<&str> = found.iter().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(
        starts,
        [
            "contract.json /data/train_examples",
            "contract.json /data/val_examples/path",
            "manifest.json /shards/0/path",
            "contract.json /qualification/sealed/path",
            "contract.json /update/card/path",
            "contract.json /parameters/path",
        ]
    );
    for line in found.iter().skip(1) {
        assert!(line.ends_with("does not exist"), "{line}");
    }
    let fixture = Fixture::new();
    std::fs::remove_file(fixture.path("data/manifest.json")).expect("removed");
    let found = lines(fixture.check());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("contract.json /data/manifest/path: "), "{found:?}");
}

#[test]
fn paths_out_of_the_folder() {
    let outside = tempfile::NamedTempFile::new().expect("a file");
    for (path, message) in [
        ("/etc/hostname", "the path \"/etc/hostname\" is absolute"),
        ("../card.json", "the path \"../card.json\" has an empty part, `.` or `..`"),
        (
            "s3://bucket/card.json",
            "the path \"s3://bucket/card.json\" is an address; this edition reads and writes files only",
        ),
    ] {
        let mut fixture = Fixture::new();
        fixture.set("/update/card/path", json!(path));
        assert_eq!(lines(fixture.check()), [format!("contract.json /update/card/path: {message}")]);
    }
    let fixture = Fixture::new();
    std::fs::remove_file(fixture.path("policy.json")).expect("removed");
    std::os::unix::fs::symlink(outside.path(), fixture.path("policy.json")).expect("linked");
    let found = lines(fixture.check());
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("leads through a link to"), "{found:?}");
    let mut fixture = Fixture::new();
    fixture.set("/update/card/path", json!("data"));
    assert!(lines(fixture.check())[0].ends_with("is not a regular file"));
    let fixture = Fixture::new();
    fixture
        .edit_file("data/manifest.json", |manifest| manifest["shards"][0]["path"] = json!("../policy.json"));
    let found = lines(fixture.check());
    assert!(
        found
            .iter()
            .any(|line| line.starts_with("manifest.json /shards/0/path: the path \"../policy.json\"")),
        "{found:?}"
    );
}

#[test]
fn a_link_inside_the_folder_is_a_file() {
    let fixture = Fixture::new();
    std::fs::rename(fixture.path("policy.json"), fixture.path("card.json")).expect("renamed");
    std::os::unix::fs::symlink("card.json", fixture.path("policy.json")).expect("linked");
    fixture.check().expect("nothing is wrong");
}

/// The train table with one change.
fn check_table(bytes: &[u8], expected: &str) {
    let fixture = Fixture::new();
    fixture.write("data/train.examples", bytes);
    let found = lines(fixture.check());
    assert_eq!(found.len(), 1, "{found:?}");
    let prefix =
        "contract.json /data/train_examples: data/train.examples is not the table of the train split: ";
    let difference = found[0].strip_prefix(prefix).expect("about the table");
    assert!(difference.starts_with(expected), "{difference}");
}

#[test]
fn tables_that_the_shards_do_not_give() {
    let fixture = Fixture::new();
    let table_bytes = std::fs::read(fixture.path("data/train.examples")).expect("readable");
    check_table(&table_bytes[..table_bytes.len() - 1], "it ends before record 17");
    check_table(b"", "it does not begin as an example table does");
    check_table(&[&table_bytes[..], b"x"].concat(), "1 bytes follow its last record");
    let mut other = table_bytes.clone();
    other[8] += 1;
    check_table(&other, "it announces 19 records; the shards give 18");
    let mut other = table_bytes.clone();
    other[16 + 48 * 3 + 4] -= 1;
    check_table(&other, "record 3 is (shard 0, offset 24, 7 targets, id ");
    let mut other = table_bytes.clone();
    other[16 + 48 * 17 + 47] ^= 0x80;
    check_table(&other, "record 17 is (shard 1, offset 56, 1 targets, id ");
    // Two records exchanged.
    let mut other = table_bytes.clone();
    other.copy_within(16..16 + 48, 16 + 48);
    other[16..16 + 48].copy_from_slice(&table_bytes[16 + 48..16 + 96]);
    check_table(&other, "record 0 is (shard 0, offset 8, 8 targets, id ");
}

#[test]
fn text_that_gives_no_example() {
    let fixture = Fixture::new();
    fixture.write("data/val-0.txt", b"x");
    fixture.write("data/val.examples", &table(&[]));
    fixture.edit_file("data/manifest.json", |manifest| {
        manifest["shards"][2]["digest"] = json!(format!("blake3:{}", blake3::hash(b"x").to_hex()));
        manifest["shards"][2]["num_bytes"] = json!(1);
    });
    assert_eq!(
        lines(fixture.check()),
        ["contract.json /data/val_examples: the val split gives no example; each needs two bytes of text"]
    );
}

#[test]
fn a_manifest_that_contradicts_the_contract() {
    let fixture = Fixture::new();
    fixture.edit_file("data/manifest.json", |manifest| {
        manifest["format"] = json!("data-manifest/2");
        manifest["tokenizer"] = json!("bpe");
        manifest["shards"][0]["license_class"] = json!("red");
        manifest["shards"][1]["source"] = json!(" ");
        manifest["barrier"] = json!({
            "digest": format!("blake3:{}", "00".repeat(32)), "method": "13-byte spans", "num_caught": 0, "path": "none.json"
        });
    });
    let found = lines(fixture.check());
    assert_eq!(found.len(), 5, "{found:?}");
    assert_eq!(
        found[..4],
        [
            "manifest.json /format: is \"data-manifest/2\"; expected \"data-manifest/1\"",
            "manifest.json /tokenizer: is \"bpe\"; expected \"bytes\"",
            "manifest.json /shards/0/license_class: Red is not admitted by /data/admitted_license_classes of the contract",
            "manifest.json /shards/1/source: is empty",
        ]
    );
    assert!(found[4].starts_with("manifest.json /barrier/path: "), "{found:?}");
}

#[test]
fn splits_that_are_not_apart() {
    let fixture = Fixture::new();
    fixture.edit_file("data/manifest.json", |manifest| {
        let mut shards = manifest["shards"].as_array().cloned().expect("a list");
        shards.push(json!({
            "digest": format!("blake3:{}", blake3::hash(QUALIFICATION).to_hex()), "license_class": "green",
            "num_bytes": QUALIFICATION.len(), "path": "held-out.txt", "source": "x", "split": "qualification"
        }));
        let mut copy = shards[0].clone();
        copy["split"] = json!("val");
        shards.push(copy);
        manifest["shards"] = json!(shards);
    });
    fixture.write("data/held-out.txt", QUALIFICATION);
    let found = lines(fixture.check());
    for expected in [
        "manifest.json /shards/3/split: is \"qualification\"; expected \"train\" or \"val\"",
        "manifest.json /shards/3/digest: is the digest of the sealed qualification set, which would be seen in training",
        "manifest.json /shards/4/path: train-0.txt is named by /shards/0 too",
        "manifest.json /shards/4/digest: the same bytes are in /shards/0 for the train split",
    ] {
        assert!(found.iter().any(|line| line == expected), "{expected} is not in {found:#?}");
    }
    let fixture = Fixture::new();
    fixture.edit_file("data/manifest.json", |manifest| {
        manifest["shards"].as_array_mut().expect("a list").truncate(2);
    });
    assert!(
        lines(fixture.check()).contains(&"manifest.json /shards: has no shard of the val split".to_owned())
    );
}

#[test]
fn a_sealed_set_that_is_open() {
    let mut fixture = Fixture::new();
    fixture.write("notes/held-out.txt", QUALIFICATION);
    let found = lines(fixture.check());
    assert_eq!(found.len(), 1);
    assert!(
        found[0].ends_with("held-out.txt is the plaintext of the sealed set, within the trainer's reach"),
        "{found:?}"
    );
    std::fs::remove_file(fixture.path("notes/held-out.txt")).expect("removed");
    fixture.write("sealed.age", QUALIFICATION);
    fixture.set("/qualification/plaintext", json!(format!("sha256:{}", "00".repeat(32))));
    let found = lines(fixture.check());
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("contract.json /qualification/plaintext: is sha256:"), "{found:?}");
    assert!(found[1].ends_with("sealed.age is not a file of age"), "{found:?}");
}

#[test]
fn a_parameter_manifest_of_another_model() {
    let fixture = Fixture::new();
    fixture.edit_file("parameters.json", |manifest| {
        let list = manifest["parameters"].as_array_mut().expect("a list");
        list[0]["group"] = json!("matrices");
        list[1]["shape"] = json!([9]);
        list[2]["initializer"]["std"] = json!(0.03);
        list[3]["status"] = json!("frozen");
        list[4]["dtype"] = json!("BF16");
        list[5]["path"] = json!("model.layers.0.post_norm.weight");
        list[6]["tied_to"] = json!("model.norm.weight");
        list.swap(8, 9);
    });
    let at = "parameters.json /parameters/";
    let layer = "model.layers.0.";
    let mut found = lines(fixture.check());
    found.sort();
    assert_eq!(
        found,
        [
            format!("{at}0/group: model.embed_tokens.weight: is matrices; expected embeddings"),
            format!("{at}1/shape: {layer}input_layernorm.weight: is [9]; expected [8]"),
            format!(
                "{at}2/initializer: {layer}mlp.down_proj.weight: is Normal {{ std: 0.03 }}; expected Normal {{ std: 0.02 }}"
            ),
            format!("{at}3/group: {layer}mlp.gate_proj.weight: is matrices; expected null"),
            format!("{at}4/dtype: {layer}mlp.up_proj.weight: is BF16; expected F32"),
            format!("{at}5/path: {layer}post_norm.weight is no parameter of the architecture"),
            format!("{at}6/tied_to: {layer}self_attn.k_proj.weight: is model.norm.weight; expected null"),
            format!(
                "{at}9/path: {layer}self_attn.q_proj.weight does not follow {layer}self_attn.v_proj.weight in byte order"
            ),
            format!("parameters.json /parameters: has no {layer}post_attention_layernorm.weight"),
        ]
    );
    let fixture = Fixture::new();
    fixture.edit_file("parameters.json", |manifest| {
        for parameter in manifest["parameters"].as_array_mut().expect("a list") {
            parameter["status"] = json!("frozen");
            parameter["group"] = json!(null);
        }
    });
    assert_eq!(lines(fixture.check()), ["parameters.json /parameters: freezes every parameter"]);
    // An untied head is a parameter of its own.
    let mut fixture = Fixture::new();
    fixture.set("/architecture/tied_embeddings", json!(false));
    assert_eq!(lines(fixture.check()), ["parameters.json /parameters: has no lm_head.weight"]);
}

#[test]
fn a_card_that_the_trainer_does_not_execute() {
    let fixture = Fixture::new();
    fixture.edit_file("policy.json", |card| {
        card["format"] = json!("policy-card/2");
        card["nonclaims"] = json!([]);
        card["implementation"]["name"] = json!("torch.optim.AdamW");
        card["groups"][1]["name"] = json!("matrices");
        card["groups"][2]["learning_rate_multiplier"] = json!(0);
        card["groups"][2]["weight_decay"] = json!(-0.1);
        card["update"]["beta1"] = json!(1);
        card["update"]["epsilon"] = json!(0);
        card["update"]["moment_dtype"] = json!("BF16");
        card["checkpoint_state"][0]["suffix"] = json!("momentum");
        card["clipping"]["max_norm"] = json!(1e9);
        card["preconditioner_every_steps"] = json!(10);
        card["stopping_rule"] = json!("when it diverges");
        card["rescue_ladder"] = json!(["halve the rate"]);
        card["distribution"] = json!({"communication": "all_reduce", "placement": "sharded"});
        card["approximation"] =
            json!({"algorithm": "newton_schulz", "num_iterations": 5, "precision": "bf16"});
        card["fallback"] = json!({"groups": ["vectors"], "update": card["update"]});
    });
    let found = lines(fixture.check());
    let pointers: Vec<&str> =
        found.iter().filter_map(|line| line.strip_prefix("policy.json ")?.split(": ").next()).collect();
    assert_eq!(
        pointers,
        [
            "/format",
            "/nonclaims",
            "/implementation/name",
            "/groups/1/name",
            "/groups/2/learning_rate_multiplier",
            "/groups/2/weight_decay",
            "/update/beta1",
            "/update/epsilon",
            "/update/moment_dtype",
            "/checkpoint_state",
            "/checkpoint_state/0/dtype",
            "/checkpoint_state/1/dtype",
            "/clipping/max_norm",
            "/approximation",
            "/fallback",
            "/preconditioner_every_steps",
            "/stopping_rule",
            "/rescue_ladder",
            "/distribution/placement",
            "/distribution/communication",
        ]
    );
    // The groups no longer cover the schedule, nor each a parameter.
    assert!(found.contains(
        &"contract.json /schedule/1/group: \"embeddings\" is no group of the policy card".to_owned()
    ));
}

#[test]
fn groups_that_do_not_partition_the_parameters() {
    let mut fixture = Fixture::new();
    fixture.edit_file("policy.json", |card| {
        card["groups"].as_array_mut().expect("a list").remove(1);
        card["groups"][0]["eligible"] = json!("vectors");
    });
    fixture.contract["schedule"].as_array_mut().expect("a list").remove(1);
    let found = lines(fixture.check());
    let about_card: Vec<&String> =
        found.iter().filter(|line| line.starts_with("contract.json /update/card")).collect();
    assert_eq!(about_card.len(), 1 + 7 * 2 + 1, "{about_card:#?}");
    assert_eq!(
        about_card[0],
        "contract.json /update/card: no group of the card takes model.embed_tokens.weight"
    );
    assert_eq!(
        *about_card[15],
        "contract.json /update/card: group \"vectors\" of the card takes no parameter of this architecture"
    );
}
