//! An attempt begins from the newest validated checkpoint, or from nothing.

use schemas::body::{AttemptReason, AttemptStartDet, Body, Kind, ResumePoint};
use schemas::contract::Recovery;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{Checkpoints, declare_rule, is_progress, or_null};

declare_rule!(
    /// `GL203`.
    ResumePointRule,
    {
        code: "GL203",
        name: "resume-point",
        what: "The first attempt has reason `start` and begins at step 0; a later one resumes from the newest checkpoint that \
               is validated (resume-qualified, where the recovery policy is `restart_from_last_qualified`) and was not failed, \
               quarantined or retired, naming its manifest digest and step, or restarts \
               where there is none.",
        why: "Whoever may choose an older or an unvalidated state to go on from can try several futures and keep the best, \
              or continue from torn bytes.",
        remedy: "Resume with `trainer run`; quarantine a checkpoint that cannot be used before going on from an older one.",
        reference: "docs/FORMAT.md, \"Order of entries\"",
        gate: Route::RejectResumeDrift,
    }
);

struct Resume {
    checkpoints: Checkpoints,
    /// An attempt that has not made progress yet: what it may begin from can
    /// still change, because it may quarantine a checkpoint first.
    pending: Option<(u64, AttemptStartDet)>,
    num_attempts: u64,
    recovery: Recovery,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Resume {
        checkpoints: Checkpoints::default(),
        pending: None,
        num_attempts: 0,
        recovery: frozen.contract.faults.recovery,
    })
}

impl Resume {
    fn judge(&mut self, sink: &mut Sink) {
        let Some((index, det)) = self.pending.take() else { return };
        let is_first = self.num_attempts == 1;
        let newest = self.checkpoints.newest_usable(self.recovery);
        let expected = match (is_first, newest) {
            (true, _) => AttemptReason::Start,
            (false, Some(_)) => AttemptReason::Resume,
            (false, None) => AttemptReason::Restart,
        };
        if det.reason != expected {
            let at = At::entry(index, "/body/det/reason");
            sink.rejected(
                at,
                "the attempt starts for another reason",
                format!("{expected:?}"),
                format!("{:?}", det.reason),
            );
        }
        match (&det.resumed_from, newest) {
            (Some(point), Some(_)) if !is_first => self.judge_point(index, &det, point, sink),
            (None, None) => {}
            (None, Some(_)) if is_first => {}
            (actual, newest) => {
                let at = At::entry(index, "/body/det/resumed_from");
                let expected = or_null(newest.filter(|_| !is_first).map(|(id, _)| id));
                let actual = or_null(actual.as_ref().map(|point| &point.checkpoint));
                sink.rejected(at, "the attempt begins from another state", expected, actual);
            }
        }
        let from_step = det.resumed_from.as_ref().map_or(0, |point| point.step);
        if det.from_step != from_step {
            let at = At::entry(index, "/body/det/from_step");
            sink.rejected(at, "the attempt begins at another step than its state", from_step, det.from_step);
        }
    }

    fn judge_point(&self, index: u64, det: &AttemptStartDet, point: &ResumePoint, sink: &mut Sink) {
        let at = |field: &str| At::entry(index, format!("/body/det/resumed_from/{field}"));
        if let Some((newest, _)) = self.checkpoints.newest_usable(self.recovery)
            && *newest != point.checkpoint
        {
            let stage = match self.recovery {
                Recovery::RestartFromLastQualified => "resume-qualified",
                Recovery::RestartFromLastValidated | Recovery::RollBack | Recovery::Refuse => "validated",
            };
            let message =
                format!("attempt {} does not begin from the newest {stage} checkpoint", det.attempt);
            sink.rejected(at("checkpoint"), message, newest, &point.checkpoint);
        }
        let Some(known) = self.checkpoints.all.get(&point.checkpoint) else { return };
        if known.validated.is_none() || known.is_unusable {
            let message = format!("attempt {} begins from a checkpoint that may not be used", det.attempt);
            let actual = if known.is_unusable { "failed, quarantined or retired" } else { "not validated" };
            sink.rejected(at("checkpoint"), message, "a validated checkpoint", actual);
        }
        if known.step != point.step {
            sink.rejected(at("step"), "the checkpoint is of another step", known.step, point.step);
        }
        let manifest = known.committed.as_ref().map(|committed| committed.manifest);
        if manifest != Some(point.manifest) {
            sink.rejected(
                at("manifest"),
                "the checkpoint has another manifest",
                or_null(manifest),
                point.manifest,
            );
        }
    }
}

impl Check for Resume {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        let kind = entry.body.kind();
        if is_progress(kind) || kind == Kind::AttemptEnd {
            self.judge(sink);
        }
        // An attempt that vanished before it made progress may have been about
        // to quarantine the checkpoint that the one after it passes over; it
        // did nothing, so where it would have begun decides nothing.
        if let Body::AttemptStart(halves) = &entry.body {
            self.num_attempts += 1;
            self.pending = Some((entry.index, halves.det.clone()));
        }
        self.checkpoints.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        Outcome::Checked(self.num_attempts)
    }
}
