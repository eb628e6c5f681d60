//! Finds symbolic links where the checkpoints of a run lie.
//!
//! Whoever checks a run reads its files below the ledger's folder and through no
//! link, since one may lead to what is no part of the run, and to something else
//! tomorrow. A run that saves through a link, or goes on from one, would make a
//! record that no audit accepts. Links above that folder, and the folder itself,
//! are the owner's.

use std::fs;
use std::path::{Path, PathBuf};

/// The first symbolic link on the way to a path below `folder`; none where nothing
/// is there yet. What cannot be looked at is told by whoever goes on to use it.
#[must_use]
pub fn on_the_way(folder: &Path, relative: &str) -> Option<PathBuf> {
    let mut path = folder.to_owned();
    for part in Path::new(relative).components() {
        path.push(part);
        if fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_symlink()) {
            return Some(path);
        }
    }
    None
}

/// The first symbolic link, by name, among what lies in a folder. A checkpoint of
/// the trainer's has no folders in it.
#[must_use]
pub fn within(folder: &Path) -> Option<PathBuf> {
    let items = fs::read_dir(folder).into_iter().flatten().flatten();
    let links = items.filter(|item| item.file_type().is_ok_and(|kind| kind.is_symlink()));
    links.map(|item| item.path()).min()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_link_is_found_wherever_it_leads() {
        let outside = TempDir::new().expect("a folder");
        let folder = outside.path().join("run");
        fs::create_dir_all(folder.join("store/one")).expect("folders");
        fs::write(folder.join("store/one/file"), b"bytes").expect("writable");
        assert_eq!(on_the_way(&folder, "store/one"), None);
        assert_eq!(on_the_way(&folder, "nowhere/at/all"), None);
        assert_eq!(within(&folder.join("store/one")), None);
        assert_eq!(within(&folder.join("nowhere")), None);

        symlink("store", folder.join("near")).expect("a link");
        symlink("/nowhere/at/all", folder.join("dangling")).expect("a link");
        assert_eq!(on_the_way(&folder, "near/one"), Some(folder.join("near")));
        assert_eq!(on_the_way(&folder, "dangling"), Some(folder.join("dangling")));
        for name in ["b", "a"] {
            symlink("file", folder.join("store/one").join(name)).expect("a link");
        }
        assert_eq!(within(&folder.join("store/one")), Some(folder.join("store/one/a")));

        // How the ledger's own folder is reached is nobody's business here.
        let linked = outside.path().join("linked");
        symlink(&folder, &linked).expect("a link");
        assert_eq!(on_the_way(&linked, "store/one"), None);
    }
}
