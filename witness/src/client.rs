//! Asking a witness over HTTP.
//!
//! It goes to the URL that the user names and nowhere else: no redirect, no
//! proxy from the environment, at most 64 KiB of an answer. An answer is not
//! believed: signatures are verified by the caller.

use std::time::Duration;

use crate::request::{AddCheckpoint, parse_size};
use ledger::tree::Hash;

/// Longest time for one request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer that is read.
const MAX_ANSWER_BYTES: u64 = 64 * 1024;
/// Longest part of an answer that is quoted.
const MAX_QUOTED_CHARS: usize = 200;

/// A witness that could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL is none that this program speaks.
    #[error("{url:?} {what}")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// No answer came.
    #[error("no answer from {url}")]
    Transport {
        /// The address that was asked.
        url: String,
        /// Why.
        #[source]
        source: Box<ureq::Error>,
    },
    /// An answer that the protocol does not have.
    #[error("{url} answered {status}: {answer}")]
    Answer {
        /// The address that was asked.
        url: String,
        /// Status code.
        status: u16,
        /// The beginning of the answer.
        answer: String,
    },
}

/// What a witness answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// 200, with signature lines.
    Cosigned(String),
    /// 409: it has another size, or another root of this size.
    Conflict {
        /// The size that it has.
        size: u64,
    },
    /// 422: the head does not follow from the one that it has.
    BadProof,
}

/// A witness by its URL.
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
    /// Without a slash at its end.
    prefix: String,
    /// Where heads are submitted.
    url: String,
}

impl Client {
    /// A client of the witness whose submission prefix is `url`.
    ///
    /// # Errors
    /// When the URL is neither `http` nor, where this program was built with
    /// it, `https`.
    pub fn new(url: &str) -> Result<Self, ClientError> {
        let wrong = |what| ClientError::Url { url: url.to_owned(), what };
        let is_https = url.starts_with("https://");
        if is_https && !cfg!(feature = "tls") {
            return Err(wrong(
                "is https, which this program was built without; hint: build it with `--features tls`, or name a local \
                 address that forwards to it",
            ));
        }
        if !is_https && !url.starts_with("http://") {
            return Err(wrong(
                "is no http address; hint: name the witness's submission prefix, such as http://127.0.0.1:8646",
            ));
        }
        if url.contains(['?', '#', '@']) {
            return Err(wrong("has a query, a fragment or a user in it"));
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .build();
        let prefix = url.trim_end_matches('/').to_owned();
        Ok(Self { agent: config.new_agent(), url: format!("{prefix}/add-checkpoint"), prefix })
    }

    /// Where a witness of this project gives every head of a log that it cosigned.
    #[must_use]
    pub fn cosigned_url(&self, origin: &str) -> String {
        format!("{}/cosigned/{origin}", self.prefix)
    }

    /// Submits a signed head with the proof from a size that the witness has.
    ///
    /// # Errors
    /// When no answer came, or one that the protocol does not have for it.
    pub fn add_checkpoint(&self, old_size: u64, proof: &[Hash], note: &str) -> Result<Reply, ClientError> {
        let transport = |source| ClientError::Transport { url: self.url.clone(), source: Box::new(source) };
        let body = AddCheckpoint::body(old_size, proof, note);
        let mut response = self.agent.post(&self.url).send(body.as_bytes()).map_err(transport)?;
        let status = response.status().as_u16();
        let answer =
            response.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_string().map_err(transport)?;
        let size = answer.strip_suffix('\n').and_then(parse_size);
        match (status, size) {
            (200, _) => Ok(Reply::Cosigned(answer)),
            (409, Some(size)) => Ok(Reply::Conflict { size }),
            (422, _) => Ok(Reply::BadProof),
            _ => {
                let answer = answer.trim().chars().take(MAX_QUOTED_CHARS).collect();
                Err(ClientError::Answer { url: self.url.clone(), status, answer })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_none_are_refused() {
        for url in ["", "127.0.0.1:80", "ftp://x", "http://a?b", "http://a#b", "http://me@a"] {
            assert!(matches!(Client::new(url), Err(ClientError::Url { .. })), "{url}");
        }
        assert_eq!(Client::new("https://witness.example").is_ok(), cfg!(feature = "tls"));
        assert!(
            Client::new("http://127.0.0.1:1/w/")
                .is_ok_and(|client| client.url.ends_with(":1/w/add-checkpoint"))
        );
    }
}
