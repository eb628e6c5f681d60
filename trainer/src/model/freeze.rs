//! Which parameters a run freezes: chosen by name in the parameter manifest
//! before it is bound by a contract.

use std::collections::BTreeSet;

use schemas::parameters::{ParameterDeclaration, ParameterManifest, ParameterStatus};

/// Why parameters cannot be frozen.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FreezeError {
    /// A pattern that no parameter has, mostly one that is misspelt.
    #[error("no parameter is named {pattern:?}; {count} are there, from {first} to {last}")]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// Number of parameters.
        count: usize,
        /// Path of the first one.
        first: String,
        /// Path of the last one.
        last: String,
    },
    /// Nothing would be left to train.
    #[error("every parameter would be frozen, and an update needs one to change; freeze fewer")]
    Everything,
}

/// Freezes every parameter that a pattern names. In a pattern `*` stands for
/// any characters, dots too; everything else stands for itself. A tied
/// parameter is frozen by either of its names.
///
/// # Errors
/// When a pattern names nothing, or nothing is left to train.
pub fn freeze(manifest: &mut ParameterManifest, patterns: &[String]) -> Result<(), FreezeError> {
    for pattern in patterns {
        let named = manifest.parameters.iter().filter(|parameter| matches(pattern, &parameter.path));
        let owners: BTreeSet<String> = named.map(|parameter| owner(parameter).to_owned()).collect();
        for parameter in manifest.parameters.iter_mut().filter(|p| owners.contains(owner(p))) {
            parameter.status = ParameterStatus::Frozen;
            parameter.group = None;
        }
        if owners.is_empty() {
            let path = |parameter: Option<&ParameterDeclaration>| {
                parameter.map(|parameter| parameter.path.clone()).unwrap_or_default()
            };
            let parameters = &manifest.parameters;
            return Err(FreezeError::NoMatch {
                pattern: pattern.clone(),
                count: parameters.len(),
                first: path(parameters.first()),
                last: path(parameters.last()),
            });
        }
    }
    let is_trained = |parameter: &ParameterDeclaration| parameter.status == ParameterStatus::Trainable;
    if manifest.parameters.iter().any(is_trained) { Ok(()) } else { Err(FreezeError::Everything) }
}

/// The path of the parameter that has the storage.
fn owner(parameter: &ParameterDeclaration) -> &str {
    parameter.tied_to.as_deref().unwrap_or(&parameter.path)
}

/// Whether a name fits a pattern, of which each `*` takes as little as leaves
/// the rest a place.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    // Without a star the whole name was the prefix.
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, name: &str, expected: bool) {
        assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
    }

    #[test]
    fn a_tied_parameter_is_frozen_by_either_name() {
        let parameter = |path: &str, tied_to: Option<&str>| ParameterDeclaration {
            dtype: "F32".to_owned(),
            group: tied_to.is_none().then(|| "all".to_owned()),
            initializer: schemas::parameters::Initializer::Ones,
            path: path.to_owned(),
            shape: vec![2],
            status: ParameterStatus::Trainable,
            tied_to: tied_to.map(str::to_owned),
        };
        for pattern in ["head", "embedding"] {
            let mut manifest = ParameterManifest {
                format: schemas::PARAMETER_MANIFEST_FORMAT.to_owned(),
                parameters: vec![
                    parameter("embedding", None),
                    parameter("head", Some("embedding")),
                    parameter("norm", None),
                ],
            };
            freeze(&mut manifest, &[pattern.to_owned()]).expect("the norm is trained");
            let statuses: Vec<_> = manifest.parameters.iter().map(|parameter| parameter.status).collect();
            let (frozen, trained) = (ParameterStatus::Frozen, ParameterStatus::Trainable);
            assert_eq!(statuses, [frozen, frozen, trained], "{pattern}");
            assert!(manifest.parameters[0].group.is_none() && manifest.parameters[2].group.is_some());
        }
    }

    #[test]
    fn a_star_stands_for_anything_and_the_rest_for_itself() {
        check("model.norm.weight", "model.norm.weight", true);
        check("model.norm", "model.norm.weight", false);
        check("model.norm*", "model.norm.weight", true);
        check("*", "model.norm.weight", true);
        check("*.norm.*", "model.norm.weight", true);
        check("model.layers.1.*", "model.layers.1.mlp.up_proj.weight", true);
        check("model.layers.1.*", "model.layers.10.mlp.up_proj.weight", false);
        check("*mlp*weight", "model.layers.1.mlp.up_proj.weight", true);
        check("*weight*weight", "model.layers.1.mlp.up_proj.weight", false);
        check("", "model.norm.weight", false);
        check("model*model.norm.weight", "model.norm.weight", false);
    }
}
