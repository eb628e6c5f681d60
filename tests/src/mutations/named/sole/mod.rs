//! What each semantic rule alone finds.
//!
//! One mutation of a real record for each rule that can reject a run and is not
//! one of form and integrity: the audit without that rule would accept it. Rules of which that cannot be shown are in
//! [`NOT_SOLE`], with the reason. A rule that is in neither list fails the test,
//! so that none is added without one.

mod attempts;
mod frame;
mod state;
mod updates;

pub(super) use state::summed;

use anyhow::Result;

use super::edits;
use crate::mutations::records::Origin;
use crate::mutations::{Mutation, Record, Records};

pub(super) const SUITE: &str = "sole";

/// Rules that are the only killer of nothing, and why.
pub const NOT_SOLE: &[(&str, &str)] = &[
    (
        "GL109",
        "of numbers that are not the qualifier's, or not of this run, GL508 says that it has nothing to compare with; \
         this rule says whose they are not",
    ),
    ("GL012", "it warns and rejects nothing: a clock that goes back is no proof"),
    ("GL016", "it warns and rejects nothing: two hosts' clocks that disagree are no proof"),
    ("GL219", "it warns and rejects nothing: a duration that is odd is no proof"),
    ("GL220", "it warns and rejects nothing: a loss that is odd is no proof"),
    ("GL310", "it warns and rejects nothing: how much text two splits may share is for the owner to say"),
    ("GL230", "it notes and warns, and rejects nothing: a run that was killed may go on"),
    (
        "GL306",
        "what a step drew is in its ranges, which GL302 compares one by one, and which steps there are is GL204's; \
         this rule says of both together which examples were used too often or too rarely",
    ),
    (
        "GL409",
        "GL613 gives the digest of the file of frozen parameters, and bytes that have another one contradict it or \
         their own digest; this rule names the parameter and the element",
    ),
    (
        "GL633",
        "GL607 derives the text of every generator byte for byte, and GL632 inside of accumulation windows; this rule \
         says whose stream it is, and that it was lost where it stands as if it had begun again",
    ),
    (
        "GL642",
        "moments that are zero do not have the sum that GL415 derives from the norms on record; this rule says that \
         they are empty, and not only that they are others",
    ),
    (
        "GL644",
        "GL607 gives the key of each worker's stream, so that no two workers have one without a wrong one among \
         them, and GL604 gives each worker its file; this rule says which two draw alike",
    ),
    (
        "GL645",
        "GL605 gives the tensors of every file, a tied head's among them; this rule says what is wrong with it",
    ),
    ("GL650", "it warns and rejects nothing: retiring is allowed and no duty"),
    ("GL647", "it notes and rejects nothing: that no probe was made is no fault of the run"),
    ("GL704", "it notes and rejects nothing: which keys one host made is no fault of the run"),
    ("GL706", "it warns and rejects nothing: an expectation is no promise"),
    ("GL709", "it notes that a run that stands alone has no denominator of runs"),
    ("GL711", "it says who saw what was injected, and rejects nothing"),
];

/// The suite.
///
/// # Errors
/// None; the list is fixed.
pub(super) fn mutations(_: &Records) -> Result<Vec<Mutation>> {
    Ok(joined([frame::list(), attempts::list(), updates::list(), state::list()]))
}

/// Lists of mutations, one behind the other.
fn joined<const N: usize>(lists: [Vec<Mutation>; N]) -> Vec<Mutation> {
    lists.into_iter().flatten().collect()
}

/// A mutation by the trainer that one rule has to find alone.
fn trainer(code: &'static str, what: &str, origin: Origin, edit: fn(&mut Record) -> Result<()>) -> Mutation {
    Mutation::new(SUITE, format!("{code}: {what}"), origin, &[code], edit).alone()
}

/// The same by the owner and the trainer.
fn owner(code: &'static str, what: &str, origin: Origin, edit: fn(&mut Record) -> Result<()>) -> Mutation {
    trainer(code, what, origin, edit).with_owner()
}
