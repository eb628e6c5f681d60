//! A synthetic ledger of any length for the bench. Nothing of it is in an
//! ordinary build.

use std::path::PathBuf;

use schemas::contract::{Architecture, ScheduleShape, StoppingRule};
use schemas::dsse::REPORT_PAYLOAD_TYPE;
use schemas::report::Report;

use crate::fixture::{
    Fixture, RunBuilder, StoredRun, Texts, VALIDATOR, drawn_and_fed, json, signed_envelope, use_texts,
};

/// Examples of one update.
const GLOBAL_EXAMPLES: u32 = 8;

/// Context length in bytes.
const CONTEXT_LENGTH: u32 = 64;

/// A ledger on disk, removed when it is dropped.
pub struct SyntheticLedger {
    run: StoredRun,
    drawn_and_fed: Vec<[Vec<u8>; 2]>,
}

impl SyntheticLedger {
    /// An honest run of so many updates of 8 windows of 64 bytes, saved and
    /// evaluated at its ends, with what its updates drew and were fed.
    ///
    /// # Panics
    /// When the temporary folder cannot be written, or on a second call.
    #[must_use]
    pub fn new(num_steps: u64) -> Self {
        let fixture = Self::fixture(num_steps, num_steps);
        let drawn_and_fed = (1..=num_steps).map(|step| drawn_and_fed(&fixture.frozen, step)).collect();
        Self { run: StoredRun::new(fixture), drawn_and_fed }
    }

    /// A run that is saved and evaluated every so many updates too.
    ///
    /// # Panics
    /// As [`SyntheticLedger::new`].
    #[must_use]
    pub fn saved_every(num_steps: u64, every_steps: u64) -> Self {
        Self { run: StoredRun::new(Self::fixture(num_steps, every_steps)), drawn_and_fed: Vec::new() }
    }

    fn fixture(num_steps: u64, every_steps: u64) -> Fixture {
        let text = |length: usize| (0..length).map(|at| b"etaoin shrdlu"[at * at % 13]).collect();
        use_texts(Texts { train: [text(200_000), text(60_000)], val: text(2_000) });
        let builder = RunBuilder::new().contract(|contract| {
            let Architecture::LlamaDecoder(model) = &mut contract.architecture;
            model.context_length = CONTEXT_LENGTH;
            contract.batch.global_examples = GLOBAL_EXAMPLES;
            contract.batch.accumulation = GLOBAL_EXAMPLES / contract.batch.microbatch_examples;
            contract.budget.max_steps = num_steps;
            contract.checkpoints.every_steps = every_steps;
            contract.stopping = StoppingRule::AtStep { step: num_steps };
            for stream in &mut contract.evaluation.streams {
                stream.every_steps = every_steps;
            }
            for group in &mut contract.schedule {
                group.shape = ScheduleShape::WarmupCosine {
                    floor: 1e-4,
                    peak: 1e-2,
                    total_steps: num_steps,
                    warmup_steps: num_steps / 10,
                };
            }
            contract.quality_target = None;
        });
        builder.build()
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.run.path()
    }

    /// Signs a report with the validator's key and puts it beside the ledger, for
    /// an audit that goes on from it.
    ///
    /// # Panics
    /// When the temporary folder cannot be written.
    #[must_use]
    pub fn save_report(&self, report: &Report) -> PathBuf {
        let path = self.run.beside("run.db.report.dsse.json");
        let envelope = signed_envelope(REPORT_PAYLOAD_TYPE, &json(report), VALIDATOR);
        std::fs::write(&path, envelope).expect("the temporary folder is writable");
        path
    }

    /// Leaves it where it is, and says in which folder.
    #[must_use]
    pub fn keep(self) -> PathBuf {
        self.run.keep()
    }

    /// The stored entries.
    #[must_use]
    pub fn entries(&self) -> &[Vec<u8>] {
        &self.run.entries
    }
    /// For each update the bytes that its draw's two digests are of: ids of the
    /// examples, and what entered the model.
    #[must_use]
    pub fn drawn_and_fed(&self) -> &[[Vec<u8>; 2]] {
        &self.drawn_and_fed
    }
}
