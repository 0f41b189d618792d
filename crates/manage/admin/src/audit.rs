//! The audit log: one line for each change that a client requests over the interface. This module
//! also converts all refusals to one format.

use crate::callers::{Caller, Peer, Visitor};
use crate::problems::{Outcome, PROBLEM, trouble};
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::extract::connect_info::ConnectInfo;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use farblock_target::Notices;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;
use std::time::Instant;

/// The log target of audit lines. Programs should print these lines at every log level.
pub const AUDIT: &str = "farblock::audit";

const MAX_REFUSAL_BYTES: usize = 4096;

/// Limits the log lines about refused requests from the network. A client without a token, or with
/// a read-only token, can send any number of such requests.
static REFUSALS: LazyLock<Notices<&'static str>> = LazyLock::new(Notices::default);

/// Logs a refused request from this address. If the address sends many, only counts the request.
pub(crate) fn refusal(from: IpAddr, log: impl FnOnce()) {
    REFUSALS.say("requests refused", from, Instant::now(), log);
}

/// Logs the number of refused requests that were only counted. The server calls this periodically.
pub(crate) fn settle() {
    REFUSALS.settle(Instant::now());
}

/// Answers a request, logs it if it is a change, and converts errors of the HTTP framework to
/// `application/problem+json`.
pub(crate) async fn note(request: Request, next: Next) -> Response {
    let line = Line::of(&request);
    let answer = in_our_form(next.run(request).await).await;
    line.write(&answer);
    answer
}

/// The data for the log line of a request.
pub(crate) struct Line {
    who: String,
    asked: String,
    only_looks: bool,
    /// The address of the client; `None` on the control socket.
    from: Option<IpAddr>,
}

impl Line {
    pub(crate) fn of(request: &Request) -> Line {
        let only_looks = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        let asked = format!("{} {}", request.method(), request.uri().path());
        Line { who: who(request), asked, only_looks, from: address(request) }
    }

    /// Logs the request, unless the request only reads.
    pub(crate) fn write(&self, answer: &Response) {
        let (who, request) = (&self.who, &self.asked);
        if let Some(Outcome(outcome)) = answer.extensions().get().filter(|_| !self.only_looks) {
            let status = answer.status().as_u16();
            let log = || tracing::info!(target: AUDIT, %who, %request, status, "{outcome}");
            match self.from.filter(|_| !answer.status().is_success()) {
                Some(from) => refusal(from, log),
                None => log(),
            }
        }
    }
}

/// The caller of a request. If a dashboard of several targets forwarded the request, also the
/// address of the browser, as the dashboard reports it.
fn who(request: &Request) -> String {
    match behind(request.headers()) {
        Some(behind) => format!("{} (forwarded for {behind})", caller(request)),
        None => caller(request),
    }
}

/// The browser's address that the dashboard reports in the header `Forwarded`. Ignores a value that
/// is not an address, because the log line contains the value.
fn behind(headers: &HeaderMap) -> Option<SocketAddr> {
    let said = headers.get(header::FORWARDED)?.to_str().ok()?;
    said.strip_prefix("for=\"")?.strip_suffix('"')?.parse().ok()
}

/// The name of the caller: a local user, the name of a token, or the dashboard with the browser's
/// address.
fn caller(request: &Request) -> String {
    let extensions = request.extensions();
    if let Some(caller) = extensions.get::<Caller>() {
        return caller.to_string();
    }
    if let Some(ConnectInfo(visitor)) = extensions.get::<ConnectInfo<Visitor>>() {
        return visitor.to_string();
    }
    let peer = extensions.get::<ConnectInfo<Peer>>();
    peer.map_or_else(|| "an unknown process".to_owned(), |ConnectInfo(peer)| peer.to_string())
}

fn address(request: &Request) -> Option<IpAddr> {
    let extensions = request.extensions();
    let caller = extensions.get::<Caller>().map(Caller::address);
    let visitor = || extensions.get::<ConnectInfo<Visitor>>().map(|visitor| visitor.0.from.ip());
    caller.or_else(visitor)
}

/// Converts a refusal of the framework (wrong method, body too long, malformed query) to
/// `application/problem+json`.
async fn in_our_form(answer: Response) -> Response {
    let status = answer.status();
    let is_ours = answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == PROBLEM);
    if !(status.is_client_error() || status.is_server_error()) || is_ours {
        return answer;
    }
    let (mut head, body) = answer.into_parts();
    let text = to_bytes(body, MAX_REFUSAL_BYTES).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let detail = match (status, text.trim()) {
        (StatusCode::METHOD_NOT_ALLOWED, _) => {
            "this address does not support the method: see the header Allow"
        }
        (StatusCode::PAYLOAD_TOO_LARGE, _) => "a request can have at most 2 MiB",
        (_, "") => "the target cannot parse the request",
        (_, said) => said,
    };
    let title = status.canonical_reason().unwrap_or("refused");
    let (ours, text) = trouble(status, title, detail).into_parts();
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.extend(ours.headers);
    head.extensions.insert(Outcome(detail.to_owned()));
    Response::from_parts(head, Body::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_one_address_log_a_few_lines() {
        let (from, mut lines) = ("192.0.2.77".parse().unwrap(), 0);
        (0..1000).for_each(|_| refusal(from, || lines += 1));
        assert!((1..20).contains(&lines), "{lines}");
    }

    #[test]
    fn the_forwarded_header_gives_an_address_or_nothing() {
        let said = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::FORWARDED, text.parse().unwrap());
            behind(&headers).map(|address| address.to_string())
        };
        assert_eq!(said("for=\"127.0.0.1:80\"").as_deref(), Some("127.0.0.1:80"));
        assert_eq!(said("for=\"[::1]:80\"").as_deref(), Some("[::1]:80"));
        for other in ["", "for=root", "for=\"root\"", "for=\"127.0.0.1:80\";by=x"] {
            assert_eq!(said(other), None, "{other}");
        }
        assert_eq!(behind(&HeaderMap::new()), None);
    }
}
