//! Places in a contract, and in the documents that it names.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A place in a contract: an RFC 6901 pointer, which stands for everything
/// below it as well. Behind the place of a [`crate::contract::FileBinding`] of
/// a JSON document a `#` and a pointer into that document may follow:
/// `/schedule/0/shape/peak`, `/update/card#/groups/0/weight_decay`. The binding
/// (digest and size) then differs with what stands there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct ContractPointer(pub String);

impl ContractPointer {
    /// The place in the contract, and the place in the document that is bound
    /// there, where one is meant.
    #[must_use]
    pub fn parts(&self) -> (&str, Option<&str>) {
        self.0.split_once('#').map_or((self.0.as_str(), None), |(place, inner)| (place, Some(inner)))
    }

    /// Whether both parts are pointers: empty or beginning with `/`, with `~`
    /// only in `~0` and `~1`. The first part is never empty, since that would
    /// be the whole contract.
    #[must_use]
    pub fn is_well_formed(&self) -> bool {
        let (place, inner) = self.parts();
        !place.is_empty()
            && is_pointer(place)
            && inner.is_none_or(|inner| !inner.is_empty() && is_pointer(inner))
    }

    /// Whether `place`, a place in a contract, or with `inner` in the document
    /// that is bound there, is this place or lies below it.
    #[must_use]
    pub fn covers(&self, place: &str, inner: Option<&str>) -> bool {
        match (self.parts(), inner) {
            ((own, None), _) => is_at_or_below(place, own),
            ((own, Some(own_inner)), Some(inner)) => place == own && is_at_or_below(inner, own_inner),
            ((_, Some(_)), None) => false,
        }
    }
}

impl fmt::Display for ContractPointer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

fn is_pointer(text: &str) -> bool {
    let mut escapes = text.split('~').skip(1);
    (text.is_empty() || text.starts_with('/'))
        && escapes.all(|rest| rest.starts_with(['0', '1']))
        && !text.contains('#')
}

fn is_at_or_below(place: &str, above: &str) -> bool {
    place.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_covers_what_lies_below_it() {
        let check = |pointer: &str, place: &str, inner: Option<&str>, expected: bool| {
            let pointer = ContractPointer(pointer.to_owned());
            assert!(pointer.is_well_formed(), "{pointer}");
            assert_eq!(pointer.covers(place, inner), expected, "{pointer} {place} {inner:?}");
        };
        check("/schedule", "/schedule", None, true);
        check("/schedule", "/schedule/0/shape", None, true);
        check("/schedule", "/schedules", None, false);
        check("/schedule/0/shape", "/schedule/0", None, false);
        check("/update/card", "/update/card/digest", None, true);
        check("/update/card", "/update/card", Some("/groups/0"), true);
        check("/update/card#/groups/0", "/update/card", Some("/groups/0/weight_decay"), true);
        check("/update/card#/groups/0", "/update/card", Some("/groups/01"), false);
        check("/update/card#/groups/0", "/update/card", None, false);
        check("/a~1b/m~0n", "/a~1b/m~0n/0", None, true);
    }

    #[test]
    fn what_is_no_pointer_is_seen() {
        for text in
            ["", "schedule", "#/groups", "/update/card#", "/update/card#groups", "/a~2", "/a~", "/a#/b#/c"]
        {
            assert!(!ContractPointer(text.to_owned()).is_well_formed(), "{text:?}");
        }
    }
}
