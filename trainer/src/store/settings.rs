//! What the environment says of a store: who asks, where it is asked, and how
//! long an answer may take. Nothing of it is written anywhere.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use reqwest::Url;

use super::StoreError;

/// Limit of one operation on a checkpoint (its upload, its second reading, its
/// fetching), all tries together. An upload of 10 GiB at 100 Mbit/s takes 860 s.
const DEFAULT_TIMEOUT_S: u64 = 900;

/// Variable that changes [`DEFAULT_TIMEOUT_S`].
const TIMEOUT_VARIABLE: &str = "CHECKPOINT_STORE_TIMEOUT_S";

/// Longest limit that can be asked for: a day.
const MAX_TIMEOUT_S: u64 = 86_400;

/// Region of stores that have none.
const DEFAULT_REGION: &str = "us-east-1";

/// Settings of a client.
#[derive(Clone)]
pub struct Settings {
    /// Name of the key.
    pub(super) access_key_id: String,
    /// Where the store is asked; Amazon's own address where none.
    pub(super) endpoint: Option<String>,
    /// Whether requests go out unencrypted: only on this machine.
    pub(super) is_http: bool,
    /// Region that requests are signed for.
    pub(super) region: String,
    /// The key.
    pub(super) secret_access_key: String,
    /// Limit of one operation.
    pub(super) timeout: Duration,
    /// Token of a temporary key.
    pub(super) token: Option<String>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, region, timeout, .. } = self;
        let mut shown = formatter.debug_struct("Settings");
        shown.field("endpoint", endpoint).field("region", region).field("timeout", timeout);
        shown.finish_non_exhaustive()
    }
}

impl Settings {
    /// Reads the variables that Amazon's own tools read. Keys come from them
    /// alone: no file is searched, and no metadata service is asked.
    ///
    /// # Errors
    /// [`StoreError::Environment`] for the first variable that is missing or
    /// cannot be used.
    pub fn from_environment(read: &dyn Fn(&str) -> Option<String>) -> Result<Self, StoreError> {
        let set = |name: &str| read(name).filter(|value| !value.is_empty());
        let required = |variable: &'static str| {
            let reason = "is not set, and the store needs a key".to_owned();
            set(variable).ok_or(StoreError::Environment { variable, reason })
        };
        let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]
            .into_iter()
            .find_map(|variable| set(variable).map(|value| (variable, value)));
        let (endpoint, is_http) = match endpoint {
            Some((variable, value)) => {
                let is_http = check_endpoint(variable, &value)?;
                (Some(value.trim_end_matches('/').to_owned()), is_http)
            }
            None => (None, false),
        };
        Ok(Self {
            access_key_id: required("AWS_ACCESS_KEY_ID")?,
            endpoint,
            is_http,
            region: set("AWS_REGION")
                .or_else(|| set("AWS_DEFAULT_REGION"))
                .unwrap_or_else(|| DEFAULT_REGION.to_owned()),
            secret_access_key: required("AWS_SECRET_ACCESS_KEY")?,
            timeout: timeout(set(TIMEOUT_VARIABLE))?,
            token: set("AWS_SESSION_TOKEN"),
        })
    }

    /// A text without anything that only a holder of the key knows.
    #[must_use]
    pub(super) fn redact(&self, text: &str) -> String {
        let secrets = [Some(&self.access_key_id), Some(&self.secret_access_key), self.token.as_ref()];
        secrets
            .into_iter()
            .flatten()
            .fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "[redacted]"))
    }
}

/// Refuses an endpoint to which a key must not go; says whether it is without
/// encryption, which only this machine's own addresses may be.
fn check_endpoint(variable: &'static str, value: &str) -> Result<bool, StoreError> {
    let refuse = |reason: &str| StoreError::Environment { variable, reason: reason.to_owned() };
    let url = Url::parse(value).map_err(|_| refuse("is not a URL, such as https://s3.example.org"))?;
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return Err(refuse("holds a user, a password or a query; keys come from AWS_ACCESS_KEY_ID"));
    }
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let is_loopback =
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    match url.scheme() {
        "https" => Ok(false),
        "http" if is_loopback => Ok(true),
        "http" => {
            Err(refuse("is http to another machine, where anybody on the way reads and changes; use https"))
        }
        _ => Err(refuse("is neither https nor http")),
    }
}

fn timeout(value: Option<String>) -> Result<Duration, StoreError> {
    let Some(value) = value else { return Ok(Duration::from_secs(DEFAULT_TIMEOUT_S)) };
    let seconds = value.parse().ok().filter(|seconds| (1..=MAX_TIMEOUT_S).contains(seconds));
    let reason = format!("is {value:?}; expected whole seconds from 1 to {MAX_TIMEOUT_S}");
    let seconds = seconds.ok_or(StoreError::Environment { variable: TIMEOUT_VARIABLE, reason })?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(changes: &[(&str, &str)]) -> Result<Settings, StoreError> {
        let base = [("AWS_ACCESS_KEY_ID", "KEYNAME"), ("AWS_SECRET_ACCESS_KEY", "hidden")];
        let find = |name: &str| {
            let all = base.iter().chain(changes).rev();
            all.into_iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Settings::from_environment(&find)
    }

    #[test]
    fn defaults_are_amazons() {
        let settings = read(&[]).expect("a key is enough");
        assert_eq!((settings.endpoint.as_deref(), settings.region.as_str()), (None, DEFAULT_REGION));
        assert_eq!(settings.timeout, Duration::from_secs(DEFAULT_TIMEOUT_S));
        assert!(!settings.is_http);
    }

    #[test]
    fn a_key_is_needed_and_never_shown() {
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
            let refused = read(&[(name, "")]).expect_err("no key").to_string();
            assert!(refused.contains(name) && !refused.contains("hidden"), "{refused}");
        }
        let settings = read(&[("AWS_SESSION_TOKEN", "passing")]).expect("a temporary key");
        let shown = format!("{settings:?} {}", settings.redact("KEYNAME, hidden and passing"));
        for secret in ["KEYNAME", "hidden", "passing"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }

    #[test]
    fn keys_go_unencrypted_to_this_machine_only() {
        for endpoint in ["http://127.0.0.1:5000", "http://localhost:5000/", "http://[::1]:5000"] {
            assert!(read(&[("AWS_ENDPOINT_URL", endpoint)]).expect("loopback").is_http, "{endpoint}");
        }
        assert!(!read(&[("AWS_ENDPOINT_URL", "https://s3.example.org")]).expect("encrypted").is_http);
        let refused =
            ["http://s3.example.org", "http://10.0.0.1", "ftp://127.0.0.1", "https://u:p@host", "x"];
        for endpoint in refused {
            let refusal = read(&[("AWS_ENDPOINT_URL", endpoint)]).expect_err(endpoint).to_string();
            assert!(refusal.contains("AWS_ENDPOINT_URL") && !refusal.contains("u:p"), "{refusal}");
        }
    }

    #[test]
    fn a_limit_is_whole_seconds() {
        assert_eq!(read(&[(TIMEOUT_VARIABLE, "5")]).expect("a limit").timeout, Duration::from_secs(5));
        for value in ["0", "1.5", "-1", "86401", "soon"] {
            assert!(read(&[(TIMEOUT_VARIABLE, value)]).is_err(), "{value}");
        }
    }
}
