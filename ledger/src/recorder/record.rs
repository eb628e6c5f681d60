//! What a caller hands to the recorder: everything of an entry but what the
//! recorder itself assigns (actor, ledger, run, index, time).

use schemas::body::Body;
use schemas::entry::{Extension, Origin};
use schemas::ids::{AttemptId, IdempotencyKey, LearnerId, SegmentId, WorkerId};

/// An entry to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The process lifetime; null where none is running.
    pub attempt: Option<AttemptId>,
    /// The span of unchanged identity.
    pub segment: Option<SegmentId>,
    /// The adaptive identity, where one is concerned.
    pub learner: Option<LearnerId>,
    /// The executing worker, where one is concerned.
    pub worker: Option<WorkerId>,
    /// Completed updates when the entry was made; null where none applies.
    pub step: Option<u64>,
    /// What it says.
    pub body: Body,
    /// 32 lower-case hex digits that make the append idempotent. Null: a fresh
    /// key, so that every append is a new entry.
    pub idem: Option<IdempotencyKey>,
    /// Room to grow.
    pub extensions: Vec<Extension>,
    /// Who observed it, where not the writer.
    pub origin: Option<Origin>,
}

impl Record {
    /// A record with a body and nothing else.
    #[must_use]
    pub const fn new(body: Body) -> Self {
        Self {
            attempt: None,
            segment: None,
            learner: None,
            worker: None,
            step: None,
            body,
            idem: None,
            extensions: Vec::new(),
            origin: None,
        }
    }

    /// Sets the attempt.
    #[must_use]
    pub const fn attempt(mut self, attempt: AttemptId) -> Self {
        self.attempt = Some(attempt);
        self
    }

    /// Sets the segment.
    #[must_use]
    pub const fn segment(mut self, segment: SegmentId) -> Self {
        self.segment = Some(segment);
        self
    }

    /// Sets the learner.
    #[must_use]
    pub const fn learner(mut self, learner: LearnerId) -> Self {
        self.learner = Some(learner);
        self
    }

    /// Sets the worker.
    #[must_use]
    pub const fn worker(mut self, worker: WorkerId) -> Self {
        self.worker = Some(worker);
        self
    }

    /// Sets the step.
    #[must_use]
    pub const fn step(mut self, step: u64) -> Self {
        self.step = Some(step);
        self
    }

    /// Sets the idempotency key.
    #[must_use]
    pub fn idem(mut self, idem: IdempotencyKey) -> Self {
        self.idem = Some(idem);
        self
    }

    /// Adds an extension.
    #[must_use]
    pub fn extension(mut self, extension: Extension) -> Self {
        self.extensions.push(extension);
        self
    }

    /// Says who observed it.
    #[must_use]
    pub fn origin(mut self, origin: Origin) -> Self {
        self.origin = Some(origin);
        self
    }
}
