//! GL007 `envelope`.

use schemas::body::Kind;
use schemas::entry::{Entry, LedgerKind};
use schemas::report::Route;

use crate::row::{Identity, RowCheck, RowContext};
use crate::rule::{At, Outcome, RuleInfo, Sink};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL007",
    name: "envelope",
    what: "Every entry belongs to this run's ledger: the run's identifier, ledger kind `run`, and an actor that is the contract's key for that kind of entry; nothing is relayed.",
    why: "An entry of another run, or by a key that the contract does not name, is no evidence for this one.",
    remedy: "find the program that wrote the entry; a run's entries come from its own recorder",
    reference: "docs/FORMAT.md, \"Entry\"",
    gate: Route::RejectIdentity,
};

#[derive(Default)]
pub(crate) struct Envelope {
    num_entries: u64,
    is_unknown: bool,
}

impl RowCheck for Envelope {
    fn info(&self) -> &'static RuleInfo {
        &INFO
    }

    fn row(&mut self, context: &RowContext<'_>, sink: &mut Sink) {
        let Ok(entry) = &context.entry else { return };
        let Some(identity) = context.identity else {
            self.is_unknown = true;
            return;
        };
        self.num_entries += 1;
        check_run(entry, context.position, identity, sink);
        check_actor(entry, context.position, identity, sink);
        if entry.header.origin.is_some() {
            sink.not_evaluated(
                At::entry(context.position, "/origin"),
                "the entry is relayed, and this edition does not verify what workers sign",
                "null",
                "an origin",
            );
        }
    }

    fn finish(&mut self, _: &mut Sink) -> Outcome {
        if self.is_unknown {
            Outcome::NotEvaluated("the contract, which names run and keys, could not be read".to_owned())
        } else {
            Outcome::Checked(self.num_entries)
        }
    }
}

fn check_run(entry: &Entry, position: u64, identity: &Identity, sink: &mut Sink) {
    if entry.header.run != identity.run {
        sink.rejected(
            At::entry(position, "/run"),
            "the entry belongs to another run",
            &identity.run,
            &entry.header.run,
        );
    }
    if entry.header.ledger != LedgerKind::Run {
        sink.rejected(
            At::entry(position, "/ledger"),
            "the entry belongs to another kind of ledger",
            "run",
            format!("{:?}", entry.header.ledger).to_lowercase(),
        );
    }
}

fn check_actor(entry: &Entry, position: u64, identity: &Identity, sink: &mut Sink) {
    let actor = &entry.header.actor;
    // What follows a run may be appended by whoever issues or corrects it.
    let (expected, permitted) = match entry.body.kind() {
        Kind::ContractFrozen => (&identity.owner, false),
        Kind::HandoffIssued | Kind::Amendment | Kind::WitnessHead | Kind::Cost => {
            (&identity.trainer, *actor == identity.owner || *actor == identity.validator)
        }
        _ => (&identity.trainer, false),
    };
    if actor != expected && !permitted {
        sink.rejected(
            At::entry(position, "/actor"),
            "the entry's actor is not the contract's key for this kind",
            expected,
            actor,
        );
    }
}
