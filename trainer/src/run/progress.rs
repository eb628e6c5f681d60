//! What a person sees while a run goes on: status lines and one line a step on
//! standard error, and a bar where that is a terminal.
//!
//! Nothing here decides anything, and standard output is left to results.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use schemas::body::{Credit, StepDet};

/// Where messages for people go.
#[derive(Debug, Clone)]
pub struct Console {
    bar: ProgressBar,
    is_quiet: bool,
}

impl Console {
    /// Standard error; `is_quiet` leaves out the lines of steps and the bars.
    #[must_use]
    pub fn new(is_quiet: bool) -> Self {
        Self { bar: ProgressBar::hidden(), is_quiet }
    }

    /// A line that is always shown: what starts, resumes, fails or ends.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| {
            // A closed standard error must not end a run.
            let _ = writeln!(std::io::stderr().lock(), "{line}");
        });
    }

    /// A line that `--quiet` leaves out.
    pub fn note(&self, line: &str) {
        if !self.is_quiet {
            self.say(line);
        }
    }

    /// A bar over bytes, hidden where standard error is not a terminal.
    #[must_use]
    pub fn bytes(&self, what: &'static str, num_bytes: u64) -> ProgressBar {
        self.new_bar(num_bytes, "{msg} [{bar:30}] {bytes}/{total_bytes} {eta}").with_message(what)
    }

    /// Shows the bar of the training loop.
    pub fn start_steps(&mut self, step: u64, last_step: u64) {
        self.bar = self.new_bar(last_step, "[{bar:30}] step {pos}/{len} {eta} {msg}").with_position(step);
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// One completed update.
    pub fn step(&self, step: u64, det: &StepDet, duration: Duration) {
        self.bar.set_position(step);
        if self.is_quiet {
            return;
        }
        let Credit::Backpropagation { gradient_norm, loss, num_tokens, .. } = &det.credit else { return };
        let rate = det.updates.first().map_or(0.0, |update| update.learning_rate.0);
        let speed = tokens_per_second(*num_tokens, duration);
        self.say(&format!(
            "step {step:>6}  loss {:.4}  lr {rate:.3e}  grad norm {:.3}  {speed:.0} tokens/s",
            loss.0, gradient_norm.0
        ));
    }

    fn new_bar(&self, length: u64, template: &str) -> ProgressBar {
        if self.is_quiet || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
        match ProgressStyle::with_template(template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a rounded figure for people")]
fn tokens_per_second(num_tokens: u64, duration: Duration) -> f64 {
    num_tokens as f64 / duration.as_secs_f64().max(1e-9)
}
