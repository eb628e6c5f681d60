//! Flips bytes of a finished run, one at a time, and audits after each.
//!
//! What must hold: an audit of the changed files is not accepted and an error
//! names an entry or the file, or else, for database and WAL, an independent
//! dump shows that the byte carries no content. Every byte of every file that
//! an audit reads is swept; the run is a small one, so that this takes minutes.
//!
//! The audit runs inside this process, through the library that `ledger audit`
//! calls: a process for each byte would take a day. Every test runs in a child of
//! its own, whose temporary files are in memory ([`in_memory`]).

use std::fs::OpenOptions;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use rusqlite::{Connection, OpenFlags};
use schemas::finding::{Finding, Severity};
use schemas::report::{Report, Verdict};
use system_tests::dump;
use system_tests::random::Random;
use system_tests::run_folder::{RunFolder, copy_folder};
use validator::{AuditError, AuditRequest, audit};

/// Threads that sweep; each has its own copy of the run.
const NUM_THREADS: usize = 2;

/// Copies of what the ledger holds itself, where its bytes are swept. The
/// trainer, which reads the copies, is swept over them beside its own tests
/// (`trainer/tests/run/frozen_inputs.rs`).
const DOCUMENTS: [&str; 6] = [
    "contract.json",
    "data/manifest.json",
    "data/train.examples",
    "data/val.examples",
    "parameters.json",
    "policy-card.json",
];

/// What a sweep of one file came to.
#[derive(Debug, Default)]
struct Tally {
    /// Bytes whose change was found, by a verdict that is not accepted.
    found: AtomicU64,
    /// Bytes whose change left nothing that could be opened as a ledger.
    unreadable: AtomicU64,
    /// Bytes that carry no content.
    without_effect: AtomicU64,
}

/// Where copies of the run lie: in memory where the system has such a folder,
/// because each byte is written twice.
fn scratch() -> Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    Ok(tempfile::Builder::new().prefix("governed-ledger-sweep-").tempdir_in(parent)?)
}

/// Says to a child that it is one.
const CHILD: &str = "GOVERNED_LEDGER_SWEEP";

/// Calls a test again in a child process whose temporary folder is in memory,
/// where the system has such a folder, and whose allocator gives nothing back in
/// between: an audit of a database with a log copies both, and so does every
/// independent dump, some hundred thousand times in all. What is audited, and how,
/// is the same.
fn in_memory(name: &str, test: impl FnOnce() -> Result<()>) -> Result<()> {
    let memory = Path::new("/dev/shm");
    if std::env::var_os(CHILD).is_some() || !memory.is_dir() {
        return test();
    }
    let folder = scratch()?;
    let mut child = std::process::Command::new(std::env::current_exe()?);
    child.args([&format!("byte_sweep::{name}"), "--exact", "--nocapture"]).env(CHILD, "1");
    child.env("TMPDIR", folder.path());
    let allocator = ["TRIM_THRESHOLD_", "MMAP_THRESHOLD_", "TOP_PAD_"].map(|name| format!("MALLOC_{name}"));
    child.envs(allocator.map(|name| (name, NUM_KEPT_BYTES)));
    let output = child.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && text.contains("1 passed"),
        "{name}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Bytes that the allocator of a child keeps.
const NUM_KEPT_BYTES: &str = "67108864";

fn audited(folder: &Path) -> Result<Report, AuditError> {
    let threads = Some(std::num::NonZeroUsize::MIN);
    let request = AuditRequest { ledger: folder.join("run.db"), threads, ..AuditRequest::default() };
    audit(&request, &mut |_| {})
}

/// A run of one update over a short text, evaluated, handed off, with its last
/// entries only in the WAL; keys are left out, as for a reviewer.
fn small_run() -> Result<RunFolder> {
    let run = RunFolder::smallest();
    let _ = run.freeze().expect_code(0);
    let _ = run.train().expect_code(0);
    let _ = run.evaluator_command("val", &["--ledger", "run.db"]).expect_code(0);
    let _ = run.audit(&["--save"]).expect_code(0);
    // A reader that stays keeps the writer of the handoff from folding the WAL
    // into the database when it closes.
    let reader = Connection::open_with_flags(run.ledger(), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let held = reader.unchecked_transaction()?;
    let _: i64 = held.query_row("SELECT count(*) FROM entries", [], |row| row.get(0))?;
    let _ = run.ledger_command("handoff", &[]).expect_code(0);
    let copy = run.copy();
    drop(held);
    let wal = dump::with_suffix(&copy.ledger(), "-wal");
    ensure!(std::fs::metadata(&wal)?.len() > 0, "the WAL is empty: it would not be swept");
    let index = dump::with_suffix(&copy.ledger(), "-shm");
    if index.exists() {
        std::fs::remove_file(index)?;
    }
    std::fs::remove_dir_all(copy.path().join("keys")).context("the run's keys")?;
    check_accepted(&copy)?;
    Ok(copy)
}

/// The same with its WAL folded into the database, for what is swept beside
/// them: an audit then copies nothing and is faster.
fn settled_run() -> Result<RunFolder> {
    let run = small_run()?;
    Connection::open(run.ledger())?.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")?;
    check_accepted(&run)?;
    Ok(run)
}

fn check_accepted(run: &RunFolder) -> Result<()> {
    let report = audited(run.path())?;
    ensure!(
        report.verdict == Verdict::Accepted,
        "the unchanged run is {:?}: {:#?}",
        report.verdict,
        report.findings
    );
    Ok(())
}

fn is_database(file: &Path) -> bool {
    file == Path::new("run.db") || file == Path::new("run.db-wal")
}

/// Whether a finding is an error and says where: in a database anywhere, since
/// one byte may be a part of anything, else in that very file.
fn names(finding: &Finding, file: &Path) -> bool {
    let is_place = if is_database(file) {
        finding.entry.is_some() || !finding.location.is_empty()
    } else {
        finding.location.contains(&*file.to_string_lossy())
    };
    finding.severity == Severity::Error && is_place
}

/// Flips one byte, looks, and puts it back.
fn check_byte(folder: &Path, file: &Path, offset: u64, original: &str, tally: &Tally) -> Result<()> {
    let path = folder.join(file);
    let handle = OpenOptions::new().read(true).write(true).open(&path)?;
    let mut byte = [0];
    handle.read_exact_at(&mut byte, offset)?;
    // Any other value, chosen by the place, so that all kinds of change occur.
    let mask = 1 + Random::new(offset).below(255);
    let changed = [byte[0] ^ u8::try_from(mask)?];
    handle.write_all_at(&changed, offset)?;
    let result = audited(folder);
    let place = || format!("{} byte {offset}: {:#04x} became {:#04x}", file.display(), byte[0], changed[0]);
    match result {
        Err(error) => {
            let message = format!("{:#}", anyhow::Error::from(error));
            let named = path.to_string_lossy();
            ensure!(message.contains(&*named), "{}: the error names another file: {message}", place());
            tally.unreadable.fetch_add(1, Ordering::Relaxed);
        }
        Ok(report) if report.verdict == Verdict::Accepted => {
            ensure!(is_database(file), "{}: accepted", place());
            let dumped = dump::database(&folder.join("run.db")).with_context(place)?;
            ensure!(dumped == original, "{}: accepted, though the content is another", place());
            tally.without_effect.fetch_add(1, Ordering::Relaxed);
        }
        Ok(report) => {
            ensure!(
                report.findings.iter().any(|finding| names(finding, file)),
                "{}: {:?}, but no error names the place: {:#?}",
                place(),
                report.verdict,
                report.findings
            );
            tally.found.fetch_add(1, Ordering::Relaxed);
        }
    }
    handle.write_all_at(&byte, offset)?;
    Ok(())
}

/// Sweeps every byte of one file of the run.
fn sweep(run: &RunFolder, file: &Path) -> Result<Tally> {
    sweep_but(run, file, 0..0)
}

/// Sweeps every byte of one file of the run but those `left_out`.
fn sweep_but(run: &RunFolder, file: &Path, left_out: Range<u64>) -> Result<Tally> {
    let offsets: Vec<u64> =
        (0..std::fs::metadata(run.path().join(file))?.len()).filter(|at| !left_out.contains(at)).collect();
    let original = dump::database(&run.ledger())?;
    let tally = Tally::default();
    std::thread::scope(|scope| {
        let sweeps: Vec<_> = (0..NUM_THREADS)
            .map(|thread| {
                let (tally, original, offsets) = (&tally, original.as_str(), &offsets);
                scope.spawn(move || -> Result<()> {
                    let folder = scratch()?;
                    copy_folder(run.path(), folder.path())?;
                    for offset in offsets.iter().skip(thread).step_by(NUM_THREADS) {
                        check_byte(folder.path(), file, *offset, original, tally)?;
                    }
                    Ok(())
                })
            })
            .collect();
        sweeps.into_iter().try_for_each(|sweep| sweep.join().expect("a sweep does not panic"))
    })?;
    let num_checked = [&tally.found, &tally.unreadable, &tally.without_effect];
    let num_checked: u64 = num_checked.map(|count| count.load(Ordering::Relaxed)).iter().sum();
    ensure!(num_checked == offsets.len() as u64, "{}: {num_checked} bytes were swept", file.display());
    Ok(tally)
}

/// Every file below the run's folder that begins with one of `prefixes`.
fn files(run: &RunFolder, prefixes: &[&str]) -> Result<Vec<PathBuf>> {
    let all = dump::files(run.path())?;
    let chosen = all.into_keys().filter(|path| prefixes.iter().any(|prefix| path.starts_with(prefix)));
    Ok(chosen.collect())
}

#[test]
fn every_byte_of_the_database_is_guarded_or_empty() -> Result<()> {
    in_memory("every_byte_of_the_database_is_guarded_or_empty", || {
        let tally = sweep(&small_run()?, Path::new("run.db"))?;
        assert!(tally.found.load(Ordering::Relaxed) > 0, "{tally:?}");
        assert!(tally.without_effect.load(Ordering::Relaxed) > 0, "pages have unused space: {tally:?}");
        Ok(())
    })
}

#[test]
fn every_byte_of_the_wal_is_guarded_or_empty() -> Result<()> {
    in_memory("every_byte_of_the_wal_is_guarded_or_empty", || {
        let tally = sweep(&small_run()?, Path::new("run.db-wal"))?;
        assert!(tally.found.load(Ordering::Relaxed) > 0, "{tally:?}");
        Ok(())
    })
}

#[test]
fn every_byte_of_the_head_file_is_guarded() -> Result<()> {
    in_memory("every_byte_of_the_head_file_is_guarded", || {
        let tally = sweep(&settled_run()?, Path::new("run.db.head"))?;
        assert!(tally.found.load(Ordering::Relaxed) > 0, "{tally:?}");
        Ok(())
    })
}

/// Where the key identifier of an envelope is. DSSE calls it an
/// unauthenticated hint: nobody decides by it, and the contract says whose key
/// it must be. It is swept apart, by [`check_key_hint`].
fn key_hint(run: &RunFolder, file: &Path) -> Result<Range<u64>> {
    let text = std::fs::read_to_string(run.path().join(file))?;
    let (before, after) = text.split_once("\"keyid\":\"").context("a signature has a key identifier")?;
    let first = u64::try_from(text.len() - after.len())?;
    let length = u64::try_from(after.find('"').context("the key identifier ends")?)?;
    ensure!(!before.is_empty() && length < 64, "the hint is {length} bytes long");
    Ok(first..first + length)
}

/// Sweeps a signed envelope beside the ledger, all but its key hint.
fn check_envelope(file: &str) -> Result<()> {
    let (run, file) = (settled_run()?, Path::new(file));
    let hint = key_hint(&run, file)?;
    let tally = sweep_but(&run, file, hint.clone())?;
    assert!(tally.found.load(Ordering::Relaxed) > 0, "{}: {tally:?}", file.display());
    check_key_hint(run.path(), file, hint)
}

/// Another key hint is without effect on an audit, but for the report's: the
/// handoff names the report by the digest of all its bytes. One that is no
/// text any more is found like any other byte.
fn check_key_hint(folder: &Path, file: &Path, hint: Range<u64>) -> Result<()> {
    let unchanged = audited(folder)?;
    let handle = OpenOptions::new().read(true).write(true).open(folder.join(file))?;
    ensure!(!hint.is_empty(), "{}: no key hint", file.display());
    for offset in hint {
        let mut byte = [0];
        handle.read_exact_at(&mut byte, offset)?;
        let letter = if byte == *b"x" { *b"y" } else { *b"x" };
        handle.write_all_at(&letter, offset)?;
        let report = audited(folder)?;
        if file == Path::new("run.db.report.dsse.json") {
            let is_told = report.findings.iter().any(|finding| {
                finding.severity == Severity::Error
                    && finding.code == "GL112"
                    && finding.location.contains("run.db.handoff.dsse.json")
            });
            ensure!(is_told && report.verdict == Verdict::Rejected, "byte {offset}: {:#?}", report.findings);
        } else {
            ensure!(report == unchanged, "{} byte {offset}: another report", file.display());
        }
        // The quote ends the hint there.
        handle.write_all_at(b"\"", offset)?;
        let report = audited(folder)?;
        let is_named = report.findings.iter().any(|finding| names(finding, file));
        ensure!(is_named && report.verdict != Verdict::Accepted, "{} byte {offset}", file.display());
        handle.write_all_at(&byte, offset)?;
    }
    ensure!(audited(folder)? == unchanged, "{}: not as it was", file.display());
    Ok(())
}

#[test]
fn every_byte_of_the_evaluators_numbers_is_guarded() -> Result<()> {
    in_memory("every_byte_of_the_evaluators_numbers_is_guarded", || check_envelope("run.db.val.dsse.json"))
}

#[test]
fn every_byte_of_the_handoff_is_guarded() -> Result<()> {
    in_memory("every_byte_of_the_handoff_is_guarded", || check_envelope("run.db.handoff.dsse.json"))
}

#[test]
fn every_byte_of_the_report_is_guarded() -> Result<()> {
    in_memory("every_byte_of_the_report_is_guarded", || check_envelope("run.db.report.dsse.json"))
}

#[test]
fn every_byte_of_the_data_and_of_the_sealed_set_is_guarded() -> Result<()> {
    in_memory("every_byte_of_the_data_and_of_the_sealed_set_is_guarded", || {
        let run = settled_run()?;
        let mut files = files(&run, &["data", "qualification.age"])?;
        files.retain(|file| !DOCUMENTS.iter().any(|document| file == Path::new(document)));
        assert_eq!(files.len(), 3, "the shards of two splits and the sealed set: {files:?}");
        for file in files {
            let tally = sweep(&run, &file)?;
            assert!(tally.found.load(Ordering::Relaxed) > 0, "{}: {tally:?}", file.display());
        }
        Ok(())
    })
}

#[test]
fn copies_of_frozen_documents_are_not_what_an_audit_reads() -> Result<()> {
    let run = settled_run()?;
    let before = audited(run.path())?;
    for file in DOCUMENTS {
        let path = run.path().join(file);
        ensure!(path.is_file(), "{file} is not there");
        std::fs::write(path, "something else")?;
    }
    assert_eq!(audited(run.path())?, before);
    Ok(())
}

#[test]
fn every_byte_of_every_checkpoint_is_guarded() -> Result<()> {
    in_memory("every_byte_of_every_checkpoint_is_guarded", || {
        let run = settled_run()?;
        let files = files(&run, &["checkpoints"])?;
        assert!(files.len() > 10, "{files:?}");
        for file in files {
            let tally = sweep(&run, &file)?;
            assert_eq!(tally.unreadable.load(Ordering::Relaxed), 0, "{}: {tally:?}", file.display());
        }
        Ok(())
    })
}

#[test]
fn every_byte_of_an_export_is_guarded() -> Result<()> {
    in_memory("every_byte_of_an_export_is_guarded", || {
        let run = small_run()?;
        let keys = public_keys(&run)?;
        let folder = scratch()?;
        let export = folder.path().join("export");
        ledger::export::export(&run.ledger(), &export)?;
        ledger::export::check(&export, &keys).context("the unchanged export")?;
        let mut num_checked = 0;
        let files: Vec<PathBuf> = dump::files(&export)?.into_keys().collect();
        assert!(files.iter().any(|file| file == Path::new("README.txt")), "{files:?}");
        for file in files {
            let path = export.join(&file);
            let name = file.file_name().context("a file has a name")?.to_string_lossy().into_owned();
            let handle = OpenOptions::new().read(true).write(true).open(&path)?;
            for offset in 0..handle.metadata()?.len() {
                let mut byte = [0];
                handle.read_exact_at(&mut byte, offset)?;
                let mask = u8::try_from(1 + Random::new(offset).below(255))?;
                handle.write_all_at(&[byte[0] ^ mask], offset)?;
                let Err(error) = ledger::export::check(&export, &keys) else {
                    bail!("{} byte {offset}: the changed export is accepted", file.display());
                };
                // Of an entry its line, of any other file its name.
                let message = format!("{:#}", anyhow::Error::from(error));
                ensure!(message.contains(&name), "{} byte {offset}: {message}", file.display());
                handle.write_all_at(&byte, offset)?;
                num_checked += 1;
            }
        }
        ledger::export::check(&export, &keys).context("the export with every byte put back")?;
        assert!(num_checked > 10_000, "only {num_checked} bytes");
        Ok(())
    })
}

/// The public keys of the contract, by which heads are signed.
fn public_keys(run: &RunFolder) -> Result<Vec<String>> {
    let entries = run.entries();
    let contract = entries[0]["body"]["det"]["contract"].as_str().context("entry 0 holds the contract")?;
    let contract: serde_json::Value = serde_json::from_str(contract)?;
    let key = |role: &str| contract["keys"][role]["public"].as_str().map(str::to_owned);
    ["owner", "trainer"]
        .into_iter()
        .map(|role| key(role).with_context(|| format!("the {role}'s key")))
        .collect()
}
