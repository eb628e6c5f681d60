//! `trainer resume --explain`: from where the next attempt would go on.
//!
//! It decides with the same function as `trainer run`, for which it fetches from
//! a store by URL what that would fetch, and changes nothing else.

use std::fmt::Write as _;

use schemas::ids::CheckpointId;
use schemas::state::StateClass;
use serde::Serialize;

use crate::cli::{self, Failure};
use crate::run::error::{self, RunError};
use crate::run::progress::Console;
use crate::run::refusal;
use crate::run::resume::{self, ResumeState};
use crate::run::stored;

use super::opened::OpenedRun;
use super::{EXIT_FINDINGS, LedgerArguments};

#[derive(Serialize)]
struct Explanation {
    attempt: u32,
    /// Null where it would begin at the initial state.
    checkpoint: Option<CheckpointId>,
    classes: Vec<Source>,
    format: &'static str,
    from_step: u64,
    /// Steps that were recorded behind the checkpoint, and are executed again;
    /// null where there are none.
    re_executes: Option<[u64; 2]>,
    /// Why `trainer run` would not start; null where it would.
    refused: Option<String>,
    run: String,
    run_ended: bool,
    unusable: Vec<Unusable>,
}

#[derive(Serialize)]
struct Source {
    class: StateClass,
    source: String,
}

#[derive(Serialize)]
struct Unusable {
    checkpoint: CheckpointId,
    reason: String,
    step: u64,
}

pub(super) fn run(arguments: &LedgerArguments) -> Result<u8, Failure> {
    let opened = OpenedRun::open(&arguments.ledger)?;
    let (frozen, history) = (&opened.frozen, &opened.history);
    refusal::check_links(&frozen.contract, history, &opened.folder).map_err(RunError::from)?;
    stored::make_available(&Console::new(false), frozen, history, &opened.folder)?;
    let state = resume::decide(frozen, history, &opened.folder).map_err(RunError::from)?;
    let last_step = history.attempts.iter().map(|past| past.last_step).max().unwrap_or(0);
    let refusal = state.check_restart(&frozen.contract, history, false).err();
    let explanation = Explanation {
        attempt: history.next_attempt().0,
        checkpoint: state.checkpoint.as_ref().map(|located| located.record.checkpoint.clone()),
        classes: classes(&opened, &state),
        format: "resume-explanation/1",
        from_step: state.step,
        re_executes: (last_step > state.step).then_some([state.step + 1, last_step]),
        refused: refusal.as_ref().map(|refusal| error::chain(refusal)),
        run: frozen.run.0.clone(),
        run_ended: history.end.is_some(),
        unusable: unusable(&opened, &state),
    };
    if arguments.json {
        cli::print_json(&explanation)?;
    } else {
        cli::print(text(&explanation).as_bytes())?;
    }
    if let Some(refusal) = refusal {
        cli::say(&format!("hint: {}", refusal.hint()));
        return Ok(EXIT_FINDINGS);
    }
    Ok(0)
}

/// Checkpoints behind the resume point, newest first, and why each is passed
/// over: by the record, or by its bytes.
fn unusable(opened: &OpenedRun, state: &ResumeState) -> Vec<Unusable> {
    let by_bytes = state.unusable.iter().map(|unusable| Unusable {
        checkpoint: unusable.record.checkpoint.clone(),
        reason: error::chain(&unusable.error),
        step: unusable.record.step,
    });
    let facts = opened.history.roster.facts().into_iter();
    let by_record = facts.filter(|fact| !fact.stage.is_usable()).map(|fact| Unusable {
        checkpoint: fact.checkpoint.clone(),
        reason: match fact.stage.is_in_flight() {
            true => format!("it stopped at {} and was never validated", fact.stage.name()),
            false => fact.stage.name().to_owned(),
        },
        step: fact.step,
    });
    let unqualified = state.unqualified.iter().filter_map(|checkpoint| {
        let step = opened.history.checkpoints.get(checkpoint)?.step;
        let reason = "it is validated, and not resume-qualified".to_owned();
        Some(Unusable { checkpoint: checkpoint.clone(), reason, step })
    });
    let doubtful = state.doubtful.iter().map(|known| Unusable {
        checkpoint: known.record.checkpoint.clone(),
        reason: format!("it is in doubt and would be quarantined: {}", known.reason()),
        step: known.record.step,
    });
    let is_newer = |step| state.checkpoint.is_none() || step >= state.step;
    let mut all: Vec<Unusable> = by_bytes
        .chain(by_record)
        .chain(unqualified)
        .chain(doubtful)
        .filter(|unusable| is_newer(unusable.step))
        .collect();
    all.sort_by(|a, b| (b.step, &b.checkpoint).cmp(&(a.step, &a.checkpoint)));
    all
}

fn classes(opened: &OpenedRun, state: &ResumeState) -> Vec<Source> {
    let declarations = &opened.frozen.contract.state_classes;
    let source = |class: StateClass| -> String {
        let declared = declarations.iter().find(|declared| declared.class == class);
        if let Some(reason) = declared.and_then(|declared| declared.not_applicable) {
            let reason = serde_json::to_string(&reason).unwrap_or_default();
            return format!("not applicable: {}", reason.trim_matches('"'));
        }
        let Some(located) = &state.checkpoint else { return "the initial state of the contract".to_owned() };
        let captured = located.manifest.classes.iter().filter(|captured| captured.class == class);
        let shards: Vec<String> = captured
            .flat_map(|captured| &captured.shards)
            .map(|shard| format!("{} ({})", shard.path, shard.digest))
            .collect();
        if shards.is_empty() { "MISSING: the attempt would be refused".to_owned() } else { shards.join(", ") }
    };
    declarations
        .iter()
        .map(|declared| Source { class: declared.class, source: source(declared.class) })
        .collect()
}

fn text(explanation: &Explanation) -> String {
    let mut text = String::new();
    if explanation.run_ended {
        let _ = writeln!(text, "Run {} has ended; nothing would be resumed", explanation.run);
    }
    let would = if explanation.run_ended { "would have gone" } else { "would go" };
    let _ = match (&explanation.refused, &explanation.checkpoint) {
        (Some(refused), _) => writeln!(text, "Attempt {} would be refused: {refused}", explanation.attempt),
        (None, Some(checkpoint)) => writeln!(
            text,
            "Attempt {} of run {} {would} on from {checkpoint} (step {})",
            explanation.attempt, explanation.run, explanation.from_step
        ),
        (None, None) => writeln!(
            text,
            "Attempt {} of run {} would begin at the initial state",
            explanation.attempt, explanation.run
        ),
    };
    for unusable in &explanation.unusable {
        let _ = writeln!(text, "Passed over: {}: {}", unusable.checkpoint, unusable.reason);
    }
    let _ = match explanation.re_executes {
        Some([first, last]) => writeln!(text, "Executed again: steps {first} to {last}"),
        None => writeln!(text, "Executed again: nothing"),
    };
    for source in &explanation.classes {
        let _ = writeln!(text, "{}: {}", source.class, source.source);
    }
    text
}
