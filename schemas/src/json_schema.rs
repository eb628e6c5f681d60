//! JSON Schema 2020-12 of every document, made from the types.

use schemars::{Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Value, json};

use crate::body::Body;
use crate::bundle::BundleManifest;
use crate::campaign::Preregistration;
use crate::campaign::report::CampaignReport;
use crate::challenge::{Challenge, Replay, TensorOpening, TrainingWitness};
use crate::contract::Contract;
use crate::data::DataManifest;
use crate::dsse::Envelope;
use crate::entry::{Extension, LedgerKind, Origin};
use crate::ids::{AttemptId, IdempotencyKey, KeyId, LearnerId, RunId, SegmentId, WorkerId};
use crate::parameters::ParameterManifest;
use crate::policy_card::PolicyCard;
use crate::report::Report;
use crate::state::CheckpointManifest;

fn generator() -> SchemaGenerator {
    SchemaSettings::draft2020_12().into_generator()
}

fn of<T: schemars::JsonSchema>() -> Value {
    generator().into_root_schema_for::<T>().to_value()
}

/// The envelope with each kind's body, as one schema.
fn entry() -> Value {
    let mut generator = generator();
    let field = |schema: Schema| schema.to_value();
    let properties = json!({
        "actor": field(generator.subschema_for::<KeyId>()),
        "attempt": field(generator.subschema_for::<Option<AttemptId>>()),
        "body": { "type": "object" },
        "extensions": field(generator.subschema_for::<Vec<Extension>>()),
        "format": { "const": crate::ENTRY_FORMAT },
        "idem": field(generator.subschema_for::<IdempotencyKey>()),
        "index": { "type": "integer", "minimum": 0, "maximum": crate::MAX_JSON_INTEGER },
        "kind": { "type": "string" },
        "learner": field(generator.subschema_for::<Option<LearnerId>>()),
        "ledger": field(generator.subschema_for::<LedgerKind>()),
        "origin": field(generator.subschema_for::<Option<Origin>>()),
        "run": field(generator.subschema_for::<RunId>()),
        "segment": field(generator.subschema_for::<Option<SegmentId>>()),
        "step": { "type": ["integer", "null"], "minimum": 0, "maximum": crate::MAX_JSON_INTEGER },
        "time_us": { "type": "integer", "minimum": 0, "maximum": crate::MAX_JSON_INTEGER },
        "worker": field(generator.subschema_for::<Option<WorkerId>>()),
    });
    let required: Vec<String> =
        properties.as_object().into_iter().flat_map(|map| map.keys().cloned()).collect();
    let kinds: Vec<Value> = Body::schemas(&mut generator)
        .into_iter()
        .map(|(kind, schema)| {
            json!({ "properties": { "kind": { "const": kind.name() }, "body": schema.to_value() } })
        })
        .collect();
    let definitions = Value::Object(generator.take_definitions(true));
    json_schema!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Entry",
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
        "oneOf": kinds,
        "$defs": definitions,
    })
    .to_value()
}

/// File name and schema of every document, for `schemas/json/`.
#[must_use]
pub fn documents() -> Vec<(&'static str, Value)> {
    vec![
        ("bundle-manifest.schema.json", of::<BundleManifest>()),
        ("campaign-report.schema.json", of::<CampaignReport>()),
        ("checkpoint-manifest.schema.json", of::<CheckpointManifest>()),
        ("contract.schema.json", of::<Contract>()),
        ("data-manifest.schema.json", of::<DataManifest>()),
        ("dsse-envelope.schema.json", of::<Envelope>()),
        ("entry.schema.json", entry()),
        ("parameter-manifest.schema.json", of::<ParameterManifest>()),
        ("policy-card.schema.json", of::<PolicyCard>()),
        ("preregistration.schema.json", of::<Preregistration>()),
        ("report.schema.json", of::<Report>()),
        ("segment-challenge.schema.json", of::<Challenge>()),
        ("segment-replay.schema.json", of::<Replay>()),
        ("tensor-opening.schema.json", of::<TensorOpening>()),
        ("training-witness.schema.json", of::<TrainingWitness>()),
    ]
}
