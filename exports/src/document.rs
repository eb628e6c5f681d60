//! Files that an export consists of, and putting them into a folder.

use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::ExportError;

/// What the temporary files begin with. A kill can leave some of them; no reader
/// takes them for documents.
const TEMPORARY_PREFIX: &str = ".export-";

/// One file of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// All of its bytes.
    pub bytes: Vec<u8>,
    /// Name in the folder, without one of its own.
    pub name: String,
}

impl Document {
    /// A document of these bytes.
    #[must_use]
    pub fn new(name: &str, bytes: Vec<u8>) -> Self {
        Self { bytes, name: name.to_owned() }
    }
}

/// Writes documents into a folder, which is made where it is missing. A name
/// that is taken is refused before anything is written. All documents are
/// written and flushed under temporary names before the first gets its own,
/// which replaces nothing: what has a document's name is the whole document. A
/// failure takes back the names that were given; a kill between the first and
/// the last name leaves those that were given by then.
///
/// # Errors
/// When one of the names exists, or a file cannot be written and flushed.
pub fn write_documents(folder: &Path, documents: &[Document]) -> Result<Vec<PathBuf>, ExportError> {
    let paths: Vec<PathBuf> = documents.iter().map(|document| folder.join(&document.name)).collect();
    if let Some(path) = paths.iter().find(|path| path.exists()) {
        return Err(ExportError::Exists { path: path.clone() });
    }
    std::fs::create_dir_all(folder).map_err(|source| io(folder, source))?;
    let mut staged = Vec::with_capacity(documents.len());
    for (path, document) in paths.iter().zip(documents) {
        staged.push(stage(folder, &document.bytes).map_err(|source| io(path, source))?);
    }
    for (number, (path, file)) in paths.iter().zip(staged).enumerate() {
        if let Err(refused) = file.persist_noclobber(path) {
            for named in paths.iter().take(number) {
                // The first failure is the one to tell.
                let _ = std::fs::remove_file(named);
            }
            return Err(io(path, refused.error));
        }
    }
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|source| io(folder, source))?;
    Ok(paths)
}

/// The bytes on the disk under a name of no document, readable as far as umask
/// says. The file goes when it is dropped without a name of its own.
fn stage(folder: &Path, bytes: &[u8]) -> std::io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    let mut file =
        builder.prefix(TEMPORARY_PREFIX).permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    Ok(file)
}

fn io(path: &Path, source: std::io::Error) -> ExportError {
    match source.kind() {
        ErrorKind::AlreadyExists => ExportError::Exists { path: path.to_owned() },
        _ => ExportError::Io { path: path.to_owned(), source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_is_refused_before_anything_is_written() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let target = folder.path().join("new/export");
        let documents = [Document::new("a", b"1".to_vec()), Document::new("b", b"2".to_vec())];
        let paths = write_documents(&target, &documents).expect("a fresh folder");
        assert_eq!(paths, [target.join("a"), target.join("b")]);
        let refused = write_documents(&target, &[Document::new("c", vec![]), Document::new("b", vec![])]);
        assert!(matches!(refused, Err(ExportError::Exists { path }) if path == target.join("b")));
        assert!(!target.join("c").exists());
        assert_eq!(std::fs::read(target.join("b")).expect("the file"), b"2");
    }

    #[test]
    fn what_was_written_before_a_failure_is_removed_again() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let documents = [Document::new("a", b"1".to_vec()), Document::new("no/such/folder", b"2".to_vec())];
        let refused = write_documents(folder.path(), &documents);
        assert!(matches!(refused, Err(ExportError::Io { .. })), "{refused:?}");
        let left = std::fs::read_dir(folder.path()).expect("the folder").count();
        assert_eq!(left, 0, "neither a document nor a temporary file");
    }

    #[test]
    fn no_temporary_file_stays_beside_documents() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let documents = [Document::new("a", b"1".to_vec()), Document::new("b", b"2".to_vec())];
        let paths = write_documents(folder.path(), &documents).expect("a fresh folder");
        let mut names: Vec<_> = std::fs::read_dir(folder.path())
            .expect("the folder")
            .map(|item| item.expect("a file").path())
            .collect();
        names.sort();
        assert_eq!(names, paths);
        let mode = std::fs::metadata(&names[0]).expect("the file").permissions().mode();
        assert_eq!(mode & 0o600, 0o600, "its owner may read and write it");
        assert_eq!(mode & 0o111, 0, "it is no program");
    }
}
