//! GL015 `witnessed-before-training`. Notes are read and verified by
//! `crate::cosigned`.

use std::collections::BTreeMap;

use schemas::report::Route;

use crate::cosigned::Witnessed;
use crate::rule::{At, Outcome, RuleInfo, Sink};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL015",
    name: "witnessed-before-training",
    what: "As many of the contract's witnesses as its quorum cosigned a head that holds no step yet.",
    why: "A witness that sees a run for the first time when it is over vouches for its end alone: whoever started over until the outcome pleased would show the last one. From its first head on there is one history.",
    remedy: "run `ledger witness add run.db --url URL` behind the freeze and before `trainer run`, best with --follow; what was trained unseen stays unseen, and needs a freeze of its own. A lost file of cosigned heads is restored from a copy, or from the witness (GET /cosigned/<origin>)",
    reference: "C2SP tlog-witness; docs/FORMAT.md, \"Witnesses\"",
    gate: Route::RejectIdentity,
};

/// Compares each witness's smallest head with the place of the first step.
pub(crate) fn check(witnessed: &Witnessed, sink: &mut Sink) -> Outcome {
    let Some((first_step, _)) = witnessed.first_step else {
        return Outcome::NotApplicable("no step is on record".to_owned());
    };
    if witnessed.quorum == 0 {
        return Outcome::NotApplicable("the contract names no witness".to_owned());
    }
    let mut smallest: BTreeMap<usize, u64> = BTreeMap::new();
    for claim in &witnessed.claims {
        for (index, _) in &claim.cosigned {
            let size = smallest.entry(*index).or_insert(claim.size);
            *size = (*size).min(claim.size);
        }
    }
    let num_early = smallest.values().filter(|size| **size <= first_step).count();
    if num_early < witnessed.quorum {
        let at = At::place("contract /keys/witness_quorum");
        let message = "fewer witnesses than the contract asks for saw the run before its first step";
        let expected = format!("{} with a head of size {first_step} or less", witnessed.quorum);
        let of = |(index, size): (&usize, &u64)| {
            format!("{} from size {size} on", witnessed.names.get(*index).map_or("?", String::as_str))
        };
        let seen: Vec<String> = smallest.iter().map(of).collect();
        let actual = if seen.is_empty() { "none".to_owned() } else { seen.join(", ") };
        // Every witness may have cosigned an earlier head that is not here.
        sink.incomplete(at, message, expected, actual);
    }
    Outcome::Checked(smallest.len().max(1) as u64)
}
