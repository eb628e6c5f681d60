//! Reads the documents that the contract binds from the ledger's `artifacts`
//! table, by digest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use schemas::contract::{FileBinding, Membership};
use schemas::data::{DataManifest, Split};
use schemas::digest::Digest;
use schemas::parameters::ParameterManifest;
use schemas::policy_card::PolicyCard;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::canonical::check_entry_json;
use crate::contract::ContractRead;
use crate::form;
use crate::frozen::{Bound, ExampleTable, Frozen, FrozenPreregistration};
use crate::profile;
use crate::rule::{At, Outcome, Sink};
use crate::store::Store;

/// Bindings whose bytes an audit needs, so that the ledger must hold them.
const REQUIRED: [&str; 5] =
    ["/data/manifest", "/data/train_examples", "/data/val_examples", "/parameters", "/update/card"];

/// Required besides where the run belongs to a campaign.
const PREREGISTRATION: &str = "/membership/preregistration";

/// Largest batch whose draws are derived: every step costs its batch, and a
/// contract may claim any number.
const MAX_GLOBAL_EXAMPLES: u32 = 1 << 20;

/// Checks the artifacts table against entry 0 and the contract (GL104), and
/// the documents in it (GL105).
pub(crate) fn read(
    read: &ContractRead,
    store: &Store,
    sinks: (&mut Sink, &mut Sink),
) -> (Frozen, [Outcome; 2]) {
    let (artifact_sink, document_sink) = sinks;
    check_list(read, artifact_sink);
    let mut stored: BTreeMap<Digest, Vec<u8>> = BTreeMap::new();
    let listed: BTreeMap<Digest, u64> =
        read.det.artifacts.iter().map(|artifact| (artifact.digest, artifact.num_bytes)).collect();
    let mut num_rows = 0;
    let result = store.for_each_artifact(|name, bytes| {
        num_rows += 1;
        let actual = Digest::blake3(*blake3::hash(bytes).as_bytes());
        let place = || At::place(format!("artifacts, row {}", schemas::digest::encode_hex(name)));
        if name != actual.bytes {
            artifact_sink.tampered(
                place(),
                "an artifact's bytes do not have the digest that names them",
                schemas::digest::encode_hex(name),
                actual.hex(),
            );
            return;
        }
        match listed.get(&actual) {
            None => artifact_sink.rejected(
                place(),
                "an artifact that the freeze did not store",
                "only what contract.frozen lists",
                format!("{} bytes", bytes.len()),
            ),
            Some(num_bytes) => {
                if *num_bytes != bytes.len() as u64 {
                    artifact_sink.rejected(
                        place(),
                        "an artifact has another size than listed",
                        num_bytes,
                        bytes.len(),
                    );
                }
                stored.insert(actual, bytes.to_vec());
            }
        }
    });
    if let Err(error) = result {
        artifact_sink.tampered(At::place("artifacts"), "SQLite finds the table damaged", "rows", error);
    }
    for artifact in read.det.artifacts.iter().filter(|artifact| !stored.contains_key(&artifact.digest)) {
        artifact_sink.tampered(
            At::entry(0, &artifact.pointer),
            "a document that the freeze stored is missing from the ledger, or damaged",
            artifact.digest,
            "no such row in `artifacts`",
        );
    }
    let frozen = parse(read, stored, document_sink);
    (frozen, [Outcome::Checked(num_rows), Outcome::Checked(REQUIRED.len() as u64)])
}

/// Compares the list in entry 0 with the contract's own bindings.
fn check_list(read: &ContractRead, sink: &mut Sink) {
    let mut seen = BTreeSet::new();
    for (index, artifact) in read.det.artifacts.iter().enumerate() {
        let at = || At::entry(0, format!("/body/det/artifacts/{index}"));
        let binding = read
            .value
            .pointer(&artifact.pointer)
            .and_then(|value| serde_json::from_value::<FileBinding>(value.clone()).ok());
        match binding {
            None => sink.rejected(
                at(),
                "a stored artifact is not bound by the contract",
                "a pointer to a file binding",
                &artifact.pointer,
            ),
            Some(binding)
                if binding.digest != Some(artifact.digest)
                    || binding.num_bytes != Some(artifact.num_bytes) =>
            {
                sink.rejected(
                    at(),
                    format!("the artifact is not the one that the contract binds at {}", artifact.pointer),
                    describe(&binding),
                    format!("{} with {} bytes", artifact.digest, artifact.num_bytes),
                );
            }
            Some(_) => {}
        }
        if !seen.insert(artifact.pointer.as_str()) {
            sink.rejected(at(), "a binding is listed twice", "each pointer once", &artifact.pointer);
        }
    }
    let preregistration = preregistration(read).map(|_| PREREGISTRATION.to_owned());
    let required = REQUIRED
        .into_iter()
        .map(str::to_owned)
        .chain(preregistration)
        .chain(profile::pointers(&read.contract));
    for pointer in required.filter(|pointer| !seen.contains(pointer.as_str())) {
        sink.rejected(
            At::entry(0, "/body/det/artifacts"),
            format!("the document that the contract binds at {pointer} is not stored"),
            &pointer,
            "no artifact with this pointer",
        );
    }
}

/// Where the campaign's preregistration is bound.
fn preregistration(read: &ContractRead) -> Option<&FileBinding> {
    match &read.contract.membership {
        Membership::Campaign { preregistration, .. } => Some(preregistration),
        Membership::Standalone => None,
    }
}

fn describe(binding: &FileBinding) -> String {
    let digest = binding.digest.map_or("no digest".to_owned(), |digest| digest.to_string());
    let num_bytes = binding.num_bytes.map_or("no size".to_owned(), |bytes| format!("{bytes} bytes"));
    format!("{digest} with {num_bytes}")
}

fn parse(read: &ContractRead, mut stored: BTreeMap<Digest, Vec<u8>>, sink: &mut Sink) -> Frozen {
    let contract = &read.contract;
    let take = |pointer: &str, binding: &FileBinding| -> Bound<Vec<u8>> {
        let digest = binding.digest.ok_or(format!("the contract binds no digest at {pointer}"))?;
        // Two bindings may name the same bytes.
        stored.get(&digest).cloned().ok_or(format!("the document bound at {pointer} is not in the ledger"))
    };
    let manifest_bytes = take("/data/manifest", &contract.data.manifest);
    let train_bytes = take("/data/train_examples", &contract.data.train_examples);
    let val_bytes = take("/data/val_examples", &contract.data.val_examples);
    let parameter_bytes = take("/parameters", &contract.parameters);
    let card_bytes = take("/update/card", &contract.update.card);
    let preregistration = preregistration(read).map(|binding| {
        let parsed = take(PREREGISTRATION, binding).and_then(FrozenPreregistration::parse);
        report(parsed, PREREGISTRATION, sink)
    });
    stored.clear();
    let data = document(manifest_bytes, "/data/manifest", sink, check_manifest);
    let parameters = document(parameter_bytes, "/parameters", sink, check_parameters);
    let card = document(card_bytes, "/update/card", sink, |card: &PolicyCard| {
        format_tag(&card.format, schemas::POLICY_CARD_FORMAT)
    });
    let table = |bytes: Bound<Vec<u8>>, pointer: &str, split: Split, sink: &mut Sink| {
        let table = bytes.and_then(|bytes| {
            let table = ExampleTable::parse(bytes)?;
            check_table(&table, data.as_ref().ok(), split, read)?;
            check_batch(split, contract.batch.global_examples)?;
            Ok(table)
        });
        report(table, pointer, sink)
    };
    let train_examples = table(train_bytes, "/data/train_examples", Split::Train, sink);
    let val_examples = table(val_bytes, "/data/val_examples", Split::Val, sink);
    Frozen {
        contract: contract.clone(),
        digest: read.digest,
        run: read.run.clone(),
        card,
        data,
        parameters,
        preregistration,
        train_examples,
        val_examples,
    }
}

/// Reads a document that the contract binds by the digest of its file. The freeze
/// stores it as it found it, so that one meaning may have several forms: those are
/// told and judged by nobody.
fn document<T: DeserializeOwned + Serialize>(
    bytes: Bound<Vec<u8>>,
    pointer: &str,
    sink: &mut Sink,
    check: impl Fn(&T) -> Bound<()>,
) -> Bound<T> {
    let parsed = bytes.and_then(|bytes| {
        let mut note = |other: &dyn Display| {
            let message = "a bound document is not in canonical form, so only its bytes identify it";
            sink.note(At::entry(0, pointer), message, "canonical entry JSON", other);
        };
        let spelling = check_entry_json(&bytes);
        if let Err(problem) = &spelling {
            note(problem);
        }
        // serde refuses a field that occurs twice, so meaning is unambiguous.
        let document: T = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        if let Some(place) = form::first_unread_member(&document, &bytes) {
            return Err(format!("{place} is an unknown member"));
        }
        if spelling.is_ok()
            && let Some(place) = form::first_other_place(&document, &bytes)
        {
            note(&format!("{place}: a field is left out or has another form"));
        }
        check(&document)?;
        Ok(document)
    });
    report(parsed, pointer, sink)
}

fn report<T>(parsed: Bound<T>, pointer: &str, sink: &mut Sink) -> Bound<T> {
    parsed.map_err(|reason| {
        sink.rejected(
            At::entry(0, format!("/body/det/contract#{pointer}")),
            "a document that the contract binds cannot be used",
            "a well-formed document of its type",
            &reason,
        );
        format!("the document at {pointer} cannot be used: {reason}")
    })
}

fn format_tag(actual: &str, expected: &str) -> Bound<()> {
    if actual == expected { Ok(()) } else { Err(format!("its format is {actual:?}, expected {expected:?}")) }
}

fn check_manifest(manifest: &DataManifest) -> Bound<()> {
    format_tag(&manifest.format, schemas::DATA_MANIFEST_FORMAT)?;
    let mut paths = BTreeSet::new();
    for shard in &manifest.shards {
        if shard.split == Split::Qualification {
            return Err(format!("it lists {}, which is of the qualification split", shard.path));
        }
        if !paths.insert(shard.path.as_str()) {
            return Err(format!("it lists {} twice", shard.path));
        }
    }
    Ok(())
}

fn check_parameters(manifest: &ParameterManifest) -> Bound<()> {
    format_tag(&manifest.format, schemas::PARAMETER_MANIFEST_FORMAT)?;
    let mut pairs = manifest.parameters.windows(2);
    match pairs.find(|pair| pair[0].path >= pair[1].path) {
        Some(pair) => Err(format!("its paths do not ascend: {} before {}", pair[0].path, pair[1].path)),
        None => Ok(()),
    }
}

/// What updates draw from can be followed through the whole run.
fn check_batch(split: Split, global_examples: u32) -> Bound<()> {
    if split != Split::Train || global_examples <= MAX_GLOBAL_EXAMPLES {
        return Ok(());
    }
    Err(format!(
        "/batch/global_examples is {global_examples}; draws of more than {MAX_GLOBAL_EXAMPLES} examples a step are not derived"
    ))
}

/// Every record lies within a shard of its split.
fn check_table(
    table: &ExampleTable,
    manifest: Option<&DataManifest>,
    split: Split,
    read: &ContractRead,
) -> Bound<()> {
    let Some(manifest) = manifest else { return Ok(()) };
    let schemas::contract::Architecture::LlamaDecoder(model) = &read.contract.architecture;
    for (index, record) in table.iter().enumerate() {
        let shard = usize::try_from(record.shard).ok().and_then(|shard| manifest.shards.get(shard));
        let end = record.offset.checked_add(u64::from(record.num_targets) + 1);
        let fits =
            shard.is_some_and(|shard| shard.split == split && end.is_some_and(|end| end <= shard.num_bytes));
        if !fits || record.num_targets == 0 || record.num_targets > model.context_length {
            return Err(format!(
                "its record {index} is not a window of a {} shard of the manifest",
                split.name()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use schemas::finding::{Finding, Severity};
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture::card;
    use crate::rules::gl105_frozen_documents;

    /// The fixture's card as read after a change of its text, and what is found.
    fn changed_card(change: impl FnOnce(&mut Value)) -> (Bound<PolicyCard>, Vec<Finding>) {
        let mut value = serde_json::to_value(card(1)).expect("serialises");
        change(&mut value);
        let bytes = serde_json::to_vec(&value).expect("serialises");
        let mut sink = Sink::new(&gl105_frozen_documents::INFO);
        let read = document(Ok(bytes), "/update/card", &mut sink, |_: &PolicyCard| Ok(()));
        (read, sink.into_findings())
    }

    #[test]
    fn a_card_in_its_own_form_is_read_and_nothing_is_found() {
        let (read, findings) = changed_card(|_| {});
        assert_eq!(read, Ok(card(1)));
        assert!(findings.is_empty(), "{findings:#?}");
    }

    /// Its owner wrote it, and its digest is that of the file.
    #[test]
    fn a_card_that_leaves_out_what_is_null_says_the_same_and_is_noted() {
        let (read, findings) = changed_card(|value| {
            value.as_object_mut().expect("an object").remove("stopping_rule").expect("it is null");
        });
        assert_eq!(read, Ok(card(1)));
        let [found] = findings.as_slice() else { panic!("{findings:#?}") };
        assert_eq!(found.severity, Severity::Note);
        assert!(found.actual.starts_with("/stopping_rule: "), "{}", found.actual);
    }

    #[test]
    fn a_card_with_a_member_that_nothing_reads_is_rejected() {
        let (read, findings) =
            changed_card(|value| value["clipping"] = json!({"kind": "none", "max_norm": 1.0}));
        let reason = read.expect_err("it says two things");
        assert!(reason.contains("/clipping/max_norm"), "{reason}");
        let [found] = findings.as_slice() else { panic!("{findings:#?}") };
        assert_eq!((found.code.as_str(), found.severity), ("GL105", Severity::Error));
    }

    #[test]
    fn a_batch_that_no_audit_could_follow_is_refused() {
        assert!(check_batch(Split::Train, MAX_GLOBAL_EXAMPLES).is_ok());
        assert!(check_batch(Split::Val, u32::MAX).is_ok());
        let reason = check_batch(Split::Train, u32::MAX).expect_err("too large");
        assert!(reason.contains("global_examples"), "{reason}");
    }
}
