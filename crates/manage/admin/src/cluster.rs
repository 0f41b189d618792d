//! The dashboard of several targets. The page gets a stream of the events of all targets
//! ([`gather`]), or a snapshot per request.
//!
//! The server queries all targets at the same time, and each for at most a second. So a target that
//! does not answer does not delay the others. The server forwards only data in the expected format.
//! A target that sends other data counts as unreachable. Authorized changes go through [`forward`].

use crate::events::stream;
use crate::forward;
use crate::gather::{self, Beside};
use crate::history::History;
use crate::nodes::{Node, ask};
use crate::problems::trouble;
use crate::ui::{self, Ui};
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The maximum number of pages that read events at the same time.
const READERS: usize = 8;

/// The query parameters of a snapshot request.
#[derive(Deserialize)]
struct Options {
    /// Whether to include the document of each target.
    #[serde(default)]
    documents: bool,
}

/// Information about this program, for the page.
#[derive(Serialize)]
struct About {
    version: &'static str,
    may_steer: bool,
    nodes: Vec<String>,
}

pub(crate) fn router(
    ui: Ui,
    nodes: Arc<[Node]>,
    beside: Beside,
    history: History,
    is_secure: bool,
) -> Router {
    let names = nodes.iter().map(|node| node.name.clone()).collect();
    let about = About { version: env!("CARGO_PKG_VERSION"), may_steer: ui.may_steer, nodes: names };
    let about = serde_json::to_value(about).expect("our types serialize to JSON");
    let steered = if ui.may_steer { forward::router(Arc::clone(&nodes)) } else { Router::new() };
    let shown = Shown { nodes, beside, readers: Arc::new(Semaphore::new(READERS)) };
    let nothing = async || trouble(StatusCode::NOT_FOUND, "not found", "this path does not exist");
    let inside = Router::new()
        .route("/v1/nodes", get(all))
        .route("/v1/events", get(events))
        .with_state(shown)
        .merge(steered)
        .merge(history.router())
        .fallback(nothing);
    ui::guarded(inside, about, ui, is_secure)
}

/// The targets on the page, and the limit on event readers.
#[derive(Clone)]
struct Shown {
    nodes: Arc<[Node]>,
    beside: Beside,
    readers: Arc<Semaphore>,
}

/// Streams the events of all targets.
async fn events(State(shown): State<Shown>) -> Response<Body> {
    stream(gather::stream(&shown.nodes, shown.beside, &shown.readers))
}

/// Queries all targets once.
async fn all(
    State(Shown { nodes, .. }): State<Shown>,
    Query(options): Query<Options>,
) -> Response<Body> {
    let mut asked = JoinSet::new();
    for (index, node) in nodes.iter().cloned().enumerate() {
        asked.spawn(async move { (index, ask(node, options.documents).await) });
    }
    let mut said = asked.join_all().await;
    said.sort_by_key(|(index, _)| *index);
    let said: Vec<_> = said.into_iter().map(|(_, said)| said).collect();
    Json(said).into_response()
}
