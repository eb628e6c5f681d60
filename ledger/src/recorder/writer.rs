//! The writer thread: takes what was queued, commits it, signs heads.
//!
//! Order of a durable point: rows and head in one transaction, then the head
//! file, then the callers learn of it. A head is never signed at a smaller
//! size than the last one, nor with another root at the same size. The first
//! failure ends the thread; everything later is refused with its reason.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::{Shared, State, WriteError};
use crate::head_file::HeadFile;
use crate::keys::KeyPair;
use crate::lock::WriterLock;
use crate::note::TreeHead;
use crate::snapshot::WriterMark;
use crate::store::{Appending, HeadRow, NewRow, Store};
use crate::tree::Frontier;

/// Everything that only the writer thread touches.
pub(super) struct Writer {
    pub(super) signer: Signer,
    pub(super) store: Store,
    /// Dropped after the store: see [`crate::snapshot`].
    pub(super) mark: WriterMark,
    /// Dropped last, so that the next writer finds everything closed.
    pub(super) lock: WriterLock,
}

/// What is appended to and signed over.
pub(super) struct Signer {
    pub(super) frontier: Frontier,
    pub(super) head_file: HeadFile,
    pub(super) key: KeyPair,
    pub(super) origin: String,
    pub(super) shared: Arc<Shared>,
    /// Newest head that was published.
    pub(super) signed: TreeHead,
}

/// What is to be done next.
struct Work {
    rows: Vec<NewRow>,
    with_head: bool,
    closing: bool,
}

impl Writer {
    /// Runs until the recorder is closed or writing fails.
    pub(super) fn run(self) {
        let Self { mut signer, mut store, mark, lock } = self;
        let shared = Arc::clone(&signer.shared);
        // A panic below must not leave callers waiting for ever.
        let guard = VanishGuard(Arc::clone(&shared));
        if let Err(error) = store.write_with(|appending| signer.run(appending)) {
            signer.publish(Err(error.into()), Work { rows: Vec::new(), with_head: false, closing: true });
        }
        if let Err(error) = store.close() {
            tracing::warn!(error = &error as &dyn std::error::Error, "closing a ledger failed");
        }
        drop(mark);
        drop(lock);
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ended = true;
        drop(state);
        shared.wake_callers.notify_all();
        std::mem::forget(guard);
    }
}

impl Signer {
    fn run(&mut self, appending: &mut Appending<'_>) {
        loop {
            let work = self.next_work();
            let result = self.write(appending, &work);
            if self.publish(result, work) {
                return;
            }
        }
    }

    /// Waits until a batch is full, due or asked for, and takes it.
    fn next_work(&self) -> Work {
        let shared = &self.shared;
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.is_due(&shared.limits) {
            let wait = state.oldest.map(|oldest| {
                (oldest + shared.limits.max_unsynced).saturating_duration_since(Instant::now())
            });
            state = match wait {
                Some(wait) => {
                    let waited = shared.wake_writer.wait_timeout(state, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => shared.wake_writer.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        let rows = state.take_pending();
        let size = state.next_index - state.pending.len() as u64;
        let wanted = state.head_wanted > state.published.size && size >= state.head_wanted;
        let last = state.closing && state.pending.is_empty();
        Work { rows, with_head: wanted || last, closing: state.closing }
    }

    fn write(&mut self, appending: &mut Appending<'_>, work: &Work) -> Result<(), WriteError> {
        for row in &work.rows {
            self.frontier.append(row.leaf);
        }
        let with_head = work.with_head && self.frontier.size() > self.signed.size;
        if work.rows.is_empty() && !with_head {
            return Ok(());
        }
        let (frontier, origin, key) = (&self.frontier, &self.origin, &self.key);
        let mut signed = None;
        let stored = appending.commit(&work.rows, || {
            with_head.then(|| {
                let head = TreeHead { origin: origin.clone(), size: frontier.size(), root: frontier.root() };
                let note = head.sign(key);
                let row = HeadRow { size: head.size, note };
                signed = Some(head);
                row
            })
        })?;
        if let (Some(row), Some(head)) = (stored, signed) {
            self.head_file.append(&row.note)?;
            self.signed = head;
        }
        Ok(())
    }

    /// Tells callers what became of the work; true when the thread must end.
    fn publish(&self, result: Result<(), WriteError>, work: Work) -> bool {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let done = match result {
            Ok(()) => {
                state.committed(self.frontier.size(), &self.signed);
                state.reuse(work.rows);
                work.closing && state.pending.is_empty()
            }
            Err(error) => {
                // The next call says so; a recorder that is dropped without one logs it.
                tracing::debug!(error = &error as &dyn std::error::Error, "recording failed");
                state.failure = Some(Arc::new(error));
                true
            }
        };
        drop(state);
        self.shared.wake_callers.notify_all();
        done
    }
}

impl State {
    /// Whether the writer has something to do now.
    fn is_due(&self, limits: &super::Limits) -> bool {
        let overdue = self.oldest.is_some_and(|oldest| oldest.elapsed() >= limits.max_unsynced);
        self.closing
            || overdue
            || self.pending.len() >= super::GROUP_ENTRIES
            || self.num_pending_steps >= limits.max_unsynced_steps
            || self.head_wanted > self.published.size
    }
}

/// Reports a writer that panicked.
struct VanishGuard(Arc<Shared>);

impl Drop for VanishGuard {
    fn drop(&mut self) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failure.get_or_insert_with(|| Arc::new(WriteError::Vanished));
        state.ended = true;
        drop(state);
        self.0.wake_callers.notify_all();
    }
}
