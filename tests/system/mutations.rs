//! The mutation library itself, on real runs: what it seals unchanged has the
//! bytes of the run, what it changes is whole again, and a verdict is read for
//! what it is.

use anyhow::Result;
use schemas::report::Verdict;
use serde_json::json;
use system_tests::dump;
use system_tests::mutations::generated::{self, expected};
use system_tests::mutations::records::{EVENTFUL, PLAIN};
use system_tests::mutations::run::{self, outcome, try_one};
use system_tests::mutations::{Attacker, Judged, Mutation, Outcome, Records, judge, report};

const SUITE: &str = "library";

#[test]
fn an_unchanged_record_is_sealed_to_the_same_bytes() -> Result<()> {
    let record = Records::default().get(PLAIN)?;
    let original = record.source_folder().join("run.db");
    for attacker in [Attacker::Trainer, Attacker::OwnerAndTrainer] {
        let sealed = record.seal(attacker)?;
        assert_eq!(dump::database(&sealed.ledger())?, dump::database(&original)?);
        let head = |path| std::fs::read(dump::with_suffix(path, ".head"));
        assert_eq!(head(&sealed.ledger())?, head(&original)?);
        let judged = Judged::of(&report(&sealed.ledger())?);
        assert_eq!(judged.verdict, Verdict::Accepted, "{:#?}", judged.findings);
        assert!(judged.damaged.is_empty() && judged.killers.is_empty(), "{judged:#?}");
    }
    Ok(())
}

#[test]
fn another_contract_is_carried_through_every_entry_and_manifest() -> Result<()> {
    let record = Records::default().get(PLAIN)?;
    let mut changed = record.clone();
    changed.contract["nonclaims"].as_array_mut().expect("a list").push(json!("It is no poem."));
    assert!(changed.seal(Attacker::Trainer).is_err(), "a trainer cannot sign a contract");
    let sealed = changed.seal(Attacker::OwnerAndTrainer)?;
    let judged = Judged::of(&report(&sealed.ledger())?);
    assert_eq!(judged.verdict, Verdict::Accepted, "{:#?}", judged.findings);
    let (before, after) = (&record.entries, dump::entries(&sealed.ledger())?);
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        assert_ne!(before["run"], after["run"], "every entry is of the new run");
    }
    Ok(())
}

#[test]
fn a_frozen_file_and_a_checkpoint_s_file_carry_their_digests() -> Result<()> {
    let record = Records::default().get(PLAIN)?;
    let mut changed = record.clone();
    changed.edit_artifact("/update/card", |card| {
        card["groups"][0]["weight_decay"] = json!(0.25);
        Ok(())
    })?;
    let sealed = changed.seal(Attacker::OwnerAndTrainer)?;
    let judged = Judged::of(&report(&sealed.ledger())?);
    assert!(judged.counts() && judged.killers.contains("GL402"), "{judged:#?}");

    let mut changed = record.clone();
    let path = changed.checkpoint(0)?.join("topology.json");
    changed.edit_json(&path, |state| {
        state["workers"] = json!(2);
        Ok(())
    })?;
    let sealed = changed.seal(Attacker::Trainer)?;
    let judged = Judged::of(&report(&sealed.ledger())?);
    assert!(judged.counts() && judged.is_killed(), "{judged:#?}");
    assert!(!judged.killers.contains("GL110"), "its digests were carried: {judged:#?}");
    // The control: the same file without what names it.
    let bytes = changed.file(&path)?;
    let mut changed = record.clone();
    changed.write_file(&path, bytes);
    let judged = Judged::of(&report(&changed.seal(Attacker::Trainer)?.ledger())?);
    assert!(judged.killers.contains("GL110"), "{judged:#?}");
    Ok(())
}

#[test]
fn an_outcome_is_what_the_verdict_and_the_documentation_give() -> Result<()> {
    let records = Records::default();
    let record = records.get(PLAIN)?;
    let loss = |expected: &[&'static str]| {
        Mutation::new(SUITE, "a rate that the schedule does not give", PLAIN, expected, |record| {
            let place = record.at_step("step", 2)?;
            record.set(place, "/body/det/updates/0/learning_rate", 0.5)
        })
    };
    assert_eq!(try_one(&records, &loss(&["GL401"])).outcome, Outcome::Killed);
    assert_eq!(try_one(&records, &loss(&["GL701"])).outcome, Outcome::KilledByOthers);
    let explained = loss(&[]).survives("nobody knows");
    assert_eq!(try_one(&records, &explained).outcome, Outcome::KilledAgainstDocumentation);
    let duration = Mutation::new(SUITE, "a longer step", PLAIN, &["GL202"], |record| {
        let place = record.at_step("step", 2)?;
        let old = record.value(place, "/body/obs/duration_us")?.as_u64().expect("a count");
        record.set(place, "/body/obs/duration_us", old + 1)
    });
    let judged = judge(&record, &duration)?;
    assert_eq!(judged.verdict, Verdict::Accepted, "{judged:#?}");
    assert_eq!(outcome(&duration, &judged), Outcome::Survived);
    let duration = duration.survives("only the day knows how long a step took");
    assert_eq!(outcome(&duration, &judged), Outcome::SurvivedAsDocumented);
    let kind = |expected: &[&'static str]| {
        Mutation::new(SUITE, "an unknown kind", PLAIN, expected, |record| {
            let place = record.first("run.start")?;
            record.set(place, "/kind", "run.stop")
        })
    };
    assert_eq!(try_one(&records, &kind(&[])).outcome, Outcome::NotCounted);
    // What was said to be killed, or to survive, may not sink to damage unseen.
    assert_eq!(try_one(&records, &kind(&["GL202"])).outcome, Outcome::NoLongerCounted);
    let explained = kind(&[]).survives("nobody knows");
    assert_eq!(try_one(&records, &explained).outcome, Outcome::NoLongerCounted);
    let nothing = Mutation::new(SUITE, "nothing", PLAIN, &["GL004"], |_| Ok(()));
    assert!(matches!(try_one(&records, &nothing).outcome, Outcome::Failed(_)));
    Ok(())
}

/// The control of what `GL011` finds: the keys that a reviewer names are the run's.
#[test]
fn the_keys_that_a_reviewer_names_are_those_of_the_run() -> Result<()> {
    let record = Records::default().get(PLAIN)?;
    let longer = Mutation::new(SUITE, "a longer step", PLAIN, &[], |record| {
        let place = record.at_step("step", 2)?;
        let old = record.value(place, "/body/obs/duration_us")?.as_u64().expect("a count");
        record.set(place, "/body/obs/duration_us", old + 1)
    });
    let judged = judge(&record, &longer.before_named_keys())?;
    assert_eq!(judged.verdict, Verdict::Accepted, "{judged:#?}");
    Ok(())
}

#[test]
fn entries_that_are_left_out_or_repeated_are_sealed_into_a_whole_ledger() -> Result<()> {
    let records = Records::default();
    let left_out = Mutation::new(SUITE, "a step left out", PLAIN, &["GL202"], |record| {
        let place = record.at_step("step", 2)?;
        record.entries.remove(place);
        Ok(())
    });
    let repeated = Mutation::new(SUITE, "a step twice", PLAIN, &["GL202"], |record| {
        let place = record.at_step("step", 2)?;
        let entry = record.entries[place].clone();
        record.entries.insert(place, entry);
        Ok(())
    });
    for mutation in [left_out, repeated] {
        let tried = try_one(&records, &mutation);
        let judged = tried.judged.as_ref().expect("it was tried");
        assert!(judged.counts() && judged.is_killed(), "{tried:#?}");
    }
    Ok(())
}

/// Of the generated suite so many are left out between two that are tried here;
/// `scripts/mutations` tries all.
const NUM_LEFT_OUT: usize = 10;

#[test]
fn a_part_of_the_generated_suite_is_killed_as_its_table_says() -> Result<()> {
    let records = Records::default();
    let mutations: Vec<Mutation> =
        generated::of(&records, &[PLAIN, EVENTFUL])?.into_iter().step_by(NUM_LEFT_OUT + 1).collect();
    let tried = run::run(&records, &mutations, 2, &|_| {});
    let wrong: Vec<_> = tried.iter().filter(|one| !one.holds(false)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let num_killed = tried.iter().filter(|one| one.outcome == Outcome::Killed).count();
    let num_survivors = tried.iter().filter(|one| one.outcome == Outcome::SurvivedAsDocumented).count();
    assert!(num_killed >= 30 && num_survivors >= 1, "{num_killed} killed, {num_survivors} survive");
    Ok(())
}

#[test]
fn each_kind_of_entry_is_killed_in_some_way_or_excused() -> Result<()> {
    let table = expected::read()?;
    let wrong = generated::kinds::wrong(table.keys().map(String::as_str));
    assert!(wrong.is_empty(), "{wrong:#?}\nhint: scripts/mutations --suite generated --update");
    Ok(())
}

#[test]
fn the_table_of_expected_killers_is_of_rules_that_are_there() -> Result<()> {
    let table = expected::read()?;
    let num_counted_min = generated::NUM_COUNTED_MIN;
    assert!(table.len() >= num_counted_min, "only {} mutations are killed", table.len());
    assert!(
        generated::too_few(num_counted_min).is_none() && generated::too_few(num_counted_min - 1).is_some()
    );
    for (name, codes) in &table {
        assert!(!codes.is_empty(), "{name} is killed by nothing");
        for code in codes {
            assert!(validator::rules::find(code).is_some(), "{name}: there is no rule {code}");
        }
    }
    Ok(())
}
