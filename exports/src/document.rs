//! Files that an export consists of, and putting them into a folder.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::ExportError;

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

/// Writes documents into a folder, which is made where it is missing: all of
/// them, or none. A name that is taken is refused before anything is written,
/// and what was written before a failure is removed again.
///
/// # Errors
/// When one of the names exists, or a file cannot be written and flushed.
pub fn write_documents(folder: &Path, documents: &[Document]) -> Result<Vec<PathBuf>, ExportError> {
    let paths: Vec<PathBuf> = documents.iter().map(|document| folder.join(&document.name)).collect();
    if let Some(path) = paths.iter().find(|path| path.exists()) {
        return Err(ExportError::Exists { path: path.clone() });
    }
    std::fs::create_dir_all(folder).map_err(|source| io(folder, source))?;
    for (number, (path, document)) in paths.iter().zip(documents).enumerate() {
        if let Err(error) = write_new(path, &document.bytes) {
            for written in paths.iter().take(number) {
                // The first failure is the one to tell.
                let _ = std::fs::remove_file(written);
            }
            return Err(error);
        }
    }
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|source| io(folder, source))?;
    Ok(paths)
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<(), ExportError> {
    let mut file = File::create_new(path).map_err(|source| io(path, source))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|source| {
        let _ = std::fs::remove_file(path);
        io(path, source)
    })
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
        assert!(!folder.path().join("a").exists());
    }
}
