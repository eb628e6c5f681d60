//! The catalogue: every rule of the edition, one file a rule, in the order of
//! their codes.
//!
//! `GL0xx` integrity and identity, `GL1xx` contract and frozen inputs, from
//! `GL2xx` on what happened in the run. An edition is never edited: a change
//! of what a rule accepts is a new edition.

mod attempts;
mod authority;
mod checkpoints;
pub(crate) mod common;
mod data;
mod elsewhere;
mod evaluation;
#[cfg(test)]
mod false_runs;
pub(crate) mod gl001_store_layout;
pub(crate) mod gl002_entry_sequence;
pub(crate) mod gl003_canonical_bytes;
pub(crate) mod gl004_entry_shape;
pub(crate) mod gl005_leaf_hash;
pub(crate) mod gl006_idempotency_key;
pub(crate) mod gl007_envelope;
pub(crate) mod gl008_signed_heads;
pub(crate) mod gl009_external_head;
pub(crate) mod gl010_head_coverage;
pub(crate) mod gl011_trusted_keys;
pub(crate) mod gl012_entry_time;
pub(crate) mod gl013_extensions;
pub(crate) mod gl014_witness_quorum;
pub(crate) mod gl015_witnessed_before_training;
pub(crate) mod gl016_witness_times;
pub(crate) mod gl101_contract_frozen;
pub(crate) mod gl102_contract_signature;
pub(crate) mod gl103_run_identity;
pub(crate) mod gl104_frozen_artifacts;
pub(crate) mod gl105_frozen_documents;
mod gl106_frozen_before_run;
mod gl107_ruleset;
pub(crate) mod gl108_data_files;
pub(crate) mod gl109_val_numbers;
mod gl110_checkpoint_files;
pub(crate) mod gl111_stored_report;
pub(crate) mod gl112_handoff_file;
mod terms;
mod updates;

use crate::rule::Rule;
pub use crate::rule::RuleInfo;

/// Edition of the rules below; a contract names the one it is judged by.
pub const EDITION: &str = "2026.1";

/// Rules that the audit evaluates itself, since they need raw bytes or come
/// before there is a contract to open a rule with.
static EVIDENCE_RULES: &[&RuleInfo] = &[
    &gl001_store_layout::INFO,
    &gl002_entry_sequence::INFO,
    &gl003_canonical_bytes::INFO,
    &gl004_entry_shape::INFO,
    &gl005_leaf_hash::INFO,
    &gl006_idempotency_key::INFO,
    &gl007_envelope::INFO,
    &gl008_signed_heads::INFO,
    &gl009_external_head::INFO,
    &gl010_head_coverage::INFO,
    &gl011_trusted_keys::INFO,
    &gl012_entry_time::INFO,
    &gl013_extensions::INFO,
    &gl014_witness_quorum::INFO,
    &gl015_witnessed_before_training::INFO,
    &gl016_witness_times::INFO,
    &gl101_contract_frozen::INFO,
    &gl102_contract_signature::INFO,
    &gl103_run_identity::INFO,
    &gl104_frozen_artifacts::INFO,
    &gl105_frozen_documents::INFO,
    &gl109_val_numbers::INFO,
    &gl111_stored_report::INFO,
    &gl112_handoff_file::INFO,
];

/// Rules over parsed entries, opened with the frozen inputs: all of them.
pub(crate) fn run_rules() -> impl Iterator<Item = &'static dyn Rule> {
    let groups = [
        FREEZE_RULES,
        attempts::RULES,
        data::RULES,
        updates::RULES,
        evaluation::RULES,
        checkpoints::RULES,
        authority::RULES,
    ];
    groups.into_iter().flatten().copied()
}

/// Those of them that compare the freeze with what lies beside the ledger.
static FREEZE_RULES: &[&dyn Rule] = &[
    &gl106_frozen_before_run::FrozenBeforeRun,
    &gl107_ruleset::Ruleset,
    &gl108_data_files::DataFiles,
    &gl110_checkpoint_files::CheckpointFiles,
];

/// The text of every rule, in the order of their codes.
#[must_use]
pub fn catalogue() -> &'static [&'static RuleInfo] {
    static CATALOGUE: std::sync::OnceLock<Vec<&'static RuleInfo>> = std::sync::OnceLock::new();
    CATALOGUE.get_or_init(|| {
        let mut all: Vec<&'static RuleInfo> = EVIDENCE_RULES.to_vec();
        all.extend(run_rules().map(Rule::info));
        all.sort_by_key(|info| info.code);
        all
    })
}

/// A rule by its code, in any case: `GL101`.
#[must_use]
pub fn find(code: &str) -> Option<&'static RuleInfo> {
    catalogue().iter().copied().find(|info| info.code.eq_ignore_ascii_case(code))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_and_names_are_unique_and_every_text_is_there() {
        let mut seen = BTreeSet::new();
        for info in catalogue() {
            assert!(seen.insert(info.code) && seen.insert(info.name), "{} is used twice", info.code);
            assert!(info.code.len() == 5 && info.code.starts_with("GL"), "{}", info.code);
            assert!(info.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{}", info.name);
            for text in [info.what, info.why, info.remedy, info.reference] {
                assert!(text.len() > 10, "{} lacks a text", info.code);
            }
        }
        assert_eq!(find("gl008").map(|info| info.name), Some("signed-heads"));
        assert_eq!(find("GL999"), None);
    }

    /// `pub struct Name`, `pub enum Name` and `pub mod name` of all sources in a folder.
    fn declarations(folder: &std::path::Path) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for item in std::fs::read_dir(folder).expect("a folder of sources") {
            let path = item.expect("a file or folder").path();
            if path.is_dir() {
                found.extend(declarations(&path));
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a source");
            found.extend(text.lines().filter_map(|line| {
                let end = line.find(['(', '<', '{', ';'])?;
                line.starts_with("pub ").then(|| line[..end].trim().to_owned())
            }));
        }
        found
    }

    /// A reviewer who follows a reference has to arrive somewhere.
    #[test]
    fn every_reference_names_a_place_that_exists() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let known = ["RFC ", "C2SP ", "DSSE ", "in-toto "];
        let declarations = declarations(&root.join("schemas/src"));
        let mut num_headings = 0;
        for info in catalogue().iter().chain(crate::campaign::catalogue()) {
            for place in info.reference.split("; ") {
                if let Some((file, names)) =
                    place.strip_prefix("docs/").and_then(|place| place.split_once(", "))
                {
                    let text = std::fs::read_to_string(root.join("docs").join(file)).expect("a document");
                    for name in names.split('"').skip(1).step_by(2) {
                        let is_heading = |line: &str| line.trim_start_matches('#') == format!(" {name}");
                        let found = text.lines().any(|line| line.starts_with('#') && is_heading(line));
                        assert!(found, "{}: {file} has no heading {name:?}", info.code);
                        num_headings += 1;
                    }
                    assert!(names.contains('"'), "{}: {place:?} names no heading", info.code);
                } else if place.starts_with("schemas/") {
                    assert!(root.join(place).exists(), "{}: there is no {place}", info.code);
                } else if let Some(path) = place.strip_prefix("schemas::") {
                    // A type, or a module, and what of it is meant.
                    let path = path.split([' ', ',']).next().unwrap_or_default();
                    let name = path.rsplit("::").next().unwrap_or_default();
                    let is_declared = ["struct", "enum", "mod"]
                        .iter()
                        .any(|kind| declarations.contains(format!("pub {kind} {name}").as_str()));
                    assert!(is_declared, "{}: there is no {path} in schemas", info.code);
                } else {
                    assert!(known.iter().any(|start| place.starts_with(start)), "{}: {place:?}", info.code);
                }
            }
        }
        assert!(num_headings > 50, "{num_headings}");
    }
}
