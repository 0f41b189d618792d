//! Checks of requests on TCP: whether the token is valid, and whether the request is for this
//! server.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use subtle::ConstantTimeEq;

/// The limits on the length of a token: too long to guess, and short enough for a header.
const SHORTEST_TOKEN_BYTES: usize = 20;
const LONGEST_TOKEN_BYTES: usize = 256;

/// A secret that grants access to the interface.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Creates a token from `text`.
    ///
    /// # Errors
    /// The reason why the text is no token, which does not repeat the text.
    pub fn new(text: &str) -> Result<Self, String> {
        let lengths = SHORTEST_TOKEN_BYTES..=LONGEST_TOKEN_BYTES;
        match text.bytes().all(|byte| byte.is_ascii_graphic()) && lengths.contains(&text.len()) {
            true => Ok(Self(text.to_owned())),
            false => Err(format!(
                "a token has {SHORTEST_TOKEN_BYTES} to {LONGEST_TOKEN_BYTES} printable ASCII \
                 characters, without spaces"
            )),
        }
    }

    /// The value of an `Authorization` header with this token.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Compares the token with `given` in constant time.
    pub(crate) fn is(&self, given: &str) -> bool {
        self.0.as_bytes().ct_eq(given.as_bytes()).into()
    }

    /// Whether both tokens are the same secret.
    pub(crate) fn is_the(&self, other: &Token) -> bool {
        self.is(&other.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// The token in the headers of a request.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    // The name of the scheme is case-insensitive (RFC 9110, 11.1).
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' '))
}

/// Requires that the `Host` header, if present, is an IP address or localhost. Browsers always send
/// the header.
pub(crate) async fn by_address(request: Request<Body>, next: Next) -> Response {
    match host(&request).is_none_or(is_an_address) {
        true => next.run(request).await,
        false => misdirected(),
    }
}

/// The `Host` header of a request. It is empty if its value is not text.
pub(crate) fn host(request: &Request<Body>) -> Option<&str> {
    request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default())
}

/// The answer to a request whose `Host` header names another server.
pub(crate) fn misdirected() -> Response {
    let detail = "use this machine's address, or localhost: the target refuses other host names, \
        because an attacker could point another name to this address\n";
    (StatusCode::MISDIRECTED_REQUEST, detail).into_response()
}

/// Whether a `Host` header is an IP address or localhost, with any port.
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
    fn only_loopback_host_headers_are_accepted() {
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
    fn short_long_and_malformed_tokens_are_refused() {
        assert!(Token::new(&"x".repeat(SHORTEST_TOKEN_BYTES)).is_ok());
        assert!(Token::new(&"x".repeat(LONGEST_TOKEN_BYTES)).is_ok());
        for bad in ["x".repeat(SHORTEST_TOKEN_BYTES - 1), "x".repeat(LONGEST_TOKEN_BYTES + 1)] {
            assert!(Token::new(&bad).is_err(), "{bad}");
        }
        assert!(Token::new("with spaces in between it").is_err());
        let token = Token::new("01234567890123456789").unwrap();
        assert!(token.is("01234567890123456789"));
        assert!(!token.is("0123456789012345678") && !token.is("01234567890123456788"));
        assert_eq!(format!("{token:?}"), "Token", "the debug output contains no secret");
    }
}
