//! The HTTP interface of a target that is a member of a group: shows the group, and passes an
//! operator's orders to it.

use crate::problems::{Outcome, PROBLEM, Trouble, trouble};
use crate::steering::Steering;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use farblock_admin_api::GroupOrder;
use serde_json::Value;
use std::sync::Arc;

pub(crate) fn router() -> Router<Arc<Steering>> {
    Router::new().route("/v1/group", get(group_read).post(group_order))
}

fn none() -> Response {
    trouble(StatusCode::NOT_FOUND, "not found", "this target is not a member of a group")
}

fn json(value: &Value) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::OK, kind, format!("{value:#}\n")).into_response()
}

/// Reads the group as this member sees it: the members, the ANA groups with their leaders, and the
/// last events.
#[utoipa::path(get, path = "/v1/group",
    responses((status = 200, body = Value),
        (status = "4XX", body = Trouble, content_type = PROBLEM)))]
pub(crate) async fn group_read(State(steering): State<Arc<Steering>>) -> Response {
    steering.group().map_or_else(none, |group| json(&group.status()))
}

/// Passes an order to the group.
#[utoipa::path(post, path = "/v1/group", request_body = GroupOrder,
    responses((status = 200, body = Value),
        (status = "4XX", body = Trouble, content_type = PROBLEM)))]
pub(crate) async fn group_order(State(steering): State<Arc<Steering>>, body: Bytes) -> Response {
    let Some(group) = steering.group() else { return none() };
    let order: GroupOrder = match serde_json::from_slice(&body) {
        Ok(order) => order,
        Err(error) => {
            let detail = format!("this is not an order for a group: {error}");
            return trouble(StatusCode::UNPROCESSABLE_ENTITY, "invalid request", &detail);
        }
    };
    let said = order.to_string();
    // The store may be slow, so wait for it on a thread for blocking work.
    let done = tokio::task::spawn_blocking(move || group.order(&order)).await;
    match done {
        Ok(Ok(())) => {
            let mut answer = json(&serde_json::json!({ "changed": [said] }));
            answer.extensions_mut().insert(Outcome(said));
            answer
        }
        Ok(Err(sentence)) => trouble(StatusCode::CONFLICT, "the change failed", &sentence),
        Err(error) => {
            let title = "internal error of the target";
            trouble(StatusCode::INTERNAL_SERVER_ERROR, title, &error.to_string())
        }
    }
}
