//! Times as text in UTC, for whoever shows or exports entries.

/// Seconds of a day.
const DAY_S: u64 = 86_400;

/// Day and time of day, `YYYY-MM-DD` and `hh:mm:ss`, of seconds since the epoch
/// (proleptic Gregorian; Howard Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms", `civil_from_days`).
#[must_use]
pub fn utc(seconds: u64) -> (String, String) {
    let (day_seconds, days) = (seconds % DAY_S, seconds / DAY_S + 719_468);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (day_seconds / 3_600, day_seconds / 60 % 60, day_seconds % 60);
    (format!("{year:04}-{month:02}-{day:02}"), format!("{hour:02}:{minute:02}:{second:02}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let check = |seconds, day: &str, time: &str| {
            assert_eq!(utc(seconds), (day.to_owned(), time.to_owned()));
        };
        check(0, "1970-01-01", "00:00:00");
        check(951_782_399, "2000-02-28", "23:59:59");
        check(951_782_400, "2000-02-29", "00:00:00");
        check(951_868_800, "2000-03-01", "00:00:00");
        check(1_796_072_082, "2026-11-30", "20:54:42");
        check(4_102_444_799, "2099-12-31", "23:59:59");
    }
}
