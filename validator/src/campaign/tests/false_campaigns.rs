//! A table of false campaigns by rule code. Each is an honest campaign with one
//! change, and the rule must then say what it did not say before; where a claim
//! hangs on it, its outcome must follow.

use schemas::body::Outcome as End;
use schemas::campaign::report::ClaimOutcome;
use schemas::campaign::*;
use schemas::contract::{StoppingRule, WarmStart};
use schemas::digest::Digest;
use schemas::finding::Severity;
use schemas::number::DecimalU64;
use schemas::report::Verdict;

use crate::campaign::facts::Opening;
use crate::campaign::fixture::*;
use crate::campaign::view::{Campaign, Unbound};
use crate::fixture::signed_note;

use RunPurpose::{Confirmation, PositiveControl, Tuning};

/// One way of making a campaign false.
pub(super) struct Mutation {
    pub(super) code: &'static str,
    pub(super) name: &'static str,
    pub(super) severity: Severity,
    /// A claim, and what becomes of it.
    pub(super) claim: Option<(&'static str, ClaimOutcome)>,
    pub(super) change: fn(&mut Campaign),
}

pub(super) const fn error(
    code: &'static str,
    name: &'static str,
    claim: &'static str,
    change: fn(&mut Campaign),
) -> Mutation {
    Mutation { code, name, severity: Severity::Error, claim: Some((claim, ClaimOutcome::Blocked)), change }
}

/// The record is wrong, and no claim hangs on it.
pub(super) const fn record(code: &'static str, name: &'static str, change: fn(&mut Campaign)) -> Mutation {
    Mutation { code, name, severity: Severity::Error, claim: None, change }
}

pub(super) const fn warning(
    code: &'static str,
    name: &'static str,
    claim: Option<(&'static str, ClaimOutcome)>,
    change: fn(&mut Campaign),
) -> Mutation {
    Mutation { code, name, severity: Severity::Warning, claim, change }
}

const BLOCKED: ClaimOutcome = ClaimOutcome::Blocked;

pub(super) fn pointer(text: &str) -> ContractPointer {
    ContractPointer(text.to_owned())
}

/// A rescue run of the proposed arm at the first seed.
pub(super) fn rescue(campaign: &mut Campaign, level: u32) -> usize {
    let first = plan(PROPOSED, Confirmation, SEEDS[0], 7.55);
    bind(campaign, Plan { level, ..first })
}

/// The proposed arm's run of the first seed goes wrong.
pub(super) fn spoil(campaign: &mut Campaign) {
    let run = campaign.run_mut(PROPOSED, Confirmation, 0);
    run.facts_mut().reach = None;
    run.facts_mut().selected_value = None;
    run.facts_mut().selected_step = None;
    run.reported_value = None;
}

fn negative(campaign: &mut Campaign) -> &mut Claim {
    campaign.prereg.claims.iter_mut().find(|claim| claim.id == "worse").expect("a claim")
}

pub(super) static MUTATIONS: &[Mutation] = &[
    record("GC108", "two seeds", |campaign| {
        campaign.prereg.seeds.pop();
    }),
    record("GC108", "a seed twice", |campaign| campaign.prereg.seeds[1] = campaign.prereg.seeds[0]),
    record("GC108", "no baseline", |campaign| campaign.prereg.arms[0].role = ArmRole::Control),
    record("GC108", "two arms of one name", |campaign| {
        campaign.prereg.arms[1].name = campaign.prereg.arms[2].name.clone();
    }),
    record("GC108", "no such reference", |campaign| campaign.prereg.reference_arm = "other".to_owned()),
    record("GC108", "no nonclaims", |campaign| campaign.prereg.nonclaims.clear()),
    record("GC108", "no claims", |campaign| campaign.prereg.claims.clear()),
    record("GC108", "an interval that decides nothing", |campaign| {
        campaign.prereg.decision = Decision::PairedInterval { confidence: 0.5 };
    }),
    record("GC108", "an axis with one point", |campaign| {
        campaign.prereg.axes[0].points.pop();
    }),
    record("GC108", "the reference declares a difference", |campaign| {
        campaign.prereg.arms[0].declared = campaign.prereg.arms[1].declared.clone();
    }),
    record("GC108", "an arm may change what it is evaluated by", |campaign| {
        campaign.prereg.arms[1].declared[0].pointer = pointer("/evaluation/streams/0");
    }),
    record("GC108", "unequal trials without a reason", |campaign| {
        campaign.prereg.arms[1].tuning.num_trials = 3;
    }),
    record("GC108", "a reason for equal trials", |campaign| {
        campaign.prereg.arms[1].tuning.unequal_because = Some("why not".to_owned());
    }),
    record("GC108", "trials without a search", |campaign| campaign.prereg.arms[1].tuning.pointers.clear()),
    record("GC108", "a search without trials", |campaign| {
        campaign.prereg.arms.iter_mut().for_each(|arm| arm.tuning.num_trials = 0);
    }),
    record("GC108", "a card that nobody names", |campaign| campaign.prereg.arms[1].card = None),
    record("GC108", "a ladder without its first rung", |campaign| {
        campaign.prereg.arms[1].rescue[0].level = 2;
    }),
    record("GC108", "a claim against itself", |campaign| {
        campaign.prereg.claims[0].arms[0].against = PROPOSED.to_owned();
    }),
    record("GC108", "a claim with two seeds", |campaign| campaign.prereg.claims[0].min_seeds = 2),
    record("GC108", "a margin that nothing can exceed", |campaign| campaign.prereg.claims[1].margin = 1.5),
    record("GC108", "a claim along an axis that is not tested", |campaign| {
        campaign.prereg.claims[0].scope = vec![Axis::Width];
    }),
    record("GC108", "efficiency without the time", |campaign| {
        campaign.prereg.costs.retain(|cost| *cost != CostDimension::WallTime);
    }),
    record("GC108", "a negative claim without a positive control", |campaign| {
        campaign.prereg.arms[2].positive_control = None;
    }),
    record("GC108", "another edition", |campaign| campaign.prereg.ruleset.edition = "1999.1".to_owned()),
    error("GC109", "a ledger is missing", "better", |campaign| {
        let run = campaign.run_mut(PROPOSED, Confirmation, 0);
        run.facts = Err("proposed-3/run.db is missing".to_owned());
        run.verdict = None;
    }),
    error("GC109", "a path out of the folder", "better", |campaign| {
        let run = campaign.run_mut(PROPOSED, Confirmation, 0);
        run.later[0].obs.path = "../elsewhere/run.db".to_owned();
        run.facts = Err("a `..` in it".to_owned());
        run.verdict = None;
    }),
    error("GC109", "another run lies there", "better", |campaign| {
        let other = campaign.run_mut(PROPOSED, Confirmation, 1).facts.clone();
        campaign.run_mut(PROPOSED, Confirmation, 0).facts = other;
    }),
    error("GC109", "a run of another campaign", "better", |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).refreeze(|contract, _| {
            if let schemas::contract::Membership::Campaign { campaign, .. } = &mut contract.membership {
                *campaign = "0000000000000000-0000000000000000".into();
            }
        });
    }),
    error("GC109", "a run of another arm", "worse", |campaign| {
        campaign.run_mut(CONTROL, Confirmation, 0).refreeze(|contract, _| {
            if let schemas::contract::Membership::Campaign { arm, .. } = &mut contract.membership {
                *arm = PROPOSED.to_owned();
            }
        });
    }),
    error("GC109", "a run of another owner", "better", |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).refreeze(|contract, _| {
            contract.keys.owner = contract.keys.validator.clone();
        });
    }),
    error("GC109", "its entries were rewritten", "better", |campaign| {
        let facts = campaign.run_mut(PROPOSED, Confirmation, 0).facts_mut();
        let size = facts.num_entries;
        facts.roots.insert(size, [9; 32]);
    }),
    error("GC109", "its tail was cut", "better", |campaign| {
        let facts = campaign.run_mut(PROPOSED, Confirmation, 0).facts_mut();
        facts.roots.retain(|size, _| *size == 1);
        facts.num_entries -= 1;
    }),
    error("GC109", "a head that somebody else signed", "better", |campaign| {
        let run = campaign.run_mut(PROPOSED, Confirmation, 0);
        let size = run.facts_mut().num_entries;
        let root = run.facts_mut().roots[&size];
        run.later[0].obs.head = signed_note(&format!("governed-ledger/run/{}", run.id), size, root, 4);
    }),
    record("GC109", "a later entry with no more entries", |campaign| {
        let run = campaign.run_mut(PROPOSED, Confirmation, 0);
        run.later[0].obs.head = run.first.obs.head.clone();
    }),
    record("GC109", "a later entry says another purpose", |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).later[0].det.purpose = Tuning;
    }),
    record("GC109", "a head that is none", |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).later[0].obs.head = "head".to_owned();
    }),
    error("GC110", "bound when it had ended, and not said", "better", |campaign| {
        let run = campaign.run_mut(PROPOSED, Confirmation, 0);
        run.first = run.later.remove(0);
    }),
    error("GC110", "bound an hour after it began", "better", |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).first.time_us += 3_600_000_000;
    }),
    warning("GC110", "bound a moment after it began", None, |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).first.time_us += 300;
    }),
    warning("GC110", "bound late, as it says", Some(("better", BLOCKED)), |campaign| {
        let run = campaign.run_mut(PROPOSED, Confirmation, 0);
        run.first = run.later.remove(0);
        run.first.obs.late = Some("forgotten".to_owned());
    }),
    error("GC110", "late without a reason", "better", |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).first.obs.late = Some(" ".to_owned());
    }),
    error("GC111", "a rejected run", "better", |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).verdict = Some(Verdict::Rejected);
    }),
    error("GC111", "a run that is not over", "worse", |campaign| {
        campaign.run_mut(CONTROL, Tuning, 0).verdict = Some(Verdict::Incomplete);
    }),
    error("GC111", "a tampered run", "better", |campaign| {
        campaign.run_mut(BASELINE, Confirmation, 0).verdict = Some(Verdict::Tampered);
    }),
    error("GC112", "a failed run is left out", "better", |campaign| {
        let name = campaign.run_mut(PROPOSED, Confirmation, 1).name();
        campaign.runs.retain(|run| run.name() != name);
    }),
    error("GC112", "a trial is left out", "better", |campaign| {
        let name = campaign.run_mut(PROPOSED, Tuning, 1).name();
        campaign.runs.retain(|run| run.name() != name);
    }),
    error("GC112", "a run again until it is good", "better", |campaign| {
        let at = bind(campaign, plan(PROPOSED, Confirmation, SEEDS[1], 7.4));
        campaign.runs[at].refreeze(|contract, _| contract.name = "again".to_owned());
    }),
    error("GC112", "a seed that nobody preregistered", "better", |campaign| {
        bind(campaign, plan(PROPOSED, Confirmation, 99, 7.4));
    }),
    record("GC112", "a run of no arm", |campaign| {
        bind(campaign, plan("other", Confirmation, SEEDS[0], 7.4));
    }),
    error("GC112", "a run beside the campaign that it does not bind", "worse", |campaign| {
        campaign.unbound.push(Unbound { path: "hidden/run.db".to_owned(), run: "x".into(), has_begun: true });
    }),
    record("GC112", "a frozen run that is not bound yet", |campaign| {
        campaign.unbound.push(Unbound { path: "next/run.db".to_owned(), run: "x".into(), has_begun: false });
    }),
    record("GC112", "a database beside the campaign that cannot be read", |campaign| {
        campaign.unread.push(("hidden/run.db".to_owned(), "permission denied".to_owned()));
    }),
    error("GC113", "one contract frozen twice", "better", |campaign| {
        let other = campaign.run_mut(PROPOSED, Confirmation, 1).facts_mut().frozen.clone();
        campaign.run_mut(PROPOSED, Confirmation, 2).facts_mut().frozen = other;
    }),
    error("GC114", "a larger batch that nobody declared", "better", |campaign| {
        for n in 0..3 {
            campaign
                .run_mut(PROPOSED, Confirmation, n)
                .refreeze(|contract, _| contract.batch.accumulation = 4);
        }
    }),
    error("GC114", "another place of the card", "better", |campaign| {
        for n in 0..3 {
            campaign.run_mut(PROPOSED, Confirmation, n).refreeze(|_, card| card.groups[1].weight_decay = 0.3);
        }
    }),
    error("GC114", "one seed of an arm is longer", "worse", |campaign| {
        campaign.run_mut(BASELINE, Confirmation, 2).refreeze(|contract, _| {
            contract.stopping = StoppingRule::AtStep { step: 7 };
        });
    }),
    error("GC114", "a warm start that nobody declared", "better", |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).refreeze(|contract, _| {
            contract.initialization = Some(schemas::contract::Initialization::WarmStart(warm_start()));
        });
    }),
    error("GC114", "a trial of another model", "better", |campaign| {
        campaign.run_mut(PROPOSED, Tuning, 0).refreeze(|contract, _| {
            let schemas::contract::Architecture::LlamaDecoder(model) = &mut contract.architecture;
            model.num_layers = 2;
        });
    }),
    error("GC115", "a baseline that was never tuned", "better", |campaign| {
        campaign.runs.retain(|run| !(run.arm() == BASELINE && run.purpose() == Tuning));
    }),
    error("GC115", "more trials than were given", "better", |campaign| {
        let third = plan(PROPOSED, Tuning, 1, 7.6);
        bind(campaign, Plan { peak: 0.03, ..third });
    }),
    error("GC115", "a trial that costs more", "better", |campaign| {
        campaign.prereg.arms[1].tuning.price_tokens = 511;
    }),
    error("GC115", "trials with one recipe", "better", |campaign| {
        campaign.run_mut(BASELINE, Tuning, 1).refreeze(|contract, _| set_peak(contract, 0.01));
    }),
    error("GC115", "a baseline with the worse of its trials", "better", |campaign| {
        for n in 0..3 {
            campaign.run_mut(BASELINE, Confirmation, n).refreeze(|contract, _| set_peak(contract, 0.02));
        }
    }),
    warning("GC115", "a proposed arm with the worse of its trials", None, |campaign| {
        for n in 0..3 {
            campaign.run_mut(PROPOSED, Confirmation, n).refreeze(|contract, _| set_peak(contract, 0.02));
        }
    }),
    error("GC115", "confirmation runs with values of no trial", "better", |campaign| {
        for n in 0..3 {
            campaign.run_mut(PROPOSED, Confirmation, n).refreeze(|contract, _| set_peak(contract, 0.5));
        }
    }),
    warning("GC115", "a baseline at its defaults, priced", Some(("better", BLOCKED)), |campaign| {
        campaign.runs.retain(|run| !(run.arm() == BASELINE && run.purpose() == Tuning));
        campaign.prereg.arms[0].tuning.num_trials = 0;
        campaign.prereg.arms[1].tuning.unequal_because = Some("known values".to_owned());
    }),
    error("GC116", "one label for two policies", "better", |campaign| {
        campaign.prereg.arms[1].label = campaign.prereg.arms[0].label.clone();
    }),
    error("GC116", "two labels for one policy", "better", |campaign| {
        for n in 0..3 {
            campaign.run_mut(PROPOSED, Confirmation, n).refreeze(|_, card| {
                let schemas::policy_card::UpdateRule::Adamw { beta2, .. } = &mut card.update;
                *beta2 = 0.95;
                card.name = "a new method".to_owned();
            });
        }
    }),
    error("GC116", "another card than the preregistered one", "better", |campaign| {
        campaign.prereg.arms[1].card = Some(Digest::blake3([1; 32]));
    }),
    error("GC116", "no group is of the family that the arm stands for", "better", |campaign| {
        campaign.prereg.arms[1].family = "muon".to_owned();
    }),
    error("GC117", "AdamW does the work of another family", "better", |campaign| {
        campaign.prereg.arms[1].family = "muon".to_owned();
    }),
    error("GC117", "a fallback that is named and not there", "better", |campaign| {
        campaign.prereg.arms[1].fallback_groups = vec!["vectors".to_owned()];
    }),
    error("GC118", "a level that the arm does not have", "better", |campaign| {
        spoil(campaign);
        rescue(campaign, 1);
        rescue(campaign, 2);
    }),
    error("GC118", "the second rung before the first", "better", |campaign| {
        spoil(campaign);
        rescue(campaign, 2);
    }),
    error("GC118", "rescue of a run that went well", "better", |campaign| {
        rescue(campaign, 1);
    }),
    error("GC118", "rescue by what the level does not permit", "better", |campaign| {
        spoil(campaign);
        let at = rescue(campaign, 1);
        campaign.runs[at].refreeze(|contract, _| set_peak(contract, 0.001));
    }),
    error("GC118", "more runs than the level was given", "better", |campaign| {
        campaign.prereg.arms[1].rescue[0].max_runs = 0;
        spoil(campaign);
        rescue(campaign, 1);
    }),
    error("GC118", "a rescued trial", "better", |campaign| {
        let trial = plan(PROPOSED, Tuning, 1, 7.6);
        bind(campaign, Plan { level: 1, ..trial });
    }),
    error("GC119", "a contract with another seed", "better", |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 1).refreeze(|contract, _| {
            contract.seeds.dropout = DecimalU64(SEEDS[0]);
        });
    }),
    error("GC119", "two seeds with the same losses", "better", |campaign| {
        let trace = campaign.run_mut(PROPOSED, Confirmation, 0).facts_mut().loss_trace;
        campaign.run_mut(PROPOSED, Confirmation, 1).facts_mut().loss_trace = trace;
    }),
    warning("GC119", "two arms with the same losses", None, |campaign| {
        let trace = campaign.run_mut(BASELINE, Confirmation, 0).facts_mut().loss_trace;
        campaign.run_mut(PROPOSED, Confirmation, 0).facts_mut().loss_trace = trace;
    }),
    error("GC120", "an arm that selects on train", "better", |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).refreeze(|contract, _| {
            contract.evaluation.streams[0].split = schemas::data::Split::Train;
        });
    }),
    error("GC120", "an arm to which other values are better", "better", |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).refreeze(|contract, _| {
            contract.evaluation.streams[0].direction = schemas::contract::Direction::Maximize;
        });
    }),
    error("GC120", "an evaluation on the sealed split", "better", |campaign| {
        campaign.run_mut(PROPOSED, Tuning, 0).facts_mut().has_qualification_eval = true;
    }),
    error("GC120", "an arm with a sealed set of its own", "better", |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).refreeze(|contract, _| {
            contract.qualification.plaintext = Digest::blake3([3; 32]);
        });
    }),
    error("GC120", "the sealed set was opened while runs were to be made", "worse", |campaign| {
        let facts = campaign.run_mut(BASELINE, Confirmation, 0).facts_mut();
        let opening = Opening {
            place: "qualification.db, entry 1".to_owned(),
            sealed: Digest::blake3([3; 32]),
            time_us: facts.selected_us.expect("selected") + 1,
        };
        facts.openings = Ok(vec![opening]);
    }),
    record("GC120", "a qualifier's ledger that cannot be read", |campaign| {
        campaign.run_mut(BASELINE, Confirmation, 0).facts_mut().openings = Err("garbage".to_owned());
    }),
    record("GC121", "the costs of a missing run", |campaign| {
        campaign.run_mut(PROPOSED, Tuning, 0).facts = Err("missing".to_owned());
    }),
    error("GC121", "energy that nobody measured", "better", |campaign| {
        campaign.prereg.costs.push(CostDimension::Energy);
    }),
    error("GC121", "updates that cost no tokens", "better", |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).facts_mut().costs.tokens = 0;
    }),
    warning("GC122", "a positive control that failed", Some(("worse", BLOCKED)), |campaign| {
        campaign.run_mut(CONTROL, PositiveControl, 0).reported_value = Some(("val".to_owned(), 7.9));
    }),
    warning("GC122", "a positive control that was never run", Some(("worse", BLOCKED)), |campaign| {
        campaign.runs.retain(|run| run.purpose() != PositiveControl);
    }),
    warning("GC122", "an arm without trials", Some(("worse", BLOCKED)), |campaign| {
        campaign.prereg.arms[2].tuning.num_trials = 0;
    }),
    warning("GC122", "an arm that was not tuned", Some(("worse", BLOCKED)), |campaign| {
        campaign.runs.retain(|run| !(run.arm() == CONTROL && run.purpose() == Tuning));
    }),
    warning("GC122", "a run that its budget ended", Some(("worse", BLOCKED)), |campaign| {
        campaign.run_mut(CONTROL, Confirmation, 0).facts_mut().ended = Some(End::BudgetExhausted);
    }),
    warning("GC122", "a baseline that does not train", Some(("worse", BLOCKED)), |campaign| {
        campaign.run_mut(BASELINE, Confirmation, 0).facts_mut().reach = None;
    }),
    warning("GC122", "no difference, without a positive control", Some(("worse", BLOCKED)), |campaign| {
        negative(campaign).kind = ClaimKind::NoDifferenceFound;
        campaign.prereg.arms[2].positive_control = None;
    }),
    warning("GC123", "fewer steps alone", Some(("cheaper", BLOCKED)), |campaign| {
        campaign.prereg.claims[1].dimension = ClaimDimension::StepsToQuality;
    }),
    warning(
        "GC123",
        "fewer tokens for more time",
        Some(("cheaper", ClaimOutcome::NotSupported)),
        |campaign| {
            for n in 0..3 {
                let reach = &mut campaign.run_mut(PROPOSED, Confirmation, n).facts_mut().reach;
                reach.as_mut().expect("it reached").wall_us *= 100;
            }
        },
    ),
    warning(
        "GC123",
        "what it cost to find the values",
        Some(("cheaper", ClaimOutcome::NotSupported)),
        |campaign| {
            campaign.run_mut(PROPOSED, Tuning, 0).facts_mut().costs.device_us *= 100;
        },
    ),
    warning("GC123", "a worse end", Some(("cheaper", ClaimOutcome::NotSupported)), |campaign| {
        campaign.run_mut(PROPOSED, Confirmation, 0).reported_value = Some(("val".to_owned(), 7.95));
    }),
    warning(
        "GC124",
        "a claim along an axis on which its runs are at one point",
        Some(("worse", BLOCKED)),
        |campaign| {
            negative(campaign).scope = vec![Axis::Optimizer];
        },
    ),
    record("GC124", "a point of the axis that was never run", |campaign| {
        campaign.prereg.axes[0].points.push(vec![serde_json::json!(0.999)]);
    }),
    error("GC124", "a run at a point that was not preregistered", "worse", |campaign| {
        campaign.prereg.axes[0].points = vec![vec![serde_json::json!(0.99)], vec![serde_json::json!(0.9)]];
    }),
];

fn set_peak(contract: &mut schemas::contract::Contract, rate: f64) {
    if let schemas::contract::ScheduleShape::WarmupCosine { peak, .. } = &mut contract.schedule[0].shape {
        *peak = rate;
    }
}

pub(super) fn warm_start() -> WarmStart {
    use schemas::contract::{FileBinding, Lineage, SourceHead};
    WarmStart {
        lineage: Lineage {
            checkpoint: "s00000008-a1".into(),
            contract: Digest::sha256([1; 32]),
            head: SourceHead { root: Digest::sha256([2; 32]), size: 9 },
            model: Digest::blake3([3; 32]),
            run: "x".into(),
            step: 8,
        },
        weights: FileBinding { digest: None, num_bytes: None, path: "initial.safetensors".to_owned() },
    }
}
