//! Read-only pages for reviewers.
//!
//! The pages show what a ledger holds and what the validator's *stored* report
//! says of it. They compute no verdict: a page that judged would be a second
//! validator, and one nobody signed. They write nothing, accept only GET from
//! a loopback name, load nothing from elsewhere, and work with scripts off.

mod campaign_report;
mod chart;
mod pages;
mod security;
mod series;
mod source;
mod stored_report;
mod summary;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::middleware;
use axum::routing::get;

pub use source::SourceError;

/// What to serve.
#[derive(Debug, Clone)]
pub struct Config {
    /// Ledger files, and folders in which every `*.db` is a ledger.
    pub ledgers: Vec<PathBuf>,
}

/// Why the server could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is not a loopback address.
    #[error("{address} is not a loopback address")]
    NotLoopback {
        /// What was asked for.
        address: SocketAddr,
    },
    /// The port could not be taken.
    #[error("cannot listen on {address}")]
    Bind {
        /// What was asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The server stopped.
    #[error("the server stopped")]
    Serve(#[source] std::io::Error),
}

/// Every page as a router.
pub fn router(config: Config) -> Router {
    let library = Arc::new(source::Library::new(config.ledgers));
    Router::new()
        .route("/", get(pages::runs::html))
        .route("/runs.json", get(pages::runs::json))
        .route("/campaigns/{campaign}", get(pages::campaign::page))
        .route("/runs/{run}", get(pages::run::page))
        .route("/runs/{run}/series.json", get(pages::run::series))
        .route("/runs/{run}/entries", get(pages::entries::html))
        .route("/runs/{run}/entries.json", get(pages::entries::json))
        .route("/runs/{run}/entries/{index}", get(pages::entry::page))
        .route("/assets/{name}", get(pages::assets::asset))
        .fallback(pages::not_found)
        .layer(middleware::from_fn(security::guard))
        .with_state(library)
}

/// Serves until `stop` resolves. `ready` is called once with the address that
/// was taken, which matters when port 0 was asked for.
///
/// # Errors
/// When the address is not loopback, is taken, or the server fails.
pub async fn serve(
    address: SocketAddr,
    config: Config,
    ready: impl FnOnce(SocketAddr),
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    if !address.ip().is_loopback() {
        return Err(ServeError::NotLoopback { address });
    }
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .map_err(|source| ServeError::Bind { address, source })?;
    ready(listener.local_addr().map_err(ServeError::Serve)?);
    axum::serve(listener, router(config)).with_graceful_shutdown(stop).await.map_err(ServeError::Serve)
}
