//! What a trial is, what has to hold behind it, and which are made.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::baseline::{Baseline, Variant};
use super::disk::Disk;
use super::losses::Losses;
use super::process::Process;
use super::record::{self, Acknowledged};
use super::{faults, power, signals, workers};
use crate::dump;
use crate::random::Random;
use crate::run_folder::RunFolder;

/// What happens to a trainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// SIGKILL where it passes a crash point.
    KillAtPoint,
    /// SIGKILL at a random time.
    KillAtRandom,
    /// SIGKILL at a random time of the process that records or of a worker of it.
    KillWithWorkers,
    /// The power of its disks is cut, at a crash point or at a random time.
    PowerCut,
    /// A control: the same, and the database never flushes.
    PowerCutUnflushedDatabase,
    /// A control: the same, and no folder of the store is flushed.
    PowerCutUnflushedFolder,
    /// The disk is full at some write.
    FullDisk,
    /// A call to the disk fails with EIO.
    FailingDisk,
    /// SIGTERM, SIGINT or SIGHUP.
    Signal,
    /// SIGSTOP, and SIGCONT later.
    StopContinue,
    /// The clock goes two days ahead and then four back.
    ClockSetBack,
    /// A second trainer on the same ledger.
    TwoTrainers,
}

/// Every kind, in the order of the table, with its share of a hundred trials.
const SHARES: [(Kind, u64); 12] = [
    (Kind::KillAtPoint, 30),
    (Kind::KillAtRandom, 16),
    (Kind::KillWithWorkers, 4),
    (Kind::PowerCut, 20),
    (Kind::PowerCutUnflushedDatabase, 2),
    (Kind::PowerCutUnflushedFolder, 2),
    (Kind::FullDisk, 4),
    (Kind::FailingDisk, 8),
    (Kind::Signal, 6),
    (Kind::StopContinue, 3),
    (Kind::ClockSetBack, 2),
    (Kind::TwoTrainers, 3),
];

/// Starts of a trial whose moment may miss: the run was over, or it was not yet
/// there. Each is at another moment.
const MAX_TRIES: u64 = 12;

impl Kind {
    /// Every kind, in the order of the table.
    #[must_use]
    pub fn all() -> Vec<Self> {
        SHARES.iter().map(|(kind, _)| *kind).collect()
    }

    /// As on the command line and in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::KillAtPoint => "kill-at-point",
            Self::KillAtRandom => "kill-at-random",
            Self::KillWithWorkers => "kill-with-workers",
            Self::PowerCut => "power-cut",
            Self::PowerCutUnflushedDatabase => "control-synchronous-off",
            Self::PowerCutUnflushedFolder => "control-no-folder-flush",
            Self::FullDisk => "full-disk",
            Self::FailingDisk => "failing-disk",
            Self::Signal => "signal",
            Self::StopContinue => "stop-continue",
            Self::ClockSetBack => "clock-set-back",
            Self::TwoTrainers => "two-trainers",
        }
    }

    /// Whether something has to be lost.
    #[must_use]
    pub const fn is_control(self) -> bool {
        matches!(self, Self::PowerCutUnflushedDatabase | Self::PowerCutUnflushedFolder)
    }

    /// Whether only a trainer with crash points can be tried.
    #[must_use]
    pub const fn needs_points(self) -> bool {
        matches!(self, Self::KillAtPoint | Self::PowerCutUnflushedFolder)
    }
}

/// One trial.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    /// What happens.
    pub kind: Kind,
    /// Its number among those of its kind.
    pub number: u64,
    /// Decides when and how.
    pub seed: u64,
}

/// What came of a trial.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What happened, and where.
    pub what: String,
    /// It did happen.
    pub has_fired: bool,
    /// Entries that were acknowledged before.
    pub num_acknowledged: u64,
    /// Acknowledged entries, heads and checkpoints that were not there behind it.
    pub num_lost: u64,
    /// What a cut did to files of the ledger and the store, of a process that
    /// stood still: that there is something shows that a cut takes and tears.
    pub losses: Losses,
    /// Checkpoints that were torn, and resumed from or accepted.
    pub num_torn_accepted: u64,
    /// The run went on, ended at the bits of the uninterrupted one, and the audit
    /// accepts it.
    pub is_identical: bool,
    /// Crash points where it happened: that ended a process, or where one stood;
    /// with the signal where there are several.
    pub points: Vec<String>,
    /// What else does not hold.
    pub problem: Option<String>,
}

impl Outcome {
    /// Whether everything holds that has to; of a control, that something is lost.
    #[must_use]
    pub const fn holds(&self, kind: Kind) -> bool {
        let is_clean = self.num_lost == 0 && self.num_torn_accepted == 0;
        let is_expected = if kind.is_control() { self.num_lost > 0 } else { is_clean && self.is_identical };
        self.has_fired && self.problem.is_none() && is_expected
    }
}

/// So many trials, shared out over the kinds; each kind has at least two, each of
/// so many crash points a kill, a stop and every signal.
#[must_use]
pub fn plan(num_trials: u64, kinds: &[Kind], seed: u64, num_points: u64) -> Vec<Trial> {
    let mut random = Random::new(seed);
    let shares: Vec<_> = SHARES.iter().filter(|(kind, _)| kinds.contains(kind)).collect();
    let sum: u64 = shares.iter().map(|(_, share)| share).sum();
    let mut trials = Vec::new();
    for (kind, share) in &shares {
        let at_points = match kind {
            _ if num_points == 0 => 0,
            Kind::KillAtPoint => num_points,
            Kind::Signal => signals::num_signals(num_points),
            Kind::StopContinue => signals::num_stops(num_points),
            _ => 0,
        };
        for number in 0..(num_trials * share / sum.max(1)).max(at_points).max(2) {
            trials.push(Trial { kind: *kind, number, seed: random.next_u64() });
        }
    }
    // What rounding left goes to the kind with the most.
    let most = shares.iter().max_by_key(|(_, share)| *share).map(|(kind, _)| *kind);
    while let Some(kind) = most.filter(|_| (trials.len() as u64) < num_trials) {
        let number = trials.iter().filter(|trial| trial.kind == kind).count() as u64;
        trials.push(Trial { kind, number, seed: random.next_u64() });
    }
    trials
}

impl Trial {
    /// Makes the trial.
    #[must_use]
    pub fn run(&self, baseline: &Baseline) -> Outcome {
        let mut random = Random::new(self.seed);
        let mut outcome = Outcome::default();
        for _ in 0..MAX_TRIES {
            let tried = self.attempt(baseline, &mut random);
            outcome = tried.unwrap_or_else(|error| Outcome {
                has_fired: true,
                problem: Some(format!("{error:#}")),
                ..Outcome::default()
            });
            if outcome.has_fired {
                return outcome;
            }
        }
        outcome.problem = Some(format!("it did not happen in {MAX_TRIES} tries"));
        outcome
    }

    fn attempt(&self, baseline: &Baseline, random: &mut Random) -> Result<Outcome> {
        ensure!(
            baseline.is_instrumented || !self.kind.needs_points(),
            "{} needs a trainer with crash points\nhint: scripts/crashes builds one",
            self.kind.name()
        );
        match self.kind {
            Kind::KillAtPoint => faults::kill_at_point(baseline, self.number, random),
            Kind::KillAtRandom => faults::kill_at_random(baseline, random),
            Kind::KillWithWorkers => workers::kill(baseline, random),
            Kind::PowerCut => power::cut(baseline, self.number, random),
            Kind::PowerCutUnflushedDatabase => power::cut_unflushed_database(baseline, self.number, random),
            Kind::PowerCutUnflushedFolder => power::cut_unflushed_folder(baseline, random),
            Kind::FullDisk => faults::full_disk(baseline, random),
            Kind::FailingDisk => faults::failing_disk(baseline, self.number, random),
            Kind::Signal => signals::signal(baseline, self.number, random),
            Kind::StopContinue => signals::stop_continue(baseline, self.number, random),
            Kind::ClockSetBack => faults::clock_set_back(baseline, random),
            Kind::TwoTrainers => faults::two_trainers(baseline, self.number, random),
        }
    }
}

/// Where a trial's run lies.
#[derive(Debug)]
pub enum Place {
    /// A folder like any other.
    Folder(RunFolder),
    /// File systems of its own.
    Disk(Disk),
}

impl Place {
    /// The run's folder.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        match self {
            Self::Folder(folder) => folder.path().to_owned(),
            Self::Disk(disk) => disk.folder(),
        }
    }
}

/// Counts what is lost and torn now, before anybody goes on.
///
/// # Errors
/// When a folder cannot be looked at.
pub fn inspect(folder: &Path, acknowledged: &Acknowledged, outcome: &mut Outcome) -> Result<Vec<String>> {
    outcome.num_acknowledged = acknowledged.num_entries;
    outcome.num_lost = acknowledged.num_lost(folder);
    // A database that cannot be read has lost all of them already.
    let entries = dump::entries(&folder.join("run.db")).unwrap_or_default();
    let known = record::checkpoints(&entries);
    let torn = record::torn(folder, &known);
    let is_promised = |name: &String| {
        let checkpoint = &known[name];
        let is_acknowledged = checkpoint.validated.is_some_and(|index| index < acknowledged.num_entries);
        is_acknowledged && !checkpoint.is_given_up
    };
    outcome.num_lost += torn.iter().filter(|name| is_promised(name)).count() as u64;
    Ok(torn.into_iter().collect())
}

/// Goes on behind a fault to the run's end, and compares.
///
/// # Errors
/// When the run does not go on, or its audit does not accept it.
pub fn conclude(
    folder: &Path,
    variant: &Variant,
    acknowledged: &Acknowledged,
    mut outcome: Outcome,
) -> Result<Outcome> {
    let torn = inspect(folder, acknowledged, &mut outcome)?;
    let before = dump::raw_entries(&folder.join("run.db"))?;
    let ended = Process::start(folder, &[], &[])?.finish()?;
    ensure!(ended.code == 0, "{}: the next attempt ended with {}: {}", outcome.what, ended.code, ended.said);
    let after = dump::raw_entries(&folder.join("run.db"))?;
    ensure!(after.starts_with(&before), "{}: entries were changed by the next attempt", outcome.what);

    let entries = dump::entries(&folder.join("run.db"))?;
    let num_before = before.len();
    let resumed = entries[num_before..].iter().filter(|entry| entry["kind"] == "attempt.start");
    let resumed = resumed.filter_map(|entry| entry["body"]["det"]["resumed_from"]["checkpoint"].as_str());
    outcome.num_torn_accepted += resumed.filter(|name| torn.iter().any(|torn| torn == name)).count() as u64;
    outcome.is_identical = variant.is_identical(folder)?;
    let known = record::checkpoints(&entries);
    let is_relied_on = |name: &String| known[name].validated.is_some() && !known[name].is_given_up;
    let torn = record::torn(folder, &known);
    outcome.num_torn_accepted += torn.iter().filter(|name| is_relied_on(name)).count() as u64;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_trials_are_at_every_crash_point_all_the_same() {
        for (num_trials, num_kills) in [(80, 28), (500, 150)] {
            let trials = plan(num_trials, &Kind::all(), 1, 28);
            // A signal and a stop are in a recovery too.
            let wanted = [(Kind::KillAtPoint, num_kills), (Kind::Signal, 3 * 29), (Kind::StopContinue, 29)];
            for (kind, num_at_points) in wanted {
                let at_points = trials.iter().filter(|trial| trial.kind == kind);
                let numbers: Vec<u64> = at_points.map(|trial| trial.number).collect();
                assert_eq!(numbers, (0..num_at_points).collect::<Vec<_>>(), "{}", kind.name());
            }
            assert!(trials.len() as u64 >= num_trials);
        }
    }
}
