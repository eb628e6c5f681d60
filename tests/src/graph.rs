//! The workspace's dependency graph, as cargo itself reports it and as the
//! lock file holds it.
//!
//! Two sources, because they answer different questions: `cargo metadata`
//! says what is built with default features on this platform, and which
//! features that turns on; the lock file lists what any feature, platform or
//! dependency kind of a member can pull in, without downloading it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use cargo_metadata::{Metadata, MetadataCommand, Package, PackageId};

use crate::workspace_root;

/// What cargo builds with default features on Linux.
///
/// # Errors
/// When cargo fails, for instance because the lock file is not up to date.
pub fn metadata() -> Result<Metadata> {
    metadata_with(&[])
}

/// The same with every feature of every member. Features only add to each
/// other, so what is turned off here is off in every combination.
///
/// # Errors
/// As [`metadata`].
pub fn metadata_of_all_features() -> Result<Metadata> {
    metadata_with(&["--all-features"])
}

fn metadata_with(features: &[&str]) -> Result<Metadata> {
    let options = [&["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"], features].concat();
    let options: Vec<String> = options.into_iter().map(str::to_owned).collect();
    MetadataCommand::new()
        .manifest_path(workspace_root().join("Cargo.toml"))
        .other_options(options)
        .exec()
        .context("cargo metadata --locked")
}

/// The workspace member of this name.
///
/// # Errors
/// When there is none.
pub fn member<'a>(metadata: &'a Metadata, name: &str) -> Result<&'a Package> {
    let found = metadata.workspace_packages().into_iter().find(|package| package.name.as_str() == name);
    found.with_context(|| format!("no workspace member is called {name}"))
}

/// Every package that `root` reaches through normal and build dependencies,
/// by name; with `development` its own development dependencies too.
///
/// # Errors
/// When the graph lacks a node that it names.
pub fn reachable(metadata: &Metadata, root: &Package, development: bool) -> Result<BTreeSet<String>> {
    use cargo_metadata::DependencyKind::{Build, Development, Normal};
    let resolve = metadata.resolve.as_ref().context("cargo metadata resolved nothing")?;
    let nodes: BTreeMap<&PackageId, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let mut seen = BTreeSet::new();
    let mut names = BTreeSet::new();
    let mut stack = vec![&root.id];
    while let Some(id) = stack.pop() {
        let node = nodes.get(id).with_context(|| format!("no node for {id}"))?;
        for dependency in &node.deps {
            let followed = dependency.dep_kinds.iter().any(|info| match info.kind {
                Normal | Build => true,
                Development => development && *id == root.id,
                _ => false,
            });
            if followed && seen.insert(&dependency.pkg) {
                names.insert(metadata[&dependency.pkg].name.to_string());
                stack.push(&dependency.pkg);
            }
        }
    }
    Ok(names)
}

/// One package of the lock file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockedPackage {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// `name` or `name version` of everything that it may pull in.
    pub dependencies: Vec<String>,
}

/// The packages of `Cargo.lock`.
///
/// # Errors
/// When the file cannot be read, or has no package.
pub fn lock_file() -> Result<Vec<LockedPackage>> {
    let path = workspace_root().join("Cargo.lock");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut packages = Vec::new();
    for section in text.split("[[package]]").skip(1) {
        let field = |key: &str| {
            let line = section.lines().find_map(|line| line.strip_prefix(key));
            line.map(|value| value.trim().trim_matches('"').to_owned())
        };
        let listed = section.split_once("dependencies = [").and_then(|(_, rest)| rest.split_once(']'));
        let dependencies = listed
            .map(|(list, _)| list.lines().map(|line| line.trim().trim_matches([',', '"']).to_owned()))
            .map(|lines| lines.filter(|line| !line.is_empty()).collect())
            .unwrap_or_default();
        let name = field("name = ").context("a package without a name")?;
        let version = field("version = ").context("a package without a version")?;
        packages.push(LockedPackage { name, version, dependencies });
    }
    if packages.is_empty() {
        bail!("{}: no package", path.display());
    }
    Ok(packages)
}

/// Names of everything that `root` may pull in by the lock file: any feature,
/// any platform, development dependencies of members included.
///
/// # Errors
/// When the lock file names a package that it does not list.
pub fn locked_closure(packages: &[LockedPackage], root: &str) -> Result<BTreeSet<String>> {
    let mut seen = BTreeSet::new();
    let mut stack = vec![root.to_owned()];
    while let Some(entry) = stack.pop() {
        let mut words = entry.split(' ');
        let (name, version) = (words.next().unwrap_or_default(), words.next());
        let mut found = packages
            .iter()
            .filter(|package| {
                package.name == name && version.is_none_or(|version| package.version == version)
            })
            .peekable();
        if found.peek().is_none() {
            bail!("Cargo.lock names {entry} but does not list it");
        }
        for package in found {
            if seen.insert((package.name.clone(), package.version.clone())) {
                stack.extend(package.dependencies.iter().cloned());
            }
        }
    }
    seen.retain(|(name, _)| name != root);
    Ok(seen.into_iter().map(|(name, _)| name).collect())
}
