//! Every field of the contract is changed alone, in the contract of a run that
//! was made under another, with everything signed again by owner and trainer.
//! Which rules then say something else is compared with the table that
//! `ledger rules --coverage` prints.
//!
//! The fields are the leaves of the contract's JSON Schema, so a field that is
//! added later has to be read by a rule too, or the table does not fit.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use schemas::body::{Body, Credit};
use schemas::contract::{Contract, CreditRule};
use schemas::digest::Digest;
use schemas::entry::{Entry, Extension};
use schemas::finding::Severity;
use schemas::ids::{IdempotencyKey, RunId};
use schemas::number::Float;
use schemas::report::Verdict;
use serde_json::{Value, json};
use sha2::Digest as _;

use super::{attempts, changed, check_table, checkpoints, evaluation, faults, ledgers, membership, probes};
use super::{retention, scaling, state_tree, stateful, statistical, warm_start, workers};
use crate::derive::shares;
use crate::fixture::{
    Fixture, NONCE, QUALIFIER, RunBuilder, StoredRun, VALIDATOR, WITNESSES, asynchronous, blake3_of,
    contract_json, external_loop, honest_run, name_witnesses, signing_key,
};

/// A run by its name.
type Base = (&'static str, fn() -> Fixture);

/// Runs in whose contracts fields are changed; of each field, the first that has
/// it and a rule that reacts.
static BASES: &[Base] = &[
    ("a run with a crash", || RunBuilder::new().crash_after_step(5).build()),
    ("a run with asynchronous saves", || asynchronous(honest_run())),
    ("a run with its sealed set beside it", || {
        changed(|f| fs::write(f.folder.path().join("qualification.age"), b"age").expect("writable"))
    }),
    ("a run with a handoff", || evaluation::with_handoff(|_| {})),
    ("a run with a plateau", || stateful::plateau().build()),
    ("a run with a shuffle buffer", || stateful::shuffle_buffer().build()),
    ("a run with a stream of masks", || stateful::dropout_stream().build()),
    ("a run with scaled losses", || scaling::scaled().build()),
    ("a run that saves inside of windows", || scaling::windows().build()),
    ("a run with averages", || {
        checkpoints::with_averages(schemas::contract::AverageOrder::AfterUpdate, |_| {})
    }),
    ("a run of two workers with a crash", || workers::two().crash_after_step(6).build()),
    ("a run with a fault", || faults::struck().build()),
    ("a run that starts warm", || warm_start::warm(|_| {})),
    ("a run of an external loop", || external_loop().crash_after_step(5).build()),
    ("a run that stops by patience", attempts::with_patience),
    ("a run that was probed within bounds", || probes::probed_under(probes::bounded, probes::within)),
    ("a run that was probed by a test", || statistical::tested(|_| {})),
    ("a run with a retirement", || retention::with_retirement(|_| {})),
    ("a run with state digests", || checkpoints::with_cadence(|_, _| {})),
    ("a run with a state tree", || state_tree::with_tree(|_| {})),
    ("a run of a campaign", || membership::member().build()),
    ("a run that says it evolved", || {
        changed(|f| {
            f.frozen.contract.credit =
                CreditRule::Evolution { antithetic: true, population: 4, rank: Some(1) };
            for entry in &mut f.entries {
                if let Body::Step(halves) = &mut entry.body {
                    halves.det.credit =
                        Credit::Evolution { evaluations: 4, fitness: Float(1.0), population: 4 };
                }
            }
        })
    }),
    ("a run with an extension", || {
        under(|c| {
            let (name, schema_digest) = ("example.org/note".to_owned(), Digest::sha256([4; 32]));
            c.extensions.push(Extension { critical: false, name, schema_digest, value: json!({}) });
        })
    }),
    ("a run with a witness", || under(|c| name_witnesses(c, 1, 1))),
    ("a run with numbers of the qualifier", || evaluation::with_val_numbers(|_| {})),
    (WITH_REPORT, honest_run),
];

/// The base whose report its validator saved beside it.
const WITH_REPORT: &str = "a run with its saved report";

/// A key that no role of the fixtures has, their witnesses included.
const OTHER_KEY: u8 = 77;

fn under(change: impl FnOnce(&mut Contract)) -> Fixture {
    changed(|fixture| change(&mut fixture.frozen.contract))
}

/// What an audit said, rule by rule: status and findings, without the values,
/// which may hold digests that any change moves.
type Results = BTreeMap<String, (String, BTreeSet<String>)>;

fn results(run: &StoredRun) -> Results {
    let report = run.audit();
    let mut results: Results = BTreeMap::new();
    for rule in &report.rules {
        results.insert(rule.code.clone(), (format!("{:?}", rule.status), BTreeSet::new()));
    }
    for finding in report.findings {
        let told = format!(
            "{:?} {:?} {:?} {} {}",
            finding.severity, finding.effect, finding.entry, finding.location, finding.message
        );
        results.entry(finding.code).or_default().1.insert(told);
    }
    results
}

/// Stores the run of a base under the text of a contract, with the names of run and contract
/// that it gives carried through every entry and manifest.
pub(super) fn stored(base: &str, mut fixture: Fixture, text: &str) -> StoredRun {
    let (old_run, old_digest) = (fixture.frozen.run.clone(), fixture.frozen.digest);
    let digest = Digest::sha256(sha2::Sha256::digest(text.as_bytes()).into());
    let run = RunId(format!("{}-{NONCE}", &digest.hex()[..16]));
    let mut names = vec![(old_run.0, run.0.clone()), (old_digest.to_string(), digest.to_string())];
    for num_workers in 1..=8 {
        let identity = |digest| shares::segment_identity(digest, num_workers).to_string();
        names.push((identity(&old_digest), identity(&digest)));
    }
    rename_manifests(fixture.folder.path(), &mut names);
    for entry in &mut fixture.entries {
        let renamed = replace(&serde_json::to_string(entry).expect("serialises"), &names);
        *entry = Entry::from_slice(renamed.as_bytes()).expect("still an entry");
        // Entries that a fixture copied have the keys of others.
        entry.header.idem = IdempotencyKey(format!("{:032x}", entry.index));
    }
    (fixture.frozen.run, fixture.frozen.digest) = (run, digest);
    let has_witness = !fixture.frozen.contract.keys.witnesses.is_empty();
    // Whoever the contract names: what lies beside the ledger was signed by these.
    let numbers = ledgers::val_numbers(&fixture, QUALIFIER);
    let stored = StoredRun::with_contract(fixture, text.to_owned());
    if let Some(numbers) = numbers {
        fs::write(stored.beside("run.db.val.dsse.json"), numbers).expect("writable");
    }
    if base == WITH_REPORT {
        ledgers::save_report(&stored, VALIDATOR);
    }
    if has_witness {
        // Whoever the contract names: the witness who stood by is this one.
        stored.write_cosigned(&stored.all_cosigned(&WITNESSES[..1]));
    }
    stored
}

fn replace(text: &str, names: &[(String, String)]) -> String {
    names.iter().fold(text.to_owned(), |text, (old, new)| text.replace(old.as_str(), new))
}

fn rename_manifests(folder: &Path, names: &mut Vec<(String, String)>) {
    let Ok(checkpoints) = fs::read_dir(folder.join("checkpoints")) else { return };
    for checkpoint in checkpoints {
        let path = checkpoint.expect("a folder").path().join("manifest.json");
        let text = fs::read_to_string(&path).expect("the fixture wrote it");
        let renamed = replace(&text, names);
        fs::write(&path, &renamed).expect("writable");
        let digest = |text: &str| blake3_of(text.as_bytes()).to_string();
        names.push((digest(&text), digest(&renamed)));
    }
}

/// The contract that a value is, where it is one in its only form.
fn is_readable(value: &Value) -> bool {
    let parsed = serde_json::from_value::<Contract>(value.clone());
    parsed.is_ok_and(|contract| serde_json::to_value(contract).expect("serialises") == *value)
}

/// Leaves of the schema by their pointers, with `*` for any place in a list.
fn leaves() -> BTreeMap<String, Vec<Value>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas/json/contract.schema.json");
    let schema: Value = serde_json::from_slice(&fs::read(path).expect("a schema")).expect("JSON");
    let mut leaves = BTreeMap::new();
    walk(&schema, &schema, String::new(), &mut leaves);
    leaves
}

fn walk(schema: &Value, node: &Value, pointer: String, leaves: &mut BTreeMap<String, Vec<Value>>) {
    if let Some(name) = node["$ref"].as_str() {
        let target = schema.pointer(name.trim_start_matches('#')).expect("a definition");
        return walk(schema, target, pointer, leaves);
    }
    let mut is_leaf = true;
    for part in ["oneOf", "anyOf", "allOf"].iter().filter_map(|key| node[*key].as_array()).flatten() {
        is_leaf = false;
        walk(schema, part, pointer.clone(), leaves);
    }
    for (name, member) in node["properties"].as_object().into_iter().flatten() {
        is_leaf = false;
        walk(schema, member, format!("{pointer}/{name}"), leaves);
    }
    if node["items"].is_object() {
        is_leaf = false;
        walk(schema, &node["items"], format!("{pointer}/*"), leaves);
    }
    if is_leaf {
        leaves.entry(pointer).or_default().push(node.clone());
    }
}

/// Another value of a tag, with the members that it needs.
fn tagged(pointer: &str) -> Option<(&'static str, Value)> {
    let patience = json!({
        "kind": "patience", "max_step": 8, "min_delta": 0.125, "patience": 1, "stream": "val",
    });
    Some(match pointer {
        "/checkpoints/keep/kind" => (
            "/checkpoints/keep",
            json!({"best": 1, "every_steps": null, "kind": "chosen", "last": 1, "pinned": []}),
        ),
        "/credit/rule" => {
            ("/credit", json!({"antithetic": true, "population": 4, "rank": null, "rule": "evolution"}))
        }
        "/membership/kind" => (
            "/membership",
            json!({
                "arm": "a", "campaign": Digest::sha256([4; 32]).to_string(), "kind": "campaign",
                "rescue_level": 0, "trial": 1,
            }),
        ),
        "/order/scheme" => ("/order", json!({"scheme": "shuffle_buffer/1", "size": 3})),
        "/schedule/*/shape/kind" => ("/schedule/0/shape", json!({"kind": "constant", "rate": 0.01})),
        "/stopping/kind" => ("/stopping", patience),
        "/dropout_draws/scheme" => ("/dropout_draws", json!({"scheme": "philox_stream/1"})),
        _ => return None,
    })
}

/// Other values of a leaf.
fn others(current: Option<&Value>, leaf: &Value) -> Vec<Value> {
    if let Some(only) = leaf.get("const") {
        return vec![only.clone()];
    }
    let is = |name: &str| match &leaf["type"] {
        Value::Array(types) => types.iter().any(|known| known == name),
        known => known == name,
    };
    let mut values = Vec::new();
    if is("null") {
        values.push(Value::Null);
    }
    if is("boolean") {
        values.extend([json!(true), json!(false)]);
    }
    if is("integer") {
        let now = current.and_then(Value::as_u64).unwrap_or(0);
        let large = [json!(1u64 << 31), json!(1u64 << 52)];
        values.extend([json!(now + 1), json!(now.saturating_sub(1)), json!(0)].into_iter().chain(large));
    }
    if is("number") {
        let now = current.and_then(Value::as_f64).unwrap_or(0.5);
        values.extend([json!(now * 2.0), json!(-1.5)]);
    }
    if is("string") {
        let now = current.and_then(Value::as_str).unwrap_or("");
        match leaf["pattern"].as_str() {
            Some(pattern) if pattern.contains("blake3") => {
                let (algorithm, hex) = now.split_once(':').unwrap_or(("sha256", ""));
                let other = if hex.starts_with('0') { '1' } else { '0' };
                values.push(json!(format!("{algorithm}:{other}{}", hex.get(1..).unwrap_or(""))));
            }
            Some(_) => values.push(json!("12345")),
            None => values.extend([json!(format!("{now}x")), json!(""), json!("2020-01-01")]),
        }
    }
    if leaf.as_object().is_some_and(|node| !node.contains_key("type")) {
        values.push(json!({"other": 1}));
    }
    values
}

/// The contract with one field changed, in each of a few ways.
fn variants(contract: &Value, pointer: &str, leaf_nodes: &[Value]) -> Vec<Value> {
    // Owner, trainer and witnesses sign the ledger itself. That any other value is
    // no key would be all that is seen of the two whose word lies beside it, so
    // they get another key.
    if matches!(pointer, "/keys/qualifier/public" | "/keys/validator/public") {
        let other = schemas::digest::encode_hex(signing_key(OTHER_KEY).verifying_key().as_bytes());
        return set(contract, pointer, Some(json!(other))).into_iter().collect();
    }
    let mut variants = Vec::new();
    if let Some((block, value)) = tagged(pointer) {
        variants.extend(set(contract, block, Some(value)));
        if pointer == "/dropout_draws/scheme" {
            variants.extend(set(contract, "/dropout_draws", None));
        }
    }
    if pointer == "/checkpoints/keep/kind" {
        variants.extend(set(contract, "/checkpoints/keep", Some(json!({"kind": "all"}))));
    }
    // Another value is harmless where it is not that of another part.
    let alike = match pointer {
        "/keys/owner/host" | "/keys/qualifier/host" | "/keys/validator/host" => Some("/keys/trainer/host"),
        "/keys/trainer/host" => Some("/keys/owner/host"),
        "/qualification/plaintext" => Some("/qualification/sealed/digest"),
        _ => None,
    };
    let alike = alike.and_then(|other| contract.pointer(other)).cloned();
    variants.extend(alike.and_then(|value| set(contract, pointer, Some(value))));
    let place = place_of(contract, pointer);
    let current = contract.pointer(&place);
    for value in leaf_nodes.iter().flat_map(|leaf| others(current, leaf)) {
        if value.is_null() {
            variants.extend(set(contract, &place, None));
        }
        variants.extend(append(contract, &place, pointer, &value));
        variants.extend(set(contract, &place, Some(value)));
    }
    variants.retain(|variant| variant != contract);
    variants
}

/// The first place of a list that has the field, or its first place.
fn place_of(contract: &Value, pointer: &str) -> String {
    let mut places = (0..4).map(|index| pointer.replace('*', &index.to_string()));
    let found = places.find(|place| contract.pointer(place).is_some());
    found.unwrap_or_else(|| pointer.replace('*', "0"))
}

/// Sets or removes a member whose parent there is.
fn set(contract: &Value, place: &str, value: Option<Value>) -> Option<Value> {
    let (parent, key) = place.rsplit_once('/')?;
    let mut changed = contract.clone();
    match (changed.pointer_mut(parent)?, value) {
        (Value::Object(members), Some(value)) => {
            members.insert(key.to_owned(), value);
        }
        (Value::Object(members), None) => {
            members.remove(key)?;
        }
        (Value::Array(items), Some(value)) => *items.get_mut(key.parse::<usize>().ok()?)? = value,
        _ => return None,
    }
    Some(changed)
}

/// Appends to a list of single values.
fn append(contract: &Value, place: &str, pointer: &str, value: &Value) -> Option<Value> {
    if !pointer.ends_with("/*") {
        return None;
    }
    let mut changed = contract.clone();
    changed.pointer_mut(place.rsplit_once('/')?.0)?.as_array_mut()?.push(value.clone());
    Some(changed)
}

/// A base with what its audit says where nothing is changed.
struct Known {
    contract: Value,
    results: Results,
}

fn known(at: usize) -> &'static Known {
    static KNOWN: [OnceLock<Known>; 32] = [const { OnceLock::new() }; 32];
    KNOWN[at].get_or_init(|| {
        let (name, run) = BASES[at];
        let fixture = run();
        let contract = serde_json::to_value(&fixture.frozen.contract).expect("serialises");
        let text = contract_json(&contract);
        Known { results: results(&stored(name, fixture, &text)), contract }
    })
}

fn reactions(at: usize, variant: &Value) -> BTreeSet<String> {
    let before = &known(at).results;
    let (name, run) = BASES[at];
    let mut fixture = run();
    // So that headers name the keys of the contract that is stored.
    if let Ok(contract) = serde_json::from_value::<Contract>(variant.clone()) {
        let has_key = |public: &str| schemas::digest::decode_hex(public).is_some_and(|key| key.len() == 32);
        if has_key(&contract.keys.owner.public) && has_key(&contract.keys.trainer.public) {
            fixture.frozen.contract = contract;
        }
    }
    let after = results(&stored(name, fixture, &contract_json(variant)));
    let codes = before.keys().chain(after.keys());
    codes.filter(|code| before.get(*code) != after.get(*code)).cloned().collect()
}

/// The line of the table for one field.
fn line(pointer: &str, leaf_nodes: &[Value]) -> String {
    let mut tried = None;
    for (at, (name, _)) in BASES.iter().enumerate() {
        let contract = &known(at).contract;
        let readable: Vec<Value> =
            variants(contract, pointer, leaf_nodes).into_iter().filter(is_readable).collect();
        if readable.is_empty() {
            continue;
        }
        tried.get_or_insert(*name);
        let codes: BTreeSet<String> = readable.iter().flat_map(|variant| reactions(at, variant)).collect();
        if !codes.is_empty() {
            let codes: Vec<String> = codes.into_iter().collect();
            return format!("{pointer}\t{}\t{name}\n", codes.join(" "));
        }
    }
    if let Some(name) = tried {
        return format!("{pointer}\t\t{name}\n");
    }
    // Any other value makes the contract none.
    for (at, (name, _)) in BASES.iter().enumerate() {
        let place = place_of(&known(at).contract, pointer);
        let Some(variant) = set(&known(at).contract, &place, Some(json!("other"))) else { continue };
        if known(at).contract.pointer(&place).is_some() && reactions(at, &variant).contains("GL101") {
            return format!("{pointer}\tGL101\t{name}\n");
        }
    }
    panic!("{pointer} was changed in no base: add one that has it");
}

#[test]
fn every_field_of_the_contract_is_read_by_a_rule_or_excused() {
    let leaves: Vec<(String, Vec<Value>)> = leaves().into_iter().collect();
    assert!(leaves.len() > 150, "{}", leaves.len());
    let (next, lines) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((pointer, nodes)) = leaves.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let line = line(pointer, nodes);
                    lines.lock().expect("no thread panicked").insert(pointer, line);
                }
            });
        }
    });
    let lines = lines.into_inner().expect("no thread panicked");
    check_table("fields.txt", &lines.into_values().collect::<String>());
}

/// What carries a change through changes nothing by itself: a run under its own
/// contract is accepted.
#[test]
fn a_run_that_is_stored_again_is_accepted() {
    for (at, (name, _)) in BASES.iter().enumerate() {
        let failed: Vec<_> = known(at).results.iter().filter(|(_, (status, _))| status == "Failed").collect();
        let is_odd = ["campaign", "evolved", "warm", "handoff"].iter().any(|word| name.contains(word));
        assert!(failed.is_empty() || is_odd, "{name}: {failed:#?}");
    }
}

/// What a freeze does not write, although serde reads it as the same: with everything
/// signed again there is nothing else to find.
#[test]
fn a_contract_in_a_second_form_is_rejected_for_that_alone() {
    let contract = serde_json::to_value(honest_run().frozen.contract).expect("serialises");
    let members = contract["batch"].as_object().expect("an object").values().cloned();
    for (place, value) in [
        ("/state_digest_every_steps", None),
        ("/numerics/loss_scaler", None),
        ("/averages", Some(Value::Null)),
        ("/batch", Some(members.collect())),
        ("/credit/population", Some(json!(4))),
    ] {
        let variant = set(&contract, place, value).expect("its parent is there");
        let read: Contract = serde_json::from_value(variant.clone()).expect("serde reads the same");
        assert_eq!(serde_json::to_value(read).expect("serialises"), contract, "{place}");
        let report = stored("an honest run", honest_run(), &contract_json(&variant)).audit();
        let errors = report.findings.iter().filter(|finding| finding.severity == Severity::Error);
        let errors: Vec<_> = errors.map(|finding| (finding.code.as_str(), &*finding.location)).collect();
        assert_eq!(errors, [("GL101", &*format!("/body/det/contract#{place}"))], "{:#?}", report.findings);
        assert_eq!(report.verdict, Verdict::Rejected, "{place}");
    }
}
