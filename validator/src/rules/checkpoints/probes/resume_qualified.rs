//! Whether probes support the claim that a checkpoint is resume-qualified.

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::{Body, CheckpointQualifiedDet, CheckpointStage, ProbeResultDet};
use schemas::contract::Contract;
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::report::Route;

use super::{MIN_STEPS, beyond, cold, statistical};
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL622`.
    ResumeQualified,
    {
        code: "GL622",
        name: "resume-qualified",
        what: "A checkpoint that is called resume-qualified names an earlier probe of itself, with nothing withheld, in the contract's \
               class, whose distances are within that class; and an earlier cold control of it, which took the model alone, is \
               beyond that class in something that it did not withhold; in the class `statistical`, its mean difference is beyond \
               the margin. Warns where the contract asks for the stage, such a probe and control are on record, and no entry says it.",
        why: "From this stage on a checkpoint may be claimed, handed off, and allow others to be pruned. A comparison that nothing \
              fails shows nothing, so the control has to fail it.",
        remedy: "Probe the checkpoint with `trainer probe`, which writes the stage where it holds.",
        reference: "docs/FORMAT.md, \"Resume probes\"; schemas::body::CheckpointQualifiedDet",
        gate: Route::RejectResumeDrift,
    }
);

struct Qualified<'a> {
    contract: &'a Contract,
    num_checked: u64,
    /// Checkpoints that are called qualified.
    qualified: BTreeSet<CheckpointId>,
    /// Probes that a checkpoint was qualified by.
    qualifying: BTreeSet<u64>,
    /// Results by the index of their entries.
    results: BTreeMap<u64, (CheckpointId, ProbeResultDet)>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Qualified {
        contract: &frozen.contract,
        num_checked: 0,
        qualified: BTreeSet::new(),
        qualifying: BTreeSet::new(),
        results: BTreeMap::new(),
    })
}

impl Qualified<'_> {
    fn judge(&self, index: u64, checkpoint: &CheckpointId, det: &CheckpointQualifiedDet, sink: &mut Sink) {
        let at = |pointer: &str| At::entry(index, pointer);
        if det.class != self.contract.resume.class {
            let expected = format!("{:?}", self.contract.resume.class);
            let message = format!("{checkpoint} is qualified in another class than the contract claims");
            sink.rejected(at("/body/det/class"), message, expected, format!("{:?}", det.class));
        }
        let Some((of, probe)) = self.results.get(&det.probe) else {
            let message = format!("{checkpoint} is called qualified without a probe");
            sink.rejected(at("/body/det/probe"), message, "an earlier probe.result", det.probe);
            return;
        };
        let is_its_own = of == checkpoint
            && (probe.step, probe.class) == (det.step, det.class)
            && probe.withheld.is_empty()
            && probe.num_steps >= MIN_STEPS;
        if !is_its_own {
            let expected = format!(
                "{checkpoint}, step {}, {:?}, nothing withheld, {MIN_STEPS} updates",
                det.step, det.class
            );
            let actual = format!(
                "{of}, step {}, {:?}, without {:?}, {} updates",
                probe.step, probe.class, probe.withheld, probe.num_steps
            );
            sink.rejected(at("/body/det/probe"), "the probe is of something else", expected, actual);
        }
        let captured = super::captured(self.contract);
        if let Some(class) =
            captured.iter().find(|class| !probe.distances.iter().any(|distance| distance.class == **class))
        {
            let message = format!("the probe of {checkpoint} does not compare {class}");
            sink.rejected(at("/body/det/probe"), message, "every captured class", "left out");
        }
        let found = beyond(probe, self.contract, &[]);
        if !found.is_empty() {
            let message = format!("the probe of {checkpoint} found a difference");
            let expected = format!("{:?} in every class", det.class);
            sink.rejected(at("/body/det/probe"), message, expected, found.join(", "));
        }
        let withheld = cold(self.contract);
        let is_controlled = self.results.values().any(|(of, control)| {
            of == checkpoint
                && (control.step, control.class) == (det.step, det.class)
                && control.withheld == withheld
                && !beyond(control, self.contract, &withheld).is_empty()
                && statistical::is_control(control, self.contract)
        });
        if !is_controlled {
            let message = format!("no cold control of {checkpoint} shows that its probe can fail");
            let expected =
                "an earlier probe.result of the model alone, in which the model or a record differs";
            sink.rejected(at("/body/det/probe"), message, expected, "none");
        }
    }
}

impl Qualified<'_> {
    /// Probes that qualify a checkpoint which no entry calls qualified: a process
    /// that was lost behind the comparison leaves that, and so does whoever takes the
    /// stage back.
    fn unsaid(&self, sink: &mut Sink) {
        for (index, (checkpoint, probe)) in &self.results {
            if !probe.withheld.is_empty() || self.qualified.contains(checkpoint) {
                continue;
            }
            let det = CheckpointQualifiedDet { class: probe.class, probe: *index, step: probe.step };
            let mut found = Sink::new(&INFO);
            self.judge(*index, checkpoint, &det, &mut found);
            if found.num_errors() == 0 {
                let message =
                    format!("{checkpoint} was probed, within its class, and is not called qualified");
                let expected = "checkpoint.resume_qualified, which the contract asks for";
                sink.warning(At::entry(*index, ""), message, expected, "no such entry");
            }
        }
    }
}

impl Check for Qualified<'_> {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::ProbeResult(halves) => {
                self.results.insert(entry.index, (halves.obs.checkpoint.clone(), halves.det.clone()));
            }
            Body::CheckpointResumeQualified(halves) => {
                self.num_checked += 1;
                self.qualified.insert(halves.obs.checkpoint.clone());
                if !self.qualifying.insert(halves.det.probe) {
                    let at = At::entry(entry.index, "/body/det/probe");
                    let message = format!("{} is qualified twice by one probe", halves.obs.checkpoint);
                    sink.rejected(at, message, "once for each probe", halves.det.probe);
                }
                self.judge(entry.index, &halves.obs.checkpoint, &halves.det, sink);
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        if self.contract.checkpoints.candidate_stage == CheckpointStage::ResumeQualified {
            self.unsaid(sink);
        }
        if self.num_checked == 0 {
            return Outcome::NotApplicable("no checkpoint is called resume-qualified".to_owned());
        }
        Outcome::Checked(self.num_checked)
    }
}
