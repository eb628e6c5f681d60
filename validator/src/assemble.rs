//! Turns outcomes and findings into the report: status of every rule, verdict,
//! route, independence, and what no audit of this kind shows.

use schemas::contract::Contract;
use schemas::finding::{Effect, Finding};
use schemas::report::{HeadSeen, HeadSource, Independence, Route, RuleResult, RuleStatus, Verdict};

use crate::evidence::VerifiedHead;
use crate::rule::{Outcome, RuleInfo, Sink};

/// What every report says of itself, whatever the contract says.
pub(crate) const TRUST_STATEMENT: [&str; 5] = [
    "It shows what was written, by which key, before what; not that the writer told the truth.",
    "Whoever holds the signing keys and every copy of the heads could rebuild the ledger; only a head kept elsewhere closes that.",
    "It cannot see runs that were made outside this ledger.",
    "It grants no quality, readiness or release; a finished run is a candidate, never its own proof.",
    "Shards are read back, but no training step is executed again.",
];

/// A rule's findings and outcome.
pub(crate) struct Ruling {
    pub(crate) info: &'static RuleInfo,
    pub(crate) findings: Vec<Finding>,
    pub(crate) outcome: Outcome,
}

impl Ruling {
    pub(crate) fn new(info: &'static RuleInfo, sink: Sink, outcome: Outcome) -> Self {
        let findings = sink.into_findings();
        // A rule that looked at nothing has shown nothing.
        let is_silent = findings.iter().all(|finding| finding.effect == Effect::None);
        let outcome = match outcome {
            Outcome::Checked(0) if is_silent => {
                Outcome::NotApplicable("there is nothing of the kind that it looks at".to_owned())
            }
            outcome => outcome,
        };
        Self { info, findings, outcome }
    }

    fn worst(&self) -> Effect {
        self.findings.iter().map(|finding| finding.effect).max().unwrap_or(Effect::None)
    }

    fn status(&self) -> RuleStatus {
        match (self.worst(), &self.outcome) {
            (Effect::Tampered | Effect::Rejected | Effect::Incomplete, _) => RuleStatus::Failed,
            (Effect::NotEvaluated, _) | (_, Outcome::NotEvaluated(_)) => RuleStatus::NotEvaluated,
            (Effect::None, Outcome::NotApplicable(_)) => RuleStatus::NotApplicable,
            (Effect::None, Outcome::Checked(_)) => RuleStatus::Passed,
        }
    }

    fn result(&self) -> RuleResult {
        let status = self.status();
        let (num_checked, reason) = match &self.outcome {
            Outcome::Checked(count) => (*count, None),
            Outcome::NotApplicable(reason) | Outcome::NotEvaluated(reason) => (0, Some(reason.clone())),
        };
        // A rule that ran as a whole may have met one thing that it could not evaluate.
        let reason = reason.or_else(|| {
            let first = self.findings.iter().find(|finding| finding.effect == Effect::NotEvaluated)?;
            (status == RuleStatus::NotEvaluated).then(|| first.message.clone())
        });
        RuleResult {
            code: self.info.code.to_owned(),
            num_checked,
            reason,
            rule: self.info.name.to_owned(),
            status,
        }
    }
}

/// Status of every rule, verdict and route.
pub(crate) fn judge(rulings: &[Ruling]) -> (Vec<RuleResult>, Verdict, Route) {
    let results: Vec<RuleResult> = rulings.iter().map(Ruling::result).collect();
    let worst = rulings.iter().map(Ruling::worst).max().unwrap_or(Effect::None);
    let could_not_run = results.iter().any(|result| result.status == RuleStatus::NotEvaluated);
    let verdict = match worst {
        Effect::Tampered => Verdict::Tampered,
        Effect::Rejected => Verdict::Rejected,
        Effect::Incomplete => Verdict::Incomplete,
        Effect::NotEvaluated => Verdict::NotEvaluated,
        Effect::None if could_not_run => Verdict::NotEvaluated,
        Effect::None => Verdict::Accepted,
    };
    let stops = |status: RuleStatus| matches!(status, RuleStatus::Failed | RuleStatus::NotEvaluated);
    let route = rulings
        .iter()
        .zip(&results)
        .filter(|(_, result)| stops(result.status))
        .map(|(ruling, _)| ruling.info.gate)
        .min()
        .unwrap_or(Route::AcceptHandoff);
    (results, verdict, route)
}

/// The route of a run: what no gate stops is handed off only where there is a
/// candidate of the stage that the contract asks for.
pub(crate) const fn route(gate: Route, has_candidate: bool) -> Route {
    match gate {
        Route::AcceptHandoff if !has_candidate => Route::RequestQualification,
        gate => gate,
    }
}

/// All findings, in the order of entries; those about files follow.
pub(crate) fn findings(rulings: Vec<Ruling>) -> Vec<Finding> {
    let mut all: Vec<Finding> = rulings.into_iter().flat_map(|ruling| ruling.findings).collect();
    all.sort_by(|a, b| {
        let key =
            |finding: &Finding| (finding.entry.unwrap_or(u64::MAX), std::cmp::Reverse(finding.severity));
        key(a).cmp(&key(b)).then_with(|| a.code.cmp(&b.code))
    });
    all
}

/// Whether the contract's roles could be different people.
pub(crate) fn independence(contract: Option<&Contract>) -> Independence {
    let status = |established: bool| if established { "declared" } else { "not established" }.to_owned();
    let Some(contract) = contract else {
        return Independence { reason: "the contract could not be read".to_owned(), status: status(false) };
    };
    let keys = &contract.keys;
    let roles = [
        ("owner", &keys.owner),
        ("trainer", &keys.trainer),
        ("validator", &keys.validator),
        ("qualifier", &keys.qualifier),
    ];
    let pairs = || (0..roles.len()).flat_map(|a| (a + 1..roles.len()).map(move |b| (roles[a], roles[b])));
    let equal_keys = pairs().find(|(a, b)| a.1.public == b.1.public);
    let equal_hosts = pairs().find(|(a, b)| a.1.host == b.1.host);
    let (reason, established) = match (equal_keys, equal_hosts) {
        (Some((a, b)), _) => (format!("{} and {} have the same key", a.0, b.0), false),
        (None, Some((a, b))) => (format!("the keys of {} and {} were made on one host", a.0, b.0), false),
        (None, None) => ("the keys were made on different hosts, as their makers declare".to_owned(), true),
    };
    Independence { reason, status: status(established) }
}

/// The newest head; of equal sizes the one from farthest outside.
pub(crate) fn head_seen(heads: &[VerifiedHead]) -> Option<HeadSeen> {
    let distance = |source: HeadSource| match source {
        HeadSource::Database => 0,
        HeadSource::Beside => 1,
        HeadSource::Named => 2,
    };
    heads.iter().max_by_key(|head| (head.size, distance(head.source))).map(|head| HeadSeen {
        origin: head.origin.clone(),
        root: schemas::digest::encode_hex(&head.root),
        size: head.size,
        source: head.source,
    })
}

/// The contract's nonclaims and the audit's own.
pub(crate) fn nonclaims(contract: Option<&Contract>) -> Vec<String> {
    let own = TRUST_STATEMENT.iter().map(|line| (*line).to_owned());
    contract.map_or_else(Vec::new, |contract| contract.nonclaims.clone()).into_iter().chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::At;
    use crate::rules::{gl005_leaf_hash, gl010_head_coverage, gl109_val_numbers};

    fn ruling(info: &'static RuleInfo, outcome: Outcome, report: impl FnOnce(&mut Sink)) -> Ruling {
        let mut sink = Sink::new(info);
        report(&mut sink);
        Ruling::new(info, sink, outcome)
    }

    #[test]
    fn the_worst_effect_decides_and_the_first_gate_is_named() {
        let passed = || ruling(&gl005_leaf_hash::INFO, Outcome::Checked(3), |_| {});
        assert_eq!(judge(&[passed()]).1, Verdict::Accepted);
        assert_eq!(judge(&[passed()]).2, Route::AcceptHandoff);
        let warned = ruling(&gl005_leaf_hash::INFO, Outcome::Checked(3), |sink| {
            sink.warning(At::place("x"), "odd", 1, 2);
        });
        assert_eq!(judge(&[warned]).1, Verdict::Accepted);
        let missing =
            || ruling(&gl109_val_numbers::INFO, Outcome::NotEvaluated("no file".to_owned()), |_| {});
        let (results, verdict, route) = judge(&[passed(), missing()]);
        assert_eq!((verdict, route), (Verdict::NotEvaluated, Route::RejectSelectionLeakage));
        assert_eq!(results[1].reason.as_deref(), Some("no file"));
        let incomplete = || {
            ruling(&gl010_head_coverage::INFO, Outcome::Checked(1), |sink| {
                sink.incomplete(At::place("x"), "uncovered", 1, 2);
            })
        };
        assert_eq!(judge(&[incomplete(), missing()]).1, Verdict::Incomplete);
        let tampered = ruling(&gl109_val_numbers::INFO, Outcome::Checked(1), |sink| {
            sink.rejected(At::place("x"), "wrong", 1, 2);
            sink.tampered(At::place("x"), "changed", 1, 2);
        });
        assert_eq!(judge(&[incomplete(), tampered]).1, Verdict::Tampered);
        let idle = ruling(&gl005_leaf_hash::INFO, Outcome::Checked(0), |_| {});
        let (results, verdict, _) = judge(&[idle]);
        assert_eq!((results[0].status, verdict), (RuleStatus::NotApplicable, Verdict::Accepted));
        assert!(results[0].reason.is_some());
        let skipped = ruling(&gl109_val_numbers::INFO, Outcome::NotApplicable("none".to_owned()), |_| {});
        assert_eq!(judge(&[skipped]).1, Verdict::Accepted);
    }

    #[test]
    fn nothing_is_handed_off_where_there_is_no_candidate() {
        assert_eq!(route(Route::AcceptHandoff, true), Route::AcceptHandoff);
        assert_eq!(route(Route::AcceptHandoff, false), Route::RequestQualification);
        // An earlier gate is named all the same.
        assert_eq!(route(Route::RejectNumerics, false), Route::RejectNumerics);
    }
}
