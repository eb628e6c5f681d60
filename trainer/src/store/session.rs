//! One operation on a store: its requests, each tried again with growing pauses
//! where the failure may pass, all of them within one limit of time.
//!
//! Three kinds of answer are told apart: done; a fact about the object (absent,
//! or present where it must not be), which the caller judges; and a refusal that
//! trying again would not change. Everything else may pass.

use std::cell::Cell;
use std::error::Error;
use std::future::Future;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{GetOptions, MultipartId, ObjectStore, ObjectStoreExt, PutMode, PutPayload};

use crate::run::progress::Console;

use super::{Remote, StoreError};

/// Pause before the second try; it doubles with every other one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Longest pause between two tries.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Shortest time between two lines that say how far an upload is.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Longest reason that is kept of an answer, in bytes.
const MAX_REASON_BYTES: usize = 400;

/// Size of a part, and of a read: below it a file goes in one request. Stores
/// want at least 5 MiB of all parts but the last; with 10,000 parts at most a
/// file has at most 78 GiB.
pub const PART_BYTES: u64 = 8 << 20;

/// Parts of one file that are under way at the same time.
pub const PARALLEL_PARTS: usize = 4;

/// What a request came to, where the store did answer it.
enum Answer<T> {
    Done(T),
    /// There is no such thing, in the store's words.
    Absent(String),
    /// A condition does not hold: it is there already.
    Present,
}

/// One operation on a store.
#[derive(Debug)]
pub struct Session<'a> {
    console: &'a Console,
    limit: Duration,
    moved: Cell<u64>,
    pub(super) remote: &'a Remote,
    started: Instant,
    told: Cell<Instant>,
    total: Cell<u64>,
    what: Cell<&'static str>,
}

impl<'a> Session<'a> {
    pub(super) fn new(remote: &'a Remote, console: &'a Console, limit: Duration) -> Self {
        let started = Instant::now();
        Self {
            console,
            limit,
            moved: Cell::new(0),
            remote,
            started,
            told: Cell::new(started),
            total: Cell::new(0),
            what: Cell::new(""),
        }
    }

    /// Says what is being moved, so that it can be told how far it is.
    pub fn begin(&self, what: &'static str, total: u64) {
        self.what.set(what);
        self.moved.set(0);
        self.total.set(total);
    }

    /// Counts bytes that were moved, and says from time to time how many.
    pub fn moved(&self, num_bytes: u64) {
        self.moved.set(self.moved.get() + num_bytes);
        if self.told.get().elapsed() >= TELL_EVERY {
            self.told.set(Instant::now());
            let (moved, total) = (self.moved.get(), self.total.get());
            self.console.note(&format!("{} {moved} of {total} bytes", self.what.get()));
        }
    }

    /// A line for people.
    pub fn say(&self, line: &str) {
        self.console.say(line);
    }

    fn url(&self, key: &str) -> String {
        self.remote.location.url(key)
    }

    /// Tries a request until it is answered, refused, or the time is over.
    async fn ask<T, F>(
        &self,
        action: &'static str,
        key: &str,
        mut request: impl FnMut() -> F,
    ) -> Result<Answer<T>, StoreError>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let (mut pause, mut tries) = (FIRST_PAUSE, 0);
        loop {
            tries += 1;
            let left = self.limit.saturating_sub(self.started.elapsed());
            let reason = match tokio::time::timeout(left, request()).await {
                Ok(Ok(value)) => return Ok(Answer::Done(value)),
                Ok(Err(error)) => match self.judge(&error) {
                    Judged::Absent(reason) => return Ok(Answer::Absent(reason)),
                    Judged::Present => return Ok(Answer::Present),
                    Judged::Refused(reason) => {
                        return Err(StoreError::Refused { action, reason, url: self.url(key) });
                    }
                    Judged::MayPass(reason) => reason,
                },
                Err(_) => "no answer".to_owned(),
            };
            if self.limit.saturating_sub(self.started.elapsed()) <= pause {
                let (limit, url) = (self.limit, self.url(key));
                return Err(StoreError::TimedOut { action, limit, reason, tries, url });
            }
            let url = self.url(key);
            self.say(&format!("warning: try {tries} to {action} {url} failed, trying again: {reason}"));
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    fn judge(&self, error: &object_store::Error) -> Judged {
        let reason = self.reason(error);
        match error {
            // The bucket is no object: without it nothing can be said of any.
            object_store::Error::NotFound { .. } if reason.contains("NoSuchBucket") => {
                Judged::Refused(reason)
            }
            object_store::Error::NotFound { .. } => Judged::Absent(reason),
            object_store::Error::AlreadyExists { .. }
            | object_store::Error::Precondition { .. }
            | object_store::Error::NotModified { .. } => Judged::Present,
            object_store::Error::Generic { .. } if !is_permanent(&reason) => Judged::MayPass(reason),
            _ => Judged::Refused(reason),
        }
    }

    /// What an error says, without the address, the body as it came, and
    /// anything of the key: stores answer with the request that they refused.
    fn reason(&self, error: &object_store::Error) -> String {
        let text = error.to_string();
        let said = text.split_once(" - ").map_or(text.as_str(), |(_, said)| said);
        let head = said.split_once('<').map_or(said, |(head, _)| head).trim_end_matches([' ', ':']);
        let mut reason = head.to_owned();
        for name in ["Code", "Message"] {
            if let Some(value) = element(said, name) {
                reason = format!("{reason}: {value}");
            }
        }
        if let Some(cause) = deepest(error).filter(|cause| !text.contains(cause.as_str())) {
            reason = format!("{reason}: {cause}");
        }
        let reason = self.remote.settings.redact(&reason.replace(['\r', '\n'], " "));
        let end = (0..=reason.len().min(MAX_REASON_BYTES)).rev().find(|end| reason.is_char_boundary(*end));
        reason[..end.unwrap_or(0)].to_owned()
    }

    fn refused(&self, action: &'static str, key: &str, reason: String) -> StoreError {
        StoreError::Refused { action, reason, url: self.url(key) }
    }

    /// Writes an object in one request, over what is there.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn put(&self, key: &str, bytes: Bytes) -> Result<(), StoreError> {
        let path = self.path(key)?;
        let request = || self.remote.client.put(&path, PutPayload::from_bytes(bytes.clone()));
        match self.ask("write", key, request).await? {
            Answer::Done(_) => Ok(()),
            Answer::Absent(reason) => Err(self.refused("write", key, reason)),
            Answer::Present => Err(StoreError::Taken { url: self.url(key) }),
        }
    }

    /// Writes an object where none is (`If-None-Match: *`). An acknowledgement
    /// that was lost is found again by what then is there: these very bytes.
    ///
    /// # Errors
    /// [`StoreError::Taken`] where other bytes are there, and [`StoreError`].
    pub async fn put_new(&self, key: &str, bytes: Bytes) -> Result<(), StoreError> {
        let path = self.path(key)?;
        let client = &self.remote.client;
        let request =
            || client.put_opts(&path, PutPayload::from_bytes(bytes.clone()), PutMode::Create.into());
        for _ in 0..MAX_CONFLICTS {
            match self.ask("write", key, request).await? {
                Answer::Done(_) => return Ok(()),
                Answer::Absent(reason) => return Err(self.refused("write", key, reason)),
                Answer::Present => match self.get(key, bytes.len() as u64).await? {
                    Some(found) if found == bytes => return Ok(()),
                    Some(_) => return Err(StoreError::Taken { url: self.url(key) }),
                    // Another write of it was under way, and came to nothing.
                    None => tokio::time::sleep(FIRST_PAUSE).await,
                },
            }
        }
        Err(StoreError::Taken { url: self.url(key) })
    }

    /// Size of an object; none where it is not there.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn size(&self, key: &str) -> Result<Option<u64>, StoreError> {
        let path = self.path(key)?;
        match self.ask("look at", key, || self.remote.client.head(&path)).await? {
            Answer::Done(meta) => Ok(Some(meta.size)),
            Answer::Absent(_) => Ok(None),
            Answer::Present => Err(self.refused("look at", key, "an impossible answer".to_owned())),
        }
    }

    /// A small object; none where it is not there. Of one that is larger than
    /// expected no more than one byte too many is read.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn get(&self, key: &str, max_bytes: u64) -> Result<Option<Bytes>, StoreError> {
        match self.size(key).await? {
            None => Ok(None),
            Some(0) => Ok(Some(Bytes::new())),
            Some(size) => self.range(key, 0..size.min(max_bytes.saturating_add(1))).await.map(Some),
        }
    }

    /// Some bytes of an object.
    ///
    /// # Errors
    /// [`StoreError::Missing`] where it is not there, and [`StoreError`].
    pub async fn range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let path = self.path(key)?;
        let request = || async {
            let options = GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
            self.remote.client.get_opts(&path, options).await?.bytes().await
        };
        match self.ask("read", key, request).await? {
            Answer::Done(bytes) => Ok(bytes),
            Answer::Absent(_) => Err(StoreError::Missing { url: self.url(key) }),
            Answer::Present => Err(self.refused("read", key, "an impossible answer".to_owned())),
        }
    }

    /// Keys and sizes below a key.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn list(&self, below: &str) -> Result<Vec<(String, u64)>, StoreError> {
        let path = self.path(below)?;
        let request = || self.remote.client.list(Some(&path)).try_collect::<Vec<_>>();
        match self.ask("list", below, request).await? {
            Answer::Done(found) => {
                Ok(found.into_iter().map(|meta| (meta.location.to_string(), meta.size)).collect())
            }
            Answer::Absent(reason) => Err(self.refused("list", below, reason)),
            Answer::Present => Err(self.refused("list", below, "an impossible answer".to_owned())),
        }
    }

    /// Removes an object, or finds it gone.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn delete(&self, key: &str) -> Result<(), StoreError> {
        let path = self.path(key)?;
        match self.ask("remove", key, || self.remote.client.delete(&path)).await? {
            Answer::Done(()) | Answer::Absent(_) => Ok(()),
            Answer::Present => Err(self.refused("remove", key, "it is held".to_owned())),
        }
    }

    /// Begins an object in parts.
    pub(super) async fn begin_parts(&self, key: &str) -> Result<MultipartId, StoreError> {
        let path = self.path(key)?;
        match self.ask("begin", key, || self.remote.client.create_multipart(&path)).await? {
            Answer::Done(id) => Ok(id),
            Answer::Absent(reason) => Err(self.refused("begin", key, reason)),
            Answer::Present => Err(StoreError::Taken { url: self.url(key) }),
        }
    }

    /// Writes a part.
    pub(super) async fn put_part(
        &self,
        key: &str,
        id: &MultipartId,
        index: usize,
        bytes: Bytes,
    ) -> Result<PartId, StoreError> {
        let path = self.path(key)?;
        let num_bytes = bytes.len() as u64;
        let request = || self.remote.client.put_part(&path, id, index, PutPayload::from_bytes(bytes.clone()));
        let action = "write a part of";
        match self.ask(action, key, request).await? {
            Answer::Done(part) => {
                self.moved(num_bytes);
                Ok(part)
            }
            Answer::Absent(reason) => Err(self.refused(action, key, reason)),
            Answer::Present => Err(self.refused(action, key, "its upload was changed".to_owned())),
        }
    }

    /// Makes an object of its parts. An acknowledgement that was lost shows as
    /// an upload that is gone and an object of the right size; its bytes are
    /// read back in any case.
    pub(super) async fn finish_parts(
        &self,
        key: &str,
        id: &MultipartId,
        parts: Vec<PartId>,
        num_bytes: u64,
    ) -> Result<(), StoreError> {
        let path = self.path(key)?;
        let request = || self.remote.client.complete_multipart(&path, id, parts.clone());
        match self.ask("finish", key, request).await? {
            Answer::Done(_) => Ok(()),
            Answer::Absent(_) if self.size(key).await? == Some(num_bytes) => Ok(()),
            Answer::Absent(reason) => Err(self.refused("finish", key, reason)),
            Answer::Present => Err(StoreError::Taken { url: self.url(key) }),
        }
    }

    /// Gives an object in parts up.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn abort_parts(&self, key: &str, id: &MultipartId) -> Result<(), StoreError> {
        let path = self.path(key)?;
        match self.ask("abort", key, || self.remote.client.abort_multipart(&path, id)).await? {
            Answer::Done(()) | Answer::Absent(_) => Ok(()),
            Answer::Present => Err(self.refused("abort", key, "it is held".to_owned())),
        }
    }

    fn path(&self, key: &str) -> Result<Path, StoreError> {
        Path::parse(key).map_err(|error| self.refused("name", key, error.to_string()))
    }
}

/// Writes of one object that may be under way elsewhere and fail, before it
/// counts as taken.
const MAX_CONFLICTS: u32 = 5;

enum Judged {
    Absent(String),
    Present,
    Refused(String),
    MayPass(String),
}

/// Whether trying again would change nothing: an answer 4xx, but for "too slow"
/// and "too many". `object_store` has no type for it that can be asked, so its
/// words are read; where they change, a refusal takes the whole limit and no
/// more.
fn is_permanent(reason: &str) -> bool {
    let status = reason.split_once("status code: ").map(|(_, rest)| rest.split(' ').next().unwrap_or(""));
    let is_client_error = |status: &str| status.starts_with('4') && !matches!(status, "408" | "429");
    status.is_some_and(is_client_error) || reason.contains("redirect without LOCATION")
}

/// Content of the first element of a name in an answer's XML.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(value, _)| value)
}

/// The innermost cause, such as "connection refused".
fn deepest(error: &dyn Error) -> Option<String> {
    let mut source = error.source()?;
    while let Some(inner) = source.source() {
        source = inner;
    }
    Some(source.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_second_try_cannot_change_is_permanent() {
        let says = |status: &str| format!("Server returned non-2xx status code: {status}: x");
        for status in ["400 Bad Request", "405 Method Not Allowed", "411 Length Required"] {
            assert!(is_permanent(&says(status)), "{status}");
        }
        for status in ["408 Request Timeout", "429 Too Many Requests", "500 Internal", "503 Slow Down"] {
            assert!(!is_permanent(&says(status)), "{status}");
        }
        assert!(!is_permanent("HTTP error: error sending request"));
    }

    #[test]
    fn an_answer_is_reduced_to_code_and_message() {
        let body =
            "<Error><Code>SlowDown</Code><Message>wait</Message><AWSAccessKeyId>K</AWSAccessKeyId></Error>";
        assert_eq!(element(body, "Code"), Some("SlowDown"));
        assert_eq!(element(body, "Message"), Some("wait"));
        assert_eq!(element("<Code>unfinished", "Code"), None);
    }
}
