//! Why no rule can react to a field of the contract, and what a reaction is
//! worth that does not say it by itself.

/// Only one value can be read; any other makes the contract none.
const ONE_VALUE: &str = "the edition has one value; with any other the contract cannot be read (GL101)";

/// Where the freeze found a file whose bytes the ledger holds.
const STORED: &str = "the file's bytes are in the ledger, under the digest and size that the contract binds (GL104); \
                      where the freeze found them changes nothing that was trained on";

/// What a rule can ask of words.
const WORDS: &str = "words for people: a rule can ask that they are there, and not what they say";

/// A value that leaves no trace in a record.
const RANGE: &str =
    "only its range: what it decides leaves no number in the record that could be derived without training";

const EVOLUTION: &str =
    "no step of this edition evolves (GL222), and the record of one that did holds its population alone";

const EXTENSION: &str = "what a non-critical extension says is hashed, listed and shown, and known to no rule of the edition; a \
                         critical one is not evaluated";

const FAULT_SEED: &str =
    "how far a fault reaches decides what damage it does, and damage is looked for wherever it is";

const SOURCE: &str =
    "the source's ledger need not be at hand; whoever has it compares the head that the lineage names";

const RECIPIENT: &str = "only its form: an age file does not say to whom it is sealed; the qualifier's program compares it with its own key";

const CAMPAIGN: &str = "which campaign, arm, trial and rung a run is of is compared by the campaign's ledger (GC109, GC114, GC118)";

const OTHER_MEMBERS: &str =
    "another kind has other members, so that it is never changed alone; GL709 judges a run of either";

const NUMBERS: &str = "a probe's record holds one number of each continuation; of which metric it is shows only in executing it";

const DAYS: &str =
    "only that it is above 0: whether something is kept for so long shows when somebody asks for it";

static REASONS: &[(&str, &str)] = &[
    ("/architecture/dropout", RANGE),
    ("/architecture/family", ONE_VALUE),
    ("/credit/antithetic", EVOLUTION),
    ("/credit/rank", EVOLUTION),
    ("/data/terms", WORDS),
    ("/data/train_examples/path", STORED),
    ("/data/val_examples/path", STORED),
    ("/evaluation/streams/*/metric", ONE_VALUE),
    ("/extensions/*/schema_digest", EXTENSION),
    ("/extensions/*/value", EXTENSION),
    ("/faults/plan/*/seed", FAULT_SEED),
    ("/floors/free_disk_bytes", RANGE),
    ("/floors/free_memory_bytes", RANGE),
    ("/format", ONE_VALUE),
    ("/initialization/kind", ONE_VALUE),
    ("/initialization/lineage/head/root", SOURCE),
    ("/keys/qualifier_recipient", RECIPIENT),
    ("/membership/arm", CAMPAIGN),
    ("/membership/campaign", CAMPAIGN),
    ("/membership/kind", OTHER_MEMBERS),
    ("/membership/preregistration/path", STORED),
    ("/membership/rescue_level", CAMPAIGN),
    ("/membership/trial", CAMPAIGN),
    ("/name", WORDS),
    ("/nonclaims/*", WORDS),
    ("/numerics/reduction", ONE_VALUE),
    ("/objective", ONE_VALUE),
    ("/parameters/path", STORED),
    ("/purpose/authority/granted_by", WORDS),
    ("/purpose/authority/non_authorities/*", WORDS),
    ("/purpose/authority/scope", WORDS),
    ("/purpose/statement", WORDS),
    ("/qualification/metric", ONE_VALUE),
    ("/quality_target/derivation", WORDS),
    ("/residuals/*/description", WORDS),
    ("/residuals/*/owner", WORDS),
    ("/resume/test/metric", NUMBERS),
    ("/retention/custodian", WORDS),
    ("/retention/days", DAYS),
    ("/selection/tie", ONE_VALUE),
    ("/state_tree/scheme", ONE_VALUE),
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
