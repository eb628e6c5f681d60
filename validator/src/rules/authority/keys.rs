//! Roles have keys of their own, and witnesses are named so that they can be asked.

use schemas::report::Route;

use crate::ed25519::PublicKey;
use crate::frozen::Frozen;
use crate::note::is_name;
use crate::rule::{At, Check, Outcome};
use crate::rules::common::{at_end, declare_rule};

declare_rule!(
    /// `GL703`.
    KeysRule,
    {
        code: "GL703",
        name: "distinct-keys",
        what: "Owner, trainer, validator, qualifier and witnesses have different keys, and the witness quorum can be reached. Witnesses have \
               usable keys under different names, each of which can stand in a signed note, and are not named without a quorum; the set is sealed \
               to an age recipient.",
        why: "One key in two roles signs its own homework: the trainer could issue the report or the qualification of its own run. \
              Witnesses that nobody asked vouch for nothing.",
        remedy: "Make a key for each role with `ledger keygen` and freeze again.",
        reference: "docs/CONTRACT.md, \"Keys\"",
        gate: Route::RejectIdentity,
    }
);

/// Length of an age X25519 recipient: `age1` and 58 characters of Bech32
/// (age-encryption.org/v1).
const AGE_RECIPIENT_CHARS: usize = 62;

fn is_age_recipient(text: &str) -> bool {
    text.len() == AGE_RECIPIENT_CHARS
        && text.starts_with("age1")
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let keys = &frozen.contract.keys;
    at_end(move |_, sink| {
        let mut named: Vec<(String, &str)> = [
            ("owner", &keys.owner),
            ("trainer", &keys.trainer),
            ("validator", &keys.validator),
            ("qualifier", &keys.qualifier),
        ]
        .map(|(role, key)| (role.to_owned(), key.public.as_str()))
        .to_vec();
        named.extend(
            keys.witnesses
                .iter()
                .map(|witness| (format!("witness {}", witness.name), witness.public.as_str())),
        );
        for (index, (role, public)) in named.iter().enumerate() {
            if let Some((other, _)) = named[..index].iter().find(|(_, earlier)| earlier == public) {
                let at = At::place("contract /keys");
                sink.rejected(at, format!("{other} and {role} have one key"), "a key for each role", public);
            }
        }
        if keys.witness_quorum as usize > keys.witnesses.len() {
            let at = At::place("contract /keys/witness_quorum");
            sink.rejected(
                at,
                "the quorum cannot be reached",
                format!("at most {}", keys.witnesses.len()),
                keys.witness_quorum,
            );
        }
        if keys.witness_quorum == 0 && !keys.witnesses.is_empty() {
            let at = At::place("contract /keys/witnesses");
            let message = "witnesses are named, and none of them is asked for anything";
            sink.rejected(at, message, "none under a quorum of 0", keys.witnesses.len());
        }
        for (index, witness) in keys.witnesses.iter().enumerate() {
            if let Err(error) = PublicKey::from_hex(&witness.public) {
                let at = At::place(format!("contract /keys/witnesses/{index}/public"));
                sink.rejected(at, "a witness has no usable key", "an Ed25519 public key", error);
            }
            let at = || At::place(format!("contract /keys/witnesses/{index}/name"));
            if !is_name(&witness.name) {
                let expected = "its name in cosignatures, without white space and `+`";
                sink.rejected(
                    at(),
                    "a witness has a name that no signed note can hold",
                    expected,
                    &witness.name,
                );
            }
            if keys.witnesses[..index].iter().any(|other| other.name == witness.name) {
                sink.rejected(at(), "two witnesses have one name", "a name for each", &witness.name);
            }
        }
        if !is_age_recipient(&keys.qualifier_recipient) {
            let at = At::place("contract /keys/qualifier_recipient");
            let message = "the qualification set is sealed to nobody: this is no age recipient";
            sink.rejected(at, message, "age1 and 58 characters", &keys.qualifier_recipient);
        }
        Outcome::Checked(named.len() as u64)
    })
}
