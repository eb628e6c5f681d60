//! Calls that `strace` makes fail: which, and of which file.
//!
//! What a program says to a person, and what threads say to each other, are the
//! same calls as what it writes to its disk. So what failed is read from the log,
//! and only a call that concerns the ledger or the store counts.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// What `strace` ends the line of a call with that it did not let through.
const MARK: &str = "(INJECTED)";

/// What `strace` ends the line of a call with that another thread's interrupts.
const UNFINISHED: &str = "<unfinished ...>";

/// Files of a run whose loss would be one: its ledger and its store.
const PROMISED: [&str; 4] = ["run.db", "run.db-wal", "run.db.head", "checkpoints"];

/// The calls that failed, in a log of `strace -f -y`: each as one line without
/// the number of its process.
#[must_use]
pub fn injected(log: &str) -> Vec<String> {
    let mut unfinished: BTreeMap<&str, &str> = BTreeMap::new();
    let mut found = Vec::new();
    for line in log.lines() {
        let Some((process, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        if let Some(begun) = call.strip_suffix(UNFINISHED) {
            unfinished.insert(process, begun);
            continue;
        }
        let is_resumed = call.starts_with("<... ");
        let begun = if is_resumed { unfinished.remove(process) } else { None };
        if call.ends_with(MARK) {
            found.push(format!("{}{call}", begun.unwrap_or_default()));
        }
    }
    found
}

/// What of the run's `folder` a call is about, relative to it: the file that it
/// has open, else the first path that it names. `folder` is the trainer's working
/// folder, and has no link in its path.
fn path_of(call: &str, folder: &Path) -> Option<PathBuf> {
    let (_, arguments) = call.split_once('(')?;
    // `5</path/of/the/file>`; a path in quotes may be relative.
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let opened = arguments.split_once('<').filter(|(number, _)| is_number(number));
    let path = match opened {
        Some((_, rest)) => rest.split_once('>')?.0,
        None => arguments.split('"').nth(1)?,
    };
    let path = folder.join(path);
    let parts = path.strip_prefix(folder).ok()?.components();
    Some(parts.filter(|part| *part != Component::CurDir).collect())
}

/// Whether a call is about a file of the ledger or the store, or about the folder
/// itself, whose flush is what makes a new file durable.
#[must_use]
pub fn is_of_run(call: &str, folder: &Path) -> bool {
    path_of(call, folder).is_some_and(|path| {
        let first = path.components().next();
        first.is_none_or(|first| PROMISED.iter().any(|name| first.as_os_str() == *name))
    })
}

/// Whether a run may end as if a call had not failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// It may not.
    Fatal,
    /// It may, with a warning: a retired checkpoint is left behind.
    Warned,
    /// It may: at its end the database is written back from its log, and where
    /// that fails the log is left, which has everything.
    Harmless,
}

/// What a run has to make of a call that failed.
#[must_use]
pub fn severity(call: &str, folder: &Path) -> Severity {
    let Some(path) = path_of(call, folder) else { return Severity::Fatal };
    let is_removal = call.starts_with("unlink");
    if path == Path::new("run.db") || is_removal && path == Path::new("run.db-wal") {
        return Severity::Harmless;
    }
    // Its folder is flushed where files were removed from it; staged ones begin
    // with a dot.
    let name = path.strip_prefix("checkpoints").ok().and_then(Path::to_str).unwrap_or_default();
    let is_retired = call.starts_with("fsync") && name.starts_with('s') && !name.contains('/');
    if is_removal && !name.is_empty() || is_retired { Severity::Warned } else { Severity::Fatal }
}

/// Whether a flush of the database's log failed where nothing was committed any
/// more: no log of `strace` that has every flush shows one of that log or of the
/// head behind it. SQLite flushes once more before it writes the database back, and
/// every entry was flushed by its own commit, behind which the head is flushed.
#[must_use]
pub fn is_flush_at_close(call: &str, log: &str) -> bool {
    let is_flush = call.starts_with("fsync(") || call.starts_with("fdatasync(");
    let mut lines = log.lines();
    is_flush
        && call.contains("/run.db-wal>")
        && lines.any(|line| line.ends_with(MARK))
        && lines.all(|line| !line.contains("/run.db-wal>") && !line.contains("/run.db.head>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_at_the_close_is_one_that_no_commit_follows() {
        let flush = |file: &str, end: &str| format!("71    fsync(5</run/{file}>) = {end}\n");
        let failed = flush("run.db-wal", "-1 EIO (Input/output error) (INJECTED)");
        let call = &injected(&failed)[0];
        let committed = [flush("run.db-wal", "0"), flush("run.db.head", "0")].concat();
        let at_close = [committed.as_str(), &failed, &flush("checkpoints", "0")].concat();
        assert!(is_flush_at_close(call, &at_close));
        // A trainer that went on after its last commit was not flushed.
        assert!(!is_flush_at_close(call, &[failed.as_str(), &flush("run.db.head", "0")].concat()));
        assert!(!is_flush_at_close(call, &[failed.as_str(), &committed].concat()));
        let of_head = failed.replace("run.db-wal", "run.db.head");
        assert!(!is_flush_at_close(&injected(&of_head)[0], &of_head));
    }

    const LOG: &str = r#"
71    write(2</tmp/.tmpA>, "could not remove ./checkpoints/s1"..., 33) = -1 EIO (Input/output error) (INJECTED)
72    fsync(5</run/run.db-wal> <unfinished ...>
71    write(6</run/run.db.head>, "note"..., 255) = 255
73    fsync(7</run/other> <unfinished ...>
72    <... fsync resumed>)              = -1 EIO (Input/output error) (INJECTED)
73    <... fsync resumed>)              = 0
71    unlink("./checkpoints/s1/model") = -1 ENOSPC (No space left on device) (INJECTED)
71    +++ exited with 0 +++
"#;

    #[test]
    fn calls_that_failed_are_found_with_their_files() {
        let calls = injected(LOG);
        assert_eq!(calls.len(), 3, "{calls:?}");
        let of_run: Vec<bool> = calls.iter().map(|call| is_of_run(call, Path::new("/run"))).collect();
        assert_eq!(of_run, [false, true, true], "{calls:?}");
        assert!(calls[1].starts_with("fsync(5</run/run.db-wal>"), "{calls:?}");
    }

    #[test]
    fn only_the_ledger_and_the_store_count() {
        let is_counted = |call: &str| is_of_run(call, Path::new("/run"));
        for call in [
            "pwrite64(4</run/run.db>, ",
            "write(5</run/checkpoints/.staging-s1/model.safetensors>, ",
            "fdatasync(6</run/run.db.head>)",
            "fsync(7</run>)",
            "fsync(7</run/checkpoints>)",
            r#"rename("./checkpoints/.staging-s1", "./checkpoints/s1")"#,
            r#"mkdirat(AT_FDCWD</run>, "/run/checkpoints/.staging-s1", 0777)"#,
            "unlinkat(8</run/checkpoints/s1>, \"model\", 0)",
        ] {
            assert!(is_counted(call), "{call}");
        }
        for call in [
            "write(9<anon_inode:[eventfd]>, ",
            "write(2</tmp/.tmpA>, \"/run/run.db\"",
            "write(3</run/run.db.lock>, ",
            "pwrite64(4</run/run.db-shm>, ",
            "write(5</running/run.db>, ",
            r#"unlinkat(AT_FDCWD</run>, "/tmp/ledger-read-1", AT_REMOVEDIR)"#,
            r#"mkdir("/tmp/ledger-read-1", 0777)"#,
        ] {
            assert!(!is_counted(call), "{call}");
        }
    }

    #[test]
    fn only_removals_and_the_end_of_the_database_are_passed_over() {
        for (call, expected) in [
            ("pwrite64(4</run/run.db>, ", Severity::Harmless),
            (r#"unlink("/run/run.db-wal")"#, Severity::Harmless),
            (r#"unlink("./checkpoints/s1-a1/model.safetensors")"#, Severity::Warned),
            ("fsync(4</run/checkpoints/s1-a1>)", Severity::Warned),
            ("fsync(4</run/checkpoints/.staging-s1-a1-7>)", Severity::Fatal),
            ("fsync(4</run/checkpoints/.staging-s1-a1-7/model.safetensors>)", Severity::Fatal),
            ("fsync(4</run/checkpoints>)", Severity::Fatal),
            ("fsync(4</run>)", Severity::Fatal),
            ("fsync(4</run/run.db-wal>)", Severity::Fatal),
            ("write(4</run/run.db.head>, ", Severity::Fatal),
            (r#"rename("./checkpoints/.staging-s1", "./checkpoints/s1")"#, Severity::Fatal),
        ] {
            assert_eq!(severity(call, Path::new("/run")), expected, "{call}");
        }
    }
}
