//! A candidate's tensors, checked and packed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

use super::config::{Config, ConfigError};
use super::matmul::Packed;

/// Largest weights file that is read, in bytes.
const MAX_MODEL_BYTES: u64 = 64 << 30;
/// Largest `config.json` that is read, in bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Why a candidate cannot be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is larger than anything that is expected of it.
    #[error("{} has {found} bytes, more than the {limit} that are read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The shape is not one that is evaluated.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Not a safetensors file.
    #[error("the weights are not a safetensors file; export the candidate again")]
    Safetensors(#[from] safetensors::SafeTensorError),
    /// A tensor is missing.
    #[error("the weights have no tensor {name}")]
    Missing {
        /// Its name.
        name: String,
    },
    /// A tensor that the architecture does not have.
    #[error("the weights have a tensor {name} that config.json gives no place to")]
    Unexpected {
        /// Its name.
        name: String,
    },
    /// A tensor has another dtype or shape.
    #[error("tensor {name} is {found}, config.json implies {expected}")]
    Shape {
        /// Its name.
        name: String,
        /// dtype and shape in the file.
        found: String,
        /// What is implied.
        expected: String,
    },
}

/// One block.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub(super) input_norm: Vec<f64>,
    /// Query, key and value projections, one under the other.
    pub(super) qkv: Packed,
    pub(super) output: Packed,
    pub(super) post_attention_norm: Vec<f64>,
    /// Gate and up projections, one under the other.
    pub(super) gate_up: Packed,
    pub(super) down: Packed,
}

/// The tensors of a decoder.
#[derive(Debug, Clone)]
pub struct Weights {
    /// `[vocab_size, hidden_size]`, row-major.
    pub(super) embedding: Vec<f32>,
    pub(super) layers: Vec<Layer>,
    pub(super) final_norm: Vec<f64>,
    pub(super) head: Packed,
}

struct Reader<'a> {
    tensors: SafeTensors<'a>,
    num_taken: usize,
}

impl Reader<'_> {
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let view = self.tensors.tensor(name).map_err(|_| ModelError::Missing { name: name.to_owned() })?;
        if view.dtype() != Dtype::F32 || view.shape() != shape {
            let found = format!("{:?} {:?}", view.dtype(), view.shape());
            return Err(ModelError::Shape {
                name: name.to_owned(),
                found,
                expected: format!("F32 {shape:?}"),
            });
        }
        self.num_taken += 1;
        let (values, _) = view.data().as_chunks::<4>();
        Ok(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f64>, ModelError> {
        Ok(self.take(name, &[length])?.into_iter().map(f64::from).collect())
    }

    /// Matrices `[outputs, inner]`, one under the other.
    fn stacked(&mut self, names: &[(String, usize)], inner: usize) -> Result<Packed, ModelError> {
        let mut rows = Vec::new();
        for (name, outputs) in names {
            rows.extend(self.take(name, &[*outputs, inner])?);
        }
        Ok(Packed::from_rows(&rows, names.iter().map(|(_, outputs)| outputs).sum(), inner))
    }

    fn layer(&mut self, config: &Config, index: usize) -> Result<Layer, ModelError> {
        let name = |part: &str| format!("model.layers.{index}.{part}.weight");
        let (hidden, query) = (config.hidden_size, config.num_heads * config.head_dim);
        let key = config.num_kv_heads * config.head_dim;
        let qkv = [
            (name("self_attn.q_proj"), query),
            (name("self_attn.k_proj"), key),
            (name("self_attn.v_proj"), key),
        ];
        let gate_up = [
            (name("mlp.gate_proj"), config.intermediate_size),
            (name("mlp.up_proj"), config.intermediate_size),
        ];
        Ok(Layer {
            input_norm: self.vector(&name("input_layernorm"), hidden)?,
            qkv: self.stacked(&qkv, hidden)?,
            output: self.stacked(&[(name("self_attn.o_proj"), hidden)], query)?,
            post_attention_norm: self.vector(&name("post_attention_layernorm"), hidden)?,
            gate_up: self.stacked(&gate_up, hidden)?,
            down: self.stacked(&[(name("mlp.down_proj"), hidden)], config.intermediate_size)?,
        })
    }
}

impl Weights {
    /// Reads tensors in Hugging Face's names from a safetensors file's bytes.
    ///
    /// # Errors
    /// When the bytes are not a safetensors file, or its tensors are not
    /// exactly those that `config` implies, all of them F32.
    pub fn from_safetensors(config: &Config, bytes: &[u8]) -> Result<Self, ModelError> {
        let tensors = SafeTensors::deserialize(bytes)?;
        let names: Vec<String> = tensors.names().into_iter().map(ToString::to_string).collect();
        let mut reader = Reader { tensors, num_taken: 0 };
        let embedding_shape = [config.vocab_size, config.hidden_size];
        let embedding = reader.take("model.embed_tokens.weight", &embedding_shape)?;
        let layers = (0..config.num_layers).map(|index| reader.layer(config, index));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let final_norm = reader.vector("model.norm.weight", config.hidden_size)?;
        let head = if config.tied_embeddings {
            Packed::from_rows(&embedding, config.vocab_size, config.hidden_size)
        } else {
            reader.stacked(&[("lm_head.weight".to_owned(), config.vocab_size)], config.hidden_size)?
        };
        if reader.num_taken != names.len() {
            return Err(ModelError::Unexpected { name: unexpected(config, names) });
        }
        Ok(Self { embedding, layers, final_norm, head })
    }
}

/// The first name, in order, that the architecture has no tensor for.
fn unexpected(config: &Config, mut names: Vec<String>) -> String {
    const IN_LAYER: [&str; 9] = [
        "input_layernorm",
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "post_attention_layernorm",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ];
    names.sort();
    let known = |name: &str| {
        let in_layer = || {
            let (index, part) =
                name.strip_prefix("model.layers.")?.strip_suffix(".weight")?.split_once('.')?;
            let index = index.parse::<usize>().ok().filter(|number| number.to_string() == index)?;
            (index < config.num_layers && IN_LAYER.contains(&part)).then_some(())
        };
        name == "model.embed_tokens.weight"
            || name == "model.norm.weight"
            || (name == "lm_head.weight" && !config.tied_embeddings)
            || in_layer().is_some()
    };
    names.into_iter().find(|name| !known(name)).unwrap_or_default()
}

/// Reads a file of bounded size.
pub(super) fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>, ModelError> {
    let error = |source| ModelError::Io { path: path.to_owned(), source };
    let found = fs::metadata(path).map_err(error)?.len();
    if found > limit {
        return Err(ModelError::TooLarge { path: path.to_owned(), found, limit });
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(error)?.take(limit).read_to_end(&mut bytes).map_err(error)?;
    Ok(bytes)
}

/// The bytes of a candidate: `config.json` and `model.safetensors`.
///
/// # Errors
/// When one is missing, unreadable or too large.
pub fn read_candidate(folder: &Path) -> Result<(Vec<u8>, Vec<u8>), ModelError> {
    let config = read_bounded(&folder.join("config.json"), MAX_CONFIG_BYTES)?;
    let model = read_bounded(&folder.join("model.safetensors"), MAX_MODEL_BYTES)?;
    Ok((config, model))
}
