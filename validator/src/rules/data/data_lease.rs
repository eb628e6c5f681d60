//! The data may be used, by this run, for this.

use std::collections::{BTreeMap, BTreeSet};

use schemas::body::Body;
use schemas::contract::Contract;
use schemas::data::{DataManifest, Split};
use schemas::entry::Entry;
use schemas::report::Route;

use crate::derive::calendar;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL308`.
    DataLeaseRule,
    {
        code: "GL308",
        name: "data-lease",
        what: "The manifest names train and val shards only, each once, none of them the sealed set; every train shard's license \
               class is admitted; the tokenizer is `bytes`; and no update was made after the lease's last day.",
        why: "Text that may not be trained on, or that the qualification will measure, spoils a model whatever its loss.",
        remedy: "Remove the shards concerned, build the manifest again and freeze a new contract; or renew the lease first.",
        reference: "schemas::data::DataManifest; schemas::contract::DataLease",
        gate: Route::RejectFrozenInputs,
    }
);

struct Lease<'a> {
    contract: &'a Contract,
    data: &'a DataManifest,
    end_us: Option<u64>,
    num_checked: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let data = match &frozen.data {
        Ok(data) => data,
        Err(reason) => return unavailable(format!("the data manifest: {reason}")),
    };
    let end_us = frozen.contract.data.expires.as_deref().and_then(calendar::end_of_day_us);
    Box::new(Lease { contract: &frozen.contract, data, end_us, num_checked: 0 })
}

impl Lease<'_> {
    fn shards(&self, sink: &mut Sink) {
        let contract = self.contract;
        let sealed = [Some(contract.qualification.plaintext), contract.qualification.sealed.digest];
        let (mut paths, mut digests) = (BTreeSet::new(), BTreeMap::new());
        for (index, shard) in self.data.shards.iter().enumerate() {
            let at =
                |field: &str| At::place(format!("{} /shards/{index}/{field}", contract.data.manifest.path));
            if shard.split == Split::Qualification {
                sink.rejected(
                    at("split"),
                    "the manifest names a qualification shard",
                    "train or val",
                    "qualification",
                );
            }
            if sealed.contains(&Some(shard.digest)) {
                sink.rejected(
                    at("digest"),
                    "the shard is the sealed qualification set",
                    "another text",
                    shard.digest,
                );
            }
            let admitted = &contract.data.admitted_license_classes;
            if shard.split == Split::Train && !admitted.contains(&shard.license_class) {
                let (expected, actual) = (format!("{admitted:?}"), format!("{:?}", shard.license_class));
                sink.rejected(at("license_class"), "the license class is not admitted", expected, actual);
            }
            if !paths.insert(&shard.path) {
                sink.rejected(at("path"), "the shard is named twice", "each file once", &shard.path);
            }
            match digests.insert(shard.digest, shard.split) {
                Some(split) if split != shard.split => {
                    sink.rejected(
                        at("digest"),
                        "the same text is in two splits",
                        "each text in one",
                        shard.digest,
                    );
                }
                Some(_) => {
                    sink.warning(
                        at("digest"),
                        "the same text is there twice",
                        "each text once",
                        shard.digest,
                    );
                }
                None => {}
            }
        }
    }
}

impl Check for Lease<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        if let Body::Step(_) = entry.body {
            self.num_checked += 1;
            if let Some(end_us) = self.end_us.filter(|end_us| entry.time_us >= *end_us) {
                let at = At::entry(entry.index, "/time_us");
                sink.rejected(
                    at,
                    "an update was made after the lease's last day",
                    format!("before {end_us}"),
                    entry.time_us,
                );
            }
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        self.shards(sink);
        let lease = &self.contract.data;
        if let (Some(day), None) = (&lease.expires, self.end_us) {
            sink.rejected(
                At::place("contract /data/expires"),
                "the lease's last day is no day",
                "YYYY-MM-DD",
                day,
            );
        }
        if lease.terms.trim().is_empty() {
            sink.rejected(
                At::place("contract /data/terms"),
                "the lease has no terms",
                "its terms",
                "nothing",
            );
        }
        if self.data.tokenizer != "bytes" {
            let at = At::place(format!("{} /tokenizer", lease.manifest.path));
            sink.rejected(at, "the tokenizer is unknown", "bytes", &self.data.tokenizer);
        }
        Outcome::Checked(self.num_checked + self.data.shards.len() as u64)
    }
}
