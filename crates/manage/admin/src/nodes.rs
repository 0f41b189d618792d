//! The targets on one dashboard page, and requests to them.
//!
//! Each request has a time limit. An answer in an unknown format counts as no answer.

use crate::guard::Token;
use farblock_admin_api::Stats;
use farblock_admin_api::Status;
use farblock_admin_client::Trust;
use farblock_admin_client::{self as client, HttpsServer};
use farblock_state::Document;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderValue;
use hyper::{Request, Response, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// The maximum number of targets on a page.
pub const MAX_NODES: usize = 64;
/// The time limit for the whole answer of a target, which is shorter than the page's limit (1.5 s).
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1000);
/// The maximum size of one answer, in bytes.
pub(crate) const MAX_BYTES: usize = 16 << 20;
/// The error for a target whose answer is invalid.
pub(crate) const NONSENSE: &str = "the answer of the target is invalid";

/// A target, with its name on the page.
#[derive(Clone, Debug)]
pub struct Node {
    /// The name of the target for people.
    pub name: String,
    /// The address of the target.
    pub place: NodePlace,
}

/// The address of a target.
#[derive(Clone, Debug)]
pub enum NodePlace {
    /// The path of its control socket.
    Socket(PathBuf),
    /// The address of its dashboard or interface, and the token.
    Address(String, Token),
    /// The dashboard or interface at `HOST:PORT`, over HTTPS, with the token and the trusted
    /// certificates.
    Https(String, Token, Trust),
}

/// The answers of one target.
#[derive(Serialize)]
pub(crate) struct Said {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stats: Option<Stats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) document: Option<Document>,
    /// The reason, if the target has not answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

pub(crate) async fn ask(node: Node, documents: bool) -> Said {
    let name = node.name.clone();
    let mut said = Said { name, status: None, stats: None, document: None, error: None };
    let both = async { tokio::try_join!(node.get("/v1/status"), node.get("/v1/stats")) };
    // A change locks the document while it waits for a slow disk. The document has its own time
    // limit, so that the page gets the other answers in any case.
    let document = async {
        match documents {
            true => within(node.get("/v1/state")).await.ok(),
            false => None,
        }
    };
    let (both, document) = tokio::join!(within(both), document);
    match both {
        Ok((status, stats)) => {
            (said.status, said.stats, said.document) = (Some(status), Some(stats), document);
        }
        Err(error) => said.error = Some(error),
    }
    said
}

pub(crate) async fn within<T>(asked: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let answered = tokio::time::timeout(ANSWER_TIMEOUT, asked).await;
    answered.unwrap_or_else(|_| Err("the target does not answer in time".to_owned()))
}

impl Node {
    /// Sends a GET request. Returns the answer, whatever its status is.
    pub(crate) async fn ask(&self, path: &str) -> Result<Response<Incoming>, String> {
        let question = Request::get(path).body(Full::default());
        self.send(question.map_err(|error| error.to_string())?).await
    }

    /// Adds the host and the token to a request, and sends it.
    pub(crate) async fn send(
        &self,
        question: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, String> {
        let said = |error: std::io::Error| client::plain(&error);
        match &self.place {
            NodePlace::Socket(socket) => {
                let stream = UnixStream::connect(socket).await.map_err(said)?;
                exchange(stream, question, "farblock", None).await
            }
            NodePlace::Address(address, token) => {
                let stream = TcpStream::connect(address).await.map_err(said)?;
                // A dashboard accepts only addresses in the Host header, not names.
                let host = stream.peer_addr().map_err(said)?.to_string();
                exchange(stream, question, &host, Some(token.bearer())).await
            }
            NodePlace::Https(address, token, trust) => {
                let stream = HttpsServer::new(address, trust)?.connect().await?;
                exchange(stream, question, address, Some(token.bearer())).await
            }
        }
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let answer = self.ask(path).await?;
        if answer.status() != StatusCode::OK {
            return Err(refusal(answer.status()));
        }
        let body = client::whole(answer, MAX_BYTES).await?;
        serde_json::from_slice(&body).map_err(|_| NONSENSE.to_owned())
    }
}

/// The error for an answer with this status.
pub(crate) fn refusal(status: StatusCode) -> String {
    match status {
        StatusCode::UNAUTHORIZED => "the target refuses the token".to_owned(),
        other => format!("the target answers with HTTP status {}", other.as_u16()),
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    mut question: Request<Full<Bytes>>,
    host: &str,
    bearer: Option<String>,
) -> Result<Response<Incoming>, String> {
    let value = |text: &str| HeaderValue::from_str(text).map_err(|error| error.to_string());
    question.headers_mut().insert(header::HOST, value(host)?);
    if let Some(bearer) = bearer {
        question.headers_mut().insert(header::AUTHORIZATION, value(&bearer)?);
    }
    client::send(stream, question).await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::{any, get};
    use axum::{Json, Router};
    use serde_json::{Value, json};

    /// A target whose HTTP answers come from `router`.
    async fn target(router: Router) -> Node {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let token = Token::new("0123456789-0123456789").unwrap();
        Node { name: address.clone(), place: NodePlace::Address(address, token) }
    }

    /// The answers of a target without namespaces.
    fn idle() -> Router {
        let status = json!({
            "listening": [], "pid": 7, "uptime_seconds": 1, "connections": 0, "subsystems": [],
            "controllers": [],
        });
        let io = serde_json::to_value(farblock_admin_api::IoStats::default()).unwrap();
        let stats = json!({
            "uptime_ms": 1, "time_ms": 1, "latency_bounds_us": [], "cores": [], "subsystems": [],
            "connections": {
                "open": 0, "accepted": 0, "refused": {}, "faults": {}, "authenticated": 0,
                "not_authenticated": {},
            },
            "hosts": [], "total": io, "other_hosts": io,
        });
        let says = |value: Value| get(move || std::future::ready(Json(value.clone())));
        Router::new().route("/v1/status", says(status)).route("/v1/stats", says(stats))
    }

    /// An invalid status would break the page, which would then show no target at all.
    #[tokio::test]
    async fn an_invalid_answer_of_a_target_is_not_passed_on() {
        let seven = any(async || "7");
        let said = ask(target(Router::new().fallback_service(seven.clone())).await, true).await;
        assert!(said.status.is_none() && said.stats.is_none());
        assert_eq!(said.error.as_deref(), Some("the answer of the target is invalid"));
        let said = ask(target(idle().fallback_service(seven)).await, true).await;
        assert_eq!(
            (said.status.map(|it| it.pid), said.document, said.error),
            (Some(7), None, None)
        );
    }

    #[tokio::test]
    async fn a_hanging_request_does_not_delay_the_status() {
        let never = any(async || std::future::pending::<()>().await);
        let busy = idle().fallback_service(never.clone());
        let said = ask(target(busy).await, true).await;
        assert_eq!(
            (said.status.map(|it| it.pid), said.document, said.error),
            (Some(7), None, None)
        );
        let said = ask(target(Router::new().fallback_service(never)).await, true).await;
        assert_eq!(said.error.as_deref(), Some("the target does not answer in time"));
        let strange = Router::new().fallback_service(any(async || "<html>"));
        let said = ask(target(strange).await, false).await;
        assert_eq!(said.error.as_deref(), Some("the answer of the target is invalid"));
        let place = NodePlace::Socket("/nonexistent/socket".into());
        let said = ask(Node { name: "gone".to_owned(), place }, false).await;
        assert_eq!(said.error.as_deref(), Some("No such file or directory"));
    }
}
