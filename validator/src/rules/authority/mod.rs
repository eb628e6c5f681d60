//! `GL7xx`: claims and their limits, authority, keys, what a reader should know.

mod authority_grant;
mod envelope;
mod fault_attribution;
mod fault_effects;
mod faults;
mod faults_seen;
mod independence;
mod interventions;
mod keys;
mod nonclaims;
mod run_denominator;
mod sealed_set;

use crate::rule::Rule;

/// Rules of this group in the order of their codes.
pub(crate) static RULES: &[&dyn Rule] = &[
    &nonclaims::Nonclaims,
    &authority_grant::AuthorityGrant,
    &keys::KeysRule,
    &independence::IndependenceRule,
    &sealed_set::SealedSet,
    &envelope::Envelope,
    &faults::Faults,
    &interventions::Interventions,
    &run_denominator::RunDenominator,
    &fault_attribution::FaultAttribution,
    &faults_seen::FaultsSeen,
];
