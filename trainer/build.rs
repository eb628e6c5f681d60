//! Embeds the identity of the code that decides a run: a SHA-256 over a
//! canonical list of sources, lock file, compiler, target, profile and
//! features. It is computed when the binary is built, so that a working tree
//! that changed since cannot claim to be what ran.
//!
//! Tests, benches and documentation are left out: they decide no run.

#![allow(clippy::print_stdout, reason = "cargo reads a build script's instructions from stdout")]

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// First line of the list, so that another list cannot be mistaken for it.
const DOMAIN: &str = "governed-ledger code/1";

/// Crates of this workspace that take part in a run.
const CRATES: [&str; 4] = ["corpus", "ledger", "schemas", "trainer"];

/// Files of the workspace root that decide what is compiled.
const ROOT_FILES: [&str; 3] = ["Cargo.lock", "Cargo.toml", "rust-toolchain.toml"];

/// What cargo says of the build; each line of the list is `name=value`.
const VARIABLES: [&str; 8] = [
    "TARGET",
    "PROFILE",
    "OPT_LEVEL",
    "DEBUG",
    "CARGO_CFG_TARGET_FEATURE",
    "CARGO_CFG_PANIC",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_CFG_DEBUG_ASSERTIONS",
];

fn main() -> Result<(), Box<dyn Error>> {
    let manifest_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let root = manifest_dir.parent().ok_or("the crate has no parent folder")?;
    let mut files = BTreeMap::new();
    for name in ROOT_FILES {
        add_file(root, &root.join(name), &mut files)?;
    }
    for name in CRATES {
        let folder = root.join(name);
        add_file(root, &folder.join("Cargo.toml"), &mut files)?;
        if folder.join("build.rs").exists() {
            add_file(root, &folder.join("build.rs"), &mut files)?;
        }
        add_folder(root, &folder.join("src"), &mut files)?;
    }
    add_folder(root, &root.join("migrations"), &mut files)?;

    let rustc = rustc_version()?;
    let features = features();
    let mut list = format!("{DOMAIN}\n");
    for (path, digest) in &files {
        writeln!(list, "file {path} {digest}")?;
    }
    writeln!(list, "rustc {rustc}")?;
    for name in VARIABLES {
        println!("cargo::rerun-if-env-changed={name}");
        writeln!(list, "{name}={}", env::var(name).unwrap_or_default())?;
    }
    writeln!(list, "features {}", features.join(","))?;

    let lock = fs::read_to_string(root.join("Cargo.lock"))?;
    for package in ["burn-flex", "burn-wgpu", "burn-cuda"] {
        let variable = package.to_uppercase().replace('-', "_");
        println!("cargo::rustc-env=TRAINER_{variable}={package} {}", locked_version(&lock, package));
    }
    println!("cargo::rustc-env=TRAINER_CODE_DIGEST={}", hex(&Sha256::digest(list.as_bytes())));
    println!("cargo::rustc-env=TRAINER_FEATURES={}", features.join(","));
    println!("cargo::rustc-env=TRAINER_RUSTC={rustc}");
    Ok(())
}

fn add_folder(
    root: &Path,
    folder: &Path,
    files: &mut BTreeMap<String, String>,
) -> Result<(), Box<dyn Error>> {
    // Cargo compares the modification times of everything below the folder.
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            add_folder(root, &path, files)?;
        } else {
            add_file(root, &path, files)?;
        }
    }
    Ok(())
}

fn add_file(root: &Path, path: &Path, files: &mut BTreeMap<String, String>) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={}", path.display());
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let relative = path.strip_prefix(root)?.to_str().ok_or("a source path is not UTF-8")?.replace('\\', "/");
    files.insert(relative, hex(&Sha256::digest(&bytes)));
    Ok(())
}

/// First line of `rustc --version`, of the compiler that cargo uses.
fn rustc_version() -> Result<String, Box<dyn Error>> {
    let rustc = env::var("RUSTC")?;
    let output = Command::new(rustc).arg("--version").output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().next().ok_or("rustc --version says nothing")?.trim().to_owned())
}

/// Version of a package in the lock file; `unlocked` where it is not in it,
/// which is a backend that cannot be compiled in either.
fn locked_version(lock: &str, package: &str) -> String {
    let name = format!("name = \"{package}\"");
    lock.lines()
        .skip_while(|line| *line != name)
        .find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'))
        .unwrap_or("unlocked")
        .to_owned()
}

/// Cargo features of this crate that are enabled, in alphabetical order.
fn features() -> Vec<String> {
    let mut features: Vec<String> = env::vars()
        .filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase().replace('_', "-")))
        .filter(|name| name != "default")
        .collect();
    features.sort();
    features
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
