//! Times as text, RFC 3339 in UTC.

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

/// `YYYY-MM-DDThh:mm:ss` (proleptic Gregorian; Hinnant, "chrono-compatible
/// low-level date algorithms").
fn seconds(time_us: u64) -> String {
    let seconds = time_us / 1_000_000;
    let (day_seconds, days) = (seconds % 86_400, seconds / 86_400 + 719_468);
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (day_seconds / 3_600, day_seconds / 60 % 60, day_seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
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
