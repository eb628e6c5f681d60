//! A folder for what a command unpacks or copies, gone when the command is:
//! by itself, and where it is interrupted. What a killed one leaves in the folder for
//! temporary files goes with the next one; what it leaves elsewhere stays.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ledger::private_folder::PrivateFolder;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{Failure, OrFail};
use crate::output::say;

/// A private folder.
#[derive(Debug)]
pub(crate) struct Scratch {
    folder: PrivateFolder,
}

/// Tries of removing a folder in which another thread still makes files.
const MAX_TRIES: u32 = 50;

impl Scratch {
    /// Makes one in the folder for temporary files.
    pub(crate) fn new() -> Result<Self, Failure> {
        let parent = std::env::temp_dir();
        Self::of(PrivateFolder::held_in(&parent, "ledger-bundle-"), &parent)
    }

    /// Makes one beside what a command makes.
    pub(crate) fn new_in(parent: &Path, prefix: &str) -> Result<Self, Failure> {
        Self::of(PrivateFolder::new_in(parent, prefix), parent)
    }

    /// Private copies of ledgers that the command takes lie in it too, so that all
    /// of them go together.
    fn of(folder: io::Result<PrivateFolder>, parent: &Path) -> Result<Self, Failure> {
        let folder = folder.or_fail(
            format!("cannot make a folder in {}", parent.display()),
            "make room, or make it writable",
        )?;
        // Fails only where it was set before, and then copies lie where they did.
        let _ = tempfile::env::override_temp_dir(folder.path());
        remove_on_signal(folder.path().to_owned())?;
        Ok(Self { folder })
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the folder and ends the process when it is asked to end.
fn remove_on_signal(folder: PathBuf) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        let Some(signal) = signals.forever().next() else { return };
        for _ in 0..MAX_TRIES {
            match std::fs::remove_dir_all(&folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => break,
            }
        }
        say("interrupted; what was unpacked is removed");
        std::process::exit(128 + signal);
    });
    Ok(())
}
