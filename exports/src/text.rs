//! Names of values, as JSON spells them.

use serde::Serialize;
use serde_json::Value;

/// The name of a value that is a string in JSON, such as an outcome; of any
/// other value, its JSON.
///
/// # Errors
/// Never for the types of `schemas`; the signature is `serde_json`'s.
pub(crate) fn name_of(value: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(match serde_json::to_value(value)? {
        Value::String(name) => name,
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::body::Outcome;

    #[test]
    fn names_are_those_of_the_record() {
        assert_eq!(name_of(&Outcome::BudgetExhausted).expect("a name"), "budget_exhausted");
        assert_eq!(name_of(&3).expect("a number"), "3");
    }
}
