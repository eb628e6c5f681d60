//! Whose heads a witness cosigns: logs by their verifier key, and the ledgers of
//! teams by the teams' public keys.
//!
//! The origin of a ledger is new for every run, so a witness cannot be told of
//! each in advance. A team is named by its keys instead, and any origin is taken
//! on first use whose head one of them signed. Which one may is what an audit
//! holds too: of a run the owner's for size 1, which is the freeze, and the
//! trainer's from then on, so that a handover from one key to the other needs no
//! word of anybody; of a campaign the owner's; of a qualification the
//! qualifier's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ledger::note::parse_origin;
use schemas::entry::LedgerKind;

use crate::verifier_key::{SignatureKind, VerifierKey, VerifierKeyError};

/// Roles whose keys sign heads.
const ROLES: [&str; 4] = ["owner", "trainer", "validator", "qualifier"];

/// Largest trust file in bytes.
const MAX_TRUST_BYTES: u64 = 64 * 1024;

/// A team by its public keys: the trust file of `ledger audit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Team {
    keys: BTreeMap<String, String>,
}

/// A trust file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// It cannot be read.
    #[error("cannot read {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is no trust file.
    #[error(
        "{path}: {what}; hint: write a JSON object such as {{\"owner\": \"<64 hex digits>\", \"trainer\": \"...\"}}"
    )]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A key of a witness where that of a log is meant.
    #[error("{0} is the key of a witness, which signs no heads")]
    NotALog(VerifierKey),
}

impl Team {
    /// Reads a JSON object of roles and 64 hex digits each.
    ///
    /// # Errors
    /// When it cannot be read, has another role, or a key that is none.
    pub fn read(path: &Path) -> Result<Self, PolicyError> {
        let io = |source| PolicyError::Io { path: path.to_owned(), source };
        let content = |what: String| PolicyError::Content { path: path.to_owned(), what };
        if std::fs::metadata(path).map_err(io)?.len() > MAX_TRUST_BYTES {
            return Err(content("it is larger than 64 KiB".to_owned()));
        }
        let bytes = std::fs::read(path).map_err(io)?;
        let keys = serde_json::from_slice(&bytes).map_err(|error| content(error.to_string()))?;
        Self::new(keys).map_err(content)
    }

    /// A team by roles and keys.
    ///
    /// # Errors
    /// In words, at a role that there is not, or a key that is none.
    pub fn new(keys: BTreeMap<String, String>) -> Result<Self, String> {
        if keys.is_empty() {
            return Err("it names no key".to_owned());
        }
        for (role, public) in &keys {
            if !ROLES.contains(&role.as_str()) {
                return Err(format!("there is no role {role:?}"));
            }
            let key = VerifierKey::from_hex(SignatureKind::Log, role, public);
            key.map_err(|VerifierKeyError { what, .. }| format!("/{role}: {what}"))?;
        }
        Ok(Self { keys })
    }

    /// Who may sign a head of this ledger at this size.
    fn signer(&self, kind: LedgerKind, size: u64) -> Option<Candidate> {
        let role = match kind {
            LedgerKind::Run if size > 1 => "trainer",
            LedgerKind::Run | LedgerKind::Campaign | LedgerKind::Maintenance => "owner",
            LedgerKind::Qualification => "qualifier",
        };
        let named = |role: &str| Some(format!("{role}={}", self.keys.get(role)?));
        Some(Candidate {
            binding: named(role)?,
            follows: (role == "trainer").then(|| named("owner")).flatten(),
            public: self.keys.get(role)?.clone(),
        })
    }
}

/// Whose heads are cosigned.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    logs: Vec<VerifierKey>,
    teams: Vec<Team>,
}

/// A key that may sign heads of an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Who that is, as the state of the witness keeps it: without white space.
    pub binding: String,
    /// Behind whose head of size 1 it may sign for the first time.
    pub follows: Option<String>,
    /// The key, 64 hex digits.
    pub public: String,
}

impl Candidate {
    /// The keys, with one space between two, that a log is bound to once this one
    /// signed a head of it; `None` where it is bound to others. `bound`: those that
    /// signed before, and the size of the last head.
    #[must_use]
    pub fn bind(&self, bound: Option<(&str, u64)>) -> Option<String> {
        let Some((keys, size)) = bound else { return Some(self.binding.clone()) };
        if keys.split(' ').any(|key| key == self.binding) {
            return Some(keys.to_owned());
        }
        let is_handover = size <= 1 && self.follows.as_deref() == Some(keys);
        is_handover.then(|| format!("{keys} {}", self.binding))
    }
}

impl Policy {
    /// A policy of logs and teams.
    ///
    /// # Errors
    /// When a key of a log is that of a witness.
    pub fn new(logs: Vec<VerifierKey>, teams: Vec<Team>) -> Result<Self, PolicyError> {
        match logs.iter().find(|key| key.kind != SignatureKind::Log) {
            Some(key) => Err(PolicyError::NotALog(key.clone())),
            None => Ok(Self { logs, teams }),
        }
    }

    /// Whether anybody's heads are cosigned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.logs.is_empty() && self.teams.is_empty()
    }

    /// Keys that may sign a head of an origin; `None` where the origin is of
    /// nobody who is known.
    #[must_use]
    pub fn candidates(&self, origin: &str, size: u64) -> Option<Vec<Candidate>> {
        let of_logs = self.logs.iter().filter(|key| key.name == origin);
        let mut candidates: Vec<Candidate> = of_logs
            .map(|key| Candidate { binding: key.to_string(), follows: None, public: key.public_hex() })
            .collect();
        let mut is_known = !candidates.is_empty();
        if let Some((kind, _)) = parse_origin(origin) {
            is_known |= !self.teams.is_empty();
            candidates.extend(self.teams.iter().filter_map(|team| team.signer(kind, size)));
        }
        is_known.then_some(candidates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::keys::{KeyPair, Role};
    use schemas::digest::Digest;

    fn public(seed: u8) -> String {
        KeyPair::from_seed(Role::Owner, &[seed; 32], Digest::sha256([0; 32])).public_hex()
    }

    fn team() -> Team {
        let keys = [("owner", 1), ("trainer", 2), ("qualifier", 3)];
        Team::new(keys.into_iter().map(|(role, seed)| (role.to_owned(), public(seed))).collect())
            .expect("keys")
    }

    #[test]
    fn the_owner_signs_the_freeze_and_the_trainer_what_follows() {
        let policy = Policy::new(Vec::new(), vec![team()]).expect("a policy");
        let of = |origin: &str, size| {
            policy
                .candidates(origin, size)
                .map(|all| all.into_iter().map(|one| one.public).collect::<Vec<_>>())
        };
        assert_eq!(of("governed-ledger/run/a-b", 1), Some(vec![public(1)]));
        assert_eq!(of("governed-ledger/run/a-b", 2), Some(vec![public(2)]));
        assert_eq!(of("governed-ledger/campaign/a-b", 9), Some(vec![public(1)]));
        assert_eq!(of("governed-ledger/qualification/a-b", 9), Some(vec![public(3)]));
        assert_eq!(of("example.com/log", 1), None);
    }

    #[test]
    fn a_log_is_bound_to_the_keys_that_signed_it() {
        let owner = |seed| format!("owner={}", public(seed));
        let trainer = |seed| format!("trainer={}", public(seed));
        let one =
            |binding: String, follows: Option<String>| Candidate { binding, follows, public: String::new() };
        let check = |one: &Candidate, bound: Option<(&str, u64)>, expected: Option<String>| {
            assert_eq!(one.bind(bound), expected, "{one:?} behind {bound:?}");
        };
        let first = one(trainer(2), Some(owner(1)));
        check(&one(owner(1), None), None, Some(owner(1)));
        check(&first, None, Some(trainer(2)));
        let both = format!("{} {}", owner(1), trainer(2));
        check(&first, Some((&owner(1), 1)), Some(both.clone()));
        check(&first, Some((&both, 9)), Some(both.clone()));
        // Another team of the same owner, and one of another owner.
        check(
            &one(trainer(4), Some(owner(1))),
            Some((&owner(1), 1)),
            Some(format!("{} {}", owner(1), trainer(4))),
        );
        check(&one(trainer(4), Some(owner(1))), Some((&both, 9)), None);
        check(&one(trainer(4), Some(owner(3))), Some((&owner(1), 1)), None);
        check(&one(trainer(4), None), Some((&owner(1), 1)), None);
        // No handover behind a larger head.
        check(&first, Some((&owner(1), 2)), None);
    }

    #[test]
    fn a_log_is_known_by_its_name_alone() {
        let key = VerifierKey::from_hex(SignatureKind::Log, "example.com/log", &public(4)).expect("a key");
        let policy = Policy::new(vec![key.clone()], Vec::new()).expect("a policy");
        assert_eq!(policy.candidates("example.com/log", 7).map(|all| all.len()), Some(1));
        assert_eq!(policy.candidates("example.com/other", 7), None);
        assert_eq!(policy.candidates("governed-ledger/run/a-b", 7), None);
        let witness = VerifierKey { kind: SignatureKind::Witness, ..key };
        assert!(Policy::new(vec![witness], Vec::new()).is_err());
    }

    #[test]
    fn trust_files_are_read_strictly() {
        for keys in [vec![], vec![("chief", public(1))], vec![("owner", "00".to_owned())]] {
            let keys = keys.into_iter().map(|(role, key)| (role.to_owned(), key)).collect();
            assert!(Team::new(keys).is_err());
        }
    }
}
