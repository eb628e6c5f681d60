//! Which crate may know which, which licenses may come in, and which crates
//! may be there only once.

use std::collections::BTreeSet;

use anyhow::Result;
use cargo_metadata::{DependencyKind, Metadata, Package};
use system_tests::graph::{
    LockedPackage, lock_file, locked_closure, member, metadata, metadata_of_all_features, reachable,
};
use system_tests::spdx::satisfiable;

/// Whose text was read instead: name, and where its license is stated.
const LICENSE_IN_FILE: [(&str, &str); 1] = [("cfg_block", "Apache-2.0 in its file LICENSE")];

/// Members that keep free of what only training needs.
const ALL_BUT_THE_TRAINER: [&str; 11] = [
    "schemas",
    "ledger",
    "validator",
    "corpus",
    "evaluator",
    "exports",
    "web",
    "witness",
    "cli",
    "loops",
    "python",
];

fn direct(package: &Package) -> BTreeSet<&str> {
    package.dependencies.iter().map(|dependency| dependency.name.as_str()).collect()
}

fn is_burn(name: &str) -> bool {
    name == "burn" || name.starts_with("burn-") || name.starts_with("cubecl") || name == "cubek"
}

/// What a member is not to reach, whatever the kind of dependency.
fn check_never_reaches(metadata: &Metadata, name: &str, forbidden: &[&str]) -> Result<()> {
    let package = member(metadata, name)?;
    let locked = locked_closure(&lock_file()?, name)?;
    let direct = direct(package);
    for other in forbidden {
        assert!(!direct.contains(other), "{name} depends on {other}");
        assert!(
            !locked.contains(*other),
            "{name} can pull in {other}, through a feature or a development dependency"
        );
    }
    Ok(())
}

/// What a member builds, its own development dependencies left out.
fn check_is_built_without(metadata: &Metadata, name: &str, forbidden: impl Fn(&str) -> bool) -> Result<()> {
    let reached = reachable(metadata, member(metadata, name)?, false)?;
    let found: Vec<&String> = reached.iter().filter(|other| forbidden(other)).collect();
    assert!(found.is_empty(), "{name} is built with {found:?}");
    Ok(())
}

/// The lock file without what a member asks for in its tests and examples alone,
/// which the file does not tell from the rest. Everything else of it stays: any
/// feature, any platform, and development dependencies of other members.
fn without_development(metadata: &Metadata, name: &str) -> Result<Vec<LockedPackage>> {
    let package = member(metadata, name)?;
    let of_all = package.dependencies.iter();
    let built: BTreeSet<&str> = of_all
        .filter(|dependency| dependency.kind != DependencyKind::Development)
        .map(|dependency| dependency.name.as_str())
        .collect();
    let mut packages = lock_file()?;
    for package in packages.iter_mut().filter(|package| package.name == name) {
        package.dependencies.retain(|entry| built.contains(entry.split(' ').next().unwrap_or_default()));
    }
    Ok(packages)
}

#[test]
fn every_member_is_known_to_these_tests() -> Result<()> {
    let metadata = metadata()?;
    let members: BTreeSet<&str> =
        metadata.workspace_packages().into_iter().map(|package| package.name.as_str()).collect();
    let known = [
        "cli",
        "corpus",
        "evaluator",
        "exports",
        "ledger",
        "loops",
        "python",
        "schemas",
        "system-tests",
        "trainer",
        "validator",
        "web",
        "witness",
    ];
    assert_eq!(members, BTreeSet::from(known), "a new crate needs its place among the dependency directions");
    Ok(())
}

#[test]
fn validator_reaches_neither_ledger_nor_trainer() -> Result<()> {
    check_never_reaches(
        &metadata()?,
        "validator",
        &["ledger", "trainer", "evaluator", "cli", "web", "corpus", "sqlx", "witness"],
    )
}

#[test]
fn trainer_reaches_neither_validator_nor_evaluator() -> Result<()> {
    check_never_reaches(&metadata()?, "trainer", &["validator", "evaluator", "cli", "web", "witness"])
}

#[test]
fn ledger_knows_only_schemas() -> Result<()> {
    check_never_reaches(
        &metadata()?,
        "ledger",
        &["validator", "trainer", "evaluator", "cli", "web", "corpus"],
    )
}

/// What records a loop of one's own judges nothing, and does not bring the
/// trainer along.
#[test]
fn the_recorder_for_other_loops_reaches_neither_trainer_nor_validator() -> Result<()> {
    for name in ["loops", "python"] {
        check_never_reaches(&metadata()?, name, &["validator", "trainer", "evaluator", "cli", "web"])?;
    }
    Ok(())
}

#[test]
fn schemas_knows_no_other_member_and_hashes_nothing() -> Result<()> {
    let members = ["ledger", "validator", "trainer", "evaluator", "cli", "web", "corpus"];
    let metadata = metadata()?;
    check_never_reaches(&metadata, "schemas", &members)?;
    check_never_reaches(
        &metadata,
        "schemas",
        &["sha2", "blake3", "ed25519-dalek", "sqlx", "rusqlite", "tokio"],
    )
}

#[test]
fn a_witness_gives_no_verdict() -> Result<()> {
    check_is_built_without(&metadata()?, "witness", |name| {
        ["validator", "trainer", "evaluator", "cli", "web"].contains(&name)
    })
}

#[test]
fn web_computes_no_verdict() -> Result<()> {
    check_is_built_without(&metadata()?, "web", |name| {
        ["validator", "trainer", "evaluator", "cli"].contains(&name)
    })
}

#[test]
fn exports_computes_no_verdict() -> Result<()> {
    check_is_built_without(&metadata()?, "exports", |name| {
        ["validator", "trainer", "evaluator", "cli", "web"].contains(&name)
    })
}

#[test]
fn burn_stays_in_the_trainer() -> Result<()> {
    let metadata = metadata()?;
    let packages = without_development(&metadata, "loops")?;
    for name in ALL_BUT_THE_TRAINER {
        check_is_built_without(&metadata, name, is_burn)?;
        let locked = locked_closure(&packages, name)?;
        let found: Vec<&String> = locked.iter().filter(|other| is_burn(other)).collect();
        assert!(found.is_empty(), "{name} can pull in {found:?}");
    }
    let trainer = reachable(&metadata, member(&metadata, "trainer")?, false)?;
    assert!(trainer.contains("burn-flex"), "the test looks for burn where it is: in the trainer");

    // The example of `loops` is a loop on burn, and nobody who builds the crate builds it.
    let loops = member(&metadata, "loops")?;
    let of_burn = loops.dependencies.iter().filter(|dependency| is_burn(dependency.name.as_str()));
    for dependency in of_burn {
        let kind = dependency.kind;
        assert_eq!(kind, DependencyKind::Development, "loops depends on {}", dependency.name);
    }
    let of_example = locked_closure(&lock_file()?, "loops")?;
    assert!(of_example.contains("burn-flex"), "without the example's there is nothing to leave out above");
    Ok(())
}

#[test]
fn object_store_stays_in_the_trainer() -> Result<()> {
    let metadata = metadata()?;
    let mut packages = without_development(&metadata, "loops")?;
    // The lock file has TLS for `ureq`, of which only the feature `tls` makes use.
    for package in packages.iter_mut().filter(|package| package.name == "ureq") {
        package.dependencies.clear();
    }
    for name in ALL_BUT_THE_TRAINER {
        let locked = locked_closure(&packages, name)?;
        for other in ["object_store", "reqwest", "rustls"] {
            assert!(!locked.contains(other), "{name} can pull in {other}");
        }
    }
    let client =
        member(&metadata, "witness")?.dependencies.iter().find(|dependency| dependency.name == "ureq");
    let client = client.expect("the witness's client");
    assert!(!client.uses_default_features && client.features.is_empty(), "TLS is a feature: {client:?}");
    let trainer = reachable(&metadata, member(&metadata, "trainer")?, false)?;
    assert!(trainer.contains("object_store"), "the test looks for it where it is: in the trainer");
    Ok(())
}

/// Without it the trainer's record of its plan, `autotune: false`, is a lie.
#[test]
fn no_feature_lets_burn_choose_kernels_by_timing() -> Result<()> {
    let metadata = metadata_of_all_features()?;
    let resolve = metadata.resolve.as_ref().expect("a resolved graph");
    let mut of_burn = BTreeSet::new();
    for node in &resolve.nodes {
        let name = metadata[&node.id].name.as_str();
        for feature in node.features.iter().map(ToString::to_string) {
            assert!(!feature.starts_with("autotune"), "{name} is built with {feature}");
            if name == "burn" {
                of_burn.insert(feature);
            }
        }
    }
    // The controls: these are the trainer's backends, and the name is right.
    for feature in ["cuda", "flex", "wgpu"] {
        assert!(of_burn.contains(feature), "burn is resolved without {feature}: {of_burn:?}");
    }
    for name in ["burn", "burn-wgpu", "burn-cuda"] {
        let package = metadata.packages.iter().find(|package| package.name.as_str() == name);
        let features = &package.expect("it is in the graph").features;
        assert!(features.contains_key("autotune"), "{name} no longer calls it autotune: {features:?}");
    }
    Ok(())
}

#[test]
fn evaluator_and_programs_know_no_trainer() -> Result<()> {
    let metadata = metadata()?;
    for name in ["evaluator", "cli", "web", "corpus"] {
        check_never_reaches(&metadata, name, &["trainer"])?;
    }
    Ok(())
}

#[test]
fn numbers_of_json_keep_their_order_and_precision_rules() -> Result<()> {
    let metadata = metadata()?;
    let resolve = metadata.resolve.as_ref().expect("a resolved graph");
    let node = resolve.nodes.iter().find(|node| metadata[&node.id].name.as_str() == "serde_json");
    let features: Vec<String> =
        node.expect("serde_json is used").features.iter().map(ToString::to_string).collect();
    assert!(features.iter().any(|feature| feature == "float_roundtrip"), "{features:?}");
    for feature in ["preserve_order", "arbitrary_precision"] {
        assert!(!features.iter().any(|other| other == feature), "serde_json is built with {feature}");
    }
    Ok(())
}

#[test]
fn every_dependency_has_an_admitted_license() -> Result<()> {
    let metadata = metadata()?;
    let mut refused = Vec::new();
    let mut num_checked = 0;
    for package in metadata.packages.iter().filter(|package| package.source.is_some()) {
        num_checked += 1;
        let admitted = match &package.license {
            Some(expression) => satisfiable(expression)?,
            None => LICENSE_IN_FILE.iter().any(|(name, _)| package.name.as_str() == *name),
        };
        if !admitted {
            refused.push(format!("{} {}: {:?}", package.name, package.version, package.license));
        }
    }
    assert!(refused.is_empty(), "licenses that are not admitted: {refused:#?}");
    assert!(num_checked > 100, "only {num_checked} dependencies were looked at");
    Ok(())
}

#[test]
fn key_crates_are_there_once() -> Result<()> {
    let packages = lock_file()?;
    let once = [
        "serde",
        "serde_json",
        "sqlx",
        "blake3",
        "ed25519-dalek",
        "axum",
        "libsqlite3-sys",
        "rusqlite",
        "burn",
    ];
    for name in once {
        let versions: Vec<&str> =
            packages.iter().filter(|p| p.name == name).map(|p| p.version.as_str()).collect();
        assert_eq!(versions.len(), 1, "{name}: {versions:?}");
    }
    let mut burn: Vec<&str> = packages.iter().map(|p| p.name.as_str()).filter(|name| is_burn(name)).collect();
    let num_packages = burn.len();
    burn.dedup();
    assert_eq!(burn.len(), num_packages, "a crate of burn is there in two versions");
    Ok(())
}
