//! What survives, and why nobody who sees the record could know.
//!
//! A field is listed by the kinds that have it and its pointer. An entry that
//! turns out to be killed is a failure: then the reason is wrong.

/// Why the day decided it.
struct Unknowable {
    /// Kinds, or empty for every kind.
    kinds: &'static [&'static str],
    /// Operations, or empty for every one.
    operations: &'static [&'static str],
    /// Pointer; `*` at its end stands for any rest.
    pointer: &'static str,
    /// Why nobody could know.
    reason: &'static str,
}

const LIST: &[Unknowable] = &[];

/// Why a change survives; `None` where it has to be killed.
#[must_use]
pub fn reason(kind: &str, pointer: &str, operation: &str) -> Option<&'static str> {
    let fits = |names: &[&str], name: &str| names.is_empty() || names.contains(&name);
    let found = LIST.iter().find(|one| {
        let is_there = match one.pointer.strip_suffix('*') {
            Some(start) => pointer.starts_with(start),
            None => pointer == one.pointer,
        };
        is_there && fits(one.kinds, kind) && fits(one.operations, operation)
    });
    found.map(|one| one.reason)
}
