//! What a replay says to the person who asked for it. It compares nothing.

use std::fmt::Write as _;
use std::path::PathBuf;

use schemas::challenge::{Challenge, Replay};
use serde::Serialize;

/// One segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SegmentReport {
    /// Why it was not executed; none where it was.
    pub failure: Option<String>,
    /// Completed updates before it.
    pub from_step: u64,
    /// As in the challenge.
    pub number: u64,
    /// Its last update.
    pub to_step: u64,
}

/// What was executed, and where it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReplayReport {
    /// Format of this report.
    pub format: &'static str,
    /// The replay's file.
    pub output: PathBuf,
    /// In the order of the draw.
    pub segments: Vec<SegmentReport>,
}

impl ReplayReport {
    /// Of a replay that was written.
    #[must_use]
    pub fn new(challenge: &Challenge, replay: &Replay, output: PathBuf) -> Self {
        let pairs = challenge.drawn.iter().zip(&replay.segments);
        let segments = pairs.map(|(drawn, replayed)| SegmentReport {
            failure: replayed.failure.clone(),
            from_step: drawn.start.step,
            number: drawn.number,
            to_step: drawn.end.step,
        });
        Self { format: "replay-report/1", output, segments: segments.collect() }
    }

    /// 0 where every segment was executed, else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        u8::from(self.segments.iter().any(|segment| segment.failure.is_some()))
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for SegmentReport { failure, from_step, number, to_step } in &self.segments {
            let word = failure.as_deref().unwrap_or("executed");
            // Writing to a String cannot fail.
            let _ = writeln!(text, "segment {number:<5} steps {} to {to_step}: {word}", from_step + 1);
        }
        let _ = writeln!(text, "replay    {}", self.output.display());
        text
    }
}
