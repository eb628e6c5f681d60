//! Named points at which a test makes the process vanish as a crash would,
//! stand still, or be slow as a slow disk is; and switches that leave out a
//! flush, for controls that have to fail.
//!
//! Only builds with the cargo feature `failpoints` have them (crate `fail`);
//! without it every function here is empty. Points do nothing until a program
//! calls [`arm`], so that a build that has them in by feature unification, such
//! as the `ledger` program's, is not reached by a variable.
//!
//! [`VARIABLE`] holds `POINT=ACTIONS[;POINT=ACTIONS]` in the language of `fail`:
//! `2*off->return` survives two passes and is killed at the third,
//! `2*off->1*return(stop)` stands still there (SIGSTOP) and goes on when it is
//! continued, `return(log)` says each pass on standard error, `sleep(50)` takes
//! 50 ms longer at each. A switch is turned on by `return`.

/// Points of the writer, in the order in which a durable entry passes them.
pub const POINTS: [&str; 8] = [
    "entry.insert",
    "entry.inserted",
    "head.signed",
    "entry.commit",
    "entry.committed",
    "head.write",
    "head.written",
    "head.flushed",
];

/// Switches of the writer: the database commits without a flush, and the head
/// file is not flushed.
pub const SWITCHES: [&str; 2] = ["synchronous.off", "skip.head_flush"];

/// The variable that [`arm`] reads: the one that `fail` documents.
pub const VARIABLE: &str = "FAILPOINTS";

/// What a killed, stopped or logged pass says on standard error before it acts.
pub const MARK: &str = "failpoint ";

/// Sets the points that the environment names. `others` are points and switches
/// of the program beside this crate's.
///
/// # Errors
/// Where the variable names a point that does not exist, which would never be
/// passed, or an action that does not.
pub fn arm(others: &[&str]) -> Result<(), String> {
    #[cfg(feature = "failpoints")]
    for item in std::env::var(VARIABLE).unwrap_or_default().split(';').filter(|item| !item.is_empty()) {
        let (name, actions) = item.split_once('=').ok_or_else(|| format!("{item:?} is no POINT=ACTIONS"))?;
        let is_known = POINTS.iter().chain(&SWITCHES).chain(others).any(|known| *known == name);
        if !is_known {
            return Err(format!("there is no point {name:?}"));
        }
        fail::cfg(name, actions).map_err(|error| format!("{name}: {error}"))?;
    }
    let _ = others;
    Ok(())
}

/// Passes a point; what happens there the environment says.
#[cfg_attr(not(feature = "failpoints"), inline)]
pub fn pass(point: &str) {
    #[cfg(feature = "failpoints")]
    fail::fail_point!(point, |action| act(point, action.as_deref()));
    let _ = point;
}

/// Whether a switch is turned on; never, without the feature.
#[must_use]
pub fn is_on(switch: &str) -> bool {
    #[cfg(feature = "failpoints")]
    fail::fail_point!(switch, |_| true);
    let _ = switch;
    false
}

/// Says which point is passed, and does what its action asks for.
#[cfg(feature = "failpoints")]
fn act(point: &str, action: Option<&str>) {
    use std::io::Write as _;

    use rustix::process::{Signal, getpid, kill_process};

    // One write, so that lines of two threads do not mix.
    let _ = std::io::stderr().lock().write_all(format!("{MARK}{point}\n").as_bytes());
    match action {
        Some("log") => {}
        Some("stop") => {
            let _ = kill_process(getpid(), Signal::STOP);
            // The signal may reach another thread first and this one a moment
            // later; nothing is to happen in between.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        _ => {
            // SIGKILL, as the out-of-memory killer sends it: no handler, no flush.
            let _ = kill_process(getpid(), Signal::KILL);
            loop {
                std::thread::park();
            }
        }
    }
}
