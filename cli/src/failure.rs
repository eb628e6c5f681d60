//! Why a command ends without a result: a message that names the place, and a
//! hint that says what to do.

use std::error::Error;
use std::fmt::Display;
use std::path::Path;

use crate::output::say;

/// Exit code where something was found wrong.
pub(crate) const FINDINGS: u8 = 1;
/// Exit code where the command could not run.
pub(crate) const COULD_NOT_RUN: u8 = 2;

/// The end of a command that has no result. It is no `std::error::Error`, so
/// that every library error turns into it with `?`.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    hint: Option<String>,
    message: String,
}

impl Failure {
    /// A command that could not run.
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: COULD_NOT_RUN, hint: Some(hint.into()), message: message.into() }
    }

    /// A command that ran and found something wrong.
    pub(crate) fn findings(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: FINDINGS, ..Self::new(message, hint) }
    }

    /// Adds a hint, where there is none.
    pub(crate) fn with_hint(self, hint: impl Display) -> Self {
        Self { hint: self.hint.or_else(|| Some(hint.to_string())), ..self }
    }

    /// The same as something that was found wrong with a file.
    pub(crate) fn into_findings(self, file: &Path, hint: &str) -> Self {
        Self { code: FINDINGS, message: format!("{}: {}", file.display(), self.message), ..self }
            .with_hint(hint)
    }

    /// Whoever read the results has had enough: no message, and no failure.
    pub(crate) fn reader_is_gone() -> Self {
        Self { code: 0, hint: None, message: String::new() }
    }

    /// Prints message and hint; returns the exit code.
    pub(crate) fn report(&self) -> u8 {
        if !self.message.is_empty() {
            say(format!("error: {}", self.message));
        }
        if let Some(hint) = &self.hint {
            say(format!("hint: {hint}"));
        }
        self.code
    }
}

impl<E: Error> From<E> for Failure {
    /// The error and its causes on one line; a hint that the message carries
    /// becomes the hint.
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            message.push_str(": ");
            message.push_str(&inner.to_string());
            cause = inner.source();
        }
        let hint = message.split_once("; hint: ").map(|(_, rest)| {
            let (hint, cause) = rest.split_once(": ").map_or((rest, ""), |(hint, cause)| (hint, cause));
            (hint.to_owned(), cause.to_owned())
        });
        let Some((hint, cause)) = hint else { return Self { code: COULD_NOT_RUN, hint: None, message } };
        let end = message.find("; hint: ").unwrap_or(message.len());
        message.truncate(end);
        if !cause.is_empty() {
            message.push_str(": ");
            message.push_str(&cause);
        }
        Self { code: COULD_NOT_RUN, hint: Some(hint), message }
    }
}

/// Adds what was attempted and what to do to a library's error.
pub(crate) trait OrFail<T> {
    /// Adds a hint, where the error carries none.
    fn or_hint(self, hint: impl Display) -> Result<T, Failure>;
    /// Adds what was attempted, and a hint.
    fn or_fail(self, attempted: impl Display, hint: impl Display) -> Result<T, Failure>;
}

impl<T, E: Into<Failure>> OrFail<T> for Result<T, E> {
    fn or_hint(self, hint: impl Display) -> Result<T, Failure> {
        self.map_err(|error| error.into().with_hint(hint))
    }

    fn or_fail(self, attempted: impl Display, hint: impl Display) -> Result<T, Failure> {
        self.or_hint(hint)
            .map_err(|failure| Failure { message: format!("{attempted}: {}", failure.message), ..failure })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_inside_a_message_becomes_the_hint() {
        let failure = Failure::from(std::io::Error::other("no ledger; hint: name one"));
        assert_eq!((failure.message.as_str(), failure.hint.as_deref()), ("no ledger", Some("name one")));
        let failure = Failure::from(std::io::Error::other("no ledger; hint: name one: not found"));
        assert_eq!(
            (failure.message.as_str(), failure.hint.as_deref()),
            ("no ledger: not found", Some("name one"))
        );
        let failure =
            Err::<(), _>(std::io::Error::other("no ledger")).or_fail("reading x", "look").expect_err("fails");
        assert_eq!(
            (failure.message.as_str(), failure.hint.as_deref()),
            ("reading x: no ledger", Some("look"))
        );
    }
}
