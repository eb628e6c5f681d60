//! What stands between a reviewer's browser and everything else: a loopback
//! `Host` (so that a foreign page cannot reach the server by rebinding a
//! name), GET and HEAD only, and headers that forbid any foreign resource.

use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// No inline script or style, nothing from elsewhere, no frames, no forms away.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self'; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'";

/// Refuses what is not a plain read from this machine, and adds the headers.
pub(crate) async fn guard(request: Request, next: Next) -> Response {
    let mut response = if !is_loopback(request.headers().get(header::HOST)) {
        (StatusCode::FORBIDDEN, "this server answers only under a loopback name\n").into_response()
    } else if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let allow = [(header::ALLOW, "GET, HEAD")];
        (StatusCode::METHOD_NOT_ALLOWED, allow, "this server only reads\n").into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn is_loopback(host: Option<&HeaderValue>) -> bool {
    let Some(host) = host.and_then(|value| value.to_str().ok()) else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    matches!(name, "localhost" | "127.0.0.1" | "::1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_pass() {
        let check = |text: &str| is_loopback(HeaderValue::from_str(text).ok().as_ref());
        assert!(check("localhost:8080"));
        assert!(check("127.0.0.1"));
        assert!(check("[::1]:80"));
        assert!(!check("ledger.example"));
        assert!(!check("localhost.example:80"));
        assert!(!check("127.0.0.1.example"));
        assert!(!is_loopback(None));
    }
}
