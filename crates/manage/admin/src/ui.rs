//! The dashboard: a page for browsers, and the interface behind a token, on TCP.
//!
//! The page itself is public and contains no data. All figures come from the interface, where every
//! URL requires the token (`Authorization: Bearer`). The token is not a cookie, so requests that
//! other pages trigger do not contain it, and there is no CORS. The `Host` header must be an
//! address, because a name could belong to another site (DNS rebinding).

use crate::api;
use crate::busy::busy;
use crate::callers::Visitor;
use crate::events::Events;
use crate::guard::{Token, bearer, host, is_an_address, misdirected};
use crate::history::History;
use crate::problems::trouble;
use crate::steering::Steering;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use std::net::SocketAddr;
use std::sync::Arc;

/// The policy that forbids inline code, foreign sources and framing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// The headers of every answer.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The files of the page, built from dashboard/: URL, type and contents.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("../ui/index.html")),
    ("/app.js", "text/javascript; charset=utf-8", include_str!("../ui/app.js")),
    ("/app.css", "text/css; charset=utf-8", include_str!("../ui/app.css")),
    ("/icon.svg", "image/svg+xml", include_str!("../ui/icon.svg")),
];

/// The configuration of a dashboard.
pub struct Ui {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The required token.
    pub token: Token,
    /// Whether clients may make changes.
    pub may_steer: bool,
}

/// Information about this program, for the page.
#[derive(serde::Serialize)]
struct About {
    version: &'static str,
    may_steer: bool,
    /// Whether the target is a member of a group.
    in_group: bool,
}

pub(crate) fn router(
    steering: Arc<Steering>,
    ui: Ui,
    events: Events,
    history: History,
    is_secure: bool,
) -> Router {
    let (may_steer, in_group) = (ui.may_steer, steering.group().is_some());
    let about = About { version: env!("CARGO_PKG_VERSION"), may_steer, in_group };
    let about = serde_json::to_value(about).expect("our types serialize to JSON");
    let inside = api::router(Arc::clone(&steering));
    let inside = inside.merge(api::told(steering, events)).merge(history.router());
    guarded(inside, about, ui, is_secure)
}

/// A router with the public page. The routes `inside` and the information `about` require the
/// token.
///
/// Against DNS rebinding, a request must have an IP address in its `Host` header. If `is_secure`,
/// it may have any name, because the certificate proves the name.
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

/// Requires the token. For changes, also requires that changes are allowed.
async fn guard(State(ui): State<Arc<Ui>>, request: Request, next: Next) -> Response {
    if !bearer(request.headers()).is_some_and(|given| ui.token.is(given)) {
        let detail = "the dashboard needs the token that farblock serve printed at its start, or \
            the token in its --ui-token file";
        let mut refusal = trouble(StatusCode::UNAUTHORIZED, "no valid token", detail);
        let scheme = HeaderValue::from_static("Bearer");
        refusal.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        return refusal;
    }
    if !ui.may_steer && !matches!(*request.method(), Method::GET | Method::HEAD) {
        let detail = "this page is read-only: to make changes here, start farblock serve with \
            --ui-steer, or farblock ui with --steer; or use farblock ctl";
        return trouble(StatusCode::FORBIDDEN, "not allowed", detail);
    }
    next.run(request).await
}

/// Requires an address in the `Host` header, and adds security headers to the answer.
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
