//! What sources may not hold, looked for in the sources themselves.
//!
//! These are the invariants that neither types nor the dependency graph can
//! state. They look at text, so they can be evaded on purpose; they are there
//! for the change that does not know the rule.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use system_tests::workspace_root;

const MEMBERS: [&str; 13] = [
    "cli",
    "corpus",
    "evaluator",
    "exports",
    "ledger",
    "loops",
    "python",
    "schemas",
    "tests",
    "trainer",
    "validator",
    "web",
    "witness",
];

/// What a witness remembers is an SQLite file too, and no ledger. A bundle that
/// holds an export is audited as a database of the same rows, in a folder that is
/// removed behind the audit.
const NO_LEDGER: [&str; 2] = ["witness/src/state.rs", "validator/src/bundle/rebuild.rs"];

/// Where the network is opened: `ledger serve`, `ledger export --format mlflow`,
/// a run's checkpoint store by URL, and `ledger witness`.
const NETWORK: [&str; 4] = ["web/src/lib.rs", "exports/src/mlflow", "trainer/src/store", "witness/src"];

/// Longest file without a stated reason.
const MAX_LINES: usize = 600;

/// Every Rust source of a member, with its text.
fn sources(member: &str) -> Result<Vec<(PathBuf, String)>> {
    let mut found = Vec::new();
    let mut stack = vec![workspace_root().join(member)];
    while let Some(folder) = stack.pop() {
        for item in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = item?.path();
            let name = path.file_name().unwrap_or_default();
            if path.is_dir() && name != "target" && name != "node_modules" {
                stack.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                found.push((path, text));
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "{member} has no source");
    Ok(found)
}

/// A file's code: without comments, and without its `mod tests`.
fn code(text: &str) -> String {
    let code = text.split_once("#[cfg(test)]").map_or(text, |(before, _)| before);
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether a file is no part of the library or program: a test, an example, or
/// a module that the crate's root declares for tests alone.
fn is_test_or_example(path: &Path, member: &str) -> Result<bool> {
    let member = workspace_root().join(member);
    let below = path.strip_prefix(&member).unwrap_or(path);
    if ["tests", "examples", "benches"].iter().any(|folder| below.starts_with(folder)) {
        return Ok(true);
    }
    // A module `tests` deeper down, where the module around it says that it is one.
    for folder in path.ancestors().filter(|folder| folder.file_stem().is_some_and(|name| name == "tests")) {
        let around = folder.with_file_name("mod.rs");
        if around.is_file() && std::fs::read_to_string(around)?.contains("#[cfg(test)]\nmod tests;") {
            return Ok(true);
        }
    }
    let root = member.join("src/lib.rs");
    let text = if root.is_file() { std::fs::read_to_string(root)? } else { String::new() };
    let mut is_for_tests = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(any(test,") {
            is_for_tests = true;
        } else if let Some(name) = line.strip_suffix(';').and_then(|line| line.rsplit_once("mod ")) {
            let module = Path::new("src").join(name.1);
            if is_for_tests && (below.starts_with(&module) || below == module.with_extension("rs")) {
                return Ok(true);
            }
            is_for_tests = false;
        }
    }
    Ok(false)
}

#[test]
fn only_the_ledger_crate_writes_ledgers() -> Result<()> {
    // The names through which either driver opens for writing, and the
    // statements that write to the tables.
    let needles = [
        "SqliteConnectOptions",
        "SqlitePool",
        "SQLITE_OPEN_CREATE",
        "Connection::open(",
        "INSERT INTO entries",
        "INSERT INTO heads",
        "INSERT INTO artifacts",
        "DROP TRIGGER",
    ];
    for member in MEMBERS.into_iter().filter(|member| *member != "ledger" && *member != "tests") {
        for (path, text) in sources(member)? {
            if is_test_or_example(&path, member)? {
                continue;
            }
            let code = code(&text);
            for needle in needles {
                let is_allowed = NO_LEDGER.iter().any(|known| path.ends_with(known));
                assert!(is_allowed || !code.contains(needle), "{}: {needle}", path.display());
            }
        }
    }
    let ledger: String = sources("ledger")?.iter().map(|(_, text)| code(text)).collect();
    assert!(ledger.contains("INSERT INTO entries"), "the test looks for the writer where it is");
    Ok(())
}

#[test]
fn the_network_is_opened_in_the_listed_places_alone() -> Result<()> {
    // The types that open a connection by themselves, and the crates of the
    // workspace's dependencies that do.
    let needles = ["TcpListener", "TcpStream", "UdpSocket", "ureq::", "reqwest::", "object_store::"];
    let places = NETWORK.map(|place| workspace_root().join(place));
    let mut found = [false; NETWORK.len()];
    for member in MEMBERS.into_iter().filter(|member| *member != "tests") {
        for (path, text) in sources(member)? {
            let is_named = needles.iter().any(|needle| text.contains(needle));
            if !is_named || is_test_or_example(&path, member)? {
                continue;
            }
            let place = places.iter().position(|place| path.starts_with(place));
            let place = place.with_context(|| format!("{} opens the network", path.display()))?;
            found[place] = true;
        }
    }
    assert_eq!(found, [true; NETWORK.len()], "the test looks for it where it is: {NETWORK:?}");
    Ok(())
}

#[test]
fn no_part_is_left_out() -> Result<()> {
    let needles = [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("#[ign", "ore")];
    for member in MEMBERS {
        for (path, text) in sources(member)? {
            for needle in needles {
                assert!(!text.contains(needle), "{}: {needle}", path.display());
            }
        }
    }
    Ok(())
}

#[test]
fn every_module_says_what_it_owns_and_stays_readable() -> Result<()> {
    let mut wrong = Vec::new();
    for member in MEMBERS {
        for (path, text) in sources(member)? {
            let is_test = path.file_name().is_some_and(|name| name == "tests.rs");
            if !is_test && !text.starts_with("//!") {
                wrong.push(format!("{}: no module documentation", path.display()));
            }
            let num_lines = text.lines().count();
            if num_lines > MAX_LINES {
                wrong.push(format!("{}: {num_lines} lines", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}
