//! What an attempt costs: wall and processor time, memory, bytes, and the time
//! that recording, evaluating and saving took.
//!
//! Numbers come from `/proc`; where the system does not say, they are 0 and
//! nothing is guessed.

use std::fs;
use std::time::{Duration, Instant};

use schemas::body::CostTotals;

/// Ticks a second in `/proc/<pid>/stat`: `USER_HZ`, which Linux fixes at 100
/// for programs whatever the kernel's own timer is.
const TICKS_PER_SECOND: u64 = 100;

/// Bytes in a kibibyte, the unit of `/proc/self/status` and `/proc/meminfo`.
const KIBIBYTE: u64 = 1024;

/// Adds up the cost of one attempt while it runs.
#[derive(Debug)]
pub struct CostMeter {
    started: Instant,
    /// Sums so far; the fields that `totals` measures itself stay 0.
    sums: CostTotals,
}

impl CostMeter {
    /// Starts the clock.
    #[must_use]
    pub fn start() -> Self {
        Self { started: Instant::now(), sums: CostTotals::default() }
    }

    /// The entry of one update was made.
    pub const fn step(&mut self) {
        self.sums.num_steps_executed += 1;
    }

    /// Bytes that workers sent.
    pub const fn sent(&mut self, num_bytes: u64) {
        self.sums.bytes_sent += num_bytes;
    }

    /// The most memory that a worker other than this process had.
    pub fn worker_peak(&mut self, num_bytes: u64) {
        self.sums.peak_resident_bytes = self.sums.peak_resident_bytes.max(num_bytes);
    }

    /// Time that the loop waited for the recorder.
    pub fn recording(&mut self, duration: Duration) {
        self.sums.recording_us += micros(duration);
    }

    /// Time that an evaluation took.
    pub fn eval(&mut self, duration: Duration) {
        self.sums.eval_us += micros(duration);
    }

    /// Time that a checkpoint took, and its size.
    pub fn checkpoint(&mut self, duration: Duration, num_bytes: u64) {
        self.sums.checkpoint_us += micros(duration);
        self.sums.checkpoint_bytes += num_bytes;
    }

    /// Wall time of the attempt so far.
    #[must_use]
    pub fn wall(&self) -> Duration {
        self.started.elapsed()
    }

    /// Everything up to now.
    #[must_use]
    pub fn totals(&self) -> CostTotals {
        CostTotals {
            cpu_us: cpu_us().unwrap_or(0),
            energy_j: None,
            peak_resident_bytes: peak_resident_bytes().unwrap_or(0).max(self.sums.peak_resident_bytes),
            wall_us: micros(self.started.elapsed()),
            ..self.sums
        }
    }
}

/// Whole microseconds of a duration.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Sum of two totals; the peak is the larger one, and energy is known only
/// where both are.
#[must_use]
pub fn add(left: CostTotals, right: CostTotals) -> CostTotals {
    CostTotals {
        bytes_sent: left.bytes_sent + right.bytes_sent,
        checkpoint_bytes: left.checkpoint_bytes + right.checkpoint_bytes,
        checkpoint_us: left.checkpoint_us + right.checkpoint_us,
        cpu_us: left.cpu_us + right.cpu_us,
        energy_j: left.energy_j.zip(right.energy_j).map(|(left, right)| left + right),
        eval_us: left.eval_us + right.eval_us,
        num_steps_executed: left.num_steps_executed + right.num_steps_executed,
        peak_resident_bytes: left.peak_resident_bytes.max(right.peak_resident_bytes),
        recording_us: left.recording_us + right.recording_us,
        wall_us: left.wall_us + right.wall_us,
    }
}

/// Processor time of this process and of the workers that it has waited for, in
/// microseconds, user and system.
fn cpu_us() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The command name, in parentheses, may hold spaces; fields count from
    // after it: state is field 3, utime 14, stime 15, cutime 16 and cstime 17
    // (proc_pid_stat(5)).
    let fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(11).take(4);
    let ticks = fields.map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(ticks * (1_000_000 / TICKS_PER_SECOND))
}

/// The most resident memory that this process had, in bytes; `None` where the
/// system does not say.
#[must_use]
pub fn peak_resident_bytes() -> Option<u64> {
    status_bytes("VmHWM:")
}

/// Resident memory of this process in bytes; `None` where the system does not
/// say.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    status_bytes("VmRSS:")
}

fn status_bytes(field: &str) -> Option<u64> {
    field_bytes(&fs::read_to_string("/proc/self/status").ok()?, field)
}

/// Memory that can be had without swapping, in bytes: `MemAvailable`.
#[must_use]
pub fn available_memory_bytes() -> Option<u64> {
    field_bytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

/// Total memory in bytes; 0 where the system does not say.
#[must_use]
pub fn total_memory_bytes() -> u64 {
    fs::read_to_string("/proc/meminfo").ok().and_then(|text| field_bytes(&text, "MemTotal:")).unwrap_or(0)
}

fn field_bytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(field))?;
    line[field.len()..].split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(KIBIBYTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_bytes() {
        let text = "MemTotal:       100 kB\nMemAvailable:    7 kB\n";
        assert_eq!(field_bytes(text, "MemAvailable:"), Some(7 * 1024));
        assert_eq!(field_bytes(text, "SwapFree:"), None);
    }

    #[test]
    fn this_process_has_memory_and_its_clock_runs() {
        assert!(resident_bytes().expect("Linux says") > 0);
        let meter = CostMeter::start();
        let totals = meter.totals();
        assert!(totals.peak_resident_bytes > 0);
        assert_eq!(totals.num_steps_executed, 0);
    }

    #[test]
    fn energy_is_unknown_unless_both_are_known() {
        let known = CostTotals { energy_j: Some(2), wall_us: 1, ..CostTotals::default() };
        let unknown = CostTotals { wall_us: 2, ..CostTotals::default() };
        assert_eq!(add(known, unknown).energy_j, None);
        assert_eq!(add(known, known).energy_j, Some(4));
        assert_eq!(add(known, unknown).wall_us, 3);
    }
}
