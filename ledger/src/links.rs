//! Finds symbolic links where the checkpoints of a run lie.
//!
//! Whoever checks a run reads its files below the ledger's folder and through no
//! link, since one may lead to what is no part of the run, and to something else
//! tomorrow. A run that saves through a link, or goes on from one, would make a
//! record that no audit accepts, whichever loop it is of. Links above that folder,
//! and the folder itself, are the owner's.

use std::fs;
use std::path::{Path, PathBuf};

/// A symbolic link where a checkpoint of a run lies, or would.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is a symbolic link, and no audit reads a checkpoint through one", path.display())]
pub struct Linked {
    /// The link.
    pub path: PathBuf,
}

impl Linked {
    /// What can be done about it.
    pub const HINT: &str = "put what it leads to in its place, and run the same command again; for another disk, \
                            move the folder of the ledger there as a whole, or mount the disk where the link is";
}

/// Checks that no symbolic link is on the way to a run's store or to these of its
/// checkpoints, and none among their files. All are named relative to `folder`, which
/// is the ledger's.
///
/// # Errors
/// [`Linked`] for the first one.
pub fn check(
    folder: &Path,
    store: &str,
    checkpoints: impl IntoIterator<Item = impl AsRef<Path>>,
) -> Result<(), Linked> {
    let mut checkpoints = checkpoints.into_iter();
    let found = on_the_way(folder, Path::new(store)).or_else(|| {
        checkpoints.find_map(|checkpoint| {
            let checkpoint = checkpoint.as_ref();
            on_the_way(folder, checkpoint).or_else(|| within(&folder.join(checkpoint)))
        })
    });
    found.map_or(Ok(()), |path| Err(Linked { path }))
}

/// The first symbolic link on the way to a path below `folder`; none where nothing
/// is there yet. What cannot be looked at is told by whoever goes on to use it.
#[must_use]
pub fn on_the_way(folder: &Path, relative: &Path) -> Option<PathBuf> {
    let mut path = folder.to_owned();
    for part in relative.components() {
        path.push(part);
        if fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_symlink()) {
            return Some(path);
        }
    }
    None
}

/// The first symbolic link, by name, among what lies in a folder. A checkpoint has
/// no folders in it.
fn within(folder: &Path) -> Option<PathBuf> {
    let items = fs::read_dir(folder).into_iter().flatten().flatten();
    let links = items.filter(|item| item.file_type().is_ok_and(|kind| kind.is_symlink()));
    links.map(|item| item.path()).min()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// The link that is refused, of a store with these checkpoints.
    fn refused(folder: &Path, store: &str, checkpoints: &[&str]) -> Option<PathBuf> {
        check(folder, store, checkpoints).err().map(|linked| linked.path)
    }

    #[test]
    fn a_link_is_found_wherever_it_leads() {
        let outside = TempDir::new().expect("a folder");
        let folder = outside.path().join("run");
        fs::create_dir_all(folder.join("store/one")).expect("folders");
        fs::write(folder.join("store/one/file"), b"bytes").expect("writable");
        assert_eq!(refused(&folder, "store", &["store/one", "store/two"]), None);
        assert_eq!(refused(&folder, "nowhere/at/all", &["nowhere/at/all/one"]), None);

        symlink("store", folder.join("near")).expect("a link");
        symlink("/nowhere/at/all", folder.join("dangling")).expect("a link");
        symlink("one", folder.join("store/two")).expect("a link");
        assert_eq!(refused(&folder, "near", &[]), Some(folder.join("near")));
        assert_eq!(refused(&folder, "near/one", &[]), Some(folder.join("near")));
        assert_eq!(refused(&folder, "dangling", &[]), Some(folder.join("dangling")));
        assert_eq!(refused(&folder, "store", &["store/one", "store/two"]), Some(folder.join("store/two")));
        // What nobody names is nobody's checkpoint.
        assert_eq!(refused(&folder, "store", &["store/one"]), None);
        for name in ["b", "a"] {
            symlink("file", folder.join("store/one").join(name)).expect("a link");
        }
        assert_eq!(refused(&folder, "store", &["store/one"]), Some(folder.join("store/one/a")));
        assert_eq!(refused(&folder, "store", &[]), None);

        // How the ledger's own folder is reached is nobody's business here.
        let linked = outside.path().join("linked");
        symlink(&folder, &linked).expect("a link");
        assert_eq!(refused(&linked, "store", &[]), None);
    }
}
