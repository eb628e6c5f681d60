//! What the benches record.

use ledger::recorder::Record;
use schemas::body::{Body, Counters, Credit, Draw, GroupUpdate, Halves, PositionRange, StepDet, StepObs};
use schemas::digest::Digest;
use schemas::ids::{AttemptId, SegmentId};
use schemas::number::Float;

/// A step as a training run records it.
pub(crate) fn step(number: u64) -> Record {
    let digest = |tag: u8| Digest::blake3([tag ^ number.to_le_bytes()[0]; 32]);
    let credit = Credit::Backpropagation {
        gradient_norm: Float(1.234_567_890_123_456_7),
        loss: Float(2.0 + 1.0 / number as f64),
        num_microbatches: 2,
        num_tokens: 512,
    };
    let draw = Draw {
        ids: digest(1),
        inputs: digest(2),
        purpose: "update".to_owned(),
        ranges: vec![PositionRange { epoch: number / 125, first: number % 125, num_examples: 8 }],
        stream: "train".to_owned(),
    };
    let update = |group: &str| GroupUpdate {
        clip_coefficient: Float(0.812_345_678),
        group: group.to_owned(),
        learning_rate: Float(0.003 / (1.0 + number as f64)),
        parameter_norm: None,
        update_norm: None,
        weight_decay: Float(0.1),
    };
    let det = StepDet {
        counters: Counters { evaluations: 0, examples: 8 * number, tokens: 512 * number },
        credit,
        draws: vec![draw],
        overflow: None,
        state: None,
        state_root: None,
        updates: vec![update("matrices"), update("rest")],
    };
    let obs = StepObs {
        bytes_sent: 0,
        duration_us: 37_000 + number,
        recording_us: 12,
        replicas: Vec::new(),
        resident_bytes: None,
        shares: Vec::new(),
    };
    Record::new(Body::Step(Box::new(Halves { det, obs })))
        .attempt(AttemptId(1))
        .segment(SegmentId(1))
        .step(number)
}
