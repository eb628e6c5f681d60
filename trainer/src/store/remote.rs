//! The client of one store: its connections, and the runtime that drives them.
//!
//! The rest of the trainer is synchronous, so a future is driven by the thread
//! that asks: the loop's under `synchronous`, the saver's otherwise.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{ClientOptions, RetryConfig};
use tokio::runtime::Runtime;

use crate::run::progress::Console;

use super::settings::Settings;
use super::{Location, Session, StoreError};

/// Longest time for one request: a part of 8 MiB at 70 kB/s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A store that can be asked.
pub struct Remote {
    pub(super) client: AmazonS3,
    /// For the one request that `object_store` has no call for.
    pub(super) http: reqwest::Client,
    /// Where it is.
    pub location: Location,
    runtime: Runtime,
    pub(super) settings: Settings,
}

impl fmt::Debug for Remote {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { location, settings, .. } = self;
        formatter
            .debug_struct("Remote")
            .field("location", location)
            .field("settings", settings)
            .finish_non_exhaustive()
    }
}

impl Remote {
    /// Makes the client; nothing is asked yet.
    ///
    /// # Errors
    /// [`StoreError::Setup`].
    pub fn open(location: Location, settings: Settings) -> Result<Self, StoreError> {
        let setup =
            |error: &dyn fmt::Display| StoreError::Setup { reason: settings.redact(&error.to_string()) };
        // The process has one, and an earlier client may have named it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| setup(&error))?;
        let options = ClientOptions::new()
            .with_allow_http(settings.is_http)
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_timeout(REQUEST_TIMEOUT);
        let mut builder = AmazonS3Builder::new()
            .with_access_key_id(&settings.access_key_id)
            .with_bucket_name(location.bucket())
            .with_client_options(options)
            // The plain request; not every store knows the other.
            .with_disable_bulk_delete(true)
            .with_region(&settings.region)
            // Tries are counted, told and limited in one place: `Session`.
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .with_secret_access_key(&settings.secret_access_key);
        if let Some(endpoint) = &settings.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(token) = &settings.token {
            builder = builder.with_token(token);
        }
        let client = builder.build().map_err(|error| setup(&error))?;
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            .build()
            .map_err(|error| setup(&error))?;
        Ok(Self { client, http, location, runtime, settings })
    }

    /// Drives a future to its end on this thread.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// One operation, all of whose requests together may take the limit that
    /// the environment sets.
    #[must_use]
    pub fn session<'a>(&'a self, console: &'a Console) -> Session<'a> {
        Session::new(self, console, self.settings.timeout)
    }

    /// As [`Self::session`], for what the run could do without: it may take so
    /// long at most.
    #[must_use]
    pub fn short_session<'a>(&'a self, console: &'a Console, limit: Duration) -> Session<'a> {
        Session::new(self, console, self.settings.timeout.min(limit))
    }
}
