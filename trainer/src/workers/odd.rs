//! Which replica is not the others'.

use std::collections::{BTreeMap, BTreeSet};

use schemas::digest::Digest;

/// The worker whose digest is not the others': worker 0 where all others agree
/// with each other, else the first that differs from it.
pub(super) fn odd_one(digests: &BTreeMap<u32, Digest>) -> Option<u32> {
    let own = digests.get(&0)?;
    let others: BTreeSet<&[u8; 32]> =
        digests.iter().filter(|(worker, _)| **worker > 0).map(|(_, digest)| &digest.bytes).collect();
    let first = digests.iter().find(|(_, digest)| *digest != own).map(|(worker, _)| *worker)?;
    let is_own = digests.len() > 2 && others.len() == 1;
    Some(if is_own { 0 } else { first })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_that_differs_is_named() {
        let of = |digests: &[u8]| {
            let digests = (0..).zip(digests).map(|(worker, byte)| (worker, Digest::blake3([*byte; 32])));
            odd_one(&digests.collect())
        };
        assert_eq!(of(&[1, 1, 1]), None);
        assert_eq!(of(&[1, 2]), Some(1), "of two the one that records is believed");
        assert_eq!(of(&[1, 1, 2, 1]), Some(2));
        assert_eq!(of(&[2, 1, 1]), Some(0), "all others agree with each other");
        assert_eq!(of(&[1, 2, 3]), Some(1));
    }
}
