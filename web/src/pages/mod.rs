//! One file a page: its template struct, its handler, its JSON twin.

pub(crate) mod assets;
pub(crate) mod campaign;
pub(crate) mod entries;
pub(crate) mod entry;
pub(crate) mod run;
pub(crate) mod runs;

use askama::Template;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};

use crate::source::SourceError;

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage {
    message: String,
    hint: String,
}

/// A page, or the plain reason why it could not be made.
pub(crate) fn render(template: &impl Template) -> Response {
    match template.render() {
        Ok(text) => Html(text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("template: {error}\n")).into_response(),
    }
}

/// An error as a page with a hint.
pub(crate) fn error_page(status: StatusCode, message: String, hint: &str) -> Response {
    (status, render(&ErrorPage { message, hint: hint.to_owned() })).into_response()
}

pub(crate) async fn not_found() -> Response {
    error_page(StatusCode::NOT_FOUND, "There is no such page.".to_owned(), "The list of runs is at /.")
}

impl IntoResponse for SourceError {
    fn into_response(self) -> Response {
        let (status, hint) = match &self {
            Self::NoSuchRun { .. } => (StatusCode::NOT_FOUND, "The list of runs is at /."),
            Self::Campaign { .. } => {
                (StatusCode::NOT_FOUND, "Run `ledger campaign audit` on the file: it names what is wrong.")
            }
            Self::Folder { .. } | Self::Read { .. } => {
                (StatusCode::INTERNAL_SERVER_ERROR, "Run `ledger audit` on the file: it names what is wrong.")
            }
        };
        error_page(status, self.to_string(), hint)
    }
}

/// Runs blocking work (files, SQLite) off the server's threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SourceError> + Send + 'static,
) -> Result<T, Response> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(IntoResponse::into_response),
        Err(error) => Err(error_page(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("Reading the ledger failed: {error}"),
            "Run `ledger audit` on the file.",
        )),
    }
}

/// Thousands separated by commas.
pub(crate) fn grouped(value: &u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `YYYY-MM-DD hh:mm:ss UTC` of microseconds since the epoch (proleptic
/// Gregorian; Hinnant, "chrono-compatible low-level date algorithms").
pub(crate) fn utc(time_us: &u64) -> String {
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
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_counts_read_as_people_write_them() {
        assert_eq!(utc(&0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(&951_782_400_000_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(&1_796_072_082_000_000), "2026-11-30 20:54:42 UTC");
        assert_eq!(grouped(&0), "0");
        assert_eq!(grouped(&999), "999");
        assert_eq!(grouped(&1_234_567), "1,234,567");
    }
}
