//! What the validator may know: the shapes of records, and no program that
//! writes them. Not even a test may use the writer, or an error that both made
//! could pass for agreement.

use std::collections::BTreeSet;

use cargo_metadata::{DependencyKind, MetadataCommand};

#[test]
fn neither_writer_nor_trainer_is_a_dependency_of_any_kind() -> Result<(), Box<dyn std::error::Error>> {
    let metadata = MetadataCommand::new().no_deps().other_options(vec!["--offline".to_owned()]).exec()?;
    let package = metadata.packages.iter().find(|package| package.name.as_str() == "validator");
    let package = package.ok_or("the workspace has a validator")?;
    let own: BTreeSet<&str> = package
        .dependencies
        .iter()
        .filter(|dependency| dependency.path.is_some())
        .map(|dependency| dependency.name.as_str())
        .collect();
    assert_eq!(own, BTreeSet::from(["schemas"]), "paths within the workspace");
    let normal = |name: &str| {
        package.dependencies.iter().any(|one| one.name == name && one.kind == DependencyKind::Normal)
    };
    assert!(normal("rusqlite") && !normal("sqlx"), "a second driver beside the writer's");
    Ok(())
}
