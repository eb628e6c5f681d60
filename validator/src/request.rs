//! What an audit is asked to look at, and the files that a request names or that
//! lie beside the ledger. Nothing is judged here.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use schemas::digest::decode_hex;
use schemas::report::HeadSource;

use crate::error::AuditError;
use crate::evidence::MAX_DOCUMENT_BYTES;
use crate::heads::MAX_HEAD_FILE_BYTES;
use crate::said::read_limited;
use crate::store::beside;

/// What to audit.
#[derive(Debug, Clone, Default)]
pub struct AuditRequest {
    /// The ledger: `run.db`.
    pub ledger: PathBuf,
    /// A head file that was kept elsewhere; `None`: `<ledger>.head`.
    pub head: Option<PathBuf>,
    /// Public keys that the reviewer trusts; `None`: those of the contract.
    pub trust: Option<PathBuf>,
    /// The evaluator's val numbers; `None`: `<ledger>.val.dsse.json` if it exists.
    pub val_numbers: Option<PathBuf>,
    /// Heads that witnesses cosigned; `None`: `<ledger>.cosigned` if it exists.
    pub cosigned: Option<PathBuf>,
    /// A report of an earlier audit to go on from; `None`: everything is looked at.
    pub since: Option<PathBuf>,
    /// Threads to compute on; `None`: those that the machine offers. Their number
    /// changes no answer.
    pub threads: Option<NonZeroUsize>,
}

/// A head file's bytes, and where they are from.
pub(crate) struct HeadFile {
    pub(crate) bytes: Vec<u8>,
    pub(crate) source: HeadSource,
    pub(crate) path: PathBuf,
}

/// The named head file, or the one beside the ledger if it exists.
pub(crate) fn read_head_file(request: &AuditRequest) -> Result<Option<HeadFile>, AuditError> {
    let (path, source) = match &request.head {
        Some(path) => (path.clone(), HeadSource::Named),
        None => (beside(&request.ledger, ".head"), HeadSource::Beside),
    };
    match read_limited(&path, MAX_HEAD_FILE_BYTES) {
        Ok(bytes) => Ok(Some(HeadFile { bytes, source, path })),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && request.head.is_none() => Ok(None),
        Err(source) => Err(AuditError::Named { what: "the head file", path, source }),
    }
}

/// The val numbers' bytes, if there are any, and their place as text.
pub(crate) fn read_val_file(request: &AuditRequest) -> Result<(Option<Vec<u8>>, String), AuditError> {
    let path = request.val_numbers.clone().unwrap_or_else(|| beside(&request.ledger, ".val.dsse.json"));
    let place = path.display().to_string();
    match read_limited(&path, MAX_DOCUMENT_BYTES) {
        Ok(bytes) => Ok((Some(bytes), place)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && request.val_numbers.is_none() => {
            Ok((None, place))
        }
        Err(source) => Err(AuditError::Named { what: "the file of val numbers", path, source }),
    }
}

/// Reads `{"owner":"<64 hex digits>", ...}`.
pub(crate) fn read_trust(path: &Path) -> Result<BTreeMap<String, String>, AuditError> {
    let bytes = read_limited(path, MAX_DOCUMENT_BYTES).map_err(|source| AuditError::Named {
        what: "the trust file",
        path: path.to_owned(),
        source,
    })?;
    let wrong = |reason: String| AuditError::Trust { path: path.to_owned(), reason };
    let keys: BTreeMap<String, String> =
        serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    for (role, key) in &keys {
        if !["owner", "trainer", "validator", "qualifier"].contains(&role.as_str()) {
            return Err(wrong(format!("there is no role {role:?}")));
        }
        if decode_hex(key).is_none_or(|bytes| bytes.len() != 32) {
            return Err(wrong(format!("the key of {role} is not 64 lower-case hex digits")));
        }
    }
    if keys.is_empty() { Err(wrong("it names no key".to_owned())) } else { Ok(keys) }
}

/// The folder that a ledger lies in.
pub(crate) fn folder_of(ledger: &Path) -> PathBuf {
    match ledger.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}
