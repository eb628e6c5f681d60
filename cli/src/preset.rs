//! Sizes of model and run that `init` starts from. They are starting points:
//! the contract holds the values, and `--set` or an editor changes them.

use clap::ValueEnum;

/// A named size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// Seconds: for tests.
    Tiny,
    /// About a minute on 2 cores: the quick start.
    Demo,
    /// Under an hour on 2 cores: the State of the Union run.
    Sotu,
}

/// The values of a preset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Values {
    pub(crate) accumulation: u32,
    pub(crate) checkpoint_every_steps: u64,
    pub(crate) context_length: u32,
    pub(crate) dropout: f64,
    pub(crate) eval_every_steps: u64,
    /// First so many examples of the val table; none: all.
    pub(crate) eval_num_examples: Option<u64>,
    pub(crate) floor_bytes: u64,
    pub(crate) head_dim: u32,
    pub(crate) hidden_size: u32,
    pub(crate) intermediate_size: u32,
    pub(crate) max_wall_s: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) microbatch_examples: u32,
    pub(crate) num_heads: u32,
    pub(crate) num_kv_heads: u32,
    pub(crate) num_layers: u32,
    pub(crate) num_steps: u64,
    pub(crate) peak_rate: f64,
    pub(crate) warmup_steps: u64,
}

impl Preset {
    /// Its values.
    pub(crate) const fn values(self) -> Values {
        match self {
            Self::Tiny => Values {
                accumulation: 2,
                checkpoint_every_steps: 5,
                context_length: 16,
                dropout: 0.1,
                eval_every_steps: 5,
                eval_num_examples: Some(16),
                floor_bytes: 16 << 20,
                head_dim: 8,
                hidden_size: 16,
                intermediate_size: 32,
                max_wall_s: 3_600,
                memory_bytes: 512 << 20,
                microbatch_examples: 2,
                num_heads: 2,
                num_kv_heads: 1,
                num_layers: 2,
                num_steps: 20,
                peak_rate: 3e-3,
                warmup_steps: 4,
            },
            Self::Demo => Values {
                accumulation: 2,
                checkpoint_every_steps: 50,
                context_length: 64,
                dropout: 0.1,
                eval_every_steps: 50,
                eval_num_examples: None,
                floor_bytes: 64 << 20,
                head_dim: 32,
                hidden_size: 128,
                intermediate_size: 256,
                max_wall_s: 3_600,
                memory_bytes: 1 << 30,
                microbatch_examples: 4,
                num_heads: 4,
                num_kv_heads: 2,
                num_layers: 2,
                num_steps: 400,
                peak_rate: 3e-3,
                warmup_steps: 40,
            },
            Self::Sotu => Values {
                accumulation: 2,
                checkpoint_every_steps: 500,
                context_length: 128,
                dropout: 0.0,
                eval_every_steps: 500,
                eval_num_examples: Some(1024),
                floor_bytes: 256 << 20,
                head_dim: 32,
                hidden_size: 128,
                intermediate_size: 384,
                max_wall_s: 3_600,
                memory_bytes: 2 << 30,
                microbatch_examples: 8,
                num_heads: 4,
                num_kv_heads: 2,
                num_layers: 4,
                num_steps: 5_000,
                peak_rate: 2e-3,
                warmup_steps: 200,
            },
        }
    }

    /// Whether a quality target is frozen without being asked for.
    pub(crate) const fn has_baseline(self) -> bool {
        matches!(self, Self::Sotu)
    }
}
