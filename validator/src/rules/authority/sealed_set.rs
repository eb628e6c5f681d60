//! The sealed set was not opened in the run.

use schemas::body::{Body, Kind};
use schemas::contract::Contract;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL705`.
    SealedSet,
    {
        code: "GL705",
        name: "sealed-set",
        what: "The run's ledger has no entry of a qualification, no evaluation is of the qualification split, and the sealed file \
               is bound, and it, its plaintext and the tables are different files.",
        why: "The sealed set measures once. Opened during the run it is a second val set, and the result means nothing.",
        remedy: "Seal another set and start a new run; an opened set cannot be closed again.",
        reference: "docs/CONTRACT.md, \"Qualification\"; docs/FORMAT.md, \"Qualification\"",
        gate: Route::RejectSelectionLeakage,
    }
);

struct Sealed<'a> {
    contract: &'a Contract,
    num_entries: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    Box::new(Sealed { contract: &frozen.contract, num_entries: 0 })
}

impl Check for Sealed<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        self.num_entries += 1;
        let kind = entry.body.kind();
        if matches!(kind, Kind::QualificationOpened | Kind::QualificationResult | Kind::QualificationVal) {
            let message = "a qualification is recorded in the run's own ledger";
            sink.rejected(At::entry(entry.index, "/kind"), message, "the qualifier's ledger", kind.name());
        }
        if let Body::Eval(halves) = &entry.body
            && halves.det.split == schemas::data::Split::Qualification
        {
            let at = At::entry(entry.index, "/body/det/split");
            sink.rejected(at, "the run evaluated the sealed set", "train or val", "qualification");
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        let (sealed, data) = (&self.contract.qualification, &self.contract.data);
        let secret = [Some(sealed.plaintext), sealed.sealed.digest];
        for (pointer, digest) in [
            ("/data/manifest", data.manifest.digest),
            ("/data/train_examples", data.train_examples.digest),
            ("/data/val_examples", data.val_examples.digest),
        ] {
            if digest.is_some() && secret.contains(&digest) {
                let at = At::place(format!("contract {pointer}"));
                sink.rejected(
                    at,
                    "the file is the sealed set",
                    "another file",
                    crate::rules::common::or_null(digest),
                );
            }
        }
        if sealed.sealed.digest.is_none() || sealed.sealed.num_bytes.is_none() {
            let at = At::place("contract /qualification/sealed");
            sink.rejected(at, "the sealed file is not bound", "its digest and size", "null");
        }
        if sealed.sealed.digest == Some(sealed.plaintext) {
            let at = At::place("contract /qualification");
            sink.rejected(
                at,
                "the set is not sealed: file and plaintext are one",
                "a sealed file",
                sealed.plaintext,
            );
        }
        Outcome::Checked(self.num_entries)
    }
}
