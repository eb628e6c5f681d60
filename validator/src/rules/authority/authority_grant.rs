//! Somebody allowed the run, within limits, and the grant was in force.

use schemas::body::Body;
use schemas::contract::Authority;
use schemas::entry::Entry;
use schemas::report::Route;

use crate::derive::calendar;
use crate::evidence::Evidence;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::declare_rule;

declare_rule!(
    /// `GL702`.
    AuthorityGrant,
    {
        code: "GL702",
        name: "authority",
        what: "The grant names who gave it, its scope and at least one non-authority, and had not expired when the run and each \
               attempt started.",
        why: "A training run spends data, money and trust; who allowed it, and what it may not do, belongs to the record.",
        remedy: "Renew the grant and freeze a new contract before running.",
        reference: "schemas::contract::Authority",
        gate: Route::RejectFrozenInputs,
    }
);

struct Grant<'a> {
    authority: &'a Authority,
    end_us: Option<u64>,
    num_checked: u64,
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let authority = &frozen.contract.purpose.authority;
    let end_us = authority.expires.as_deref().and_then(calendar::end_of_day_us);
    Box::new(Grant { authority, end_us, num_checked: 0 })
}

impl Check for Grant<'_> {
    fn entry(&mut self, entry: &Entry, sink: &mut Sink) {
        if matches!(entry.body, Body::RunStart(_) | Body::AttemptStart(_)) {
            self.num_checked += 1;
            if let Some(end_us) = self.end_us.filter(|end_us| entry.time_us >= *end_us) {
                let message = format!("{} came after the grant had expired", entry.body.kind().name());
                sink.rejected(
                    At::entry(entry.index, "/time_us"),
                    message,
                    format!("before {end_us}"),
                    entry.time_us,
                );
            }
        }
    }

    fn finish(&mut self, _: &Evidence, sink: &mut Sink) -> Outcome {
        let at = |field: &str| At::place(format!("contract /purpose/authority/{field}"));
        if let (Some(day), None) = (&self.authority.expires, self.end_us) {
            sink.rejected(at("expires"), "the grant's last day is no day", "YYYY-MM-DD", day);
        }
        for (field, text) in [("granted_by", &self.authority.granted_by), ("scope", &self.authority.scope)] {
            if text.trim().is_empty() {
                sink.rejected(at(field), "the grant is incomplete", format!("a text for {field}"), "nothing");
            }
        }
        let limits = &self.authority.non_authorities;
        if limits.is_empty() || limits.iter().any(|text| text.trim().is_empty()) {
            sink.rejected(
                at("non_authorities"),
                "the grant has no limits, or an empty one",
                "at least one non-authority, and no empty one",
                format!("{limits:?}"),
            );
        }
        Outcome::Checked(self.num_checked + 1)
    }
}
