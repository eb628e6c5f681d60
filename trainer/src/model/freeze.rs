//! Which parameters a run freezes: chosen by name in the parameter manifest
//! before it is bound by a contract.

use schemas::parameters::{ParameterManifest, ParameterStatus};

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
/// any characters, dots too; everything else stands for itself.
///
/// # Errors
/// When a pattern names nothing, or nothing is left to train.
pub fn freeze(manifest: &mut ParameterManifest, patterns: &[String]) -> Result<(), FreezeError> {
    for pattern in patterns {
        let mut is_found = false;
        for parameter in &mut manifest.parameters {
            if matches(pattern, &parameter.path) {
                is_found = true;
                parameter.status = ParameterStatus::Frozen;
                parameter.group = None;
            }
        }
        if !is_found {
            let path = |parameter: Option<&schemas::parameters::ParameterDeclaration>| {
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
    let is_trained = |parameter: &schemas::parameters::ParameterDeclaration| {
        parameter.status == ParameterStatus::Trainable
    };
    if manifest.parameters.iter().any(is_trained) { Ok(()) } else { Err(FreezeError::Everything) }
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
