//! Workers draw from streams of their own.

use std::collections::BTreeMap;

use schemas::contract::Contract;
use schemas::entry::Entry;
use schemas::ids::{LearnerId, WorkerId};
use schemas::report::Route;
use schemas::state::{CapturedClass, StateClass};

use super::saves::{Save, Saves};
use crate::evidence::{Evidence, MAX_DOCUMENT_BYTES, describe};
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL644`.
    RandomStreams,
    {
        code: "GL644",
        name: "random-streams",
        what: "In every checkpoint that captures random state, each worker of the contract has a stream of its own: no two have one \
               key, and with more than one worker none is left without.",
        why: "Workers with one stream drop the same elements of different examples, and the average over them is not what the \
              contract says; restoring every worker from the first one's state is how that begins.",
        remedy: "Derive a key for each worker, and save and restore the state of each under its number.",
        reference: "docs/FORMAT.md, \"Anomalies of saved state\"; schemas::state::CapturedClass",
        gate: Route::RequestStateInventory,
    }
);

/// Classes that hold streams.
const CLASSES: [StateClass; 2] = [StateClass::RngCpu, StateClass::RngDevice];

/// Who draws.
type Drawer = (LearnerId, Option<WorkerId>);

struct Streams<'a> {
    contract: &'a Contract,
    saves: Saves,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Streams { contract: &frozen.contract, saves: Saves::default() })
}

/// Keys of the streams that a captured class holds, by shard.
fn keys(evidence: &Evidence, save: &Save, captured: &CapturedClass) -> Result<Vec<(String, String)>, String> {
    let mut keys = Vec::new();
    for shard in &captured.shards {
        let path = format!("{}/{}", save.path, shard.path);
        let bytes = evidence.read(&path, MAX_DOCUMENT_BYTES).map_err(|error| describe(&error))?;
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| format!("{path}: {error}"))?;
        let key = value.get("key").ok_or_else(|| format!("{path} names no key"))?;
        keys.push((path, key.to_string()));
    }
    Ok(keys)
}

impl Streams<'_> {
    fn check(&self, evidence: &Evidence, save: &Save, sink: &mut Sink) -> Result<u64, String> {
        let manifest = evidence.checkpoint_manifest(&save.path, save.manifest)?;
        let mut num_streams = 0;
        for class in CLASSES {
            let captured =
                manifest.classes.iter().filter(|of| of.class == class && of.not_applicable.is_none());
            let captured: Vec<&CapturedClass> = captured.collect();
            if captured.is_empty() {
                continue;
            }
            let mut drawers: BTreeMap<String, Drawer> = BTreeMap::new();
            for of in &captured {
                let drawer = (of.learner, of.worker);
                for (path, key) in keys(evidence, save, of)? {
                    num_streams += 1;
                    if let Some(other) = drawers.insert(key.clone(), drawer).filter(|other| *other != drawer)
                    {
                        let message = format!("{} draw from one stream of {class}", both(other, drawer));
                        sink.rejected(At::place(path), message, "a key of its own", key);
                    }
                }
            }
            let workers: std::collections::BTreeSet<_> = captured.iter().filter_map(|of| of.worker).collect();
            let wanted = self.contract.topology.workers as usize;
            if wanted > 1 && workers.len() != wanted {
                let message = format!("{class} is not that of every worker");
                let at = At::place(format!("{}/manifest.json {class}", save.path));
                sink.rejected(at, message, format!("{wanted} workers"), workers.len());
            }
        }
        Ok(num_streams)
    }
}

fn both(one: Drawer, other: Drawer) -> String {
    let name = |(learner, worker): Drawer| match worker {
        Some(worker) => format!("worker {worker} of learner {learner}"),
        None => format!("learner {learner}"),
    };
    format!("{} and {}", name(one), name(other))
}

impl Check for Streams<'_> {
    fn entry(&mut self, entry: &Entry, _: &mut Sink) {
        self.saves.entry(entry);
    }

    fn finish(&mut self, evidence: &Evidence, sink: &mut Sink) -> Outcome {
        let declared = &self.contract.state_classes;
        if !declared.iter().any(|of| CLASSES.contains(&of.class) && of.not_applicable.is_none()) {
            return Outcome::NotApplicable("the contract captures no random state".to_owned());
        }
        let mut num_checked = 0;
        for save in self.saves.whole() {
            match self.check(evidence, save, sink) {
                Ok(num_streams) => num_checked += num_streams,
                Err(reason) => return Outcome::NotEvaluated(reason),
            }
        }
        if num_checked == 0 {
            return Outcome::NotEvaluated("no checkpoint with random state is whole".to_owned());
        }
        Outcome::Checked(num_checked)
    }
}
