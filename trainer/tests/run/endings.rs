//! Every way in which a run may end that is not the stopping rule's last step.

use anyhow::Result;
use rustix::process::Signal;
use schemas::contract::{ScheduleShape, StoppingRule};

use crate::folder::{LONG, RunFolder};

#[test]
fn patience_ends_a_run_that_does_not_improve() -> Result<()> {
    let folder = RunFolder::new(|contract| {
        contract.stopping =
            StoppingRule::Patience { max_step: 8, min_delta: 100.0, patience: 2, stream: "val".to_owned() };
        contract.evaluation.streams[0].every_steps = 2;
    })?;
    let finished = folder.train()?.expect(0);
    assert!(finished.stdout.contains("val did not improve for 2 evaluations"), "{}", finished.stdout);
    let end = &folder.bodies("run.end")?[0]["det"];
    assert_eq!((end["last_step"].as_u64(), end["outcome"].as_str()), (Some(4), Some("completed")));
    let state = std::fs::read_to_string(folder.path().join("checkpoints/s00000004-a1/selection_state.json"))?;
    assert!(state.contains("\"evaluations_without_improvement\":2"), "{state}");
    Ok(())
}

#[test]
fn a_budget_of_tokens_ends_a_run_that_is_evaluated_saved_and_selected_from() -> Result<()> {
    let folder = RunFolder::new(|contract| contract.budget.max_tokens = Some(100))?;
    let finished = folder.train()?.expect(1);
    assert!(finished.stdout.contains("of 100 tokens are used"), "{}", finished.stdout);
    let end = &folder.bodies("run.end")?[0]["det"];
    assert_eq!(end["outcome"], "budget_exhausted");
    let last_step = end["last_step"].as_u64().unwrap_or_default();
    // 4 examples of at most 16 targets a step.
    assert_eq!(last_step, 2);
    assert!(folder.store()?.contains(&"s00000002-a1".to_owned()));
    assert_eq!(folder.bodies("candidate.selected")?.len(), 1);
    assert_eq!(folder.bodies("eval")?.len(), 2);
    Ok(())
}

#[test]
fn a_budget_of_steps_ends_a_run_that_is_evaluated_saved_and_selected_from() -> Result<()> {
    // A freeze refuses a stopping rule beyond it, so that only another writer's
    // contract gets here.
    let folder = RunFolder::new(|contract| contract.budget.max_steps = 5)?;
    let finished = folder.train()?.expect(1);
    assert!(finished.stdout.contains("the budget of 5 steps is used"), "{}", finished.stdout);
    let kinds = folder.kinds()?;
    assert!(kinds.ends_with(&["candidate.selected", "attempt.end", "run.end"]), "{kinds:?}");
    let end = &folder.bodies("run.end")?[0]["det"];
    assert_eq!((end["last_step"].as_u64(), end["outcome"].as_str()), (Some(5), Some("budget_exhausted")));
    assert_eq!(folder.bodies("attempt.end")?[0]["det"]["outcome"], "budget_exhausted");
    assert!(folder.store()?.contains(&"s00000005-a1".to_owned()));
    // It is over: the same command again adds nothing.
    let again = folder.train()?.expect(0);
    assert!(again.stdout.contains("the run had ended before"), "{}", again.stdout);
    assert_eq!(folder.kinds()?, kinds);
    Ok(())
}

#[test]
fn a_budget_of_seconds_counts_all_attempts() -> Result<()> {
    let folder = RunFolder::new(|contract| contract.budget.max_wall_s = Some(0))?;
    folder.train()?.expect(1);
    let end = &folder.bodies("run.end")?[0]["det"];
    assert_eq!((end["last_step"].as_u64(), end["outcome"].as_str()), (Some(1), Some("budget_exhausted")));
    Ok(())
}

#[test]
fn a_loss_that_is_not_finite_is_recorded_as_it_is_and_ends_the_run() -> Result<()> {
    let folder = RunFolder::new(|contract| {
        for schedule in &mut contract.schedule {
            schedule.shape = ScheduleShape::Constant { rate: 1e30 };
        }
    })?;
    folder.train()?.expect(1).says("the contract has no permission to go on");
    let kinds = folder.kinds()?;
    assert!(kinds.ends_with(&["step", "anomaly", "attempt.end", "run.end"]), "{kinds:?}");
    let name = folder.bodies("anomaly")?[0]["det"]["name"].clone();
    assert!(name == "loss_not_finite" || name == "gradient_not_finite", "{name}");
    assert_eq!(folder.bodies("run.end")?[0]["det"]["outcome"], "failed");
    let credit = &folder.bodies("step")?.pop().unwrap_or_default()["det"]["credit"]["backpropagation"];
    assert!(credit["loss"].is_string() || credit["gradient_norm"].is_string(), "{credit}");
    Ok(())
}

#[test]
fn a_floor_ends_the_attempt_and_leaves_the_run_open() -> Result<()> {
    for pointer in ["memory", "disk"] {
        let folder = RunFolder::new(|contract| match pointer {
            "memory" => contract.floors.free_memory_bytes = 1 << 52,
            _ => contract.floors.free_disk_bytes = 1 << 52,
        })?;
        let finished = folder.train()?.expect(1);
        assert!(finished.stdout.contains(&format!("{pointer}: ")), "{}", finished.stdout);
        assert_eq!(folder.bodies("attempt.end")?[0]["det"]["outcome"], "floor_reached");
        assert!(folder.bodies("run.end")?.is_empty());
    }
    Ok(())
}

#[test]
fn attempts_are_bounded_and_the_bound_is_on_record() -> Result<()> {
    let folder = RunFolder::new(|contract| {
        contract.budget.max_attempts = 2;
        contract.budget.max_steps = LONG;
        contract.stopping = StoppingRule::AtStep { step: LONG };
    })?;
    for step in [3, 9] {
        let mut training = folder.start()?;
        training.wait_for_step(step)?.send(Signal::TERM)?;
        training.finish()?.expect(143);
    }
    let finished = folder.train()?.expect(1);
    assert!(finished.stdout.contains("allows 2 attempts"), "{}", finished.stdout);
    assert_eq!(folder.bodies("run.end")?[0]["det"]["outcome"], "budget_exhausted");
    assert_eq!(folder.bodies("attempt.start")?.len(), 2);
    Ok(())
}

#[test]
fn a_missed_target_is_said_loudly_and_is_no_failure() -> Result<()> {
    let folder = RunFolder::new(|contract| {
        if let Some(target) = &mut contract.quality_target {
            target.threshold = 0.001;
        }
    })?;
    let finished = folder.train()?.expect(0);
    assert!(finished.stdout.contains("THE QUALITY TARGET WAS MISSED"), "{}", finished.stdout);
    assert_eq!(folder.bodies("run.end")?[0]["det"]["target_met"], false);
    Ok(())
}

#[test]
fn the_report_is_json_on_request_and_standard_output_holds_nothing_else() -> Result<()> {
    let folder = RunFolder::new(|_| ())?;
    let finished = folder.train_with(&["--json", "--quiet", "--threads", "1"])?.expect(0);
    let report: serde_json::Value = serde_json::from_str(&finished.stdout)?;
    assert_eq!(report["outcome"], "completed");
    assert_eq!(report["last_step"], 8);
    assert!(!finished.stderr.contains("loss"), "{}", finished.stderr);
    let plan = &folder.bodies("attempt.start")?[0]["obs"]["plan"];
    assert_eq!(plan["num_threads"], 1);
    assert_eq!(plan["instrumentation"], serde_json::json!([]));
    Ok(())
}
