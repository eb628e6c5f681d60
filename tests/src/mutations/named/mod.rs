//! Named suites: each mutation stands for a way in which a run can be false that
//! somebody thought of, and says which rules have to find it.
//!
//! The lists follow the reference's counts: 21 mutations of the run as a
//! transaction, to which two are added, seven of what a checkpoint of weights and
//! step alone would leave out, nine of the complete encoding, and 18 of the
//! optimizer's policy card, to which five are added.
//! [`sole`] shows of each rule what it alone finds, [`implied`] what others find
//! too, and [`unknowable`] what nobody does.

mod complete_encoding;
mod edits;
pub mod implied;
pub mod invented;
mod optimizer_card;
pub mod runs;
pub mod sole;
mod transaction;
mod unknowable;
mod weight_only;

use super::Suite;

/// The suites, in the order of the table. Each of their mutations has to pass
/// parsing, schema and integrity: a name that stands for damage stands for
/// nothing.
#[must_use]
pub fn suites() -> Vec<Suite> {
    let suite = |name, mutations| Suite { has_to_count: true, mutations, name };
    vec![
        suite(transaction::SUITE, transaction::mutations),
        suite(weight_only::SUITE, weight_only::mutations),
        suite(complete_encoding::SUITE, complete_encoding::mutations),
        suite(optimizer_card::SUITE, optimizer_card::mutations),
        suite(sole::SUITE, sole::mutations),
        suite(implied::SUITE, implied::mutations),
        suite(unknowable::SUITE, unknowable::mutations),
    ]
}
