//! The parameter manifest is what the architecture has.

use std::collections::BTreeMap;

use schemas::contract::Architecture;
use schemas::parameters::{ParameterDeclaration, ParameterManifest, ParameterStatus};
use schemas::report::Route;

use crate::derive::llama;
use crate::frozen::Frozen;
use crate::rule::{At, Check, Outcome, Sink, unavailable};
use crate::rules::common::{at_end, declare_rule};

declare_rule!(
    /// `GL407`.
    ParameterManifestRule,
    {
        code: "GL407",
        name: "parameter-manifest",
        what: "The frozen parameter manifest lists exactly the parameters that the architecture has, in path order, with their \
               shapes, dtype, initialiser and group; a frozen parameter has no group, and none is called unreachable.",
        why: "A parameter that nobody listed is trained, frozen or initialised unseen; one that is listed twice is counted twice.",
        remedy: "Write the manifest with `trainer parameters` and freeze again.",
        reference: "docs/FORMAT.md, \"Parameters\"",
        gate: Route::RejectFrozenInputs,
    }
);

fn open(frozen: &Frozen) -> Box<dyn Check + '_> {
    let (card, manifest) = match (&frozen.card, &frozen.parameters) {
        (Ok(card), Ok(manifest)) => (card, manifest),
        (Err(reason), _) => return unavailable(format!("the policy card: {reason}")),
        (_, Err(reason)) => return unavailable(format!("the parameter manifest: {reason}")),
    };
    let Architecture::LlamaDecoder(shape) = &frozen.contract.architecture;
    at_end(move |_, sink| {
        let Some(mut expected) = llama::parameters(shape, card) else {
            return Outcome::NotEvaluated(format!("more than {} layers are not expanded", llama::MAX_LAYERS));
        };
        // A tied head is listed since it has a line for what it is tied to;
        // manifests of before bind the same state.
        if manifest.parameters.iter().any(|parameter| parameter.tied_to.is_some()) {
            expected.extend(llama::tied_head(shape, &expected));
            check_tied_status(&frozen.contract.parameters.path, manifest, sink);
        }
        compare(&frozen.contract.parameters.path, &expected, manifest, sink);
        Outcome::Checked(expected.len() as u64)
    })
}

/// A tied parameter is frozen or trained with the one that it is.
fn check_tied_status(path: &str, manifest: &ParameterManifest, sink: &mut Sink) {
    for tied in &manifest.parameters {
        let other = manifest.parameters.iter().find(|other| tied.tied_to.as_ref() == Some(&other.path));
        if let Some(other) = other.filter(|other| other.status != tied.status) {
            let at = At::place(format!("{path} {}", tied.path));
            let message = format!("{} is {}, and has another status", tied.path, other.path);
            sink.rejected(at, message, format!("{:?}", other.status), format!("{:?}", tied.status));
        }
    }
}

fn compare(path: &str, expected: &[ParameterDeclaration], manifest: &ParameterManifest, sink: &mut Sink) {
    let at = |name: &str| At::place(format!("{path} {name}"));
    if !manifest.parameters.is_sorted_by(|a, b| a.path < b.path) {
        sink.rejected(
            At::place(path),
            "parameters are not in path order, or repeated",
            "ascending paths",
            "another order",
        );
    }
    let listed: BTreeMap<&str, &ParameterDeclaration> =
        manifest.parameters.iter().map(|parameter| (parameter.path.as_str(), parameter)).collect();
    for parameter in expected {
        let Some(actual) = listed.get(parameter.path.as_str()) else {
            sink.rejected(
                at(&parameter.path),
                "a parameter of the architecture is not listed",
                "listed",
                "missing",
            );
            continue;
        };
        let wanted = ParameterDeclaration {
            group: parameter.group.clone().filter(|_| actual.status == ParameterStatus::Trainable),
            status: actual.status,
            ..parameter.clone()
        };
        if wanted != **actual {
            let message = "the parameter is declared otherwise than the architecture has it";
            sink.rejected(at(&parameter.path), message, format!("{wanted:?}"), format!("{actual:?}"));
        }
        if actual.status == ParameterStatus::Unreachable {
            let message = "the loss reaches every parameter of this architecture";
            sink.rejected(at(&parameter.path), message, "trainable or frozen", "unreachable");
        }
    }
    for name in listed.keys().filter(|name| !expected.iter().any(|parameter| parameter.path == **name)) {
        sink.rejected(
            at(name),
            "a parameter is listed that the architecture does not have",
            "not listed",
            "listed",
        );
    }
}
