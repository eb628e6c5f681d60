//! Damage that a run went on with, of every family, and the rules that find it
//! with its family, whether or not anybody said that it was injected.

use schemas::body::{Body, FaultInjectedDet, Halves, Kind, Nothing, PositionRange};
use schemas::contract::{Contract, Detection, FaultKind, FaultPhase};
use schemas::digest::Digest;
use schemas::entry::Entry;
use schemas::finding::{Finding, Severity};
use schemas::ids::WorkerId;
use schemas::number::Float;
use schemas::report::RuleStatus;
use schemas::state::StateClass;

use super::attempts::body;
use super::faults::planned;
use super::stateful::{changed, dropout_stream, plateau, with_shard};
use super::workers::{streaming, two};
use super::{anomalies, rule, scaling};
use crate::derive::order::Order;
use crate::derive::plateau::Plateaus;
use crate::derive::shift::Shift;
use crate::derive::{batch, examples, state_json};
use crate::fixture::{Fixture, RunBuilder, StoredRun};

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
pub(super) fn announce(mut fixture: Fixture, (cause, phase): (FaultKind, FaultPhase)) -> Fixture {
    let planned = planned(cause, phase, None);
    fixture.frozen.contract.faults.detection = Detection::ValidatorAlone;
    fixture.frozen.contract.faults.plan.push(planned);
    let is_place = |e: &Entry| e.body.kind() == Kind::Step && e.header.step == Some(6);
    let at = fixture.entries.iter().position(is_place).expect("update 6");
    let mut entry = fixture.entries[at].clone();
    (entry.header.learner, entry.header.worker) = (None, Some(WorkerId(0)));
    let det = FaultInjectedDet { fault: cause, phase, plan_index: 0 };
    entry.body = Body::FaultInjected(Box::new(Halves { det, obs: Nothing {} }));
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
        let announced = announce((damage.run)(), (damage.cause, damage.phase));
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
            ranges.push(PositionRange { epoch, first, num_examples });
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
            for (update, rate) in h.det.updates.iter_mut().zip(&rates).skip(1) {
                update.learning_rate = *rate;
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

/// In the report as text, as JSON and as SARIF.
#[test]
fn a_cause_is_shown_wherever_findings_are() {
    let stored = StoredRun::new(RunBuilder::new().build());
    let path = stored.folder().join("checkpoints/s00000004-a1/optimizer.safetensors");
    let mut bytes = std::fs::read(&path).expect("saved");
    *bytes.last_mut().expect("a byte") ^= 1;
    std::fs::write(&path, bytes).expect("writable");
    let report = stored.audit();
    let text = crate::render::text(&report);
    assert!(text.contains("    cause:    single_shard_corruption\n"), "{text}");
    let json = serde_json::to_string(&report).expect("serialises");
    assert!(json.contains("\"cause\":\"single_shard_corruption\""), "{json}");
    let again: schemas::report::Report = serde_json::from_str(&json).expect("a report");
    assert_eq!(again.findings, report.findings);
    let sarif = crate::render::sarif(&report);
    let results = sarif["runs"][0]["results"].as_array().expect("results");
    let caused = |result: &&serde_json::Value| result["properties"]["cause"] == "single_shard_corruption";
    assert_eq!(results.iter().filter(caused).count(), 1, "{sarif}");
    assert!(results.iter().any(|result| result["properties"].get("cause").is_none()), "{sarif}");
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
