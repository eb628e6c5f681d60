//! Campaigns on disk, audited as a reviewer does: an honest one is accepted, and
//! what an owner of its files can do to them is found.

use schemas::body::{Body, Kind};
use schemas::campaign::report::{CampaignReport, ClaimOutcome, ValueBasis};
use schemas::dsse::CAMPAIGN_REPORT_PAYLOAD_TYPE;
use schemas::finding::Effect;
use schemas::report::{RuleStatus, Verdict};

use crate::assemble::{self, Ruling};
use crate::campaign::fixture::{BASELINE, PROPOSED, SEEDS};
use crate::campaign::{ledger, sarif, text};
use crate::coverage::check_table;
use crate::fixture::{
    BoundRun, Fixture, RunBuilder, StoredCampaign, VAL_NUMBERS, VALIDATOR, det_of, frozen_preregistration,
    plans, signed_envelope, size_of, small_preregistration,
};
use crate::store::Access;

/// The owner's key among the fixture's.
const OWNER: u8 = 1;

/// A run of the small campaign.
fn fixture(arm: &str, seed: u64, trial: u32) -> Fixture {
    let preregistration = frozen_preregistration(&small_preregistration());
    let builder = RunBuilder::new().member(&preregistration, arm, trial, seed);
    builder
        .contract(|contract| {
            contract.name = format!("{arm} {trial}");
            if arm == PROPOSED
                && let schemas::contract::ScheduleShape::WarmupCosine { peak, .. } =
                    &mut contract.schedule[0].shape
            {
                *peak = 0.02;
            }
        })
        .build()
}

/// Stores one run below the campaign's folder.
fn store(campaign: &StoredCampaign, (arm, seed, trial): (&str, u64, u32)) -> BoundRun {
    let fixture = fixture(arm, seed, trial);
    let det = det_of(&fixture, arm, seed, trial);
    campaign.store(&format!("{arm}-{trial}"), fixture, det)
}

/// The small campaign with all of its runs, not written yet.
fn complete() -> (StoredCampaign, Vec<BoundRun>) {
    let mut campaign = StoredCampaign::freeze(small_preregistration());
    let runs: Vec<BoundRun> = plans().into_iter().map(|plan| store(&campaign, plan)).collect();
    runs.iter().for_each(|run| campaign.bind_both(run));
    (campaign, runs)
}

fn has(report: &CampaignReport, code: &str, effect: Effect) -> bool {
    report.findings.iter().any(|finding| finding.code == code && finding.effect == effect)
}

fn told(report: &CampaignReport) -> Vec<String> {
    let line = |finding: &schemas::finding::Finding| {
        format!(
            "{} {:?} {}: {} / {}",
            finding.code, finding.effect, finding.message, finding.expected, finding.actual
        )
    };
    report.findings.iter().map(line).collect()
}

#[test]
fn an_honest_campaign_is_accepted_and_its_report_can_be_read() {
    let (campaign, runs) = complete();
    campaign.write();
    let report = campaign.audit();
    assert_eq!(report.verdict, Verdict::Accepted, "{:#?} {:#?}", told(&report), report.rules);
    assert!(report.findings.is_empty(), "{:#?}", told(&report));
    for rule in &report.rules {
        assert!(!matches!(rule.status, RuleStatus::Failed | RuleStatus::NotEvaluated), "{rule:?}");
    }
    assert_eq!((report.num_entries, report.head.as_ref().map(|head| head.size)), (13, Some(13)));
    assert_eq!((report.verdicts.accepted, report.runs.len() as u64), (6, runs.len() as u64));
    assert_eq!((report.costs.runs, report.costs.steps_executed, report.costs.attempts), (6, 48, 6));
    assert!(report.costs.tokens > 0 && report.costs.device_us > 0 && report.costs.wall_us > 0);
    assert_eq!(report.arms.iter().map(|arm| arm.num_reached).collect::<Vec<_>>(), [3, 3]);
    assert_eq!(report.runs[0].threshold_step, Some(4));
    assert_eq!(report.claims[0].outcome, ClaimOutcome::Supported, "{:#?}", report.claims);
    let text = text(&report);
    assert!(text.starts_with("accepted: the record is whole"), "{text}");
    assert!(text.contains("supported: better (not_worse in quality, margin 0.05)"), "{text}");
    assert!(text.contains("    rests on the evaluator's own numbers\n"), "{text}");
    let log = sarif(&report);
    assert_eq!(log["runs"][0]["invocations"][0]["exitCode"], 0);
    let claim = &log["runs"][0]["properties"]["claims"][0];
    assert_eq!((claim["outcome"].as_str(), claim["basis"].as_str()), (Some("supported"), Some("evaluator")));
    let json = serde_json::to_vec(&report).expect("serialises");
    crate::canonical::check_entry_json(&json).expect("a report is canonical entry JSON");
    let back: CampaignReport = serde_json::from_slice(&json).expect("a report");
    assert_eq!(back, report);
}

#[test]
fn a_report_that_was_saved_before_the_basis_was_told_is_read_and_has_its_bytes() {
    let (campaign, _) = complete();
    campaign.write();
    let saved = serde_json::to_string(&campaign.audit()).expect("serialises");
    let of_claim = saved.replace("\"basis\":\"evaluator\",", "");
    let older = of_claim.replace(",\"quality_basis\":\"evaluator\"", "");
    assert!(older.len() < of_claim.len() && of_claim.len() < saved.len(), "{saved}");
    assert!(!older.contains("basis\":"), "{older}");
    let back: CampaignReport = serde_json::from_str(&older).expect("an older report");
    assert_eq!((back.claims[0].basis, back.runs[0].quality_basis), (None, None));
    assert_eq!(serde_json::to_string(&back).expect("serialises"), older);
    assert!(text(&back).contains("does not say on whose numbers"));
    // It is still a report of this campaign.
    save(&campaign, &back, VALIDATOR);
    assert_eq!(campaign.audit().verdict, Verdict::Accepted);
}

#[test]
fn a_value_of_the_trainer_alone_supports_no_claim_of_quality() {
    let (campaign, runs) = complete();
    campaign.write();
    let numbers = campaign.folder.path().join(&runs[0].name).join(VAL_NUMBERS);
    let signed = std::fs::read(&numbers).expect("it is there");
    std::fs::remove_file(&numbers).expect("it is there");
    let report = campaign.audit();
    assert_eq!(report.verdict, Verdict::Accepted, "{:#?}", told(&report));
    assert!(has(&report, "GC125", Effect::None), "{:#?}", told(&report));
    let claim = &report.claims[0];
    assert_eq!((claim.outcome, claim.basis), (ClaimOutcome::Blocked, Some(ValueBasis::Trainer)));
    let bases: Vec<_> = report.runs.iter().map(|run| run.quality_basis).collect();
    assert_eq!(bases[..2], [Some(ValueBasis::Trainer), Some(ValueBasis::Evaluator)]);
    let text = text(&report);
    assert!(text.contains("    rests on the trainer's own numbers\n"), "{text}");
    assert!(text.contains(" by the trainer, threshold "), "{text}");
    // The control: with the numbers there again the claim is decided.
    std::fs::write(&numbers, signed).expect("writable");
    assert_eq!(campaign.audit().claims[0].outcome, ClaimOutcome::Supported);
}

#[test]
fn a_run_that_recovered_counts_what_it_lost() {
    let mut campaign = StoredCampaign::freeze(small_preregistration());
    for (arm, seed, trial) in plans() {
        let preregistration = frozen_preregistration(&small_preregistration());
        let builder = RunBuilder::new().member(&preregistration, arm, trial, seed);
        let builder = builder.contract(|contract| {
            if arm == PROPOSED
                && let schemas::contract::ScheduleShape::WarmupCosine { peak, .. } =
                    &mut contract.schedule[0].shape
            {
                *peak = 0.02;
            }
        });
        let is_crashed = (arm, seed) == (PROPOSED, SEEDS[0]);
        let fixture = if is_crashed { builder.crash_after_step(6).build() } else { builder.build() };
        let det = det_of(&fixture, arm, seed, trial);
        let run = campaign.store(&format!("{arm}-{trial}"), fixture, det);
        campaign.bind_both(&run);
    }
    campaign.write();
    let report = campaign.audit();
    assert_eq!(report.verdict, Verdict::Accepted, "{:#?}", told(&report));
    let crashed = &report.runs[3];
    let costs = crashed.costs.as_ref().expect("its ledger is there");
    // Six updates, then from step 4 to step 8 again.
    assert_eq!((costs.attempts, costs.steps_executed), (2, 10));
    assert_eq!(report.costs.steps_executed, 50);
    // What counts for tokens to quality is the run's own length.
    assert_eq!(crashed.threshold_step, Some(4));
}

#[test]
fn what_is_done_to_the_ledger_of_a_run_is_found() {
    let (campaign, runs) = complete();
    campaign.write();
    let name = format!("{}/run.db", runs[0].name);
    // Cut at a valid boundary, with heads and head file cut as well.
    let keep = runs[0].notes[runs[0].notes.len() - 3].0;
    campaign.tamper(
        &name,
        &format!("DELETE FROM entries WHERE seq >= {keep}; DELETE FROM heads WHERE size > {keep};"),
    );
    let kept = runs[0].notes.iter().filter(|(size, _)| *size <= keep);
    let heads: String = kept.map(|(_, note)| format!("{note}\n")).collect();
    std::fs::write(campaign.folder.path().join(format!("{name}.head")), heads).expect("writable");
    let report = campaign.audit();
    assert_eq!(report.verdict, Verdict::Tampered, "{:#?}", told(&report));
    assert!(has(&report, "GC109", Effect::Tampered) && has(&report, "GC111", Effect::Incomplete));
    assert_eq!((report.verdicts.incomplete, report.claims[0].outcome), (1, ClaimOutcome::Blocked));
    // Gone altogether.
    std::fs::remove_dir_all(campaign.folder.path().join(&runs[0].name)).expect("it is there");
    let report = campaign.audit();
    assert_eq!(report.verdict, Verdict::Incomplete, "{:#?}", told(&report));
    assert!(has(&report, "GC109", Effect::Incomplete) && has(&report, "GC121", Effect::Incomplete));
    assert_eq!(report.verdicts.missing, 1);
}

#[test]
fn a_run_in_the_place_of_another_is_found() {
    let (campaign, runs) = complete();
    campaign.write();
    let folder = campaign.folder.path();
    std::fs::rename(folder.join(&runs[0].name), folder.join("kept")).expect("one folder");
    std::fs::rename(folder.join(&runs[1].name), folder.join(&runs[0].name)).expect("one folder");
    std::fs::rename(folder.join("kept"), folder.join(&runs[1].name)).expect("one folder");
    let report = campaign.audit();
    assert!(has(&report, "GC109", Effect::Rejected), "{:#?}", told(&report));
    assert_eq!(report.verdict, Verdict::Tampered);
}

#[test]
fn a_run_that_is_left_out_is_found_beside_the_campaign() {
    let (mut campaign, runs) = complete();
    // The last run's two entries are taken back before anybody sees them.
    campaign.entries.truncate(campaign.entries.len() - 2);
    campaign.write();
    let report = campaign.audit();
    assert!(has(&report, "GC112", Effect::Rejected), "{:#?}", told(&report));
    let unbound =
        report.findings.iter().find(|finding| finding.effect == Effect::Rejected).expect("a finding");
    assert!(unbound.location.contains(&runs[5].name), "{unbound:?}");
    assert_eq!(report.claims[0].outcome, ClaimOutcome::Blocked);
    // Somewhere else it is a gap all the same.
    std::fs::remove_dir_all(campaign.folder.path().join(&runs[5].name)).expect("it is there");
    let report = campaign.audit();
    assert_eq!(report.verdict, Verdict::Incomplete, "{:#?}", told(&report));
    assert!(has(&report, "GC112", Effect::Incomplete));
}

#[test]
fn a_campaign_whose_own_record_is_damaged_supports_nothing() {
    let (campaign, _) = complete();
    campaign.write();
    campaign.tamper("campaign.db", "CREATE TABLE other (a INTEGER);");
    let report = campaign.audit();
    assert_eq!(report.verdict, Verdict::Tampered, "{:#?}", told(&report));
    assert_eq!(report.claims[0].outcome, ClaimOutcome::Blocked, "{:#?}", report.claims);
    assert!(report.claims[0].reasons.iter().any(|reason| reason.starts_with("GC101 ")));
}

#[test]
fn another_history_of_a_run_is_found_under_any_name_and_a_copy_is_none() {
    let (campaign, runs) = complete();
    campaign.write();
    let folder = campaign.folder.path().join(&runs[0].name);
    let copied = |name: &str| {
        std::fs::copy(folder.join("run.db"), folder.join(name)).expect("copied");
    };
    // What was kept of the run, whole or earlier, is no other history.
    copied("kept.db");
    copied("earlier.db");
    campaign.tamper(&format!("{}/earlier.db", runs[0].name), "DELETE FROM entries WHERE seq >= 9;");
    let report = campaign.audit();
    assert_eq!(report.verdict, Verdict::Accepted, "{:#?}", told(&report));
    // The run was made again from its freeze, and is called like what is looked at least.
    copied("qualification.db");
    let name = format!("{}/qualification.db", runs[0].name);
    let damage = "UPDATE entries SET entry = (SELECT entry FROM entries WHERE seq = 8), \
                  leaf = (SELECT leaf FROM entries WHERE seq = 8) WHERE seq = 9;";
    campaign.tamper(&name, damage);
    let report = campaign.audit();
    assert!(has(&report, "GC109", Effect::Rejected), "{:#?}", told(&report));
    assert_eq!(report.claims[0].outcome, ClaimOutcome::Blocked);
    // One that goes on behind what is shown says more.
    std::fs::remove_file(folder.join("qualification.db")).expect("it is there");
    copied("longer.db");
    let name = format!("{}/longer.db", runs[0].name);
    let further = "INSERT INTO entries (seq, idem, entry, leaf) \
                   SELECT (SELECT max(seq) + 1 FROM entries), randomblob(16), entry, leaf FROM entries WHERE seq = 9;";
    campaign.tamper(&name, further);
    let report = campaign.audit();
    assert!(has(&report, "GC109", Effect::Rejected), "{:#?}", told(&report));
    let found = report.findings.iter().find(|finding| finding.code == "GC109").expect("a finding");
    assert!(found.location.contains("longer.db") && found.actual.contains("are shown"), "{found:?}");
}

#[test]
fn a_run_whose_end_is_not_bound_is_incomplete() {
    let mut campaign = StoredCampaign::freeze(small_preregistration());
    let runs: Vec<BoundRun> = plans().into_iter().map(|plan| store(&campaign, plan)).collect();
    for (place, run) in runs.iter().enumerate() {
        if place == 0 {
            campaign.bind(run, 0, None);
        } else {
            campaign.bind_both(run);
        }
    }
    campaign.write();
    let report = campaign.audit();
    assert!(has(&report, "GC109", Effect::Incomplete), "{:#?}", told(&report));
    assert_eq!((report.verdict, report.claims[0].outcome), (Verdict::Incomplete, ClaimOutcome::Blocked));
}

#[test]
fn a_run_that_was_bound_with_its_outcome_is_late() {
    let mut campaign = StoredCampaign::freeze(small_preregistration());
    let runs: Vec<BoundRun> = plans().into_iter().map(|plan| store(&campaign, plan)).collect();
    for (place, run) in runs.iter().enumerate() {
        match place {
            0 => campaign.bind(run, run.notes.len() - 1, Some("the add was forgotten")),
            _ => campaign.bind_both(run),
        }
    }
    campaign.write();
    let report = campaign.audit();
    assert_eq!(report.verdict, Verdict::Accepted, "{:#?}", told(&report));
    assert!(has(&report, "GC110", Effect::None) && report.runs[0].is_late);
    assert_eq!(report.claims[0].outcome, ClaimOutcome::Blocked);
    assert!(size_of(&runs[0].notes[0].1) == 1 && runs[0].det.arm == BASELINE);
}

/// Saves a report beside the campaign, signed by some role.
fn save(campaign: &StoredCampaign, report: &CampaignReport, role: u8) {
    let payload = serde_json::to_vec(report).expect("serialises");
    let envelope = signed_envelope(CAMPAIGN_REPORT_PAYLOAD_TYPE, &payload, role);
    std::fs::write(campaign.report_path(), envelope).expect("writable");
}

/// Saves what an audit says of the campaign beside it, signed by some role.
fn save_report(campaign: &StoredCampaign, role: u8) {
    save(campaign, &campaign.audit(), role);
}

#[test]
fn a_campaign_that_was_cut_behind_its_report_is_found() {
    let (mut campaign, runs) = complete();
    campaign.write();
    save_report(&campaign, VALIDATOR);
    let report = campaign.audit();
    assert_eq!(report.verdict, Verdict::Accepted, "{:#?}", told(&report));
    assert!(report.rules.iter().any(|rule| rule.code == "GC126" && rule.status == RuleStatus::Passed));
    // The last run goes with its entries, heads and head file, as if it had never been.
    campaign.entries.truncate(campaign.entries.len() - 2);
    std::fs::remove_file(campaign.path()).expect("it is there");
    std::fs::remove_dir_all(campaign.folder.path().join(&runs[5].name)).expect("it is there");
    campaign.write();
    let report = campaign.audit();
    assert!(has(&report, "GC126", Effect::Tampered), "{:#?}", told(&report));
    assert_eq!(report.verdict, Verdict::Tampered);
    // The control: without the report it is a campaign that has not got there yet.
    std::fs::remove_file(campaign.report_path()).expect("it is there");
    assert_eq!(campaign.audit().verdict, Verdict::Incomplete);
}

#[test]
fn a_campaign_that_went_on_behind_its_report_is_the_same() {
    let (mut campaign, _) = complete();
    let all = campaign.entries.clone();
    campaign.entries.truncate(all.len() - 2);
    campaign.write();
    save_report(&campaign, VALIDATOR);
    std::fs::remove_file(campaign.path()).expect("it is there");
    campaign.entries = all;
    campaign.write();
    let report = campaign.audit();
    assert_eq!(report.verdict, Verdict::Accepted, "{:#?}", told(&report));
}

/// The rules over the campaign's own ledger, without its runs.
fn read(campaign: &StoredCampaign) -> Vec<Ruling> {
    let mut rulings = Vec::new();
    let path = campaign.folder.path().join("campaign.db.head");
    let bytes = std::fs::read(&path).ok();
    let head =
        bytes.as_ref().map(|bytes| (bytes.as_slice(), schemas::report::HeadSource::Beside, path.as_path()));
    let report = std::fs::read(campaign.report_path()).ok();
    let report = report.as_ref().map(|bytes| (bytes.as_slice(), "the report"));
    let read = ledger::read(&campaign.path(), Access::InPlace, head, report, &mut rulings);
    let read = read.expect("it can look");
    assert!(read.is_some());
    rulings
}

/// What is done to the files of a campaign that was frozen and written.
type Damage = fn(&StoredCampaign);

#[test]
fn every_rule_over_the_campaigns_own_ledger_catches_what_it_is_for() {
    let frozen = |damage: Damage| {
        let campaign = StoredCampaign::freeze(small_preregistration());
        campaign.write();
        save_report(&campaign, VALIDATOR);
        damage(&campaign);
        campaign
    };
    let honest = read(&frozen(|_| {}));
    let (results, verdict, _) = assemble::judge(&honest);
    assert_eq!((honest.len(), verdict), (8, Verdict::Accepted));
    let mut table = Vec::new();
    for result in results {
        assert!(result.status == RuleStatus::Passed && result.num_checked > 0, "{result:?}");
        table.push(format!("{}\tpasses\ta campaign that was frozen\n", result.code));
    }
    let damages: [(&str, &str, Effect, Damage); 11] = [
        ("GC101", "another table", Effect::Tampered, |campaign| {
            campaign.tamper("campaign.db", "CREATE TABLE other (a INTEGER);");
        }),
        ("GC102", "another leaf hash", Effect::Tampered, |campaign| {
            campaign.tamper("campaign.db", "UPDATE entries SET leaf = zeroblob(32);");
        }),
        ("GC102", "an entry in another place", Effect::Tampered, |campaign| {
            campaign.tamper("campaign.db", "UPDATE entries SET seq = 1;");
        }),
        ("GC103", "heads that are gone", Effect::Rejected, |campaign| {
            campaign.tamper("campaign.db", "DELETE FROM heads;");
        }),
        ("GC104", "an empty head file", Effect::Tampered, |campaign| {
            std::fs::write(campaign.folder.path().join("campaign.db.head"), "").expect("writable");
        }),
        ("GC105", "entries behind the last head", Effect::Incomplete, |campaign| {
            std::fs::remove_file(campaign.path()).expect("it is there");
            campaign.write_covered(0);
        }),
        ("GC106", "an entry of another campaign", Effect::Rejected, |campaign| {
            rewritten(campaign, |campaign| {
                campaign.entries[0].header.run = "0000000000000000-0000000000000000".into();
            });
        }),
        ("GC107", "another preregistration than was signed", Effect::Tampered, |campaign| {
            rewritten(campaign, |campaign| {
                let Body::CampaignFrozen(halves) = &mut campaign.entries[0].body else {
                    panic!("the freeze")
                };
                halves.det.preregistration = halves.det.preregistration.replace("0.95", "0.81");
            });
        }),
        // A field that may be null, left out: a second form of one preregistration.
        ("GC107", "a field that may be null, left out", Effect::Rejected, |campaign| {
            rewritten(campaign, |campaign| {
                let Body::CampaignFrozen(halves) = &mut campaign.entries[0].body else {
                    panic!("the freeze")
                };
                let text = &mut halves.det.preregistration;
                *text = text.replacen(",\"unequal_because\":null", "", 1);
            });
        }),
        ("GC126", "a report that the owner signed", Effect::Rejected, |campaign| {
            save_report(campaign, OWNER);
        }),
        ("GC126", "a report that saw another head", Effect::Tampered, |campaign| {
            let mut report = campaign.audit();
            report.head.as_mut().expect("a head").root = "00".repeat(32);
            save(campaign, &report, VALIDATOR);
        }),
    ];
    for (code, name, effect, damage) in damages {
        let rulings = read(&frozen(damage));
        let found = assemble::findings(rulings);
        let is_caught = found.iter().any(|finding| finding.code == code && finding.effect == effect);
        assert!(is_caught, "{code} {effect:?} does not see {name}: {found:#?}");
        table.push(format!("{code}\tfails\t{name}\n"));
    }
    table.sort();
    check_table("campaign_ledgers.txt", &table.concat());
    // Without its head file nothing outside the database holds it.
    let campaign = frozen(|campaign| {
        std::fs::remove_file(campaign.folder.path().join("campaign.db.head")).expect("it is there");
    });
    assert_eq!(assemble::judge(&read(&campaign)).1, Verdict::NotEvaluated);
}

/// Writes the campaign again after a change of its entries, with new heads.
fn rewritten(campaign: &StoredCampaign, change: fn(&mut StoredCampaign)) {
    let mut other = StoredCampaign::freeze(small_preregistration());
    change(&mut other);
    std::fs::remove_file(campaign.path()).expect("it is there");
    other.write();
    for name in ["campaign.db", "campaign.db.head"] {
        std::fs::rename(other.folder.path().join(name), campaign.folder.path().join(name))
            .expect("one file system");
    }
}

#[test]
fn another_kind_of_ledger_is_no_campaign() {
    let campaign = StoredCampaign::freeze(small_preregistration());
    let run = store(&campaign, (BASELINE, SEEDS[0], 1));
    let path = campaign.folder.path().join(run.name).join("run.db");
    let request = crate::campaign::CampaignRequest { ledger: path, head: None };
    let report = crate::campaign::audit(&request, &mut |_| {}).expect("it can look");
    assert_ne!(report.verdict, Verdict::Accepted);
    assert!(has(&report, "GC107", Effect::Rejected) && report.claims.is_empty());
    assert!(report.rules.iter().filter(|rule| rule.status == RuleStatus::NotEvaluated).count() >= 17);
    assert_eq!(campaign.entries[0].body.kind(), Kind::CampaignFrozen);
}
