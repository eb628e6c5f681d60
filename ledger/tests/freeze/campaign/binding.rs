//! Runs that are bound, and what is refused.

use std::path::Path;

use ledger::campaign::{BindError, BindRequest, Bound, bind};
use ledger::freeze::freeze;
use ledger::keys::{KeyRing, Role};
use ledger::reader::Reader;
use ledger::recorder::{Record, Recorder};
use schemas::body::{Body, Halves, RunStartDet, RunStartObs};
use schemas::campaign::RunPurpose;
use schemas::digest::Digest;
use serde_json::json;

use super::Campaign;
use crate::fixture::Fixture;

impl Campaign {
    fn bind(&self, run: &Path, purpose: Option<RunPurpose>, late: Option<&str>) -> Result<Bound, BindError> {
        let late = late.map(ToOwned::to_owned);
        let request = BindRequest { campaign: self.ledger(), late, purpose, run: run.to_owned() };
        bind(&request, &self.fixture.key_ring())
    }

    /// Freezes a run and binds it before it is trained.
    #[track_caller]
    fn bound(
        &mut self,
        purpose: RunPurpose,
        name: &str,
        (arm, trial, level, seed): (&str, u32, u32, &str),
    ) -> Bound {
        let frozen = self.run(name, arm, trial, level, seed);
        self.bind(&frozen.ledger, Some(purpose), None).expect("nothing stands against it")
    }

    /// Freezes a run that is then refused.
    #[track_caller]
    fn refused(
        &mut self,
        purpose: RunPurpose,
        name: &str,
        (arm, trial, level, seed): (&str, u32, u32, &str),
    ) -> BindError {
        let frozen = self.run(name, arm, trial, level, seed);
        let num_entries = self.state().num_entries;
        let error = self.bind(&frozen.ledger, Some(purpose), None).expect_err("refused");
        assert!(error.is_refusal() && !error.hint().is_empty(), "{error}");
        assert_eq!(self.state().num_entries, num_entries, "something was written");
        error
    }
}

/// Appends to a run's ledger what a trainer writes first.
fn begin(fixture: &Fixture, run: &Path) {
    let trainer = fixture.key_ring().get(Role::Trainer).expect("a key");
    let recorder = Recorder::open(run, trainer).expect("a ledger that may be written");
    let det = RunStartDet { contract: Digest::sha256([0; 32]) };
    let obs = RunStartObs { tool: "test 0".to_owned() };
    recorder.append_durable(Record::new(Body::RunStart(Box::new(Halves { det, obs })))).expect("durable");
    recorder.close().expect("closed");
}

use RunPurpose::{Confirmation, PositiveControl, Tuning};

#[test]
fn a_run_is_bound_before_it_is_trained_and_again_when_it_moved_on() {
    let mut campaign = Campaign::new();
    let first = campaign.bound(Confirmation, "runs/plain-1", ("plain", 1, 0, "1"));
    assert_eq!((first.head.size, first.receipt.map(|receipt| receipt.index)), (1, Some(1)));
    assert_eq!((first.path.as_str(), first.det.seed.0), ("runs/plain-1.db", 1));
    let run = campaign.fixture.path("runs/plain-1.db");
    // The same again is no entry.
    let again = campaign.bind(&run, None, None).expect("bound");
    assert_eq!((again.receipt, campaign.state().num_entries), (None, 2));

    begin(&campaign.fixture, &run);
    let moved = campaign.bind(&run, Some(Confirmation), None).expect("bound");
    assert_eq!((moved.head.size, moved.receipt.map(|receipt| receipt.index)), (2, Some(2)));
    assert_eq!(moved.det, first.det);
    let state = campaign.state();
    assert_eq!((state.runs.len(), state.runs[0].first_entry, state.runs[0].head.size), (1, 1, 2));
    assert_eq!(state.missing_confirmations().len(), 5);
    let reader = Reader::open(&campaign.ledger()).expect("readable");
    let Body::CampaignRun(body) = reader.entry(2).expect("an entry").body else { panic!("a run") };
    let newest = Reader::open(&run).expect("readable").heads().expect("heads").pop().expect("one");
    assert_eq!((body.obs.head, body.obs.late), (newest.note, None));

    let error = campaign.bind(&run, Some(Tuning), None).expect_err("it stays what it was");
    assert!(matches!(error, BindError::PurposeChanged { was: Confirmation, .. }), "{error}");
    let error = campaign.bind(&run, None, Some("why")).expect_err("it is bound");
    assert!(matches!(error, BindError::NotLate { .. }), "{error}");
}

#[test]
fn what_was_trained_already_needs_a_reason_that_stays_on_record() {
    let mut campaign = Campaign::new();
    let frozen = campaign.run("plain", "plain", 1, 0, "1");
    begin(&campaign.fixture, &frozen.ledger);
    let error = campaign.bind(&frozen.ledger, Some(Confirmation), None).expect_err("late");
    assert!(matches!(error, BindError::Late { num_entries: 2, .. }), "{error}");
    assert_eq!(campaign.state().num_entries, 1);
    campaign.bind(&frozen.ledger, Some(Confirmation), Some("an outage")).expect("bound with its reason");
    let state = campaign.state();
    assert_eq!(state.runs[0].late.as_deref(), Some("an outage"));

    let fresh = campaign.run("dry", "dry", 1, 0, "1");
    let error = campaign.bind(&fresh.ledger, Some(Confirmation), Some("why")).expect_err("not late");
    assert!(matches!(error, BindError::NotLate { .. }), "{error}");
    let error = campaign.bind(&fresh.ledger, None, None).expect_err("for what?");
    assert!(matches!(error, BindError::NoPurpose { .. }), "{error}");
}

#[test]
fn a_ledger_with_another_history_is_not_followed() {
    let mut campaign = Campaign::new();
    campaign.bound(Confirmation, "runs/plain", ("plain", 1, 0, "1"));
    let run = campaign.fixture.path("runs/plain.db");
    begin(&campaign.fixture, &run);
    let copy = |from: &str, to: &str| {
        for suffix in ["", ".head"] {
            let (from, to) = (format!("{from}{suffix}"), format!("{to}{suffix}"));
            std::fs::copy(campaign.fixture.path(&from), campaign.fixture.path(&to)).expect("copied");
        }
    };
    copy("runs/plain.db", "runs/before.db");
    begin(&campaign.fixture, &run);
    campaign.bind(&run, None, None).expect("bound at three entries");
    // An earlier copy is behind what was bound, and a continuation of it is another history.
    let other = campaign.fixture.path("runs/before.db");
    for num_entries in [2, 3] {
        let error = campaign.bind(&other, None, None).expect_err("another history");
        assert!(matches!(error, BindError::OtherHistory { size: 3, .. }), "{num_entries}: {error}");
        begin(&campaign.fixture, &other);
    }
    // A ledger that lost rows behind its own head is not looked at further.
    copy("runs/plain.db", "runs/cut.db");
    let cut = campaign.fixture.path("runs/cut.db");
    std::fs::copy(campaign.fixture.path("runs/before.db.head"), cut.with_extension("db.head"))
        .expect("copied");
    let error = campaign.bind(&cut, None, None).expect_err("behind its head");
    assert!(matches!(error, BindError::Head { .. }), "{error}");
}

#[test]
fn places_are_taken_once() {
    let mut campaign = Campaign::new();
    campaign.bound(Confirmation, "a", ("plain", 1, 0, "1"));
    let error = campaign.refused(Confirmation, "b", ("plain", 1, 0, "2"));
    assert!(error.to_string().contains("trial 1 of arm \"plain\" is taken"), "{error}");
    let error = campaign.refused(Confirmation, "c", ("plain", 2, 0, "1"));
    assert!(error.to_string().contains("at seed 1 and level 0 is taken"), "{error}");
    let error = campaign.refused(Confirmation, "d", ("plain", 2, 0, "7"));
    assert!(error.to_string().contains("7 is no seed of the campaign's"), "{error}");
    // Another seed is a trial's good right, and a gap is said.
    let bound = campaign.bound(Tuning, "e", ("plain", 4, 0, "7"));
    assert_eq!(bound.missing_trials, [2, 3]);
    assert_eq!(campaign.state().next_trial("plain"), 5);
    campaign.bound(Confirmation, "f", ("dry", 1, 0, "1"));
    campaign.bound(Confirmation, "g", ("dry", 2, 1, "1"));
    campaign.bound(PositiveControl, "h", ("dry", 3, 0, "9"));
}

#[test]
fn a_search_ends_where_it_was_said_to_end() {
    let mut campaign = Campaign::new();
    campaign.bound(Tuning, "a", ("plain", 1, 0, "7"));
    let error = campaign.refused(Tuning, "b", ("plain", 2, 0, "8"));
    assert!(error.to_string().contains("has had its 1 trials of tuning"), "{error}");
    campaign.bound(Confirmation, "c", ("dry", 1, 1, "1"));
    let error = campaign.refused(Confirmation, "d", ("dry", 2, 1, "2"));
    assert!(error.to_string().contains("has had its 1 runs of rescue level 1"), "{error}");
    // What was trained all the same is recorded, so that the audit sees it.
    let run = campaign.fixture.path("b.db");
    begin(&campaign.fixture, &run);
    campaign.bind(&run, Some(Tuning), Some("it was run by mistake")).expect("bound");
    assert_eq!(campaign.state().of_arm("plain").count(), 2);
}

#[test]
fn runs_of_nobody_or_another_are_refused() {
    let mut campaign = Campaign::new();
    let fixture = &campaign.fixture;
    fixture.write_json("contract.json", &fixture.contract);
    let alone = fixture.path("alone.db");
    freeze(&fixture.request(), Some(&alone), &fixture.key_ring(), "test 0").expect("nothing is wrong");
    let error = campaign.bind(&alone, Some(Confirmation), None).expect_err("alone");
    assert!(matches!(error, BindError::Standalone { .. }), "{error}");

    // A campaign that was frozen from the same file is another one.
    let run = campaign.run("plain", "plain", 1, 0, "1").ledger;
    let request = super::request(&campaign.fixture, &super::preregistration(&campaign.fixture));
    let second = campaign.fixture.path("second.db");
    let keys = campaign.fixture.key_ring();
    ledger::campaign::freeze_campaign(&request, Some(&second), &keys, "test 0").expect("nothing is wrong");
    let request = BindRequest { campaign: second, late: None, purpose: Some(Confirmation), run: run.clone() };
    let error = bind(&request, &keys).expect_err("another campaign");
    assert!(matches!(error, BindError::OtherCampaign { .. }), "{error}");

    let elsewhere = tempfile::tempdir().expect("a folder");
    let outside = elsewhere.path().join("run.db");
    for suffix in ["", ".head"] {
        let from = format!("{}{suffix}", run.display());
        std::fs::copy(from, elsewhere.path().join(format!("run.db{suffix}"))).expect("copied");
    }
    let error = campaign.bind(&outside, Some(Confirmation), None).expect_err("outside");
    assert!(matches!(error, BindError::Outside { .. }), "{error}");

    let others = campaign.fixture.path("others");
    KeyRing::generate(&others, Role::Owner).expect("a fresh key");
    let request = BindRequest { campaign: campaign.ledger(), late: None, purpose: Some(Confirmation), run };
    let error = bind(&request, &KeyRing::open(&others).expect("keys")).expect_err("another owner");
    assert!(matches!(error, BindError::Owner { .. }) && !error.is_refusal(), "{error}");
    let campaign_as_run = campaign.ledger();
    let error = campaign.bind(&campaign_as_run, Some(Confirmation), None).expect_err("a campaign is no run");
    assert!(matches!(error, BindError::Run(_)), "{error}");
    assert_eq!(json!(campaign.state().runs.len()), json!(0));
}
