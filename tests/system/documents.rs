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

/// A line without its comment, which in a shell and in Python begins with a word that
/// begins with `#`.
fn without_comment(line: &str) -> &str {
    let begins = |at: usize| line[..at].chars().next_back().is_none_or(char::is_whitespace);
    let comment = line.match_indices('#').find(|(at, _)| begins(*at));
    comment.map_or(line, |(at, _)| &line[..at])
}

/// Whether a script calls another one: its path as a whole word of a shell, or as
/// Python puts it together.
fn calls(text: &str, name: &str) -> bool {
    let (path, parts) = (format!("scripts/{name}"), format!("\"scripts\" / \"{name}\""));
    let is_outside = |letter: char| !letter.is_alphanumeric() && !matches!(letter, '-' | '_' | '.');
    text.lines().map(without_comment).any(|line| {
        let is_whole = |at: usize| {
            let before = line[..at].chars().next_back();
            let after = line[at + path.len()..].chars().next();
            before.is_none_or(is_outside) && after.is_none_or(is_outside)
        };
        line.contains(&parts) || line.match_indices(&path).any(|(at, _)| is_whole(at))
    })
}

#[test]
fn a_call_is_a_whole_word_outside_of_comments() {
    for text in [
        "scripts/bench",
        "    \"$root/scripts/bench\" --quick  # measures",
        "x=$((16#ff)); scripts/bench; true",
        "run([ROOT / \"scripts\" / \"bench\", \"--json\"])",
    ] {
        assert!(calls(text, "bench"), "{text}");
    }
    for text in [
        "scripts/bench-recorders",
        "scripts/bench.py",
        "my-scripts/bench",
        "# scripts/bench",
        "true  # scripts/bench comes later",
        "presets = [\"bench\"]",
        "run([ROOT / \"scripts\" / \"bench-recorders\"])",
    ] {
        assert!(!calls(text, "bench"), "{text}");
    }
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
        let is_called = |(other, text): &(&str, String)| *other != name.as_str() && calls(text, name);
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
