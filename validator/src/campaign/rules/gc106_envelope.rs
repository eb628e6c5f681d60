//! GC106 `campaign-envelope`.

use schemas::body::Kind;
use schemas::entry::{Entry, LedgerKind};
use schemas::ids::{KeyId, RunId};
use schemas::report::Route;

use crate::rule::{At, Outcome, RuleInfo, Sink};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GC106",
    name: "campaign-envelope",
    what: "Every entry is of this campaign: its identifier, ledger kind `campaign`, the owner as actor, nothing relayed, no attempt, learner, segment, step or worker; the first freezes it, and behind it only `campaign.run`, `amendment`, `intervention` and `witness.head` follow.",
    why: "An entry of another campaign, or by somebody else, binds nothing here.",
    remedy: "find the program that wrote the entry; a campaign's entries come from `ledger campaign`",
    reference: "docs/FORMAT.md, \"Campaigns\"",
    gate: Route::RejectIdentity,
};

/// Follows the entries of the campaign.
pub(crate) struct Envelope<'a> {
    /// The campaign and its owner; null where the preregistration is not read.
    expected: Option<(&'a RunId, &'a KeyId)>,
    num_entries: u64,
}

impl<'a> Envelope<'a> {
    pub(crate) fn new(expected: Option<(&'a RunId, &'a KeyId)>) -> Self {
        Self { expected, num_entries: 0 }
    }

    pub(crate) fn entry(&mut self, entry: &Entry, position: u64, sink: &mut Sink) {
        let Some((campaign, owner)) = self.expected else { return };
        self.num_entries += 1;
        let header = &entry.header;
        let mut differs = |member: &str, expected: String, actual: String| {
            if expected != actual {
                let at = At::entry(position, format!("/{member}"));
                sink.rejected(at, "the entry's envelope is not that of this campaign", expected, actual);
            }
        };
        differs("run", campaign.to_string(), header.run.to_string());
        differs("actor", owner.to_string(), header.actor.to_string());
        differs("ledger", format!("{:?}", LedgerKind::Campaign), format!("{:?}", header.ledger));
        let absent = [
            ("attempt", header.attempt.map(|id| id.0.to_string())),
            ("learner", header.learner.map(|id| id.0.to_string())),
            ("origin", header.origin.as_ref().map(|origin| origin.actor.to_string())),
            ("segment", header.segment.map(|id| id.0.to_string())),
            ("step", header.step.map(|step| step.to_string())),
            ("worker", header.worker.map(|id| id.0.to_string())),
        ];
        for (member, value) in absent {
            differs(member, "null".to_owned(), value.unwrap_or_else(|| "null".to_owned()));
        }
        let kind = entry.body.kind();
        let is_expected = match position {
            0 => kind == Kind::CampaignFrozen,
            _ => matches!(kind, Kind::CampaignRun | Kind::Amendment | Kind::Intervention | Kind::WitnessHead),
        };
        if !is_expected {
            let expected = "campaign.frozen first and once, then campaign.run and what may stand beside it";
            sink.rejected(At::entry(position, "/kind"), "the entry has no place here", expected, kind.name());
        }
    }

    pub(crate) fn finish(&self) -> Outcome {
        match self.expected {
            Some(_) => Outcome::Checked(self.num_entries),
            None => Outcome::NotEvaluated(
                "the preregistration, which names the owner, could not be read".to_owned(),
            ),
        }
    }
}
