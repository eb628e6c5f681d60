//! Members that may be left out and are never null or empty, so that there is
//! one way to say that there is nothing.

use serde::{Deserialize, Deserializer, de};

/// A member that is left out where there is nothing: null is refused.
pub(crate) fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// A list that is left out where it is empty.
pub(crate) fn not_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let list = Vec::deserialize(deserializer)?;
    if list.is_empty() { Err(de::Error::custom("an empty list is left out")) } else { Ok(list) }
}
