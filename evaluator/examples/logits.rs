//! Logits of a candidate by the evaluator's own forward pass, as one line of
//! JSON for a comparison with other programs: `logits FOLDER NUM_TOKENS`.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use evaluator::forward::{Decoder, Scratch};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().context("logits FOLDER NUM_TOKENS")?);
    let num_tokens: u32 = arguments.next().context("logits FOLDER NUM_TOKENS")?.parse()?;
    let decoder = Decoder::load(&folder)?;
    // Bytes without a pattern that a model could have learned: a
    // multiplicative congruence (Knuth, section 3.3.4) taken at its top bits.
    let byte = |index: u32| u8::try_from(index.wrapping_mul(2_654_435_761) >> 24);
    let tokens = (1..=num_tokens).map(byte).collect::<Result<Vec<u8>, _>>()?;
    let mut scratch = Scratch::default();
    let logits = decoder.logits(&tokens, &mut scratch);
    ensure!(logits.len().is_multiple_of(tokens.len()), "{} logits for {num_tokens} tokens", logits.len());
    let rows: Vec<&[f64]> = logits.chunks_exact(logits.len() / tokens.len()).collect();
    writeln!(std::io::stdout(), "{}", serde_json::json!({ "logits": rows, "tokens": tokens }))?;
    Ok(())
}
