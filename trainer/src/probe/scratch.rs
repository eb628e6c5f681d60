//! The folder that trajectories are written into while they are compared; it
//! is removed whatever happens, short of a kill.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::ProbeError;

/// Names begin with this, so that a folder which a killed probe left is known.
pub const PREFIX: &str = ".probe-";

/// A folder that goes when this is dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes a folder of this process's own.
    ///
    /// # Errors
    /// [`ProbeError::Io`].
    pub fn new(parent: &Path) -> Result<Self, ProbeError> {
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path).map_err(ProbeError::io("create", &path))?;
        Ok(Self { path })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what one trajectory left in it.
    pub fn clear(&self, name: &str) {
        // What stays goes with the whole folder.
        let _ = fs::remove_dir_all(self.path.join(name));
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            use std::io::Write;
            let _ = writeln!(
                std::io::stderr().lock(),
                "warning: could not remove {}: {error}; it holds nothing that is needed",
                self.path.display()
            );
        }
    }
}
