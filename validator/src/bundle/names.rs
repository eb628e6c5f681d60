//! Which names a bundle may have, and which may stand beside each other.
//!
//! Judged on the manifest, before a file is made: plain relative names of
//! printable ASCII, ascending, no two of which a file system could take for one;
//! one ledger, in one form; and nothing that belongs to another ledger.

use std::collections::BTreeMap;

use schemas::bundle::{
    BESIDE_LEDGER, BUNDLE_EXPORT, BUNDLE_MANIFEST, BUNDLE_RUN, BundleManifest, LedgerForm,
    MAX_BUNDLE_FOLDERS, MAX_BUNDLE_NAME_PARTS,
};
use schemas::digest::decode_hex;

use super::error::Refusal;

/// Longest name: what the two fields of a header hold, with the slash between.
const MAX_NAME_BYTES: usize = 256;

/// Files of an export, beside its artifacts.
const EXPORT_FILES: [&str; 6] =
    ["README.txt", "contract.json", "entries.jsonl", "head-beside.txt", "heads.txt", "proofs.json"];

/// Suffixes of what SQLite keeps beside a database.
const BESIDE_DATABASE: [&str; 3] = ["-journal", "-shm", "-wal"];

/// What is refused, and of what name.
pub(super) type Refused = (String, Refusal);

/// Whether a name is plain.
pub(super) fn check_name(name: &str) -> Result<(), Refusal> {
    if name.starts_with('/') {
        return Err(Refusal::AbsolutePath);
    }
    let is_plain = |byte: u8| (0x20..0x7f).contains(&byte) && byte != b'\\';
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_plain) {
        return Err(Refusal::Name);
    }
    if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(Refusal::PathTraversal);
    }
    if name.split('/').count() > MAX_BUNDLE_NAME_PARTS {
        return Err(Refusal::Depth);
    }
    Ok(())
}

/// Checks every name of a manifest, alone and beside the others. Returns how many
/// folders the names imply.
pub(super) fn check(manifest: &BundleManifest) -> Result<usize, Refused> {
    let members: Vec<&str> = manifest.members.iter().map(|member| member.name.as_str()).collect();
    let left_out: Vec<&str> = manifest.left_out.iter().map(|file| file.name.as_str()).collect();
    let folders: Vec<&str> = manifest.folders.iter().map(String::as_str).collect();
    let file = &manifest.ledger.file;
    check_name(file).map_err(|refusal| (file.clone(), refusal))?;
    if file.contains('/') {
        return Err((file.clone(), Refusal::PathTraversal));
    }
    for names in [&members, &left_out, &folders] {
        for name in names {
            check_name(name).map_err(|refusal| ((*name).to_owned(), refusal))?;
        }
        for pair in names.windows(2) {
            if pair[0] == pair[1] {
                return Err((pair[1].to_owned(), Refusal::Duplicate));
            }
            if pair[0] > pair[1] {
                let text = "the names do not ascend".to_owned();
                return Err((pair[1].to_owned(), Refusal::Manifest(text)));
            }
        }
    }
    let run_only = left_out.iter().chain(&folders).find(|name| !name.starts_with(BUNDLE_RUN));
    if let Some(name) = run_only {
        return Err(((*name).to_owned(), Refusal::Unlisted));
    }
    let num_folders = check_together(members.iter().chain(&left_out).copied(), &folders)?;
    check_subject(manifest, &members, &left_out)?;
    Ok(num_folders)
}

/// No two names, or folders on their way, are one to a file system that folds
/// case, no file is a folder, and there are not too many folders; returns how many.
fn check_together<'a>(files: impl Iterator<Item = &'a str>, folders: &[&'a str]) -> Result<usize, Refused> {
    let mut known = Known::default();
    for name in files {
        known.add_name(name, true)?;
    }
    for folder in folders {
        known.add_name(folder, false)?;
    }
    Ok(known.num_folders)
}

/// Names so far, and the folders on their way.
#[derive(Default)]
struct Known<'a> {
    /// By the folded path: the path, and whether it is a file.
    by_folded: BTreeMap<String, (&'a str, bool)>,
    num_folders: usize,
    previous: &'a str,
}

impl<'a> Known<'a> {
    /// Adds a name and the folders on its way. Those that it shares with the name
    /// before it, as most do in ascending order, are there already.
    fn add_name(&mut self, name: &'a str, is_file: bool) -> Result<(), Refused> {
        let previous = std::mem::replace(&mut self.previous, name);
        let num_shared = name.bytes().zip(previous.bytes()).take_while(|(a, b)| a == b).count();
        for (at, _) in name.match_indices('/').filter(|(at, _)| *at >= num_shared) {
            self.add(&name[..at], false)?;
        }
        self.add(name, is_file)
    }

    fn add(&mut self, path: &'a str, is_file: bool) -> Result<(), Refused> {
        match self.by_folded.insert(path.to_ascii_lowercase(), (path, is_file)) {
            Some((other, was_file)) if other != path || is_file || was_file => {
                let refusal = if other == path && is_file && was_file {
                    Refusal::Duplicate
                } else {
                    Refusal::Case(other.to_owned())
                };
                return Err((path.to_owned(), refusal));
            }
            None if !is_file => self.num_folders += 1,
            _ => {}
        }
        if self.num_folders > MAX_BUNDLE_FOLDERS {
            return Err((path.to_owned(), Refusal::FolderCount));
        }
        Ok(())
    }
}

/// One ledger, in one form, and nothing of another one.
fn check_subject(manifest: &BundleManifest, members: &[&str], left_out: &[&str]) -> Result<(), Refused> {
    let file = &manifest.ledger.file;
    let second = |name: &str, what: &str| Err((name.to_owned(), Refusal::SecondSubject(what.to_owned())));
    let is_export = manifest.ledger.form == LedgerForm::Export;
    let required: Vec<String> = if is_export {
        vec![format!("{BUNDLE_EXPORT}entries.jsonl"), format!("{BUNDLE_EXPORT}heads.txt")]
    } else {
        vec![format!("{BUNDLE_RUN}{file}")]
    };
    if let Some(name) = required.into_iter().find(|name| !members.contains(&name.as_str())) {
        return Err((name, Refusal::Missing));
    }
    for name in members.iter().chain(left_out) {
        if let Some(inner) = name.strip_prefix(BUNDLE_EXPORT) {
            if !is_export {
                return second(name, "the ledger is there as a database, and this is of an export");
            }
            let artifact = inner.strip_prefix("artifacts/");
            let is_artifact =
                artifact.is_some_and(|hex| decode_hex(hex).is_some_and(|bytes| bytes.len() == 32));
            if !is_artifact && !EXPORT_FILES.contains(&inner) {
                return Err(((*name).to_owned(), Refusal::Unlisted));
            }
        } else if let Some(inner) = name.strip_prefix(BUNDLE_RUN) {
            // What lies deeper is named by the contract or lies in the store.
            if inner.contains('/') {
                continue;
            }
            let rest = inner.strip_prefix(file.as_str());
            let is_database = rest == Some("") || rest.is_some_and(|rest| BESIDE_DATABASE.contains(&rest));
            if is_database && is_export {
                return second(name, "the ledger is there as an export, and this is of a database");
            }
            let is_own = is_database || rest.is_some_and(|rest| BESIDE_LEDGER.contains(&rest));
            let suffixes = BESIDE_LEDGER.iter().chain(&BESIDE_DATABASE);
            if !is_own && suffixes.into_iter().any(|suffix| inner.ends_with(suffix)) {
                return second(name, "it belongs to another ledger than the manifest names");
            }
        } else {
            let refusal = if *name == BUNDLE_MANIFEST { Refusal::Duplicate } else { Refusal::Unlisted };
            return Err(((*name).to_owned(), refusal));
        }
    }
    Ok(())
}
