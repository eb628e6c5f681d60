//! SLSA provenance v1 of the selected candidate: what it was made from, by which
//! code, under which parameters (slsa.dev/spec/v1.0/provenance).
//!
//! Only of a run that was accepted. It is derived from the record by the
//! validator and signed by it; the trainer is the builder and signs nothing here.
//! No SLSA build level is claimed: the trainer runs where its operator says.

use std::collections::BTreeMap;
use std::path::Path;

use ledger::keys::KeyPair;
use schemas::contract::{EvidenceProfile, FileBinding};
use schemas::digest::{Algorithm, Digest};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::evidence::outcome_name;
use crate::statement::{CONTRACT_NAME, digest_set, file_subject, head_digest, public_key, signed};
use crate::time::rfc3339;
use crate::{Attempt, Document, Evidence, ExportError, candidate_files, hash_file};

/// Predicate of SLSA provenance.
pub const PROVENANCE_PREDICATE_TYPE: &str = "https://slsa.dev/provenance/v1";

/// What the parameters are those of; `docs/FORMAT.md` ("Exports") says how.
pub const BUILD_TYPE: &str = "https://governed-ledger.invalid/training/v1";

/// What a code digest is over. That of an external loop is over the files that
/// its owner named and nothing else: no compiler, no lock file, no package.
const fn code_digest_is_over(profile: EvidenceProfile) -> &'static str {
    match profile {
        EvidenceProfile::Native => "sources, lock file, compiler version, target and features",
        EvidenceProfile::ExternalLoop => "paths and contents of /external_loop/files",
    }
}

/// The provenance of the selected candidate, and the key that signed it.
///
/// # Errors
/// When the run was not accepted, nothing was selected, or a file is not what
/// the record says.
pub fn documents(evidence: &Evidence, signer: &KeyPair) -> Result<Vec<Document>, ExportError> {
    evidence.require_accepted("slsa")?;
    let selected = evidence.require_selected()?;
    let files = candidate_files(evidence.folder(), &selected.path, &selected.model, &selected.config)?;
    let subjects = files.iter().map(file_subject).collect();
    Ok(vec![
        signed("provenance.dsse.json", PROVENANCE_PREDICATE_TYPE, subjects, predicate(evidence)?, signer)?,
        public_key(signer),
    ])
}

fn predicate(evidence: &Evidence) -> Result<Value, ExportError> {
    let contract: Value = serde_json::from_slice(&evidence.contract.canonical)?;
    let ruleset = &evidence.contract.contract.ruleset;
    let profile = serde_json::to_value(ruleset.profile)?;
    let profile = profile.as_str().unwrap_or_default();
    let mut metadata = Map::new();
    metadata.insert("invocationId".to_owned(), json!(evidence.contract.run));
    let times =
        [("startedOn", evidence.started_us), ("finishedOn", evidence.ended.as_ref().map(|it| it.time_us))];
    for (name, time_us) in times {
        if let Some(time_us) = time_us {
            metadata.insert(name.to_owned(), rfc3339(time_us).into());
        }
    }
    Ok(json!({
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"contract": contract.clone()},
            "internalParameters": {"attempts": evidence.attempts.iter().map(attempt).collect::<Vec<_>>()},
            "resolvedDependencies": dependencies(evidence, &contract)?,
        },
        "runDetails": {
            "builder": {
                "id": format!("https://governed-ledger.invalid/builder/{profile}/v1"),
                "version": versions(evidence),
            },
            "byproducts": byproducts(evidence),
            "metadata": metadata,
        },
    }))
}

/// Versions of all code that ran, by package.
fn versions(evidence: &Evidence) -> BTreeMap<String, String> {
    let codes = evidence.attempts.iter().map(|attempt| &attempt.code);
    codes.map(|code| (code.package.clone(), code.version.clone())).collect()
}

fn attempt(attempt: &Attempt) -> Value {
    json!({
        "attempt": attempt.attempt,
        "code": attempt.code.digest,
        "environment": attempt.ran.environment,
        "fromStep": attempt.from_step,
        "lastStep": attempt.last_step,
        "outcome": attempt.outcome.map_or("incomplete", outcome_name),
        "plan": attempt.ran.plan,
    })
}

fn byproducts(evidence: &Evidence) -> Vec<Value> {
    let contract = json!({"digest": digest_set([&evidence.contract.digest]), "name": CONTRACT_NAME});
    let head = evidence.report.head.as_ref().and_then(|head| {
        let digest = head_digest(head)?;
        Some(json!({
            "annotations": {"root": head.root, "size": head.size},
            "digest": digest_set([&digest]),
            "name": head.origin,
        }))
    });
    head.into_iter().chain([contract]).collect()
}

/// The code, every file that the contract binds, and every shard of the data.
fn dependencies(evidence: &Evidence, contract: &Value) -> Result<Vec<Value>, ExportError> {
    let code = &evidence.contract.contract.code;
    let is_over = code_digest_is_over(evidence.contract.contract.ruleset.profile);
    let mut dependencies = vec![json!({
        "annotations": {"digestIsOver": is_over, "features": code.features},
        "digest": digest_set([&code.digest]),
        "name": format!("{} {}", code.package, code.version),
    })];
    let mut bindings = BTreeMap::new();
    find_bindings(contract, "", &mut bindings);
    for (pointer, binding) in &bindings {
        let Some(digest) = binding.digest else { continue };
        dependencies.push(json!({
            "annotations": {"boundAt": pointer},
            "digest": digests_of(evidence, &binding.path, &digest)?,
            "name": binding.path,
        }));
    }
    let manifest = Path::new(&evidence.contract.contract.data.manifest.path);
    let folder = manifest.parent().unwrap_or(Path::new(""));
    for shard in &evidence.data.shards {
        let path = folder.join(&shard.path).to_string_lossy().into_owned();
        dependencies.push(json!({
            "annotations": {
                "licenseClass": shard.license_class, "source": shard.source, "split": shard.split.name(),
            },
            "digest": digests_of(evidence, &path, &shard.digest)?,
            "name": path,
        }));
    }
    Ok(dependencies)
}

/// Both digests of a file that the ledger stores or that lies beside it; of one
/// that is elsewhere, the one on record alone.
fn digests_of(
    evidence: &Evidence,
    path: &str,
    digest: &Digest,
) -> Result<BTreeMap<String, String>, ExportError> {
    if digest.algorithm == Algorithm::Blake3 {
        if evidence.artifacts.contains(digest) {
            let sha256 = Sha256::digest(evidence.reader().artifact(digest)?);
            return Ok(digest_set([digest, &Digest::sha256(sha256.into())]));
        }
        if evidence.folder().join(path).exists() {
            let file = hash_file(evidence.folder(), path, digest)?;
            return Ok(digest_set([&file.blake3, &file.sha256]));
        }
    }
    Ok(digest_set([digest]))
}

/// Files that a contract binds, by the JSON pointer of the binding.
fn find_bindings(value: &Value, pointer: &str, found: &mut BTreeMap<String, FileBinding>) {
    match value {
        Value::Object(members) => {
            if members.len() == 3
                && let Ok(binding) = serde_json::from_value(value.clone())
            {
                found.insert(pointer.to_owned(), binding);
                return;
            }
            for (name, member) in members {
                let name = name.replace('~', "~0").replace('/', "~1");
                find_bindings(member, &format!("{pointer}/{name}"), found);
            }
        }
        Value::Array(members) => {
            for (index, member) in members.iter().enumerate() {
                find_bindings(member, &format!("{pointer}/{index}"), found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_are_found_wherever_they_are() {
        let digest = format!("blake3:{}", "ab".repeat(32));
        let binding = json!({"digest": digest, "num_bytes": 3, "path": "a"});
        let contract = json!({
            "a/b": {"card": binding}, "list": [{"x": 1}, binding], "other": {"digest": digest, "path": "b"},
            "three": {"digest": digest, "host": 1, "path": "c"},
        });
        let mut found = BTreeMap::new();
        find_bindings(&contract, "", &mut found);
        assert_eq!(found.keys().map(String::as_str).collect::<Vec<_>>(), ["/a~1b/card", "/list/1"]);
    }

    #[test]
    fn the_code_of_an_external_loop_is_promised_to_be_its_named_files_and_no_more() {
        let native = code_digest_is_over(EvidenceProfile::Native);
        assert!(native.contains("lock file") && native.contains("compiler"), "{native}");
        let external = code_digest_is_over(EvidenceProfile::ExternalLoop);
        assert_eq!(external, "paths and contents of /external_loop/files");
    }
}
