//! One ledger entry: the envelope around a [`Body`].
//!
//! Everything of meaning is inside the entry's bytes, and so under the hash.
//! Canonical bytes are specified in `docs/FORMAT.md`; serialising an [`Entry`]
//! with `serde_json` and [`crate::number::EntryFormatter`] gives them, because
//! fields are declared in key order.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::body::{Body, Kind};
use crate::digest::Digest;
use crate::ids::{AttemptId, IdempotencyKey, KeyId, LearnerId, RunId, SegmentId, WorkerId};

/// Which of the four ledgers an entry belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LedgerKind {
    /// One training run with all its attempts.
    Run,
    /// Runs that are compared.
    Campaign,
    /// What a qualifier did.
    Qualification,
    /// Maintenance-learning windows.
    Maintenance,
}

/// Room to grow: something that this format does not know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Extension {
    /// Whether a reader that does not know it must withhold a verdict.
    pub critical: bool,
    /// Namespaced name, such as `org.example.curriculum`.
    pub name: String,
    /// Digest of the schema that `value` follows.
    pub schema_digest: Digest,
    /// The content; floats in it follow the same number rules.
    pub value: serde_json::Value,
}

/// Where a relayed entry comes from: a coordinator appends what a worker
/// signed. Null for what the writer itself observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Who observed it.
    pub actor: KeyId,
    /// Digest of the actor's previous message; null for its first.
    pub previous: Option<Digest>,
    /// The actor's own count, from 0.
    pub sequence: u64,
    /// Standard base64 of the actor's Ed25519 signature.
    pub signature: String,
}

/// Everything of an entry but its index, time and body.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// Key of the role that wrote the entry.
    pub actor: KeyId,
    /// The process lifetime; null where none is running.
    pub attempt: Option<AttemptId>,
    /// Room to grow.
    pub extensions: Vec<Extension>,
    /// A second append with the same key and content is the same append; with
    /// other content it is refused.
    pub idem: IdempotencyKey,
    /// The adaptive identity, where one is concerned.
    pub learner: Option<LearnerId>,
    /// Which ledger.
    pub ledger: LedgerKind,
    /// Who observed it, where not the writer.
    pub origin: Option<Origin>,
    /// The run, or the qualification's or campaign's own identifier.
    pub run: RunId,
    /// The span of unchanged identity.
    pub segment: Option<SegmentId>,
    /// Completed updates when the entry was made; null where none applies.
    pub step: Option<u64>,
    /// The executing worker, where one is concerned.
    pub worker: Option<WorkerId>,
}

/// One ledger entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Body, with its kind.
    pub body: Body,
    /// The rest of the envelope.
    pub header: Header,
    /// 0-based leaf index.
    pub index: u64,
    /// Microseconds since the Unix epoch by the writer's clock; evidence of
    /// order only together with heads.
    pub time_us: u64,
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let header = &self.header;
        let mut fields = serializer.serialize_struct("Entry", 16)?;
        fields.serialize_field("actor", &header.actor)?;
        fields.serialize_field("attempt", &header.attempt)?;
        fields.serialize_field("body", &self.body)?;
        fields.serialize_field("extensions", &header.extensions)?;
        fields.serialize_field("format", crate::ENTRY_FORMAT)?;
        fields.serialize_field("idem", &header.idem)?;
        fields.serialize_field("index", &self.index)?;
        fields.serialize_field("kind", &self.body.kind())?;
        fields.serialize_field("learner", &header.learner)?;
        fields.serialize_field("ledger", &header.ledger)?;
        fields.serialize_field("origin", &header.origin)?;
        fields.serialize_field("run", &header.run)?;
        fields.serialize_field("segment", &header.segment)?;
        fields.serialize_field("step", &header.step)?;
        fields.serialize_field("time_us", &self.time_us)?;
        fields.serialize_field("worker", &header.worker)?;
        fields.end()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry<'a> {
    actor: KeyId,
    attempt: Option<AttemptId>,
    #[serde(borrow)]
    body: &'a RawValue,
    extensions: Vec<Extension>,
    format: String,
    idem: IdempotencyKey,
    index: u64,
    kind: Kind,
    learner: Option<LearnerId>,
    ledger: LedgerKind,
    origin: Option<Origin>,
    run: RunId,
    segment: Option<SegmentId>,
    step: Option<u64>,
    time_us: u64,
    worker: Option<WorkerId>,
}

impl Entry {
    /// Reads an entry from its JSON bytes.
    ///
    /// This checks shape, not canonical form: a reader that must not believe
    /// the writer compares the bytes with its own canonical form first.
    ///
    /// # Errors
    /// When the bytes are not JSON, a field is missing, unknown or of another
    /// type, the kind is unknown, or the format is not [`crate::ENTRY_FORMAT`].
    pub fn from_slice(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        use serde::de::Error;
        let raw: RawEntry<'_> = serde_json::from_slice(bytes)?;
        if raw.format != crate::ENTRY_FORMAT {
            return Err(serde_json::Error::custom(format_args!(
                "entry format {:?} is not {:?}",
                raw.format,
                crate::ENTRY_FORMAT
            )));
        }
        let body = Body::from_json(raw.kind, raw.body.get())?;
        let header = Header {
            actor: raw.actor,
            attempt: raw.attempt,
            extensions: raw.extensions,
            idem: raw.idem,
            learner: raw.learner,
            ledger: raw.ledger,
            origin: raw.origin,
            run: raw.run,
            segment: raw.segment,
            step: raw.step,
            worker: raw.worker,
        };
        Ok(Self { body, header, index: raw.index, time_us: raw.time_us })
    }
}
