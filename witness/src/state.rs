//! What a witness remembers, and the one decision that it takes.
//!
//! A head is compared with the last one of its log, and becomes the last one, in
//! one transaction that is on disk before the cosignature leaves this module. So
//! no two requests, from whatever connection or process, can be given
//! cosignatures of two histories, and none is given one that a crash could make
//! the witness forget.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ledger::keys::KeyPair;
use ledger::note::{self, TreeHead};
use ledger::tree::{empty_root, verify_consistency};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params};
use serde::Serialize;

use crate::cosignature;
use crate::cosigned_file::with_cosignature;
use crate::policy::Policy;
use crate::request::AddCheckpoint;

/// `application_id` of the layout.
const APPLICATION_ID: i64 = 0x4757_4E53;
/// `user_version` of the layout.
const LAYOUT: i64 = 1;
/// Refused heads that are kept of one log for each reason: enough to show a fork,
/// and no way to fill a disk, nor to leave no room for another reason.
const MAX_REFUSED: i64 = 64;
/// How far the clock may go back between two cosignatures of a log, in seconds.
const MAX_STEP_BACK_S: u64 = 10;
/// How long a transaction waits for another one.
const BUSY: Duration = Duration::from_secs(10);

/// A state that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// There is one already.
    #[error("{path} exists; a witness's state is never overwritten")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// There is none.
    #[error(
        "there is no state of a witness at {path}; hint: `ledger witness init` makes one. A witness whose state was lost \
         must not go on under its old key: it would cosign a second history"
    )]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{path} is no state of a witness of this layout")]
    NotAState {
        /// The file.
        path: PathBuf,
    },
    /// The state is another witness's.
    #[error("{path} is the state of witness {name} with key {public}, not of key {given}")]
    OtherWitness {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        name: String,
        /// Its key.
        public: String,
        /// The key that was given.
        given: String,
    },
    /// The name cannot stand in a note.
    #[error("{0:?} is no name of a key: it is empty, or has white space or `+` in it")]
    Name(String),
    /// The clock went back by more than a correction.
    #[error(
        "the clock says {now_s}, the last head of {origin} was cosigned at {last_s}; nothing is cosigned until it is right, and of this log until it is past that time"
    )]
    Clock {
        /// The log.
        origin: String,
        /// What the clock says.
        now_s: u64,
        /// When the last head was cosigned.
        last_s: u64,
    },
    /// SQLite refused.
    #[error("{path}: the state cannot be read or written")]
    Database {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
}

/// What a request is answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// 200: the signature line.
    Cosigned(String),
    /// 400: the body is not as specified.
    BadRequest(String),
    /// 403: no signature by a known key.
    Forbidden,
    /// 404: nobody who is known has this origin.
    UnknownLog,
    /// 409: the size of the last cosigned head is another one, or its root is.
    Conflict {
        /// That size.
        size: u64,
    },
    /// 422: the proof does not show that one tree begins with the other.
    BadProof,
}

/// A log as the witness knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KnownLog {
    /// Seconds since 1970 at which its first head was cosigned.
    pub first_time: u64,
    /// Keys that sign its heads, as the policy named them then.
    pub keys: String,
    /// Signed heads of it that were refused.
    pub num_refused: u64,
    /// Its origin.
    pub origin: String,
    /// Root hash of its last cosigned head, 64 hex digits.
    pub root: String,
    /// Size of its last cosigned head.
    pub size: u64,
    /// Seconds at which that was cosigned last.
    pub time: u64,
}

/// A signed head that was not cosigned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedHead {
    /// The note.
    pub note: String,
    /// Its origin.
    pub origin: String,
    /// Why.
    pub reason: String,
    /// Its size.
    pub size: u64,
    /// When.
    pub time: u64,
}

/// A witness with its memory.
#[derive(Debug)]
pub struct State {
    connection: Connection,
    name: String,
    path: PathBuf,
    public: String,
}

/// The last head of a log.
struct Last {
    keys: String,
    root: [u8; 32],
    size: u64,
    time: u64,
}

impl State {
    /// Makes the state of a new witness.
    ///
    /// # Errors
    /// When the file exists, the name cannot stand in a note, or SQLite refuses.
    pub fn create(path: &Path, name: &str, public_hex: &str) -> Result<Self, StateError> {
        if !note::is_key_name(name) {
            return Err(StateError::Name(name.to_owned()));
        }
        if path.exists() {
            return Err(StateError::Exists { path: path.to_owned() });
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = open(path, flags)?;
        let database = |source| StateError::Database { path: path.to_owned(), source };
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(database)?;
        transaction.execute_batch(include_str!("schema.sql")).map_err(database)?;
        transaction
            .execute("INSERT INTO witness (one, name, public) VALUES (1, ?1, ?2)", [name, public_hex])
            .map_err(database)?;
        transaction.commit().map_err(database)?;
        Ok(Self { connection, name: name.to_owned(), path: path.to_owned(), public: public_hex.to_owned() })
    }

    /// Opens the state of a witness.
    ///
    /// # Errors
    /// When there is none, or the file is something else.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        if !path.exists() {
            return Err(StateError::Missing { path: path.to_owned() });
        }
        let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        let number = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, i64>(0)).ok();
        let is_ours = number("PRAGMA application_id") == Some(APPLICATION_ID)
            && number("PRAGMA user_version") == Some(LAYOUT);
        let not_a_state = || StateError::NotAState { path: path.to_owned() };
        if !is_ours {
            return Err(not_a_state());
        }
        let (name, public) = connection
            .query_row("SELECT name, public FROM witness", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .map_err(|_| not_a_state())?;
        Ok(Self { connection, name, path: path.to_owned(), public })
    }

    /// The witness's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The witness's key, 64 hex digits.
    #[must_use]
    pub fn public(&self) -> &str {
        &self.public
    }

    /// Whether a key is this witness's.
    ///
    /// # Errors
    /// When it is not.
    pub fn check_key(&self, key: &KeyPair) -> Result<(), StateError> {
        if key.public_hex() == self.public {
            return Ok(());
        }
        Err(StateError::OtherWitness {
            path: self.path.clone(),
            name: self.name.clone(),
            public: self.public.clone(),
            given: key.public_hex(),
        })
    }

    /// Decides over the body of `add-checkpoint`, at a time in seconds.
    ///
    /// # Errors
    /// When the key is another witness's, the clock went back, or SQLite refuses;
    /// nothing is cosigned then.
    pub fn add_checkpoint(
        &mut self,
        body: &[u8],
        policy: &Policy,
        key: &KeyPair,
        now_s: u64,
    ) -> Result<Answer, StateError> {
        self.check_key(key)?;
        let request = match AddCheckpoint::parse(body) {
            Ok(request) => request,
            Err(error) => return Ok(Answer::BadRequest(error.to_string())),
        };
        let head = &request.parsed.head;
        let Some(candidates) = policy.candidates(&head.origin, head.size) else {
            return Ok(Answer::UnknownLog);
        };
        let path = self.path.clone();
        let failed = |source| StateError::Database { path: path.clone(), source };
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let last = last(&transaction, &head.origin).map_err(failed)?;
        // A log stays with the keys that signed it.
        let bound = last.as_ref().map(|last| (last.keys.as_str(), last.size));
        let signers: Vec<_> = candidates.iter().filter_map(|one| Some((one, one.bind(bound)?))).collect();
        if signers.is_empty() && last.is_some() {
            return Ok(Answer::UnknownLog);
        }
        let is_signer = |one: &str| note::verify(&request.note, one).is_ok();
        let Some((signer, keys)) = signers.into_iter().find(|(one, _)| is_signer(&one.public)) else {
            return Ok(Answer::Forbidden);
        };
        if request.old_size > head.size {
            return Ok(Answer::BadRequest("the old size is above that of the head".to_owned()));
        }
        if let Some((answer, reason)) = refusal(&request, last.as_ref()) {
            if let Some(reason) = reason {
                // Without lines of others, which anybody may add.
                let note = with_cosignature(&request.parsed, &signer.public, "");
                let refused = Refused { note: &note, reason, text: &request.parsed.text };
                keep_refused(&transaction, head, &refused, now_s).map_err(failed)?;
                transaction.commit().map_err(failed)?;
            }
            return Ok(answer);
        }
        let last_s = last.as_ref().map_or(0, |last| last.time);
        if now_s + MAX_STEP_BACK_S < last_s {
            return Err(StateError::Clock { origin: head.origin.clone(), now_s, last_s });
        }
        let time_s = now_s.max(last_s);
        let line = cosignature::sign(&request.parsed.text, &self.name, key, time_s);
        let is_new = last.as_ref().is_none_or(|last| last.size < head.size);
        let cosigned = with_cosignature(&request.parsed, &signer.public, &line);
        let now = Now { time_s, is_new, note: &cosigned };
        keep(&transaction, head, &keys, &now).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        Ok(Answer::Cosigned(line))
    }

    fn rows<T>(
        &self,
        sql: &str,
        parameters: impl rusqlite::Params,
        read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StateError> {
        let rows = || {
            let mut statement = self.connection.prepare(sql)?;
            let rows = statement.query_map(parameters, read)?;
            rows.collect::<rusqlite::Result<Vec<T>>>()
        };
        rows().map_err(|source| StateError::Database { path: self.path.clone(), source })
    }

    /// Every log, in the order of their first heads.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn logs(&self) -> Result<Vec<KnownLog>, StateError> {
        let sql = "SELECT origin, keys, first_time, time, size, root, \
                   (SELECT count(*) FROM refused WHERE refused.origin = logs.origin) \
                   FROM logs ORDER BY first_time, origin";
        self.rows(sql, [], |row| {
            Ok(KnownLog {
                origin: row.get(0)?,
                keys: row.get(1)?,
                first_time: unsigned(row, 2)?,
                time: unsigned(row, 3)?,
                size: unsigned(row, 4)?,
                root: schemas::digest::encode_hex(&row.get::<_, [u8; 32]>(5)?),
                num_refused: unsigned(row, 6)?,
            })
        })
    }

    /// Signed heads that were refused, oldest first.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn refused(&self) -> Result<Vec<RefusedHead>, StateError> {
        self.rows("SELECT origin, size, time, reason, note FROM refused ORDER BY id", [], |row| {
            Ok(RefusedHead {
                origin: row.get(0)?,
                size: unsigned(row, 1)?,
                time: unsigned(row, 2)?,
                reason: row.get(3)?,
                note: row.get(4)?,
            })
        })
    }

    /// Every cosigned head of a log, smallest first.
    ///
    /// # Errors
    /// When SQLite refuses.
    pub fn cosigned(&self, origin: &str) -> Result<Vec<String>, StateError> {
        self.rows("SELECT note FROM cosigned WHERE origin = ?1 ORDER BY size", [origin], |row| row.get(0))
    }
}

fn unsigned(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)?.unsigned_abs())
}

fn open(path: &Path, flags: OpenFlags) -> Result<Connection, StateError> {
    let database = |source| StateError::Database { path: path.to_owned(), source };
    let connection = Connection::open_with_flags(path, flags).map_err(database)?;
    connection.busy_timeout(BUSY).map_err(database)?;
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA trusted_schema = OFF;
             PRAGMA recursive_triggers = ON; PRAGMA cell_size_check = ON;",
        )
        .map_err(|source| match source.sqlite_error_code() {
            Some(rusqlite::ErrorCode::NotADatabase) => StateError::NotAState { path: path.to_owned() },
            _ => database(source),
        })?;
    Ok(connection)
}

fn last(transaction: &Transaction<'_>, origin: &str) -> rusqlite::Result<Option<Last>> {
    let sql = "SELECT keys, root, size, time FROM logs WHERE origin = ?1";
    transaction
        .query_row(sql, [origin], |row| {
            Ok(Last {
                keys: row.get(0)?,
                root: row.get(1)?,
                size: unsigned(row, 2)?,
                time: unsigned(row, 3)?,
            })
        })
        .optional()
}

/// Why a signed head is not cosigned; with words where it may have to be
/// explained by whoever signed it.
fn refusal(request: &AddCheckpoint, last: Option<&Last>) -> Option<(Answer, Option<&'static str>)> {
    let head = &request.parsed.head;
    let (size, root) = last.map_or((0, empty_root()), |last| (last.size, last.root));
    if request.old_size != size {
        // Who asks with another size learns this one; that alone is no misdeed.
        let reason = (head.size < size).then_some("the head is smaller than the last one");
        return Some((Answer::Conflict { size }, reason));
    }
    if head.size == size && head.root != root {
        return Some((
            Answer::Conflict { size },
            Some("the head has the size of the last one and another root"),
        ));
    }
    // From the empty tree on there is nothing to prove, and no line may say so.
    let holds = if size == 0 && head.size > 0 {
        request.proof.is_empty()
    } else {
        verify_consistency(size, &root, head.size, &head.root, &request.proof)
    };
    (!holds).then_some((Answer::BadProof, Some("no proof that the head follows from the last one")))
}

/// A head that becomes the last one.
struct Now<'a> {
    time_s: u64,
    /// Whether it is larger than the last one.
    is_new: bool,
    note: &'a str,
}

fn keep(transaction: &Transaction<'_>, head: &TreeHead, keys: &str, now: &Now<'_>) -> rusqlite::Result<()> {
    let (size, time) = (signed(head.size)?, signed(now.time_s)?);
    transaction.execute(
        "INSERT INTO logs (origin, keys, first_time, time, size, root) VALUES (?1, ?2, ?3, ?3, ?4, ?5)
         ON CONFLICT (origin) DO UPDATE
         SET keys = excluded.keys, time = excluded.time, size = excluded.size, root = excluded.root",
        params![head.origin, keys, time, size, head.root],
    )?;
    if now.is_new {
        transaction.execute(
            "INSERT INTO cosigned (origin, size, time, note) VALUES (?1, ?2, ?3, ?4)",
            params![head.origin, size, time, now.note],
        )?;
    }
    Ok(())
}

/// A signed head that is refused.
struct Refused<'a> {
    /// With the line of the key that signed it, and no other.
    note: &'a str,
    reason: &'a str,
    /// What is signed.
    text: &'a str,
}

/// Keeps each text once for each reason, and none that was cosigned: who shows an
/// old head again says nothing against the log.
fn keep_refused(
    transaction: &Transaction<'_>,
    head: &TreeHead,
    refused: &Refused<'_>,
    now_s: u64,
) -> rusqlite::Result<()> {
    let Refused { note, reason, text } = refused;
    transaction.execute(
        "INSERT INTO refused (origin, size, time, reason, note) SELECT ?1, ?2, ?3, ?4, ?5
         WHERE (SELECT count(*) FROM refused WHERE origin = ?1 AND reason = ?4) < ?6
           AND NOT EXISTS (SELECT 1 FROM refused
                           WHERE origin = ?1 AND reason = ?4 AND substr(note, 1, length(?7)) = ?7)
           AND NOT EXISTS (SELECT 1 FROM cosigned WHERE origin = ?1 AND substr(note, 1, length(?7)) = ?7)",
        params![head.origin, signed(head.size)?, signed(now_s)?, reason, note, MAX_REFUSED, text],
    )?;
    Ok(())
}

fn signed(number: u64) -> rusqlite::Result<i64> {
    i64::try_from(number).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}
