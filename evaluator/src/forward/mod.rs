//! The evaluator's own forward pass of a Llama-shaped decoder.
//!
//! The pass shares no code with the trainer and uses no tensor library, so that a
//! mistake there is not repeated here. Semantics are those of Hugging Face's
//! `LlamaForCausalLM`: RMSNorm before each branch and at the end, rotary
//! positions on half rotation, grouped-query attention, SwiGLU, an output head
//! that may be the embedding.
//!
//! Arithmetic: weights are binary32; every operand of a matrix product is
//! rounded to binary32, so that each product is exact in binary64, and sums
//! are binary64 in ascending order of the inner index, whatever vector width
//! executes them. Residual stream, norms, softmax and loss are binary64, with
//! the `libm` crate's functions. The bits of a result therefore do not depend
//! on the number of threads or on the processor's vector instructions.

mod config;
mod decoder;
mod index;
mod matmul;
mod score;
mod weights;

pub use config::{Config, ConfigError, MAX_EXTENT};
pub use decoder::{Decoder, Scratch};
pub use index::{MODEL_NAME, parse_index};
pub use score::{Score, score};
pub use weights::{CandidateFiles, ModelError, Weights, read_candidate};
