//! The raw numbers of a statistical probe, and the test that was frozen.

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::{Body, Continuation, ProbeResultDet};
use schemas::contract::{
    Architecture, Contract, EquivalenceClass, EquivalenceTest, MidAccumulation, VariedDraws,
};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::ids::CheckpointId;
use schemas::number::DecimalU64;
use schemas::report::Route;
use schemas::state::StateClass;

use super::statistical::{self, Interval};
use super::{MIN_STEPS, cold};
use crate::derive::continuation;
use crate::evidence::Evidence;
use crate::frozen::{ExampleTable, Frozen};
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{declare_rule, or_null, same_float};

declare_rule!(
    /// `GL623`.
    StatisticalProbe,
    {
        code: "GL623",
        name: "statistical-probe",
        what: "Under the resume class `statistical`, the contract names a test that can fail; every probe holds one pair of \
               continuations for each frozen seed, in order, none missing and none twice, over the frozen number of updates; \
               each consumed the examples that its seed gives; under determinism `bitwise` the references of a checkpoint are \
               the same in all its probes; and where nothing is withheld the interval of the mean difference, computed again \
               from the raw numbers, lies within the frozen margin. No other class holds continuations.",
        why: "A test that is chosen after its numbers are seen, or from which a seed is dropped, can be made to say anything. An \
              interval that is too wide shows nothing, and finding no difference is not equivalence.",
        remedy: "Probe again with `trainer probe` where the record is incomplete. Where equivalence is not shown, find the state \
                 that is not restored; more seeds or another margin are another contract.",
        reference: "docs/FORMAT.md, \"Statistical probes\"; schemas::contract::EquivalenceTest",
        gate: Route::RejectResumeDrift,
    }
);

/// Most seeds and updates: `ledger freeze` refuses more, and each is work here.
const MAX_SEEDS: usize = 64;
const MAX_STEPS: u64 = 1_000;
/// Fewest seeds whose interval says something of its own width.
const MIN_SEEDS: usize = 3;
/// Largest level of each one-sided test.
const MAX_ALPHA: f64 = 0.1;
/// Smallest: below it the quantile is about the tails of a distribution alone.
const MIN_ALPHA: f64 = 1e-6;
/// Margin that no resume misses by accident.
const VACUOUS_MARGIN: f64 = 1.0;

struct Probes<'a> {
    contract: &'a Contract,
    /// Digests of the examples by step and place of the seed.
    ids: BTreeMap<(u64, usize), Option<Digest>>,
    num_checked: u64,
    references: BTreeMap<CheckpointId, Vec<Continuation>>,
    table: Option<&'a ExampleTable>,
    /// Probes that withhold nothing and have no result yet.
    unanswered: BTreeMap<CheckpointId, u64>,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let table = match (&frozen.train_examples, frozen.contract.resume.class) {
        (Err(reason), EquivalenceClass::Statistical) => {
            return unavailable(format!("the train example table: {reason}"));
        }
        (table, _) => table.as_ref().ok(),
    };
    let contract = &frozen.contract;
    let (ids, references) = (BTreeMap::new(), BTreeMap::new());
    Box::new(Probes { contract, ids, num_checked: 0, references, table, unanswered: BTreeMap::new() })
}

/// Why a frozen test could not fail, or could not be judged.
fn problems(test: &EquivalenceTest, contract: &Contract) -> Vec<(&'static str, String)> {
    let different: BTreeSet<DecimalU64> = test.seeds.iter().copied().collect();
    let mut found = Vec::new();
    if !(MIN_ALPHA..=MAX_ALPHA).contains(&test.alpha) {
        found.push(("alpha", format!("{:?}", test.alpha)));
    }
    if !(test.margin > 0.0 && test.margin < VACUOUS_MARGIN) {
        found.push(("margin", format!("{:?}", test.margin)));
    }
    if !(MIN_STEPS..=MAX_STEPS).contains(&test.num_steps) {
        found.push(("num_steps", test.num_steps.to_string()));
    }
    if !(MIN_SEEDS..=MAX_SEEDS).contains(&test.seeds.len()) || different.len() != test.seeds.len() {
        found.push(("seeds", format!("{} seeds, {} different", test.seeds.len(), different.len())));
    }
    let Architecture::LlamaDecoder(decoder) = &contract.architecture;
    let has_effect = |varied: &VariedDraws| match varied {
        VariedDraws::DataOrder => true,
        VariedDraws::Dropout => decoder.dropout > 0.0,
    };
    if !test.varies.is_sorted_by(|left, right| left < right) || !test.varies.iter().any(has_effect) {
        found.push(("varies", format!("{:?}, dropout {:?}", test.varies, decoder.dropout)));
    }
    if contract.checkpoints.mid_accumulation != MidAccumulation::RoundToBoundary {
        found.push(("", "checkpoints inside of accumulation windows".to_owned()));
    }
    found
}

impl Probes<'_> {
    fn check(&mut self, index: u64, checkpoint: &CheckpointId, det: &ProbeResultDet, sink: &mut Sink) {
        let at = |pointer: &str| At::entry(index, pointer);
        let contract = self.contract;
        if contract.resume.class != EquivalenceClass::Statistical {
            if !det.samples.is_empty() {
                let message = "a probe of another class holds continuations by seed";
                let expected = format!("none, as the class is {:?}", contract.resume.class);
                sink.rejected(at("/body/det/samples"), message, expected, det.samples.len());
            }
            return;
        }
        self.num_checked += 1;
        // Without a test that can be judged, the end says so.
        let Some(test) = statistical::test(contract).filter(|test| problems(test, contract).is_empty())
        else {
            return;
        };
        if det.num_steps != test.num_steps {
            let message = "a statistical probe runs another number of updates than was frozen";
            sink.rejected(at("/body/det/num_steps"), message, test.num_steps, det.num_steps);
        }
        let seeds = |list: &mut dyn Iterator<Item = DecimalU64>| {
            list.map(|seed| seed.0.to_string()).collect::<Vec<_>>().join(", ")
        };
        let expected = seeds(&mut test.seeds.iter().copied());
        let actual = seeds(&mut det.samples.iter().map(|pair| pair.seed));
        if expected != actual {
            let message =
                "the seeds of a statistical probe are not those that were frozen, each once, in order";
            sink.rejected(at("/body/det/samples"), message, expected, actual);
            return;
        }
        self.check_ids(index, test, det, sink);
        self.check_references(index, checkpoint, det, sink);
        let interval = Interval::of(&det.samples, test.alpha);
        if det.withheld.is_empty() && !interval.is_within(test.margin) {
            let (expected, actual) = statistical::told(&det.samples, test);
            let message = format!("resumed from {checkpoint}, the run is not shown to be equivalent");
            sink.rejected(at("/body/det/samples"), message, expected, actual);
        }
        if det.withheld == cold(contract) && !interval.is_apart(test.margin) {
            let message = format!(
                "the cold control of {checkpoint} is not beyond the margin, so that its probe shows nothing"
            );
            let expected = format!("a mean difference beyond ±{:?}", test.margin);
            sink.warning(at("/body/det/samples"), message, expected, format!("{:e}", interval.mean));
        }
    }

    /// Each continuation consumed what its seed gives; the resumed one of a
    /// control may have lost its place.
    fn check_ids(&mut self, index: u64, test: &EquivalenceTest, det: &ProbeResultDet, sink: &mut Sink) {
        let Some(table) = self.table else { return };
        let is_placed =
            !det.withheld.contains(&StateClass::DataCursor) && !det.withheld.contains(&StateClass::Sampler);
        for (place, pair) in det.samples.iter().enumerate() {
            let contract = self.contract;
            let expected = *self
                .ids
                .entry((det.step, place))
                .or_insert_with(|| continuation::ids(contract, test, table, det.step, pair.seed.0));
            let sides = [("reference", &pair.reference, true), ("resumed", &pair.resumed, is_placed)];
            for (side, continuation, _) in sides.into_iter().filter(|(_, _, is_checked)| *is_checked) {
                if expected != Some(continuation.ids) {
                    let at = At::entry(index, format!("/body/det/samples/{place}/{side}/ids"));
                    let message =
                        format!("the {side} continuation of seed {} drew other examples", pair.seed.0);
                    sink.rejected(at, message, or_null(expected), continuation.ids);
                }
            }
        }
    }

    /// Two executions of one continuation give the same bits, where that is
    /// claimed.
    fn check_references(
        &mut self,
        index: u64,
        checkpoint: &CheckpointId,
        det: &ProbeResultDet,
        sink: &mut Sink,
    ) {
        if self.contract.numerics.determinism != EquivalenceClass::Bitwise {
            return;
        }
        let found: Vec<Continuation> = det.samples.iter().map(|pair| pair.reference.clone()).collect();
        let known = self.references.entry(checkpoint.clone()).or_insert_with(|| found.clone());
        for (place, (known, found)) in known.iter().zip(&found).enumerate() {
            if !same_float(known.value.0, found.value.0) {
                let at = At::entry(index, format!("/body/det/samples/{place}/reference/value"));
                let message = format!("two probes of {checkpoint} have another reference for one seed");
                sink.rejected(at, message, format!("{:?}", known.value.0), format!("{:?}", found.value.0));
            }
        }
    }
}

impl Check for Probes<'_> {
    fn ignores_steps(&self) -> bool {
        true
    }

    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        match &entry.body {
            Body::ProbeStart(halves) if halves.det.withheld.is_empty() => {
                *self.unanswered.entry(halves.obs.checkpoint.clone()).or_default() += 1;
            }
            Body::ProbeResult(halves) => {
                let (checkpoint, det) = (&halves.obs.checkpoint, &halves.det);
                if det.withheld.is_empty()
                    && let Some(count) = self.unanswered.get_mut(checkpoint)
                {
                    *count = count.saturating_sub(1);
                }
                self.check(entry.index, checkpoint, det, sink);
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        let class = self.contract.resume.class;
        if class != EquivalenceClass::Statistical {
            return Outcome::NotApplicable(format!("the contract's resume class is {class:?}"));
        }
        for (checkpoint, count) in self.unanswered.iter().filter(|(_, count)| **count > 0) {
            // Whoever stops a probe can have seen its numbers first.
            let message = format!("statistical probes of {checkpoint} were begun and have no result");
            sink.warning(At::place(checkpoint.as_str()), message, "a result for each", count);
        }
        let test = self.contract.resume.test.as_ref();
        let found =
            test.map_or_else(|| vec![("", "no test".to_owned())], |test| problems(test, self.contract));
        for (field, actual) in found {
            let at = At::place(format!("contract /resume/test/{field}"));
            let message = "the test of a statistical claim cannot fail, or cannot be judged";
            sink.rejected(at, message, "a test as docs/CONTRACT.md, EquivalenceTest, says", actual);
        }
        if self.num_checked == 0 {
            return Outcome::NotApplicable("no checkpoint was probed".to_owned());
        }
        Outcome::Checked(self.num_checked)
    }
}
