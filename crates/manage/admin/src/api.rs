//! The HTTP interface.
//!
//! Everything that a document has can be read and changed at an address of its own, which is the
//! way to it through the document. A change of a part is one of the whole document: it is checked
//! and made as one.

use crate::metrics::render;
use crate::status::{ControllerStatus, NamespaceStatus, Status, SubsystemStatus};
use crate::steering::{Changed, Refused, Steering};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use farblock_state::{Document, Host, Listener, Namespace, Problem, Referral, Subsystem};
use farblock_state::{patch, pointer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use utoipa::OpenApi;

type Steered = State<Arc<Steering>>;

/// What a change did.
#[derive(Serialize, utoipa::ToSchema)]
struct Done {
    /// A sentence for each step; none if nothing was to be done.
    changed: Vec<String>,
}

/// Why something was not done (RFC 9457).
#[derive(Serialize, utoipa::ToSchema)]
struct Trouble {
    /// A few words.
    title: &'static str,
    /// HTTP's status code.
    status: u16,
    /// One sentence.
    detail: String,
    /// The field that is wrong: its names from the top of the document, dots between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
}

#[derive(Deserialize, utoipa::IntoParams)]
struct ReloadOptions {
    /// Only say what would be changed.
    #[serde(default)]
    dry_run: bool,
}

#[derive(OpenApi)]
#[openapi(
    info(title = "farblock", description = "Steers a running target.", version = "1"),
    paths(
        state_read,
        state_replace,
        status,
        metrics,
        reload,
        subsystem::read,
        subsystem::replace,
        subsystem::change,
        subsystem::remove,
        namespace::read,
        namespace::replace,
        namespace::change,
        namespace::remove,
        host::read,
        host::replace,
        host::change,
        host::remove,
        listener::read,
        listener::replace,
        listener::change,
        listener::remove,
        referral::read,
        referral::replace,
        referral::change,
        referral::remove,
    ),
    components(schemas(
        Document,
        Subsystem,
        Namespace,
        Host,
        Listener,
        Referral,
        Done,
        Trouble,
        Status,
        SubsystemStatus,
        NamespaceStatus,
        ControllerStatus
    ))
)]
struct Api;

/// The interface's description, as `docs/openapi.json` has it.
pub fn openapi() -> String {
    let mut text = Api::openapi().to_pretty_json().expect("our own types are JSON");
    text.push('\n');
    text
}

pub(crate) fn router(steering: Arc<Steering>) -> Router {
    Router::new()
        .route("/v1/state", get(state_read).put(state_replace))
        .route("/v1/status", get(status))
        .route("/v1/reload", post(reload))
        .route("/metrics", get(metrics))
        .merge(subsystem::router())
        .merge(namespace::router())
        .merge(host::router())
        .merge(listener::router())
        .merge(referral::router())
        .fallback(async || trouble(StatusCode::NOT_FOUND, "not found", "there is nothing here"))
        .with_state(steering)
}

/// The whole document.
#[utoipa::path(get, path = "/v1/state", responses((status = 200, body = Document)))]
async fn state_read(State(steering): Steered) -> Response {
    let (document, etag) = steering.document();
    json(StatusCode::OK, Some(&etag), document.to_json())
}

/// Makes all of it as this document says.
#[utoipa::path(put, path = "/v1/state", request_body = Document,
    responses((status = 200, body = Done), (status = "4XX", body = Trouble)))]
async fn state_replace(State(steering): Steered, headers: HeaderMap, body: Bytes) -> Response {
    let text = String::from_utf8_lossy(&body).into_owned();
    edit(steering, &headers, move |_| Document::parse(&text).map_err(Refused::Problem)).await
}

/// What the target does at the moment.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status)))]
async fn status(State(steering): Steered) -> Response {
    let text = serde_json::to_string_pretty(&steering.status()).expect("our own types are JSON");
    json(StatusCode::OK, None, text)
}

/// Counters in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String)))]
pub(crate) async fn metrics(State(steering): Steered) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], render(&steering.status())).into_response()
}

/// Reads the configuration file again, and makes what changed in it so.
#[utoipa::path(post, path = "/v1/reload", params(ReloadOptions),
    responses((status = 200, body = Done), (status = "4XX", body = Trouble)))]
async fn reload(State(steering): Steered, Query(options): Query<ReloadOptions>) -> Response {
    let work = move || steering.reload(options.dry_run);
    answer(tokio::task::spawn_blocking(work).await)
}

/// The four things that can be done with a part of the document.
macro_rules! part {
    ($module:ident, $kind:ty, $path:literal, $($parameter:literal),+) => {
        mod $module {
            use super::*;

            pub(super) fn router() -> Router<Arc<Steering>> {
                let methods = get(read).put(replace).patch(change).delete(remove);
                Router::new().route($path, methods)
            }

            /// As it is.
            #[utoipa::path(get, path = $path,
                operation_id = concat!("read_", stringify!($module)),
                params($(($parameter = String, Path)),+),
                responses((status = 200, body = $kind), (status = "4XX", body = Trouble)))]
            pub(super) async fn read(State(steering): Steered, names: Names) -> Response {
                read_part(&steering, &place($path, &names))
            }

            /// Makes it like this, new if it is not there.
            #[utoipa::path(put, path = $path,
                operation_id = concat!("replace_", stringify!($module)),
                params($(($parameter = String, Path)),+), request_body = $kind,
                responses((status = 200, body = Done), (status = "4XX", body = Trouble)))]
            pub(super) async fn replace(
                State(steering): Steered,
                names: Names,
                headers: HeaderMap,
                body: Bytes,
            ) -> Response {
                let place = place($path, &names);
                edit_part(steering, &headers, place, Edit::Replace(body)).await
            }

            /// Changes it as a JSON merge patch says (RFC 7396).
            #[utoipa::path(patch, path = $path,
                operation_id = concat!("change_", stringify!($module)),
                params($(($parameter = String, Path)),+), request_body = Value,
                responses((status = 200, body = Done), (status = "4XX", body = Trouble)))]
            pub(super) async fn change(
                State(steering): Steered,
                names: Names,
                headers: HeaderMap,
                body: Bytes,
            ) -> Response {
                let place = place($path, &names);
                edit_part(steering, &headers, place, Edit::Patch(body)).await
            }

            /// Takes it away.
            #[utoipa::path(delete, path = $path,
                operation_id = concat!("remove_", stringify!($module)),
                params($(($parameter = String, Path)),+),
                responses((status = 200, body = Done), (status = "4XX", body = Trouble)))]
            pub(super) async fn remove(
                State(steering): Steered,
                names: Names,
                headers: HeaderMap,
            ) -> Response {
                edit_part(steering, &headers, place($path, &names), Edit::Remove).await
            }
        }
    };
}

/// The names in an address.
type Names = Path<HashMap<String, String>>;

/// The way through the document that an address is.
fn place(path: &str, names: &HashMap<String, String>) -> Vec<String> {
    let name = |part: &str| match part.strip_prefix('{').and_then(|it| it.strip_suffix('}')) {
        Some(parameter) => names.get(parameter).cloned().unwrap_or_default(),
        None => part.to_owned(),
    };
    path.split('/').skip(2).map(name).collect()
}

part!(subsystem, Subsystem, "/v1/subsystems/{nqn}", "nqn");
part!(namespace, Namespace, "/v1/subsystems/{nqn}/namespaces/{nsid}", "nqn", "nsid");
part!(host, Host, "/v1/subsystems/{nqn}/hosts/{host}", "nqn", "host");
part!(listener, Listener, "/v1/listeners/{address}", "address");
part!(referral, Referral, "/v1/referrals/{address}", "address");

enum Edit {
    Replace(Bytes),
    Patch(Bytes),
    Remove,
}

fn as_value(document: &Document) -> Value {
    serde_json::to_value(document).expect("our own types are JSON")
}

fn missing(place: &[String]) -> Refused {
    Refused::Missing(place.join("."))
}

fn read_part(steering: &Steering, place: &[String]) -> Response {
    let (document, etag) = steering.document();
    let names: Vec<&str> = place.iter().map(String::as_str).collect();
    match pointer(&mut as_value(&document), &names) {
        Some(part) => json(StatusCode::OK, Some(&etag), format!("{part:#}\n")),
        None => refused(&missing(place)),
    }
}

async fn edit_part(
    steering: Arc<Steering>,
    headers: &HeaderMap,
    place: Vec<String>,
    change: Edit,
) -> Response {
    edit(steering, headers, move |document| edited(document, &place, &change)).await
}

/// The document with a part of it changed.
fn edited(document: &Document, place: &[String], change: &Edit) -> Result<Document, Refused> {
    let mut value = as_value(document);
    let names: Vec<&str> = place.iter().map(String::as_str).collect();
    let (last, above) = names.split_last().expect("nothing is at the top");
    let above = pointer(&mut value, above).and_then(Value::as_object_mut);
    let above = above.ok_or_else(|| missing(&place[..place.len() - 1]))?;
    let parse = |body: &Bytes| {
        serde_json::from_slice::<Value>(body).map_err(|error| {
            Refused::Problem(Problem::new("", format!("this is no JSON: {error}")))
        })
    };
    match change {
        Edit::Replace(body) => {
            above.insert((*last).to_owned(), parse(body)?);
        }
        Edit::Patch(body) => {
            patch(above.get_mut(*last).ok_or_else(|| missing(place))?, &parse(body)?);
        }
        Edit::Remove => {
            above.remove(*last).ok_or_else(|| missing(place))?;
        }
    }
    Document::parse(&value.to_string()).map_err(Refused::Problem)
}

async fn edit(
    steering: Arc<Steering>,
    headers: &HeaderMap,
    change: impl FnOnce(&Document) -> Result<Document, Refused> + Send + 'static,
) -> Response {
    let expected = headers.get(header::IF_MATCH).and_then(|value| value.to_str().ok());
    let expected = expected.map(ToOwned::to_owned);
    // A disk may take its time.
    let work = move || steering.change(expected.as_deref(), change);
    answer(tokio::task::spawn_blocking(work).await)
}

fn answer(done: Result<Result<Changed, Refused>, tokio::task::JoinError>) -> Response {
    match done {
        Ok(Ok(Changed { steps, etag })) => {
            let done = Done { changed: steps };
            let text = serde_json::to_string_pretty(&done).expect("our own types are JSON");
            json(StatusCode::OK, Some(&etag), text)
        }
        Ok(Err(refusal)) => refused(&refusal),
        Err(error) => {
            let detail = error.to_string();
            trouble(StatusCode::INTERNAL_SERVER_ERROR, "the target has a fault", &detail)
        }
    }
}

fn refused(refusal: &Refused) -> Response {
    let (status, title) = match refusal {
        Refused::Stale(_) => (StatusCode::PRECONDITION_FAILED, "changed meanwhile"),
        Refused::Problem(_) => (StatusCode::UNPROCESSABLE_ENTITY, "cannot be meant"),
        Refused::Missing(_) => (StatusCode::NOT_FOUND, "not found"),
        Refused::Failed(_) => (StatusCode::CONFLICT, "cannot be done"),
        Refused::Store(..) => (StatusCode::INSUFFICIENT_STORAGE, "cannot be kept"),
        Refused::Configuration(_) => (StatusCode::CONFLICT, "no such configuration"),
    };
    let (detail, field) = match refusal {
        Refused::Problem(problem) => (problem.sentence.clone(), Some(problem.field.clone())),
        other => (other.to_string(), None),
    };
    let field = field.filter(|field| !field.is_empty());
    problem(&Trouble { title, status: status.as_u16(), detail, field }, status)
}

fn trouble(status: StatusCode, title: &'static str, detail: &str) -> Response {
    let detail = detail.to_owned();
    problem(&Trouble { title, status: status.as_u16(), detail, field: None }, status)
}

fn problem(trouble: &Trouble, status: StatusCode) -> Response {
    let text = serde_json::to_string_pretty(trouble).expect("our own types are JSON");
    let kind = [(header::CONTENT_TYPE, "application/problem+json")];
    (status, kind, text + "\n").into_response()
}

fn json(status: StatusCode, etag: Option<&str>, text: String) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    match etag {
        Some(etag) => (status, kind, [(header::ETAG, etag)], text).into_response(),
        None => (status, kind, text).into_response(),
    }
}
