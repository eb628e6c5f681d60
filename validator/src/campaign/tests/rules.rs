//! What the rules and the decisions say of honest campaigns and of false ones.

use std::collections::{BTreeMap, BTreeSet};

use schemas::campaign::ClaimDimension;
use schemas::campaign::RunPurpose::{Confirmation, Tuning};
use schemas::campaign::report::{ClaimOutcome, ClaimResult, ValueBasis};
use schemas::finding::{Finding, Severity};
use schemas::report::{RuleStatus, Verdict};

use super::false_campaigns::{MUTATIONS, rescue, spoil};
use super::laundered_campaigns::{self, diverge};
use crate::assemble::{self, Ruling};
use crate::campaign::fixture::*;
use crate::campaign::view::Campaign;
use crate::campaign::{claims, rules};
use crate::coverage::check_table;

fn evaluate(campaign: &Campaign) -> (Vec<Ruling>, Vec<ClaimResult>) {
    let mut rulings = Vec::new();
    let blocks = rules::evaluate(Some(campaign), &mut rulings);
    (rulings, claims::outcomes(campaign, &blocks))
}

fn findings(campaign: &Campaign) -> Vec<Finding> {
    assemble::findings(evaluate(campaign).0)
}

#[test]
fn an_honest_campaign_passes_every_rule_and_its_claims_are_supported() {
    let campaign = honest();
    let (rulings, claims) = evaluate(&campaign);
    let (results, verdict, _) = assemble::judge(&rulings);
    let found = assemble::findings(rulings);
    assert!(found.is_empty(), "{found:#?}");
    assert_eq!(verdict, Verdict::Accepted);
    for result in &results {
        let idle = result.code == "GC118" && result.status == RuleStatus::NotApplicable;
        assert!(idle || (result.status == RuleStatus::Passed && result.num_checked > 0), "{result:?}");
    }
    assert_eq!(claims.len(), 3);
    for claim in &claims {
        assert_eq!(claim.outcome, ClaimOutcome::Supported, "{claim:#?}");
        assert!(!claim.reasons.is_empty() && claim.comparisons[0].seeds.len() == 3);
        assert_eq!(claim.comparisons[0].beside.len(), 6);
    }
}

#[test]
fn an_honest_rescue_passes_and_stands_for_its_seed() {
    let mut campaign = honest();
    spoil(&mut campaign);
    rescue(&mut campaign, 1);
    let (rulings, claims) = evaluate(&campaign);
    let (_, verdict, _) = assemble::judge(&rulings);
    let found = assemble::findings(rulings);
    // The seed cost more than a run, which only the claim of efficiency suffers from.
    let is_of_claim = |finding: &Finding| finding.code == "GC123" && finding.severity == Severity::Warning;
    assert!(found.iter().all(is_of_claim) && verdict == Verdict::Accepted, "{found:#?}");
    assert_eq!(claims[0].outcome, ClaimOutcome::Supported, "{:#?}", claims[0]);
    // What the run of level 0 cost is part of what the seed cost.
    let tokens = &claims[1].comparisons[0].seeds;
    assert_eq!(tokens[0].arm.map(|value| value.0), Some(240.0 + 480.0), "{tokens:?}");
    assert_eq!(tokens[1].arm.map(|value| value.0), Some(240.0));
    assert_ne!(claims[1].outcome, ClaimOutcome::Supported);
}

#[test]
fn a_run_that_went_out_of_numbers_can_be_rescued() {
    let mut campaign = honest();
    diverge(campaign.run_mut(PROPOSED, Confirmation, 0));
    let (rulings, claims) = evaluate(&campaign);
    assert_eq!(assemble::judge(&rulings).1, Verdict::Accepted);
    // Without a rescue it counts against its arm, and blocks nothing.
    assert_eq!(claims[0].outcome, ClaimOutcome::NotSupported, "{:#?}", claims[0]);
    rescue(&mut campaign, 1);
    let (rulings, claims) = evaluate(&campaign);
    assert_eq!(assemble::judge(&rulings).1, Verdict::Accepted);
    assert_eq!(claims[0].outcome, ClaimOutcome::Supported, "{:#?}", claims[0]);
    // What it reached before it went out of numbers counts for no claim.
    let mut campaign = honest();
    let reach = campaign.run_mut(PROPOSED, Confirmation, 0).facts_mut().reach;
    diverge(campaign.run_mut(PROPOSED, Confirmation, 0));
    campaign.run_mut(PROPOSED, Confirmation, 0).facts_mut().reach = reach;
    assert_eq!(evaluate(&campaign).1[1].outcome, ClaimOutcome::NotSupported);
}

#[test]
fn a_trial_that_went_out_of_numbers_was_spent() {
    let mut campaign = honest();
    for arm in [BASELINE, CONTROL] {
        diverge(campaign.run_mut(arm, Tuning, 1));
    }
    let (rulings, claims) = evaluate(&campaign);
    assert_eq!(assemble::judge(&rulings).1, Verdict::Accepted);
    assert!(claims.iter().all(|claim| claim.outcome == ClaimOutcome::Supported), "{claims:#?}");
}

#[test]
fn a_run_whose_folder_moved_is_bound_again() {
    let mut campaign = honest();
    let run = campaign.run_mut(PROPOSED, Confirmation, 0);
    let mut again = run.later[0].clone();
    again.entry += 100;
    again.obs.path = "elsewhere/run.db".to_owned();
    run.later.push(again);
    let (rulings, claims) = evaluate(&campaign);
    let found = assemble::findings(rulings);
    assert!(found.is_empty(), "{found:#?}");
    assert_eq!(claims[0].outcome, ClaimOutcome::Supported);
}

/// The honest campaign in which each rule found something to look at, and passed.
fn passing() -> BTreeMap<String, &'static str> {
    let mut rescued = honest();
    spoil(&mut rescued);
    rescue(&mut rescued, 1);
    let mut passing = BTreeMap::new();
    for (name, campaign) in [("an honest campaign", honest()), ("an honest rescue", rescued)] {
        let (results, ..) = assemble::judge(&evaluate(&campaign).0);
        for result in results {
            if result.status == RuleStatus::Passed && result.num_checked > 0 {
                passing.entry(result.code).or_insert(name);
            }
        }
    }
    passing
}

#[test]
fn every_rule_catches_what_it_is_for() {
    let (mut covered, passing) = (BTreeSet::new(), passing());
    let mut table: Vec<String> =
        passing.iter().map(|(code, name)| format!("{code}\tpasses\t{name}\n")).collect();
    for mutation in MUTATIONS.iter().chain(laundered_campaigns::MUTATIONS) {
        let mut campaign = honest();
        (mutation.change)(&mut campaign);
        let found: Vec<Finding> =
            findings(&campaign).into_iter().filter(|finding| finding.code == mutation.code).collect();
        let is_caught = found.iter().any(|finding| finding.severity == mutation.severity);
        assert!(is_caught, "{} does not see {}: {found:#?}", mutation.code, mutation.name);
        if let Some((id, outcome)) = mutation.claim {
            let claims = evaluate(&campaign).1;
            let claim = claims.iter().find(|claim| claim.id == id).expect("a claim");
            assert_eq!(claim.outcome, outcome, "{}: {claim:#?}", mutation.name);
        }
        // A record that is not whole decides nothing.
        if mutation.code == "GC108" {
            let claims = evaluate(&campaign).1;
            let is_blocked = |claim: &ClaimResult| claim.outcome == ClaimOutcome::Blocked;
            assert!(claims.iter().all(is_blocked), "{}: {claims:#?}", mutation.name);
        }
        covered.insert(mutation.code);
        table.push(format!("{}\tfails\t{}\n", mutation.code, mutation.name));
    }
    // Those over the campaign's own ledger are tried on ledgers (`ledgers`).
    let rulings = evaluate(&honest()).0;
    let all: Vec<&str> = rulings.iter().map(|ruling| ruling.info.code).collect();
    let uncovered: Vec<&&str> = all.iter().filter(|code| !covered.contains(**code)).collect();
    assert!(uncovered.is_empty(), "rules without a campaign that they catch: {uncovered:?}");
    let idle: Vec<&&str> = all.iter().filter(|code| !passing.contains_key(**code)).collect();
    assert!(idle.is_empty(), "rules without a campaign that they pass: {idle:?}");
    table.sort();
    table.dedup();
    check_table("campaigns.txt", &table.concat());
}

#[test]
fn claims_say_on_whose_numbers_they_rest_and_quality_on_the_trainers_is_blocked() {
    use ClaimOutcome::{Blocked, Supported};
    let told = |campaign: &Campaign| -> Vec<(ClaimOutcome, Option<ValueBasis>)> {
        evaluate(campaign).1.iter().map(|claim| (claim.outcome, claim.basis)).collect()
    };
    let (evaluator, trainer) = (Some(ValueBasis::Evaluator), Some(ValueBasis::Trainer));
    // What a threshold cost is the trainer's record in any case.
    let honest_claims = [(Supported, evaluator), (Supported, trainer), (Supported, evaluator)];
    assert_eq!(told(&honest()), honest_claims);
    // One run of the control, of which the first claim does not speak.
    let mut campaign = honest();
    campaign.run_mut(CONTROL, Confirmation, 1).is_by_evaluator = false;
    assert_eq!(told(&campaign), [(Supported, evaluator), (Supported, trainer), (Blocked, trainer)]);
    // Nothing is wrong with the record, and the warning names the run.
    let (rulings, _) = evaluate(&campaign);
    assert_eq!(assemble::judge(&rulings).1, Verdict::Accepted);
    let found = assemble::findings(rulings);
    let path = campaign.run_mut(CONTROL, Confirmation, 1).path().to_owned();
    assert!(matches!(&found[..], [one] if one.code == "GC125" && one.actual == path), "{found:#?}");
    // A run without a value is nobody's number, and blocks nothing.
    let mut campaign = honest();
    diverge(campaign.run_mut(BASELINE, Tuning, 1));
    campaign.run_mut(BASELINE, Tuning, 1).is_by_evaluator = false;
    assert_eq!(told(&campaign), honest_claims);
    let claims = evaluate(&empty()).1;
    assert!(claims.iter().all(|claim| claim.basis == Some(ValueBasis::None)), "{claims:#?}");
}

#[test]
fn numbers_decide_where_nothing_blocks() {
    // The proposed arm is no better than the baseline.
    let mut campaign = honest();
    for n in 0..3 {
        let value = campaign.run_mut(BASELINE, Confirmation, n).reported_value.clone();
        campaign.run_mut(PROPOSED, Confirmation, n).reported_value = value;
    }
    let claims = evaluate(&campaign).1;
    assert_eq!(claims[0].outcome, ClaimOutcome::NotSupported, "{:#?}", claims[0]);
    // One seed out of three went the other way: the interval says so.
    let mut campaign = honest();
    campaign.run_mut(PROPOSED, Confirmation, 0).reported_value = Some(("val".to_owned(), 7.85));
    let claims = evaluate(&campaign).1;
    assert_eq!(claims[0].outcome, ClaimOutcome::NotSupported);
    let interval = claims[0].comparisons[0].interval.expect("three values");
    assert!(interval.lower.0 < 0.0 && interval.mean.0 > 0.05, "{interval:?}");
    // A run without a candidate counts against the arm that claims, and leaves
    // open what is claimed against it.
    for (arm, expected) in [(PROPOSED, ClaimOutcome::NotSupported), (BASELINE, ClaimOutcome::Blocked)] {
        let mut campaign = honest();
        let run = campaign.run_mut(arm, Confirmation, 0);
        run.facts_mut().selected_value = None;
        run.reported_value = None;
        let claims = evaluate(&campaign).1;
        assert_eq!(claims[0].outcome, expected, "{arm}: {:#?}", claims[0]);
        assert!(claims[0].comparisons[0].interval.is_none());
    }
}

#[test]
fn total_costs_are_compared_without_an_interval() {
    let mut campaign = honest();
    campaign.prereg.claims[1].dimension = ClaimDimension::TotalCostToQuality;
    campaign.prereg.claims[1].margin = 0.01;
    let claims = evaluate(&campaign).1;
    assert_eq!(claims[1].outcome, ClaimOutcome::Supported, "{:#?}", claims[1]);
    assert!(claims[1].comparisons[0].seeds.is_empty());
    campaign.run_mut(PROPOSED, Confirmation, 0).facts_mut().reach = None;
    assert_eq!(evaluate(&campaign).1[1].outcome, ClaimOutcome::NotSupported);
}

#[test]
fn a_campaign_without_runs_is_incomplete_and_decides_nothing() {
    let campaign = empty();
    let (rulings, claims) = evaluate(&campaign);
    assert_eq!(assemble::judge(&rulings).1, Verdict::Incomplete);
    assert!(claims.iter().all(|claim| claim.outcome == ClaimOutcome::Blocked), "{claims:#?}");
}

#[test]
fn codes_and_names_are_unique_and_every_reference_exists() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut seen = BTreeSet::new();
    for info in rules::catalogue() {
        assert!(seen.insert(info.code) && seen.insert(info.name), "{} is used twice", info.code);
        assert!(info.code.len() == 5 && info.code.starts_with("GC"), "{}", info.code);
        for text in [info.what, info.why, info.remedy, info.reference] {
            assert!(text.len() > 10, "{} lacks a text", info.code);
        }
        for place in info.reference.split("; ").filter_map(|place| place.strip_prefix("docs/")) {
            let (file, names) = place.split_once(", ").expect("a heading");
            let text = std::fs::read_to_string(root.join("docs").join(file)).expect("a document");
            for name in names.split('"').skip(1).step_by(2) {
                let is_heading = |line: &str| line.trim_start_matches('#') == format!(" {name}");
                let found = text.lines().any(|line| line.starts_with('#') && is_heading(line));
                assert!(found, "{}: {file} has no heading {name:?}", info.code);
            }
        }
    }
    assert_eq!(rules::find("gc114").map(|info| info.name), Some("arms-differ-where-declared"));
    assert!(rules::catalogue().windows(2).all(|pair| pair[0].code < pair[1].code));
}
