//! Last days of grants and leases: `YYYY-MM-DD` in UTC, the day included.

/// Microseconds of a day; leap seconds do not occur in Unix time.
const DAY_US: u64 = 86_400_000_000;

/// The first microsecond after the day, since the Unix epoch; `None` for a
/// text that is no day from 1970 on.
#[must_use]
pub fn end_of_day_us(day: &str) -> Option<u64> {
    let bytes = day.as_bytes();
    let shape = bytes.len() == 10 && bytes[4] == b'-' && bytes[7] == b'-';
    if !shape || !bytes.iter().enumerate().all(|(at, byte)| at == 4 || at == 7 || byte.is_ascii_digit()) {
        return None;
    }
    let number = |from: usize, to: usize| day[from..to].parse::<u64>().ok();
    let (year, month, date) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    if year < 1970 || !(1..=12).contains(&month) || date < 1 || date > days_in_month(year, month) {
        return None;
    }
    let years: u64 = (1970..year).map(|year| 365 + u64::from(is_leap(year))).sum();
    let months: u64 = (1..month).map(|month| days_in_month(year, month)).sum();
    Some((years + months + date) * DAY_US)
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in_month(year: u64, month: u64) -> u64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u64::from(is_leap(year)),
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_of_the_calendar() {
        assert_eq!(end_of_day_us("1970-01-01"), Some(DAY_US));
        // date -u -d 2026-11-30T00:00:00 +%s
        assert_eq!(end_of_day_us("2026-11-29"), Some(1_795_996_800_000_000));
        // date -u -d 2000-03-01T00:00:00 +%s
        assert_eq!(end_of_day_us("2000-02-29"), Some(951_868_800_000_000));
    }

    #[test]
    fn what_is_no_day_is_refused() {
        for text in [
            "",
            "2026-2-29",
            "2026-02-29",
            "2026-13-01",
            "1969-12-31",
            "2026-00-10",
            "+026-01-01",
            "２０26-1",
        ] {
            assert_eq!(end_of_day_us(text), None, "{text:?}");
        }
    }
}
