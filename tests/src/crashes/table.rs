//! Trials by kind: what `scripts/crashes` prints.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Value, json};

use super::losses::{self, Losses};
use super::{Kind, Made, signals};

/// What came of the trials of a kind.
#[derive(Debug, Clone)]
pub struct Row {
    kind: Kind,
    num_trials: usize,
    num_fired: usize,
    num_acknowledged: u64,
    num_lost: u64,
    num_files_changed: u64,
    num_torn_accepted: u64,
    num_identical: usize,
    num_holding: usize,
    num_places: usize,
    seconds: f64,
}

/// One row a kind that was tried, in the order of kinds.
#[must_use]
pub fn rows(made: &[Made]) -> Vec<Row> {
    let of_kind = |kind: Kind| made.iter().filter(move |one| one.trial.kind == kind);
    let tried = Kind::all().into_iter().filter(|kind| of_kind(*kind).next().is_some());
    tried
        .map(|kind| Row {
            kind,
            num_trials: of_kind(kind).count(),
            num_fired: of_kind(kind).filter(|one| one.outcome.has_fired).count(),
            num_acknowledged: of_kind(kind).map(|one| one.outcome.num_acknowledged).sum(),
            num_lost: of_kind(kind).map(|one| one.outcome.num_lost).sum(),
            num_files_changed: of_kind(kind).flat_map(|one| one.outcome.losses.values()).sum(),
            num_torn_accepted: of_kind(kind).map(|one| one.outcome.num_torn_accepted).sum(),
            num_identical: of_kind(kind).filter(|one| one.outcome.is_identical).count(),
            num_holding: of_kind(kind).filter(|one| one.outcome.holds(kind)).count(),
            num_places: of_kind(kind).flat_map(|one| &one.outcome.points).collect::<BTreeSet<_>>().len(),
            seconds: of_kind(kind).map(|one| one.duration.as_secs_f64()).sum(),
        })
        .collect()
}

/// Whether everything holds that has to, and something was tried.
#[must_use]
pub fn holds(made: &[Made]) -> bool {
    !made.is_empty() && made.iter().all(|one| one.outcome.holds(one.trial.kind))
}

/// What does not hold, a line each.
#[must_use]
pub fn failures(made: &[Made]) -> Vec<String> {
    let failed = made.iter().filter(|one| !one.outcome.holds(one.trial.kind));
    failed
        .map(|one| {
            let (trial, outcome) = (&one.trial, &one.outcome);
            let problem = outcome.problem.as_deref().unwrap_or("");
            format!(
                "{} {} (seed {}): {}: fired {}, {} of {} acknowledged lost, {} torn accepted, identical {} {problem}",
                trial.kind.name(),
                trial.number,
                trial.seed,
                outcome.what,
                outcome.has_fired,
                outcome.num_lost,
                outcome.num_acknowledged,
                outcome.num_torn_accepted,
                outcome.is_identical,
            )
        })
        .collect()
}

/// Where nothing happened in the trials of a kind, of these crash points: no
/// process was killed there, or stopped, or sent one of the signals. Nothing of
/// kinds that go by no point.
#[must_use]
pub fn untried(made: &[Made], kind: Kind, points: &BTreeSet<String>) -> Vec<String> {
    let places = match kind {
        Kind::KillAtPoint | Kind::StopContinue => points.clone(),
        Kind::Signal => signals::all_signals(points),
        _ => BTreeSet::new(),
    };
    let of_kind: Vec<&Made> = made.iter().filter(|one| one.trial.kind == kind).collect();
    let is_tried = |place: &String| of_kind.iter().any(|one| one.outcome.points.contains(place));
    places.into_iter().filter(|place| !is_tried(place)).collect()
}

/// What all cuts together did to files.
#[must_use]
pub fn all_losses(made: &[Made]) -> Losses {
    let mut sum = Losses::new();
    for (what, number) in made.iter().flat_map(|one| &one.outcome.losses) {
        *sum.entry(*what).or_default() += number;
    }
    sum
}

/// What no power cut did to a file and some have to, where power cuts and both
/// of their controls were made; then it asks whether logs can be torn here.
///
/// # Errors
/// When that cannot be found out.
pub fn unseen_losses(made: &[Made], tears_logs: impl FnOnce() -> Result<bool>) -> Result<Vec<String>> {
    let cuts = [Kind::PowerCut, Kind::PowerCutUnflushedDatabase, Kind::PowerCutUnflushedFolder];
    let is_made = |kind: &Kind| made.iter().any(|one| one.trial.kind == *kind);
    if !cuts.iter().all(is_made) {
        return Ok(Vec::new());
    }
    Ok(losses::unseen(&all_losses(made), tears_logs()?))
}

/// The table as text, with what cuts did to files where there were some.
#[must_use]
pub fn text(made: &[Made]) -> String {
    let mut text = text_of(&rows(made));
    let losses = all_losses(made);
    if !losses.is_empty() {
        text.push('\n');
        text.push_str(&aligned(&losses::cells(&losses)));
    }
    text
}

fn text_of(rows: &[Row]) -> String {
    let head = [
        "kind",
        "trials",
        "fired",
        "places",
        "acknowledged",
        "lost",
        "files changed",
        "torn accepted",
        "bit-identical",
        "holds",
    ];
    let mut cells = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let is_control = row.kind.is_control();
        let identical = if is_control { "-".to_owned() } else { row.num_identical.to_string() };
        let places = if row.num_places == 0 { "any".to_owned() } else { row.num_places.to_string() };
        let verdict = if row.num_holding != row.num_trials {
            format!("{} of {}", row.num_holding, row.num_trials)
        } else if is_control {
            "fails, as it must".to_owned()
        } else {
            "all".to_owned()
        };
        cells.push(vec![
            row.kind.name().to_owned(),
            row.num_trials.to_string(),
            row.num_fired.to_string(),
            places,
            row.num_acknowledged.to_string(),
            row.num_lost.to_string(),
            row.num_files_changed.to_string(),
            row.num_torn_accepted.to_string(),
            identical,
            verdict,
        ]);
    }
    aligned(&cells)
}

/// Columns below each other, numbers to the right.
fn aligned(cells: &[Vec<String>]) -> String {
    let mut text = String::new();
    for line in cells {
        for (column, cell) in line.iter().enumerate() {
            let width = cells.iter().map(|line| line[column].len()).max().unwrap_or(0);
            let is_text = cells.iter().skip(1).all(|line| line[column].parse::<u64>().is_err());
            let _ = if is_text { write!(text, "{cell:<width$}  ") } else { write!(text, "{cell:>width$}  ") };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// The same as JSON, with what did not happen and should have.
#[must_use]
pub fn json(made: &[Made], (seed, is_instrumented): (u64, bool), missing: &[String]) -> Value {
    let rows: Vec<Value> = rows(made)
        .iter()
        .map(|row| {
            json!({
                "kind": row.kind.name(),
                "is_control": row.kind.is_control(),
                "num_trials": row.num_trials,
                "num_fired": row.num_fired,
                "num_places": row.num_places,
                "num_acknowledged": row.num_acknowledged,
                "num_acknowledged_lost": row.num_lost,
                "num_files_changed": row.num_files_changed,
                "num_torn_accepted": row.num_torn_accepted,
                "num_identical": row.num_identical,
                "num_holding": row.num_holding,
                "wall_s": row.seconds,
            })
        })
        .collect();
    json!({
        "format": "crash-trials/1",
        "holds": holds(made) && missing.is_empty(),
        "failures": failures(made),
        "instrumented": is_instrumented,
        "left_by_cuts": losses::cells(&all_losses(made)),
        "missing": missing,
        "rows": rows,
        "seed": seed.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::crashes::losses::{Loss, Part};
    use crate::crashes::{Outcome, Trial};

    fn made(kind: Kind, num_lost: u64, is_identical: bool) -> Made {
        let outcome = Outcome { has_fired: true, num_lost, is_identical, ..Outcome::default() };
        Made { duration: Duration::ZERO, outcome, trial: Trial { kind, number: 0, seed: 1 } }
    }

    #[test]
    fn a_loss_fails_a_trial_and_nothing_lost_fails_a_control() {
        let (trial, control) = (Kind::PowerCut, Kind::PowerCutUnflushedDatabase);
        assert!(holds(&[made(trial, 0, true), made(control, 3, false)]));
        for wrong in [made(trial, 1, true), made(trial, 0, false), made(control, 0, false)] {
            let wrong = [wrong];
            assert!(!holds(&wrong));
            assert_eq!(failures(&wrong).len(), 1);
        }
        let mut unfired = made(trial, 0, true);
        unfired.outcome.has_fired = false;
        assert!(!holds(&[unfired]));
        assert!(!holds(&[]), "nothing was tried");
    }

    #[test]
    fn a_point_that_no_trial_was_ended_at_is_named() {
        let points: BTreeSet<String> = ["head.write", "head.written"].map(str::to_owned).into();
        let mut tried = made(Kind::KillAtPoint, 0, true);
        tried.outcome.points = vec!["head.write".to_owned()];
        let tried = [tried];
        assert_eq!(untried(&tried, Kind::KillAtPoint, &points), ["head.written"]);
        // A kill is no stop, and goes by points where other kinds do not.
        assert_eq!(untried(&tried, Kind::StopContinue, &points), ["head.write", "head.written"]);
        assert_eq!(untried(&tried, Kind::FullDisk, &points), Vec::<String>::new());
    }

    #[test]
    fn each_signal_is_asked_for_at_each_point() {
        let points: BTreeSet<String> = ["head.write", "head.written"].map(str::to_owned).into();
        let at = |place: &str| {
            let mut made = made(Kind::Signal, 0, true);
            made.outcome.points = vec![place.to_owned()];
            made
        };
        let tried = ["TERM", "INT"].map(|name| at(&format!("{name} at head.write")));
        let left = untried(&tried, Kind::Signal, &points);
        assert_eq!(
            left,
            ["HUP at head.write", "HUP at head.written", "INT at head.written", "TERM at head.written"]
        );
        let rows = rows(&tried);
        assert_eq!(rows[0].num_places, 2);
    }

    #[test]
    fn cuts_that_tore_nothing_are_named_where_all_were_made() -> Result<()> {
        let kinds = [Kind::PowerCut, Kind::PowerCutUnflushedDatabase, Kind::PowerCutUnflushedFolder];
        let mut cuts = kinds.map(|kind| made(kind, 0, true));
        assert_eq!(unseen_losses(&cuts[..2], || anyhow::bail!("nobody asks"))?, Vec::<String>::new());
        let all = unseen_losses(&cuts, || Ok(true))?;
        assert!(all.iter().any(|line| line.contains("in part: checkpoint files")), "{all:?}");
        cuts[0].outcome.losses.insert((Part::Checkpoint, Loss::InPart), 3);
        cuts[2].outcome.losses.insert((Part::Checkpoint, Loss::Gone), 8);
        let left = unseen_losses(&cuts, || Ok(true))?;
        assert!(!left.is_empty() && !left.iter().any(|line| line.contains("checkpoint")), "{left:?}");
        let table = text(&cuts);
        assert!(table.lines().any(|line| line == "checkpoint files          8      0        3"), "{table}");
        assert_eq!(rows(&cuts)[0].num_files_changed, 3);
        assert!(unseen_losses(&cuts, || anyhow::bail!("it cannot be found out")).is_err());
        Ok(())
    }

    #[test]
    fn a_row_says_what_fails() {
        let text = text(&[made(Kind::PowerCut, 1, true), made(Kind::PowerCutUnflushedFolder, 1, false)]);
        assert!(text.contains("0 of 1"), "{text}");
        assert!(text.contains("fails, as it must"), "{text}");
    }
}
