//! The witness's HTTP interface (`c2sp.org/tlog-witness`), and two pages of what
//! it saw.
//!
//! It owns status codes and limits (those of connections are `crate::connections`');
//! every decision is `crate::state`'s. There is no limit on how often anybody asks: a witness that faces more than a team
//! belongs behind a server that has one.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State as Shared};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use ledger::keys::KeyPair;

use crate::connections::Limited;
use crate::cosignature::now_s;
use crate::policy::Policy;
use crate::request::MAX_BODY_BYTES;
use crate::state::{Answer, State, StateError};

/// Type of the body of a conflict, by the specification.
const SIZE_TYPE: &str = "text/x.tlog.size";
/// Type of notes and of lines of them.
const TEXT_TYPE: &str = "text/plain; charset=utf-8";

/// A server that could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port could not be taken.
    #[error("cannot listen on {address}")]
    Bind {
        /// What was asked for.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The server stopped.
    #[error("the server stopped")]
    Serve(#[source] std::io::Error),
    /// The state or the key cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
}

/// A witness at work.
pub struct Witness {
    key: KeyPair,
    policy: Policy,
    state: Mutex<State>,
}

impl Witness {
    /// A witness with its state, its key and whose heads it cosigns.
    ///
    /// # Errors
    /// When the key is not that of the state.
    pub fn new(state: State, key: KeyPair, policy: Policy) -> Result<Self, StateError> {
        state.check_key(&key)?;
        Ok(Self { key, policy, state: Mutex::new(state) })
    }

    fn with_state<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // A panic of another request left no half of a transaction behind.
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Serves until `stop` resolves. `ready` is called once with the address that
/// was taken, which matters when port 0 was asked for.
///
/// # Errors
/// When the address is taken, or the server fails.
pub async fn serve(
    address: SocketAddr,
    witness: Witness,
    ready: impl FnOnce(SocketAddr),
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .map_err(|source| ServeError::Bind { address, source })?;
    ready(listener.local_addr().map_err(ServeError::Serve)?);
    let router = Router::new()
        .route("/add-checkpoint", post(add_checkpoint))
        .route("/logs", get(logs))
        .route("/cosigned/{*origin}", get(cosigned))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(Arc::new(witness));
    axum::serve(Limited::new(listener), router).with_graceful_shutdown(stop).await.map_err(ServeError::Serve)
}

/// Runs what waits for a disk on a thread that may.
async fn decide(work: impl FnOnce() -> Result<Response, StateError> + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            // The operator reads why; whoever asked learns only that it was not them.
            eprint_failure(&error);
            (StatusCode::INTERNAL_SERVER_ERROR, "the witness could not decide; nothing was cosigned\n")
                .into_response()
        }
        Err(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "the witness failed; nothing was cosigned\n").into_response()
        }
    }
}

fn eprint_failure(error: &StateError) {
    use std::io::Write;
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    // Nobody is left to be told when stderr is closed.
    let _ = writeln!(std::io::stderr(), "error: {error}{cause}");
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Response {
    let headers: [(HeaderName, &str); 2] =
        [(header::CONTENT_TYPE, kind), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, body).into_response()
}

async fn add_checkpoint(Shared(witness): Shared<Arc<Witness>>, body: Bytes) -> Response {
    decide(move || {
        let answer = witness
            .with_state(|state| state.add_checkpoint(&body, &witness.policy, &witness.key, now_s()))?;
        Ok(respond(answer))
    })
    .await
}

fn respond(answer: Answer) -> Response {
    let refuse = |status, reason: &str| text(status, TEXT_TYPE, format!("{reason}\n"));
    match answer {
        Answer::Cosigned(line) => text(StatusCode::OK, TEXT_TYPE, line),
        Answer::BadRequest(reason) => refuse(StatusCode::BAD_REQUEST, &reason),
        Answer::Forbidden => refuse(StatusCode::FORBIDDEN, "the head is signed by no key that may sign it"),
        Answer::UnknownLog => refuse(StatusCode::NOT_FOUND, "nobody who is known has this origin"),
        Answer::Conflict { size } => text(StatusCode::CONFLICT, SIZE_TYPE, format!("{size}\n")),
        Answer::BadProof => refuse(
            StatusCode::UNPROCESSABLE_ENTITY,
            "the proof does not show that the head follows from the last one",
        ),
    }
}

async fn logs(Shared(witness): Shared<Arc<Witness>>) -> Response {
    decide(move || {
        let (logs, refused) =
            witness.with_state(|state| Ok::<_, StateError>((state.logs()?, state.refused()?)))?;
        Ok(axum::Json(serde_json::json!({ "format": "witness-logs/1", "logs": logs, "refused": refused }))
            .into_response())
    })
    .await
}

/// Every cosigned head of a log in the form of `<ledger>.cosigned`.
async fn cosigned(Shared(witness): Shared<Arc<Witness>>, Path(origin): Path<String>) -> Response {
    decide(move || {
        let notes = witness.with_state(|state| state.cosigned(&origin))?;
        if notes.is_empty() {
            return Ok(text(
                StatusCode::NOT_FOUND,
                TEXT_TYPE,
                "no head of this origin was cosigned\n".to_owned(),
            ));
        }
        Ok(text(StatusCode::OK, TEXT_TYPE, notes.iter().map(|note| format!("{note}\n")).collect()))
    })
    .await
}
