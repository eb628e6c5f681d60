//! Style, script and the vendored chart library, compiled into the binary.

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

const STYLE: &str = include_str!("../../assets/style.css");
const CHARTS: &str = include_str!("../../assets/charts.js");
const UPLOT_SCRIPT: &str = include_str!("../../assets/vendor/uplot/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("../../assets/vendor/uplot/uPlot.min.css");
const UPLOT_LICENSE: &str = include_str!("../../assets/vendor/uplot/LICENSE");

pub(crate) async fn asset(Path(name): Path<String>) -> Response {
    let (kind, text) = match name.as_str() {
        "style.css" => ("text/css; charset=utf-8", STYLE),
        "charts.js" => ("text/javascript; charset=utf-8", CHARTS),
        "uplot.js" => ("text/javascript; charset=utf-8", UPLOT_SCRIPT),
        "uplot.css" => ("text/css; charset=utf-8", UPLOT_STYLE),
        "uplot-license.txt" => ("text/plain; charset=utf-8", UPLOT_LICENSE),
        _ => return (StatusCode::NOT_FOUND, "no such asset\n").into_response(),
    };
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "max-age=3600")], text).into_response()
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    /// The vendored files are those of the npm package uplot 1.6.32, unchanged.
    #[test]
    fn vendored_files_are_the_published_ones() {
        let check = |text: &str, expected: &str| {
            assert_eq!(schemas::digest::encode_hex(&Sha256::digest(text.as_bytes())), expected);
        };
        check(UPLOT_SCRIPT, "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f");
        check(UPLOT_STYLE, "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04");
    }
}
