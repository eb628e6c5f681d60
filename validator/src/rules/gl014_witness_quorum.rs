//! GL014 `witness-quorum`. Notes are read and verified by `crate::cosigned`.

use std::collections::{BTreeMap, BTreeSet};

use schemas::report::Route;

use crate::cosigned::Witnessed;
use crate::rule::{At, Outcome, RuleInfo, Sink};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL014",
    name: "witness-quorum",
    what: "Where the contract names witnesses, as many of them as its quorum cosigned one head that covers the end of the run. Every cosigned head beside the ledger or on record is signed, of this run, and a prefix of these entries, and every cosignature of a witness that the contract names holds.",
    why: "A witness cosigns a head only where it follows from the last one that it saw, so that of two histories of one run at most one is cosigned, and a ledger that was cut or rewritten does not agree.",
    remedy: "submit the newest head to each witness with `ledger witness add run.db --url URL`; restore the ledger or run.db.cosigned from a copy where they disagree",
    reference: "C2SP tlog-cosignature and tlog-witness; docs/FORMAT.md, \"Witnesses\"",
    gate: Route::RejectIdentity,
};

/// Counts the witnesses of each head.
pub(crate) fn check(witnessed: &Witnessed, num_claims: u64, sink: &mut Sink) -> Outcome {
    let Witnessed { claims, names, quorum, run_end, .. } = witnessed;
    if *quorum == 0 {
        return Outcome::Checked(num_claims);
    }
    let mut by_size: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    for claim in claims {
        by_size.entry(claim.size).or_default().extend(claim.cosigned.iter().map(|(index, _)| *index));
    }
    let covers = |size: u64| run_end.is_some_and(|end| size > end);
    let most = by_size.iter().filter(|(size, _)| covers(**size)).max_by_key(|(_, by)| by.len());
    let num_most = most.map_or(0, |(_, by)| by.len());
    if num_most < *quorum {
        let place = "contract /keys/witness_quorum";
        let expected = format!("{quorum} of {} over one head behind run.end", names.join(", "));
        let actual = match (run_end, most) {
            (None, _) => "the run has not ended".to_owned(),
            (Some(_), None) => "no cosigned head covers run.end".to_owned(),
            (Some(_), Some((size, by))) => {
                let by: Vec<&str> =
                    by.iter().filter_map(|index| names.get(*index).map(String::as_str)).collect();
                let by = if by.is_empty() { "none".to_owned() } else { by.join(", ") };
                format!("{by} at size {size}")
            }
        };
        sink.incomplete(
            At::place(place),
            "fewer witnesses cosigned the run than the contract asks for",
            expected,
            actual,
        );
    }
    Outcome::Checked(num_claims.max(1))
}
