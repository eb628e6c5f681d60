//! What a probe reports on standard output.

use std::fmt::Write as _;

use schemas::body::{InertReason, ProbeResultDet};
use schemas::contract::EquivalenceClass;
use schemas::state::StateClass;
use serde::Serialize;

use super::compare::FirstDifference;
use super::judge::Verdict;
use super::statistical::Equivalence;

/// One probe or control.
#[derive(Debug, Clone, Serialize)]
pub struct ProbeOutcome {
    /// What the contract's equivalence test says; left out where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub equivalence: Option<Equivalence>,
    /// The earliest difference; null where there is none.
    pub first: Option<FirstDifference>,
    /// Why a control changed nothing; null where it did.
    pub inert: Option<InertReason>,
    /// Index of its `probe.result`.
    pub probe: u64,
    /// What the entry holds.
    pub result: ProbeResultDet,
    /// What the distances say.
    pub verdict: Verdict,
    /// What was left out; empty in the probe itself.
    pub withheld: Vec<StateClass>,
}

/// Everything that one call did.
#[derive(Debug, Clone, Serialize)]
pub struct ProbeReport {
    /// The checkpoint.
    pub checkpoint: String,
    /// Class that was judged in.
    pub class: EquivalenceClass,
    /// The process's exit code.
    pub exit_code: u8,
    /// Version of this document.
    pub format: &'static str,
    /// Updates after the checkpoint.
    pub num_steps: u64,
    /// In order.
    pub probes: Vec<ProbeOutcome>,
    /// Index of `checkpoint.resume_qualified`; null where it was not written.
    pub qualified: Option<u64>,
    /// Why it was not qualified; null where it was, or where only a control was
    /// asked for.
    pub reason: Option<String>,
    /// The run.
    pub run: String,
    /// The checkpoint's step.
    pub step: u64,
}

/// In words.
#[must_use]
pub const fn inert_text(reason: InertReason) -> &'static str {
    match reason {
        InertReason::EqualsInitial => "the checkpoint holds what the initial state holds",
        InertReason::FunctionOfStep => "the schedules are functions of the step",
        InertReason::ReplacedByEvaluation => "the next evaluation became the best either way",
        InertReason::DecidesNothing => "the stopping rule does not use it",
    }
}

/// What a test says of its pairs; a match needs the same examples too.
fn statistical_text(probe: &ProbeOutcome, verdict: Verdict) -> String {
    let test = probe.equivalence.as_ref().map(Equivalence::text).unwrap_or_default();
    let is_shown = probe.equivalence.as_ref().is_some_and(|equivalence| equivalence.is_shown);
    match (verdict, &probe.first) {
        (Verdict::Matches, _) | (_, None) => test,
        (_, Some(first)) if is_shown => {
            format!(
                "differs in what is exact, first in {} ({}) at step {}; {test}",
                first.what, first.tensor, first.step
            )
        }
        _ => test,
    }
}

impl ProbeReport {
    /// Lines for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for probe in &self.probes {
            let what = match probe.withheld.as_slice() {
                [] => "everything restored".to_owned(),
                [class] => format!("without {class}"),
                _ => "model only".to_owned(),
            };
            let found = match (probe.verdict, &probe.first, probe.inert) {
                (_, _, Some(reason)) => format!("inert: {}", inert_text(reason)),
                (verdict, _, _) if probe.equivalence.is_some() => statistical_text(probe, verdict),
                (Verdict::Matches, None, _) => "equal".to_owned(),
                (verdict, Some(first), _) => {
                    let verdict = if verdict == Verdict::Matches { "within bounds" } else { "differs" };
                    format!(
                        "{verdict}, first in {} ({}) at step {}: absolute {:.3e}, relative {:.3e}, {} ULP",
                        first.what,
                        first.tensor,
                        first.step,
                        first.max_absolute.0,
                        first.max_relative.0,
                        first.max_ulp
                    )
                }
                (_, None, None) => "differs".to_owned(),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{what:<28} {found}");
        }
        let steps = format!("{} updates after step {}", self.num_steps, self.step);
        let _ = match (self.qualified, &self.reason) {
            (Some(index), _) => {
                writeln!(text, "Checkpoint {} is resume-qualified ({steps}; entry {index})", self.checkpoint)
            }
            (None, Some(reason)) => {
                writeln!(text, "Checkpoint {} is not resume-qualified: {reason}", self.checkpoint)
            }
            (None, None) => writeln!(text, "Checkpoint {} was compared over {steps}", self.checkpoint),
        };
        text
    }
}
