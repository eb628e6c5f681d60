//! Contracts that say that they belong to a campaign.

use ledger::campaign::{CampaignFreezeError, freeze_campaign, preregistration_path};
use ledger::create::CreateError;
use ledger::freeze::PreregistrationError;
use ledger::keys::{KeyRing, Role};
use ledger::reader::Reader;
use schemas::entry::LedgerKind;
use serde_json::json;

use super::{Campaign, preregistration, request};
use crate::fixture::{Fixture, lines};

#[test]
fn a_campaign_is_frozen_once_and_completely() {
    let campaign = Campaign::new();
    let state = campaign.state();
    let digest = state.contract.digest;
    assert_eq!(campaign.frozen.created.digest, digest);
    assert!(state.contract.campaign.as_str().starts_with(&digest.hex()[..16]));
    assert_eq!((state.num_entries, state.runs.len(), state.missing_confirmations().len()), (1, 0, 6));
    let beside = std::fs::read(preregistration_path(&campaign.ledger())).expect("written");
    assert_eq!(beside, state.contract.canonical);
    let reader = Reader::open(&campaign.ledger()).expect("readable");
    let identity = reader.identity().expect("a head");
    assert_eq!(identity, (LedgerKind::Campaign, state.contract.campaign));
    let verified = ledger::verify::verify_head(&campaign.ledger(), &ledger::verify::HeadChoice::Beside, &[]);
    let verified = verified.expect("signed by the owner");
    assert_eq!((verified.head.size, verified.role), (1, Some(Role::Owner)));

    let document = preregistration(&campaign.fixture);
    let request = request(&campaign.fixture, &document);
    let keys = campaign.fixture.key_ring();
    let again = freeze_campaign(&request, None, &keys, "test 0").expect_err("it exists");
    assert!(matches!(again, CampaignFreezeError::Create(CreateError::Exists { .. })), "{again}");
    // Another freeze of the same file is another campaign.
    let second = campaign.fixture.path("second.db");
    let second = freeze_campaign(&request, Some(&second), &keys, "test 0").expect("nothing is wrong");
    assert_eq!(second.created.digest, digest);
    assert_ne!(second.created.run, campaign.frozen.created.run);
    // A file that is something else stays.
    let third = campaign.fixture.path("third.db");
    campaign.fixture.write("third.preregistration.json", b"mine");
    let occupied = freeze_campaign(&request, Some(&third), &keys, "test 0").expect_err("occupied");
    assert!(matches!(occupied, CampaignFreezeError::Occupied { .. }), "{occupied}");
    assert!(!third.exists());
}

#[test]
fn another_owner_does_not_freeze_it() {
    let fixture = Fixture::new();
    let request = request(&fixture, &preregistration(&fixture));
    let others = fixture.path("others");
    KeyRing::generate(&others, Role::Owner).expect("a fresh key");
    let keys = KeyRing::open(&others).expect("keys");
    let error = freeze_campaign(&request, None, &keys, "test 0").expect_err("another key");
    let CampaignFreezeError::Preregistration(PreregistrationError::Refused { problems, .. }) = error else {
        panic!("another error: {error}");
    };
    assert_eq!(problems[0].pointer, "/keys/owner/public");
    assert!(!fixture.path("campaign.db").exists());
}

#[test]
fn a_run_of_a_campaign_is_frozen_with_the_preregistration() {
    let mut campaign = Campaign::new();
    let frozen = campaign.run("dry", "dry", 1, 2, "2");
    let pointers: Vec<&str> =
        frozen.checked.artifacts.iter().map(|artifact| artifact.pointer.as_str()).collect();
    assert_eq!(pointers[3], "/membership/preregistration", "{pointers:?}");
    assert_eq!(frozen.checked.artifacts[3].bytes, campaign.frozen.checked.canonical);
}

/// Freezes a run of arm `plain` with seed 1 after a change.
#[track_caller]
fn check(change: impl FnOnce(&mut Fixture), expected: &[&str]) {
    let mut campaign = Campaign::new();
    let fixture = campaign.join("plain", 1, 0, "1");
    change(fixture);
    let found = lines(fixture.check());
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (line, words) in found.iter().zip(expected) {
        assert!(line.contains(words), "{line} lacks {words}");
    }
}

#[test]
fn what_the_preregistration_does_not_have_is_refused() {
    check(
        |fixture| {
            fixture.set("/membership/arm", json!("sgd"));
        },
        &["/membership/arm: \"sgd\" is no arm"],
    );
    check(
        |fixture| {
            fixture.set("/membership/trial", json!(0)).set("/membership/rescue_level", json!(1));
        },
        &["/membership/trial: is 0", "/membership/rescue_level: is 1; the arm's rescue ladder has 0 levels"],
    );
    check(
        |fixture| {
            fixture.set("/membership/campaign", json!("0123456789abcdef-0123456789abcdef"));
        },
        &["/membership/campaign: is 0123456789abcdef-0123456789abcdef; a campaign of this"],
    );
    check(
        |fixture| {
            fixture.set("/seeds/dropout", json!("2"));
        },
        &["/seeds: are 1, 2 and 1"],
    );
    check(
        |fixture| {
            let pointers = ["/evaluation/streams/0/name", "/selection/stream", "/quality_target/stream"];
            for pointer in pointers {
                fixture.set(pointer, json!("other"));
            }
        },
        &[
            "/evaluation/streams: has no stream \"val\"",
            "/selection/stream: is \"other\"; the campaign compares the quality of \"val\"",
        ],
    );
    check(
        |fixture| fixture.edit_file("policy.json", |card| card["version"] = json!("other")),
        &["/update/card/digest: is blake3:"],
    );
    check(
        |fixture| {
            let keys = fixture.path("others");
            let owner = KeyRing::generate(&keys, Role::Owner).expect("a fresh key");
            fixture.set("/keys/owner/public", json!(owner.public_hex()));
        },
        &["/keys/owner/public: is "],
    );
}

#[test]
fn another_file_than_the_canonical_one_is_refused() {
    check(
        |fixture| {
            fixture.set("/membership/preregistration/path", json!("none.json"));
        },
        &["/membership/preregistration/path: "],
    );
    check(
        |fixture| {
            let bytes = std::fs::read(fixture.path("campaign.preregistration.json")).expect("readable");
            fixture.write("loose.json", &[&bytes, &b"\n"[..]].concat());
            fixture.set("/membership/preregistration/path", json!("loose.json"));
        },
        // The bytes give another digest, so that the identifier does not fit either.
        &["loose.json : is not in canonical bytes", "/membership/campaign"],
    );
    check(
        |fixture| {
            fixture.write("else.json", b"{\"a\":1}");
            fixture.set("/membership/preregistration/path", json!("else.json"));
        },
        &["else.json /a: unknown member", "else.json : missing field"],
    );
    check(
        |fixture| {
            let digest = format!("blake3:{}", "00".repeat(32));
            fixture.set("/membership/preregistration/digest", json!(digest));
        },
        &["/membership/preregistration/digest: campaign.preregistration.json has digest"],
    );
}
