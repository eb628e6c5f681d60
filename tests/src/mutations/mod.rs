//! Mutations of real records: what the validator has to see, and what it cannot.
//!
//! A run that the trainer's program made and that is accepted is read as a
//! [`Record`], changed in one respect by a [`Mutation`], made whole again with
//! the keys of an [`Attacker`] (every hash, head and signature that these can
//! make), and audited. Only mutations that parsing, schema and integrity accept
//! count. One that survives is a defect of the validator, or says why nobody
//! could know: then it is documented, and being killed after all is a failure
//! too, since the reason is wrong.
//!
//! A suite is a function that returns its mutations; [`suites`] lists them.
//! Nothing here knows how a rule works: what fires is read from the report.

pub mod campaigns;
mod carry;
pub mod generated;
pub mod judge;
pub mod named;
pub mod record;
pub mod records;
pub mod reseal;
pub mod run;
pub mod table;

use std::sync::Arc;

use anyhow::Result;

pub use judge::{FORM_AND_INTEGRITY, Judged, judge, report};
pub use record::Record;
pub use records::{Origin, Records};
pub use reseal::{Attacker, Sealed};
pub use run::{Outcome, Tried};

/// What a mutation does to a record.
pub type Edit = Arc<dyn Fn(&mut Record) -> Result<()> + Send + Sync>;

/// One change of one real record.
#[derive(Clone)]
pub struct Mutation {
    /// Whose keys make it whole again.
    pub attacker: Attacker,
    /// The change.
    pub edit: Edit,
    /// Codes of rules of which at least one has to fire; empty where it
    /// survives.
    pub expected: Vec<String>,
    /// Whether the attacker puts the norms on record that an audit derives from
    /// what was changed, wherever one can be written ([`crate::norms`]).
    pub fits_norms: bool,
    /// Whether no rule but the expected ones may keep the verdict from
    /// `accepted`.
    pub is_sole: bool,
    /// Unique within its suite.
    pub name: String,
    /// Whether the reviewer has the public keys of the run as it was, by another
    /// way than the ledger.
    pub names_keys: bool,
    /// The run that it changes.
    pub origin: Origin,
    /// Its suite.
    pub suite: &'static str,
    /// Why nobody who sees the record could know; `None`: it has to be killed.
    pub survivor: Option<&'static str>,
}

impl Mutation {
    /// A mutation by the trainer's key that one of `expected` has to find.
    pub fn new(
        suite: &'static str,
        name: impl Into<String>,
        origin: Origin,
        expected: &[&'static str],
        edit: impl Fn(&mut Record) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            attacker: Attacker::Trainer,
            edit: Arc::new(edit),
            expected: expected.iter().map(|code| (*code).to_owned()).collect(),
            fits_norms: false,
            is_sole: false,
            name: name.into(),
            names_keys: false,
            origin,
            suite,
            survivor: None,
        }
    }

    /// The same with the owner's key too.
    #[must_use]
    pub fn with_owner(mut self) -> Self {
        self.attacker = Attacker::OwnerAndTrainer;
        self
    }

    /// The same by somebody who asks the audit which norms would fit.
    #[must_use]
    pub fn with_norms_that_fit(mut self) -> Self {
        self.fits_norms = true;
        self
    }

    /// The same before a reviewer who has the run's public keys.
    #[must_use]
    pub fn before_named_keys(mut self) -> Self {
        self.names_keys = true;
        self
    }

    /// The same, and no other rule may fire.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.is_sole = true;
        self
    }

    /// Documents that it survives, and why nobody could know.
    #[must_use]
    pub fn survives(mut self, reason: &'static str) -> Self {
        self.expected = Vec::new();
        self.survivor = Some(reason);
        self
    }
}

/// A named list of mutations.
pub struct Suite {
    /// Whether each of its mutations has to pass parsing, schema and integrity.
    pub has_to_count: bool,
    /// Its mutations; a run is made only where one of them needs it.
    pub mutations: fn(&Records) -> Result<Vec<Mutation>>,
    /// Name, as in the table.
    pub name: &'static str,
}

/// Every suite, in the order of the table.
#[must_use]
pub fn suites() -> Vec<Suite> {
    named::suites().into_iter().chain([generated::SUITE]).collect()
}
