//! What of a contract the engine can execute, and what it makes of it.
//!
//! Everything that a contract can say and this trainer does not do is refused
//! here, before a tensor exists, with the JSON pointer of the field.

use burn::tensor::FloatDType;
use schemas::contract::{Architecture, Contract, CreditRule, Device, Dtype, LlamaDecoder, ScheduleShape};
use schemas::contract::{Objective, Reduction};
use schemas::parameters::{ParameterDeclaration, ParameterManifest, ParameterStatus};
use schemas::policy_card::{BatchSemantics, Parameterization, PolicyCard, UpdateRule};

use crate::device::{self, OpenDevice};
use crate::model::manifest::{self, ManifestError, PARAMETER_DTYPE};
use crate::optimizer::adamw::{AdamW, STATE_SUFFIXES};
use crate::plateau::Plateau;
use crate::workers::MAX_WORKERS;
use crate::{scaling, schedule};

/// Ids that a byte can take; the vocabulary must hold them all.
const NUM_BYTES: u32 = 256;

/// What this trainer does not do.
#[derive(Debug, thiserror::Error)]
pub enum Unsupported {
    /// A field with a value that is not executed.
    #[error("{document} {pointer}: {found}, but {requirement}")]
    Field {
        /// Which document: `contract`, `policy card`, `parameter manifest`.
        document: &'static str,
        /// JSON pointer.
        pointer: String,
        /// What it holds.
        found: String,
        /// What this trainer executes.
        requirement: String,
    },
    /// No manifest can be made of architecture and card.
    #[error("architecture and policy card do not fit")]
    Manifest(#[from] ManifestError),
}

/// A parameter group as the engine uses it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GroupPlan {
    pub(crate) name: String,
    pub(crate) learning_rate_multiplier: f64,
    pub(crate) weight_decay: f64,
    pub(crate) plateau: Option<Plateau>,
    pub(crate) shape: ScheduleShape,
}

impl GroupPlan {
    /// Rate of step `t`, from 1, after the evaluations that were observed.
    pub(crate) fn rate(&self, t: u64) -> f64 {
        let plateau = self.plateau.as_ref().map(|plateau| plateau.state.rate.0);
        plateau.unwrap_or_else(|| schedule::rate(&self.shape, t)) * self.learning_rate_multiplier
    }
}

/// What the engine executes.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// dtype of the operands of matrix products in updates.
    pub(crate) compute: FloatDType,
    pub(crate) decoder: &'a LlamaDecoder,
    pub(crate) groups: Vec<GroupPlan>,
    pub(crate) rule: AdamW,
    /// Group of each parameter with storage of its own, in the manifest's
    /// order; none for a frozen one.
    pub(crate) parameter_groups: Vec<Option<usize>>,
}

fn field<T>(
    document: &'static str,
    pointer: impl Into<String>,
    found: impl std::fmt::Debug,
    requirement: impl Into<String>,
) -> Result<T, Unsupported> {
    Err(Unsupported::Field {
        document,
        pointer: pointer.into(),
        found: format!("{found:?}"),
        requirement: requirement.into(),
    })
}

/// Checks all three documents against what is executed.
pub(crate) fn plan<'a>(
    contract: &'a Contract,
    card: &PolicyCard,
    parameters: &ParameterManifest,
    device: &OpenDevice,
) -> Result<Plan<'a>, Unsupported> {
    let Architecture::LlamaDecoder(decoder) = &contract.architecture;
    check_model(contract, decoder, device)?;
    let compute = check_numerics(contract)?;
    check_averages(contract)?;
    check_batch(contract)?;
    let rule = check_card(card, contract.topology.workers)?;
    let groups = groups(contract, card)?;
    let parameter_groups = parameter_groups(contract, card, parameters)?;
    Ok(Plan { compute, decoder, groups, rule, parameter_groups })
}

fn check_model(contract: &Contract, decoder: &LlamaDecoder, device: &OpenDevice) -> Result<(), Unsupported> {
    if decoder.vocab_size < NUM_BYTES {
        let requirement = "ids are bytes, so it must be at least 256";
        return field("contract", "/architecture/vocab_size", decoder.vocab_size, requirement);
    }
    let CreditRule::Backpropagation = contract.credit else {
        return field("contract", "/credit", &contract.credit, "only backpropagation is executed");
    };
    let Objective::NextTokenCrossEntropy = contract.objective;
    if contract.plan.device != device.kind() {
        let requirement = format!("the device that was opened is {}", device::name(device.kind()));
        return field("contract", "/plan/device", contract.plan.device, requirement);
    }
    if contract.plan.autotune {
        let requirement = "kernels are never chosen by timing, so it must be false";
        return field("contract", "/plan/autotune", true, requirement);
    }
    Ok(())
}

fn check_numerics(contract: &Contract) -> Result<FloatDType, Unsupported> {
    let numerics = &contract.numerics;
    for (name, dtype) in
        [("accumulation_dtype", numerics.accumulation_dtype), ("parameter_dtype", numerics.parameter_dtype)]
    {
        if dtype != Dtype::F32 {
            return field("contract", format!("/numerics/{name}"), dtype, "it is kept in f32");
        }
    }
    let compute = match numerics.compute_dtype {
        Dtype::F32 => FloatDType::F32,
        Dtype::Bf16 => FloatDType::BF16,
        Dtype::F16 => FloatDType::F16,
    };
    if compute != FloatDType::F32 && contract.plan.device != Device::Cpu {
        // Each operation was tried on the CPU backend alone.
        let requirement = "half precision is executed on the device cpu only";
        return field("contract", "/numerics/compute_dtype", numerics.compute_dtype, requirement);
    }
    match &numerics.loss_scaler {
        Some(scaler) if compute != FloatDType::F16 => {
            let requirement = "only f16 needs loss scaling, so it must be null";
            return field("contract", "/numerics/loss_scaler", scaler, requirement);
        }
        None if compute == FloatDType::F16 => {
            let requirement = "gradients below 6e-8 vanish in f16, so it must be there";
            return field("contract", "/numerics/loss_scaler", "null", requirement);
        }
        Some(scaler) => {
            let factors = [scaler.backoff, scaler.growth, scaler.initial];
            if !factors.into_iter().all(scaling::is_power_of_two) || scaler.growth_interval == 0 {
                let requirement = "its factors are powers of two within f32, and its interval is at least 1";
                return field("contract", "/numerics/loss_scaler", scaler, requirement);
            }
        }
        None => {}
    }
    let Reduction::MicrobatchTree = numerics.reduction;
    Ok(compute)
}

fn check_averages(contract: &Contract) -> Result<(), Unsupported> {
    match &contract.averages {
        Some(averages) if !(averages.decay > 0.0 && averages.decay < 1.0) => {
            let requirement = "it must be above 0 and below 1";
            field("contract", "/averages/decay", averages.decay, requirement)
        }
        _ => Ok(()),
    }
}

fn check_batch(contract: &Contract) -> Result<(), Unsupported> {
    let batch = &contract.batch;
    let workers = contract.topology.workers;
    if batch.data_parallel != workers || !(1..=MAX_WORKERS).contains(&workers) {
        let requirement = format!("it is /topology/workers, 1 to {MAX_WORKERS}");
        return field("contract", "/batch/data_parallel", batch.data_parallel, requirement);
    }
    if contract.topology.learners != 1 {
        let requirement = "there is one learner";
        return field("contract", "/topology/learners", contract.topology.learners, requirement);
    }
    let product = u64::from(batch.microbatch_examples) * u64::from(batch.accumulation);
    let product = product.saturating_mul(u64::from(workers));
    if product == 0 || product != u64::from(batch.global_examples) {
        let requirement = format!("microbatch_examples * accumulation * data_parallel is {product}, above 0");
        return field("contract", "/batch/global_examples", batch.global_examples, requirement);
    }
    Ok(())
}

fn check_card(card: &PolicyCard, num_workers: u32) -> Result<AdamW, Unsupported> {
    const DOCUMENT: &str = "policy card";
    let UpdateRule::Adamw { beta1, beta2, epsilon, ref moment_dtype } = card.update;
    let BatchSemantics::MeanOverGlobalTokens = card.batch_semantics;
    let Parameterization::Standard = card.parameterization;
    if moment_dtype != PARAMETER_DTYPE {
        return field(DOCUMENT, "/update/moment_dtype", moment_dtype, "moments are F32");
    }
    if card.fallback.is_some() {
        return field(DOCUMENT, "/fallback", "a second rule", "one rule updates every group");
    }
    if card.approximation.is_some() {
        return field(DOCUMENT, "/approximation", "an approximation", "AdamW is exact, so it must be null");
    }
    if card.preconditioner_every_steps.is_some() {
        let requirement = "AdamW has no preconditioner, so it must be null";
        return field(DOCUMENT, "/preconditioner_every_steps", card.preconditioner_every_steps, requirement);
    }
    let communication = if num_workers > 1 { "all_reduce" } else { "none" };
    if card.distribution.communication != communication || card.distribution.placement != "replicated" {
        let requirement =
            format!("{num_workers} workers: communication {communication:?}, placement \"replicated\"");
        return field(DOCUMENT, "/distribution", &card.distribution, requirement);
    }
    let declared: Vec<(&str, &str)> =
        card.checkpoint_state.iter().map(|tensor| (tensor.suffix.as_str(), tensor.dtype.as_str())).collect();
    if declared != STATE_SUFFIXES.map(|suffix| (suffix, PARAMETER_DTYPE)) {
        let requirement = "AdamW keeps exp_avg and exp_avg_sq, both F32, in this order";
        return field(DOCUMENT, "/checkpoint_state", declared, requirement);
    }
    for (pointer, beta) in [("/update/beta1", beta1), ("/update/beta2", beta2)] {
        if !(0.0..1.0).contains(&beta) {
            return field(DOCUMENT, pointer, beta, "it must be at least 0 and below 1");
        }
    }
    if !(epsilon.is_finite() && epsilon > 0.0) {
        return field(DOCUMENT, "/update/epsilon", epsilon, "it must be finite and above 0");
    }
    Ok(AdamW { beta1, beta2, epsilon })
}

fn groups(contract: &Contract, card: &PolicyCard) -> Result<Vec<GroupPlan>, Unsupported> {
    for (index, schedule) in contract.schedule.iter().enumerate() {
        if !card.groups.iter().any(|group| group.name == schedule.group) {
            let requirement = format!("the policy card {:?} has no such group", card.name);
            return field("contract", format!("/schedule/{index}/group"), &schedule.group, requirement);
        }
    }
    let mut plans = Vec::with_capacity(card.groups.len());
    for group in &card.groups {
        let mut schedules = contract.schedule.iter().filter(|schedule| schedule.group == group.name);
        let (Some(schedule), None) = (schedules.next(), schedules.next()) else {
            let requirement = format!("group {:?} of the policy card needs exactly one schedule", group.name);
            return field("contract", "/schedule", contract.schedule.len(), requirement);
        };
        let plateau = Plateau::new(&group.name, &schedule.shape, contract);
        if let (ScheduleShape::Plateau { stream, .. }, None) = (&schedule.shape, &plateau) {
            return field(
                "contract",
                "/schedule",
                stream,
                "a plateau watches a stream of /evaluation/streams",
            );
        }
        plans.push(GroupPlan {
            name: group.name.clone(),
            learning_rate_multiplier: group.learning_rate_multiplier,
            weight_decay: group.weight_decay,
            plateau,
            shape: schedule.shape.clone(),
        });
    }
    Ok(plans)
}

/// The manifest must be the architecture's, except that it may freeze
/// parameters.
fn parameter_groups(
    contract: &Contract,
    card: &PolicyCard,
    parameters: &ParameterManifest,
) -> Result<Vec<Option<usize>>, Unsupported> {
    const DOCUMENT: &str = "parameter manifest";
    let mut expected = manifest::parameters(&contract.architecture, card)?;
    if parameters.parameters.iter().all(|parameter| parameter.tied_to.is_none()) {
        // Manifests of before tied parameters were listed.
        expected = manifest::stored(&expected);
    }
    let (found, wanted) = (parameters.parameters.len(), expected.parameters.len());
    if found != wanted {
        return field(DOCUMENT, "/parameters", found, format!("the architecture has {wanted} parameters"));
    }
    let mut groups = Vec::with_capacity(found);
    for (index, (found, expected)) in parameters.parameters.iter().zip(expected.parameters).enumerate() {
        let pointer = format!("/parameters/{index}");
        let wanted = match found.status {
            ParameterStatus::Trainable => expected,
            ParameterStatus::Frozen => {
                ParameterDeclaration { status: ParameterStatus::Frozen, group: None, ..expected }
            }
            ParameterStatus::Unreachable => {
                let requirement = "the loss reaches every parameter of this architecture";
                return field(DOCUMENT, pointer, &found.path, requirement);
            }
        };
        if *found != wanted {
            return field(DOCUMENT, pointer, found, format!("architecture and card give {wanted:?}"));
        }
        if let Some(target) = &found.tied_to {
            let status = parameters.parameters.iter().find(|p| p.path == *target).map(|p| p.status);
            if status != Some(found.status) {
                let requirement = format!("it is {target}, and has its status");
                return field(DOCUMENT, format!("{pointer}/status"), found.status, requirement);
            }
            continue;
        }
        let group = found.group.as_ref();
        groups.push(group.and_then(|name| card.groups.iter().position(|group| group.name == *name)));
    }
    if groups.iter().all(Option::is_none) {
        return field(DOCUMENT, "/parameters", "every parameter frozen", "an update needs one to change");
    }
    Ok(groups)
}

/// Elements of a parameter.
pub(crate) fn num_elements(declaration: &ParameterDeclaration) -> Result<usize, Unsupported> {
    let product = declaration.shape.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent));
    let elements = product.and_then(|product| usize::try_from(product).ok());
    elements.map_or_else(
        || field("parameter manifest", &declaration.path, &declaration.shape, "it exceeds memory"),
        Ok,
    )
}
