//! Who may, who answers, who signs, and what is not claimed.

use std::collections::BTreeMap;

use ed25519_dalek::VerifyingKey;
use schemas::contract::{Authority, Contract, Keys, Residual};
use schemas::entry::Extension;

use super::date;
use super::problem::Problems;
use crate::note::is_key_name;

/// The edition of rules that this version knows.
pub const RULESET_EDITION: &str = "2026.1";

/// How many witnesses a contract may ask for.
const QUORUM_HINT: &str = "ask for at least one and at most as many as are named; an audit accepts only what so many of them cosigned (`ledger witness add`)";

/// Length of an age X25519 recipient: `age1` and 58 characters of Bech32.
const AGE_RECIPIENT_CHARS: usize = 62;

pub(super) fn check(contract: &Contract, today: &str, problems: &mut Problems) {
    problems.require_text(&contract.name, "/name");
    let purpose = &contract.purpose;
    problems.require_text(&purpose.statement, "/purpose/statement");
    check_grant(&purpose.authority, "/purpose/authority", today, problems);
    check_list(&contract.nonclaims, "/nonclaims", "say what the run will not show", problems);
    check_residuals(&contract.residuals, problems);
    problems.require_text(&contract.retention.custodian, "/retention/custodian");
    problems.require_count(u64::from(contract.retention.days), "/retention/days");
    let edition = &contract.ruleset.edition;
    problems.require(
        edition == RULESET_EDITION,
        "/ruleset/edition",
        format!("is {edition:?}; expected {RULESET_EDITION:?}"),
        "an edition that this version does not know could not be audited by it",
    );
    check_extensions(&contract.extensions, problems);
    check_keys(&contract.keys, problems);
}

/// A grant at `at`: who allowed what, until when, and what is not allowed.
pub(super) fn check_grant(grant: &Authority, at: &str, today: &str, problems: &mut Problems) {
    problems.require_text(&grant.granted_by, format!("{at}/granted_by"));
    problems.require_text(&grant.scope, format!("{at}/scope"));
    date::check(grant.expires.as_deref(), &format!("{at}/expires"), today, problems);
    check_list(
        &grant.non_authorities,
        &format!("{at}/non_authorities"),
        "say what the run has no authority to do, such as to release",
        problems,
    );
}

pub(super) fn check_residuals(residuals: &[Residual], problems: &mut Problems) {
    for (index, residual) in residuals.iter().enumerate() {
        problems.require_text(&residual.description, format!("/residuals/{index}/description"));
        problems.require_text(&residual.owner, format!("/residuals/{index}/owner"));
    }
}

pub(super) fn check_list(list: &[String], pointer: &str, hint: &str, problems: &mut Problems) {
    problems.require(!list.is_empty(), pointer, "is empty; expected at least one", hint);
    for (index, text) in list.iter().enumerate() {
        problems.require_text(text, format!("{pointer}/{index}"));
    }
}

pub(super) fn check_extensions(extensions: &[Extension], problems: &mut Problems) {
    for (index, extension) in extensions.iter().enumerate() {
        let pointer = format!("/extensions/{index}");
        problems.require_text(&extension.name, format!("{pointer}/name"));
        problems.require(
            !extension.critical,
            &pointer,
            format!("{:?} is critical and not known to this version", extension.name),
            "no audit of this edition could accept the run; make it non-critical or leave it out",
        );
        let earlier = &extensions[..index];
        problems.require(
            earlier.iter().all(|other| other.name != extension.name),
            format!("{pointer}/name"),
            format!("{:?} is the name of an earlier extension", extension.name),
            "name each extension once",
        );
    }
}

fn check_keys(keys: &Keys, problems: &mut Problems) {
    let roles = [
        ("owner", &keys.owner.public),
        ("trainer", &keys.trainer.public),
        ("validator", &keys.validator.public),
        ("qualifier", &keys.qualifier.public),
    ];
    let mut holders: BTreeMap<&str, String> = BTreeMap::new();
    for (role, public) in roles {
        let pointer = format!("/keys/{role}/public");
        check_public(public, &pointer, problems);
        if let Some(other) = holders.insert(public, role.to_owned()) {
            problems.add(
                pointer,
                format!("is the key of {other} too"),
                "one key cannot check what it signed itself; make a key for each role with `ledger keygen`",
            );
        }
    }
    for (index, witness) in keys.witnesses.iter().enumerate() {
        let pointer = format!("/keys/witnesses/{index}");
        problems.require(
            is_key_name(&witness.name),
            format!("{pointer}/name"),
            format!("{:?} is no name of a key", witness.name),
            "a name in signed notes is not empty and has neither white space nor `+`, such as witness.example/w1",
        );
        problems.require(
            keys.witnesses[..index].iter().all(|other| other.name != witness.name),
            format!("{pointer}/name"),
            format!("{:?} is the name of an earlier witness", witness.name),
            "name each witness once",
        );
        check_public(&witness.public, &format!("{pointer}/public"), problems);
        if let Some(other) = holders.insert(&witness.public, format!("witness {index}")) {
            let hint = "a witness is somebody else; ask for a key of their own";
            problems.add(format!("{pointer}/public"), format!("is the key of {other} too"), hint);
        }
    }
    let quorum = keys.witness_quorum;
    let num_witnesses = keys.witnesses.len();
    problems.require(
        quorum as usize <= num_witnesses,
        "/keys/witness_quorum",
        format!("is {quorum}; {num_witnesses} witnesses are named"),
        QUORUM_HINT,
    );
    problems.require(
        quorum > 0 || num_witnesses == 0,
        "/keys/witness_quorum",
        "is 0 although witnesses are named: nothing would be asked of them",
        QUORUM_HINT,
    );
    let recipient = &keys.qualifier_recipient;
    let is_recipient = recipient.len() == AGE_RECIPIENT_CHARS
        && recipient.starts_with("age1")
        && recipient.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    problems.require(
        is_recipient,
        "/keys/qualifier_recipient",
        format!("{recipient:?} is no age recipient"),
        "`ledger keygen --role qualifier` makes one: `age1` and 58 characters",
    );
}

/// A key that would verify under RFC 8032 and is not of small order.
pub(super) fn check_public(public: &str, pointer: &str, problems: &mut Problems) {
    let key = schemas::digest::decode_hex(public)
        .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok())
        .map(|bytes| VerifyingKey::from_bytes(&bytes));
    let message = match key {
        None => format!("{public:?} is not 64 lower-case hex digits"),
        Some(Err(_)) => "is no point of the curve".to_owned(),
        Some(Ok(key)) if key.is_weak() => "is a key of small order, which verifies forgeries".to_owned(),
        Some(Ok(_)) => return,
    };
    problems.add(pointer, message, "take `public` from the key file that `ledger keygen` made");
}
