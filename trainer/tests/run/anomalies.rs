//! What the trainer says of saved state that is odd, in whole runs, each with a
//! twin that has nothing to say.

use anyhow::Result;
use schemas::contract::{Contract, SaveMode, ScheduleShape};
use serde_json::{Value, json};

use crate::folder::RunFolder;

fn constant(rate: f64) -> impl Fn(&mut Contract) {
    move |contract| {
        for schedule in &mut contract.schedule {
            schedule.shape = ScheduleShape::Constant { rate };
        }
    }
}

/// Anomalies of saved state, each with the step of its header.
fn anomalies(folder: &RunFolder) -> Result<Vec<(Option<u64>, Value)>> {
    let entries = folder.entries()?;
    let odd = entries.iter().filter(|entry| entry.body.kind().name() == "anomaly");
    odd.map(|entry| Ok((entry.header.step, serde_json::to_value(&entry.body)?["det"].clone()))).collect()
}

/// A rate that is above zero and far below the last bit of every parameter:
/// the moments move, and the model does not.
#[test]
fn a_model_that_updates_leave_as_it_was_is_on_record() -> Result<()> {
    for mode in [SaveMode::Synchronous, SaveMode::Asynchronous] {
        let folder = RunFolder::new(|contract| {
            constant(1e-30)(contract);
            contract.checkpoints.mode = mode;
        })?;
        folder.train()?.expect(0).says("is odd: unchanged_state: model");
        assert_eq!(folder.model(8)?, folder.model(0)?, "nothing moved");
        let found = anomalies(&folder)?;
        let steps: Vec<Option<u64>> = found.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [Some(4), Some(8)]);
        for (_, det) in &found {
            assert_eq!(det["name"], "unchanged_state");
            assert_eq!(det["state"]["class"], "model");
            assert_eq!(det["state"]["tensor"], Value::Null);
            assert_eq!(det["state"]["num_tensors"], 20, "{det:#}");
        }
        // Within the save that it is of.
        let kinds = folder.kinds()?;
        for at in (0..kinds.len()).filter(|at| kinds[*at] == "anomaly") {
            let is_stage = |kind: &&&str| kind.starts_with("checkpoint.");
            assert_eq!(kinds[..at].iter().rev().find(is_stage), Some(&"checkpoint.durably_committed"));
            assert_eq!(kinds[at..].iter().find(is_stage), Some(&"checkpoint.validated"));
        }
    }
    Ok(())
}

/// With no rate at all nothing was to move, and with one that is large enough
/// everything did.
#[test]
fn a_model_that_was_not_to_move_and_one_that_moved_are_in_order() -> Result<()> {
    let still = RunFolder::new(constant(0.0))?;
    still.train()?.expect(0);
    assert_eq!(still.model(8)?, still.model(0)?);
    assert_eq!(anomalies(&still)?, Vec::<(Option<u64>, Value)>::new());
    let moving = RunFolder::new(constant(1e-3))?;
    moving.train()?.expect(0);
    assert_ne!(moving.model(8)?, moving.model(0)?);
    assert_eq!(anomalies(&moving)?, Vec::<(Option<u64>, Value)>::new());
    Ok(())
}

/// What lies before a resume counts as its predecessor, and is not told again.
#[test]
fn a_resumed_run_says_the_same() -> Result<()> {
    let edit = |contract: &mut Contract| {
        constant(1e-30)(contract);
        contract.budget.max_steps = crate::folder::LONG;
        contract.stopping = schemas::contract::StoppingRule::AtStep { step: crate::folder::LONG };
        contract.checkpoints.every_steps = 10;
        contract.evaluation.streams[0].every_steps = 10;
    };
    let folder = RunFolder::new(edit)?;
    let mut training = folder.start()?;
    training.wait_for_step(13)?.send(rustix::process::Signal::TERM)?;
    training.finish()?.expect(143);
    folder.train()?.expect(0).says("RESUMING run ");
    let steps: Vec<Option<u64>> = anomalies(&folder)?.into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [10, 20, 30, 40, 50, 60].map(Some));
    assert_eq!(folder.bodies("attempt.start")?.len(), 2);
    assert_eq!(folder.bodies("attempt.start")?[1]["det"]["from_step"], json!(10));
    Ok(())
}
