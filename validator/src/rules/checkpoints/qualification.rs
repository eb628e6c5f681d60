//! Whether a probe supports the claim that a checkpoint is resume-qualified.
//!
//! The stage is never believed: it stands on the distances that the probe
//! recorded, and on a control that withheld a state class and must differ,
//! since a comparison that nothing fails shows nothing.

use std::collections::BTreeMap;

use schemas::body::{Body, CheckpointQualifiedDet, ProbeResultDet, ProbeStartDet};
use schemas::contract::{Contract, EquivalenceClass};
use schemas::entry::Entry;
use schemas::ids::CheckpointId;

use crate::rule::{At, Sink};

/// Probes by the index of their entries.
#[derive(Default)]
pub(super) struct Probes {
    results: BTreeMap<u64, (CheckpointId, ProbeResultDet)>,
    started: Vec<(CheckpointId, ProbeStartDet)>,
}

impl Probes {
    pub(super) fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::ProbeStart(halves) => {
                self.started.push((halves.obs.checkpoint.clone(), halves.det.clone()));
            }
            Body::ProbeResult(halves) => {
                let det = &halves.det;
                let start = self.started.iter().position(|(checkpoint, start)| {
                    *checkpoint == halves.obs.checkpoint
                        && (start.class, start.num_steps, start.step) == (det.class, det.num_steps, det.step)
                        && start.withheld == det.withheld
                });
                match start {
                    Some(start) => {
                        self.started.remove(start);
                    }
                    None => {
                        let message = "a probe has a result that was not begun";
                        sink.rejected(At::entry(entry.index, ""), message, "probe.start before", "none");
                    }
                }
                self.results.insert(entry.index, (halves.obs.checkpoint.clone(), det.clone()));
            }
            _ => {}
        }
    }

    /// Judges one `checkpoint.resume_qualified`.
    pub(super) fn qualified(
        &self,
        entry: &Entry,
        contract: &Contract,
        checkpoint: &CheckpointId,
        det: &CheckpointQualifiedDet,
        sink: &mut Sink,
    ) {
        let at = |pointer: &str| At::entry(entry.index, pointer);
        let Some((of, probe)) = self.results.get(&det.probe) else {
            let message = format!("{checkpoint} is called qualified without a probe");
            sink.rejected(at("/body/det/probe"), message, "an earlier probe.result", det.probe);
            return;
        };
        let agrees = of == checkpoint
            && (probe.step, probe.class, probe.withheld) == (det.step, det.class, None)
            && probe.num_steps > 0;
        if !agrees {
            let expected = format!("a probe of {checkpoint} in class {:?}", det.class);
            let actual =
                format!("{of}, step {}, {:?}, withheld {:?}", probe.step, probe.class, probe.withheld);
            sink.rejected(at("/body/det/probe"), "the probe is of something else", expected, actual);
        }
        if det.class != EquivalenceClass::Bitwise {
            let message = "no rule of this edition judges distances in this class";
            sink.not_evaluated(at("/body/det/class"), message, "bitwise", format!("{:?}", det.class));
            return;
        }
        let declared = contract.state_classes.iter().filter(|declared| declared.not_applicable.is_none());
        for class in declared.map(|declared| declared.class) {
            let is_equal = probe.distances.iter().any(|distance| distance.class == class && distance.equal);
            if !is_equal {
                let message = format!("the probe of {checkpoint} does not show {class} to be equal");
                sink.rejected(at("/body/det/probe"), message, "equal", "unequal, or not compared");
            }
        }
        if probe.distances.iter().any(|distance| !distance.equal) {
            let message = format!("the probe of {checkpoint} found a difference");
            sink.rejected(at("/body/det/probe"), message, "every class equal", "an unequal one");
        }
        let is_controlled = self.results.range(..entry.index).any(|(_, (of, control))| {
            of == checkpoint
                && (control.step, control.class) == (det.step, det.class)
                && control.withheld.is_some()
                && control.distances.iter().any(|distance| !distance.equal)
        });
        if !is_controlled {
            let message = format!("no control of {checkpoint} shows that its probe can fail");
            let expected = "a probe.result with a withheld class that differs";
            sink.rejected(at("/body/det/probe"), message, expected, "none");
        }
    }
}
