//! The collective against one process: the same bits, from shares that nobody
//! else reads for, and every way in which a worker can be wrong.

#![allow(missing_docs, reason = "a test program")]

mod common;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use burn::tensor::FloatDType;
use schemas::body::{ObservedFault, WorkerShare};
use schemas::contract::*;
use schemas::data::Split;
use schemas::state::StateClass;
use tempfile::TempDir;
use trainer::engine::{Engine, StepOutcome, TRAIN_STREAM};
use trainer::order::DataOrder;
use trainer::run::error::RunError;
use trainer::workers::{Collective, Exchange, FaultPlace, Plan, WorkerError, WorkerFault};

use common::Fixture;

static NEVER: AtomicBool = AtomicBool::new(false);

/// A run by several workers, and the same contract executed by one process.
struct Together {
    collective: Collective,
    engine: Engine,
    fixture: Fixture,
    folder: TempDir,
}

fn start(fixture: &Fixture, engine: &Engine, folder: &Path, num_workers: u32) -> Result<Collective> {
    let plan = Plan {
        card: &fixture.card,
        collective: fixture.contract.topology.collective.as_ref().context("several workers")?,
        contract: &fixture.contract,
        data: &fixture.data,
        detects: fixture.contract.faults.detection.is_everywhere(),
        folder,
        keeps_last: !fixture.contract.faults.plan.is_empty(),
        num_threads: 1,
        num_workers,
        parameters: &fixture.parameters,
        program: Some(env!("CARGO_BIN_EXE_trainer").into()),
    };
    Collective::start(&plan, engine, &NEVER)?.context("nothing interrupts it")
}

impl Together {
    fn new((num_workers, num_microbatches): (u32, u32), edit: impl Fn(&mut Contract)) -> Result<Self> {
        let folder = TempDir::with_prefix("trainer-workers-")?;
        let mut fixture = Fixture::write(folder.path(), &common::decoder(), 2, num_microbatches)?;
        fixture.share(num_workers);
        edit(&mut fixture.contract);
        let engine = fixture.engine(folder.path())?;
        let collective = start(&fixture, &engine, folder.path(), num_workers)?;
        Ok(Self { collective, engine, fixture, folder })
    }

    /// One process with the same contract, at the initial state.
    fn alone(&self) -> Result<Engine> {
        self.fixture.engine(self.folder.path())
    }

    fn update(&mut self) -> Result<(StepOutcome, Exchange), RunError> {
        let done = self.collective.update(&mut self.engine, &NEVER)?;
        Ok(done.expect("nothing interrupts it"))
    }

    /// The error of the next update, which has to fail.
    fn fails(&mut self) -> Result<WorkerError> {
        match self.update() {
            Ok(_) => bail!("the update was made"),
            Err(RunError::Worker(error)) => Ok(error),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes updates, and the same ones in one process, and compares everything.
    fn check(&mut self, num_steps: u64) -> Result<Vec<Exchange>> {
        let mut alone = self.alone()?;
        let mut exchanges = Vec::new();
        let mut worse = 0.0;
        for step in 1..=num_steps {
            worse += 10.0;
            let expected = alone.step(&NEVER)?.context("nothing interrupts it")?;
            let (outcome, exchange) = self.update()?;
            assert_eq!(outcome, expected, "step {step}");
            assert_eq!(self.engine.capture()?, alone.capture()?, "step {step}");
            if self.fixture.contract.averages.is_some() {
                assert_eq!(self.engine.capture_averages()?, alone.capture_averages()?, "step {step}");
            }
            assert_eq!(self.engine.dropout_streams(), alone.dropout_streams(), "step {step}");
            assert_eq!(self.engine.shuffle_state(), alone.shuffle_state(), "step {step}");
            assert_eq!(self.engine.loss_scale(), alone.loss_scale(), "step {step}");
            for engine in [&mut alone, &mut self.engine] {
                let value = engine.evaluate(&self.fixture.contract.evaluation.streams[0], &NEVER)?;
                let value = value.context("nothing interrupts it")?.value;
                // What gets worse lets a plateau fall.
                engine.observe_evaluation("val", value + worse);
            }
            exchanges.push(exchange);
        }
        Ok(exchanges)
    }
}

fn with_streams(contract: &mut Contract) {
    contract.dropout_draws = DropoutDraws::PhiloxStream;
}

#[test]
fn workers_give_the_bits_of_one_process() -> Result<()> {
    // Some of no power of two, and one microbatch each.
    for shape in [(2, 2), (2, 6), (3, 6), (4, 4), (5, 5)] {
        let mut together = Together::new(shape, |_| ())?;
        let exchanges = together.check(4)?;
        let (num_workers, num_microbatches) = shape;
        for (step, exchange) in (1u64..).zip(&exchanges) {
            let each = num_microbatches / num_workers;
            let parts: Vec<(u32, u32, u32)> = exchange
                .shares
                .iter()
                .map(|share| (share.worker.0, share.first_microbatch, share.num_microbatches))
                .collect();
            let expected: Vec<_> = (0..num_workers).map(|worker| (worker, worker * each, each)).collect();
            assert_eq!(parts, expected);
            // The process that records keeps what it computes; the others send
            // at least their sums.
            let num_bytes = together.engine.num_gradient_bytes() as u64;
            let (own, others) = exchange.shares.split_first().context("a share")?;
            assert_eq!(own.bytes_sent, 0);
            assert!(others.iter().all(|share| share.bytes_sent > num_bytes && share.duration_us > 0));
            let is_compared = step.is_multiple_of(2);
            assert_eq!(exchange.replicas.len(), if is_compared { num_workers as usize } else { 0 });
            if is_compared {
                let own = exchange.replicas[0].digest;
                assert!(exchange.replicas.iter().all(|replica| replica.digest == own));
            }
        }
    }
    Ok(())
}

#[test]
fn every_kind_of_state_goes_with_them() -> Result<()> {
    let mut averaged = Together::new((2, 6), |contract| {
        contract.averages = Some(Averages { decay: 0.75, first_step: 2, order: AverageOrder::BeforeUpdate });
    })?;
    averaged.check(4)?;
    let mut shuffled =
        Together::new((3, 3), |contract| contract.order = OrderPolicy::ShuffleBuffer { size: 5 })?;
    shuffled.check(4)?;
    // Scales that overflow at first, so that steps are skipped.
    let mut half = Together::new((2, 4), |contract| {
        contract.numerics.compute_dtype = Dtype::F16;
        let initial = 2f64.powi(100);
        contract.numerics.loss_scaler =
            Some(LossScaler { backoff: 2f64.powi(-40), growth: 2.0, growth_interval: 2, initial });
    })?;
    half.check(6)?;
    assert!(half.engine.loss_scale().context("a scaler")?.skipped > 0, "no step was skipped");
    let mut falling = Together::new((2, 2), |contract| {
        for schedule in &mut contract.schedule {
            schedule.shape = ScheduleShape::Plateau {
                cooldown: 0,
                factor: 0.5,
                floor: 1e-6,
                min_delta: 0.0,
                patience: 0,
                rate: 1e-2,
                stream: "val".to_owned(),
            };
        }
    })?;
    falling.check(4)?;
    assert!(falling.engine.plateaus()[0].rate.0 < 1e-2, "no rate fell");
    Ok(())
}

#[test]
fn each_worker_draws_masks_from_a_stream_of_its_own() -> Result<()> {
    let mut together = Together::new((4, 4), with_streams)?;
    together.check(3)?;
    let streams = together.engine.dropout_streams();
    let mut keys: Vec<_> = streams.iter().map(|(key, _)| *key).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 4, "two workers have one stream");
    assert!(streams.iter().all(|(_, drawn)| *drawn == streams[0].1 && *drawn > 0));

    // The masks of all workers' microbatches from the first one's stream are
    // other masks.
    let mut of_one = Fixture::write(together.folder.path(), &common::decoder(), 2, 4)?;
    with_streams(&mut of_one.contract);
    let mut of_one = of_one.engine(together.folder.path())?;
    let mut of_four = together.alone()?;
    let [first, second] = [&mut of_one, &mut of_four].map(|engine| engine.step(&NEVER));
    assert_ne!(first?.context("a step")?.loss.to_bits(), second?.context("a step")?.loss.to_bits());
    Ok(())
}

/// C09: a stream that is not restored, of any worker, makes a difference.
#[test]
fn one_lost_stream_of_four_makes_another_update() -> Result<()> {
    let mut together = Together::new((4, 4), with_streams)?;
    together.check(2)?;
    let next = together.update()?.0;
    for lost in 0..4 {
        let mut alone = together.alone()?;
        for _ in 0..2 {
            alone.step(&NEVER)?;
        }
        let mut whole = alone.clone();
        alone.restore_dropout_stream(lost, 0);
        assert_eq!(whole.step(&NEVER)?.context("a step")?, next);
        let other = alone.step(&NEVER)?.context("a step")?;
        assert_ne!(other.credit, next.credit, "worker {lost}");
        assert_eq!(other.draws, next.draws, "worker {lost}");
    }
    Ok(())
}

/// Workers that join later take over where the run stands.
#[test]
fn a_new_collective_goes_on_from_the_engine_that_it_is_given() -> Result<()> {
    let mut together = Together::new((2, 4), |contract| {
        with_streams(contract);
        contract.order = OrderPolicy::ShuffleBuffer { size: 3 };
    })?;
    let mut alone = together.alone()?;
    for _ in 0..3 {
        together.update()?;
        alone.step(&NEVER)?;
    }
    let folder = together.folder.path().to_owned();
    together.collective = start(&together.fixture, &together.engine, &folder, 2)?;
    for _ in 0..3 {
        let expected = alone.step(&NEVER)?.context("a step")?;
        assert_eq!(together.update()?.0, expected);
    }
    assert_eq!(together.engine.capture()?, alone.capture()?);
    Ok(())
}

/// A worker is given text in which only the examples of its own microbatches are
/// what was frozen: it needs no others, and sees at once when one of its own is
/// another.
#[test]
fn a_worker_reads_only_the_examples_of_its_own_microbatches() -> Result<()> {
    const NUM_STEPS: u64 = 3;
    let mut together = Together::new((2, 4), |_| ())?;
    let contract = &together.fixture.contract;
    let global = u64::from(contract.batch.global_examples);
    let seed = contract.seeds.data_order.0;
    let mut order = DataOrder::new(TRAIN_STREAM, seed, together.fixture.train.len() as u64);
    let own: Vec<usize> = (0..NUM_STEPS)
        .flat_map(|step| step * global + global / 2..(step + 1) * global)
        .map(|position| usize::try_from(order.example(position)).expect("a small table"))
        .collect();
    let shard = together.fixture.data.shards[0].clone();
    let train = together.fixture.train.clone();
    assert_eq!(shard.split, Split::Train);
    let whole = std::fs::read(together.folder.path().join(&shard.path))?;
    let covered = |example: usize| {
        let record = &train[example];
        let first = usize::try_from(record.offset).expect("a small shard");
        first..=first + record.num_targets as usize
    };
    let mut view = vec![0u8; whole.len()];
    for example in &own {
        view[covered(*example)].copy_from_slice(&whole[covered(*example)]);
    }
    let num_hidden = view.iter().zip(&whole).filter(|(seen, whole)| seen != whole).count();
    assert!(num_hidden * 3 > whole.len(), "hardly anything is hidden");
    let folder = TempDir::with_prefix("trainer-view-")?;
    std::fs::write(folder.path().join(&shard.path), &view)?;
    together.collective = start(&together.fixture, &together.engine, folder.path(), 2)?;
    together.check(NUM_STEPS)?;

    // The control: one of its own.
    view[*covered(own[0]).start()] ^= 1;
    std::fs::write(folder.path().join(&shard.path), &view)?;
    together.engine = together.alone()?;
    together.collective = start(&together.fixture, &together.engine, folder.path(), 2)?;
    let error = together.fails()?;
    assert!(matches!(error, WorkerError::Failed { worker: 1, is_data: true, .. }), "{error}");
    assert_eq!(error.fault(), Some(ObservedFault::DataChanged));
    Ok(())
}

#[test]
fn a_worker_that_dies_is_named() -> Result<()> {
    for place in [FaultPlace::BeforeForward, FaultPlace::AfterBackward] {
        let mut together = Together::new((3, 3), |_| ())?;
        together.check(1)?;
        together.collective.order(2, WorkerFault::Die(place));
        let error = together.fails()?;
        assert!(matches!(error, WorkerError::Lost { worker: 2, step: 2, .. }), "{error}");
        assert!(error.to_string().contains("signal: 9"), "{error}");
        assert_eq!(error.fault(), Some(ObservedFault::WorkerLost));
        assert_eq!(error.cause(), Some(FaultKind::WorkerLoss));
    }
    Ok(())
}

#[test]
fn a_worker_that_answers_late_is_named() -> Result<()> {
    for place in [FaultPlace::BeforeForward, FaultPlace::AfterBackward] {
        let mut together = Together::new((3, 3), |contract| {
            let collective = contract.topology.collective.as_mut().expect("several workers");
            collective.timeout_ms = 3_000;
        })?;
        together.collective.order(1, WorkerFault::Stall(place));
        let started = Instant::now();
        let error = together.fails()?;
        assert!(started.elapsed() >= Duration::from_secs(3), "its time was not over");
        assert!(matches!(error, WorkerError::Late { worker: 1, step: 1, .. }), "{error}");
        assert_eq!(error.fault(), Some(ObservedFault::WorkerTimeout));
        assert_eq!(error.cause(), Some(FaultKind::CollectiveTimeout));
        // It is not waited for.
        let started = Instant::now();
        drop(together);
        assert!(started.elapsed() < Duration::from_secs(3), "a worker was waited for");
    }
    Ok(())
}

/// The fixture with a plan, which lets workers keep what they sent last.
fn with_a_plan(contract: &mut Contract) {
    contract.faults.plan.push(PlannedFault {
        fault: FaultKind::StaleOrDelayedGradient,
        phase: FaultPhase::InExchange,
        seed: schemas::number::DecimalU64(1),
        step: 3,
        worker: Some(1),
    });
}

#[test]
fn a_gradient_of_an_earlier_update_is_found_under_either_number() -> Result<()> {
    for (relabelled, worker) in [(false, 1), (true, 1), (true, 0)] {
        let mut together = Together::new((2, 2), with_a_plan)?;
        together.check(2)?;
        together.collective.order(worker, WorkerFault::Stale { relabelled });
        let error = together.fails()?;
        let is_named = matches!(
            &error,
            WorkerError::Disagrees { worker: found, step: 3, is_stale: true, .. } if *found == worker
        );
        assert!(is_named, "{error}");
        assert_eq!(error.fault(), Some(ObservedFault::WorkerDisagrees));
        assert_eq!(error.cause(), Some(FaultKind::StaleOrDelayedGradient));
    }
    Ok(())
}

#[test]
fn where_the_audit_is_tried_alone_a_stale_gradient_goes_into_the_record() -> Result<()> {
    let mut together = Together::new((2, 2), |contract| {
        with_a_plan(contract);
        contract.faults.detection = Detection::ValidatorAlone;
    })?;
    let gradients = |shares: &[WorkerShare]| shares.iter().map(|share| share.gradients).collect::<Vec<_>>();
    let before = gradients(&together.update()?.1.shares);
    together.collective.order(1, WorkerFault::Stale { relabelled: true });
    let stale = gradients(&together.update()?.1.shares);
    assert_eq!(before[1], stale[1], "it did not fire");
    assert_ne!(before[0], stale[0]);
    let after = gradients(&together.update()?.1.shares);
    assert!(!after.contains(&stale[1]), "it acts once");
    // A frame of another number is never taken.
    together.collective.order(1, WorkerFault::Stale { relabelled: false });
    let error = together.fails()?;
    assert!(matches!(error, WorkerError::Disagrees { worker: 1, is_stale: true, .. }), "{error}");
    Ok(())
}

#[test]
fn a_replica_that_changed_is_named_before_its_step_is_over() -> Result<()> {
    for (damaged, step) in [(1, 1), (2, 2)] {
        let mut together = Together::new((3, 3), |_| ())?;
        together.check(step - 1)?;
        together.collective.order(damaged, WorkerFault::Damage);
        // Compared at every second step.
        if step == 1 {
            together.update()?;
        }
        let error = together.fails()?;
        let is_named = matches!(
            &error,
            WorkerError::Disagrees { worker, step: 2, is_stale: false, .. } if *worker == damaged
        );
        assert!(is_named, "{error}");
        assert_eq!((error.fault(), error.cause()), (Some(ObservedFault::WorkerDisagrees), None));
    }
    // The one that records, where the others agree.
    let mut together = Together::new((3, 3), |_| ())?;
    together.update()?;
    together.engine.damage()?;
    let error = together.fails()?;
    assert!(matches!(error, WorkerError::Disagrees { worker: 0, step: 2, .. }), "{error}");
    Ok(())
}

#[test]
fn another_partition_gives_the_same_bits() -> Result<()> {
    let mut together = Together::new((4, 4), |_| ())?;
    let mut alone = together.alone()?;
    for (num_workers, expected) in [(2, 2), (1, 1), (4, 4)] {
        // It lasts for one update.
        if num_workers < 4 {
            together.collective.execute_with(num_workers);
        }
        let (outcome, exchange) = together.update()?;
        assert_eq!(exchange.shares.len(), expected);
        assert_eq!(outcome, alone.step(&NEVER)?.context("a step")?);
        assert_eq!(together.engine.capture()?, alone.capture()?);
    }
    together.collective.execute_with(3);
    let error = together.fails()?;
    assert!(error.to_string().contains("4 microbatches cannot be shared by 3 workers"), "{error}");
    Ok(())
}

/// State that changed in one process alone is another replica, until it is given
/// to the others.
#[test]
fn state_that_changed_here_is_given_to_the_others() -> Result<()> {
    let mut together = Together::new((2, 4), |contract| {
        with_streams(contract);
        contract.order = OrderPolicy::ShuffleBuffer { size: 3 };
    })?;
    let mut alone = together.alone()?;
    together.check(1)?;
    alone.step(&NEVER)?;
    for engine in [&mut alone, &mut together.engine] {
        engine.damage()?;
        engine.reset_dropout_streams();
        engine.move_cursor(3)?;
        engine.compute_in(FloatDType::BF16);
    }
    assert!(together.collective.restate(&together.engine, &NEVER)?);
    for _ in 0..2 {
        assert_eq!(together.update()?.0, alone.step(&NEVER)?.context("a step")?);
        assert_eq!(together.engine.capture()?, alone.capture()?);
    }
    Ok(())
}

#[test]
fn an_interrupted_update_leaves_the_engine_as_it_was() -> Result<()> {
    let mut together = Together::new((2, 4), with_streams)?;
    together.check(1)?;
    let before = (together.engine.capture()?, together.engine.dropout_streams(), together.engine.consumed());
    let now = AtomicBool::new(true);
    assert!(together.collective.update(&mut together.engine, &now)?.is_none());
    let after = (together.engine.capture()?, together.engine.dropout_streams(), together.engine.consumed());
    assert!(before == after);
    Ok(())
}

#[test]
fn the_class_of_streams_is_captured_once_for_each_worker() -> Result<()> {
    let together = Together::new((3, 3), with_streams)?;
    let names = trainer::state::registry::component(StateClass::RngCpu)
        .context("a component")?
        .shards_in(&together.engine);
    assert_eq!(names, ["rng_cpu.0.json", "rng_cpu.1.json", "rng_cpu.2.json"]);
    Ok(())
}
