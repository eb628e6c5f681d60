//! The campaign as its rules see it: the preregistration, and every run that
//! was bound, with what its own ledger says.
//!
//! What the campaign's entries say of a run is kept apart from what the run's
//! ledger says; only the rules that compare the two use the former.

use std::collections::BTreeMap;

use schemas::body::Outcome;
use schemas::campaign::report::ValueBasis;
use schemas::campaign::{
    Arm, ArmPair, ArmRole, CampaignRunDet, CampaignRunObs, Claim, ClaimDimension, ClaimKind, ContractPointer,
    Preregistration, RunPurpose,
};
use schemas::digest::Digest;
use schemas::ids::RunId;
use schemas::report::Verdict;

use super::facts::RunFacts;

/// A `campaign.run` entry.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    pub(crate) entry: u64,
    pub(crate) time_us: u64,
    pub(crate) det: CampaignRunDet,
    pub(crate) obs: CampaignRunObs,
}

/// A run that was bound.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// In the order of their entries; at least one.
    pub(crate) first: Registration,
    pub(crate) later: Vec<Registration>,
    /// What its ledger says, or why nothing can be said.
    pub(crate) facts: Result<Box<RunFacts>, String>,
    /// Of its own audit; null where there is no ledger.
    pub(crate) verdict: Option<Verdict>,
    /// First error of its own audit, in one line.
    pub(crate) first_error: Option<String>,
    /// Nothing but its outcome keeps its own audit from accepting it: the run
    /// ended, and not as completed.
    pub(crate) is_incomplete_alone: bool,
    /// The selection stream, and the selected candidate's value on it as the run's
    /// report has it.
    pub(crate) reported_value: Option<(String, f64)>,
    /// Whether the reported value is the evaluator's, and not the trainer's own.
    pub(crate) is_by_evaluator: bool,
    /// Identifier of the run as the campaign names it.
    pub(crate) id: RunId,
}

impl Run {
    pub(crate) fn registrations(&self) -> impl Iterator<Item = &Registration> {
        std::iter::once(&self.first).chain(&self.later)
    }

    /// Where its ledger was last said to be.
    pub(crate) fn path(&self) -> &str {
        &self.registrations().last().unwrap_or(&self.first).obs.path
    }

    pub(crate) fn arm(&self) -> &str {
        &self.first.det.arm
    }

    pub(crate) fn purpose(&self) -> RunPurpose {
        self.first.det.purpose
    }

    pub(crate) fn seed(&self) -> u64 {
        self.first.det.seed.0
    }

    pub(crate) fn level(&self) -> u32 {
        self.first.det.rescue_level
    }

    /// Arm, seed, trial: what a person knows it by.
    pub(crate) fn name(&self) -> String {
        let det = &self.first.det;
        let level =
            if det.rescue_level > 0 { format!(", rescue level {}", det.rescue_level) } else { String::new() };
        format!("trial {} of arm {:?} (seed {}{level}, {})", det.trial, det.arm, det.seed.0, self.path())
    }

    /// The run's facts, where it has a ledger.
    pub(crate) fn known(&self) -> Option<&RunFacts> {
        self.facts.as_deref().ok()
    }

    /// The record is whole, and tells of a run that went out of numbers.
    pub(crate) fn is_diverged(&self) -> bool {
        self.is_incomplete_alone && self.known().is_some_and(|facts| facts.is_diverged)
    }

    /// Whether it says anything of its recipe: it has a value, went to its end, or
    /// went out of numbers. What was stopped before says nothing.
    pub(crate) fn is_informative(&self, stream: &str) -> bool {
        let is_over = |facts: &RunFacts| facts.is_diverged || facts.ended == Some(Outcome::Completed);
        self.quality(stream).is_some() || self.known().is_some_and(is_over)
    }

    /// The campaign's metric of its selected candidate: what the audit of the run
    /// reports for that stream, else what the trainer recorded at its step.
    /// [`Run::basis`] says whose number it is.
    pub(crate) fn quality(&self, stream: &str) -> Option<f64> {
        let recorded = || self.known()?.selected_value;
        self.reported(stream).or_else(recorded).filter(|value| value.is_finite())
    }

    /// Whose number its quality is. The evaluator is only asked for the stream by
    /// which the run selects, so of another stream it is the trainer's.
    pub(crate) fn basis(&self, stream: &str) -> ValueBasis {
        match self.quality(stream) {
            None => ValueBasis::None,
            Some(_) if self.is_by_evaluator && self.reported(stream).is_some() => ValueBasis::Evaluator,
            Some(_) => ValueBasis::Trainer,
        }
    }

    fn reported(&self, stream: &str) -> Option<f64> {
        self.reported_value.as_ref().filter(|(of, _)| of == stream).map(|(_, value)| *value)
    }
}

/// A run's ledger that lies beside the campaign, names it, and is not bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unbound {
    pub(crate) path: String,
    pub(crate) run: RunId,
    /// Whether it has entries behind its freeze.
    pub(crate) has_begun: bool,
}

/// A ledger of a bound run that lies somewhere else, and says other things than
/// the one that the campaign shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherCopy {
    pub(crate) path: String,
    pub(crate) run: RunId,
    /// What it has that the shown one has not.
    pub(crate) what: String,
}

/// Everything about one campaign.
#[derive(Debug, Clone)]
pub(crate) struct Campaign {
    pub(crate) prereg: Preregistration,
    /// SHA-256 of its canonical bytes.
    pub(crate) digest: Digest,
    /// BLAKE3 of the same bytes: what contracts bind.
    pub(crate) file_digest: Digest,
    pub(crate) id: RunId,
    /// In the order of their first entries.
    pub(crate) runs: Vec<Run>,
    pub(crate) unbound: Vec<Unbound>,
    /// Other histories of runs that are bound.
    pub(crate) copies: Vec<OtherCopy>,
    /// Databases that lie there and could not be looked at, with the reason.
    pub(crate) unread: Vec<(String, String)>,
}

impl Campaign {
    pub(crate) fn arm(&self, name: &str) -> Option<&Arm> {
        self.prereg.arms.iter().find(|arm| arm.name == name)
    }

    pub(crate) fn reference(&self) -> Option<&Arm> {
        self.arm(&self.prereg.reference_arm)
    }

    pub(crate) fn runs_of<'a, 'b>(
        &'a self,
        arm: &'b str,
        purpose: RunPurpose,
    ) -> impl Iterator<Item = &'a Run> + use<'a, 'b> {
        self.runs.iter().filter(move |run| run.arm() == arm && run.purpose() == purpose)
    }

    /// The confirmation run of level 0.
    pub(crate) fn confirmation(&self, arm: &str, seed: u64) -> Option<&Run> {
        self.runs_of(arm, RunPurpose::Confirmation).find(|run| run.seed() == seed && run.level() == 0)
    }

    /// The confirmation runs of an arm and seed, by rescue level.
    pub(crate) fn ladder(&self, arm: &str, seed: u64) -> BTreeMap<u32, &Run> {
        let runs = self.runs.iter().filter(|run| {
            run.arm() == arm && run.purpose() == RunPurpose::Confirmation && run.seed() == seed
        });
        runs.map(|run| (run.level(), run)).collect()
    }

    pub(crate) fn seeds(&self) -> impl Iterator<Item = u64> {
        self.prereg.seeds.iter().map(|seed| seed.0)
    }

    /// Where an arm's confirmation runs may differ from the reference arm's: what
    /// it declares, and what tuning chose on either side.
    pub(crate) fn permitted<'a>(&'a self, arm: &'a Arm) -> Vec<&'a ContractPointer> {
        let tuned = |arm: &'a Arm| arm.tuning.pointers.iter().filter(|_| arm.tuning.num_trials > 0);
        let of_reference = self.reference().into_iter().flat_map(tuned).filter(|_| arm.tuning.num_trials > 0);
        arm.declared.iter().map(|declared| &declared.pointer).chain(tuned(arm)).chain(of_reference).collect()
    }

    /// The arm against which a pair of a claim speaks: that which is said to be
    /// worse or no better, also where the claim is told from the other side. A
    /// baseline that loses is what every campaign asks for; whether it was tuned
    /// and trained is asked of every baseline.
    pub(crate) fn accused(&self, claim: &Claim, pair: &ArmPair) -> Option<&Arm> {
        match claim.kind {
            ClaimKind::Negative | ClaimKind::NoDifferenceFound => self.arm(&pair.arm),
            ClaimKind::Better | ClaimKind::NotWorse | ClaimKind::Efficiency => {
                self.arm(&pair.against).filter(|arm| arm.role != ArmRole::Baseline)
            }
        }
    }

    /// Whose numbers a claim rests on. Its arms' trials and positive controls
    /// count as their confirmation runs do: they decide what is confirmed, and
    /// whether it counts. When a threshold was reached, and for what cost, only the
    /// trainer recorded.
    pub(crate) fn basis(&self, claim: &Claim) -> ValueBasis {
        let stream = &self.prereg.metric.stream;
        let runs = self.runs.iter().filter(|run| Self::arms_of(claim).any(|arm| arm == run.arm()));
        let of_run = |run: &Run| match claim.dimension {
            ClaimDimension::Quality => run.basis(stream),
            _ if run.known().is_some() => ValueBasis::Trainer,
            _ => ValueBasis::None,
        };
        runs.map(of_run).max().unwrap_or(ValueBasis::None)
    }

    /// The arms that a claim speaks of.
    pub(crate) fn arms_of(claim: &Claim) -> impl Iterator<Item = &str> {
        claim.arms.iter().flat_map(|pair| [pair.arm.as_str(), pair.against.as_str()])
    }
}

/// Places of a contract that say which run it is, and not what it does. Every
/// sealing of one text gives another file, and the text is compared (GC120).
pub(crate) const IDENTITY: [&str; 5] =
    ["/name", "/purpose/statement", "/membership/arm", "/membership/trial", "/qualification/sealed"];

/// What a block is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Concern {
    /// Every claim.
    All,
    /// Claims that speak of this arm.
    Arm(String),
    /// One claim.
    Claim(String),
}

/// Why a claim cannot be decided, or does not hold, whatever its numbers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) concern: Concern,
    /// The claim can be decided, and does not hold.
    pub(crate) is_refutation: bool,
    pub(crate) reason: String,
}

impl Block {
    pub(crate) fn arm(arm: &str, reason: impl Into<String>) -> Self {
        Self { concern: Concern::Arm(arm.to_owned()), is_refutation: false, reason: reason.into() }
    }

    pub(crate) fn claim(claim: &Claim, reason: impl Into<String>) -> Self {
        Self { concern: Concern::Claim(claim.id.clone()), is_refutation: false, reason: reason.into() }
    }

    pub(crate) fn refutation(claim: &Claim, reason: impl Into<String>) -> Self {
        Self { is_refutation: true, ..Self::claim(claim, reason) }
    }

    pub(crate) fn concerns(&self, claim: &Claim) -> bool {
        match &self.concern {
            Concern::All => true,
            Concern::Arm(arm) => Campaign::arms_of(claim).any(|name| name == arm),
            Concern::Claim(id) => *id == claim.id,
        }
    }
}
