//! The interface on TCP, for clients with a token. Each token has a role, and a name for the audit
//! log.
//!
//! Tokens are too long to guess. The server nevertheless limits the cost of wrong tokens. It
//! answers a wrong token after a second. If an address has sent many, it answers "too many
//! requests". All users of a machine, tunnel or proxy share one address and must not lock each
//! other out, so the server accepts a valid token even from such an address. The server refuses
//! requests from pages of other sites: browsers send the origin of the page.

use crate::api;
use crate::audit::{self, AUDIT};
use crate::busy::busy;
use crate::callers::{Caller, Visitor};
use crate::events::Events;
use crate::guard::{Token, bearer, is_an_address};
use crate::problems::trouble;
use crate::steering::Steering;
use axum::Router;
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The delay of the answer to a wrong token.
const DELAY: Duration = Duration::from_secs(1);
/// The number of wrong tokens from one address within [`WHILE`] above which the server answers "too
/// many requests".
const WRONG_MAX: u32 = 10;
const WHILE: Duration = Duration::from_secs(60);
/// The maximum number of addresses whose wrong tokens the server counts.
const ADDRESSES_MAX: usize = 4096;
const TOKENS_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 64;

/// The configuration of an interface on TCP.
pub struct Remote {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The accepted tokens.
    pub tokens: Tokens,
}

/// The rights that a token grants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The holder may read everything.
    ReadOnly,
    /// The holder may also make changes.
    Admin,
}

/// The accepted tokens.
#[derive(Clone, Debug)]
pub struct Tokens(Vec<Holder>);

#[derive(Clone, Debug)]
struct Holder {
    name: String,
    role: Role,
    token: Token,
}

impl Tokens {
    /// Parses one token per line: its name, `read-only` or `admin`, and the secret. Ignores empty
    /// lines and lines that start with `#`.
    ///
    /// # Errors
    /// The reason, without the name of the file or any part of a secret.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).enumerate();
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let holder = |(index, line): (usize, &str)| {
            holder(line).map_err(|problem| format!("line {}: {problem}", index + 1))
        };
        let holders: Vec<_> = lines.map(holder).collect::<Result<_, _>>()?;
        let is_twice = |(index, one): (usize, &Holder)| {
            holders[..index].iter().any(|it| it.name == one.name || it.token.is_the(&one.token))
        };
        match holders.len() {
            0 => Err("the file contains no token".to_owned()),
            count if count > TOKENS_MAX => {
                Err(format!("the file contains more than {TOKENS_MAX} tokens"))
            }
            _ if holders.iter().enumerate().any(is_twice) => {
                Err("two tokens have the same name or secret".to_owned())
            }
            _ => Ok(Self(holders)),
        }
    }

    /// Finds the holder of a token, in constant time.
    fn holder(&self, given: &str) -> Option<&Holder> {
        self.0.iter().fold(None, |found, one| if one.token.is(given) { Some(one) } else { found })
    }
}

fn holder(line: &str) -> Result<Holder, String> {
    let mut words = line.split_whitespace();
    let (Some(name), Some(role), Some(token), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("write NAME read-only|admin TOKEN".to_owned());
    };
    if name.len() > NAME_BYTES_MAX || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("a name has at most {NAME_BYTES_MAX} printable ASCII characters"));
    }
    let role = match role {
        "read-only" => Role::ReadOnly,
        "admin" => Role::Admin,
        _ => return Err("a role is read-only or admin".to_owned()),
    };
    Ok(Holder { name: name.to_owned(), role, token: Token::new(token)? })
}

/// For each address, the time of the first wrong token and the number of wrong tokens since.
#[derive(Default)]
struct Attempts(Mutex<HashMap<IpAddr, (Instant, u32)>>);

impl Attempts {
    /// Whether this address has sent fewer wrong tokens than the maximum.
    fn may_try(&self, from: IpAddr, now: Instant) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .get(&from)
            .is_none_or(|(since, count)| *count < WRONG_MAX || now.duration_since(*since) >= WHILE)
    }

    /// Counts a wrong token. True if it is the first from this address within [`WHILE`].
    fn note(&self, from: IpAddr, now: Instant) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= ADDRESSES_MAX {
            known.retain(|_, (since, _)| now.duration_since(*since) < WHILE);
        }
        // The server does not count the wrong tokens of further addresses. It only delays its
        // answers.
        if known.len() >= ADDRESSES_MAX && !known.contains_key(&from) {
            return false;
        }
        let (since, count) = known.entry(from).or_insert((now, 0));
        if now.duration_since(*since) >= WHILE {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        *count == 1
    }
}

/// The address for which wrong tokens are counted. For IPv6 it is the /64 network of a household or
/// machine.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let prefix = u128::from(address) >> 64 << 64;
            IpAddr::V6(prefix.into())
        }
        v4 => v4,
    }
}

struct Guard {
    tokens: Tokens,
    attempts: Attempts,
    /// Whether TLS is in use, so that the certificate proves the host name.
    is_secure: bool,
}

/// The routes that require a token. With `is_secure`, skips the check against DNS rebinding: the
/// certificate proves the host name.
pub(crate) fn router(
    steering: Arc<Steering>,
    tokens: Tokens,
    events: Events,
    is_secure: bool,
) -> Router {
    let guarding = Arc::new(Guard { tokens, attempts: Attempts::default(), is_secure });
    api::router(Arc::clone(&steering))
        .merge(api::told(steering, events))
        .layer(from_fn(busy::<Visitor>))
        .layer(from_fn_with_state(guarding, guard))
}

/// Admits requests whose token has a sufficient role.
async fn guard(
    State(guarding): State<Arc<Guard>>,
    ConnectInfo(Visitor { from, .. }): ConnectInfo<Visitor>,
    mut request: Request,
    next: Next,
) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let is_ours = guarding.is_secure || host.is_some_and(is_an_address);
    if request.headers().contains_key(header::ORIGIN) || !is_ours {
        let detail = "this interface is for programs, at this machine's address or localhost: it \
            refuses web pages and other host names";
        return trouble(StatusCode::MISDIRECTED_REQUEST, "refused", detail);
    }
    let Some(holder) = bearer(request.headers()).and_then(|given| guarding.tokens.holder(given))
    else {
        return not_let_in(&guarding, from).await;
    };
    let caller = Caller { name: holder.name.clone(), from };
    let only_looks = matches!(*request.method(), Method::GET | Method::HEAD);
    if holder.role == Role::ReadOnly && !only_looks {
        let asked = format!("{} {:?}", request.method(), request.uri().path());
        audit::refusal(from.ip(), || {
            tracing::warn!(target: AUDIT, who = %caller, request = %asked, "refused: read-only");
        });
        let detail = "this token is read-only: use one whose role is admin";
        return trouble(StatusCode::FORBIDDEN, "not allowed", detail);
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// Counts a wrong token, and answers after a delay.
async fn not_let_in(guarding: &Guard, from: SocketAddr) -> Response {
    let (stranger, now) = (network(from.ip()), Instant::now());
    let may_try = guarding.attempts.may_try(stranger, now);
    if guarding.attempts.note(stranger, now) {
        tracing::warn!(target: AUDIT, "no valid token, from {from}");
    }
    tokio::time::sleep(DELAY).await;
    if may_try { no_token() } else { too_many() }
}

fn no_token() -> Response {
    let detail = "this interface needs a token from the target's --api-tokens file";
    let mut refusal = trouble(StatusCode::UNAUTHORIZED, "no valid token", detail);
    refusal.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    refusal.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    refusal
}

fn too_many() -> Response {
    let detail = "this address sent too many wrong tokens: try again in a minute, or send a token \
        from the target's --api-tokens file";
    let mut refusal = trouble(StatusCode::TOO_MANY_REQUESTS, "too many attempts", detail);
    refusal.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("60"));
    refusal.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    refusal
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123";

    #[test]
    fn token_file_errors_do_not_contain_the_secrets() {
        let other = "fedcba9876543210fedc";
        let text = format!("# ours\n\nops admin {SECRET}\n watch  read-only {other} \n");
        let tokens = Tokens::parse(&text).unwrap();
        assert_eq!(tokens.holder(SECRET).map(|it| it.role), Some(Role::Admin));
        assert_eq!(tokens.holder(other).map(|it| it.name.as_str()), Some("watch"));
        assert!(tokens.holder("").is_none() && tokens.holder(&SECRET[1..]).is_none());
        assert!(!format!("{tokens:?}").contains(SECRET), "the debug output contains no secret");
        for (bad, why) in [
            (String::new(), "no token"),
            (format!("ops {SECRET}"), "line 1: write NAME"),
            (format!("ops root {SECRET}"), "a role is"),
            ("ops admin short".to_owned(), "a token has"),
            (format!("a admin {SECRET}\nb admin {SECRET}"), "same name or secret"),
            (format!("a admin {SECRET}\na admin {other}"), "same name or secret"),
            (format!("{} admin {SECRET}", "n".repeat(NAME_BYTES_MAX + 1)), "a name has"),
            (format!("a\u{1b}[2J admin {SECRET}"), "a name has"),
        ] {
            let problem = Tokens::parse(&bad).unwrap_err();
            assert!(problem.contains(why) && !problem.contains(SECRET), "{problem}");
        }
    }

    #[test]
    fn an_address_with_many_wrong_tokens_is_blocked_for_a_while() {
        let attempts = Attempts::default();
        let (one, other) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let begin = Instant::now();
        for count in 0..WRONG_MAX {
            assert!(attempts.may_try(one, begin));
            assert_eq!(attempts.note(one, begin), count == 0);
        }
        assert!(!attempts.may_try(one, begin) && attempts.may_try(other, begin));
        assert!(attempts.may_try(one, begin + WHILE));
        assert!(attempts.note(one, begin + WHILE), "a new period begins");
        assert!(attempts.may_try(one, begin + WHILE));
    }

    #[test]
    fn the_number_of_remembered_addresses_is_bounded() {
        let attempts = Attempts::default();
        let begin = Instant::now();
        for number in 0..2 * u32::try_from(ADDRESSES_MAX).unwrap() {
            attempts.note(IpAddr::V4(number.into()), begin);
        }
        assert_eq!(attempts.0.lock().unwrap().len(), ADDRESSES_MAX);
        attempts.note("192.0.2.1".parse().unwrap(), begin + WHILE);
        assert_eq!(attempts.0.lock().unwrap().len(), 1);
        let same = ["2001:db8::1", "2001:db8::ffff"].map(|it| network(it.parse().unwrap()));
        assert_eq!(same[0], same[1]);
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        assert_eq!(network(mapped), "192.0.2.1".parse::<IpAddr>().unwrap());
    }
}
