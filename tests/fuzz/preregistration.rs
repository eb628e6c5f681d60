//! Preregistrations of campaigns: as a person writes them, and as they are frozen.
//!
//! The freeze asks for more than an audit: that texts say something, that the
//! authority has not expired, that a place is a member of a contract. So what it
//! takes an audit takes, and not the other way round.

use std::path::Path;

use ledger::freeze::{CheckedPreregistration, PreregistrationRequest, check_preregistration_text};
use schemas::campaign::CampaignKeys;
use schemas::contract::PublicKey;
use schemas::digest::Digest;

use super::memory::bounded;
use super::run;

/// As for contracts; a freeze lists what is wrong, each with its place, and reads a
/// document again for each member that it does not know.
const FACTOR: usize = 1024;

/// The day of the freeze: after the corpus was made.
const TODAY: &str = "2026-06-01";

/// Keys for a file that leaves its own to the freeze.
fn keys() -> CampaignKeys {
    let key = |digits: &str| PublicKey { host: Digest::sha256([7; 32]), public: digits.to_owned() };
    CampaignKeys {
        owner: key("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"),
        validator: key("278117fc144c72340f67d0f2316e8386ceffbf2b2428c9c51fef7c597f1d426e"),
    }
}

fn frozen(bytes: &[u8]) -> Option<CheckedPreregistration> {
    let request = PreregistrationRequest {
        keys_when_null: Some(keys()),
        preregistration: Path::new("preregistration.json").to_owned(),
        today: Some(TODAY.to_owned()),
    };
    check_preregistration_text(&request, bytes).ok()
}

fn property(bytes: &[u8]) -> bool {
    let read = bounded(bytes, FACTOR, || validator::fuzzing::preregistration(bytes));
    assert_eq!(read.by_campaign, read.by_run, "the audits of a campaign and of its runs read alike");
    let Some(frozen) = bounded(bytes, FACTOR, || frozen(bytes)) else { return false };
    // What is frozen is read as the same, and nothing is found in it.
    let again = validator::fuzzing::preregistration(&frozen.canonical);
    assert_eq!(again.by_campaign.as_ref(), Some(&frozen.preregistration), "frozen and read");
    assert_eq!(again.problems, [""; 0], "what the freeze takes, the audit takes");
    // There is one form of it, for both.
    assert_eq!(frozen.canonical == bytes, read.by_campaign.is_some(), "one form");
    let twice = self::frozen(&frozen.canonical).expect("what was frozen can be frozen");
    assert!(twice.canonical == frozen.canonical, "frozen twice it is other bytes");
    true
}

#[test]
fn preregistration() {
    run::target("preregistration", property);
}
