//! Writes the tables that tests make, or compares what is committed with what the
//! rules did. It decides nothing about their contents.

use std::collections::BTreeSet;

/// Compares a table with what was seen, or writes it where `UPDATE_COVERAGE` is
/// set.
pub(crate) fn check_table(name: &str, actual: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/coverage").join(name);
    if std::env::var_os("UPDATE_COVERAGE").is_some() {
        std::fs::write(&path, actual).expect("the sources are writable");
        return;
    }
    let committed = std::fs::read_to_string(&path).expect("a table");
    let (old, new): (BTreeSet<&str>, BTreeSet<&str>) =
        (committed.lines().collect(), actual.lines().collect());
    assert!(
        committed == actual,
        "{name} is not what the rules did: it has {:#?} and lacks {:#?}; \
         `UPDATE_COVERAGE=1 cargo test -p validator --lib -- false_runs campaign` writes it",
        old.difference(&new).collect::<Vec<_>>(),
        new.difference(&old).collect::<Vec<_>>(),
    );
}
