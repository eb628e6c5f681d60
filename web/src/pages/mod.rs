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

/// `YYYY-MM-DD hh:mm:ss UTC` of microseconds since the epoch.
pub(crate) fn utc(time_us: &u64) -> String {
    let (day, time) = ledger::time::utc(time_us / 1_000_000);
    format!("{day} {time} UTC")
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
