//! `ledger schema`: the JSON Schemas, and a check of a document against one.
//!
//! Nothing is resolved from the network or from files: a schema that refers
//! elsewhere is refused.

use jsonschema::{Retrieve, Uri, Validator};
use ledger::strict::{ParseOptions, parse};
use serde_json::Value;

use crate::arguments::SchemaArguments;
use crate::failure::{FINDINGS, Failure, OrFail};
use crate::output::{print, say};

macro_rules! schemas {
    ($($name:literal),* $(,)?) => {
        /// Name and text of every schema.
        const SCHEMAS: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../../schemas/json/", $name, ".schema.json"))),)*
        ];
    };
}

schemas!(
    "bundle-manifest",
    "campaign-report",
    "checkpoint-manifest",
    "contract",
    "data-manifest",
    "dsse-envelope",
    "entry",
    "parameter-manifest",
    "policy-card",
    "preregistration",
    "report",
    "segment-challenge",
    "segment-replay",
    "tensor-opening",
    "training-witness",
);

/// Refuses every reference out of a schema.
struct NoRetrieval;

impl Retrieve for NoRetrieval {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        Err(format!("{uri} is outside the schema, and nothing is fetched").into())
    }
}

pub(crate) fn run(arguments: &SchemaArguments) -> Result<u8, Failure> {
    let Some(name) = &arguments.name else {
        for (name, _) in SCHEMAS {
            print(name)?;
        }
        return Ok(0);
    };
    let schema = SCHEMAS.iter().find(|(known, _)| known == name).map(|(_, text)| *text);
    let schema = schema.ok_or_else(|| {
        Failure::new(format!("there is no schema {name:?}"), "`ledger schema` lists the names")
    })?;
    let Some(path) = &arguments.check else {
        print(schema.trim_end())?;
        return Ok(0);
    };
    let attempted = format!("reading {}", path.display());
    let bytes = std::fs::read(path).or_fail(&attempted, "name a file that exists")?;
    let options = ParseOptions {
        drop_comments: matches!(name.as_str(), "contract" | "preregistration"),
        ..ParseOptions::default()
    };
    let document = parse(&bytes, options).or_fail(&attempted, "correct the text at that place")?;
    let validator = validator(schema)?;
    let mut num_errors = 0;
    for error in validator.iter_errors(&document) {
        num_errors += 1;
        say(format!("error: {} {}: {error}", path.display(), error.instance_path()));
        say(format!("hint: `ledger schema {name}` prints what is expected"));
    }
    if num_errors > 0 {
        return Ok(FINDINGS);
    }
    print(format!("{}: a {name} as the schema has it", path.display()))?;
    Ok(0)
}

fn validator(schema: &str) -> Result<Validator, Failure> {
    let schema: Value = serde_json::from_str(schema)?;
    jsonschema::options().with_retriever(NoRetrieval).build(&schema).map_err(|error| {
        Failure::new(
            format!("the schema itself is not usable: {error}"),
            "report this with the version of the program",
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_schema_compiles_and_none_refers_elsewhere() {
        for (name, text) in SCHEMAS {
            assert!(validator(text).is_ok(), "{name}");
        }
        for address in ["https://example.org/x.json", "file:///etc/hostname"] {
            assert!(validator(&json!({"$ref": address}).to_string()).is_err(), "{address}");
        }
    }
}
