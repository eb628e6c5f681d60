//! The recorder: how a training loop of anybody's writes to a ledger.
//!
//! Appends are serialised, given their index and time, and queued by the
//! caller's thread, so that a record that cannot be written is refused at once
//! and takes no index; a writer thread commits them in groups. An entry that
//! announces an effect goes through [`Recorder::append_durable`], which returns
//! when the entry and a signed head over it are on disk, inside the database
//! and outside it. Nothing is dropped: after a failure every call says so.
//!
//! Defaults: a record without an idempotency key gets a fresh one, 8 random
//! bytes drawn when the recorder was opened and an 8-byte count, so that every
//! append is a new entry and the key's index grows at one end. Times never go
//! backwards within a ledger: where the clock was set back, the time of the
//! last entry is repeated.

mod error;
mod opening;
mod record;
mod writer;

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OpenFlags, OptionalExtension};
use schemas::MAX_ENTRY_BYTES;
use schemas::body::{Body, Kind};
use schemas::digest::{decode_hex, encode_hex};
use schemas::entry::{Entry, Header, LedgerKind};
use schemas::ids::{IdempotencyKey, KeyId, RunId};

pub use error::{RecorderError, WriteError};
pub use record::Record;

use crate::canonical;
use crate::frozen::FrozenContract;
use crate::keys::KeyPair;
use crate::note::TreeHead;
use crate::store::{NewRow, StoreError, on_own_thread};
use crate::tree::{Hash, leaf_hash};
use opening::Opened;
use writer::{Signer, Writer};

/// Entries that are committed together at the latest (measured: larger groups
/// gain little, smaller ones cost a flush each).
const GROUP_ENTRIES: usize = 128;

/// Largest buffer that is kept for a later entry: several times a step's.
const MAX_SPARE_BYTES: usize = 8 << 10;

/// Entries and bytes of one transaction at most. A flood is committed in pieces,
/// so that dirty pages stay in SQLite's cache instead of being written twice.
const MAX_COMMIT_ENTRIES: usize = 2048;
const MAX_COMMIT_BYTES: usize = 4 * 1024 * 1024;

/// Queued bytes above which appends wait for the writer.
const MAX_QUEUED_BYTES: usize = 32 * 1024 * 1024;

/// Longest that an entry waits where no contract says it.
const DEFAULT_MAX_UNSYNCED: Duration = Duration::from_millis(250);

/// What is durable: entry and tree at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// Index of the entry concerned; of the last one for a flush.
    pub index: u64,
    /// Tree size of the published head.
    pub size: u64,
    /// Root hash of the published head.
    pub root: Hash,
}

/// When pending entries are committed at the latest.
struct Limits {
    max_unsynced: Duration,
    max_unsynced_steps: u32,
}

/// Shared between handles and the writer thread.
struct Shared {
    limits: Limits,
    state: Mutex<State>,
    wake_callers: Condvar,
    wake_writer: Condvar,
}

/// Guarded by [`Shared::state`].
struct State {
    /// The next commit is the last.
    closing: bool,
    /// The writer thread has released the ledger.
    ended: bool,
    failure: Option<Arc<WriteError>>,
    /// A caller has been told of the failure.
    failure_told: bool,
    /// A head over this many entries is wanted.
    head_wanted: u64,
    /// Entries with a caller's key that are not committed yet.
    in_flight: BTreeMap<[u8; 16], (u64, Vec<u8>)>,
    key_counter: u64,
    key_prefix: [u8; 8],
    last_entry_bytes: usize,
    last_time_us: u64,
    next_index: u64,
    /// Entries that are committed.
    num_durable: u64,
    num_pending_steps: u32,
    /// When the oldest pending entry was queued.
    oldest: Option<Instant>,
    pending: VecDeque<NewRow>,
    pending_bytes: usize,
    published: PublishedHead,
    /// Buffers of entries that are committed, for those that follow: they are
    /// filled on one thread and would else be freed on another.
    spare: Vec<Vec<u8>>,
    /// Reads keys that are already stored; opened at the first need.
    stored_keys: Option<Connection>,
    /// Envelope with actor, ledger and run set; the rest is replaced each time.
    template: Header,
}

#[derive(Clone, Copy)]
struct PublishedHead {
    size: u64,
    root: Hash,
}

struct Inner {
    contract: Option<FrozenContract>,
    kind: LedgerKind,
    path: PathBuf,
    run: RunId,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A handle to a ledger that is being written. Clones share one writer; when
/// the last one is dropped, what was queued is committed and a head signed.
#[derive(Clone)]
pub struct Recorder {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Recorder").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Opens a ledger for appending and takes its single-writer lock. In a
    /// run's ledger `key` must be the contract's trainer key, in a
    /// qualification ledger the key that signed its heads.
    ///
    /// Every stored entry is read and hashed first.
    ///
    /// # Errors
    /// When the file is not a ledger of this layout, another writer has it, it
    /// is behind its external head, its entries do not give the signed roots,
    /// or the key is not the one that its heads are signed with.
    pub fn open(path: &Path, key: KeyPair) -> Result<Self, RecorderError> {
        let opened = on_own_thread(|| opening::open(path, &key))?;
        let mut key_prefix = [0u8; 8];
        getrandom::fill(&mut key_prefix).map_err(|error| StoreError::Io {
            path: path.to_owned(),
            source: std::io::Error::other(error.to_string()),
        })?;
        let durability = opened.contract.as_ref().map(|frozen| &frozen.contract.durability);
        let limits = Limits {
            max_unsynced: durability.map_or(DEFAULT_MAX_UNSYNCED, |durability| {
                Duration::from_millis(u64::from(durability.max_unsynced_ms))
            }),
            max_unsynced_steps: durability
                .map_or(u32::MAX, |durability| durability.max_unsynced_steps.max(1)),
        };
        let state = State::new(&opened, key.id(), key_prefix);
        let shared = Arc::new(Shared {
            limits,
            state: Mutex::new(state),
            wake_callers: Condvar::new(),
            wake_writer: Condvar::new(),
        });
        let Opened { contract, frontier, head_file, kind, lock, mark, origin, run, signed, store, .. } =
            opened;
        let shared_by_writer = Arc::clone(&shared);
        let signer = Signer { frontier, head_file, key, origin, shared: shared_by_writer, signed };
        let writer = Writer { signer, store, mark, lock };
        let thread = std::thread::Builder::new()
            .name("ledger-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(|source| RecorderError::Thread { path: path.to_owned(), source })?;
        let path = path.to_owned();
        let inner = Inner { contract, kind, path, run, shared, thread: Mutex::new(Some(thread)) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The ledger's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The frozen contract; `None` in a ledger that is not a run's.
    #[must_use]
    pub fn contract(&self) -> Option<&FrozenContract> {
        self.inner.contract.as_ref()
    }

    /// The run, or the ledger's own identifier.
    #[must_use]
    pub fn run(&self) -> &RunId {
        &self.inner.run
    }

    /// Which ledger.
    #[must_use]
    pub fn kind(&self) -> LedgerKind {
        self.inner.kind
    }

    /// Entries so far, queued ones included.
    #[must_use]
    pub fn num_entries(&self) -> u64 {
        self.inner.lock().next_index
    }

    /// Entries that are committed, so that a crash leaves them.
    #[must_use]
    pub fn num_durable(&self) -> u64 {
        self.inner.lock().num_durable
    }

    /// Queues an entry; it is committed with others.
    ///
    /// # Errors
    /// When the record cannot be written (nothing is, and no index is taken),
    /// or an earlier commit failed.
    pub fn append(&self, record: Record) -> Result<(), RecorderError> {
        self.inner.enqueue(record, false).map(|_| ())
    }

    /// Appends an entry and returns when it is durable and under a signed head,
    /// in the database and in the external head file.
    ///
    /// # Errors
    /// As [`Self::append`], and when this commit fails.
    pub fn append_durable(&self, record: Record) -> Result<Receipt, RecorderError> {
        let index = self.inner.enqueue(record, true)?;
        self.inner.wait_published(index + 1, index)
    }

    /// Makes everything durable that was appended, under a signed head.
    ///
    /// # Errors
    /// When a commit failed or the recorder is closed.
    pub fn flush(&self) -> Result<Receipt, RecorderError> {
        let mut state = self.inner.lock();
        self.inner.check_usable(&mut state)?;
        let size = state.next_index;
        state.head_wanted = state.head_wanted.max(size);
        drop(state);
        self.inner.shared.wake_writer.notify_one();
        self.inner.wait_published(size, size.saturating_sub(1))
    }

    /// Flushes, closes the database and gives up the lock. Other handles of the
    /// same ledger are refused from then on.
    ///
    /// # Errors
    /// When a commit failed or the recorder was closed before.
    pub fn close(self) -> Result<Receipt, RecorderError> {
        let mut state = self.inner.lock();
        self.inner.check_usable(&mut state)?;
        let size = state.next_index;
        state.closing = true;
        drop(state);
        let receipt = self.inner.finish(size);
        self.inner.join();
        receipt
    }
}

impl State {
    fn new(opened: &Opened, actor: KeyId, key_prefix: [u8; 8]) -> Self {
        Self {
            closing: false,
            ended: false,
            failure: None,
            failure_told: false,
            head_wanted: 0,
            in_flight: BTreeMap::new(),
            key_counter: 0,
            key_prefix,
            last_entry_bytes: 512,
            last_time_us: opened.last_time_us,
            next_index: opened.frontier.size(),
            num_durable: opened.frontier.size(),
            num_pending_steps: 0,
            oldest: None,
            pending: VecDeque::with_capacity(GROUP_ENTRIES),
            pending_bytes: 0,
            published: PublishedHead { size: opened.signed.size, root: opened.signed.root },
            spare: Vec::new(),
            stored_keys: None,
            template: Header {
                actor,
                attempt: None,
                extensions: Vec::new(),
                idem: IdempotencyKey(String::new()),
                learner: None,
                ledger: opened.kind,
                origin: None,
                run: opened.run.clone(),
                segment: None,
                step: None,
                worker: None,
            },
        }
    }

    /// Takes what one transaction holds. What stays pending keeps its age, and
    /// counts of it that are too high only bring the next commit forward.
    fn take_pending(&mut self) -> Vec<NewRow> {
        let mut num_bytes = 0;
        let mut num_rows = 0;
        for row in self.pending.iter().take(MAX_COMMIT_ENTRIES) {
            num_bytes += row.entry.len();
            num_rows += 1;
            if num_bytes >= MAX_COMMIT_BYTES {
                break;
            }
        }
        let rows: Vec<NewRow> = self.pending.drain(..num_rows).collect();
        self.pending_bytes -= num_bytes;
        if self.pending.is_empty() {
            self.oldest = None;
            self.num_pending_steps = 0;
        }
        rows
    }

    /// Keeps the buffers of rows that are committed.
    fn reuse(&mut self, rows: Vec<NewRow>) {
        let free = GROUP_ENTRIES.saturating_sub(self.spare.len());
        let buffers = rows.into_iter().map(|row| row.entry).filter(|of| of.capacity() <= MAX_SPARE_BYTES);
        self.spare.extend(buffers.take(free).map(|mut buffer| {
            buffer.clear();
            buffer
        }));
    }

    /// Notes that all entries below `size` are stored.
    fn committed(&mut self, size: u64, signed: &TreeHead) {
        self.published = PublishedHead { size: signed.size, root: signed.root };
        self.num_durable = size;
        self.in_flight.retain(|_, (index, _)| *index >= size);
    }

    fn fresh_key(&mut self) -> [u8; 16] {
        let mut key = [0u8; 16];
        key[..8].copy_from_slice(&self.key_prefix);
        key[8..].copy_from_slice(&self.key_counter.to_be_bytes());
        self.key_counter += 1;
        key
    }

    /// Serialises a record with a given index and time.
    fn entry_bytes(
        &mut self,
        record: Record,
        idem: &[u8; 16],
        index: u64,
        time_us: u64,
    ) -> Result<(Vec<u8>, Body), RecorderError> {
        let kind = record.body.kind();
        let mut header = std::mem::replace(&mut self.template, placeholder());
        header.attempt = record.attempt;
        header.extensions = record.extensions;
        header.idem = IdempotencyKey(encode_hex(idem));
        header.learner = record.learner;
        header.origin = record.origin;
        header.segment = record.segment;
        header.step = record.step;
        header.worker = record.worker;
        let entry = Entry { body: record.body, header, index, time_us };
        let room = self.last_entry_bytes + 64;
        let mut bytes = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(room));
        let written = canonical::append_entry_json(&mut bytes, &entry);
        self.template = entry.header;
        written.map_err(|source| RecorderError::Canonical { kind: kind.name(), source })?;
        if bytes.len() > MAX_ENTRY_BYTES {
            return Err(RecorderError::TooLarge { kind: kind.name(), num_bytes: bytes.len() });
        }
        self.last_entry_bytes = bytes.len();
        Ok((bytes, entry.body))
    }
}

/// Stands in the template's place while it is part of an entry; never written.
fn placeholder() -> Header {
    Header {
        actor: KeyId(String::new()),
        attempt: None,
        extensions: Vec::new(),
        idem: IdempotencyKey(String::new()),
        learner: None,
        ledger: LedgerKind::Run,
        origin: None,
        run: RunId(String::new()),
        segment: None,
        step: None,
        worker: None,
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_usable(&self, state: &mut State) -> Result<(), RecorderError> {
        self.check_not_failed(state)?;
        if state.closing || state.ended {
            return Err(RecorderError::Closed { path: self.path.clone() });
        }
        Ok(())
    }

    fn check_not_failed(&self, state: &mut State) -> Result<(), RecorderError> {
        let Some(source) = &state.failure else { return Ok(()) };
        state.failure_told = true;
        Err(RecorderError::Failed { path: self.path.clone(), source: Arc::clone(source) })
    }

    /// Queues a record and returns its index, or that of the entry that the
    /// same key and content already have.
    fn enqueue(&self, record: Record, durable: bool) -> Result<u64, RecorderError> {
        let mut state = self.lock();
        self.check_usable(&mut state)?;
        while state.pending_bytes > MAX_QUEUED_BYTES {
            state = self.shared.wake_callers.wait(state).unwrap_or_else(PoisonError::into_inner);
            self.check_usable(&mut state)?;
        }
        let time_us = now_us().max(state.last_time_us);
        let index = state.next_index;
        let own_key = record.idem.as_ref().map(parse_key).transpose()?;
        let idem = own_key.unwrap_or_else(|| state.fresh_key());
        let (entry, body) = state.entry_bytes(record, &idem, index, time_us)?;
        if own_key.is_some() {
            if let Some((existing, stored)) = self.find(&mut state, &idem)? {
                if !same_content(&entry, &stored) {
                    return Err(RecorderError::Conflict { idem: encode_hex(&idem), index: existing });
                }
                if durable {
                    state.head_wanted = state.head_wanted.max(existing + 1);
                    drop(state);
                    self.shared.wake_writer.notify_one();
                }
                return Ok(existing);
            }
            state.in_flight.insert(idem, (index, entry.clone()));
        }
        if body.kind() == Kind::Step {
            state.num_pending_steps += 1;
        }
        state.pending_bytes += entry.len();
        let leaf = leaf_hash(&entry);
        state.pending.push_back(NewRow { index, idem, entry, leaf });
        state.next_index += 1;
        state.last_time_us = time_us;
        if durable {
            state.head_wanted = state.head_wanted.max(index + 1);
        }
        let first = state.oldest.is_none();
        if first {
            state.oldest = Some(Instant::now());
        }
        let full = state.pending.len() == GROUP_ENTRIES
            || state.num_pending_steps == self.shared.limits.max_unsynced_steps;
        drop(state);
        if first || full || durable {
            self.shared.wake_writer.notify_one();
        }
        Ok(index)
    }

    /// The entry that has a key, queued or stored.
    fn find(&self, state: &mut State, idem: &[u8; 16]) -> Result<Option<(u64, Vec<u8>)>, RecorderError> {
        if let Some((index, bytes)) = state.in_flight.get(idem) {
            return Ok(Some((*index, bytes.clone())));
        }
        let read = |source| RecorderError::Read { path: self.path.clone(), source };
        if state.stored_keys.is_none() {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(&self.path, flags).map_err(read)?;
            connection.busy_timeout(Duration::from_secs(5)).map_err(read)?;
            state.stored_keys = Some(connection);
        }
        let Some(connection) = &state.stored_keys else { return Ok(None) };
        let sql = "SELECT seq, entry FROM entries WHERE idem = ?1";
        let mut statement = connection.prepare(sql).map_err(read)?;
        let row = statement.query_row([&idem[..]], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?)));
        let row = row.optional().map_err(read)?;
        Ok(row.map(|(index, bytes)| (index.unsigned_abs(), bytes)))
    }

    /// Waits until a head over at least `size` entries is published.
    fn wait_published(&self, size: u64, index: u64) -> Result<Receipt, RecorderError> {
        let mut state = self.lock();
        loop {
            if state.published.size >= size {
                let PublishedHead { size, root } = state.published;
                return Ok(Receipt { index, size, root });
            }
            self.check_not_failed(&mut state)?;
            if state.ended {
                return Err(RecorderError::Closed { path: self.path.clone() });
            }
            state = self.shared.wake_callers.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes the writer for its last commit and waits for it.
    fn finish(&self, size: u64) -> Result<Receipt, RecorderError> {
        // The reading connection goes first, so that the writer's is the last
        // one and folds the WAL into the database.
        self.lock().stored_keys = None;
        self.shared.wake_writer.notify_one();
        self.wait_published(size, size.saturating_sub(1))
    }

    fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The guard in the writer has reported a panic already.
            let _ = thread.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut state = self.lock();
        let (told, size) = (state.failure_told, state.next_index);
        state.closing = true;
        drop(state);
        if let (Err(error), false) = (self.finish(size), told) {
            tracing::error!(error = &error as &dyn std::error::Error, "a dropped recorder lost entries");
        }
        self.join();
    }
}

/// Microseconds since the Unix epoch; 0 for a clock before it.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

fn parse_key(idem: &IdempotencyKey) -> Result<[u8; 16], RecorderError> {
    let bytes = decode_hex(idem.as_str()).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
    bytes.ok_or_else(|| RecorderError::Idempotency { idem: idem.0.chars().take(80).collect() })
}

/// Whether two entries differ at most in index and time.
fn same_content(left: &[u8], right: &[u8]) -> bool {
    let plain =
        |bytes: &[u8]| Entry::from_slice(bytes).ok().map(|entry| Entry { index: 0, time_us: 0, ..entry });
    match (plain(left), plain(right)) {
        (Some(left), Some(right)) => left == right,
        _ => false,
    }
}
