//! What mutations of real runs showed no rule for: recoveries and probes that are
//! told otherwise than they were, whose they are, what was given up when, and
//! what was said twice.

use schemas::body::{Body, CheckpointDet, CheckpointFailedObs, Halves, Kind, ObservedFault};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::{AttemptId, CheckpointId, SegmentId};

use super::attempts::body;
use super::evaluation::with_handoff;
use super::faults::{rolled_back, struck};
use super::probes::probed;
use super::stateful::changed as falsified;
use super::workers::two;
use super::{Mutation, changed, error};
use crate::fixture::{Fixture, RunBuilder};

fn of_kind(kind: Kind) -> impl Fn(&Entry) -> bool {
    move |entry| entry.body.kind() == kind
}

/// The process that recovers says first that a checkpoint was damaged.
fn with_damaged(f: &mut Fixture, fault: ObservedFault, checkpoint: &str) {
    let at = f.entries.iter().rposition(of_kind(Kind::AttemptStart)).expect("it recovers");
    let mut entry =
        f.entries.iter().find(|entry| of_kind(Kind::FaultObserved)(entry)).cloned().expect("seen");
    entry.header.attempt = f.entries[at].header.attempt;
    if let Body::FaultObserved(halves) = &mut entry.body {
        halves.det.fault = fault;
        halves.obs.checkpoint = Some(CheckpointId::from(checkpoint));
    }
    f.entries.insert(at + 1, entry);
    f.renumber();
}

fn crashed() -> RunBuilder {
    RunBuilder::new().crash_after_step(6)
}

/// The first entry of a kind, behind the last of another.
fn move_behind(f: &mut Fixture, kind: Kind, behind: Kind) {
    let from = f.entries.iter().position(of_kind(kind)).expect("there is one");
    let entry = f.entries.remove(from);
    let to = f.entries.iter().rposition(of_kind(behind)).expect("there is one");
    f.entries.insert(to + 1, entry);
    f.renumber();
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL207", "a host by another algorithm", || {
        changed(|f| body!(f, AttemptStart, 0, |h| h.obs.host = Digest::blake3(h.obs.host.bytes)))
    }),
    error("GL213", "a start of the run at a step", || {
        changed(|f| f.change(Kind::RunStart, 0, |entry| entry.header.step = Some(1)))
    }),
    error("GL213", "a cost of another attempt", || {
        falsified(struck(), |f| f.change(Kind::Cost, 0, |e| e.header.attempt = Some(AttemptId(1))))
    }),
    error("GL213", "a cost in no segment", || {
        falsified(struck(), |f| f.change(Kind::Cost, 0, |entry| entry.header.segment = None))
    }),
    error("GL213", "a cost at another step", || {
        falsified(struck(), |f| f.change(Kind::Cost, 0, |entry| entry.header.step = Some(9)))
    }),
    error("GL213", "an intervention of no attempt", || {
        falsified(RunBuilder::new().intervention(12), |f| {
            f.change(Kind::Intervention, 0, |entry| {
                (entry.header.attempt, entry.header.segment) = (None, None);
            });
        })
    }),
    error("GL213", "a fault of its own at another step", || {
        falsified(struck(), |f| f.change(Kind::FaultObserved, 0, |entry| entry.header.step = Some(1)))
    }),
    error("GL213", "a quarantine by an attempt that was over", || {
        falsified(rolled_back(), |f| {
            f.change(Kind::CheckpointQuarantined, 0, |e| e.header.attempt = Some(AttemptId(1)));
        })
    }),
    error("GL213", "a probe in a segment", || {
        probed(|f| f.change(Kind::ProbeStart, 0, |entry| entry.header.segment = Some(SegmentId(1))))
    }),
    error("GL214", "gradients by another algorithm", || {
        falsified(two(), |f| {
            body!(f, Step, 0, |h| {
                let gradients = &mut h.obs.shares[1].gradients;
                *gradients = Digest::sha256(gradients.bytes);
            });
        })
    }),
    error("GL216", "a checkpoint that is given up behind its costs", || {
        falsified(rolled_back(), |f| move_behind(f, Kind::CheckpointQuarantined, Kind::Cost))
    }),
    error("GL217", "a fault that is observed twice", || {
        falsified(struck(), |f| f.repeat_where(of_kind(Kind::FaultObserved)))
    }),
    error("GL217", "a reason where the newest checkpoint is there", || {
        falsified(struck(), |f| {
            body!(f, FaultRecovered, 0, |h| h.obs.fallback = Some("it was old".to_owned()));
        })
    }),
    error("GL217", "a corrupt checkpoint that nobody speaks of", || {
        falsified(crashed(), |f| {
            with_damaged(f, ObservedFault::CheckpointCorrupt, "s00000004-a1");
            move_behind(f, Kind::FaultRecovered, Kind::FaultObserved);
        })
    }),
    error("GL510", "a target that the contract does not have", || {
        changed(|f| {
            f.frozen.contract.quality_target = None;
            body!(f, RunEnd, 0, |h| h.det.target_met = Some(true));
        })
    }),
    error("GL511", "a handoff that is issued twice by one audit", || {
        let mut fixture = with_handoff(|_| {});
        fixture.repeat_where(of_kind(Kind::HandoffIssued));
        fixture
    }),
    error("GL602", "a checkpoint that is quarantined twice", || {
        falsified(rolled_back(), |f| f.repeat_where(of_kind(Kind::CheckpointQuarantined)))
    }),
    error("GL602", "a validated checkpoint that fails", || {
        falsified(rolled_back(), |f| {
            f.change(Kind::CheckpointQuarantined, 0, |entry| {
                let Body::CheckpointQuarantined(halves) = &entry.body else { return };
                entry.body = Body::CheckpointFailed(halves.clone());
            });
        })
    }),
    error("GL602", "a fault of a process that names a checkpoint", || {
        falsified(struck(), |f| {
            body!(f, FaultObserved, 0, |h| h.obs.checkpoint = Some(CheckpointId::from("s00000000-a1")));
        })
    }),
    error("GL602", "a damaged checkpoint that nobody saved", || {
        falsified(crashed(), |f| with_damaged(f, ObservedFault::CheckpointIncomplete, "s00000003-a1"))
    }),
    error("GL602", "a damaged checkpoint that is not given up", || {
        falsified(crashed(), |f| with_damaged(f, ObservedFault::CheckpointCorrupt, "s00000004-a1"))
    }),
    error("GL620", "a probe by two processes", || {
        probed(|f| body!(f, ProbeStart, 0, |h| h.obs.plan.num_workers = 2))
    }),
    error("GL622", "one probe that qualifies twice", || {
        let mut fixture = probed(|_| {});
        fixture.repeat_where(of_kind(Kind::CheckpointResumeQualified));
        fixture
    }),
];

/// The control: a damaged checkpoint that is given up is no finding of the rule
/// that asks for it.
#[test]
fn a_damaged_checkpoint_that_is_given_up_is_told_once() {
    use schemas::report::RuleStatus;
    let mut fixture = crashed().build();
    with_damaged(&mut fixture, ObservedFault::CheckpointCorrupt, "s00000004-a1");
    let at = fixture.entries.iter().rposition(of_kind(Kind::FaultObserved)).expect("said");
    let mut entry = fixture.entries[at].clone();
    entry.header.step = Some(4);
    let obs =
        CheckpointFailedObs { checkpoint: CheckpointId::from("s00000004-a1"), reason: "damaged".to_owned() };
    entry.body = Body::CheckpointQuarantined(Box::new(Halves { det: CheckpointDet { step: 4 }, obs }));
    fixture.entries.insert(at + 1, entry);
    fixture.renumber();
    let (status, _, findings) = fixture.check(super::rule("GL602"));
    assert_eq!(status, RuleStatus::Passed, "{findings:#?}");
}
