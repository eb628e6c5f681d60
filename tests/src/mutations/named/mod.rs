//! Named suites: each mutation stands for a way in which a run can be false that
//! somebody thought of, and says which rules have to find it.
//!
//! The lists follow the reference's counts: 21 mutations of the run as a
//! transaction, seven of what a checkpoint of weights and step alone would leave
//! out, nine of the complete encoding, and 18 of the optimizer's policy card.
//! [`sole`] shows of each rule what it alone finds.

mod complete_encoding;
mod edits;
mod optimizer_card;
pub mod runs;
pub mod sole;
mod transaction;
mod weight_only;

pub use complete_encoding::mutations as complete_encoding;
pub use optimizer_card::mutations as optimizer_card;
pub use transaction::mutations as transaction;
pub use weight_only::mutations as weight_only;
