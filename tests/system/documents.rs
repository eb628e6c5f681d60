//! What pages and help texts list, compared with what there is. Lists by hand
//! are short of what came last; these are looked at.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result};
use system_tests::crashes::trial::Kind;
use system_tests::workspace_root;

/// Scripts that neither a person nor another script calls, but a test.
const OF_TESTS: [&str; 1] = ["trust-statement"];

/// The programs in `scripts/` by name: its files without an extension.
fn scripts() -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for item in std::fs::read_dir(workspace_root().join("scripts"))? {
        let path = item?.path();
        if path.is_file() && path.extension().is_none() {
            let name = path.file_name().context("a file has a name")?.to_string_lossy().into_owned();
            found.push((name, path));
        }
    }
    found.sort();
    Ok(found)
}

#[test]
fn the_readme_lists_every_script_that_no_other_calls() -> Result<()> {
    let readme = std::fs::read_to_string(workspace_root().join("README.md"))?;
    let row = readme.lines().find_map(|line| line.strip_prefix("scripts/ "));
    let row = row.context("the README has no line for scripts/")?;
    let listed: BTreeSet<&str> = row.trim().trim_end_matches(", and what they call").split(", ").collect();
    let scripts = scripts()?;
    let mut texts: Vec<(&str, String)> = Vec::new();
    for (name, path) in &scripts {
        texts.push((name.as_str(), std::fs::read_to_string(path)?));
    }
    for (name, _) in &scripts {
        // In a shell's words, or as a part of a path that Python puts together.
        let calls = [format!("scripts/{name}"), format!("\"{name}\"")];
        let is_called = |(other, text): &(&str, String)| {
            *other != name.as_str() && calls.iter().any(|call| text.contains(call.as_str()))
        };
        assert!(
            listed.contains(name.as_str())
                || OF_TESTS.contains(&name.as_str())
                || texts.iter().any(is_called),
            "scripts/{name} is not in the README's line {row:?}, and no other script calls it"
        );
    }
    for name in listed {
        assert!(
            scripts.iter().any(|(other, _)| other == name),
            "the README lists {name:?}, which is not there"
        );
    }
    Ok(())
}

#[test]
fn the_help_of_crash_trials_lists_every_kind() -> Result<()> {
    let text = std::fs::read_to_string(workspace_root().join("scripts/crashes"))?;
    let help = text.lines().take_while(|line| line.starts_with('#'));
    let words: BTreeSet<&str> = help.flat_map(|line| line.split([' ', ','])).collect();
    let kinds = Kind::all();
    assert!(kinds.len() > 10, "{} kinds", kinds.len());
    for kind in kinds {
        assert!(words.contains(kind.name()), "scripts/crashes --help does not list {}", kind.name());
    }
    Ok(())
}
