//! `config.json` of a candidate, read strictly.
//!
//! Anything that would change the function (scaled rotary positions, biases,
//! another activation) is refused rather than ignored.

use schemas::contract::{Architecture, LlamaDecoder};
use serde_json::{Map, Value};

/// Largest extent of any dimension; a bound on what a file can ask for.
pub const MAX_EXTENT: usize = 1 << 20;

/// Ids that every vocabulary must have, since text is read as bytes.
const NUM_BYTE_VALUES: usize = 256;

/// Why a `config.json` cannot be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or not an object.
    #[error("config.json is not a JSON object; export the candidate again")]
    Json(#[source] Option<serde_json::Error>),
    /// A field is missing or has the wrong type.
    #[error("config.json: {field} is {found}, expected {expected}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
    },
    /// The architecture is not the contract's.
    #[error("config.json: {field} is {found}, the contract says {expected}; this is another model")]
    Contract {
        /// Name of the field.
        field: &'static str,
        /// What config.json says.
        found: String,
        /// What the contract says.
        expected: String,
    },
}

/// Shape of a Llama decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Per head, in channels; even.
    pub head_dim: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated MLP.
    pub intermediate_size: usize,
    /// Longest input in tokens.
    pub max_position_embeddings: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Blocks.
    pub num_layers: usize,
    /// Added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Whether the output head is the embedding.
    pub tied_embeddings: bool,
    /// Size of the vocabulary.
    pub vocab_size: usize,
}

fn show(value: Option<&Value>) -> String {
    value.map_or_else(|| "missing".to_owned(), |value| value.to_string().chars().take(80).collect())
}

struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn error(&self, field: &'static str, expected: impl Into<String>) -> ConfigError {
        ConfigError::Field { field, found: show(self.0.get(field)), expected: expected.into() }
    }

    fn extent(&self, field: &'static str) -> Result<usize, ConfigError> {
        self.0
            .get(field)
            .and_then(Value::as_u64)
            .and_then(|value| usize::try_from(value).ok())
            .filter(|value| (1..=MAX_EXTENT).contains(value))
            .ok_or_else(|| self.error(field, format!("an integer from 1 to {MAX_EXTENT}")))
    }

    fn extent_or(&self, field: &'static str, default: usize) -> Result<usize, ConfigError> {
        if self.absent(field) { Ok(default) } else { self.extent(field) }
    }

    fn absent(&self, field: &str) -> bool {
        self.0.get(field).is_none_or(Value::is_null)
    }

    fn positive(&self, field: &'static str) -> Result<f64, ConfigError> {
        self.0
            .get(field)
            .and_then(Value::as_f64)
            .filter(|value| value.is_finite() && *value > 0.0)
            .ok_or_else(|| self.error(field, "a number above 0"))
    }

    fn flag(&self, field: &'static str) -> Result<bool, ConfigError> {
        self.0.get(field).and_then(Value::as_bool).ok_or_else(|| self.error(field, "true or false"))
    }

    fn must_be(&self, field: &'static str, expected: &Value) -> Result<(), ConfigError> {
        if self.0.get(field) == Some(expected) {
            Ok(())
        } else {
            Err(self.error(field, expected.to_string()))
        }
    }

    /// `rope_theta` at the top, or inside `rope_parameters` of type `default`,
    /// where newer exports put it; equal where both are there.
    fn rope_theta(&self) -> Result<f64, ConfigError> {
        if !self.absent("rope_scaling") {
            return Err(self.error("rope_scaling", "null: scaled rotary positions are another function"));
        }
        if self.absent("rope_parameters") {
            return self.positive("rope_theta");
        }
        let expected =
            "an object with rope_type \"default\" and the rope_theta of the top level, if that has one";
        let error = || self.error("rope_parameters", expected);
        let inner = self.0.get("rope_parameters").and_then(Value::as_object).ok_or_else(error)?;
        let theta = Fields(inner).positive("rope_theta")?;
        let kind_is_default = inner.get("rope_type").is_none_or(|kind| kind == "default");
        let same = self.absent("rope_theta") || self.positive("rope_theta")?.to_bits() == theta.to_bits();
        if kind_is_default && same { Ok(theta) } else { Err(error()) }
    }
}

impl Config {
    /// Reads a Hugging Face `config.json` of the Llama architecture.
    ///
    /// # Errors
    /// When it is not one, or asks for a function that this forward pass does
    /// not compute.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ConfigError> {
        let value: Value = serde_json::from_slice(bytes).map_err(|error| ConfigError::Json(Some(error)))?;
        let fields = Fields(value.as_object().ok_or(ConfigError::Json(None))?);
        fields.must_be("model_type", &Value::from("llama"))?;
        fields.must_be("hidden_act", &Value::from("silu"))?;
        for field in ["attention_bias", "mlp_bias"] {
            if !fields.absent(field) {
                fields.must_be(field, &Value::from(false))?;
            }
        }
        let (hidden_size, num_heads) = (fields.extent("hidden_size")?, fields.extent("num_attention_heads")?);
        let config = Self {
            head_dim: fields.extent_or("head_dim", hidden_size / num_heads)?,
            hidden_size,
            intermediate_size: fields.extent("intermediate_size")?,
            max_position_embeddings: fields.extent("max_position_embeddings")?,
            num_heads,
            num_kv_heads: fields.extent_or("num_key_value_heads", num_heads)?,
            num_layers: fields.extent("num_hidden_layers")?,
            rms_norm_eps: fields.positive("rms_norm_eps")?,
            rope_theta: fields.rope_theta()?,
            tied_embeddings: fields.flag("tie_word_embeddings")?,
            vocab_size: fields.extent("vocab_size")?,
        };
        if !num_heads.is_multiple_of(config.num_kv_heads) {
            return Err(fields.error("num_key_value_heads", format!("a divisor of {num_heads}")));
        }
        if config.vocab_size < NUM_BYTE_VALUES {
            return Err(fields.error("vocab_size", "at least 256: one id a byte"));
        }
        if config.head_dim == 0 || !config.head_dim.is_multiple_of(2) {
            return Err(fields.error("head_dim", "an even number above 0"));
        }
        Ok(config)
    }

    /// Checks that this is the contract's architecture.
    ///
    /// # Errors
    /// [`ConfigError::Contract`] with the first field that differs.
    pub fn check_contract(&self, architecture: &Architecture) -> Result<(), ConfigError> {
        let Architecture::LlamaDecoder(LlamaDecoder {
            context_length,
            dropout: _,
            head_dim,
            hidden_size,
            initializer_std: _,
            intermediate_size,
            num_heads,
            num_kv_heads,
            num_layers,
            rms_norm_eps,
            rope_theta,
            tied_embeddings,
            vocab_size,
        }) = architecture;
        let extents = [
            ("head_dim", self.head_dim, *head_dim),
            ("hidden_size", self.hidden_size, *hidden_size),
            ("intermediate_size", self.intermediate_size, *intermediate_size),
            ("max_position_embeddings", self.max_position_embeddings, *context_length),
            ("num_attention_heads", self.num_heads, *num_heads),
            ("num_key_value_heads", self.num_kv_heads, *num_kv_heads),
            ("num_hidden_layers", self.num_layers, *num_layers),
            ("vocab_size", self.vocab_size, *vocab_size),
        ];
        for (field, found, expected) in extents {
            if found as u64 != u64::from(expected) {
                return Err(ConfigError::Contract {
                    field,
                    found: found.to_string(),
                    expected: expected.to_string(),
                });
            }
        }
        let floats = [
            ("rms_norm_eps", self.rms_norm_eps, *rms_norm_eps),
            ("rope_theta", self.rope_theta, *rope_theta),
        ];
        for (field, found, expected) in floats {
            if found.to_bits() != expected.to_bits() {
                return Err(ConfigError::Contract {
                    field,
                    found: found.to_string(),
                    expected: expected.to_string(),
                });
            }
        }
        if self.tied_embeddings != *tied_embeddings {
            let (found, expected) = (self.tied_embeddings.to_string(), tied_embeddings.to_string());
            return Err(ConfigError::Contract { field: "tie_word_embeddings", found, expected });
        }
        Ok(())
    }
}
