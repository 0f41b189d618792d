//! Forwards changes from the dashboard of several targets. Each target authorizes this program by
//! its token or user, and logs the address of the browser.
//!
//! Clients can change only the document and its subsystems. This program forwards every answer
//! except for a 401 (wrong token): the page would relate a 401 to its own token, and log out.

use crate::audit::{self, AUDIT};
use crate::callers::Visitor;
use crate::nodes::{MAX_BYTES, Node};
use crate::problems::trouble;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Path, State};
use axum::http::header::{self, HeaderMap, HeaderName};
use axum::http::{Method, StatusCode, Uri};
use axum::response::Response;
use axum::routing::get;
use farblock_admin_client as client;
use http_body_util::Full;
use hyper::Request;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The time limit for an answer of a target. It is shorter than the limit of the page (40 s), and
/// longer than the time for which a target waits for a disk.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(35);

/// The headers to forward: `ASKED` of requests, `ANSWERED` of answers.
const ASKED: [HeaderName; 2] = [header::IF_MATCH, header::CONTENT_TYPE];
const ANSWERED: [HeaderName; 2] = [header::ETAG, header::CONTENT_TYPE];

type Names = Path<HashMap<String, String>>;

/// The routes to each target.
pub(crate) fn router(nodes: Arc<[Node]>) -> Router {
    let all = get(pass).put(pass).patch(pass).delete(pass);
    Router::new()
        .route("/v1/nodes/{node}/state", get(pass))
        .route("/v1/nodes/{node}/subsystems/{*rest}", all)
        .with_state(nodes)
}

async fn pass(
    State(nodes): State<Arc<[Node]>>,
    ConnectInfo(visitor): ConnectInfo<Visitor>,
    Path(names): Names,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let name = names.get("node").map_or("", String::as_str);
    let Some(node) = nodes.iter().find(|node| node.name == name) else {
        let detail = format!("this page has no target {name:?}");
        return trouble(StatusCode::NOT_FOUND, "not found", &detail);
    };
    // Keep the escapes of the URL as received, since names may contain any character.
    let way = uri.path().splitn(5, '/').nth(4).unwrap_or_default();
    let asked = format!("{method} /v1/{way}");
    let only_looks = method == Method::GET;
    let answer = match question(&method, way, &headers, body, visitor.from) {
        Ok(question) => exchange(node, question).await,
        Err(error) => Err(error),
    };
    let answer = answer.unwrap_or_else(|why| {
        let detail = format!("{name}: {why}");
        trouble(StatusCode::BAD_GATEWAY, "no answer from the target", &detail)
    });
    if !only_looks {
        let status = answer.status().as_u16();
        let log = || {
            tracing::info!(target: AUDIT, who = %visitor, node = %name, request = %asked, status,
                "forwarded");
        };
        match answer.status().is_success() {
            true => log(),
            false => audit::refusal(visitor.from.ip(), log),
        }
    }
    answer
}

fn question(
    method: &Method,
    way: &str,
    headers: &HeaderMap,
    body: Bytes,
    from: SocketAddr,
) -> Result<Request<Full<Bytes>>, String> {
    let mut question = Request::builder().method(method).uri(format!("/v1/{way}"));
    for name in ASKED {
        if let Some(value) = headers.get(&name) {
            question = question.header(name, value);
        }
    }
    let question = question.header(header::FORWARDED, format!("for=\"{from}\""));
    question.body(Full::new(body)).map_err(|error| error.to_string())
}

async fn exchange(node: &Node, question: Request<Full<Bytes>>) -> Result<Response, String> {
    let exchange = async {
        let answer = node.send(question).await?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        if status == StatusCode::UNAUTHORIZED {
            return Err("the target refuses the token".to_owned());
        }
        let mut response = Response::new(Body::from(client::whole(answer, MAX_BYTES).await?));
        *response.status_mut() = status;
        for name in ANSWERED {
            if let Some(value) = headers.get(&name) {
                response.headers_mut().insert(name, value.clone());
            }
        }
        Ok(response)
    };
    let answered = tokio::time::timeout(ANSWER_TIMEOUT, exchange).await;
    answered.unwrap_or_else(|_| Err("the target does not answer in time".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Token;
    use crate::nodes::NodePlace;
    use axum::extract::Request as Asked;
    use axum::response::IntoResponse;

    /// A target that answers with the request that it got, or refuses the request.
    async fn target(status: StatusCode) -> Node {
        let echo = async move |asked: Asked| {
            let said = |name: &str| {
                let value = asked.headers().get(name).map(|value| value.to_str().unwrap());
                value.unwrap_or("-").to_owned()
            };
            let head = ["authorization", "if-match", "forwarded", "cookie"].map(said).join(" ");
            let text = format!("{} {} {head}", asked.method(), asked.uri());
            (status, [("etag", "\"7\""), ("x-other", "no")], text).into_response()
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let router = Router::new().fallback(echo);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let token = Token::new("0123456789-0123456789").unwrap();
        Node { name: "left".to_owned(), place: NodePlace::Address(address, token) }
    }

    async fn asked(node: &Node, way: &str) -> Result<(Response, String), String> {
        let mut headers = HeaderMap::new();
        for (name, value) in [("if-match", "\"6\""), ("cookie", "a"), ("forwarded", "for=\"x\"")] {
            headers.insert(name, value.parse().unwrap());
        }
        let from = "127.0.0.1:9".parse().unwrap();
        let question = question(&Method::PATCH, way, &headers, Bytes::new(), from)?;
        let (head, body) = exchange(node, question).await?.into_parts();
        let body = axum::body::to_bytes(body, 4096).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        Ok((Response::from_parts(head, Body::empty()), text))
    }

    #[tokio::test]
    async fn a_forwarded_change_keeps_its_path_headers_and_client() {
        let node = target(StatusCode::PRECONDITION_FAILED).await;
        let (answer, text) = asked(&node, "subsystems/nqn.a%2Fb/hosts/%2e%2e").await.unwrap();
        let way = "PATCH /v1/subsystems/nqn.a%2Fb/hosts/%2e%2e";
        let rest = "Bearer 0123456789-0123456789 \"6\" for=\"127.0.0.1:9\" -";
        assert_eq!(text, format!("{way} {rest}"));
        assert_eq!(answer.status(), StatusCode::PRECONDITION_FAILED);
        assert_eq!(answer.headers()["etag"], "\"7\"");
        assert!(!answer.headers().contains_key("x-other"));
    }

    /// The page would relate a 401 to its own token, and log out.
    #[tokio::test]
    async fn a_401_of_a_target_is_not_forwarded_as_a_401() {
        let refused = asked(&target(StatusCode::UNAUTHORIZED).await, "subsystems/a").await;
        assert_eq!(refused.unwrap_err(), "the target refuses the token");
        let place = NodePlace::Socket("/nonexistent/socket".into());
        let gone = asked(&Node { name: "gone".to_owned(), place }, "state").await;
        assert_eq!(gone.unwrap_err(), "No such file or directory");
    }
}
