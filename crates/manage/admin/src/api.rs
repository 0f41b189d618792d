//! The HTTP interface.
//!
//! Every part of the target's configuration document has its own URL. The URL contains the part's
//! path in the document. Clients can read and change the part at this URL. The target validates and
//! applies a change of a part as a change of the whole document.

use crate::audit;
use crate::blame::located;
use crate::events::{Events, Happening, OfTarget, stream};
use crate::grouped;
use crate::metrics::{as_plain_text, render};
use crate::problems::{Outcome, PROBLEM, Trouble, problem, trouble};
use crate::steering::{Changed, Refused, Reread, Steering};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use farblock_admin_api::{
    AnaStatus, BudgetStatus, Confinement, ControllerStatus, Difference, GroupOrder, LegStatus,
    MirrorOrder, MirrorStatus, NamespaceStatus, Stats, Status, SubsystemStatus,
};
use farblock_state::{
    Ana, Document, Host, Limits, Listener, Namespace, Problem, Referral, Subsystem, Tls,
};
use farblock_state::{keys_kept, parse_json, patch, pointer, tls_inherited};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use utoipa::OpenApi;

type Steered = State<Arc<Steering>>;

/// The result of a change.
#[derive(Serialize, utoipa::ToSchema)]
struct Done {
    /// A sentence for each step; empty if the request changed nothing.
    changed: Vec<String>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
struct ReloadOptions {
    /// Only report what would change
    #[serde(default)]
    dry_run: bool,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
struct StatsOptions {
    /// Omit subsystems and hosts, and do not start measuring latency for this answer [default:
    /// false]
    #[serde(default)]
    totals: bool,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
struct EventOptions {
    /// Send the counters, too [default: true]
    #[serde(default = "yes")]
    stats: bool,
    /// Send the status and the document's version, too, at once and after each change [default:
    /// false]
    #[serde(default)]
    status: bool,
}

fn yes() -> bool {
    true
}

#[derive(OpenApi)]
#[openapi(
    modifiers(&Bearer),
    info(title = "farblock", description = "Controls a running target.", version = "1"),
    paths(
        state_read,
        state_replace,
        status,
        stats,
        events,
        metrics,
        reload,
        mirror,
        grouped::group_read,
        grouped::group_order,
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
        Ana,
        Limits,
        Referral,
        Done,
        Trouble,
        Status,
        Confinement,
        Stats,
        Tls,
        Happening,
        AnaStatus,
        BudgetStatus,
        SubsystemStatus,
        NamespaceStatus,
        LegStatus,
        MirrorStatus,
        MirrorOrder,
        GroupOrder,
        Difference,
        ControllerStatus
    ))
)]
struct Api;

/// The security scheme of the interface: each request on TCP must carry a token.
struct Bearer;

impl utoipa::Modify for Bearer {
    fn modify(&self, api: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder};
        use utoipa::openapi::security::{SecurityRequirement, SecurityScheme};
        let text = "serve --api and --ui require a token: one from the file of --api-tokens, with \
            the role read-only or admin, or the dashboard's token. The control socket requires \
            none, because only its owner can open it.";
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(text));
        let components = api.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(bearer.build()));
        let with: SecurityRequirement = SecurityRequirement::new("token", [""; 0]);
        api.security = Some(vec![SecurityRequirement::default(), with]);
    }
}

/// The OpenAPI description, as in `docs/openapi.json`.
pub fn openapi() -> String {
    let mut text = Api::openapi().to_pretty_json().expect("our types serialize to JSON");
    text.push('\n');
    text
}

pub(crate) fn router(steering: Arc<Steering>) -> Router {
    Router::new()
        .route("/v1/state", get(state_read).put(state_replace))
        .route("/v1/status", get(status))
        .route("/v1/stats", get(stats))
        .route("/v1/reload", post(reload))
        .route("/v1/subsystems/{nqn}/namespaces/{nsid}/mirror", post(mirror))
        .route("/metrics", get(metrics))
        .merge(grouped::router())
        .merge(subsystem::router())
        .merge(namespace::router())
        .merge(host::router())
        .merge(listener::router())
        .merge(referral::router())
        .fallback(async || trouble(StatusCode::NOT_FOUND, "not found", "this path does not exist"))
        .layer(axum::middleware::from_fn(audit::note))
        .with_state(steering)
}

/// The routes of the event stream.
pub(crate) fn told(steering: Arc<Steering>, all: Events) -> Router {
    Router::new()
        .route("/v1/events", get(events))
        .layer(axum::middleware::from_fn(audit::note))
        .with_state((steering, all))
}

/// Reads the whole document.
#[utoipa::path(get, path = "/v1/state", responses((status = 200, body = Document)))]
async fn state_read(State(steering): Steered) -> Response {
    look(move || {
        let (document, etag) = steering.document();
        json(StatusCode::OK, Some(&etag), document.to_json())
    })
    .await
}

/// Answers a request on a thread for blocking work. The request reads the document, and a change
/// may lock the document while it waits for slow disks.
async fn look(look: impl FnOnce() -> Response + Send + 'static) -> Response {
    tokio::task::spawn_blocking(look).await.unwrap_or_else(|error| fault(&error))
}

/// Replaces the whole document, and applies the differences.
#[utoipa::path(put, path = "/v1/state", request_body = Document,
    responses((status = 200, body = Done),
        (status = "4XX", body = Trouble, content_type = PROBLEM)))]
async fn state_replace(State(steering): Steered, headers: HeaderMap, body: Bytes) -> Response {
    let text = String::from_utf8_lossy(&body).into_owned();
    let only_new = is_only_new(&headers);
    let parse = move |document: &Document| {
        if only_new? {
            return Err(Refused::There("state".to_owned()));
        }
        let mut new = Document::parse_after(&text, document).map_err(Refused::Problem)?;
        // Parse the text again, as plain JSON: `document` does not show which fields the client
        // omitted.
        let said = serde_json::from_str(&text).expect("the document was parsed from this text");
        keys_kept(document, &said).map_err(Refused::Problem)?;
        tls_inherited(document, &said, &mut new);
        Ok(new)
    };
    edit(steering, &headers, Reread::All, parse).await
}

/// Reads the target's current status.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status)))]
async fn status(State(steering): Steered) -> Response {
    let text =
        serde_json::to_string_pretty(&steering.status()).expect("our types serialize to JSON");
    json(StatusCode::OK, None, text)
}

/// Reads the target's counters: I/O by core, subsystem, namespace and host, and connection
/// attempts.
#[utoipa::path(get, path = "/v1/stats", params(StatsOptions),
    responses((status = 200, body = Stats),
        (status = "4XX", body = Trouble, content_type = PROBLEM)))]
async fn stats(State(steering): Steered, Query(options): Query<StatsOptions>) -> Response {
    let stats = if options.totals { steering.totals() } else { steering.stats() };
    let text = serde_json::to_string(&stats).expect("our types serialize to JSON");
    json(StatusCode::OK, None, text)
}

/// Streams events as they happen (server-sent events), and the counters once a second. The data of
/// an event is a `Happening`, with these exceptions. `stats` has a `Stats`. `lost` has the number
/// of events that this client missed because it read too slowly. `status` has a `Status`.
/// `document` has the version of `/v1/state`.
#[utoipa::path(get, path = "/v1/events", params(EventOptions),
    responses((status = 200, body = Happening, content_type = "text/event-stream"),
        (status = "4XX", body = Trouble, content_type = PROBLEM),
        (status = 503, body = Trouble)))]
async fn events(
    State((steering, all)): State<(Arc<Steering>, Events)>,
    Query(options): Query<EventOptions>,
) -> Response {
    stream(all.stream(OfTarget::new(steering, options.stats, options.status)))
}

/// Reads the counters in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String)))]
pub(crate) async fn metrics(State(steering): Steered, headers: HeaderMap) -> Response {
    const OPEN: &str = "application/openmetrics-text";
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let text = render(steering.status(), steering.stats());
    let (kind, text) = match accepted.is_some_and(|accepted| accepted.contains(OPEN)) {
        true => ("application/openmetrics-text; version=1.0.0; charset=utf-8", text),
        false => ("text/plain; version=0.0.4; charset=utf-8", as_plain_text(&text)),
    };
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Reads the configuration file again, and applies its changes.
#[utoipa::path(post, path = "/v1/reload", params(ReloadOptions),
    responses((status = 200, body = Done),
        (status = "4XX", body = Trouble, content_type = PROBLEM)))]
async fn reload(State(steering): Steered, Query(options): Query<ReloadOptions>) -> Response {
    let work = move || steering.reload(options.dry_run);
    let mut answer = answer(tokio::task::spawn_blocking(work).await);
    if options.dry_run {
        answer.extensions_mut().remove::<Outcome>();
    }
    answer
}

/// Sends an order to a mirror that is in use. The status shows the result.
#[utoipa::path(post, path = "/v1/subsystems/{nqn}/namespaces/{nsid}/mirror",
    params(("nqn" = String, Path), ("nsid" = String, Path)), request_body = MirrorOrder,
    responses((status = 200, body = MirrorStatus),
        (status = "4XX", body = Trouble, content_type = PROBLEM)))]
async fn mirror(State(steering): Steered, names: Names, body: Bytes) -> Response {
    let order: MirrorOrder = match serde_json::from_slice(&body) {
        Ok(order) => order,
        Err(error) => {
            let problem = Problem::new("", format!("this is not an order for a mirror: {error}"));
            return refused(&Refused::Problem(problem));
        }
    };
    let name = |name: &str| names.get(name).cloned().unwrap_or_default();
    let (nqn, nsid) = (name("nqn"), name("nsid"));
    let found = nsid.parse().ok().and_then(|nsid| steering.order(&nqn, nsid, &order));
    let Some(status) = found else {
        let detail = format!("namespace {nsid} of {nqn} is not a shared mirror");
        return trouble(StatusCode::NOT_FOUND, "not found", &detail);
    };
    let text = serde_json::to_string_pretty(&status).expect("our types serialize to JSON");
    let mut answer = json(StatusCode::OK, None, text);
    let asked = serde_json::to_string(&order).expect("our types serialize to JSON");
    answer.extensions_mut().insert(Outcome(format!("order for namespace {nsid}: {asked}")));
    answer
}

/// Defines the four operations on a part of the document.
macro_rules! part {
    ($module:ident, $kind:ty, $path:literal, $($parameter:literal),+) => {
        mod $module {
            use super::*;

            pub(super) fn router() -> Router<Arc<Steering>> {
                let methods = get(read).put(replace).patch(change).delete(remove);
                Router::new().route($path, methods)
            }

            /// Reads this part of the document.
            #[utoipa::path(get, path = $path,
                operation_id = concat!("read_", stringify!($module)),
                params($(($parameter = String, Path)),+),
                responses((status = 200, body = $kind),
                    (status = "4XX", body = Trouble, content_type = PROBLEM)))]
            pub(super) async fn read(State(steering): Steered, names: Names) -> Response {
                look(move || read_part(&steering, &place($path, &names))).await
            }

            /// Replaces or creates this part of the document.
            #[utoipa::path(put, path = $path,
                operation_id = concat!("replace_", stringify!($module)),
                params($(($parameter = String, Path)),+), request_body = $kind,
                responses((status = 200, body = Done),
                    (status = "4XX", body = Trouble, content_type = PROBLEM)))]
            pub(super) async fn replace(
                State(steering): Steered,
                names: Names,
                headers: HeaderMap,
                body: Bytes,
            ) -> Response {
                let place = place($path, &names);
                edit_part(steering, &headers, place, Edit::Replace(body)).await
            }

            /// Changes this part of the document by a JSON merge patch (RFC 7396).
            #[utoipa::path(patch, path = $path,
                operation_id = concat!("change_", stringify!($module)),
                params($(($parameter = String, Path)),+), request_body = Value,
                responses((status = 200, body = Done),
                    (status = "4XX", body = Trouble, content_type = PROBLEM)))]
            pub(super) async fn change(
                State(steering): Steered,
                names: Names,
                headers: HeaderMap,
                body: Bytes,
            ) -> Response {
                let place = place($path, &names);
                edit_part(steering, &headers, place, Edit::Patch(body)).await
            }

            /// Removes this part of the document.
            #[utoipa::path(delete, path = $path,
                operation_id = concat!("remove_", stringify!($module)),
                params($(($parameter = String, Path)),+),
                responses((status = 200, body = Done),
                    (status = "4XX", body = Trouble, content_type = PROBLEM)))]
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

/// The parameters in a URL.
type Names = Path<HashMap<String, String>>;

/// The path of a part in the document, from the route `path` and its parameters.
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
    serde_json::to_value(document).expect("our types serialize to JSON")
}

/// Describes a document path in words. The path alternates between a plural kind and a name, such
/// as `subsystems`, `nqn.a`, `namespaces`, `7`.
fn called(place: &[String]) -> String {
    let one = |kind: &str| kind.strip_suffix('s').unwrap_or(kind).to_owned();
    let parts = place.chunks(2).rev().map(|part| match part {
        [kind, name] => format!("{} {name}", one(kind)),
        alone => one(&alone.concat()),
    });
    parts.collect::<Vec<_>>().join(" of ")
}

fn missing(place: &[String]) -> Refused {
    Refused::Missing(called(place))
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
    let reread = match (&place[..], &change) {
        ([_, nqn, part, host], Edit::Replace(_)) if part == "hosts" => {
            Reread::Host(nqn.clone(), host.clone())
        }
        ([_, nqn, part, nsid], Edit::Replace(_)) if part == "namespaces" => {
            nsid.parse().map_or(Reread::Nothing, |nsid| Reread::Namespace(nqn.clone(), nsid))
        }
        _ => Reread::Nothing,
    };
    let only_new = is_only_new(headers);
    let change = move |document: &Document| {
        if only_new? && is_there(document, &place) {
            return Err(Refused::There(called(&place)));
        }
        edited(document, &place, &change)
    };
    edit(steering, headers, reread, change).await
}

fn is_there(document: &Document, place: &[String]) -> bool {
    let names: Vec<&str> = place.iter().map(String::as_str).collect();
    pointer(&mut as_value(document), &names).is_some()
}

/// Returns the document with one part changed.
fn edited(document: &Document, place: &[String], change: &Edit) -> Result<Document, Refused> {
    let mut value = as_value(document);
    let names: Vec<&str> = place.iter().map(String::as_str).collect();
    let (last, above) = names.split_last().expect("the path of a part ends with its name");
    let above = pointer(&mut value, above).and_then(Value::as_object_mut);
    let above = above.ok_or_else(|| missing(&place[..place.len() - 1]))?;
    let parse = |body: &Bytes| parse_json(body).map_err(Refused::Problem);
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
    let mut new = Document::parse_after(&value.to_string(), document)
        .map_err(|problem| Refused::Problem(located(problem, &value, &names)))?;
    // These checks refuse a replacement that silently omits keys or TLS. A patch names each setting
    // that it removes.
    if !matches!(change, Edit::Patch(_)) {
        keys_kept(document, &value).map_err(Refused::Problem)?;
        tls_inherited(document, &value, &mut new);
    }
    Ok(new)
}

/// All values of this header, joined by commas. A value that is not text counts as an empty value.
fn said(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let mut all = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default());
    let first = all.next()?.to_owned();
    Some(all.fold(first, |said, next| said + "," + next))
}

/// Whether the request may only create a part that does not exist.
fn is_only_new(headers: &HeaderMap) -> Result<bool, Refused> {
    match said(headers, &header::IF_NONE_MATCH).as_deref() {
        None => Ok(false),
        Some("*") => Ok(true),
        Some(_) => {
            let sentence = "If-None-Match must be *, which creates only new objects";
            Err(Refused::Problem(Problem::new("", sentence)))
        }
    }
}

async fn edit(
    steering: Arc<Steering>,
    headers: &HeaderMap,
    reread: Reread,
    change: impl FnOnce(&Document) -> Result<Document, Refused> + Send + 'static,
) -> Response {
    let expected = said(headers, &header::IF_MATCH);
    // Disks may be slow, so make the change on a thread for blocking work.
    let work = move || steering.change(expected.as_deref(), &reread, change);
    answer(tokio::task::spawn_blocking(work).await)
}

fn answer(done: Result<Result<Changed, Refused>, tokio::task::JoinError>) -> Response {
    match done {
        Ok(Ok(changed)) => {
            let outcome = Outcome(changed.summary());
            let done = Done { changed: changed.steps };
            let text = serde_json::to_string_pretty(&done).expect("our types serialize to JSON");
            let mut answer = json(StatusCode::OK, Some(&changed.etag), text);
            answer.extensions_mut().insert(outcome);
            answer
        }
        Ok(Err(refusal)) => refused(&refusal),
        Err(error) => fault(&error),
    }
}

fn fault(error: &tokio::task::JoinError) -> Response {
    trouble(StatusCode::INTERNAL_SERVER_ERROR, "internal error of the target", &error.to_string())
}

fn refused(refusal: &Refused) -> Response {
    let (status, title) = match refusal {
        Refused::Stale(_) => (StatusCode::PRECONDITION_FAILED, "the document has changed"),
        Refused::There(_) => (StatusCode::PRECONDITION_FAILED, "already exists"),
        Refused::Problem(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid request"),
        Refused::Missing(_) => (StatusCode::NOT_FOUND, "not found"),
        Refused::Failed(_) => (StatusCode::CONFLICT, "the change failed"),
        Refused::Store(..) => (StatusCode::INSUFFICIENT_STORAGE, "the change cannot be stored"),
        Refused::Group(_) => (StatusCode::CONFLICT, "the group decides"),
        Refused::Configuration(_) => (StatusCode::CONFLICT, "no such configuration"),
    };
    let (detail, field) = match refusal {
        Refused::Problem(problem) => (problem.sentence.clone(), Some(problem.field.clone())),
        other => (other.to_string(), None),
    };
    let field = field.filter(|field| !field.is_empty());
    problem(&Trouble { title, status: status.as_u16(), detail, field }, status)
}

fn json(status: StatusCode, etag: Option<&str>, text: String) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    match etag {
        Some(etag) => (status, kind, [(header::ETAG, etag)], text).into_response(),
        None => (status, kind, text).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_object_is_named_in_words() {
        let said = |place: &[&str]| {
            missing(&place.iter().map(ToString::to_string).collect::<Vec<_>>()).to_string()
        };
        let place = ["subsystems", "nqn.a", "namespaces", "7"];
        assert_eq!(said(&place), "there is no namespace 7 of subsystem nqn.a");
        assert_eq!(said(&place[..3]), "there is no namespace of subsystem nqn.a");
        assert_eq!(said(&["listeners", "[::1]:1"]), "there is no listener [::1]:1");
    }

    #[test]
    fn a_request_removes_a_key_or_tls_only_explicitly() {
        const LISTENER: [&str; 2] = ["listeners", "127.0.0.1:4420"];
        const HOST: [&str; 4] = ["subsystems", "nqn.2026-11.s:a", "hosts", "nqn.2026-11.h:a"];
        let text = r#"{"version": 1, "listeners": {"127.0.0.1:4420": {"tls": "required"}},
            "subsystems": {"nqn.2026-11.s:a": {"hosts":
                {"nqn.2026-11.h:a": {"tls_key": "/key"}}}}}"#;
        let document = Document::parse(text).expect("a document");
        let patched = |place: &[&str], body: &'static str| {
            let place: Vec<_> = place.iter().map(|name| (*name).to_owned()).collect();
            edited(&document, &place, &Edit::Patch(Bytes::from_static(body.as_bytes())))
        };
        for (place, body) in [
            (&HOST[..], r#"{"limits": null, "limits": null}"#),
            (&HOST[..], "[]"),
            (&HOST[..2], r#"{"hosts": {"nqn.2026-11.h:a": []}}"#),
            (&HOST[..2], r#"{"hosts": []}"#),
            (&LISTENER[..], "[]"),
            (&LISTENER[..], "null"),
        ] {
            let refused = patched(place, body);
            assert!(matches!(refused, Err(Refused::Problem(_))), "{body}: {refused:?}");
        }
        let open = patched(&HOST, r#"{"tls_key": null}"#).expect("a valid patch");
        assert!(!open.subsystems[HOST[1]].hosts[HOST[3]].has_key());
        let another = ["listeners".to_owned(), "127.0.0.1:4421".to_owned()];
        let put = |body: &'static str| {
            let said = Edit::Replace(Bytes::from_static(body.as_bytes()));
            let new = edited(&document, &another, &said).expect("a valid patch");
            new.listeners[&"127.0.0.1:4421".parse().expect("an address")].tls
        };
        assert_eq!(put("{}"), Tls::Required, "an omitted tls becomes required");
        assert_eq!(put(r#"{"tls": "allowed"}"#), Tls::Allowed);
        let without = patched(&HOST[..2], r#"{"hosts": {"nqn.2026-11.h:a": null}}"#);
        assert!(without.expect("a valid patch").subsystems[HOST[1]].hosts.is_empty());
        let plain = patched(&LISTENER, r#"{"tls": "plain"}"#).expect("a valid patch");
        assert!(plain.listeners.values().all(|one| one.tls == Tls::Plain));
    }
}
