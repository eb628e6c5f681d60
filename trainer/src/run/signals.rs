//! INT, TERM and HUP: the first asks the attempt to end cleanly, the second
//! ends the process at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// A shell reports a process that a signal ended as 128 plus its number.
const EXIT_BASE: i32 = 128;

/// Which signal was received, if any. Written by signal handlers only.
#[derive(Debug, Clone)]
pub struct Interrupt {
    is_set: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Installs the handlers, once a process.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn install() -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        let is_set = Arc::new(AtomicBool::new(false));
        for number in [SIGINT, SIGTERM, SIGHUP] {
            // Order matters: the shutdown looks at the flag before the same
            // signal sets it, so that only a second signal is hard.
            flag::register_conditional_shutdown(number, EXIT_BASE + number, Arc::clone(&is_set))?;
            let value = usize::try_from(number).unwrap_or(0);
            flag::register_usize(number, Arc::clone(&signal), value)?;
            flag::register(number, Arc::clone(&is_set))?;
        }
        Ok(Self { is_set, signal })
    }

    /// One that no signal sets.
    #[must_use]
    pub fn never() -> Self {
        Self { is_set: Arc::default(), signal: Arc::default() }
    }

    /// Whether the attempt was asked to end.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// The flag itself, for loops that know nothing of signals.
    #[must_use]
    pub fn flag(&self) -> &AtomicBool {
        &self.is_set
    }

    /// The signal that asked, for use once [`Self::is_set`] says so; TERM in
    /// the instant before its number is stored.
    #[must_use]
    pub fn received(&self) -> ReceivedSignal {
        let number = i32::try_from(self.signal.load(Ordering::Relaxed)).unwrap_or(0);
        ReceivedSignal { number: if number == 0 { SIGTERM } else { number } }
    }
}

/// A signal that asked the attempt to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedSignal {
    number: i32,
}

impl ReceivedSignal {
    /// `SIGTERM`, `SIGINT` or `SIGHUP`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.number {
            SIGINT => "SIGINT",
            SIGHUP => "SIGHUP",
            _ => "SIGTERM",
        }
    }

    /// Exit code of a process that the signal ended.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        u8::try_from(EXIT_BASE + self.number).unwrap_or(u8::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_received_signal_has_the_shells_exit_code() {
        for (number, name, code) in
            [(SIGTERM, "SIGTERM", 143), (SIGINT, "SIGINT", 130), (SIGHUP, "SIGHUP", 129)]
        {
            let signal = ReceivedSignal { number };
            assert_eq!((signal.name(), signal.exit_code()), (name, code));
        }
        assert!(!Interrupt::never().is_set());
    }
}
