//! Contracts whose terms contradict themselves, or that nothing could break.

use schemas::body::CheckpointStage;
use schemas::contract::{
    Architecture, Contract, CreditRule, Detection, Direction, Dtype, EquivalenceClass, KeepPolicy,
    LlamaDecoder, MidAccumulation, OrderPolicy, PermittedRewrite, ScheduleShape, StoppingRule, Tolerance,
    WitnessKey,
};
use schemas::digest::Digest;
use schemas::policy_card::{Approximation, Clipping, PolicyCard};
use schemas::report::RuleStatus;

use super::stateful::{dropout_stream, plateau, shuffle_buffer};
use super::workers::two;
use super::{Mutation, changed, error, note, rule, warning};
use crate::fixture::{Fixture, RunBuilder, external_loop, table_of};

/// An honest run under another contract than it was made under.
fn under(change: impl FnOnce(&mut Contract)) -> Fixture {
    changed(|f| change(&mut f.frozen.contract))
}

fn of(builder: RunBuilder, change: impl FnOnce(&mut Contract)) -> Fixture {
    let mut fixture = builder.build();
    change(&mut fixture.frozen.contract);
    fixture
}

fn card(change: impl FnOnce(&mut PolicyCard)) -> Fixture {
    changed(|f| change(f.frozen.card.as_mut().expect("the fixture has a card")))
}

fn shape(contract: &mut Contract) -> &mut LlamaDecoder {
    let Architecture::LlamaDecoder(shape) = &mut contract.architecture;
    shape
}

fn cosine(contract: &mut Contract, change: impl FnOnce(&mut f64, &mut f64, &mut u64)) {
    if let ScheduleShape::WarmupCosine { floor, peak, warmup_steps, .. } = &mut contract.schedule[0].shape {
        change(floor, peak, warmup_steps);
    }
}

fn chosen(contract: &mut Contract, every_steps: Option<u64>, pinned: Vec<u64>) {
    contract.checkpoints.keep = KeepPolicy::Chosen { best: 1, every_steps, last: 1, pinned };
}

/// Val examples of which so many are those of the train split.
fn shared(count: usize) -> Fixture {
    changed(|f| {
        let train: Vec<_> = f.frozen.train_examples.as_ref().expect("a table").iter().collect();
        let mut val: Vec<_> = f.frozen.val_examples.as_ref().expect("a table").iter().collect();
        for (own, taken) in val.iter_mut().zip(&train).take(count) {
            own.id = taken.id;
        }
        f.frozen.val_examples = Ok(table_of(&val));
    })
}

/// What `ledger freeze` takes is taken here too, at the ends of each range.
#[test]
fn terms_at_the_ends_of_their_ranges_pass() {
    let bounds = |contract: &mut Contract| {
        contract.resume.class = EquivalenceClass::OperationOrderBounded;
        contract.resume.tolerance = Some(Tolerance { max_absolute: 0.0, max_relative: 0.999 });
    };
    assert_eq!(under(bounds).check(rule("GL648")).0, RuleStatus::Passed);
    let kept = |contract: &mut Contract| chosen(contract, Some(8), vec![4, 8]);
    assert_eq!(under(kept).check(rule("GL649")).0, RuleStatus::Passed);
    let url = |contract: &mut Contract| "s3://bucket/runs".clone_into(&mut contract.checkpoints.store);
    assert_eq!(under(url).check(rule("GL649")).0, RuleStatus::Passed);
    let tokens = |contract: &mut Contract| contract.budget.max_tokens = Some(10_000);
    assert_eq!(under(tokens).check(rule("GL223")).0, RuleStatus::Passed);
    let searched = |card: &mut PolicyCard| {
        card.tuning.num_trials = 3;
        "rates".clone_into(&mut card.tuning.search_space);
        card.clipping = Clipping::None;
    };
    let (status, _, findings) = card(searched).check(rule("GL412"));
    assert_eq!((status, findings.len()), (RuleStatus::Passed, 0), "{findings:#?}");
}

/// The code of a loop that is not the project's has a name of its own.
#[test]
fn an_external_loop_names_its_own_implementation() {
    let mut fixture = external_loop().build();
    let card = fixture.frozen.card.as_mut().expect("the fixture has a card");
    "torch.optim.AdamW".clone_into(&mut card.implementation.name);
    assert_eq!(fixture.check(rule("GL412")).0, RuleStatus::Passed);
    let card = fixture.frozen.card.as_mut().expect("the fixture has a card");
    card.implementation.name.clear();
    assert_eq!(fixture.check(rule("GL412")).0, RuleStatus::Failed);
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL222", "kernels that are chosen by timing", || under(|c| c.plan.autotune = true)),
    error("GL222", "code that is named by another hash", || {
        under(|c| c.code.digest = Digest::blake3([7; 32]))
    }),
    error("GL222", "features in no order", || {
        under(|c| c.code.features = vec!["b".to_owned(), "a".to_owned()])
    }),
    error("GL222", "a compiler without a name", || under(|c| c.environment.rustc.clear())),
    error("GL222", "parameters in half precision", || under(|c| c.numerics.parameter_dtype = Dtype::Bf16)),
    error("GL222", "another credit rule", || {
        under(|c| c.credit = CreditRule::Evolution { antithetic: true, population: 4, rank: None })
    }),
    error("GL222", "two learners", || under(|c| c.topology.learners = 2)),
    error("GL222", "several workers without a collective", || of(two(), |c| c.topology.collective = None)),
    error("GL222", "a worker that may be silent for ever", || {
        of(two(), |c| {
            c.topology.collective.as_mut().expect("several").heartbeat_ms = 20_000;
        })
    }),
    error("GL222", "a number of workers that none could replace", || {
        under(|c| c.topology.permitted_rewrites.push(PermittedRewrite::WorkerCount))
    }),
    error("GL222", "detectors that are off for nothing", || {
        under(|c| c.faults.detection = Detection::ValidatorAlone)
    }),
    error("GL222", "a floor that the run begins below", || under(|c| c.floors.free_disk_bytes = 1 << 60)),
    error("GL223", "no attempt", || under(|c| c.budget.max_attempts = 0)),
    error("GL223", "an end beyond the budget", || under(|c| c.budget.max_steps = 7)),
    error("GL223", "an end before the first update", || {
        under(|c| c.stopping = StoppingRule::AtStep { step: 0 })
    }),
    error("GL223", "tokens that do not last", || under(|c| c.budget.max_tokens = Some(20))),
    error("GL223", "patience that cannot run out", || {
        under(|c| {
            c.stopping =
                StoppingRule::Patience { max_step: 8, min_delta: 0.0, patience: 3, stream: "val".to_owned() };
        })
    }),
    warning("GL310", "a val example that is trained on", || shared(1)),
    warning("GL310", "val examples that are trained on", || shared(100)),
    note("GL310", "a train example that is there twice", || {
        changed(|f| {
            let mut train: Vec<_> = f.frozen.train_examples.as_ref().expect("a table").iter().collect();
            train[1].id = train[0].id;
            f.frozen.train_examples = Ok(table_of(&train));
        })
    }),
    error("GL412", "an approximation of an exact update", || {
        card(|card| {
            let (algorithm, precision) = ("newton_schulz".to_owned(), "F32".to_owned());
            card.approximation = Some(Approximation { algorithm, num_iterations: 5, precision });
        })
    }),
    error("GL412", "a fallback that nothing executes", || {
        card(|card| {
            let groups = vec!["vectors".to_owned()];
            card.fallback = Some(schemas::policy_card::Fallback { groups, update: card.update.clone() });
        })
    }),
    error("GL412", "an end of its own", || {
        card(|card| card.stopping_rule = Some("when it is good".to_owned()))
    }),
    error("GL412", "state that is sharded", || {
        card(|card| "sharded".clone_into(&mut card.distribution.placement))
    }),
    error("GL412", "workers that are said to exchange nothing", || {
        let mut fixture = two().build();
        let card = fixture.frozen.card.as_mut().expect("the fixture has a card");
        "none".clone_into(&mut card.distribution.communication);
        fixture
    }),
    error("GL412", "a norm that nothing exceeds", || {
        card(|card| card.clipping = Clipping::GlobalNorm { epsilon: 1e-6, max_norm: 1e9 })
    }),
    error("GL412", "an implementation without a name", || card(|card| card.implementation.name.clear())),
    error("GL412", "an implementation that is not the trainer's", || {
        card(|card| "torch.optim.AdamW".clone_into(&mut card.implementation.name))
    }),
    warning("GL412", "a search without trials", || {
        card(|card| "rates".clone_into(&mut card.tuning.search_space))
    }),
    error("GL413", "a floor above its peak", || under(|c| cosine(c, |floor, peak, _| *floor = *peak * 2.0))),
    error("GL413", "a peak of nothing", || {
        under(|c| cosine(c, |floor, peak, _| (*floor, *peak) = (0.0, 0.0)))
    }),
    error("GL413", "a warmup that never ends", || under(|c| cosine(c, |_, _, warmup| *warmup = 8))),
    error("GL413", "a plateau of no stream", || {
        of(plateau(), |c| {
            if let ScheduleShape::Plateau { stream, .. } = &mut c.schedule[1].shape {
                stream.push('x');
            }
        })
    }),
    error("GL413", "a plateau that cannot fall before the end", || {
        of(plateau(), |c| {
            if let ScheduleShape::Plateau { patience, .. } = &mut c.schedule[1].shape {
                *patience = 9;
            }
        })
    }),
    error("GL414", "a vocabulary that no tokenizer has", || under(|c| shape(c).vocab_size = 512)),
    error("GL414", "heads that do not share", || under(|c| shape(c).num_kv_heads = 3)),
    error("GL414", "everything dropped", || under(|c| shape(c).dropout = 1.0)),
    error("GL414", "a constant below 0", || under(|c| shape(c).rms_norm_eps = -1e-5)),
    error("GL414", "a stream of masks of nothing", || of(dropout_stream(), |c| shape(c).dropout = 0.0)),
    error("GL414", "a buffer that shuffles nothing", || {
        of(shuffle_buffer(), |c| c.order = OrderPolicy::ShuffleBuffer { size: 1 })
    }),
    error("GL414", "averages that never begin", || {
        let mut fixture =
            super::checkpoints::with_averages(schemas::contract::AverageOrder::AfterUpdate, |_| {});
        fixture.frozen.contract.averages.as_mut().expect("kept").first_step = 9;
        fixture
    }),
    error("GL512", "a direction that is turned round", || {
        under(|c| c.evaluation.streams[0].direction = Direction::Maximize)
    }),
    error("GL512", "more examples than there are", || {
        under(|c| c.evaluation.streams[0].num_examples = Some(1000))
    }),
    error("GL512", "a target that knowing nothing reaches", || {
        under(|c| c.quality_target.as_mut().expect("a target").threshold = 8.5)
    }),
    error("GL512", "a target from nowhere", || {
        under(|c| c.quality_target.as_mut().expect("a target").derivation.clear())
    }),
    error("GL512", "candidates that hardly have values", || {
        under(|c| c.evaluation.streams[0].every_steps = 3)
    }),
    error("GL648", "a resume that is closer than the run", || {
        under(|c| c.numerics.determinism = EquivalenceClass::Statistical)
    }),
    error("GL648", "bounds that nothing exceeds", || {
        under(|c| {
            c.resume.class = EquivalenceClass::OperationOrderBounded;
            c.resume.tolerance = Some(Tolerance { max_absolute: 1e9, max_relative: 0.0 });
        })
    }),
    error("GL648", "bounds beside equality", || {
        under(|c| c.resume.tolerance = Some(Tolerance { max_absolute: 1e-6, max_relative: 0.0 }))
    }),
    error("GL648", "a statistical claim without a test", || {
        under(|c| c.resume.class = EquivalenceClass::Statistical)
    }),
    error("GL649", "a candidate that need not be read back", || {
        under(|c| c.checkpoints.candidate_stage = CheckpointStage::Staged)
    }),
    error("GL649", "retention that keeps everything", || under(|c| chosen(c, Some(4), Vec::new()))),
    error("GL649", "a pinned step that is not saved", || under(|c| chosen(c, None, vec![3]))),
    error("GL649", "checkpoints among the data", || under(|c| "data".clone_into(&mut c.checkpoints.store))),
    error("GL649", "checkpoints outside of the folder", || {
        under(|c| "../elsewhere".clone_into(&mut c.checkpoints.store))
    }),
    error("GL649", "a store with a password", || {
        under(|c| "s3://me:secret@bucket/x".clone_into(&mut c.checkpoints.store))
    }),
    error("GL649", "a window that is over", || {
        under(|c| {
            c.checkpoints.mid_accumulation = MidAccumulation::SaveGradients;
            c.checkpoints.after_microbatches = Some(2);
        })
    }),
    error("GL701", "a run without a name", || under(|c| c.name.clear())),
    error("GL703", "a set that is sealed to nobody", || under(|c| c.keys.qualifier_recipient.push('q'))),
    error("GL703", "a witness whose key is none", || {
        under(|c| {
            let (name, public) = ("witness".to_owned(), "07".to_owned());
            c.keys.witnesses.push(WitnessKey { name, public });
        })
    }),
    error("GL705", "a sealed set that is not bound", || under(|c| c.qualification.sealed.digest = None)),
    error("GL703", "witnesses that nobody asks", || {
        under(|c| {
            let (name, public) = ("witness".to_owned(), "07".repeat(32));
            c.keys.witnesses.push(WitnessKey { name, public });
        })
    }),
];
