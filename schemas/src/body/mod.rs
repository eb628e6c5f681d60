//! What an entry says, by kind. Each body has two halves: `det`, which the
//! contract determines, and `obs`, which the day decided. A replay of the same
//! contract gives equal `det` halves.

mod anomaly;
mod attempt;
mod candidate;
mod checkpoint;
mod fault;
mod probe;
mod step;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::campaign::{CampaignFrozenDet, CampaignFrozenObs, CampaignRunDet, CampaignRunObs};
use crate::number::EntryFormatter;

pub use anomaly::*;
pub use attempt::*;
pub use candidate::*;
pub use checkpoint::*;
pub use fault::*;
pub use probe::*;
pub use step::*;

/// The two halves of a body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Halves<D, O> {
    /// Determined by the contract.
    pub det: D,
    /// Observed on the day.
    pub obs: O,
}

/// An empty half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

macro_rules! bodies {
    ($($(#[$meta:meta])* $name:ident = $text:literal, $det:ty, $obs:ty;)*) => {
        /// Kind of an entry.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
        pub enum Kind {
            $($(#[$meta])* #[serde(rename = $text)] $name,)*
        }

        impl Kind {
            /// Every kind, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name in JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }

        /// Body of an entry.
        #[derive(Debug, Clone, PartialEq)]
        #[allow(missing_docs, reason = "documented on `Kind`")]
        pub enum Body {
            $($name(Box<Halves<$det, $obs>>),)*
        }

        impl Body {
            /// Kind of this body.
            #[must_use]
            pub const fn kind(&self) -> Kind {
                match self { $(Self::$name(_) => Kind::$name,)* }
            }

            /// Reads the body of an entry of a given kind.
            ///
            /// # Errors
            /// When the text does not have the shape of that kind.
            pub fn from_json(kind: Kind, text: &str) -> Result<Self, serde_json::Error> {
                Ok(match kind {
                    $(Kind::$name => Self::$name(Box::new(serde_json::from_str(text)?)),)*
                })
            }

            /// As [`Body::from_json`], with a reader's own deserializer.
            ///
            /// # Errors
            /// As the deserializer says.
            pub fn deserialize<'de, D: Deserializer<'de>>(
                kind: Kind,
                deserializer: D,
            ) -> Result<Self, D::Error> {
                Ok(match kind {
                    $(Kind::$name => Self::$name(Box::new(Halves::deserialize(deserializer)?)),)*
                })
            }

            /// The `det` half as canonical JSON.
            ///
            /// # Errors
            /// Never for values of these types; the signature is serde_json's.
            pub fn det_json(&self) -> Result<String, serde_json::Error> {
                match self { $(Self::$name(halves) => entry_json(&halves.det),)* }
            }
        }

        impl Serialize for Body {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self { $(Self::$name(halves) => halves.serialize(serializer),)* }
            }
        }

        #[cfg(feature = "json-schema")]
        impl Body {
            /// The schema of each kind's body.
            pub fn schemas(generator: &mut schemars::SchemaGenerator) -> Vec<(Kind, schemars::Schema)> {
                vec![$((Kind::$name, generator.subschema_for::<Halves<$det, $obs>>()),)*]
            }
        }

    };
}

fn entry_json<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    let mut bytes = Vec::with_capacity(256);
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, EntryFormatter))?;
    String::from_utf8(bytes).map_err(serde::ser::Error::custom)
}

bodies! {
    /// The contract with its signature: entry 0 of a run's ledger.
    ContractFrozen = "contract.frozen", ContractFrozenDet, ContractFrozenObs;
    /// Execution begins; once, after the freeze.
    RunStart = "run.start", RunStartDet, RunStartObs;
    /// Execution has ended; once. Little may follow.
    RunEnd = "run.end", RunEndDet, RunEndObs;
    /// A process began to execute the run.
    AttemptStart = "attempt.start", AttemptStartDet, AttemptStartObs;
    /// It left.
    AttemptEnd = "attempt.end", AttemptEndDet, AttemptEndObs;
    /// A span with one unchanged identity begins.
    SegmentStart = "segment.start", SegmentStartDet, Nothing;
    /// The process is alive although no step completed.
    Heartbeat = "heartbeat", HeartbeatDet, HeartbeatObs;
    /// One completed update.
    Step = "step", StepDet, StepObs;
    /// One evaluation of one stream.
    Eval = "eval", EvalDet, EvalObs;
    /// Numbers that explain, and decide nothing.
    Diagnostic = "diagnostic", DiagnosticDet, DiagnosticObs;
    /// Something that should not be.
    Anomaly = "anomaly", AnomalyDet, AnomalyObs;
    /// A person changed something.
    Intervention = "intervention", InterventionDet, InterventionObs;
    /// A planned fault is about to act.
    FaultInjected = "fault.injected", FaultInjectedDet, Nothing;
    /// A fault was seen.
    FaultObserved = "fault.observed", FaultObservedDet, FaultObservedObs;
    /// The run goes on after it.
    FaultRecovered = "fault.recovered", FaultRecoveredDet, FaultRecoveredObs;
    /// A checkpoint is about to be written.
    CheckpointRequested = "checkpoint.requested", CheckpointDet, CheckpointObs;
    /// Its files are complete in a temporary folder.
    CheckpointStaged = "checkpoint.staged", CheckpointDet, CheckpointObs;
    /// It has its final name and survives a power cut.
    CheckpointDurablyCommitted = "checkpoint.durably_committed", CheckpointCommittedDet, CheckpointCommittedObs;
    /// It was read back and every digest matched.
    CheckpointValidated = "checkpoint.validated", CheckpointDet, CheckpointObs;
    /// A fresh process resumed from it and matched a separate trajectory.
    CheckpointResumeQualified = "checkpoint.resume_qualified", CheckpointQualifiedDet, CheckpointObs;
    /// It could not be written.
    CheckpointFailed = "checkpoint.failed", CheckpointDet, CheckpointFailedObs;
    /// It must not be used.
    CheckpointQuarantined = "checkpoint.quarantined", CheckpointDet, CheckpointFailedObs;
    /// Its shards are about to be removed; manifest and digests stay.
    CheckpointRetired = "checkpoint.retired", CheckpointRetiredDet, CheckpointObs;
    /// A resume probe begins.
    ProbeStart = "probe.start", ProbeStartDet, ProbeStartObs;
    /// What it measured.
    ProbeResult = "probe.result", ProbeResultDet, ProbeResultObs;
    /// A checkpoint became a candidate.
    CandidateAdmitted = "candidate.admitted", CandidateAdmittedDet, CandidateObs;
    /// The selection rule chose one.
    CandidateSelected = "candidate.selected", CandidateSelectedDet, CandidateObs;
    /// One candidate was handed to qualification.
    HandoffIssued = "handoff.issued", HandoffIssuedDet, HandoffIssuedObs;
    /// A witness cosigned a head.
    WitnessHead = "witness.head", WitnessHeadDet, Nothing;
    /// Something that an earlier entry said is corrected; it is not replaced.
    Amendment = "amendment", AmendmentDet, Nothing;
    /// What something cost.
    Cost = "cost", CostDet, CostObs;
    /// A qualifier is about to open the sealed set.
    QualificationOpened = "qualification.opened", QualificationOpenedDet, QualificationOpenedObs;
    /// What a candidate scored on it.
    QualificationResult = "qualification.result", QualificationResultDet, QualificationResultObs;
    /// What the evaluator's own forward pass gives on the val split.
    QualificationVal = "qualification.val", QualificationValDet, QualificationResultObs;
    /// The preregistration with its signature: entry 0 of a campaign's ledger.
    CampaignFrozen = "campaign.frozen", CampaignFrozenDet, CampaignFrozenObs;
    /// A run belongs to the campaign and has come this far.
    CampaignRun = "campaign.run", CampaignRunDet, CampaignRunObs;
}
