//! Reads files that somebody else may have made: only regular ones, through no
//! link, and never more bytes than were asked for.
//!
//! A reviewer executes segments of a run that others recorded, so a path of its
//! ledger may leave the folder, and a file of its checkpoints may be a link into
//! the reviewer's own, a pipe that nobody writes to, or a device that never ends.
//! Errors say what was refused; the caller names the file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Whether a path stays in its folder: no root, no `..`.
#[must_use]
pub fn is_plain(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// A path below `folder` that passes through no link. Links above `folder`, and
/// `folder` itself, are the caller's own.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] where it leaves the folder or a link is on the
/// way; else what the system said, such as that nothing is there.
pub fn resolve(folder: &Path, relative: &str) -> io::Result<PathBuf> {
    if !is_plain(relative) {
        return Err(refused("it leaves the folder"));
    }
    let mut path = folder.to_owned();
    for part in Path::new(relative).components() {
        path.push(part);
        if fs::symlink_metadata(&path)?.file_type().is_symlink() {
            return Err(refused(format!("{} is a symbolic link", path.display())));
        }
    }
    Ok(path)
}

/// Opens a regular file that is no link itself, with its size in bytes.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] where it is something else; else what the
/// system said.
pub fn regular(path: &Path) -> io::Result<(File, u64)> {
    // Before it is opened, since opening a device may do something.
    let kind = fs::symlink_metadata(path)?.file_type();
    if !kind.is_file() {
        return Err(refused(if kind.is_symlink() {
            "it is a symbolic link"
        } else {
            "it is no regular file"
        }));
    }
    // It may have been exchanged since; a pipe's opening would wait for a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok((file, metadata.len())) } else { Err(refused("it is no regular file")) }
}

/// Reads an open file of at most `limit` bytes.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] where it has more; else what the system said.
pub fn read_all(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let expected = file.metadata()?.len().min(limit);
    let expected = usize::try_from(expected).map_err(|_| io::ErrorKind::OutOfMemory)?;
    bytes.try_reserve_exact(expected).map_err(|_| io::ErrorKind::OutOfMemory)?;
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let message = format!("it has more than the {limit} bytes that are read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// Reads a regular file of at most `limit` bytes below `folder`.
///
/// # Errors
/// As [`resolve`], [`regular`] and [`read_all`].
pub fn read(folder: &Path, relative: &str, limit: u64) -> io::Result<Vec<u8>> {
    let (file, _) = regular(&resolve(folder, relative)?)?;
    read_all(file, limit)
}

fn refused(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, mkfifoat};
    use tempfile::TempDir;

    use super::*;

    fn kind(result: io::Result<impl Sized>) -> Option<io::ErrorKind> {
        result.err().map(|error| error.kind())
    }

    #[test]
    fn what_could_leave_the_folder_is_refused() {
        let outside = TempDir::new().expect("a folder");
        fs::write(outside.path().join("secret"), b"secret").expect("writable");
        let folder = outside.path().join("run");
        fs::create_dir_all(folder.join("a")).expect("a folder");
        fs::write(folder.join("a/b"), b"four").expect("writable");
        symlink("..", folder.join("up")).expect("a link");
        symlink(outside.path().join("secret"), folder.join("a/link")).expect("a link");
        symlink("b", folder.join("a/near")).expect("a link");
        assert_eq!(read(&folder, "a/b", 4).expect("it is there"), b"four");
        let absolute = outside.path().join("secret").to_string_lossy().into_owned();
        for path in ["", "../secret", "a/../../secret", "./a/b", "up/secret", "a/link", "a/near", &absolute] {
            assert_eq!(kind(read(&folder, path, 100)), Some(io::ErrorKind::InvalidInput), "{path}");
        }
        assert_eq!(kind(read(&folder, "a/c", 100)), Some(io::ErrorKind::NotFound));
        // A link to a file is none, whichever folder it is in.
        assert_eq!(kind(regular(&folder.join("a/near"))), Some(io::ErrorKind::InvalidInput));
    }

    #[test]
    fn what_is_no_regular_file_or_too_large_is_not_read() {
        let folder = TempDir::new().expect("a folder");
        mkfifoat(CWD, folder.path().join("pipe"), Mode::RUSR | Mode::WUSR).expect("a pipe");
        fs::create_dir(folder.path().join("folder")).expect("a folder");
        fs::write(folder.path().join("file"), b"12345").expect("writable");
        // A pipe that nobody writes to would be waited for.
        for path in ["pipe", "folder"] {
            assert_eq!(kind(read(folder.path(), path, 100)), Some(io::ErrorKind::InvalidInput), "{path}");
        }
        assert_eq!(kind(regular(Path::new("/dev/zero"))), Some(io::ErrorKind::InvalidInput));
        assert_eq!(kind(read(folder.path(), "file", 4)), Some(io::ErrorKind::FileTooLarge));
        assert_eq!(read(folder.path(), "file", 5).expect("it is small enough"), b"12345");
        // A file without a size of its own ends where the limit does.
        let endless = File::open("/dev/zero").expect("a device");
        assert_eq!(kind(read_all(endless, 1000)), Some(io::ErrorKind::FileTooLarge));
    }
}
