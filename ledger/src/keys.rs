//! Role keys: Ed25519 (RFC 8032), one file a role.
//!
//! A secret never leaves this module but into its own file with mode 0600; a
//! file that others can read is refused, and an existing one never overwritten.

use std::fmt;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ed25519_dalek::{Signer, SigningKey, VerifyingKey};
use schemas::digest::{Digest, decode_hex, encode_hex};
use schemas::ids::KeyId;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Format tag of a key file.
pub const KEY_FORMAT: &str = "key/1";

/// Domain of the host identity, so that the digest is of no other use.
const HOST_DOMAIN: &[u8] = b"governed-ledger host/1\0";

/// Largest key file in bytes.
const MAX_KEY_FILE_BYTES: u64 = 64 * 1024;

/// What a key may sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Signs the contract and the head of the freeze.
    Owner,
    /// Signs tree heads while training.
    Trainer,
    /// Signs reports and handoffs.
    Validator,
    /// Signs the qualification ledger and its results.
    Qualifier,
    /// Cosigns heads.
    Witness,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 5] = [Self::Owner, Self::Trainer, Self::Validator, Self::Qualifier, Self::Witness];

    /// The name in files and identifiers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Trainer => "trainer",
            Self::Validator => "validator",
            Self::Qualifier => "qualifier",
            Self::Witness => "witness",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A key that could not be read, made or used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// There is no key of that role.
    #[error("no {role} key at {path}; `ledger keygen --role {role}` makes one")]
    Missing {
        /// The role.
        role: Role,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A key of that role exists.
    #[error("{path} exists; a key is never overwritten, move it away first")]
    Exists {
        /// The existing file.
        path: PathBuf,
    },
    /// Others can read the secret.
    #[error("{path} can be read by others (mode {mode:o}); run `chmod 600` on it")]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file does not hold a key.
    #[error("{path} is not a key file: {what}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file could not be read or written.
    #[error("cannot access {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The operating system gave no random bytes.
    #[error("the operating system gave no random bytes: {0}")]
    Random(String),
}

/// An Ed25519 key pair of one role.
#[derive(Clone)]
pub struct KeyPair {
    host: Digest,
    role: Role,
    signing: SigningKey,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("KeyPair").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl KeyPair {
    /// A key pair from its 32-byte seed, for tests with published keys.
    #[must_use]
    pub fn from_seed(role: Role, seed: &[u8; 32], host: Digest) -> Self {
        Self { host, role, signing: SigningKey::from_bytes(seed) }
    }

    /// A fresh key pair, in memory only.
    ///
    /// # Errors
    /// When the operating system gives no random bytes.
    pub fn random(role: Role) -> Result<Self, KeyError> {
        let mut seed = [0u8; 32];
        getrandom::fill(&mut seed).map_err(|error| KeyError::Random(error.to_string()))?;
        Ok(Self::from_seed(role, &seed, host_identity()))
    }

    /// What it may sign.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Its identifier.
    #[must_use]
    pub fn id(&self) -> KeyId {
        key_id(self.role, &self.public_bytes())
    }

    /// The 32 bytes of the public key.
    #[must_use]
    pub fn public_bytes(&self) -> [u8; 32] {
        self.signing.verifying_key().to_bytes()
    }

    /// The public key as 64 hex digits.
    #[must_use]
    pub fn public_hex(&self) -> String {
        encode_hex(&self.public_bytes())
    }

    /// Identity of the host on which the key was made.
    #[must_use]
    pub const fn host(&self) -> Digest {
        self.host
    }

    /// Signs a message (RFC 8032, deterministic).
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.signing.sign(message).to_bytes()
    }
}

/// Identifier of a public key: role, colon, first 16 hex digits of its SHA-256.
#[must_use]
pub fn key_id(role: Role, public: &[u8; 32]) -> KeyId {
    let digest = Sha256::digest(public);
    KeyId(format!("{role}:{}", encode_hex(&digest[..8])))
}

/// Reads 64 hex digits as a public key.
#[must_use]
pub fn public_from_hex(public_hex: &str) -> Option<VerifyingKey> {
    let bytes: [u8; 32] = decode_hex(public_hex)?.try_into().ok()?;
    VerifyingKey::from_bytes(&bytes).ok()
}

/// SHA-256 over a domain tag and the machine's identity: `/etc/machine-id`, or
/// the host name where there is none. Equal values show that two keys were
/// made on one host; different ones do not show the contrary.
#[must_use]
pub fn host_identity() -> Digest {
    let machine = std::fs::read("/etc/machine-id").ok().filter(|text| !text.trim_ascii().is_empty());
    let identity = machine.unwrap_or_else(|| rustix::system::uname().nodename().to_bytes().to_vec());
    let mut hasher = Sha256::new();
    hasher.update(HOST_DOMAIN);
    hasher.update(identity.trim_ascii());
    Digest::sha256(hasher.finalize().into())
}

/// Content of `<role>.pub`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublicKeyFile {
    /// [`KEY_FORMAT`].
    pub format: String,
    /// Identity of the host on which the key was made.
    pub host: Digest,
    /// 64 hex digits.
    pub public: String,
    /// age recipient of a qualifier; absent for other roles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipient: Option<String>,
    /// What the key may sign.
    pub role: Role,
}

/// Content of `<role>.key`. Without Debug, so that a secret is never printed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretKeyFile {
    format: String,
    host: Digest,
    public: String,
    role: Role,
    secret: String,
}

/// A folder of key files.
#[derive(Debug, Clone)]
pub struct KeyRing {
    folder: PathBuf,
}

impl KeyRing {
    /// Opens an existing folder.
    ///
    /// # Errors
    /// When it is not a folder that can be read.
    pub fn open(folder: &Path) -> Result<Self, KeyError> {
        std::fs::read_dir(folder).map_err(|source| KeyError::Io { path: folder.to_owned(), source })?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// Where the keys are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Path of a role's secret key file.
    #[must_use]
    pub fn secret_path(&self, role: Role) -> PathBuf {
        secret_path(&self.folder, role)
    }

    /// Path of a role's public key file.
    #[must_use]
    pub fn public_path(&self, role: Role) -> PathBuf {
        public_path(&self.folder, role)
    }

    /// Reads the key pair of a role.
    ///
    /// # Errors
    /// When there is none, others can read it, or its content is not a key of
    /// that role whose public part follows from the secret one.
    pub fn get(&self, role: Role) -> Result<KeyPair, KeyError> {
        let path = self.secret_path(role);
        let bytes = read_key_file(&path, role)?;
        let mode = std::fs::metadata(&path)
            .map_err(|source| KeyError::Io { path: path.clone(), source })?
            .permissions()
            .mode()
            & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Permissions { path, mode });
        }
        let content = |what: &str| KeyError::Content { path: path.clone(), what: what.to_owned() };
        // The parser's message could quote the secret, so it is not passed on.
        let file: SecretKeyFile =
            serde_json::from_slice(&bytes).map_err(|_| content("not JSON of the form that keygen writes"))?;
        if file.format != KEY_FORMAT {
            return Err(content("unknown format; this version reads key/1"));
        }
        if file.role != role {
            return Err(content("it is a key of another role"));
        }
        let seed: Option<[u8; 32]> = decode_hex(&file.secret).and_then(|bytes| bytes.try_into().ok());
        let seed = seed.ok_or_else(|| content("the secret is not 64 hex digits"))?;
        let pair = KeyPair::from_seed(role, &seed, file.host);
        if pair.public_hex() != file.public {
            return Err(content("the public key does not belong to the secret one"));
        }
        Ok(pair)
    }

    /// Reads the public key file of a role.
    ///
    /// # Errors
    /// When there is none or it does not hold a public key of that role.
    pub fn public(&self, role: Role) -> Result<PublicKeyFile, KeyError> {
        read_public(&self.public_path(role), role)
    }

    /// Makes a key pair and writes `<role>.key` (0600) and `<role>.pub` (0644),
    /// making the folder (0700) where it does not exist.
    ///
    /// # Errors
    /// When either file exists or cannot be written.
    pub fn generate(folder: &Path, role: Role) -> Result<KeyPair, KeyError> {
        if !folder.exists() {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(|source| KeyError::Io { path: folder.to_owned(), source })?;
        }
        let pair = KeyPair::random(role)?;
        let secret_file = SecretKeyFile {
            format: KEY_FORMAT.to_owned(),
            host: pair.host,
            public: pair.public_hex(),
            role,
            secret: encode_hex(pair.signing.as_bytes()),
        };
        let public_file = PublicKeyFile {
            format: KEY_FORMAT.to_owned(),
            host: pair.host,
            public: pair.public_hex(),
            recipient: None,
            role,
        };
        let public_path = public_path(folder, role);
        if public_path.exists() {
            return Err(KeyError::Exists { path: public_path });
        }
        write_new(&secret_path(folder, role), 0o600, &secret_file)?;
        write_new(&public_path, 0o644, &public_file)?;
        Ok(pair)
    }

    /// Adds the age recipient to a qualifier's public key file.
    ///
    /// # Errors
    /// When the file cannot be read or written, or names another recipient.
    pub fn set_recipient(&self, recipient: &str) -> Result<(), KeyError> {
        let path = self.public_path(Role::Qualifier);
        let mut file = self.public(Role::Qualifier)?;
        match &file.recipient {
            Some(existing) if existing == recipient => return Ok(()),
            Some(_) => return Err(KeyError::Exists { path }),
            None => file.recipient = Some(recipient.to_owned()),
        }
        let temporary = path.with_extension("pub.new");
        write_new(&temporary, 0o644, &file)?;
        std::fs::rename(&temporary, &path).map_err(|source| KeyError::Io { path, source })
    }
}

/// Reads a public key file of any name.
///
/// # Errors
/// When it cannot be read or does not hold a public key of that role.
pub fn read_public(path: &Path, role: Role) -> Result<PublicKeyFile, KeyError> {
    let bytes = read_key_file(path, role)?;
    let content = |what: String| KeyError::Content { path: path.to_owned(), what };
    let file: PublicKeyFile = serde_json::from_slice(&bytes).map_err(|error| content(error.to_string()))?;
    if file.format != KEY_FORMAT || file.role != role {
        return Err(content(format!("expected a {KEY_FORMAT} file of role {role}")));
    }
    if public_from_hex(&file.public).is_none() {
        return Err(content("the public key is not 64 hex digits of a point".to_owned()));
    }
    Ok(file)
}

fn secret_path(folder: &Path, role: Role) -> PathBuf {
    folder.join(format!("{role}.key"))
}

fn public_path(folder: &Path, role: Role) -> PathBuf {
    folder.join(format!("{role}.pub"))
}

fn read_key_file(path: &Path, role: Role) -> Result<Vec<u8>, KeyError> {
    let io = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => KeyError::Missing { role, path: path.to_owned() },
        _ => KeyError::Io { path: path.to_owned(), source },
    };
    let num_bytes = std::fs::metadata(path).map_err(io)?.len();
    if num_bytes > MAX_KEY_FILE_BYTES {
        return Err(KeyError::Content { path: path.to_owned(), what: format!("it has {num_bytes} bytes") });
    }
    std::fs::read(path).map_err(io)
}

fn write_new<T: Serialize>(path: &Path, mode: u32, content: &T) -> Result<(), KeyError> {
    let io = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::AlreadyExists => KeyError::Exists { path: path.to_owned() },
        _ => KeyError::Io { path: path.to_owned(), source },
    };
    let mut text = serde_json::to_vec_pretty(content)
        .map_err(|error| KeyError::Content { path: path.to_owned(), what: error.to_string() })?;
    text.push(b'\n');
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(io)?;
    file.write_all(&text).map_err(io)?;
    file.sync_all().map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_round_trip_and_are_never_overwritten() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let made = KeyRing::generate(folder.path(), Role::Trainer).expect("a fresh key");
        let ring = KeyRing::open(folder.path()).expect("the folder exists");
        let read = ring.get(Role::Trainer).expect("the key was written");
        assert_eq!(read.public_hex(), made.public_hex());
        assert_eq!(read.id().as_str(), key_id(Role::Trainer, &made.public_bytes()).as_str());
        assert_eq!(ring.public(Role::Trainer).expect("a public file").public, made.public_hex());
        assert!(matches!(KeyRing::generate(folder.path(), Role::Trainer), Err(KeyError::Exists { .. })));
        assert!(matches!(ring.get(Role::Owner), Err(KeyError::Missing { .. })));
        let mode = std::fs::metadata(ring.secret_path(Role::Trainer)).expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_secret_that_others_can_read_or_of_another_role_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        KeyRing::generate(folder.path(), Role::Owner).expect("a fresh key");
        let ring = KeyRing::open(folder.path()).expect("the folder exists");
        std::fs::copy(ring.secret_path(Role::Owner), ring.secret_path(Role::Trainer)).expect("copied");
        assert!(matches!(ring.get(Role::Trainer), Err(KeyError::Content { .. })));
        let open = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(ring.secret_path(Role::Owner), open).expect("mode set");
        assert!(matches!(ring.get(Role::Owner), Err(KeyError::Permissions { mode: 0o640, .. })));
    }

    #[test]
    fn a_recipient_is_set_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        KeyRing::generate(folder.path(), Role::Qualifier).expect("a fresh key");
        let ring = KeyRing::open(folder.path()).expect("the folder exists");
        ring.set_recipient("age1first").expect("none yet");
        ring.set_recipient("age1first").expect("the same again");
        assert!(matches!(ring.set_recipient("age1other"), Err(KeyError::Exists { .. })));
        let file = ring.public(Role::Qualifier).expect("still readable");
        assert_eq!(file.recipient.as_deref(), Some("age1first"));
    }
}
