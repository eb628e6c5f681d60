//! State inside of an update: what was accumulated behind each microbatch.

use anyhow::{Context, Result};
use schemas::contract::{AverageOrder, Contract, MidAccumulation, OrderPolicy};
use schemas::state::StateClass;

use super::{Files, GO, Run, capture, replace, with_averages, with_dropout_stream, with_loss_scaler};

fn with_windows(contract: &mut Contract) {
    contract.checkpoints.mid_accumulation = MidAccumulation::SaveGradients;
    capture(contract, StateClass::AccumulatedGradients);
}

/// C18: behind every microbatch of every update, also where the epoch ends in
/// it, masks and examples come from streams, and losses are scaled.
#[test]
fn every_microbatch_is_a_place_to_resume() -> Result<()> {
    let edits: [fn(&mut Contract); 2] = [
        |_| (),
        |contract| {
            with_loss_scaler(contract);
            with_dropout_stream(contract);
            with_averages(contract, AverageOrder::AfterUpdate);
            contract.order = OrderPolicy::ShuffleBuffer { size: 3 };
            capture(contract, StateClass::Sampler);
        },
    ];
    for edit in edits {
        let run = Run::new((1, 5), 7, 4, |contract| {
            with_windows(contract);
            edit(contract);
        })?;
        let end = &run.states[4].0;
        for step in 1..4 {
            for num_microbatches in 1..5 {
                let mut engine = run.restored(step, &run.files(step)?, &[])?;
                assert!(engine.accumulate(num_microbatches, &GO)?);
                assert_eq!(engine.num_consumed_microbatches(), num_microbatches);
                let state = run.capture(&engine)?;
                let files = run.files_of(step, &state)?;
                // The engine itself goes on as if it had not been looked at.
                let (turns, last) = run.rest(engine, step)?;
                assert!(turns == run.turns[step + 1..] && last == *end);

                let resumed = run.restored(step, &files, &[])?;
                assert_eq!(run.capture(&resumed)?, state, "step {step} and {num_microbatches}");
                let (turns, last) = run.rest(resumed, step)?;
                assert_eq!(turns, run.turns[step + 1..], "step {step} and {num_microbatches}");
                assert!(last == *end, "step {step} and {num_microbatches}");
                for class in [StateClass::AccumulatedGradients, StateClass::DataCursor] {
                    let (turns, last) = run.rest(run.restored(step, &files, &[class])?, step)?;
                    let is_same = turns == run.turns[step + 1..] && last == *end;
                    assert!(!is_same, "{class} left out at step {step} and {num_microbatches}");
                }
            }
        }
    }
    Ok(())
}

/// Sums that are not of the microbatches behind the cursor are refused.
#[test]
fn accumulated_gradients_of_another_place_are_refused() -> Result<()> {
    let run = Run::new((1, 4), 20, 2, with_windows)?;
    let class = StateClass::AccumulatedGradients;
    let files = |num_microbatches| -> Result<Files> {
        let mut engine = run.restored(1, &run.files(1)?, &[])?;
        assert!(engine.accumulate(num_microbatches, &GO)?);
        run.files_of(1, &run.capture(&engine)?)
    };
    let refuses = |files: &Files, what: &str| {
        let error = run.restored(1, files, &[]).expect_err(what);
        let said = trainer::run::error::chain(error.as_ref());
        assert!(said.contains(&format!("`{class}`")) && said.contains(what), "{said}");
    };
    let (inside, behind) = (files(3)?, files(2)?);
    // A cursor of another microbatch: sums, then cursor.
    let mut mixed = (inside.0.clone(), inside.1.clone());
    mixed.1.insert("data_cursor.json".to_owned(), behind.1["data_cursor.json"].clone());
    refuses(&mixed, "3 microbatches are summed, and the data cursor is behind 2");
    // Sums over fewer microbatches than they say.
    let mut mixed = (inside.0.clone(), inside.1.clone());
    replace(&mut mixed, "\"microbatches\":3", "\"microbatches\":2");
    refuses(&mixed, "is not declared");
    let mut mixed = (inside.0.clone(), inside.1.clone());
    replace(&mut mixed, "\"microbatches\":3", "\"microbatches\":4");
    refuses(&mixed, "4 microbatches of 4 are summed");
    // Other examples, and another number of tokens.
    let mut mixed = (inside.0.clone(), inside.1.clone());
    replace(&mut mixed, "\"ids\":\"blake3:", "\"ids\":\"blake3:00");
    let text = String::from_utf8(mixed.1["accumulated_gradients.json"].clone())?;
    let (start, rest) = text.split_once("blake3:00").context("just put there")?;
    let shortened = format!("{start}blake3:00{}", &rest[2..]);
    mixed.1.insert("accumulated_gradients.json".to_owned(), shortened.into_bytes());
    refuses(&mixed, "consumed other examples");
    let mut mixed = (inside.0.clone(), inside.1.clone());
    let mut cursor: serde_json::Value = serde_json::from_slice(&mixed.1["data_cursor.json"])?;
    cursor["tokens"] = (cursor["tokens"].as_u64().context("a count")? + 1).into();
    mixed.1.insert("data_cursor.json".to_owned(), cursor.to_string().into_bytes());
    refuses(&mixed, "tokens");
    // And none of it where the contract saves at boundaries only.
    let boundary = Run::new((1, 4), 20, 2, |_| ())?;
    let mut mixed = boundary.files(1)?;
    mixed.1.insert("data_cursor.json".to_owned(), inside.1["data_cursor.json"].clone());
    let error = boundary.restored(1, &mixed, &[]).expect_err("a cursor inside of a window");
    assert!(format!("{error:#}").contains("`data_cursor`"), "{error:#}");
    Ok(())
}
