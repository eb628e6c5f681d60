//! Only the selected candidate of an ended run is handed off.

use schemas::body::{Body, HandoffIssuedDet, HandoffIssuedObs};
use schemas::entry::Entry;
use schemas::report::Route;

use super::candidates::Candidates;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL511`.
    Handoff,
    {
        code: "GL511",
        name: "handoff",
        what: "A handoff follows run.end, names the selected candidate with its model and step, saw no more entries than precede \
               it and no fewer than an earlier handoff, and its checkpoint had reached the stage that the contract asks for.",
        why: "Qualification is spent on one candidate; handing off another one after the fact is a second selection.",
        remedy: "Hand off with `ledger handoff`, which audits first and names the selected candidate.",
        reference: "docs/FORMAT.md, \"Handoff\"; schemas::contract::CheckpointPolicy",
        gate: Route::RequestQualification,
    }
);

struct Issued<'a> {
    candidates: Candidates<'a>,
    /// Index of the newest handoff.
    last: Option<u64>,
    num_issued: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Issued { candidates: Candidates::new(&frozen.contract), last: None, num_issued: 0 })
}

impl Issued<'_> {
    fn judge(&self, index: u64, det: &HandoffIssuedDet, obs: &HandoffIssuedObs, sink: &mut Sink) {
        let at = |pointer: &str| At::entry(index, pointer);
        if !self.candidates.last.is_over {
            sink.rejected(
                at(""),
                "a candidate is handed off before the run ended",
                "run.end",
                "no such entry before",
            );
        }
        if obs.size > index {
            let message = "the handoff speaks of entries that did not exist";
            sink.rejected(at("/body/obs/size"), message, format!("at most {index}"), obs.size);
        }
        let Some(selected) = self.candidates.selected.last() else {
            sink.rejected(
                at(""),
                "a candidate is handed off although none was selected",
                "candidate.selected",
                "none",
            );
            return;
        };
        let chosen = (&selected.obs.candidate, selected.det.model, selected.det.step);
        let named = (&obs.candidate, det.model, det.step);
        if chosen != named {
            let message = "another candidate is handed off than was selected";
            sink.rejected(at("/body/obs/candidate"), message, format!("{chosen:?}"), format!("{named:?}"));
        }
        let needed = self.candidates.contract.checkpoints.candidate_stage;
        let reached =
            self.candidates.checkpoints.all.get(&selected.obs.checkpoint).map(|checkpoint| checkpoint.stage);
        if reached.is_none_or(|reached| reached < needed) {
            let message = "the candidate's checkpoint has not reached the stage that the contract asks for";
            sink.rejected(at(""), message, format!("{needed:?}"), format!("{reached:?}"));
        }
    }
}

impl Check for Issued<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        if let Body::HandoffIssued(halves) = &entry.body {
            self.num_issued += 1;
            let size = halves.obs.size;
            // One that is issued again, behind a crash, follows an audit that saw the first.
            if let Some(last) = self.last.replace(entry.index).filter(|last| size <= *last) {
                let message =
                    "a candidate is handed off again by an audit that did not see the handoff before";
                let at = At::entry(entry.index, "/body/obs/size");
                sink.rejected(at, message, format!("above {last}"), size);
            }
            self.judge(entry.index, &halves.det, &halves.obs, sink);
        }
        self.candidates.entry(entry);
    }

    fn finish(&mut self, _: &Evidence, _: &mut Sink) -> Outcome {
        if self.num_issued == 0 {
            return Outcome::NotApplicable("no candidate was handed off yet".to_owned());
        }
        Outcome::Checked(self.num_issued)
    }
}
