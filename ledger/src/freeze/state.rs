//! State classes: each captured, or not applicable for a reason that is true
//! of this contract. A class that nobody mentions is how a resume drifts.

use schemas::contract::{
    Contract, EvidenceProfile, MidAccumulation, OrderPolicy, ScheduleShape, StoppingRule,
};
use schemas::state::{NotApplicableReason, StateClass};

use super::problem::Problems;

pub(super) fn check(contract: &Contract, problems: &mut Problems) {
    let declared = &contract.state_classes;
    for class in StateClass::REQUIRED {
        problems.require(
            declared.iter().any(|declaration| declaration.class == class),
            "/state_classes",
            format!("does not account for {class}"),
            "declare every required class: captured (`not_applicable` null), or with the reason why it holds nothing",
        );
    }
    let mut previous: Option<StateClass> = None;
    for (index, declaration) in declared.iter().enumerate() {
        let pointer = format!("/state_classes/{index}");
        if let Some(previous) = previous {
            problems.require(
                declaration.class > previous,
                format!("{pointer}/class"),
                format!("{} does not belong after {previous}", declaration.class),
                "declare each class once, in the order of the documentation",
            );
        }
        previous = Some(declaration.class);
        match declaration.not_applicable {
            Some(reason) => check_reason(contract, declaration.class, reason, &pointer, problems),
            None => check_captured(contract, declaration.class, &pointer, problems),
        }
    }
    if contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients {
        problems.require(
            declared.iter().any(|declaration| declaration.class == StateClass::AccumulatedGradients),
            "/state_classes",
            "accumulated_gradients is not captured, and state is saved inside of accumulation windows",
            "add {\"class\": \"accumulated_gradients\", \"not_applicable\": null}",
        );
    }
    if matches!(contract.stopping, StoppingRule::Patience { .. }) {
        problems.require(
            declared.iter().any(|declaration| {
                declaration.class == StateClass::SelectionState && declaration.not_applicable.is_none()
            }),
            "/state_classes",
            "selection_state is not captured, and stopping by patience counts evaluations",
            "add {\"class\": \"selection_state\", \"not_applicable\": null}",
        );
    }
}

/// Whether a reason is one for the class, and true of the contract.
fn check_reason(
    contract: &Contract,
    class: StateClass,
    reason: NotApplicableReason,
    pointer: &str,
    problems: &mut Problems,
) {
    use NotApplicableReason as Reason;
    let is_closed = contract.schedule.iter().all(|group| match group.shape {
        ScheduleShape::Constant { .. } | ScheduleShape::WarmupCosine { .. } => true,
        ScheduleShape::Plateau { .. } => false,
    });
    let (is_for_class, is_true) = match (class, reason) {
        // Initialisation is keyed, and an order's own draws are of `sampler`.
        (StateClass::RngCpu | StateClass::RngDevice, Reason::CounterBasedRandomness) => {
            (true, contract.dropout_draws.is_keyed())
        }
        (StateClass::RngDevice, Reason::NoDeviceRandomness) => (true, true),
        (StateClass::Scheduler, Reason::FunctionOfStep) => (true, is_closed),
        (StateClass::Sampler, Reason::FunctionOfPosition) => {
            (true, matches!(contract.order, OrderPolicy::KeyedPermutation))
        }
        (StateClass::LossScaler, Reason::NoLossScaling) => (true, contract.numerics.loss_scaler.is_none()),
        (StateClass::AccumulatedGradients, Reason::UpdateBoundariesOnly) => {
            (true, contract.checkpoints.mid_accumulation == MidAccumulation::RoundToBoundary)
        }
        _ => (false, false),
    };
    let message = if is_for_class {
        format!("{class}: the reason is not true of this contract")
    } else {
        format!("{class} cannot be left out for this reason")
    };
    problems.require(
        is_for_class && is_true,
        format!("{pointer}/not_applicable"),
        message,
        "capture the class (null), or give the reason that applies to it",
    );
}

/// Whether the project's trainer has such state to capture.
fn check_captured(contract: &Contract, class: StateClass, pointer: &str, problems: &mut Problems) {
    if contract.ruleset.profile != EvidenceProfile::Native {
        return;
    }
    let is_kept = match class {
        StateClass::Model
        | StateClass::Optimizer
        | StateClass::Scheduler
        | StateClass::DataCursor
        | StateClass::Topology
        | StateClass::CompilerPlan
        | StateClass::SelectionState => true,
        StateClass::LossScaler => contract.numerics.loss_scaler.is_some(),
        StateClass::AccumulatedGradients => {
            contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients
        }
        StateClass::Averages => contract.averages.is_some(),
        StateClass::Sampler => matches!(contract.order, OrderPolicy::ShuffleBuffer { .. }),
        StateClass::RngCpu => !contract.dropout_draws.is_keyed(),
        _ => false,
    };
    problems.require(
        is_kept,
        format!("{pointer}/not_applicable"),
        format!("{class} is declared captured, and the trainer of this edition has no such state"),
        "give the reason why it does not apply, or leave out a class that is not required",
    );
}
