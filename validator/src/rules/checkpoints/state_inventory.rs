//! The contract accounts for every state class, with true reasons.

use schemas::contract::{Contract, MidAccumulation, OrderPolicy, ParameterView, ScheduleShape, StoppingRule};
use schemas::report::Route;
use schemas::state::{NotApplicableReason, StateClass, StateClassDeclaration};

use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink};
use crate::rules::common::{at_end, declare_rule};

declare_rule!(
    /// `GL603`.
    StateInventory,
    {
        code: "GL603",
        name: "state-inventory",
        what: "The contract declares each of the ten required state classes, and those that its other clauses call for, once and in \
               order; a class that is not captured gives a reason that the contract's own clauses make true.",
        why: "Resuming with a part of the state missing continues another run that looks the same for a while.",
        remedy: "Declare the class as captured, or change the clause that makes it necessary, and freeze again.",
        reference: "schemas::state::StateClass; schemas::state::NotApplicableReason",
        gate: Route::RequestStateInventory,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let contract = &frozen.contract;
    at_end(move |_, sink| {
        let declared = &contract.state_classes;
        let at = || At::place("contract /state_classes");
        if !declared.is_sorted_by(|a, b| a.class < b.class) {
            let order: Vec<&str> = declared.iter().map(|declaration| declaration.class.name()).collect();
            sink.rejected(
                at(),
                "classes are repeated or out of order",
                "the order of schemas::StateClass",
                order.join(", "),
            );
        }
        for class in StateClass::REQUIRED {
            if !declared.iter().any(|declaration| declaration.class == class) {
                sink.rejected(
                    at(),
                    format!("{class} is not accounted for"),
                    "captured, or a reason",
                    "absent",
                );
            }
        }
        for (class, clause) in called_for(contract) {
            let is_captured = declared.iter().any(|d| d.class == class && d.not_applicable.is_none());
            if !is_captured {
                sink.rejected(at(), format!("{class} is called for by {clause}"), "captured", "not captured");
            }
        }
        for (index, declaration) in declared.iter().enumerate() {
            reason(contract, index, declaration, sink);
        }
        Outcome::Checked(declared.len() as u64)
    })
}

/// Classes that other clauses of the contract bring into being.
fn called_for(contract: &Contract) -> Vec<(StateClass, &'static str)> {
    let mut all = Vec::new();
    if contract.numerics.loss_scaler.is_some() {
        all.push((StateClass::LossScaler, "numerics.loss_scaler"));
    }
    if contract.checkpoints.mid_accumulation == MidAccumulation::SaveGradients {
        all.push((StateClass::AccumulatedGradients, "checkpoints.mid_accumulation"));
    }
    if matches!(contract.stopping, StoppingRule::Patience { .. }) {
        all.push((StateClass::SelectionState, "stopping"));
    }
    if contract.evaluation.streams.iter().any(|stream| stream.view == ParameterView::Averages) {
        all.push((StateClass::Averages, "evaluation"));
    }
    if contract.averages.is_some() {
        all.push((StateClass::Averages, "averages"));
    }
    all
}

fn reason(contract: &Contract, index: usize, declaration: &StateClassDeclaration, sink: &mut Sink) {
    use NotApplicableReason as Reason;
    let Some(given) = declaration.not_applicable else { return };
    let is_closed = |shape: &ScheduleShape| match shape {
        ScheduleShape::Constant { .. } | ScheduleShape::WarmupCosine { .. } => true,
        ScheduleShape::Plateau { .. } => false,
    };
    let holds = match (declaration.class, given) {
        // Initialisation is a function of seed and coordinates.
        (StateClass::RngCpu | StateClass::RngDevice, Reason::CounterBasedRandomness) => {
            contract.dropout_draws.is_keyed()
        }
        (StateClass::RngDevice, Reason::NoDeviceRandomness) => true,
        (StateClass::Sampler, Reason::FunctionOfPosition) => match contract.order {
            OrderPolicy::KeyedPermutation => true,
            OrderPolicy::ShuffleBuffer { .. } => false,
        },
        (StateClass::Scheduler, Reason::FunctionOfStep) => {
            contract.schedule.iter().all(|schedule| is_closed(&schedule.shape))
        }
        (StateClass::LossScaler, Reason::NoLossScaling) => contract.numerics.loss_scaler.is_none(),
        (StateClass::AccumulatedGradients, Reason::UpdateBoundariesOnly) => {
            contract.checkpoints.mid_accumulation == MidAccumulation::RoundToBoundary
        }
        _ => false,
    };
    if !holds {
        let at = At::place(format!("contract /state_classes/{index}/not_applicable"));
        let message = format!("{} is left out for a reason that does not hold", declaration.class);
        sink.rejected(
            at,
            message,
            "a reason that the contract makes true, or captured",
            format!("{given:?}"),
        );
    }
}
