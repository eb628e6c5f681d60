//! A candidate's tensors, checked and packed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use schemas::model_index::{MODEL_INDEX_NAME, ModelIndex};

use super::config::{Config, ConfigError};
use super::index::{MODEL_NAME, parse_index};
use super::matmul::Packed;

/// Largest weights file that is read, in bytes.
const MAX_MODEL_BYTES: u64 = 64 << 30;
/// Largest `config.json` that is read, in bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Largest index that is read, in bytes: the bound of every document.
const MAX_INDEX_BYTES: u64 = 16 << 20;

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
    /// The index of several files is malformed, or not that of these files.
    #[error("the index of the weights cannot be used: {reason}")]
    Index {
        /// What is wrong with it.
        reason: String,
    },
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
    files: Vec<(&'a str, SafeTensors<'a>)>,
    num_taken: usize,
}

impl Reader<'_> {
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let found = self.files.iter().find_map(|(_, tensors)| tensors.tensor(name).ok());
        let view = found.ok_or_else(|| ModelError::Missing { name: name.to_owned() })?;
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
        Self::from_files(config, None, &[(MODEL_NAME, bytes)])
    }

    /// Reads tensors from the bytes of several safetensors files, by name.
    ///
    /// # Errors
    /// As [`Self::from_safetensors`], and when a file does not hold exactly the
    /// tensors that the index says.
    pub fn from_files(
        config: &Config,
        index: Option<&ModelIndex>,
        files: &[(&str, &[u8])],
    ) -> Result<Self, ModelError> {
        let files = files.iter().map(|(name, bytes)| Ok((*name, SafeTensors::deserialize(bytes)?)));
        let files = files.collect::<Result<Vec<_>, ModelError>>()?;
        if let Some(index) = index {
            super::index::check(index, &files)?;
        }
        let names = files.iter().flat_map(|(_, tensors)| tensors.names());
        let names: Vec<String> = names.map(ToString::to_string).collect();
        let mut reader = Reader { files, num_taken: 0 };
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

/// The bytes of a candidate.
#[derive(Debug, Clone)]
pub struct CandidateFiles {
    /// `config.json`.
    pub config: Vec<u8>,
    /// `model.safetensors`, or the files that the index names, by name.
    pub files: Vec<(String, Vec<u8>)>,
    /// The index, where the model lies in several files.
    pub index: Option<ModelIndex>,
}

/// Reads a candidate's files. Digests are the caller's business.
///
/// # Errors
/// When one is missing, unreadable or too large, or the index is malformed.
pub fn read_candidate(folder: &Path) -> Result<CandidateFiles, ModelError> {
    let config = read_bounded(&folder.join("config.json"), MAX_CONFIG_BYTES)?;
    let (whole, index) = (folder.join(MODEL_NAME), folder.join(MODEL_INDEX_NAME));
    // A file that is missing altogether is reported by its usual name.
    if whole.exists() || !index.exists() {
        let files = vec![(MODEL_NAME.to_owned(), read_bounded(&whole, MAX_MODEL_BYTES)?)];
        return Ok(CandidateFiles { config, files, index: None });
    }
    let index = parse_index(&read_bounded(&index, MAX_INDEX_BYTES)?)?;
    let names = index.metadata.shards.keys();
    let files = names.map(|name| Ok((name.clone(), read_bounded(&folder.join(name), MAX_MODEL_BYTES)?)));
    Ok(CandidateFiles { config, files: files.collect::<Result<_, ModelError>>()?, index: Some(index) })
}
