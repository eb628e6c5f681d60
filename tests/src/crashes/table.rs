//! Trials by kind: what `scripts/crashes` prints.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Kind, Made};

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
            num_files_changed: of_kind(kind).map(|one| one.outcome.num_files_changed).sum(),
            num_torn_accepted: of_kind(kind).map(|one| one.outcome.num_torn_accepted).sum(),
            num_identical: of_kind(kind).filter(|one| one.outcome.is_identical).count(),
            num_holding: of_kind(kind).filter(|one| one.outcome.holds(kind)).count(),
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

/// Crash points of these that no trial was ended at.
#[must_use]
pub fn untried(made: &[Made], points: &BTreeSet<String>) -> Vec<String> {
    let is_tried = |point: &String| made.iter().any(|one| one.outcome.points.contains(point));
    points.iter().filter(|point| !is_tried(point)).cloned().collect()
}

/// The table as text.
#[must_use]
pub fn text(rows: &[Row]) -> String {
    let head = [
        "kind",
        "trials",
        "fired",
        "acknowledged",
        "lost",
        "files changed",
        "torn accepted",
        "bit-identical",
        "holds",
    ];
    let mut cells = vec![head.map(str::to_owned)];
    for row in rows {
        let is_control = row.kind.is_control();
        let identical = if is_control { "-".to_owned() } else { row.num_identical.to_string() };
        let verdict = if row.num_holding != row.num_trials {
            format!("{} of {}", row.num_holding, row.num_trials)
        } else if is_control {
            "fails, as it must".to_owned()
        } else {
            "all".to_owned()
        };
        cells.push([
            row.kind.name().to_owned(),
            row.num_trials.to_string(),
            row.num_fired.to_string(),
            row.num_acknowledged.to_string(),
            row.num_lost.to_string(),
            row.num_files_changed.to_string(),
            row.num_torn_accepted.to_string(),
            identical,
            verdict,
        ]);
    }
    let mut text = String::new();
    for line in &cells {
        for (column, cell) in line.iter().enumerate() {
            let width = cells.iter().map(|line| line[column].len()).max().unwrap_or(0);
            let is_text = column == 0 || column + 1 == line.len();
            let _ = if is_text { write!(text, "{cell:<width$}  ") } else { write!(text, "{cell:>width$}  ") };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// The same as JSON.
#[must_use]
pub fn json(made: &[Made], seed: u64, is_instrumented: bool) -> Value {
    let rows: Vec<Value> = rows(made)
        .iter()
        .map(|row| {
            json!({
                "kind": row.kind.name(),
                "is_control": row.kind.is_control(),
                "num_trials": row.num_trials,
                "num_fired": row.num_fired,
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
        "holds": holds(made),
        "failures": failures(made),
        "instrumented": is_instrumented,
        "rows": rows,
        "seed": seed.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
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
        assert_eq!(untried(&[tried], &points), ["head.written"]);
    }

    #[test]
    fn a_row_says_what_fails() {
        let text =
            text(&rows(&[made(Kind::PowerCut, 1, true), made(Kind::PowerCutUnflushedFolder, 1, false)]));
        assert!(text.contains("0 of 1"), "{text}");
        assert!(text.contains("fails, as it must"), "{text}");
    }
}
