//! Why no rule can react to a field of the contract, and what a reaction is
//! worth that does not say it by itself.

/// Only one value can be read; any other makes the contract none.
const ONE_VALUE: &str = "the edition has one value; with any other the contract cannot be read (GL101)";

/// Where the freeze found a file whose bytes the ledger holds.
const STORED: &str = "the file's bytes are in the ledger, under the digest and size that the contract binds (GL104); \
                      where the freeze found them changes nothing that was trained on";

static REASONS: &[(&str, &str)] = &[
    ("/architecture/family", ONE_VALUE),
    ("/data/train_examples/path", STORED),
    ("/data/val_examples/path", STORED),
    ("/evaluation/streams/*/metric", ONE_VALUE),
    ("/initialization/kind", ONE_VALUE),
    ("/numerics/reduction", ONE_VALUE),
    ("/objective", ONE_VALUE),
    ("/parameters/path", STORED),
    ("/qualification/metric", ONE_VALUE),
    ("/selection/tie", ONE_VALUE),
    ("/update/card/path", STORED),
];

/// The reason that is given for a pointer.
pub(super) fn of(pointer: &str) -> Option<&'static str> {
    REASONS.iter().find(|(of, _)| *of == pointer).map(|(_, reason)| *reason)
}

/// Every pointer with a reason.
#[cfg(test)]
pub(super) fn pointers() -> impl Iterator<Item = &'static str> {
    REASONS.iter().map(|(pointer, _)| *pointer)
}
