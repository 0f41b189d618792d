//! The dashboard: a browser page, and the interface behind a token, on TCP.
//!
//! The page itself is public and contains no data: all figures come from the interface, where every
//! address requires the token (`Authorization: Bearer`). The token is not a cookie, so requests
//! that other pages trigger do not carry it, and there is no CORS. `Host` must be an address, since
//! a name could be another site's (DNS rebinding).

use crate::api;
use crate::bounded::{Active, Activity, Bounded, busy};
use crate::events::Events;
use crate::history::History;
use crate::steering::Steering;
use crate::tls_listener::TlsListener;
use axum::body::Body;
use axum::extract::connect_info::Connected;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::IncomingStream;
use axum::{Json, Router};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// Limits on a token's length: too long to guess, short enough for a header.
const SHORTEST_TOKEN_BYTES: usize = 20;
const LONGEST_TOKEN_BYTES: usize = 256;

/// Forbids inline code, foreign sources and framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// Headers of every answer.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The page's files, built from dashboard/: address, type and content.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("../ui/index.html")),
    ("/app.js", "text/javascript; charset=utf-8", include_str!("../ui/app.js")),
    ("/app.css", "text/css; charset=utf-8", include_str!("../ui/app.css")),
    ("/icon.svg", "image/svg+xml", include_str!("../ui/icon.svg")),
];

/// Configuration of a dashboard.
pub struct Ui {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The required token.
    pub token: Token,
    /// Whether changes are allowed.
    pub may_steer: bool,
}

/// A secret that grants access to the dashboard.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// The secret `text`.
    ///
    /// # Errors
    /// The error, as the end of a sentence.
    pub fn new(text: &str) -> Result<Self, String> {
        let lengths = SHORTEST_TOKEN_BYTES..=LONGEST_TOKEN_BYTES;
        match text.bytes().all(|byte| byte.is_ascii_graphic()) && lengths.contains(&text.len()) {
            true => Ok(Self(text.to_owned())),
            false => Err(format!(
                "a token is {SHORTEST_TOKEN_BYTES} to {LONGEST_TOKEN_BYTES} letters, digits and \
                 signs of ASCII, without spaces"
            )),
        }
    }

    /// The value of the `Authorization` header.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Compares in constant time.
    pub(crate) fn is(&self, given: &str) -> bool {
        self.0.as_bytes().ct_eq(given.as_bytes()).into()
    }

    /// Whether both are the same secret.
    pub(crate) fn is_the(&self, other: &Token) -> bool {
        self.is(&other.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// The client of a TCP connection. All dashboard visitors share one token.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    pub(crate) from: SocketAddr,
    activity: Activity,
}

impl Connected<IncomingStream<'_, Bounded<TlsListener>>> for Visitor {
    fn connect_info(stream: IncomingStream<'_, Bounded<TlsListener>>) -> Self {
        Self { from: *stream.remote_addr(), activity: stream.io().activity() }
    }
}

impl Active for Visitor {
    fn activity(&self) -> &Activity {
        &self.activity
    }
}

impl fmt::Display for Visitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the dashboard, from {}", self.from)
    }
}

/// The program's information for the page.
#[derive(serde::Serialize)]
struct About {
    version: &'static str,
    may_steer: bool,
}

pub(crate) fn router(
    steering: Arc<Steering>,
    ui: Ui,
    events: Events,
    history: History,
    is_secure: bool,
) -> Router {
    let about = About { version: env!("CARGO_PKG_VERSION"), may_steer: ui.may_steer };
    let about = serde_json::to_value(about).expect("our own types are JSON");
    let inside = api::router(Arc::clone(&steering));
    let inside = inside.merge(api::told(steering, events)).merge(history.router());
    guarded(inside, about, ui, is_secure)
}

/// A router with the public page. `inside` and the information `about` need the token.
///
/// `is_secure`: the certificate proves the host name.
pub(crate) fn guarded(inside: Router, about: serde_json::Value, ui: Ui, is_secure: bool) -> Router {
    let inside = inside
        .route("/ui.json", get(move || std::future::ready(Json(about.clone()))))
        .layer(from_fn(busy::<Visitor>))
        .layer(from_fn_with_state(Arc::new(ui), guard));
    let mut router = inside;
    for (path, kind, content) in FILES {
        let answer = move || std::future::ready(([(header::CONTENT_TYPE, kind)], content));
        router = router.route(path, get(answer));
    }
    router.layer(from_fn_with_state(is_secure, harden))
}

/// Requires the token and, for changes, permission to make them.
async fn guard(State(ui): State<Arc<Ui>>, request: Request, next: Next) -> Response {
    if !bearer(request.headers()).is_some_and(|given| ui.token.is(given)) {
        let detail = "this needs the token that farblock serve printed when it started, or that \
                      is in the file of its --ui-token";
        let mut refusal = api::trouble(StatusCode::UNAUTHORIZED, "no valid token", detail);
        let scheme = HeaderValue::from_static("Bearer");
        refusal.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        return refusal;
    }
    if !ui.may_steer && !matches!(*request.method(), Method::GET | Method::HEAD) {
        let detail = "this page may only look: start farblock serve with --ui-steer, or farblock \
                      ui with --steer, to change things here, or use farblock ctl";
        return api::trouble(StatusCode::FORBIDDEN, "not allowed here", detail);
    }
    next.run(request).await
}

pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    // Schemes are case-insensitive (RFC 9110, 11.1).
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' '))
}

/// Requires an address as `Host`, or none; browsers always send one.
pub(crate) async fn by_address(request: Request<Body>, next: Next) -> Response {
    match host(&request).is_none_or(is_an_address) {
        true => next.run(request).await,
        false => misdirected(),
    }
}

fn host(request: &Request<Body>) -> Option<&str> {
    // A value that is not text is not an address.
    request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default())
}

fn misdirected() -> Response {
    let detail = "use this machine's address, or localhost: other names are not answered, since a \
                  stranger's name may lead here\n";
    (StatusCode::MISDIRECTED_REQUEST, detail).into_response()
}

/// Requires an address as `Host`, and adds security headers.
async fn harden(State(is_secure): State<bool>, request: Request<Body>, next: Next) -> Response {
    let mut response = match is_secure || host(&request).is_some_and(is_an_address) {
        true => next.run(request).await,
        false => misdirected(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Whether a `Host` is an IP address or localhost, with any port.
pub(crate) fn is_an_address(host: &str) -> bool {
    let parses = |text: &str| text.parse::<IpAddr>().is_ok();
    let without_port = |text: &'_ str| match text.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name.to_owned(),
        _ => text.to_owned(),
    };
    if host.parse::<SocketAddr>().is_ok() {
        return true;
    }
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => parses(inner),
        None => {
            let name = without_port(host);
            name.eq_ignore_ascii_case("localhost") || parses(&name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_not_answered() {
        for ours in ["127.0.0.1", "127.0.0.1:80", "[::1]:80", "[::1]", "localhost:1", "LOCALHOST"] {
            assert!(is_an_address(ours), "{ours}");
        }
        for other in
            ["", "evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.e"]
        {
            assert!(!is_an_address(other), "{other}");
        }
    }

    #[test]
    fn tokens_are_neither_short_nor_odd() {
        assert!(Token::new(&"x".repeat(SHORTEST_TOKEN_BYTES)).is_ok());
        assert!(Token::new(&"x".repeat(LONGEST_TOKEN_BYTES)).is_ok());
        for bad in ["x".repeat(SHORTEST_TOKEN_BYTES - 1), "x".repeat(LONGEST_TOKEN_BYTES + 1)] {
            assert!(Token::new(&bad).is_err(), "{bad}");
        }
        assert!(Token::new("with spaces in between it").is_err());
        let token = Token::new("01234567890123456789").unwrap();
        assert!(token.is("01234567890123456789"));
        assert!(!token.is("0123456789012345678") && !token.is("01234567890123456788"));
        assert_eq!(format!("{token:?}"), "Token", "it is in no log");
    }
}
