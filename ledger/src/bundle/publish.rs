//! Giving a finished file its name without ever replacing what has the name.
//!
//! A hard link does that on most file systems. Those without hard links (exFAT,
//! some network mounts) rename without replacing, and where that is unknown too
//! the bytes are copied into a file that is made new.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::io::Errno;

/// One way of giving `target` the name `output`.
type Way = fn(&Path, &Path) -> io::Result<()>;

/// In the order in which they are tried.
const WAYS: [Way; 3] = [link, rename, copy];

/// Gives `target` the name `output`; whether `target` stays is not said.
///
/// # Errors
/// `AlreadyExists` where there is such a file, which stays as it is; why the last
/// way failed otherwise.
pub(super) fn publish(target: &Path, output: &Path) -> io::Result<()> {
    try_ways(&WAYS, target, output)
}

fn try_ways(ways: &[Way], target: &Path, output: &Path) -> io::Result<()> {
    let mut last: io::Result<()> = Err(io::ErrorKind::Unsupported.into());
    for way in ways {
        last = way(target, output);
        if last.as_ref().err().is_none_or(|error| !is_unsupported(error)) {
            break;
        }
    }
    last
}

/// Whether a failure may say of the file system that it has no such thing.
fn is_unsupported(error: &io::Error) -> bool {
    if error.raw_os_error() == Some(Errno::NOTSUP.raw_os_error()) {
        return true;
    }
    matches!(
        error.kind(),
        io::ErrorKind::Unsupported
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::CrossesDevices
            | io::ErrorKind::TooManyLinks
    )
}

fn link(target: &Path, output: &Path) -> io::Result<()> {
    fs::hard_link(target, output)
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn rename(target: &Path, output: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, target, CWD, output, RenameFlags::NOREPLACE)?)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn rename(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Copies and flushes; what was begun is removed where that fails.
fn copy(target: &Path, output: &Path) -> io::Result<()> {
    let mut from = File::open(target)?;
    let mut to = File::create_new(output)?;
    let copied = io::copy(&mut from, &mut to).and_then(|_| to.sync_all());
    if copied.is_err() {
        // The first failure is the one to tell.
        let _ = fs::remove_file(output);
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a file system without hard links says.
    fn refused(_: &Path, _: &Path) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(Errno::PERM.raw_os_error()))
    }

    fn unknown(_: &Path, _: &Path) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(Errno::NOTSUP.raw_os_error()))
    }

    fn full(_: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }

    #[test]
    fn no_way_replaces_a_file_and_the_next_is_tried_where_one_is_not_there() {
        let ways: [&[Way]; 4] = [&WAYS, &[refused, rename, copy], &[unknown, unknown, copy], &[rename]];
        for ways in ways {
            let folder = tempfile::tempdir().expect("a folder");
            let (target, output) = (folder.path().join("made"), folder.path().join("b.tar.zst"));
            fs::write(&target, b"bytes").expect("written");
            fs::write(&output, b"another").expect("written");
            let error = try_ways(ways, &target, &output).expect_err("it exists");
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::read(&output).expect("a file"), b"another");
            fs::remove_file(&output).expect("removed");
            try_ways(ways, &target, &output).expect("published");
            assert_eq!(fs::read(&output).expect("a file"), b"bytes");
        }
    }

    #[test]
    fn another_failure_is_told_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let (target, output) = (folder.path().join("made"), folder.path().join("b.tar.zst"));
        fs::write(&target, b"bytes").expect("written");
        let error = try_ways(&[refused, full, copy], &target, &output).expect_err("no room");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(!output.exists());
    }
}
