//! Faults in a resume and around an update.

use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::FloatDType;
use schemas::contract::{Contract, Dtype, FaultKind, FaultPhase};

use super::workers;
use super::{Due, vanish};
use crate::engine::Engine;
use crate::run::attempt::Attempt;
use crate::run::error::RunError;
use crate::workers::Collective;

/// Faults of this place that wait.
fn due(attempt: &Attempt, phase: FaultPhase, step: u64) -> Vec<Due> {
    attempt.faults.as_ref().map_or_else(Vec::new, |injector| injector.due(phase, step))
}

/// Behind the restore of a checkpoint of a step.
///
/// # Errors
/// When a fault cannot be recorded or made to act.
pub fn restored(
    attempt: &mut Attempt,
    engine: &mut Engine,
    contract: &Contract,
    step: u64,
) -> Result<(), RunError> {
    strike_state(attempt, engine, contract, FaultPhase::Restore, step)
}

/// Before an update, `step` being the number of completed ones behind it.
///
/// # Errors
/// As [`restored`].
pub fn before_forward(
    attempt: &mut Attempt,
    engine: &mut Engine,
    contract: &Contract,
    step: u64,
) -> Result<(), RunError> {
    strike_state(attempt, engine, contract, FaultPhase::BeforeForward, step)
}

/// Behind an update, before its entry.
///
/// # Errors
/// As [`restored`].
pub fn after_update(
    attempt: &mut Attempt,
    engine: &mut Engine,
    contract: &Contract,
    step: u64,
) -> Result<(), RunError> {
    strike_state(attempt, engine, contract, FaultPhase::AfterUpdate, step)
}

/// Behind the last microbatch of an update, before its gradients are exchanged
/// and applied. `false` where a signal came before the last one had begun.
///
/// # Errors
/// As [`restored`], and when a microbatch cannot be executed.
pub fn before_exchange(
    attempt: &mut Attempt,
    engine: &mut Engine,
    contract: &Contract,
    step: u64,
    interrupt: &AtomicBool,
) -> Result<bool, RunError> {
    let of_next = |due: &Due| due.planned.fault == FaultKind::StaleOrDelayedGradient;
    let is_kept = due(attempt, FaultPhase::BeforeExchange, step + 1).iter().any(of_next);
    let mut waiting = due(attempt, FaultPhase::AfterBackward, step);
    waiting.extend(due(attempt, FaultPhase::BeforeExchange, step));
    waiting.extend(due(attempt, FaultPhase::InExchange, step));
    if waiting.is_empty() && !is_kept {
        return Ok(true);
    }
    if contract.topology.workers > 1 {
        // What is on record has to act: where nothing is ordered yet, the signal
        // comes first, and behind an order the round is not given up for it.
        let is_ordered = attempt.collective.as_ref().is_some_and(Collective::is_ordered);
        if interrupt.load(Ordering::Relaxed) && !is_ordered {
            return Ok(false);
        }
        workers::in_exchange(attempt, waiting, step)?;
        return Ok(true);
    }
    if !engine.accumulate(u32::MAX, interrupt)? {
        return Ok(false);
    }
    let kept = attempt.faults.as_mut().and_then(|injector| injector.kept.take());
    let kept = kept.filter(|(of, _)| of + 1 == step);
    if is_kept && let Some(injector) = &mut attempt.faults {
        injector.kept = Some((step, engine.summed_gradients()));
    }
    for due in waiting {
        match due.planned.fault {
            FaultKind::WorkerLoss => {
                due.record(attempt)?;
                vanish()?;
            }
            // Without the update before there is nothing stale to give; it waits
            // for an attempt that executes both.
            _ => {
                if let Some((_, gradients)) = &kept {
                    due.record(attempt)?;
                    engine.replace_gradients(gradients.clone());
                }
            }
        }
    }
    Ok(true)
}

fn strike_state(
    attempt: &mut Attempt,
    engine: &mut Engine,
    contract: &Contract,
    phase: FaultPhase,
    step: u64,
) -> Result<(), RunError> {
    for due in due(attempt, phase, step) {
        if workers::is_between(&due) {
            workers::before_forward(attempt, contract, &due)?;
            continue;
        }
        due.record(attempt)?;
        damage(engine, contract, &due)?;
        workers::restate(attempt, engine)?;
    }
    Ok(())
}

/// Does to the engine what the fault says.
fn damage(engine: &mut Engine, contract: &Contract, due: &Due) -> Result<(), RunError> {
    let global_examples = contract.batch.global_examples;
    let examples = engine.counters().examples;
    let distance = 1 + u64::from(due.words()[0] % global_examples.max(1));
    match due.planned.fault {
        FaultKind::WorkerLoss => vanish()?,
        FaultKind::DataCursorRewind => engine.move_cursor(examples.saturating_sub(distance))?,
        FaultKind::DataCursorSkip => engine.move_cursor(examples.saturating_add(distance))?,
        FaultKind::RngStateLoss => engine.reset_dropout_streams(),
        FaultKind::SchedulerStateLoss => engine.reset_plateaus(contract),
        FaultKind::LossScalerLoss => engine.reset_loss_scale(contract),
        FaultKind::PrecisionPolicyChange if due.planned.phase == FaultPhase::AfterUpdate => {
            engine.round_parameters()?;
        }
        FaultKind::PrecisionPolicyChange => engine.compute_in(match contract.numerics.compute_dtype {
            Dtype::F32 => FloatDType::BF16,
            Dtype::Bf16 | Dtype::F16 => FloatDType::F32,
        }),
        // These have no phase of the state; `FaultKind::phases` says so, and the
        // freeze goes by it.
        FaultKind::CollectiveTimeout
        | FaultKind::CheckpointWriteInterruption
        | FaultKind::SingleShardCorruption
        | FaultKind::TopologyChange
        | FaultKind::StaleOrDelayedGradient
        | FaultKind::ValidationLeakageInSelection => {}
    }
    Ok(())
}
