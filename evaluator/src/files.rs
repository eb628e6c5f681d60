//! Files in and out: bounded reads, safe paths, whole writes, digests.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Component, Path, PathBuf};

use schemas::digest::Digest;
use sha2::Digest as _;

use crate::error::{EvaluateError, Refusal};

/// Reads a file of bounded size.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, EvaluateError> {
    let file = File::open(path).map_err(EvaluateError::io("open", path))?;
    let found = file.metadata().map_err(EvaluateError::io("read", path))?.len();
    if found > limit {
        return Err(EvaluateError::TooLarge { path: path.to_owned(), found, limit });
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(EvaluateError::io("read", path))?;
    Ok(bytes)
}

/// BLAKE3 of bytes.
pub(crate) fn blake3_of(bytes: &[u8]) -> Digest {
    Digest::blake3(*blake3::hash(bytes).as_bytes())
}

/// SHA-256 of bytes.
pub(crate) fn sha256_of(bytes: &[u8]) -> Digest {
    Digest::sha256(sha2::Sha256::digest(bytes).into())
}

/// Refuses bytes that do not have the expected digest.
pub(crate) fn check_digest(
    path: &Path,
    bytes: &[u8],
    expected: Digest,
    authority: &'static str,
) -> Result<(), Refusal> {
    let found = blake3_of(bytes);
    if found == expected {
        Ok(())
    } else {
        Err(Refusal::Digest { path: path.to_owned(), found, expected, authority })
    }
}

/// `folder` and a relative path that a ledger or contract names. What leaves
/// the folder is refused.
pub(crate) fn below(folder: &Path, relative: &str, place: &str) -> Result<PathBuf, Refusal> {
    let path = Path::new(relative);
    let plain = path.components().all(|component| matches!(component, Component::Normal(_)));
    if plain && !relative.is_empty() {
        return Ok(folder.join(path));
    }
    let reason = format!("{relative:?} is not a path below the ledger's folder");
    Err(Refusal::Record { place: place.to_owned(), reason })
}

/// Folder of a file, `.` where it has none.
pub(crate) fn folder_of(path: &Path) -> PathBuf {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

/// `run.db` and `.val.dsse.json` give `run.db.val.dsse.json`.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Writes a file: temporary name, flush, rename, flush of the folder. With
/// `replace` false an existing file is refused.
pub(crate) fn write(path: &Path, bytes: &[u8], replace: bool) -> Result<(), EvaluateError> {
    let temporary = with_suffix(path, &format!(".partial-{}", std::process::id()));
    let written = write_and_place(path, &temporary, bytes, replace);
    if written.is_err() || !replace {
        // Of no use any more; the result says what happened.
        let _ = fs::remove_file(&temporary);
    }
    written?;
    let folder = folder_of(path);
    File::open(&folder).and_then(|folder| folder.sync_all()).map_err(EvaluateError::io("flush", &folder))
}

fn write_and_place(path: &Path, temporary: &Path, bytes: &[u8], replace: bool) -> Result<(), EvaluateError> {
    let failed = |action| EvaluateError::io(action, temporary);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(temporary)
        .map_err(failed("create"))?;
    file.write_all(bytes).map_err(failed("write"))?;
    file.sync_all().map_err(failed("flush"))?;
    if replace {
        return fs::rename(temporary, path).map_err(EvaluateError::io("rename into place", path));
    }
    // A hard link fails where the name exists, which a rename would replace.
    fs::hard_link(temporary, path).map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => Refusal::Occupied { path: path.to_owned() }.into(),
        _ => EvaluateError::io("create", path)(source),
    })
}
