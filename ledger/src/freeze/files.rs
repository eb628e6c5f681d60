//! Files that a contract names: found inside its folder, read, digested.
//!
//! A path that is absolute, climbs, or leads out of the folder through a link
//! is refused, because what lies outside would not travel with the contract
//! and could change without it.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Component, Path, PathBuf};

use schemas::contract::FileBinding;
use schemas::digest::{Algorithm, Digest};

use super::problem::Problems;

/// Buffer of a streamed file in bytes.
pub(super) const BUFFER_BYTES: usize = 1 << 20;

/// The folder that every path is relative to.
#[derive(Debug)]
pub(super) struct Folder {
    /// As it was named.
    pub(super) path: PathBuf,
    /// With links resolved.
    real: PathBuf,
}

/// A file's content by size and digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) digest: Digest,
    pub(super) num_bytes: u64,
}

/// A refusal that does not yet know its pointer.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) message: String,
    pub(super) hint: String,
}

impl Refusal {
    fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }

    pub(super) fn read(path: &Path, error: &io::Error) -> Self {
        Self::new(format!("cannot read {}: {error}", path.display()), "make the file readable")
    }
}

/// Whether a text is a path that stays below where it starts: relative, in
/// canonical spelling, without `..`, `.` or empty parts.
pub(super) fn check_relative(path: &str) -> Result<(), Refusal> {
    let hint = "name a path below the folder, such as `data/train.txt`, with `/` between its parts";
    let refuse = |what: &str| Err(Refusal::new(format!("the path {path:?} {what}"), hint));
    if path.contains("://") {
        return refuse("is an address; this edition reads and writes files only");
    }
    if path.is_empty() || path.contains(['\0', '\\']) {
        return refuse("is empty, or has a character that paths here do not have");
    }
    if path.starts_with('/') {
        return refuse("is absolute");
    }
    let all_normal = Path::new(path).components().all(|component| matches!(component, Component::Normal(_)));
    if !all_normal || path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return refuse("has an empty part, `.` or `..`");
    }
    Ok(())
}

impl Folder {
    /// # Errors
    /// When the folder cannot be resolved.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), real: path.canonicalize()? })
    }

    /// The regular file at a relative path, inside the folder even through links.
    pub(super) fn resolve(&self, relative: &str) -> Result<PathBuf, Refusal> {
        check_relative(relative)?;
        let path = self.path.join(relative);
        let real = path.canonicalize().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Refusal::new(
                format!("{} does not exist", path.display()),
                "put the file there, or correct the path; paths are relative to the folder of the file that names them",
            ),
            _ => Refusal::read(&path, &error),
        })?;
        if !real.starts_with(&self.real) {
            let message =
                format!("{} leads through a link to {}, outside the folder", path.display(), real.display());
            return Err(Refusal::new(message, "copy the file into the folder"));
        }
        if !real.is_file() {
            return Err(Refusal::new(format!("{} is not a regular file", path.display()), "name a file"));
        }
        Ok(path)
    }

    /// The same folder, or one below it, for paths that another file names.
    pub(super) fn below(&self, relative_file: &str) -> Self {
        let path = match relative_file.rsplit_once('/') {
            Some((parent, _)) => self.path.join(parent),
            None => self.path.clone(),
        };
        Self { path, real: self.real.clone() }
    }
}

/// Reads a file of at most `max_bytes` whole.
pub(super) fn read_small(path: &Path, max_bytes: u64) -> Result<(Vec<u8>, Content), Refusal> {
    let file = File::open(path).map_err(|error| Refusal::read(path, &error))?;
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes).map_err(|error| Refusal::read(path, &error))?;
    if bytes.len() as u64 > max_bytes {
        let message = format!("{} is larger than {max_bytes} bytes", path.display());
        return Err(Refusal::new(message, "name the right file; documents of this kind are small"));
    }
    let content =
        Content { digest: Digest::blake3(*blake3::hash(&bytes).as_bytes()), num_bytes: bytes.len() as u64 };
    Ok((bytes, content))
}

/// The first bytes of a file; fewer where it is shorter.
pub(super) fn read_prefix(path: &Path, num_bytes: usize) -> Result<Vec<u8>, Refusal> {
    let mut prefix = Vec::new();
    File::open(path)
        .and_then(|file| file.take(num_bytes as u64).read_to_end(&mut prefix))
        .map_err(|error| Refusal::read(path, &error))?;
    Ok(prefix)
}

/// Digests a file without holding it in memory.
pub(super) fn digest_file(path: &Path) -> Result<Content, Refusal> {
    let file = File::open(path).map_err(|error| Refusal::read(path, &error))?;
    let mut reader = HashingReader::new(BufReader::with_capacity(BUFFER_BYTES, file));
    io::copy(&mut reader, &mut io::sink()).map_err(|error| Refusal::read(path, &error))?;
    Ok(reader.content())
}

/// Digests what passes through it.
pub(super) struct HashingReader<R> {
    inner: R,
    hasher: blake3::Hasher,
    num_bytes: u64,
}

impl<R: Read> HashingReader<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, hasher: blake3::Hasher::new(), num_bytes: 0 }
    }

    /// Of everything that was read so far.
    pub(super) fn content(&self) -> Content {
        Content { digest: Digest::blake3(*self.hasher.finalize().as_bytes()), num_bytes: self.num_bytes }
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let num_read = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..num_read]);
        self.num_bytes += num_read as u64;
        Ok(num_read)
    }
}

/// Compares a binding with the file's content, and fills what is null.
pub(super) fn bind(binding: &mut FileBinding, pointer: &str, content: Content, problems: &mut Problems) {
    let named = (binding.digest, binding.num_bytes);
    compare(named, &binding.path, pointer, content, problems);
    binding.digest = Some(content.digest);
    binding.num_bytes = Some(content.num_bytes);
}

/// Compares what a document says of a file with the file's content.
pub(super) fn compare(
    named: (Option<Digest>, Option<u64>),
    path: &str,
    pointer: &str,
    content: Content,
    problems: &mut Problems,
) {
    let hint = "restore the file, or set `digest` and `num_bytes` to null to freeze what is there";
    if let Some(digest) = named.0.filter(|digest| *digest != content.digest) {
        let message = format!("{path} has digest {}; expected {digest}", content.digest);
        let hint = match digest.algorithm {
            Algorithm::Blake3 => hint,
            Algorithm::Sha256 => "files are named by BLAKE3: `blake3:` and 64 hex digits",
        };
        problems.add(format!("{pointer}/digest"), message, hint);
    }
    if let Some(num_bytes) = named.1.filter(|num_bytes| *num_bytes != content.num_bytes) {
        let message = format!("{path} has {} bytes; expected {num_bytes}", content.num_bytes);
        problems.add(format!("{pointer}/num_bytes"), message, hint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_folder_are_refused() {
        for path in
            ["", "/etc/passwd", "../x", "a/../b", "./a", "a//b", "a/", "s3://bucket/key", "a\\b", "a\0b"]
        {
            assert!(check_relative(path).is_err(), "{path:?}");
        }
        for path in ["a", "a/b.txt", "a/..b", "name with spaces"] {
            assert!(check_relative(path).is_ok(), "{path:?}");
        }
    }
}
