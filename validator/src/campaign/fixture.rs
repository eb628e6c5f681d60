//! An honest campaign in memory for tests of rules: a tuned baseline, a proposed
//! arm, and a control arm with a positive control, each with two trials and
//! three seeds. A test makes it false in one way.

use schemas::body::{Counters, Outcome};
use schemas::campaign::report::CampaignCosts;
use schemas::campaign::*;
use schemas::contract::{Authority, Contract, FileBinding, Membership, Residual, ScheduleShape};
use schemas::digest::Digest;
use schemas::ids::RunId;
use schemas::number::DecimalU64;
use schemas::policy_card::{PolicyCard, UpdateRule};
use schemas::report::Verdict;
use serde_json::json;
use sha2::Digest as _;

use super::facts::{FrozenFacts, Reach, RunFacts};
use super::view::{Campaign, Registration, Run};
use crate::fixture::{blake3_of, card, contract, contract_json, signed_note};

pub(crate) const BASELINE: &str = "baseline";
pub(crate) const PROPOSED: &str = "proposed";
pub(crate) const CONTROL: &str = "control";
pub(crate) const SEEDS: [u64; 3] = [11, 12, 13];

/// Place where the proposed arm's policy differs.
pub(crate) const BETA2: &str = "/update/card#/update/beta2";
/// Place where the control arm's policy differs.
pub(crate) const DECAY: &str = "/update/card#/groups/0/weight_decay";
/// Tokens that a contract of the fixture can spend: 4 x 16 x 8.
const PRICE: u64 = 512;
/// When the fixture's campaign binds its first run, in microseconds.
const BOUND_US: u64 = 1_795_000_000_000_000;

fn pointer(text: &str) -> ContractPointer {
    ContractPointer(text.to_owned())
}

fn arm(name: &str, role: ArmRole, differs: Option<&str>) -> Arm {
    let declared = differs
        .map(|place| DeclaredDifference { pointer: pointer(place), why: "the method".to_owned() })
        .into_iter()
        .collect();
    Arm {
        card: Some(blake3_of(&serde_json::to_vec(&card_of(name)).expect("serialises"))),
        declared,
        fallback_groups: Vec::new(),
        family: "adamw".to_owned(),
        label: format!("AdamW, {name}"),
        name: name.to_owned(),
        positive_control: (role == ArmRole::Control)
            .then(|| PositiveControl { threshold: 7.8, why: "known to be reached".to_owned() }),
        rescue: vec![RescueLevel {
            level: 1,
            max_runs: 2,
            pointers: vec![pointer("/schedule/0/shape/warmup_steps")],
            when: "the loss grows".to_owned(),
        }],
        role,
        tuning: ArmTuning {
            num_trials: 2,
            pointers: vec![pointer("/schedule/0/shape/peak")],
            price_tokens: PRICE,
            search_space: "two rates".to_owned(),
            unequal_because: None,
        },
    }
}

pub(crate) fn claim(id: &str, kind: ClaimKind, arm: &str, dimension: ClaimDimension, margin: f64) -> Claim {
    Claim {
        arms: vec![ArmPair { against: BASELINE.to_owned(), arm: arm.to_owned() }],
        dimension,
        id: id.to_owned(),
        kind,
        margin,
        min_seeds: 3,
        scope: Vec::new(),
    }
}

/// The fixture's preregistration.
pub(crate) fn preregistration() -> Preregistration {
    let keys = contract().keys;
    let mut better = claim("better", ClaimKind::Better, PROPOSED, ClaimDimension::Quality, 0.05);
    better.scope = vec![Axis::Optimizer];
    Preregistration {
        arms: vec![
            arm(BASELINE, ArmRole::Baseline, None),
            arm(PROPOSED, ArmRole::Proposed, Some(BETA2)),
            arm(CONTROL, ArmRole::Control, Some(DECAY)),
        ],
        authority: Authority {
            expires: None,
            granted_by: "the test".to_owned(),
            non_authorities: vec!["to release".to_owned()],
            scope: "to test rules".to_owned(),
        },
        axes: vec![TestedAxis {
            axis: Axis::Optimizer,
            points: vec![vec![json!(0.95)], vec![json!(0.99)]],
            pointers: vec![pointer(BETA2)],
        }],
        claims: vec![
            better,
            claim("cheaper", ClaimKind::Efficiency, PROPOSED, ClaimDimension::TokensToQuality, 0.2),
            claim("worse", ClaimKind::Negative, CONTROL, ClaimDimension::Quality, 0.05),
        ],
        costs: vec![
            CostDimension::Bytes,
            CostDimension::DeviceSeconds,
            CostDimension::Evaluations,
            CostDimension::Examples,
            CostDimension::Steps,
            CostDimension::Tokens,
            CostDimension::WallTime,
        ],
        decision: Decision::PairedInterval { confidence: 0.95 },
        extensions: Vec::new(),
        format: schemas::PREREGISTRATION_FORMAT.to_owned(),
        keys: CampaignKeys { owner: keys.owner, validator: keys.validator },
        metric: CampaignMetric {
            direction: schemas::contract::Direction::Minimize,
            stream: "val".to_owned(),
            threshold: 7.9,
        },
        name: "fixture".to_owned(),
        nonclaims: vec!["nothing about other models".to_owned()],
        question: "Does it?".to_owned(),
        reference_arm: BASELINE.to_owned(),
        residuals: vec![Residual { description: "tiny".to_owned(), owner: "the test".to_owned() }],
        ruleset: CampaignRuleset { edition: super::EDITION.to_owned() },
        seeds: SEEDS.map(DecimalU64).to_vec(),
    }
}

/// The canonical text, as it is frozen.
pub(crate) fn frozen_text(prereg: &Preregistration) -> String {
    contract_json(&serde_json::to_value(prereg).expect("serialises"))
}

/// Who a run of the fixture is, and what comes out of it.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) arm: &'static str,
    pub(crate) purpose: RunPurpose,
    pub(crate) seed: u64,
    pub(crate) trial: u32,
    pub(crate) level: u32,
    pub(crate) peak: f64,
    pub(crate) value: f64,
}

/// The policy card of an arm.
fn card_of(arm: &str) -> PolicyCard {
    let mut card: PolicyCard = card(1);
    let UpdateRule::Adamw { beta2, .. } = &mut card.update;
    if arm == PROPOSED {
        *beta2 = 0.99;
    }
    if arm == CONTROL {
        card.groups[0].weight_decay = 0.0;
    }
    card
}

/// The contract and card of a run.
pub(crate) fn frozen_of(plan: &Plan, campaign: &RunId, file_digest: Digest) -> FrozenFacts {
    let card = card_of(plan.arm);
    let mut contract: Contract = contract();
    contract.name = format!("{} {}", plan.arm, plan.trial);
    for seed in
        [&mut contract.seeds.data_order, &mut contract.seeds.dropout, &mut contract.seeds.initialization]
    {
        *seed = DecimalU64(plan.seed);
    }
    if let ScheduleShape::WarmupCosine { peak, warmup_steps, .. } = &mut contract.schedule[0].shape {
        *peak = plan.peak;
        *warmup_steps += u64::from(plan.level);
    }
    let bytes = serde_json::to_vec(&card).expect("serialises");
    contract.update.card.digest = Some(blake3_of(&bytes));
    contract.update.card.num_bytes = Some(bytes.len() as u64);
    contract.update.card.path = format!("{}.json", plan.arm);
    contract.membership = Membership::Campaign {
        arm: plan.arm.to_owned(),
        campaign: campaign.clone(),
        preregistration: FileBinding {
            digest: Some(file_digest),
            num_bytes: Some(1),
            path: "campaign.preregistration.json".to_owned(),
        },
        rescue_level: plan.level,
        trial: plan.trial,
    };
    refrozen(contract, &card)
}

/// What a contract and its card come to when they are frozen.
pub(crate) fn refrozen(contract: Contract, card: &PolicyCard) -> FrozenFacts {
    let value = serde_json::to_value(&contract).expect("serialises");
    let digest = Digest::sha256(sha2::Sha256::digest(contract_json(&value).as_bytes()).into());
    FrozenFacts {
        card: Ok(card.clone()),
        value,
        documents: [("/update/card".to_owned(), serde_json::to_value(card).expect("serialises"))].into(),
        digest,
        run: RunId(format!("{}-0123456789abcdef", &digest.hex()[..16])),
        contract,
    }
}

/// A root of nothing in particular, as far as a campaign can tell.
fn root(run: &RunId, size: u64) -> [u8; 32] {
    *blake3::hash(format!("{run} {size}").as_bytes()).as_bytes()
}

const NUM_ENTRIES: u64 = 40;

/// A run that was bound before it began, and again when it was over.
pub(crate) fn run(campaign: &Campaign, plan: &Plan) -> Run {
    let frozen = frozen_of(plan, &campaign.id, campaign.file_digest);
    let id = frozen.run.clone();
    let det = CampaignRunDet {
        arm: plan.arm.to_owned(),
        contract: frozen.digest,
        owner: frozen.contract.keys.owner.public.clone(),
        purpose: plan.purpose,
        rescue_level: plan.level,
        run: id.clone(),
        seed: DecimalU64(plan.seed),
        trial: plan.trial,
    };
    let place = campaign.runs.len() as u64;
    let registration = |entry: u64, time_us: u64, size: u64, role: u8| Registration {
        entry,
        time_us,
        det: det.clone(),
        obs: CampaignRunObs {
            head: signed_note(&format!("governed-ledger/run/{id}"), size, root(&id, size), role),
            late: None,
            path: format!("{}-{}/run.db", plan.arm, plan.trial),
        },
    };
    let bound_us = BOUND_US + place * 1000;
    // The better a run is, the sooner it gets there.
    let reached = plan.value <= campaign.prereg.metric.threshold;
    let step = if plan.value < 7.7 { 4 } else { 8 };
    let reach = Reach {
        step,
        counters: Counters { evaluations: 0, examples: step * 4, tokens: step * 60 },
        device_us: step * 500 + 600,
        wall_us: step * 1000,
    };
    let costs = CampaignCosts {
        attempts: 1,
        device_us: if step == 4 { 4600 } else { 4900 },
        evaluations: 3,
        examples: 32,
        runs: 1,
        steps_executed: 8,
        tokens: 480,
        wall_us: 30_000,
        ..CampaignCosts::default()
    };
    let facts = RunFacts {
        num_entries: NUM_ENTRIES,
        roots: [1, NUM_ENTRIES].map(|size| (size, root(&id, size))).into(),
        first_effect: Some((1, bound_us + 100)),
        first_outcome: Some((6, bound_us + 500)),
        ended: Some(Outcome::Completed),
        ended_at: Some((NUM_ENTRIES - 1, bound_us + 920)),
        is_diverged: false,
        selected_us: Some(bound_us + 900),
        selected_step: Some(8),
        reach: reached.then_some(reach),
        selected_value: Some(plan.value),
        loss_trace: Some(blake3_of(id.as_str().as_bytes())),
        costs,
        has_qualification_eval: false,
        openings: Ok(Vec::new()),
        frozen,
    };
    Run {
        first: registration(1 + place, bound_us, 1, 1),
        later: vec![registration(101 + place, bound_us + 950, NUM_ENTRIES, 3)],
        facts: Ok(Box::new(facts)),
        verdict: Some(Verdict::Accepted),
        first_error: None,
        is_incomplete_alone: false,
        reported_value: Some(("val".to_owned(), plan.value)),
        is_by_evaluator: true,
        id,
    }
}

/// The campaign without runs.
pub(crate) fn empty() -> Campaign {
    let prereg = preregistration();
    let text = frozen_text(&prereg);
    let digest = Digest::sha256(sha2::Sha256::digest(text.as_bytes()).into());
    Campaign {
        prereg,
        digest,
        file_digest: blake3_of(text.as_bytes()),
        id: RunId(format!("{}-00000000000000aa", &digest.hex()[..16])),
        runs: Vec::new(),
        unbound: Vec::new(),
        copies: Vec::new(),
        unread: Vec::new(),
    }
}

/// Adds a run; its trial is the next of its arm.
pub(crate) fn bind(campaign: &mut Campaign, mut plan: Plan) -> usize {
    let earlier = campaign.runs.iter().filter(|run| run.arm() == plan.arm).count();
    plan.trial = u32::try_from(earlier + 1).expect("few runs");
    let run = run(campaign, &plan);
    campaign.runs.push(run);
    campaign.runs.len() - 1
}

/// A plan of the honest campaign, to be numbered by [`bind`].
pub(crate) fn plan(arm: &'static str, purpose: RunPurpose, seed: u64, value: f64) -> Plan {
    Plan { arm, purpose, seed, trial: 0, level: 0, peak: 0.01, value }
}

/// The honest campaign: the proposed arm is better by about 0.2, the control arm
/// worse by about as much.
pub(crate) fn honest() -> Campaign {
    let mut campaign = empty();
    for (arm, base) in [(BASELINE, 7.75), (PROPOSED, 7.55), (CONTROL, 7.95)] {
        bind(&mut campaign, plan(arm, RunPurpose::Tuning, 1, base));
        let second = plan(arm, RunPurpose::Tuning, 1, base + 0.01);
        bind(&mut campaign, Plan { peak: 0.02, ..second });
        if arm == CONTROL {
            bind(&mut campaign, plan(arm, RunPurpose::PositiveControl, 2, 7.7));
        }
        for (seed, noise) in SEEDS.into_iter().zip([0.0, 0.003, -0.002]) {
            let noise = if arm == BASELINE { noise } else { 0.5 * noise };
            bind(&mut campaign, plan(arm, RunPurpose::Confirmation, seed, base + noise));
        }
    }
    campaign
}

impl Campaign {
    /// The confirmation run of an arm at a seed, to be changed.
    pub(crate) fn run_mut(&mut self, arm: &str, purpose: RunPurpose, n: usize) -> &mut Run {
        let mut runs = self.runs.iter_mut().filter(|run| run.arm() == arm && run.purpose() == purpose);
        runs.nth(n).expect("the mutation acts")
    }
}

impl Run {
    /// Its facts, to be changed.
    pub(crate) fn facts_mut(&mut self) -> &mut RunFacts {
        self.facts.as_mut().expect("the fixture has facts")
    }

    /// Freezes it again under a changed contract and card, as its owner could;
    /// what the campaign says of it follows.
    pub(crate) fn refreeze(&mut self, change: impl FnOnce(&mut Contract, &mut PolicyCard)) {
        let facts = self.facts.as_mut().expect("the fixture has facts");
        let mut card = facts.frozen.card.clone().expect("the fixture has a card");
        let mut contract = facts.frozen.contract.clone();
        let before = (contract.clone(), card.clone());
        change(&mut contract, &mut card);
        assert_ne!(before, (contract.clone(), card.clone()), "the mutation acts");
        let bytes = serde_json::to_vec(&card).expect("serialises");
        contract.update.card.digest = Some(blake3_of(&bytes));
        contract.update.card.num_bytes = Some(bytes.len() as u64);
        facts.frozen = refrozen(contract, &card);
        self.id = facts.frozen.run.clone();
        facts.roots = [1, NUM_ENTRIES].map(|size| (size, root(&self.id, size))).into();
        let (digest, owner) = (facts.frozen.digest, facts.frozen.contract.keys.owner.public.clone());
        for (registration, size, role) in std::iter::once((&mut self.first, 1, 1))
            .chain(self.later.iter_mut().map(|one| (one, NUM_ENTRIES, 3)))
        {
            registration.det.run = self.id.clone();
            registration.det.contract = digest;
            registration.det.owner = owner.clone();
            let origin = format!("governed-ledger/run/{}", self.id);
            registration.obs.head = signed_note(&origin, size, root(&self.id, size), role);
        }
    }
}
