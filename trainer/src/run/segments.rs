//! Which segment an attempt is in (`docs/FORMAT.md`, "Another number of
//! workers"): the first one, or one of its own where another number of workers
//! executes than in the segment before.

use ledger::FrozenContract;
use schemas::body::{Body, Halves, Nothing, SegmentStartDet};
use schemas::contract::{Contract, PermittedRewrite};
use schemas::digest::Digest;
use schemas::ids::SegmentId;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::error::RunError;
use super::history::History;
use super::refusal::Refusal;
use crate::workers::MAX_WORKERS;

/// The run's first segment, which the contract's own number of workers executes.
pub const FIRST_SEGMENT: SegmentId = SegmentId(1);

/// A segment that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PastSegment {
    /// Workers that execute it, where they are not the contract's.
    pub num_workers: Option<u32>,
    /// Its number.
    pub segment: SegmentId,
}

/// The segment of an attempt, and what begins it.
#[derive(Debug)]
pub struct Entered {
    /// The segment that the attempt works in.
    pub segment: SegmentId,
    /// `segment.start` entries that it begins with, each with its segment.
    pub starts: Vec<(SegmentId, Body)>,
}

/// Workers of an attempt: those of the contract, unless others are asked for.
///
/// # Errors
/// [`Refusal::Workers`], [`Refusal::WorkersDivide`].
pub fn num_workers(contract: &Contract, asked: Option<u32>) -> Result<u32, Refusal> {
    let expected = contract.topology.workers;
    let actual = asked.unwrap_or(expected);
    if actual == expected {
        return Ok(actual);
    }
    if !contract.topology.permitted_rewrites.contains(&PermittedRewrite::WorkerCount) {
        return Err(Refusal::Workers { expected, actual });
    }
    let num_microbatches = contract.batch.accumulation.saturating_mul(expected);
    if actual == 0 || actual > MAX_WORKERS || !num_microbatches.is_multiple_of(actual) {
        return Err(Refusal::WorkersDivide { num_microbatches, actual });
    }
    Ok(actual)
}

/// The segment of the next attempt, which starts at a step with so many workers.
///
/// # Errors
/// When the identity of a new one cannot be written.
pub fn enter(
    frozen: &FrozenContract,
    history: &History,
    num_workers: u32,
    from_step: u64,
) -> Result<Entered, RunError> {
    let mut starts = Vec::new();
    let before = history.segment.unwrap_or_else(|| {
        starts.push((FIRST_SEGMENT, start(FIRST_SEGMENT, frozen.digest, 0, None, None)));
        PastSegment { num_workers: None, segment: FIRST_SEGMENT }
    });
    if before.num_workers.unwrap_or(frozen.contract.topology.workers) == num_workers {
        return Ok(Entered { segment: before.segment, starts });
    }
    let segment = SegmentId(before.segment.0 + 1);
    let identity = json!({ "contract": frozen.digest.to_string(), "workers": num_workers });
    let identity = ledger::canonical::contract_json(&identity)
        .map_err(|error| RunError::Process(std::io::Error::other(error)))?;
    let identity = Digest::sha256(Sha256::digest(&identity).into());
    let adjudication = Some(format!("worker_count: {num_workers}"));
    starts.push((segment, start(segment, identity, from_step, Some(before.segment), adjudication)));
    Ok(Entered { segment, starts })
}

fn start(
    segment: SegmentId,
    identity: Digest,
    from_step: u64,
    parent: Option<SegmentId>,
    adjudication: Option<String>,
) -> Body {
    let det = SegmentStartDet { adjudication, from_step, identity, parent, segment };
    Body::SegmentStart(Box::new(Halves { det, obs: Nothing {} }))
}
