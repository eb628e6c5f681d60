//! The qualifier's keys: Ed25519 to sign with, age to open with.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use age::x25519::Identity;
use ledger::keys::{KeyPair, KeyRing, Role};
use schemas::contract::Contract;

use crate::error::{EvaluateError, Refusal};
use crate::files::{folder_of, read};

/// Name of the identity file in the key folder.
pub const IDENTITY_NAME: &str = "qualifier.age-identity";
/// Largest identity file that is read, in bytes.
const MAX_IDENTITY_BYTES: u64 = 1 << 16;

/// The key folder: as named, else `LEDGER_KEYS`, else `keys` beside the ledger.
#[must_use]
pub fn key_folder(named: Option<&Path>, ledger: &Path) -> PathBuf {
    let from_environment =
        || std::env::var_os("LEDGER_KEYS").filter(|text| !text.is_empty()).map(PathBuf::from);
    named.map(Path::to_owned).or_else(from_environment).unwrap_or_else(|| folder_of(ledger).join("keys"))
}

/// The qualifier's signing key, which must be the contract's.
pub(crate) fn signing_key(folder: &Path, contract: &Contract) -> Result<KeyPair, EvaluateError> {
    let key = KeyRing::open(folder)?.get(Role::Qualifier)?;
    let (found, expected) = (key.public_hex(), contract.keys.qualifier.public.clone());
    if found != expected {
        return Err(Refusal::Key { what: "the qualifier's public key", found, expected }.into());
    }
    Ok(key)
}

/// The qualifier's age identity, whose recipient must be the contract's.
pub(crate) fn age_identity(folder: &Path, contract: &Contract) -> Result<Identity, EvaluateError> {
    let path = folder.join(IDENTITY_NAME);
    let bytes = read(&path, MAX_IDENTITY_BYTES)?;
    let error = |reason: String| EvaluateError::Identity { path: path.clone(), reason };
    let mode =
        std::fs::metadata(&path).map_err(EvaluateError::io("read", &path))?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(error(format!("others can read it (mode {mode:o}); run `chmod 600` on it")));
    }
    // Messages never quote the content, which is secret.
    let text = std::str::from_utf8(&bytes).map_err(|_| error("it is not text".to_owned()))?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let line = lines.next().filter(|_| lines.next().is_none());
    let line = line.ok_or_else(|| error("it does not hold exactly one line besides comments".to_owned()))?;
    let identity = Identity::from_str(line).map_err(|reason| error(reason.to_owned()))?;
    let (found, expected) = (identity.to_public().to_string(), contract.keys.qualifier_recipient.clone());
    if found != expected {
        return Err(Refusal::Key { what: "the recipient of the identity file", found, expected }.into());
    }
    Ok(identity)
}
