//! Times as text, RFC 3339 in UTC.

use ledger::time::utc;

/// `YYYY-MM-DDThh:mm:ss.ffffffZ` of microseconds since the epoch.
#[must_use]
pub fn rfc3339(time_us: u64) -> String {
    format!("{}.{:06}Z", seconds(time_us), time_us % 1_000_000)
}

/// `YYYY-MM-DDThh:mm:ss.fff+00:00`, the one form that every reader of RO-Crates
/// takes.
#[must_use]
pub fn rfc3339_offset(time_us: u64) -> String {
    format!("{}.{:03}+00:00", seconds(time_us), time_us % 1_000_000 / 1_000)
}

/// `YYYY-MM-DDThh:mm:ss`.
fn seconds(time_us: u64) -> String {
    let (day, time) = utc(time_us / 1_000_000);
    format!("{day}T{time}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(rfc3339(951_782_400_000_001), "2000-02-29T00:00:00.000001Z");
        assert_eq!(rfc3339(1_796_072_082_500_000), "2026-11-30T20:54:42.500000Z");
        assert_eq!(rfc3339_offset(1_796_072_082_500_999), "2026-11-30T20:54:42.500+00:00");
    }
}
