//! Files that appear whole or not at all, and never in another's place.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use schemas::digest::Digest;

/// Bytes that are copied or hashed at a time.
pub(crate) const BUFFER_BYTES: usize = 1 << 18;

/// Why a file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file exists and holds something else.
    #[error(
        "{} exists with other content ({existing}, not {intended}); move it away or name another folder",
        path.display()
    )]
    Occupied {
        /// The file.
        path: PathBuf,
        /// BLAKE3 of what it holds.
        existing: Digest,
        /// BLAKE3 of what was to be written.
        intended: Digest,
    },
    /// The operating system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl WriteError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

/// BLAKE3 and size of a file, read in pieces.
pub(crate) fn digest_file(path: &Path) -> io::Result<(Digest, u64)> {
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, File::open(path)?);
    let mut hasher = blake3::Hasher::new();
    let num_bytes = io::copy(&mut reader, &mut hasher)?;
    Ok((Digest::blake3(*hasher.finalize().as_bytes()), num_bytes))
}

/// Writes what `fill` gives to `path`: temporary file, flush to disk, rename.
/// A file that already holds the same bytes is left; one that holds others is
/// refused.
pub(crate) fn write_whole<E: From<WriteError>>(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(Digest, u64), E> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(WriteError::io("create folder", folder))?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".partial-{}", std::process::id()));
    let partial = folder.join(name);
    let written = fill_and_place(path, &partial, fill);
    if written.is_err() {
        // The file that failed is of no use; the error that is returned says why.
        let _ = fs::remove_file(&partial);
    }
    let written = written?;
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(WriteError::io("flush folder", folder))?;
    Ok(written)
}

fn fill_and_place<E: From<WriteError>>(
    path: &Path,
    partial: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(Digest, u64), E> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(partial)
        .map_err(WriteError::io("create", partial))?;
    let mut writer = Hashing {
        inner: BufWriter::with_capacity(BUFFER_BYTES, file),
        hasher: blake3::Hasher::new(),
        num_bytes: 0,
    };
    fill(&mut writer)?;
    let digest = Digest::blake3(*writer.hasher.finalize().as_bytes());
    let num_bytes = writer.num_bytes;
    writer.flush().map_err(WriteError::io("write", partial))?;
    writer.inner.get_ref().sync_all().map_err(WriteError::io("flush", partial))?;
    if path.exists() {
        let (existing, _) = digest_file(path).map_err(WriteError::io("read", path))?;
        if existing != digest {
            return Err(WriteError::Occupied { path: path.to_owned(), existing, intended: digest }.into());
        }
        fs::remove_file(partial).map_err(WriteError::io("remove", partial))?;
    } else {
        fs::rename(partial, path).map_err(WriteError::io("rename into place", path))?;
    }
    Ok((digest, num_bytes))
}

/// Writes bytes as [`write_whole`] does.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(Digest, u64), WriteError> {
    write_whole(path, |writer| writer.write_all(bytes).map_err(WriteError::io("write", path)))
}

struct Hashing<W: Write> {
    inner: W,
    hasher: blake3::Hasher,
    num_bytes: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.num_bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Reads until `buffer` is full or the file ends; the number of bytes read.
pub(crate) fn read_full(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(num_bytes) => filled += num_bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
