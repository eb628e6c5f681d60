//! A run whose components hold state, interrupted and killed: what the store
//! holds at the end is, file by file, what an uninterrupted run leaves.

use anyhow::{Context, Result};
use rustix::process::Signal;
use schemas::contract::*;
use schemas::state::{StateClass, StateClassDeclaration};

use crate::folder::{LONG, RunFolder};

/// Shards of every class that holds state.
const SHARDS: [&str; 8] = [
    "averages.safetensors",
    "data_cursor.json",
    "model.safetensors",
    "optimizer.safetensors",
    "rng_cpu.json",
    "sampler.json",
    "scheduler.json",
    "selection_state.json",
];

pub(crate) fn stateful(contract: &mut Contract) {
    contract.budget.max_steps = LONG;
    contract.stopping = StoppingRule::AtStep { step: LONG };
    contract.checkpoints.every_steps = 10;
    contract.evaluation.streams[0].every_steps = 5;
    contract.dropout_draws = DropoutDraws::PhiloxStream;
    contract.order = OrderPolicy::ShuffleBuffer { size: 6 };
    contract.averages = Some(Averages { decay: 0.9, first_step: 4, order: AverageOrder::BeforeUpdate });
    let mut stream = contract.evaluation.streams[0].clone();
    stream.name = "averaged".to_owned();
    stream.view = ParameterView::Averages;
    contract.evaluation.streams.push(stream);
    contract.schedule[0].shape = ScheduleShape::Plateau {
        cooldown: 1,
        factor: 0.5,
        floor: 1e-5,
        min_delta: 0.5,
        patience: 1,
        rate: 1e-2,
        stream: "averaged".to_owned(),
    };
    for class in [StateClass::Scheduler, StateClass::RngCpu, StateClass::Sampler, StateClass::Averages] {
        contract.state_classes.retain(|declared| declared.class != class);
        let at = contract.state_classes.iter().position(|other| other.class > class).unwrap_or(0);
        contract.state_classes.insert(at, StateClassDeclaration { class, not_applicable: None });
    }
}

fn shards(folder: &RunFolder, step: u64) -> Result<Vec<Vec<u8>>> {
    let prefix = format!("s{step:08}-a");
    let name = folder.store()?.into_iter().rev().find(|name| name.starts_with(&prefix));
    let checkpoint = folder.path().join("checkpoints").join(name.context("a checkpoint of the step")?);
    SHARDS.iter().map(|name| Ok(std::fs::read(checkpoint.join(name))?)).collect()
}

#[test]
fn every_shard_of_an_interrupted_run_is_that_of_an_uninterrupted_one() -> Result<()> {
    let whole = RunFolder::new(stateful)?;
    whole.train()?.expect(0);
    let folder = RunFolder::new(stateful)?;
    let mut training = folder.start()?;
    training.wait_for_step(13)?.send(Signal::TERM)?;
    training.finish()?.expect(143);
    let mut training = folder.start()?;
    training.wait_for("RESUMING run ")?.wait_for_step(25)?.send(Signal::KILL)?;
    drop(training);
    folder.train()?.expect(0).says("RESUMING run ");
    for step in [20, 40, LONG] {
        for (name, (found, wanted)) in
            SHARDS.iter().zip(shards(&folder, step)?.into_iter().zip(shards(&whole, step)?))
        {
            assert!(found == wanted, "{name} of step {step} differs");
        }
    }
    let det = |folder: &RunFolder| -> Result<_> { Ok(folder.bodies("run.end")?[0]["det"].clone()) };
    assert_eq!(det(&folder)?, det(&whole)?);
    let attempts = folder.bodies("attempt.start")?.len();
    assert_eq!(attempts, 3, "both interruptions struck");
    Ok(())
}
