//! Read-only SQL over a private copy of a ledger: `ledger query --sql`.
//!
//! An authorizer admits SELECT over the ledger's tables and the views below and
//! nothing else; time, rows and bytes are bounded. The views live in the temp
//! schema of the copy's connection. They are for people: what they show is
//! derived from `entries.entry`, which alone is evidence.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use serde_json::{Value, json};

use crate::reader::{ReadError, Reader};

/// Bounds of one query.
#[derive(Debug, Clone, Copy)]
pub struct QueryLimits {
    /// Bytes of all cells.
    pub max_bytes: usize,
    /// Rows that are returned; more set [`QueryResult::truncated`].
    pub max_rows: usize,
    /// Time that SQLite may take.
    pub max_time: Duration,
}

impl Default for QueryLimits {
    fn default() -> Self {
        Self { max_bytes: 64 * 1024 * 1024, max_rows: 10_000, max_time: Duration::from_secs(10) }
    }
}

/// One value of a result.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// NULL.
    Null,
    /// A 64-bit integer.
    Integer(i64),
    /// A binary64.
    Real(f64),
    /// Text.
    Text(String),
    /// Bytes that are not text.
    Blob(Vec<u8>),
}

impl Cell {
    /// The value as JSON; a blob as lower-case hex.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Integer(value) => json!(value),
            Self::Real(value) => json!(schemas::number::Float(*value)),
            Self::Text(text) => json!(text),
            Self::Blob(bytes) => json!(schemas::digest::encode_hex(bytes)),
        }
    }
}

/// What a query gave.
#[derive(Debug, Clone, PartialEq)]
pub struct QueryResult {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Cells in the order of the columns.
    pub rows: Vec<Vec<Cell>>,
    /// Whether rows were left out because of a limit.
    pub truncated: bool,
}

/// A query that was refused or did not finish.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The ledger cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The statement does more than read the ledger's tables.
    #[error("only SELECT over the ledger's tables and views is allowed")]
    NotAllowed(#[source] rusqlite::Error),
    /// It took too long.
    #[error("the query took longer than {max_time_ms} ms; narrow it, for instance by `seq`")]
    TooSlow {
        /// The limit in milliseconds.
        max_time_ms: u128,
    },
    /// The views could not be made, or the statement is not SQL.
    #[error("{path}: the query failed")]
    Sql {
        /// The ledger.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
}

/// What a query may read, besides SQLite's JSON table functions.
const READABLE: [&str; 12] = [
    "entries",
    "heads",
    "artifacts",
    "entry",
    "steps",
    "evals",
    "checkpoints",
    "attempts",
    "sqlite_schema",
    "sqlite_master",
    "json_each",
    "json_tree",
];

/// Readable views. `entry` is one row an entry with its body as JSON text.
const VIEWS: &str = "
CREATE TEMP VIEW entry AS SELECT
    seq,
    json_extract(text, '$.kind') AS kind,
    json_extract(text, '$.attempt') AS attempt,
    json_extract(text, '$.segment') AS segment,
    json_extract(text, '$.learner') AS learner,
    json_extract(text, '$.worker') AS worker,
    json_extract(text, '$.step') AS step,
    json_extract(text, '$.time_us') AS time_us,
    json_extract(text, '$.actor') AS actor,
    json_extract(text, '$.body.det') AS det,
    json_extract(text, '$.body.obs') AS obs
    FROM (SELECT seq, CAST(entry AS TEXT) AS text FROM entries);
CREATE TEMP VIEW steps AS SELECT seq, attempt, step,
    json_extract(det, '$.credit.backpropagation.loss') AS loss,
    json_extract(det, '$.credit.backpropagation.gradient_norm') AS gradient_norm,
    json_extract(det, '$.updates[0].learning_rate') AS learning_rate,
    json_extract(det, '$.updates[0].clip_coefficient') AS clip_coefficient,
    json_extract(det, '$.counters.tokens') AS tokens,
    json_extract(obs, '$.duration_us') AS duration_us
    FROM entry WHERE kind = 'step';
CREATE TEMP VIEW evals AS SELECT seq, attempt, step,
    json_extract(det, '$.stream') AS stream,
    json_extract(det, '$.split') AS split,
    json_extract(det, '$.metric') AS metric,
    json_extract(det, '$.value') AS value,
    json_extract(det, '$.num_tokens') AS num_tokens
    FROM entry WHERE kind = 'eval';
CREATE TEMP VIEW checkpoints AS SELECT seq, attempt,
    json_extract(det, '$.step') AS step,
    substr(kind, 12) AS stage,
    json_extract(obs, '$.checkpoint') AS checkpoint,
    json_extract(obs, '$.path') AS path
    FROM entry WHERE kind LIKE 'checkpoint.%';
CREATE TEMP VIEW attempts AS SELECT seq, attempt, kind, time_us,
    json_extract(det, '$.reason') AS reason,
    json_extract(det, '$.from_step') AS from_step,
    json_extract(det, '$.outcome') AS outcome,
    json_extract(det, '$.last_step') AS last_step
    FROM entry WHERE kind LIKE 'attempt.%';
";

/// Runs one SELECT.
///
/// # Errors
/// When the ledger cannot be read, the statement is not a single SELECT over
/// the ledger's tables and views, or it takes too long.
pub fn query(path: &Path, sql: &str, limits: &QueryLimits) -> Result<QueryResult, QueryError> {
    let reader = Reader::open(path)?;
    let connection = reader.connection();
    let failed = |source| classify(path, limits, source);
    connection
        .execute_batch(&format!("PRAGMA query_only = OFF; {VIEWS} PRAGMA query_only = ON;"))
        .map_err(failed)?;
    // Bounds what `zeroblob` and string functions can allocate.
    let length = i32::try_from(limits.max_bytes).unwrap_or(i32::MAX);
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, length).map_err(failed)?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0).map_err(failed)?;
    connection.authorizer(Some(|context: AuthContext<'_>| authorize(&context.action))).map_err(failed)?;
    let deadline = Instant::now() + limits.max_time;
    connection.progress_handler(1000, Some(move || Instant::now() > deadline)).map_err(failed)?;

    let mut statement = connection.prepare(sql).map_err(failed)?;
    let columns: Vec<String> = statement.column_names().into_iter().map(ToOwned::to_owned).collect();
    let num_columns = columns.len();
    let mut result = QueryResult { columns, rows: Vec::new(), truncated: false };
    let mut num_bytes = 0usize;
    let mut rows = statement.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let cells: Result<Vec<Cell>, _> =
            (0..num_columns).map(|column| row.get_ref(column).map(cell)).collect();
        let cells = cells.map_err(failed)?;
        num_bytes += cells.iter().map(cell_bytes).sum::<usize>();
        if result.rows.len() == limits.max_rows || num_bytes > limits.max_bytes {
            result.truncated = true;
            break;
        }
        result.rows.push(cells);
    }
    Ok(result)
}

fn authorize(action: &AuthAction<'_>) -> Authorization {
    let allowed = match action {
        AuthAction::Select | AuthAction::Recursive => true,
        // `count(*)` reads no column; there the name can be that of a subquery.
        AuthAction::Read { table_name, column_name } => {
            column_name.is_empty() || READABLE.contains(table_name)
        }
        // Every function of this build is harmless but the loader of others.
        AuthAction::Function { function_name } => *function_name != "load_extension",
        _ => false,
    };
    if allowed { Authorization::Allow } else { Authorization::Deny }
}

fn classify(path: &Path, limits: &QueryLimits, source: rusqlite::Error) -> QueryError {
    match source.sqlite_error_code() {
        Some(rusqlite::ErrorCode::AuthorizationForStatementDenied) => QueryError::NotAllowed(source),
        Some(rusqlite::ErrorCode::OperationInterrupted) => {
            QueryError::TooSlow { max_time_ms: limits.max_time.as_millis() }
        }
        _ => QueryError::Sql { path: path.to_owned(), source },
    }
}

fn cell(value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(value) => Cell::Integer(value),
        ValueRef::Real(value) => Cell::Real(value),
        ValueRef::Text(bytes) => Cell::Text(String::from_utf8_lossy(bytes).into_owned()),
        ValueRef::Blob(bytes) => match std::str::from_utf8(bytes) {
            // Entries are text in a BLOB column; hex of them helps nobody.
            Ok(text) if text.starts_with('{') => Cell::Text(text.to_owned()),
            _ => Cell::Blob(bytes.to_vec()),
        },
    }
}

fn cell_bytes(cell: &Cell) -> usize {
    match cell {
        Cell::Text(text) => text.len() + 16,
        Cell::Blob(bytes) => bytes.len() + 16,
        Cell::Null | Cell::Integer(_) | Cell::Real(_) => 16,
    }
}
