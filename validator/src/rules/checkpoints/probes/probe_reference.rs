//! The uninterrupted trajectory that a probe compares with is the run's own.

use schemas::body::{Body, CheckpointStage, Kind, ProbeResultDet};
use schemas::contract::EquivalenceClass;
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::report::Route;

use crate::derive::replay::Replay;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Checkpoints, declare_rule, or_null};

declare_rule!(
    /// `GL621`.
    ProbeReference,
    {
        code: "GL621",
        name: "probe-reference",
        what: "Under determinism `bitwise`, the uninterrupted trajectory of a probe gave the run's own record of every step and \
               evaluation up to the checkpoint, and its state there has the digests of the checkpoint.",
        why: "A resumed run that equals some other trajectory shows nothing about this one. This is also the strongest evidence \
              here that the run happened: it was executed a second time, from its initial state.",
        remedy: "None for the probe. A reference that differs from the run means that the run is not what its contract gives: \
                 look at the first step at which a second run of the same contract records something else.",
        reference: "docs/FORMAT.md, \"Resume probes\"; docs/FORMAT.md, \"State digests\"",
        gate: Route::RejectResumeDrift,
    }
);

/// Whether the record is followed: hashing it costs as much as the tree does,
/// and most runs are never probed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Following {
    /// From the first entry on.
    Yes,
    /// Not yet, and no probe was met.
    NotNeeded,
    /// Not yet, though a probe was met.
    FromTheFirstEntry,
}

struct References {
    checkpoints: Checkpoints,
    following: Following,
    num_checked: u64,
    replay: Replay,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let determinism = frozen.contract.numerics.determinism;
    if determinism == EquivalenceClass::Bitwise {
        // Where candidates have to be probed, a probe is expected.
        let stage = frozen.contract.checkpoints.candidate_stage;
        let is_expected = stage >= CheckpointStage::ResumeQualified;
        Box::new(References {
            checkpoints: Checkpoints::default(),
            following: if is_expected { Following::Yes } else { Following::NotNeeded },
            num_checked: 0,
            replay: Replay::default(),
        })
    } else {
        crate::rules::common::at_end(move |_, _| {
            let reason =
                format!("the contract's determinism is {determinism:?}, so that two executions may differ");
            Outcome::NotApplicable(reason)
        })
    }
}

impl References {
    fn check(&mut self, index: u64, checkpoint: &CheckpointId, det: &ProbeResultDet, sink: &mut Sink) {
        self.num_checked += 1;
        let at = |pointer: &str| At::entry(index, pointer);
        let recorded = self.replay.up_to(det.step);
        if recorded != Some(det.reference.records) {
            let message = format!("up to step {}, the reference is not what the run recorded", det.step);
            sink.rejected(
                at("/body/det/reference/records"),
                message,
                or_null(recorded),
                det.reference.records,
            );
        }
        let known = self.checkpoints.all.get(checkpoint).and_then(|known| known.committed.as_ref());
        let Some(committed) = known else { return };
        if committed.classes == det.reference.classes {
            return;
        }
        let pairs = committed.classes.iter().zip(&det.reference.classes);
        let first = pairs.clone().position(|(saved, replayed)| saved != replayed);
        let position = first.unwrap_or_else(|| pairs.len());
        let told = |digests: &[schemas::state::StateDigest]| {
            digests.get(position).map_or_else(
                || "no class".to_owned(),
                |digest| format!("{}: {}", digest.class, or_null(digest.digest)),
            )
        };
        let message = format!("at step {}, the reference has another state than {checkpoint}", det.step);
        let pointer = format!("/body/det/reference/classes/{position}");
        sink.rejected(at(&pointer), message, told(&committed.classes), told(&det.reference.classes));
    }
}

impl Check for References {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.entry_with_det(entry, None, sink);
    }

    fn entry_with_det(&mut self, entry: &Entry, det: Option<&[u8]>, sink: &mut Sink) {
        if self.following != Following::Yes {
            if entry.body.kind() == Kind::ProbeResult {
                self.following = Following::FromTheFirstEntry;
            }
            return;
        }
        if let Body::ProbeResult(halves) = &entry.body {
            self.check(entry.index, &halves.obs.checkpoint, &halves.det, sink);
        }
        self.checkpoints.entry(entry);
        self.replay.entry(entry, det);
    }

    fn settled_entry(&mut self, entry: &Entry, det: Option<&[u8]>, sink: &mut Sink) {
        if self.following == Following::NotNeeded && entry.body.kind() == Kind::ProbeResult {
            self.num_checked += 1;
        } else {
            self.entry_with_det(entry, det, sink);
        }
    }

    fn sees_all_once(&mut self) {
        self.following = Following::Yes;
    }

    fn needs_all_again(&mut self) -> bool {
        let is_needed = self.following == Following::FromTheFirstEntry;
        if is_needed {
            self.following = Following::Yes;
            self.num_checked = 0;
        }
        is_needed
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        if self.num_checked == 0 {
            return Outcome::NotApplicable("no checkpoint was probed".to_owned());
        }
        Outcome::Checked(self.num_checked)
    }
}
