//! GL016 `witness-times`. Notes are read and verified by `crate::cosigned`.

use std::collections::BTreeSet;

use schemas::report::Route;

use crate::cosigned::Witnessed;
use crate::rule::{At, Outcome, RuleInfo, Sink};

/// Text of the rule.
pub(crate) static INFO: RuleInfo = RuleInfo {
    code: "GL016",
    name: "witness-times",
    what: "The witnesses' clocks and the entries' times do not contradict each other: no entry below a cosigned head says that it was recorded later than the head was cosigned, and the first head was cosigned before the first step says that it was recorded, both by more than five minutes. Contradictions are warnings; a head that was cosigned an hour or more behind its last entry is a note, and so is the longest stretch that no witness saw.",
    why: "The entries' times are the recorder's word; a witness has a clock of its own. A run that was dated back, or trained before it was shown, does not fit it. Within a stretch that no witness saw a run could have been started over.",
    remedy: "look at the clocks of both hosts; submit heads while the run goes on (`ledger witness add --follow`). Nothing has to be changed in the ledger",
    reference: "C2SP tlog-cosignature; docs/FORMAT.md, \"Witnesses\"",
    gate: Route::RejectIdentity,
};

/// What two honest clocks may differ by.
const TOLERANCE_US: u64 = 5 * 60 * 1_000_000;
/// From how far behind its last entry on a cosigned head is said to be late.
const LATE_US: u64 = 3_600 * 1_000_000;

/// Compares clocks.
pub(crate) fn check(witnessed: &Witnessed, sink: &mut Sink) -> Outcome {
    let mut num_compared = 0;
    let mut seen = BTreeSet::new();
    for claim in &witnessed.claims {
        for (index, time_s) in &claim.cosigned {
            let name = witnessed.names.get(*index).map_or("?", String::as_str);
            let time_us = time_s.saturating_mul(1_000_000);
            num_compared += 1;
            if seen.insert(*index) {
                first_seen(witnessed, (name, claim.size, time_us), sink);
            }
            let Some(moment) = witnessed.moments.get(&claim.size) else { continue };
            let (latest_us, latest) = moment.latest;
            if latest_us > time_us.saturating_add(TOLERANCE_US) {
                let message = format!(
                    "{name} cosigned a head of size {} before this entry says that it was recorded",
                    claim.size
                );
                sink.warning(At::entry(latest, "/time_us"), message, format!("at most {time_us}"), latest_us);
            } else if time_us > moment.last_us.saturating_add(LATE_US) {
                let late_s = (time_us - moment.last_us) / 1_000_000;
                let message =
                    format!("{name} cosigned the head of size {} long after its last entry", claim.size);
                sink.note(
                    At::entry(claim.size - 1, "/time_us"),
                    message,
                    "soon after it",
                    format!("{late_s} s later"),
                );
            }
        }
    }
    if witnessed.quorum > 0 {
        longest_unseen(witnessed, sink);
    }
    Outcome::Checked(num_compared)
}

/// A witness's smallest head, where it holds no step, was cosigned before the
/// first step.
fn first_seen(witnessed: &Witnessed, (name, size, time_us): (&str, u64, u64), sink: &mut Sink) {
    let Some((index, step_us)) = witnessed.first_step else { return };
    if size <= index && time_us > step_us.saturating_add(TOLERANCE_US) {
        sink.warning(
            At::entry(index, "/time_us"),
            format!("{name} saw the run for the first time after its first step says that it was recorded"),
            format!("at least {time_us}"),
            step_us,
        );
    }
}

/// The largest number of entries between two cosigned heads that follow each
/// other, from the first step on.
fn longest_unseen(witnessed: &Witnessed, sink: &mut Sink) {
    let (Some((first_step, _)), Some(run_end)) = (witnessed.first_step, witnessed.run_end) else { return };
    let cosigned = witnessed.claims.iter().filter(|claim| !claim.cosigned.is_empty());
    let sizes: Vec<u64> = cosigned.map(|claim| claim.size).collect();
    let pairs =
        sizes.iter().zip(sizes.iter().skip(1)).filter(|(from, to)| **to > first_step && **from <= run_end);
    let Some((from, to)) = pairs.max_by_key(|(from, to)| *to - *from) else { return };
    sink.note(
        At::entry(*from, ""),
        "the longest stretch that no witness saw: within it the run could have been started over",
        "heads that are cosigned while the run goes on",
        format!("entries {from} to {}", to - 1),
    );
}
