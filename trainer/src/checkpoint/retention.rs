//! Which checkpoints the contract's policy lets go, as a function of what the
//! record says of each: no clock, no file, no memory between two calls.
//!
//! `docs/FORMAT.md` ("Retention") is the specification; the validator decides
//! the same from the entries with code of its own. Policies choose what stays,
//! protections keep what a policy did not choose, and only what neither keeps
//! is retired.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use schemas::body::RetirementReason;
use schemas::contract::{Direction, KeepPolicy};
use schemas::digest::Digest;
use schemas::ids::{AttemptId, CandidateId, CheckpointId, RunId};
use schemas::state::StateClass;
use serde::Serialize;

/// How far the entries say that a checkpoint came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Announced.
    Requested,
    /// Complete in a temporary folder.
    Staged,
    /// Renamed and flushed, not read back yet.
    DurablyCommitted,
    /// Read back.
    Validated,
    /// A probe matched.
    ResumeQualified,
    /// Its shards were let go; manifest and digests stay.
    Retired,
    /// It could not be written.
    Failed,
    /// It must not be used.
    Quarantined,
}

impl Stage {
    /// Whether a run may go on from it.
    #[must_use]
    pub const fn is_usable(self) -> bool {
        matches!(self, Self::Validated | Self::ResumeQualified)
    }

    /// Whether it is being written, or was when its attempt stopped.
    #[must_use]
    pub const fn is_in_flight(self) -> bool {
        matches!(self, Self::Requested | Self::Staged | Self::DurablyCommitted)
    }

    /// As entries call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Staged => "staged",
            Self::DurablyCommitted => "durably_committed",
            Self::Validated => "validated",
            Self::ResumeQualified => "resume_qualified",
            Self::Retired => "retired",
            Self::Failed => "failed",
            Self::Quarantined => "quarantined",
        }
    }
}

/// What the record says of one checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Fact {
    /// Attempt that saved it.
    pub attempt: AttemptId,
    /// The candidate that it was admitted as.
    pub candidate: Option<CandidateId>,
    /// Its name.
    pub checkpoint: CheckpointId,
    /// Whether every evaluation at its step gave a finite value.
    pub is_finite: bool,
    /// Whether an attempt resumed from it.
    pub is_parent: bool,
    /// Whether it is the first that was validated after a recovery.
    pub is_post_recovery: bool,
    /// Whether a fault was observed while it was the newest usable one.
    pub is_pre_fault: bool,
    /// Whether its weights were selected or handed off.
    pub is_selected: bool,
    /// Classes whose shards stayed when it was retired.
    pub kept: Vec<StateClass>,
    /// BLAKE3 of its manifest, once it was committed.
    pub manifest: Option<Digest>,
    /// Size of all files in bytes, once it was committed; 0 before.
    pub num_bytes: u64,
    /// Place of the entry that last qualified it, in any increasing count.
    pub qualified: Option<u64>,
    /// Run that saved it.
    pub run: RunId,
    /// How far it came.
    pub stage: Stage,
    /// Its step.
    pub step: u64,
    /// Place of the entry that validated it, in the same count.
    pub validated: Option<u64>,
    /// Value of the selection stream at its step.
    pub value: Option<f64>,
}

/// By what a decision is made, besides the facts.
#[derive(Debug, Clone, Copy)]
pub struct Policy<'a> {
    /// Which way the selection stream is better.
    pub direction: Direction,
    /// The contract's clauses.
    pub keep: &'a KeepPolicy,
    /// The run's last step, once the run has ended.
    pub last_step: Option<u64>,
    /// The run whose files these are.
    pub run: &'a RunId,
}

/// Why a checkpoint stays: a clause of the policy, or a protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Protection {
    /// The policy keeps everything.
    KeepAll,
    /// The policy's `last`.
    AmongLast,
    /// The policy's `every_steps`.
    Multiple,
    /// The policy's `best`.
    AmongBest,
    /// The policy's `pinned`.
    Pinned,
    /// The initial state.
    Initial,
    /// The run's last step.
    Final,
    /// The best value of the selection stream so far.
    Best,
    /// Its weights were selected or handed off.
    Selected,
    /// The newest usable one when a fault was observed.
    PreFault,
    /// The first that was validated after a recovery.
    PostRecovery,
    /// Nothing newer is validated.
    LatestValidated,
    /// Nothing newer is resume-qualified.
    LatestQualified,
    /// An attempt resumed from it.
    ParentOfResume,
    /// It is not validated yet.
    InFlight,
    /// Nothing newer has finite values.
    LastFinite,
    /// It failed or is quarantined: evidence, and nothing to go on from.
    GivenUp,
    /// Another run's files.
    OtherRun,
}

impl Protection {
    /// In words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::KeepAll => "the policy keeps everything",
            Self::AmongLast => "among the newest that the policy keeps",
            Self::Multiple => "at an interval that the policy keeps",
            Self::AmongBest => "among the best that the policy keeps",
            Self::Pinned => "pinned by the policy",
            Self::Initial => "the initial state",
            Self::Final => "the final state",
            Self::Best => "the best so far",
            Self::Selected => "selected",
            Self::PreFault => "the newest before a fault",
            Self::PostRecovery => "the first after a recovery",
            Self::LatestValidated => "the latest validated",
            Self::LatestQualified => "the latest resume-qualified",
            Self::ParentOfResume => "an attempt resumed from it",
            Self::InFlight => "in flight",
            Self::LastFinite => "the last with finite values",
            Self::GivenUp => "failed or quarantined",
            Self::OtherRun => "another run's",
        }
    }
}

/// A checkpoint that may be retired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Retirement {
    /// Its name.
    pub checkpoint: CheckpointId,
    /// Classes whose shards stay: a candidate's model, so that the evaluator
    /// can still recompute every value that the selection compared.
    pub kept: Vec<StateClass>,
    /// Why.
    pub reason: RetirementReason,
    /// Its step.
    pub step: u64,
}

/// A checkpoint that stays, and everything that keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Its name.
    pub checkpoint: CheckpointId,
    /// At least one, in the order of [`Protection`].
    pub protections: Vec<Protection>,
    /// Its step.
    pub step: u64,
}

/// What becomes of each checkpoint, by step and age. One that is retired
/// already is in neither list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// Those that stay.
    pub keep: Vec<Kept>,
    /// Those that may go.
    pub retire: Vec<Retirement>,
}

/// Decides. Facts may be in any order.
#[must_use]
pub fn decide(policy: &Policy<'_>, facts: &[Fact]) -> Decision {
    let mut ordered: Vec<&Fact> = facts.iter().collect();
    ordered.sort_by_key(|fact| age(fact));
    let chosen = Chosen::new(policy, &ordered);
    let mut decision = Decision::default();
    for fact in ordered {
        let (checkpoint, step) = (fact.checkpoint.clone(), fact.step);
        let protections = chosen.protections(policy, fact);
        if !protections.is_empty() {
            decision.keep.push(Kept { checkpoint, protections, step });
        } else if fact.stage.is_usable() {
            let kept = if fact.candidate.is_some() { vec![StateClass::Model] } else { Vec::new() };
            let is_newest =
                chosen.newest_of_step.get(&step).is_some_and(|newest| newest.checkpoint == checkpoint);
            let reason = if is_newest { RetirementReason::NotChosen } else { RetirementReason::Superseded };
            decision.retire.push(Retirement { checkpoint, kept, reason, step });
        }
    }
    decision
}

/// Steps before moments: an attempt that went back saves steps again, and its
/// copy is the newer one.
fn age(fact: &Fact) -> (u64, Option<u64>) {
    (fact.step, fact.validated)
}

/// The checkpoint that a new attempt would begin from.
#[must_use]
pub fn newest_usable<'a>(facts: impl IntoIterator<Item = &'a Fact>) -> Option<&'a Fact> {
    facts.into_iter().filter(|fact| fact.stage.is_usable()).max_by_key(|fact| age(fact))
}

/// What is chosen by looking at all of them.
struct Chosen<'a> {
    /// Finite values of steps above 0, best first; of equals the earliest.
    best: Vec<&'a CheckpointId>,
    last: BTreeSet<&'a CheckpointId>,
    last_finite: Option<&'a CheckpointId>,
    latest_qualified: Option<&'a CheckpointId>,
    latest_validated: Option<&'a CheckpointId>,
    newest_of_step: BTreeMap<u64, &'a Fact>,
}

impl<'a> Chosen<'a> {
    fn new(policy: &Policy<'_>, ordered: &[&'a Fact]) -> Self {
        let usable =
            || ordered.iter().copied().filter(|fact| fact.run == *policy.run && fact.stage.is_usable());
        // In ascending order, so that the last of a step stays. One that was
        // retired stays the newest copy: an older one gains nothing by it.
        let newest_of_step: BTreeMap<u64, &Fact> = ordered
            .iter()
            .filter(|fact| {
                fact.run == *policy.run && (fact.stage.is_usable() || fact.stage == Stage::Retired)
            })
            .map(|fact| (fact.step, *fact))
            .collect();
        let copies = || newest_of_step.values().copied().filter(|fact| fact.stage.is_usable());
        let num_last = match policy.keep {
            KeepPolicy::All => usize::MAX,
            KeepPolicy::Chosen { last, .. } => usize::try_from(*last).unwrap_or(usize::MAX),
        };
        let mut valued: Vec<(&Fact, f64)> = copies()
            .filter(|fact| fact.step > 0)
            .filter_map(|fact| fact.value.filter(|value| value.is_finite()).map(|value| (fact, value)))
            .collect();
        // Stable, so that of equals the earliest comes first; a value that is
        // not finite never gets here, whichever way is better.
        valued.sort_by(|(_, left), (_, right)| {
            let (better, worse) = match policy.direction {
                Direction::Minimize => (left, right),
                Direction::Maximize => (right, left),
            };
            better.partial_cmp(worse).unwrap_or(Ordering::Equal)
        });
        let qualified = usable().filter(|fact| fact.stage == Stage::ResumeQualified);
        Self {
            best: valued.into_iter().map(|(fact, _)| &fact.checkpoint).collect(),
            last: copies().rev().take(num_last).map(|fact| &fact.checkpoint).collect(),
            last_finite: usable().rfind(|fact| fact.is_finite).map(|fact| &fact.checkpoint),
            latest_qualified: qualified.max_by_key(|fact| age(fact)).map(|fact| &fact.checkpoint),
            latest_validated: usable().next_back().map(|fact| &fact.checkpoint),
            newest_of_step,
        }
    }

    fn protections(&self, policy: &Policy<'_>, fact: &Fact) -> Vec<Protection> {
        if fact.run != *policy.run {
            return vec![Protection::OtherRun];
        }
        match fact.stage {
            Stage::Retired => return Vec::new(),
            Stage::Failed | Stage::Quarantined => return vec![Protection::GivenUp],
            stage if stage.is_in_flight() => return vec![Protection::InFlight],
            _ => {}
        }
        let id = &fact.checkpoint;
        let is_newest = self.newest_of_step.get(&fact.step).is_some_and(|newest| newest.checkpoint == *id);
        let (is_kept, among_best, is_multiple, is_pinned) = match policy.keep {
            KeepPolicy::All => (true, false, false, false),
            KeepPolicy::Chosen { best, every_steps, pinned, .. } => {
                let num_best = usize::try_from(*best).unwrap_or(usize::MAX);
                (
                    false,
                    self.best.iter().take(num_best).any(|known| *known == id),
                    is_newest
                        && every_steps.is_some_and(|every| every > 0 && fact.step.is_multiple_of(every)),
                    is_newest && pinned.contains(&fact.step),
                )
            }
        };
        let holds = [
            (Protection::KeepAll, is_kept),
            (Protection::AmongLast, !is_kept && self.last.contains(id)),
            (Protection::Multiple, is_multiple),
            (Protection::AmongBest, among_best),
            (Protection::Pinned, is_pinned),
            (Protection::Initial, fact.step == 0),
            (Protection::Final, is_newest && policy.last_step == Some(fact.step)),
            (Protection::Best, self.best.first().is_some_and(|best| *best == id)),
            (Protection::Selected, fact.is_selected),
            (Protection::PreFault, fact.is_pre_fault),
            (Protection::PostRecovery, fact.is_post_recovery),
            (Protection::LatestValidated, self.latest_validated == Some(id)),
            (Protection::LatestQualified, self.latest_qualified == Some(id)),
            (Protection::ParentOfResume, fact.is_parent),
            (Protection::LastFinite, self.last_finite == Some(id)),
        ];
        holds.into_iter().filter(|(_, holds)| *holds).map(|(protection, _)| protection).collect()
    }
}
