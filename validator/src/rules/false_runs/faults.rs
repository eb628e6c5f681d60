//! Runs that faults struck: planned, observed, recovered from and charged; runs
//! whose damage nobody announced; and false ones among them.

use schemas::body::{Body, Kind, ObservedFault, Outcome};
use schemas::contract::{Contract, Detection, FaultKind, FaultPhase, PlannedFault, Recovery};
use schemas::digest::Digest;
use schemas::finding::{Finding, Severity};
use schemas::number::{DecimalU64, Float};
use schemas::report::RuleStatus;
use schemas::state::StateClass;

use super::attempts::body;
use super::stateful::{dropout_stream, plateau, with_shard};
use super::workers::{streaming, two};
use super::{Mutation, anomalies, check_honest, error, note, rule, scaling, warning};
use crate::derive::order::Order;
use crate::derive::plateau::Plateaus;
use crate::derive::shift::Shift;
use crate::derive::{batch, examples, state_json};
use crate::fixture::{Fixture, RunBuilder, Strike, asynchronous, rewrite_manifest};

fn planned(fault: FaultKind, phase: FaultPhase, worker: Option<u32>) -> PlannedFault {
    PlannedFault { fault, phase, seed: DecimalU64(1), step: 6, worker }
}

/// Worker 1 is killed before update 6, and seen to be lost.
pub(super) fn lost_worker() -> Strike {
    let planned = planned(FaultKind::WorkerLoss, FaultPhase::BeforeForward, Some(1));
    Strike { planned, seen: ObservedFault::WorkerLost, is_withheld: false }
}

/// The data cursor is rewound before update 6, and seen to be.
fn rewound() -> Strike {
    let planned = planned(FaultKind::DataCursorRewind, FaultPhase::BeforeForward, None);
    Strike { planned, seen: ObservedFault::StateMismatch, is_withheld: false }
}

fn rolls_back(contract: &mut Contract) {
    contract.faults.recovery = Recovery::RollBack;
}

/// A run of two workers with streams and a plateau, which loses one of them.
fn struck() -> RunBuilder {
    plateau()
        .contract(|contract| {
            let Contract { architecture, dropout_draws, state_classes, .. } = contract;
            let schemas::contract::Architecture::LlamaDecoder(decoder) = architecture;
            decoder.dropout = 0.1;
            *dropout_draws = schemas::contract::DropoutDraws::PhiloxStream;
            let declared = state_classes.iter_mut().find(|declared| declared.class == StateClass::RngCpu);
            declared.expect("a required class").not_applicable = None;
        })
        .workers(2)
        .struck_by(lost_worker())
}

fn rolled_back() -> RunBuilder {
    RunBuilder::new().contract(rolls_back).struck_by(rewound())
}

fn changed(builder: RunBuilder, change: impl FnOnce(&mut Fixture)) -> Fixture {
    let mut fixture = builder.build();
    change(&mut fixture);
    fixture
}

pub(super) fn check_honest_runs() {
    for (fixture, codes) in [
        (struck().build(), &["GL214", "GL215", "GL216", "GL217", "GL633", "GL710", "GL711"][..]),
        (asynchronous(struck().build()), &["GL216", "GL217", "GL710", "GL711"]),
        (rolled_back().build(), &["GL216", "GL217", "GL710", "GL711"]),
        (RunBuilder::new().intervention(12).build(), &["GL216"]),
        (RunBuilder::new().contract(rolls_back).crash_after_step(6).build(), &["GL217", "GL710"]),
    ] {
        check_honest(&fixture, "with a fault or an intervention");
        for code in codes {
            assert_eq!(fixture.check(rule(code)).0, RuleStatus::Passed, "{code} runs");
        }
    }
}

/// The rules of every range but the first, by code.
fn any_rule(code: &str) -> &'static dyn crate::rule::Rule {
    crate::rules::run_rules().find(|rule| rule.info().code == code).expect("a rule of the catalogue")
}

/// Damage that a run went on with, and the rules that find it.
struct Damage {
    cause: FaultKind,
    phase: FaultPhase,
    code: &'static str,
    name: &'static str,
    run: fn() -> Fixture,
}

/// Puts the plan and the injection of a damage before update 6 into a run.
fn announce(mut fixture: Fixture, damage: &Damage) -> Fixture {
    let planned = planned(damage.cause, damage.phase, None);
    fixture.frozen.contract.faults.detection = Detection::ValidatorAlone;
    fixture.frozen.contract.faults.plan.push(planned);
    let is_place = |e: &schemas::entry::Entry| e.body.kind() == Kind::Step && e.header.step == Some(6);
    let at = fixture.entries.iter().position(is_place).expect("update 6");
    let mut entry = fixture.entries[at].clone();
    (entry.header.learner, entry.header.worker) = (None, Some(schemas::ids::WorkerId(0)));
    let det = schemas::body::FaultInjectedDet { fault: damage.cause, phase: damage.phase, plan_index: 0 };
    entry.body = Body::FaultInjected(Box::new(schemas::body::Halves { det, obs: schemas::body::Nothing {} }));
    fixture.entries.insert(at, entry);
    fixture.renumber();
    fixture
}

/// Every family's damage is found with its family, whether or not anybody said
/// that it was injected; its twin without the damage has no finding of it.
#[test]
fn damage_is_attributed_with_and_without_its_announcement() {
    for damage in DAMAGES {
        let (name, code) = (damage.name, damage.code);
        let has_cause = |findings: &[Finding]| {
            findings.iter().any(|finding| finding.cause == Some(damage.cause) && finding.code == code)
        };
        let withheld = (damage.run)().check(any_rule(code)).2;
        assert!(has_cause(&withheld), "{name}, withheld: {withheld:#?}");
        let announced = announce((damage.run)(), damage);
        let found = announced.check(any_rule(code)).2;
        assert!(has_cause(&found), "{name}, announced: {found:#?}");
        if damage.cause.phases().contains(&FaultPhase::BeforeForward) {
            let (status, _, findings) = announced.check(rule("GL707"));
            assert_eq!(status, RuleStatus::Passed, "{name}: {findings:#?}");
        }
        let (_, _, seen) = announced.check(rule("GL711"));
        assert_eq!(seen.len(), 1, "{name}: {seen:#?}");
        assert_eq!(seen[0].severity, Severity::Note, "{name}: {seen:#?}");
        assert!(seen[0].message.contains(code), "{name}: {seen:#?}");
    }
    let twins = [RunBuilder::new().build(), plateau().build(), dropout_stream().build(), two().build()];
    for twin in twins.into_iter().chain([scaling::scaled().build(), streaming().build()]) {
        for rule in crate::rules::run_rules() {
            let (_, _, findings) = twin.check(rule);
            let caused: Vec<_> = findings.iter().filter(|finding| finding.cause.is_some()).collect();
            assert!(caused.is_empty(), "{}: {caused:#?}", rule.info().code);
        }
    }
}

/// Positions and ids of every step from 6 on lie elsewhere.
fn shift(f: &mut Fixture, shift: Shift) {
    let table = f.frozen.train_examples.as_ref().expect("a table").clone();
    let contract = f.frozen.contract.clone();
    for step in 6..=8u64 {
        let first = batch::first_position(&contract.batch, step).expect("small");
        let places = shift.apply(&(first..first + u64::from(contract.batch.global_examples))).expect("small");
        let mut order = Order::of(&contract, table.num_examples());
        let drawn = |visit: &mut dyn FnMut(u64)| _ = order.for_each(places.clone(), visit);
        let ids = examples::ids_digest(&table, drawn, &mut examples::Pieces::default()).expect("examples");
        let (mut ranges, mut at) = (Vec::new(), places.start);
        while at < places.end {
            let (epoch, first) = (at / table.num_examples(), at % table.num_examples());
            let num_examples = (table.num_examples() - first).min(places.end - at);
            ranges.push(schemas::body::PositionRange { epoch, first, num_examples });
            at += num_examples;
        }
        let n = usize::try_from(step - 1).expect("small");
        body!(f, Step, n, |h| {
            h.det.draws[0].ranges = ranges;
            h.det.draws[0].ids = Digest::blake3(ids);
            let examples = &mut h.det.counters.examples;
            *examples = match shift {
                Shift::Back(by) => *examples - by,
                Shift::On(by) => *examples + by,
            };
        });
    }
}

/// Replaces the text of a JSON shard of the last checkpoint.
fn with_text(f: &mut Fixture, class: StateClass, text: &[u8]) {
    let path = f.checkpoint("s00000008-a1").join(format!("{class}.json"));
    let before = std::fs::read_to_string(&path).expect("saved");
    with_shard(f, class, &before, std::str::from_utf8(text).expect("text"));
}

/// The plateaus of a run before any evaluation.
fn initial_plateaus(f: &Fixture) -> Plateaus {
    let card = f.frozen.card.as_ref().expect("a card");
    Plateaus::new(&f.frozen.contract, card.groups.iter().map(|group| group.name.as_str()))
}

/// Rates of a run whose plateaus were forgotten before update 6.
fn forget_rates(f: &mut Fixture) {
    let mut rates = Vec::new();
    body!(f, Step, 1, |h| rates.extend(h.det.updates.iter().map(|update| update.learning_rate)));
    for n in 5..8 {
        body!(f, Step, n, |h| {
            for place in 1..3 {
                h.det.updates[place].learning_rate = rates[place];
            }
        });
    }
}

/// The last two evaluations select the other way round.
fn select_other(f: &mut Fixture) {
    let mut admitted = None;
    body!(f, CandidateAdmitted, 0, |h| admitted = Some(h.clone()));
    let admitted = admitted.expect("the candidate of step 4");
    body!(f, CandidateSelected, 0, |h| {
        h.det.step = admitted.det.step;
        h.det.model = admitted.det.model;
        h.det.value = admitted.det.value;
        h.obs = admitted.obs;
    });
}

const DAMAGES: &[Damage] = &[
    Damage {
        cause: FaultKind::DataCursorRewind,
        phase: FaultPhase::BeforeForward,
        code: "GL302",
        name: "positions before their place",
        run: || changed(RunBuilder::new(), |f| shift(f, Shift::Back(3))),
    },
    Damage {
        cause: FaultKind::DataCursorSkip,
        phase: FaultPhase::BeforeForward,
        code: "GL302",
        name: "positions behind their place",
        run: || changed(RunBuilder::new(), |f| shift(f, Shift::On(2))),
    },
    Damage {
        cause: FaultKind::DataCursorRewind,
        phase: FaultPhase::BeforeForward,
        code: "GL303",
        name: "examples before their place",
        run: || changed(RunBuilder::new(), |f| shift(f, Shift::Back(1))),
    },
    Damage {
        cause: FaultKind::DataCursorSkip,
        phase: FaultPhase::BeforeForward,
        code: "GL303",
        name: "examples behind their place",
        run: || changed(RunBuilder::new(), |f| shift(f, Shift::On(4))),
    },
    Damage {
        cause: FaultKind::DataCursorSkip,
        phase: FaultPhase::BeforeForward,
        code: "GL211",
        name: "a counter that ran ahead",
        run: || changed(RunBuilder::new(), |f| shift(f, Shift::On(1))),
    },
    Damage {
        cause: FaultKind::DataCursorRewind,
        phase: FaultPhase::BeforeForward,
        code: "GL607",
        name: "a saved cursor that is behind",
        run: || {
            changed(RunBuilder::new(), |f| {
                with_shard(f, StateClass::DataCursor, "\"examples\":32", "\"examples\":30");
            })
        },
    },
    Damage {
        cause: FaultKind::RngStateLoss,
        phase: FaultPhase::BeforeForward,
        code: "GL633",
        name: "a stream that began again before update 6",
        run: || {
            changed(dropout_stream(), |f| {
                let contract = &f.frozen.contract;
                let lost = state_json::rng_cpu(contract, 0, 3).expect("small");
                let lost = String::from_utf8(lost).expect("text").replace("\"step\":3", "\"step\":8");
                with_text(f, StateClass::RngCpu, lost.as_bytes());
            })
        },
    },
    Damage {
        cause: FaultKind::SchedulerStateLoss,
        phase: FaultPhase::BeforeForward,
        code: "GL401",
        name: "a plateau that was forgotten",
        run: || changed(plateau(), forget_rates),
    },
    Damage {
        cause: FaultKind::SchedulerStateLoss,
        phase: FaultPhase::BeforeForward,
        code: "GL607",
        name: "a saved plateau that was forgotten before the last evaluation",
        run: || {
            changed(plateau(), |f| {
                let mut plateaus = initial_plateaus(f);
                let value = f.entries.iter().rev().find_map(|entry| match &entry.body {
                    Body::Eval(h) => Some((h.det.stream.clone(), h.det.value.0)),
                    _ => None,
                });
                let (stream, value) = value.expect("evaluated");
                plateaus.observe(&f.frozen.contract, &stream, value);
                let text = state_json::scheduler(8, &plateaus).expect("small");
                with_text(f, StateClass::Scheduler, &text);
            })
        },
    },
    Damage {
        cause: FaultKind::LossScalerLoss,
        phase: FaultPhase::BeforeForward,
        code: "GL630",
        name: "a scale that was forgotten",
        run: || {
            changed(scaling::scaled(), |f| {
                let initial = f.frozen.contract.numerics.loss_scaler.as_ref().expect("scaled").initial;
                body!(f, Step, 5, |h| {
                    h.det.overflow.as_mut().expect("reported").scale = Float(initial);
                });
            })
        },
    },
    Damage {
        cause: FaultKind::LossScalerLoss,
        phase: FaultPhase::BeforeForward,
        code: "GL607",
        name: "a saved scaler that was forgotten",
        run: || {
            changed(scaling::scaled(), |f| {
                let scaler = f.frozen.contract.numerics.loss_scaler.as_ref().expect("scaled");
                let mut state = crate::derive::loss_scale::ScaleState::new(scaler);
                for _ in 6..=8 {
                    state = state.after(scaler, true);
                }
                let text = state_json::loss_scaler(&state).expect("small");
                with_text(f, StateClass::LossScaler, &text);
            })
        },
    },
    Damage {
        cause: FaultKind::PrecisionPolicyChange,
        phase: FaultPhase::AfterUpdate,
        code: "GL641",
        name: "parameters that were rounded",
        run: || {
            changed(RunBuilder::new(), |f| {
                anomalies::rewrite(f, 2, StateClass::Model, anomalies::rounded);
            })
        },
    },
    Damage {
        cause: FaultKind::PrecisionPolicyChange,
        phase: FaultPhase::BeforeForward,
        code: "GL607",
        name: "a saved plan of another dtype",
        run: || {
            changed(RunBuilder::new(), |f| {
                let (found, other) = ("\"compute_dtype\":\"f32\"", "\"compute_dtype\":\"bf16\"");
                with_shard(f, StateClass::CompilerPlan, found, other);
            })
        },
    },
    Damage {
        cause: FaultKind::TopologyChange,
        phase: FaultPhase::BeforeForward,
        code: "GL214",
        name: "updates of fewer workers",
        run: || {
            changed(RunBuilder::new().workers(4), |f| {
                for n in 5..8 {
                    body!(f, Step, n, |h| {
                        h.obs.shares.truncate(2);
                        h.obs.shares[0].num_microbatches = 2;
                        (h.obs.shares[1].first_microbatch, h.obs.shares[1].num_microbatches) = (2, 2);
                        h.obs.bytes_sent = h.obs.shares[1].bytes_sent;
                    });
                }
            })
        },
    },
    Damage {
        cause: FaultKind::TopologyChange,
        phase: FaultPhase::BeforeForward,
        code: "GL607",
        name: "a saved topology of fewer workers",
        run: || {
            changed(two(), |f| {
                with_shard(f, StateClass::Topology, "\"workers\":2", "\"workers\":1");
            })
        },
    },
    Damage {
        cause: FaultKind::StaleOrDelayedGradient,
        phase: FaultPhase::BeforeExchange,
        code: "GL214",
        name: "the gradient of the update before",
        run: || {
            changed(two(), |f| {
                let mut earlier = None;
                body!(f, Step, 4, |h| earlier = Some(h.obs.shares[0].gradients));
                body!(f, Step, 5, |h| h.obs.shares[0].gradients = earlier.expect("shared"));
            })
        },
    },
    Damage {
        cause: FaultKind::ValidationLeakageInSelection,
        phase: FaultPhase::Evaluation,
        code: "GL502",
        name: "as many examples of the train split",
        run: || {
            // The second val example is short, and the second of the train split is not.
            let all_of_val = |contract: &mut Contract| contract.evaluation.streams[0].num_examples = None;
            changed(RunBuilder::new().contract(all_of_val), |f| {
                let num_examples = f.frozen.val_examples.as_ref().expect("a table").num_examples();
                let train = f.frozen.train_examples.as_ref().expect("a table");
                let tokens = examples::num_targets(train, Some(num_examples));
                body!(f, Eval, 2, |h| h.det.num_tokens = tokens);
            })
        },
    },
    Damage {
        cause: FaultKind::ValidationLeakageInSelection,
        phase: FaultPhase::Selection,
        code: "GL507",
        name: "another candidate than the best",
        run: || changed(RunBuilder::new(), select_other),
    },
    Damage {
        cause: FaultKind::SingleShardCorruption,
        phase: FaultPhase::Validated,
        code: "GL110",
        name: "one flipped bit",
        run: || {
            changed(RunBuilder::new(), |f| {
                let path = f.checkpoint("s00000008-a1").join("optimizer.safetensors");
                let mut bytes = std::fs::read(&path).expect("saved");
                *bytes.last_mut().expect("a byte") ^= 4;
                std::fs::write(&path, bytes).expect("writable");
            })
        },
    },
    Damage {
        cause: FaultKind::CheckpointWriteInterruption,
        phase: FaultPhase::Staged,
        code: "GL602",
        name: "a save that was left",
        run: || {
            changed(RunBuilder::new(), |f| {
                f.drop_where(|e| e.body.kind() == Kind::CheckpointValidated && e.header.step == Some(8));
            })
        },
    },
];

/// Whose message says what the cursor did, and by how much.
#[test]
fn a_shift_is_told_with_its_distance() {
    let fixture = changed(RunBuilder::new(), |f| shift(f, Shift::Back(3)));
    for code in ["GL302", "GL303"] {
        let (_, _, findings) = fixture.check(rule(code));
        assert_eq!(findings.len(), 3, "{findings:#?}");
        assert!(findings[0].message.contains("3 positions before"), "{findings:#?}");
    }
}

/// Two files that are wrong are no flipped bit.
#[test]
fn several_wrong_files_have_no_cause() {
    let fixture = changed(RunBuilder::new(), |f| {
        for name in ["optimizer.safetensors", "data_cursor.json"] {
            let path = f.checkpoint("s00000008-a1").join(name);
            let mut bytes = std::fs::read(&path).expect("saved");
            *bytes.last_mut().expect("a byte") ^= 4;
            std::fs::write(&path, bytes).expect("writable");
        }
    });
    let (_, _, findings) = fixture.check(any_rule("GL110"));
    assert_eq!(findings.len(), 2, "{findings:#?}");
    assert!(findings.iter().all(|finding| finding.cause.is_none()), "{findings:#?}");
}

/// The fault itself is on record in neither contract nor entries, but for what
/// the run observed; that is a warning with its cause.
#[test]
fn an_observed_fault_that_no_plan_explains_is_a_warning() {
    let withheld = |strike: Strike| Strike { is_withheld: true, ..strike };
    let fixture = RunBuilder::new().struck_by(withheld(rewound())).build();
    let (status, _, findings) = fixture.check(rule("GL710"));
    assert_eq!(status, RuleStatus::Passed);
    let told: Vec<_> = findings.iter().map(|finding| (finding.severity, finding.cause)).collect();
    assert_eq!(told, [(Severity::Warning, Some(FaultKind::DataCursorRewind))]);
    let fixture = two().struck_by(withheld(lost_worker())).build();
    let (_, _, findings) = fixture.check(rule("GL710"));
    let told: Vec<_> = findings.iter().map(|finding| (finding.severity, finding.cause)).collect();
    assert_eq!(told, [(Severity::Note, Some(FaultKind::WorkerLoss))]);
}

fn with_unseen(fault: FaultKind, phase: FaultPhase) -> Fixture {
    let damage = Damage { cause: fault, phase, code: "", name: "", run: || RunBuilder::new().build() };
    announce((damage.run)(), &damage)
}

#[test]
fn what_only_a_probe_reveals_is_said() {
    let message = |fault, phase| with_unseen(fault, phase).check(rule("GL711")).2[0].message.clone();
    let precision = message(FaultKind::PrecisionPolicyChange, FaultPhase::BeforeForward);
    assert!(precision.contains("only a probe"), "{precision}");
    let leakage = message(FaultKind::ValidationLeakageInSelection, FaultPhase::Evaluation);
    assert!(leakage.contains("only the evaluator"), "{leakage}");
    let skip = message(FaultKind::DataCursorSkip, FaultPhase::BeforeForward);
    assert!(skip.contains("unseen"), "{skip}");
}

fn cost(f: &mut Fixture, unit: usize, by: f64) {
    body!(f, Cost, unit, |h| h.obs.amount = Float(h.obs.amount.0 + by));
}

fn drop_kind(f: &mut Fixture, kind: Kind) {
    f.drop_where(|entry| entry.body.kind() == kind);
}

pub(super) const MUTATIONS: &[Mutation] = &[
    error("GL216", "fewer steps charged than were lost", || changed(struck(), |f| cost(f, 0, -1.0))),
    error("GL216", "other seconds than the lost steps took", || changed(struck(), |f| cost(f, 1, 1e-6))),
    error("GL216", "bytes of nothing", || changed(struck(), |f| cost(f, 2, 1.0))),
    error("GL216", "a quarantined checkpoint that is not charged", || {
        changed(rolled_back(), |f| body!(f, Cost, 2, |h| h.obs.amount = Float(0.0)))
    }),
    error("GL216", "a recovery that is not charged", || changed(struck(), |f| drop_kind(f, Kind::Cost))),
    error("GL216", "costs in another order", || {
        changed(struck(), |f| {
            let at = f.entries.iter().position(|e| e.body.kind() == Kind::Cost).expect("charged");
            f.entries.swap(at, at + 1);
            f.renumber();
        })
    }),
    error("GL216", "a cost that is charged twice", || {
        changed(struck(), |f| f.repeat_where(|e| e.body.kind() == Kind::Cost))
    }),
    error("GL216", "other minutes than the intervention names", || {
        changed(RunBuilder::new().intervention(12), |f| cost(f, 0, 1.0))
    }),
    error("GL216", "minutes that are not charged", || {
        changed(RunBuilder::new().intervention(12), |f| drop_kind(f, Kind::Cost))
    }),
    error("GL216", "minutes without an intervention", || {
        changed(RunBuilder::new().intervention(12), |f| drop_kind(f, Kind::Intervention))
    }),
    error("GL217", "an attempt that goes on after its fault", || {
        changed(struck(), |f| {
            let at = f.entries.iter().position(|e| e.body.kind() == Kind::FaultObserved).expect("seen");
            let step = f.entries[..at].iter().rfind(|e| e.body.kind() == Kind::Step).cloned();
            f.entries.insert(at + 1, step.expect("a step before"));
            f.renumber();
        })
    }),
    error("GL217", "an attempt that its fault did not end", || {
        changed(struck(), |f| body!(f, AttemptEnd, 0, |h| h.det.outcome = Outcome::Interrupted))
    }),
    error("GL217", "a fault that nobody recovered from", || {
        changed(struck(), |f| drop_kind(f, Kind::FaultRecovered))
    }),
    error("GL217", "a state in doubt that the run goes on beside", || {
        changed(rolled_back(), |f| drop_kind(f, Kind::CheckpointQuarantined))
    }),
    error("GL217", "a policy that would have rolled back", || {
        changed(RunBuilder::new().struck_by(rewound()), |f| rolls_back(&mut f.frozen.contract))
    }),
    error("GL710", "a cause that cannot look like this", || {
        changed(struck(), |f| {
            body!(f, FaultObserved, 0, |h| h.det.cause = Some(FaultKind::DataCursorSkip));
        })
    }),
    error("GL710", "another family than was injected", || {
        changed(RunBuilder::new().struck_by(rewound()), |f| {
            body!(f, FaultObserved, 0, |h| h.det.cause = Some(FaultKind::RngStateLoss));
        })
    }),
    error("GL710", "a crash that is taken for an interrupted save", || {
        changed(RunBuilder::new().crash_after_step(6), |f| {
            let cause = Some(FaultKind::CheckpointWriteInterruption);
            body!(f, FaultObserved, 0, |h| h.det.cause = cause);
        })
    }),
    error("GL710", "an interrupted save that is taken for a lost worker", || {
        changed(RunBuilder::new().crash_after_step(6), |f| {
            f.drop_where(|e| e.body.kind() == Kind::CheckpointValidated && e.header.step == Some(4));
        })
    }),
    warning("GL710", "a cause that no injection explains", || {
        let strike = Strike { is_withheld: true, ..rewound() };
        RunBuilder::new().struck_by(strike).build()
    }),
    note("GL710", "a crash that nobody planned", || RunBuilder::new().crash_after_step(6).build()),
    warning("GL711", "a fault that nobody saw", || {
        with_unseen(FaultKind::DataCursorSkip, FaultPhase::BeforeForward)
    }),
    warning("GL711", "a fault that only a probe can reveal", || {
        with_unseen(FaultKind::PrecisionPolicyChange, FaultPhase::BeforeForward)
    }),
    note("GL711", "a fault that the run saw", || struck().build()),
    error("GL213", "an injection of a learner", || {
        changed(struck(), |f| {
            f.change(Kind::FaultInjected, 0, |entry| {
                entry.header.learner = Some(schemas::ids::LearnerId(0));
            });
        })
    }),
    error("GL607", "a saved topology of fewer workers", || {
        changed(two(), |f| with_shard(f, StateClass::Topology, "\"workers\":2", "\"workers\":1"))
    }),
    error("GL604", "a stream that no worker has", || {
        changed(streaming(), |f| {
            let manifest = rewrite_manifest(f.folder.path(), "checkpoints/s00000008-a1", |manifest| {
                let captured = manifest.classes.iter_mut().filter(|of| of.class == StateClass::RngCpu);
                captured.for_each(|captured| captured.worker = None);
            });
            body!(f, CheckpointDurablyCommitted, 2, |h| h.obs.manifest = manifest);
        })
    }),
];
