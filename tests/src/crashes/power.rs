//! Power cuts, and the controls that have to lose something.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::baseline::{Baseline, Variant, says_point};
use super::disk::Disk;
use super::process::{FAILPOINTS, Process};
use super::record::Acknowledged;
use super::trial::{Outcome, conclude, inspect};
use crate::dump;
use crate::random::Random;
use crate::run_folder::copy_folder;

/// The head file's last note may not be flushed where the writer stands here.
const UNFLUSHED_POINT: &str = "head.written";

/// Entries of a process that stands here are all flushed, under a head or not.
const COMMITTED_POINT: &str = "entry.committed";

/// Where the moment of a cut is.
enum Moment {
    /// A pass of a point: its name and how many are survived.
    Point(String, usize),
    /// So many notes are in the head file; the process runs on or stands still.
    Notes(usize, bool),
}

/// A disk with the frozen run on it.
fn prepared(variant: &Variant, has_own_store: bool) -> Result<Disk> {
    let disk = Disk::ext4(has_own_store)?;
    copy_folder(variant.frozen.path(), &disk.folder())?;
    disk.flush()?;
    Ok(disk)
}

/// A pass of a run that nothing happened to: the point, and how often it was
/// passed before.
///
/// # Errors
/// When there is none.
pub fn pass(variant: &Variant, at: u64) -> Result<(String, usize)> {
    let num_passes = variant.passes.len() as u64;
    ensure!(num_passes > 0, "no run was logged");
    let at = usize::try_from(at % num_passes)?;
    let point = variant.passes[at].clone();
    let survived = variant.passes[..at].iter().filter(|before| **before == point).count();
    Ok((point, survived))
}

/// `N*off->` in front of an action; nothing where none is survived.
#[must_use]
pub fn survive(num_passes: usize, action: &str) -> String {
    if num_passes == 0 { action.to_owned() } else { format!("{num_passes}*off->{action}") }
}

/// Every file of the ledger and the store, but for the index of the log, which is
/// shared memory.
fn content(folder: &Path) -> Result<BTreeMap<PathBuf, blake3::Hash>> {
    let mut files = dump::files(folder)?;
    files.retain(|path, _| {
        path.starts_with("checkpoints")
            || ["run.db", "run.db-wal", "run.db.head"].iter().any(|name| path == Path::new(name))
    });
    Ok(files)
}

/// Cuts the power at a crash point, or at a random time.
pub(super) fn cut(baseline: &Baseline, random: &mut Random) -> Result<Outcome> {
    let variant = baseline.variant(random.below(2) == 1);
    let has_own_store = random.below(2) == 1;
    let tear = (random.below(2) == 1).then(|| random.next_u64());
    let moment = if baseline.is_instrumented && random.below(3) > 0 {
        let (point, survived) = pass(variant, random.next_u64())?;
        Moment::Point(point, survived)
    } else {
        Moment::Notes(usize::try_from(random.below(26))? + 1, random.below(2) == 1)
    };
    let what = match &moment {
        Moment::Point(point, survived) => format!("{point} after {survived}"),
        Moment::Notes(num_notes, is_still) => {
            format!("{num_notes} heads{}", if *is_still { "" } else { ", running" })
        }
    };
    let devices = if has_own_store { "two devices" } else { "one device" };
    let torn = if tear.is_some() { ", written back in part" } else { "" };
    let mut outcome = Outcome { what: format!("{what}, {devices}{torn}"), ..Outcome::default() };

    let disk = prepared(variant, has_own_store)?;
    let folder = disk.folder();
    let setting;
    let variables: &[(&str, &str)] = match &moment {
        Moment::Point(point, survived) => {
            setting = format!("{point}={}", survive(*survived, "1*return(stop)"));
            &[(FAILPOINTS, &setting)]
        }
        Moment::Notes(..) => &[],
    };
    let mut process = Process::start(&folder, &[], variables)?;
    let is_there = match &moment {
        Moment::Point(..) => process.wait_until_stopped()?,
        Moment::Notes(num_notes, is_still) => {
            process.wait_for_notes(*num_notes)? && {
                // Somewhere between two heads.
                std::thread::sleep(std::time::Duration::from_micros(random.below(3000)));
                !is_still || process.stop()?
            }
        }
    };
    if !is_there {
        return Ok(outcome);
    }
    let acknowledged = match &moment {
        Moment::Point(point, _) => {
            // Beside another thread's save the writer may stand anywhere.
            let is_flushed = point != UNFLUSHED_POINT && !variant.is_asynchronous;
            let seen = Acknowledged::observe(&folder, is_flushed)?.with_entries(&folder)?;
            if point == COMMITTED_POINT { seen.of_all_entries() } else { seen }
        }
        Moment::Notes(_, true) => Acknowledged::observe(&folder, false)?.with_entries(&folder)?,
        Moment::Notes(_, false) => Acknowledged::observe(&folder, false)?,
    };
    let is_still = !matches!(moment, Moment::Notes(_, false));
    let before = if is_still { content(&folder)? } else { BTreeMap::new() };
    disk.cut(tear)?;
    let ended = process.kill()?;
    // One that ran on may have met its dead disk before the kill.
    outcome.has_fired = match &moment {
        Moment::Point(point, _) => ended.is_killed() && says_point(&ended.said, point),
        Moment::Notes(..) => ended.code != 0,
    };
    disk.power_on()?;
    if outcome.has_fired {
        let after = content(&folder)?;
        outcome.num_files_changed =
            before.iter().filter(|(path, hash)| after.get(*path) != Some(*hash)).count() as u64;
        outcome = conclude(&folder, variant, &acknowledged, outcome)?;
    }
    Ok(outcome)
}

/// A control: the database's commits return without a flush. With crash points
/// that is SQLite's own `synchronous=OFF`; else every flush is a lie of the
/// system's, told by `strace`.
pub(super) fn cut_unflushed_database(baseline: &Baseline, random: &mut Random) -> Result<Outcome> {
    let variant = baseline.variant(false);
    let num_heads = 3 + usize::try_from(random.below(8))?;
    let mut outcome = Outcome { what: format!("after {num_heads} heads"), ..Outcome::default() };
    let disk = prepared(variant, false)?;
    let folder = disk.folder();
    let setting = format!("synchronous.off=return;head.flushed={}", survive(num_heads, "1*return(stop)"));
    let mut process = if baseline.is_instrumented {
        Process::start(&folder, &[], &[(FAILPOINTS, &setting)])?
    } else {
        let lie = ["-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:retval=0"];
        let behind = [&["strace", "-f", "-qq", "-o", "/dev/null", "--seccomp-bpf"], &lie[..]].concat();
        Process::start(&folder, &behind, &[])?
    };
    let is_there = if baseline.is_instrumented {
        process.wait_until_stopped()?
    } else {
        process.wait_for_notes(num_heads + 1)?
    };
    if !is_there {
        return Ok(outcome);
    }
    let acknowledged = Acknowledged::observe(&folder, baseline.is_instrumented)?;
    disk.cut(None)?;
    let ended = process.kill()?;
    outcome.has_fired = !baseline.is_instrumented || says_point(&ended.said, "head.flushed");
    disk.power_on()?;
    let _ = inspect(&folder, &acknowledged, &mut outcome)?;
    Ok(outcome)
}

/// A control: no folder of the store is flushed, and the store has a device of
/// its own. On the ledger's device the flush of the head file, which grows,
/// commits the log of the file system and with it the rename.
pub(super) fn cut_unflushed_folder(baseline: &Baseline, random: &mut Random) -> Result<Outcome> {
    let variant = baseline.variant(false);
    let point = "checkpoint.validated";
    let num_passes = variant.passes.iter().filter(|pass| *pass == point).count() as u64;
    let survived = usize::try_from(random.below(num_passes.max(1)))?;
    let mut outcome = Outcome { what: format!("{point} after {survived}"), ..Outcome::default() };
    let disk = prepared(variant, true)?;
    let folder = disk.folder();
    let setting = format!("skip.folder_flush=return;{point}={}", survive(survived, "1*return(stop)"));
    let mut process = Process::start(&folder, &[], &[(FAILPOINTS, &setting)])?;
    if !process.wait_until_stopped()? {
        return Ok(outcome);
    }
    let acknowledged = Acknowledged::observe(&folder, true)?.with_entries(&folder)?;
    disk.cut(None)?;
    let ended = process.kill()?;
    outcome.has_fired = says_point(&ended.said, point);
    disk.power_on()?;
    let _ = inspect(&folder, &acknowledged, &mut outcome)?;
    // What was lost has to be the checkpoint: the ledger's own device was flushed.
    let num_entries = acknowledged.num_lost(&folder);
    ensure!(num_entries == 0, "{num_entries} entries are gone, which this control is not about");
    Ok(outcome)
}
