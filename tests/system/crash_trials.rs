//! Kills, power cuts, full and failing disks, signals, clocks and second
//! trainers, a few of each: `scripts/crashes` makes many, and those at crash
//! points, which need another build.
//!
//! What a trial is and what has to hold is in `tests/src/crashes/`. Devices are
//! mounted and cut by root; where that is missing these tests fail.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use system_tests::crashes::disk::{self, Disk, Tear};
use system_tests::crashes::process::Process;
use system_tests::crashes::{self, Baseline, Kind, Made, Trial, points, table};
use system_tests::random::Random;
use system_tests::run_folder::RunFolder;
use system_tests::workspace_root;

/// Trials at a time: other tests run meanwhile.
const NUM_THREADS: usize = 2;

fn made(kind: Kind, num_trials: u64) -> Result<Vec<Made>> {
    let baseline = Baseline::new()?;
    ensure!(!baseline.is_instrumented, "these are trials of the program as it is used");
    let mut random = Random::new(20_261_130);
    let trials = (0..num_trials).map(|number| Trial { kind, number, seed: random.next_u64() }).collect();
    let made = crashes::make(&baseline, trials, NUM_THREADS, &|_| ());
    ensure!(table::holds(&made), "{}\n{}", table::failures(&made).join("\n"), table::text(&made));
    ensure!(made.len() as u64 == num_trials, "{} of {num_trials} trials", made.len());
    let num_acknowledged: u64 = made.iter().map(|one| one.outcome.num_acknowledged).sum();
    ensure!(num_acknowledged > 0, "nothing was acknowledged, so nothing could be lost");
    Ok(made)
}

#[test]
fn a_hundred_kills_at_random_times_lose_nothing() -> Result<()> {
    made(Kind::KillAtRandom, 100).map(drop)
}

#[test]
fn a_worker_or_its_recorder_that_is_killed_loses_nothing() -> Result<()> {
    made(Kind::KillWithWorkers, 8).map(drop)
}

#[test]
fn a_power_cut_loses_nothing_that_was_acknowledged() -> Result<()> {
    made(Kind::PowerCut, 16).map(drop)
}

/// The control of the one before: where flushes are lies, a cut takes what was
/// acknowledged.
#[test]
fn a_power_cut_loses_what_was_acknowledged_where_no_flush_is_made() -> Result<()> {
    made(Kind::PowerCutUnflushedDatabase, 3).map(drop)
}

#[test]
fn a_disk_that_is_full_at_any_write_loses_nothing() -> Result<()> {
    made(Kind::FullDisk, 4).map(drop)
}

#[test]
fn a_call_that_fails_at_any_time_loses_nothing() -> Result<()> {
    // Two of every call that can fail.
    made(Kind::FailingDisk, 16).map(drop)
}

#[test]
fn signals_end_an_attempt_cleanly_wherever_it_stands() -> Result<()> {
    made(Kind::Signal, 6).map(drop)
}

#[test]
fn a_process_that_stood_still_goes_on() -> Result<()> {
    made(Kind::StopContinue, 3).map(drop)
}

#[test]
fn a_clock_that_is_set_back_changes_no_order_and_no_budget() -> Result<()> {
    made(Kind::ClockSetBack, 3).map(drop)
}

#[test]
fn of_two_trainers_one_is_refused_and_nothing_is_lost() -> Result<()> {
    made(Kind::TwoTrainers, 6).map(drop)
}

/// Processes whose working folder is this one; none that ended.
fn processes_in(folder: &Path) -> Result<usize> {
    let folder = folder.canonicalize()?;
    let processes = std::fs::read_dir("/proc")?.flatten();
    Ok(processes
        .filter(|item| std::fs::read_link(item.path().join("cwd")).is_ok_and(|cwd| cwd == folder))
        .count())
}

/// Else it would go on writing while the trial looks at what it left.
#[test]
fn a_trainer_behind_another_program_is_killed_with_it() -> Result<()> {
    let run = RunFolder::frozen();
    // Every flush takes a second, so that the run takes a minute.
    let slow = ["-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:delay_enter=1000000"];
    let behind = [&["strace", "-f", "-qq", "-o", "/dev/null"], &slow[..]].concat();
    let mut process = Process::start(run.path(), &behind, &[])?;
    // The first was written by the freeze.
    ensure!(process.wait_for_notes(2)?, "the run was over at once");
    assert_eq!(processes_in(run.path())?, 2, "strace, and the trainer behind it");
    let ended = process.kill()?;
    assert!(ended.is_killed(), "{ended:?}");
    let killed = Instant::now();
    while processes_in(run.path())? > 0 {
        ensure!(killed.elapsed() < Duration::from_secs(10), "the trainer lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[test]
fn a_disk_that_is_in_use_for_another_moment_is_waited_for() -> Result<()> {
    let disk = Disk::ext4(false)?;
    let path = disk.folder().join("kept");
    std::fs::write(&path, "kept")?;
    let open = std::fs::File::open(&path)?;
    let started = Instant::now();
    let pause = Duration::from_millis(500);
    let user = std::thread::spawn(move || {
        std::thread::sleep(pause);
        drop(open);
    });
    disk.power_on()?;
    assert!(started.elapsed() >= pause, "it was unmounted under its user");
    assert!(user.join().is_ok());
    assert_eq!(std::fs::read_to_string(&path)?, "kept");
    Ok(())
}

/// What torn trials go by: behind a cut there is nothing of a log but what was
/// written back.
#[test]
fn of_a_log_a_cut_leaves_what_was_written_back() -> Result<()> {
    let num_bytes = |log: &[u8]| log.iter().filter(|byte| **byte != 0).count();
    assert_eq!(num_bytes(&disk::log_behind_a_cut(None)?), 0, "nothing was cut");
    // On a system that tears none the torn trials ask for less, and say so.
    let num_written = num_bytes(&disk::log_behind_a_cut(Some(Tear::one_page(1)))?);
    assert!(num_written > 0, "no page was written back");
    assert_eq!(disk::tears_logs()?, num_written < disk::NUM_LOG_BYTES, "{num_written} bytes");
    Ok(())
}

/// A point in no list would never be tried, and one in a list that nothing
/// passes would be tried in vain.
#[test]
fn the_lists_of_crash_points_are_the_points_in_the_sources() -> Result<()> {
    const LISTS: [&str; 2] = ["ledger/src/failpoint.rs", "trainer/src/run/failpoint.rs"];
    let mut listed = BTreeSet::new();
    for list in LISTS {
        for name in points::listed(list, "POINTS")? {
            ensure!(listed.insert(name.clone()), "{name} is listed twice");
        }
    }
    let placed: BTreeSet<String> = points::places()?.into_keys().collect();
    assert_eq!(listed, placed);
    assert!(placed.len() > 25, "the test looks for points where they are: {placed:?}");
    Ok(())
}

/// Every list is walked by the tests that crash at each point.
#[test]
fn every_crash_point_is_tried() -> Result<()> {
    let path = workspace_root().join("trainer/tests/run/crash_points.rs");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    for list in ["points()", "RETIREMENT_POINTS", "RECOVERY_POINTS"] {
        let num_uses = text.lines().filter(|line| !line.starts_with("use ") && line.contains(list)).count();
        assert!(num_uses > 0, "{} does not walk {list}", path.display());
    }
    let lists = std::fs::read_to_string(workspace_root().join("trainer/src/run/failpoint.rs"))?;
    assert!(
        lists.contains("WRITER_POINTS.into_iter().chain(POINTS)"),
        "points() is the writer's and the trainer's"
    );
    Ok(())
}
