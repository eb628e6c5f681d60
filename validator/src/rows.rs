//! Reads the rows of a ledger in order, and computes what follows from each
//! one's bytes alone: on this thread, or on others beside it.
//!
//! Rows reach the caller one at a time and in the order of the file however many
//! threads compute, so the number of threads changes no answer. The database is
//! read, and rules follow the run, on the caller's thread. What is on its way is
//! bounded: some batches of rows for each thread.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

use crate::reading::EntryReader;
use crate::row::Looked;
use crate::store::{Row, RowsEnd, Store};

/// Bytes of rows after which a batch is full: enough that handing it over costs
/// next to nothing, and little enough for a processor's cache. The short runs of
/// unit tests make several.
const BATCH_BYTES: usize = if cfg!(test) { 4 << 10 } else { 128 << 10 };

/// Rows that are worth starting threads for. Unit tests, whose runs are short, start
/// them for any.
const MIN_SHARED_ROWS: u64 = if cfg!(test) { 1 } else { 256 };

/// Batches that a thread may have before it: one at work and one waiting.
const BATCHES_PER_THREAD: usize = 2;

/// Threads beside the caller's that have something to do: it reads and follows
/// the rules in the time that two others take to hash and parse.
const MAX_WORKERS: usize = 3;

/// Threads where nobody named a number: those that the machine offers.
pub(crate) fn default_threads() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Calls `visit` with every row in ascending `seq`.
pub(crate) fn for_each(
    store: &Store,
    num_threads: NonZeroUsize,
    visit: &mut dyn FnMut(Row<'_>, Looked),
) -> RowsEnd {
    let num_workers = (num_threads.get() - 1).min(MAX_WORKERS);
    if num_workers == 0 || store.num_rows() < MIN_SHARED_ROWS {
        let mut reader = EntryReader::new();
        return store.for_each_row(&mut |row| visit(row.cut(), Looked::at(row.entry, &mut reader)));
    }
    std::thread::scope(|scope| {
        let mut line = Line::new(scope, num_workers);
        let mut batch = Batch::default();
        let mut reader = EntryReader::new();
        let end = store.for_each_row(&mut |row| {
            // What is too long for an entry is hashed here, and not copied as a whole.
            let is_long = row.entry.len() > schemas::MAX_ENTRY_BYTES;
            batch.push(row.cut(), is_long.then(|| Looked::at(row.entry, &mut reader)));
            if batch.bytes.len() >= BATCH_BYTES {
                batch = line.exchange(std::mem::take(&mut batch), visit);
            }
        });
        line.hand_over(batch);
        while let Some(batch) = line.take() {
            batch.visit(visit);
        }
        end
    })
}

/// A row's columns within the bytes of its batch.
struct Place {
    seq: i64,
    /// Of an entry that is not here as a whole.
    looked: Option<Looked>,
    idem: Range<usize>,
    entry: Range<usize>,
    leaf: Range<usize>,
}

/// Some rows in order.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    places: Vec<Place>,
    looked: Vec<Looked>,
}

impl Batch {
    fn push(&mut self, row: Row<'_>, looked: Option<Looked>) {
        let mut add = |bytes: &[u8]| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(bytes);
            start..self.bytes.len()
        };
        let (idem, entry, leaf) = (add(row.idem), add(row.entry), add(row.leaf));
        self.places.push(Place { seq: row.seq, looked, idem, entry, leaf });
    }

    fn bytes(&self, range: &Range<usize>) -> &[u8] {
        self.bytes.get(range.clone()).unwrap_or_default()
    }

    fn look(&mut self, reader: &mut EntryReader) {
        let mut places = std::mem::take(&mut self.places);
        let looked = places.iter_mut().map(|place| {
            let known = place.looked.take();
            known.unwrap_or_else(|| Looked::at(self.bytes(&place.entry), reader))
        });
        self.looked = looked.collect();
        self.places = places;
    }

    /// Gives the rows away; what is left is space for further ones.
    fn visit(mut self, visit: &mut dyn FnMut(Row<'_>, Looked)) -> Self {
        let looked = std::mem::take(&mut self.looked);
        for (place, looked) in self.places.iter().zip(looked) {
            let row = Row {
                seq: place.seq,
                idem: self.bytes(&place.idem),
                entry: self.bytes(&place.entry),
                leaf: self.bytes(&place.leaf),
            };
            visit(row, looked);
        }
        self.bytes.clear();
        self.places.clear();
        self
    }
}

/// A thread that computes, with the ends of its two queues.
struct Worker {
    work: SyncSender<Batch>,
    done: Receiver<Batch>,
}

/// The workers, who take batches in turns.
struct Line {
    workers: Vec<Worker>,
    next: usize,
    /// Who has the batches that are on their way, in the order of the file.
    waiting: VecDeque<usize>,
}

impl Line {
    fn new<'scope>(scope: &'scope Scope<'scope, '_>, num_workers: usize) -> Self {
        let worker = |_| {
            let (work, inbox) = sync_channel::<Batch>(BATCHES_PER_THREAD);
            let (outbox, done) = sync_channel(BATCHES_PER_THREAD);
            scope.spawn(move || {
                let mut reader = EntryReader::new();
                for mut batch in inbox {
                    batch.look(&mut reader);
                    if outbox.send(batch).is_err() {
                        break;
                    }
                }
            });
            Worker { work, done }
        };
        Self { workers: (0..num_workers).map(worker).collect(), next: 0, waiting: VecDeque::new() }
    }

    /// Hands a full batch over and gives back an empty one, for which an earlier
    /// one may have to be awaited and visited.
    fn exchange(&mut self, batch: Batch, visit: &mut dyn FnMut(Row<'_>, Looked)) -> Batch {
        self.hand_over(batch);
        if self.waiting.len() < BATCHES_PER_THREAD * self.workers.len() {
            return Batch::default();
        }
        self.take().map_or_else(Batch::default, |batch| batch.visit(visit))
    }

    fn hand_over(&mut self, batch: Batch) {
        // A worker ends before its queue does only by a panic, which the scope passes on.
        if let Some(worker) = self.workers.get(self.next)
            && worker.work.send(batch).is_ok()
        {
            self.waiting.push_back(self.next);
        }
        self.next = (self.next + 1) % self.workers.len();
    }

    /// The next batch in the order of the file.
    fn take(&mut self) -> Option<Batch> {
        let worker = self.waiting.pop_front()?;
        self.workers.get(worker)?.done.recv().ok()
    }
}
