//! Which files of a run's folder an audit may look at: what lies beside the
//! ledger under its name, what the contract and the data manifest name, and
//! everything below the folder of checkpoints, since what should not be there is
//! a finding too.
//!
//! The contract is taken as it stands in entry 0, whoever signed it: a ledger
//! with something wrong is bundled like any other, and judged by who reads it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use schemas::bundle::{BESIDE_LEDGER, BUNDLE_RUN};
use schemas::data::DataManifest;
use schemas::digest::Digest;
use serde_json::Value;

use super::{BundleError, refuse_depth};
use crate::links;
use crate::lock::with_suffix;
use crate::reader::Reader;

/// Folder of checkpoints where the contract's store is a URL.
const WORKING_FOLDER: &str = "checkpoints";

/// Reasons why a file is left out: the options that say so.
pub(super) const WITHOUT_DATA: &str = "--without-data";
pub(super) const WITHOUT_CHECKPOINTS: &str = "--without-checkpoints";

/// What a run's folder holds of it, by names relative to the folder.
#[derive(Debug, Default)]
pub(super) struct RunFiles {
    /// Where each file lies, and under which option it is left out.
    pub(super) files: BTreeMap<String, (PathBuf, Option<&'static str>)>,
    /// Folders without anything in them.
    pub(super) empty: Vec<String>,
}

/// The contract in entry 0, unchecked.
pub(super) fn contract(reader: &Reader) -> Option<Value> {
    let (_, bytes) = reader.rows(0).next()?.ok()?;
    let entry: Value = serde_json::from_slice(&bytes).ok()?;
    serde_json::from_str(entry.pointer("/body/det/contract")?.as_str()?).ok()
}

/// Copies the files beside a ledger into a folder, before the ledger itself is
/// read: a head file that is newer than the entries would tell of lost rows.
pub(super) fn copy_beside(ledger: &Path, scratch: &Path) -> Result<Vec<(String, PathBuf)>, BundleError> {
    let mut copies = Vec::new();
    for suffix in BESIDE_LEDGER {
        let path = with_suffix(ledger, suffix);
        if !is_file(&path)? {
            continue;
        }
        let copy = scratch.join(format!("beside{suffix}"));
        let copied = fs::File::open(&path).map_err(|source| BundleError::Read { path: path.clone(), source });
        let mut target = fs::File::create_new(&copy)
            .map_err(|source| BundleError::Write { path: copy.clone(), source })?;
        io::copy(&mut copied?, &mut target)
            .map_err(|source| BundleError::Write { path: copy.clone(), source })?;
        copies.push((suffix.to_owned(), copy));
    }
    Ok(copies)
}

/// The files that the contract names, and those of the checkpoints.
pub(super) fn named(reader: &Reader, contract: &Value) -> Result<RunFiles, BundleError> {
    let folder = reader.path().parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let mut found = RunFiles::default();
    let mut bindings = Vec::new();
    collect_bindings(contract, &mut bindings);
    for path in bindings {
        found.add(folder, path, None)?;
    }
    if let Some(weights) = contract.pointer("/initialization/weights/path").and_then(Value::as_str) {
        found.add(folder, weights, Some(WITHOUT_CHECKPOINTS))?;
    }
    let manifest_path = contract.pointer("/data/manifest/path").and_then(Value::as_str).unwrap_or_default();
    if let Some(manifest) = data_manifest(reader, contract) {
        let base = manifest_path.rsplit_once('/').map_or(String::new(), |(base, _)| format!("{base}/"));
        for shard in &manifest.shards {
            found.add(folder, &format!("{base}{}", shard.path), Some(WITHOUT_DATA))?;
        }
        if let Some(barrier) = &manifest.barrier {
            found.add(folder, &format!("{base}{}", barrier.path), None)?;
        }
    }
    if let Some(store) = contract.pointer("/checkpoints/store").and_then(Value::as_str) {
        let store = if store.contains("://") { WORKING_FOLDER } else { store.trim_end_matches('/') };
        if is_plain(store) && folder.join(store).is_dir() {
            refuse_links(folder, store)?;
            found.walk(folder, store)?;
        }
    }
    Ok(found)
}

/// The data manifest as the ledger stores it.
fn data_manifest(reader: &Reader, contract: &Value) -> Option<DataManifest> {
    let digest: Digest = serde_json::from_value(contract.pointer("/data/manifest/digest")?.clone()).ok()?;
    serde_json::from_slice(&reader.artifact(&digest).ok()?).ok()
}

/// Paths of all file bindings in a contract.
fn collect_bindings<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(members) => {
            let is_binding = ["digest", "num_bytes", "path"].iter().all(|name| members.contains_key(*name));
            if let Some(path) = members.get("path").and_then(Value::as_str).filter(|_| is_binding) {
                found.push(path);
            }
            members.values().for_each(|member| collect_bindings(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_bindings(item, found)),
        _ => {}
    }
}

/// Whether a path stays below its folder; an audit refuses any other.
fn is_plain(path: &str) -> bool {
    !path.is_empty() && path.split('/').all(|name| !matches!(name, "" | "." | "..")) && !path.contains('\\')
}

/// Whether there is a regular file, and no link to one.
fn is_file(path: &Path) -> Result<bool, BundleError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(true),
        Ok(metadata) if metadata.is_dir() => Ok(false),
        Ok(_) => Err(BundleError::NotPlain { path: path.to_owned() }),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(false)
        }
        Err(source) => Err(BundleError::Read { path: path.to_owned(), source }),
    }
}

/// No folder on the way may be a link: the audit of a folder follows none.
fn refuse_links(folder: &Path, relative: &str) -> Result<(), BundleError> {
    match links::on_the_way(folder, Path::new(relative)) {
        Some(path) => Err(BundleError::NotPlain { path }),
        None => Ok(()),
    }
}

impl RunFiles {
    /// Adds a file that is there; what is missing the audit misses as well.
    fn add(
        &mut self,
        folder: &Path,
        relative: &str,
        reason: Option<&'static str>,
    ) -> Result<(), BundleError> {
        if !is_plain(relative) {
            return Ok(());
        }
        refuse_links(folder, relative)?;
        let path = folder.join(relative);
        if is_file(&path)? {
            self.files.insert(relative.to_owned(), (path, reason));
        }
        Ok(())
    }

    /// Adds everything below a folder of checkpoints. A folder is no way to use up
    /// the stack: it is no deeper than a name may be.
    fn walk(&mut self, folder: &Path, relative: &str) -> Result<(), BundleError> {
        refuse_depth(&format!("{BUNDLE_RUN}{relative}"))?;
        let path = folder.join(relative);
        let read = |source| BundleError::Read { path: path.clone(), source };
        let mut names = Vec::new();
        for item in fs::read_dir(&path).map_err(read)? {
            let item = item.map_err(read)?;
            let name = item.file_name().into_string().ok().filter(|name| !name.contains('\\'));
            names.push(name.ok_or_else(|| BundleError::NotPlain { path: item.path() })?);
        }
        names.sort();
        if names.is_empty() {
            self.empty.push(relative.to_owned());
        }
        for name in names {
            let inner = format!("{relative}/{name}");
            let at = folder.join(&inner);
            let metadata = fs::symlink_metadata(&at).map_err(read)?;
            if metadata.is_dir() {
                self.walk(folder, &inner)?;
            } else if metadata.is_file() {
                // Manifests are small, and say what is missing.
                let reason = (name != "manifest.json").then_some(WITHOUT_CHECKPOINTS);
                self.files.insert(inner, (at, reason));
            } else {
                return Err(BundleError::NotPlain { path: at });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_are_found_wherever_they_are() {
        let contract = serde_json::json!({
            "data": {"manifest": {"digest": null, "num_bytes": 3, "path": "data/manifest.json"}},
            "list": [{"digest": null, "num_bytes": null, "path": "a"}],
            "other": {"path": "no binding"}
        });
        let mut found = Vec::new();
        collect_bindings(&contract, &mut found);
        assert_eq!(found, ["data/manifest.json", "a"]);
    }

    #[test]
    fn paths_that_leave_the_folder_are_not_plain() {
        for path in ["", "/a", "a/../b", "./a", "a//b", "a\\b", "a/"] {
            assert!(!is_plain(path), "{path:?}");
        }
        assert!(is_plain("a/b.json"));
    }

    #[test]
    fn folders_are_followed_as_deep_as_a_name_may_be() {
        let folder = tempfile::tempdir().expect("a folder");
        let deepest = format!("c{}", "/d".repeat(schemas::bundle::MAX_BUNDLE_NAME_PARTS - 2));
        fs::create_dir_all(folder.path().join(&deepest)).expect("folders");
        let mut found = RunFiles::default();
        found.walk(folder.path(), "c").expect("not too deep");
        assert_eq!(found.empty, [deepest.as_str()]);
        fs::create_dir(folder.path().join(format!("{deepest}/e"))).expect("a folder");
        let refused = RunFiles::default().walk(folder.path(), "c").expect_err("too deep");
        assert!(matches!(&refused, BundleError::TooDeep { name } if name.ends_with("/d/e")), "{refused}");
    }

    #[test]
    fn links_are_refused_and_empty_folders_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("c/one/empty")).expect("folders");
        fs::write(folder.path().join("c/one/manifest.json"), b"{}").expect("a file");
        fs::write(folder.path().join("c/one/model.bin"), b"x").expect("a file");
        let mut found = RunFiles::default();
        found.walk(folder.path(), "c").expect("plain");
        let reasons: Vec<_> =
            found.files.iter().map(|(name, (_, reason))| (name.as_str(), *reason)).collect();
        assert_eq!(reasons, [("c/one/manifest.json", None), ("c/one/model.bin", Some(WITHOUT_CHECKPOINTS))]);
        assert_eq!(found.empty, ["c/one/empty"]);
        std::os::unix::fs::symlink("manifest.json", folder.path().join("c/one/link")).expect("a link");
        let refused = RunFiles::default().walk(folder.path(), "c").expect_err("a link");
        assert!(matches!(refused, BundleError::NotPlain { .. }), "{refused}");
        let refused = RunFiles::default().add(folder.path(), "c/one/link", None).expect_err("a link");
        assert!(matches!(refused, BundleError::NotPlain { .. }), "{refused}");
    }
}
