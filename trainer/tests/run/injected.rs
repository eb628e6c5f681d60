//! Faults that a run injects into itself: each is on record before it acts and
//! acts once; the trainer finds it, with its cause, and recovers to the bits of
//! a run without it; and with the trainer's detectors off it leaves other bits,
//! so that it did act.

use anyhow::{Context, Result};
use schemas::contract::*;
use schemas::number::DecimalU64;
use schemas::state::{StateClass, StateClassDeclaration};
use serde_json::{Value, json};

use crate::folder::{Finished, RunFolder};
use crate::stateful::stateful;

/// Last step of every run here but where it is said.
const LAST: u64 = 24;

/// Steps that updates are struck at: behind a checkpoint, and behind several.
const UPDATES: [u64; 2] = [9, 17];

/// Steps whose checkpoint is struck, or resumed from.
const SAVES: [u64; 2] = [6, 18];

pub(crate) fn planned(fault: FaultKind, phase: FaultPhase, step: u64) -> PlannedFault {
    PlannedFault { fault, phase, seed: DecimalU64(31 * step + 7), step, worker: None }
}

/// [`LAST`] steps, saved at every sixth and evaluated at every second.
pub(crate) fn plain(contract: &mut Contract) {
    contract.budget.max_steps = LAST;
    contract.stopping = StoppingRule::AtStep { step: LAST };
    contract.checkpoints.every_steps = 6;
    contract.evaluation.streams.iter_mut().for_each(|stream| stream.every_steps = 2);
}

/// A stream of masks, a shuffle buffer, a plateau, averages.
pub(crate) fn rich(contract: &mut Contract) {
    stateful(contract);
    plain(contract);
}

/// Binary16 with a scale that overflows again and again.
fn scaled(contract: &mut Contract) {
    plain(contract);
    contract.numerics.compute_dtype = Dtype::F16;
    contract.numerics.loss_scaler =
        Some(LossScaler { backoff: 0.125, growth: 2.0, growth_interval: 2, initial: 16_777_216.0 });
    capture(contract, StateClass::LossScaler);
}

fn capture(contract: &mut Contract, class: StateClass) {
    contract.state_classes.retain(|declared| declared.class != class);
    let at = contract.state_classes.iter().position(|other| other.class > class).unwrap_or(0);
    contract.state_classes.insert(at, StateClassDeclaration { class, not_applicable: None });
}

/// [`plain`], saved beside training.
fn beside(contract: &mut Contract) {
    plain(contract);
    contract.checkpoints.mode = SaveMode::Asynchronous;
}

/// Five microbatches an update, saved behind the second of them.
fn inside(contract: &mut Contract) {
    plain(contract);
    contract.batch = Batch { accumulation: 5, data_parallel: 1, global_examples: 10, microbatch_examples: 2 };
    contract.checkpoints.mid_accumulation = MidAccumulation::SaveGradients;
    contract.checkpoints.after_microbatches = Some(2);
    contract.dropout_draws = DropoutDraws::PhiloxStream;
    capture(contract, StateClass::RngCpu);
    capture(contract, StateClass::AccumulatedGradients);
}

type Edit = fn(&mut Contract);

fn frozen(edit: Edit, detection: Detection, plan: &[PlannedFault]) -> Result<RunFolder> {
    RunFolder::new(|contract| {
        edit(contract);
        contract.faults.detection = detection;
        contract.faults.plan = plan.to_vec();
    })
}

/// The run without its faults, which raises nothing.
fn twin(edit: Edit) -> Result<RunFolder> {
    let folder = frozen(edit, Detection::TrainerAndValidator, &[])?;
    folder.train()?.expect(0);
    for kind in ["fault.injected", "fault.observed", "anomaly"] {
        assert!(folder.bodies(kind)?.is_empty(), "a run without faults has {kind}");
    }
    Ok(folder)
}

/// Every planned fault is on record once, as planned.
fn assert_fired(folder: &RunFolder, plan: &[PlannedFault]) -> Result<()> {
    let entries = folder.entries()?;
    let mut found = Vec::new();
    for entry in entries.iter().filter(|entry| entry.body.kind().name() == "fault.injected") {
        let det = serde_json::to_value(&entry.body)?["det"].clone();
        let header = &entry.header;
        found.push((det, header.step, header.worker.map(|worker| worker.0), header.attempt.is_some()));
    }
    let mut expected: Vec<_> = (0..)
        .zip(plan)
        .map(|(index, planned): (u32, _)| {
            let det = json!({"fault": planned.fault, "phase": planned.phase, "plan_index": index});
            (det, Some(planned.step), Some(planned.worker.unwrap_or(0)), true)
        })
        .collect();
    found.sort_by_key(|item| item.0["plan_index"].as_u64());
    expected.sort_by_key(|item| item.0["plan_index"].as_u64());
    assert_eq!(found, expected);
    Ok(())
}

/// What was seen, what it was taken for, and of which worker.
type Attributed = (Value, Value, Option<u32>);

/// Every `fault.observed` that has a cause, in order.
fn all_attributed(folder: &RunFolder) -> Result<Vec<Attributed>> {
    let entries = folder.entries()?;
    let mut found = Vec::new();
    for entry in entries.iter().filter(|entry| entry.body.kind().name() == "fault.observed") {
        let det = serde_json::to_value(&entry.body)?["det"].clone();
        if det.get("cause").is_some() {
            found.push((det["fault"].clone(), det["cause"].clone(), entry.header.worker.map(|w| w.0)));
        }
    }
    Ok(found)
}

/// The newest of them.
fn attributed(folder: &RunFolder) -> Result<Attributed> {
    all_attributed(folder)?.pop().context("a fault is attributed")
}

/// What has to differ where a fault acted and nobody looked.
#[derive(Clone, Copy)]
enum Shows {
    Model,
    Values,
    Selection,
}

impl Shows {
    fn of(self, folder: &RunFolder) -> Result<Value> {
        let bodies = match self {
            Self::Model => return Ok(json!(folder.model(LAST)?)),
            Self::Values => folder.bodies("eval")?,
            Self::Selection => folder.bodies("candidate.selected")?,
        };
        let obs_free = bodies.into_iter().map(|body| body["det"].clone());
        Ok(obs_free.collect())
    }
}

/// A fault of the state: found by the trainer before it is in the record, and
/// recovered from; and with the detectors off, there.
fn check_found(
    edit: Edit,
    (fault, phase): (FaultKind, FaultPhase),
    steps: &[u64],
    observed: &str,
    shows: Shows,
) -> Result<()> {
    let whole = twin(edit)?;
    for step in steps {
        let mut plan = vec![planned(fault, phase, *step)];
        let is_resume = phase == FaultPhase::Restore;
        if is_resume {
            // What makes the resume, before the next checkpoint.
            plan.push(planned(FaultKind::WorkerLoss, FaultPhase::BeforeForward, step + 3));
        }
        let run = |detection| -> Result<(RunFolder, Finished)> {
            let folder = frozen(edit, detection, &plan)?;
            if is_resume {
                assert_eq!(folder.train()?.code, None, "{fault} {phase} {step}: nothing was killed");
            }
            let finished = folder.train()?;
            Ok((folder, finished))
        };

        let (folder, finished) = run(Detection::TrainerAndValidator)?;
        finished.expect(1).says("nothing of it is recorded").says("hint: ");
        assert_fired(&folder, &plan)?;
        assert_eq!(attributed(&folder)?, (json!(observed), json!(fault), Some(0)), "{phase} {step}");
        assert_eq!(folder.bodies("attempt.end")?.pop().context("it ended")?["det"]["outcome"], "failed");
        folder.train()?.expect(0);
        assert_fired(&folder, &plan)?;
        assert_eq!(
            folder.model(LAST)?,
            whole.model(LAST)?,
            "{fault} {phase} {step}: recovered to other bits"
        );
        let det = |folder: &RunFolder| -> Result<Value> { Ok(folder.bodies("run.end")?[0]["det"].clone()) };
        assert_eq!(det(&folder)?, det(&whole)?);
        assert_eq!(Shows::Selection.of(&folder)?, Shows::Selection.of(&whole)?);

        let (folder, finished) = run(Detection::ValidatorAlone)?;
        finished.expect(0);
        assert_fired(&folder, &plan)?;
        let mistaken = folder.bodies("fault.observed")?;
        assert!(mistaken.iter().all(|body| body["det"]["fault"] == "attempt_vanished"), "{mistaken:?}");
        assert_ne!(shows.of(&folder)?, shows.of(&whole)?, "{fault} {phase} {step} changed nothing");
    }
    Ok(())
}

fn check_state(edit: Edit, fault: FaultKind, observed: &str) -> Result<()> {
    check_found(edit, (fault, FaultPhase::BeforeForward), &UPDATES, observed, Shows::Model)?;
    check_found(edit, (fault, FaultPhase::Restore), &SAVES, observed, Shows::Model)
}

#[test]
fn a_cursor_that_rewinds_is_found() -> Result<()> {
    check_state(plain, FaultKind::DataCursorRewind, "state_mismatch")
}

#[test]
fn a_cursor_that_skips_is_found() -> Result<()> {
    check_state(plain, FaultKind::DataCursorSkip, "state_mismatch")
}

#[test]
fn a_cursor_that_moves_takes_a_shuffle_buffer_along_and_is_found() -> Result<()> {
    for fault in [FaultKind::DataCursorRewind, FaultKind::DataCursorSkip] {
        let phase = FaultPhase::BeforeForward;
        check_found(rich, (fault, phase), &UPDATES[..1], "state_mismatch", Shows::Model)?;
    }
    Ok(())
}

#[test]
fn a_stream_of_masks_that_begins_again_is_found() -> Result<()> {
    check_state(rich, FaultKind::RngStateLoss, "state_mismatch")
}

#[test]
fn a_schedule_that_forgets_its_evaluations_is_found() -> Result<()> {
    check_state(rich, FaultKind::SchedulerStateLoss, "state_mismatch")
}

#[test]
fn a_loss_scaler_that_begins_again_is_found() -> Result<()> {
    check_state(scaled, FaultKind::LossScalerLoss, "state_mismatch")
}

#[test]
fn another_precision_is_found() -> Result<()> {
    check_state(plain, FaultKind::PrecisionPolicyChange, "plan_mismatch")?;
    let fault = (FaultKind::PrecisionPolicyChange, FaultPhase::AfterUpdate);
    // Inside of an interval, and at a step that is saved.
    check_found(plain, fault, &[9, 18], "plan_mismatch", Shows::Model)
}

#[test]
fn a_gradient_of_the_update_before_is_found() -> Result<()> {
    let fault = (FaultKind::StaleOrDelayedGradient, FaultPhase::BeforeExchange);
    check_found(plain, fault, &UPDATES, "worker_disagrees", Shows::Model)
}

/// The update behind a save inside of it, and another.
#[test]
fn faults_of_an_open_update_are_found() -> Result<()> {
    for (fault, phase, observed) in [
        (FaultKind::DataCursorSkip, FaultPhase::BeforeForward, "state_mismatch"),
        (FaultKind::RngStateLoss, FaultPhase::Restore, "state_mismatch"),
        (FaultKind::StaleOrDelayedGradient, FaultPhase::BeforeExchange, "worker_disagrees"),
    ] {
        let steps: &[u64] = if phase == FaultPhase::Restore { &[6] } else { &[7, 16] };
        check_found(inside, (fault, phase), steps, observed, Shows::Model)?;
    }
    Ok(())
}

#[test]
fn an_evaluation_of_the_train_split_is_found() -> Result<()> {
    let fault = (FaultKind::ValidationLeakageInSelection, FaultPhase::Evaluation);
    check_found(plain, fault, &[8, 18], "selection_mismatch", Shows::Values)
}

#[test]
fn a_selection_by_the_train_loss_is_found() -> Result<()> {
    let fault = (FaultKind::ValidationLeakageInSelection, FaultPhase::Selection);
    check_found(plain, fault, &[LAST], "selection_mismatch", Shows::Selection)?;
    check_found(beside, fault, &[LAST], "selection_mismatch", Shows::Selection)
}

/// What the newest `fault.observed` says, with null where it has no cause.
fn newest_seen(folder: &RunFolder) -> Result<Attributed> {
    let entries = folder.entries()?;
    let newest = entries.iter().rev().find(|entry| entry.body.kind().name() == "fault.observed");
    let newest = newest.context("a fault is observed")?;
    let det = serde_json::to_value(&newest.body)?["det"].clone();
    Ok((det["fault"].clone(), det["cause"].clone(), newest.header.worker.map(|worker| worker.0)))
}

/// A fault that kills the process: the next attempt says what it was, as far as
/// what it finds tells, and ends with the bits of the twin.
fn check_killed(
    edit: Edit,
    (fault, phase): (FaultKind, FaultPhase),
    steps: &[u64],
    seen: &str,
    cause: Option<FaultKind>,
) -> Result<()> {
    let whole = twin(edit)?;
    for step in steps {
        let plan = [planned(fault, phase, *step)];
        let folder = frozen(edit, Detection::TrainerAndValidator, &plan)?;
        assert_eq!(folder.train()?.code, None, "{fault} {phase} {step}: nothing was killed");
        assert_fired(&folder, &plan)?;
        folder.train()?.expect(0);
        assert_fired(&folder, &plan)?;
        assert_eq!(newest_seen(&folder)?, (json!(seen), json!(cause), None), "{phase} {step}");
        assert_eq!(all_attributed(&folder)?.len(), usize::from(cause.is_some()), "{phase} {step}");
        assert_eq!(folder.model(LAST)?, whole.model(LAST)?, "{fault} {phase} {step}");
        assert!(folder.store()?.iter().all(|name| name.starts_with('s')), "{:?}", folder.store()?);
    }
    Ok(())
}

#[test]
fn the_loss_of_the_process_is_recovered_from() -> Result<()> {
    for phase in [FaultPhase::BeforeForward, FaultPhase::AfterBackward] {
        let fault = FaultKind::WorkerLoss;
        check_killed(plain, (fault, phase), &UPDATES, "attempt_vanished", Some(fault))?;
    }
    Ok(())
}

#[test]
fn an_interrupted_save_is_recovered_from() -> Result<()> {
    let fault = FaultKind::CheckpointWriteInterruption;
    // A save beside training is interrupted by whatever ends the process.
    for (edit, cause) in [(plain as Edit, Some(fault)), (beside, None)] {
        for phase in fault.phases() {
            check_killed(edit, (fault, *phase), &[6, LAST], "checkpoint_incomplete", cause)?;
        }
    }
    Ok(())
}

#[test]
fn an_interrupted_save_stops_where_it_was_planned() -> Result<()> {
    let stages = ["checkpoint.requested", "checkpoint.staged", "checkpoint.durably_committed"];
    for (phase, num_stages) in
        [(FaultPhase::ShardWritten, 1), (FaultPhase::Staged, 2), (FaultPhase::Renamed, 2)]
    {
        let plan = [planned(FaultKind::CheckpointWriteInterruption, phase, 6)];
        let folder = frozen(plain, Detection::TrainerAndValidator, &plan)?;
        assert_eq!(folder.train()?.code, None);
        for (at, kind) in stages.iter().enumerate() {
            let of_step = folder.bodies(kind)?.into_iter().filter(|body| body["det"]["step"] == 6).count();
            assert_eq!(of_step, usize::from(at < num_stages), "{phase}: {kind}");
        }
        let is_renamed = folder.store()?.contains(&"s00000006-a1".to_owned());
        assert_eq!(is_renamed, phase == FaultPhase::Renamed);
    }
    Ok(())
}

#[test]
fn a_shard_that_changes_before_it_is_validated_fails_its_save() -> Result<()> {
    let fault = FaultKind::SingleShardCorruption;
    for edit in [plain as Edit, beside] {
        let whole = twin(edit)?;
        for step in [6, LAST] {
            let plan = [planned(fault, FaultPhase::Staged, step)];
            let folder = frozen(edit, Detection::ValidatorAlone, &plan)?;
            folder.train()?.expect(1).says("expected blake3:");
            assert_fired(&folder, &plan)?;
            assert_eq!(attributed(&folder)?, (json!("checkpoint_corrupt"), json!(fault), None));
            assert_eq!(folder.bodies("checkpoint.failed")?[0]["det"]["step"], step);
            folder.train()?.expect(0);
            assert_fired(&folder, &plan)?;
            assert_eq!(folder.model(LAST)?, whole.model(LAST)?, "{step}");
        }
    }
    Ok(())
}

#[test]
fn a_shard_that_changes_behind_its_validation_is_found_by_the_next_resume() -> Result<()> {
    let fault = FaultKind::SingleShardCorruption;
    for edit in [plain as Edit, beside] {
        let whole = twin(edit)?;
        for step in SAVES {
            // The next save begins when this one is over, also beside training.
            let next = planned(FaultKind::CheckpointWriteInterruption, FaultPhase::ShardWritten, step + 6);
            let plan = [planned(fault, FaultPhase::Validated, step), next];
            let folder = frozen(edit, Detection::TrainerAndValidator, &plan)?;
            assert_eq!(folder.train()?.code, None);
            assert_fired(&folder, &plan)?;
            let name = format!("s{step:08}-a1");
            let verify = folder.trainer(&["checkpoint", "verify", "--ledger", "run.db", &name])?;
            assert_eq!(verify.code, Some(1), "{}{}", verify.stdout, verify.stderr);
            folder.train()?.expect(0).says(&format!("checkpoint {name} cannot be used"));
            let expected = (json!("checkpoint_corrupt"), json!(fault), None);
            assert!(all_attributed(&folder)?.contains(&expected), "{step}");
            let recovered = folder.bodies("fault.recovered")?;
            assert!(recovered.iter().all(|body| body["det"]["from_step"] == step - 6), "{recovered:?}");
            assert_eq!(folder.model(LAST)?, whole.model(LAST)?, "{step}");
        }
    }
    Ok(())
}

#[test]
fn a_stale_gradient_waits_for_an_attempt_that_has_the_update_before() -> Result<()> {
    let plan = [
        planned(FaultKind::StaleOrDelayedGradient, FaultPhase::BeforeExchange, 7),
        planned(FaultKind::WorkerLoss, FaultPhase::BeforeForward, 7),
    ];
    let folder = frozen(plain, Detection::TrainerAndValidator, &plan)?;
    assert_eq!(folder.train()?.code, None);
    // The next attempt begins at step 6, and update 6 was another one's.
    folder.train()?.expect(0);
    let injected = folder.bodies("fault.injected")?;
    assert_eq!(injected.len(), 1);
    assert_eq!(injected[0]["det"]["fault"], "worker_loss");
    Ok(())
}

#[cfg(feature = "failpoints")]
mod withheld {
    use super::*;

    #[test]
    fn a_withheld_plan_acts_once_leaves_no_entry_of_itself_and_is_found() -> Result<()> {
        let whole = twin(plain)?;
        let fault = FaultKind::DataCursorSkip;
        for step in UPDATES {
            for detection in ["trainer_and_validator", "validator_alone"] {
                let folder = frozen(plain, Detection::TrainerAndValidator, &[])?;
                let path = folder.path().join("plan.json");
                let plan = [planned(fault, FaultPhase::BeforeForward, step)];
                std::fs::write(&path, json!({"detection": detection, "plan": plan}).to_string())?;
                let path = path.to_str().context("a name")?;
                let finished = folder.train_under("LEDGER_FAULT_PLAN", path)?;
                let acted = std::fs::read_to_string(format!("{path}.acted"))?;
                assert_eq!(acted, "0\n");
                if detection == "validator_alone" {
                    finished.expect(0);
                    assert_ne!(folder.model(LAST)?, whole.model(LAST)?);
                } else {
                    finished.expect(1);
                    assert_eq!(attributed(&folder)?, (json!("state_mismatch"), json!(fault), Some(0)));
                    folder.train_under("LEDGER_FAULT_PLAN", path)?.expect(0);
                    assert_eq!(std::fs::read_to_string(format!("{path}.acted"))?, "0\n", "it acts once");
                    assert_eq!(folder.model(LAST)?, whole.model(LAST)?);
                }
                assert!(folder.bodies("fault.injected")?.is_empty());
                let plan = &folder.bodies("attempt.start")?[0]["obs"]["plan"];
                assert_eq!(plan["instrumentation"], json!(["failpoints"]));
            }
        }
        Ok(())
    }

    #[test]
    fn a_withheld_plan_that_is_none_is_refused() -> Result<()> {
        let folder = frozen(plain, Detection::TrainerAndValidator, &[])?;
        let path = folder.path().join("plan.json");
        let plan = [planned(FaultKind::DataCursorSkip, FaultPhase::Staged, 6)];
        for (text, says) in [
            ("{".to_owned(), "plan.json"),
            (json!({"plan": plan}).to_string(), "data_cursor_skip has no phase staged"),
        ] {
            std::fs::write(&path, text)?;
            folder.train_under("LEDGER_FAULT_PLAN", path.to_str().context("a name")?)?.expect(2).says(says);
        }
        Ok(())
    }
}
