//! Segment challenges and their replays: what `ledger challenge` and `trainer
//! replay` write, and what is drawn from the numbers in a challenge.

use schemas::challenge::{Challenge, Replay};
use validator::challenge::{detection, drawn_places, parse_nonce};

use super::document::{FACTOR, by_writer};
use super::memory::bounded;
use super::run;

/// The draw is made again from whatever numbers a challenge names: it ends, takes
/// no more than there were drawn, and its chance is one.
fn draw_again(challenge: &Challenge) {
    let Ok(nonce) = parse_nonce(&challenge.nonce) else { return };
    let (root, size) = (&challenge.head.root.bytes, challenge.head.size);
    let (num_segments, num_drawn) = (challenge.num_segments, challenge.drawn.len() as u64);
    let places = drawn_places(root, size, &nonce, num_segments, num_drawn);
    assert_eq!(places.len() as u64, num_drawn.min(num_segments));
    assert!(places.iter().all(|place| *place < num_segments), "{places:?} of {num_segments}");
    for num_forged in [0, 1, num_segments / 2, num_segments] {
        let chance = detection(num_segments, num_forged, num_drawn);
        assert!((0.0..=1.0).contains(&chance), "{chance}");
    }
}

fn property(bytes: &[u8]) -> bool {
    let challenge = bounded(bytes, FACTOR, || validator::fuzzing::challenge(bytes));
    let writer: Option<Challenge> = bounded(bytes, FACTOR, || by_writer(bytes));
    assert_eq!(writer, challenge, "both accept the same challenges");
    let replay = bounded(bytes, FACTOR, || validator::fuzzing::replay(bytes));
    let writer: Option<Replay> = bounded(bytes, FACTOR, || by_writer(bytes));
    assert_eq!(writer, replay, "both accept the same replays");
    if let Some(challenge) = &challenge {
        bounded(bytes, FACTOR, || draw_again(challenge));
    }
    challenge.is_some() || replay.is_some()
}

#[test]
fn challenge() {
    run::target("challenge", property);
}
