//! False runs for `GL709`, of runs that belong to a campaign.

use schemas::body::{Body, Halves, Kind};
use schemas::campaign::{CampaignRunDet, CampaignRunObs, RunPurpose};
use schemas::contract::{Contract, Membership};
use schemas::digest::Digest;
use schemas::finding::{Effect, Severity};
use schemas::ids::RunId;
use schemas::number::DecimalU64;
use schemas::report::{RuleStatus, Verdict};

use super::{Mutation, error, note};
use crate::fixture::{Fixture, RunBuilder, StoredRun, preregistration};

/// A run of the arm `adam`.
pub(super) fn member() -> RunBuilder {
    RunBuilder::new().member(&preregistration(), "adam", 2, 7)
}

fn changed(change: impl FnOnce(&mut Contract)) -> Fixture {
    let mut fixture = member().build();
    change(&mut fixture.frozen.contract);
    fixture
}

/// Changes arm, campaign, rescue level and trial.
fn moved(change: impl FnOnce(&mut String, &mut RunId, &mut u32, &mut u32)) -> Fixture {
    changed(|contract| {
        let Membership::Campaign { arm, campaign, rescue_level, trial, .. } = &mut contract.membership else {
            panic!("a run of a campaign");
        };
        change(arm, campaign, rescue_level, trial);
    })
}

fn with_binding() -> Fixture {
    let mut fixture = member().build();
    let at = fixture.entries.iter().position(|entry| entry.body.kind() == Kind::AttemptEnd).expect("an end");
    let mut entry = fixture.entries[at].clone();
    let det = CampaignRunDet {
        arm: "adam".to_owned(),
        contract: Digest::sha256([1; 32]),
        owner: "00".repeat(32),
        purpose: RunPurpose::Confirmation,
        rescue_level: 0,
        run: fixture.frozen.run.clone(),
        seed: DecimalU64(7),
        trial: 2,
    };
    let obs = CampaignRunObs { head: "a note".to_owned(), late: None, path: "run.db".to_owned() };
    entry.body = Body::CampaignRun(Box::new(Halves { det, obs }));
    fixture.entries.insert(at, entry);
    fixture.renumber();
    fixture
}

#[test]
fn a_run_of_a_campaign_is_accepted_and_says_whose_its_denominator_is() {
    let report = StoredRun::new(member().build()).audit();
    assert_eq!(report.verdict, Verdict::Accepted, "{:#?}", report.findings);
    let of_rule: Vec<_> = report.findings.iter().filter(|finding| finding.code == "GL709").collect();
    assert_eq!(of_rule.len(), 1, "{of_rule:#?}");
    assert_eq!((of_rule[0].severity, of_rule[0].effect), (Severity::Note, Effect::None));
    let text = crate::render::text(&report);
    assert!(text.contains("the number of runs that were tried is the campaign's to show"), "{text}");
    assert!(text.contains("trial 2 of arm \"adam\""), "{text}");
}

#[test]
fn a_run_of_a_campaign_whose_preregistration_is_not_stored_is_not_accepted() {
    let mut fixture = member().build();
    fixture.frozen.preregistration = None;
    let report = StoredRun::new(fixture).audit();
    assert_eq!(report.verdict, Verdict::Rejected, "{:#?}", report.findings);
    for code in ["GL104", "GL105"] {
        let is_found = report.findings.iter().any(|finding| {
            finding.code == code
                && format!("{finding:?}").contains("/membership/preregistration")
                && finding.effect == Effect::Rejected
        });
        assert!(is_found, "{code}: {:#?}", report.findings);
    }
    let rule = report.rules.iter().find(|rule| rule.code == "GL709").expect("in the report");
    assert_eq!(rule.status, RuleStatus::NotEvaluated);
}

#[test]
fn a_preregistration_that_is_not_canonical_cannot_be_used() {
    let mut fixture = member().build();
    let mut read = preregistration();
    read.canonical.push(b'\n');
    fixture.frozen.preregistration = Some(Ok(read.clone()));
    if let Membership::Campaign { preregistration, .. } = &mut fixture.frozen.contract.membership {
        preregistration.digest = Some(Digest::blake3(*blake3::hash(&read.canonical).as_bytes()));
        preregistration.num_bytes = Some(read.canonical.len() as u64);
    }
    let report = StoredRun::new(fixture).audit();
    assert_ne!(report.verdict, Verdict::Accepted, "{:#?}", report.findings);
    let is_found = |finding: &&schemas::finding::Finding| {
        finding.code == "GL105" && finding.actual.contains("canonical")
    };
    assert_eq!(report.findings.iter().filter(is_found).count(), 1, "{:#?}", report.findings);
}

pub(super) const MUTATIONS: &[Mutation] = &[
    note("GL709", "a run of a campaign", || member().build()),
    error("GL709", "an arm that nobody preregistered", || moved(|arm, _, _, _| *arm = "sgd".to_owned())),
    error("GL709", "a campaign of another preregistration", || {
        moved(|_, campaign, _, _| *campaign = "0123456789abcdef-fedcba9876543210".into())
    }),
    error("GL709", "a campaign without a nonce", || {
        moved(|_, campaign, _, _| {
            let digest = campaign.as_str()[..16].to_owned();
            *campaign = format!("{digest}-FEDCBA9876543210").as_str().into();
        })
    }),
    error("GL709", "a rescue level beyond the ladder", || moved(|_, _, level, _| *level = 2)),
    error("GL709", "a rescue of an arm without a ladder", || {
        moved(|arm, _, level, _| (*arm, *level) = ("adamw".to_owned(), 1))
    }),
    error("GL709", "a run without a number", || moved(|_, _, _, trial| *trial = 0)),
    error("GL709", "a run of another owner", || {
        changed(|contract| contract.keys.owner.public = contract.keys.trainer.public.clone())
    }),
    error("GL709", "a run of two seeds", || changed(|contract| contract.seeds.dropout = DecimalU64(8))),
    error("GL709", "a campaign's entry in a run's ledger", with_binding),
];
