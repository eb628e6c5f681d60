//! Kills, full and failing disks, clocks and second trainers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tempfile::NamedTempFile;

use super::baseline::{Baseline, Variant, says_point, used_bytes};
use super::disk::Disk;
use super::failing::{Severity, injected, is_flush_at_close, is_of_run, severity};
use super::power::{pass, survive};
use super::process::{Ended, FAILPOINTS, Process};
use super::record::Acknowledged;
use super::trial::{Outcome, conclude};
use crate::dump;
use crate::programs::{self, LEDGER};
use crate::random::Random;
use crate::run_folder::{RunFolder, copy_folder};

/// What the system says of a full disk, in the words of SQLite and of files.
const FULL: [&str; 3] = ["No space left on device", "disk is full", "disk I/O error"];

/// Room for everything.
const ROOMY: u64 = 256 << 20;

/// Pages of a file system in memory.
const PAGE_BYTES: u64 = 4096;

/// Calls that fail (a `?` passes over one that this machine does not have), how
/// often one thread of a run makes them at least, and the file that they fail
/// for; any of the ledger and the store where there is none.
const FAILING: [(&str, u64, Option<&str>); 8] = [
    ("pwrite64", 60, None),
    ("fdatasync", 30, None),
    ("fsync", 40, None),
    ("write", 15, Some("run.db.head")),
    ("write", 40, None),
    ("?rename,?renameat,?renameat2", 5, None),
    ("?mkdir,?mkdirat", 5, None),
    ("?unlink,?unlinkat", 12, None),
];

/// Two days: more than any budget of wall time here.
const LEAP_S: u64 = 2 * 24 * 3600;

/// What all that was there says of a process that is gone.
pub(super) fn all_of(folder: &Path) -> Result<Acknowledged> {
    Ok(Acknowledged::observe(folder, true)?.with_entries(folder)?.of_all_entries())
}

/// SIGKILL where the process passes a point: each point in turn, at any of its
/// passes; at every fifth, which are others in each round, the attempt behind it
/// is killed too, in its recovery.
pub(super) fn kill_at_point(baseline: &Baseline, number: u64, random: &mut Random) -> Result<Outcome> {
    let points = baseline.points();
    ensure!(!points.is_empty(), "no run was logged");
    let num_points = points.len() as u64;
    let point = points[usize::try_from(number % num_points)?].to_owned();
    let mut variant = baseline.variant(random.below(2) == 1);
    if !variant.passes.contains(&point) {
        variant = baseline.variant(!variant.is_asynchronous);
    }
    let num_passes = variant.passes.iter().filter(|pass| **pass == point).count() as u64;
    let survived = usize::try_from(random.below(num_passes))?;
    let mut what = format!("{point} after {survived} of {num_passes}");
    let run = variant.frozen.copy();
    let killed = kill_at(run.path(), &point, survived)?;
    let mut outcome = Outcome { what: what.clone(), has_fired: killed, ..Outcome::default() };
    if !killed {
        return Ok(outcome);
    }
    outcome.points.push(point.clone());
    if (number + number / num_points).is_multiple_of(5)
        && point != "attempt.ended"
        && point != "attempt.started"
    {
        let first = all_of(run.path())?;
        if kill_at(run.path(), "recovery.recorded", 0)? {
            what.push_str(", and recovery.recorded");
            outcome.what = what;
            outcome.points.push("recovery.recorded".to_owned());
        }
        ensure!(first.num_lost(run.path()) == 0, "{}: the second kill lost entries", outcome.what);
    }
    conclude(run.path(), variant, &all_of(run.path())?, outcome)
}

/// SIGKILL at a pass of a point; `false` where the run was over before.
pub(super) fn kill_at(folder: &Path, point: &str, survived: usize) -> Result<bool> {
    let setting = format!("{point}={}", survive(survived, "return"));
    let ended = Process::start(folder, &[], &[(FAILPOINTS, &setting)])?.finish()?;
    ensure!(ended.is_killed() || ended.code == 0, "{point} ended with {}: {}", ended.code, ended.said);
    ensure!(!ended.is_killed() || says_point(&ended.said, point), "{point} was not what killed it");
    Ok(ended.is_killed())
}

/// SIGKILL after some part of the time that a run takes.
pub(super) fn kill_at_random(baseline: &Baseline, random: &mut Random) -> Result<Outcome> {
    let variant = baseline.variant(random.below(2) == 1);
    let delay = part_of(variant, random);
    let run = variant.frozen.copy();
    let process = Process::start(run.path(), &[], &[])?;
    std::thread::sleep(delay);
    let ended = process.kill()?;
    let outcome =
        Outcome { what: format!("after {delay:?}"), has_fired: ended.is_killed(), ..Outcome::default() };
    if !outcome.has_fired {
        return Ok(outcome);
    }
    conclude(run.path(), variant, &all_of(run.path())?, outcome)
}

/// Some part of the time that a run takes.
pub(super) fn part_of(variant: &Variant, random: &mut Random) -> Duration {
    let thousandths = u32::try_from(random.below(1000)).unwrap_or(0);
    variant.duration * thousandths / 1000
}

/// A file system in memory with less room than the run needs.
pub(super) fn full_disk(baseline: &Baseline, random: &mut Random) -> Result<Outcome> {
    let variant = baseline.variant(random.below(2) == 1);
    let before = used_bytes(variant.frozen.path())?;
    // Whole pages for every file of the frozen run, and a part of what it grows by.
    let num_files = dump::files(variant.frozen.path())?.len() as u64;
    let room = PAGE_BYTES * (2 + random.below(2 * variant.num_bytes / PAGE_BYTES));
    let disk = Disk::memory(before + num_files * PAGE_BYTES + room)?;
    copy_folder(variant.frozen.path(), &disk.folder())?;
    let ended = Process::start(&disk.folder(), &[], &[])?.finish()?;
    let outcome = Outcome {
        what: format!("room for {room} bytes more"),
        has_fired: ended.code != 0 && FULL.iter().any(|words| ended.said.contains(words)),
        ..Outcome::default()
    };
    if !outcome.has_fired {
        return Ok(outcome);
    }
    ensure!(matches!(ended.code, 1 | 2), "a full disk ended it with {}: {}", ended.code, ended.said);
    let acknowledged = all_of(&disk.folder())?;
    disk.resize(ROOMY)?;
    conclude(&disk.folder(), variant, &acknowledged, outcome)
}

/// The n-th of some calls fails: mostly with EIO, else as on a full disk.
pub(super) fn failing_disk(baseline: &Baseline, number: u64, random: &mut Random) -> Result<Outcome> {
    let variant = baseline.variant(random.below(2) == 1);
    let (calls, num_calls, file) = FAILING[usize::try_from(number % FAILING.len() as u64)?];
    let when = 1 + random.below(num_calls);
    let error = if random.below(3) == 0 { "ENOSPC" } else { "EIO" };
    let disk = Disk::memory(ROOMY)?;
    let run = disk.folder();
    copy_folder(variant.frozen.path(), &run)?;
    let log = NamedTempFile::new()?;
    let log_path = log.path().to_string_lossy().into_owned();
    // What else is flushed tells what a flush that failed was of.
    let traced = if calls.ends_with("sync") { "fsync,fdatasync" } else { calls };
    let (trace, inject) = (format!("trace={traced}"), format!("inject={calls}:error={error}:when={when}"));
    let mut behind =
        vec!["strace", "-f", "-y", "--seccomp-bpf", "-o", &log_path, "-e", &trace, "-e", &inject];
    let path = file.map(|file| run.join(file).display().to_string());
    behind.extend(path.iter().flat_map(|path| ["-P", path.as_str()]));
    let ended = Process::start(&run, &behind, &[])?.finish()?;
    // Nobody loses anything by a line that was not said.
    let log = std::fs::read_to_string(log.path())?;
    let mut failed = injected(&log);
    let folder = run.canonicalize()?;
    failed.retain(|call| is_of_run(call, &folder));
    let of = file.map_or_else(String::new, |file| format!(" of {file}"));
    let what =
        format!("{error} at {} {when}{of}", calls.trim_start_matches('?').split(',').next().unwrap_or(calls));
    let outcome = Outcome { what, has_fired: !failed.is_empty(), ..Outcome::default() };
    if !outcome.has_fired {
        return Ok(outcome);
    }
    let is_fine = match ended.code {
        0 => failed.iter().all(|call| match severity(call, &folder) {
            Severity::Fatal => is_flush_at_close(call, &log),
            Severity::Warned => ended.said.contains("warning: "),
            Severity::Harmless => true,
        }),
        code => matches!(code, 1 | 2),
    };
    ensure!(is_fine, "{}: {failed:?} ended it with {}: {}", outcome.what, ended.code, ended.said);
    ensure!(!ended.said.contains("panicked"), "{} made it panic: {}", outcome.what, ended.said);
    conclude(&run, variant, &all_of(&run)?, outcome)
}

/// Starts a trainer and stops it: at a pass of a point, or at a random time.
/// `None` where it ended first. What is given is where it stands.
pub(super) fn stopped(
    baseline: &Baseline,
    variant: &Variant,
    folder: &Path,
    random: &mut Random,
) -> Result<Option<(Process, String)>> {
    if baseline.is_instrumented {
        let (point, survived) = pass(variant, random.next_u64())?;
        let setting = format!("{point}={}", survive(survived, "1*return(stop)"));
        let mut process = Process::start(folder, &[], &[(FAILPOINTS, &setting)])?;
        let is_there = process.wait_until_stopped()?;
        return Ok(is_there.then_some((process, format!("{point} after {survived}"))));
    }
    // The first was written by the freeze: it does not say that the trainer began.
    let num_notes = usize::try_from(random.below(19))? + 2;
    let mut process = Process::start(folder, &[], &[])?;
    let is_there = process.wait_for_notes(num_notes)? && process.stop()?;
    Ok(is_there.then_some((process, format!("{num_notes} heads"))))
}

/// The library that gives a process another clock.
fn libfaketime() -> Result<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib")?.flatten().map(|item| item.path());
    let found = folders.map(|folder| folder.join("faketime/libfaketime.so.1")).find(|path| path.is_file());
    found.context("libfaketime is not installed\nhint: apt-get install faketime")
}

/// The system's clock leaps two days ahead and then to two days ago. Entries stay
/// in order, times are repeated and never go back, and a budget of an hour is not
/// used up, since it goes by the clock that nobody sets.
pub(super) fn clock_set_back(baseline: &Baseline, random: &mut Random) -> Result<Outcome> {
    let variant = baseline.variant(random.below(2) == 1);
    let library = libfaketime()?;
    let run = variant.frozen.copy();
    let clock = NamedTempFile::new()?;
    let set = |offset: &str| std::fs::write(clock.path(), offset);
    set("+0")?;
    let path = clock.path().to_string_lossy().into_owned();
    let library = library.to_string_lossy().into_owned();
    let variables = [
        ("LD_PRELOAD", library.as_str()),
        ("FAKETIME_TIMESTAMP_FILE", path.as_str()),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    let first = usize::try_from(random.below(6))? + 3;
    let mut process = Process::start(run.path(), &[], &variables)?;
    let mut outcome = Outcome { what: format!("at {first} heads"), ..Outcome::default() };
    let reached = process.wait_for_notes(first)? && process.stop()?;
    set("+2d")?;
    process.send(Signal::CONT)?;
    if !reached || !process.wait_for_notes(first + 3)? || !process.stop()? {
        return Ok(outcome);
    }
    set("-2d")?;
    process.send(Signal::CONT)?;
    let ended = process.finish()?;
    ensure!(ended.code == 0, "{} ended with {}: {}", outcome.what, ended.code, ended.said);

    let entries = run.entries();
    let times: Vec<u64> = entries.iter().filter_map(|entry| entry["time_us"].as_u64()).collect();
    ensure!(times.len() == entries.len() && times.is_sorted(), "times of entries go back");
    let latest = times.last().copied().unwrap_or_default();
    let leap_us = LEAP_S * 1_000_000;
    let num_repeated = times.iter().filter(|time| **time == latest).count();
    outcome.has_fired = latest - times[0] > leap_us / 2 && num_repeated > 1;
    if !outcome.has_fired {
        return Ok(outcome);
    }
    outcome.what.push_str(&format!(", the latest time {num_repeated} times"));
    let report = programs::run(LEDGER, run.path(), &["audit", "run.db", "--output-format", "json"]).json();
    let findings = report["findings"].as_array().context("findings")?;
    let says = |code: &str| findings.iter().any(|finding| finding["rule"] == code || finding["code"] == code);
    ensure!(!says("GL012"), "times are repeated, and GL012 says that they go back");
    let end = entries.iter().rfind(|entry| entry["kind"] == "attempt.end").context("it ended")?;
    let wall_us = end["body"]["obs"]["cost"]["wall_us"].as_u64().context("an attempt has a wall time")?;
    ensure!(wall_us < leap_us / 48, "{wall_us} us of wall time: the clock that was set was believed");
    ensure!(end["body"]["det"]["outcome"] == "completed", "the attempt's outcome: {}", end["body"]["det"]);
    conclude(run.path(), variant, &all_of(run.path())?, outcome)
}

/// Attempts that were started and that ended.
fn num_attempts(run: &RunFolder) -> (usize, usize) {
    let entries = run.entries();
    let count = |kind: &str| entries.iter().filter(|entry| entry["kind"] == kind).count();
    (count("attempt.start"), count("attempt.end"))
}

/// A second trainer: while the first stands still, at the same moment, or two at
/// once behind one that was killed.
pub(super) fn two_trainers(baseline: &Baseline, number: u64, random: &mut Random) -> Result<Outcome> {
    let variant = baseline.variant(random.below(2) == 1);
    let run = variant.frozen.copy();
    let mut outcome = Outcome::default();
    let is_refused = |ended: &Ended| ended.code == 2 && ended.said.contains("is being written by");
    match number % 3 {
        0 => {
            let Some((first, place)) = stopped(baseline, variant, run.path(), random)? else {
                return Ok(outcome);
            };
            let second = Process::start(run.path(), &[], &[])?.finish()?;
            first.send(Signal::CONT)?;
            let first = first.finish()?;
            outcome.what = format!("a second one at {place}");
            // The first may have stood still with nothing left to do: its run is over,
            // it holds the ledger no more, and the second has nothing to do either.
            if second.code == 0 && first.code == 0 && num_attempts(&run) == (1, 1) {
                return Ok(outcome);
            }
            ensure!(
                is_refused(&second),
                "{}: the second ended with {}: {}",
                outcome.what,
                second.code,
                second.said
            );
            ensure!(first.code == 0, "{}: the first ended with {}: {}", outcome.what, first.code, first.said);
            outcome.has_fired = true;
        }
        kind => {
            if kind == 2 {
                let process = Process::start(run.path(), &[], &[])?;
                std::thread::sleep(part_of(variant, random));
                let _ = process.kill()?;
            }
            let behind = if kind == 2 { " behind a kill" } else { "" };
            outcome.what = format!("two at once{behind}");
            let both = [Process::start(run.path(), &[], &[])?, Process::start(run.path(), &[], &[])?];
            let [first, second] = both.map(Process::finish);
            let (first, second) = (first?, second?);
            let is_fine = |ended: &Ended| ended.code == 0 || is_refused(ended);
            ensure!(
                is_fine(&first) && is_fine(&second) && (first.code == 0 || second.code == 0),
                "{}: {} and {}: {}{}",
                outcome.what,
                first.code,
                second.code,
                first.said,
                second.said
            );
            // Else one was over before the other came.
            outcome.has_fired = is_refused(&first) || is_refused(&second);
        }
    }
    if !outcome.has_fired {
        return Ok(outcome);
    }
    conclude(run.path(), variant, &all_of(run.path())?, outcome)
}
