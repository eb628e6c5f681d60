//! The JSON Schema files are those that the types give, and the golden entries
//! validate against them. `UPDATE_SCHEMAS=1` writes the files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schemas::json_schema::documents;
use serde_json::{Value, json};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn validator(name: &str) -> jsonschema::Validator {
    let schema: Value = serde_json::from_str(&read(&folder("json").join(name))).expect("JSON");
    jsonschema::draft202012::meta::validate(&schema).expect("a schema of draft 2020-12");
    jsonschema::draft202012::new(&schema).expect("a schema that needs no other file")
}

fn samples() -> Vec<Value> {
    let text = read(&folder("golden").join("entries.jsonl"));
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn files_are_those_that_the_types_give() {
    let update = std::env::var_os("UPDATE_SCHEMAS").is_some();
    let mut names = BTreeSet::new();
    for (name, schema) in documents() {
        let path = folder("json").join(name);
        let mut text = serde_json::to_string_pretty(&schema).expect("writable");
        text.push('\n');
        if update {
            // Renamed into place, because other tests read the files meanwhile.
            let temporary = folder("golden").join(format!("{name}.new"));
            std::fs::write(&temporary, &text).expect("written");
            std::fs::rename(&temporary, &path).expect("renamed");
        }
        assert!(
            read(&path) == text,
            "{name} differs from the types; run UPDATE_SCHEMAS=1 cargo test -p schemas --features json-schema"
        );
        names.insert(name.to_owned());
    }
    let present: BTreeSet<String> = std::fs::read_dir(folder("json"))
        .expect("the folder")
        .map(|file| file.expect("a file").file_name().into_string().expect("text"))
        .collect();
    assert_eq!(present, names, "a file that no type gives");
}

#[test]
fn every_golden_entry_validates_and_departures_do_not() {
    let validator = validator("entry.schema.json");
    for (index, sample) in samples().iter().enumerate() {
        let errors: Vec<String> = validator.iter_errors(sample).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "line {index}: {errors:?}");
        let mut changed = sample.clone();
        changed["level"] = json!(1);
        assert!(!validator.is_valid(&changed), "line {index} with an unknown member");
        for member in ["actor", "body", "format", "idem", "index", "kind", "run", "time_us"] {
            let mut changed = sample.clone();
            changed.as_object_mut().expect("an object").remove(member);
            assert!(!validator.is_valid(&changed), "line {index} without {member}");
        }
        let mut changed = sample.clone();
        changed["body"]["det"]["unknown"] = json!(1);
        assert!(!validator.is_valid(&changed), "line {index} with an unknown det member");
        let mut changed = sample.clone();
        changed["index"] = json!(-1);
        assert!(!validator.is_valid(&changed), "line {index} with a negative index");
    }
}

#[test]
fn a_body_of_another_kind_does_not_validate() {
    let validator = validator("entry.schema.json");
    let samples = samples();
    let of = |kind: &str| samples.iter().find(|sample| sample["kind"] == kind).expect("a sample").clone();
    for (kind, other) in
        [("step", "eval"), ("run.start", "run.end"), ("checkpoint.failed", "checkpoint.retired")]
    {
        let mut mixed = of(kind);
        mixed["body"] = of(other)["body"].clone();
        assert!(!validator.is_valid(&mixed), "{kind} with the body of {other}");
    }
}

#[test]
fn the_golden_contract_validates_and_departures_do_not() {
    let validator = validator("contract.schema.json");
    let golden =
        |name: &str| -> Value { serde_json::from_str(&read(&folder("golden").join(name))).expect("JSON") };
    for name in ["contract.canonical.json", "contract.wide.json"] {
        let errors: Vec<String> =
            validator.iter_errors(&golden(name)).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
    }
    let preregistration = golden("preregistration.canonical.json");
    assert!(self::validator("preregistration.schema.json").is_valid(&preregistration));
    let contract = golden("contract.canonical.json");
    for pointer in
        ["/architecture", "/keys/owner", "/schedule/0/shape", "/data/manifest", "/purpose/authority"]
    {
        let mut changed = contract.clone();
        let object = changed.pointer_mut(pointer).and_then(Value::as_object_mut).expect("an object");
        object.insert("unknown".to_owned(), json!(1));
        assert!(!validator.is_valid(&changed), "an unknown member in {pointer}");
    }
}

#[test]
fn no_schema_refers_to_another_document() {
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(reference)) = members.get("$ref") {
                    found.push(reference.clone());
                }
                members.values().for_each(|member| references(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }
    for (name, schema) in documents() {
        let mut found = Vec::new();
        references(&schema, &mut found);
        assert!(found.iter().all(|reference| reference.starts_with('#')), "{name}: {found:?}");
        validator(name);
    }
}
