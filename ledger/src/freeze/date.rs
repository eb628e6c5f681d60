//! Calendar days as text, `YYYY-MM-DD` in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use super::problem::Problems;
use crate::time::utc;

/// Adds a problem where an expiry is no day, or is over.
pub(super) fn check(expires: Option<&str>, pointer: &str, today: &str, problems: &mut Problems) {
    let Some(expires) = expires else { return };
    if !is_day(expires) {
        let message = format!("{expires:?} is no day; expected YYYY-MM-DD");
        problems.add(pointer, message, "name the last day in UTC, or null for no expiry");
    } else if expires < today {
        problems.add(
            pointer,
            format!("ended on {expires}; today is {today}"),
            "have it renewed before the run",
        );
    }
}

/// Whether a text is a day of the proleptic Gregorian calendar.
pub(super) fn is_day(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_shape = bytes.len() == 10
        && bytes.iter().enumerate().all(|(index, byte)| match index {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    if !is_shape {
        return false;
    }
    let number = |range: std::ops::Range<usize>| text[range].parse::<u32>().unwrap_or(0);
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let num_days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => 0,
    };
    (1..=num_days).contains(&day)
}

/// The day of a clock reading.
pub(super) fn day_of(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |duration| duration.as_secs());
    utc(seconds).0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn days_are_days() {
        for day in ["2026-11-29", "2024-02-29", "2000-02-29", "9999-12-31"] {
            assert!(is_day(day), "{day}");
        }
        for text in [
            "2026-02-29",
            "1900-02-29",
            "2026-13-01",
            "2026-00-10",
            "2026-01-00",
            "2026-1-01",
            "tomorrow",
            "",
        ] {
            assert!(!is_day(text), "{text}");
        }
    }

    #[test]
    fn seconds_become_days() {
        let check = |seconds, day: &str| assert_eq!(day_of(UNIX_EPOCH + Duration::from_secs(seconds)), day);
        check(0, "1970-01-01");
        check(951_782_399, "2000-02-28");
        check(951_782_400, "2000-02-29");
        check(951_868_800, "2000-03-01");
        check(1_795_910_400, "2026-11-29");
        check(4_102_444_799, "2099-12-31");
    }
}
