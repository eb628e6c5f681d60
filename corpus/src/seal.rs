//! Sealing a qualification set to the qualifier's key (age v1, X25519).
//!
//! Only sealing is here. Opening is the evaluator's, which records the opening
//! before it begins; a second way in would be one that leaves no record.
//!
//! An identity file is what `age-keygen` writes: comment lines, the recipient
//! among them, then one line `AGE-SECRET-KEY-1...`.

use std::fs::File;
use std::io::{self, Read};
use std::iter;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use age::secrecy::ExposeSecret;
use age::x25519::{Identity, Recipient};
use schemas::digest::Digest;

use crate::write::{BUFFER_BYTES, WriteError, write_whole};

/// Why a set could not be sealed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// Not an age recipient.
    #[error(
        "{found:?} is not an age X25519 recipient ({reason}); it begins with age1 and is in qualifier.pub"
    )]
    Recipient {
        /// What was given, cut at 80 characters.
        found: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// No identity in a text.
    #[error("no age X25519 identity in the text ({reason}); one line must begin with AGE-SECRET-KEY-1")]
    Identity {
        /// What is wrong.
        reason: &'static str,
    },
    /// age failed.
    #[error("cannot seal")]
    Seal(#[from] age::EncryptError),
    /// The plaintext could not be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The plaintext is empty.
    #[error("{} has no byte; there is nothing to seal", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The sealed file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// A fresh identity of the qualifier.
pub struct GeneratedIdentity {
    /// Content of the identity file. Secret: mode 0600, and nowhere else.
    pub identity_file: String,
    /// What others seal to: `age1...`.
    pub recipient: String,
}

/// Draws an identity from the operating system's randomness.
#[must_use]
pub fn generate_identity() -> GeneratedIdentity {
    let identity = Identity::generate();
    let recipient = identity.to_public().to_string();
    let secret = identity.to_string();
    let identity_file = format!("# public key: {recipient}\n{}\n", secret.expose_secret());
    GeneratedIdentity { identity_file, recipient }
}

/// The recipient that belongs to the identity in an identity file's text.
///
/// # Errors
/// [`SealError::Identity`] when the text holds none, or more than one.
pub fn recipient_of(identity_file: &str) -> Result<String, SealError> {
    let mut lines =
        identity_file.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let line = lines.next().ok_or(SealError::Identity { reason: "it holds only comments" })?;
    if lines.next().is_some() {
        return Err(SealError::Identity { reason: "it holds more than one line of content" });
    }
    let identity = Identity::from_str(line).map_err(|reason| SealError::Identity { reason })?;
    Ok(identity.to_public().to_string())
}

fn parse_recipient(text: &str) -> Result<Recipient, SealError> {
    let error = |reason| SealError::Recipient { found: text.chars().take(80).collect(), reason };
    let recipient = Recipient::from_str(text).map_err(error)?;
    // The contract binds the text, so it must have one spelling.
    if recipient.to_string() == text { Ok(recipient) } else { Err(error("not its canonical spelling")) }
}

/// Checks that a text is a recipient.
///
/// # Errors
/// [`SealError::Recipient`].
pub fn check_recipient(text: &str) -> Result<(), SealError> {
    parse_recipient(text).map(drop)
}

/// What was sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// BLAKE3 of the plaintext, for `qualification.plaintext`.
    pub plaintext: Digest,
    /// Size of the plaintext in bytes.
    pub plaintext_num_bytes: u64,
    /// BLAKE3 of the sealed file, for `qualification.sealed`.
    pub sealed: Digest,
    /// Size of the sealed file in bytes.
    pub sealed_num_bytes: u64,
}

/// Seals bytes to a recipient. Two calls give different bytes.
///
/// # Errors
/// When `recipient` is not one.
pub fn seal(plaintext: &[u8], recipient: &str) -> Result<Vec<u8>, SealError> {
    Ok(age::encrypt(&parse_recipient(recipient)?, plaintext)?)
}

/// Seals a file, in pieces. An existing `sealed` file is refused: sealing
/// never gives the same bytes twice, and a contract may have bound the old.
///
/// # Errors
/// When `recipient` is not one, the plaintext is empty or unreadable, or the
/// sealed file exists or cannot be written.
pub fn seal_file(plaintext: &Path, recipient: &str, sealed: &Path) -> Result<Sealed, SealError> {
    let read_error = |source| SealError::Io { path: plaintext.to_owned(), source };
    let recipient = parse_recipient(recipient)?;
    let mut file = File::open(plaintext).map_err(read_error)?;
    let mut hasher = blake3::Hasher::new();
    let mut plaintext_num_bytes = 0u64;
    let (digest, sealed_num_bytes) = write_whole(sealed, |writer| {
        let encryptor = age::Encryptor::with_recipients(iter::once(&recipient as &dyn age::Recipient))?;
        let mut stream = encryptor.wrap_output(writer).map_err(WriteError::io("write", sealed))?;
        let mut buffer = vec![0u8; BUFFER_BYTES];
        loop {
            let length = file.read(&mut buffer).map_err(read_error)?;
            if length == 0 {
                break;
            }
            hasher.update(&buffer[..length]);
            plaintext_num_bytes += length as u64;
            io::Write::write_all(&mut stream, &buffer[..length]).map_err(WriteError::io("write", sealed))?;
        }
        if plaintext_num_bytes == 0 {
            return Err(SealError::Empty { path: plaintext.to_owned() });
        }
        stream.finish().map_err(WriteError::io("write", sealed))?;
        Ok(())
    })?;
    Ok(Sealed {
        plaintext: Digest::blake3(*hasher.finalize().as_bytes()),
        plaintext_num_bytes,
        sealed: digest,
        sealed_num_bytes,
    })
}
