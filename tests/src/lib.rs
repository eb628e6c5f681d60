//! Support for the tests of whole programs and of the workspace itself.
//!
//! It owns how a test finds the built programs, runs them in a folder of its
//! own, and looks at what they left with readers that share nothing with the
//! code under test. It holds no test: those are in `tests/system/`.

pub mod challenges;
pub mod crashes;
pub mod dump;
pub mod foreign_witness;
pub mod forgery;
pub mod graph;
pub mod honest;
pub mod interop;
pub mod mutations;
pub mod norms;
pub mod object_server;
pub mod programs;
pub mod proxy;
pub mod random;
pub mod run_folder;
pub mod spdx;
pub mod tracking;
pub mod witnesses;

use std::path::{Path, PathBuf};

/// The folder of the workspace.
#[must_use]
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}
