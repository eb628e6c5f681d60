//! The crash points that are in the sources, found where they are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::workspace_root;

/// What passes a point, before its name.
const PASS: &str = "failpoint::pass(\"";

/// Where each point is passed, by name.
///
/// # Errors
/// When a source cannot be read.
pub fn places() -> Result<BTreeMap<String, Vec<PathBuf>>> {
    let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for member in ["ledger", "trainer"] {
        walk(&workspace_root().join(member).join("src"), &mut |path, text| {
            for (at, _) in text.match_indices(PASS) {
                let rest = &text[at + PASS.len()..];
                let name = rest.split('"').next().unwrap_or_default();
                found.entry(name.to_owned()).or_default().push(path.to_owned());
            }
        })?;
    }
    Ok(found)
}

fn walk(folder: &Path, look: &mut dyn FnMut(&Path, &str)) -> Result<()> {
    for item in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = item?.path();
        if path.is_dir() {
            walk(&path, look)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            look(&path, &std::fs::read_to_string(&path).with_context(|| path.display().to_string())?);
        }
    }
    Ok(())
}

/// Names in the lists of a source: the strings of each `const …: [&str; N]`
/// whose name ends with `suffix`.
///
/// # Errors
/// When the source cannot be read.
pub fn listed(source: &str, suffix: &str) -> Result<Vec<String>> {
    let path = workspace_root().join(source);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut names = Vec::new();
    for item in text.split("pub const ").skip(1) {
        let Some((head, rest)) = item.split_once(": [&str;") else { continue };
        let Some((_, list)) = rest.split_once('=') else { continue };
        if !head.ends_with(suffix) {
            continue;
        }
        let list = list.split(';').next().unwrap_or_default();
        names.extend(list.split('"').skip(1).step_by(2).map(str::to_owned));
    }
    Ok(names)
}
