//! How much of a probe is done and how long the rest may take, for people.

use std::time::{Duration, Instant};

/// Updates of all trajectories of one call.
#[derive(Debug)]
pub struct Pace {
    num_done: u64,
    num_updates: u64,
    started: Instant,
}

impl Pace {
    /// A reference that executes `reference` updates, and `num_probes` resumed
    /// trajectories of `resumed` each.
    #[must_use]
    pub fn start(reference: u64, resumed: u64, num_probes: usize) -> Self {
        let num_updates = reference.saturating_add(resumed.saturating_mul(num_probes as u64));
        Self { num_done: 0, num_updates, started: Instant::now() }
    }

    /// Takes so many updates as done and says what is left; nothing at the end.
    pub fn advance(&mut self, num_updates: u64) -> Option<String> {
        self.num_done = self.num_done.saturating_add(num_updates).min(self.num_updates);
        let left = self.left(self.started.elapsed())?;
        let Self { num_done, num_updates, .. } = self;
        Some(format!("{num_done} of {num_updates} updates done, about {} left", words(left)))
    }

    /// At the speed so far: a resumed trajectory executes the same updates.
    #[allow(clippy::cast_precision_loss, reason = "an estimate for people")]
    fn left(&self, elapsed: Duration) -> Option<Duration> {
        let left = self.num_updates - self.num_done;
        let ratio = left as f64 / self.num_done as f64;
        let seconds = elapsed.as_secs_f64() * ratio;
        (left > 0 && seconds.is_finite())
            .then(|| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}

fn words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{} s", seconds + 1),
        60..3600 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_goes_by_updates_and_ends() {
        let mut pace = Pace::start(30, 5, 2);
        let said = pace.advance(30).expect("10 are left");
        assert!(said.starts_with("30 of 40 updates done, about "), "{said}");
        assert_eq!(pace.left(Duration::from_secs(30)), Some(Duration::from_secs(10)));
        assert!(pace.advance(5).is_some());
        assert_eq!(pace.advance(5), None);
        assert_eq!(pace.advance(5), None);
        assert_eq!(Pace::start(0, 0, 0).advance(0), None);
    }

    #[test]
    fn durations_are_rounded_up_in_words() {
        for (seconds, text) in [(0, "1 s"), (59, "60 s"), (60, "1 min"), (61, "2 min"), (7_260, "2 h 1 min")]
        {
            assert_eq!(words(Duration::from_secs(seconds)), text);
        }
    }
}
