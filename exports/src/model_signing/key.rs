//! The key that signs models: ECDSA over NIST P-256 with SHA-256, in PEM as
//! `openssl` makes and reads it.
//!
//! A secret leaves this module only into its own file with mode 0600; a file
//! that others can read is refused, and an existing one never overwritten.
//! Signatures are deterministic (RFC 6979), so that an export is the same bytes
//! every time.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use p256::SecretKey;
use p256::ecdsa::signature::Signer;
use p256::ecdsa::{Signature, SigningKey};
use p256::pkcs8::{DecodePrivateKey, EncodePrivateKey, EncodePublicKey, LineEnding};

use crate::ExportError;

/// File of the secret in a key folder: PKCS #8 in PEM.
pub const KEY_FILE: &str = "model-signing.pem";

/// File of the public key beside it, and in an export: `SubjectPublicKeyInfo` in
/// PEM.
pub const PUBLIC_KEY_FILE: &str = "model-signing.pub.pem";

/// Where the older form of a secret begins (RFC 5915); `openssl ecparam` puts a
/// block of parameters before it.
const SEC1_LABEL: &str = "-----BEGIN EC PRIVATE KEY-----";

/// Largest key file in bytes.
const MAX_KEY_FILE_BYTES: u64 = 64 * 1024;

/// Draws until a number is a key: a draw fails with a chance of 2^-32.
const MAX_DRAWS: u32 = 8;

/// A key that could not be read or made.
#[derive(Debug, thiserror::Error)]
pub enum ModelKeyError {
    /// There is none.
    #[error("no key at {path}; `ledger keygen --model-signing` makes one")]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// There is one.
    #[error("{path} exists; a key is never overwritten, move it away first")]
    Exists {
        /// The file.
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
    /// The file holds no key of this kind.
    #[error(
        "{path} holds no unencrypted ECDSA P-256 key in PEM; \
         `openssl ecparam -genkey -name prime256v1 -noout` makes one"
    )]
    Content {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read or written.
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

/// A key that signs models. Without Debug, so that a secret is never printed.
pub struct ModelKey {
    key: SigningKey,
}

impl ModelKey {
    /// Reads a key in PKCS #8 or SEC 1.
    ///
    /// # Errors
    /// When it cannot be read, others can read it, or it is none of this kind.
    pub fn read(path: &Path) -> Result<Self, ModelKeyError> {
        let io = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => ModelKeyError::Missing { path: path.to_owned() },
            _ => ModelKeyError::Io { path: path.to_owned(), source },
        };
        let content = || ModelKeyError::Content { path: path.to_owned() };
        let metadata = std::fs::metadata(path).map_err(io)?;
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(ModelKeyError::Permissions { path: path.to_owned(), mode });
        }
        if metadata.len() > MAX_KEY_FILE_BYTES {
            return Err(content());
        }
        let text = std::fs::read_to_string(path).map_err(io)?;
        Self::from_pem(&text).ok_or_else(content)
    }

    fn from_pem(text: &str) -> Option<Self> {
        let secret = match text.find(SEC1_LABEL) {
            Some(start) => SecretKey::from_sec1_pem(text.get(start..)?.trim_end()).ok()?,
            None => SecretKey::from_pkcs8_pem(text.trim()).ok()?,
        };
        Some(Self { key: secret.into() })
    }

    /// Makes a key in a folder: the secret with mode 0600, and the public key.
    ///
    /// # Errors
    /// When one of the files exists or cannot be written.
    pub fn generate(folder: &Path) -> Result<Self, ModelKeyError> {
        let key = Self::random()?;
        let secret_path = folder.join(KEY_FILE);
        let invalid = || ModelKeyError::Content { path: secret_path.clone() };
        let public = key.public_pem().map_err(|_| invalid())?;
        let secret = key.key.to_pkcs8_pem(LineEnding::LF).map_err(|_| invalid())?;
        let public_path = folder.join(PUBLIC_KEY_FILE);
        if public_path.exists() {
            return Err(ModelKeyError::Exists { path: public_path });
        }
        write_new(&secret_path, 0o600, secret.as_bytes())?;
        write_new(&public_path, 0o644, public.as_bytes())?;
        Ok(key)
    }

    fn random() -> Result<Self, ModelKeyError> {
        for _ in 0..MAX_DRAWS {
            let mut bytes = [0u8; 32];
            getrandom::fill(&mut bytes).map_err(|error| ModelKeyError::Random(error.to_string()))?;
            if let Ok(secret) = SecretKey::from_slice(&bytes) {
                return Ok(Self { key: secret.into() });
            }
        }
        Err(ModelKeyError::Random("none of them is a key".to_owned()))
    }

    /// The public key as PEM.
    ///
    /// # Errors
    /// Never for a valid key; the signature is that of the encoding.
    pub fn public_pem(&self) -> Result<String, ExportError> {
        self.key
            .verifying_key()
            .to_public_key_pem(LineEnding::LF)
            .map_err(|error| ExportError::Content { path: PUBLIC_KEY_FILE.into(), what: error.to_string() })
    }

    /// Signs SHA-256 of a message; the signature in DER.
    pub(super) fn sign(&self, message: &[u8]) -> Vec<u8> {
        let signature: Signature = self.key.sign(message);
        signature.to_der().as_bytes().to_vec()
    }
}

fn write_new(path: &Path, mode: u32, bytes: &[u8]) -> Result<(), ModelKeyError> {
    let io = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::AlreadyExists => ModelKeyError::Exists { path: path.to_owned() },
        _ => ModelKeyError::Io { path: path.to_owned(), source },
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(io)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;
    use p256::ecdsa::signature::Verifier;

    /// RFC 6979, A.2.5: the key of its examples for P-256, as `openssl` writes
    /// it.
    const SEC1: &str = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";

    fn example() -> ModelKey {
        let bytes =
            schemas::digest::decode_hex("c9afa9d845ba75166b5c215767b1d6934e50c3db36e89b127b8a622b120f6721");
        let secret = SecretKey::from_slice(&bytes.expect("hex")).expect("a key");
        ModelKey { key: secret.into() }
    }

    #[test]
    fn signatures_are_those_of_rfc_6979() {
        let expected = "3046022100efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716\
                        022100f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8";
        assert_eq!(schemas::digest::encode_hex(&example().sign(b"sample")), expected);
    }

    #[test]
    fn a_key_is_read_back_in_both_forms_and_never_overwritten() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let made = ModelKey::generate(folder.path()).expect("a fresh key");
        let path = folder.path().join(KEY_FILE);
        let read = ModelKey::read(&path).expect("the key was written");
        assert_eq!(read.public_pem().expect("pem"), made.public_pem().expect("pem"));
        let signature = Signature::from_der(&read.sign(b"m")).expect("der");
        assert!(made.key.verifying_key().verify(b"m", &signature).is_ok());
        assert!(made.key.verifying_key().verify(b"n", &signature).is_err());
        assert!(matches!(ModelKey::generate(folder.path()), Err(ModelKeyError::Exists { .. })));
        let secret = SecretKey::from(&made.key).to_sec1_pem(LineEnding::LF).expect("pem");
        let older = ModelKey::from_pem(&format!("{SEC1}{}", secret.as_str())).expect("the older form");
        assert_eq!(older.public_pem().expect("pem"), made.public_pem().expect("pem"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("mode set");
        assert!(matches!(ModelKey::read(&path), Err(ModelKeyError::Permissions { mode: 0o640, .. })));
        assert!(
            ModelKey::from_pem("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").is_none()
        );
        let missing = ModelKey::read(&folder.path().join("none.pem"));
        assert!(matches!(missing, Err(ModelKeyError::Missing { .. })));
    }
}
