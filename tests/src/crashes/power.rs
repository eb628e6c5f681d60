//! Power cuts, and the controls that have to lose something.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::baseline::{Baseline, Variant, says_point};
use super::disk::{Disk, Tear, tears_logs};
use super::losses::{content, losses};
use super::process::{FAILPOINTS, Process};
use super::record::Acknowledged;
use super::trial::{Outcome, conclude, inspect};
use crate::random::Random;
use crate::run_folder::copy_folder;

/// The head file's last note may not be flushed where the writer stands here.
const UNFLUSHED_POINT: &str = "head.written";

/// Entries of a process that stands here are all flushed, under a head or not.
const COMMITTED_POINT: &str = "entry.committed";

/// Where a save begins, and where one of its files is written and not flushed.
const STAGING_POINT: &str = "staging.created";
const FILLED_POINT: &str = "shard.filled";

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

/// A pass at which a note is in the head file and not flushed.
fn unflushed_note(variant: &Variant, random: &mut Random) -> Result<Moment> {
    let num_passes = variant.passes.iter().filter(|pass| *pass == UNFLUSHED_POINT).count() as u64;
    ensure!(num_passes > 0, "no note was written");
    Ok(Moment::Point(UNFLUSHED_POINT.to_owned(), usize::try_from(random.below(num_passes))?))
}

/// A pass at which the first file of a save is written and not flushed: the
/// model's, which has several pages.
fn unflushed_model(variant: &Variant, random: &mut Random) -> Result<Moment> {
    let (mut is_first, mut num_filled, mut found) = (false, 0, Vec::new());
    for pass in &variant.passes {
        match pass.as_str() {
            STAGING_POINT => is_first = true,
            FILLED_POINT => {
                if std::mem::take(&mut is_first) {
                    found.push(num_filled);
                }
                num_filled += 1;
            }
            _ => {}
        }
    }
    ensure!(!found.is_empty(), "no save was begun");
    let survived = found[usize::try_from(random.below(found.len() as u64))?];
    Ok(Moment::Point(FILLED_POINT.to_owned(), survived))
}

/// When the power is cut, and whether some is written back before. Of five
/// trials one is where a cut takes a note, and one where it tears a model; the
/// others are anywhere.
fn moment(
    baseline: &Baseline,
    variant: &Variant,
    number: u64,
    random: &mut Random,
) -> Result<(Moment, Option<Tear>)> {
    let seed = random.next_u64();
    match number % 5 {
        0 if baseline.is_instrumented => Ok((unflushed_model(variant, random)?, Some(Tear::one_page(seed)))),
        1 if baseline.is_instrumented => Ok((unflushed_note(variant, random)?, None)),
        _ => {
            let tear = (random.below(2) == 1).then_some(Tear::any(seed));
            if baseline.is_instrumented && random.below(3) > 0 {
                let (point, survived) = pass(variant, random.next_u64())?;
                return Ok((Moment::Point(point, survived), tear));
            }
            let num_notes = usize::try_from(random.below(26))? + 1;
            Ok((Moment::Notes(num_notes, random.below(2) == 1), tear))
        }
    }
}

/// Cuts the power at a crash point, or at a random time.
pub(super) fn cut(baseline: &Baseline, number: u64, random: &mut Random) -> Result<Outcome> {
    let variant = baseline.variant(random.below(2) == 1);
    let has_own_store = random.below(2) == 1;
    let (moment, tear) = moment(baseline, variant, number, random)?;
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
        outcome.losses = losses(&before, &content(&folder)?);
        outcome = conclude(&folder, variant, &acknowledged, outcome)?;
    }
    Ok(outcome)
}

/// A control: the database's commits return without a flush. With crash points
/// that is SQLite's own `synchronous=OFF`, and in every second trial the log is
/// written back in part, where this system can do that, which has to lose
/// something too; else every flush is a lie of the system's, told by `strace`.
pub(super) fn cut_unflushed_database(
    baseline: &Baseline,
    number: u64,
    random: &mut Random,
) -> Result<Outcome> {
    let variant = baseline.variant(false);
    let num_heads = 3 + usize::try_from(random.below(8))?;
    let is_torn = baseline.is_instrumented && number % 2 == 1 && tears_logs()?;
    let tear = is_torn.then(|| Tear::one_page(random.next_u64()));
    let torn = if is_torn { ", written back in part" } else { "" };
    let mut outcome = Outcome { what: format!("after {num_heads} heads{torn}"), ..Outcome::default() };
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
    // Behind `strace` it runs on.
    let before = if baseline.is_instrumented { content(&folder)? } else { BTreeMap::new() };
    disk.cut(tear)?;
    let ended = process.kill()?;
    outcome.has_fired = !baseline.is_instrumented || says_point(&ended.said, "head.flushed");
    disk.power_on()?;
    outcome.losses = losses(&before, &content(&folder)?);
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
    let before = content(&folder)?;
    disk.cut(None)?;
    let ended = process.kill()?;
    outcome.has_fired = says_point(&ended.said, point);
    disk.power_on()?;
    outcome.losses = losses(&before, &content(&folder)?);
    let _ = inspect(&folder, &acknowledged, &mut outcome)?;
    // What was lost has to be the checkpoint: the ledger's own device was flushed.
    let num_entries = acknowledged.num_lost(&folder);
    ensure!(num_entries == 0, "{num_entries} entries are gone, which this control is not about");
    Ok(outcome)
}
