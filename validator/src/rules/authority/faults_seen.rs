//! Every injected fault was seen by somebody, or is said to have been unseen.

use schemas::body::{Body, FaultObservedDet, ObservedFault};
use schemas::contract::{FaultKind, FaultPhase};
use schemas::entry::Entry;
use schemas::finding::Finding;
use schemas::ids::AttemptId;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Rule, RuleInfo, Sink};

/// `GL711`.
#[derive(Debug)]
pub(crate) struct FaultsSeen;

static INFO: RuleInfo = RuleInfo {
    code: "GL711",
    name: "injected-faults-seen",
    what: "Says of every injected fault who saw it: the run itself, which observed it in the attempt that it struck, or rules of this \
           audit, whose findings name its family as their cause. Warns of one that neither saw: where only a probe or the evaluator's own numbers can reveal \
           it, and where it went by unseen or did no damage.",
    why: "A fault that was injected and that nobody saw shows that such damage would pass, in this run and in others.",
    remedy: "Qualify checkpoints behind the fault by probes, or run `evaluator val`; where nothing sees it, the detector is what has \
             to be repaired. A note or a warning changes no verdict.",
    reference: "docs/FORMAT.md, \"Injected faults\"",
    gate: Route::RejectResumeDrift,
};

impl Rule for FaultsSeen {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    /// The other rules run a second time beside it, where there is a plan: a rule
    /// never sees the findings of another one, but it may do that one's work.
    fn open<'a>(&self, frozen: &'a Frozen) -> Box<dyn Check + 'a> {
        let others = crate::rules::run_rules()
            .filter(|rule| rule.info().code != INFO.code && !rule.follows_recorded_order())
            .filter(|_| !frozen.contract.faults.plan.is_empty());
        let others = others.map(|rule| {
            let mut check = rule.open(frozen);
            check.sees_all_once();
            Other { check, sink: Sink::new(rule.info()) }
        });
        let others = others.collect();
        Box::new(Seen { injected: Vec::new(), others })
    }
}

/// A rule whose findings may name a cause.
struct Other<'a> {
    check: Box<dyn Check + 'a>,
    sink: Sink,
}

/// One `fault.injected`.
struct Injected {
    attempt: Option<AttemptId>,
    fault: FaultKind,
    index: u64,
    observed: Option<u64>,
    phase: FaultPhase,
}

struct Seen<'a> {
    injected: Vec<Injected>,
    others: Vec<Other<'a>>,
}

/// Whether a family ends the process that records, or a part of it.
const fn ends_a_process(fault: FaultKind) -> bool {
    matches!(fault, FaultKind::WorkerLoss | FaultKind::CheckpointWriteInterruption)
}

/// What can reveal a fault that left nothing in the record.
const fn revealed_by(fault: FaultKind, phase: FaultPhase) -> Option<&'static str> {
    match (fault, phase) {
        (FaultKind::PrecisionPolicyChange, _) => {
            Some("only a probe can reveal it: its damage is in the numbers")
        }
        (FaultKind::ValidationLeakageInSelection, FaultPhase::Evaluation) => {
            Some("only the evaluator's own numbers can reveal it: the record does not differ")
        }
        _ => None,
    }
}

impl Seen<'_> {
    fn observed(&mut self, index: u64, det: &FaultObservedDet) {
        let is_it = |injected: &&mut Injected| {
            let is_vanished = det.fault == ObservedFault::AttemptVanished && ends_a_process(injected.fault);
            injected.observed.is_none()
                && injected.attempt == Some(det.attempt)
                && (det.cause == Some(injected.fault) || is_vanished)
        };
        if let Some(injected) = self.injected.iter_mut().find(is_it) {
            injected.observed = Some(index);
        }
    }

    fn report(injected: &Injected, findings: &[Finding], sink: &mut Sink) {
        let Injected { fault, index, observed, phase, .. } = injected;
        let at = || At::entry(*index, "/body/det/fault").cause(*fault);
        let of_family = findings.iter().filter(|finding| finding.cause == Some(*fault));
        let mut codes: Vec<&str> = of_family.map(|finding| finding.code.as_str()).collect();
        codes.sort_unstable();
        codes.dedup();
        let rules = codes.join(", ");
        let expected = "seen by the run, by a rule, or by a probe";
        match (observed, codes.is_empty()) {
            (Some(entry), true) => {
                sink.note(
                    at(),
                    format!("{fault} was seen by the run, at entry {entry}"),
                    expected,
                    "the run",
                );
            }
            (Some(entry), false) => {
                let message = format!("{fault} was seen by the run, at entry {entry}, and by {rules}");
                sink.note(at(), message, expected, "both");
            }
            (None, false) => {
                sink.note(at(), format!("{fault} was seen by {rules} and not by the run"), expected, "rules");
            }
            (None, true) => {
                let words = revealed_by(*fault, *phase);
                let words = words.unwrap_or("it went by unseen, or did no damage");
                sink.warning(
                    at(),
                    format!("neither the run nor a rule saw {fault}: {words}"),
                    expected,
                    "neither",
                );
            }
        }
    }
}

impl Check for Seen<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.entry_with_det(entry, None, sink);
    }

    fn entry_with_det(&mut self, entry: &Entry, det: Option<&[u8]>, _: &mut Sink) {
        for other in &mut self.others {
            other.check.entry_with_det(entry, det, &mut other.sink);
        }
        match &entry.body {
            Body::FaultInjected(halves) => self.injected.push(Injected {
                attempt: entry.header.attempt,
                fault: halves.det.fault,
                index: entry.index,
                observed: None,
                phase: halves.det.phase,
            }),
            Body::FaultObserved(halves) => self.observed(entry.index, &halves.det),
            _ => {}
        }
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        if self.injected.is_empty() {
            return Outcome::NotApplicable("no fault was injected".to_owned());
        }
        let mut findings = Vec::new();
        for mut other in self.others.drain(..) {
            // What a rule could not evaluate it says itself.
            let _ = other.check.finish(evidence, &mut other.sink);
            findings.extend(other.sink.into_findings());
        }
        // What the run observed is no finding of an audit that repeats its cause.
        findings.retain(|finding| finding.code != "GL710");
        for injected in &self.injected {
            Self::report(injected, &findings, sink);
        }
        Outcome::Checked(self.injected.len() as u64)
    }
}
